//! `POST /v1/devices/{id}/messages`

use super::super::node::Node;
use super::super::post::{Post, Verdict};
use super::answer::{error, of_verdict};
use super::query::Query;
use super::successor;
use axum::body::{Bytes, to_bytes};
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use rand::random;
use std::time::Duration;
use stillgate_devices::protocol::{Body, MessageId};
use tokio::time::timeout;

/// How long a body may take to come.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest `Idempotency-Key`, and `key`.
const KEY_BYTES_MAX: usize = 256;

pub(super) async fn send(node: &Node, device: &str, query: &Query, request: Request) -> Response {
    let (level, timeout_ms) = match (query.level(), query.timeout_ms()) {
        (Ok(level), Ok(timeout_ms)) => (level, timeout_ms),
        (Err(why), _) | (_, Err(why)) => return error(StatusCode::BAD_REQUEST, &why),
    };
    let (head, body) = request.into_parts();
    let idempotency = match idempotency_key(&head.headers) {
        Ok(key) => key,
        Err(why) => return error(StatusCode::BAD_REQUEST, why),
    };
    let key = query.get("key").map(Box::<str>::from);
    if key.as_ref().is_some_and(|key| key.len() > KEY_BYTES_MAX) {
        return error(StatusCode::BAD_REQUEST, "key may have at most 256 bytes");
    }
    let id = MessageId(random());
    let bytes_max = node.limits.message_bytes;
    let bytes = match read(body, bytes_max).await {
        Ok(bytes) => bytes,
        Err(NoBody::TooLong) => return of_verdict(id, Verdict::TooLong { bytes_max }),
        Err(NoBody::TooSlow) => return error(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"),
    };
    let content_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let body = match Body::of_request(content_type, &bytes) {
        Ok(body) => body.into_owned(),
        Err(why) => return of_verdict(id, Verdict::Body(why)),
    };
    let post = Post { device: device.into(), id, body, level, timeout_ms, key, idempotency };
    match node.send(post).await {
        // The device was already moving to the other process.
        Verdict::Away if node.has_left() => {
            let again = successor::pass_on(node, Request::from_parts(head, bytes.into())).await;
            again.unwrap_or_else(|_| of_verdict(id, Verdict::Away))
        }
        verdict => of_verdict(id, verdict),
    }
}

/// Why there is no body.
pub(super) enum NoBody {
    TooLong,
    TooSlow,
}

/// Reads a body of at most this many bytes.
pub(super) async fn read(body: axum::body::Body, bytes_max: usize) -> Result<Bytes, NoBody> {
    match timeout(BODY_TIMEOUT, to_bytes(body, bytes_max)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        // One that breaks off has nobody to be answered.
        Ok(Err(_)) => Err(NoBody::TooLong),
        Err(_) => Err(NoBody::TooSlow),
    }
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<Box<str>>, &'static str> {
    const WRONG: &str = "send one Idempotency-Key of 1 to 256 printable ASCII characters";
    let mut values = headers.get_all("idempotency-key").iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().map_err(|_| WRONG)?;
    match values.next().is_none() && (1..=KEY_BYTES_MAX).contains(&text.len()) {
        true => Ok(Some(text.into())),
        false => Err(WRONG),
    }
}
