//! From the keys of a datastore to resources and back.

use stillgate_config::{Kind, path_of};
use stillgate_datastore::Key;

const CREDENTIALS: &str = "/credentials/";

/// The resource that a key names; `None`: what other programs keep there.
pub(crate) fn resource_of(key: &Key) -> Option<(Kind, String)> {
    let id = key.id();
    let kind = Kind::named(key.collection())?;
    match (kind, id.split('/').count()) {
        (Kind::Consumers, 3) => {
            let (name, credential) = id.split_once(CREDENTIALS)?;
            Some((Kind::Credentials, format!("{name}/{credential}")))
        }
        // They have no collection of their own.
        (Kind::Credentials, _) => None,
        (Kind::Secrets, 2) => Some((kind, id.to_owned())),
        (Kind::Secrets, _) => None,
        (_, 1) => Some((kind, id.to_owned())),
        _ => None,
    }
}

/// The key of a resource.
pub(super) fn key_of(kind: Kind, id: &str) -> Option<Key> {
    Key::parse(&path_of(kind, id)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_name_resources() {
        let check = |key: &str, expected: Option<(Kind, &str)>| {
            let key = Key::parse(key).unwrap();
            let found = resource_of(&key);
            assert_eq!(found, expected.map(|(kind, id)| (kind, id.to_owned())), "{key}");
            if let Some((kind, id)) = found {
                assert_eq!(key_of(kind, &id), Some(key));
            }
        };
        check("routes/1", Some((Kind::Routes, "1")));
        check("consumers/jack", Some((Kind::Consumers, "jack")));
        check("consumers/jack/credentials/1", Some((Kind::Credentials, "jack/1")));
        check("consumers/jack/keys/1", None);
        check("credentials/1", None);
        check("secrets/vault/1", Some((Kind::Secrets, "vault/1")));
        check("secrets/1", None);
        check("plugin_metadata/cors", Some((Kind::PluginMetadata, "cors")));
        check("routes/1/2", None);
        check("data_plane/server_info/x", None);
    }
}
