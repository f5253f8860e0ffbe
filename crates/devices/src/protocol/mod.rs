//! The messages between devices and the gateway, in JSON, CBOR or bare frames (subprotocols `stillgate.v1`,
//! `stillgate.v1+cbor`, and none).
//!
//! ```text
//!  to a device    {"type":"message","id":"5f…","seq":7,"body":…}
//!                 {"type":"hello","session":"9c…","resume":"9c….4"}
//!  from a device  {"type":"ack","seq":7}
//!                 {"type":"reply","id":"5f…","body":…}
//!                 {"type":"event","body":…}
//!                 {"type":"hello","session":"9c…","resume":"9c….4"}
//! ```
//!
//! Reading is strict: a key that is unknown, repeated, missing or of another type is a specific error. Later keys need
//! a later subprotocol, so nothing from a device is silently ignored. Of a body only syntax and depth are checked; the
//! rest is up to its reader.

mod body;
mod cbor;
mod error;
mod json;

pub use body::{Body, BodyError, DEPTH_MAX};
pub use error::ProtocolError;

use error::excerpt;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// The longest `session` or `resume` of a hello, in bytes.
pub const TOKEN_BYTES_MAX: usize = 256;

/// The protocol of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceProtocol {
    /// JSON in text frames.
    Json,
    /// The messages of `Json` in CBOR (RFC 8949), in binary frames.
    Cbor,
    /// A message is one frame and nothing more: no acknowledgements, no replies, no hello.
    Raw,
}

/// A message from a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromDevice<'a> {
    /// A device that reconnects sends the values of the gateway's last hello; a new one sends neither.
    Hello {
        /// Its session.
        session: Option<Cow<'a, str>>,
        /// The token to resume it.
        resume: Option<Cow<'a, str>>,
    },
    /// It has every message up to this one.
    Ack {
        /// The number of a message.
        seq: u64,
    },
    /// It has this message, and answers.
    Reply {
        /// The message's.
        id: MessageId,
        /// The answer: [`Body::Json`] or [`Body::Bytes`].
        body: Body<'a>,
    },
    /// Something for the upstream: [`Body::Json`] or [`Body::Bytes`], and with [`DeviceProtocol::Raw`] [`Body::Text`] or
    /// [`Body::Bytes`].
    Event {
        /// The body of the event.
        body: Body<'a>,
    },
}

/// An encoded body, made once for any number of devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedBody {
    /// The bytes after the message's number, up to the end of its frame.
    bytes: Arc<[u8]>,
    is_text: bool,
}

impl EncodedBody {
    /// Rebuilds an encoded message from [`EncodedBody::as_bytes`] and [`EncodedBody::is_text`].
    pub fn from_parts(bytes: &[u8], is_text: bool) -> EncodedBody {
        EncodedBody { bytes: bytes.into(), is_text }
    }

    /// For another process, which takes over the connection.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its length in a frame, without the part that identifies the message.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it has no bytes: an empty body of [`DeviceProtocol::Raw`].
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether its frame is one of text, otherwise binary.
    pub fn is_text(&self) -> bool {
        self.is_text
    }
}

impl DeviceProtocol {
    /// The protocol that a subprotocol of a handshake names (RFC 6455 section 1.9).
    pub fn of_subprotocol(name: &str) -> Option<DeviceProtocol> {
        match name {
            "stillgate.v1" => Some(DeviceProtocol::Json),
            "stillgate.v1+cbor" => Some(DeviceProtocol::Cbor),
            _ => None,
        }
    }

    /// Encodes a body for [`DeviceProtocol::write_message`].
    pub fn encode(self, body: &Body<'_>) -> Result<EncodedBody, BodyError> {
        let bytes = match self {
            DeviceProtocol::Json => json::encode(body),
            DeviceProtocol::Cbor => cbor::encode(body)?,
            DeviceProtocol::Raw => body.bytes().to_vec(),
        };
        let is_text = match self {
            DeviceProtocol::Json => true,
            DeviceProtocol::Cbor => false,
            DeviceProtocol::Raw => !matches!(body, Body::Bytes(_)),
        };
        Ok(EncodedBody { bytes: bytes.into(), is_text })
    }

    /// Appends a message, the payload of one frame. `encoded` must be of this protocol.
    pub fn write_message(self, id: MessageId, seq: u64, encoded: &EncodedBody, out: &mut Vec<u8>) {
        match self {
            DeviceProtocol::Json => json::write_message_head(id, seq, out),
            DeviceProtocol::Cbor => cbor::write_message_head(id, seq, out),
            DeviceProtocol::Raw => {}
        }
        out.extend_from_slice(&encoded.bytes);
    }

    /// Appends the gateway's greeting, the payload of one frame; nothing with [`DeviceProtocol::Raw`]. Neither string needs
    /// escaping: they are this crate's.
    pub fn write_hello(self, session: &str, resume: &str, out: &mut Vec<u8>) {
        match self {
            DeviceProtocol::Json => json::write_hello(session, resume, out),
            DeviceProtocol::Cbor => cbor::write_hello(session, resume, out),
            DeviceProtocol::Raw => {}
        }
    }

    /// Reads a whole message of a device. `is_text`: which kind of frame it came in; text is valid UTF-8.
    pub fn read(self, is_text: bool, payload: &[u8]) -> Result<FromDevice<'_>, ProtocolError> {
        match self {
            DeviceProtocol::Json if is_text => combine(&json::read_fields(payload)?, self),
            DeviceProtocol::Json => Err(ProtocolError::Binary),
            DeviceProtocol::Cbor if is_text => Err(ProtocolError::Text),
            DeviceProtocol::Cbor => combine(&cbor::read_fields(payload)?, self),
            DeviceProtocol::Raw => Ok(FromDevice::Event { body: raw_body(is_text, payload) }),
        }
    }

    /// A string as this protocol writes it.
    fn string(self, raw: &[u8]) -> Option<Cow<'_, str>> {
        match self {
            DeviceProtocol::Cbor => cbor::string(raw),
            _ => json::string(raw),
        }
    }

    /// A whole number as this protocol writes it.
    fn number(self, raw: &[u8]) -> Option<u64> {
        match self {
            DeviceProtocol::Cbor => cbor::number(raw),
            _ => json::number(raw),
        }
    }

    fn body<'a>(self, raw: &'a [u8], is_base64: bool) -> Result<Body<'a>, ProtocolError> {
        match self {
            DeviceProtocol::Cbor if is_base64 => {
                Err(ProtocolError::Value { key: "encoding", wanted: "left out: send bytes as bytes" })
            }
            DeviceProtocol::Cbor => cbor::body(raw),
            _ => json::body(raw, is_base64),
        }
    }
}

fn raw_body(is_text: bool, payload: &[u8]) -> Body<'_> {
    match std::str::from_utf8(payload) {
        Ok(text) if is_text => Body::Text(Cow::Borrowed(text)),
        _ => Body::Bytes(Cow::Borrowed(payload)),
    }
}

/// Combines the keys of a message.
fn combine<'a>(fields: &Fields<'a>, protocol: DeviceProtocol) -> Result<FromDevice<'a>, ProtocolError> {
    const TYPE: ProtocolError = ProtocolError::Value { key: "type", wanted: "a string: ack, reply, event or hello" };
    let kind = fields.get("type").ok_or(ProtocolError::Missing { key: "type", of: "a message" })?;
    let kind = protocol.string(kind).ok_or(TYPE)?;
    match &*kind {
        "ack" => {
            fields.only("ack", &["type", "seq"])?;
            let seq = fields.need("ack", "seq")?;
            let wanted = "the whole number of a message, as it was sent";
            Ok(FromDevice::Ack { seq: protocol.number(seq).ok_or(ProtocolError::Value { key: "seq", wanted })? })
        }
        "reply" => {
            fields.only("reply", &["type", "id", "body", "encoding"])?;
            let id = protocol.string(fields.need("reply", "id")?);
            let wanted = "the id of a message, as it was sent";
            let id = id.and_then(|id| MessageId::parse(&id)).ok_or(ProtocolError::Value { key: "id", wanted })?;
            Ok(FromDevice::Reply { id, body: body_of("reply", fields, protocol)? })
        }
        "event" => {
            fields.only("event", &["type", "body", "encoding"])?;
            Ok(FromDevice::Event { body: body_of("event", fields, protocol)? })
        }
        "hello" => {
            fields.only("hello", &["type", "session", "resume"])?;
            let session = token(fields, "session", protocol)?;
            Ok(FromDevice::Hello { session, resume: token(fields, "resume", protocol)? })
        }
        other => Err(ProtocolError::Type(error::excerpt(other))),
    }
}

fn body_of<'a>(of: &'static str, fields: &Fields<'a>, protocol: DeviceProtocol) -> Result<Body<'a>, ProtocolError> {
    let body = fields.need(of, "body")?;
    let encoding = fields.get("encoding").map(|raw| protocol.string(raw));
    match encoding.as_ref().map(Option::as_deref) {
        None => protocol.body(body, false),
        Some(Some("base64")) => protocol.body(body, true),
        Some(_) => Err(ProtocolError::Value { key: "encoding", wanted: "\"base64\", or left out" }),
    }
}

fn token<'a>(
    fields: &Fields<'a>,
    key: &'static str,
    protocol: DeviceProtocol,
) -> Result<Option<Cow<'a, str>>, ProtocolError> {
    let Some(raw) = fields.get(key) else { return Ok(None) };
    let token = protocol.string(raw).filter(|token| token.len() <= TOKEN_BYTES_MAX);
    let wanted = "the value from the gateway's last hello, as a string";
    token.map(Some).ok_or(ProtocolError::Value { key, wanted })
}

// The keys of one message of a device, each with the bytes of its value, before they are interpreted.

/// Every key of v1.
const KEYS: [&str; 7] = ["type", "id", "seq", "body", "encoding", "session", "resume"];

/// The bytes of each key's value, in the message's own format.
#[derive(Debug, Default)]
struct Fields<'a> {
    values: [Option<&'a [u8]>; KEYS.len()],
}

impl<'a> Fields<'a> {
    /// Stores a key's value.
    fn put(&mut self, key: &str, raw: &'a [u8]) -> Result<(), ProtocolError> {
        let Some(at) = KEYS.iter().position(|known| *known == key) else {
            return Err(ProtocolError::UnknownKey(excerpt(key)));
        };
        match self.values[at].replace(raw) {
            None => Ok(()),
            Some(_) => Err(ProtocolError::RepeatedKey(KEYS[at])),
        }
    }

    fn get(&self, key: &'static str) -> Option<&'a [u8]> {
        KEYS.iter().zip(self.values).find_map(|(known, value)| if *known == key { value } else { None })
    }

    fn need(&self, of: &'static str, key: &'static str) -> Result<&'a [u8], ProtocolError> {
        self.get(key).ok_or(ProtocolError::Missing { key, of })
    }

    /// Refuses keys that a type of message does not have.
    fn only(&self, of: &'static str, allowed: &[&str]) -> Result<(), ProtocolError> {
        match KEYS.iter().zip(self.values).find(|(key, value)| value.is_some() && !allowed.contains(*key)) {
            Some((key, _)) => Err(ProtocolError::Surplus { key, of }),
            None => Ok(()),
        }
    }
}

// The unique identifier of a message.

/// 128 random bits; 32 lowercase hexadecimal digits as text. All copies of a message have the same one, so a device
/// recognises duplicates.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(pub u128);

impl MessageId {
    /// Reads the text of an id.
    pub fn parse(text: &str) -> Option<MessageId> {
        let is_plain = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_plain.then(|| u128::from_str_radix(text, 16).ok().map(MessageId)).flatten()
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_id(f, self.0)
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Writes an id as 32 lowercase digits. Each message writes its id several times, and `{:032x}` takes about ten times
/// the instructions.
pub(crate) fn write_id(f: &mut fmt::Formatter<'_>, id: u128) -> fmt::Result {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 32];
    for (digits, byte) in text.chunks_exact_mut(2).zip(id.to_be_bytes()) {
        digits[0] = DIGITS[usize::from(byte >> 4)];
        digits[1] = DIGITS[usize::from(byte & 0xf)];
    }
    f.write_str(str::from_utf8(&text).map_err(|_| fmt::Error)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_text_is_read_back() {
        for id in [0, 1, 0xabc, u128::MAX].map(MessageId) {
            assert_eq!(MessageId::parse(&id.to_string()), Some(id));
        }
        for text in ["", "0", &"f".repeat(33), &"F".repeat(32), "+000000000000000000000000000000f"] {
            assert_eq!(MessageId::parse(text), None, "{text}");
        }
    }

    #[test]
    fn ids_are_32_digits() {
        for id in [0, 1, u128::MAX, 0x0123_4567_89ab_cdef_u128 << 64] {
            assert_eq!(MessageId(id).to_string(), format!("{id:032x}"));
        }
    }
}
