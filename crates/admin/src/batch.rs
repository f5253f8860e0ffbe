//! `POST /v1/batch`: several writes, or none.
//!
//! Each operation is planned as if those before it were made; references are checked for the state after all of them, so their
//! order does not matter. All are committed as one transaction; a document can be written once.

use crate::answer::{Answer, off_thread};
use crate::body::{self, SINGLE_BYTES_MAX};
use crate::collections::Collection;
use crate::commit::{
    ATTEMPTS_MAX, caught_up, check_writable, commit_all, dry_run, precondition_failed, transaction, unix_seconds,
    with_outcome,
};
use crate::control::WriteError;
use crate::endpoints::{Api, ParsedRequest};
use crate::query::Query;
use crate::resource::address::Address;
use crate::resource::plan::{Operation, plan};
use crate::resource::references::{StateAfter, View};
use axum::http::StatusCode;
use bytes::Bytes;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use stillgate_datastore::{Condition, Key, ReferenceCheck, Write};
use stillgate_schema::lenient_json;

/// One operation of the request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sent {
    method: String,
    /// The path with its query: `/apisix/admin/routes/1?ttl=60`.
    path: String,
    /// The document's text; it is parsed when its turn comes.
    #[serde(default)]
    body: Option<Box<RawValue>>,
}

pub(crate) async fn batch(api: Arc<Api>, asked: ParsedRequest) -> Result<Answer, Answer> {
    check_writable(&api)?;
    if let Some(name) = ["ttl", "force"].into_iter().find(|name| asked.query.get(name).is_some()) {
        return Err(Answer::bad(format!("{name} is an argument of an operation's path, not of the batch")));
    }
    let (body, place) = (asked.body.clone(), asked.place.clone());
    let operations_max = api.control.writes_max();
    let read = off_thread(move || {
        let read = operations(&body, operations_max);
        drop(place);
        read
    });
    let operations: Arc<[Operation]> = read.await??.into();
    for _ in 1..ATTEMPTS_MAX {
        match attempt(&api, &asked, &operations).await? {
            Ok(answer) => return Ok(answer),
            Err((_, modified)) => caught_up(&api, modified).await,
        }
    }
    let last = attempt(&api, &asked, &operations).await?;
    last.map_err(|(key, modified)| precondition_failed(&key, modified))
}

fn operations(body: &[u8], operations_max: usize) -> Result<Vec<Operation>, Answer> {
    let operation = |(index, sent)| operation(sent).map_err(|message| failed(index, &Answer::bad(message)));
    parse(body, operations_max)?.into_iter().enumerate().map(operation).collect()
}

/// A batch before its commit.
struct PlannedBatch {
    /// The documents without the writes.
    stored: View,
    writes: Vec<Write>,
    conditions: Vec<(Key, Condition)>,
    unreferenced: Vec<ReferenceCheck>,
    /// The bodies of the answers as text: as trees they would take many times their size.
    results: Vec<String>,
}

/// `Ok(Err)`: another write was made first, to this key at this revision.
async fn attempt(
    api: &Arc<Api>,
    asked: &ParsedRequest,
    operations: &Arc<[Operation]>,
) -> Result<Result<Answer, (Key, Option<u64>)>, Answer> {
    let (planning, operations, place) = (api.clone(), operations.clone(), asked.place.clone());
    let planned = off_thread(move || {
        let planned = plan_all(&planning, &operations);
        drop(place);
        planned
    });
    let PlannedBatch { stored, writes, conditions, unreferenced, results } = planned.await??;
    let transaction = transaction(asked, conditions, unreferenced, writes);
    if asked.query.dry_run()? {
        return dry_run(api, stored, transaction).await.map(Ok);
    }
    let outcome = match commit_all(api, asked, transaction).await {
        Ok(outcome) => outcome,
        Err(WriteError::Conflict { key, modified }) => return Ok(Err((key, modified))),
        Err(error) => return Err(Answer::refused(&error)),
    };
    let body = format!("{{\"revision\":{},\"results\":[{}]}}\n", outcome.revision, results.join(","));
    Ok(Ok(with_outcome(Answer::text(StatusCode::OK, body), &outcome)))
}

fn plan_all(api: &Api, operations: &[Operation]) -> Result<PlannedBatch, Answer> {
    let mut view = View::new(api.control.documents());
    let stored = View::new(api.control.documents());
    let (mut writes, mut results, mut conditions) = (Vec::<Write>::new(), Vec::<String>::new(), Vec::new());
    // The operation of each write.
    let (mut sources, mut forced) = (Vec::new(), HashSet::new());
    for (index, operation) in operations.iter().enumerate() {
        let plan = plan(&*api.control, &view, operation, unix_seconds()).map_err(|answer| failed(index, &answer))?;
        if let Some(write) = plan.writes.iter().find(|write| view.is_pending(write.key())) {
            let message =
                format!("an earlier operation of this batch writes {}; make one operation of both", write.key());
            return Err(failed(index, &Answer::bad(message)));
        }
        results.push(format!("{{\"status\":{},\"body\":{}}}", plan.answer.status.as_u16(), plan.body()));
        plan.writes.iter().for_each(|write| view.add(write));
        sources.resize(sources.len() + plan.writes.len(), index);
        writes.extend(plan.writes);
        conditions.extend(plan.conditions);
        if operation.force {
            forced.insert(plan.key);
        }
    }
    let (count, max) = (writes.len(), api.control.writes_max());
    if count > max {
        let message = format!("{count} writes, which is more than {max} in one transaction; send several batches");
        return Err(Answer::bad(message));
    }
    let after = StateAfter::new(&stored, &writes);
    let still = after.check_unique().and_then(|()| after.check_references(&forced)).map_err(|refusal| {
        let write = writes.iter().position(|write| *write.key() == refusal.key);
        write.map_or_else(
            || Answer::bad(format!("{}: {}", refusal.key, refusal.answer.message())),
            |write| failed(sources[write], &refusal.answer),
        )
    })?;
    conditions.extend(still.conditions);
    Ok(PlannedBatch { stored, writes, conditions, unreferenced: still.unreferenced, results })
}

fn parse(bytes: &[u8], operations_max: usize) -> Result<Vec<Sent>, Answer> {
    let text = body::text(bytes)?;
    let sent: Vec<Sent> = lenient_json::read(if text.is_empty() { "null" } else { text }).map_err(|(error, at)| {
        let why = body::in_words_of_apisix(&error, at, text.len());
        match error.is_data() {
            true => Answer::bad(format!("write a list of {{\"method\", \"path\", \"body\"}}: {why}")),
            false => Answer::bad(format!("invalid request body: {why}")),
        }
    })?;
    match sent.len() {
        count if (1..=operations_max).contains(&count) => Ok(sent),
        count => Err(Answer::bad(format!("a batch takes 1 to {operations_max} operations; this one has {count}"))),
    }
}

fn operation(sent: Sent) -> Result<Operation, String> {
    let verb = crate::collections::Verb::named(&sent.method).filter(|verb| *verb != crate::collections::Verb::Get);
    let verb = verb.ok_or("method: write PUT, POST, PATCH or DELETE")?;
    let (path, query) = sent.path.split_once('?').unwrap_or((&sent.path, ""));
    let unknown = || format!("path: {path:?} is not the path of a resource; write one such as /apisix/admin/routes/1");
    let below = path.strip_prefix("/apisix/admin/").ok_or_else(unknown)?;
    let segments = below.trim_end_matches('/').split('/').map(decode_segment).collect::<Option<Vec<String>>>();
    let segments = segments.ok_or("the path has a part that is not UTF-8")?;
    let (collection, parent, depth) = collection_of(&segments).ok_or_else(unknown)?;
    let id = segments.get(depth).cloned();
    let sub_path = segments.get(depth + 1..).filter(|rest| !rest.is_empty()).map(|rest| rest.join("/"));
    if sub_path.is_some() && verb != crate::collections::Verb::Patch {
        return Err(unknown());
    }
    let query = Query::parse(Some(query));
    if query.mentions_dry_run().is_some() {
        return Err("dry_run is an argument of the batch: all of it is checked, or made".to_owned());
    }
    query.check_unambiguous_write().map_err(|_| "an argument occurs twice")?;
    let ttl_seconds = query.ttl_seconds().map_err(|_| "invalid argument ttl: should be a number")?;
    let force = query.is("force", "true");
    let body = sent.body.filter(|_| verb != crate::collections::Verb::Delete);
    if body.as_ref().is_some_and(|body| body.get().len() > SINGLE_BYTES_MAX) {
        return Err(format!("the body has more than {SINGLE_BYTES_MAX} bytes, which a single resource may have"));
    }
    let body = body.map(|body| Bytes::copy_from_slice(body.get().as_bytes()));
    Ok(Operation { verb, collection, address: Address { id, parent, sub_path }, body, ttl_seconds, force })
}

/// A part of a path, decoded like those of requests by the router; `None`: it is not UTF-8.
fn decode_segment(segment: &str) -> Option<String> {
    percent_decode_str(segment).decode_utf8().ok().map(Cow::into_owned)
}

/// The collection of a path below `/apisix/admin/`, the prefix of its key, and the number of parts that lead to the id.
fn collection_of(segments: &[String]) -> Option<(&'static Collection, Option<String>, usize)> {
    let names: Vec<&str> = segments.iter().map(String::as_str).collect();
    match names[..] {
        ["consumers", username, "credentials", ..] => {
            Some((crate::collections::Collection::named("credentials")?, Some(username.to_owned()), 3))
        }
        ["secrets", manager, ..] => {
            Some((crate::collections::Collection::named("secrets")?, Some(manager.to_owned()), 2))
        }
        [name, ..] => {
            let collection = crate::collections::Collection::named(name)?;
            (!matches!(collection.naming, crate::collections::DocumentNaming::Credential))
                .then_some((collection, None, 1))
        }
        [] => None,
    }
}

/// The first operation that fails ends the batch.
fn failed(index: usize, answer: &Answer) -> Answer {
    let reason = answer.message();
    let status = answer.status;
    let body = json!({ "error_msg": format!("operation {index}: {reason}"), "operation": index });
    Answer::json(status, body)
}
