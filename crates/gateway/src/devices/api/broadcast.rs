//! `POST /v1/broadcast` and `GET /v1/broadcast/{job}`

use super::super::jobs::{Match, NoJob};
use super::super::node::Node;
use super::super::post::Verdict;
use super::answer::{error, json, later, of_verdict};
use super::messages::{NoBody, read};
use axum::extract::Request;
use axum::http::header::LOCATION;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
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
    let too_long = || of_verdict(MessageId(0), Verdict::TooLong { bytes_max });
    // In base64 a message takes more.
    let bytes = match read(request.into_body(), bytes_max.saturating_mul(2) + WORDS_BYTES_MAX).await {
        Ok(bytes) => bytes,
        Err(NoBody::TooLong) => return too_long(),
        Err(NoBody::TooSlow) => return error(StatusCode::REQUEST_TIMEOUT, "the body did not come in time"),
    };
    let asked: Asked = match serde_json::from_slice(&bytes) {
        Ok(asked) => asked,
        Err(why) => return error(StatusCode::BAD_REQUEST, &format!("the body: {why}")),
    };
    let decoded;
    let body = match asked.encoding {
        None => Body::of_request(Some("application/json"), asked.body.get().as_bytes()),
        Some(Encoding::Base64) => {
            let text = serde_json::from_str::<String>(asked.body.get()).ok();
            match text.and_then(|text| STANDARD.decode(text).ok()) {
                Some(bytes) => decoded = bytes,
                None => return error(StatusCode::BAD_REQUEST, "\"body\" must be padded base64, as \"encoding\" says"),
            }
            Body::of_request(None, &decoded)
        }
    };
    let body = match body {
        Ok(body) if body.bytes().len() > bytes_max => return too_long(),
        Ok(body) => body,
        Err(why) => return error(StatusCode::BAD_REQUEST, &format!("\"body\": {why}")),
    };
    let of = Match { prefix: asked.of.prefix, labels: asked.of.label.into_iter().collect() };
    match node.broadcast(of, &body) {
        Ok(number) => {
            let mut response = json(StatusCode::ACCEPTED, &json!({"id": number.to_string(), "state": "running"}));
            if let Ok(location) = HeaderValue::from_str(&format!("/v1/broadcast/{number}")) {
                response.headers_mut().insert(LOCATION, location);
            }
            response
        }
        Err(NoJob::Body(why)) => error(StatusCode::BAD_REQUEST, &format!("\"body\": {why}")),
        Err(NoJob::TooMany) => later(StatusCode::TOO_MANY_REQUESTS, "as many jobs are being sent as may", 1),
    }
}

pub(super) fn show(node: &Node, job: &str) -> Response {
    let shown = job.parse().ok().and_then(|number| node.state().jobs.shown(number));
    match shown {
        Some(shown) => json(StatusCode::OK, &shown),
        None => error(StatusCode::NOT_FOUND, "there is no such job; the last 100 are kept"),
    }
}
