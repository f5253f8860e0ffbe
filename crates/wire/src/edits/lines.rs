//! Lines that edits add to a head, found by their names without searching text.

use super::names::{FieldName, FieldValue, Shapes};
use crate::name::Name;

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
