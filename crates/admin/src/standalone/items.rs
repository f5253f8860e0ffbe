//! Items of the whole configuration: documents with their ids in it, and the difference between two configurations.
//!
//! In it, a credential is a consumer with the id `NAME/credentials/ID`, and a secret's id contains its manager.

use super::request::Whole;
use crate::answer::{Answer, of_document};
use crate::body::{self, SINGLE_BYTES_MAX};
use crate::collections::{Collection, Naming};
use crate::control::Control;
use crate::masks::{MASK, has_mask, hide_private_keys, mask, remove_hidden_keys};
use crate::resource::address::{Address, key_of_path};
use crate::resource::references::{parsed, text_of};
use crate::resource::rules;
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use stillgate_datastore::{Document, Key, Write};
use stillgate_door::Role;

/// Fields that a store adds.
const TIMES: [&str; 2] = ["create_time", "update_time"];

/// Collections whose schemas require an id in APISIX. Others are validated without one, but cannot be stored without it.
const NEED_IDS: [&str; 3] = ["consumer_groups", "global_rules", "plugin_configs"];

const WRONG_ID: &str = "property \"id\" validation failed: object matches none of the required";

/// Documents by key.
pub(super) type Items = BTreeMap<Key, Item>;

/// A document of a request, as JSON text: a tree takes many times as much memory.
pub(super) struct Item {
    document: Box<str>,
    /// The index by which the client distinguishes its versions.
    pub(super) index: Option<u64>,
}

/// Why an item is refused.
pub(super) struct Refusal {
    /// Its id as sent; empty: it has none.
    pub(super) id: Json,
    pub(super) message: String,
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
            // ADC rejects a certificate without a key.
            fields.insert("key".to_owned(), MASK.into());
        }
        // The whole configuration contains no times; ADC rejects unknown fields.
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

/// How to treat an item without an id, which APISIX validates but cannot store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unnamed {
    Refused,
    /// Validate it under an id that no other has.
    LookedAt,
}

/// All documents of a collection in a request; `Err`: the error of the first invalid one.
pub(super) fn of_request(
    control: &dyn Control,
    collection: &'static Collection,
    whole: &Whole<'_>,
    unnamed: Unnamed,
) -> Result<Items, Answer> {
    let (mut found, mut refusal) = (Items::new(), None);
    whole
        .each_item(collection, &mut |index, text| {
            let name = collection.name;
            let checked = of_item(control, collection, text, &mut |key| found.contains_key(key));
            let message = match checked {
                Ok((Some(key), item)) => {
                    found.insert(key, item);
                    return ControlFlow::Continue(());
                }
                Ok((None, item)) => match placeholder(name, index).filter(|_| unnamed == Unnamed::LookedAt) {
                    Some(key) => {
                        found.insert(key, item);
                        return ControlFlow::Continue(());
                    }
                    None => format!("invalid {name} at index {index}, err: missing {} id", collection.kind),
                },
                Err(Refused::Twice(_, message)) => message,
                Err(Refused::Item(Refusal { message, .. })) => {
                    format!("invalid {name} at index {index}, err: {message}")
                }
            };
            refusal = Some(message);
            ControlFlow::Break(())
        })
        .map_err(Answer::bad)?;
    match refusal {
        Some(message) => Err(Answer::bad(message)),
        None => Ok(found),
    }
}

/// A key that no document has, since ids cannot contain `~`.
fn placeholder(collection: &str, index: usize) -> Option<Key> {
    Key::parse(&format!("{collection}/~{index}")).ok()
}

/// Validates the items of a collection in a request; `refused` is called with each error until it breaks.
pub(super) fn check_all(
    control: &dyn Control,
    collection: &'static Collection,
    whole: &Whole<'_>,
    refused: &mut dyn FnMut(usize, Refusal) -> ControlFlow<()>,
) {
    let mut known = BTreeSet::new();
    let checked = whole.each_item(collection, &mut |index, text| {
        let checked = of_item(control, collection, text, &mut |key| !known.insert(key.clone()));
        match checked {
            Ok(_) => ControlFlow::Continue(()),
            Err(Refused::Twice(id, message)) => refused(index, Refusal { id, message }),
            Err(Refused::Item(refusal)) => refused(index, refusal),
        }
    });
    if let Err(message) = checked {
        let _ = refused(0, Refusal { id: Json::Null, message });
    }
}

/// The writes that lead from the stored documents to these; `unix_seconds` is the current time.
pub(super) fn diff(
    collection: &Collection,
    stored: &[(Key, Document)],
    mut items: Items,
    unix_seconds: u64,
) -> Vec<Write> {
    let mut writes = Vec::new();
    for (key, document) in stored {
        let Some(Item { document: new, .. }) = items.remove(key) else {
            writes.push(Write::Delete { key: key.clone() });
            continue;
        };
        let (old, mut new) = (parsed(&document.value), parsed(&new));
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
    let put = |(key, item): (Key, Item)| Write::Put { key, value: item.document.into(), ttl_seconds: None };
    writes.extend(items.into_iter().map(put));
    writes
}

/// Answers contain no private keys, so a certificate that was read here is sent back without its own once the masks are removed.
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

/// Why an item cannot be used.
enum Refused {
    Item(Refusal),
    /// Another item has this id.
    Twice(Json, String),
}

/// The document of an item, and its key; an item without an id has none. `is_known`: whether an earlier item has this key.
fn of_item(
    control: &dyn Control,
    collection: &'static Collection,
    text: &str,
    is_known: &mut dyn FnMut(&Key) -> bool,
) -> Result<(Option<Key>, Item), Refused> {
    let refused = |id: &Json, message: String| Refused::Item(Refusal { id: id.clone(), message });
    if text.len() > SINGLE_BYTES_MAX {
        let message = format!("it is larger than the maximum size {SINGLE_BYTES_MAX} allowed");
        return Err(refused(&Json::Null, message));
    }
    let mut document = body::document(text).map_err(|message| refused(&Json::Null, message))?;
    let Json::Object(fields) = &mut document else {
        return Err(refused(&Json::Null, "wrong type: expected object".to_owned()));
    };
    // Indexes are counts or times: far below where floats have gaps.
    let index = fields.shift_remove("modifiedIndex").and_then(|index| index.as_f64()).map(|index| index as u64);
    let sent_id = [&document["id"], &document["username"]].into_iter().find(|id| !id.is_null()).cloned();
    let sent_id = sent_id.unwrap_or_default();
    if collection.name == "ssls" {
        remove_hidden_keys(&mut document);
    }
    if has_mask(&document) {
        let message = format!("it has a masked secret ({MASK}); send the secret itself");
        return Err(refused(&sent_id, message));
    }
    let (own, key) = named(collection, &mut document).map_err(|message| refused(&sent_id, message))?;
    let has_no_keys = document["key"].is_null() || (document["keys"].is_null() && !document["certs"].is_null());
    let is_without_key = own.name == "ssls" && has_no_keys;
    rules::check(own, &document).map_err(|message| refused(&sent_id, of_document(message)))?;
    match control.validate(own.name, &document) {
        // The missing key may be taken from the stored certificate; the write, which sees stored documents, checks that.
        Err(message) if !is_without_key => return Err(refused(&sent_id, of_document(message))),
        _ => {}
    }
    if let Some(key) = key.as_ref().filter(|key| is_known(key)) {
        let kind = match (collection.naming, document["id"].is_null()) {
            (Naming::Username, true) => "username",
            (Naming::Username, false) => "credential id",
            _ => "id",
        };
        let message = format!("found duplicate {kind} {} in {}", key.id(), collection.name);
        return Err(Refused::Twice(sent_id, message));
    }
    Ok((key, Item { document: document.to_string().into(), index }))
}

/// The collection of a document, and its key if it has an id. For a credential, its own id replaces the combined one.
fn named(collection: &'static Collection, document: &mut Json) -> Result<(&'static Collection, Option<Key>), String> {
    if !document["id"].is_null() && !rules::is_good_id(&document["id"]) {
        return Err(WRONG_ID.to_owned());
    }
    let id = text_of(&document["id"]);
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
            let username = document["username"].as_str().ok_or("property \"username\" is required")?;
            (collection, address(None, username))
        }
        (Naming::Manager, id) => {
            let invalid = || format!("invalid secret id: {}", id.unwrap_or("nil"));
            let (manager, id) = id.and_then(|id| id.split_once('/')).ok_or_else(invalid)?;
            (collection, address(Some(manager), id))
        }
        (Naming::Plugin, None) => return Err("missing plugin name".to_owned()),
        (_, None) if NEED_IDS.contains(&collection.name) => return Err("property \"id\" is required".to_owned()),
        (_, None) => return Ok((collection, None)),
        (_, Some(id)) => (collection, address(None, id)),
    };
    let key = key_of_path(own, &address).ok_or(WRONG_ID)?;
    Ok((own, Some(key)))
}
