//! A head's header fields as a flat, ordered list of ranges over the head's bytes.
//!
//! There is no map and no per-header allocation: a head has a dozen fields, and a walk over a dozen 10-byte records is
//! quicker than any hash. A field without edits is forwarded as the bytes that came.

use crate::name::Name;

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
