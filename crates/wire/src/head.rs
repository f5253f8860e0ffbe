//! What request and response heads share: incremental arrival, line ends, and the header fields.
//!
//! The fields are a flat, ordered list of ranges over the head's bytes. There is no map and no per-header allocation: a head
//! has a dozen fields, and a walk over a dozen 10-byte records is quicker than any hash. A field without edits is forwarded
//! as the bytes that came.

use crate::framing::{ConnectionTokens, Declaration, named_by_connection};
use crate::name::{Name, looks_like_framing};
use crate::{CONNECTION_OPTIONS_MAX, EDITED_HEADERS_MAX, RequestError};
use std::mem::MaybeUninit;

/// Whether a head is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadProgress {
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

type HeaderSlots<'b> = [MaybeUninit<httparse::Header<'b>>; EDITED_HEADERS_MAX];

pub(crate) fn header_slots<'b>() -> HeaderSlots<'b> {
    [const { MaybeUninit::uninit() }; EDITED_HEADERS_MAX]
}

/// Decides when it is worth parsing again, so that a head arriving byte by byte costs the length of its lines and not
/// the square of its length.
///
/// Only whole lines are handed to the parser (and the request line while it is the only one): the verdict is then a
/// function of the lines, not of how they were split.
#[derive(Debug, Default)]
pub(crate) struct HeadCursor {
    /// Bytes already searched for line ends.
    seen: usize,
    /// The end of the last whole line found.
    lines_end: usize,
}

impl HeadCursor {
    /// The prefix of `bytes` to parse now, or `None` if nothing changed since the last time.
    pub(crate) fn prefix<'b>(&mut self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        let fresh = &bytes[self.seen..];
        let line = match fresh.last() {
            // A head without a body behind it, as most are.
            Some(b'\n') => Some(bytes.len()),
            _ => memchr::memrchr(b'\n', fresh).map(|at| self.seen + at + 1),
        };
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
        *self = HeadCursor::default();
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

/// A range of the head's bytes. 16 bits are enough: see [`crate::HEAD_BYTES_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// Offset from the head's first byte.
    pub start: u16,
    /// Length in bytes.
    pub len: u16,
}

impl Span {
    /// The bytes of the range; `head` must be the bytes that were parsed.
    #[inline]
    pub fn of(self, head: &[u8]) -> &[u8] {
        &head[self.start as usize..self.start as usize + self.len as usize]
    }

    /// The end of the range.
    pub fn end(self) -> usize {
        self.start as usize + self.len as usize
    }

    /// `part` must lie within `head`, and `head` within [`crate::HEAD_BYTES_MAX`].
    #[inline]
    pub(crate) fn locate(head: &[u8], part: &[u8]) -> Span {
        let start = part.as_ptr() as usize - head.as_ptr() as usize;
        Span { start: start as u16, len: part.len() as u16 }
    }
}

/// One header line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// The name as it came; its start is the start of the line.
    pub name: Span,
    /// The value without surrounding white space.
    pub value: Span,
    /// The known name that it is.
    pub id: Name,
}

/// All header lines of a head, in order.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Fields {
    pub(crate) list: Vec<Field>,
    /// The end of the fields: the offset of the empty line.
    pub(crate) end: u16,
    /// Lines of the head that are not in `list`: readers and writers treat them as absent.
    pub(crate) dropped: u16,
}

impl Fields {
    /// The fields in order.
    #[inline]
    pub fn iter(&self) -> std::slice::Iter<'_, Field> {
        self.list.iter()
    }

    pub(crate) fn clear(&mut self) {
        self.list.clear();
        (self.end, self.dropped) = (0, 0);
    }

    /// The number of lines of the head that were left out of the list; see [`crate::RequestHead::drops_underscores`].
    #[inline]
    pub fn dropped(&self) -> usize {
        usize::from(self.dropped)
    }

    /// The number of fields; at most [`crate::HEADERS_MAX`].
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The value of the first field of a known name.
    #[inline]
    pub fn get<'h>(&self, head: &'h [u8], id: Name) -> Option<&'h [u8]> {
        self.list.iter().find(|f| f.id == id).map(|f| f.value.of(head))
    }

    /// The range of a whole line, its CRLF included, where no lines were dropped.
    #[inline]
    pub(crate) fn line(&self, index: usize) -> std::ops::Range<usize> {
        let end = self.list.get(index + 1).map_or(self.end, |next| next.name.start);
        self.list[index].name.start as usize..end as usize
    }
}

/// A set of field positions of one head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FieldSet(u128);

const _: () = assert!(crate::EDITED_HEADERS_MAX <= 128);

impl FieldSet {
    /// Adds a position.
    #[inline]
    pub fn insert(&mut self, index: usize) {
        self.0 |= 1 << index;
    }

    /// The positions of either.
    #[inline]
    pub fn with(self, other: FieldSet) -> FieldSet {
        FieldSet(self.0 | other.0)
    }

    /// Whether a position is in it.
    #[inline]
    pub fn contains(self, index: usize) -> bool {
        self.0 & (1 << index) != 0
    }

    /// The positions, ascending.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let index = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            Some(index)
        })
    }
}
