//! Which series there are and which records make up each: the same labels in several segments are one series.
//!
//! Values are not kept: they are in the segments, and are read when they are encoded. What is kept is one small entry for
//! each record (`mount::Contribution`), one for each series, and an index from labels to series.

use super::families::FamilyId;
use super::mount::{Contribution, Mounted, NO_SERIES, Place};
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use std::hash::{BuildHasher, Hasher};

/// A series, by its index.
pub(super) type SeriesId = u32;

/// A series that is in no chunk yet.
pub(super) const NO_CHUNK: u32 = u32::MAX;

/// Where a series' contributions begin, and where it is exposed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Series {
    first_number: u32,
    /// [`NO_CHUNK`] until it has been put into order.
    pub(super) chunk: u32,
    first_mount: u16,
    /// Its place within the chunk.
    pub(super) slot: u16,
}

const _: () = assert!(size_of::<Series>() == 12);

impl Series {
    #[inline]
    pub(super) fn first(self) -> Place {
        Place { number: self.first_number, mount: self.first_mount }
    }

    fn set_first(&mut self, place: Place) {
        (self.first_number, self.first_mount) = (place.number, place.mount);
    }
}

/// All series and all segments.
#[derive(Debug, Default)]
pub(super) struct Store {
    pub(super) mounts: Vec<Option<Mounted>>,
    series: Vec<Series>,
    /// Series without a contribution, to be used again.
    free: Vec<SeriesId>,
    index: HashTable<SeriesId>,
    /// Seeded at random: some label values are chosen by clients.
    hasher: RandomState,
}

impl Store {
    /// Series with at least one contribution.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn mounted(&self, mount: u16) -> &Mounted {
        self.mounts[mount as usize].as_ref().expect("places are unlinked before their mount goes")
    }

    pub(super) fn mounted_mut(&mut self, mount: u16) -> &mut Mounted {
        self.mounts[mount as usize].as_mut().expect("places are unlinked before their mount goes")
    }

    #[inline]
    pub(super) fn contribution(&self, place: Place) -> Contribution {
        self.mounted(place.mount).contributions[place.number as usize]
    }

    pub(super) fn contribution_mut(&mut self, place: Place) -> &mut Contribution {
        &mut self.mounted_mut(place.mount).contributions[place.number as usize]
    }

    #[inline]
    pub(super) fn get(&self, series: SeriesId) -> Series {
        self.series[series as usize]
    }

    /// Where series are exposed; those that are nowhere have [`NO_CHUNK`].
    pub(super) fn all(&self) -> &[Series] {
        &self.series
    }

    pub(super) fn is_dead(&self, series: SeriesId) -> bool {
        self.get(series).first().is_none()
    }

    pub(super) fn expose(&mut self, series: SeriesId, chunk: u32, slot: u16) {
        let entry = &mut self.series[series as usize];
        (entry.chunk, entry.slot) = (chunk, slot);
    }

    /// The labels of a series, as in its segments; empty for a dead one.
    #[inline]
    pub(super) fn text(&self, series: SeriesId) -> &[u8] {
        let first = self.get(series).first();
        if first.is_none() {
            return &[];
        }
        let mounted = self.mounted(first.mount);
        mounted.text(mounted.contributions[first.number as usize].record())
    }

    fn family(&self, series: SeriesId) -> Option<FamilyId> {
        let first = self.get(series).first();
        if first.is_none() {
            return None;
        }
        let mounted = self.mounted(first.mount);
        mounted.declared(mounted.contributions[first.number as usize].record()).map(|declared| declared.family)
    }

    /// The contributions of a series.
    #[inline]
    pub(super) fn places(&self, series: SeriesId) -> impl Iterator<Item = (Place, Contribution)> {
        let mut place = self.get(series).first();
        std::iter::from_fn(move || {
            if place.is_none() {
                return None;
            }
            let here = (place, self.contribution(place));
            place = here.1.next;
            Some(here)
        })
    }

    /// Makes room for so many more series, so that the index does not grow step by step.
    pub(super) fn reserve(&mut self, more: usize) {
        let Store { mounts, series, index, hasher, .. } = self;
        let hash = |id: &SeriesId| hash_of(mounts, series, hasher, *id);
        index.reserve(more, hash);
        let wanted = self.series.len() + more.saturating_sub(self.free.len());
        grow(&mut self.series, wanted);
    }

    /// Adds what a segment says of a series; says which series and whether it is new.
    pub(super) fn link(&mut self, family: FamilyId, text: &[u8], place: Place, record: u32) -> (SeriesId, bool) {
        let Store { mounts, series, index, hasher, free } = self;
        let hash = hash_text(hasher, family, text);
        let known = index.find(hash, |id| {
            let first = series[*id as usize].first();
            let Some(mounted) = mounts.get(first.mount as usize).and_then(Option::as_ref) else { return false };
            let record = mounted.contributions[first.number as usize].record();
            mounted.text(record) == text && mounted.declared(record).is_some_and(|declared| declared.family == family)
        });
        let (id, next, is_new) = match known {
            Some(id) => (*id, series[*id as usize].first(), false),
            None => {
                let fresh = Series { first_number: 0, chunk: NO_CHUNK, first_mount: 0, slot: 0 };
                let id = free.pop().unwrap_or_else(|| {
                    let count = series.len();
                    grow(series, count + 1);
                    series.push(fresh);
                    count as SeriesId
                });
                series[id as usize] = fresh;
                (id, Place::NONE, true)
            }
        };
        series[id as usize].set_first(place);
        let mounted = mounts[place.mount as usize].as_mut().expect("the caller reads this mount");
        let number = place.number as usize;
        if mounted.contributions.len() <= number {
            grow(&mut mounted.contributions, number + 1);
            mounted.contributions.resize(number + 1, Contribution::ABSENT);
        }
        mounted.contributions[number] = Contribution::new(record, id, next);
        if is_new {
            let (mounts, series, hasher) = (&*mounts, &*series, &*hasher);
            index.insert_unique(hash, id, |id| hash_of(mounts, series, hasher, *id));
        }
        (id, is_new)
    }

    /// Takes a contribution away; says whether it was the series' last. A dead series stays where it is exposed until
    /// [`Store::release`].
    pub(super) fn unlink(&mut self, place: Place) -> Option<(SeriesId, bool)> {
        let gone = self.contribution(place);
        let id = gone.series;
        if id == NO_SERIES {
            return None;
        }
        let first = self.get(id).first();
        let is_last = first == place && gone.next.is_none();
        if is_last {
            // While the labels can still be read.
            let hash = hash_of(&self.mounts, &self.series, &self.hasher, id);
            match self.index.find_entry(hash, |each| *each == id) {
                Ok(entry) => drop(entry.remove()),
                // The file was changed behind our back; the entry may be anywhere.
                Err(_) => self.index.retain(|each| *each != id),
            }
        }
        if first == place {
            self.series[id as usize].set_first(gone.next);
        } else if let Some(before) = self.before(first, place) {
            self.contribution_mut(before).next = gone.next;
        }
        *self.contribution_mut(place) = Contribution::ABSENT;
        Some((id, is_last))
    }

    fn before(&self, mut at: Place, place: Place) -> Option<Place> {
        while !at.is_none() {
            let next = self.contribution(at).next;
            if next == place {
                return Some(at);
            }
            at = next;
        }
        None
    }

    /// A dead series is exposed nowhere any more.
    pub(super) fn release(&mut self, series: SeriesId) {
        debug_assert!(self.is_dead(series));
        self.series[series as usize].chunk = NO_CHUNK;
        self.free.push(series);
    }

    /// Bytes of all this.
    pub(super) fn bytes(&self) -> usize {
        let of_mounts = self.mounts.iter().flatten().map(|mounted| {
            mounted.contributions.capacity() * size_of::<Contribution>()
                + mounted.families.capacity() * size_of::<Option<super::mount::Declared>>()
        });
        of_mounts.sum::<usize>()
            + self.mounts.capacity() * size_of::<Option<Mounted>>()
            + self.series.capacity() * size_of::<Series>()
            + self.free.capacity() * size_of::<SeriesId>()
            + self.index.allocation_size()
    }
}

/// Grows by an eighth instead of doubling: with a million entries the difference is what counts.
pub(super) fn grow<T>(entries: &mut Vec<T>, wanted: usize) {
    if wanted > entries.capacity() {
        let capacity = wanted.max(entries.capacity() + entries.capacity() / 8).max(64);
        entries.reserve_exact(capacity - entries.len());
    }
}

fn hash_of(mounts: &[Option<Mounted>], series: &[Series], hasher: &RandomState, id: SeriesId) -> u64 {
    let first = series[id as usize].first();
    let Some(mounted) = mounts.get(first.mount as usize).and_then(Option::as_ref) else { return 0 };
    let record = mounted.contributions[first.number as usize].record();
    let family = mounted.declared(record).map_or(0, |declared| declared.family);
    hash_text(hasher, family, mounted.text(record))
}

fn hash_text(hasher: &RandomState, family: FamilyId, text: &[u8]) -> u64 {
    let mut state = hasher.build_hasher();
    state.write_u32(family);
    state.write(text);
    state.finish()
}
