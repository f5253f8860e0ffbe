//! Reads the values of many series at once.
//!
//! A value is at the end of a chain: slot, record; and for several records: contribution, record, and so on. With a
//! million series each link is a cache miss. So all series follow the first link, then all follow the second: loops
//! this short let the processor wait for dozens of misses at the same time. That is several times as fast as one series
//! after the other.

use super::mount::{Contribution, RecordLocation};
use super::store::{SeriesSlot, Store};
use crate::family::{FamilyType, Merge};
use crate::segment::layout::{HEAD_WORDS, RecordHead, WORD, unpair};
use crate::sync::{AtomicU64, ReadOnly, Word};

/// Position of a label text: its words in the log, its length in bytes.
#[derive(Debug, Clone, Copy)]
struct LabelText {
    word: u32,
    bytes: u32,
}

/// Words of a cache line.
const LINE_WORDS: usize = 8;

/// Series that are read together, and their values.
#[derive(Debug, Default)]
pub(super) struct ValueBatch {
    /// A value for each series, as bits.
    pub(super) values: Vec<u64>,
    texts: Vec<LabelText>,
    /// Series with one more record: their index, and the location of that record.
    more: Vec<(u32, RecordLocation)>,
    contributions: Vec<Contribution>,
}

impl ValueBatch {
    /// Finds the label texts of series, for [`ValueBatch::labels`].
    pub(super) fn find_labels(&mut self, store: &Store, slots: &[SeriesSlot]) {
        let mut mounts = ByMount::new(store);
        self.texts.clear();
        self.texts.extend(slots.iter().map(|slot| mounts.text(*slot)));
        let touch = |all: u64, (slot, text): (&SeriesSlot, &LabelText)| {
            mounts.turn_to(slot.mount);
            let words = &mounts.log[text.word as usize..][..(text.bytes as usize).div_ceil(WORD)];
            let lines = words.iter().step_by(LINE_WORDS).chain(words.last());
            lines.fold(all, |all, word| all ^ word.get())
        };
        // The result is not used, but the texts are in the cache from now on.
        std::hint::black_box(slots.iter().zip(&self.texts).fold(0, touch));
    }

    /// The labels of the series at this index among those whose labels were found.
    #[inline]
    pub(super) fn labels<'a>(&self, store: &'a Store, slot: SeriesSlot, index: usize) -> &'a [u8] {
        let text = self.texts[index];
        store.mount(slot.mount).segment.frozen(text.word as usize, text.bytes as usize)
    }

    /// Reads the values of series that have a single value each.
    pub(super) fn read(&mut self, store: &Store, kind: &FamilyType, slots: impl Iterator<Item = SeriesSlot> + Clone) {
        self.values.clear();
        if matches!(kind, FamilyType::Info | FamilyType::Gauge(Merge::Last)) {
            // Only few series, or histograms, whose cells must be combined.
            self.values.extend(slots.map(|slot| store.single(kind, slot)));
            return;
        }
        let mut mounts = ByMount::new(store);
        let mut has_more = false;
        self.values.extend(slots.clone().map(|slot| {
            has_more |= slot.has_more;
            mounts.value(slot.mount, slot.record as usize)
        }));
        if !has_more {
            return;
        }
        self.more.clear();
        let others = slots.enumerate().filter(|(_, slot)| slot.has_more);
        self.more.extend(others.map(|(index, slot)| (index as u32, slot.first())));
        self.look(&mut mounts);
        loop {
            self.more.iter_mut().zip(&self.contributions).for_each(|((_, place), each)| *place = each.next);
            self.more.retain(|(_, place)| !place.is_none());
            if self.more.is_empty() {
                return;
            }
            self.look(&mut mounts);
            for ((index, place), each) in self.more.iter().zip(&self.contributions) {
                let sum = &mut self.values[*index as usize];
                *sum = merge(kind, *sum, mounts.value(place.mount, each.record()));
            }
        }
    }

    /// Follows the remaining contributions.
    fn look(&mut self, mounts: &mut ByMount<'_>) {
        self.contributions.clear();
        self.contributions.extend(self.more.iter().map(|(_, place)| mounts.contribution(*place)));
    }
}

/// Two records' values as one.
#[inline]
pub(super) fn merge(kind: &FamilyType, a: u64, b: u64) -> u64 {
    let (x, y) = (f64::from_bits(a), f64::from_bits(b));
    match kind {
        FamilyType::Counter => a.wrapping_add(b),
        FamilyType::Gauge(Merge::Max) => x.max(y).to_bits(),
        _ => (x + y).to_bits(),
    }
}

/// The slices of the mount that was last used: most often it is used again.
struct ByMount<'a> {
    store: &'a Store,
    mount: u16,
    contributions: &'a [Contribution],
    log: &'a [ReadOnly<AtomicU64>],
    read_to: usize,
}

impl<'a> ByMount<'a> {
    fn new(store: &'a Store) -> ByMount<'a> {
        ByMount { store, mount: u16::MAX, contributions: &[], log: &[], read_to: 0 }
    }

    #[inline]
    fn turn_to(&mut self, mount: u16) {
        if mount != self.mount {
            let mounted = self.store.mount(mount);
            (self.mount, self.contributions) = (mount, &mounted.contributions);
            (self.log, self.read_to) = (mounted.segment.log(), mounted.read_to);
        }
    }

    #[inline]
    fn contribution(&mut self, place: RecordLocation) -> Contribution {
        self.turn_to(place.mount);
        self.contributions[place.number as usize]
    }

    #[inline]
    fn text(&mut self, slot: SeriesSlot) -> LabelText {
        self.turn_to(slot.mount);
        let at = slot.record as usize;
        let head = RecordHead::unpack(self.log[at].get()).map_or(0, |head| head.words as usize);
        let (_, bytes) = unpair(self.log[at + 1].get());
        let word = (at + head).checked_sub((bytes as usize).div_ceil(WORD)).filter(|word| *word >= at + HEAD_WORDS);
        match word {
            Some(word) if at + head <= self.read_to => LabelText { word: word as u32, bytes },
            // The segment was damaged after it was read.
            _ => LabelText { word: 0, bytes: 0 },
        }
    }

    #[inline]
    fn value(&mut self, mount: u16, record: usize) -> u64 {
        self.turn_to(mount);
        self.log[record + HEAD_WORDS].get()
    }
}
