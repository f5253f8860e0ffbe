//! `configs`: all resources as one document, read and replaced, as APISIX without etcd has it; ADC uses it.
//!
//! The documents stay the truth: what another client writes shows here, too. The digest and the versions that a client gave
//! are remembered in memory, for as long as nobody else writes. A restart forgets them; versions then are revisions, and no
//! digest is known.

mod items;

use crate::answer::Answer;
use crate::body::in_words_of_apisix;
use crate::collections::{COLLECTIONS, Collection, Naming};
use crate::control::WriteError;
use crate::masks::{MASK, has_mask};
use crate::resource::view::View;
use crate::resources::{commit, dry_run, may_write, precondition_failed, transaction, unix_seconds, with_outcome};
use crate::router::{Api, Asked};
use axum::http::StatusCode;
use axum::http::header::HeaderName;
use items::{Items, diff, of_documents, of_request};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use stillgate_datastore::Write;
use stillgate_datastore::transaction::WRITES_MAX;

const DIGEST: HeaderName = HeaderName::from_static("x-digest");
const LAST_MODIFIED: HeaderName = HeaderName::from_static("x-last-modified");

/// Bytes of a digest that is remembered.
const DIGEST_BYTES_MAX: usize = 256;

/// What is remembered of the last replacement.
#[derive(Debug, Default)]
pub(crate) struct Standalone(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The digest, when it came, and the revision it is of.
    last: Option<(String, u64, u64)>,
    /// Of each collection: the version it has, and what it was of.
    versions: BTreeMap<&'static str, (u64, Fingerprint)>,
}

/// Tells two states of a collection apart: how many documents, and the revision that wrote the last one.
type Fingerprint = (usize, u64);

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
        let items = of_documents(&*api.control, asked.caller.role, collection, &found);
        if !items.is_empty() {
            whole.insert(collection.name.to_owned(), items.into());
        }
        whole.insert(version_key(collection), version.into());
    }
    let last = api.standalone.last(documents.revision());
    if let Some((digest, at)) = &last {
        whole.insert("X-Digest".to_owned(), digest.as_str().into());
        whole.insert("X-Last-Modified".to_owned(), (*at).into());
    }
    with_last(Answer::json(StatusCode::OK, whole.into()), last)
}

/// PUT.
pub(crate) async fn replace(api: &Api, asked: Asked) -> Answer {
    match run(api, &asked).await {
        Ok(answer) | Err(answer) => answer,
    }
}

/// POST to `configs/validate`.
pub(crate) fn validate(api: &Api, asked: &Asked) -> Answer {
    let whole = match whole(asked) {
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

async fn run(api: &Api, asked: &Asked) -> Result<Answer, Answer> {
    let digest = asked.headers.get(DIGEST).and_then(|digest| digest.to_str().ok()).map(str::to_owned);
    let digest = digest.ok_or_else(|| Answer::bad("missing digest header"))?;
    if digest.len() > DIGEST_BYTES_MAX {
        return Err(Answer::bad(format!("the digest is longer than {DIGEST_BYTES_MAX} bytes")));
    }
    let whole = whole(asked)?;
    may_write(api)?;
    let view = View::new(api.control.documents());
    if api.standalone.last(view.revision()).is_some_and(|(known, _)| known == digest) {
        return Ok(Answer::empty(StatusCode::NO_CONTENT));
    }
    let (writes, versions) = changes(api, &view, &whole)?;
    if writes.len() > WRITES_MAX {
        let message = format!("{} documents change, which is more than {WRITES_MAX} in one transaction", writes.len());
        return Err(Answer::bad(message));
    }
    let transaction = transaction(asked, Vec::new(), writes);
    if asked.query.is("dry_run", "true") {
        return dry_run(api, &view, transaction).await;
    }
    let outcome = match transaction.writes.is_empty() {
        true => None,
        false => Some(commit(api, asked, transaction).await.map_err(|error| match error {
            WriteError::Conflict { key, modified } => precondition_failed(&key, modified),
            error => Answer::refused(&error),
        })?),
    };
    let revision = outcome.as_ref().map_or(view.revision(), |outcome| outcome.revision);
    api.standalone.remember(api, digest, revision, versions);
    let waits = asked.query.get("wait").and_then(|wait| wait.parse::<f64>().ok()).is_some_and(|wait| wait > 0.0);
    let status = if waits { StatusCode::OK } else { StatusCode::ACCEPTED };
    let answer = with_last(Answer::empty(status), api.standalone.last(revision));
    Ok(match outcome {
        Some(outcome) => with_outcome(answer, &outcome),
        None => answer,
    })
}

/// The document of a request.
fn whole(asked: &Asked) -> Result<Json, Answer> {
    let bytes = &asked.body;
    if bytes.is_empty() {
        return Err(Answer::bad("invalid request body: empty request body"));
    }
    let parsed: Result<Json, _> = serde_json::from_slice(bytes);
    let whole =
        parsed.map_err(|error| Answer::bad(format!("invalid request body: {}", in_words_of_apisix(&error, bytes))))?;
    if !whole.is_object() {
        return Err(Answer::bad("invalid request body: an object is expected"));
    }
    if has_mask(&whole) {
        return Err(Answer::bad(format!("the configuration has a masked secret ({MASK})")));
    }
    Ok(whole)
}

/// The versions of collections, by name.
type Versions = Vec<(&'static str, u64)>;

/// What changes, and which versions the collections have then.
fn changes(api: &Api, view: &View, whole: &Json) -> Result<(Vec<Write>, Versions), Answer> {
    let (mut writes, mut versions) = (Vec::new(), Vec::new());
    for collection in collections() {
        let stored = view.below(&format!("{}/", collection.name));
        let old = api.standalone.version(collection, fingerprint(&stored));
        let new = new_version(collection, &whole[version_key(collection)], old)?;
        versions.push((collection.name, new));
        if new == old {
            continue;
        }
        let (items, wrong): (Items, _) = of_request(&*api.control, collection, &whole[collection.name]);
        if let Some((_, message)) = wrong.into_iter().next() {
            return Err(Answer::bad(message));
        }
        writes.extend(diff(collection, &stored, items));
    }
    Ok((writes, versions))
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

fn fingerprint(documents: &[(stillgate_datastore::Key, stillgate_datastore::Document)]) -> Fingerprint {
    (documents.len(), documents.iter().map(|(_, document)| document.modified).max().unwrap_or(0))
}

fn with_last(answer: Answer, last: Option<(String, u64)>) -> Answer {
    match last {
        Some((digest, at)) => answer.with(DIGEST, &digest).with(LAST_MODIFIED, &at.to_string()),
        None => answer,
    }
}

impl Standalone {
    /// The version of a collection that is in this state.
    fn version(&self, collection: &Collection, now: Fingerprint) -> u64 {
        match self.lock().versions.get(collection.name) {
            Some((version, known)) if *known == now => *version,
            Some((version, _)) => now.1.max(version + 1),
            None => now.1,
        }
    }

    /// The digest of what is stored at this revision, and when it came.
    fn last(&self, revision: u64) -> Option<(String, u64)> {
        let state = self.lock();
        let (digest, at, of) = state.last.as_ref()?;
        (*of == revision).then(|| (digest.clone(), *at))
    }

    fn remember(&self, api: &Api, digest: String, revision: u64, versions: Versions) {
        let documents = api.control.documents();
        let of = |name: &str| fingerprint(&documents.below(&format!("{name}/")));
        let versions = versions.into_iter().map(|(name, version)| (name, (version, of(name)))).collect();
        *self.lock() = State { last: Some((digest, unix_seconds(), revision)), versions };
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
