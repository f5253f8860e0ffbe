//! The bodies of messages, replies and events, as they come from a back-end and go to one.

use serde::de::IgnoredAny;
use std::borrow::Cow;

/// Largest nesting of arrays and objects in a body. Later readers recurse, and many allow only 100.
pub const DEPTH_MAX: usize = 64;

/// A body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body<'a> {
    /// A JSON text (RFC 8259), not deeper than [`DEPTH_MAX`].
    Json(Cow<'a, str>),
    /// Any text.
    Text(Cow<'a, str>),
    /// Anything else.
    Bytes(Cow<'a, [u8]>),
}

/// Why a body cannot be represented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyError {
    /// Not JSON, from this line and column on (both from 1).
    Json {
        /// The line.
        line: usize,
        /// The column, in bytes.
        column: usize,
    },
    /// Not UTF-8, from this byte on (from 0).
    Utf8 {
        /// The index of the byte.
        at: usize,
    },
    /// Deeper than [`DEPTH_MAX`].
    Depth,
    /// A number of JSON beyond CBOR's largest float.
    Number,
    /// Not CBOR, from this byte on (from 0), or something of CBOR that JSON lacks.
    Cbor {
        /// The index of the byte.
        at: usize,
    },
    /// A map with a key that is not text, at this byte (from 0).
    Key {
        /// The index of the byte.
        at: usize,
    },
}

impl<'a> Body<'a> {
    /// The body of a request with this `Content-Type`: JSON if it is a JSON type, text for `text/…` in UTF-8, and
    /// otherwise bytes.
    pub fn of_request(content_type: Option<&str>, bytes: &'a [u8]) -> Result<Body<'a>, BodyError> {
        let media_type = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
        let media_type = media_type.to_ascii_lowercase();
        if media_type == "application/json" || media_type.ends_with("+json") {
            return Ok(Body::Json(Cow::Borrowed(checked_json(bytes)?)));
        }
        match std::str::from_utf8(bytes) {
            Ok(text) if media_type.starts_with("text/") => Ok(Body::Text(Cow::Borrowed(text))),
            _ => Ok(Body::Bytes(Cow::Borrowed(bytes))),
        }
    }

    /// Its bytes as they are.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Body::Json(text) | Body::Text(text) => text.as_bytes(),
            Body::Bytes(bytes) => bytes,
        }
    }

    /// Converts it to a body that owns its bytes.
    pub fn into_owned(self) -> Body<'static> {
        match self {
            Body::Json(text) => Body::Json(Cow::Owned(text.into_owned())),
            Body::Text(text) => Body::Text(Cow::Owned(text.into_owned())),
            Body::Bytes(bytes) => Body::Bytes(Cow::Owned(bytes.into_owned())),
        }
    }

    /// Its `Content-Type`.
    pub fn content_type(&self) -> &'static str {
        match self {
            Body::Json(_) => "application/json",
            Body::Text(_) => "text/plain; charset=utf-8",
            Body::Bytes(_) => "application/octet-stream",
        }
    }
}

/// The text, if it is one JSON value that is not too deep.
pub(super) fn checked_json(bytes: &[u8]) -> Result<&str, BodyError> {
    let text = std::str::from_utf8(bytes).map_err(|error| BodyError::Utf8 { at: error.valid_up_to() })?;
    // Does not recurse, so it can come before the check of the depth.
    serde_json::from_str::<IgnoredAny>(text)
        .map_err(|error| BodyError::Json { line: error.line(), column: error.column() })?;
    check_depth(text)?;
    Ok(text.trim_matches([' ', '\t', '\r', '\n']))
}

/// Counts brackets outside strings; the text is JSON.
pub(super) fn check_depth(json: &str) -> Result<(), BodyError> {
    let (mut depth, mut is_string, mut is_escaped) = (0usize, false, false);
    for byte in json.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => is_string = !is_string,
            b'[' | b'{' if !is_string => depth += 1,
            b']' | b'}' if !is_string => depth -= 1,
            _ => {}
        }
        if depth > DEPTH_MAX {
            return Err(BodyError::Depth);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_s_type_decides() {
        let json = |text: &'static str| Ok(Body::Json(text.into()));
        let bytes = |bytes: &'static [u8]| Ok(Body::Bytes(bytes.into()));
        for (content_type, given, expected) in [
            (Some("application/json"), &b" {\"a\":1}\n"[..], json("{\"a\":1}")),
            (Some("Application/Problem+JSON; charset=utf-8"), b"[]", json("[]")),
            (Some("application/json"), b"{", Err(BodyError::Json { line: 1, column: 1 })),
            (Some("application/json"), b"\"\xff\"", Err(BodyError::Utf8 { at: 1 })),
            (Some("text/plain"), b"on", Ok(Body::Text("on".into()))),
            (Some("text/plain"), b"\xff", bytes(b"\xff")),
            (Some("application/octet-stream"), b"on", bytes(b"on")),
            (None, b"on", bytes(b"on")),
        ] {
            assert_eq!(Body::of_request(content_type, given), expected, "{content_type:?}");
        }
    }

    #[test]
    fn depth_counts_brackets_outside_strings() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(checked_json(nested(DEPTH_MAX).as_bytes()).is_ok());
        assert_eq!(checked_json(nested(DEPTH_MAX + 1).as_bytes()), Err(BodyError::Depth));
        assert_eq!(checked_json(nested(100_000).as_bytes()), Err(BodyError::Depth));
        let quoted = format!("[\"{}\\\"{}\"]", "[".repeat(100), "{".repeat(100));
        assert!(checked_json(quoted.as_bytes()).is_ok());
    }
}
