//! Concurrent requests by key: a table of atomics that all workers share, without locks or waits.
//!
//! ```text
//!   slot: | tag of the key, 40 bits | requests under way, 24 bits |      free where no request is under way
//! ```
//!
//! A key is in one of the slots of its window. Two workers that count the first request of a key at once meet in the
//! same slot, unless another slot of the window becomes free in that moment: then the key has two slots until either is
//! empty, and as many excess requests may be admitted.

use std::sync::atomic::{AtomicU64, Ordering};

/// Capacity in keys.
const SLOTS: usize = 16 * 1024;
/// Slots that a key may be in.
const WINDOW: usize = 64;
const COUNT_BITS: u32 = 24;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// Counters of requests, and their average duration.
pub(super) struct ConnTable {
    slots: Box<[AtomicU64]>,
    /// Average duration of a request, in microseconds; zero: not known yet.
    pub(super) unit_us: AtomicU64,
}

/// A counted request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CountedRequest {
    pub(super) slot: usize,
    /// Number of requests of its key, including this one.
    pub(super) count: u64,
}

/// The reason why a request is not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CountError {
    /// The limit is reached.
    Enough,
    /// There is no slot for its key.
    Full,
}

impl ConnTable {
    pub(super) fn new() -> ConnTable {
        ConnTable { slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(), unit_us: AtomicU64::new(0) }
    }

    /// Counts a request, unless its key has `max` already.
    pub(super) fn enter(&self, hash: u64, max: u64) -> Result<CountedRequest, CountError> {
        let (tag, first) = (hash >> COUNT_BITS << COUNT_BITS, hash as usize % SLOTS);
        let count = |word: u64| word & COUNT_MASK;
        loop {
            // One look at each slot: a second one could find that this key has just taken the first free slot, and take
            // another.
            let (mut known, mut free) = (None, None);
            for slot in (0..WINDOW).map(|step| (first + step) % SLOTS) {
                let word = self.slots[slot].load(Ordering::Acquire);
                if count(word) == 0 {
                    free = free.or(Some((slot, word)));
                } else if word & !COUNT_MASK == tag {
                    known = Some((slot, word));
                    break;
                }
            }
            let (slot, word) = known.or(free).ok_or(CountError::Full)?;
            if count(word) >= max.min(COUNT_MASK) {
                return Err(CountError::Enough);
            }
            let next = tag | (count(word) + 1);
            if self.slots[slot].compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return Ok(CountedRequest { slot, count: count(next) });
            }
        }
    }

    /// Ends a counted request.
    pub(super) fn leave(&self, slot: usize) {
        self.slots[slot].fetch_sub(1, Ordering::AcqRel);
    }

    #[cfg(test)]
    fn under_way(&self) -> u64 {
        self.slots.iter().map(|word| word.load(Ordering::Relaxed) & COUNT_MASK).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64 as Atomic;

    /// Spreads keys like a hasher.
    fn hash(key: u64) -> u64 {
        key.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
    }

    #[test]
    fn as_many_as_may_be_are_let_in() {
        let table = ConnTable::new();
        let slots: Vec<usize> = (1..=5)
            .map(|count| {
                let counted = table.enter(hash(7), 5).unwrap();
                assert_eq!(counted.count, count);
                counted.slot
            })
            .collect();
        assert_eq!(table.enter(hash(7), 5), Err(CountError::Enough));
        assert!(table.enter(hash(8), 5).is_ok());
        table.leave(slots[0]);
        assert_eq!(table.enter(hash(7), 5).unwrap().count, 5);
    }

    #[test]
    fn a_full_window_is_reported() {
        let table = ConnTable::new();
        // The same window, other tags.
        let keys = (0..WINDOW as u64 + 1).map(|tag| 5 + (tag << COUNT_BITS));
        let results: Vec<_> = keys.map(|hash| table.enter(hash, 9)).collect();
        assert!(results[..WINDOW].iter().all(Result::is_ok));
        assert_eq!(results[WINDOW], Err(CountError::Full));
    }

    #[test]
    fn of_requests_that_come_at_once_no_more_are_let_in() {
        const WORKERS: usize = 4;
        // Each round has a key of its own; they stay far below the number of slots.
        const ROUNDS: usize = 4_000;
        let (table, begin) = (ConnTable::new(), std::sync::Barrier::new(WORKERS));
        let let_in: Vec<Atomic> = (0..ROUNDS).map(|_| Atomic::new(0)).collect();
        std::thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(|| {
                    for (round, let_in) in let_in.iter().enumerate() {
                        begin.wait();
                        let_in.fetch_add(u64::from(table.enter(hash(round as u64), 2).is_ok()), Ordering::Relaxed);
                    }
                });
            }
        });
        for (round, let_in) in let_in.iter().enumerate() {
            assert_eq!(let_in.load(Ordering::Relaxed), 2, "round {round}");
        }
    }

    #[test]
    fn workers_count_together() {
        let (table, most) = (ConnTable::new(), Atomic::new(0));
        let inside: Vec<Atomic> = (0..3).map(|_| Atomic::new(0)).collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for turn in 0..20_000_u64 {
                        let key = turn % 3;
                        if let Ok(counted) = table.enter(hash(key), 1_000) {
                            let now = inside[key as usize].fetch_add(1, Ordering::SeqCst) + 1;
                            most.fetch_max(now, Ordering::SeqCst);
                            inside[key as usize].fetch_sub(1, Ordering::SeqCst);
                            table.leave(counted.slot);
                        }
                    }
                });
            }
        });
        assert_eq!(table.under_way(), 0);
        assert!((1..=4).contains(&most.load(Ordering::SeqCst)));
    }
}
