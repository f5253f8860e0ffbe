//! Defines which parts of a document are secrets, in three sets: those that are encrypted at rest, those that an export masks, and
//! those that may be a secret, which viewers and messages do not show. [`each_possible_secret`] applies to every page and message.
//!
//! The encrypted ones are APISIX's (`encrypt_fields` of its plugins, private keys), so that both can read the other's documents.
//! The largest set is based on names: a header of a request, the text of a function or a parameter of an address may contain
//! anything.

mod conditions;
mod hiding;

use conditions::{each_in_condition, each_in_conditions, each_in_expression, is_condition};
pub use conditions::{is_secret_field, masked_expression};
pub(crate) use hiding::{hide, hide_in};
use serde_json::{Map, Value as Json};
use std::ops::Range;
use stillgate_schema::partial_json::UNREADABLE;

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

/// Visits all texts of a document that may be secrets, some more than once.
pub fn each_possible_secret(collection: &str, document: &mut Json, each: Each<'_>) {
    each_secret(collection, document, each);
    by_names(document, false, each);
}

/// Parts of the names of keys and headers whose values are secrets, in lower case and with underscores.
const SECRET_WORDS: [&str; 14] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "private_key",
    "client_key",
    "api_key",
    "apikey",
    "access_key",
    "auth_key",
    "auth_header",
    "authorization",
    "credential",
];

/// Endings of such names whose values are not secrets: addresses or names.
const OPEN_ENDINGS: [&str; 5] = ["_endpoint", "_url", "_uri", "_name", "_type"];

/// Keys whose fields are sent to nodes and other servers.
const REQUEST_FIELDS: [&str; 6] =
    ["headers", "extra_headers", "req_headers", "request_headers", "set_headers", "metadata_headers"];

/// Plugins whose fields and bodies are sent to clients.
const OF_RESPONSES: [&str; 8] =
    ["response-rewrite", "redirect", "cors", "echo", "fault-injection", "mocking", "error-page", "api-breaker"];

/// Keys of paths that are sent to nodes and other servers, perhaps with a query.
const PATHS: [&str; 3] = ["uri", "http_path", "path"];

/// Keys of addresses that identify a schema and are not requested.
const REFERENCES: [&str; 3] = ["$schema", "$ref", "$id"];

/// Keys with functions in Lua.
const FUNCTIONS: [&str; 4] = ["functions", "filter_func", "pre_function", "script"];

/// Whether the value with this name is a secret.
fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace('-', "_");
    SECRET_WORDS.iter().any(|word| name.contains(word)) && !OPEN_ENDINGS.iter().any(|end| name.ends_with(end))
}

/// `is_of_response`: within a plugin that makes responses.
fn by_names(value: &mut Json, is_of_response: bool, each: Each<'_>) {
    match value {
        Json::String(text) => each_in_address("", text, is_of_response, each),
        Json::Array(items) if is_condition(items) => each_in_condition(items, each),
        Json::Array(items) => items.iter_mut().for_each(|item| by_names(item, is_of_response, each)),
        Json::Object(fields) => {
            for (name, field) in fields {
                if name == "plugins" {
                    // A text in place of a plugin's configuration, unless it explains why there is none.
                    let plugins = field.as_object_mut().into_iter().flatten();
                    let texts = plugins.filter(|(name, value)| *name != UNREADABLE && value.is_string());
                    texts.for_each(|(_, value)| at(value, &[], each));
                }
                if is_secret_name(name) || FUNCTIONS.contains(&name.as_str()) {
                    texts(field, each);
                } else if let ("expression", Json::String(text)) = (name.as_str(), &mut *field) {
                    each_in_expression(text, each);
                } else if conditions::KEYS.contains(&name.as_str()) {
                    each_in_conditions(field, is_of_response, each);
                } else if !is_of_response && REQUEST_FIELDS.contains(&name.as_str()) {
                    values_of_fields(field, each);
                } else if let Json::String(text) = &mut *field {
                    each_in_address(name, text, is_of_response, each);
                } else {
                    by_names(field, is_of_response || OF_RESPONSES.contains(&name.as_str()), each);
                }
            }
        }
        _ => {}
    }
}

/// Visits the values of `{"NAME": "VALUE"}`, of `["NAME: VALUE"]`, and of either below `add` and `set`. A list of names has no
/// values.
fn values_of_fields(fields: &mut Json, each: Each<'_>) {
    match fields {
        Json::String(text) => each(text),
        Json::Array(items) => {
            items
                .iter_mut()
                .filter(|item| item.as_str().is_none_or(|text| !is_field_name(text)))
                .for_each(|item| texts(item, each));
        }
        Json::Object(fields) => {
            hide_wrong_names(fields, each);
            for (name, field) in fields {
                match (name.as_str(), &field) {
                    ("add" | "set", Json::Object(_) | Json::Array(_)) => values_of_fields(field, each),
                    ("remove", Json::Array(_)) => {}
                    _ => scalars(field, each),
                }
            }
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

/// Visits names that are not valid header names: they may be a whole line, or a value.
fn hide_wrong_names(fields: &mut Map<String, Json>, each: Each<'_>) {
    let wrong: Vec<String> = fields.keys().filter(|name| !is_field_name(name)).cloned().collect();
    for name in wrong {
        let mut shown = name.clone();
        each(&mut shown);
        if shown != name
            && let Some(field) = fields.shift_remove(&name)
        {
            fields.insert(shown, field);
        }
    }
}

/// Whether a text is a valid header name.
fn is_field_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c))
}

/// Visits possible secrets in an address: a login, and the part after the host unless it is sent to clients. In a path with a
/// query, the query.
fn each_in_address(name: &str, text: &mut String, is_of_response: bool, each: Each<'_>) {
    if text.contains(char::is_whitespace) {
        return;
    }
    let mut secrets: Vec<Range<usize>> = Vec::new();
    let query = text.find('?').map(|at| at + 1..text.len()).filter(|query| text[query.clone()].contains('='));
    let is_secret_query = query.as_ref().is_some_and(|query| has_secret_parameter(&text[query.clone()]));
    match text.split_once("://") {
        Some((scheme, rest)) if scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c)) => {
            let begin = text.len() - rest.len();
            let end = begin + rest.find(['/', '?', '#']).unwrap_or(rest.len());
            if let Some(login) = text[begin..end].rfind('@') {
                secrets.push(begin..begin + login);
            }
            if is_of_response || REFERENCES.contains(&name) {
                secrets.extend(query.filter(|_| is_secret_query));
            } else if end + 1 < text.len() {
                secrets.push(end + 1..text.len());
            }
        }
        _ if !is_of_response && PATHS.contains(&name) || is_secret_query => secrets.extend(query),
        _ => {}
    }
    // From the end, so that earlier positions stay valid.
    for place in secrets.into_iter().rev() {
        let mut secret = text[place.clone()].to_owned();
        each(&mut secret);
        if text[place.clone()] != secret {
            text.replace_range(place, &secret);
        }
    }
}

/// Whether a query has a parameter with the name of a secret.
fn has_secret_parameter(query: &str) -> bool {
    let is_secret = |parameter: &str| {
        let (name, value) = parameter.split_once('=').unwrap_or_default();
        !value.is_empty() && (name == "key" || is_secret_name(name))
    };
    query.split('&').any(is_secret)
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

/// Like the above for numbers, which become texts if they are replaced.
fn scalars(value: &mut Json, each: Each<'_>) {
    match value {
        Json::Number(number) => {
            let written = number.to_string();
            let mut text = written.clone();
            each(&mut text);
            if text != written {
                *value = Json::String(text);
            }
        }
        Json::Array(items) => items.iter_mut().for_each(|item| scalars(item, each)),
        Json::Object(fields) => fields.values_mut().for_each(|field| scalars(field, each)),
        other => texts(other, each),
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

    #[test]
    fn what_may_be_a_secret_is_found_by_its_name() {
        let check = |document: Json, expected: &[&str]| {
            let mut found = seen(each_possible_secret, "routes", document.clone());
            found.retain(|text| text != "x");
            assert_eq!(found, expected, "{document}");
        };
        let plugins = |plugins: Json| json!({ "plugins": plugins });
        let rewrite =
            json!({"set": {"Authorization": "a", "X-B": "b"}, "add": ["X-C: c"], "remove": ["X-D"], "X-E": "e"});
        check(plugins(json!({"proxy-rewrite": {"headers": rewrite, "uri": "/no"}})), &["a", "b", "X-C: c", "e"]);
        check(plugins(json!({"proxy-rewrite": {"headers": {"set": {"X-N": 83_749_201}}}})), &["83749201"]);
        check(plugins(json!({"cors": {"_meta": {"pre_function": "f"}}})), &["f"]);
        check(json!({"expression": "http.headers.x_api_key == \"k\""}), &["k"]);
        check(json!({"expression": "http.path == \"/a\""}), &[]);
        check(
            plugins(json!({"forward-auth": {"extra_headers": {"X": "a"}, "request_headers": ["Authorization"]}})),
            &["a"],
        );
        let checks = json!({"active": {"req_headers": ["Authorization: a"], "http_path": "/no"}});
        check(json!({"checks": checks.clone()}), &["Authorization: a"]);
        check(json!({"upstream": {"checks": checks}}), &["Authorization: a"]);
        check(json!({"filter_func": "function() end", "script": "s"}), &["function() end", "s"]);
        check(plugins(json!({"serverless-pre-function": {"phase": "no", "functions": ["f", "g"]}})), &["f", "g"]);
        check(plugins(json!({"http-logger": {"uri": "http://a:b@host/", "include_req_body": true}})), &["a:b"]);
        check(plugins(json!({"proxy-rewrite": {"uri": "/a?x=1&api_key=k"}})), &["x=1&api_key=k"]);
        check(
            plugins(json!({"redirect": {"uri": "https://no/a?b=$arg_c", "to": "https://no/?token=t"}})),
            &["token=t"],
        );
        check(
            json!({"vars": [["http_x_api_key", "==", "k"], ["cookie_id", "!", "in", ["c"]], ["host", "==", "no"]]}),
            &["k", "c"],
        );
        check(plugins(json!({"opa": {"host": "http://no/?x=1", "token_endpoint": "http://no"}})), &["?x=1"]);
        check(plugins(json!({"http-logger": {"uri": "https://hooks.test/services/T0/B1"}})), &["services/T0/B1"]);
        check(plugins(json!({"proxy-rewrite": {"headers": {"set": {"Bearer S3CRET": "v"}}}})), &["Bearer S3CRET", "v"]);
        check(plugins(json!({"response-rewrite": {"headers": {"set": {"X": "no", "Access-Token": "t"}}}})), &["t"]);
        check(plugins(json!({"unknown": [{"deep": {"client-secret": ["s"], "max_tokens": 3}}]})), &["s"]);
    }
}
