//! Defines which parts of a document are secrets, in three sets: those that are encrypted at rest, those that an export masks, and
//! those that may be a secret, which viewers and messages do not show. [`each_possible_secret`] applies to every page and message.
//!
//! The encrypted ones are APISIX's (`encrypt_fields` of its plugins, private keys), so that both can read the other's documents.
//! What may be a secret is everything that is not listed as open ([`open_keys`]): a misspelt key, a value in the wrong place and
//! the configuration of an unknown plugin may contain anything.

mod addresses;
mod conditions;
mod hiding;
mod open_keys;
mod possible;

pub use conditions::{is_secret_field, masked_expression};
pub(crate) use hiding::{hide, hide_in};
pub use open_keys::{is_known_key, is_known_plugin};
pub use possible::each_possible_secret;
use serde_json::Value as Json;
use stillgate_schema::pem::has_private_key;

/// Called with a secret, which it may replace.
type Each<'a> = &'a mut dyn FnMut(&mut String);

/// Fields of plugins' configurations that APISIX encrypts. A field that is an object is encrypted in all its texts.
const OF_PLUGINS: [(&str, &[&[&str]]); 11] = [
    ("basic-auth", &[&["password"]]),
    ("csrf", &[&["key"]]),
    ("elasticsearch-logger", &[&["auth", "password"], &["headers"]]),
    ("hmac-auth", &[&["secret_key"]]),
    ("http-logger", &[&["auth_header"]]),
    ("jwt-auth", &[&["secret"], &["private_key"]]),
    ("key-auth", &[&["key"]]),
    ("limit-conn", &[&["redis_password"]]),
    ("limit-count", &[&["redis_password"], &["sentinel_password"]]),
    ("limit-req", &[&["redis_password"]]),
    ("loki-logger", &[&["headers"]]),
];

/// Secrets in plugins' configurations that APISIX does not encrypt.
const PLAIN_OF_PLUGINS: [(&str, &[&[&str]]); 1] =
    [("traffic-split", &[&["rules", "weighted_upstreams", "upstream", "tls", "client_key"]])];

/// A secret in the metadata of a plugin.
const OF_METADATA: &[&str] = &["collector", "request_headers"];

/// Secret fields that are not encrypted: logins of secret managers.
const OF_MANAGERS: [&[&str]; 3] = [&["token"], &["auth", "secret_id"], &["auth", "role_id"]];

/// The encrypted fields of a plugin, as paths.
pub fn encrypted_fields(plugin: &str) -> impl Iterator<Item = &'static [&'static str]> {
    let fields = OF_PLUGINS.iter().find(|(name, _)| *name == plugin).map_or(&[][..], |(_, fields)| *fields);
    fields.iter().copied()
}

/// Visits the encrypted values in a document of a collection (`routes`; `credentials` for credentials).
pub fn each_encrypted(collection: &str, document: &mut Json, each: Each<'_>) {
    match collection {
        "ssls" => {
            at(document, &["key"], each);
            at(document, &["keys"], each);
        }
        "upstreams" => at(document, &["tls", "client_key"], each),
        "routes" | "services" | "stream_routes" => {
            at(document, &["upstream", "tls", "client_key"], each);
            of_plugins(document, &OF_PLUGINS, each);
        }
        "consumers" | "credentials" | "consumer_groups" | "plugin_configs" | "global_rules" => {
            of_plugins(document, &OF_PLUGINS, each);
        }
        _ => {}
    }
}

/// Visits all secrets of a document.
pub fn each_secret(collection: &str, document: &mut Json, each: Each<'_>) {
    match collection {
        "secrets" => OF_MANAGERS.iter().for_each(|path| at(document, path, each)),
        "plugin_metadata" => at(document, OF_METADATA, each),
        _ => of_plugins(document, &PLAIN_OF_PLUGINS, each),
    }
    each_encrypted(collection, document, each);
}

/// Visits `cert` and `certs` of a certificate, and `client_cert` of an upstream, if a private key is in the same text, or if the text
/// may be encrypted. APISIX does not encrypt these, so this is for documents that it does not read.
pub fn each_combined_certificate(collection: &str, document: &mut Json, each: Each<'_>) {
    let paths: &[&[&str]] = match collection {
        "ssls" => &[&["cert"], &["certs"]],
        "upstreams" => &[&["tls", "client_cert"]],
        "routes" | "services" | "stream_routes" => &[&["upstream", "tls", "client_cert"]],
        _ => &[],
    };
    let mut visit = |text: &mut String| {
        // PEM contains dashes and blanks, a path contains a dot or a slash in front; a ciphertext has neither.
        let is_base64 = text.len() > 64 && text.chars().all(|c| c.is_ascii_alphanumeric() || "+/=".contains(c));
        if has_private_key(text) || is_base64 {
            each(text);
        }
    };
    paths.iter().for_each(|path| at(document, path, &mut visit));
}

fn of_plugins(document: &mut Json, table: &[(&str, &[&[&str]])], each: Each<'_>) {
    let Some(plugins) = document.get_mut("plugins").and_then(Json::as_object_mut) else { return };
    for (name, paths) in table {
        let Some(configuration) = plugins.get_mut(*name) else { continue };
        paths.iter().for_each(|path| at(configuration, path, each));
    }
}

fn at(document: &mut Json, path: &[&str], each: Each<'_>) {
    match (path, document) {
        ([], document) => texts(document, each),
        (_, Json::Array(items)) => items.iter_mut().for_each(|item| at(item, path, each)),
        ([key, rest @ ..], document) => {
            if let Some(value) = document.get_mut(*key) {
                at(value, rest, each);
            }
        }
    }
}

fn texts(value: &mut Json, each: Each<'_>) {
    match value {
        Json::String(text) => each(text),
        Json::Array(items) => items.iter_mut().for_each(|item| texts(item, each)),
        Json::Object(fields) => fields.values_mut().for_each(|field| texts(field, each)),
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn seen(visit: fn(&str, &mut Json, Each<'_>), collection: &str, mut document: Json) -> Vec<String> {
        let mut seen = Vec::new();
        visit(collection, &mut document, &mut |text| {
            seen.push(text.clone());
            "x".clone_into(text);
        });
        seen
    }

    #[test]
    fn secrets_are_found() {
        let check = |collection: &str, document: Json, expected: &[&str]| {
            assert_eq!(seen(each_encrypted, collection, document.clone()), expected, "{document}");
        };
        let plugins = json!({"plugins": {"key-auth": {"key": "k"}, "cors": {"key": "no"}, "basic-auth": 7}});
        for collection in ["routes", "consumers", "credentials", "global_rules", "plugin_configs", "services"] {
            check(collection, plugins.clone(), &["k"]);
        }
        check("ssls", json!({"key": "a", "keys": ["b", "c"], "cert": "no", "snis": ["no"]}), &["a", "b", "c"]);
        check("upstreams", json!({"tls": {"client_key": "k", "client_cert": "no"}}), &["k"]);
        check("routes", json!({"upstream": {"tls": {"client_key": "k"}}}), &["k"]);
        let logger = json!({"plugins": {"loki-logger": {"headers": {"A": "1", "B": {"c": "2"}}}}});
        check("routes", logger, &["1", "2"]);
        check("protos", json!({"key": "no"}), &[]);
        check("routes", json!(["plugins"]), &[]);
        let manager = json!({"token": "t", "auth": {"role_id": "r", "secret_id": "s"}, "uri": "no"});
        check("secrets", manager.clone(), &[]);
        assert_eq!(seen(each_secret, "secrets", manager), ["t", "s", "r"]);
        let split =
            json!({"rules": [{"weighted_upstreams": [{"upstream": {"tls": {"client_key": "k"}}}, {"weight": 1}]}]});
        let split = json!({"plugins": {"traffic-split": split, "jwt-auth": {"private_key": "p", "public_key": "no"}}});
        check("routes", split.clone(), &["p"]);
        assert_eq!(seen(each_secret, "routes", split), ["k", "p"]);
        let collector = json!({"collector": {"request_headers": {"Authorization": "a"}, "address": "no"}});
        assert_eq!(seen(each_secret, "plugin_metadata", collector), ["a"]);
    }
}
