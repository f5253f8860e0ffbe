//! Frames of a server: not masked (RFC 6455 section 5.1), never fragmented.

use super::close::{CLOSE_REASON_BYTES_MAX, CloseCode};
use super::head::Opcode;

/// The longest head of a frame that is not masked.
pub const FRAME_HEAD_BYTES_MAX: usize = 10;

/// A head of 2, 4 or 10 bytes, to be written before its payload, which need not be copied.
#[derive(Debug, Clone, Copy)]
pub struct FrameHead {
    bytes: [u8; FRAME_HEAD_BYTES_MAX],
    len: u8,
}

impl FrameHead {
    /// The head of a whole message or control frame with a payload of this many bytes.
    pub fn new(opcode: Opcode, payload_bytes: usize) -> FrameHead {
        let mut bytes = [0; FRAME_HEAD_BYTES_MAX];
        bytes[0] = 0x80 | opcode as u8;
        let len = if payload_bytes < 126 {
            bytes[1] = payload_bytes as u8;
            2
        } else if let Ok(short) = u16::try_from(payload_bytes) {
            bytes[1] = 126;
            bytes[2..4].copy_from_slice(&short.to_be_bytes());
            4
        } else {
            bytes[1] = 127;
            bytes[2..10].copy_from_slice(&(payload_bytes as u64).to_be_bytes());
            10
        };
        FrameHead { bytes, len }
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Appends a frame: of a message, a ping or a pong. The payload of a ping or pong is at most
/// [`super::CONTROL_PAYLOAD_BYTES_MAX`] long, as every payload that a [`super::FrameReader`] gives back is.
pub fn write_frame(opcode: Opcode, payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(FrameHead::new(opcode, payload.len()).as_bytes());
    out.extend_from_slice(payload);
}

/// Appends a close frame. A reason that is too long is cut at a character.
pub fn write_close(code: CloseCode, reason: &str, out: &mut Vec<u8>) {
    let reason = &reason[..reason.floor_char_boundary(CLOSE_REASON_BYTES_MAX)];
    out.extend_from_slice(FrameHead::new(Opcode::Close, 2 + reason.len()).as_bytes());
    out.extend_from_slice(&code.number().to_be_bytes());
    out.extend_from_slice(reason.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_as_short_as_they_can_be() {
        for (payload_bytes, head) in [
            (0usize, &[0x82, 0][..]),
            (125, &[0x82, 125]),
            (126, &[0x82, 126, 0, 126]),
            (65535, &[0x82, 126, 0xff, 0xff]),
            (65536, &[0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
        ] {
            assert_eq!(FrameHead::new(Opcode::Binary, payload_bytes).as_bytes(), head);
        }
    }

    #[test]
    fn a_long_reason_is_cut_at_a_character() {
        let mut out = Vec::new();
        write_close(CloseCode::POLICY, &format!("a{}", "é".repeat(100)), &mut out);
        assert_eq!(out[..4], [0x88, 2 + 123, 0x03, 0xf0]);
        assert_eq!(out.len(), 2 + 2 + 123);
        out.clear();
        write_close(CloseCode::POLICY, &"é".repeat(100), &mut out);
        assert_eq!(out.len(), 2 + 2 + 122);
        assert!(std::str::from_utf8(&out[4..]).is_ok());
    }
}
