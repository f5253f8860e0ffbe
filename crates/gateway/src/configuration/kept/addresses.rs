//! Converts keys of a datastore to resources and back.

use stillgate_config::{ELSEWHERE, ResourceKind, path_of};
use stillgate_datastore::Key;

const CREDENTIALS: &str = "/credentials/";

/// The resource that a key names, whatever its id looks like; `None`: what other programs keep there.
pub(crate) fn resource_of(key: &Key) -> Option<(ResourceKind, String)> {
    let (path, id) = (key.as_str(), key.id());
    // Credentials have no collection of their own.
    let kind = ResourceKind::from_name(key.collection())
        .filter(|kind| *kind != ResourceKind::Credentials && path.contains('/'));
    match kind {
        Some(ResourceKind::Consumers) if credential_of(id).is_some() => {
            Some((ResourceKind::Credentials, credential_of(id)?))
        }
        Some(kind) if !id.starts_with(ELSEWHERE) => Some((kind, id.to_owned())),
        Some(kind) => Some((kind, format!("{ELSEWHERE}{path}"))),
        // APISIX reads all keys that begin like a collection: it serves `/apisix/routes_old/1` and `/apisix/routes` as routes.
        None => {
            let kinds =
                ResourceKind::all().filter(|kind| *kind != ResourceKind::Credentials && path.starts_with(kind.name()));
            Some((kinds.max_by_key(|kind| kind.name().len())?, format!("{ELSEWHERE}{path}")))
        }
    }
}

/// The credential that an id below `consumers/` names.
fn credential_of(id: &str) -> Option<String> {
    let (name, credential) = id.split_once(CREDENTIALS)?;
    let is_one = !name.is_empty() && !name.contains('/') && !credential.is_empty();
    is_one.then(|| format!("{name}/{credential}"))
}

/// The key of a resource.
pub(super) fn key_of(kind: ResourceKind, id: &str) -> Key {
    Key::from_etcd_path(&path_of(kind, id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_name_resources() {
        let check = |key: &str, expected: Option<(ResourceKind, &str)>| {
            let key = Key::from_etcd_path(key);
            let found = resource_of(&key);
            assert_eq!(found, expected.map(|(kind, id)| (kind, id.to_owned())), "{key}");
            if let Some((kind, id)) = found {
                assert_eq!(key_of(kind, &id), key);
            }
        };
        check("routes/1", Some((ResourceKind::Routes, "1")));
        check("consumers/jack", Some((ResourceKind::Consumers, "jack")));
        check("consumers/jack/credentials/1", Some((ResourceKind::Credentials, "jack/1")));
        check("consumers/jack/keys/1", Some((ResourceKind::Consumers, "jack/keys/1")));
        check("consumers/jack/credentials/", Some((ResourceKind::Consumers, "jack/credentials/")));
        check("consumers/jack/credentials/1/2", Some((ResourceKind::Credentials, "jack/1/2")));
        check("consumers/a/b/credentials/1", Some((ResourceKind::Consumers, "a/b/credentials/1")));
        check("consumers//credentials/1", Some((ResourceKind::Consumers, "/credentials/1")));
        check("secrets/vault/1/2", Some((ResourceKind::Secrets, "vault/1/2")));
        check("credentials/1", None);
        check("secrets/vault/1", Some((ResourceKind::Secrets, "vault/1")));
        check("secrets/1", Some((ResourceKind::Secrets, "1")));
        check("plugin_metadata/cors", Some((ResourceKind::PluginMetadata, "cors")));
        check("routes/1/2", Some((ResourceKind::Routes, "1/2")));
        check("routes/..", Some((ResourceKind::Routes, "..")));
        for kind in ResourceKind::all().filter(|kind| *kind != ResourceKind::Credentials) {
            let name = kind.name();
            check(&format!("{name}/"), Some((kind, "")));
            check(&format!("{name}//1"), Some((kind, "/1")));
            check(name, Some((kind, &format!("../{name}"))));
            check(&format!("{name}_old/1"), Some((kind, &format!("../{name}_old/1"))));
            check(&format!("{name}\u{fffd}ff/1"), Some((kind, &format!("../{name}\u{fffd}ff/1"))));
            check(&format!("{name}/../1"), Some((kind, &format!("../{name}/../1"))));
            check(&format!("/{name}/1"), None);
        }
        check("consumers/../credentials/1", Some((ResourceKind::Credentials, "../1")));
        for none in ["nothing/1/2", "", "/", "Routes/1", "route/1", "plugins", "plugins/1"] {
            check(none, None);
        }
        check("data_plane/server_info/x", None);
    }
}
