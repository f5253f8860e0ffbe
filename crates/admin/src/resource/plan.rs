//! Plans a write: checks the operation of a request by itself, and turns it into writes and an answer.
//!
//! Nothing is written here, so the same plan serves a single request, an operation of a batch, and a dry run. References are
//! checked for [all writes of a request together](super::references). Nor is a document validated here:
//! [`Control::write`](crate::Control::write) does that.

use super::address::{Address, key_of_stored, key_to_write, no_id};
use super::references::{View, parse_document};
use super::rules;
use crate::answer::{Answer, Content, of_document};
use crate::body::parse;
use crate::collections::{Collection, Verb};
use crate::control::Control;
use crate::masks::{MASK, has_mask, hide_private_keys};
use axum::http::StatusCode;
use bytes::Bytes;
use serde_json::{Map, Value as Json, json};
use stillgate_datastore::{Condition, Key, Write};

/// The prefix of all keys in answers, as in etcd.
pub(crate) const PREFIX: &str = "/apisix/";

/// A requested write.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) verb: Verb,
    pub(crate) collection: &'static Collection,
    pub(crate) address: Address,
    /// The request's JSON; `None` or empty: there is none. Not parsed, since that takes many times its size.
    pub(crate) body: Option<Bytes>,
    pub(crate) ttl_seconds: Option<u64>,
    /// Whether a document is deleted although others refer to it.
    pub(crate) force: bool,
}

/// Writes, conditions on the operation's own document, and the answer to them.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The key of the operation's document.
    pub(crate) key: Key,
    pub(crate) writes: Vec<Write>,
    pub(crate) conditions: Vec<(Key, Condition)>,
    pub(crate) answer: Answer,
}

/// Plans an operation; `unix_seconds` is the current time.
pub(crate) fn plan(control: &dyn Control, view: &View, op: &Operation, unix_seconds: u64) -> Result<Plan, Answer> {
    let collection = op.collection;
    if collection.refused.contains(&op.verb) {
        let message = format!("not supported `{}` method for {}", op.verb.name(), collection.kind);
        return Err(Answer::error(StatusCode::METHOD_NOT_ALLOWED, message));
    }
    let sent = op.body.as_deref().map(parse).transpose()?.flatten();
    if sent.as_ref().is_some_and(has_mask) {
        return Err(Answer::bad(format!(
            "the document has a masked secret ({MASK}); send the secret itself, or use PATCH without this field"
        )));
    }
    match op.verb {
        crate::collections::Verb::Delete => plan_delete(view, op),
        crate::collections::Verb::Patch => plan_patch(control, view, op, sent, unix_seconds),
        _ => plan_put(control, view, op, sent, unix_seconds),
    }
}

/// PUT and POST.
fn plan_put(
    control: &dyn Control,
    view: &View,
    op: &Operation,
    sent: Option<Json>,
    unix_seconds: u64,
) -> Result<Plan, Answer> {
    let mut document = sent.ok_or_else(|| Answer::bad("missing configurations"))?;
    must_be_object(&document)?;
    rules::reject_times(&document).map_err(Answer::bad)?;
    let key = match op.verb {
        crate::collections::Verb::Post => {
            no_id(op.collection, &op.address, &document)?;
            let (id, key) = fresh_id(view, op.collection);
            document["id"] = id.into();
            key
        }
        _ => key_to_write(op.collection, &op.address, &mut document)?,
    };
    if op.collection.naming == crate::collections::DocumentNaming::Plugin {
        if control.plugin_schema(key.id()).is_none() {
            return Err(Answer::bad("invalid plugin name"));
        }
        document["id"] = key.id().into();
    }
    check(control, op, &document)?;
    let mut conditions = Vec::new();
    let old = view.get(&key);
    if op.verb == crate::collections::Verb::Post && !view.is_pending(&key) {
        conditions.push((key.clone(), Condition::Absent));
    }
    if op.collection.naming != crate::collections::DocumentNaming::Plugin {
        let created =
            old.as_ref().map(|old| parse_document(&old.value).get("create_time").cloned().unwrap_or_default());
        let created = created.filter(|time| !time.is_null()).unwrap_or(unix_seconds.into());
        set_if_absent(&mut document, "create_time", created);
        set_if_absent(&mut document, "update_time", unix_seconds.into());
    }
    let status = if old.is_some() { StatusCode::OK } else { StatusCode::CREATED };
    Ok(put_plan(op, key, document, conditions, status))
}

fn plan_patch(
    control: &dyn Control,
    view: &View,
    op: &Operation,
    sent: Option<Json>,
    unix_seconds: u64,
) -> Result<Plan, Answer> {
    if op.address.id.is_none() {
        let missing = match op.collection.naming {
            crate::collections::DocumentNaming::Manager => "no secret id".to_owned(),
            _ => format!("missing {} id", op.collection.kind),
        };
        return Err(Answer::bad(missing));
    }
    let change = sent.ok_or_else(|| Answer::bad("missing new configuration"))?;
    let sub_path = op.address.sub_path.as_deref().filter(|path| !path.is_empty());
    let key = key_of_stored(op.collection, &op.address).ok_or_else(Answer::key_not_found)?;
    let old = view.get(&key).ok_or_else(Answer::key_not_found)?;
    let mut document = parse_document(&old.value);
    let keeps_update_time = match (sub_path, change) {
        (Some(path), change) => {
            replace_at(&mut document, path, change).map_err(Answer::bad)?;
            must_be_readable(&document)?;
            false
        }
        (None, Json::Object(change)) => {
            let keeps = change.contains_key("update_time");
            if let Json::Object(fields) = &mut document {
                merge(fields, change);
            }
            keeps
        }
        (None, _) => return Err(Answer::bad("invalid configuration")),
    };
    must_be_object(&document)?;
    set_if_absent(&mut document, "create_time", unix_seconds.into());
    if !keeps_update_time || document["update_time"].is_null() {
        document["update_time"] = unix_seconds.into();
    }
    if key_to_write(op.collection, &op.address, &mut document)? != key {
        return Err(Answer::bad(format!("wrong {} id", op.collection.kind)));
    }
    check(control, op, &document)?;
    let mut conditions = Vec::new();
    if !view.is_pending(&key) {
        conditions.push((key.clone(), Condition::Modified(old.modified)));
    }
    Ok(put_plan(op, key, document, conditions, StatusCode::OK))
}

fn plan_delete(view: &View, op: &Operation) -> Result<Plan, Answer> {
    if op.address.id.is_none() {
        return Err(Answer::bad(format!("missing {} id", op.collection.kind)));
    }
    let key = key_of_stored(op.collection, &op.address).ok_or_else(Answer::key_not_found)?;
    view.get(&key).ok_or_else(Answer::key_not_found)?;
    let mut writes = vec![Write::Delete { key: key.clone() }];
    if op.collection.naming == crate::collections::DocumentNaming::Username {
        let credentials = view.below(&format!("{key}/credentials/"));
        writes.extend(credentials.into_iter().map(|(key, _)| Write::Delete { key }));
    }
    let body = json!({ "key": format!("{PREFIX}{key}"), "deleted": "1" });
    Ok(Plan { key, writes, conditions: Vec::new(), answer: Answer::json(StatusCode::OK, body) })
}

/// Checks a new document, apart from its references.
fn check(control: &dyn Control, op: &Operation, document: &Json) -> Result<(), Answer> {
    known_plugins(control, op.collection, document)?;
    if op.collection.name == "routes" {
        reject_both(document, "host", "hosts")?;
        reject_both(document, "remote_addr", "remote_addrs")?;
    }
    rules::check(op.collection, document).map_err(|why| Answer::bad(of_document(why)))?;
    if op.collection.naming == crate::collections::DocumentNaming::Credential {
        let plugins = control.plugins();
        let is_other = |name: &String| plugins.iter().any(|plugin| plugin.name == name && !plugin.is_auth);
        if document["plugins"].as_object().is_some_and(|plugins| plugins.keys().any(is_other)) {
            return Err(Answer::bad("only supports auth type plugins in consumer credential"));
        }
    }
    Ok(())
}

/// Uses APISIX's words, which clients look for.
fn known_plugins(control: &dyn Control, collection: &Collection, document: &Json) -> Result<(), Answer> {
    let Json::Object(plugins) = &document["plugins"] else { return Ok(()) };
    let known = control.plugins();
    let Some(unknown) = plugins.keys().find(|name| !known.iter().any(|plugin| plugin.name == *name)) else {
        return Ok(());
    };
    let is_of_consumer = matches!(
        collection.naming,
        crate::collections::DocumentNaming::Username | crate::collections::DocumentNaming::Credential
    );
    let context = if is_of_consumer { "invalid plugins configuration: " } else { "" };
    let mut answer = json!({ "error_msg": format!("{context}unknown plugin [{unknown}]") });
    // Clients look for these words, and people need a suggestion.
    if let Err(why) = control.validate("plugin_configs", &json!({ "plugins": { unknown: {} } })) {
        answer["description"] = why.into();
    }
    Err(Answer::json(StatusCode::BAD_REQUEST, answer))
}

fn reject_both(document: &Json, one: &str, many: &str) -> Result<(), Answer> {
    match document[one].is_null() || document[many].is_null() {
        true => Ok(()),
        false => Err(Answer::bad(format!("only one of {one} or {many} is allowed"))),
    }
}

fn put_plan(op: &Operation, key: Key, document: Json, conditions: Vec<(Key, Condition)>, status: StatusCode) -> Plan {
    let value = document.to_string();
    let mut shown = document;
    hide_private_keys(op.collection, &mut shown);
    let body = json!({ "key": format!("{PREFIX}{key}"), "value": shown });
    let write = Write::Put { key: key.clone(), value, ttl_seconds: op.ttl_seconds };
    Plan { key, writes: vec![write], conditions, answer: Answer::json(status, body) }
}

/// An id in APISIX's format, from the revision that will be written.
fn fresh_id(view: &View, collection: &Collection) -> (String, Key) {
    loop {
        let id = format!("{:020}", view.next_id());
        let key = Key::parse(&format!("{}/{id}", collection.name)).expect("digits make a key");
        if view.get(&key).is_none() {
            return (id, key);
        }
    }
}

fn must_be_object(document: &Json) -> Result<(), Answer> {
    let got = match document {
        Json::Object(_) => return Ok(()),
        Json::Array(_) => "table",
        Json::String(_) => "string",
        Json::Number(_) => "number",
        Json::Bool(_) => "boolean",
        Json::Null => "userdata",
    };
    Err(Answer::invalid(&format!("wrong type: expected object, got {got}")))
}

/// A path that is one level deeper with each request could nest a document too deeply to be read again.
fn must_be_readable(document: &Json) -> Result<(), Answer> {
    let read: Result<Json, _> = serde_json::from_str(&document.to_string());
    read.map(drop).map_err(|_| Answer::invalid("lists and maps are nested too deeply"))
}

fn set_if_absent(document: &mut Json, field: &str, value: Json) {
    if document[field].is_null() {
        document[field] = value;
    }
}

impl Plan {
    /// The body of the answer, for a batch.
    pub(crate) fn body(&self) -> String {
        match &self.answer.content {
            Content::Json(json) => json.to_string(),
            Content::Text(text) => Json::from(text.as_str()).to_string(),
            Content::Kept(_) | Content::File(_) | Content::Nothing => Json::Null.to_string(),
        }
    }
}

// The effect of PATCH on a document: the merge of an object, or the replacement of the value at a path.
//
// Both work as in APISIX, with two fixes: a path can contain list indexes, and `null` at its end deletes.

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
