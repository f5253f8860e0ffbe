//! Messages in JSON (RFC 8259).

use super::Fields;
use super::MessageId;
use super::body::{Body, check_depth};
use super::error::ProtocolError;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserializer as _;
use serde::de::{DeserializeSeed, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use std::io::Write as _;

/// A body with the end of its message.
pub(super) fn encode(body: &Body<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.bytes().len() + 16);
    match body {
        Body::Json(json) => out.extend_from_slice(json.as_bytes()),
        Body::Text(text) => write_string(text, &mut out),
        Body::Bytes(bytes) => {
            out.push(b'"');
            out.extend_from_slice(STANDARD.encode(bytes).as_bytes());
            out.extend_from_slice(b"\",\"encoding\":\"base64\"");
        }
    }
    out.push(b'}');
    out
}

pub(super) fn write_message_head(id: MessageId, seq: u64, out: &mut Vec<u8>) {
    write!(out, r#"{{"type":"message","id":"{id}","seq":{seq},"body":"#).expect("a Vec takes any bytes");
}

pub(super) fn write_hello(session: &str, resume: &str, out: &mut Vec<u8>) {
    write!(out, r#"{{"type":"hello","session":"{session}","resume":"{resume}"}}"#).expect("a Vec takes any bytes");
}

pub(super) fn write_string(text: &str, out: &mut Vec<u8>) {
    serde_json::to_writer(out, text).expect("a Vec takes any bytes, and JSON any text");
}

pub(super) fn read_fields(payload: &[u8]) -> Result<Fields<'_>, ProtocolError> {
    let mut reader = serde_json::Deserializer::from_slice(payload);
    let mut wrong = None;
    let syntax = |error: serde_json::Error| ProtocolError::Json { line: error.line(), column: error.column() };
    match reader.deserialize_map(Keys { wrong: &mut wrong }).and_then(|fields| reader.end().map(|()| fields)) {
        Ok(fields) => Ok(fields),
        Err(error) => {
            Err(wrong.unwrap_or_else(|| if error.is_data() { ProtocolError::NoObject } else { syntax(error) }))
        }
    }
}

/// An unsigned number without fraction and exponent, as this gateway writes them.
pub(super) fn number(raw: &[u8]) -> Option<u64> {
    let is_plain = raw.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(raw).ok().filter(|_| is_plain)?.parse().ok()
}

pub(super) fn string(raw: &[u8]) -> Option<Cow<'_, str>> {
    let inside = raw.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if !inside.contains(&b'\\') {
        return std::str::from_utf8(inside).ok().map(Cow::Borrowed);
    }
    serde_json::from_slice(raw).ok().map(Cow::Owned)
}

pub(super) fn body(raw: &[u8], is_base64: bool) -> Result<Body<'_>, ProtocolError> {
    const BASE64: ProtocolError = ProtocolError::Value { key: "body", wanted: "padded base64, as \"encoding\" says" };
    if is_base64 {
        let bytes = string(raw).and_then(|text| STANDARD.decode(text.as_bytes()).ok()).ok_or(BASE64)?;
        return Ok(Body::Bytes(Cow::Owned(bytes)));
    }
    let text = std::str::from_utf8(raw).expect("RawValue is a str");
    check_depth(text).map_err(ProtocolError::Body)?;
    Ok(Body::Json(Cow::Borrowed(text)))
}

/// Collects keys and values. Errors are put into `wrong`, because serde's own errors are text only.
struct Keys<'w> {
    wrong: &'w mut Option<ProtocolError>,
}

impl<'de> Visitor<'de> for Keys<'_> {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
        let mut fields = Fields::default();
        while let Some(key) = map.next_key_seed(JsonKey)? {
            let value: &'de RawValue = map.next_value()?;
            if let Err(error) = fields.put(&key, value.get().as_bytes()) {
                *self.wrong = Some(error);
                return Err(A::Error::custom("see `wrong`"));
            }
        }
        Ok(fields)
    }
}

/// A key, borrowed if it has no escapes.
struct JsonKey;

impl<'de> DeserializeSeed<'de> for JsonKey {
    type Value = Cow<'de, str>;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Cow<'de, str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for JsonKey {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(key))
    }

    fn visit_str<E>(self, key: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(key.to_owned()))
    }
}
