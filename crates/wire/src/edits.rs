//! Changes to a head, kept beside it: the parsed bytes are never moved.
//!
//! Names and values are types that cannot split a message: they are checked where they are made, in every build. What frames
//! a message or belongs to one connection cannot be edited by name at all.

use crate::fields::{FieldSet, Fields};
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

/// Fields that cannot be edited by name, in lower case.
const FRAMING: [&[u8]; 9] = [
    b"connection",
    b"content-length",
    b"keep-alive",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
    b"http2-settings",
];

/// The name of a header field that may be edited.
#[derive(Debug, Clone, Copy)]
pub struct FieldName<'a>(&'a [u8]);

impl<'a> FieldName<'a> {
    /// Checks a name.
    pub fn new(name: &'a [u8]) -> Result<FieldName<'a>, EditError> {
        if name.is_empty() || !name.iter().copied().all(is_token) {
            return Err(EditError::Name);
        }
        if FRAMING.iter().any(|framing| framing.eq_ignore_ascii_case(name)) {
            return Err(EditError::Framing);
        }
        Ok(FieldName(name))
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
        FieldName(bytes)
    }

    /// As it will be written.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// Whether a line has this name.
    #[inline]
    fn is(self, name: &[u8]) -> bool {
        self.0.eq_ignore_ascii_case(name)
    }
}

/// A name that is kept, checked once: of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedFieldName(Box<[u8]>);

impl OwnedFieldName {
    /// Checks a name, as [`FieldName::new`].
    pub fn new(name: &[u8]) -> Result<OwnedFieldName, EditError> {
        FieldName::new(name).map(|name| OwnedFieldName(name.0.into()))
    }

    /// For edits.
    #[inline]
    pub fn name(&self) -> FieldName<'_> {
        FieldName(&self.0)
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
        let value = value.trim_ascii();
        match value.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
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
    /// Lines that are added at the end, each with its CRLF. Written by the functions here and from constants.
    pub added: Vec<u8>,
    /// A line was left out, as the others have [`ADDED_BYTES_MAX`] already: the message cannot be sent.
    is_too_large: bool,
}

impl Edits {
    /// No edits, keeping the memory.
    pub fn clear(&mut self) {
        self.removed = FieldSet::default();
        self.added.clear();
        self.is_too_large = false;
    }

    /// Whether lines were left out since they are more than a head may have. Who applies the edits has to ask.
    #[inline]
    pub fn is_too_large(&self) -> bool {
        self.is_too_large
    }

    /// Whether there is any.
    #[inline]
    pub fn is_changed(&self) -> bool {
        !self.added.is_empty() || self.removed != FieldSet::default()
    }

    /// Adds a line, within [`ADDED_BYTES_MAX`].
    #[inline]
    pub fn add(&mut self, name: FieldName<'_>, value: FieldValue<'_>) {
        match self.added.len() + name.0.len() + value.0.len() <= ADDED_BYTES_MAX {
            true => self.append(name, value),
            false => self.is_too_large = true,
        }
    }

    /// Adds a line of the gateway's own, whatever plugins have added.
    #[inline]
    pub fn append(&mut self, name: FieldName<'_>, value: FieldValue<'_>) {
        self.added.extend_from_slice(name.0);
        self.added.extend_from_slice(b": ");
        self.added.extend_from_slice(value.0);
        self.added.extend_from_slice(b"\r\n");
    }

    /// Takes out all lines of a name, those that were added among them.
    pub fn remove(&mut self, fields: &Fields, head: &[u8], name: FieldName<'_>) {
        for (index, field) in fields.iter().enumerate() {
            if name.is(field.name.of(head)) {
                self.removed.insert(index);
            }
        }
        let mut at = 0;
        while let Some((line, _)) = line_at(&self.added, at) {
            match name.is(line.name) {
                true => drop(self.added.drain(at..at + line.bytes)),
                false => at += line.bytes,
            }
        }
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
        let came = came.filter(move |(_, field)| name.is(field.name.of(head)));
        let came = came.map(move |(_, field)| field.value.of(head));
        came.chain(lines(&self.added).filter(move |line| name.is(line.name)).map(|line| line.value))
    }

    /// Calls `visit` with name and value of every line after the edits.
    pub fn each(&self, fields: &Fields, head: &[u8], visit: &mut dyn FnMut(&[u8], &[u8])) {
        for (index, field) in fields.iter().enumerate() {
            if !self.removed.contains(index) {
                visit(field.name.of(head), field.value.of(head));
            }
        }
        lines(&self.added).for_each(|line| visit(line.name, line.value));
    }

    /// Puts the lines of `over` in place of those here that have their names.
    pub fn overlay(&mut self, fields: &Fields, head: &[u8], over: &Edits) {
        for line in lines(&over.added) {
            self.remove(fields, head, FieldName(line.name));
        }
        self.added.extend_from_slice(&over.added);
        self.is_too_large |= over.is_too_large || self.added.len() > ADDED_BYTES_MAX;
    }
}

/// A line that was added.
struct Line<'a> {
    name: &'a [u8],
    value: &'a [u8],
    /// With its CRLF.
    bytes: usize,
}

fn lines(added: &[u8]) -> impl Iterator<Item = Line<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let (line, next) = line_at(added, at)?;
        at = next;
        Some(line)
    })
}

/// The line that begins there, and where the next one does.
fn line_at(added: &[u8], at: usize) -> Option<(Line<'_>, usize)> {
    let rest = added.get(at..).filter(|rest| !rest.is_empty())?;
    let end = memchr::memchr(b'\n', rest)? + 1;
    let colon = memchr::memchr(b':', &rest[..end])?;
    let line = Line { name: &rest[..colon], value: rest[colon + 1..end].trim_ascii(), bytes: end };
    Some((line, at + end))
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
        let is_bad = |byte: &u8| *byte <= b' ' || *byte == 0x7f;
        if target.first() != Some(&b'/') || target.iter().any(is_bad) {
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
        assert_eq!(edits.added, b"C: 6\r\nb: 7\r\nB: 8\r\n");
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
        assert!(edits.is_too_large() && edits.added.len() <= ADDED_BYTES_MAX);
        edits.append(name("C"), value("ours"));
        assert_eq!(values(&edits, "c"), ["ours"]);
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
