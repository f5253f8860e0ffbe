//! Why what a device said is not understood, in words that its author gets as the reason of a close frame.

use super::body::{BodyError, DEPTH_MAX};
use crate::frame::CloseCode;
use std::fmt;

/// Characters of a device's own words that an error repeats.
const EXCERPT_CHARS_MAX: usize = 24;

/// Why a message of a device is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProtocolError {
    /// A binary frame where JSON is spoken.
    Binary,
    /// A text frame where CBOR is spoken.
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
    /// Well formed, but no object (JSON) or map of text keys (CBOR).
    NoObject,
    /// A key that v1 does not have.
    UnknownKey(String),
    /// A key that is there twice.
    RepeatedKey(&'static str),
    /// A key that is not there.
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
    /// A body that cannot be handed on.
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
            ProtocolError::RepeatedKey(key) => write!(f, "\"{key}\" is there twice; send it once"),
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
            BodyError::Key { at } => write!(f, "a key that is no text at byte {at}; JSON has only text keys"),
        }
    }
}

impl std::error::Error for BodyError {}

/// The beginning of a device's own words.
pub(super) fn excerpt(text: &str) -> String {
    text.chars().take(EXCERPT_CHARS_MAX).collect()
}
