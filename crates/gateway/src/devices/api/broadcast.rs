//! `POST /v1/broadcast` and `GET /v1/broadcast/{job}`

use super::super::envelope::join;
use super::super::jobs::{Known, Match, NoJob};
use super::super::node::Node;
use super::super::peers::{BROADCAST, JOB, PATIENCE};
use super::super::post::Verdict;
use super::answer::{error, json, later, of_verdict};
use super::messages::{NoBody, read};
use axum::extract::Request;
use axum::http::header::LOCATION;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rand::random;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::sync::Arc;
use stillgate_devices::protocol::{Body, MessageId};

/// What the request has beside its message.
const WORDS_BYTES_MAX: usize = 16 * 1024;

/// The body of the request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    #[serde(default, rename = "match")]
    of: AskedMatch,
    body: Box<RawValue>,
    encoding: Option<Encoding>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct AskedMatch {
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    label: BTreeMap<String, String>,
}

#[derive(Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    Base64,
}

pub(super) async fn begin(node: &Arc<Node>, request: Request) -> Response {
    let bytes_max = node.limits.message_bytes;
    // In base64 a message takes more.
    let bytes = match read(request.into_body(), bytes_max.saturating_mul(2) + WORDS_BYTES_MAX).await {
        Ok(bytes) => bytes,
        Err(NoBody::TooLong) => return of_verdict(MessageId(0), Verdict::TooLong { bytes_max }),
        Err(NoBody::TooSlow) => return error(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"),
    };
    let message = MessageId(random());
    let begun = asked(&bytes, bytes_max).and_then(|(of, body)| node.broadcast(message, of, &body));
    let number = match begun {
        Ok(number) => number,
        Err(NoJob::TooLong) => return of_verdict(message, Verdict::TooLong { bytes_max }),
        Err(NoJob::Asked(why)) => return error(StatusCode::BAD_REQUEST, &why),
        Err(NoJob::Body(why)) => return error(StatusCode::BAD_REQUEST, &format!("\"body\": {why}")),
        Err(NoJob::TooMany) => {
            return later(StatusCode::TOO_MANY_REQUESTS, "too many jobs are sending", 1);
        }
    };
    if let Some(shared) = node.registry.shared() {
        let answers = shared.ask_all(BROADCAST, join(&message.to_string(), &bytes).into(), PATIENCE).await;
        let elsewhere = answers.into_iter().map(|(node, answer)| {
            let number = answer.and_then(|answer| std::str::from_utf8(&answer).ok()?.parse().ok());
            (node, number)
        });
        node.state().jobs.also(number, elsewhere.collect());
    }
    let mut response = json(StatusCode::ACCEPTED, &json!({"id": number.to_string(), "state": "running"}));
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/broadcast/{number}")) {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

/// Begins here what another node was asked for; the number of the job.
pub(in super::super) fn begun(node: &Arc<Node>, message: &[u8], request: &[u8]) -> Option<Vec<u8>> {
    let message = MessageId::parse(&serde_json::from_slice::<String>(message).ok()?)?;
    let (of, body) = asked(request, node.limits.message_bytes).ok()?;
    let number = node.broadcast(message, of, &body).ok()?;
    Some(number.to_string().into_bytes())
}

/// What a request is about.
fn asked(bytes: &[u8], bytes_max: usize) -> Result<(Match, Body<'static>), NoJob> {
    let asked: Asked = serde_json::from_slice(bytes).map_err(|why| NoJob::Asked(format!("the body: {why}")))?;
    let decoded;
    let body = match asked.encoding {
        None => Body::of_request(Some("application/json"), asked.body.get().as_bytes()),
        Some(Encoding::Base64) => {
            let text = serde_json::from_str::<String>(asked.body.get()).ok();
            let bytes = text.and_then(|text| STANDARD.decode(text).ok());
            let wrong = || NoJob::Asked("\"body\" must be padded base64, as \"encoding\" says".to_owned());
            decoded = bytes.ok_or_else(wrong)?;
            Body::of_request(None, &decoded)
        }
    };
    let body = body.map_err(NoJob::Body)?;
    if body.bytes().len() > bytes_max {
        return Err(NoJob::TooLong);
    }
    let of = Match { prefix: asked.of.prefix, labels: asked.of.label.into_iter().collect() };
    Ok((of, body.into_owned()))
}

pub(super) async fn show(node: &Node, job: &str) -> Response {
    let known = job.parse().ok().and_then(|number| node.state().jobs.known(number));
    let Some(Known { message, mut counts, elsewhere }) = known else {
        return error(StatusCode::NOT_FOUND, "there is no such job; only the last 100 are kept");
    };
    let mut missing = Vec::new();
    for (name, number) in elsewhere {
        let (shared, number) = (node.registry.shared(), number.map(|number| number.to_string().into()));
        let answer = match (shared, number) {
            (Some(shared), Some(number)) => shared.ask_node(&name, JOB, number, PATIENCE).await,
            _ => None,
        };
        match answer.and_then(|answer| serde_json::from_slice(&answer).ok()) {
            Some(theirs) => counts.add(&theirs),
            None => missing.push(name.to_string()),
        }
    }
    let mut shown = counts.shown(job, message);
    if !missing.is_empty() {
        shown["missing"] = missing.into();
    }
    json(StatusCode::OK, &shown)
}
