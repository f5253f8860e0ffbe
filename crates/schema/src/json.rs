//! JSON as the tree that keys are read from: a document of a store is read by the same tables as a file.
//!
//! Environment variables are not substituted here: an author of a store's documents must not read the gateway's
//! environment.

use crate::partial_json::UNREADABLE;
use serde_json::{Number, Value as Json};
use stillgate_yaml::diagnostic::{Path, Position, Sink};
use stillgate_yaml::scalar::{Scalar, ScalarLayout, Style};
use stillgate_yaml::tree::{DEPTH_MAX, Entry, Node, SCALAR_BYTES_MAX, Value};

/// The position of everything in a document: a path is more useful than a line of JSON. No file has a line 0.
pub const DOCUMENT: Position = Position::NOWHERE;

/// The tree of a document; values out of bounds or [`UNREADABLE`] are reported, and refused.
pub fn node(json: &Json, path: &Path<'_>, sink: &mut Sink) -> Node {
    below(json, DEPTH_MAX, path, sink)
}

fn below(json: &Json, depth: usize, path: &Path<'_>, sink: &mut Sink) -> Node {
    let scalar = |text: &str, style| Value::Scalar(Scalar { text: text.into(), style, layout: ScalarLayout::Unknown });
    let value = match json {
        Json::Array(_) | Json::Object(_) if depth == 0 => {
            sink.error(DOCUMENT, path, format!("more than {DEPTH_MAX} lists and maps inside one another"));
            Value::Refused
        }
        Json::Array(items) => {
            let item = |(index, item)| below(item, depth - 1, &path.index(index), sink);
            Value::List(items.iter().enumerate().map(item).collect())
        }
        Json::Object(entries) if depth < DEPTH_MAX && entries.contains_key(UNREADABLE) => {
            unreadable(&entries[UNREADABLE], path, sink)
        }
        Json::Object(entries) => {
            let entry = |(key, value): (&String, &Json)| {
                let value = match key == UNREADABLE {
                    true => Node { at: DOCUMENT, value: unreadable(value, path, sink) },
                    false => below(value, depth - 1, &path.key(key), sink),
                };
                Entry { key: key.as_str().into(), key_at: DOCUMENT, value }
            };
            Value::Map(entries.iter().map(entry).collect())
        }
        Json::String(text) if text.len() > SCALAR_BYTES_MAX => {
            sink.error(DOCUMENT, path, format!("the text is longer than {SCALAR_BYTES_MAX} bytes"));
            Value::Refused
        }
        Json::String(text) => scalar(text, Style::Quoted),
        Json::Null => scalar("null", Style::Plain),
        Json::Bool(value) => scalar(if *value { "true" } else { "false" }, Style::Plain),
        Json::Number(number) => scalar(&written(number), Style::Plain),
    };
    Node { at: DOCUMENT, value }
}

/// `why` is the value under [`UNREADABLE`].
fn unreadable(why: &Json, path: &Path<'_>, sink: &mut Sink) -> Value {
    match why.as_str() {
        Some(why) => sink.error(DOCUMENT, path, format!("not JSON: {why}")),
        // The value before has reported it.
        None if sink.has_errors() => {}
        None => sink.error(DOCUMENT, path, "not JSON"),
    }
    Value::Refused
}

/// A whole number is one in every notation: JSON Schema makes no difference between 1, 1.0 and 1e0.
fn written(number: &Number) -> String {
    /// Up to here a float has every whole number.
    const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;
    match number.as_f64() {
        Some(value) if number.is_f64() && value.fract() == 0.0 && value.abs() <= WHOLE_MAX => format!("{value:.0}"),
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_document_is_what_its_text_is() {
        let text = r#"{"a": [1, 1.5, true, null, "x", "1", ""], "b": {"c": "\u00e9\t\"${PATH}"}}"#;
        let mut sink = Sink::default();
        let seen = format!("{:?}", node(&serde_json::from_str(text).unwrap(), &Path::Root, &mut sink));
        assert!(!sink.has_errors());
        for part in ["\"1.5\"", "\"é\\t\\\"${PATH}\"", "Quoted", "\"null\", style: Plain"] {
            assert!(seen.contains(part), "{part} in {seen}");
        }
    }

    #[test]
    fn whole_numbers_are_whole() {
        let check = |json: &str, want: &str| {
            let read = node(&serde_json::from_str(json).unwrap(), &Path::Root, &mut Sink::default());
            let Value::Scalar(scalar) = read.value else { panic!("{json}") };
            assert_eq!(&*scalar.text, want, "{json}");
        };
        check("1.0", "1");
        check("-2.0", "-2");
        check("1e3", "1000");
        check("1.5", "1.5");
        check("1e300", "1e+300");
        check("18446744073709551615", "18446744073709551615");
    }

    #[test]
    fn what_cannot_be_read_is_refused_by_itself() {
        let check = |json: Json, path: &str, refused: &[&str]| {
            let mut sink = Sink::for_single_resource();
            let read = node(&json, &Path::Root, &mut sink);
            let Value::Map(entries) = &read.value else { panic!("{json}") };
            let found: Vec<&str> =
                entries.iter().filter(|of| of.value.value == Value::Refused).map(|of| &*of.key).collect();
            assert_eq!(found, refused, "{json}");
            let errors = sink.into_errors().diagnostics;
            let found: Vec<(&str, &str)> = errors.iter().map(|error| (&*error.path, &*error.message)).collect();
            assert_eq!(found, [(path, "not JSON: why")], "{json}");
        };
        check(json!({"a": {UNREADABLE: "why"}, "b": 1}), "a", &["a"]);
        check(json!({"a": [1, {UNREADABLE: "why"}]}), "a[1]", &[]);
        check(json!({"b": 1, UNREADABLE: "why"}), "", &[UNREADABLE]);
        check(json!({"a": {UNREADABLE: "why"}, UNREADABLE: null}), "a", &["a", UNREADABLE]);
        // It is never treated as absent.
        for json in [json!({UNREADABLE: null}), json!({"a": {UNREADABLE: 7}}), json!({"a": {"b": 1, UNREADABLE: null}})]
        {
            let mut sink = Sink::default();
            node(&json, &Path::Root, &mut sink);
            assert!(sink.has_errors(), "{json}");
        }
    }

    #[test]
    fn a_document_has_bounds() {
        let deep = |depth: usize| (0..depth).fold(json!(1), |inner, _| json!([inner]));
        for (json, is_refused) in [
            (deep(DEPTH_MAX), false),
            (deep(DEPTH_MAX + 1), true),
            (json!("x".repeat(SCALAR_BYTES_MAX)), false),
            (json!("x".repeat(SCALAR_BYTES_MAX + 1)), true),
        ] {
            let mut sink = Sink::default();
            node(&json, &Path::Root, &mut sink);
            assert_eq!(sink.has_errors(), is_refused);
        }
    }
}
