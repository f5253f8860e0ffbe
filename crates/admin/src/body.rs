//! Request bodies: read within bounds of size, time and memory, and parsed as JSON whatever the content type is.
//!
//! A body is read only after its sender was admitted. Error messages follow APISIX's parser in the cases that tests and clients
//! know. They do not repeat the body, unlike APISIX's `req_body`: it may be a private key.

use crate::answer::Answer;
use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, EXPECT};
use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::Value as Json;
use std::borrow::Cow;
use std::time::Duration;
use stillgate_schema::lenient_json;

/// The most bytes of the body of a request about one resource: APISIX's bound, 1.5 MiB.
pub const SINGLE_BYTES_MAX: usize = 1_572_864;

/// The most bytes of the body of a request about many: a batch, a whole configuration.
pub const MANY_BYTES_MAX: usize = 32 * 1024 * 1024;

/// The most bytes of the body of a sign-in or a rollback.
pub(crate) const SMALL_BYTES_MAX: usize = 4096;

/// The time limit for receiving a body.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// Bytes of an oversized body that are read and discarded, so that its sender gets the response: a client that is still sending
/// when the connection is closed may lose it.
pub const DISCARDED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Number of requests with bodies of more than [`LARGE_BYTES_MIN`] that are processed at once; more wait.
pub(crate) const LARGE_AT_ONCE_MAX: usize = 2;

/// Number of bodies of up to [`MANY_BYTES_MAX`] that are received, or wait to be processed, at once: a slow sender keeps another
/// from being received only if there are this many.
pub(crate) const READ_AT_ONCE_MAX: usize = 8;

/// The least size of a large body.
pub(crate) const LARGE_BYTES_MIN: usize = 64 * 1024;

/// The most memory that the JSON of one document may take, in bytes for each byte of its text. A document with more structure than
/// text, such as a list of a million numbers, is refused before it is parsed.
const MEMORY_PER_BYTE_MAX: usize = 48;

/// The memory that any document may take.
const MEMORY_BYTES_MIN: usize = 8 * 1024 * 1024;

/// Reads a body of at most this many bytes.
pub(crate) async fn read(headers: &HeaderMap, mut body: Body, bytes_max: usize) -> Result<Bytes, Answer> {
    let declared = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let is_declared_too_large = declared.is_some_and(|size| size > bytes_max as u64);
    let never_fits = declared.is_some_and(|size| size > DISCARDED_BYTES_MAX as u64);
    // A client that sent `Expect: 100-continue` has not sent its body yet.
    if is_declared_too_large && (never_fits || headers.contains_key(EXPECT)) {
        return Err(too_large(declared, bytes_max));
    }
    let (mut read, mut discarded) = (Vec::new(), 0);
    let reading = async {
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|error| error.to_string())?.into_data() else { continue };
            if is_declared_too_large || discarded > 0 || read.len() + data.len() > bytes_max {
                discarded += read.len() + data.len();
                read = Vec::new();
                if discarded > DISCARDED_BYTES_MAX {
                    break;
                }
            } else {
                read.extend_from_slice(&data);
            }
        }
        Ok::<(), String>(())
    };
    let outcome = tokio::time::timeout(READ_TIMEOUT, reading).await;
    match outcome {
        _ if is_declared_too_large || discarded > 0 => Err(too_large(declared, bytes_max)),
        Ok(Ok(())) => Ok(read.into()),
        Ok(Err(error)) => Err(Answer::bad(format!("invalid request body: {error}")).with_close()),
        Err(_) => {
            let message = format!("the request body did not arrive within {} s", READ_TIMEOUT.as_secs());
            Err(Answer::error(StatusCode::REQUEST_TIMEOUT, message).with_close())
        }
    }
}

/// The JSON of a body; `None`: the body is empty.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Json>, Answer> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let text = text(bytes)?;
    document(text).map(Some).map_err(|message| Answer::bad(format!("invalid request body: {message}")))
}

/// The JSON of one document, unless it would take too much memory.
pub(crate) fn document(text: &str) -> Result<Json, String> {
    let memory_max = text.len().saturating_mul(MEMORY_PER_BYTE_MAX).max(MEMORY_BYTES_MIN);
    if estimate_tree_bytes(text) > memory_max {
        return Err(format!(
            "it has too many values for its {} bytes: parsed, it would take more than {memory_max} bytes",
            text.len()
        ));
    }
    lenient_json::read(text).map_err(|(error, at)| in_words_of_apisix(&error, at, text.len()))
}

/// A body as text.
pub(crate) fn text(bytes: &[u8]) -> Result<&str, Answer> {
    std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to() + 1;
        Answer::bad(format!("invalid request body: invalid unicode code point at character {at}"))
    })
}

/// Estimates the memory that a text takes as a tree: never less than it takes, and for usual documents not much more.
fn estimate_tree_bytes(text: &str) -> usize {
    /// A map with its table, and space for the first three entries.
    const MAP_BYTES: usize = 448;
    /// A list with space for its first four items.
    const LIST_BYTES: usize = 320;
    /// A further item or entry, in a list or table that grows by doubling.
    const ITEM_BYTES: usize = 240;
    /// A string beyond its own bytes.
    const STRING_BYTES: usize = 16;
    let (mut memory, mut is_string, mut is_escaped, mut previous) = (text.len(), false, false, b' ');
    for byte in text.bytes().filter(|byte| !byte.is_ascii_whitespace()) {
        let was_escaped = std::mem::take(&mut is_escaped);
        let before = std::mem::replace(&mut previous, byte);
        // Empty containers take nothing.
        if !is_string && matches!((before, byte), (b'{', b'}') | (b'[', b']')) {
            memory -= if byte == b'}' { MAP_BYTES } else { LIST_BYTES };
        }
        memory += match byte {
            b'"' if !was_escaped => {
                is_string = !is_string;
                STRING_BYTES
            }
            b'\\' if is_string && !was_escaped => {
                is_escaped = true;
                0
            }
            _ if is_string => 0,
            b'{' => MAP_BYTES,
            b'[' => LIST_BYTES,
            b',' => ITEM_BYTES,
            _ => 0,
        };
    }
    memory
}

/// The errors that clients meet most, in the words of APISIX's parser. `at`: the byte of the error, from 1.
pub(crate) fn in_words_of_apisix(error: &serde_json::Error, at: usize, bytes: usize) -> String {
    let text = lenient_json::without_values(error);
    if error.is_eof() {
        return format!("Expected value but found T_END at character {}", bytes + 1);
    }
    match text.as_str() {
        "key must be a string" => {
            format!("Expected object key string but found invalid token at character {at}")
        }
        "expected value" | "expected ident" => format!("Expected value but found invalid token at character {at}"),
        "recursion limit exceeded" => format!("Found too many nested data structures at character {at}"),
        _ => text,
    }
}

fn too_large(declared: Option<u64>, bytes_max: usize) -> Answer {
    let size = declared.map_or(Cow::Borrowed("of the body"), |size| size.to_string().into());
    let message = format!("request size {size} is greater than the maximum size {bytes_max} allowed");
    Answer::error(StatusCode::PAYLOAD_TOO_LARGE, format!("invalid request body: {message}")).with_close()
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
        check("{\"a\": \"\n\", b}", "Expected object key string but found invalid token at character 12");
        assert!(error_of(b"\"\xff\"").starts_with("invalid request body: invalid unicode code point"));
        assert!(parse(b"").unwrap().is_none());
    }

    #[test]
    fn an_error_does_not_repeat_what_was_sent() {
        for wrong in [
            "{\"key\": \"s3cret\"",
            "{\"key\": \"s3cret\" x}",
            "{\"key\": s3cret}",
            "s3cret",
            "{\"key\": \"s3cret\\q\"}",
        ] {
            let answer = parse(wrong.as_bytes()).unwrap_err();
            assert!(!format!("{answer:?}").contains("s3cret"), "{answer:?}");
        }
    }

    #[test]
    fn a_document_takes_a_multiple_of_its_size() {
        let usual = r#"{"uri": "/a", "upstream": {"nodes": [{"host": "127.0.0.1", "port": 1980, "weight": 1}]}}"#;
        let many = |part: &str, count: usize| format!("[{}]", vec![part; count].join(","));
        assert!(parse(many(usual, 10_000).as_bytes()).is_ok());
        assert!(parse(many("12345", 20_000).as_bytes()).is_ok());
        for dense in ["1", "[]", "\"\"", "{\"\":1}", "[[[[0]]]]"] {
            let message = error_of(many(dense, SINGLE_BYTES_MAX / (dense.len() + 1)).as_bytes());
            assert!(message.starts_with("invalid request body: it has too many values for its "), "{message}");
        }
        // Brackets in a string are not structure.
        assert!(parse(format!("\"{}\"", ",[{".repeat(500_000)).as_bytes()).is_ok());
    }
}
