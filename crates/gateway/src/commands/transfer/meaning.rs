//! Whether two documents mean the same: without ids, and without what is as if it were not written.
//!
//! What a key is by default says the JSON Schema, which is made of the same tables that read the documents. What is not
//! recognised as equal is only written once too often: the second time it is.

use super::resources::{Name, without_possible_secrets};
use serde_json::{Map, Value as Json};
use std::sync::LazyLock;
use stillgate_config::{Kind, Schemas};
use stillgate_schema::mask::{MASK, is_masked};

/// Places that a line names; more are counted.
const PLACES_MAX: usize = 8;

/// Characters of a value that is shown.
const SHOWN_CHARS_MAX: usize = 40;

static SCHEMAS: LazyLock<Vec<Option<Json>>> = LazyLock::new(|| {
    let schemas = Schemas::new(stillgate_plugins::TABLE);
    Kind::all().map(|kind| schemas.kind(kind)).collect()
});

/// The differences of two documents, as `uri: /a -> /b`; none where they mean the same. What may be a secret is not shown, since
/// logs of other programs keep these lines. Where `there` has a mask, nothing is known.
pub(super) fn differences(name: &Name, here: &Json, there: &Json) -> Vec<String> {
    let (a, b) = (normal(name, here), normal(name, there));
    if a == b {
        return Vec::new();
    }
    let mut places = Vec::new();
    compare(&a, &b, "", &mut places);
    let (shown_a, shown_b) = (without_possible_secrets(name, &a), without_possible_secrets(name, &b));
    // A key that may be a secret is not found under its name.
    let value =
        |document: &Json, place: &DocumentDifference| at(document, &place.keys).map_or_else(|| MASK.to_owned(), shown);
    let left_out = places.len().saturating_sub(PLACES_MAX);
    let line = |place: &DocumentDifference| match (at(&a, &place.keys), at(&b, &place.keys)) {
        (Some(_), Some(_)) => match (value(&shown_a, place), value(&shown_b, place)) {
            (here, there) if here == there => format!("{} (a secret)", place.path),
            (here, there) => format!("{}: {there} -> {here}", place.path),
        },
        (Some(_), None) => format!("{}: + {}", place.path, value(&shown_a, place)),
        (None, _) => format!("{}: removed", place.path),
    };
    let mut lines: Vec<String> = places.iter().take(PLACES_MAX).map(line).collect();
    if left_out > 0 {
        lines.push(format!("and {left_out} more"));
    }
    lines
}

/// Whether both have the same certificates: then they have the same keys, too, whatever is shown of those.
pub(super) fn has_same_certificates(here: &Json, there: &Json) -> bool {
    ["cert", "certs"].iter().all(|name| here.get(*name) == there.get(*name))
}

fn normal(name: &Name, document: &Json) -> Json {
    let (kind, _) = name;
    let mut document = document.clone();
    if let Some(fields) = document.as_object_mut() {
        ["id", "create_time", "update_time"].iter().for_each(|added| drop(fields.shift_remove(*added)));
        if *kind == Kind::Ssls {
            // A key belongs to its certificate, and no answer has it.
            ["key", "keys"].iter().for_each(|hidden| drop(fields.shift_remove(*hidden)));
        }
    }
    match SCHEMAS.get(*kind as usize).and_then(Option::as_ref) {
        Some(schema) => by_schema(&document, schema, schema.get("$defs").unwrap_or(&Json::Null)),
        None => document,
    }
}

/// A value without the defaults in it.
fn by_schema(value: &Json, schema: &Json, defs: &Json) -> Json {
    let Some(schema) = fitting(value, schema, defs) else { return number(value) };
    match value {
        Json::Object(fields) => {
            let properties = schema.get("properties");
            let others = schema.get("additionalProperties").filter(|others| others.is_object());
            let mut normal = Map::new();
            for (name, field) in fields {
                match (properties.and_then(|all| all.get(name)), others) {
                    (Some(_), _) if field.is_null() => {}
                    (Some(known), _) => {
                        let field = by_schema(field, known, defs);
                        let default = known.get("default").map(|default| by_schema(default, known, defs));
                        if default.as_ref() != Some(&field) {
                            normal.insert(name.clone(), field);
                        }
                    }
                    (None, Some(others)) => drop(normal.insert(name.clone(), by_schema(field, others, defs))),
                    (None, None) => drop(normal.insert(name.clone(), number(field))),
                }
            }
            Json::Object(normal)
        }
        Json::Array(items) => match schema.get("items") {
            Some(of_items) => items.iter().map(|item| by_schema(item, of_items, defs)).collect(),
            None => number(value),
        },
        value => number(value),
    }
}

/// The part of a schema that a value is of.
fn fitting<'a>(value: &Json, schema: &'a Json, defs: &'a Json) -> Option<&'a Json> {
    if let Some(reference) = schema.get("$ref").and_then(Json::as_str) {
        let name = reference.strip_prefix("#/$defs/")?;
        return fitting(value, defs.get(name)?, defs);
    }
    let Some(choices) = schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Json::as_array) else {
        return Some(schema);
    };
    let choices: Vec<&Json> = choices.iter().filter_map(|choice| fitting(value, choice, defs)).collect();
    let of_type = |wanted: &str| {
        let is_wanted = move |schema: &&&Json| match schema.get("type") {
            Some(Json::String(own)) => own == wanted,
            Some(Json::Array(all)) => all.iter().any(|own| own == wanted),
            _ => false,
        };
        choices.iter().filter(is_wanted).copied().collect::<Vec<_>>()
    };
    match value {
        Json::Object(fields) => {
            let objects = of_type("object");
            let knows_all = |schema: &&&Json| fields.keys().all(|name| schema["properties"].get(name).is_some());
            objects.iter().find(knows_all).or(objects.first()).copied()
        }
        Json::Array(_) => of_type("array").first().copied(),
        _ => choices.first().copied(),
    }
}

/// 1.0 is 1, as Lua has it.
fn number(value: &Json) -> Json {
    match value {
        Json::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 1e15 => (float as i64).into(),
            _ => value.clone(),
        },
        Json::Array(items) => items.iter().map(self::number).collect(),
        Json::Object(fields) => {
            Json::Object(fields.iter().map(|(name, field)| (name.clone(), self::number(field))).collect())
        }
        value => value.clone(),
    }
}

/// Where two documents differ.
struct DocumentDifference {
    keys: Vec<String>,
    path: String,
}

fn compare(here: &Json, there: &Json, path: &str, places: &mut Vec<DocumentDifference>) {
    let mut walk = Walk { keys: Vec::new(), places };
    walk.compare(here, there, path);
}

struct Walk<'a> {
    keys: Vec<String>,
    places: &'a mut Vec<DocumentDifference>,
}

impl Walk<'_> {
    fn compare(&mut self, here: &Json, there: &Json, path: &str) {
        if here == there || there.as_str().is_some_and(is_masked) {
            return;
        }
        let (Json::Object(a), Json::Object(b)) = (here, there) else {
            self.places.push(DocumentDifference { keys: self.keys.clone(), path: path.to_owned() });
            return;
        };
        let added = b.keys().filter(|name| !a.contains_key(*name));
        for name in a.keys().chain(added) {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            self.keys.push(name.clone());
            match (a.get(name), b.get(name)) {
                (Some(here), Some(there)) => self.compare(here, there, &path),
                _ => self.places.push(DocumentDifference { keys: self.keys.clone(), path }),
            }
            self.keys.pop();
        }
    }
}

fn at<'a>(value: &'a Json, keys: &[String]) -> Option<&'a Json> {
    keys.iter().try_fold(value, |value, key| value.get(key))
}

fn shown(value: &Json) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use stillgate_admin::MASK;

    fn check(kind: Kind, here: Json, there: Json, expected: &[&str]) {
        assert_eq!(differences(&(kind, "1".to_owned()), &here, &there), expected, "{here} {there}");
    }

    #[test]
    fn what_means_the_same_does_not_differ() {
        check(
            Kind::Routes,
            json!({"uri": "/a", "status": 1, "priority": 0, "name": null, "upstream": {"type": "roundrobin", "nodes": {"a:80": 1}}}),
            json!({"id": "1", "uri": "/a", "create_time": 5, "upstream": {"nodes": {"a:80": 1.0}}}),
            &[],
        );
        check(
            Kind::Routes,
            json!({"uri": "/a", "plugins": {}}),
            json!({"uri": "/a", "plugins": {"cors": {}}}),
            &["plugins.cors: removed"],
        );
        check(
            Kind::Routes,
            json!({"uri": "/a"}),
            json!({"uri": "/b", "priority": 1}),
            &["uri: \"/b\" -> \"/a\"", "priority: removed"],
        );
        check(Kind::Ssls, json!({"cert": "c", "key": "k"}), json!({"cert": "c", "key": MASK}), &[]);
    }

    #[test]
    fn secrets_are_not_shown() {
        let with = |key: &str| json!({"username": "jack", "plugins": {"key-auth": {"key": key}}});
        check(Kind::Consumers, with("one"), with("two"), &["plugins.key-auth.key (a secret)"]);
        check(Kind::Consumers, with("one"), with(MASK), &[]);
        let route =
            |value: &str| json!({"plugins": {"proxy-rewrite": {"headers": {"set": {"X": value}}, "uri": value}}});
        check(
            Kind::Routes,
            route("/a?x=one"),
            route("/b?x=two"),
            &[
                "plugins.proxy-rewrite.headers.set.X (a secret)",
                "plugins.proxy-rewrite.uri: \"/b?********\" -> \"/a?********\"",
            ],
        );
        check(Kind::Routes, json!({"unknown": {"k": 1}}), json!({"unknown": {"k": 2}}), &["unknown.k (a secret)"]);
        check(
            Kind::Routes,
            json!({"vars": [["http_x", "==", "a"]]}),
            json!({}),
            &["vars: + [[\"http_x\",\"==\",\"********\"]]"],
        );
    }
}
