//! Items of the whole configuration: documents with the ids that they have there, and what changes between two of them.
//!
//! There a credential is a consumer with the id `NAME/credentials/ID`, and a secret has its manager in its id.

use crate::access::Role;
use crate::collections::{Collection, Naming};
use crate::control::Control;
use crate::masks::{MASK, hide_private_keys, mask};
use crate::resource::address::{Address, key_of_path};
use crate::resource::references::{parsed, text_of};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use stillgate_datastore::{Document, Key, Write};

/// Fields that a store adds.
const TIMES: [&str; 2] = ["create_time", "update_time"];

/// Documents by their keys.
pub(super) type Items = BTreeMap<Key, Item>;

/// A document of a request.
pub(super) struct Item {
    document: Json,
    /// What the client tells its versions apart by.
    pub(super) index: Option<u64>,
}

/// The items of stored documents, as this role may see them.
pub(super) fn of_documents(
    control: &dyn Control,
    role: Role,
    collection: &Collection,
    documents: &[(Key, Document)],
    index: impl Fn(&Key, &Document) -> Option<u64>,
) -> Vec<Json> {
    let item = |(key, document): &(Key, Document)| {
        let mut value = parsed(&document.value);
        let own = Collection::of_key(key.as_str()).unwrap_or(collection);
        let is_private = own.name == "ssls" && !value["key"].is_null();
        hide_private_keys(own, &mut value);
        if role == Role::Viewer {
            mask(control, own, &mut value);
        }
        let Json::Object(fields) = &mut value else { return value };
        if is_private {
            // ADC refuses a certificate without a key.
            fields.insert("key".to_owned(), MASK.into());
        }
        // The whole configuration has no times; ADC refuses fields that it does not know.
        TIMES.into_iter().for_each(|time| drop(fields.shift_remove(time)));
        if own.naming != Naming::Username {
            fields.insert("id".to_owned(), key.id().into());
        }
        if let Some(index) = index(key, document) {
            fields.insert("modifiedIndex".to_owned(), index.into());
        }
        value
    };
    documents.iter().map(item).collect()
}

/// The documents of a request's items, and what is wrong with which.
pub(super) fn of_request(
    control: &dyn Control,
    collection: &Collection,
    items: &Json,
) -> (Items, Vec<(usize, String)>) {
    let (mut found, mut wrong) = (Items::new(), Vec::new());
    if !matches!(items, Json::Null | Json::Array(_)) {
        // Taken for an empty list it would delete the whole collection.
        wrong.push((0, format!("{} must be an array", collection.name)));
    }
    for (index, item) in items.as_array().into_iter().flatten().enumerate() {
        match of_item(control, collection, item) {
            Ok((key, _)) if found.contains_key(&key) => {
                let kind = match (collection.naming, item["id"].is_null()) {
                    (Naming::Username, true) => "username",
                    (Naming::Username, false) => "credential id",
                    _ => "id",
                };
                wrong.push((index, format!("found duplicate {kind} {} in {}", key.id(), collection.name)));
            }
            Ok((key, document)) => {
                // Indexes are counts or times: far below where a float has gaps.
                let index = item["modifiedIndex"].as_f64().map(|index| index as u64);
                found.insert(key, Item { document, index });
            }
            Err(message) => {
                wrong.push((index, format!("invalid {} at index {index}, err: {message}", collection.name)));
            }
        }
    }
    (found, wrong)
}

/// What leads from the stored documents to these; `unix_seconds` is now.
pub(super) fn diff(
    collection: &Collection,
    stored: &[(Key, Document)],
    mut items: Items,
    unix_seconds: u64,
) -> Vec<Write> {
    let mut writes = Vec::new();
    for (key, document) in stored {
        let Some(Item { document: mut new, .. }) = items.remove(key) else {
            writes.push(Write::Delete { key: key.clone() });
            continue;
        };
        let old = parsed(&document.value);
        keep_private_keys(collection, &old, &mut new);
        let has_no_times = TIMES.iter().all(|time| new[*time].is_null());
        if has_no_times {
            TIMES.iter().filter(|time| !old[**time].is_null()).for_each(|time| new[*time] = old[*time].clone());
        }
        if old != new {
            if has_no_times && !old["update_time"].is_null() {
                new["update_time"] = unix_seconds.into();
            }
            writes.push(Write::Put { key: key.clone(), value: new.to_string(), ttl_seconds: None });
        }
    }
    let put = |(key, item): (Key, Item)| Write::Put { key, value: item.document.to_string(), ttl_seconds: None };
    writes.extend(items.into_iter().map(put));
    writes
}

/// No answer has private keys, so a certificate that was read here comes back without its own, once the masks are gone.
fn keep_private_keys(collection: &Collection, old: &Json, new: &mut Json) {
    if collection.name != "ssls" {
        return;
    }
    for (certificate, key) in [("cert", "key"), ("certs", "keys")] {
        let is_same = !new[certificate].is_null() && new[certificate] == old[certificate];
        if is_same && new[key].is_null() && !old[key].is_null() {
            new[key] = old[key].clone();
        }
    }
}

fn of_item(control: &dyn Control, collection: &Collection, item: &Json) -> Result<(Key, Json), String> {
    let Json::Object(fields) = item else { return Err("wrong type: expected object".to_owned()) };
    let mut document = fields.clone();
    document.shift_remove("modifiedIndex");
    let mut document = Json::Object(document);
    let id = text_of(&item["id"]);
    let address = |parent: Option<&str>, id: &str| Address {
        id: Some(id.to_owned()),
        parent: parent.map(str::to_owned),
        sub_path: None,
    };
    let (own, address) = match (collection.naming, id.as_deref()) {
        (Naming::Username, Some(id)) if id.contains("/credentials/") => {
            let (username, id) = id.split_once("/credentials/").unwrap_or_default();
            document["id"] = id.into();
            (Collection::named("credentials").unwrap_or(collection), address(Some(username), id))
        }
        (Naming::Username, _) => {
            let username = item["username"].as_str().ok_or("property \"username\" is required")?;
            (collection, address(None, username))
        }
        (Naming::Manager, id) => {
            let invalid = || format!("invalid secret id: {}", id.unwrap_or("nil"));
            let (manager, id) = id.and_then(|id| id.split_once('/')).ok_or_else(invalid)?;
            (collection, address(Some(manager), id))
        }
        (_, id) => (collection, address(None, id.ok_or_else(|| format!("missing {} id", collection.kind))?)),
    };
    let wrong_form = "property \"id\" validation failed: object matches none of the required";
    let key = key_of_path(own, &address).ok_or(wrong_form)?;
    let has_no_keys = document["key"].is_null() || (document["keys"].is_null() && !document["certs"].is_null());
    let is_without_key = own.name == "ssls" && has_no_keys;
    match control.validate(own.name, &document) {
        // Whether a stored key stands in for it is decided where the stored documents are; the write is checked again.
        Err(message) if !is_without_key => Err(message),
        _ => Ok((key, document)),
    }
}
