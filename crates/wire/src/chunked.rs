//! The chunked transfer coding (RFC 9112 section 7.1), decoded in place.
//!
//! Content is moved to the front of the buffer and the framing dropped, with extensions: the body is framed again
//! when it is sent, so readers behind us cannot see other chunk borders than we did. Stricter than the grammar where
//! the grammar invites trouble: no white space around a chunk size, no bare LF anywhere.

use crate::error::ChunkError;
use crate::name::{Name, is_lookalike};

/// The part of the buffer that one call consumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodedPart {
    /// Bytes of the buffer that belonged to the body.
    pub consumed: usize,
    /// Bytes of content, now at the buffer's front.
    pub data: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum ChunkState {
    /// In a size; `digits` of it were read.
    #[default]
    Size,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// In the trailer section, which begins at the start of a line.
    Trailer,
    Done,
}

/// Decodes one chunked body, in any number of pieces.
#[derive(Debug, Default)]
pub struct ChunkDecoder {
    state: ChunkState,
    /// Content bytes of the current chunk still to come; while in [`ChunkState::Size`], the size read so far.
    left: u64,
    digits: u8,
    /// Bytes of the current chunk line.
    line: u16,
    /// The trailer section as it comes, then only its lines that may be forwarded. Unallocated without trailers.
    trailer: Vec<u8>,
    /// Trailer fields with a `_` in their names are left out, as header fields are.
    drops_underscores: bool,
    dropped: u16,
}

/// More hexadecimal digits overflow, or are an attempt to.
const SIZE_DIGITS_MAX: u8 = 15;

impl ChunkDecoder {
    /// See [`crate::BodyDecoder::of_request`].
    pub(crate) fn of_request(drops_underscores: bool) -> ChunkDecoder {
        ChunkDecoder { drops_underscores, ..ChunkDecoder::default() }
    }

    /// See [`crate::BodyDecoder::dropped`].
    pub(crate) fn dropped(&self) -> usize {
        usize::from(self.dropped)
    }

    /// Whether the last chunk and the trailer section were seen.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.state == ChunkState::Done
    }

    /// See [`crate::BodyDecoder::content_left`].
    pub(crate) fn content_left(&self) -> u64 {
        if self.state == ChunkState::Data { self.left } else { 0 }
    }

    /// Complete lines of forwardable trailer fields; empty until done.
    pub fn trailers(&self) -> &[u8] {
        if self.is_done() { &self.trailer } else { &[] }
    }

    /// See [`crate::BodyDecoder::decode`].
    pub fn decode(&mut self, buffer: &mut [u8]) -> Result<DecodedPart, ChunkError> {
        let mut read = 0;
        let mut data = 0;
        while read < buffer.len() && self.state != ChunkState::Done {
            match self.state {
                ChunkState::Data => {
                    let take = (buffer.len() - read).min(usize::try_from(self.left).unwrap_or(usize::MAX));
                    if data != read {
                        buffer.copy_within(read..read + take, data);
                    }
                    data += take;
                    read += take;
                    self.left -= take as u64;
                    if self.left == 0 {
                        self.state = ChunkState::DataCr;
                    }
                }
                ChunkState::Trailer => read += self.trailer(&buffer[read..])?,
                _ => {
                    self.framing_byte(buffer[read])?;
                    read += 1;
                }
            }
        }
        Ok(DecodedPart { consumed: read, data })
    }

    fn framing_byte(&mut self, byte: u8) -> Result<(), ChunkError> {
        match self.state {
            ChunkState::Size => return self.size_byte(byte),
            ChunkState::Extension => {
                self.count_line_byte()?;
                match byte {
                    b'\r' => self.state = ChunkState::SizeLf,
                    b'\n' => return Err(ChunkError::LineEnd),
                    b'\t' | b' '..=0x7e | 0x80.. => {}
                    _ => return Err(ChunkError::ExtensionMalformed),
                }
            }
            ChunkState::SizeLf => {
                self.count_line_byte()?;
                if byte != b'\n' {
                    return Err(ChunkError::LineEnd);
                }
                self.line = 0;
                self.digits = 0;
                self.state = if self.left == 0 { ChunkState::Trailer } else { ChunkState::Data };
            }
            ChunkState::DataCr if byte == b'\r' => self.state = ChunkState::DataLf,
            ChunkState::DataLf if byte == b'\n' => self.state = ChunkState::Size,
            _ => return Err(ChunkError::LineEnd),
        }
        Ok(())
    }

    fn size_byte(&mut self, byte: u8) -> Result<(), ChunkError> {
        self.count_line_byte()?;
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ if self.digits == 0 => return Err(ChunkError::SizeMalformed),
            b'\r' => {
                self.state = ChunkState::SizeLf;
                return Ok(());
            }
            b';' => {
                self.state = ChunkState::Extension;
                return Ok(());
            }
            b'\n' => return Err(ChunkError::LineEnd),
            _ => return Err(ChunkError::SizeMalformed),
        };
        if self.digits == SIZE_DIGITS_MAX {
            return Err(ChunkError::SizeTooLarge);
        }
        self.digits += 1;
        self.left = self.left * 16 + u64::from(digit);
        Ok(())
    }

    fn count_line_byte(&mut self) -> Result<(), ChunkError> {
        self.line += 1;
        if usize::from(self.line) > CHUNK_LINE_BYTES_MAX { Err(ChunkError::LineTooLong) } else { Ok(()) }
    }

    /// Takes trailer bytes up to the end of a line; the empty line ends the body.
    fn trailer(&mut self, bytes: &[u8]) -> Result<usize, ChunkError> {
        let take = memchr::memchr(b'\n', bytes).map_or(bytes.len(), |at| at + 1);
        if self.trailer.len() + take > TRAILER_BYTES_MAX {
            return Err(ChunkError::TrailerTooLarge);
        }
        // The usual end without trailers, whole in one buffer: nothing to keep.
        if self.trailer.is_empty() && bytes.starts_with(b"\r\n") {
            self.state = ChunkState::Done;
            return Ok(2);
        }
        self.trailer.extend_from_slice(&bytes[..take]);
        if !self.trailer.ends_with(b"\n") {
            return Ok(take);
        }
        if !self.trailer.ends_with(b"\r\n") {
            return Err(ChunkError::LineEnd);
        }
        if self.trailer == b"\r\n" || self.trailer.ends_with(b"\r\n\r\n") {
            (self.trailer, self.dropped) = forwardable(&self.trailer, self.drops_underscores)?;
            self.state = ChunkState::Done;
        }
        Ok(take)
    }
}

/// The lines of a trailer section that may be forwarded: not those that frame, route or authenticate (RFC 9110
/// section 6.5.1). And how many were dropped for a `_` in their names.
fn forwardable(section: &[u8], drops_underscores: bool) -> Result<(Vec<u8>, u16), ChunkError> {
    let mut slots = [httparse::EMPTY_HEADER; crate::HEADERS_MAX];
    let Ok(httparse::Status::Complete((_, fields))) = httparse::parse_headers(section, &mut slots) else {
        return Err(ChunkError::TrailerMalformed);
    };
    let (mut lines, mut dropped) = (Vec::new(), 0);
    for field in fields {
        if drops_underscores && field.name.contains('_') {
            dropped += 1;
            continue;
        }
        if is_forbidden_trailer(field.name.as_bytes()) {
            continue;
        }
        lines.extend_from_slice(field.name.as_bytes());
        lines.extend_from_slice(b": ");
        lines.extend_from_slice(field.value);
        lines.extend_from_slice(b"\r\n");
    }
    Ok((lines, dropped))
}

/// Also forbids names that some servers cannot distinguish from a forbidden one.
pub(crate) fn is_forbidden_trailer(name: &[u8]) -> bool {
    const ALSO: [&[u8]; 9] = [
        b"authorization",
        b"proxy-authorization",
        b"cookie",
        b"set-cookie",
        b"content-encoding",
        b"content-type",
        b"content-range",
        b"cache-control",
        b"max-forwards",
    ];
    Name::classify(name) != Name::Other
        || ALSO.iter().any(|other| name.eq_ignore_ascii_case(other) || is_lookalike(name, other))
}

// The bounds of one message.

/// Most bytes of a head, independent of the configuration: spans are 16 bits, and a head shares its 64 KiB buffer with
/// the beginning of its body.
pub const HEAD_BYTES_MAX: usize = 32 * 1024;
/// Most header fields of a head: the capacity of the removal set of [`crate::Edits`].
pub const HEADERS_MAX: usize = 100;
/// Most header fields of a head that was edited: those of a full one, and those that we add.
pub const EDITED_HEADERS_MAX: usize = 128;
/// Most options that the `Connection` fields of a head may name, besides `close` and `keep-alive`: each is compared
/// with every field.
pub const CONNECTION_OPTIONS_MAX: usize = 32;
/// Most bytes of a chunk's size line, extensions and CRLF included.
pub const CHUNK_LINE_BYTES_MAX: usize = 1024;
/// Most bytes of a trailer section.
pub const TRAILER_BYTES_MAX: usize = 8 * 1024;

const _: () = assert!(HEADERS_MAX <= EDITED_HEADERS_MAX);

/// The configurable bounds of one head. Each is at most its constant above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadLimits {
    /// Bytes up to and including the empty line.
    pub head_bytes_max: usize,
    /// Bytes of the request target; unused for responses.
    pub target_bytes_max: usize,
    /// Header fields.
    pub headers_max: usize,
}

impl HeadLimits {
    /// The limits of a head that was within its limits before our edits.
    pub const EDITED: HeadLimits = HeadLimits {
        head_bytes_max: u16::MAX as usize,
        target_bytes_max: u16::MAX as usize,
        headers_max: EDITED_HEADERS_MAX,
    };
}

impl Default for HeadLimits {
    fn default() -> Self {
        HeadLimits { head_bytes_max: 16 * 1024, target_bytes_max: 8 * 1024, headers_max: HEADERS_MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Content, remaining bytes, trailers, and whether it is done.
    type Run = (Vec<u8>, Vec<u8>, Vec<u8>, bool);

    /// Decodes in pieces of `step` bytes.
    fn run(input: &[u8], step: usize) -> Result<Run, ChunkError> {
        run_with(&mut ChunkDecoder::default(), input, step)
    }

    fn run_with(decoder: &mut ChunkDecoder, input: &[u8], step: usize) -> Result<Run, ChunkError> {
        let mut content = Vec::new();
        let mut rest = input;
        while !rest.is_empty() && !decoder.is_done() {
            let mut piece = rest[..step.min(rest.len())].to_vec();
            let got = decoder.decode(&mut piece)?;
            content.extend_from_slice(&piece[..got.data]);
            rest = &rest[got.consumed..];
        }
        Ok((content, rest.to_vec(), decoder.trailers().to_vec(), decoder.is_done()))
    }

    fn check(input: &str, content: &str, rest: &str, trailers: &str) {
        for step in [1, 2, 3, 7, 4096] {
            let got = run(input.as_bytes(), step).expect(input);
            assert_eq!(got, (content.into(), rest.into(), trailers.into(), true), "{input:?} by {step}");
        }
    }

    #[test]
    fn decodes() {
        check("0\r\n\r\n", "", "", "");
        check("3\r\nabc\r\n0\r\n\r\nGET", "abc", "GET", "");
        check("00A;x=y;q=\"z\"\r\n0123456789\r\n1\r\n!\r\n000\r\n\r\n", "0123456789!", "", "");
        check("1\r\na\r\n0\r\nX-Sum: 1\r\nContent-Length: 9\r\nCookie: a\r\n\r\nz", "a", "z", "X-Sum: 1\r\n");
    }

    #[test]
    fn trailers_with_underscores_are_dropped_where_header_fields_are() {
        let fields = "X_User: root\r\nX-Sum: a_b\r\n_: 1\r\nX.User: 2\r\n";
        let never = "Proxy_Authorization: a\r\nSet.Cookie: b\r\ncontent_length: 9\r\nX_Real_IP: c\r\n";
        let input = format!("1\r\na\r\n0\r\n{fields}{never}\r\n");
        for (drops, expected, dropped) in [(true, "X-Sum: a_b\r\nX.User: 2\r\n", 5), (false, fields, 0)] {
            for step in [1, 2, 7, 4096] {
                let mut decoder = ChunkDecoder::of_request(drops);
                let got = run_with(&mut decoder, input.as_bytes(), step).unwrap();
                assert_eq!(got, (b"a".into(), Vec::new(), expected.into(), true), "by {step}");
                assert_eq!(decoder.dropped(), dropped);
            }
        }
    }

    #[test]
    fn tells_how_much_content_comes_next() {
        let mut decoder = ChunkDecoder::default();
        let mut lefts = Vec::new();
        for byte in b"2\r\nab\r\n0\r\n\r\n" {
            decoder.decode(&mut [*byte]).unwrap();
            lefts.push(decoder.content_left());
        }
        assert_eq!(lefts, [0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn refuses() {
        let long_line = format!("1;{}\r\na\r\n0\r\n\r\n", "x".repeat(CHUNK_LINE_BYTES_MAX));
        let long_trailer = format!("0\r\nA: {}\r\n\r\n", "x".repeat(TRAILER_BYTES_MAX));
        for (input, error) in [
            ("\r\n", ChunkError::SizeMalformed),
            (";x\r\n", ChunkError::SizeMalformed),
            ("-1\r\n", ChunkError::SizeMalformed),
            ("+1\r\n", ChunkError::SizeMalformed),
            ("0x1\r\n", ChunkError::SizeMalformed),
            (" 1\r\na", ChunkError::SizeMalformed),
            ("1 \r\na", ChunkError::SizeMalformed),
            ("g\r\n", ChunkError::SizeMalformed),
            ("1\na\r\n", ChunkError::LineEnd),
            ("1\rxa\r\n", ChunkError::LineEnd),
            ("1;a\n", ChunkError::LineEnd),
            ("1;a\0\r\n", ChunkError::ExtensionMalformed),
            ("1\r\nab\r\n", ChunkError::LineEnd),
            ("1\r\na\n0\r\n\r\n", ChunkError::LineEnd),
            ("10000000000000000\r\n", ChunkError::SizeTooLarge),
            ("0000000000000000\r\n", ChunkError::SizeTooLarge),
            ("0\r\nA: b\n\r\n", ChunkError::LineEnd),
            ("0\r\nA : b\r\n\r\n", ChunkError::TrailerMalformed),
            ("0\r\n b\r\n\r\n", ChunkError::TrailerMalformed),
            ("0\r\n\n", ChunkError::LineEnd),
            (&long_line, ChunkError::LineTooLong),
            (&long_trailer, ChunkError::TrailerTooLarge),
        ] {
            for step in [1, 5, 65536] {
                assert_eq!(run(input.as_bytes(), step), Err(error), "{:.40} by {step}", input);
            }
        }
    }
}
