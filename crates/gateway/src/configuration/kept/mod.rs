//! Resources that are kept outside the file: in an embedded store, or in etcd.
//!
//! ```text
//!  datastore ─▶ Batch ─▶ Keeper: plain documents, and the store that says what they mean ─▶ KeptSource ─▶ reload
//!     ▲                     │ attempt: would it be rejected?
//!     └── Transaction ◀─────┴───────────── Admin API
//! ```
//!
//! One thread talks to the datastore; it takes changes in and makes those that are requested, one after the other, so that what was
//! checked is what is written. The control loop is only notified that there is something new.

mod addresses;
mod backend;
mod embedded_file;
mod encryption;
mod keeper;
mod open;
mod snapshot_file;
mod thread;
mod trial;

use crate::upgrade::DatastoreState;
pub(crate) use addresses::resource_of;
pub(crate) use encryption::{Offline, back_up, read_store};
pub(crate) use keeper::{FollowStatus, FollowedRevision, Keeper, ServedRevision};
pub(crate) use open::{KeptSource, OpenStore, problem};
use stillgate_config::{LoadedConfig, Replacement, SourceKind};
pub(crate) use thread::{CommittedChange, StoreCopy, StoreRequest, WriteFailure};
pub(crate) use trial::Trial;

/// What is served of the datastore that a configuration is from; `None`: it is from a file.
pub(crate) fn datastore_state(loaded: &LoadedConfig) -> Option<DatastoreState> {
    let config = &loaded.config.gateway.config;
    let place = match config.source {
        SourceKind::File => return None,
        SourceKind::Store => format!("store {}", config.store.display()),
        SourceKind::Etcd => {
            config.etcd.as_ref().map(|etcd| format!("etcd {}{}", etcd.endpoints.join(","), etcd.prefix))?
        }
    };
    let unserved = loaded.rejected.iter().filter(|rejected| rejected.serving != Replacement::Previous).count();
    Some(DatastoreState { place, unserved: u32::try_from(unserved).unwrap_or(u32::MAX) })
}
