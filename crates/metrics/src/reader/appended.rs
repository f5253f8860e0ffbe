//! What writers have appended to their segments since the last look: new records, and tombstones, which end series.
//!
//! A segment is not trusted. Where its content is not what a writer of this version makes, reading ends: the records
//! read before still count, and the damage is reported once.
//!
//! An ended series is exposed once more, so that its last value is seen, and then removed. A tombstone ends one record.
//! While the series has other records that live, its value stays whole: the series is removed when all of them have ended.
//! If it comes back before that, its new life starts at once from its own value: not from the sum of both, which would
//! fall back later and look like a reset of the counter.

use super::cursor::covers;
use super::folding::Fold;
use super::mount::{Contribution, FamilyDeclaration, LOG_WORDS_MAX, NO_SERIES, RecordLocation};
use super::order::Order;
use super::store::{SeriesId, Store, UnlinkResult};
use super::{DamagedSegment, Reader, RefreshSummary};
use crate::family::Family;
use crate::labels::RawPairs;
use crate::protocol;
use crate::segment::cells::Shape;
use crate::segment::layout::{self, FOLD_WORDS, HEAD_WORDS, RecordHead, RecordKind, TOMBSTONE_WORDS, unpair};
use crate::segment::{Segment, SegmentProcess};
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
        let mounted = self.store.mount_mut(mount);
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
                    self.store.mount_mut(mount).is_damaged = true;
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
                let family = layout::decode_family(bytes).ok_or(InvalidRecord)?;
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
        let families = &mut self.store.mount_mut(mount).families;
        if families.len() <= number {
            families.resize(number + 1, None);
        }
        if families[number].is_some() {
            return Err(InvalidRecord);
        }
        let (shape, labels) = (Shape::of(&family), family.labels.clone());
        let family = self.order.declare(family, created_ms);
        let mounted = self.store.mount_mut(mount);
        let folds = self.folding.declare(mounted.segment.process, family, &labels);
        mounted.families[number] = Some(FamilyDeclaration { family, shape, folds, generation: 0, folded_to: 0 });
        Ok(())
    }

    fn read_fold(&mut self, mount: u16, segment: &Segment, at: usize, head: RecordHead) -> Result<(), InvalidRecord> {
        let mounted = self.store.mount_mut(mount);
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
        let mounted = self.store.mount_mut(mount);
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
        let mounted = self.store.mount_mut(mount);
        let since = std::mem::replace(&mut mounted.since, epoch);
        mounted.epochs.note(epoch, now_ms);
        let mounted = self.store.mount(mount);
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

/// How long a series waits to be scraped once more; after that it is assumed that nothing scrapes.
const LEAVING_MS_MAX: u64 = 15 * 60 * 1000;

/// The content of a tombstone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tombstone {
    /// Process that writes the segment.
    pub(super) process: SegmentProcess,
    pub(super) serial: u64,
    /// Position of the record, in words of its log.
    pub(super) record: usize,
}

/// An ended record that still counts.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeavingRecord {
    pub(super) place: RecordLocation,
    series: SeriesId,
    /// The refresh that found the tombstone; only expositions from then on matter.
    refresh: u64,
    since_ms: u64,
    is_exposed: bool,
}

impl Reader {
    /// Ends the records that new tombstones name.
    pub(super) fn apply_ended(&mut self, refreshed: &mut RefreshSummary) {
        let mut touched = Vec::new();
        for ended in std::mem::take(&mut self.ended) {
            let mount = self.store.mounts.iter().position(|mounted| {
                let segment = mounted.as_ref().map(|mounted| &mounted.segment);
                segment.is_some_and(|segment| segment.process == ended.process && segment.serial == ended.serial)
            });
            // A removed segment has taken its records along.
            let Some(mount) = mount else { continue };
            let mounted = self.store.mount(mount as u16);
            if ended.record >= mounted.read_to {
                // Committed after we looked there, but before the tombstone.
                if !mounted.is_damaged && ended.record < mounted.segment.room().1 {
                    self.ended.push(ended);
                }
                continue;
            }
            let head = mounted.head(ended.record).filter(|head| head.kind == RecordKind::Series);
            let Some((number, _)) = head.and_then(|head| mounted.segment.series(ended.record, head)) else { continue };
            let Some(contribution) = mounted.contributions.get(number as usize) else { continue };
            if contribution.record() != ended.record || contribution.series == super::mount::NO_SERIES {
                continue;
            }
            let (series, is_first_look) = (contribution.series, mounted.known == 0);
            let place = RecordLocation { number, mount: mount as u16 };
            if is_first_look {
                // It ended before this reader started: others have exposed it, or nobody ever will.
                self.drop_place(place, refreshed);
            } else if !contribution.is_leaving() {
                self.store.contribution_mut(place).leave();
                let (refresh, since_ms) = (self.refreshes, self.now_ms);
                self.leaving.push(LeavingRecord { place, series, refresh, since_ms, is_exposed: false });
                touched.push(series);
            }
        }
        touched.sort_unstable();
        touched.dedup();
        for series in touched {
            if !self.store.is_dead(series) && self.has_new_life(series) {
                self.drop_leaving_of(series, refreshed);
            }
        }
    }

    /// Whether a live record is newer than an ended one: by the same writer and behind it, or found just now.
    fn has_new_life(&self, series: SeriesId) -> bool {
        if self.is_kept_by_folds(series) {
            return false;
        }
        let ended: Vec<RecordLocation> = self
            .store
            .places(self.store.slot(series))
            .filter(|(_, each)| each.is_leaving())
            .map(|(at, _)| at)
            .collect();
        let mut living =
            self.store.places(self.store.slot(series)).filter(|(_, each)| !each.is_leaving()).map(|(at, _)| at);
        living.any(|living| {
            let is_new = living.number as usize >= self.store.mount(living.mount).known;
            is_new || ended.iter().any(|ended| ended.mount == living.mount && ended.number < living.number)
        })
    }

    /// Whether a live record of another label set counts for the series: then the ended record is part of the same
    /// life.
    fn is_kept_by_folds(&self, series: SeriesId) -> bool {
        self.store.places(self.store.slot(series)).any(|(_, each)| each.is_folded() && !each.is_leaving())
    }

    /// Removes the ended records of a known series for which a new record was found.
    fn end_former_life(&mut self, series: SeriesId) {
        let has_ended = |series| self.store.places(self.store.slot(series)).any(|(_, each)| each.is_leaving());
        if !self.leaving.is_empty() && has_ended(series) && !self.is_kept_by_folds(series) {
            // This is not the last record: the new one lives.
            self.drop_leaving_of(series, &mut RefreshSummary::default());
        }
    }

    fn drop_leaving_of(&mut self, series: SeriesId, refreshed: &mut RefreshSummary) {
        let ended: Vec<RecordLocation> = self
            .store
            .places(self.store.slot(series))
            .filter(|(_, each)| each.is_leaving())
            .map(|(at, _)| at)
            .collect();
        // `drop_exposed` finds out that they are gone.
        ended.into_iter().for_each(|place| self.drop_place(place, refreshed));
    }

    /// Removes the records that have been exposed once more.
    pub(super) fn drop_exposed(&mut self, refreshed: &mut RefreshSummary) {
        let now_ms = self.now_ms;
        let mut leaving = std::mem::take(&mut self.leaving);
        leaving.retain(|leaving| {
            let contribution = self.store.contribution(leaving.place);
            contribution.is_leaving() && contribution.series == leaving.series
        });
        let (due, waiting): (Vec<LeavingRecord>, Vec<LeavingRecord>) = leaving.into_iter().partition(|leaving| {
            let is_over = leaving.is_exposed || now_ms.saturating_sub(leaving.since_ms) > LEAVING_MS_MAX;
            is_over && self.store.places(self.store.slot(leaving.series)).all(|(_, each)| each.is_leaving())
        });
        self.leaving = waiting;
        due.into_iter().for_each(|leaving| self.drop_place(leaving.place, refreshed));
    }

    /// Records that an exposition of these families was delivered in full.
    pub(super) fn on_exposed(&mut self, refresh: u64, names: Option<&[String]>) {
        for leaving in self.leaving.iter_mut().filter(|leaving| leaving.refresh <= refresh) {
            // A record without a chunk was dropped meanwhile.
            let chunk = self.store.exposed(leaving.series).map(|(chunk, _)| &self.order.chunks[chunk as usize]);
            let family = chunk.map(|chunk| self.order.families.get(chunk.family));
            leaving.is_exposed |= family.is_none_or(|family| covers(names, &family.family));
        }
    }

    /// Removes a record from its series.
    pub(super) fn drop_place(&mut self, place: RecordLocation, refreshed: &mut RefreshSummary) {
        if let Some(unlinked) = self.store.unlink(place) {
            self.note_taken(unlinked, refreshed);
        }
    }

    /// Accounts for a series that lost records, or all of them.
    pub(super) fn note_taken(&mut self, unlinked: UnlinkResult, refreshed: &mut RefreshSummary) {
        if unlinked.is_last {
            refreshed.series_gone += 1;
            self.touched.extend(unlinked.chunk);
        } else {
            self.order.mark_rebuilt(&self.store, unlinked.series);
        }
    }
}
