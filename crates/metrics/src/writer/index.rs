//! Maps a label set's hash to the place of its series: a hash table that grows without a pause.
//!
//! It is an extendible hash table (Fagin et al., 1979): a directory, indexed by the hash's first bits, of pages of 512
//! slots. A full page is split in two, which moves some four hundred entries; apart from that only the directory moves,
//! four bytes a page, when it doubles. Pages come from memory prepared ahead. So the slowest insertion, whatever the
//! size, takes a few microseconds, where an ordinary table copies all of itself.
//!
//! A slot holds 32 bits of the hash and the place of the record. The caller compares the labels to see which candidate
//! is the right one.

use crate::segment::memory::PAGE;
use crate::sync::{AtomicU64, Ordering::Relaxed};

/// Slots of a page.
const SLOTS: usize = PAGE / 8;
/// A page with more entries is split, if there is memory for another.
const FULL: u16 = 416;
/// With more entries a page is split or refuses further ones.
const FULL_WITHOUT_MEMORY: u16 = 504;
/// Bits of the hash that choose the page; more hashes with equal bits than this are not an accident.
const DEPTH_MAX: u8 = 22;

/// Initial capacity of the directory: enough for ten million series.
const DIRECTORY_PAGES: usize = 1 << 16;

/// A place that is never used: places are record offsets in words, and the log's last word begins no record.
const NOWHERE: u32 = u32::MAX;

/// The table; the caller passes in the memory of its pages.
#[derive(Debug)]
pub(crate) struct RecordIndex {
    /// Page numbers by the first `depth` bits of the hash.
    directory: Vec<u32>,
    depth: u8,
    /// Indexed by page number.
    pages: Vec<PageInfo>,
}

#[derive(Debug, Clone, Copy)]
struct PageInfo {
    /// Number of leading bits that its entries share.
    depth: u8,
    entries: u16,
}

/// The memory of pages.
#[derive(Clone, Copy)]
pub(crate) struct Pages<'a> {
    pub(crate) words: &'a [AtomicU64],
    /// Number of pages that have memory.
    pub(crate) ready: usize,
}

impl Pages<'_> {
    #[inline]
    fn slots(&self, page: u32) -> &[AtomicU64] {
        &self.words[page as usize * SLOTS..][..SLOTS]
    }
}

impl RecordIndex {
    /// Creates an empty table, which uses the first page.
    pub(crate) fn new() -> RecordIndex {
        // Doubling then neither allocates nor copies; the unused part takes addresses only.
        let mut directory = Vec::with_capacity(DIRECTORY_PAGES);
        directory.push(0);
        RecordIndex { directory, depth: 0, pages: vec![PageInfo { depth: 0, entries: 0 }] }
    }

    /// Number of pages in use.
    pub(crate) fn pages(&self) -> usize {
        self.pages.len()
    }

    #[inline]
    fn page_of(&self, hash: u32) -> u32 {
        // A 32-bit shift by 32 is undefined; the directory then has one entry.
        let place = (u64::from(hash) << self.depth >> 32) as usize;
        self.directory[place]
    }

    /// The place with this hash that `is_it` accepts.
    #[inline]
    pub(crate) fn find(&self, pages: Pages<'_>, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let slots = pages.slots(self.page_of(hash));
        let mut slot = hash as usize % SLOTS;
        loop {
            let entry = slots[slot].load(Relaxed);
            if entry == 0 {
                return None;
            }
            if entry as u32 == hash {
                let place = (entry >> 32) as u32 - 1;
                if is_it(place) {
                    return Some(place);
                }
            }
            slot = (slot + 1) % SLOTS;
        }
    }

    /// Adds a new place; false, with nothing changed but perhaps some pages split, if there is no room.
    pub(crate) fn insert(&mut self, pages: Pages<'_>, hash: u32, place: u32) -> bool {
        debug_assert!(place < NOWHERE);
        loop {
            let page = self.page_of(hash);
            let info = self.pages[page as usize];
            let room = info.entries < FULL || (info.entries < FULL_WITHOUT_MEMORY && !self.can_split(pages, info));
            if room {
                insert_entry(pages.slots(page), pack(hash, place));
                self.pages[page as usize].entries += 1;
                return true;
            }
            if !self.can_split(pages, info) {
                return false;
            }
            self.split(pages, page, hash);
        }
    }

    /// Removes a place.
    pub(crate) fn remove(&mut self, pages: Pages<'_>, hash: u32, place: u32) -> bool {
        let page = self.page_of(hash);
        let slots = pages.slots(page);
        let wanted = pack(hash, place);
        let mut hole = hash as usize % SLOTS;
        loop {
            match slots[hole].load(Relaxed) {
                0 => return false,
                entry if entry == wanted => break,
                _ => hole = (hole + 1) % SLOTS,
            }
        }
        // Later entries of the run move up, unless that would move them before their home slot.
        let mut next = (hole + 1) % SLOTS;
        loop {
            let entry = slots[next].load(Relaxed);
            if entry == 0 {
                break;
            }
            let home = entry as usize % SLOTS;
            if (next + SLOTS - home) % SLOTS >= (next + SLOTS - hole) % SLOTS {
                slots[hole].store(entry, Relaxed);
                hole = next;
            }
            next = (next + 1) % SLOTS;
        }
        slots[hole].store(0, Relaxed);
        self.pages[page as usize].entries -= 1;
        true
    }

    fn can_split(&self, pages: Pages<'_>, info: PageInfo) -> bool {
        info.depth < DEPTH_MAX && self.pages.len() < pages.ready
    }

    #[cold]
    fn split(&mut self, pages: Pages<'_>, page: u32, hash: u32) {
        let depth = self.pages[page as usize].depth;
        if depth == self.depth {
            // From the end, so that nothing is overwritten before it is read.
            let pages = self.directory.len();
            self.directory.resize(2 * pages, 0);
            for place in (0..pages).rev() {
                let page = self.directory[place];
                self.directory[2 * place..2 * place + 2].fill(page);
            }
            self.depth += 1;
        }
        let sibling = self.pages.len() as u32;
        let mut kept = PageInfo { depth: depth + 1, entries: 0 };
        let mut moved = kept;
        let (old, new) = (pages.slots(page), pages.slots(sibling));
        let entries: [u64; SLOTS] = std::array::from_fn(|slot| old[slot].load(Relaxed));
        old.iter().for_each(|slot| slot.store(0, Relaxed));
        for entry in entries.into_iter().filter(|entry| *entry != 0) {
            let goes = (entry as u32) << depth >> 31 == 1;
            insert_entry(if goes { new } else { old }, entry);
            if goes { moved.entries += 1 } else { kept.entries += 1 }
        }
        self.pages[page as usize] = kept;
        self.pages.push(moved);
        // The later half of the directory's run of entries for this page now refers to the sibling.
        let run = self.directory.len() >> depth;
        let start = (u64::from(hash) << self.depth >> 32) as usize / run * run;
        self.directory[start + run / 2..start + run].fill(sibling);
    }
}

fn pack(hash: u32, place: u32) -> u64 {
    u64::from(hash) | u64::from(place + 1) << 32
}

/// Puts an entry into the first free slot from its home slot.
fn insert_entry(slots: &[AtomicU64], entry: u64) {
    let mut slot = entry as usize % SLOTS;
    while slots[slot].load(Relaxed) != 0 {
        slot = (slot + 1) % SLOTS;
    }
    slots[slot].store(entry, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn memory(pages: usize) -> Vec<AtomicU64> {
        (0..pages * SLOTS).map(|_| AtomicU64::new(0)).collect()
    }

    /// Spreads a number over 32 bits.
    fn mix(number: u32) -> u32 {
        (u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32
    }

    #[test]
    fn many_are_found_again() {
        let words = memory(1024);
        let pages = Pages { words: &words, ready: 1024 };
        let mut index = RecordIndex::new();
        for place in 0..100_000 {
            assert!(index.insert(pages, mix(place), place));
        }
        for place in 0..100_000 {
            assert_eq!(index.find(pages, mix(place), |found| found == place), Some(place));
        }
        assert_eq!(index.find(pages, mix(100_001), |_| true), None);
        assert!(index.pages() < 520, "{}", index.pages());
    }

    #[test]
    fn without_memory_it_says_so_and_keeps_what_it_has() {
        let words = memory(2);
        let pages = Pages { words: &words, ready: 2 };
        let mut index = RecordIndex::new();
        let taken = (0..2000).take_while(|place| index.insert(pages, mix(*place), *place)).count() as u32;
        assert!((800..=1008).contains(&taken), "{taken}");
        for place in 0..taken {
            assert_eq!(index.find(pages, mix(place), |found| found == place), Some(place));
        }
    }

    #[test]
    fn hashes_all_alike_end_in_a_refusal() {
        let words = memory(64);
        let pages = Pages { words: &words, ready: 64 };
        let mut index = RecordIndex::new();
        let taken = (0..2000).take_while(|place| index.insert(pages, 7, *place)).count();
        assert_eq!(taken, FULL_WITHOUT_MEMORY as usize);
    }

    proptest! {
        #[test]
        fn as_a_map(steps in prop::collection::vec((0u32..600, any::<bool>()), 0..3000)) {
            let words = memory(8);
            let pages = Pages { words: &words, ready: 8 };
            let (mut index, mut model) = (RecordIndex::new(), HashMap::new());
            for (key, add) in steps {
                // Few distinct hashes, so that runs are long.
                let hash = mix(key / 3) & 0xC000_000F;
                let known = model.contains_key(&key);
                if add && !known && index.insert(pages, hash, key) {
                    model.insert(key, hash);
                } else if !add {
                    prop_assert_eq!(index.remove(pages, hash, key), known);
                    model.remove(&key);
                }
            }
            for (key, hash) in model {
                prop_assert_eq!(index.find(pages, hash, |found| found == key), Some(key));
            }
        }
    }
}
