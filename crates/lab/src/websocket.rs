//! WebSocket (RFC 6455) as far as the laboratory speaks it: a handshake with a constant key, and whole frames, of both sides.
//!
//! The gateway has a codec of its own, and the laboratory serves any gateway; a peer that shares no code with the server also finds
//! errors that both would share. A message in several frames is refused: no gateway splits the short ones that are sent here.

use std::fmt::Display;

/// The key of RFC 6455, and the answer to it.
pub(crate) const HANDSHAKE_KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
pub(crate) const HANDSHAKE_ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// A longer frame is not one of our messages.
const PAYLOAD_BYTES_MAX: usize = 1 << 20;

const FIN: u8 = 0x80;
const MASKED: u8 = 0x80;
const MASK_BYTES: usize = 4;

/// Kinds of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opcode {
    Text = 1,
    Binary = 2,
    Close = 8,
    Ping = 9,
    Pong = 10,
}

/// The sender of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    /// Masks its frames.
    Client,
    Server,
}

/// A whole frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    pub(crate) opcode: Opcode,
    /// As it was sent.
    payload: &'a [u8],
    /// All zero: it is not masked.
    mask: [u8; MASK_BYTES],
    /// Including its head.
    pub(crate) length: usize,
}

impl<'a> Frame<'a> {
    /// The payload of a server's frame.
    pub(crate) fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The payload of any frame.
    pub(crate) fn unmasked(&self) -> Vec<u8> {
        masked(self.payload, self.mask).collect()
    }
}

/// A client's request for a tunnel, with further fields.
pub(crate) fn request(host: impl Display, path: &str, fields: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {HANDSHAKE_KEY}\r\n{fields}\r\n"
    )
}

/// A server's answer to it.
pub(crate) fn acceptance() -> String {
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: {HANDSHAKE_ACCEPT}\r\n\r\n"
    )
}

/// Whether a head accepts the handshake, with any fields that a gateway adds.
pub(crate) fn is_accepted(head: &str) -> bool {
    head.starts_with("HTTP/1.1 101") && head.contains(HANDSHAKE_ACCEPT)
}

/// A whole frame of this sender at the beginning of `bytes`; `None`: more bytes are needed.
pub(crate) fn read(bytes: &[u8], sender: Sender) -> Result<Option<Frame<'_>>, &'static str> {
    let [first, second, ..] = *bytes else { return Ok(None) };
    let opcode = match first & !FIN {
        1 => Opcode::Text,
        2 => Opcode::Binary,
        8 => Opcode::Close,
        9 => Opcode::Ping,
        10 => Opcode::Pong,
        0 => return Err("a message in several frames"),
        _ => return Err("a frame of an unknown kind"),
    };
    if first & FIN == 0 {
        return Err("a message in several frames");
    }
    match (second & MASKED != 0, sender) {
        (true, Sender::Server) => return Err("a masked frame, which only clients send"),
        (false, Sender::Client) => return Err("a frame of a client that is not masked"),
        _ => {}
    }
    let (length, head) = match usize::from(second & !MASKED) {
        126 => match *bytes {
            [_, _, a, b, ..] => (usize::from(u16::from_be_bytes([a, b])), 4),
            _ => return Ok(None),
        },
        127 => match bytes.get(2..10).and_then(|long| <[u8; 8]>::try_from(long).ok()) {
            Some(long) => (usize::try_from(u64::from_be_bytes(long)).unwrap_or(usize::MAX), 10),
            None => return Ok(None),
        },
        length => (length, 2),
    };
    if length > PAYLOAD_BYTES_MAX {
        return Err("a frame of more than 1 MiB");
    }
    let (mask, head) = match sender {
        Sender::Server => ([0; MASK_BYTES], head),
        Sender::Client => match bytes.get(head..).and_then(|rest| rest.first_chunk()) {
            Some(mask) => (*mask, head + MASK_BYTES),
            None => return Ok(None),
        },
    };
    let payload = bytes.get(head..head + length);
    Ok(payload.map(|payload| Frame { opcode, payload, mask, length: head + length }))
}

/// Adds a frame of a client, which must be masked.
pub(crate) fn write(out: &mut Vec<u8>, opcode: Opcode, payload: &[u8], mask: [u8; MASK_BYTES]) {
    write_head(out, opcode, payload.len(), MASKED);
    out.extend_from_slice(&mask);
    out.extend(masked(payload, mask));
}

/// Adds a frame of a server.
pub(crate) fn write_plain(out: &mut Vec<u8>, opcode: Opcode, payload: &[u8]) {
    write_head(out, opcode, payload.len(), 0);
    out.extend_from_slice(payload);
}

fn write_head(out: &mut Vec<u8>, opcode: Opcode, length: usize, masked: u8) {
    out.push(FIN | opcode as u8);
    match length {
        0..126 => out.push(masked | length as u8),
        126..0x1_0000 => {
            out.push(masked | 126);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            out.push(masked | 127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
}

fn masked(payload: &[u8], mask: [u8; MASK_BYTES]) -> impl Iterator<Item = u8> {
    payload.iter().enumerate().map(move |(at, byte)| byte ^ mask[at % MASK_BYTES])
}

/// The code of a close frame; 1005 if it has none.
pub(crate) fn close_code(payload: &[u8]) -> u16 {
    const NONE: u16 = 1005;
    payload.first_chunk::<2>().map_or(NONE, |code| u16::from_be_bytes(*code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_every_length_are_read_at_every_split() {
        for length in [0, 1, 125, 126, 127, 65_535, 65_536] {
            let payload = vec![b'x'; length];
            let (mut plain, mut masked) = (Vec::new(), Vec::new());
            write_plain(&mut plain, Opcode::Text, &payload);
            write(&mut masked, Opcode::Text, &payload, [1, 2, 3, 4]);
            for (frame, sender) in [(plain, Sender::Server), (masked, Sender::Client)] {
                let whole = read(&frame, sender).unwrap().unwrap();
                assert_eq!((whole.opcode, whole.length), (Opcode::Text, frame.len()));
                assert!(whole.unmasked() == payload, "{length}");
                for end in (0..frame.len().min(20)).chain([frame.len() - 1]) {
                    assert_eq!(read(&frame[..end], sender), Ok(None), "{length} cut to {end}");
                }
            }
        }
    }

    #[test]
    fn what_a_peer_may_not_send_is_refused() {
        for (bytes, expected) in [
            (&[0x01, 0x00][..], "several frames"),
            (&[0x80, 0x00], "several frames"),
            (&[0x83, 0x00], "unknown kind"),
            (&[0x81, 0x80], "masked"),
            (&[0x81, 127, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], "1 MiB"),
        ] {
            assert!(read(bytes, Sender::Server).is_err_and(|why| why.contains(expected)), "{bytes:?}");
        }
        assert!(read(&[0x81, 0], Sender::Client).is_err_and(|why| why.contains("not masked")));
    }

    #[test]
    fn masked_frames_can_be_unmasked() {
        let mut out = Vec::new();
        write(&mut out, Opcode::Text, b"Hello", [0x37, 0xfa, 0x21, 0x3d]);
        // The example of RFC 6455 section 5.7.
        assert_eq!(out, [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58]);
        out.clear();
        write(&mut out, Opcode::Binary, &[0; 70_000], [0; 4]);
        assert_eq!(out[..10], [0x82, 0xff, 0, 0, 0, 0, 0, 1, 0x11, 0x70]);
    }

    #[test]
    fn a_handshake_is_accepted() {
        assert!(request("a", "/t", "X: y\r\n").ends_with(&format!("{HANDSHAKE_KEY}\r\nX: y\r\n\r\n")));
        assert!(is_accepted(&acceptance()));
        assert!(!is_accepted("HTTP/1.1 502 Bad Gateway\r\n\r\n"));
    }

    #[test]
    fn a_close_frame_has_a_code_or_none() {
        assert_eq!(close_code(&[0x03, 0xf4, b'x']), 1012);
        assert_eq!(close_code(&[3]), 1005);
    }
}
