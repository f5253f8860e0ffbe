//! Requests about resources: reads, and writes with the conditions that their clients state.

use super::plan::{Operation, Plan, plan};
use super::read;
use super::references::{CommitConditions, StateAfter};
use super::view::View;
use crate::answer::Answer;
use crate::api::Api;
use crate::collections::{Collection, Verb};
use crate::commit::{
    ATTEMPTS_MAX, caught_up, commit, dry_run, may_write, precondition_failed, transaction, unix_seconds, with_outcome,
};
use crate::control::{Control, Outcome, WriteError};
use crate::endpoints::ParsedRequest;
use crate::off_thread::off_thread;
use axum::http::header::{ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH, IF_UNMODIFIED_SINCE};
use axum::http::{HeaderMap, StatusCode};
use std::collections::HashSet;
use std::sync::Arc;
use stillgate_datastore::{Condition, Document, Key};

const API_VERSION: HeaderName = HeaderName::from_static("x-api-version");

/// GET of one document or of a list. A long list takes a while, during which other requests are served.
pub(crate) async fn get(api: Arc<Api>, asked: ParsedRequest, collection: &'static Collection) -> Answer {
    if let Err(answer) = asked.query.ttl_seconds() {
        return answer;
    }
    let address = asked.address();
    let known = asked.headers.get(IF_NONE_MATCH).cloned();
    let role = asked.caller.role;
    // Lists may be long, and their filters expensive: only a few run at once.
    let place = match address.id {
        Some(_) => None,
        None => Some(api.lists.clone().acquire_owned().await.expect("the semaphore is never closed")),
    };
    let found = off_thread(move || {
        let answer = match address.id {
            Some(_) => read::one(&*api.control, role, collection, &address),
            None => read::list(&*api.control, role, collection, &address, &asked.query),
        };
        // Held until the work ends, even if the client has disconnected.
        drop(place);
        answer
    });
    let answer = found.await.unwrap_or_else(|answer| answer);
    let is_known = known.is_some_and(|known| answer.headers.contains(&(ETAG, known)));
    let answer =
        if is_known { Answer { headers: answer.headers, ..Answer::empty(StatusCode::NOT_MODIFIED) } } else { answer };
    answer.with(API_VERSION, "v3")
}

/// PUT, POST, PATCH and DELETE.
pub(crate) async fn write(api: &Api, asked: ParsedRequest, verb: Verb, collection: &'static Collection) -> Answer {
    let answer = match operation(&asked, verb, collection) {
        Ok(operation) => execute(api, &asked, Arc::new(operation)).await.unwrap_or_else(|answer| answer),
        Err(answer) => answer,
    };
    answer.with(API_VERSION, "v3")
}

fn operation(asked: &ParsedRequest, verb: Verb, collection: &'static Collection) -> Result<Operation, Answer> {
    let body = (verb != crate::collections::Verb::Delete).then(|| asked.body.clone());
    let ttl_seconds = asked.query.ttl_seconds()?;
    let force = asked.query.is("force", "true");
    Ok(Operation { verb, collection, address: asked.address(), body, ttl_seconds, force })
}

async fn execute(api: &Api, asked: &ParsedRequest, operation: Arc<Operation>) -> Result<Answer, Answer> {
    may_write(api)?;
    let stated = Stated::of(&asked.headers)?;
    for _ in 0..ATTEMPTS_MAX {
        let (control, planned, place) = (api.control.clone(), operation.clone(), asked.place.clone());
        // All documents are searched for references to a document.
        let planning = off_thread(move || {
            let view = View::new(control.documents());
            let planned = checked_plan(&*control, &view, &planned);
            drop(place);
            planned.map(|(plan, still)| (view, plan, still))
        });
        let (view, mut plan, still) = planning.await??;
        let old = view.get(&plan.key);
        stated.check(&plan.key, old.as_ref())?;
        if let Some(condition) = stated.condition(old.as_ref()) {
            plan.conditions.retain(|(key, _)| *key != plan.key);
            plan.conditions.push((plan.key.clone(), condition));
        }
        let conditions = plan.conditions.iter().cloned().chain(still.conditions).collect();
        let transaction = transaction(asked, conditions, still.unreferenced, plan.writes.clone());
        if asked.query.dry_run()? {
            return dry_run(api, view, transaction).await;
        }
        match commit(api, asked, transaction).await {
            Ok(outcome) => return Ok(done(plan, operation.verb, &outcome)),
            Err(WriteError::Conflict { key, modified }) if key == plan.key && stated != Stated::Nothing => {
                return Err(precondition_failed(&key, modified));
            }
            Err(WriteError::Conflict { modified, .. }) => caught_up(api, modified).await,
            Err(error) => return Err(Answer::refused(&error)),
        }
    }
    Err(Answer::changed_meanwhile())
}

/// The plan of an operation whose references have been checked.
fn checked_plan(control: &dyn Control, view: &View, operation: &Operation) -> Result<(Plan, CommitConditions), Answer> {
    let plan = plan(control, view, operation, unix_seconds())?;
    let forced = if operation.force { HashSet::from([plan.key.clone()]) } else { HashSet::new() };
    let after = StateAfter::new(view, &plan.writes);
    let still = after.check_unique().and_then(|()| after.check_references(&forced));
    let still = still.map_err(|refusal| refusal.answer)?;
    Ok((plan, still))
}

fn done(plan: Plan, verb: Verb, outcome: &Outcome) -> Answer {
    let answer = match verb {
        crate::collections::Verb::Delete => plan.answer,
        _ => plan.answer.with(ETAG, &format!("\"{}\"", outcome.revision)),
    };
    with_outcome(answer, outcome)
}

// `If-Match` and `If-None-Match` of a write: the revision of the document that a client expects.
//
// An ignored condition would let a client overwrite changes it has not seen, so a condition that cannot be parsed is refused.

/// The headers that state a condition of a write (RFC 9110, section 13.1).
const CONDITIONS: [HeaderName; 3] = [IF_MATCH, IF_NONE_MATCH, IF_UNMODIFIED_SINCE];

/// Refuses conditions on a request that is not about one document, since there is no revision to compare.
pub(crate) fn refuse_conditions(headers: &HeaderMap) -> Result<(), Answer> {
    match CONDITIONS.iter().find(|name| headers.contains_key(*name)) {
        Some(name) => Err(Answer::bad(format!(
            "{} is supported in writes of one resource only, at its own path; remove it here",
            shown(name)
        ))),
        None => Ok(()),
    }
}

fn shown(name: &HeaderName) -> &'static str {
    match *name {
        IF_MATCH => "If-Match",
        IF_NONE_MATCH => "If-None-Match",
        _ => "If-Unmodified-Since",
    }
}

/// The condition that a client states.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stated {
    Nothing,
    /// `If-Match: *`.
    Present,
    /// `If-None-Match: *`.
    Absent,
    /// `If-Match` with revisions.
    Revisions(Vec<u64>),
}

impl Stated {
    pub(super) fn of(headers: &HeaderMap) -> Result<Stated, Answer> {
        if headers.contains_key(IF_UNMODIFIED_SINCE) {
            return Err(Answer::bad("If-Unmodified-Since is not supported; send If-Match with the ETag"));
        }
        // Several lines form one list.
        let text = |name| {
            let lines = headers.get_all(name).iter().map(|value| value.to_str().unwrap_or_default().trim());
            lines.map(str::to_owned).reduce(|all, line| format!("{all},{line}"))
        };
        match (text(IF_MATCH).as_deref(), text(IF_NONE_MATCH).as_deref()) {
            (None, None) => Ok(Stated::Nothing),
            (Some("*"), None) => Ok(Stated::Present),
            (None, Some("*")) => Ok(Stated::Absent),
            (Some(tags), None) => {
                let revision = |tag: &str| tag.trim().trim_start_matches("W/").trim_matches('"').parse().ok();
                // A tag that is not a revision matches none.
                Ok(Stated::Revisions(tags.split(',').filter_map(revision).collect()))
            }
            _ => Err(Answer::bad("send either If-Match or If-None-Match: *")),
        }
    }

    /// Whether it holds for the stored document.
    pub(super) fn check(&self, key: &Key, old: Option<&Document>) -> Result<(), Answer> {
        let modified = old.map(|old| old.modified);
        let holds = match self {
            Stated::Nothing => true,
            Stated::Present => old.is_some(),
            Stated::Absent => old.is_none(),
            Stated::Revisions(revisions) => modified.is_some_and(|modified| revisions.contains(&modified)),
        };
        if holds { Ok(()) } else { Err(precondition_failed(key, modified)) }
    }

    /// The condition of the transaction, after [`check`](Stated::check).
    pub(super) fn condition(&self, old: Option<&Document>) -> Option<Condition> {
        match (self, old) {
            (Stated::Nothing, _) => None,
            (Stated::Absent, _) => Some(Condition::Absent),
            (Stated::Present, _) => Some(Condition::Present),
            (Stated::Revisions(_), old) => old.map(|old| Condition::Modified(old.modified)),
        }
    }
}
