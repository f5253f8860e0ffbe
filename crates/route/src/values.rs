//! What is asked of a matcher, and the values of a request's fields: each is looked up at most once, and kept until the next
//! request.
//!
//! Texts are copied one behind the other into one piece of memory; the values of a field are a chain of entries. Nothing
//! is cleared between requests: a slot whose generation is not the present one has not been looked up yet.

use crate::Method;
use crate::condition::Field;
use crate::fields::{FieldSlots, SlotId, variable_of};
use crate::function::FunctionDecisions;
use crate::path::{self, NormalisedPath, PathError};
use crate::regex::RegexWork;
use crate::text::{decode, is_plain, lower_case};
use crate::variable::{Lookup, Variable};
use std::io::Write;
use std::net::IpAddr;

/// Most values of arguments that routes read. A lookup that one value leads to may need all values of another argument,
/// so this bounds the cost of a query; OpenResty, which Kong uses, reads no more either.
pub const ARGUMENTS_MAX: usize = 1000;

/// No entry.
pub(crate) const NONE: u32 = u32::MAX;

/// The values that have been looked up for the present request.
#[derive(Debug, Default)]
pub(crate) struct Values {
    kept: ValueCache,
    /// For lookups that compose a value, and for decoding.
    buffer: Vec<u8>,
    lent: Vec<Vec<u8>>,
    headers: Present,
    arguments: Present,
    has_too_many_arguments: bool,
    /// Decisions of the functions of routes.
    pub(crate) decided: FunctionDecisions,
    /// What regexes may still do.
    pub(crate) work: RegexWork,
}

/// The slots of those header fields or arguments that a request has and some predicate reads.
#[derive(Debug, Default)]
struct Present {
    is_read: bool,
    slots: Vec<SlotId>,
}

#[derive(Debug, Default)]
struct ValueCache {
    generation: u32,
    chains: Vec<SlotValues>,
    entries: Vec<ValueRange>,
    text: Vec<u8>,
}

/// The values of one slot.
#[derive(Debug, Clone, Copy)]
struct SlotValues {
    generation: u32,
    first: u32,
    last: u32,
}

/// One value, as a range of [`ValueCache::text`].
#[derive(Debug, Clone, Copy)]
struct ValueRange {
    start: u32,
    len: u32,
    next: u32,
}

impl Values {
    /// Forgets the previous request.
    pub(crate) fn begin(&mut self, fields: &FieldSlots) {
        self.kept.begin(fields.len());
        self.has_too_many_arguments = false;
        self.decided.begin();
        self.work = RegexWork::default();
        for present in [&mut self.headers, &mut self.arguments] {
            present.is_read = false;
            present.slots.clear();
        }
    }

    /// Fails if regexes were given up, so that what was found is not the answer.
    #[inline]
    pub(crate) fn check_work(&self) -> Result<(), PathError> {
        match self.work.is_exhausted() {
            false => Ok(()),
            true => Err(PathError::TooMuchWork),
        }
    }

    /// The first value of a slot, for [`Values::text`] and [`Values::next`]; [`NONE`] where it is absent.
    #[inline]
    pub(crate) fn first(&mut self, slot: SlotId, fields: &FieldSlots, request: &MatchRequest<'_>) -> u32 {
        if !self.kept.is_known(slot) {
            self.look_up(slot, fields, request);
        }
        self.kept.chains[slot as usize].first
    }

    #[inline]
    pub(crate) fn text(&self, entry: u32) -> &[u8] {
        self.kept.value(entry)
    }

    #[inline]
    pub(crate) fn next(&self, entry: u32) -> u32 {
        self.kept.entries[entry as usize].next
    }

    /// The values from an entry on.
    pub(crate) fn chain(&self, first: u32) -> impl Iterator<Item = &[u8]> {
        let is_entry = |entry: &u32| *entry != NONE;
        let entries =
            std::iter::successors(Some(first).filter(is_entry), move |entry| Some(self.next(*entry)).filter(is_entry));
        entries.map(|entry| self.text(entry))
    }

    /// A value on its own, so that other values can be looked up while it is used. To be given back.
    pub(crate) fn lend(&mut self, entry: u32) -> Vec<u8> {
        let mut lent = self.lent.pop().unwrap_or_default();
        lent.clear();
        lent.extend_from_slice(self.text(entry));
        lent
    }

    /// Takes back a lent value, to reuse its memory.
    pub(crate) fn return_lent(&mut self, lent: Vec<u8>) {
        self.lent.push(lent);
    }

    /// Whether the query has more than [`ARGUMENTS_MAX`] arguments that predicates read.
    pub(crate) fn has_too_many_arguments(&mut self, fields: &FieldSlots, request: &MatchRequest<'_>) -> bool {
        // An argument takes two bytes at least, so few queries have to be read for this.
        let query = request.vars.value(&Variable::Args, &mut self.buffer);
        if query.is_none_or(|query| query.len() <= 2 * ARGUMENTS_MAX) {
            return false;
        }
        self.read_arguments(fields, request);
        self.has_too_many_arguments
    }

    /// The number of header fields of the request that some predicate reads.
    pub(crate) fn headers_present(&mut self, fields: &FieldSlots, request: &MatchRequest<'_>) -> usize {
        self.read_headers(fields, request);
        self.headers.slots.len()
    }

    /// One of these header fields.
    pub(crate) fn header_present(&self, index: usize) -> SlotId {
        self.headers.slots[index]
    }

    /// The number of arguments of the query that some predicate reads.
    pub(crate) fn arguments_present(&mut self, fields: &FieldSlots, request: &MatchRequest<'_>) -> usize {
        self.read_arguments(fields, request);
        self.arguments.slots.len()
    }

    /// One of these arguments.
    pub(crate) fn argument_present(&self, index: usize) -> SlotId {
        self.arguments.slots[index]
    }

    #[inline(never)]
    fn look_up(&mut self, slot: SlotId, fields: &FieldSlots, request: &MatchRequest<'_>) {
        let definition = fields.get(slot);
        if let Some(base) = definition.lower_of {
            return self.lower(slot, base, fields, request);
        }
        match &definition.field {
            // These are read with all others of their kind; those that are not in the request are absent.
            Field::Header(_) => self.read_headers(fields, request),
            Field::Query(_) => self.read_arguments(fields, request),
            _ => {}
        }
        if self.kept.is_known(slot) {
            return;
        }
        self.kept.set_absent(slot);
        let (kept, buffer) = (&mut self.kept, &mut self.buffer);
        match &definition.field {
            Field::Method => {
                if let Some(text) = method_text(request, buffer) {
                    kept.push(slot, text);
                }
            }
            Field::Host if request.host.is_empty() => {}
            Field::Host => kept.push(slot, request.host),
            Field::Path => kept.push(slot, request.path.bytes()),
            // `%2F` stays as this reading has it, so that a match that depends on whether it is a slash is found.
            Field::Variable(Variable::Uri) => kept.push(slot, path::decode_but_slashes(request.path.bytes(), buffer)),
            Field::Segment(index) => {
                if let Some(text) = segments(request, *index, *index) {
                    kept.push(slot, text);
                }
            }
            Field::Segments(first, last) => {
                if let Some(text) = segments(request, *first, *last) {
                    kept.push(slot, text);
                }
            }
            Field::SegmentCount => kept.push_written(slot, segment_count(request)),
            Field::SourceIp => kept.push_written(slot, request.client.to_canonical()),
            field => {
                let value = variable_of(field).and_then(|variable| request.vars.value(variable, buffer));
                if let Some(text) = value {
                    kept.push(slot, text);
                }
            }
        }
    }

    /// Fills a slot with the values of another in lower case.
    fn lower(&mut self, slot: SlotId, base: SlotId, fields: &FieldSlots, request: &MatchRequest<'_>) {
        let mut entry = self.first(base, fields, request);
        self.kept.set_absent(slot);
        while entry != NONE {
            let text = self.kept.value(entry);
            self.buffer.clear();
            lower_case(text, &mut self.buffer);
            self.kept.push(slot, &self.buffer);
            entry = self.next(entry);
        }
    }

    /// Fills the slots of all header fields at once, so that a request is walked once, however many names are read.
    fn read_headers(&mut self, fields: &FieldSlots, request: &MatchRequest<'_>) {
        if std::mem::replace(&mut self.headers.is_read, true) {
            return;
        }
        let Values { kept, headers, .. } = self;
        request.vars.each_header(&mut |name, value| {
            if let Some(slot) = fields.header(name) {
                headers.add(slot, value, kept);
            }
        });
    }

    fn read_arguments(&mut self, fields: &FieldSlots, request: &MatchRequest<'_>) {
        if std::mem::replace(&mut self.arguments.is_read, true) {
            return;
        }
        let Values { kept, arguments, buffer, has_too_many_arguments, .. } = self;
        let mut count = 0;
        // The query is part of the request, so nothing has to be composed.
        let Some(query) = request.vars.value(&Variable::Args, buffer) else { return };
        // Decoded behind the kept texts, one after the other.
        for pair in query.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()) {
            let (name, value) = match memchr::memchr(b'=', pair) {
                Some(at) => (&pair[..at], &pair[at + 1..]),
                None => (pair, &b""[..]),
            };
            let slot = if is_plain(name) {
                fields.argument(name)
            } else {
                let decoded = kept.append_decoded(name);
                let slot = fields.argument(&kept.text[decoded..]);
                kept.text.truncate(decoded);
                slot
            };
            if let Some(slot) = slot {
                count += 1;
                if count > ARGUMENTS_MAX {
                    *has_too_many_arguments = true;
                    return;
                }
                if is_plain(value) {
                    arguments.add(slot, value, kept);
                } else {
                    arguments.mark(slot, kept);
                    let start = kept.append_decoded(value);
                    kept.link(slot, start);
                }
            }
        }
    }
}

impl Present {
    fn add(&mut self, slot: SlotId, value: &[u8], kept: &mut ValueCache) {
        self.mark(slot, kept);
        kept.push(slot, value);
    }

    fn mark(&mut self, slot: SlotId, kept: &mut ValueCache) {
        if !kept.is_known(slot) {
            kept.set_absent(slot);
            self.slots.push(slot);
        }
    }
}

#[cfg(test)]
impl Values {
    /// Sets the generation to its maximum, so that counting starts again with the next request.
    pub(crate) fn wear_out(&mut self) {
        self.kept.generation = u32::MAX;
    }
}

impl ValueCache {
    fn begin(&mut self, slots: usize) {
        self.generation = self.generation.wrapping_add(1);
        if self.generation == 0 {
            self.chains.clear();
            self.generation = 1;
        }
        if self.chains.len() < slots {
            self.chains.resize(slots, SlotValues { generation: 0, first: NONE, last: NONE });
        }
        self.entries.clear();
        self.text.clear();
    }

    #[inline]
    fn is_known(&self, slot: SlotId) -> bool {
        self.chains[slot as usize].generation == self.generation
    }

    fn set_absent(&mut self, slot: SlotId) {
        self.chains[slot as usize] = SlotValues { generation: self.generation, first: NONE, last: NONE };
    }

    fn push(&mut self, slot: SlotId, value: &[u8]) {
        let start = self.text.len();
        self.text.extend_from_slice(value);
        self.link(slot, start);
    }

    fn push_written(&mut self, slot: SlotId, value: impl std::fmt::Display) {
        let start = self.text.len();
        write!(self.text, "{value}").expect("writing to a vector does not fail");
        self.link(slot, start);
    }

    /// Turns the text from `start` on into a value of a slot.
    fn link(&mut self, slot: SlotId, start: usize) {
        let entry = self.entries.len() as u32;
        self.entries.push(ValueRange { start: start as u32, len: (self.text.len() - start) as u32, next: NONE });
        let chain = &mut self.chains[slot as usize];
        match chain.last {
            NONE => chain.first = entry,
            last => self.entries[last as usize].next = entry,
        }
        chain.last = entry;
    }

    fn append_decoded(&mut self, text: &[u8]) -> usize {
        let start = self.text.len();
        decode(text, &mut self.text);
        start
    }

    #[inline]
    fn value(&self, entry: u32) -> &[u8] {
        let entry = self.entries[entry as usize];
        &self.text[entry.start as usize..][..entry.len as usize]
    }
}

/// The method as text.
fn method_text<'a>(request: &'a MatchRequest<'_>, buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    match request.method {
        Method::Other => request.vars.value(&Variable::RequestMethod, buffer),
        named => named.name().map(str::as_bytes),
    }
}

/// The path without the slashes it begins and ends with.
fn inner_path<'a>(request: &MatchRequest<'a>) -> &'a [u8] {
    let path = request.path.bytes();
    let path = path.strip_prefix(b"/").unwrap_or(path);
    path.strip_suffix(b"/").unwrap_or(path)
}

/// The number of segments of the path. A slash at the end begins none, and the root has none.
pub(crate) fn segment_count(request: &MatchRequest<'_>) -> i64 {
    match inner_path(request) {
        b"" => 0,
        path => memchr::memchr_iter(b'/', path).count() as i64 + 1,
    }
}

/// The segments from `first` to `last` with the slashes between them; `None` if there is no segment `last`.
fn segments<'a>(request: &MatchRequest<'a>, first: u16, last: u16) -> Option<&'a [u8]> {
    let path = inner_path(request);
    if path.is_empty() {
        return None;
    }
    let mut slashes = memchr::memchr_iter(b'/', path);
    let start = match first {
        0 => 0,
        first => slashes.nth(usize::from(first) - 1)? + 1,
    };
    let end = match slashes.nth(usize::from(last - first)) {
        Some(end) => end,
        // With one slash less, it is the last segment; with fewer, it does not exist.
        None if memchr::memchr_iter(b'/', &path[start..]).count() == usize::from(last - first) => path.len(),
        None => return None,
    };
    Some(&path[start..end])
}

/// The parts of a request that are matched.
#[derive(Clone, Copy)]
pub struct MatchRequest<'a> {
    /// Its method.
    pub method: Method,
    /// In the form of [`crate::canonical_host`]; empty where it has none.
    pub host: &'a [u8],
    /// Made by [`path::normalise`](crate::path::normalise).
    pub path: NormalisedPath<'a>,
    /// The client, after trusted proxies were believed.
    pub client: IpAddr,
    /// Everything else.
    pub vars: &'a dyn Lookup,
}
