//! The sampled allocations that have not been freed.
//!
//! A table of buckets without locks. Any thread inserts into a free place; only the thread that frees an allocation
//! looks for its entry and removes it, so an entry does not change while it is read.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Most sampled allocations in the table: enough for 8 GiB at the usual mean.
const PLACES: usize = 1 << 14;

/// Places per bucket.
const BUCKET: usize = 8;

/// Buckets that may hold an allocation.
const BUCKETS_TRIED: usize = 4;

/// Marks a place that is being filled.
const CLAIMED: usize = 1;

pub(super) static LIVE: Live = Live {
    used: AtomicUsize::new(0),
    refused: AtomicU64::new(0),
    places: [const {
        LiveSlot {
            pointer: AtomicUsize::new(0),
            size: AtomicUsize::new(0),
            stack: AtomicUsize::new(0),
            weight: AtomicU64::new(0),
        }
    }; PLACES],
};

pub(super) struct Live {
    used: AtomicUsize,
    /// Allocations that were not sampled for lack of a place.
    refused: AtomicU64,
    places: [LiveSlot; PLACES],
}

struct LiveSlot {
    /// Zero if it is free.
    pointer: AtomicUsize,
    size: AtomicUsize,
    stack: AtomicUsize,
    weight: AtomicU64,
}

/// An allocation that was freed.
pub(super) struct FreedAllocation {
    pub(super) size: usize,
    pub(super) stack: usize,
    pub(super) weight: u64,
}

impl Live {
    /// Inserts an allocation; `false` if there is no free place.
    pub(super) fn insert(&self, pointer: usize, size: usize, stack: usize, weight: u64) -> bool {
        let free = self
            .places_of(pointer)
            .find(|place| place.pointer.compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok());
        let Some(place) = free else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return false;
        };
        place.size.store(size, Ordering::Relaxed);
        place.stack.store(stack, Ordering::Relaxed);
        place.weight.store(weight, Ordering::Relaxed);
        self.used.fetch_add(1, Ordering::Relaxed);
        place.pointer.store(pointer, Ordering::Release);
        true
    }

    pub(super) fn has(&self, pointer: usize) -> bool {
        self.find(pointer).is_some()
    }

    /// Removes an allocation; `None` if it is not sampled.
    pub(super) fn remove(&self, pointer: usize) -> Option<FreedAllocation> {
        let place = self.find(pointer)?;
        let freed = FreedAllocation {
            size: place.size.load(Ordering::Relaxed),
            stack: place.stack.load(Ordering::Relaxed),
            weight: place.weight.load(Ordering::Relaxed),
        };
        self.used.fetch_sub(1, Ordering::Relaxed);
        place.pointer.store(0, Ordering::Release);
        Some(freed)
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// The allocation happened before, on this thread or on one that passed the pointer to this: so its insertion is
    /// visible.
    fn find(&self, pointer: usize) -> Option<&LiveSlot> {
        if self.used.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.places_of(pointer).find(|place| place.pointer.load(Ordering::Acquire) == pointer)
    }

    fn places_of(&self, pointer: usize) -> impl Iterator<Item = &LiveSlot> {
        // The low bits of all pointers are equal.
        let hash = (pointer as u64 >> 12).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let first = hash as usize * BUCKET;
        (0..BUCKET * BUCKETS_TRIED).filter_map(move |number| self.places.get((first + number) % PLACES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A single test, since there is a single table.
    #[test]
    fn what_is_inserted_is_found_until_it_is_removed_and_a_full_table_refuses() {
        let pointer = |number: usize| 0x7000_0000_0000 + number * 4096;
        let kept: Vec<usize> =
            (0..2 * PLACES).map(pointer).filter(|pointer| LIVE.insert(*pointer, 7, 3, 256)).collect();
        assert!(kept.len() > PLACES / 2 && kept.len() <= PLACES, "{}", kept.len());
        assert_eq!(LIVE.refused() as usize, 2 * PLACES - kept.len());
        assert!(!LIVE.has(0x6000_0000_0000) && LIVE.remove(0x6000_0000_0000).is_none());
        for pointer in &kept {
            let freed = LIVE.remove(*pointer).unwrap();
            assert_eq!((freed.size, freed.stack, freed.weight), (7, 3, 256));
            assert!(!LIVE.has(*pointer));
        }
        assert_eq!(LIVE.used.load(Ordering::Relaxed), 0);
    }
}
