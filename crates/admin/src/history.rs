//! The store's past, and copies of it: `GET /v1/history`, `GET /v1/history/{revision}`, `POST /v1/rollback`, and
//! `POST /v1/store/backup`, whose response has a copy of the store as its body.
//!
//! A backup is made by POST, because viewers must not get it: it contains secrets and history.

use crate::answer::{Answer, Content, answer_off_thread};
use crate::commit::{audit, author, change as change_of, check_writable, precondition_failed, with_outcome};
use crate::control::{Backup, Change, ChangeSummary, Edit, WriteError};
use crate::endpoints::{Api, ParsedRequest};
use crate::masks::{hide_private_keys, mask};
use crate::resource::references::parse_document;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, HeaderName};
use serde_json::{Value as Json, json};
use std::sync::Arc;
use stillgate_door::Role;

/// The most changes in one answer.
const COUNT_MAX: usize = 500;
const COUNT_DEFAULT: usize = 50;

/// The changes before a revision, newest first.
pub(crate) async fn list(api: &Api, asked: &ParsedRequest) -> Answer {
    let number = |name: &str| asked.query.get(name).map(str::parse::<u64>).transpose();
    let (Ok(before), Ok(count)) = (number("before"), number("count")) else {
        return Answer::bad("before and count must be numbers");
    };
    let count = count.map_or(COUNT_DEFAULT, |count| usize::try_from(count).unwrap_or(COUNT_MAX)).clamp(1, COUNT_MAX);
    match api.control.history(before, count).await {
        Ok(changes) => {
            let changes: Vec<Json> = changes.iter().map(summary).collect();
            Answer::json(StatusCode::OK, json!({ "changes": changes }))
        }
        Err(error) => Answer::refused(&error),
    }
}

/// One change, with the values that the caller may see.
pub(crate) async fn change(api: Arc<Api>, asked: ParsedRequest) -> Answer {
    let revision = asked.parts.get("revision").and_then(|revision| revision.parse().ok());
    let Some(revision) = revision else { return Answer::bad("the revision must be a number") };
    match api.control.change(revision).await {
        // A change may have very many documents; only a few are shown at once.
        Ok(Some(change)) => {
            let place = api.list_permit().await;
            let shown = answer_off_thread(Some(place), move || {
                Answer::text(StatusCode::OK, change_json(&api, asked.caller.role, &change))
            });
            shown.await
        }
        Ok(None) => Answer::error(
            StatusCode::NOT_FOUND,
            format!("revision {revision} is not in the history; /v1/history lists what is"),
        ),
        Err(error) => Answer::refused(&error),
    }
}

/// Rolls back to a revision.
pub(crate) async fn roll_back(api: &Api, asked: &ParsedRequest) -> Result<Answer, Answer> {
    let body = asked.json()?.unwrap_or_default();
    let to = body["to"].as_u64().ok_or_else(|| Answer::bad("send {\"to\": REVISION}, with a number"))?;
    // A dry run that is asked for in the wrong place must not become a real one.
    if let Some(other) = body.as_object().and_then(|keys| keys.keys().find(|key| *key != "to")) {
        return Err(Answer::bad(format!("{other:?} is not a key of a rollback; a dry run is ?dry_run=true")));
    }
    check_writable(api)?;
    if asked.query.dry_run()? {
        let writes = api.control.writes_back_to(to).await.map_err(|error| refusal_answer(&error))?;
        let view = crate::resource::references::View::new(api.control.documents());
        let place = api.list_permit().await;
        let shown = answer_off_thread(Some(place), move || {
            let changes: Vec<Json> = writes.iter().map(|write| change_of(&view, write)).collect();
            let mut body = json!({ "dry_run": true });
            // Moved; `json!` would copy them.
            body["changes"] = changes.into();
            Answer::json(StatusCode::OK, body)
        });
        return Ok(shown.await);
    }
    let outcome =
        api.control.roll_back(to, author(asked), asked.query.wait()).await.map_err(|error| refusal_answer(&error))?;
    audit(asked, &format!("everything as at revision {to}"), outcome.revision);
    let answer = Answer::json(StatusCode::OK, json!({ "revision": outcome.revision, "to": to }));
    Ok(with_outcome(answer, &outcome))
}

fn refusal_answer(error: &WriteError) -> Answer {
    match error {
        WriteError::Conflict { key, modified } => precondition_failed(key, *modified),
        // The revision is wrong here, not a document.
        WriteError::Invalid(message) => Answer::bad(message),
        error => Answer::refused(error),
    }
}

fn summary(change: &ChangeSummary) -> Json {
    json!({
        "revision": change.revision,
        "unix_ms": change.unix_ms,
        "author": change.author,
        "keys": change.keys.iter().map(|key| key.as_str()).collect::<Vec<_>>(),
        "keys_total": change.keys_total,
    })
}

/// A change as JSON text: all of it as trees would take many times its size.
fn change_json(api: &Api, role: Role, change: &Change) -> String {
    let edits: Vec<String> = change.edits.iter().map(|edit| shown_edit(api, role, edit).to_string()).collect();
    let (revision, unix_ms, author) = (change.revision, change.unix_ms, json!(change.author));
    let edits = edits.join(",");
    format!("{{\"revision\":{revision},\"unix_ms\":{unix_ms},\"author\":{author},\"edits\":[{edits}]}}\n")
}

fn shown_edit(api: &Api, role: Role, edit: &Edit) -> Json {
    let collection = crate::collections::Collection::of_key(edit.key.as_str());
    let value = |text: &Option<Arc<str>>| {
        let mut value = parse_document(text.as_ref()?);
        // A key of an unknown collection could contain anything.
        let collection = collection?;
        hide_private_keys(collection, &mut value);
        if role == Role::Viewer {
            mask(&*api.control, collection, &mut value);
        }
        Some(value)
    };
    json!({ "key": edit.key.as_str(), "before": value(&edit.before), "after": value(&edit.after) })
}

/// The header with the store's file name, so that a client can check whether it is the expected one.
const STORE_NAME: HeaderName = HeaderName::from_static("x-stillgate-store");

/// Makes a copy and sends it.
pub(crate) async fn back_up(api: &Api, asked: &ParsedRequest) -> Result<Answer, Answer> {
    let Backup { file, size, path } = api.control.backup().await.map_err(|error| Answer::refused(&error))?;
    audit(asked, "backup", api.control.documents().revision());
    let answer = Answer { status: StatusCode::OK, content: Content::File(file), headers: Vec::new() };
    Ok(answer.with(CONTENT_LENGTH, &size.to_string()).with(STORE_NAME, &path.display().to_string()))
}
