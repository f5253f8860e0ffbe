//! Messages in CBOR (RFC 8949). Bodies are JSON for back-ends, so they are converted both ways (sections 6.1 and 6.2), with the
//! depth bounded.
//!
//! To JSON: bytes inside a value become base64url without padding, a float that is not finite and `undefined` become
//! `null`, a tag is dropped and its content kept, and a key that is not text is an error. From JSON: whole numbers within 64
//! bits become integers, all others floats of 64 bits; of a repeated key the last value remains.

use super::body::{Body, BodyError, DEPTH_MAX, check_depth};
use super::error::ProtocolError;
use super::json::write_string;
use super::{Fields, MessageId};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use minicbor::data::Type;
use minicbor::{Decoder, Encoder, decode};
use serde_json::{Number, Value};
use std::borrow::Cow;
use std::convert::Infallible;
use std::io::Write as _;

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
    to_json(raw).map(|json| Body::Json(Cow::Owned(json))).map_err(ProtocolError::Body)
}

/// One CBOR value as JSON.
fn to_json(raw: &[u8]) -> Result<String, BodyError> {
    let mut converter = ToJson { decoder: Decoder::new(raw), out: Vec::with_capacity(raw.len() * 2) };
    converter.value(0)?;
    let end = converter.decoder.position();
    if end < raw.len() {
        return Err(BodyError::Cbor { at: end });
    }
    Ok(String::from_utf8(converter.out).expect("all that is written is a str"))
}

struct ToJson<'a> {
    decoder: Decoder<'a>,
    out: Vec<u8>,
}

impl ToJson<'_> {
    fn value(&mut self, depth: usize) -> Result<(), BodyError> {
        let at = self.decoder.position();
        let wrong = |_: decode::Error| BodyError::Cbor { at };
        match self.decoder.datatype().map_err(wrong)? {
            Type::Bool => {
                let value = self.decoder.bool().map_err(wrong)?;
                self.out.extend_from_slice(if value { b"true" } else { b"false" });
            }
            Type::Null | Type::Undefined => {
                self.decoder.set_position(at + 1);
                self.out.extend_from_slice(b"null");
            }
            Type::U8 | Type::U16 | Type::U32 | Type::U64 | Type::I8 | Type::I16 | Type::I32 | Type::I64 | Type::Int => {
                let number = i128::from(self.decoder.int().map_err(wrong)?);
                write!(self.out, "{number}").expect("a Vec takes any bytes");
            }
            Type::F16 => {
                let bytes = self.decoder.input().get(at + 1..at + 3).ok_or(BodyError::Cbor { at })?;
                self.float(half(u16::from_be_bytes([bytes[0], bytes[1]])));
                self.decoder.set_position(at + 3);
            }
            Type::F32 => {
                let float = f64::from(self.decoder.f32().map_err(wrong)?);
                self.float(float);
            }
            Type::F64 => {
                let float = self.decoder.f64().map_err(wrong)?;
                self.float(float);
            }
            Type::String | Type::StringIndef => self.text()?,
            Type::Bytes | Type::BytesIndef => self.bytes()?,
            Type::Array | Type::ArrayIndef => self.array(deeper(depth)?)?,
            Type::Map | Type::MapIndef => self.map(deeper(depth)?)?,
            Type::Tag => {
                self.decoder.tag().map_err(wrong)?;
                self.value(deeper(depth)?)?;
            }
            Type::Simple | Type::Break | Type::Unknown(_) => return Err(BodyError::Cbor { at }),
        }
        Ok(())
    }

    fn float(&mut self, float: f64) {
        match Number::from_f64(float) {
            Some(number) => write!(self.out, "{number}").expect("a Vec takes any bytes"),
            None => self.out.extend_from_slice(b"null"),
        }
    }

    fn text(&mut self) -> Result<(), BodyError> {
        let at = self.decoder.position();
        let parts = self.decoder.str_iter().and_then(Iterator::collect::<Result<String, _>>);
        write_string(&parts.map_err(|_| BodyError::Cbor { at })?, &mut self.out);
        Ok(())
    }

    fn bytes(&mut self) -> Result<(), BodyError> {
        let at = self.decoder.position();
        let parts = self.decoder.bytes_iter().and_then(Iterator::collect::<Result<Vec<&[u8]>, _>>);
        let bytes = parts.map_err(|_| BodyError::Cbor { at })?.concat();
        write!(self.out, "\"{}\"", URL_SAFE_NO_PAD.encode(bytes)).expect("a Vec takes any bytes");
        Ok(())
    }

    fn array(&mut self, depth: usize) -> Result<(), BodyError> {
        let at = self.decoder.position();
        let mut left = self.decoder.array().map_err(|_| BodyError::Cbor { at })?;
        self.out.push(b'[');
        let mut is_first = true;
        while self.has_next(&mut left)? {
            self.separate(&mut is_first);
            self.value(depth)?;
        }
        self.out.push(b']');
        Ok(())
    }

    fn map(&mut self, depth: usize) -> Result<(), BodyError> {
        let at = self.decoder.position();
        let mut left = self.decoder.map().map_err(|_| BodyError::Cbor { at })?;
        self.out.push(b'{');
        let mut is_first = true;
        while self.has_next(&mut left)? {
            self.separate(&mut is_first);
            let at = self.decoder.position();
            match self.decoder.datatype() {
                Ok(Type::String | Type::StringIndef) => self.text()?,
                Ok(_) => return Err(BodyError::Key { at }),
                Err(_) => return Err(BodyError::Cbor { at }),
            }
            self.out.push(b':');
            self.value(depth)?;
        }
        self.out.push(b'}');
        Ok(())
    }

    fn separate(&mut self, is_first: &mut bool) {
        if !std::mem::take(is_first) {
            self.out.push(b',');
        }
    }

    /// Whether another element follows; `left` is their number, or `None` if a break ends them.
    fn has_next(&mut self, left: &mut Option<u64>) -> Result<bool, BodyError> {
        let at = self.decoder.position();
        match left {
            Some(0) => Ok(false),
            Some(left) => {
                *left -= 1;
                Ok(true)
            }
            None if self.decoder.datatype().map_err(|_| BodyError::Cbor { at })? == Type::Break => {
                self.decoder.set_position(at + 1);
                Ok(false)
            }
            None => Ok(true),
        }
    }
}

/// One level deeper, for arrays, maps and tags.
fn deeper(depth: usize) -> Result<usize, BodyError> {
    if depth < DEPTH_MAX { Ok(depth + 1) } else { Err(BodyError::Depth) }
}

/// A float of 16 bits (RFC 8949 appendix D).
fn half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (fraction + 1024.0) * 2f64.powi(exponent - 25),
    };
    if bits & 0x8000 == 0 { size } else { -size }
}

/// A JSON text as CBOR.
fn from_json(json: &str) -> Result<Vec<u8>, BodyError> {
    // Within the depth at which serde_json itself refuses to recurse.
    check_depth(json)?;
    let value: Value = serde_json::from_str(json).map_err(|_| BodyError::Number)?;
    let mut out = Vec::with_capacity(json.len());
    write_value(&value, &mut Encoder::new(&mut out)).expect("a Vec takes any bytes");
    Ok(out)
}

fn write_value(value: &Value, out: &mut Encoder<&mut Vec<u8>>) -> Result<(), minicbor::encode::Error<Infallible>> {
    match value {
        Value::Null => out.null()?,
        Value::Bool(value) => out.bool(*value)?,
        Value::String(text) => out.str(text)?,
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => out.u64(number)?,
            (None, Some(number)) => out.i64(number)?,
            (None, None) => out.f64(number.as_f64().unwrap_or(f64::NAN))?,
        },
        Value::Array(items) => {
            out.array(items.len() as u64)?;
            return items.iter().try_for_each(|item| write_value(item, out));
        }
        Value::Object(members) => {
            out.map(members.len() as u64)?;
            return members.iter().try_for_each(|(key, item)| {
                out.str(key)?;
                write_value(item, out)
            });
        }
    };
    Ok(())
}
