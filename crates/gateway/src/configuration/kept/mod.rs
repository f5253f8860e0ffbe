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
mod source;
mod store;
mod thread;
mod trial;

pub(crate) use addresses::resource_of;
pub(crate) use backend::DatastoreKind;
pub(crate) use encryption::{Offline, back_up, read_store};
pub(crate) use keeper::{DatastoreTraits, FollowStatus, FollowedRevision, Keeper, ServedRevision};
pub(crate) use source::{DatastoreSource, OpenStore, problem};
pub(crate) use thread::{CommittedChange, StoreCopy, StoreRequest, WriteFailure};
pub(crate) use trial::Trial;

use crate::upgrade::DatastoreState;
use std::path::Path;
use stillgate_config::{Gateway, LoadedConfig, Replacement};

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

/// All kinds; each has a module of its own for all that is particular to it.
const KINDS: &[&DatastoreKind] = &[&store::KIND, &etcd::KIND];

impl DatastoreKind {
    /// The kind that a `gateway:` section selects; `None`: its resources are in the file.
    pub(crate) fn of(gateway: &Gateway) -> Option<&'static DatastoreKind> {
        KINDS.iter().find(|kind| kind.source == gateway.config.source).copied()
    }

    /// Where it is, for people.
    pub(crate) fn address(&self, gateway: &Gateway) -> String {
        (self.addresses)(gateway).join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_config::SourceKind;

    #[test]
    fn every_source_but_the_file_is_a_datastore() {
        for (name, source) in SourceKind::ALL {
            let kinds: Vec<_> =
                KINDS.iter().filter(|kind| kind.source == *source).map(|kind| kind.traits.name).collect();
            assert_eq!(kinds, Vec::from_iter((!source.is_file()).then_some(*name)), "{name}");
        }
    }
}
