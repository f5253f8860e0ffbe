//! `configs`: all resources as one document, which can be read and replaced, as in APISIX without etcd; ADC uses it.
//!
//! The documents remain authoritative: writes of other clients show here, too. The metadata that a client sends with them (digest,
//! versions, indexes) is only remembered.

mod request;

use crate::answer::{Answer, of_document, off_thread};
use crate::body::{self, SINGLE_BYTES_MAX};
use crate::collections::{Collection, whole_collections};
use crate::commit::{
    ATTEMPTS_MAX, caught_up, check_writable, commit_all, dry_run, precondition_failed, transaction, unix_seconds,
    with_outcome,
};
use crate::control::{Control, WriteError};
use crate::endpoints::{Api, ParsedRequest};
use crate::masks::{MASK, has_mask, hide_private_keys, mask, remove_hidden_keys};
use crate::resource::address::{Address, key_of_path};
use crate::resource::references::{CommitConditions, RefusedWrite, StateAfter, View, parse_document, text_of};
use crate::resource::rules;
use axum::http::StatusCode;
use axum::http::header::HeaderName;
pub(crate) use request::Standalone;
use request::{Text, Version, Whole, fingerprint};
use serde_json::{Map, Value as Json, json};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use stillgate_datastore::{Condition, Document, Key, ReferenceCheck, Write};
use stillgate_door::Role;

const DIGEST: HeaderName = HeaderName::from_static("x-digest");
const LAST_MODIFIED: HeaderName = HeaderName::from_static("x-last-modified");

/// The most bytes of a remembered digest.
const DIGEST_BYTES_MAX: usize = 256;

/// The most errors of one validation. Later items are not checked: each check costs time, and each error memory.
const ERRORS_MAX: usize = 100;

/// The most characters of an id or a message in an error.
const ERROR_CHARS_MAX: usize = 1000;

/// GET and HEAD.
pub(crate) fn get(api: &Api, asked: &ParsedRequest) -> Answer {
    let documents = api.control.documents();
    let mut whole = Map::new();
    for collection in whole_collections() {
        let found = documents.list_below(&format!("{}/", collection.name));
        let version = api.standalone.version(collection, fingerprint(&found));
        let index = |key: &Key, document: &Document| api.standalone.index(key, document);
        let mut items = of_documents(&*api.control, asked.caller.role, collection, &found, index);
        if asked.query.is("created", "true") {
            // Not in APISIX: this orders two routes by age.
            let created = found.iter().map(|(_, document)| document.created);
            items.iter_mut().zip(created).for_each(|(item, created)| item["createdIndex"] = created.into());
        }
        if !items.is_empty() {
            whole.insert(collection.name.to_owned(), items.into());
        }
        whole.insert(collection.version_key(), version.into());
    }
    let (at, digest) = api.standalone.last(documents.revision(), unix_seconds());
    if let Some(at) = at {
        whole.insert("X-Last-Modified".to_owned(), at.into());
    }
    if let Some(digest) = &digest {
        whole.insert("X-Digest".to_owned(), digest.as_str().into());
    }
    with_last(Answer::json(StatusCode::OK, whole.into()), (at, digest))
}

/// PUT.
pub(crate) async fn replace(api: Arc<Api>, asked: ParsedRequest) -> Result<Answer, Answer> {
    let digest = asked.headers.get(DIGEST).and_then(|digest| digest.to_str().ok()).map(str::to_owned);
    let digest = digest.ok_or_else(|| Answer::bad("missing digest header"))?;
    if digest.len() > DIGEST_BYTES_MAX {
        return Err(Answer::bad(format!("the digest is longer than {DIGEST_BYTES_MAX} bytes")));
    }
    api.control.fetch_secrets(&asked.body).await;
    let mut attempts = 1;
    loop {
        let (planning, body, digest, place) = (api.clone(), asked.body.clone(), digest.clone(), asked.place.clone());
        let planned = off_thread(move || {
            let planned = plan(&planning, &body, Some(&digest), UnnamedItemPolicy::Refused);
            drop(place);
            planned
        });
        let planned = planned.await?;
        let Some(planned) = planned? else { return Ok(Answer::empty(StatusCode::NO_CONTENT)) };
        match commit_plan(&api, &asked, planned).await? {
            Ok(answer) => return Ok(answer),
            Err((key, modified)) if attempts == ATTEMPTS_MAX => return Err(precondition_failed(&key, modified)),
            Err((_, modified)) => caught_up(&api, modified).await,
        }
        attempts += 1;
    }
}

/// POST to `configs/validate`: the errors of each item, or else of the whole document, as PUT would report them.
pub(crate) async fn validate(api: Arc<Api>, asked: ParsedRequest) -> Result<Answer, Answer> {
    api.control.fetch_secrets(&asked.body).await;
    let asked = Arc::new(asked);
    let (validating, looked_at) = (api.clone(), asked.clone());
    let wrong = off_thread(move || validate_items(&validating, &looked_at)).await??;
    if let Some(wrong) = wrong {
        return Ok(wrong);
    }
    let (planning, looked_at) = (api.clone(), asked.clone());
    let planned = off_thread(move || plan(&planning, &looked_at.body, None, UnnamedItemPolicy::LookedAt));
    let checked = match planned.await? {
        Ok(Some(PlannedReplacement { changes, conditions, unreferenced, .. })) if !changes.writes.is_empty() => {
            let transaction = transaction(&asked, conditions, unreferenced, changes.writes);
            api.control.check(transaction).await.map(drop).map_err(|error| Answer::refused(&error))
        }
        Ok(_) => Ok(()),
        Err(answer) => Err(answer),
    };
    match checked {
        Ok(()) => Ok(Answer::empty(StatusCode::OK)),
        Err(answer) if answer.status == StatusCode::BAD_REQUEST => {
            Ok(invalid(vec![json!({ "error": cut(answer.message().to_owned()) })]))
        }
        // For example, it is temporarily impossible.
        Err(answer) => Err(answer),
    }
}

fn invalid(errors: Vec<Json>) -> Answer {
    let is_truncated = errors.len() >= ERRORS_MAX;
    let mut body = json!({ "error_msg": "Configuration validation failed", "errors": errors });
    if is_truncated {
        body["truncated"] = true.into();
    }
    Answer::json(StatusCode::BAD_REQUEST, body)
}

/// `None`: each item by itself is valid.
fn validate_items(api: &Api, asked: &ParsedRequest) -> Result<Option<Answer>, Answer> {
    let text = Text::new(body::text(&asked.body)?);
    let whole = text.whole()?;
    let mut errors: Vec<Json> = Vec::new();
    for collection in whole_collections() {
        if let Version::Other(got) = whole.version(collection) {
            let message = format!("{} must be a number, got {got}", collection.version_key());
            errors.push(json!({ "resource_type": collection.name, "error": message }));
        }
        check_all(&*api.control, collection, &whole, &mut |index, Refusal { id, message }| {
            if errors.len() >= ERRORS_MAX {
                return ControlFlow::Break(());
            }
            errors.push(json!({
                "resource_type": collection.name,
                "resource_id": shown_id(&id),
                "index": index,
                "error": cut(message),
            }));
            match errors.len() < ERRORS_MAX {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        if errors.len() >= ERRORS_MAX {
            break;
        }
    }
    Ok((!errors.is_empty()).then(|| invalid(errors)))
}

/// The id of an item in its error.
fn shown_id(id: &Json) -> Json {
    match id {
        Json::String(text) => cut(text.clone()).into(),
        Json::Number(_) => id.clone(),
        _ => "".into(),
    }
}

/// Limits the length of a text in an error.
fn cut(mut text: String) -> String {
    if let Some((at, _)) = text.char_indices().nth(ERROR_CHARS_MAX) {
        text.truncate(at);
        text.push('…');
    }
    text
}

/// A replacement before its commit.
struct PlannedReplacement {
    digest: String,
    view: View,
    /// The revision before the documents were read, which may change meanwhile.
    revision: u64,
    changes: ReplacementChanges,
    /// The conditions until the commit: the references of its documents exist, apart from those it writes itself.
    conditions: Vec<(Key, Condition)>,
    /// The conditions that no document has been added that refers to a deleted one, or that has something that must be unique.
    unreferenced: Vec<ReferenceCheck>,
}

/// `None`: the stored documents already came with this digest.
fn plan(
    api: &Api,
    body: &[u8],
    digest: Option<&str>,
    unnamed: UnnamedItemPolicy,
) -> Result<Option<PlannedReplacement>, Answer> {
    check_writable(api)?;
    let text = Text::new(body::text(body)?);
    let whole = text.whole()?;
    let view = crate::resource::references::View::new(api.control.documents());
    if digest.is_some() && api.standalone.last(view.revision(), unix_seconds()).1.as_deref() == digest {
        return Ok(None);
    }
    let revision = view.revision();
    let changes = changes(api, &view, &whole, unnamed)?;
    let still = StateAfter::new(&view, &changes.writes).check_references(&HashSet::new());
    let CommitConditions { conditions, unreferenced } =
        still.map_err(|RefusedWrite { key, answer }| Answer::bad(format!("{key}: {}", answer.message())))?;
    Ok(Some(PlannedReplacement {
        digest: digest.unwrap_or_default().to_owned(),
        view,
        revision,
        changes,
        conditions,
        unreferenced,
    }))
}

/// `Ok(Err)`: another write was made first, to this key at this revision.
async fn commit_plan(
    api: &Api,
    asked: &ParsedRequest,
    planned: PlannedReplacement,
) -> Result<Result<Answer, (Key, Option<u64>)>, Answer> {
    let PlannedReplacement { digest, view, revision: before, changes, conditions, unreferenced } = planned;
    let ReplacementChanges { writes, versions, indexes } = changes;
    let transaction = transaction(asked, conditions, unreferenced, writes);
    let is_dry = asked.query.dry_run()?;
    let outcome = match transaction.writes.is_empty() {
        // A datastore refuses a transaction without writes.
        true => None,
        false if is_dry => return dry_run(api, view, transaction).await.map(Ok),
        false => match commit_all(api, asked, transaction).await {
            Ok(outcome) => Some(outcome),
            Err(WriteError::Conflict { key, modified }) => return Ok(Err((key, modified))),
            Err(error) => return Err(Answer::refused(&error)),
        },
    };
    if is_dry {
        let body = json!({ "dry_run": true, "changes": [], "warnings": [], "effects": [] });
        return Ok(Ok(Answer::json(StatusCode::OK, body)));
    }
    let revision = outcome.as_ref().map_or(before, |outcome| outcome.revision);
    // Concurrent writes of other clients were neither compared nor removed, so the digest does not describe them.
    if outcome.is_none() || revision == before + 1 {
        let documents = api.control.documents();
        api.standalone.remember(&*documents, (digest, revision, unix_seconds()), versions, indexes);
    }
    let waits = asked.query.get("wait").and_then(|wait| wait.parse::<f64>().ok()).is_some_and(|wait| wait > 0.0);
    let status = if waits { StatusCode::OK } else { StatusCode::ACCEPTED };
    let answer = with_last(Answer::empty(status), api.standalone.last(revision, unix_seconds()));
    Ok(Ok(match outcome {
        Some(outcome) => with_outcome(answer, &outcome),
        None => answer,
    }))
}

/// The effect of a replacement.
#[derive(Default)]
struct ReplacementChanges {
    writes: Vec<Write>,
    /// The versions of all collections.
    versions: Vec<(&'static str, u64)>,
    /// All documents with the indexes that were sent.
    indexes: Vec<(Key, Option<u64>)>,
}

/// The changes, and the resulting versions of the collections.
fn changes(
    api: &Api,
    view: &View,
    whole: &Whole<'_>,
    unnamed: UnnamedItemPolicy,
) -> Result<ReplacementChanges, Answer> {
    let mut changes = ReplacementChanges::default();
    for collection in whole_collections() {
        let stored = view.below(&format!("{}/", collection.name));
        let old = api.standalone.version(collection, fingerprint(&stored));
        let new = new_version(collection, whole.version(collection), old)?;
        changes.versions.push((collection.name, new));
        if new == old {
            let index = |(key, document): &(Key, Document)| (key.clone(), api.standalone.index(key, document));
            changes.indexes.extend(stored.iter().map(index));
            continue;
        }
        let items = of_request(&*api.control, collection, whole, unnamed)?;
        changes.indexes.extend(items.iter().map(|(key, item)| (key.clone(), item.index)));
        changes.writes.extend(diff(collection, &stored, items, unix_seconds()));
    }
    Ok(changes)
}

fn new_version(collection: &Collection, given: Version, old: u64) -> Result<u64, Answer> {
    let key = collection.version_key();
    match given {
        Version::None => Ok(old + 1),
        // Versions are counts or times in milliseconds: far below where floats have gaps.
        Version::Number(version) if version >= old as f64 => Ok(version as u64),
        Version::Number(_) => Err(Answer::bad(format!("{key} must be greater than or equal to ({old})"))),
        Version::Other(_) => Err(Answer::bad(format!("{key} must be a number"))),
    }
}

fn with_last(answer: Answer, (at, digest): (Option<u64>, Option<String>)) -> Answer {
    let answer = match at {
        Some(at) => answer.with(LAST_MODIFIED, &at.to_string()),
        None => answer,
    };
    match digest {
        Some(digest) => answer.with(DIGEST, &digest),
        None => answer,
    }
}

// Items of the whole configuration: documents with their ids in it, and the difference between two configurations.
//
// In it, a credential is a consumer with the id `NAME/credentials/ID`, and a secret's id contains its manager.

/// Fields that a store adds.
const TIMES: [&str; 2] = ["create_time", "update_time"];

/// Collections whose schemas require an id in APISIX. Others are validated without one, but cannot be stored without it.
const NEED_IDS: [&str; 3] = ["consumer_groups", "global_rules", "plugin_configs"];

const WRONG_ID: &str = "property \"id\" validation failed: object matches none of the required";

/// Documents by key.
type Items = BTreeMap<Key, Item>;

/// A document of a request, as JSON text: a tree takes many times as much memory.
struct Item {
    document: Box<str>,
    /// The index by which the client distinguishes its versions.
    index: Option<u64>,
}

/// Why an item is refused.
struct Refusal {
    /// Its id as sent; empty: it has none.
    id: Json,
    message: String,
}

/// The items of stored documents, as this role may see them.
fn of_documents(
    control: &dyn Control,
    role: Role,
    collection: &Collection,
    documents: &[(Key, Document)],
    index: impl Fn(&Key, &Document) -> Option<u64>,
) -> Vec<Json> {
    let item = |(key, document): &(Key, Document)| {
        let mut value = parse_document(&document.value);
        let own = crate::collections::Collection::of_key(key.as_str()).unwrap_or(collection);
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
        if own.naming != crate::collections::DocumentNaming::Username {
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
enum UnnamedItemPolicy {
    Refused,
    /// Validate it under an id that no other has.
    LookedAt,
}

/// All documents of a collection in a request; `Err`: the error of the first invalid one.
fn of_request(
    control: &dyn Control,
    collection: &'static Collection,
    whole: &Whole<'_>,
    unnamed: UnnamedItemPolicy,
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
                Ok((None, item)) => match placeholder(name, index).filter(|_| unnamed == UnnamedItemPolicy::LookedAt) {
                    Some(key) => {
                        found.insert(key, item);
                        return ControlFlow::Continue(());
                    }
                    None => format!("invalid {name} at index {index}, err: missing {} id", collection.kind),
                },
                Err(ItemRefusal::Twice(_, message)) => message,
                Err(ItemRefusal::Item(Refusal { message, .. })) => {
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
fn check_all(
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
            Err(ItemRefusal::Twice(id, message)) => refused(index, Refusal { id, message }),
            Err(ItemRefusal::Item(refusal)) => refused(index, refusal),
        }
    });
    if let Err(message) = checked {
        let _ = refused(0, Refusal { id: Json::Null, message });
    }
}

/// The writes that lead from the stored documents to these; `unix_seconds` is the current time.
fn diff(collection: &Collection, stored: &[(Key, Document)], mut items: Items, unix_seconds: u64) -> Vec<Write> {
    let mut writes = Vec::new();
    for (key, document) in stored {
        let Some(Item { document: new, .. }) = items.remove(key) else {
            writes.push(Write::Delete { key: key.clone() });
            continue;
        };
        let (old, mut new) = (parse_document(&document.value), parse_document(&new));
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
enum ItemRefusal {
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
) -> Result<(Option<Key>, Item), ItemRefusal> {
    let refused = |id: &Json, message: String| ItemRefusal::Item(Refusal { id: id.clone(), message });
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
    let (own, key) = collection_and_key(collection, &mut document).map_err(|message| refused(&sent_id, message))?;
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
            (crate::collections::DocumentNaming::Username, true) => "username",
            (crate::collections::DocumentNaming::Username, false) => "credential id",
            _ => "id",
        };
        let message = format!("found duplicate {kind} {} in {}", key.id(), collection.name);
        return Err(ItemRefusal::Twice(sent_id, message));
    }
    Ok((key, Item { document: document.to_string().into(), index }))
}

/// The collection of a document, and its key if it has an id. For a credential, its own id replaces the combined one.
fn collection_and_key(
    collection: &'static Collection,
    document: &mut Json,
) -> Result<(&'static Collection, Option<Key>), String> {
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
        (crate::collections::DocumentNaming::Username, Some(id)) if id.contains("/credentials/") => {
            let (username, id) = id.split_once("/credentials/").unwrap_or_default();
            document["id"] = id.into();
            (crate::collections::Collection::named("credentials").unwrap_or(collection), address(Some(username), id))
        }
        (crate::collections::DocumentNaming::Username, _) => {
            let username = document["username"].as_str().ok_or("property \"username\" is required")?;
            (collection, address(None, username))
        }
        (crate::collections::DocumentNaming::Manager, id) => {
            let invalid = || format!("invalid secret id: {}", id.unwrap_or("nil"));
            let (manager, id) = id.and_then(|id| id.split_once('/')).ok_or_else(invalid)?;
            (collection, address(Some(manager), id))
        }
        (crate::collections::DocumentNaming::Plugin, None) => return Err("missing plugin name".to_owned()),
        (_, None) if NEED_IDS.contains(&collection.name) => return Err("property \"id\" is required".to_owned()),
        (_, None) => return Ok((collection, None)),
        (_, Some(id)) => (collection, address(None, id)),
    };
    let key = key_of_path(own, &address).ok_or(WRONG_ID)?;
    Ok((own, Some(key)))
}
