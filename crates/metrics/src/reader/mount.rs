//! The segments that a reader reads, and what it keeps of each: how far it has read, and whose series its records are.

use super::families::FamilyId;
use crate::segment::Segment;
use crate::segment::cells::Shape;
use crate::segment::layout::{CLOSED_BASE, HEAD_WORDS, Head};
use crate::sync::Word;
use std::collections::VecDeque;
use std::sync::Arc;

/// The segments there are.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mounts {
    /// Changes whenever the list does.
    pub(crate) version: u64,
    pub(crate) segments: Vec<Mount>,
}

/// A segment to be read.
#[derive(Debug, Clone)]
pub(crate) struct Mount {
    pub(crate) segment: Arc<Segment>,
    /// Whether its process lives: gauges and infos of a dead one are not true any more, its counts are.
    pub(crate) is_alive: bool,
}

/// A series' record: the number it has in one of the segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordLocation {
    pub(super) number: u32,
    /// Index into the reader's mounts.
    pub(super) mount: u16,
}

/// Segments at a time; a place has 16 bits for them, and one value means none.
pub(super) const MOUNTS_MAX: usize = u16::MAX as usize;

impl RecordLocation {
    pub(super) const NONE: RecordLocation = RecordLocation { number: u32::MAX, mount: u16::MAX };

    #[inline]
    pub(super) fn is_none(self) -> bool {
        self.mount == u16::MAX
    }
}

/// No series: the record does not count.
pub(super) const NO_SERIES: u32 = u32::MAX;
/// In the word of a record's place: it was ended by a tombstone.
const LEAVING: u32 = 1 << 31;
/// And: it counts for a series with other labels than its own.
const FOLDED: u32 = 1 << 30;

/// What one segment has to say about one series. There is one for each record, so its size is what a reader costs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Contribution {
    /// Where the record is, in words of the log; the two highest bits say whether it is leaving, and folded.
    record: u32,
    /// Whose it is, or [`NO_SERIES`].
    pub(super) series: u32,
    /// The next of the same series, or [`RecordLocation::NONE`].
    pub(super) next: RecordLocation,
}

const _: () = assert!(size_of::<Contribution>() == 16);

impl Contribution {
    pub(super) const ABSENT: Contribution = Contribution { record: 0, series: NO_SERIES, next: RecordLocation::NONE };

    pub(super) fn new(record: u32, series: u32, next: RecordLocation) -> Contribution {
        Contribution { record, series, next }
    }

    #[inline]
    pub(super) fn record(self) -> usize {
        (self.record & !(LEAVING | FOLDED)) as usize
    }

    /// Of a record whose labels are not those of its series.
    pub(super) fn folded(record: u32, series: u32) -> Contribution {
        Contribution { record: record | FOLDED, series, next: RecordLocation::NONE }
    }

    pub(super) fn is_folded(self) -> bool {
        self.record & FOLDED != 0
    }

    pub(super) fn is_leaving(self) -> bool {
        self.record & LEAVING != 0
    }

    pub(super) fn leave(&mut self) {
        self.record |= LEAVING;
    }
}

/// Words of a log that are looked at; the number of a word has to fit beside two bits.
pub(super) const LOG_WORDS_MAX: usize = FOLDED as usize;

/// A family as a segment declares it.
#[derive(Debug, Clone)]
pub(super) struct Declared {
    pub(super) family: FamilyId,
    /// Of the cells in this segment: exemplars may differ from those of another that agrees otherwise.
    pub(super) shape: Shape,
    /// What is known of its folds, by its number there.
    pub(super) folds: usize,
    /// The generation of the last fold that was read here: earlier ones are about the series before `folded_to`.
    pub(super) generation: u32,
    /// The number of the first series behind that fold.
    pub(super) folded_to: u32,
}

impl Declared {
    /// Of the segment of anchors, which are never folded themselves.
    pub(super) fn of_anchor(family: FamilyId, shape: Shape) -> Declared {
        Declared { family, shape, folds: usize::MAX, generation: u32::MAX, folded_to: 0 }
    }
}

/// A segment that is being read.
#[derive(Debug)]
pub(super) struct Mounted {
    pub(super) segment: Arc<Segment>,
    pub(super) is_alive: bool,
    /// Words of the log that have been read.
    pub(super) read_to: usize,
    /// The writer's epoch before the last look at the values.
    pub(super) since: u32,
    /// By the series' number in the segment.
    pub(super) contributions: Vec<Contribution>,
    /// By the family's number in the segment.
    pub(super) families: Vec<Option<Declared>>,
    /// What stands behind `read_to` is no record of ours: the rest is not read.
    pub(super) is_damaged: bool,
    /// Contributions before this refresh.
    pub(super) known: usize,
    /// When the writer's epochs began, as seen by this reader.
    pub(super) epochs: History,
}

impl Mounted {
    pub(super) fn new(mount: &Mount, now_ms: u64) -> Mounted {
        Mounted {
            segment: mount.segment.clone(),
            is_alive: mount.is_alive,
            read_to: 0,
            since: 0,
            contributions: Vec::new(),
            families: Vec::new(),
            is_damaged: false,
            known: 0,
            epochs: History { mounted_ms: now_ms, seen: VecDeque::new() },
        }
    }

    pub(super) fn is(&self, mount: &Mount) -> bool {
        Arc::ptr_eq(&self.segment, &mount.segment)
    }

    /// A record that does not count, with its number.
    pub(super) fn skip(&mut self, number: u32) {
        let number = number as usize;
        if self.contributions.len() <= number {
            self.contributions.resize(number + 1, Contribution::ABSENT);
        }
    }

    /// The label text of the record there. A file that was damaged after it was read gives no text.
    #[inline]
    pub(super) fn text(&self, record: usize) -> &[u8] {
        let head = self.segment.record(record, self.read_to);
        head.and_then(|head| self.segment.series(record, head)).map_or(&[], |(_, text)| text)
    }

    /// The family of the record there, as this segment declares it.
    #[inline]
    pub(super) fn declared(&self, record: usize) -> Option<&Declared> {
        self.families.get(self.head(record)?.family as usize)?.as_ref()
    }

    #[inline]
    pub(super) fn head(&self, record: usize) -> Option<Head> {
        self.segment.record(record, self.read_to)
    }

    /// When the series of the record there began.
    #[inline]
    pub(super) fn created_ms(&self, record: usize) -> u64 {
        self.segment.log()[record + HEAD_WORDS - 1].get()
    }

    /// Whether the series with this number has not changed for so long, as far as can be told from outside.
    pub(super) fn is_idle(&self, number: u32, before_ms: u64) -> bool {
        let Some(contribution) = self.contributions.get(number as usize) else { return true };
        let Some(epoch) = self.segment.epochs().get(number as usize) else { return true };
        self.created_ms(contribution.record()) <= before_ms
            && match self.is_alive {
                _ if self.is_base() => u64::from(epoch.get()) * 1000 <= before_ms,
                true => self.epochs.ended_before(epoch.get(), before_ms),
                false => self.epochs.mounted_ms <= before_ms,
            }
    }

    /// Whether it is a base of a process that lives: its epochs are times.
    fn is_base(&self) -> bool {
        self.segment.header().closed.get() == CLOSED_BASE
    }

    /// A time before which the series with this number did not change last, in milliseconds; as late as it must be said.
    pub(super) fn changed_ms(&self, number: u32, now_ms: u64) -> u64 {
        let epoch = self.segment.epochs().get(number as usize).map_or(0, |epoch| epoch.get());
        match self.is_base() {
            true => u64::from(epoch) * 1000,
            false => self.epochs.over_at(epoch).unwrap_or(now_ms),
        }
    }
}

/// Which epoch a writer was in at which time: what turns the epoch of a series' last change into an age, without a time for
/// each series.
#[derive(Debug)]
pub(super) struct History {
    mounted_ms: u64,
    /// An epoch and when it was there already; ascending.
    seen: VecDeque<(u32, u64)>,
}

/// Entries of a history; more than are left when it has been thinned out, whether it is of a second or of a year.
const HISTORY_MAX: usize = 256;
/// How exactly an age is known: entries are as far apart as this part of their age.
const AGE_PART: u64 = 8;

impl History {
    pub(super) fn note(&mut self, epoch: u32, now_ms: u64) {
        if self.seen.back().is_some_and(|(last, _)| *last == epoch) {
            return;
        }
        if self.seen.len() == HISTORY_MAX {
            self.thin_out(now_ms);
        }
        self.seen.push_back((epoch, now_ms));
    }

    fn thin_out(&mut self, now_ms: u64) {
        let all = std::mem::take(&mut self.seen);
        for (index, entry) in all.iter().enumerate() {
            let neighbours = self.seen.back().zip(all.get(index + 1));
            let is_needed = neighbours.is_none_or(|((_, before_ms), (_, behind_ms))| {
                (behind_ms.saturating_sub(*before_ms)) * AGE_PART > now_ms.saturating_sub(*behind_ms)
            });
            if is_needed {
                self.seen.push_back(*entry);
            }
        }
        // A clock that was set back makes no order of these.
        self.seen.truncate(HISTORY_MAX - 1);
    }

    /// When that epoch was over, as far as is known.
    fn over_at(&self, epoch: u32) -> Option<u64> {
        let later = self.seen.iter().find(|(then, _)| epoch.wrapping_sub(*then).cast_signed() < 0);
        later.map(|(_, at_ms)| *at_ms)
    }

    /// Whether that epoch was over by then.
    fn ended_before(&self, epoch: u32, before_ms: u64) -> bool {
        let behind = self.seen.partition_point(|(_, at_ms)| *at_ms <= before_ms);
        let last = behind.checked_sub(1).and_then(|index| self.seen.get(index));
        last.is_some_and(|(then, _)| epoch.wrapping_sub(*then).cast_signed() < 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_never_too_high() {
        let mut history = History { mounted_ms: 0, seen: VecDeque::new() };
        for epoch in 1..=10_000u32 {
            history.note(epoch, u64::from(epoch) * 10);
        }
        assert!(history.seen.len() <= HISTORY_MAX);
        for epoch in 1..=10_000u32 {
            // Over when the next one began.
            let over_ms = u64::from(epoch + 1) * 10;
            assert!(!history.ended_before(epoch, over_ms - 1), "{epoch}");
        }
        assert!(history.ended_before(1, 100_000));
        assert!(history.ended_before(5000, 50_000 + 50_000 / 7));
        assert!(history.ended_before(9_990, 100_000));
    }
}
