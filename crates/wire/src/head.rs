//! Shared by request and response heads: incremental arrival, line ends, field lists.

use crate::fields::{Field, Fields, Span};
use crate::framing::{ConnectionTokens, Declaration, named_by_connection};
use crate::name::{Name, looks_like_framing};
use crate::{CONNECTION_OPTIONS_MAX, EDITED_HEADERS_MAX, FieldSet, RequestError};
use std::mem::MaybeUninit;

/// Whether a head is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// More bytes are needed.
    Partial,
    /// The head has this many bytes, the empty line included.
    Complete(usize),
}

/// The number of bytes of empty lines before a request line; they are skipped (RFC 9112 section 2.2). A lone CR or LF
/// there is an error.
pub fn leading_empty_lines(bytes: &[u8]) -> Result<usize, RequestError> {
    let mut skip = 0;
    loop {
        match bytes[skip..] {
            [b'\r', b'\n', ..] => skip += 2,
            [b'\r'] => return Ok(skip),
            [b'\r', ..] | [b'\n', ..] => return Err(RequestError::LineEnd),
            _ => return Ok(skip),
        }
    }
}

pub(crate) type HeaderSlots<'b> = [MaybeUninit<httparse::Header<'b>>; EDITED_HEADERS_MAX];

pub(crate) fn header_slots<'b>() -> HeaderSlots<'b> {
    [const { MaybeUninit::uninit() }; EDITED_HEADERS_MAX]
}

/// Decides when it is worth parsing again, so that a head arriving byte by byte costs the length of its lines and not
/// the square of its length.
///
/// Only whole lines are handed to the parser (and the request line while it is the only one): the verdict is then a
/// function of the lines, not of how they were split.
#[derive(Debug, Default)]
pub(crate) struct Arrival {
    /// Bytes already searched for line ends.
    seen: usize,
    /// The end of the last whole line found.
    lines_end: usize,
}

impl Arrival {
    /// The prefix of `bytes` to parse now, or `None` if nothing changed since the last time.
    pub(crate) fn prefix<'b>(&mut self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        let fresh = &bytes[self.seen..];
        let line = memchr::memrchr(b'\n', fresh).map(|at| self.seen + at + 1);
        self.seen = bytes.len();
        match line {
            Some(end) => {
                self.lines_end = end;
                Some(&bytes[..end])
            }
            None if self.lines_end == 0 => Some(bytes),
            None => None,
        }
    }

    pub(crate) fn reset(&mut self) {
        *self = Arrival::default();
    }
}

/// The results of one walk over a head's fields.
#[derive(Default)]
pub(crate) struct Walk {
    pub(crate) declaration: Declaration,
    pub(crate) connection: ConnectionTokens,
    pub(crate) hop_by_hop: FieldSet,
}

pub(crate) enum WalkError {
    LineEnd,
    FramingLookalike,
    ConnectionOptions,
}

/// Fills `fields` from the parser's headers, checking that each line ends in CRLF: `httparse` also takes a bare LF.
/// `each` sees every field. With `drops_underscores`, names with a `_` are left out.
pub(crate) fn walk(
    fields: &mut Fields,
    head: &[u8],
    headers: &[httparse::Header<'_>],
    drops_underscores: bool,
    mut each: impl FnMut(&Field),
) -> Result<Walk, WalkError> {
    let mut walk = Walk::default();
    fields.clear();
    // One search for all names: most heads have none in their values either.
    let drops_underscores = drops_underscores && memchr::memchr(b'_', head).is_some();
    fields.end = (head.len() - 2) as u16;
    for header in headers {
        let name = header.name.as_bytes();
        let span = Span::locate(head, name);
        if head[span.start as usize - 2] != b'\r' {
            return Err(WalkError::LineEnd);
        }
        let id = Name::classify(name);
        let value = if header.value.is_empty() {
            Span { start: span.end() as u16, len: 0 }
        } else {
            Span::locate(head, header.value)
        };
        let field = Field { name: span, value, id };
        match id {
            Name::Other => {}
            Name::Lookalike if looks_like_framing(name) => return Err(WalkError::FramingLookalike),
            Name::Connection => walk.connection.see(header.value),
            _ => walk.declaration.see(&field),
        }
        // After the checks of framing: a name that resembles a framing field is refused rather than dropped.
        if drops_underscores && memchr::memchr(b'_', name).is_some() {
            fields.dropped += 1;
            continue;
        }
        if id.is_hop_by_hop() {
            walk.hop_by_hop.insert(fields.list.len());
        }
        each(&field);
        fields.list.push(field);
    }
    if !head.ends_with(b"\r\n\r\n") {
        return Err(WalkError::LineEnd);
    }
    if walk.connection.others > CONNECTION_OPTIONS_MAX {
        return Err(WalkError::ConnectionOptions);
    }
    if walk.connection.others > 0 {
        add_named(fields, head, &mut walk.hop_by_hop);
    }
    Ok(walk)
}

/// Adds the fields that `Connection` names (RFC 9110 section 7.6.1).
fn add_named(fields: &Fields, head: &[u8], hop_by_hop: &mut FieldSet) {
    for (index, field) in fields.iter().enumerate() {
        if field.id.may_be_named_by_connection() && named_by_connection(fields, head, field.name.of(head)) {
            hop_by_hop.insert(index);
        }
    }
}
