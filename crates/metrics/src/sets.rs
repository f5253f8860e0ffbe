//! Number of label sets of a family over all writers of the process: a set of fingerprints that they share without a
//! lock.
//!
//! Each writer has its own record of a label set, so their counts cannot simply be added. A new label set's
//! fingerprint, 32 bits of its hash, is put into one table by compare-and-swap; a writer that finds it there knows that
//! the set is counted already. Two sets with equal fingerprints are counted as one, which happens about once in a
//! billion.

use crate::segment::memory::Mapping;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

const FREE: u32 = 0;
const REMOVED: u32 = 1;
/// Most slots that are probed for one set. Removed slots are never free again, so a search could go on for ever; a
/// table that is not overfull hardly ever has a run of this length.
const RUN_MAX: usize = 256;

/// A family with so many label sets is going to touch its whole table at random: it is better to fault it in at once,
/// in another thread, than page by page in requests.
const PREPARE_AT: u32 = 256;

/// The label sets of one family.
pub(crate) struct Sets {
    table: Mapping,
    slots: usize,
    count: AtomicU32,
    is_prepared: AtomicBool,
}

impl Sets {
    /// Creates a table for so many sets. Its memory is allocated as it is touched.
    pub(crate) fn new(sets_max: u32) -> io::Result<Sets> {
        let slots = (sets_max as usize * 5 / 4).next_power_of_two().max(64);
        let table = Mapping::anonymous(slots * 4)?;
        // A huge page would be cleared by the first thread that touches it, and that is a writer.
        table.keep_small(0, table.bytes());
        Ok(Sets { table, slots, count: AtomicU32::new(0), is_prepared: AtomicBool::new(false) })
    }

    /// Number of label sets counted.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Relaxed)
    }

    /// Whether [`Sets::prepare`] should be called, by a thread that may take its time.
    pub(crate) fn is_to_be_prepared(&self) -> bool {
        self.count() >= PREPARE_AT && !self.is_prepared.load(Relaxed)
    }

    /// Faults the whole table in. If the system cannot do that, the first thread that touches a page does.
    pub(crate) fn prepare(&self) {
        self.table.populate(0, self.table.bytes());
        self.is_prepared.store(true, Relaxed);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slots * 4
    }

    /// Whether the set with this hash is counted.
    pub(crate) fn contains(&self, hash: u64) -> bool {
        let mark = fingerprint(hash);
        self.run(hash).find_map(|slot| match slot.load(Relaxed) {
            FREE => Some(false),
            found => (found == mark).then_some(true),
        }) == Some(true)
    }

    /// Counts a set, unless it is counted already.
    pub(crate) fn insert(&self, hash: u64) {
        if self.contains(hash) {
            return;
        }
        let mark = fingerprint(hash);
        for slot in self.run(hash) {
            let found = slot.load(Relaxed);
            if found == mark {
                return;
            }
            if found <= REMOVED {
                match slot.compare_exchange(found, mark, Relaxed, Relaxed) {
                    Ok(_) => {
                        self.count.fetch_add(1, Relaxed);
                        return;
                    }
                    // Another writer was faster, perhaps with the same set.
                    Err(now) if now == mark => return,
                    Err(_) => {}
                }
            }
        }
    }

    /// Stops counting a set.
    pub(crate) fn remove(&self, hash: u64) {
        let mark = fingerprint(hash);
        for slot in self.run(hash) {
            match slot.load(Relaxed) {
                FREE => return,
                found if found == mark => {
                    if slot.compare_exchange(mark, REMOVED, Relaxed, Relaxed).is_ok() {
                        self.count.fetch_sub(1, Relaxed);
                    }
                    return;
                }
                _ => {}
            }
        }
    }

    /// The slots in which the set with this hash may be, each once.
    fn run(&self, hash: u64) -> impl Iterator<Item = &AtomicU32> {
        let slots = self.table.halves(0, self.slots);
        let mask = self.slots - 1;
        let first = hash as usize & mask;
        (0..self.slots.min(RUN_MAX)).map(move |step| &slots[(first + step) & mask])
    }
}

fn fingerprint(hash: u64) -> u32 {
    ((hash >> 32) as u32).max(REMOVED + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: u64) -> u64 {
        let x = (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (x ^ (x >> 32)).wrapping_mul(0xBF58_476D_1CE4_E5B9)
    }

    #[test]
    fn sets_are_counted_once() {
        let sets = Sets::new(1000).unwrap();
        for number in (0..1000).chain(0..1000) {
            sets.insert(hash(number));
        }
        assert_eq!(sets.count(), 1000);
        (0..500).for_each(|number| sets.remove(hash(number)));
        sets.remove(hash(0));
        assert_eq!(sets.count(), 500);
        assert!(!sets.contains(hash(3)) && sets.contains(hash(700)));
        (0..500).for_each(|number| sets.insert(hash(number)));
        assert_eq!(sets.count(), 1000);
    }

    #[test]
    fn two_threads_count_a_set_once() {
        let sets = Sets::new(10_000).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..10_000).for_each(|number| sets.insert(hash(number))));
            }
        });
        assert_eq!(sets.count(), 10_000);
    }
}
