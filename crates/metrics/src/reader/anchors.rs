//! Series of folded records: their label text is in no writer's segment, so the reader holds it itself.
//!
//! A series' text is that of its first record. If some of its records were folded, whose text differs, an anchor
//! precedes them: a record of the reader's own, with the text of the series and a value that changes nothing. It is in
//! no list of segments, and is removed when no record of its series is folded any longer.

use super::mount::{Contribution, FamilyDeclaration, FamilyId, Mount, MountedSegment, NO_SERIES, RecordLocation};
use super::store::{SeriesId, SeriesSlot, Store, UnlinkResult};
use crate::family::{FamilyType, Merge};
use crate::segment::cells::{Shape, to_word};
use crate::segment::layout::{HEAD_WORDS, RecordHead, RecordKind, WORD, pair};
use crate::segment::memory::PAGE;
use crate::segment::{Segment, SegmentProcess};
use crate::sync::Ordering::Relaxed;
use std::sync::Arc;

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
        let mounted = self.mounted_mut(mount);
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
        for number in 0..self.mounted(mount).contributions.len() {
            let series = self.mounted(mount).contributions[number].series;
            if series != NO_SERIES {
                done(self.take(series, |place| place.mount == mount).1);
            }
        }
    }
}
