//! Changes to a head, kept separately: the parsed bytes are never moved.
//!
//! Names and values are types that cannot split a message: they are checked where they are made, in every build. Fields
//! that frame a message or belong to one connection cannot be edited by name at all.
//!
//! A name carries the parser's id for it, so that most comparisons are of two numbers, and lines that plugins add are
//! listed, so that none is searched for in text.

mod fields;

use crate::chunked::is_forbidden_trailer;
use crate::head::{Field, FieldSet, Fields};
use crate::host::is_host;
use crate::name::{Name, is_same};
use fields::{FieldLine, Lines, Shapes, has_any, is_token, push_line};
pub use fields::{FieldName, FieldValue, OwnedFieldName, OwnedFieldValue, OwnedLine, remove_lines};
use itoa::Buffer;
use std::borrow::Cow;
use std::fmt;

/// Why a name, value, target or the like cannot be part of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EditError {
    /// A field's name is not a token (RFC 9110 section 5.1).
    Name,
    /// The field frames the message or belongs to one connection (RFC 9110 section 7.6.1), so it is ours to set.
    Framing,
    /// A value has a control character in it (RFC 9110 section 5.5).
    Value,
    /// A target has a blank or a control character in it, or does not begin with `/`.
    Target,
    /// A `Host` for the node is neither a name nor an address (RFC 9110 section 7.2).
    Host,
    /// A method is not a token (RFC 9110 section 9.1).
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
            EditError::Host => "not a host: a name or an address, perhaps with a port",
            EditError::Method => "not an HTTP method",
            EditError::Status => "not a status from 200 to 599",
            EditError::TooLarge => "the head would be larger than a head may be",
        })
    }
}

impl std::error::Error for EditError {}

/// Bytes of lines that edits by name add to a head. A short template can repeat a value of the client many times.
pub const ADDED_BYTES_MAX: usize = 64 * 1024;

/// Changes to the fields of a head.
#[derive(Debug, Default, Clone)]
pub struct Edits {
    /// Lines that are left out.
    pub removed: FieldSet,
    /// Lines that are not searched by name any more, each with its CRLF: the gateway's own statements about a message,
    /// made of constants and checked values. In a request they come before `lines`, in a response behind them.
    pub appended: Vec<u8>,
    lines: Lines,
    /// A line was left out, since the others have used up [`ADDED_BYTES_MAX`]: the message cannot be sent.
    is_too_large: bool,
    /// For requests: a name that is set or removed takes its lookalikes with it. A node behind CGI, WSGI or PHP would
    /// mistake the client's `X_User` for the gateway's `X-User`.
    takes_lookalikes: bool,
    /// Bits of the names that were set or removed, for names that the parser knows.
    withdrawn: u32,
    /// For responses: names that were removed and that the parser does not know, each with an LF behind it. A trailer
    /// field must not bring back what was removed.
    removed_names: Vec<u8>,
    /// Bits of their tags.
    removed_tags: u64,
}

impl Edits {
    /// Removes all edits, keeping the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.removed = crate::head::FieldSet::default();
        self.appended.clear();
        (self.is_too_large, self.withdrawn) = (false, 0);
        if self.removed_tags != 0 {
            self.removed_names.clear();
            self.removed_tags = 0;
        }
        if !self.lines.list.is_empty() {
            self.lines.clear();
        }
    }

    /// Copies another's edits into this memory.
    pub fn copy_from(&mut self, other: &Edits) {
        let Edits { removed, appended, lines, is_too_large, takes_lookalikes, withdrawn, removed_names, removed_tags } =
            other;
        self.removed.clone_from(removed);
        self.appended.clone_from(appended);
        self.lines.copy_from(lines);
        (self.is_too_large, self.takes_lookalikes, self.withdrawn) = (*is_too_large, *takes_lookalikes, *withdrawn);
        self.removed_names.clone_from(removed_names);
        self.removed_tags = *removed_tags;
    }

    /// Whether lines were left out because they exceed the limit of a head. Callers that apply the edits must check
    /// this.
    #[inline]
    pub fn is_too_large(&self) -> bool {
        self.is_too_large
    }

    /// Whether there are edits.
    #[inline]
    pub fn is_changed(&self) -> bool {
        !self.lines.list.is_empty() || !self.appended.is_empty() || self.removed != crate::head::FieldSet::default()
    }

    /// Adds a line, within [`ADDED_BYTES_MAX`].
    #[inline]
    pub fn add(&mut self, name: FieldName<'_>, value: FieldValue<'_>) {
        match self.lines.text.len() + name.bytes.len() + value.0.len() <= ADDED_BYTES_MAX {
            true => self.lines.add(name, value),
            false => self.is_too_large = true,
        }
    }

    /// Adds a prepared line, within [`ADDED_BYTES_MAX`].
    #[inline]
    pub fn add_line(&mut self, line: &OwnedLine) {
        match self.lines.text.len() + line.name().bytes.len() + line.value().0.len() <= ADDED_BYTES_MAX {
            true => self.lines.add_line(line),
            false => self.is_too_large = true,
        }
    }

    /// Adds a line of the gateway itself, independent of the lines of plugins, that is not searched by name any more.
    #[inline]
    pub fn add_gateway_line(&mut self, name: FieldName<'_>, value: FieldValue<'_>) {
        push_line(&mut self.appended, name, value);
    }

    /// Removes all lines of a name, including added ones. In a request also those with names that some nodes cannot
    /// distinguish from it.
    pub fn remove(&mut self, fields: &Fields, head: &[u8], name: FieldName<'_>) {
        self.withdraw(fields, head, name);
        self.note_removed(name);
    }

    /// Like [`Edits::remove`], for a name of which a line will be added.
    fn withdraw(&mut self, fields: &Fields, head: &[u8], name: FieldName<'_>) {
        let takes_lookalikes = self.takes_lookalikes;
        for (index, field) in fields.iter().enumerate() {
            if name.is_of(field, head) || takes_lookalikes && name.is_like(field, head) {
                self.removed.insert(index);
            }
        }
        self.withdrawn |= 1 << name.id as u8;
        self.lines.remove(name);
    }

    /// Trailer fields have none of the names that the parser knows, and those of requests are not judged by name.
    fn note_removed(&mut self, name: FieldName<'_>) {
        if self.takes_lookalikes || name.id != Name::Other {
            return;
        }
        let bit = 1 << name.tag;
        if self.removed_tags & bit != 0 && self.removed_names().any(|removed| is_same(removed, name.bytes)) {
            return;
        }
        match self.removed_names.len() + name.bytes.len() < ADDED_BYTES_MAX {
            true => {
                self.removed_tags |= bit;
                self.removed_names.extend_from_slice(name.bytes);
                self.removed_names.push(b'\n');
            }
            false => self.is_too_large = true,
        }
    }

    fn removed_names(&self) -> impl Iterator<Item = &[u8]> {
        self.removed_names.split(|byte| *byte == b'\n').filter(|name| !name.is_empty())
    }

    /// Whether all lines of a name that the parser knows were removed, perhaps to be replaced: the gateway must not add
    /// its own.
    #[inline]
    pub fn is_withdrawn(&self, name: FieldName<'_>) -> bool {
        // All other names share a bit.
        !matches!(name.id, Name::Other | Name::Lookalike) && self.withdrawn & 1 << name.id as u8 != 0
    }

    /// Removes lines whose names some nodes cannot distinguish from this one, which stays.
    pub fn remove_lookalikes(&mut self, fields: &Fields, head: &[u8], name: FieldName<'_>) {
        for (index, field) in fields.iter().enumerate() {
            if name.is_like(field, head) {
                self.removed.insert(index);
            }
        }
    }

    /// Like [`Edits::remove`], for several names.
    pub fn remove_each(&mut self, fields: &Fields, head: &[u8], names: &[FieldName<'_>]) {
        let shapes = names.iter().fold(Shapes::default(), |shapes, name| shapes.with(*name));
        let takes_lookalikes = self.takes_lookalikes;
        let is_it = |name: &FieldName<'_>, field: &Field| {
            name.is_of(field, head) || takes_lookalikes && name.is_like(field, head)
        };
        let shapes = if takes_lookalikes { shapes.with_lookalikes() } else { shapes };
        self.remove_shaped(fields, shapes, |field| names.iter().any(|name| is_it(name, field)));
        for name in names {
            self.lines.remove(*name);
            self.note_removed(*name);
        }
    }

    /// Removes lines of the head for which `is_it` holds; their names have one of these shapes.
    #[inline]
    fn remove_shaped(&mut self, fields: &Fields, shapes: Shapes, is_it: impl Fn(&Field) -> bool) {
        for (index, field) in fields.iter().enumerate() {
            if shapes.may_have(field) && is_it(field) {
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

    /// Removes all added lines of a name.
    #[inline]
    pub fn remove_added(&mut self, name: FieldName<'_>) {
        self.lines.remove(name);
    }

    /// Replaces all lines of that name by one.
    pub fn set(&mut self, fields: &Fields, head: &[u8], name: FieldName<'_>, value: FieldValue<'_>) {
        self.withdraw(fields, head, name);
        self.add(name, value);
    }

    /// Like [`Edits::set`], with a prepared line.
    pub fn set_line(&mut self, fields: &Fields, head: &[u8], line: &OwnedLine) {
        self.withdraw(fields, head, line.name());
        self.add_line(line);
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

    /// The values of a name among the added lines, in their order.
    pub fn added(&self, name: FieldName<'_>) -> impl Iterator<Item = &[u8]> {
        let lines = &self.lines;
        let list = if lines.may_have(name) { &lines.list[..] } else { &[] };
        list.iter().filter(move |line| lines.is(**line, name)).map(|line| line.value(&lines.text))
    }

    /// Whether a line of one of these names may have been added. `false` is certain.
    #[inline]
    pub fn may_have_added(&self, names: &[FieldName<'_>]) -> bool {
        names.iter().any(|name| self.lines.shapes.may_have_id(name.id))
    }

    /// Like [`Edits::may_have_added`], also for lines that were removed by one of these names.
    #[inline]
    pub fn may_have_changed(&self, names: &[FieldName<'_>]) -> bool {
        names.iter().any(|name| self.lines.shapes.may_have_id(name.id) || self.withdrawn & 1 << name.id as u8 != 0)
    }

    /// The added lines, without those of [`Edits::add_gateway_line`].
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

    /// The trailer lines of a response's body under names that were neither added nor removed: clients that read trailers
    /// as if they had been in the head would take them for what was.
    pub fn trailers<'a>(&self, lines: &'a [u8]) -> Cow<'a, [u8]> {
        if lines.is_empty() || self.lines.list.is_empty() && self.removed_tags == 0 {
            return Cow::Borrowed(lines);
        }
        let name_of = |line: &[u8]| line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let kept = lines.split_inclusive(|byte| *byte == b'\n').filter(|line| !self.is_edited(&line[..name_of(line)]));
        Cow::Owned(kept.collect::<Vec<_>>().concat())
    }

    /// Whether lines of a name were added or removed.
    fn is_edited(&self, name: &[u8]) -> bool {
        let added = self.lines.list.iter().map(|line| line.name(&self.lines.text));
        added.chain(self.removed_names()).any(|edited| is_same(edited, name))
    }

    /// Leaves the names of trailer fields that do not pass out of the lines of `Trailer`. `drops_underscores`: as for the fields of
    /// the head.
    #[inline]
    pub fn filter_trailer_names(&mut self, fields: &Fields, head: &[u8], drops_underscores: bool) {
        if fields.iter().any(|field| field.id == Name::Trailer) {
            self.filter_trailers(fields, head, drops_underscores);
        }
    }

    #[cold]
    fn filter_trailers(&mut self, fields: &Fields, head: &[u8], drops_underscores: bool) {
        for (index, field) in fields.iter().enumerate().filter(|(_, field)| field.id == Name::Trailer) {
            let passes = |name: &&[u8]| {
                let is_underscored = drops_underscores && name.contains(&b'_');
                !is_underscored && !is_forbidden_trailer(name) && !self.is_edited(name)
            };
            let names = || field.value.of(head).split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
            if names().all(|name| passes(&name)) {
                continue;
            }
            let passing: Vec<&[u8]> = names().filter(|name| !name.is_empty() && passes(name)).collect();
            self.removed.insert(index);
            if !passing.is_empty() {
                self.appended.extend_from_slice(b"Trailer: ");
                self.appended.extend_from_slice(&passing.join(&b", "[..]));
                self.appended.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Name and value of each line of [`Edits::appended`].
    pub fn appended_lines(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let lines = self.appended.split(|byte| *byte == b'\n');
        lines.filter_map(|line| {
            let colon = line.iter().position(|byte| *byte == b':')?;
            Some((&line[..colon], line[colon + 1..].trim_ascii()))
        })
    }

    /// Replaces lines by those of `over` with the same names.
    pub fn overlay(&mut self, fields: &Fields, head: &[u8], over: &Edits) {
        let Lines { text, list, tags, shapes } = &over.lines;
        self.is_too_large |= over.is_too_large;
        self.withdrawn |= over.withdrawn;
        self.removed_tags |= over.removed_tags;
        self.removed_names.extend_from_slice(&over.removed_names);
        if list.is_empty() {
            return;
        }
        let name_of = |line: &FieldLine| FieldName { bytes: line.name(text), id: line.id, tag: line.tag };
        self.remove_shaped(fields, *shapes, |field| list.iter().any(|line| name_of(line).is_of(field, head)));
        if self.lines.tags & tags != 0 {
            list.iter().for_each(|line| self.lines.remove(name_of(line)));
        }
        self.lines.append(&over.lines);
        self.is_too_large |= self.lines.text.len() > ADDED_BYTES_MAX;
    }
}

/// Changes to a request's head.
#[derive(Debug)]
pub struct RequestEdits {
    /// Changes to its fields.
    pub fields: Edits,
    /// Empty if it is unchanged.
    method: Vec<u8>,
    /// Empty if it is unchanged.
    target: Vec<u8>,
    /// Empty if the upstream's `pass_host` decides.
    host: Vec<u8>,
}

impl Default for RequestEdits {
    fn default() -> Self {
        let fields = Edits { takes_lookalikes: true, ..Edits::default() };
        RequestEdits { fields, method: Vec::new(), target: Vec::new(), host: Vec::new() }
    }
}

impl RequestEdits {
    /// Removes all edits, keeping the memory.
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
        if target.first() != Some(&b'/') || has_any(target, |byte| (byte <= b' ') | (byte == 0x7f)) {
            return Err(EditError::Target);
        }
        if target.len() > crate::HEAD_BYTES_MAX {
            return Err(EditError::TooLarge);
        }
        self.target.clear();
        self.target.extend_from_slice(target);
        Ok(())
    }

    /// Sets the `Host` that the node sees. Empty: it is not set.
    pub fn set_host(&mut self, host: &[u8]) -> Result<(), EditError> {
        if !host.is_empty() && !is_host(host) {
            return Err(EditError::Host);
        }
        self.host.clear();
        self.host.extend_from_slice(host);
        Ok(())
    }

    /// The method, if it was changed.
    pub fn method(&self) -> Option<&[u8]> {
        (!self.method.is_empty()).then_some(&self.method[..])
    }

    /// Path and query, if they were changed.
    pub fn target(&self) -> Option<&[u8]> {
        (!self.target.is_empty()).then_some(&self.target[..])
    }

    /// The `Host` that the node sees, if it was set.
    pub fn host(&self) -> Option<&[u8]> {
        (!self.host.is_empty()).then_some(&self.host[..])
    }
}

/// Changes to a response's head.
#[derive(Debug, Default)]
pub struct ResponseEdits {
    /// Changes to its fields.
    pub fields: Edits,
    status: Option<u16>,
}

impl ResponseEdits {
    /// Removes all edits, keeping the memory.
    pub fn clear(&mut self) {
        self.fields.clear();
        self.status = None;
    }

    /// Replaces the status, and its reason with it.
    pub fn set_status(&mut self, status: u16) -> Result<(), EditError> {
        if !(200..=599).contains(&status) {
            return Err(EditError::Status);
        }
        self.status = Some(status);
        Ok(())
    }

    /// Restores the original status.
    pub fn keep_status(&mut self) {
        self.status = None;
    }

    /// The status, if it was changed.
    #[inline]
    pub fn status(&self) -> Option<u16> {
        self.status
    }
}

#[cfg(test)]
mod tests;

// Numbers as values of header fields: digits by construction, so that they need no check.

/// Room for the digits of all numbers, a point and hundredths.
const BYTES_MAX: usize = u64::MAX.ilog10() as usize + 1 + 3;

/// The text of a number.
#[derive(Debug)]
pub struct Decimal {
    text: [u8; BYTES_MAX],
    len: usize,
}

impl Decimal {
    /// A whole number.
    pub fn whole(number: u64) -> Decimal {
        let mut digits = Buffer::new();
        let digits = digits.format(number).as_bytes();
        let mut text = [0; BYTES_MAX];
        text[..digits.len()].copy_from_slice(digits);
        Decimal { text, len: digits.len() }
    }

    /// Seconds, rounded down to hundredths, without trailing zeros, as Lua writes them.
    pub fn seconds(ms: u64) -> Decimal {
        let mut seconds = Decimal::whole(ms / 1000);
        let hundredths = (ms % 1000 / 10) as u8;
        if hundredths != 0 {
            let at = seconds.len;
            seconds.text[at..at + 3].copy_from_slice(&[b'.', b'0' + hundredths / 10, b'0' + hundredths % 10]);
            seconds.len += if hundredths.is_multiple_of(10) { 2 } else { 3 };
        }
        seconds
    }

    /// The value, for edits.
    #[inline]
    pub fn value(&self) -> FieldValue<'_> {
        FieldValue(&self.text[..self.len])
    }
}

#[cfg(test)]
mod decimal_tests {
    use super::*;

    #[test]
    fn whole_numbers() {
        for number in [0, 9, 10, 1_000_000, u64::MAX] {
            assert_eq!(Decimal::whole(number).value().bytes(), number.to_string().as_bytes());
        }
    }

    #[test]
    fn seconds_as_lua_writes_them() {
        let check = |ms: u64, expected: &str| {
            assert_eq!(Decimal::seconds(ms).value().bytes(), expected.as_bytes(), "{ms}");
        };
        check(60_000, "60");
        check(59_999, "59.99");
        check(59_900, "59.9");
        check(1_050, "1.05");
        check(9, "0");
        check(u64::MAX, "18446744073709551.61");
    }
}
