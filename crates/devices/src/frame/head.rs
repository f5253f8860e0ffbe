//! The head of a frame (RFC 6455 section 5.2), byte by byte: an error is reported at the byte that causes it.
//!
//! ```text
//!  0        1        2 …            4 … or 10 …    4 more
//! ┌────────┬────────┬──────────────┬─────────────┬──────┐
//! │FRRR oop│M length│ 16-bit length│ or 64-bit   │ mask │
//! └────────┴────────┴──────────────┴─────────────┴──────┘
//! ```

use super::reader::FrameError;

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
