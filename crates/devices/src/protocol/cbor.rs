//! Messages in CBOR (RFC 8949). Bodies are JSON for back-ends, so they are converted both ways (section 6).

use super::Fields;
use super::MessageId;
use super::body::{Body, BodyError};
use super::cbor_json::{self, from_json};
use super::error::ProtocolError;
use minicbor::data::Type;
use minicbor::{Decoder, Encoder, decode};
use std::borrow::Cow;

/// A body, which is the last value of its message: bytes and text as such, JSON converted.
pub(super) fn encode(body: &Body<'_>) -> Result<Vec<u8>, BodyError> {
    let mut out = Vec::with_capacity(body.bytes().len() + 16);
    let mut encoder = Encoder::new(&mut out);
    match body {
        Body::Json(json) => return from_json(json),
        Body::Text(text) => encoder.str(text).map(drop),
        Body::Bytes(bytes) => encoder.bytes(bytes).map(drop),
    }
    .expect("a Vec takes any bytes");
    Ok(out)
}

pub(super) fn write_message_head(id: MessageId, seq: u64, out: &mut Vec<u8>) {
    let id = id.to_string();
    let mut encoder = Encoder::new(out);
    let head = encoder.map(4).and_then(|it| it.str("type")?.str("message")?.str("id")?.str(&id));
    head.and_then(|it| it.str("seq")?.u64(seq)?.str("body")).expect("a Vec takes any bytes");
}

pub(super) fn write_hello(session: &str, resume: &str, out: &mut Vec<u8>) {
    let mut encoder = Encoder::new(out);
    let hello = encoder.map(3).and_then(|it| it.str("type")?.str("hello")?.str("session")?.str(session));
    hello.and_then(|it| it.str("resume")?.str(resume)).expect("a Vec takes any bytes");
}

pub(super) fn read_fields(payload: &[u8]) -> Result<Fields<'_>, ProtocolError> {
    let mut decoder = Decoder::new(payload);
    let syntax = |error: decode::Error| ProtocolError::Cbor { at: error.position().unwrap_or(payload.len()) };
    if !matches!(decoder.datatype().map_err(syntax)?, Type::Map | Type::MapIndef) {
        return Err(ProtocolError::NoObject);
    }
    let mut left = decoder.map().map_err(syntax)?;
    let mut fields = Fields::default();
    loop {
        match &mut left {
            Some(0) => break,
            Some(left) => *left -= 1,
            None if decoder.datatype().map_err(syntax)? == Type::Break => {
                decoder.set_position(decoder.position() + 1);
                break;
            }
            None => {}
        }
        if decoder.datatype().map_err(syntax)? != Type::String {
            return Err(ProtocolError::NoObject);
        }
        let key = decoder.str().map_err(syntax)?;
        let start = decoder.position();
        // Does not recurse; skipped values are checked where they are read.
        decoder.skip().map_err(syntax)?;
        fields.put(key, &payload[start..decoder.position()])?;
    }
    if decoder.position() < payload.len() {
        return Err(ProtocolError::Cbor { at: decoder.position() });
    }
    Ok(fields)
}

pub(super) fn number(raw: &[u8]) -> Option<u64> {
    let mut decoder = Decoder::new(raw);
    decoder.u64().ok().filter(|_| decoder.position() == raw.len())
}

pub(super) fn string(raw: &[u8]) -> Option<Cow<'_, str>> {
    let mut decoder = Decoder::new(raw);
    decoder.str().ok().filter(|_| decoder.position() == raw.len()).map(Cow::Borrowed)
}

/// Bytes as such, and anything else as JSON.
pub(super) fn body(raw: &[u8]) -> Result<Body<'_>, ProtocolError> {
    let mut decoder = Decoder::new(raw);
    if matches!(decoder.datatype(), Ok(Type::Bytes)) {
        let bytes = decoder.bytes().ok().filter(|_| decoder.position() == raw.len());
        return bytes
            .map(|bytes| Body::Bytes(Cow::Borrowed(bytes)))
            .ok_or(ProtocolError::Body(BodyError::Cbor { at: 0 }));
    }
    cbor_json::to_json(raw).map(|json| Body::Json(Cow::Owned(json))).map_err(ProtocolError::Body)
}
