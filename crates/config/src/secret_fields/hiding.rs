//! Removes secrets from findings about a resource: the status, logs and answers repeat them, and more people read those than the
//! resource.

use super::addresses::{is_reference, is_variables};
use super::conditions::{KEYS, is_known_word, may_read_secret};
use super::each_possible_secret;
use super::open_keys::is_known_key;
use serde_json::Value as Json;
use stillgate_route::Expression;
use stillgate_schema::text::diagnostic::{Diagnostic, Errors, Sink};

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
                    if may_read_secret(text) && Expression::parse(text).is_err() {
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
    use crate::model::Kind;
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
            let reason = alone.check_alone(Kind::Routes, &document.to_string()).unwrap_err();
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
        let reason = alone.check_alone(Kind::Routes, &expression("http.path == /found").to_string()).unwrap_err();
        assert!(reason.contains("/found"), "{reason}");
    }
}
