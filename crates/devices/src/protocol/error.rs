//! The reasons why a device's message is invalid, as text for its author in a close frame.

use super::body::{BodyError, DEPTH_MAX};
use crate::frame::CloseCode;
use std::fmt;

/// Characters of a device's message that an error quotes.
const EXCERPT_CHARS_MAX: usize = 24;

/// Why a device's message is invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProtocolError {
    /// A binary frame where JSON is expected.
    Binary,
    /// A text frame where CBOR is expected.
    Text,
    /// Not JSON, from this line and column on (both from 1).
    Json {
        /// The line.
        line: usize,
        /// The column, in bytes.
        column: usize,
    },
    /// Not CBOR, from this byte on (from 0).
    Cbor {
        /// The index of the byte.
        at: usize,
    },
    /// Well formed, but not an object (JSON) or a map with text keys (CBOR).
    NoObject,
    /// A key that v1 does not have.
    UnknownKey(String),
    /// A key that occurs twice.
    RepeatedKey(&'static str),
    /// A missing key.
    Missing {
        /// The key.
        key: &'static str,
        /// The type of message that needs it.
        of: &'static str,
    },
    /// A key that this type of message does not have.
    Surplus {
        /// The key.
        key: &'static str,
        /// The type of message.
        of: &'static str,
    },
    /// A type that v1 does not have.
    Type(String),
    /// A value that its key cannot have.
    Value {
        /// The key.
        key: &'static str,
        /// The expected value.
        wanted: &'static str,
    },
    /// A body that cannot be forwarded.
    Body(BodyError),
}

impl ProtocolError {
    /// The code to close the connection with.
    pub fn close_code(&self) -> CloseCode {
        match self {
            ProtocolError::Binary | ProtocolError::Text => CloseCode::UNSUPPORTED,
            _ => CloseCode::POLICY,
        }
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProtocolError::Binary => {
                f.write_str("stillgate.v1 is JSON in text frames; for binary use stillgate.v1+cbor")
            }
            ProtocolError::Text => f.write_str("stillgate.v1+cbor is CBOR in binary frames; for text use stillgate.v1"),
            ProtocolError::Json { line, column } => write!(f, "not JSON at line {line}, column {column}"),
            ProtocolError::Cbor { at } => write!(f, "not CBOR at byte {at}"),
            ProtocolError::NoObject => f.write_str("a message is one object with a \"type\""),
            ProtocolError::UnknownKey(key) => write!(f, "unknown key {key:?}; put your own data into \"body\""),
            ProtocolError::RepeatedKey(key) => write!(f, "\"{key}\" occurs twice; send it once"),
            ProtocolError::Missing { key, of } => write!(f, "{of} needs \"{key}\""),
            ProtocolError::Surplus { key, of } => write!(f, "{of} has no \"{key}\"; leave it out"),
            ProtocolError::Type(kind) => write!(f, "unknown type {kind:?}; send ack, reply, event or hello"),
            ProtocolError::Value { key, wanted } => write!(f, "\"{key}\" must be {wanted}"),
            ProtocolError::Body(error) => write!(f, "\"body\": {error}"),
        }
    }
}

impl std::error::Error for ProtocolError {}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BodyError::Json { line, column } => write!(f, "not JSON at line {line}, column {column}"),
            BodyError::Utf8 { at } => write!(f, "not UTF-8 at byte {at}; send it as application/octet-stream"),
            BodyError::Depth => write!(f, "nested more than {DEPTH_MAX} deep; flatten it"),
            BodyError::Number => f.write_str("a number that is too large for CBOR's floats; write it as a string"),
            BodyError::Cbor { at } => write!(f, "not CBOR at byte {at}"),
            BodyError::Key { at } => write!(f, "a key that is not text at byte {at}; JSON has only text keys"),
        }
    }
}

impl std::error::Error for BodyError {}

/// The beginning of a device's message.
pub(super) fn excerpt(text: &str) -> String {
    text.chars().take(EXCERPT_CHARS_MAX).collect()
}
