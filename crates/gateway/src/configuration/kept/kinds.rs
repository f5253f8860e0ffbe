//! The kinds of datastores, listed in [`KINDS`]; each has a module of its own for all that is particular to it.

use super::backend::DatastoreKind;
use super::{etcd, store};
use stillgate_config::Gateway;

/// All kinds.
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
