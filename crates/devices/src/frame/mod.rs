//! WebSocket frames (RFC 6455) as a server reads and writes them.
//!
//! A [`FrameReader`] takes bytes as they arrive and returns whole messages and control frames. It owns no buffer while its
//! connection is idle: a whole frame is borrowed from the caller's buffer, and only data that is split over reads or
//! frames is gathered. Written frames are not masked (section 5.1), and a message is one frame.
//!
//! ```text
//!  0        1        2 …            4 … or 10 …    4 more
//! ┌────────┬────────┬──────────────┬─────────────┬──────┐
//! │FRRR oop│M length│ 16-bit length│ or 64-bit   │ mask │
//! └────────┴────────┴──────────────┴─────────────┴──────┘
//! ```
//!
//! The head of a frame (section 5.2) is read byte by byte: an error is reported at the byte that causes it. No extension is
//! supported, so every reserved bit is an error. The handshake is HTTP and is implemented elsewhere.

mod reader;

pub use reader::{FrameError, FrameEvent, FrameReader};

// Frames of a server: not masked (RFC 6455 section 5.1), never fragmented.

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
/// [`CONTROL_PAYLOAD_BYTES_MAX`] long, as every payload that a [`FrameReader`] gives back is.
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

// Codes of closing (RFC 6455 section 7.4), and the payload of a close frame.

/// The longest reason of a close frame, in bytes of UTF-8: its code takes two of a control frame's payload.
pub const CLOSE_REASON_BYTES_MAX: usize = CONTROL_PAYLOAD_BYTES_MAX - 2;

/// A status code that is valid in a close frame: 1000 to 1003, 1007 to 1014, 3000 to 4999 (RFC 6455 section 7.4 and the
/// IANA registry that it establishes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CloseCode(u16);

impl CloseCode {
    /// 1000: done.
    pub const NORMAL: CloseCode = CloseCode(1000);
    /// 1001: this side is going away; connect again.
    pub const GOING_AWAY: CloseCode = CloseCode(1001);
    /// 1002: bytes that are not frames.
    pub const PROTOCOL_ERROR: CloseCode = CloseCode(1002);
    /// 1003: an unsupported kind of message, for example binary where text is expected.
    pub const UNSUPPORTED: CloseCode = CloseCode(1003);
    /// 1007: text that is not UTF-8.
    pub const INVALID_PAYLOAD: CloseCode = CloseCode(1007);
    /// 1008: a message that was understood but violates the rules.
    pub const POLICY: CloseCode = CloseCode(1008);
    /// 1009: a message that is too long.
    pub const TOO_BIG: CloseCode = CloseCode(1009);
    /// 1011: this side failed.
    pub const INTERNAL_ERROR: CloseCode = CloseCode(1011);
    /// 1012: this side is restarting; connect again.
    pub const SERVICE_RESTART: CloseCode = CloseCode(1012);
    /// 1013: overloaded; connect again later.
    pub const TRY_AGAIN_LATER: CloseCode = CloseCode(1013);

    /// The code with this number, if it may be sent.
    pub fn new(number: u16) -> Option<CloseCode> {
        matches!(number, 1000..=1003 | 1007..=1014 | 3000..=4999).then_some(CloseCode(number))
    }

    /// Its number.
    pub fn number(self) -> u16 {
        self.0
    }
}

/// Reads the payload of a close frame: nothing, or a code and a reason in UTF-8 (RFC 6455 section 5.5.1).
fn parse_close(payload: &[u8]) -> Result<Option<(CloseCode, &str)>, FrameError> {
    match payload {
        [] => Ok(None),
        [_] => Err(FrameError::CloseCutShort),
        [high, low, reason @ ..] => {
            let number = u16::from_be_bytes([*high, *low]);
            let code = CloseCode::new(number).ok_or(FrameError::CloseCode(number))?;
            let reason = std::str::from_utf8(reason).map_err(|_| FrameError::InvalidUtf8)?;
            Ok(Some((code, reason)))
        }
    }
}

/// The longest payload of a control frame (RFC 6455 section 5.5).
pub const CONTROL_PAYLOAD_BYTES_MAX: usize = 125;

/// The type of a frame (RFC 6455 section 5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// The next part of a message.
    Continuation = 0,
    /// UTF-8, or the first part of it.
    Text = 1,
    /// Bytes, or the first part of them.
    Binary = 2,
    /// The end of the connection.
    Close = 8,
    /// To be answered by a pong with the same payload.
    Ping = 9,
    /// The answer to a ping, or a sign of life.
    Pong = 10,
}

impl Opcode {
    pub(super) fn is_control(self) -> bool {
        self as u8 >= 8
    }

    fn from_bits(bits: u8) -> Option<Opcode> {
        Some(match bits {
            0 => Opcode::Continuation,
            1 => Opcode::Text,
            2 => Opcode::Binary,
            8 => Opcode::Close,
            9 => Opcode::Ping,
            10 => Opcode::Pong,
            _ => return None,
        })
    }
}

/// An incomplete head.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PartialHead {
    bytes: [u8; 14],
    len: u8,
}

/// A complete head.
#[derive(Debug, Clone, Copy)]
pub(super) struct WebSocketHead {
    pub(super) is_final: bool,
    pub(super) opcode: Opcode,
    pub(super) payload_bytes: u64,
    pub(super) mask: [u8; 4],
}

/// The state of a head after another byte.
pub(super) enum HeadProgress {
    /// More is to come.
    Partial,
    /// The length is known but not the mask: it can be refused before any payload.
    Length(u64),
    Whole(WebSocketHead),
}

impl PartialHead {
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The opcode, once the first byte has been accepted.
    pub(super) fn opcode(&self) -> Option<Opcode> {
        (self.len > 0).then(|| Opcode::from_bits(self.bytes[0] & 0x0f)).flatten()
    }

    /// Accepts the next byte. `is_in_message`: whether a fragmented message has begun and not ended.
    pub(super) fn push(&mut self, byte: u8, is_in_message: bool) -> Result<HeadProgress, FrameError> {
        self.bytes[usize::from(self.len)] = byte;
        self.len += 1;
        match self.len {
            1 => check_first(byte, is_in_message).map(|()| HeadProgress::Partial),
            2 => {
                check_second(self.bytes[0], byte)?;
                Ok(if self.length_bytes() == 0 {
                    HeadProgress::Length(u64::from(byte & 0x7f))
                } else {
                    HeadProgress::Partial
                })
            }
            len => {
                let length_end = 2 + self.length_bytes();
                let len = usize::from(len);
                if len == length_end {
                    return self.extended_length().map(HeadProgress::Length);
                }
                Ok(if len == length_end + 4 { HeadProgress::Whole(self.finish()?) } else { HeadProgress::Partial })
            }
        }
    }

    /// Bytes of length after the first two.
    fn length_bytes(&self) -> usize {
        match self.bytes[1] & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        }
    }

    /// The length that follows the first two bytes, in the fewest bytes that hold it.
    fn extended_length(&self) -> Result<u64, FrameError> {
        let read = |bytes: &[u8]| bytes.iter().fold(0, |value: u64, byte| value << 8 | u64::from(*byte));
        let (length, least) = match self.length_bytes() {
            2 => (read(&self.bytes[2..4]), 126),
            _ => (read(&self.bytes[2..10]), 1 << 16),
        };
        if length < least || length >> 63 != 0 {
            return Err(FrameError::Length);
        }
        Ok(length)
    }

    fn finish(&mut self) -> Result<WebSocketHead, FrameError> {
        let payload_bytes = match self.length_bytes() {
            0 => u64::from(self.bytes[1] & 0x7f),
            _ => self.extended_length()?,
        };
        let at = 2 + self.length_bytes();
        let opcode = self.opcode().ok_or(FrameError::Opcode(self.bytes[0] & 0x0f))?;
        let mask = [self.bytes[at], self.bytes[at + 1], self.bytes[at + 2], self.bytes[at + 3]];
        let head = WebSocketHead { is_final: self.bytes[0] & 0x80 != 0, opcode, payload_bytes, mask };
        self.len = 0;
        Ok(head)
    }
}

fn check_first(byte: u8, is_in_message: bool) -> Result<(), FrameError> {
    if byte & 0x70 != 0 {
        return Err(FrameError::ReservedBits);
    }
    let opcode = Opcode::from_bits(byte & 0x0f).ok_or(FrameError::Opcode(byte & 0x0f))?;
    match opcode {
        Opcode::Continuation if !is_in_message => Err(FrameError::ContinuationOfNothing),
        Opcode::Text | Opcode::Binary if is_in_message => Err(FrameError::MessageInMessage),
        _ if opcode.is_control() && byte & 0x80 == 0 => Err(FrameError::ControlFragmented),
        _ => Ok(()),
    }
}

fn check_second(first: u8, byte: u8) -> Result<(), FrameError> {
    if byte & 0x80 == 0 {
        return Err(FrameError::Unmasked);
    }
    let is_control = first & 0x08 != 0;
    if is_control && usize::from(byte & 0x7f) > CONTROL_PAYLOAD_BYTES_MAX {
        return Err(FrameError::ControlTooLong);
    }
    Ok(())
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

#[cfg(test)]
mod close_tests {
    use super::*;

    #[test]
    fn codes_that_may_be_sent() {
        let allowed: Vec<u16> = (0..=u16::MAX).filter(|number| CloseCode::new(*number).is_some()).collect();
        let expected: Vec<u16> = (1000..=1003).chain(1007..=1014).chain(3000..=4999).collect();
        assert_eq!(allowed, expected);
    }

    #[test]
    fn named_codes_may_be_sent() {
        for code in [
            CloseCode::NORMAL,
            CloseCode::GOING_AWAY,
            CloseCode::PROTOCOL_ERROR,
            CloseCode::UNSUPPORTED,
            CloseCode::INVALID_PAYLOAD,
            CloseCode::POLICY,
            CloseCode::TOO_BIG,
            CloseCode::INTERNAL_ERROR,
            CloseCode::SERVICE_RESTART,
            CloseCode::TRY_AGAIN_LATER,
        ] {
            assert_eq!(CloseCode::new(code.number()), Some(code));
        }
    }
}
