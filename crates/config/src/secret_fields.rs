//! Defines which parts of a document are secrets, in three sets: those that are encrypted at rest, those that an export masks, and
//! those that may be a secret, which viewers and messages do not show. [`each_possible_secret`] applies to every page and message.
//!
//! The encrypted ones are APISIX's (`encrypt_fields` of its plugins, private keys), so that both can read the other's documents.
//! What may be a secret is everything that is not listed as open ([`open_keys`]): a misspelt key, a value in the wrong place and
//! the configuration of an unknown plugin may contain anything.

mod addresses;
mod conditions;
mod open_keys;
mod possible;

pub use conditions::{is_secret_field, masked_expression};
pub use open_keys::{is_known_key, is_known_plugin};
pub use possible::each_possible_secret;

use addresses::{is_reference, is_variables};
use conditions::{KEYS, is_known_word, may_read_secret};
use serde_json::Value as Json;
use stillgate_route::Expression;
use stillgate_schema::secret_texts::has_private_key;
use stillgate_schema::text::diagnostic::{Diagnostic, Errors, Sink, login_of};

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

/// Private keys of upstreams that are written in plugins. APISIX does not encrypt them, but decrypts them where it uses them.
const UPSTREAM_KEYS_OF_PLUGINS: [(&str, &[&[&str]]); 1] =
    [("traffic-split", &[&["rules", "weighted_upstreams", "upstream", "tls", "client_key"]])];

/// The certificates beside them.
const UPSTREAM_CERTIFICATES_OF_PLUGINS: [(&str, &[&[&str]]); 1] =
    [("traffic-split", &[&["rules", "weighted_upstreams", "upstream", "tls", "client_cert"]])];

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
            visit_path(document, &["key"], each);
            visit_path(document, &["keys"], each);
        }
        "upstreams" => visit_path(document, &["tls", "client_key"], each),
        "routes" | "services" | "stream_routes" => {
            visit_path(document, &["upstream", "tls", "client_key"], each);
            of_all_plugins(document, each);
        }
        "consumers" | "credentials" | "consumer_groups" | "plugin_configs" | "global_rules" => {
            of_all_plugins(document, each);
        }
        _ => {}
    }
}

fn of_all_plugins(document: &mut Json, each: Each<'_>) {
    of_plugins(document, &OF_PLUGINS, each);
    of_plugins(document, &UPSTREAM_KEYS_OF_PLUGINS, each);
}

/// Visits the secrets of plugins inside of plugins: those that are actions of `workflow`. APISIX neither encrypts nor decrypts them, so
/// this is for documents that it does not read.
pub fn each_nested(document: &mut Json, each: Each<'_>) {
    let rules = document.pointer_mut("/plugins/workflow/rules").and_then(Json::as_array_mut);
    for rule in rules.into_iter().flatten() {
        for action in rule.get_mut("actions").and_then(Json::as_array_mut).into_iter().flatten() {
            let Some([Json::String(name), configuration]) = action.as_array_mut().map(Vec::as_mut_slice) else {
                continue;
            };
            encrypted_fields(name).for_each(|path| visit_path(configuration, path, each));
        }
    }
}

/// Visits all secrets of a document.
pub fn each_secret(collection: &str, document: &mut Json, each: Each<'_>) {
    match collection {
        "secrets" => OF_MANAGERS.iter().for_each(|path| visit_path(document, path, each)),
        "plugin_metadata" => visit_path(document, OF_METADATA, each),
        _ => each_nested(document, each),
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
    paths.iter().for_each(|path| visit_path(document, path, &mut visit));
    of_plugins(document, &UPSTREAM_CERTIFICATES_OF_PLUGINS, &mut visit);
}

fn of_plugins(document: &mut Json, table: &[(&str, &[&[&str]])], each: Each<'_>) {
    let Some(plugins) = document.get_mut("plugins").and_then(Json::as_object_mut) else { return };
    for (name, paths) in table {
        let Some(configuration) = plugins.get_mut(*name) else { continue };
        paths.iter().for_each(|path| visit_path(configuration, path, each));
    }
}

fn visit_path(document: &mut Json, path: &[&str], each: Each<'_>) {
    match (path, document) {
        ([], document) => texts(document, each),
        (_, Json::Array(items)) => items.iter_mut().for_each(|item| visit_path(item, path, each)),
        ([key, rest @ ..], document) => {
            if let Some(value) = document.get_mut(*key) {
                visit_path(value, rest, each);
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

// Removes secrets from findings about a resource: the status, logs and answers repeat them, and more people read those than the
// resource.

/// The least bytes of a text that is hidden in messages. Hiding shorter ones would make messages unreadable.
const HIDDEN_BYTES_MIN: usize = 4;

/// Keys with functions in Lua, whose messages quote parts of them.
const FUNCTIONS: [&str; 5] = ["function", "functions", "filter_func", "pre_function", "script"];

/// Keys with header fields, whose messages quote parts of them.
const REQUEST_FIELDS: [&str; 6] =
    ["headers", "extra_headers", "req_headers", "request_headers", "set_headers", "metadata_headers"];

/// Words of Lua's grammar, which its error messages contain.
const LUA_WORDS: [&str; 22] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "goto", "if", "in", "local", "nil",
    "not", "or", "repeat", "return", "then", "true", "until", "while",
];

/// Hides possible secrets of a document in a collection: whole values, and parts of code and conditions.
pub(crate) fn hide(collection: &str, document: &mut Json, sink: &mut Sink) {
    hide_parts(document, sink);
    each_possible_secret(collection, document, &mut |text| {
        // A reference, a variable, a mask or a word that messages use is not a secret.
        let is_open = is_reference(text) || is_variables(text) || is_known_key(text) || is_message_word(text);
        if text.len() >= HIDDEN_BYTES_MIN && !is_open && text.contains(|c| c != '*') {
            sink.hide(text);
        }
    });
}

/// Whether a text is a word of JSON or HTTP that is in messages, whatever it was in the document.
fn is_message_word(text: &str) -> bool {
    ["true", "false", "null", "http", "https", "header", "headers"].contains(&text) || is_known_word(text)
}

fn hide_parts(value: &Json, sink: &mut Sink) {
    match value {
        Json::Array(items) => items.iter().for_each(|item| hide_parts(item, sink)),
        Json::Object(fields) => {
            for (name, field) in fields {
                let among = |keys: &[&'static str]| keys.iter().copied().find(|key| *key == name.as_str());
                if let Some(key) = among(&FUNCTIONS) {
                    each_text(field, &mut |text| sink.hide_words(key, text, &|word| LUA_WORDS.contains(&word)));
                } else if let Some(key) = among(&REQUEST_FIELDS) {
                    each_text(field, &mut |text| sink.hide_words(key, text, &is_variables));
                } else if let ("expression", Json::String(text)) = (name.as_str(), field) {
                    let may_have_secret = may_read_secret(text) || login_of(text).is_some();
                    if may_have_secret && Expression::parse(text).is_err() {
                        sink.hide_words("expression", text, &is_known_word);
                    }
                } else if let Some(key) = among(&KEYS) {
                    hide_texts_of_conditions(key, field, sink);
                } else {
                    hide_parts(field, sink);
                }
            }
        }
        _ => {}
    }
}

/// A text in place of a list is usually a whole condition.
fn hide_texts_of_conditions(key: &'static str, value: &Json, sink: &mut Sink) {
    match value {
        Json::String(text) if text.contains(|c: char| !c.is_ascii_alphanumeric() && c != '_') => {
            sink.hide_words(key, text, &is_known_word);
        }
        Json::Array(items) => items.iter().for_each(|item| hide_texts_of_conditions(key, item, sink)),
        Json::Object(_) => hide_parts(value, sink),
        _ => {}
    }
}

fn each_text(value: &Json, visit: &mut dyn FnMut(&str)) {
    match value {
        Json::String(text) => visit(text),
        Json::Array(items) => items.iter().for_each(|item| each_text(item, visit)),
        Json::Object(fields) => fields.values().for_each(|field| each_text(field, visit)),
        _ => {}
    }
}

/// Like the above for collected findings. `document`: the collection and the document of the resource at a path (`routes[3]`), if
/// there is one.
pub(crate) fn hide_in(errors: &mut Errors, mut document: impl FnMut(&str) -> Option<(&'static str, Json)>) {
    let mut last: Option<(String, Sink)> = None;
    for found in &mut errors.diagnostics {
        let Some(end) = found.path.find(']').map(|at| at + 1) else { continue };
        let resource = &found.path[..end];
        if last.as_ref().is_none_or(|(path, _)| path != resource) {
            let mut sink = Sink::default();
            if let Some((collection, mut document)) = document(resource) {
                hide(collection, &mut document, &mut sink);
            }
            last = Some((resource.to_owned(), sink));
        }
        if let Some((_, sink)) = &last {
            let plain: Diagnostic = found.clone();
            *found = sink.cover(plain);
        }
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
        for collection in ["routes", "services", "plugin_configs", "global_rules", "consumers", "consumer_groups"] {
            check(collection, split.clone(), &["p", "k"]);
        }
        let action = json!([["limit-count", {"redis_password": "r", "key": "no"}], ["return", {"code": 403}], "no"]);
        let workflow = json!({"plugins": {"workflow": {"rules": [{"actions": action}, 5]}}});
        check("routes", workflow.clone(), &[]);
        assert_eq!(seen(each_secret, "routes", workflow), ["r"]);
        let collector = json!({"collector": {"request_headers": {"Authorization": "a"}, "address": "no"}});
        assert_eq!(seen(each_secret, "plugin_metadata", collector), ["a"]);
    }
}

#[cfg(test)]
mod hiding_tests {
    use crate::model::ResourceKind;
    use crate::resources::PluginSet;
    use crate::store::Store;
    use serde_json::json;

    #[test]
    fn reasons_show_fields_and_no_values() {
        let gateway = crate::load("routes: []", &|_| None).unwrap().config.gateway;
        let alone = Store::new(gateway, PluginSet::default());
        let check = |keys: serde_json::Value, expected: &str| {
            let mut document = json!({"upstream": {"nodes": {"127.0.0.1:1": 1}}});
            document.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
            let reason = alone.checker().check(ResourceKind::Routes, &document.to_string()).unwrap_err();
            assert!(reason.contains(expected) && !reason.contains("S3CRET"), "{keys}: {reason}");
        };
        let vars = |vars: serde_json::Value| json!({"uri": "/a", "vars": vars});
        check(
            vars(json!([["http_authorization", "Bearer S3CRET-1"]])),
            "no operator; write [\"http_authorization\", \"==\"",
        );
        check(vars(json!([["http_authorization", "=", "S3CRET-1"]])), "vars[0]");
        check(vars(json!([["http_authorization == S3CRET-1"]])), "vars[0]");
        check(vars(json!("http_authorization == S3CRET-1")), "vars: ");
        check(vars(json!({"http_authorization": "S3CRET-1"})), "vars: ");
        check(vars(json!([["http_x", "~~", "(S3CRET-1"]])), "vars[0]");
        let expression = |text: &str| json!({"expression": text});
        check(
            expression("http.headers.authorization == S3CRET-1"),
            "expected a text in double quotes, found `(hidden)`",
        );
        check(expression("http.headers.authorization = \"Bearer S3CRET-1\""), "expression: ");
        check(expression("http.headers.x == \"S3CRET-1"), "expression: ");
        check(expression("cookie.session == \"S3CRET-1\""), "expression: ");
        // Text that reads no secret is unchanged.
        let reason =
            alone.checker().check(ResourceKind::Routes, &expression("http.path == /found").to_string()).unwrap_err();
        assert!(reason.contains("/found"), "{reason}");
    }
}
