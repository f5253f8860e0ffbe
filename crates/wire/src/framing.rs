//! The end of a message's body (RFC 9112 section 6), decided once from the head and then followed byte by byte.

use crate::Version;
use crate::chunked::{ChunkDecoder, DecodedPart};
use crate::error::ChunkError;
use crate::head::{Field, Fields};
use crate::name::Name;

/// How a body is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Framing {
    /// The message has no body.
    #[default]
    None,
    /// Exactly this many bytes.
    Length(u64),
    /// Chunked coding.
    Chunked,
    /// Until the connection ends; responses only.
    UntilClose,
}

/// The values of the two framing fields of a head; requests and responses have the same rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeclaredFraming {
    Nothing,
    Length(u64),
    Chunked,
}

pub(crate) enum DeclaredError {
    LengthMalformed,
    LengthRepeated,
    CodingAndLength,
    CodingUnknown,
    CodingInHttp10,
}

/// Gathers the framing fields while a head's fields are walked.
#[derive(Default)]
pub(crate) struct Declaration {
    length: Option<Field>,
    coding: Option<Field>,
    lengths: u8,
    codings: u8,
}

impl Declaration {
    #[inline]
    pub(crate) fn see(&mut self, field: &Field) {
        match field.id {
            Name::ContentLength => {
                self.length = Some(*field);
                self.lengths = self.lengths.saturating_add(1);
            }
            Name::TransferEncoding => {
                self.coding = Some(*field);
                self.codings = self.codings.saturating_add(1);
            }
            _ => {}
        }
    }

    /// Repeated lengths are refused even if they agree, and codings even if `chunked` comes last: RFC 9112 section 6.3
    /// allows either, but the next party may read them differently.
    pub(crate) fn decide(&self, head: &[u8], version: Version) -> Result<DeclaredFraming, DeclaredError> {
        match (self.coding, self.length) {
            (None, None) => Ok(DeclaredFraming::Nothing),
            (Some(_), Some(_)) => Err(DeclaredError::CodingAndLength),
            (Some(_), None) if version == Version::Http10 => Err(DeclaredError::CodingInHttp10),
            (Some(coding), None) => {
                if self.codings == 1 && coding.value.of(head).eq_ignore_ascii_case(b"chunked") {
                    Ok(DeclaredFraming::Chunked)
                } else {
                    Err(DeclaredError::CodingUnknown)
                }
            }
            (None, Some(_)) if self.lengths > 1 => Err(DeclaredError::LengthRepeated),
            (None, Some(length)) => {
                parse_length(length.value.of(head)).map(DeclaredFraming::Length).ok_or(DeclaredError::LengthMalformed)
            }
        }
    }
}

/// `1*DIGIT` below 2^63: larger than any file, and the sum of two does not overflow.
fn parse_length(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    let mut value = 0u64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    (value <= i64::MAX as u64).then_some(value)
}

/// Follows a body to its end, whatever its framing.
#[derive(Debug)]
pub enum BodyDecoder {
    /// This many bytes are still to come; zero if the body is complete.
    Length(u64),
    /// The chunked coding. Boxed state would cost an allocation a request; inline it costs nothing when unused.
    Chunked(ChunkDecoder),
    /// All bytes until the connection ends.
    UntilClose,
}

impl Default for BodyDecoder {
    fn default() -> Self {
        BodyDecoder::Length(0)
    }
}

impl BodyDecoder {
    /// At the beginning of a body.
    pub fn new(framing: Framing) -> BodyDecoder {
        match framing {
            Framing::None => BodyDecoder::Length(0),
            Framing::Length(bytes) => BodyDecoder::Length(bytes),
            Framing::Chunked => BodyDecoder::Chunked(ChunkDecoder::default()),
            Framing::UntilClose => BodyDecoder::UntilClose,
        }
    }

    /// Like [`BodyDecoder::new`], for a request's body, with [`crate::RequestHead::drops_underscores`] for its trailers.
    pub fn of_request(framing: Framing, drops_underscores: bool) -> BodyDecoder {
        match framing {
            Framing::Chunked => BodyDecoder::Chunked(ChunkDecoder::of_request(drops_underscores)),
            _ => BodyDecoder::new(framing),
        }
    }

    /// Decodes the body's bytes in `buffer`: the content is then in `buffer[..data]`, and everything from `consumed` on
    /// is untouched. Takes as much as possible: afterwards either all is consumed or the body is done.
    pub fn decode(&mut self, buffer: &mut [u8]) -> Result<DecodedPart, ChunkError> {
        match self {
            BodyDecoder::Length(left) => {
                let take = buffer.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= take as u64;
                Ok(DecodedPart { consumed: take, data: take })
            }
            BodyDecoder::Chunked(decoder) => decoder.decode(buffer),
            BodyDecoder::UntilClose => Ok(DecodedPart { consumed: buffer.len(), data: buffer.len() }),
        }
    }

    /// How many bytes of content come next, before any framing and before the end: those that are in the buffer may be
    /// used as they are.
    #[inline]
    pub fn content_left(&self) -> u64 {
        match self {
            BodyDecoder::Length(left) => *left,
            BodyDecoder::Chunked(decoder) => decoder.content_left(),
            BodyDecoder::UntilClose => u64::MAX,
        }
    }

    /// Whether the body's last byte was seen. Never true for a body that ends with the connection.
    #[inline]
    pub fn is_done(&self) -> bool {
        match self {
            BodyDecoder::Length(left) => *left == 0,
            BodyDecoder::Chunked(decoder) => decoder.is_done(),
            BodyDecoder::UntilClose => false,
        }
    }

    /// The number of trailer fields that were dropped for a `_` in their names.
    #[inline]
    pub fn dropped(&self) -> usize {
        match self {
            BodyDecoder::Chunked(decoder) => decoder.dropped(),
            _ => 0,
        }
    }

    /// The trailer fields that may be forwarded, as complete lines; empty unless the body is done and had some.
    pub fn trailers(&self) -> &[u8] {
        match self {
            BodyDecoder::Chunked(decoder) => decoder.trailers(),
            _ => &[],
        }
    }
}

/// Parses the tokens of all `Connection` fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ConnectionTokens {
    pub(crate) close: bool,
    pub(crate) keep_alive: bool,
    pub(crate) upgrade: bool,
    /// The number of other options.
    pub(crate) others: usize,
}

impl ConnectionTokens {
    #[inline]
    pub(crate) fn see(&mut self, value: &[u8]) {
        // The usual spellings.
        match value {
            b"keep-alive" => self.keep_alive = true,
            b"close" => self.close = true,
            _ => self.see_each(value),
        }
    }

    fn see_each(&mut self, value: &[u8]) {
        for token in tokens(value) {
            if token.eq_ignore_ascii_case(b"close") {
                self.close = true;
            } else if token.eq_ignore_ascii_case(b"keep-alive") {
                self.keep_alive = true;
            } else if token.eq_ignore_ascii_case(b"upgrade") {
                self.upgrade = true;
            } else {
                self.others += 1;
            }
        }
    }
}

/// The elements of a comma-separated list, without white space and empty ones.
pub(crate) fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|b| *b == b',').map(<[u8]>::trim_ascii).filter(|token| !token.is_empty())
}

/// Whether some `Connection` field of this head names `name`.
pub(crate) fn named_by_connection(fields: &Fields, head: &[u8], name: &[u8]) -> bool {
    fields
        .iter()
        .filter(|f| f.id == Name::Connection)
        .any(|f| tokens(f.value.of(head)).any(|token| token.eq_ignore_ascii_case(name)))
}
