//! Failures of hosts and paths: a table of atomics that all workers share, without locks, waits or allocations.
//!
//! ```text
//!   slot: | key, 64 bits | failures, 32 bits; successes, 32 bits | broken since | last failure |
//! ```
//!
//! A key is in one of the slots of its window. A new failing key replaces one that has healed, or else the one whose
//! last failure is the oldest. Workers that meet in a slot while it changes its key may lose a failure, or count one
//! for the other key.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Capacity in paths.
const SLOTS: usize = 16 * 1024;
/// Slots that a path may be in.
const WINDOW: usize = 8;

/// By host and path.
pub(super) struct BreakerTable {
    slots: Box<[BreakerSlot]>,
    hashes: RandomState,
}

#[derive(Default)]
struct BreakerSlot {
    /// 0: none.
    key: AtomicU64,
    /// Failures above, successes below.
    counts: AtomicU64,
    /// When the limit of failures was last reached, in seconds plus one; 0: not since it healed.
    broken: AtomicU64,
    failed_s: AtomicU64,
}

/// State of a path that has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PathState {
    pub(super) failures: u32,
    pub(super) successes: u32,
    /// When the limit of failures was last reached, in seconds.
    pub(super) broken_s: Option<u64>,
}

impl BreakerTable {
    pub(super) fn new() -> BreakerTable {
        BreakerTable { slots: (0..SLOTS).map(|_| BreakerSlot::default()).collect(), hashes: RandomState::new() }
    }

    /// The key of a host and a path.
    pub(super) fn key(&self, host_and_path: &[u8]) -> u64 {
        self.hashes.hash_one(host_and_path).max(1)
    }

    /// `None`: it has not failed since it healed.
    pub(super) fn state(&self, key: u64) -> Option<PathState> {
        let slot = self.find(key)?;
        let (failures, successes) = split(slot.counts.load(Ordering::Acquire));
        let broken_s = slot.broken.load(Ordering::Acquire).checked_sub(1);
        (failures > 0).then_some(PathState { failures, successes, broken_s })
    }

    /// Counts a failure. Every `enough` of them break the path again.
    pub(super) fn fail(&self, key: u64, now_s: u64, enough: u32) {
        let slot = self.find(key).unwrap_or_else(|| self.claim(key));
        let count = |counts| Some(joined(split(counts).0.saturating_add(1), 0));
        let before = slot.counts.fetch_update(Ordering::AcqRel, Ordering::Acquire, count).unwrap_or_default();
        slot.failed_s.store(now_s, Ordering::Release);
        if split(before).0.saturating_add(1).is_multiple_of(enough) {
            slot.broken.store(now_s + 1, Ordering::Release);
        }
    }

    /// Counts a success of a path that has failed. After `enough` of them it has healed.
    pub(super) fn succeed(&self, key: u64, enough: u32) {
        let Some(slot) = self.find(key) else { return };
        let count = |counts| {
            let (failures, successes) = split(counts);
            (failures > 0).then(|| match successes + 1 >= enough {
                true => 0,
                false => joined(failures, successes + 1),
            })
        };
        let before = slot.counts.fetch_update(Ordering::AcqRel, Ordering::Acquire, count);
        if before.is_ok_and(|before| split(before).1 + 1 >= enough) {
            slot.broken.store(0, Ordering::Release);
        }
    }

    fn window(&self, key: u64) -> impl Iterator<Item = &BreakerSlot> {
        (0..WINDOW).map(move |step| &self.slots[(key as usize + step) % SLOTS])
    }

    fn find(&self, key: u64) -> Option<&BreakerSlot> {
        self.window(key).find(|slot| slot.key.load(Ordering::Acquire) == key)
    }

    /// Claims a slot for a key that has none.
    fn claim(&self, key: u64) -> &BreakerSlot {
        let age = |slot: &&BreakerSlot| match split(slot.counts.load(Ordering::Acquire)).0 {
            0 => 0,
            _ => slot.failed_s.load(Ordering::Acquire) + 1,
        };
        let slot = self.window(key).min_by_key(age).unwrap_or(&self.slots[0]);
        slot.key.store(key, Ordering::Release);
        slot.counts.store(0, Ordering::Release);
        slot.broken.store(0, Ordering::Release);
        slot
    }
}

fn split(counts: u64) -> (u32, u32) {
    ((counts >> 32) as u32, counts as u32)
}

fn joined(failures: u32, successes: u32) -> u64 {
    u64::from(failures) << 32 | u64::from(successes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_break_and_successes_heal() {
        let (table, state) =
            (BreakerTable::new(), |failures, successes, broken_s| PathState { failures, successes, broken_s });
        let key = table.key(b"h/a");
        table.succeed(key, 1);
        assert_eq!(table.state(key), None);
        table.fail(key, 0, 2);
        table.succeed(key, 2);
        assert_eq!(table.state(key), Some(state(1, 1, None)));
        table.fail(key, 7, 2);
        assert_eq!(table.state(key), Some(state(2, 0, Some(7))));
        table.fail(key, 8, 2);
        assert_eq!(table.state(key), Some(state(3, 0, Some(7))));
        assert_eq!(table.state(table.key(b"h/b")), None);
        table.succeed(key, 2);
        table.succeed(key, 2);
        assert_eq!(table.state(key), None);
        table.fail(key, 9, 2);
        assert_eq!(table.state(key), Some(state(1, 0, None)));
    }

    #[test]
    fn the_oldest_makes_place_and_what_has_healed_before_it() {
        let table = BreakerTable::new();
        let key = |at: u64| 5 + at * SLOTS as u64;
        (1..=WINDOW as u64).for_each(|at| table.fail(key(at), 100 + at, 1));
        assert!((1..=WINDOW as u64).all(|at| table.state(key(at)).is_some()));
        table.succeed(key(4), 1);
        table.fail(key(20), 200, 1);
        assert_eq!((1..=WINDOW as u64).filter(|at| table.state(key(*at)).is_none()).collect::<Vec<_>>(), [4]);
        table.fail(key(21), 201, 1);
        assert_eq!((1..=WINDOW as u64).filter(|at| table.state(key(*at)).is_none()).collect::<Vec<_>>(), [1, 4]);
    }

    #[test]
    fn workers_count_together() {
        let (table, key) = (BreakerTable::new(), 77);
        table.fail(key, 0, u32::MAX);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| table.fail(key, 1, u32::MAX)));
            }
        });
        assert_eq!(table.state(key).map(|state| state.failures), Some(40_001));
    }
}
