//! Reads records that writers have appended to their segments since the last look.
//!
//! A segment is not trusted. Where its content is not what a writer of this version makes, reading ends: the records
//! read before still count, and the damage is reported once.

use super::folding::Fold;
use super::leaving::Tombstone;
use super::mount::{Contribution, FamilyDeclaration, LOG_WORDS_MAX, NO_SERIES};
use super::order::Order;
use super::store::Store;
use super::{DamagedSegment, Reader, RefreshSummary};
use crate::family::Family;
use crate::labels::RawPairs;
use crate::protocol;
use crate::segment::cells::Shape;
use crate::segment::layout::{FOLD_WORDS, HEAD_WORDS, RecordHead, RecordKind, TOMBSTONE_WORDS, unpair};
use crate::segment::{Segment, SegmentProcess, family_record};
use crate::sync::{AtomicU32, ReadOnly, Word};
use memchr::memchr;

/// Length of unread log from which it is worth counting its series before reading them.
const BULK_WORDS: usize = 1 << 16;
/// Series whose memory is prefetched together.
const SCAN_STEP: usize = 16;
/// Series that are marked together.
const SCAN_BLOCK: usize = 4096;

/// The memory does not hold what a writer of this version makes.
struct InvalidRecord;

impl Reader {
    /// Reads new records of a mount.
    pub(super) fn discover(&mut self, mount: u16, refreshed: &mut RefreshSummary) {
        let mounted = self.store.mounted_mut(mount);
        mounted.known = mounted.contributions.len();
        let segment = mounted.segment.clone();
        let committed = segment.committed().min(LOG_WORDS_MAX);
        let mut at = mounted.read_to;
        if mounted.is_damaged || committed <= at {
            return;
        }
        mounted.read_to = committed;
        if committed - at > BULK_WORDS {
            self.make_room(&segment, at, committed);
        }
        while at < committed {
            let read = match segment.record(at, committed) {
                Some(head) => self.read_record(mount, &segment, at, head, refreshed).map(|()| head.words as usize),
                None => Err(InvalidRecord),
            };
            match read {
                Ok(words) => at += words,
                Err(InvalidRecord) => {
                    self.store.mounted_mut(mount).is_damaged = true;
                    let (process, serial) = (segment.process, segment.serial);
                    refreshed.damaged.push(DamagedSegment { process, serial, word: at });
                    return;
                }
            }
        }
    }

    /// Tables that grow once need not be made again and again while a million series are read.
    fn make_room(&mut self, segment: &Segment, mut at: usize, committed: usize) {
        let mut series = 0;
        while let Some(head) = segment.record(at, committed) {
            series += usize::from(head.kind == RecordKind::Series);
            at += head.words as usize;
        }
        // Otherwise most of them are likely to be known from another writer.
        if series > 2 * self.store.len() {
            self.store.reserve(series);
        }
    }

    fn read_record(
        &mut self,
        mount: u16,
        segment: &Segment,
        at: usize,
        head: RecordHead,
        refreshed: &mut RefreshSummary,
    ) -> Result<(), InvalidRecord> {
        match head.kind {
            RecordKind::Family => {
                let (_, bytes) = segment.series(at, head).ok_or(InvalidRecord)?;
                let family = family_record::decode(bytes).ok_or(InvalidRecord)?;
                let created_ms = segment.log()[at + HEAD_WORDS - 1].get();
                self.read_family(mount, head.family as usize, family, created_ms)
            }
            RecordKind::Series => self.read_series(mount, segment, at, head, refreshed),
            RecordKind::Fold => self.read_fold(mount, segment, at, head),
            RecordKind::Tombstone => {
                if head.words as usize != TOMBSTONE_WORDS {
                    return Err(InvalidRecord);
                }
                let [serial, record, pid, start] = std::array::from_fn(|word| segment.log()[at + 1 + word].get());
                let record = usize::try_from(record).map_err(|_| InvalidRecord)?;
                let pid = u32::try_from(pid).map_err(|_| InvalidRecord)?;
                self.ended.push(Tombstone { process: SegmentProcess { pid, start }, serial, record });
                Ok(())
            }
        }
    }

    fn read_family(&mut self, mount: u16, number: usize, family: Family, created_ms: u64) -> Result<(), InvalidRecord> {
        let families = &mut self.store.mounted_mut(mount).families;
        if families.len() <= number {
            families.resize(number + 1, None);
        }
        if families[number].is_some() {
            return Err(InvalidRecord);
        }
        let (shape, labels) = (Shape::of(&family), family.labels.clone());
        let family = self.order.declare(family, created_ms);
        let mounted = self.store.mounted_mut(mount);
        let folds = self.folding.declare(mounted.segment.process, family, &labels);
        mounted.families[number] = Some(FamilyDeclaration { family, shape, folds, generation: 0, folded_to: 0 });
        Ok(())
    }

    fn read_fold(&mut self, mount: u16, segment: &Segment, at: usize, head: RecordHead) -> Result<(), InvalidRecord> {
        let mounted = self.store.mounted_mut(mount);
        let declared = mounted.families.get_mut(head.family as usize).and_then(Option::as_mut).ok_or(InvalidRecord)?;
        let (generation, labels) = unpair(segment.log()[at + 1].get());
        let follows = generation > declared.generation;
        if head.words as usize != FOLD_WORDS
            || !follows
            || !self.folding.learn(declared.folds, Fold { generation, labels })
        {
            return Err(InvalidRecord);
        }
        declared.generation = generation;
        declared.folded_to = mounted.contributions.len() as u32;
        Ok(())
    }

    fn read_series(
        &mut self,
        mount: u16,
        segment: &Segment,
        at: usize,
        head: RecordHead,
        refreshed: &mut RefreshSummary,
    ) -> Result<(), InvalidRecord> {
        let (number, text) = segment.series(at, head).ok_or(InvalidRecord)?;
        let mounted = self.store.mounted_mut(mount);
        let declared = mounted.families.get(head.family as usize).and_then(Option::as_ref).ok_or(InvalidRecord)?;
        let fits = head.words as usize == declared.shape.record_words(text.len());
        // Numbers are assigned in order.
        let follows = number as usize <= mounted.contributions.len() && (number as usize) < segment.epochs().len();
        let is_free = mounted.contributions.get(number as usize).is_none_or(|known| known.series == NO_SERIES);
        if !fits || !follows || !is_free || !is_label_text(text) {
            return Err(InvalidRecord);
        }
        let (family, is_alive) = (declared.family, mounted.is_alive);
        let kind = &self.order.families.get(family).family.kind;
        if !is_alive && kind.ends_with_its_process() {
            // The series is no longer valid, but its number is used up.
            mounted.skip(number);
            return Ok(());
        }
        let folded = self.folding.target(declared, text);
        let place = super::mount::RecordLocation { number, mount };
        if let Some(to) = folded {
            let process = segment.process;
            self.link_folded(family, &to, text, place, at as u32, refreshed);
            self.note_folded(process, family, text.to_vec(), to, refreshed);
            return Ok(());
        }
        let (series, is_new) = self.store.link(family, text, place, at as u32);
        if is_new {
            refreshed.series_new += 1;
        } else {
            self.order.mark_rebuilt(&self.store, series);
            self.end_former_life(series);
        }
        Ok(())
    }

    /// Marks the series whose value has changed in a mount since the last look.
    pub(super) fn scan(&mut self, mount: u16, epoch: u32, now_ms: u64) -> usize {
        let mounted = self.store.mounted_mut(mount);
        let since = std::mem::replace(&mut mounted.since, epoch);
        mounted.epochs.note(epoch, now_ms);
        let mounted = self.store.mounted(mount);
        let epochs = &mounted.segment.epochs()[..mounted.known];
        let mut changed = 0;
        for (block, epochs) in epochs.chunks(SCAN_BLOCK).enumerate() {
            let from = block * SCAN_BLOCK;
            changed += self.order.scan(&self.store, epochs, since, &mounted.contributions[from..]);
        }
        changed
    }
}

impl Order {
    /// Marks the changed ones of these series: first finds which changed, then their series, then their slots, as in
    /// `gather`, so that waits for memory overlap.
    fn scan(
        &mut self,
        store: &Store,
        epochs: &[ReadOnly<AtomicU32>],
        since: u32,
        contributions: &[Contribution],
    ) -> usize {
        let mut numbers = std::mem::take(&mut self.changed);
        numbers.clear();
        for (step, epochs) in epochs.chunks(SCAN_STEP).enumerate() {
            let any = epochs.iter().fold(false, |any, epoch| any | protocol::has_changed(epoch, since));
            if any {
                let changed = epochs.iter().zip((step * SCAN_STEP) as u32..);
                let changed = changed.filter(|(epoch, _)| protocol::has_changed(*epoch, since));
                numbers.extend(changed.map(|(_, number)| number));
            }
        }
        protocol::see_changes();
        for number in &mut numbers {
            *number = contributions[*number as usize].series;
        }
        for series in numbers.iter().filter(|series| **series != NO_SERIES) {
            self.mark(store, *series);
        }
        let changed = numbers.len();
        self.changed = numbers;
        changed
    }
}

/// Whether the text has the form that `labels::encode` makes: nothing else may come into an exposition.
fn is_label_text(text: &[u8]) -> bool {
    let mut pairs = RawPairs { rest: text };
    while pairs.next().is_some() {}
    pairs.rest.is_empty() && memchr(b'\n', text).is_none() && std::str::from_utf8(text).is_ok()
}
