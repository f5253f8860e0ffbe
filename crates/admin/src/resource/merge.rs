//! The effect of PATCH on a document: the merge of an object, or the replacement of the value at a path.
//!
//! Both work as in APISIX, with two fixes: a path can contain list indexes, and `null` at its end deletes.

use serde_json::{Map, Value as Json};

/// The most parts of a path. Missing objects on the way are created nested, and must not exhaust the stack.
const PATH_PARTS_MAX: usize = 64;

/// Merges objects: `null` deletes, lists and empty objects are replaced, other objects are merged.
pub(crate) fn merge(target: &mut Map<String, Json>, patch: Map<String, Json>) {
    for (name, value) in patch {
        match (target.get_mut(&name), value) {
            (_, Json::Null) => drop(target.shift_remove(&name)),
            (Some(Json::Object(old)), Json::Object(new)) if !old.is_empty() => merge(old, new),
            (_, value) => drop(target.insert(name, value)),
        }
    }
}

/// Puts a value at a path, and creates missing objects on the way; `Err`: the message.
pub(crate) fn replace_at(document: &mut Json, path: &str, value: Json) -> Result<(), String> {
    let names: Vec<&str> = path.split('/').take(PATH_PARTS_MAX + 1).collect();
    if names.len() > PATH_PARTS_MAX {
        return Err(format!("invalid sub-path: more than {PATH_PARTS_MAX} parts"));
    }
    let (last, between) = names.split_last().expect("splitting gives at least one part");
    let mut place = document;
    for (depth, name) in between.iter().enumerate() {
        let invalid = || format!("invalid sub-path: /{}", names[..=depth].join("/"));
        place = match place {
            Json::Object(fields) => fields.entry(*name).or_insert_with(|| Json::Object(Map::new())),
            Json::Array(items) => index(name).and_then(|index| items.get_mut(index)).ok_or_else(invalid)?,
            _ => return Err(invalid()),
        };
    }
    match (place, value) {
        (place, value) if last.is_empty() => *place = value,
        (Json::Object(fields), Json::Null) => drop(fields.shift_remove(*last)),
        (Json::Object(fields), value) => drop(fields.insert((*last).to_owned(), value)),
        (Json::Array(items), value) => {
            let place = index(last).and_then(|index| items.get_mut(index));
            *place.ok_or_else(|| format!("invalid sub-path: /{path}"))? = value;
        }
        _ => return Err(format!("invalid sub-path: /{path}")),
    }
    Ok(())
}

fn index(name: &str) -> Option<usize> {
    name.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn objects_merge() {
        let check = |old: Json, patch: Json, expected: Json| {
            let (Json::Object(mut target), Json::Object(change)) = (old.clone(), patch.clone()) else { panic!() };
            merge(&mut target, change);
            assert_eq!(Json::Object(target), expected, "{old} {patch}");
        };
        check(json!({"a": 1}), json!({"b": 2}), json!({"a": 1, "b": 2}));
        check(json!({"a": 1, "b": 2}), json!({"a": null, "c": null}), json!({"b": 2}));
        check(json!({"n": {"x:80": 1}}), json!({"n": {"y:80": 1}}), json!({"n": {"x:80": 1, "y:80": 1}}));
        check(json!({"n": {"x:80": 1}}), json!({"n": {"x:80": null}}), json!({"n": {}}));
        check(json!({"n": {}}), json!({"n": {"y": null}}), json!({"n": {"y": null}}));
        check(json!({"l": [1, 2]}), json!({"l": [3]}), json!({"l": [3]}));
        check(json!({"n": {"a": 1}}), json!({"n": [1]}), json!({"n": [1]}));
        check(json!({"n": 1}), json!({"n": {"a": 1}}), json!({"n": {"a": 1}}));
    }

    #[test]
    fn paths_lead_to_a_place() {
        let check = |path: &str, value: Json, expected: Result<Json, &str>| {
            let mut document = json!({"a": {"b": 1}, "l": [{"x": 1}], "t": "text"});
            let replaced = replace_at(&mut document, path, value);
            assert_eq!(
                replaced.map(|()| document).as_ref().map_err(String::as_str),
                expected.as_ref().map_err(|e| *e),
                "{path}"
            );
        };
        check("a/b", json!(2), Ok(json!({"a": {"b": 2}, "l": [{"x": 1}], "t": "text"})));
        check("a/b", json!(null), Ok(json!({"a": {}, "l": [{"x": 1}], "t": "text"})));
        check("l/0/x", json!(2), Ok(json!({"a": {"b": 1}, "l": [{"x": 2}], "t": "text"})));
        check("n/m", json!([]), Ok(json!({"a": {"b": 1}, "l": [{"x": 1}], "t": "text", "n": {"m": []}})));
        check("l/1", json!(2), Err("invalid sub-path: /l/1"));
        check("l/x/y", json!(2), Err("invalid sub-path: /l/x"));
        check("t/x", json!(2), Err("invalid sub-path: /t/x"));
        check("t/x/y", json!(2), Err("invalid sub-path: /t/x"));
    }
}
