//! The series and their records: the same labels in several segments are one series.
//!
//! Values are not copied: they are in the segments, and are read when they are encoded. The store has one small entry
//! for each record (`mount::Contribution`), one for each series, and an index from labels to series.

use super::mount::{Contribution, FamilyDeclaration, FamilyId, Mount, MountedSegment, NO_SERIES, RecordLocation};
use crate::family::{FamilyType, Merge};
use crate::segment::cells::{Shape, to_word};
use crate::segment::layout::{HEAD_WORDS, RecordHead, RecordKind, WORD, pair};
use crate::segment::memory::PAGE;
use crate::segment::{Segment, SegmentProcess};
use crate::sync::Ordering::Relaxed;
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

/// A series, by its index.
pub(super) type SeriesId = u32;

/// A series' entry in the order, with its first record: enough to encode it, if that is its only one.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeriesSlot {
    /// Position in words of the log.
    pub(super) record: u32,
    number: u32,
    pub(super) mount: u16,
    /// Whether the series has further records.
    pub(super) has_more: bool,
}

const _: () = assert!(size_of::<SeriesSlot>() == 12);

impl SeriesSlot {
    pub(super) fn new(place: RecordLocation, contribution: Contribution) -> SeriesSlot {
        let (record, has_more) = (contribution.record() as u32, !contribution.next.is_none());
        SeriesSlot { record, number: place.number, mount: place.mount, has_more }
    }

    #[inline]
    pub(super) fn first(self) -> RecordLocation {
        RecordLocation { number: self.number, mount: self.mount }
    }

    /// The series has no record left: the slot must be removed from its chunk.
    #[inline]
    pub(super) fn is_dead(self) -> bool {
        self.first().is_none()
    }
}

/// Location of a series' slot: a chunk's number and eight bits for the slot; or the number of a pending one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Position(u32);

const PENDING: u32 = 1 << 31;

impl Position {
    const NONE: Position = Position(u32::MAX);

    /// Chunk and slot, unless it is pending.
    #[inline]
    fn chunk_and_slot(self) -> Option<(u32, u16)> {
        (self.0 & PENDING == 0).then_some((self.0 >> 8, (self.0 & 0xff) as u16))
    }
}

/// About the number of lines in a chunk: small enough to encode again after one change, large enough to compress well.
pub(super) const CHUNK_LINES: usize = 256;
/// Most series of a chunk; it has a bit for each.
pub(super) const CHUNK_SERIES_MAX: usize = CHUNK_LINES;

const _: () = assert!(CHUNK_SERIES_MAX <= 256);

/// All series and all segments.
#[derive(Debug, Default)]
pub(super) struct Store {
    pub(super) mounts: Vec<Option<MountedSegment>>,
    /// The slots of each chunk.
    pub(super) slots: Vec<Vec<SeriesSlot>>,
    /// Series that are in no chunk yet, with their families.
    pub(super) pending: Vec<(FamilyId, SeriesSlot)>,
    pub(super) anchors: Anchors,
    series: Vec<Position>,
    /// Numbers of series that may be reused.
    free: Vec<SeriesId>,
    index: HashTable<SeriesId>,
    /// Randomly seeded: some label values are chosen by clients.
    hasher: RandomState,
}

impl Store {
    /// Number of series with at least one contribution.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn mount(&self, mount: u16) -> &MountedSegment {
        self.mounts[mount as usize].as_ref().expect("places are unlinked before their mount goes")
    }

    pub(super) fn mount_mut(&mut self, mount: u16) -> &mut MountedSegment {
        self.mounts[mount as usize].as_mut().expect("places are unlinked before their mount goes")
    }

    #[inline]
    pub(super) fn contribution(&self, place: RecordLocation) -> Contribution {
        self.mount(place.mount).contributions[place.number as usize]
    }

    pub(super) fn contribution_mut(&mut self, place: RecordLocation) -> &mut Contribution {
        &mut self.mount_mut(place.mount).contributions[place.number as usize]
    }

    /// Chunk and slot of a series; `None` if it has no chunk yet, or is dead.
    #[inline]
    pub(super) fn exposed(&self, series: SeriesId) -> Option<(u32, u16)> {
        self.series[series as usize].chunk_and_slot()
    }

    /// The slot of a live series.
    #[inline]
    pub(super) fn slot(&self, series: SeriesId) -> SeriesSlot {
        match self.exposed(series) {
            Some((chunk, slot)) => self.slots[chunk as usize][slot as usize],
            None => self.pending[(self.series[series as usize].0 & !PENDING) as usize].1,
        }
    }

    pub(super) fn slot_mut(&mut self, series: SeriesId) -> &mut SeriesSlot {
        match self.exposed(series) {
            Some((chunk, slot)) => &mut self.slots[chunk as usize][slot as usize],
            None => &mut self.pending[(self.series[series as usize].0 & !PENDING) as usize].1,
        }
    }

    pub(super) fn is_dead(&self, series: SeriesId) -> bool {
        self.series[series as usize] == Position::NONE
    }

    /// The series of a slot that is not dead.
    pub(super) fn series_of(&self, slot: SeriesSlot) -> SeriesId {
        self.contribution(slot.first()).series
    }

    /// Gives a chunk its slots.
    pub(super) fn expose(&mut self, chunk: u32, slots: &[SeriesSlot]) {
        // Eight million chunks of 256 lines are more than any memory holds.
        debug_assert!(chunk < PENDING >> 8 && slots.len() <= CHUNK_SERIES_MAX);
        let mut place = std::mem::take(&mut self.slots[chunk as usize]);
        place.clear();
        grow(&mut place, slots.len());
        place.extend_from_slice(slots);
        for (index, slot) in slots.iter().enumerate() {
            let series = self.series_of(*slot);
            self.series[series as usize] = Position(chunk << 8 | index as u32);
        }
        self.slots[chunk as usize] = place;
    }

    /// The labels of a series, as in its segments.
    #[inline]
    pub(super) fn text(&self, slot: SeriesSlot) -> &[u8] {
        self.mount(slot.mount).text(slot.record as usize)
    }

    /// The contributions of a series, without an anchor.
    #[inline]
    pub(super) fn places(&self, slot: SeriesSlot) -> impl Iterator<Item = (RecordLocation, Contribution)> {
        let first = slot.first();
        let mut place = if self.is_anchor(first) { self.contribution(first).next } else { first };
        std::iter::from_fn(move || {
            if place.is_none() {
                return None;
            }
            let here = (place, self.contribution(place));
            place = here.1.next;
            Some(here)
        })
    }

    /// Reserves room for so many more series, so that the index does not grow step by step.
    pub(super) fn reserve(&mut self, more: usize) {
        let mut index = std::mem::take(&mut self.index);
        index.reserve(more, |id| self.hash_of(*id));
        self.index = index;
        let wanted = self.series.len() + more.saturating_sub(self.free.len());
        grow(&mut self.series, wanted);
        self.pending.reserve(more);
    }

    /// Adds a segment's record of a series; returns the series and whether it is new.
    pub(super) fn link(
        &mut self,
        family: FamilyId,
        text: &[u8],
        place: RecordLocation,
        record: u32,
    ) -> (SeriesId, bool) {
        match self.find(family, text) {
            Some(id) => {
                self.follow(id, place, Contribution::new(record, id, RecordLocation::NONE));
                (id, false)
            }
            None => {
                let id = self.new_series();
                self.begin(family, text, id, place, Contribution::new(record, id, RecordLocation::NONE));
                (id, true)
            }
        }
    }

    /// The series of a family with this text.
    pub(super) fn find(&self, family: FamilyId, text: &[u8]) -> Option<SeriesId> {
        let known = self.index.find(self.hash_text(family, text), |id| {
            let slot = self.slot(*id);
            self.text(slot) == text && self.family(slot) == Some(family)
        });
        known.copied()
    }

    /// Begins a series with its first record, which has its text.
    pub(super) fn begin(
        &mut self,
        family: FamilyId,
        text: &[u8],
        id: SeriesId,
        place: RecordLocation,
        contribution: Contribution,
    ) {
        let hash = self.hash_text(family, text);
        self.place(place, contribution);
        self.series[id as usize] = Position(PENDING | self.pending.len() as u32);
        self.pending.push((family, SeriesSlot::new(place, contribution)));
        let mut index = std::mem::take(&mut self.index);
        index.insert_unique(hash, id, |id| self.hash_of(*id));
        self.index = index;
    }

    /// Adds a record to a series, behind the first, which stays where it is.
    pub(super) fn follow(&mut self, id: SeriesId, place: RecordLocation, contribution: Contribution) {
        let first = self.slot(id).first();
        let mut contribution = contribution;
        contribution.next = self.contribution(first).next;
        self.place(place, contribution);
        self.contribution_mut(first).next = place;
        self.slot_mut(id).has_more = true;
    }

    pub(super) fn place(&mut self, place: RecordLocation, contribution: Contribution) {
        let contributions = &mut self.mount_mut(place.mount).contributions;
        let number = place.number as usize;
        if contributions.len() <= number {
            grow(contributions, number + 1);
            contributions.resize(number + 1, Contribution::ABSENT);
        }
        contributions[number] = contribution;
    }

    pub(super) fn new_series(&mut self) -> SeriesId {
        self.free.pop().unwrap_or_else(|| {
            let count = self.series.len();
            grow(&mut self.series, count + 1);
            self.series.push(Position::NONE);
            count as SeriesId
        })
    }

    /// Takes back the result of [`Store::new_series`].
    pub(super) fn free_series(&mut self, id: SeriesId) {
        self.free.push(id);
    }

    /// Removes a contribution. Returns its series, and whether it was the last one; the slot of a dead series stays in
    /// its chunk, `chunk`, until it is removed there.
    pub(super) fn unlink(&mut self, place: RecordLocation) -> Option<UnlinkResult> {
        let gone = self.contribution(place);
        let id = gone.series;
        if id == NO_SERIES {
            return None;
        }
        let chunk = self.exposed(id).map(|(chunk, _)| chunk);
        let first = self.slot(id).first();
        let is_only = first == place || self.is_anchor(first) && self.contribution(first).next == place;
        let is_last = is_only && gone.next.is_none();
        if is_last {
            self.bury(id);
        } else if first == place {
            let next = self.contribution(gone.next);
            *self.slot_mut(id) = SeriesSlot::new(gone.next, next);
        } else if let Some(before) = self.before(first, place) {
            self.contribution_mut(before).next = gone.next;
            if before == first {
                self.slot_mut(id).has_more = !gone.next.is_none();
            }
        }
        *self.contribution_mut(place) = Contribution::ABSENT;
        Some(UnlinkResult { series: id, is_last, chunk })
    }

    /// Removes a series from the index when its last record goes, while its labels can still be read.
    pub(super) fn bury(&mut self, id: SeriesId) {
        let hash = self.hash_of(id);
        match self.index.find_entry(hash, |each| *each == id) {
            Ok(entry) => drop(entry.remove()),
            // The file was changed behind our back; the entry may be anywhere.
            Err(_) => self.index.retain(|each| *each != id),
        }
        let first = self.slot(id).first();
        if self.is_anchor(first) {
            self.drop_anchor(first);
        }
        self.slot_mut(id).mount = RecordLocation::NONE.mount;
        self.series[id as usize] = Position::NONE;
        self.free.push(id);
    }

    fn before(&self, mut at: RecordLocation, place: RecordLocation) -> Option<RecordLocation> {
        while !at.is_none() {
            let next = self.contribution(at).next;
            if next == place {
                return Some(at);
            }
            at = next;
        }
        None
    }

    /// Bytes of these tables.
    pub(super) fn bytes(&self) -> usize {
        let of_mounts = self.mounts.iter().flatten().map(|mounted| {
            mounted.contributions.capacity() * size_of::<Contribution>()
                + mounted.families.capacity() * size_of::<Option<super::mount::FamilyDeclaration>>()
        });
        of_mounts.sum::<usize>()
            + self.mounts.capacity() * size_of::<Option<MountedSegment>>()
            + self.slots.iter().map(|slots| slots.capacity() * size_of::<SeriesSlot>()).sum::<usize>()
            + self.slots.capacity() * size_of::<Vec<SeriesSlot>>()
            + self.pending.capacity() * size_of::<(FamilyId, SeriesSlot)>()
            + (self.series.capacity() + self.free.capacity()) * 4
            + self.index.allocation_size()
    }

    fn family(&self, slot: SeriesSlot) -> Option<FamilyId> {
        self.mount(slot.mount).declared(slot.record as usize).map(|declared| declared.family)
    }

    fn hash_of(&self, series: SeriesId) -> u64 {
        let slot = self.slot(series);
        self.hash_text(self.family(slot).unwrap_or(FamilyId::MAX), self.text(slot))
    }

    fn hash_text(&self, family: FamilyId, text: &[u8]) -> u64 {
        let mut state = self.hasher.build_hasher();
        state.write_u32(family);
        state.write(text);
        state.finish()
    }
}

/// The result of [`Store::unlink`].
#[derive(Debug, Clone, Copy)]
pub(super) struct UnlinkResult {
    pub(super) series: SeriesId,
    pub(super) is_last: bool,
    pub(super) chunk: Option<u32>,
}

/// Grows by an eighth instead of doubling: with a million entries the difference matters.
pub(super) fn grow<T>(entries: &mut Vec<T>, wanted: usize) {
    if wanted > entries.capacity() {
        let capacity = wanted.max(entries.capacity() + entries.capacity() / 8).max(64);
        entries.reserve_exact(capacity - entries.len());
    }
}

// Series of folded records: their label text is in no writer's segment, so the reader holds it itself.
//
// A series' text is that of its first record. If some of its records were folded, whose text differs, an anchor
// precedes them: a record of the reader's own, with the text of the series and a value that changes nothing. It is in
// no list of segments, and is removed when no record of its series is folded any longer.

/// Room for some hundred thousand anchors. When it is used up, further series are not folded.
const ANCHORS_BYTES_MAX: usize = 64 << 20;
/// Memory that is prepared at a time.
const READY_WORDS: usize = 64 * PAGE / WORD;

/// The segment of the anchors, if any exist.
#[derive(Debug)]
pub(super) struct Anchors {
    /// Its mount; that of [`RecordLocation::NONE`] while there are no anchors.
    pub(super) mount: u16,
    living: usize,
    ready_words: usize,
}

impl Default for Anchors {
    fn default() -> Self {
        Anchors { mount: RecordLocation::NONE.mount, living: 0, ready_words: 0 }
    }
}

impl Store {
    /// Whether an anchor is at this place.
    #[inline]
    pub(super) fn is_anchor(&self, place: RecordLocation) -> bool {
        place.mount == self.anchors.mount && !place.is_none()
    }

    /// Adds a record that counts for the series with this text, which is not its own; returns the series, and whether
    /// it is new. `None`: memory for the text ran out.
    pub(super) fn link_folded(
        &mut self,
        (family, kind): (FamilyId, &FamilyType),
        text: &[u8],
        place: RecordLocation,
        record: u32,
    ) -> Option<(SeriesId, bool)> {
        let (id, is_new) = match self.find(family, text) {
            Some(id) => {
                let first = self.slot(id).first();
                if !self.is_anchor(first) {
                    self.anchor(family, kind, text, id, first)?;
                }
                (id, false)
            }
            None => {
                let id = self.new_series();
                let Some(at) = self.anchor_place(family, kind, text) else {
                    self.free_series(id);
                    return None;
                };
                let contribution = Contribution::new(at.1, id, RecordLocation::NONE);
                self.begin(family, text, id, at.0, contribution);
                (id, true)
            }
        };
        self.follow(id, place, Contribution::folded(record, id));
        Some((id, is_new))
    }

    /// Puts an anchor before the first record of a series.
    fn anchor(
        &mut self,
        family: FamilyId,
        kind: &FamilyType,
        text: &[u8],
        id: SeriesId,
        first: RecordLocation,
    ) -> Option<()> {
        let (place, record) = self.anchor_place(family, kind, text)?;
        let contribution = Contribution::new(record, id, first);
        self.place(place, contribution);
        *self.slot_mut(id) = SeriesSlot::new(place, contribution);
        Some(())
    }

    /// Writes an anchor: returns its place, and that of its record.
    fn anchor_place(&mut self, family: FamilyId, kind: &FamilyType, text: &[u8]) -> Option<(RecordLocation, u32)> {
        if self.anchors.mount == RecordLocation::NONE.mount {
            self.mount_anchors()?;
        }
        let mount = self.anchors.mount;
        let ready_words = self.anchors.ready_words;
        let mounted = self.mount_mut(mount);
        let words = HEAD_WORDS + 1 + text.len().div_ceil(WORD);
        let (at, number) = (mounted.read_to, mounted.contributions.len() as u32);
        let wanted = (at + words).next_multiple_of(READY_WORDS).max(ready_words);
        if wanted > mounted.segment.room().1 {
            return None;
        }
        if wanted > ready_words {
            mounted.segment.prepare_log(ready_words, wanted).ok()?;
        }
        let known = mounted.families.iter().position(|known| known.as_ref().is_some_and(|each| each.family == family));
        let family_number = known.unwrap_or_else(|| {
            mounted.families.push(Some(FamilyDeclaration::of_anchor(family, Shape::single())));
            mounted.families.len() - 1
        });
        let family_number = u16::try_from(family_number).ok()?;
        let head = RecordHead { words: words as u32, kind: RecordKind::Series, flags: 0, family: family_number };
        let nothing = match kind {
            FamilyType::Gauge(Merge::Max) => f64::NEG_INFINITY.to_bits(),
            _ => 0,
        };
        let log = &mounted.segment.own_log()[at..at + words];
        let words_before = [head.pack(), pair(number, text.len() as u32), u64::MAX, nothing];
        let words_of_text = text.chunks(WORD).map(to_word);
        log.iter()
            .zip(words_before.into_iter().chain(words_of_text))
            .for_each(|(word, value)| word.store(value, Relaxed));
        mounted.read_to = at + words;
        self.anchors.ready_words = wanted;
        self.anchors.living += 1;
        Some((RecordLocation { number, mount }, at as u32))
    }

    fn mount_anchors(&mut self) -> Option<()> {
        let nobody = SegmentProcess { pid: 0, start: 0 };
        let segment = Segment::create(None, ANCHORS_BYTES_MAX, nobody, u64::MAX, 0).ok()?;
        let mounted = Some(MountedSegment::new(&Mount { segment: Arc::new(segment), is_alive: true }, 0));
        let free = self.mounts.iter().position(Option::is_none);
        let mount = free.unwrap_or(self.mounts.len());
        if mount >= super::mount::MOUNTS_MAX {
            return None;
        }
        match free {
            Some(free) => self.mounts[free] = mounted,
            None => self.mounts.push(mounted),
        }
        self.anchors = Anchors { mount: mount as u16, ..Anchors::default() };
        Some(())
    }

    /// Removes an anchor that its series no longer needs.
    pub(super) fn drop_anchor(&mut self, place: RecordLocation) {
        *self.contribution_mut(place) = Contribution::ABSENT;
        self.anchors.living -= 1;
    }

    /// Frees the memory of anchors, once there are none.
    pub(super) fn forget_anchors(&mut self) {
        if self.anchors.living == 0 && self.anchors.mount != RecordLocation::NONE.mount {
            self.mounts[self.anchors.mount as usize] = None;
            self.anchors = Anchors::default();
        }
    }

    /// Removes the records for which `is_wanted` returns true from a series, in one pass, and returns what became of
    /// the series.
    pub(super) fn take(
        &mut self,
        id: SeriesId,
        is_wanted: impl Fn(RecordLocation) -> bool,
    ) -> (Vec<(RecordLocation, Contribution)>, UnlinkResult) {
        let first = self.slot(id).first();
        let (taken, left): (Vec<_>, Vec<_>) = self.places(self.slot(id)).partition(|(place, _)| is_wanted(*place));
        let unlinked =
            UnlinkResult { series: id, is_last: left.is_empty(), chunk: self.exposed(id).map(|(chunk, _)| chunk) };
        if left.is_empty() {
            self.bury(id);
        } else if !taken.is_empty() {
            let keeps_anchor = self.is_anchor(first) && left.iter().any(|(_, each)| each.is_folded());
            if self.is_anchor(first) && !keeps_anchor {
                self.drop_anchor(first);
            }
            let places: Vec<RecordLocation> =
                keeps_anchor.then_some(first).into_iter().chain(left.iter().map(|(place, _)| *place)).collect();
            for (index, place) in places.iter().enumerate() {
                let next = places.get(index + 1).copied().unwrap_or(RecordLocation::NONE);
                self.contribution_mut(*place).next = next;
            }
            *self.slot_mut(id) = SeriesSlot::new(places[0], self.contribution(places[0]));
        }
        taken.iter().for_each(|(place, _)| *self.contribution_mut(*place) = Contribution::ABSENT);
        (taken, unlinked)
    }

    /// Removes a mount's records from all series; reports what became of each series.
    pub(super) fn take_mount(&mut self, mount: u16, mut done: impl FnMut(UnlinkResult)) {
        for number in 0..self.mount(mount).contributions.len() {
            let series = self.mount(mount).contributions[number].series;
            if series != NO_SERIES {
                done(self.take(series, |place| place.mount == mount).1);
            }
        }
    }
}
