//! Reads the frames of a client: in any pieces, they become whole messages and control frames (RFC 6455 section 5).

use super::{CloseCode, HeadProgress, Opcode, PartialHead, WebSocketHead, parse_close};
use std::borrow::Cow;
use std::fmt;

/// A whole message or control frame of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FrameEvent<'a> {
    /// A message of text. Its bytes are valid UTF-8.
    Text(Cow<'a, [u8]>),
    /// A message of bytes.
    Binary(Cow<'a, [u8]>),
    /// To be answered by a pong with this payload.
    Ping(Cow<'a, [u8]>),
    /// The answer to a ping, or a sign of life.
    Pong(Cow<'a, [u8]>),
    /// The client closes, optionally with a code and a reason. Answer with a close frame; nothing comes after it.
    Close(Option<(CloseCode, String)>),
}

/// The reason why a client's bytes are not an acceptable sequence of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// A reserved bit without an extension that would use it (section 5.2).
    ReservedBits,
    /// An undefined opcode (section 5.2).
    Opcode(u8),
    /// A client's frame without a mask (section 5.1).
    Unmasked,
    /// A control frame that is not its message's last (section 5.4).
    ControlFragmented,
    /// A control frame of more than 125 bytes (section 5.5).
    ControlTooLong,
    /// A length in more bytes than it needs, or with its highest bit set (section 5.2).
    Length,
    /// A continuation with nothing to continue (section 5.4).
    ContinuationOfNothing,
    /// A new message before the end of the one before (section 5.4).
    MessageInMessage,
    /// A close frame of one byte (section 5.5.1).
    CloseCutShort,
    /// A close frame with a code that may not be sent (section 7.4).
    CloseCode(u16),
    /// Text or a reason that is not UTF-8 (section 8.1).
    InvalidUtf8,
    /// A message longer than this many bytes.
    TooBig(u32),
}

impl FrameError {
    /// The code to close the connection with.
    pub fn close_code(self) -> CloseCode {
        match self {
            FrameError::InvalidUtf8 => CloseCode::INVALID_PAYLOAD,
            FrameError::TooBig(_) => CloseCode::TOO_BIG,
            _ => CloseCode::PROTOCOL_ERROR,
        }
    }
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::ReservedBits => f.write_str("a reserved bit is set; no extension is supported here"),
            FrameError::Opcode(bits) => write!(f, "opcode {bits} is not defined"),
            FrameError::Unmasked => f.write_str("a frame of a client must be masked"),
            FrameError::ControlFragmented => f.write_str("a control frame must be whole; set its final bit"),
            FrameError::ControlTooLong => f.write_str("a control frame holds at most 125 bytes"),
            FrameError::Length => f.write_str("a length must be written in the fewest bytes that hold it"),
            FrameError::ContinuationOfNothing => f.write_str("a continuation without a message to continue"),
            FrameError::MessageInMessage => f.write_str("a new message began before the last one had ended"),
            FrameError::CloseCutShort => {
                f.write_str("a close frame holds nothing, or a code of two bytes and a reason")
            }
            FrameError::CloseCode(number) => write!(f, "{number} may not be sent as a close code"),
            FrameError::InvalidUtf8 => f.write_str("text must be UTF-8; send other bytes as binary"),
            FrameError::TooBig(bytes_max) => write!(f, "a message holds at most {bytes_max} bytes"),
        }
    }
}

impl std::error::Error for FrameError {}

/// The frame whose payload is being read.
#[derive(Debug, Clone, Copy)]
struct PayloadFrame {
    opcode: Opcode,
    is_final: bool,
    /// Rotated so that its first byte is for the next byte of payload.
    mask: [u8; 4],
    left_bytes: u32,
}

/// Incomplete data that is kept between reads.
#[derive(Debug, Default)]
struct PartialPayload {
    message: Vec<u8>,
    control: Vec<u8>,
}

/// Reads one connection's frames, as a server.
///
/// Idle, that is between messages, it owns nothing outside its own few bytes.
#[derive(Debug)]
pub struct FrameReader {
    head: PartialHead,
    frame: Option<PayloadFrame>,
    /// The opcode of an incomplete message, [`Opcode::Text`] or [`Opcode::Binary`].
    message: Option<Opcode>,
    utf8: Utf8,
    message_bytes_max: u32,
    /// After a close frame or an error.
    is_over: bool,
    gathered: Option<Box<PartialPayload>>,
}

impl FrameReader {
    /// A reader at the beginning of a connection, for messages of at most this many bytes.
    pub fn new(message_bytes_max: u32) -> FrameReader {
        FrameReader {
            head: PartialHead::default(),
            frame: None,
            message: None,
            utf8: Utf8::default(),
            message_bytes_max,
            is_over: false,
            gathered: None,
        }
    }

    /// Whether no frame or message is incomplete: the connection may be handed to another process without a reader's
    /// state.
    pub fn is_idle(&self) -> bool {
        self.head.is_empty() && self.frame.is_none() && self.message.is_none() && !self.is_over
    }

    /// Whether a message or frame has begun and is not whole yet.
    pub fn is_partial(&self) -> bool {
        !self.is_over && !self.is_idle()
    }

    /// Bytes of incomplete messages that are kept.
    pub fn kept_bytes(&self) -> usize {
        self.gathered.as_ref().map_or(0, |gathered| gathered.message.len() + gathered.control.len())
    }

    /// Takes bytes from the front of `input` until something is whole: how many, and what. Without an event all of `input`
    /// was taken. Payloads are unmasked in place. After a close frame or an error everything is taken and ignored (section
    /// 1.4 and 7.1.7).
    pub fn next<'a>(&mut self, input: &'a mut [u8]) -> Result<(usize, Option<FrameEvent<'a>>), FrameError> {
        let result = self.read(input);
        if result.is_err() {
            self.is_over = true;
            self.gathered = None;
        }
        result
    }

    fn read<'a>(&mut self, input: &'a mut [u8]) -> Result<(usize, Option<FrameEvent<'a>>), FrameError> {
        let mut at = 0;
        while at < input.len() && !self.is_over {
            if self.frame.is_none() {
                self.read_head(input[at])?;
                at += 1;
            }
            let Some(frame) = &mut self.frame else { continue };
            let taken = (input.len() - at).min(frame.left_bytes as usize);
            let payload = at..at + taken;
            at += taken;
            frame.left_bytes -= taken as u32;
            unmask(&mut input[payload.clone()], &mut frame.mask);
            let frame = *frame;
            self.check_text(frame, &input[payload.clone()])?;
            if frame.left_bytes > 0 || (!frame.is_final && !frame.opcode.is_control()) {
                self.gather(frame, &input[payload]);
                continue;
            }
            self.frame = None;
            return Ok((at, Some(self.finish(frame, &input[payload])?)));
        }
        Ok((input.len(), None))
    }

    /// Takes a byte of a head, and begins its frame if it is the last.
    fn read_head(&mut self, byte: u8) -> Result<(), FrameError> {
        match self.head.push(byte, self.message.is_some())? {
            HeadProgress::Partial => {}
            HeadProgress::Length(payload_bytes) => self.check_length(payload_bytes)?,
            HeadProgress::Whole(WebSocketHead { is_final, opcode, payload_bytes, mask }) => {
                if matches!(opcode, Opcode::Text | Opcode::Binary) {
                    self.message = Some(opcode);
                }
                self.frame = Some(PayloadFrame { opcode, is_final, mask, left_bytes: payload_bytes as u32 });
            }
        }
        Ok(())
    }

    /// Refuses a message that would be too long before a byte of it is kept.
    fn check_length(&self, payload_bytes: u64) -> Result<(), FrameError> {
        let is_control = self.head.opcode().is_some_and(Opcode::is_control);
        let before = self.gathered.as_ref().map_or(0, |gathered| gathered.message.len() as u64);
        if !is_control && payload_bytes > u64::from(self.message_bytes_max).saturating_sub(before) {
            return Err(FrameError::TooBig(self.message_bytes_max));
        }
        Ok(())
    }

    fn check_text(&mut self, frame: PayloadFrame, payload: &[u8]) -> Result<(), FrameError> {
        if frame.opcode.is_control() || self.message != Some(Opcode::Text) {
            return Ok(());
        }
        let is_end = frame.is_final && frame.left_bytes == 0;
        if self.utf8.check(payload).is_err() || (is_end && !self.utf8.is_complete()) {
            return Err(FrameError::InvalidUtf8);
        }
        Ok(())
    }

    /// Keeps a part of a message or control frame.
    fn gather(&mut self, frame: PayloadFrame, payload: &[u8]) {
        if frame.left_bytes == 0 {
            self.frame = None;
        }
        if payload.is_empty() {
            return;
        }
        let gathered = self.gathered.get_or_insert_default();
        let whole = if frame.opcode.is_control() { &mut gathered.control } else { &mut gathered.message };
        whole.extend_from_slice(payload);
    }

    /// The event that the end of a frame completes; `payload` is its last part.
    fn finish<'a>(&mut self, frame: PayloadFrame, payload: &'a [u8]) -> Result<FrameEvent<'a>, FrameError> {
        let is_control = frame.opcode.is_control();
        let before = match &mut self.gathered {
            Some(gathered) if is_control => std::mem::take(&mut gathered.control),
            Some(gathered) => std::mem::take(&mut gathered.message),
            None => Vec::new(),
        };
        if self.gathered.as_ref().is_some_and(|gathered| gathered.message.is_empty() && gathered.control.is_empty()) {
            self.gathered = None;
        }
        let whole = if before.is_empty() {
            Cow::Borrowed(payload)
        } else {
            let mut whole = before;
            whole.extend_from_slice(payload);
            Cow::Owned(whole)
        };
        Ok(match frame.opcode {
            Opcode::Ping => FrameEvent::Ping(whole),
            Opcode::Pong => FrameEvent::Pong(whole),
            Opcode::Close => {
                let said = parse_close(&whole)?;
                self.is_over = true;
                self.gathered = None;
                FrameEvent::Close(said.map(|(code, reason)| (code, reason.to_owned())))
            }
            Opcode::Text | Opcode::Binary | Opcode::Continuation => match self.message.take() {
                Some(Opcode::Text) => FrameEvent::Text(whole),
                _ => FrameEvent::Binary(whole),
            },
        })
    }
}

/// Unmasks a piece (section 5.3), and rotates the mask to where the next piece begins.
fn unmask(payload: &mut [u8], mask: &mut [u8; 4]) {
    let doubled = u64::from_ne_bytes([mask[0], mask[1], mask[2], mask[3], mask[0], mask[1], mask[2], mask[3]]);
    let (words, rest) = payload.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ doubled).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
    mask.rotate_left(rest.len() % 4);
}

// Incremental check of UTF-8: the first byte that no valid text could have there is an error, however the text is
// split.

/// The state between two pieces: the beginning of a character, three bytes at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Utf8 {
    begun: [u8; 4],
    len: u8,
}

/// Bytes that are not UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InvalidUtf8;

impl Utf8 {
    /// Whether the text may end here.
    pub(super) fn is_complete(self) -> bool {
        self.len == 0
    }

    /// Checks the next piece.
    pub(super) fn check(&mut self, mut piece: &[u8]) -> Result<(), InvalidUtf8> {
        while self.len > 0 {
            let Some((first, rest)) = piece.split_first() else { return Ok(()) };
            piece = rest;
            self.begun[usize::from(self.len)] = *first;
            self.len += 1;
            match std::str::from_utf8(&self.begun[..usize::from(self.len)]) {
                Ok(_) => self.len = 0,
                Err(error) if error.error_len().is_some() => return Err(InvalidUtf8),
                Err(_) => {}
            }
        }
        let Err(error) = std::str::from_utf8(piece) else { return Ok(()) };
        if error.error_len().is_some() {
            return Err(InvalidUtf8);
        }
        let begun = &piece[error.valid_up_to()..];
        self.begun[..begun.len()].copy_from_slice(begun);
        self.len = begun.len() as u8;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_is_a_few_bytes() {
        assert!(size_of::<FrameReader>() <= 56, "{}", size_of::<FrameReader>());
    }

    #[test]
    fn an_idle_reader_owns_no_buffer() {
        let mut reader = FrameReader::new(1000);
        // "He" and "llo" in two frames, the second one split over two reads.
        let mut first = *b"\x01\x82\0\0\0\0He\x80\x83\0\0\0\0l";
        assert_eq!(reader.next(&mut first).unwrap(), (15, None));
        assert!(reader.gathered.is_some() && !reader.is_idle());
        let mut second = *b"lo";
        assert_eq!(reader.next(&mut second).unwrap(), (2, Some(FrameEvent::Text(Cow::Borrowed(b"Hello")))));
        assert!(reader.gathered.is_none() && reader.is_idle());
    }

    #[test]
    fn a_length_alone_allocates_nothing() {
        let mut reader = FrameReader::new(u32::MAX);
        let mut head = *b"\x82\xff\0\0\0\0\x7f\xff\xff\xff\0\0\0\0";
        assert_eq!(reader.next(&mut head).unwrap(), (14, None));
        assert!(reader.gathered.is_none());
    }
}

#[cfg(test)]
mod utf8_tests {
    use super::*;
    use proptest::prelude::*;

    /// The index of the first byte that is refused, fed in pieces of these lengths.
    fn refused_at(bytes: &[u8], step: usize) -> Option<usize> {
        let mut utf8 = Utf8::default();
        bytes.chunks(step).enumerate().find_map(|(index, piece)| utf8.check(piece).err().map(|InvalidUtf8| index))
    }

    #[test]
    fn the_first_impossible_byte_is_refused() {
        for (bytes, at) in [
            (&b"\xce\xba\xe1\xbd\xb9\xed\xa0\x80"[..], Some(6)),
            (b"\xf4\x90\x80\x80", Some(1)),
            (b"\xc0\x80", Some(0)),
            (b"\xe2\x82\xac", None),
            (b"\xf0\x9f\x98\x80", None),
            (b"a\x80", Some(1)),
            (b"\xf0\x9f\x98a", Some(3)),
        ] {
            assert_eq!(refused_at(bytes, 1), at, "{bytes:x?}");
        }
    }

    proptest! {
        #[test]
        fn splits_do_not_matter(mut bytes in prop::collection::vec(any::<u8>(), 0..8), text in ".{0,6}", step in 1usize..9) {
            bytes.splice(0..0, text.bytes());
            let valid = std::str::from_utf8(&bytes).is_ok();
            let mut utf8 = Utf8::default();
            let checked = bytes.chunks(step).all(|piece| utf8.check(piece).is_ok());
            prop_assert_eq!(checked && utf8.is_complete(), valid);
        }
    }
}
