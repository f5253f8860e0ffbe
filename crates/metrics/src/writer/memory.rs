//! A writer's memory, prepared before the writer needs it.
//!
//! Three areas grow: the log, the epochs, the pages of the index. The writer publishes how much it has used; the
//! provisioner (`registry`) keeps some more prepared. A writer that finds none does not wait for it: it prepares a few
//! pages itself, from the same budget. Both may do so at the same time, as preparing changes no content.

use super::requests::Inbox;
use crate::protocol;
use crate::segment::memory::{HUGE_PAGE, Mapping, PAGE, SMALL_BYTES};
use crate::segment::{Segment, SegmentProcess};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Assumed words of log for a series, by which the other areas are sized.
const SERIES_WORDS: usize = 8;
/// Words of log for one index page, with a margin for both.
const PAGE_WORDS: usize = SERIES_WORDS * 128;
/// Prepared at the start, so that the first series find memory without the provisioner.
const LOG_WORDS_FIRST: usize = 8 * PAGE / 8;
const PAGES_FIRST: usize = 2;
/// What a writer prepares itself in excess of its demand: 32 KiB of log, a page of epochs, some pages of the index.
const LOG_WORDS_OWN: usize = 8 * PAGE / 8;
const SERIES_OWN: usize = PAGE / 4;
pub(crate) const PAGES_OWN: usize = 4;

/// How much of an area is used and prepared, in the area's own unit.
#[derive(Debug, Default)]
pub(crate) struct Area {
    used: AtomicUsize,
    ready: AtomicUsize,
    /// The use at which more is requested. The provisioner sets it, by its own measure: if the writer had another one,
    /// it would call again and again in vain, at the cost of a system call each.
    low: AtomicUsize,
}

impl Area {
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn use_up_to(&self, used: usize) {
        self.used.store(used, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn ready(&self) -> usize {
        self.ready.load(Ordering::Acquire)
    }

    /// Whether the provisioner should be called.
    #[inline]
    pub(crate) fn is_low(&self, used: usize) -> bool {
        used >= self.low.load(Ordering::Relaxed)
    }

    /// Sets the next call: when half of what should be prepared is used, or, if it never was, half of what is.
    fn call_later(&self, ahead: usize) {
        let (used, ready) = (self.used(), self.ready());
        let low = (ready.saturating_sub(ahead / 2)).max(used + ready.saturating_sub(used) / 2 + 1);
        self.low.store(low, Ordering::Relaxed);
    }
}

/// One writer's memory; shared with the provisioner.
#[derive(Debug)]
pub(crate) struct WriterMemory {
    pub(crate) segment: Arc<Segment>,
    index: Mapping,
    /// Measured in words.
    pub(crate) log: Area,
    /// Measured in series.
    pub(crate) epochs: Area,
    /// Measured in pages of the index.
    pub(crate) pages: Area,
    /// Its writer frees memory by what it writes, or by having moved here: it gets what it needs, whatever the budget
    /// is.
    pub(crate) is_exempt: AtomicBool,
    /// No more memory will come, because of the budget or the system.
    pub(crate) exhausted: AtomicBool,
    /// The provisioner has been called and has not come yet.
    pub(crate) called: AtomicBool,
    /// Observations for which there was no memory at all.
    pub(crate) lost: AtomicU64,
    /// The pending request to the writer.
    pub(crate) inbox: Inbox,
}

impl std::fmt::Debug for Mapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mapping({} bytes)", self.bytes())
    }
}

/// How far an area has to be prepared, and the bytes of its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MemoryDemand {
    to: usize,
    unit_bytes: usize,
}

/// How much of each area a writer needs, in the area's own unit.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NeededMemory {
    pub(crate) log: usize,
    pub(crate) series: usize,
    pub(crate) pages: usize,
}

/// The bytes that may be taken, over all writers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemoryBudget<'a> {
    pub(crate) taken: &'a AtomicUsize,
    pub(crate) max: usize,
}

impl MemoryBudget<'_> {
    fn take(&self, bytes: usize) -> bool {
        let is_granted = self.taken.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) <= self.max;
        if !is_granted {
            self.return_bytes(bytes);
        }
        is_granted
    }

    fn return_bytes(&self, bytes: usize) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Area {
    /// Makes it ready up to `to`; returns false if the budget does not allow that.
    fn extend(
        &self,
        MemoryDemand { to, unit_bytes }: MemoryDemand,
        budget: MemoryBudget<'_>,
        prepare: impl FnOnce(usize, usize) -> io::Result<()>,
    ) -> io::Result<bool> {
        let from = self.ready();
        if to <= from {
            return Ok(true);
        }
        if !budget.take((to - from) * unit_bytes) {
            return Ok(false);
        }
        let prepared = prepare(from, to);
        let before = if prepared.is_ok() { self.ready.fetch_max(to, Ordering::AcqRel) } else { to };
        // What another thread has made ready meanwhile is paid for already.
        budget.return_bytes((before.min(to) - from) * unit_bytes);
        prepared.map(|()| true)
    }
}

impl WriterMemory {
    /// Creates a segment with its index, with a little memory prepared.
    pub(crate) fn new(
        file: Option<&Path>,
        log_bytes: usize,
        process: SegmentProcess,
        serial: u64,
        is_exempt: bool,
        now_ms: u64,
    ) -> io::Result<WriterMemory> {
        let segment = Segment::create(file, log_bytes, process, serial, now_ms)?;
        let index = Mapping::anonymous((segment.room().1 / PAGE_WORDS + PAGES_FIRST) * PAGE)?;
        index.grow_huge(0, index.bytes());
        let memory = WriterMemory {
            segment: Arc::new(segment),
            index,
            log: Area::default(),
            epochs: Area::default(),
            pages: Area::default(),
            is_exempt: AtomicBool::new(is_exempt),
            exhausted: AtomicBool::new(false),
            called: AtomicBool::new(false),
            lost: AtomicU64::new(0),
            inbox: Inbox::default(),
        };
        // The caller counts it.
        let budget = MemoryBudget { taken: &AtomicUsize::new(0), max: usize::MAX };
        memory.provide(LOG_WORDS_FIRST, budget)?;
        Ok(memory)
    }

    /// The memory of a writer that has left: it can be read, but has no index any more.
    pub(crate) fn without_index(&self) -> io::Result<WriterMemory> {
        let memory = WriterMemory {
            segment: self.segment.clone(),
            index: Mapping::anonymous(PAGE)?,
            log: Area::default(),
            epochs: Area::default(),
            pages: Area::default(),
            is_exempt: AtomicBool::new(false),
            exhausted: AtomicBool::new(true),
            called: AtomicBool::new(false),
            lost: AtomicU64::new(self.lost.load(Ordering::Relaxed)),
            inbox: Inbox::default(),
        };
        for (to, from) in [(&memory.log, &self.log), (&memory.epochs, &self.epochs)] {
            to.used.store(from.used(), Ordering::Relaxed);
            to.ready.store(from.ready(), Ordering::Relaxed);
        }
        Ok(memory)
    }

    /// Whether its writer has left it.
    pub(crate) fn is_closed(&self) -> bool {
        protocol::acquire(&self.segment.header().closed) != 0
    }

    /// All words of the index's pages.
    #[inline]
    pub(crate) fn index_words(&self) -> &[crate::sync::AtomicU64] {
        self.index.words(0, self.index.bytes() / 8)
    }

    /// Bytes of memory that are prepared and used.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        let log = PAGE + self.log.ready() * 8 + self.epochs.ready() * 4;
        (log, self.pages.ready() * PAGE)
    }

    /// Whether the areas are ready for so much.
    pub(crate) fn has(&self, needed: NeededMemory) -> bool {
        needed.log <= self.log.ready() && needed.series <= self.epochs.ready() && needed.pages <= self.pages.ready()
    }

    /// Prepares what is missing to have `ahead` words of log, and a matching part of the other areas, beyond what is
    /// used, as far as the budget allows.
    pub(crate) fn provide(&self, ahead: usize, budget: MemoryBudget<'_>) -> io::Result<()> {
        let (series_max, words_max) = self.segment.room();
        let pages_max = self.index.bytes() / PAGE;
        let ahead_pages = (ahead / PAGE_WORDS).max(self.pages.used() / 4).max(PAGES_FIRST);
        let ahead_series = ahead / SERIES_WORDS;
        let mut is_granted = true;
        if let Some(wanted) = memory_demand(&self.epochs, ahead_series, PAGE / 4, series_max, 4) {
            is_granted &= self.epochs.extend(wanted, budget, |from, to| self.segment.prepare_epochs(from, to))?;
        }
        if let Some(wanted) = memory_demand(&self.pages, ahead_pages, 1, pages_max, PAGE) {
            let prepare = |from, to| self.index.prepare(from * PAGE, (to - from) * PAGE);
            is_granted &= self.pages.extend(wanted, budget, prepare)?;
        }
        if let Some(wanted) = memory_demand(&self.log, ahead, PAGE / 8, words_max, 8) {
            is_granted &= self.log.extend(wanted, budget, |from, to| self.segment.prepare_log(from, to))?;
        }
        for (area, ahead) in [(&self.epochs, ahead_series), (&self.pages, ahead_pages), (&self.log, ahead)] {
            area.call_later(ahead);
        }
        let is_full = self.log.ready() >= words_max;
        self.exhausted.store(!is_granted || is_full, Ordering::Relaxed);
        Ok(())
    }

    /// Prepares some pages for the writer, which has found too few; returns whether it has what it needs.
    pub(crate) fn provide_few(&self, needed: NeededMemory, budget: MemoryBudget<'_>) -> io::Result<bool> {
        let (series_max, words_max) = self.segment.room();
        let pages_max = self.index.bytes() / PAGE;
        if needed.log > words_max || needed.series > series_max || needed.pages > pages_max {
            return Ok(false);
        }
        let mut is_granted = true;
        if needed.series > self.epochs.ready() {
            let to = needed.series.next_multiple_of(SERIES_OWN).min(series_max);
            let prepare = |from, to| self.segment.prepare_few_epochs(from, to);
            is_granted &= self.epochs.extend(MemoryDemand { to, unit_bytes: 4 }, budget, prepare)?;
        }
        if needed.pages > self.pages.ready() {
            let prepare = |from, to| self.index.prepare_small(from * PAGE, (to - from) * PAGE);
            is_granted &= self.pages.extend(MemoryDemand { to: needed.pages, unit_bytes: PAGE }, budget, prepare)?;
        }
        if needed.log > self.log.ready() {
            let to = (needed.log + LOG_WORDS_OWN - 1).next_multiple_of(PAGE / 8).min(words_max);
            let prepare = |from, to| self.segment.prepare_short_log(from, to);
            is_granted &= self.log.extend(MemoryDemand { to, unit_bytes: 8 }, budget, prepare)?;
        }
        Ok(is_granted)
    }
}

/// The next part of an area; nothing while more than half of what should be prepared is.
fn memory_demand(area: &Area, ahead: usize, unit: usize, max: usize, unit_bytes: usize) -> Option<MemoryDemand> {
    let (used, from) = (area.used(), area.ready());
    if from.saturating_sub(used) > ahead / 2 || from >= max {
        return None;
    }
    // Huge pages are prepared whole: their memory is taken anyway.
    let unit = if (used + ahead) * unit_bytes > SMALL_BYTES { HUGE_PAGE / unit_bytes } else { unit };
    let to = (used + ahead).next_multiple_of(unit).max(from + unit).min(max);
    Some(MemoryDemand { to, unit_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_and_the_provisioner_may_prepare_at_once() {
        let process = SegmentProcess { pid: 1, start: 1 };
        let memory = WriterMemory::new(None, 8 << 20, process, 0, false, 0).unwrap();
        let all = |memory: &WriterMemory| memory.bytes().0 + memory.bytes().1;
        let (before, taken, is_done) = (all(&memory), AtomicUsize::new(0), AtomicBool::new(false));
        let budget = MemoryBudget { taken: &taken, max: usize::MAX };
        let words = memory.segment.room().1 / 2;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    memory.provide(4 * LOG_WORDS_FIRST, budget).unwrap();
                }
            });
            for word in 0..words {
                let needed = NeededMemory { log: word + 1, series: word / SERIES_WORDS, pages: word / PAGE_WORDS };
                assert!(memory.has(needed) || memory.provide_few(needed, budget).unwrap());
                memory.segment.own_log()[word].store(word as u64, Ordering::Relaxed);
                memory.log.use_up_to(word + 1);
            }
            is_done.store(true, Ordering::Relaxed);
        });
        let log = &memory.segment.own_log()[..words];
        assert!(log.iter().enumerate().all(|(word, stored)| stored.load(Ordering::Relaxed) == word as u64));
        assert_eq!(taken.load(Ordering::Relaxed), all(&memory) - before, "each byte is paid for once");
        let none = MemoryBudget { taken: &taken, max: 0 };
        let needed = NeededMemory { log: memory.log.ready() + 1, ..NeededMemory::default() };
        assert!(!memory.provide_few(needed, none).unwrap(), "the budget holds");
    }
}
