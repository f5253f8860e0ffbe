//! The part of WebSocket (RFC 6455) that pings need: the handshake and small frames.
//!
//! A message of the benches is a ping and its pong, so that any server answers it.

use crate::Result;

pub(super) const PING: u8 = 0x9;
pub(in crate::bench) const PONG: u8 = 0xA;

/// Bytes of each payload. A control frame may contain 125 at most.
pub(super) const PAYLOAD_BYTES: usize = 64;

const FINAL: u8 = 0x80;
const MASKED: u8 = 0x80;
const LENGTH: u8 = 0x7F;
/// From this value on a length has further bytes, which our frames never have.
const SHORT_MAX: usize = 125;
const MASK_BYTES: usize = 4;
/// The mask of clients. It should be unpredictable; here it only has to be reversible.
const MASK: [u8; MASK_BYTES] = [0x3C, 0xA5, 0x5A, 0xC3];

/// The example of RFC 6455, and its answer.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// A client's request.
pub(in crate::bench) fn request(path: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: tunnel.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n"
    )
}

/// A server's response to it.
pub(super) fn answer() -> String {
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {ACCEPT}\r\n\r\n"
    )
}

/// Whether a response is that one, with any further headers that a gateway adds.
pub(in crate::bench) fn is_answer(head: &str) -> bool {
    head.starts_with("HTTP/1.1 101") && head.contains(ACCEPT)
}

/// Whether a request is for a tunnel.
pub(super) fn is_request(head: &str) -> bool {
    head.starts_with("GET ") && head.contains(KEY)
}

/// The bytes of a head with its end, once it is complete.
pub(super) fn head_length(received: &[u8]) -> Option<usize> {
    received.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
}

/// One frame.
#[derive(Debug, PartialEq)]
pub(super) struct Frame {
    pub(super) opcode: u8,
    /// Unmasked.
    pub(super) payload: [u8; PAYLOAD_BYTES],
}

impl Frame {
    /// The length of the first frame in the received bytes, and the frame; `None` if it is incomplete.
    pub(super) fn read(received: &[u8]) -> Result<Option<(usize, Frame)>> {
        let [first, second, rest @ ..] = received else { return Ok(None) };
        let length = usize::from(second & LENGTH);
        if length > SHORT_MAX || first & FINAL == 0 {
            return Err(format!("a frame that begins with {first:02x} {second:02x}: longer than any of ours").into());
        }
        let (mask, rest) = match second & MASKED {
            0 => ([0; MASK_BYTES], rest),
            _ => match rest.split_first_chunk::<MASK_BYTES>() {
                Some((mask, rest)) => (*mask, rest),
                None => return Ok(None),
            },
        };
        let Some(masked) = rest.get(..length) else { return Ok(None) };
        let opcode = first & !FINAL;
        let Ok(mut payload) = <[u8; PAYLOAD_BYTES]>::try_from(masked) else {
            let text = String::from_utf8_lossy(masked);
            return Err(format!("a frame with opcode {opcode:x} and {length} bytes: {text:?}").into());
        };
        apply(mask, &mut payload);
        Ok(Some((received.len() - rest.len() + length, Frame { opcode, payload })))
    }

    /// Appends the frame; clients must mask theirs.
    pub(super) fn write(&self, out: &mut Vec<u8>, is_masked: bool) {
        let length = PAYLOAD_BYTES as u8;
        let mut payload = self.payload;
        if is_masked {
            out.extend_from_slice(&[FINAL | self.opcode, MASKED | length]);
            out.extend_from_slice(&MASK);
            apply(MASK, &mut payload);
        } else {
            out.extend_from_slice(&[FINAL | self.opcode, length]);
        }
        out.extend_from_slice(&payload);
    }
}

fn apply(mask: [u8; MASK_BYTES], payload: &mut [u8]) {
    for (byte, mask) in payload.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_in_any_pieces() {
        for is_masked in [false, true] {
            let frame = Frame { opcode: PING, payload: std::array::from_fn(|at| at as u8) };
            let mut bytes = Vec::new();
            frame.write(&mut bytes, is_masked);
            assert_eq!(bytes.ends_with(&frame.payload), !is_masked);
            for length in 0..bytes.len() {
                assert_eq!(Frame::read(&bytes[..length]).unwrap(), None, "{length}");
            }
            let whole = bytes.len();
            bytes.push(0x89);
            assert_eq!(Frame::read(&bytes).unwrap(), Some((whole, frame)));
        }
    }

    #[test]
    fn refuses_what_is_not_ours() {
        // A close, a part of a message, and one with a longer length.
        for bytes in [[0x88, 0x02, 3, 232].as_slice(), &[0x09, 0x40], &[0x82, 126, 1, 0], &[0x82, 127]] {
            assert!(Frame::read(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn handshake() {
        assert!(is_request(&request("/t")));
        assert!(!is_request("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert!(is_answer(&answer()));
        assert!(!is_answer("HTTP/1.1 502 Bad Gateway\r\n\r\n"));
        assert_eq!(head_length(answer().as_bytes()), Some(answer().len()));
        assert_eq!(head_length(b"HTTP/1.1 101\r\n"), None);
    }
}
