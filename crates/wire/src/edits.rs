//! Changes to a head, kept beside it: the parsed bytes are never moved.
//!
//! Names and values are types that cannot split a message: they are checked where they are made, in every build. What frames
//! a message or belongs to one connection cannot be edited by name at all.
//!
//! A name carries what the parser would have recognised it as, so that most comparisons are those of two numbers, and lines
//! that plugins add are listed, so that none is searched for in text.

use crate::fields::{Field, FieldSet, Fields};
use crate::name::Name;
use std::fmt;

/// Why a name, value, target or the like cannot be part of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EditError {
    /// A field's name is no token (RFC 9110 section 5.1).
    Name,
    /// The field frames the message or belongs to one connection (RFC 9110 section 7.6.1), so it is ours to set.
    Framing,
    /// A value has a control character in it (RFC 9110 section 5.5).
    Value,
    /// A target has a blank or a control character in it, or does not begin with `/`.
    Target,
    /// A method is no token (RFC 9110 section 9.1).
    Method,
    /// A status is not from 200 to 599.
    Status,
    /// The head would be larger than a head may be.
    TooLarge,
}

impl fmt::Display for EditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EditError::Name => "not the name of a header field: letters, digits and !#$%&'*+-.^_`|~ only",
            EditError::Framing => "this field frames the message or belongs to one connection; the gateway sets it",
            EditError::Value => "a header value cannot hold control characters such as line breaks",
            EditError::Target => "a request target begins with \"/\" and holds no blanks or control characters",
            EditError::Method => "not an HTTP method",
            EditError::Status => "not a status from 200 to 599",
            EditError::TooLarge => "the head would be larger than a head may be",
        })
    }
}

impl std::error::Error for EditError {}

/// A field that cannot be edited by name, as those that frame a message, and that the parser has no use for.
const HTTP2_SETTINGS: &[u8] = b"http2-settings";

/// The name of a header field that may be edited.
#[derive(Debug, Clone, Copy)]
pub struct FieldName<'a> {
    bytes: &'a [u8],
    id: Name,
    tag: u8,
}

impl<'a> FieldName<'a> {
    /// Checks a name.
    pub fn new(name: &'a [u8]) -> Result<FieldName<'a>, EditError> {
        if name.is_empty() || !name.iter().copied().all(is_token) {
            return Err(EditError::Name);
        }
        let id = Name::classify(name);
        let is_framing = id.is_hop_by_hop() || matches!(id, Name::ContentLength | Name::Trailer);
        if is_framing || name.eq_ignore_ascii_case(HTTP2_SETTINGS) {
            return Err(EditError::Framing);
        }
        Ok(FieldName { bytes: name, id, tag: tag(name) })
    }

    /// A name that stands in the program, checked while it is compiled.
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

    /// As it will be written.
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// The value of the first field of this name in a head.
    pub fn value_in<'h>(self, fields: &Fields, head: &'h [u8]) -> Option<FieldValue<'h>> {
        fields.iter().find(|field| self.is_of(field, head)).map(|field| FieldValue(field.value.of(head)))
    }

    /// Whether a line of a head has this name.
    #[inline]
    fn is_of(self, field: &Field, head: &[u8]) -> bool {
        self.id == field.id
            && (!matches!(self.id, Name::Other | Name::Lookalike)
                || (usize::from(field.name.len) == self.bytes.len()
                    && self.bytes.eq_ignore_ascii_case(field.name.of(head))))
    }
}

/// A number below 64 that names have in common which differ in case only, and few others.
const fn tag(name: &[u8]) -> u8 {
    let [first, .., last] = name else { return name.len() as u8 };
    // Of letters this bit is the case; of two bytes that are the same it stays the same.
    let (first, last) = (*first | 0x20, *last | 0x20);
    (first.wrapping_mul(5) ^ last.wrapping_mul(11)).wrapping_add((name.len() as u8).wrapping_mul(7)) & 63
}

/// A name that is kept, checked once: of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedFieldName {
    bytes: Box<[u8]>,
    id: Name,
    tag: u8,
}

impl OwnedFieldName {
    /// Checks a name, as [`FieldName::new`].
    pub fn new(name: &[u8]) -> Result<OwnedFieldName, EditError> {
        FieldName::new(name).map(|name| OwnedFieldName { bytes: name.bytes.into(), id: name.id, tag: name.tag })
    }

    /// For edits.
    #[inline]
    pub fn name(&self) -> FieldName<'_> {
        FieldName { bytes: &self.bytes, id: self.id, tag: self.tag }
    }
}

/// A value that is kept, checked once: of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedFieldValue(Box<[u8]>);

impl OwnedFieldValue {
    /// Checks a value, as [`FieldValue::new`].
    pub fn new(value: &[u8]) -> Result<OwnedFieldValue, EditError> {
        FieldValue::new(value).map(|value| OwnedFieldValue(value.0.into()))
    }

    /// For edits.
    #[inline]
    pub fn value(&self) -> FieldValue<'_> {
        FieldValue(&self.0)
    }
}

/// The value of a header field.
#[derive(Debug, Clone, Copy)]
pub struct FieldValue<'a>(&'a [u8]);

impl<'a> FieldValue<'a> {
    /// Checks a value. Blanks around it are left out.
    pub fn new(value: &'a [u8]) -> Result<FieldValue<'a>, EditError> {
        let value = match value {
            [first, .., last] if *first > b' ' && *last > b' ' => value,
            value => value.trim_ascii(),
        };
        // Each byte is looked at, whatever was found before: that takes many at once.
        let is_bad = |byte: u8| (byte < b' ') & (byte != b'\t') | (byte == 0x7f);
        match value.iter().fold(false, |found, byte| found | is_bad(*byte)) {
            true => Err(EditError::Value),
            false => Ok(FieldValue(value)),
        }
    }

    /// A value that stands in the program, checked while it is compiled.
    pub const fn constant(value: &'static str) -> FieldValue<'static> {
        let bytes = value.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            assert!(!bytes[at].is_ascii_control());
            at += 1;
        }
        FieldValue(bytes)
    }

    /// A number as text: digits, perhaps with a point in it.
    ///
    /// # Panics
    ///
    /// With anything else.
    #[inline]
    pub fn number(digits: &'a [u8]) -> FieldValue<'a> {
        assert!(digits.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'.')), "not a number");
        FieldValue(digits)
    }

    /// A value of a head that was parsed, which cannot hold a line break.
    #[inline]
    pub fn of_head(value: &'a [u8]) -> FieldValue<'a> {
        FieldValue(value)
    }

    /// Its bytes.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }
}

/// Bytes of lines that edits by name add to a head. A short template makes a long value of what a client sends, many times
/// over.
pub const ADDED_BYTES_MAX: usize = 64 * 1024;

/// Changes to the fields of a head.
#[derive(Debug, Default)]
pub struct Edits {
    /// Lines that are left out.
    pub removed: FieldSet,
    /// Lines that nothing looks for any more, each with its CRLF: what the gateway itself says of a message, from constants and
    /// checked values. In a request they stand before `lines`, in a response behind them.
    pub appended: Vec<u8>,
    lines: Lines,
    /// A line was left out, as the others have [`ADDED_BYTES_MAX`] already: the message cannot be sent.
    is_too_large: bool,
}

/// Lines that are found by their names.
#[derive(Debug, Default)]
struct Lines {
    /// Each with its CRLF.
    text: Vec<u8>,
    list: Vec<Line>,
    /// The tags of the lines, and perhaps of some that are gone, as bits.
    tags: u64,
    /// What the parser takes the names for, in the same way.
    ids: u32,
}

const _: () = assert!((Name::Other as u32) < u32::BITS, "a bit for each name");

/// Where a line stands in [`Lines::text`].
#[derive(Debug, Clone, Copy)]
struct Line {
    start: u32,
    /// Behind its CRLF.
    end: u32,
    name_bytes: u32,
    tag: u8,
    id: Name,
}

impl Line {
    #[inline]
    fn name(self, text: &[u8]) -> &[u8] {
        &text[self.start as usize..(self.start + self.name_bytes) as usize]
    }

    #[inline]
    fn value(self, text: &[u8]) -> &[u8] {
        &text[(self.start + self.name_bytes) as usize + COLON.len()..self.end as usize - END.len()]
    }
}

const COLON: &[u8] = b": ";
const END: &[u8] = b"\r\n";

impl Lines {
    fn add(&mut self, name: FieldName<'_>, value: FieldValue<'_>) {
        let start = self.text.len();
        push_line(&mut self.text, name, value);
        let end = self.text.len();
        self.tags |= 1 << name.tag;
        self.ids |= 1 << name.id as u8;
        let name_bytes = name.bytes.len() as u32;
        self.list.push(Line { start: start as u32, end: end as u32, name_bytes, tag: name.tag, id: name.id });
    }

    #[inline]
    fn may_have(&self, name: FieldName<'_>) -> bool {
        self.tags & 1 << name.tag != 0
    }

    #[inline]
    fn is(&self, line: Line, name: FieldName<'_>) -> bool {
        line.tag == name.tag && line.name(&self.text).eq_ignore_ascii_case(name.bytes)
    }

    fn find(&self, name: FieldName<'_>) -> Option<usize> {
        self.list.iter().position(|line| self.is(*line, name))
    }

    #[inline]
    fn remove(&mut self, name: FieldName<'_>) {
        if self.may_have(name) {
            self.remove_found(name);
        }
    }

    fn remove_found(&mut self, name: FieldName<'_>) {
        while let Some(at) = self.find(name) {
            let Line { start, end, .. } = self.list.remove(at);
            self.text.drain(start as usize..end as usize);
            for behind in &mut self.list[at..] {
                behind.start -= end - start;
                behind.end -= end - start;
            }
        }
    }

    fn append(&mut self, over: &Lines) {
        let before = self.text.len() as u32;
        self.text.extend_from_slice(&over.text);
        let moved = |line: &Line| Line { start: line.start + before, end: line.end + before, ..*line };
        self.list.extend(over.list.iter().map(moved));
        self.tags |= over.tags;
        self.ids |= over.ids;
    }

    fn clear(&mut self) {
        self.text.clear();
        self.list.clear();
        (self.tags, self.ids) = (0, 0);
    }
}

#[inline]
fn push_line(out: &mut Vec<u8>, name: FieldName<'_>, value: FieldValue<'_>) {
    out.extend_from_slice(name.bytes);
    out.extend_from_slice(COLON);
    out.extend_from_slice(value.0);
    out.extend_from_slice(END);
}

impl Edits {
    /// No edits, keeping the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.removed = FieldSet::default();
        self.appended.clear();
        self.is_too_large = false;
        if !self.lines.list.is_empty() {
            self.lines.clear();
        }
    }

    /// Whether lines were left out since they are more than a head may have. Who applies the edits has to ask.
    #[inline]
    pub fn is_too_large(&self) -> bool {
        self.is_too_large
    }

    /// Whether there is any.
    #[inline]
    pub fn is_changed(&self) -> bool {
        !self.lines.list.is_empty() || !self.appended.is_empty() || self.removed != FieldSet::default()
    }

    /// Adds a line, within [`ADDED_BYTES_MAX`].
    #[inline]
    pub fn add(&mut self, name: FieldName<'_>, value: FieldValue<'_>) {
        match self.lines.text.len() + name.bytes.len() + value.0.len() <= ADDED_BYTES_MAX {
            true => self.lines.add(name, value),
            false => self.is_too_large = true,
        }
    }

    /// Adds a line of the gateway's own, whatever plugins have added, that nothing looks for any more.
    #[inline]
    pub fn append(&mut self, name: FieldName<'_>, value: FieldValue<'_>) {
        push_line(&mut self.appended, name, value);
    }

    /// Takes out all lines of a name, those that were added among them.
    pub fn remove(&mut self, fields: &Fields, head: &[u8], name: FieldName<'_>) {
        for (index, field) in fields.iter().enumerate() {
            if name.is_of(field, head) {
                self.removed.insert(index);
            }
        }
        self.lines.remove(name);
    }

    /// The same for several names.
    pub fn remove_each(&mut self, fields: &Fields, head: &[u8], names: &[FieldName<'_>]) {
        let tags = names.iter().fold(0, |tags, name| tags | 1 << name.tag);
        self.remove_tagged(fields, head, tags, |field| names.iter().any(|name| name.is_of(field, head)));
        names.iter().for_each(|name| self.lines.remove(*name));
    }

    /// Takes out lines that came of which `is_it` holds; their names have one of these tags.
    #[inline]
    fn remove_tagged(&mut self, fields: &Fields, head: &[u8], tags: u64, is_it: impl Fn(&Field) -> bool) {
        for (index, field) in fields.iter().enumerate() {
            if tags & 1 << tag(field.name.of(head)) != 0 && is_it(field) {
                self.removed.insert(index);
            }
        }
    }

    /// The first value of a name after the edits.
    pub fn first<'a>(&'a self, fields: &'a Fields, head: &'a [u8], name: FieldName<'_>) -> Option<&'a [u8]> {
        for (index, field) in fields.iter().enumerate() {
            if name.is_of(field, head) && !self.removed.contains(index) {
                return Some(field.value.of(head));
            }
        }
        self.added(name).next()
    }

    /// Takes out all lines of a name that were added.
    #[inline]
    pub fn remove_added(&mut self, name: FieldName<'_>) {
        self.lines.remove(name);
    }

    /// Puts one line in place of all of that name.
    pub fn set(&mut self, fields: &Fields, head: &[u8], name: FieldName<'_>, value: FieldValue<'_>) {
        self.remove(fields, head, name);
        self.add(name, value);
    }

    /// The values of a name after the edits, in the order of the lines.
    pub fn values<'a>(
        &'a self,
        fields: &'a Fields,
        head: &'a [u8],
        name: FieldName<'_>,
    ) -> impl Iterator<Item = &'a [u8]> {
        let removed = self.removed;
        let came = fields.iter().enumerate().filter(move |(index, _)| !removed.contains(*index));
        let came = came.filter(move |(_, field)| name.is_of(field, head));
        let came = came.map(move |(_, field)| field.value.of(head));
        came.chain(self.added(name))
    }

    /// The values of a name among the lines that were added, in their order.
    pub fn added(&self, name: FieldName<'_>) -> impl Iterator<Item = &[u8]> {
        let lines = &self.lines;
        let list = if lines.may_have(name) { &lines.list[..] } else { &[] };
        list.iter().filter(move |line| lines.is(**line, name)).map(|line| line.value(&lines.text))
    }

    /// Whether a line of one of these names may have been added. `false` is certain.
    #[inline]
    pub fn may_have_added(&self, names: &[FieldName<'_>]) -> bool {
        names.iter().any(|name| self.lines.ids & 1 << name.id as u8 != 0)
    }

    /// The lines that were added, but for those of [`Edits::append`].
    #[inline]
    pub fn lines(&self) -> &[u8] {
        &self.lines.text
    }

    /// Calls `visit` with name and value of every line after the edits.
    pub fn each(&self, fields: &Fields, head: &[u8], visit: &mut dyn FnMut(&[u8], &[u8])) {
        for (index, field) in fields.iter().enumerate() {
            if !self.removed.contains(index) {
                visit(field.name.of(head), field.value.of(head));
            }
        }
        let Lines { text, list, .. } = &self.lines;
        list.iter().for_each(|line| visit(line.name(text), line.value(text)));
    }

    /// Puts the lines of `over` in place of those here that have their names.
    pub fn overlay(&mut self, fields: &Fields, head: &[u8], over: &Edits) {
        let Lines { text, list, tags, .. } = &over.lines;
        self.is_too_large |= over.is_too_large;
        if list.is_empty() {
            return;
        }
        let name_of = |line: &Line| FieldName { bytes: line.name(text), id: line.id, tag: line.tag };
        self.remove_tagged(fields, head, *tags, |field| list.iter().any(|line| name_of(line).is_of(field, head)));
        if self.lines.tags & tags != 0 {
            list.iter().for_each(|line| self.lines.remove(name_of(line)));
        }
        self.lines.append(&over.lines);
        self.is_too_large |= self.lines.text.len() > ADDED_BYTES_MAX;
    }
}

/// Takes all lines of a name out of text such as [`Edits::appended`].
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

/// Changes to a request's head.
#[derive(Debug, Default)]
pub struct RequestEdits {
    /// Of its fields.
    pub fields: Edits,
    /// Empty: as it came.
    method: Vec<u8>,
    /// Empty: as it came.
    target: Vec<u8>,
    /// Empty: what the upstream's `pass_host` says.
    host: Vec<u8>,
}

impl RequestEdits {
    /// No edits, keeping the memory.
    pub fn clear(&mut self) {
        self.fields.clear();
        self.method.clear();
        self.target.clear();
        self.host.clear();
    }

    /// Replaces the method.
    pub fn set_method(&mut self, method: &[u8]) -> Result<(), EditError> {
        if method.is_empty() || !method.iter().copied().all(is_token) {
            return Err(EditError::Method);
        }
        self.method.clear();
        self.method.extend_from_slice(method);
        Ok(())
    }

    /// Replaces path and query.
    pub fn set_target(&mut self, target: &[u8]) -> Result<(), EditError> {
        let is_bad = |byte: u8| (byte <= b' ') | (byte == 0x7f);
        if target.first() != Some(&b'/') || target.iter().fold(false, |found, byte| found | is_bad(*byte)) {
            return Err(EditError::Target);
        }
        if target.len() > crate::HEAD_BYTES_MAX {
            return Err(EditError::TooLarge);
        }
        self.target.clear();
        self.target.extend_from_slice(target);
        Ok(())
    }

    /// Sets the `Host` that the node sees.
    pub fn set_host(&mut self, host: FieldValue<'_>) {
        self.host.clear();
        self.host.extend_from_slice(host.0);
    }

    /// The method, where it was changed.
    pub fn method(&self) -> Option<&[u8]> {
        (!self.method.is_empty()).then_some(&self.method[..])
    }

    /// Path and query, where they were changed.
    pub fn target(&self) -> Option<&[u8]> {
        (!self.target.is_empty()).then_some(&self.target[..])
    }

    /// The `Host` that the node sees, where it was set.
    pub fn host(&self) -> Option<&[u8]> {
        (!self.host.is_empty()).then_some(&self.host[..])
    }
}

/// Changes to a response's head.
#[derive(Debug, Default)]
pub struct ResponseEdits {
    /// Of its fields.
    pub fields: Edits,
    status: Option<u16>,
}

impl ResponseEdits {
    /// No edits, keeping the memory.
    pub fn clear(&mut self) {
        self.fields.clear();
        self.status = None;
    }

    /// Replaces the status; the reason becomes that of the new one.
    pub fn set_status(&mut self, status: u16) -> Result<(), EditError> {
        if !(200..=599).contains(&status) {
            return Err(EditError::Status);
        }
        self.status = Some(status);
        Ok(())
    }

    /// Leaves the status as it came.
    pub fn keep_status(&mut self) {
        self.status = None;
    }

    /// The status, where it was changed.
    #[inline]
    pub fn status(&self) -> Option<u16> {
        self.status
    }
}

const fn is_token(byte: u8) -> bool {
    matches!(byte,
        b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z'
        | b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HeadLimits, Progress, RequestHead};

    const HEAD: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\nA: 1\r\na: 2\r\nB: 3\r\n\r\n";

    fn parsed() -> RequestHead {
        let mut head = RequestHead::default();
        assert_eq!(head.advance(HEAD, &HeadLimits::default()), Ok(Progress::Complete(HEAD.len())));
        head
    }

    fn name(name: &str) -> FieldName<'_> {
        FieldName::new(name.as_bytes()).unwrap()
    }

    fn value(value: &str) -> FieldValue<'_> {
        FieldValue::new(value.as_bytes()).unwrap()
    }

    fn values(edits: &Edits, of: &str) -> Vec<String> {
        let parsed = parsed();
        let values = edits.values(&parsed.fields, HEAD, name(of));
        values.map(|value| String::from_utf8(value.to_vec()).unwrap()).collect()
    }

    #[test]
    fn what_was_edited_is_what_is_read() {
        let (head, mut edits) = (parsed(), Edits::default());
        assert_eq!(values(&edits, "a"), ["1", "2"]);
        edits.add(name("A"), value("4"));
        assert_eq!(values(&edits, "a"), ["1", "2", "4"]);
        edits.set(&head.fields, HEAD, name("a"), value("5"));
        edits.add(name("C"), value("6"));
        assert_eq!((values(&edits, "A"), values(&edits, "c")), (vec!["5".to_owned()], vec!["6".to_owned()]));
        edits.remove(&head.fields, HEAD, name("a"));
        assert!(values(&edits, "a").is_empty());
        let mut over = Edits::default();
        over.add(name("b"), value("7"));
        over.add(name("B"), value("8"));
        edits.overlay(&head.fields, HEAD, &over);
        assert_eq!(values(&edits, "b"), ["7", "8"]);
        assert_eq!(edits.lines(), b"C: 6\r\nb: 7\r\nB: 8\r\n");
        assert_eq!(edits.first(&head.fields, HEAD, name("B")), Some(&b"7"[..]));
        assert_eq!(edits.first(&head.fields, HEAD, name("host")), Some(&b"h"[..]));
        edits.remove_added(name("c"));
        assert_eq!(
            (edits.lines(), values(&edits, "b")),
            (&b"b: 7\r\nB: 8\r\n"[..], vec!["7".to_owned(), "8".to_owned()])
        );
        edits.remove_each(&head.fields, HEAD, &[name("host"), name("B")]);
        assert!(["host", "b"].iter().all(|name| values(&edits, name).is_empty()));
        edits.clear();
        assert!(!edits.is_changed() && values(&edits, "b") == ["3"]);
    }

    #[test]
    fn names_that_the_parser_knows_are_found_in_any_case() {
        let mut edits = Edits::default();
        edits.add(FieldName::constant("Server"), value("a"));
        edits.add(name("sERVER"), value("b"));
        edits.add(name("X_Real_IP"), value("c"));
        assert_eq!(
            (values(&edits, "server"), values(&edits, "x_real_ip")),
            (vec!["a".to_owned(), "b".to_owned()], vec!["c".to_owned()])
        );
        assert!(values(&edits, "X-Real-IP").is_empty() && values(&edits, "X_Real-IP").is_empty());
        let known = [name("Server"), name("Date")];
        assert!(edits.may_have_added(&known) && !edits.may_have_added(&known[1..]));
    }

    #[test]
    fn lines_are_taken_out_of_text() {
        let mut text = b"A: 1\r\nAb: 2\r\na: 3\r\n: 4\r\n".to_vec();
        remove_lines(&mut text, name("a"));
        assert_eq!(text, b"Ab: 2\r\n: 4\r\n");
        remove_lines(&mut text, name("ab"));
        assert_eq!(text, b": 4\r\n");
    }

    #[test]
    fn what_is_added_is_bounded() {
        let (head, mut edits) = (parsed(), Edits::default());
        let long = vec![b'x'; ADDED_BYTES_MAX / 2];
        let long = FieldValue::new(&long).unwrap();
        edits.add(name("A"), long);
        assert!(!edits.is_too_large());
        for _ in 0..100 {
            edits.add(name("B"), long);
        }
        assert!(edits.is_too_large() && edits.lines().len() <= ADDED_BYTES_MAX);
        edits.append(name("C"), value("ours"));
        assert_eq!(edits.appended, b"C: ours\r\n");
        let mut over = Edits::default();
        over.overlay(&head.fields, HEAD, &edits);
        assert!(over.is_too_large(), "what is laid over another brings it along");
        edits.clear();
        assert!(!edits.is_too_large());
        let mut both = Edits::default();
        both.add(name("A"), long);
        edits.add(name("B"), long);
        both.overlay(&head.fields, HEAD, &edits);
        assert!(both.is_too_large());
    }

    #[test]
    fn nothing_splits_a_message() {
        for bad in ["", "a b", "a:", "a\r\n", "\u{e4}", "a\0"] {
            assert_eq!(FieldName::new(bad.as_bytes()).err(), Some(EditError::Name), "{bad:?}");
        }
        for bad in ["Content-Length", "transfer-encoding", "CONNECTION", "te", "Upgrade"] {
            assert_eq!(FieldName::new(bad.as_bytes()).err(), Some(EditError::Framing), "{bad:?}");
        }
        for bad in ["a\rb", "a\nb", "a\0b", "a\u{7f}", "a\r\nb: c"] {
            assert_eq!(FieldValue::new(bad.as_bytes()).err(), Some(EditError::Value), "{bad:?}");
        }
        assert_eq!(value(" a\tb \u{e4} ").bytes(), "a\tb \u{e4}".as_bytes());
        let mut edits = RequestEdits::default();
        for bad in ["", "a", "*", "/a b", "/a\r\nb", "/\0", "http://h/"] {
            assert_eq!(edits.set_target(bad.as_bytes()), Err(EditError::Target), "{bad:?}");
        }
        assert_eq!(edits.set_target(&[b'/'; crate::HEAD_BYTES_MAX + 1]), Err(EditError::TooLarge));
        for bad in ["", "GET /", "G\r\n"] {
            assert_eq!(edits.set_method(bad.as_bytes()), Err(EditError::Method), "{bad:?}");
        }
        assert!(edits.target().is_none() && edits.method().is_none());
        for bad in [0, 100, 101, 199, 600, 999] {
            assert_eq!(ResponseEdits::default().set_status(bad), Err(EditError::Status));
        }
    }
}
