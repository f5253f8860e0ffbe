//! CBOR to JSON and back (RFC 8949 sections 6.1 and 6.2), with the depth bounded.
//!
//! To JSON: bytes inside a value become base64url without padding, a float that is not finite and `undefined` become
//! `null`, a tag is dropped and its content kept, and a key that is not text is an error. From JSON: whole numbers within 64
//! bits become integers, all others floats of 64 bits; of a repeated key the last value remains.

use super::body::{BodyError, DEPTH_MAX, check_depth};
use super::json::write_string;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use minicbor::data::Type;
use minicbor::{Decoder, Encoder, decode, encode};
use serde_json::{Number, Value};
use std::convert::Infallible;
use std::io::Write as _;

/// One CBOR value as JSON.
pub(super) fn to_json(raw: &[u8]) -> Result<String, BodyError> {
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
pub(super) fn from_json(json: &str) -> Result<Vec<u8>, BodyError> {
    // Within the depth at which serde_json itself refuses to recurse.
    check_depth(json)?;
    let value: Value = serde_json::from_str(json).map_err(|_| BodyError::Number)?;
    let mut out = Vec::with_capacity(json.len());
    write_value(&value, &mut Encoder::new(&mut out)).expect("a Vec takes any bytes");
    Ok(out)
}

fn write_value(value: &Value, out: &mut Encoder<&mut Vec<u8>>) -> Result<(), encode::Error<Infallible>> {
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
