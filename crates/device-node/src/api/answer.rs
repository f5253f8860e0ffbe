//! The form of answers, and the one place that maps a message's outcome to a status.

use super::super::clock::{rfc3339, unix_ms};
use crate::envelope::PostVerdict;
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde_json::{Value as Json, json};
use stillgate_devices::protocol::MessageId;
use stillgate_devices::session::{MessageOutcome, MessageRefusal};

/// The id of the message, on every answer about one.
const MESSAGE_ID: &str = "x-message-id";

/// An answer with JSON.
pub(super) fn json(status: StatusCode, body: &Json) -> Response {
    json_text(status, &body.to_string())
}

/// An answer whose JSON is text already.
pub(super) fn json_text(status: StatusCode, body: &str) -> Response {
    json_line(status, format!("{body}\n"))
}

fn json_line(status: StatusCode, line: String) -> Response {
    let mut response = Response::new(Body::from(line));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// An answer with `error_msg`, as the admin API has it.
pub(super) fn error(status: StatusCode, message: &str) -> Response {
    json(status, &json!({ "error_msg": message }))
}

/// An answer to a client that may try again after so many seconds.
pub(super) fn later(status: StatusCode, message: &str, seconds: u64) -> Response {
    let mut response = error(status, message);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    response
}

/// The answer to the sender of a message.
pub(super) fn of_verdict(id: MessageId, verdict: PostVerdict) -> Response {
    let id = id.to_string();
    let mut response = match verdict {
        PostVerdict::Outcome(outcome) => of_outcome(&id, outcome),
        PostVerdict::RepliedBefore => json(
            StatusCode::OK,
            &json!({"state": "replied", "error_msg": "the device replied to the first request; the reply was not kept"}),
        ),
        PostVerdict::Refused(why) => of_refused(why),
        PostVerdict::Body(why) => error(StatusCode::BAD_REQUEST, &format!("the body: {why}")),
        PostVerdict::TooLong { bytes_max } => {
            error(StatusCode::PAYLOAD_TOO_LARGE, &format!("a message may have at most {bytes_max} bytes"))
        }
        PostVerdict::OtherBody => {
            error(StatusCode::UNPROCESSABLE_ENTITY, "this Idempotency-Key was used before with another body")
        }
        PostVerdict::KeysFull => later(StatusCode::TOO_MANY_REQUESTS, "too many recent Idempotency-Keys", 60),
        PostVerdict::Unknown => error(StatusCode::NOT_FOUND, "this device has not been seen"),
        PostVerdict::Offline { last_seen_ms } => offline(last_seen_ms),
        PostVerdict::Away => later(StatusCode::SERVICE_UNAVAILABLE, "it is not known right now where the device is", 1),
        PostVerdict::Busy => later(StatusCode::SERVICE_UNAVAILABLE, "the gateway is busy; not delivered", 1),
        PostVerdict::Lost => unknown("no answer from the device or its node came in time"),
    };
    if let Ok(value) = HeaderValue::try_from(id) {
        response.headers_mut().insert(MESSAGE_ID, value);
    }
    response
}

fn of_outcome(id: &str, outcome: MessageOutcome) -> Response {
    // The text is written without a tree of JSON: this is the most common answer.
    let state = |status, state: &str| json_line(status, format!("{{\"state\":\"{state}\",\"id\":\"{id}\"}}\n"));
    match outcome {
        MessageOutcome::Written => state(StatusCode::ACCEPTED, "written"),
        MessageOutcome::Acknowledged => state(StatusCode::OK, "acknowledged"),
        MessageOutcome::Replied(body) => {
            let content_type = HeaderValue::from_static(body.content_type());
            let mut response = Response::new(Body::from(body.bytes().to_vec()));
            response.headers_mut().insert(CONTENT_TYPE, content_type);
            response
        }
        MessageOutcome::TimedOut { was_written: true } => unknown("no acknowledgement came in time"),
        MessageOutcome::TimedOut { was_written: false } => {
            let body = json!({
                "error_msg": "the device did not take the message in time; it was withdrawn and not delivered",
                "delivered": "no",
            });
            json(StatusCode::GATEWAY_TIMEOUT, &body)
        }
        MessageOutcome::Superseded => {
            error(StatusCode::CONFLICT, "a later message with this key replaced it; not delivered")
        }
        MessageOutcome::Dropped { was_written: false } => {
            error(StatusCode::CONFLICT, "it was dropped to make room for a later message; not delivered")
        }
        MessageOutcome::Ended { was_written: false } => {
            error(StatusCode::CONFLICT, "the device's connection was replaced or ended; not delivered")
        }
        MessageOutcome::Dropped { was_written: true } | MessageOutcome::Ended { was_written: true } => {
            unknown("the device's session ended before it acknowledged the message")
        }
    }
}

/// It is not known whether the message has arrived.
pub(super) fn unknown(why: &str) -> Response {
    let body = json!({ "error_msg": format!("{why}; whether it was delivered is unknown"), "delivered": "unknown" });
    json(StatusCode::GATEWAY_TIMEOUT, &body)
}

fn of_refused(why: MessageRefusal) -> Response {
    match why {
        MessageRefusal::Offline => offline(Some(unix_ms())),
        MessageRefusal::Full => later(StatusCode::TOO_MANY_REQUESTS, &why.to_string(), 1),
        MessageRefusal::TooLong => error(StatusCode::PAYLOAD_TOO_LARGE, &why.to_string()),
        MessageRefusal::NeverAcknowledges => error(StatusCode::BAD_REQUEST, &why.to_string()),
    }
}

/// The device is not connected.
pub(super) fn offline(last_seen_ms: Option<u64>) -> Response {
    let body = json!({ "error_msg": "the device is not connected", "last_seen": last_seen_ms.map(rfc3339) });
    json(StatusCode::GONE, &body)
}
