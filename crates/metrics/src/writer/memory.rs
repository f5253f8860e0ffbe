//! A writer's memory, prepared before the writer needs it.
//!
//! Three areas grow: the log, the epochs, the pages of the index. The writer publishes how much it has used; the
//! provisioner (`registry`) keeps some more prepared. A writer that finds none does not wait.

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

/// What a step of the provisioner has to prepare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MemoryDemand {
    from: usize,
    to: usize,
    bytes: usize,
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
        let taken = memory.provide(LOG_WORDS_FIRST, &mut |_| true)?;
        debug_assert!(taken > 0);
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

    /// Prepares what is missing to have `ahead` words of log, and a matching part of the other areas, beyond what is
    /// used; `grant` decides whether so many more bytes may be taken. Returns how many were.
    pub(crate) fn provide(&self, ahead: usize, grant: &mut dyn FnMut(usize) -> bool) -> io::Result<usize> {
        let (series_max, words_max) = self.segment.room();
        let pages_max = self.index.bytes() / PAGE;
        let mut taken = 0;
        let mut refused = false;
        let mut step = |area: &Area, wanted: Option<MemoryDemand>, prepare: &dyn Fn(usize, usize) -> io::Result<()>| {
            let Some(wanted) = wanted else { return io::Result::Ok(()) };
            if !grant(wanted.bytes) {
                refused = true;
                return Ok(());
            }
            prepare(wanted.from, wanted.to)?;
            taken += wanted.bytes;
            area.ready.store(wanted.to, Ordering::Release);
            Ok(())
        };
        let ahead_pages = (ahead / PAGE_WORDS).max(self.pages.used() / 4).max(PAGES_FIRST);
        let ahead_series = ahead / SERIES_WORDS;
        step(&self.epochs, wanted(&self.epochs, ahead_series, PAGE / 4, series_max, 4), &|from, to| {
            self.segment.prepare_epochs(from, to)
        })?;
        step(&self.pages, wanted(&self.pages, ahead_pages, 1, pages_max, PAGE), &|from, to| {
            self.index.prepare(from * PAGE, (to - from) * PAGE)
        })?;
        step(&self.log, wanted(&self.log, ahead, PAGE / 8, words_max, 8), &|from, to| {
            self.segment.prepare_log(from, to)
        })?;
        for (area, ahead) in [(&self.epochs, ahead_series), (&self.pages, ahead_pages), (&self.log, ahead)] {
            area.call_later(ahead);
        }
        let is_full = self.log.ready() >= words_max;
        self.exhausted.store(refused || is_full, Ordering::Relaxed);
        Ok(taken)
    }
}

/// The next part of an area; nothing while more than half of what should be prepared is.
fn wanted(area: &Area, ahead: usize, unit: usize, max: usize, unit_bytes: usize) -> Option<MemoryDemand> {
    let (used, from) = (area.used(), area.ready());
    if from.saturating_sub(used) > ahead / 2 || from >= max {
        return None;
    }
    // Huge pages are prepared whole: their memory is taken anyway.
    let unit = if (used + ahead) * unit_bytes > SMALL_BYTES { HUGE_PAGE / unit_bytes } else { unit };
    let to = (used + ahead).next_multiple_of(unit).max(from + unit).min(max);
    Some(MemoryDemand { from, to, bytes: (to - from) * unit_bytes })
}
