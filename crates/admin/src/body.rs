//! Bodies of requests: read within bounds of size and time, and parsed as JSON whatever the content type says.
//!
//! A body is read only after its sender was admitted. Error messages follow APISIX's parser where tests and clients know them.

use crate::answer::Answer;
use axum::body::Body;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::{Value as Json, json};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Bytes of the body of a request about one resource: APISIX's bound, 1.5 MiB.
pub const SINGLE_BYTES_MAX: usize = 1_572_864;

/// Bytes of the body of a request about many: a batch, a whole configuration.
pub const MANY_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Bytes of the body of a sign-in or a rollback.
pub(crate) const SMALL_BYTES_MAX: usize = 4096;

/// A body has to be there within this time.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// Bodies with more than [`SINGLE_BYTES_MAX`] that are in memory at once; more wait.
pub(crate) const LARGE_AT_ONCE_MAX: usize = 2;

/// Characters of a body that is no JSON, shown to its sender.
const SHOWN_CHARS_MAX: usize = 1024;

/// The bytes of a body of at most so many; an early answer closes the connection, since the rest of the body is not read.
pub(crate) async fn read(headers: &HeaderMap, body: Body, bytes_max: usize) -> Result<Bytes, Answer> {
    let declared = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if let Some(size) = declared.filter(|size| *size > bytes_max as u64) {
        return Err(too_large(&size.to_string(), bytes_max));
    }
    match tokio::time::timeout(READ_TIMEOUT, Limited::new(body, bytes_max).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large("of the body", bytes_max)),
        Ok(Err(error)) => Err(Answer::bad(format!("invalid request body: {error}")).closing()),
        Err(_) => {
            let message = format!("the request body did not arrive within {} s", READ_TIMEOUT.as_secs());
            Err(Answer::error(StatusCode::REQUEST_TIMEOUT, message).closing())
        }
    }
}

/// Like [`read`], for bodies of up to [`MANY_BYTES_MAX`], of which only a few are in memory at once.
pub(crate) async fn read_many(headers: &HeaderMap, body: Body, places: &Semaphore) -> Result<Bytes, Answer> {
    let _place = places.acquire().await.expect("the semaphore is never closed");
    read(headers, body, MANY_BYTES_MAX).await
}

/// The JSON of a body; `None`: the body is empty.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Json>, Answer> {
    if bytes.is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(bytes).map(Some).map_err(|error| {
        let shown: String = String::from_utf8_lossy(bytes).chars().take(SHOWN_CHARS_MAX).collect();
        let message = format!("invalid request body: {}", in_words_of_apisix(&error, bytes));
        Answer::json(StatusCode::BAD_REQUEST, json!({ "error_msg": message, "req_body": shown }))
    })
}

/// The errors that clients meet most, in the words of the parser that APISIX has.
pub(crate) fn in_words_of_apisix(error: &serde_json::Error, bytes: &[u8]) -> String {
    let lines_before = bytes.split_inclusive(|byte| *byte == b'\n').take(error.line().saturating_sub(1));
    let character = lines_before.map(<[u8]>::len).sum::<usize>() + error.column().max(1);
    let text = error.to_string();
    if error.is_eof() {
        return format!("Expected value but found T_END at character {}", bytes.len() + 1);
    }
    match text.split(" at line").next().unwrap_or_default() {
        "key must be a string" => {
            format!("Expected object key string but found invalid token at character {character}")
        }
        "expected value" | "expected ident" => {
            format!("Expected value but found invalid token at character {character}")
        }
        "recursion limit exceeded" => format!("Found too many nested data structures at character {character}"),
        _ => text,
    }
}

fn too_large(size: &str, bytes_max: usize) -> Answer {
    let message = format!("request size {size} is greater than the maximum size {bytes_max} allowed");
    Answer::bad(format!("invalid request body: {message}")).closing()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(text: &[u8]) -> String {
        match parse(text).unwrap_err().content {
            crate::answer::Content::Json(json) => json["error_msg"].as_str().unwrap().to_owned(),
            content => panic!("{content:?}"),
        }
    }

    #[test]
    fn what_is_no_json() {
        let check = |text: &str, expected: &str| {
            assert_eq!(error_of(text.as_bytes()), format!("invalid request body: {expected}"), "{text}");
        };
        check("{abcd", "Expected object key string but found invalid token at character 2");
        check("x", "Expected value but found invalid token at character 1");
        check("{\n\"a\": x}", "Expected value but found invalid token at character 8");
        check("{\"a\":", "Expected value but found T_END at character 6");
        check(&"[".repeat(10_000), "Found too many nested data structures at character 128");
        assert!(error_of(b"\"\xff\"").starts_with("invalid request body: invalid unicode code point"));
        assert!(parse(b"").unwrap().is_none());
    }
}
