//! `POST /v1/devices/{id}/messages`

use super::super::node::DeviceNode;
use super::answer::{error, of_verdict};
use super::broadcast;
use super::query::Query;
use crate::envelope::{Post, PostVerdict};
use axum::body::{Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header::{CONNECTION, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use bytes::BytesMut;
use http_body_util::BodyExt;
use rand::random;
use std::time::Duration;
use stillgate_devices::protocol::{Body, MessageId};
use tokio::time::timeout;

/// How long a body may take to come.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// How much of a body that is too long is read and discarded: closing the connection earlier could reset it and lose the answer.
const DISCARDED_BYTES_MAX: usize = 1024 * 1024;
/// Maximum length of `Idempotency-Key`, and of `key`, in bytes.
const KEY_BYTES_MAX: usize = 256;

pub(super) async fn send(node: &DeviceNode, device: &str, query: &Query, request: Request) -> Response {
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
        Err(why) => return why.answer(id, bytes_max),
    };
    let content_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let body = match Body::of_request(content_type, &bytes) {
        Ok(body) => body.into_owned(),
        Err(why) => return of_verdict(id, PostVerdict::Body(why)),
    };
    let mut post = Post { device: device.into(), id, body, level, timeout_ms, key, idempotency };
    let verdict = node.send(&mut post).await;
    let id = post.id;
    match verdict {
        // The device was already moving to the other process.
        PostVerdict::Away if node.has_left() => {
            let again = Box::pin(broadcast::pass_on(node, Request::from_parts(head, bytes.into()))).await;
            again.unwrap_or_else(|_| of_verdict(id, PostVerdict::Away))
        }
        verdict => of_verdict(id, verdict),
    }
}

/// Why a body could not be read.
pub(super) enum ReadError {
    TooLong,
    TooSlow,
    /// It ends too early, or its chunks are malformed.
    Malformed,
}

impl ReadError {
    /// The answer to the sender of a message. It closes the connection, on which the rest of the body may still come.
    pub(super) fn answer(&self, id: MessageId, bytes_max: usize) -> Response {
        let mut response = match self {
            ReadError::TooLong => of_verdict(id, PostVerdict::TooLong { bytes_max }),
            ReadError::TooSlow => error(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"),
            ReadError::Malformed => {
                error(StatusCode::BAD_REQUEST, "the body ends too early, or its chunks are malformed")
            }
        };
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        response
    }
}

/// Reads a body of at most this many bytes.
pub(super) async fn read(body: axum::body::Body, bytes_max: usize) -> Result<Bytes, ReadError> {
    timeout(BODY_TIMEOUT, collect(body, bytes_max)).await.unwrap_or(Err(ReadError::TooSlow))
}

async fn collect(mut body: axum::body::Body, bytes_max: usize) -> Result<Bytes, ReadError> {
    // A body whose declared length is beyond that is not read at all.
    if body.size_hint().lower() > (bytes_max + DISCARDED_BYTES_MAX) as u64 {
        return Err(ReadError::TooLong);
    }
    let (mut bytes, mut length) = (BytesMut::new(), 0);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| ReadError::Malformed)?.into_data() else { continue };
        length += data.len();
        if length <= bytes_max {
            bytes.extend_from_slice(&data);
        } else if length > bytes_max + DISCARDED_BYTES_MAX {
            break;
        }
    }
    if length <= bytes_max { Ok(bytes.freeze()) } else { Err(ReadError::TooLong) }
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
