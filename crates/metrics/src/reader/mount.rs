//! The segments that a reader reads, and its state of each: how far it has read, and which series its records belong
//! to.

use crate::segment::Segment;
use crate::segment::cells::Shape;
use crate::segment::layout::{CLOSED_BASE, HEAD_WORDS, RecordHead};
use crate::sync::Word;
use std::collections::VecDeque;
use std::sync::Arc;

/// A merged family, by its index among those of the reader.
pub(super) type FamilyId = u32;

/// The list of segments.
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
    /// Whether its process lives: gauges and infos of a dead process are no longer true, its counts are.
    pub(crate) is_alive: bool,
}

/// Location of a series' record: its number in one of the segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordLocation {
    pub(super) number: u32,
    /// Index into the reader's mounts.
    pub(super) mount: u16,
}

/// Most segments at a time; a location has 16 bits for them, and one value means none.
pub(super) const MOUNTS_MAX: usize = u16::MAX as usize;

impl RecordLocation {
    pub(super) const NONE: RecordLocation = RecordLocation { number: u32::MAX, mount: u16::MAX };

    #[inline]
    pub(super) fn is_none(self) -> bool {
        self.mount == u16::MAX
    }
}

/// Marks a record that does not belong to a series.
pub(super) const NO_SERIES: u32 = u32::MAX;
/// Bit in the word of a record's position: a tombstone has ended it.
const LEAVING: u32 = 1 << 31;
/// Bit in the same word: it counts for a series with labels other than its own.
const FOLDED: u32 = 1 << 30;

/// One segment's part of a series. There is one for each record, so its size is the cost of a reader.
#[derive(Debug, Clone, Copy)]
pub(super) struct Contribution {
    /// Position of the record, in words of the log; the two highest bits are [`LEAVING`] and [`FOLDED`].
    record: u32,
    /// Series that it belongs to, or [`NO_SERIES`].
    pub(super) series: u32,
    /// The next contribution to the same series, or [`RecordLocation::NONE`].
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

    /// A record whose labels are not those of its series.
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

/// Most words of a log that are read; the index of a word shares its integer with two bits.
pub(super) const LOG_WORDS_MAX: usize = FOLDED as usize;

/// A family as a segment declares it.
#[derive(Debug, Clone)]
pub(super) struct FamilyDeclaration {
    pub(super) family: FamilyId,
    /// Shape of the cells in this segment: exemplars may differ from those of another declaration that agrees
    /// otherwise.
    pub(super) shape: Shape,
    /// Index of the entry of its folds.
    pub(super) folds: usize,
    /// The generation of the last fold that was read here: earlier ones concern the series before `folded_to`.
    pub(super) generation: u32,
    /// The number of the first series after that fold.
    pub(super) folded_to: u32,
}

impl FamilyDeclaration {
    /// Declaration in the segment of anchors, which are never folded themselves.
    pub(super) fn of_anchor(family: FamilyId, shape: Shape) -> FamilyDeclaration {
        FamilyDeclaration { family, shape, folds: usize::MAX, generation: u32::MAX, folded_to: 0 }
    }
}

/// A segment that is being read.
#[derive(Debug)]
pub(super) struct MountedSegment {
    pub(super) segment: Arc<Segment>,
    pub(super) is_alive: bool,
    /// Words of the log that have been read.
    pub(super) read_to: usize,
    /// The writer's epoch before the last look at the values.
    pub(super) since: u32,
    /// Indexed by the series' number in the segment.
    pub(super) contributions: Vec<Contribution>,
    /// Indexed by the family's number in the segment.
    pub(super) families: Vec<Option<FamilyDeclaration>>,
    /// The words after `read_to` are not a valid record: the rest is not read.
    pub(super) is_damaged: bool,
    /// Number of contributions before this refresh.
    pub(super) known: usize,
    /// When the writer's epochs began, as seen by this reader.
    pub(super) epochs: History,
}

impl MountedSegment {
    pub(super) fn new(mount: &Mount, now_ms: u64) -> MountedSegment {
        MountedSegment {
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

    /// Adds a record that does not count, but has a number.
    pub(super) fn skip(&mut self, number: u32) {
        let number = number as usize;
        if self.contributions.len() <= number {
            self.contributions.resize(number + 1, Contribution::ABSENT);
        }
    }

    /// The label text of the record there; empty if the file was damaged after it was read.
    #[inline]
    pub(super) fn text(&self, record: usize) -> &[u8] {
        let head = self.segment.record(record, self.read_to);
        head.and_then(|head| self.segment.series(record, head)).map_or(&[], |(_, text)| text)
    }

    /// The family of the record there, as this segment declares it.
    #[inline]
    pub(super) fn declared(&self, record: usize) -> Option<&FamilyDeclaration> {
        self.families.get(self.head(record)?.family as usize)?.as_ref()
    }

    #[inline]
    pub(super) fn head(&self, record: usize) -> Option<RecordHead> {
        self.segment.record(record, self.read_to)
    }

    /// When the series of the record there began.
    #[inline]
    pub(super) fn created_ms(&self, record: usize) -> u64 {
        self.segment.log()[record + HEAD_WORDS - 1].get()
    }

    /// Whether the series with this number has not changed for so long, as far as is known.
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

    /// Whether it is a base of a live process: its epochs are times.
    fn is_base(&self) -> bool {
        self.segment.header().closed.get() == CLOSED_BASE
    }

    /// A time, in milliseconds, after which the series with this number has not changed; an upper bound.
    pub(super) fn changed_ms(&self, number: u32, now_ms: u64) -> u64 {
        let epoch = self.segment.epochs().get(number as usize).map_or(0, |epoch| epoch.get());
        match self.is_base() {
            true => u64::from(epoch) * 1000,
            false => self.epochs.ended_at_ms(epoch).unwrap_or(now_ms),
        }
    }
}

/// Maps a writer's epochs to times: turns the epoch of a series' last change into an age, without a time for each
/// series.
#[derive(Debug)]
pub(super) struct History {
    mounted_ms: u64,
    /// Epochs, each with a time at which it had begun; ascending.
    seen: VecDeque<(u32, u64)>,
}

/// Most entries of a history; more than remain when it has been thinned out, whether it covers a second or a year.
const HISTORY_MAX: usize = 256;
/// Precision of an age: entries are as far apart as this part of their age.
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
        // If the clock was set back, later entries would be out of order.
        self.seen.truncate(HISTORY_MAX - 1);
    }

    /// When that epoch was over, as far as is known.
    fn ended_at_ms(&self, epoch: u32) -> Option<u64> {
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
            // It was over when the next one began.
            let over_ms = u64::from(epoch + 1) * 10;
            assert!(!history.ended_before(epoch, over_ms - 1), "{epoch}");
        }
        assert!(history.ended_before(1, 100_000));
        assert!(history.ended_before(5000, 50_000 + 50_000 / 7));
        assert!(history.ended_before(9_990, 100_000));
    }
}
