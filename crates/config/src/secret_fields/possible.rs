//! Visits what may be a secret in a document: all that the table of open keys does not show.

use super::addresses::{each_in_text, is_host};
use super::conditions::{each_in_condition, each_in_conditions, each_in_expression, is_condition};
use super::open_keys::{ShownPart, is_known_plugin, shown};
use super::{Each, each_secret};
use serde_json::{Map, Value as Json};
use stillgate_schema::partial_json::UNREADABLE;

/// Parts of the names of keys and headers whose values are secrets, in lower case and with underscores.
pub(super) const SECRET_WORDS: [&str; 14] = [
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

/// The most bytes of a key that is shown.
const KEY_BYTES_MAX: usize = 128;

/// Visits all that may be a secret in a document of a collection, some of it more than once: texts, numbers, and names of keys in
/// places where nothing is known. What [`UNREADABLE`] names is the reason why a part could not be read.
pub fn each_possible_secret(collection: &str, document: &mut Json, each: Each<'_>) {
    each_secret(collection, document, each);
    match document {
        Json::Object(fields) => each_in_object(collection, fields, each),
        other => each_below(other, each),
    }
}

/// Whether the value with this name is a secret.
pub(super) fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace('-', "_");
    SECRET_WORDS.iter().any(|word| name.contains(word))
}

/// `within`: the plugin, the upstream or the collection that has these fields.
pub(super) fn each_in_object(within: &str, fields: &mut Map<String, Json>, each: Each<'_>) {
    hide_names(fields, &is_key, each);
    for (name, field) in fields.iter_mut().filter(|(name, _)| *name != UNREADABLE) {
        let within = if name == "upstream" { "upstream" } else { within };
        match shown(within, name) {
            Some(shown) => each_in_field(within, shown, field, each),
            None => each_below(field, each),
        }
    }
}

fn each_in_field(within: &str, shown: ShownPart, field: &mut Json, each: Each<'_>) {
    match (shown, field) {
        (ShownPart::Conditions, field) => each_in_conditions(within, field, each),
        (ShownPart::Expression, Json::String(text)) => each_in_expression(text, each),
        (ShownPart::Fields, field) => each_in_fields(field, each),
        (ShownPart::Public, field) => each_in_public(field, each),
        (ShownPart::Plugins, field) => each_in_plugins(field, each),
        (ShownPart::Plain, Json::Array(items)) if is_condition(items) => each_in_condition(items, each),
        (ShownPart::Plain | ShownPart::Nodes | ShownPart::Variables, Json::Array(items)) => {
            items.iter_mut().for_each(|item| each_in_field(within, shown, item, each));
        }
        (ShownPart::Plain | ShownPart::Nodes, Json::Bool(_) | Json::Number(_) | Json::Null) => {}
        (ShownPart::Plain, Json::Object(fields)) => each_in_object(within, fields, each),
        (ShownPart::Nodes, Json::Object(fields)) => each_in_nodes(within, fields, each),
        (ShownPart::Variables, Json::Object(fields)) => {
            hide_names(fields, &is_log_field, each);
            fields.values_mut().for_each(|field| each_in_field(within, shown, field, each));
        }
        (
            ShownPart::Address | ShownPart::PublicAddress | ShownPart::Path | ShownPart::Certificates,
            Json::Array(items),
        ) => {
            items.iter_mut().for_each(|item| each_in_field(within, shown, item, each));
        }
        (_, Json::String(text)) => each_in_text(shown, text, each),
        (_, other) => each_below(other, each),
    }
}

/// Visits a value of which nothing is known: its texts, its numbers and its keys.
pub(super) fn each_below(value: &mut Json, each: Each<'_>) {
    match value {
        Json::String(text) => each(text),
        Json::Number(number) => {
            let written = number.to_string();
            let mut text = written.clone();
            each(&mut text);
            if text != written {
                *value = Json::String(text);
            }
        }
        Json::Array(items) => items.iter_mut().for_each(|item| each_below(item, each)),
        Json::Object(fields) => {
            hide_names(fields, &|name| name == UNREADABLE, each);
            for (_, field) in fields.iter_mut().filter(|(name, _)| *name != UNREADABLE) {
                each_below(field, each);
            }
        }
        Json::Null | Json::Bool(_) => {}
    }
}

/// `{"127.0.0.1:80": 1}`, or the fields of one node.
fn each_in_nodes(within: &str, fields: &mut Map<String, Json>, each: Each<'_>) {
    hide_names(fields, &is_host, each);
    for (name, field) in fields {
        match (shown(within, name), &field) {
            (_, Json::Number(_)) => {}
            (Some(shown), _) => each_in_field(within, shown, field, each),
            (None, _) => each_below(field, each),
        }
    }
}

/// Visits the plugins of `{"NAME": CONFIGURATION}`, or of a list of those.
fn each_in_plugins(value: &mut Json, each: Each<'_>) {
    match value {
        Json::Array(items) => items.iter_mut().for_each(|item| each_in_plugins(item, each)),
        Json::Object(plugins) => {
            hide_names(plugins, &is_key, each);
            for (name, plugin) in plugins.iter_mut().filter(|(name, _)| *name != UNREADABLE) {
                match plugin {
                    Json::Object(fields) if is_known_plugin(name) => each_in_object(name, fields, each),
                    Json::Object(fields) => each_in_unknown_plugin(fields, each),
                    other => each_below(other, each),
                }
            }
        }
        other => each_below(other, each),
    }
}

/// Visits all of a plugin's configuration but `_meta`, which all plugins have.
fn each_in_unknown_plugin(fields: &mut Map<String, Json>, each: Each<'_>) {
    const META: &str = "_meta";
    hide_names(fields, &|name| name == META || name == UNREADABLE, each);
    for (name, field) in fields.iter_mut().filter(|(name, _)| *name != UNREADABLE) {
        match field {
            Json::Object(fields) if name == META => each_in_object("", fields, each),
            other => each_below(other, each),
        }
    }
}

/// Visits the values of `{"NAME": "VALUE"}`, of `["NAME: VALUE"]`, and of either below `add` and `set`. A list of names has no
/// values.
fn each_in_fields(fields: &mut Json, each: Each<'_>) {
    match fields {
        Json::Array(items) => {
            items
                .iter_mut()
                .filter(|item| item.as_str().is_none_or(|text| !is_field_name(text)))
                .for_each(|item| each_below(item, each));
        }
        Json::Object(fields) => {
            hide_names(fields, &is_field_name, each);
            for (name, field) in fields {
                match (name.as_str(), &field) {
                    ("add" | "set", Json::Object(_) | Json::Array(_)) => each_in_fields(field, each),
                    ("remove", Json::Array(_)) => each_in_fields(field, each),
                    _ => each_below(field, each),
                }
            }
        }
        other => each_below(other, each),
    }
}

/// Visits the secrets of a value that clients receive: those with the name of one, and those that look like one.
fn each_in_public(value: &mut Json, each: Each<'_>) {
    match value {
        Json::String(text) => each_in_text(ShownPart::Public, text, each),
        Json::Array(items) => items.iter_mut().for_each(|item| each_in_public(item, each)),
        Json::Object(fields) => {
            for (name, field) in fields {
                if is_secret_name(name) { each_below(field, each) } else { each_in_public(field, each) }
            }
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

/// Visits the names that are not shown.
fn hide_names(fields: &mut Map<String, Json>, is_shown: &dyn Fn(&str) -> bool, each: Each<'_>) {
    let others: Vec<String> = fields.keys().filter(|name| !is_shown(name)).cloned().collect();
    for name in others {
        let mut other = name.clone();
        each(&mut other);
        if other != name
            && let Some(field) = fields.shift_remove(&name)
        {
            fields.insert(other, field);
        }
    }
}

/// Whether a name may be meant as a key. Others may be a value in the wrong place: a header, a login or an address.
fn is_key(name: &str) -> bool {
    name.len() <= KEY_BYTES_MAX && !name.contains(|c: char| c.is_whitespace() || ":@=/?&".contains(c))
}

/// Whether a name may be meant as a field of a log: Elasticsearch and Logstash write `@timestamp`. A login has text before the `@`.
fn is_log_field(name: &str) -> bool {
    is_key(name.strip_prefix('@').unwrap_or(name))
}

/// Whether a text is a valid header name.
fn is_field_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn seen(visit: fn(&str, &mut Json, Each<'_>), collection: &str, mut document: Json) -> Vec<String> {
        let mut seen = Vec::new();
        visit(collection, &mut document, &mut |text| {
            // A text that is seen again has been replaced.
            if !text.starts_with('\n') {
                seen.push(text.clone());
                text.insert(0, '\n');
            }
        });
        seen
    }

    #[test]
    fn what_is_not_open_may_be_a_secret() {
        let check = |document: Json, expected: &[&str]| {
            let found = seen(each_possible_secret, "routes", document.clone());
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
            plugins(json!({"redirect": {"uri": "https://no/?token=t", "regex_uri": ["^/a", "https://no/a?b=$arg_c"]}})),
            &["token=t"],
        );
        check(
            json!({"vars": [["http_x_api_key", "==", "k"], ["cookie_id", "!", "in", ["c"]], ["host", "==", "no"]]}),
            &["k", "c"],
        );
        check(plugins(json!({"opa": {"host": "http://no/?x=1", "policy": "no/a?sig=s"}})), &["?x=1", "sig=s"]);
        check(plugins(json!({"http-logger": {"uri": "https://hooks.test/services/T0/B1"}})), &["services/T0/B1"]);
        check(plugins(json!({"proxy-rewrite": {"headers": {"set": {"Bearer S3CRET": "v"}}}})), &["Bearer S3CRET", "v"]);
        check(plugins(json!({"response-rewrite": {"headers": {"set": {"X": "no", "Access-Token": "t"}}}})), &["t"]);
        check(plugins(json!({"unknown": [{"deep": {"n": ["s"], "m": 3}}]})), &["deep", "n", "m", "s", "3"]);
        check(plugins(json!({"cors": {"endpont": "s", "t": 83_749_201}})), &["s", "83749201"]);
        let meta = json!({"priority": 3, "filter": [["http_x", "==", "f"]]});
        check(plugins(json!({"own": {"header": "s", "_meta": meta}})), &["header", "f", "s"]);
        check(plugins(json!("s")), &["s"]);
        check(json!([{"uri": "s"}]), &["uri", "s"]);
        check(json!("s"), &["s"]);
        check(json!({"Vars": [["http_x", "==", "s"]]}), &["http_x", "==", "s"]);
        check(
            json!({"name": "no", "labels": {"team": "no", "api_key": "k"}, "priority": 3, "a b": true}),
            &["a b", "k"],
        );
        let schema = json!({"properties": {"n": {"const": "s"}}});
        let of_schema = ["properties", "n", "const", "s"];
        check(plugins(json!({"request-validation": {"header_schema": schema, "rejected_msg": "no"}})), &of_schema);
        check(plugins(json!({"body-transformer": {"request": {"template": "t", "input_format": "json"}}})), &["t"]);
        check(plugins(json!({"loki-logger": {"endpoint_uri": "/push/s", "log_labels": {"job": "no"}}})), &["/push/s"]);
        let format = json!({"a": "$remote_addr:$status", "b": "s", "c": "$password", "d": "remote_addr"});
        check(plugins(json!({"file-logger": {"log_format": format, "path": "/no"}})), &["s", "$password"]);
        let names = json!({"@timestamp": "$time_iso8601", "user:password@host": "$host", "@a@b": "$host"});
        check(plugins(json!({"file-logger": {"log_format": names}})), &["user:password@host", "@a@b"]);
        check(plugins(json!({"limit-count": {"key": "$remote_addr $http_x", "count": 1}})), &[]);
        check(plugins(json!({"limit-count": {"key": "s", "redis_password": "p"}})), &["p", "s"]);
        check(plugins(json!({"csrf": {"key": "remote_addr"}})), &["remote_addr"]);
        check(
            json!({"upstream": {"key": "remote_addr", "type": "no", "nodes": {"127.0.0.1:80": 1, "[::1]:80": 1}}}),
            &[],
        );
        check(json!({"upstream": {"nodes": {"u:p@h:1": 1}}}), &["u:p@h:1"]);
        check(json!({"upstream": {"nodes": [{"host": "u:p@h", "port": 1, "weigth": "s"}]}}), &["u:p@h", "s"]);
        check(plugins(json!({"multi-auth": {"auth_plugins": [{"key-auth": {"header": "no", "key": "k"}}]}})), &["k"]);
    }

    #[test]
    fn certificates_are_shown_without_private_keys() {
        let check = |cert: &str, expected: &[&str]| {
            let found = seen(each_possible_secret, "ssls", json!({"snis": ["no"], "cert": cert}));
            assert_eq!(found, expected, "{cert}");
        };
        let cert = "-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n";
        let key = "-----BEGIN RSA PRIVATE KEY-----\nk\n-----END RSA PRIVATE KEY-----\n";
        check(cert, &[]);
        check("/etc/no.pem", &[]);
        check(&format!("{cert}{key}"), &[key]);
        check(&format!("{key}{cert}"), &[key]);
        check("MIIEvQIBADANBgkqhkiG9w0BAQEF", &["MIIEvQIBADANBgkqhkiG9w0BAQEF"]);
        let cut = "-----BEGIN PRIVATE KEY-----\nk";
        check(&format!("{cert}{cut}"), &[cut]);
    }
}
