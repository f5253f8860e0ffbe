//! Converts keys of a datastore to resources and back.

use stillgate_config::{Kind, path_of};
use stillgate_datastore::Key;

const CREDENTIALS: &str = "/credentials/";

/// The resource that a key names; `None`: what other programs keep there.
pub(crate) fn resource_of(key: &Key) -> Option<(Kind, String)> {
    let id = key.id();
    let kind = Kind::named(key.collection())?;
    match (kind, id.split('/').count()) {
        (Kind::Consumers, 2..) => Some(match id.split_once(CREDENTIALS) {
            Some((name, credential)) if !name.is_empty() && !name.contains('/') && !credential.is_empty() => {
                (Kind::Credentials, format!("{name}/{credential}"))
            }
            _ => (kind, id.to_owned()),
        }),
        // They have no collection of their own.
        (Kind::Credentials, _) => None,
        (Kind::Secrets, 2) => Some((kind, id.to_owned())),
        // No reference can name another.
        (Kind::Secrets, _) => None,
        // APISIX serves an id with a slash; here the resource is refused.
        _ => Some((kind, id.to_owned())),
    }
}

/// The key of a resource.
pub(super) fn key_of(kind: Kind, id: &str) -> Option<Key> {
    Key::found(&path_of(kind, id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_name_resources() {
        let check = |key: &str, expected: Option<(Kind, &str)>| {
            let key = Key::found(key).unwrap();
            let found = resource_of(&key);
            assert_eq!(found, expected.map(|(kind, id)| (kind, id.to_owned())), "{key}");
            if let Some((kind, id)) = found {
                assert_eq!(key_of(kind, &id), Some(key));
            }
        };
        check("routes/1", Some((Kind::Routes, "1")));
        check("consumers/jack", Some((Kind::Consumers, "jack")));
        check("consumers/jack/credentials/1", Some((Kind::Credentials, "jack/1")));
        check("consumers/jack/keys/1", Some((Kind::Consumers, "jack/keys/1")));
        check("consumers/jack/credentials/", Some((Kind::Consumers, "jack/credentials/")));
        check("consumers/jack/credentials/1/2", Some((Kind::Credentials, "jack/1/2")));
        check("consumers/a/b/credentials/1", Some((Kind::Consumers, "a/b/credentials/1")));
        check("consumers//credentials/1", Some((Kind::Consumers, "/credentials/1")));
        check("secrets/vault/1/2", None);
        check("credentials/1", None);
        check("secrets/vault/1", Some((Kind::Secrets, "vault/1")));
        check("secrets/1", None);
        check("plugin_metadata/cors", Some((Kind::PluginMetadata, "cors")));
        check("routes/1/2", Some((Kind::Routes, "1/2")));
        check("routes/..", Some((Kind::Routes, "..")));
        check("nothing/1/2", None);
        check("data_plane/server_info/x", None);
    }
}
