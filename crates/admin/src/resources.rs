//! Requests about resources: reads, and writes with their conditions, dry runs and the audit log.

use crate::answer::Answer;
use crate::collections::{Collection, Naming, Verb};
use crate::control::{Outcome, WriteError};
use crate::masks::hide_private_keys;
use crate::resource::plan::{Operation, Plan, plan};
use crate::resource::read;
use crate::resource::references::parsed;
use crate::resource::view::View;
use crate::router::{Api, Asked};
use axum::http::header::{ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, StatusCode};
use serde_json::{Value as Json, json};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stillgate_datastore::{Author, Condition, Document, Key, Transaction, Write};
use tokio::task::spawn_blocking;
use tracing::{error, info};

/// How often a write is planned again because something changed between its check and its commit.
const ATTEMPTS_MAX: usize = 8;

/// Before it is planned again: the documents follow their datastore.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(10);

const API_VERSION: HeaderName = HeaderName::from_static("x-api-version");
const GENERATION: HeaderName = HeaderName::from_static("x-stillgate-generation");

/// GET of one document or of a list. A long list takes a while, during which others are served.
pub(crate) async fn get(api: Arc<Api>, asked: Asked, collection: &'static Collection) -> Answer {
    if let Err(answer) = asked.query.ttl_seconds() {
        return answer;
    }
    let address = asked.address();
    let known = asked.headers.get(IF_NONE_MATCH).cloned();
    let role = asked.caller.role;
    let found = spawn_blocking(move || match address.id {
        Some(_) => read::one(&*api.control, role, collection, &address),
        None => read::list(&*api.control, role, collection, &address, &asked.query),
    });
    let answer = found.await.unwrap_or_else(|error| {
        error!(%error, "admin API: reading failed, which is a bug");
        Answer::error(StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error; see the gateway's log")
    });
    let is_known = known.is_some_and(|known| answer.headers.contains(&(ETAG, known)));
    let answer =
        if is_known { Answer { headers: answer.headers, ..Answer::empty(StatusCode::NOT_MODIFIED) } } else { answer };
    answer.with(API_VERSION, "v3")
}

/// PUT, POST, PATCH and DELETE.
pub(crate) async fn write(api: &Api, asked: Asked, verb: Verb, collection: &'static Collection) -> Answer {
    let answer = match operation(&asked, verb, collection) {
        Ok(operation) => execute(api, &asked, &operation).await.unwrap_or_else(|answer| answer),
        Err(answer) => answer,
    };
    answer.with(API_VERSION, "v3")
}

fn operation(asked: &Asked, verb: Verb, collection: &'static Collection) -> Result<Operation, Answer> {
    let body = if verb == Verb::Delete { None } else { asked.json()? };
    let ttl_seconds = asked.query.ttl_seconds()?;
    let force = asked.query.is("force", "true");
    Ok(Operation { verb, collection, address: asked.address(), body, ttl_seconds, force })
}

async fn execute(api: &Api, asked: &Asked, operation: &Operation) -> Result<Answer, Answer> {
    may_write(api)?;
    let stated = Stated::of(&asked.headers)?;
    for _ in 0..ATTEMPTS_MAX {
        let view = View::new(api.control.documents());
        let mut plan = plan(&*api.control, &view, operation, unix_seconds())?;
        let old = view.get(&plan.key);
        stated.check(&plan.key, old.as_ref())?;
        if let Some(condition) = stated.condition(old.as_ref()) {
            plan.conditions.retain(|(key, _)| *key != plan.key);
            plan.conditions.push((plan.key.clone(), condition));
        }
        let transaction = transaction(asked, plan.conditions.clone(), plan.writes.clone());
        if asked.query.is("dry_run", "true") {
            return dry_run(api, &view, transaction).await;
        }
        match commit(api, asked, transaction).await {
            Ok(outcome) => return Ok(done(plan, operation.verb, &outcome)),
            Err(WriteError::Conflict { key, modified }) if key == plan.key && stated != Stated::Nothing => {
                return Err(precondition_failed(&key, modified));
            }
            Err(WriteError::Conflict { .. }) => tokio::time::sleep(ATTEMPT_PAUSE).await,
            Err(error) => return Err(Answer::refused(&error)),
        }
    }
    Err(Answer::changed_meanwhile())
}

/// Commits, and logs it.
pub(crate) async fn commit(api: &Api, asked: &Asked, transaction: Transaction) -> Result<Outcome, WriteError> {
    let keys: Vec<String> = transaction.writes.iter().map(|write| write.key().to_string()).collect();
    let outcome = api.control.write(transaction, asked.query.wait()).await?;
    audit(asked, &keys.join(" "), outcome.revision);
    Ok(outcome)
}

/// One line for each write.
pub(crate) fn audit(asked: &Asked, keys: &str, revision: u64) {
    let Author { name, address, action } = author(asked);
    info!(target: "audit", key = name, address, action, keys, revision, "write");
}

pub(crate) fn author(asked: &Asked) -> Author {
    let address = asked.peer.to_canonical().to_string();
    // Without the query, which may have the key.
    Author { name: asked.caller.name.clone(), address, action: format!("{} {}", asked.method, asked.path) }
}

pub(crate) fn transaction(asked: &Asked, conditions: Vec<(Key, Condition)>, writes: Vec<Write>) -> Transaction {
    Transaction { conditions, writes, author: author(asked) }
}

/// Whether resources are written here at all.
pub(crate) fn may_write(api: &Api) -> Result<(), Answer> {
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

/// What a transaction would change, and what that would mean.
pub(crate) async fn dry_run(api: &Api, view: &View, transaction: Transaction) -> Result<Answer, Answer> {
    let changes: Vec<Json> = transaction.writes.iter().map(|write| change(view, write)).collect();
    let checked = api.control.check(transaction).await.map_err(|error| match error {
        WriteError::Conflict { key, modified } => precondition_failed(&key, modified),
        error => Answer::refused(&error),
    })?;
    let effect = |(key, effect): &(Key, String)| json!({ "key": key.as_str(), "effect": effect });
    let effects: Vec<Json> = checked.effects.iter().map(effect).collect();
    let body = json!({ "dry_run": true, "changes": changes, "warnings": checked.warnings, "effects": effects });
    Ok(Answer::json(StatusCode::OK, body))
}

/// What a write changes of one document.
pub(crate) fn change(view: &View, write: &Write) -> Json {
    let collection = Collection::of_key(write.key().as_str());
    let shown = |text: &str| {
        let mut value = parsed(text);
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
        Some(modified) => format!("{key} was written by revision {modified}; read it again"),
        None => format!("{key} does not exist"),
    };
    let body = json!({ "error_msg": message, "modifiedIndex": modified });
    Answer::json(StatusCode::PRECONDITION_FAILED, body)
}

pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn done(plan: Plan, verb: Verb, outcome: &Outcome) -> Answer {
    let answer = match verb {
        Verb::Delete => plan.answer,
        _ => plan.answer.with(ETAG, &format!("\"{}\"", outcome.revision)),
    };
    with_outcome(answer, outcome)
}

/// The condition that a client states.
#[derive(Debug, PartialEq, Eq)]
enum Stated {
    Nothing,
    /// `If-Match: *`.
    Present,
    /// `If-None-Match: *`.
    Absent,
    /// `If-Match` with revisions.
    Revisions(Vec<u64>),
}

impl Stated {
    fn of(headers: &HeaderMap) -> Result<Stated, Answer> {
        let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default().trim());
        match (text(IF_MATCH), text(IF_NONE_MATCH)) {
            (None, None) => Ok(Stated::Nothing),
            (Some("*"), None) => Ok(Stated::Present),
            (None, Some("*")) => Ok(Stated::Absent),
            (Some(tags), None) => {
                let revision = |tag: &str| tag.trim().trim_start_matches("W/").trim_matches('"').parse().ok();
                // A tag that is no revision matches none.
                Ok(Stated::Revisions(tags.split(',').filter_map(revision).collect()))
            }
            _ => Err(Answer::bad("a write takes If-Match, or If-None-Match: *")),
        }
    }

    /// Whether it holds for what is stored.
    fn check(&self, key: &Key, old: Option<&Document>) -> Result<(), Answer> {
        let modified = old.map(|old| old.modified);
        let holds = match self {
            Stated::Nothing => true,
            Stated::Present => old.is_some(),
            Stated::Absent => old.is_none(),
            Stated::Revisions(revisions) => modified.is_some_and(|modified| revisions.contains(&modified)),
        };
        if holds { Ok(()) } else { Err(precondition_failed(key, modified)) }
    }

    /// For the transaction, after [`check`](Stated::check).
    fn condition(&self, old: Option<&Document>) -> Option<Condition> {
        match (self, old) {
            (Stated::Nothing, _) => None,
            (Stated::Absent, _) => Some(Condition::Absent),
            (Stated::Present, _) => Some(Condition::Present),
            (Stated::Revisions(_), old) => old.map(|old| Condition::Modified(old.modified)),
        }
    }
}

/// The address of a document in a path below `/apisix/admin/`, for operations of a batch.
pub(crate) fn collection_of(segments: &[&str]) -> Option<(&'static Collection, Option<String>, usize)> {
    match segments {
        ["consumers", username, "credentials", ..] => {
            Some((Collection::named("credentials")?, Some((*username).to_owned()), 3))
        }
        ["secrets", manager, ..] => Some((Collection::named("secrets")?, Some((*manager).to_owned()), 2)),
        [name, ..] => {
            let collection = Collection::named(name)?;
            (!matches!(collection.naming, Naming::Credential)).then_some((collection, None, 1))
        }
        [] => None,
    }
}
