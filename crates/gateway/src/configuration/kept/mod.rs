//! Resources that are kept outside the file: in an embedded store, or in etcd.
//!
//! ```text
//!  datastore ─▶ Batch ─▶ Keeper: plain documents, and the store that says what they mean ─▶ DatastoreSource ─▶ reload
//!     ▲                     │ attempt: would it be rejected?
//!     └── Transaction ◀─────┴───────────── Admin API
//! ```
//!
//! One thread talks to the datastore; it takes changes in and makes those that are requested, one after the other, so that what was
//! checked is what is written. The control loop is only notified that there is something new.

mod addresses;
mod backend;
mod encryption;
mod etcd;
mod keeper;
mod kinds;
mod open;
mod source;
mod store;
mod thread;
mod trial;

use crate::upgrade::DatastoreState;
pub(crate) use addresses::resource_of;
pub(crate) use backend::DatastoreKind;
pub(crate) use encryption::{Offline, back_up, read_store};
pub(crate) use keeper::DatastoreTraits;
pub(crate) use keeper::{FollowStatus, FollowedRevision, Keeper, ServedRevision};
pub(crate) use open::{OpenStore, problem};
pub(crate) use source::DatastoreSource;
use std::path::Path;
use stillgate_config::{Gateway, LoadedConfig, Replacement};
pub(crate) use thread::{CommittedChange, StoreCopy, StoreRequest, WriteFailure};
pub(crate) use trial::Trial;

/// What is served of the datastore that a configuration is from; `None`: it is from a file.
pub(crate) fn datastore_state(loaded: &LoadedConfig) -> Option<DatastoreState> {
    let gateway = &loaded.config.gateway;
    let kind = DatastoreKind::of(gateway)?;
    let addresses = (kind.addresses)(gateway).join(",");
    let place = format!("{} {addresses}{}", kind.traits.name, gateway.config.key_prefix());
    let unserved = loaded.rejected.iter().filter(|rejected| rejected.serving != Replacement::Previous).count();
    Some(DatastoreState { place, unserved: u32::try_from(unserved).unwrap_or(u32::MAX) })
}

/// The file that the datastore of a `gateway:` section writes, with the key that names it.
pub(crate) fn written_file(gateway: &Gateway) -> Option<(&'static str, &Path)> {
    (DatastoreKind::of(gateway)?.file)(gateway)
}
