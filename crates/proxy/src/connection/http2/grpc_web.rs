//! gRPC-Web (gRPC's `PROTOCOL-WEB.md`) over gRPC: heads, base64, and trailers as the last part of a body; no IO.

use crate::connection::grpc::{Web, native_suffix, web_suffix};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{self, HeaderMap, HeaderValue};
use std::fmt;
use std::io;

/// First byte of a body frame that contains trailers instead of a message.
const TRAILERS_FLAG: u8 = 0x80;
/// The field with the status of a call.
pub(super) const STATUS: &str = "grpc-status";
/// Bytes of base64 that are decoded at once.
const QUANTUM: usize = 4;

/// The status of a call whose node sends none: `UNKNOWN`, as gRPC clients conclude themselves.
const STATUS_UNKNOWN: HeaderValue = HeaderValue::from_static("2");
const NO_STATUS: HeaderValue = HeaderValue::from_static("the node's response has no grpc-status");

/// Turns the fields of a gRPC-Web call into those of a gRPC call.
pub(super) fn edit_request(fields: &mut HeaderMap) {
    let given = fields.get(header::CONTENT_TYPE).and_then(|value| web_suffix(value.as_bytes()));
    let content_type = with_suffix(b"application/grpc", given.map_or(b"", |(_, suffix)| suffix));
    fields.insert(header::CONTENT_TYPE, content_type);
    fields.insert(header::TE, HeaderValue::from_static("trailers"));
    // For text it is not the length that the node gets, and gRPC does not use it.
    fields.remove(header::CONTENT_LENGTH);
}

/// Turns the fields of a gRPC response into those that the client of a gRPC-Web call expects. False: it is not a gRPC response, and
/// is passed on as it is.
pub(super) fn edit_response(web: Web, fields: &mut HeaderMap) -> bool {
    let given = fields.get(header::CONTENT_TYPE).and_then(|value| native_suffix(value.as_bytes()));
    let Some(suffix) = given else { return false };
    let content_type = with_suffix(web.answer_type(), if suffix.is_empty() { b"+proto" } else { suffix });
    fields.insert(header::CONTENT_TYPE, content_type);
    fields.remove(header::CONTENT_LENGTH);
    true
}

fn with_suffix(media_type: &[u8], suffix: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(&[media_type, suffix].concat()).expect("a part of a value is one")
}

/// The trailers frame after the last message of a body. A gRPC-Web client may take a call without a status for a successful one,
/// and so a truncated response for a complete one; it gets a status unless the head had it.
pub(super) fn trailers_frame(trailers: Option<HeaderMap>, has_status: bool) -> Vec<u8> {
    let mut trailers = trailers.unwrap_or_default();
    if !has_status && !trailers.contains_key(STATUS) {
        trailers.insert(STATUS, STATUS_UNKNOWN);
        trailers.insert("grpc-message", NO_STATUS);
    }
    let mut frame = vec![TRAILERS_FLAG, 0, 0, 0, 0];
    super::incoming_body::push_fields(&mut frame, &trailers, |_| true);
    // A field section is far below 4 GiB: see `field_section_bytes_max`.
    let length = (frame.len() - 5) as u32;
    frame[1..5].copy_from_slice(&length.to_be_bytes());
    frame
}

/// Encodes a part of a body as text. Others may follow, so a reader must expect padding within.
pub(super) fn encode(part: &[u8]) -> String {
    STANDARD.encode(part)
}

/// Decodes a base64 body that arrives in parts. There may be padding wherever a sender has flushed.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    /// The part of the next quantum that has arrived.
    quantum: [u8; QUANTUM],
    have: usize,
    /// Decoding has failed for good.
    is_broken: bool,
}

impl Decoder {
    /// Decodes the next part of the text.
    pub(super) fn decode(&mut self, text: &[u8]) -> io::Result<Vec<u8>> {
        let decoded = self.try_decode(text);
        self.is_broken |= decoded.is_err();
        decoded.map_err(|BadBase64| bad_base64())
    }

    fn try_decode(&mut self, mut text: &[u8]) -> Result<Vec<u8>, BadBase64> {
        if self.is_broken {
            return Err(BadBase64);
        }
        let mut out = Vec::with_capacity((self.have + text.len()) / QUANTUM * 3);
        if self.have > 0 {
            let (now, later) = text.split_at(text.len().min(QUANTUM - self.have));
            self.quantum[self.have..self.have + now.len()].copy_from_slice(now);
            self.have += now.len();
            text = later;
            if self.have < QUANTUM {
                return Ok(out);
            }
            STANDARD.decode_vec(self.quantum, &mut out).map_err(|_| BadBase64)?;
        }
        let (mut whole, rest) = text.split_at(text.len() / QUANTUM * QUANTUM);
        while !whole.is_empty() {
            let padding = whole.iter().position(|byte| *byte == b'=');
            let (now, later) = whole.split_at(padding.map_or(whole.len(), |at| at / QUANTUM * QUANTUM + QUANTUM));
            STANDARD.decode_vec(now, &mut out).map_err(|_| BadBase64)?;
            whole = later;
        }
        self.quantum[..rest.len()].copy_from_slice(rest);
        self.have = rest.len();
        Ok(out)
    }

    /// The text has ended.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.is_broken |= self.have > 0;
        if self.is_broken { Err(bad_base64()) } else { Ok(()) }
    }
}

/// The body of a call is not valid base64 although its type says so.
#[derive(Debug)]
struct BadBase64;

impl fmt::Display for BadBase64 {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("the body of the call is not base64")
    }
}

impl std::error::Error for BadBase64 {}

fn bad_base64() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, BadBase64)
}

/// Whether a request could not be written to its node because its body, which should be base64, is not.
pub(crate) fn is_bad_base64(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|cause| cause.is::<BadBase64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(text: &[u8], step: usize) -> io::Result<Vec<u8>> {
        let mut decoder = Decoder::default();
        let mut out = Vec::new();
        for part in text.chunks(step) {
            out.extend_from_slice(&decoder.decode(part)?);
        }
        decoder.finish().map(|()| out)
    }

    #[test]
    fn any_split_decodes_alike() {
        let bytes: Vec<u8> = (0..=255).collect();
        // As one text, and as several texts that each end in padding.
        let texts = [
            (encode(&bytes), bytes.clone()),
            (bytes.chunks(4).map(encode).collect(), bytes.clone()),
            (bytes.chunks(5).chain(bytes.chunks(1)).map(encode).collect(), bytes.repeat(2)),
            (String::new(), Vec::new()),
        ];
        for (text, expected) in &texts {
            for step in 1..=text.len().max(1) {
                assert_eq!(&decode(text.as_bytes(), step).unwrap(), expected, "{text} by {step}");
            }
        }
    }

    #[test]
    fn what_is_not_base64_is_refused_however_it_comes() {
        for text in ["A", "AAA", "AAAAA", "AA=A", "====", "A===", "AAA!", "AA A", "AAAA\n", "AAB=", "AA==AAA", "-_-_"] {
            for step in 1..=text.len() {
                let error = decode(text.as_bytes(), step).unwrap_err();
                assert!(is_bad_base64(&error), "{text} by {step}: {error}");
            }
        }
        // Nothing that follows repairs it.
        let mut decoder = Decoder::default();
        assert!(decoder.decode(b"AAA!").is_err() && decoder.decode(b"AAAA").is_err() && decoder.finish().is_err());
        assert!(!is_bad_base64(&io::ErrorKind::InvalidData.into()));
    }

    #[test]
    fn heads_change_their_type() {
        let fields = |content_type: &'static str| {
            let pairs = [(header::CONTENT_TYPE, content_type), (header::CONTENT_LENGTH, "8")];
            HeaderMap::from_iter(pairs.map(|(name, value)| (name, HeaderValue::from_static(value))))
        };
        for (given, expected) in [
            ("application/grpc-web", "application/grpc"),
            ("application/grpc-web+json; a=b", "application/grpc+json; a=b"),
            ("application/grpc-web-text+proto", "application/grpc+proto"),
        ] {
            let mut request = fields(given);
            edit_request(&mut request);
            assert!(request[header::CONTENT_TYPE] == expected && request[header::TE] == "trailers", "{request:?}");
            assert!(!request.contains_key(header::CONTENT_LENGTH));
        }
        for (given, wants_text, expected) in [
            ("application/grpc", false, "application/grpc-web+proto"),
            ("application/grpc+json", true, "application/grpc-web-text+json"),
        ] {
            let mut response = fields(given);
            assert!(edit_response(Web { is_text: false, wants_text }, &mut response));
            assert!(response[header::CONTENT_TYPE] == expected && response.len() == 1, "{response:?}");
        }
        let mut other = fields("text/html");
        assert!(!edit_response(Web { is_text: true, wants_text: true }, &mut other));
        assert_eq!(other, fields("text/html"));
    }

    #[test]
    fn trailers_are_a_frame() {
        let mut trailers = HeaderMap::new();
        trailers.append("Grpc-Status", HeaderValue::from_static("0"));
        trailers.append("x-a", HeaderValue::from_static("1"));
        trailers.append("x-a", HeaderValue::from_static("2"));
        let frame = trailers_frame(Some(trailers), false);
        assert_eq!(frame, b"\x80\0\0\0\x20grpc-status: 0\r\nx-a: 1\r\nx-a: 2\r\n");
        assert_eq!(trailers_frame(None, true), b"\x80\0\0\0\0");
    }

    #[test]
    fn a_call_has_a_status() {
        let other = HeaderMap::from_iter([(header::HeaderName::from_static("x-a"), HeaderValue::from_static("1"))]);
        for (trailers, first) in [(None, ""), (Some(HeaderMap::new()), ""), (Some(other), "x-a: 1\r\n")] {
            let text = format!("{first}grpc-status: 2\r\ngrpc-message: the node's response has no grpc-status\r\n");
            let expected = [&[0x80, 0, 0, 0, text.len() as u8], text.as_bytes()].concat();
            assert_eq!(trailers_frame(trailers, false), expected);
        }
    }
}
