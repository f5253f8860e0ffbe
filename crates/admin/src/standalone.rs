//! `configs`: all resources as one document, read and replaced, as APISIX without etcd has it; ADC uses it.
//!
//! The documents stay the truth: what another client writes shows here, too. What a client says about them, digest, versions
//! and indexes, is only remembered.

mod items;
mod remembered;

use crate::answer::Answer;
use crate::body::in_words_of_apisix;
use crate::collections::{COLLECTIONS, Collection, Naming};
use crate::commit::{commit_all, dry_run, may_write, precondition_failed, transaction, unix_seconds, with_outcome};
use crate::control::WriteError;
use crate::masks::{MASK, has_mask, remove_hidden_keys};
use crate::off_thread::off_thread;
use crate::resource::view::View;
use crate::router::{Api, Asked};
use axum::http::StatusCode;
use axum::http::header::HeaderName;
use items::{Items, diff, of_documents, of_request};
pub(crate) use remembered::Standalone;
use remembered::fingerprint;
use serde_json::{Map, Value as Json, json};
use std::sync::Arc;
use stillgate_datastore::{Document, Key, Write};

const DIGEST: HeaderName = HeaderName::from_static("x-digest");
const LAST_MODIFIED: HeaderName = HeaderName::from_static("x-last-modified");

/// Bytes of a digest that is remembered.
const DIGEST_BYTES_MAX: usize = 256;

/// The collections of the whole document. Credentials are among the consumers.
fn collections() -> impl Iterator<Item = &'static Collection> {
    COLLECTIONS.iter().filter(|collection| collection.naming != Naming::Credential)
}

/// GET and HEAD.
pub(crate) fn get(api: &Api, asked: &Asked) -> Answer {
    let documents = api.control.documents();
    let mut whole = Map::new();
    for collection in collections() {
        let found = documents.below(&format!("{}/", collection.name));
        let version = api.standalone.version(collection, fingerprint(&found));
        let index = |key: &Key, document: &Document| api.standalone.index(key, document);
        let mut items = of_documents(&*api.control, asked.caller.role, collection, &found, index);
        if asked.query.is("created", "true") {
            // Not of APISIX: by this the older of two routes comes first.
            let created = found.iter().map(|(_, document)| document.created);
            items.iter_mut().zip(created).for_each(|(item, created)| item["createdIndex"] = created.into());
        }
        if !items.is_empty() {
            whole.insert(collection.name.to_owned(), items.into());
        }
        whole.insert(version_key(collection), version.into());
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
pub(crate) async fn replace(api: Arc<Api>, asked: Asked) -> Result<Answer, Answer> {
    let digest = asked.headers.get(DIGEST).and_then(|digest| digest.to_str().ok()).map(str::to_owned);
    let digest = digest.ok_or_else(|| Answer::bad("missing digest header"))?;
    if digest.len() > DIGEST_BYTES_MAX {
        return Err(Answer::bad(format!("the digest is longer than {DIGEST_BYTES_MAX} bytes")));
    }
    let (planning, body) = (api.clone(), asked.body.clone());
    let planned = off_thread(move || plan(&planning, &body, &digest)).await?;
    match planned? {
        Some(planned) => commit_plan(&api, &asked, planned).await,
        None => Ok(Answer::empty(StatusCode::NO_CONTENT)),
    }
}

/// POST to `configs/validate`.
pub(crate) fn validate(api: &Api, asked: &Asked) -> Answer {
    let whole = match whole(&asked.body) {
        Ok(whole) => whole,
        Err(answer) => return answer,
    };
    let mut errors = Vec::new();
    for collection in collections() {
        if let Some(version) = whole.get(version_key(collection)).filter(|version| !version.is_number()) {
            let got = if version.is_string() { "string" } else { "table" };
            let message = format!("{} must be a number, got {got}", version_key(collection));
            errors.push(json!({ "resource_type": collection.name, "error": message }));
        }
        let (_, wrong) = of_request(&*api.control, collection, &whole[collection.name]);
        errors.extend(
            wrong
                .into_iter()
                .map(|(index, message)| json!({ "resource_type": collection.name, "index": index, "error": message })),
        );
    }
    match errors.is_empty() {
        true => Answer::empty(StatusCode::OK),
        false => {
            let body = json!({ "error_msg": "Configuration validation failed", "errors": errors });
            Answer::json(StatusCode::BAD_REQUEST, body)
        }
    }
}

/// A replacement that is to be committed.
struct Planned {
    digest: String,
    view: View,
    /// From before the documents were read, which go on changing.
    revision: u64,
    changes: Changes,
}

/// `None`: what is stored came with this digest.
fn plan(api: &Api, body: &[u8], digest: &str) -> Result<Option<Planned>, Answer> {
    let whole = whole(body)?;
    may_write(api)?;
    let view = View::new(api.control.documents());
    if api.standalone.last(view.revision(), unix_seconds()).1.as_deref() == Some(digest) {
        return Ok(None);
    }
    let revision = view.revision();
    let changes = changes(api, &view, &whole)?;
    Ok(Some(Planned { digest: digest.to_owned(), view, revision, changes }))
}

async fn commit_plan(api: &Api, asked: &Asked, planned: Planned) -> Result<Answer, Answer> {
    let Planned { digest, view, revision: before, changes: Changes { writes, versions, indexes } } = planned;
    let transaction = transaction(asked, Vec::new(), writes);
    let is_dry = asked.query.dry_run()?;
    let outcome = match transaction.writes.is_empty() {
        // A datastore takes no transaction without writes.
        true => None,
        false if is_dry => return dry_run(api, &view, transaction).await,
        false => Some(commit_all(api, asked, transaction).await.map_err(|error| match error {
            WriteError::Conflict { key, modified } => precondition_failed(&key, modified),
            error => Answer::refused(&error),
        })?),
    };
    if is_dry {
        let body = json!({ "dry_run": true, "changes": [], "warnings": [], "effects": [] });
        return Ok(Answer::json(StatusCode::OK, body));
    }
    let revision = outcome.as_ref().map_or(before, |outcome| outcome.revision);
    // What another client wrote meanwhile was neither compared nor removed, and the digest does not stand for it.
    if outcome.is_none() || revision == before + 1 {
        let documents = api.control.documents();
        api.standalone.remember(&*documents, (digest, revision, unix_seconds()), versions, indexes);
    }
    let waits = asked.query.get("wait").and_then(|wait| wait.parse::<f64>().ok()).is_some_and(|wait| wait > 0.0);
    let status = if waits { StatusCode::OK } else { StatusCode::ACCEPTED };
    let answer = with_last(Answer::empty(status), api.standalone.last(revision, unix_seconds()));
    Ok(match outcome {
        Some(outcome) => with_outcome(answer, &outcome),
        None => answer,
    })
}

/// The document of a request.
fn whole(bytes: &[u8]) -> Result<Json, Answer> {
    if bytes.is_empty() {
        return Err(Answer::bad("invalid request body: empty request body"));
    }
    let parsed: Result<Json, _> = serde_json::from_slice(bytes);
    let mut whole =
        parsed.map_err(|error| Answer::bad(format!("invalid request body: {}", in_words_of_apisix(&error, bytes))))?;
    if !whole.is_object() {
        return Err(Answer::bad("invalid request body: an object is expected"));
    }
    if let Some(unknown) = whole.as_object().into_iter().flat_map(Map::keys).find(|key| !is_known(key)) {
        return Err(Answer::bad(format!("unknown key {unknown:?}; what a list does not name is deleted")));
    }
    let certificates = whole.get_mut("ssls").and_then(Json::as_array_mut);
    certificates.into_iter().flatten().for_each(remove_hidden_keys);
    if has_mask(&whole) {
        return Err(Answer::bad(format!("the configuration has a masked secret ({MASK}); send the secret itself")));
    }
    Ok(whole)
}

/// What may be in the whole document, if only because GET has it there. Of `plugins`, which APISIX has a version of, nothing is
/// taken.
fn is_known(key: &str) -> bool {
    let is_of_all = ["plugins", "X-Last-Modified", "X-Digest"].contains(&key);
    is_of_all || key.ends_with("_conf_version") || collections().any(|collection| collection.name == key)
}

/// What a replacement does.
#[derive(Default)]
struct Changes {
    writes: Vec<Write>,
    /// Of all collections.
    versions: Vec<(&'static str, u64)>,
    /// All documents, with the indexes they came with.
    indexes: Vec<(Key, Option<u64>)>,
}

/// What changes, and which versions the collections have then.
fn changes(api: &Api, view: &View, whole: &Json) -> Result<Changes, Answer> {
    let mut changes = Changes::default();
    for collection in collections() {
        let stored = view.below(&format!("{}/", collection.name));
        let old = api.standalone.version(collection, fingerprint(&stored));
        let new = new_version(collection, &whole[version_key(collection)], old)?;
        changes.versions.push((collection.name, new));
        if new == old {
            let index = |(key, document): &(Key, Document)| (key.clone(), api.standalone.index(key, document));
            changes.indexes.extend(stored.iter().map(index));
            continue;
        }
        let (items, wrong): (Items, _) = of_request(&*api.control, collection, &whole[collection.name]);
        if let Some((_, message)) = wrong.into_iter().next() {
            return Err(Answer::bad(message));
        }
        changes.indexes.extend(items.iter().map(|(key, item)| (key.clone(), item.index)));
        changes.writes.extend(diff(collection, &stored, items, unix_seconds()));
    }
    Ok(changes)
}

fn new_version(collection: &Collection, given: &Json, old: u64) -> Result<u64, Answer> {
    let key = version_key(collection);
    match given {
        Json::Null => Ok(old + 1),
        Json::Number(number) => match number.as_f64() {
            // Versions are counts or times in milliseconds: far below where a float has gaps.
            Some(version) if version >= old as f64 => Ok(version as u64),
            _ => Err(Answer::bad(format!("{key} must be greater than or equal to ({old})"))),
        },
        _ => Err(Answer::bad(format!("{key} must be a number"))),
    }
}

fn version_key(collection: &Collection) -> String {
    format!("{}_conf_version", collection.name)
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
