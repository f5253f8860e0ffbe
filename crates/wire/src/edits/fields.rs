//! The header fields of edits: names and values that cannot split a message, since they are checked where they are made, in
//! every build; and the lines that edits add to a head, found by their names without searching text.

use super::EditError;
use crate::head::{Field, Fields};
use crate::name::{Name, is_lookalike, is_same};

/// A field that cannot be edited by name, like those that frame a message; the parser has no id for it.
const HTTP2_SETTINGS: &[u8] = b"http2-settings";

/// The name of a header field that may be edited.
#[derive(Debug, Clone, Copy)]
pub struct FieldName<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) id: Name,
    pub(super) tag: u8,
}

impl<'a> FieldName<'a> {
    /// Checks a name.
    pub fn new(name: &'a [u8]) -> Result<FieldName<'a>, EditError> {
        let sought = FieldName::sought(name)?;
        let is_framing = sought.id.is_hop_by_hop() || matches!(sought.id, Name::ContentLength | Name::Trailer);
        if is_framing || name.eq_ignore_ascii_case(HTTP2_SETTINGS) {
            return Err(EditError::Framing);
        }
        Ok(sought)
    }

    /// A name to search for: it may be one that frames the message, which edits cannot change.
    pub fn sought(name: &'a [u8]) -> Result<FieldName<'a>, EditError> {
        if name.is_empty() || !name.iter().copied().all(is_token) {
            return Err(EditError::Name);
        }
        Ok(FieldName { bytes: name, id: Name::classify(name), tag: tag(name) })
    }

    /// A constant name, checked at compile time.
    pub const fn constant(name: &'static str) -> FieldName<'static> {
        let bytes = name.as_bytes();
        assert!(!bytes.is_empty());
        let mut at = 0;
        while at < bytes.len() {
            assert!(is_token(bytes[at]));
            at += 1;
        }
        FieldName { bytes, id: Name::classify(bytes), tag: tag(bytes) }
    }

    /// Its bytes, as they will be written.
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// The value of the first field of this name in a head.
    pub fn value_in<'h>(self, fields: &Fields, head: &'h [u8]) -> Option<FieldValue<'h>> {
        fields.iter().find(|field| self.is_of(field, head)).map(|field| FieldValue(field.value.of(head)))
    }

    /// Whether a line has this name.
    #[inline]
    pub fn is(self, name: &[u8]) -> bool {
        is_same(self.bytes, name)
    }

    /// Whether a line of a head has this name.
    #[inline]
    pub(super) fn is_of(self, field: &Field, head: &[u8]) -> bool {
        // The length first: most names are unknown to the parser and share one id.
        usize::from(field.name.len) == self.bytes.len()
            && self.id == field.id
            && (!matches!(self.id, Name::Other | Name::Lookalike) || is_same(self.bytes, field.name.of(head)))
    }

    /// Whether a line of a head has another name that some servers confuse with this one. Names that the parser knows
    /// never do.
    #[inline]
    pub(super) fn is_like(self, field: &Field, head: &[u8]) -> bool {
        usize::from(field.name.len) == self.bytes.len()
            && matches!(field.id, Name::Other | Name::Lookalike)
            && is_lookalike(field.name.of(head), self.bytes)
    }
}

/// A summary of a set of names, which a parsed field can be checked against without its text: the parser's ids and the
/// lengths.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Shapes {
    ids: u32,
    /// Bits of the lengths modulo 64.
    lengths: u64,
}

const _: () = assert!((Name::Other as u32) < u32::BITS, "a bit for each name");

impl Shapes {
    #[inline]
    pub(super) fn with(self, name: FieldName<'_>) -> Shapes {
        self.or(Shapes { ids: 1 << name.id as u8, lengths: 1 << (name.bytes.len() % 64) })
    }

    #[inline]
    pub(super) fn or(self, other: Shapes) -> Shapes {
        Shapes { ids: self.ids | other.ids, lengths: self.lengths | other.lengths }
    }

    /// Also includes names that some servers confuse with these.
    #[inline]
    pub(super) fn with_lookalikes(self) -> Shapes {
        Shapes { ids: self.ids | 1 << Name::Lookalike as u8, ..self }
    }

    /// Whether a field's name may be in the set. `false` is certain.
    #[inline]
    pub(super) fn may_have(self, field: &Field) -> bool {
        self.may_have_id(field.id) & (self.lengths & 1 << (field.name.len % 64) != 0)
    }

    /// Whether a name with this id may be in the set. `false` is certain.
    #[inline]
    pub(super) fn may_have_id(self, id: Name) -> bool {
        self.ids & 1 << id as u8 != 0
    }
}

/// A number below 64 that is equal for names which differ in case only, and for few others.
pub(super) const fn tag(name: &[u8]) -> u8 {
    let [first, .., last] = name else { return name.len() as u8 };
    // In letters this bit is the case; two equal bytes stay equal.
    let (first, last) = (*first | 0x20, *last | 0x20);
    (first.wrapping_mul(5) ^ last.wrapping_mul(11)).wrapping_add((name.len() as u8).wrapping_mul(7)) & 63
}

/// A name that is kept, for example in a configuration, and was checked once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedFieldName {
    bytes: Box<[u8]>,
    id: Name,
    tag: u8,
}

impl OwnedFieldName {
    /// Checks a name, like [`FieldName::new`].
    pub fn new(name: &[u8]) -> Result<OwnedFieldName, EditError> {
        FieldName::new(name).map(|name| OwnedFieldName { bytes: name.bytes.into(), id: name.id, tag: name.tag })
    }

    /// The name, for edits.
    #[inline]
    pub fn name(&self) -> FieldName<'_> {
        FieldName { bytes: &self.bytes, id: self.id, tag: self.tag }
    }
}

/// A value that is kept, for example in a configuration, and was checked once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedFieldValue(Box<[u8]>);

impl OwnedFieldValue {
    /// Checks a value, like [`FieldValue::new`].
    pub fn new(value: &[u8]) -> Result<OwnedFieldValue, EditError> {
        FieldValue::new(value).map(|value| OwnedFieldValue(value.0.into()))
    }

    /// The value, for edits.
    #[inline]
    pub fn value(&self) -> FieldValue<'_> {
        FieldValue(&self.0)
    }
}

/// The value of a header field.
#[derive(Debug, Clone, Copy)]
pub struct FieldValue<'a>(pub(super) &'a [u8]);

impl<'a> FieldValue<'a> {
    /// Checks a value. Blanks around it are removed; a line break there is refused as anywhere else.
    pub fn new(value: &'a [u8]) -> Result<FieldValue<'a>, EditError> {
        let value = match value {
            [first, .., last] if *first > b' ' && *last > b' ' => value,
            value => trim_blanks(value),
        };
        match has_any(value, |byte| (byte < b' ') & (byte != b'\t') | (byte == 0x7f)) {
            true => Err(EditError::Value),
            false => Ok(FieldValue(value)),
        }
    }

    /// A constant value, checked at compile time.
    pub const fn constant(value: &'static str) -> FieldValue<'static> {
        let bytes = value.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            assert!(!bytes[at].is_ascii_control());
            at += 1;
        }
        FieldValue(bytes)
    }

    /// A value of a parsed head, which cannot hold a line break.
    #[inline]
    pub fn of_head(value: &'a [u8]) -> FieldValue<'a> {
        FieldValue(value)
    }

    /// Its bytes.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }
}

/// Removes the blanks that do not belong to the value by RFC 9110 section 5.5.
fn trim_blanks(value: &[u8]) -> &[u8] {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = value.iter().position(|byte| !is_blank(byte)).unwrap_or(value.len());
    let end = value.iter().rposition(|byte| !is_blank(byte)).map_or(start, |last| last + 1);
    &value[start..end]
}

/// Whether `is_it` holds for a byte. Reads blocks of many bytes, without stopping inside a block; some of the last
/// bytes are read twice.
#[inline]
pub(super) fn has_any(text: &[u8], is_it: impl Fn(u8) -> bool) -> bool {
    let among = |bytes: &[u8]| bytes.iter().fold(false, |found, byte| found | is_it(*byte));
    if let Some(last) = text.last_chunk::<16>() {
        return text.as_chunks::<16>().0.iter().fold(among(last), |found, bytes| found | among(bytes));
    }
    if let (Some(first), Some(last)) = (text.first_chunk::<8>(), text.last_chunk::<8>()) {
        return among(first) | among(last);
    }
    if let (Some(first), Some(last)) = (text.first_chunk::<4>(), text.last_chunk::<4>()) {
        return among(first) | among(last);
    }
    among(text)
}

/// RFC 9110 section 5.6.2.
pub(super) const fn is_token(byte: u8) -> bool {
    matches!(byte,
        b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z'
        | b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~')
}

/// Lines that are found by their names.
#[derive(Debug, Default, Clone)]
pub(super) struct Lines {
    /// Each with its CRLF.
    pub(super) text: Vec<u8>,
    pub(super) list: Vec<FieldLine>,
    /// Bits of the tags of the lines, and perhaps of lines that were removed.
    pub(super) tags: u64,
    /// Shapes of their names, in the same way.
    pub(super) shapes: Shapes,
}

/// The position of a line in [`Lines::text`].
#[derive(Debug, Clone, Copy)]
pub(super) struct FieldLine {
    start: u32,
    /// The offset behind its CRLF.
    end: u32,
    name_bytes: u32,
    pub(super) tag: u8,
    pub(super) id: Name,
}

impl FieldLine {
    #[inline]
    pub(super) fn name(self, text: &[u8]) -> &[u8] {
        &text[self.start as usize..(self.start + self.name_bytes) as usize]
    }

    #[inline]
    pub(super) fn value(self, text: &[u8]) -> &[u8] {
        &text[(self.start + self.name_bytes) as usize + COLON.len()..self.end as usize - END.len()]
    }
}

const COLON: &[u8] = b": ";
const END: &[u8] = b"\r\n";

impl Lines {
    pub(super) fn copy_from(&mut self, other: &Lines) {
        let Lines { text, list, tags, shapes } = other;
        self.text.clone_from(text);
        self.list.clone_from(list);
        self.tags = *tags;
        self.shapes.clone_from(shapes);
    }

    pub(super) fn add(&mut self, name: FieldName<'_>, value: FieldValue<'_>) {
        let start = self.text.len();
        push_line(&mut self.text, name, value);
        self.note(name, start);
    }

    /// Adds a prepared line.
    #[inline]
    pub(super) fn add_line(&mut self, line: &OwnedLine) {
        let name = line.name();
        let start = self.text.len();
        self.text.extend_from_slice(&line.text);
        self.note(name, start);
    }

    #[inline]
    fn note(&mut self, name: FieldName<'_>, start: usize) {
        let end = self.text.len();
        self.tags |= 1 << name.tag;
        self.shapes = self.shapes.with(name);
        let name_bytes = name.bytes.len() as u32;
        self.list.push(FieldLine { start: start as u32, end: end as u32, name_bytes, tag: name.tag, id: name.id });
    }

    #[inline]
    pub(super) fn may_have(&self, name: FieldName<'_>) -> bool {
        self.tags & 1 << name.tag != 0
    }

    #[inline]
    pub(super) fn is(&self, line: FieldLine, name: FieldName<'_>) -> bool {
        line.tag == name.tag && name.is(line.name(&self.text))
    }

    fn find(&self, name: FieldName<'_>) -> Option<usize> {
        self.list.iter().position(|line| self.is(*line, name))
    }

    #[inline]
    pub(super) fn remove(&mut self, name: FieldName<'_>) {
        if self.may_have(name) {
            self.remove_found(name);
        }
    }

    fn remove_found(&mut self, name: FieldName<'_>) {
        while let Some(at) = self.find(name) {
            let FieldLine { start, end, .. } = self.list.remove(at);
            self.text.drain(start as usize..end as usize);
            for behind in &mut self.list[at..] {
                behind.start -= end - start;
                behind.end -= end - start;
            }
        }
    }

    pub(super) fn append(&mut self, over: &Lines) {
        let before = self.text.len() as u32;
        self.text.extend_from_slice(&over.text);
        let moved = |line: &FieldLine| FieldLine { start: line.start + before, end: line.end + before, ..*line };
        self.list.extend(over.list.iter().map(moved));
        self.tags |= over.tags;
        self.shapes = self.shapes.or(over.shapes);
    }

    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.list.clear();
        (self.tags, self.shapes) = (0, Shapes::default());
    }
}

/// A line that is kept, for example in a configuration; its parts were checked and written once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedLine {
    /// The text with its CRLF.
    text: Box<[u8]>,
    name_bytes: usize,
    tag: u8,
    id: Name,
}

impl OwnedLine {
    /// Makes a line of a name and a value.
    pub fn new(name: FieldName<'_>, value: FieldValue<'_>) -> OwnedLine {
        let mut text = Vec::new();
        push_line(&mut text, name, value);
        OwnedLine { text: text.into(), name_bytes: name.bytes.len(), tag: name.tag, id: name.id }
    }

    /// Its name.
    #[inline]
    pub fn name(&self) -> FieldName<'_> {
        FieldName { bytes: &self.text[..self.name_bytes], id: self.id, tag: self.tag }
    }

    /// Its value.
    #[inline]
    pub fn value(&self) -> FieldValue<'_> {
        FieldValue(&self.text[self.name_bytes + COLON.len()..self.text.len() - END.len()])
    }
}

#[inline]
pub(super) fn push_line(out: &mut Vec<u8>, name: FieldName<'_>, value: FieldValue<'_>) {
    out.reserve(name.bytes.len() + COLON.len() + value.0.len() + END.len());
    out.extend_from_slice(name.bytes);
    out.extend_from_slice(COLON);
    out.extend_from_slice(value.0);
    out.extend_from_slice(END);
}

/// Removes all lines of a name from text such as [`super::Edits::appended`].
pub fn remove_lines(text: &mut Vec<u8>, name: FieldName<'_>) {
    let mut at = 0;
    while let Some(line) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let bytes = memchr::memchr(b'\n', line).map_or(line.len(), |end| end + 1);
        let is_it =
            line.get(name.bytes.len()) == Some(&b':') && line[..name.bytes.len()].eq_ignore_ascii_case(name.bytes);
        match is_it {
            true => drop(text.drain(at..at + bytes)),
            false => at += bytes,
        }
    }
}
