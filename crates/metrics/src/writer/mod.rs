//! A thread's end of the metrics: finds series by their labels, and changes their values.
//!
//! Cost for a request: with a [`Handle`] from before, a load, an addition and two stores; with labels, a hash and a
//! comparison more. A new label set takes the slower path in `first_seen`, which does not wait either.
//!
//! The code that maintains series can also copy the values of ended processes' series, and write tombstones.

mod first_seen;
mod index;
pub(crate) mod memory;
pub(crate) mod requests;
#[cfg(test)]
mod tests;

use crate::declared::DeclaredFamily;
use crate::family::{FamilyType, Merge};
use crate::registry::RegistryCore;
use crate::segment::cells::{self, CellForm, Shape};
use crate::segment::layout::{
    CLOSED, CLOSED_BASE, FLAG_COLLAPSED, FLAG_ESCAPED, HEAD_WORDS, RecordHead, RecordKind, TOMBSTONE_WORDS, unpair,
};
use crate::segment::{Segment, SegmentProcess};
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicU64, ReadOnly, Word};
use crate::value::Distribution;
use crate::{labels, protocol};
use index::{Pages, RecordIndex};
use memory::WriterMemory;
use std::fmt;
use std::sync::Arc;

/// A series of one writer, for reuse. It ends with the writer's [`Writer::generation`]: a change through an older
/// handle is refused, and the series has to be looked up again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle {
    /// Position of the record, in words of the log.
    at: u32,
    /// The generation, and the type of its cells.
    tag: u32,
}

impl Handle {
    /// A handle without a series: changes through it are refused.
    pub const NONE: Handle = Handle { at: 0, tag: u32::MAX };
}

/// Types of cells in a handle's tag.
const UNSIGNED: u32 = 0;
const FLOAT: u32 = 1;
const LAST: u32 = 2;
const HISTOGRAM: u32 = 3;
const FORM_BITS: u32 = 2;

/// This writer's entry of a family.
pub(crate) struct LocalFamily {
    declared: Arc<DeclaredFamily>,
    /// The family's number in this segment.
    number: u16,
    /// The series for observations that find no room anywhere else: all its labels are `__other__`.
    overflow: Option<u32>,
    /// The generation of the last policy that is recorded in this segment.
    generation: u32,
}

/// The single writer of its segment.
pub struct Writer {
    pub(crate) inner: Arc<RegistryCore>,
    pub(crate) memory: Arc<WriterMemory>,
    segment: Arc<Segment>,
    index: RecordIndex,
    /// Indexed by the id of the declared family.
    locals: Vec<Option<LocalFamily>>,
    /// The declared id, by number in this segment.
    numbers: Vec<u32>,
    epoch: u32,
    generation: u32,
    now_ms: u64,
    /// Words of the log in use.
    log_used: usize,
    /// Words of the log reserved for overflow series.
    reserve: usize,
    /// Number of series, and of reserved epochs.
    series: usize,
    reserved_series: usize,
    /// The family of collapsed observations.
    counts: Arc<DeclaredFamily>,
    /// Buffers for label texts and canonical values, reused.
    text: Vec<u8>,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("segment", &self.segment).field("series", &self.series).finish_non_exhaustive()
    }
}

impl Writer {
    pub(crate) fn new(inner: Arc<RegistryCore>, memory: Arc<WriterMemory>) -> Writer {
        let segment = memory.segment.clone();
        memory.pages.use_up_to(1);
        Writer {
            now_ms: inner.options.now_ms,
            counts: inner.collapsed(),
            inner,
            memory,
            segment,
            index: RecordIndex::new(),
            locals: Vec::new(),
            numbers: Vec::new(),
            epoch: 1,
            generation: 0,
            log_used: 0,
            reserve: 0,
            series: 0,
            reserved_series: 0,
            text: Vec::new(),
        }
    }

    /// Begins the next epoch; must be called within 100 ms of a change and once a second, with the time in milliseconds
    /// since the epoch. Readers look again at values changed since the tick before their last look: without ticks, at
    /// all values. Requests to a writer, such as forgetting series, wait for its next tick.
    pub fn tick(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        self.epoch = self.epoch.wrapping_add(1);
        let header = self.segment.own_header();
        protocol::advance(&header.epoch, self.epoch);
        header.heartbeat_ms.store(now_ms, Relaxed);
        self.take_requests();
    }

    /// Changes when handles become invalid.
    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The series with these label values, in the family's order; created if it is new.
    ///
    /// # Panics
    ///
    /// If there are not as many values as labels.
    #[inline]
    pub fn series(&mut self, family: &Arc<DeclaredFamily>, values: &[&[u8]]) -> Handle {
        assert_eq!(values.len(), family.family().labels.len(), "one value for each label");
        let hash = self.inner.hash(family.id, values);
        match self.find(family, values, hash).or_else(|| self.first_seen(family, values, hash)) {
            Some(at) => Handle { at, tag: self.tag(form_of(&family.shape)) },
            None => Handle::NONE,
        }
    }

    /// Like [`Writer::series`] for a series whose value has been counted elsewhere since `since_ms`, and is copied here
    /// from time to time: it begins then, and not with the first copy.
    pub fn series_since(&mut self, family: &Arc<DeclaredFamily>, values: &[&[u8]], since_ms: u64) -> Handle {
        // The declaration is dated now: of two that contradict each other, the later one counts.
        self.know(family);
        let now_ms = self.now_ms;
        self.now_ms = since_ms.min(now_ms);
        let handle = self.series(family, values);
        self.now_ms = now_ms;
        handle
    }

    /// When its registry was started, in milliseconds since the epoch.
    pub fn started_ms(&self) -> u64 {
        self.inner.options.now_ms
    }

    /// Whether some of the series' label values replace others that were given. A caller that wants its observations
    /// counted as collapsed must not keep a handle of it.
    #[inline]
    pub fn is_collapsed(&self, handle: Handle) -> bool {
        let head = RecordHead::unpack(self.segment.own_log()[handle.at as usize].load(Relaxed));
        head.is_some_and(|head| head.flags & FLAG_COLLAPSED != 0)
    }

    /// Adds to a counter. False: the handle is of another generation, or not a counter's; nothing was added.
    #[inline]
    #[must_use = "a handle of an older generation adds nothing"]
    pub fn add(&mut self, handle: Handle, amount: u64) -> bool {
        self.change(handle, UNSIGNED, |cell| cells::add(cell, amount))
    }

    /// Adds to a float counter, or to a gauge merged by sum or maximum. False as with [`Writer::add`].
    #[inline]
    #[must_use = "a handle of an older generation adds nothing"]
    pub fn add_float(&mut self, handle: Handle, amount: f64) -> bool {
        self.change(handle, FLOAT, |cell| cells::add_float(cell, amount))
    }

    /// Sets a gauge, or an info to 1. False as with [`Writer::add`].
    #[inline]
    #[must_use = "a handle of an older generation sets nothing"]
    pub fn set(&mut self, handle: Handle, value: f64) -> bool {
        if handle.tag == self.tag(LAST) {
            // If another process carries on the metrics, its value is the last.
            if !self.inner.is_handed_over() {
                let stamp = &self.segment.own_log()[handle.at as usize + HEAD_WORDS + 1];
                stamp.store(self.now_ms, Relaxed);
            }
            return self.change(handle, LAST, |cell| cell.store(value.to_bits(), Relaxed));
        }
        self.change(handle, FLOAT, |cell| cell.store(value.to_bits(), Relaxed))
    }

    /// Counts an observation in a histogram. False as with [`Writer::add`].
    #[inline]
    #[must_use = "a handle of an older generation counts nothing"]
    pub fn observe(&mut self, handle: Handle, value: f64) -> bool {
        if handle.tag != self.tag(HISTOGRAM) {
            return false;
        }
        let log = self.segment.own_log();
        let at = handle.at as usize;
        let Some(local) = self.local_of(log[at].load(Relaxed)) else { return false };
        let CellForm::Histogram { bounds, native } = &local.declared.shape.form else { return false };
        cells::observe(&log[at + HEAD_WORDS..], bounds, native.as_ref(), value);
        self.mark(log, at);
        true
    }

    /// Stores an exemplar for a counter, or for the bucket of `value`. `labels` are names and values, usually a trace
    /// id. False if the family has no exemplars, the text is too long, or as with [`Writer::add`].
    #[must_use = "an exemplar may be refused"]
    pub fn exemplar(&mut self, handle: Handle, value: f64, labels: &[(&str, &[u8])]) -> bool {
        if handle.tag >> FORM_BITS != self.generation {
            return false;
        }
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        for (index, (name, value)) in labels.iter().enumerate() {
            labels::push_pair(&mut text, index == 0, name, value);
        }
        let log = self.segment.own_log();
        let at = handle.at as usize;
        let kept = self.local_of(log[at].load(Relaxed)).is_some_and(|local| {
            let shape = &local.declared.shape;
            let bucket = match &shape.form {
                CellForm::Histogram { bounds, .. } => cells::bucket_of(bounds, value),
                _ => 0,
            };
            shape.keep_exemplar(&log[at + HEAD_WORDS..], bucket, value, self.now_ms, &text)
        });
        if kept {
            self.mark(log, at);
        }
        self.text = text;
        kept
    }

    #[inline]
    fn change(&self, handle: Handle, form: u32, change: impl FnOnce(&AtomicU64)) -> bool {
        if handle.tag != self.tag(form) {
            return false;
        }
        let log = self.segment.own_log();
        let at = handle.at as usize;
        change(&log[at + HEAD_WORDS]);
        self.mark(log, at);
        true
    }

    #[inline]
    fn tag(&self, form: u32) -> u32 {
        self.generation << FORM_BITS | form
    }

    #[inline]
    fn mark(&self, log: &[AtomicU64], at: usize) {
        let (number, _) = unpair(log[at + 1].load(Relaxed));
        protocol::mark_changed(&self.segment.own_epochs()[number as usize], self.epoch);
    }

    #[inline]
    fn local_of(&self, first_word: u64) -> Option<&LocalFamily> {
        let head = RecordHead::unpack(first_word)?;
        let id = *self.numbers.get(head.family as usize)?;
        self.locals.get(id as usize)?.as_ref()
    }

    #[inline]
    fn find(&self, family: &DeclaredFamily, values: &[&[u8]], hash: u64) -> Option<u32> {
        let local = self.locals.get(family.id as usize)?.as_ref()?;
        let log = self.segment.own_log();
        let names = &family.family().labels;
        let text_at = HEAD_WORDS + family.shape.words;
        self.index.find(self.pages(), hash as u32, |at| {
            let at = at as usize;
            let (first, (_, bytes)) = (log[at].load(Relaxed), unpair(log[at + 1].load(Relaxed)));
            let Some(head) = RecordHead::unpack(first) else { return false };
            // Series of one family have the text at the same offset.
            let text = self.segment.text_at(at + text_at, bytes as usize);
            head.family == local.number
                && match head.flags & FLAG_ESCAPED {
                    0 => labels::stand_in(text, names, values),
                    _ => labels::matches(text, names, values),
                }
        })
    }

    #[inline]
    fn pages(&self) -> Pages<'_> {
        Pages { words: self.memory.index_words(), ready: self.memory.pages.ready() }
    }
}

#[inline]
fn form_of(shape: &Shape) -> u32 {
    match shape.form {
        CellForm::Unsigned => UNSIGNED,
        CellForm::Float => FLOAT,
        CellForm::Last => LAST,
        CellForm::Histogram { .. } => HISTOGRAM,
    }
}

impl Writer {
    /// Adds all cells of another record of the same family; false if there is no room.
    pub(crate) fn restore_cells(
        &mut self,
        family: &Arc<DeclaredFamily>,
        values: &[&[u8]],
        created_ms: u64,
        changed_ms: u64,
        from: &[ReadOnly<AtomicU64>],
    ) -> bool {
        let handle = self.series(family, values);
        if handle == Handle::NONE || from.len() < family.shape.words {
            return false;
        }
        let at = handle.at as usize;
        let log = self.segment.own_log();
        let to = &log[at + HEAD_WORDS..];
        let float = f64::from_bits;
        match (&family.shape.form, &family.family().kind) {
            (CellForm::Unsigned, _) => cells::add(&to[0], from[0].get()),
            (_, FamilyType::Gauge(Merge::Max)) => {
                to[0].store(float(to[0].get()).max(float(from[0].get())).to_bits(), Relaxed)
            }
            (_, FamilyType::Info) => to[0].store(from[0].get(), Relaxed),
            (CellForm::Float, _) => cells::add_float(&to[0], float(from[0].get())),
            (CellForm::Last, _) => {
                if from[1].get() >= to[1].get() {
                    to[0].store(from[0].get(), Relaxed);
                    to[1].store(from[1].get(), Relaxed);
                }
            }
            (CellForm::Histogram { bounds, native }, _) => {
                let mut state = Distribution::default();
                // Its writer has left it: it does not change any more.
                cells::read_histogram(from, bounds, native.as_ref(), &mut state);
                cells::restore_histogram(to, bounds, native.as_ref(), &state);
            }
        }
        let mut exemplars = Vec::new();
        family.shape.read_exemplars(from, &mut exemplars);
        for each in &exemplars {
            family.shape.keep_exemplar(to, each.bucket as usize, each.value, each.unix_ms, &each.labels);
        }
        let created = &log[at + HEAD_WORDS - 1];
        created.store(created.load(Relaxed).min(created_ms), Relaxed);
        let (number, _) = unpair(log[at + 1].load(Relaxed));
        let epoch = &self.segment.own_epochs()[number as usize];
        let changed = changed_ms.div_ceil(1000) as u32;
        epoch.store(epoch.load(Relaxed).max(changed), Relaxed);
        true
    }

    /// Closes a segment that [`Writer::restore_cells`] has filled.
    pub(crate) fn close_base(self, now_ms: u64) {
        let segment = self.segment.clone();
        drop(self);
        segment.own_header().epoch.store(now_ms.div_ceil(1000) as u32 + 1, Relaxed);
        segment.own_header().closed.store(CLOSED_BASE, crate::sync::Ordering::Release);
    }

    /// The serial of the segment that it writes.
    pub(crate) fn serial(&self) -> u64 {
        self.segment.serial
    }

    /// Ends the series whose record is there; false if there is no room for the tombstone.
    pub(crate) fn tombstone(&mut self, process: SegmentProcess, serial: u64, record: usize) -> bool {
        let room = self.memory.log.ready() - self.log_used;
        if room < 8 * TOMBSTONE_WORDS + self.reserve {
            self.inner.call_provisioner(&self.memory);
        }
        if room < TOMBSTONE_WORDS + self.reserve && !self.has_memory(TOMBSTONE_WORDS + self.reserve, 0) {
            return false;
        }
        let at = self.log_used;
        let log = &self.segment.own_log()[at..at + TOMBSTONE_WORDS];
        let head = RecordHead { words: TOMBSTONE_WORDS as u32, kind: RecordKind::Tombstone, flags: 0, family: 0 };
        for (word, value) in log.iter().zip([head.pack(), serial, record as u64, u64::from(process.pid), process.start])
        {
            word.store(value, Relaxed);
        }
        self.log_used = at + TOMBSTONE_WORDS;
        self.memory.log.use_up_to(self.log_used);
        protocol::commit(&self.segment.own_header().committed, self.log_used as u64);
        true
    }
}

impl Drop for Writer {
    /// No request to the writer will be executed from now on.
    fn drop(&mut self) {
        self.segment.own_header().closed.store(CLOSED, crate::sync::Ordering::Release);
    }
}
