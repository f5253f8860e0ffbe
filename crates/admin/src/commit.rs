//! Turns planned writes into one transaction, which is committed and logged, or only checked.

use crate::answer::{Answer, answer_off_thread, off_thread};
use crate::control::{Outcome, WriteError};
use crate::endpoints::{Api, ParsedRequest};
use crate::masks::hide_private_keys;
use crate::resource::references::{View, parse_document};
use axum::http::StatusCode;
use axum::http::header::HeaderName;
use serde_json::{Value as Json, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stillgate_datastore::transaction::WRITES_MAX;
use stillgate_datastore::{Author, Condition, Key, ReferenceCheck, Transaction, Write};
use tracing::info;

/// The most keys in a line of the audit log; history has all.
const LOGGED_KEYS_MAX: usize = 16;

/// The most changes that a dry run shows; the others are counted.
const CHANGES_SHOWN_MAX: usize = 1000;

/// How often a write is planned again because something changed between its check and its commit.
pub(crate) const ATTEMPTS_MAX: usize = 32;

/// The pause before a write is planned again, in which the documents catch up with their datastore.
const PAUSE: Duration = Duration::from_millis(10);

/// The most pauses before an attempt. An etcd that is even further behind would not answer the attempt either.
const PAUSES_MAX: usize = 100;

const GENERATION: HeaderName = HeaderName::from_static("x-stillgate-generation");

/// Commits a transaction and logs it.
pub(crate) async fn commit(api: &Api, asked: &ParsedRequest, transaction: Transaction) -> Result<Outcome, WriteError> {
    let keys = keys_to_log(&transaction);
    let outcome = api.control.write(transaction, asked.query.wait()).await?;
    audit(asked, &keys, outcome.revision);
    Ok(outcome)
}

/// Commits any number of writes with any number of bytes, if the datastore can make them in one change.
pub(crate) async fn commit_all(
    api: &Api,
    asked: &ParsedRequest,
    transaction: Transaction,
) -> Result<Outcome, WriteError> {
    if transaction.writes.len() <= WRITES_MAX && api.control.writes_max() <= WRITES_MAX {
        return commit(api, asked, transaction).await;
    }
    let keys = keys_to_log(&transaction);
    let outcome = api.control.write_many(transaction, asked.query.wait()).await?;
    audit(asked, &keys, outcome.revision);
    Ok(outcome)
}

fn keys_to_log(transaction: &Transaction) -> String {
    let keys: Vec<&str> = transaction.writes.iter().take(LOGGED_KEYS_MAX).map(|write| write.key().as_str()).collect();
    let mut keys = keys.join(" ");
    if transaction.writes.len() > LOGGED_KEYS_MAX {
        keys.push_str(&format!(" and {} more", transaction.writes.len() - LOGGED_KEYS_MAX));
    }
    keys
}

/// Logs one line for each write.
pub(crate) fn audit(asked: &ParsedRequest, keys: &str, revision: u64) {
    let Author { name, address, action } = author(asked);
    info!(target: "audit", key = name, address, action, keys, revision, "write");
}

pub(crate) fn author(asked: &ParsedRequest) -> Author {
    let address = asked.peer.to_canonical().to_string();
    // Without the query, which may contain the key.
    Author { name: asked.caller.name.clone(), address, action: format!("{} {}", asked.method, asked.path) }
}

pub(crate) fn transaction(
    asked: &ParsedRequest,
    conditions: Vec<(Key, Condition)>,
    unreferenced: Vec<ReferenceCheck>,
    writes: Vec<Write>,
) -> Transaction {
    Transaction { conditions, unreferenced, writes, author: author(asked) }
}

/// Waits until a write can be planned again after the conflicting write of this revision.
pub(crate) async fn caught_up(api: &Api, revision: Option<u64>) {
    let behind = || revision.is_some_and(|revision| api.control.documents().revision() < revision);
    for _ in 0..PAUSES_MAX {
        tokio::time::sleep(PAUSE).await;
        if !behind() {
            return;
        }
    }
}

/// Whether resources can be written through this gateway at all.
pub(crate) fn check_writable(api: &Api) -> Result<(), Answer> {
    api.control.writable().map_err(|why| Answer::error(StatusCode::NOT_IMPLEMENTED, why))
}

/// The headers of a committed write.
pub(crate) fn with_outcome(answer: Answer, outcome: &Outcome) -> Answer {
    let answer = answer.with_warnings(&outcome.warnings);
    match outcome.generation {
        Some(generation) => answer.with(GENERATION, &generation.to_string()),
        None => answer,
    }
}

/// The changes of a transaction, and their consequences.
pub(crate) async fn dry_run(api: &Api, view: View, transaction: Transaction) -> Result<Answer, Answer> {
    let (transaction, changes) = off_thread(move || {
        let shown = transaction.writes.iter().take(CHANGES_SHOWN_MAX);
        let changes: Vec<Json> = shown.map(|write| change(&view, write)).collect();
        (transaction, changes)
    })
    .await?;
    let omitted = transaction.writes.len().saturating_sub(CHANGES_SHOWN_MAX);
    let checked = api.control.check(transaction).await.map_err(|error| match error {
        WriteError::Conflict { key, modified } => precondition_failed(&key, modified),
        error => Answer::refused(&error),
    })?;
    let answer = answer_off_thread(None, move || {
        let effect = |(key, effect): &(Key, String)| json!({ "key": key.as_str(), "effect": effect });
        let effects: Vec<Json> = checked.effects.iter().map(effect).collect();
        let mut body = json!({
            "dry_run": true,
            "changes": null,
            "warnings": checked.warnings,
            "effects": effects,
            "recent_requests": checked.recent_requests,
        });
        // Moved; `json!` would copy them.
        body["changes"] = changes.into();
        if omitted > 0 {
            body["changes_omitted"] = omitted.into();
        }
        Answer::json(StatusCode::OK, body)
    });
    Ok(answer.await)
}

/// The change that a write makes to one document.
pub(crate) fn change(view: &View, write: &Write) -> Json {
    let collection = crate::collections::Collection::of_key(write.key().as_str());
    let shown = |text: &str| {
        let mut value = parse_document(text);
        collection.into_iter().for_each(|collection| hide_private_keys(collection, &mut value));
        value
    };
    let before = view.get(write.key()).map(|document| shown(&document.value));
    let after = match write {
        Write::Put { value, .. } => Some(shown(value)),
        Write::Delete { .. } => None,
    };
    json!({ "key": write.key().as_str(), "before": before, "after": after })
}

pub(crate) fn precondition_failed(key: &Key, modified: Option<u64>) -> Answer {
    let message = match modified {
        Some(modified) => format!("{key} is at revision {modified}; read it again"),
        None => format!("{key} does not exist"),
    };
    let body = json!({ "error_msg": message, "modifiedIndex": modified });
    Answer::json(StatusCode::PRECONDITION_FAILED, body)
}

pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
