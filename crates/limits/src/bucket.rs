//! The protocol of a bucket: how threads and processes count together without waiting for each other.
//!
//! ```text
//!  ├ members ┼ 3 words spare ┼ slot 0: tally │ key │ key │ end ┼ slot 1 … ┼ slot 14 ┤   512 bytes
//!              tally:  63 generation 40 39 count 0
//! ```
//!
//! 1. *A slot is one window of one key.* Its key and its end never change while it is shown; a new window is a new
//!    counter, usually in the slot of the old one.
//! 2. *Adding and removing* counters are changes of the word `members`. A thread that wants to add a counter claims a
//!    slot, writes it, and shows it by a compare-and-swap from a state in which it saw that no other slot has the key.
//!    So a key has one counter.
//! 3. *Generations*: a tally's generation is odd while its slot is written, and higher after it. Counting swaps the
//!    whole tally: it fails if the slot was claimed since, so nothing is counted for a key that was looked up before.
//! 4. *Nothing waits.* A swap that fails means that another thread made progress. A thread that stops for good in the
//!    middle keeps at most the slot that it claimed, and only until claims of that bucket are old.
//!
//! A thread that sleeps for more than eight seconds between claiming and writing a slot can find it claimed by another
//! one; it sees that before it shows the slot, and counts it as disturbed. The other thread's counter may then have a
//! wrong key, which has the effect of an eviction.
//!
//! The word `members` says which slots hold a counter; every change of it is one compare-and-swap, so that all threads
//! agree on the order in which counters were added and removed.
//!
//! ```text
//!  63        40 39      30 29        15 14         0
//!  ├ version ───┼ claimed ─┼ claimed ───┼ shown ─────┤
//!  │ of changes │ at, 8 s  │ a bit a    │ a bit a    │
//!                            slot         slot
//! ```
//!
//! A slot is *free* (neither bit), *claimed* by a thread that writes a counter's key into it, or *shown* to all. The
//! version makes any two states differ, even if a slot's counter was replaced and restored.
//!
//! This module does not depend on where the atomics are, so that loom can try every interleaving.

use crate::key::CounterKey;
use crate::sync::{AtomicU64, Ordering};
use std::fmt;

/// Tries before an operation gives up; each failure means that another thread made progress.
pub(crate) const TRIES_MAX: usize = 1_024;
/// Bits of a tally's count.
pub(crate) const COUNT_BITS: u32 = 40;
const COUNT: u64 = (1 << COUNT_BITS) - 1;

/// One counter.
#[repr(C)]
pub(crate) struct BucketSlot {
    pub(crate) tally: AtomicU64,
    key: [AtomicU64; 2],
    /// The last millisecond at which it counts.
    end_ms: AtomicU64,
}

/// The counters whose keys fall into this bucket.
#[repr(C)]
pub(crate) struct Bucket<const WAYS: usize> {
    members: AtomicU64,
    spare: [AtomicU64; 3],
    pub(crate) slots: [BucketSlot; WAYS],
}

/// The range of ends of windows that are considered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ValidEnds {
    /// Windows that ended before are over.
    pub(crate) now_ms: u64,
    /// Windows that end later were begun by a clock that was ahead, and do not count.
    pub(crate) end_max_ms: u64,
}

impl ValidEnds {
    fn holds(self, end_ms: u64) -> bool {
        (self.now_ms..=self.end_max_ms).contains(&end_ms)
    }
}

/// A counter that was found, and its state at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CounterSnapshot {
    way: usize,
    tally: u64,
    pub(crate) end_ms: u64,
}

impl CounterSnapshot {
    pub(crate) fn count(self) -> u64 {
        self.tally & COUNT
    }
}

/// Other threads interfered with every try, or have claimed every slot of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketContention;

impl fmt::Display for BucketContention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the counter of this limit could not be reached for others that count in the same place")
    }
}

impl std::error::Error for BucketContention {}

/// The result of adding a counter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct InsertedCounter {
    /// The counter exists, added by this thread or another one.
    pub(crate) is_there: bool,
    /// A counter whose window had not ended was evicted.
    pub(crate) has_evicted: bool,
    /// This thread slept so long that another thread took its slot.
    pub(crate) is_disturbed: bool,
}

impl<const WAYS: usize> Bucket<WAYS> {
    /// The counter of this key, if it is shown.
    pub(crate) fn find(&self, key: CounterKey, life: ValidEnds) -> Result<Option<CounterSnapshot>, BucketContention> {
        for _ in 0..TRIES_MAX {
            let members = self.members();
            let found = self.find_shown(members, key, life);
            // It may have moved to another slot while this thread searched.
            if found.is_some() || self.members() == members {
                return Ok(found);
            }
        }
        Err(BucketContention)
    }

    /// Counts, if the counter has not changed since it was found.
    pub(crate) fn try_set_count(&self, found: CounterSnapshot, count: u64) -> bool {
        let after = found.tally & !COUNT | count.min(COUNT);
        let tally = &self.slots[found.way].tally;
        tally.compare_exchange(found.tally, after, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Adds a counter with a count of zero, unless there is one.
    pub(crate) fn add(&self, key: CounterKey, end_ms: u64, life: ValidEnds) -> InsertedCounter {
        let mut added = InsertedCounter::default();
        for _ in 0..TRIES_MAX {
            let members = self.members();
            if self.find_shown(members, key, life).is_some() {
                added.is_there = true;
                return added;
            }
            let current = members.without_old_claims(life.now_ms);
            let Some(candidate) = self.eviction_candidate(current, key, life.now_ms) else { break };
            if self.try_change_members(members, current.with_claim(candidate.way, life.now_ms)) {
                added.has_evicted = candidate.rank == EvictionRank::Counting;
                let own = self.slots[candidate.way].write(key, end_ms);
                self.show(candidate.way, own, key, life, &mut added);
                return added;
            }
        }
        added
    }

    /// Shown counters whose window has not ended.
    pub(crate) fn count_running(&self, now_ms: u64) -> usize {
        let members = self.members();
        members.shown_slots().filter(|way| self.slots[*way].end_ms.load(Ordering::Relaxed) >= now_ms).count()
    }

    fn find_shown(&self, members: Members, key: CounterKey, life: ValidEnds) -> Option<CounterSnapshot> {
        members.shown_slots().find_map(|way| {
            let slot = &self.slots[way];
            let tally = slot.tally.load(Ordering::Acquire);
            if is_being_written(tally) || !slot.has_key(key) {
                return None;
            }
            let end_ms = slot.end_ms.load(Ordering::Acquire);
            // It may belong to another thread that has written the slot since and has not shown it yet, or never will.
            let is_shown = self.members().is_shown(way);
            let is_same = (slot.tally.load(Ordering::Acquire) ^ tally) & !COUNT == 0;
            (is_shown && is_same && life.holds(end_ms)).then_some(CounterSnapshot { way, tally, end_ms })
        })
    }

    /// Shows a slot that this thread has written, unless another thread has shown one for that key.
    fn show(&self, way: usize, own: u64, key: CounterKey, life: ValidEnds, added: &mut InsertedCounter) {
        for _ in 0..TRIES_MAX {
            let members = self.members();
            if !members.is_claimed(way) || self.slots[way].tally.load(Ordering::Acquire) != own {
                added.is_disturbed = true;
                return;
            }
            added.is_there = self.find_shown(members, key, life).is_some();
            let after = if added.is_there { members.without_claim(way) } else { members.with_shown(way) };
            if self.try_change_members(members, after) {
                added.is_there = true;
                return;
            }
        }
        // The slot becomes usable again once claims are old.
        added.is_there = false;
    }

    /// The slot for a new counter of this key, if there is one that no other thread has claimed.
    fn eviction_candidate(&self, members: Members, key: CounterKey, now_ms: u64) -> Option<EvictionCandidate> {
        let ranked = (0..WAYS).filter_map(|way| {
            let slot = &self.slots[way];
            let end_ms = slot.end_ms.load(Ordering::Relaxed);
            let rank = match (members.is_claimed(way), members.is_shown(way)) {
                (true, _) => return None,
                (_, false) => EvictionRank::Free,
                _ if slot.has_key(key) => EvictionRank::Own,
                _ if end_ms < now_ms => EvictionRank::Over,
                _ => EvictionRank::Counting,
            };
            Some(EvictionCandidate { rank, end_ms, way })
        });
        ranked.min()
    }

    pub(crate) fn members(&self) -> Members {
        Members(self.members.load(Ordering::Acquire))
    }

    pub(crate) fn try_change_members(&self, from: Members, to: Members) -> bool {
        self.members.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// The order in which counters make room; within one rank, the one that ends soonest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct EvictionCandidate {
    rank: EvictionRank,
    end_ms: u64,
    way: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EvictionRank {
    /// A slot of the same key, whose window is over.
    Own,
    Free,
    Over,
    Counting,
}

impl BucketSlot {
    fn has_key(&self, key: CounterKey) -> bool {
        self.key[0].load(Ordering::Acquire) == key.0[0] && self.key[1].load(Ordering::Acquire) == key.0[1]
    }

    /// Makes it the counter of a key; called by the thread that has claimed it. Returns its tally.
    fn write(&self, key: CounterKey, end_ms: u64) -> u64 {
        // Odd from here on, even if a killed thread left it odd. No other thread changes generations meanwhile.
        let step = if is_being_written(self.tally.load(Ordering::Acquire)) { 2 } else { 1 };
        let before = self.tally.fetch_add(step << COUNT_BITS, Ordering::AcqRel);
        self.key[0].store(key.0[0], Ordering::Release);
        self.key[1].store(key.0[1], Ordering::Release);
        self.end_ms.store(end_ms, Ordering::Release);
        let own = ((before >> COUNT_BITS) + step + 1) << COUNT_BITS;
        self.tally.store(own, Ordering::Release);
        own
    }
}

/// Whether a slot is being written.
fn is_being_written(tally: u64) -> bool {
    tally >> COUNT_BITS & 1 == 1
}

#[cfg(test)]
impl<const WAYS: usize> Bucket<WAYS> {
    #[allow(dead_code, reason = "`xtask/interleavings` makes its own; shared memory begins as zeros")]
    pub(crate) fn new() -> Self {
        let word = || AtomicU64::new(0);
        let slot = |_| BucketSlot { tally: word(), key: [word(), word()], end_ms: word() };
        Bucket { members: word(), spare: [word(), word(), word()], slots: std::array::from_fn(slot) }
    }
}

/// Slots that the word has bits for.
pub(crate) const WAYS_MAX: usize = 15;
/// The unit of the time of a claim.
const CLAIM_UNIT_MS: u64 = 8_192;
const CLAIMED_SHIFT: u32 = 15;
const AT_SHIFT: u32 = 30;
/// All bits of a claim's time.
const AT: u64 = (1 << 10) - 1;
const VERSION_SHIFT: u32 = 40;
const BITS: u64 = (1 << WAYS_MAX) - 1;

/// A bucket's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Members(pub(crate) u64);

impl Members {
    pub(crate) fn is_shown(self, way: usize) -> bool {
        self.0 >> way & 1 == 1
    }

    pub(crate) fn is_claimed(self, way: usize) -> bool {
        self.0 >> CLAIMED_SHIFT >> way & 1 == 1
    }

    /// The shown slots.
    pub(crate) fn shown_slots(self) -> impl Iterator<Item = usize> {
        let mut bits = self.0 & BITS;
        std::iter::from_fn(move || {
            let way = (bits != 0).then_some(bits.trailing_zeros() as usize);
            bits &= bits.wrapping_sub(1);
            way
        })
    }

    /// Drops abandoned claims. Claims are abandoned if the bucket's last claim is at least 8 to 16 seconds ago, while
    /// writing three words and a compare-and-swap takes less than a microsecond: the claiming thread was killed. It
    /// gets no version of its own, since it is stored together with a claim.
    pub(crate) fn without_old_claims(self, now_ms: u64) -> Members {
        let age = unit(now_ms).wrapping_sub(self.0 >> AT_SHIFT) & AT;
        // Clocks of threads differ: the last claim may be a little ahead of the present.
        let is_recent = matches!(age, 0 | 1 | AT);
        if is_recent { self } else { Members(self.0 & !(BITS << CLAIMED_SHIFT)) }
    }

    /// Claims a slot for one thread, so that it is no longer shown.
    pub(crate) fn with_claim(self, way: usize, now_ms: u64) -> Members {
        let bits = self.0 & !(1 << way) & !(AT << AT_SHIFT);
        Members(bits | 1 << CLAIMED_SHIFT << way | unit(now_ms) << AT_SHIFT).with_next_version()
    }

    /// Shows a claimed slot to all.
    pub(crate) fn with_shown(self, way: usize) -> Members {
        Members(self.without_claim(way).0 | 1 << way)
    }

    /// Gives a claimed slot back.
    pub(crate) fn without_claim(self, way: usize) -> Members {
        Members(self.0 & !(1 << CLAIMED_SHIFT << way)).with_next_version()
    }

    fn with_next_version(self) -> Members {
        Members(self.0.wrapping_add(1 << VERSION_SHIFT))
    }
}

/// The time of a claim in the word's unit; it wraps around after two hours.
fn unit(now_ms: u64) -> u64 {
    (now_ms / CLAIM_UNIT_MS) & AT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_claimed_then_shown_then_claimed() {
        let mut members = Members(0);
        for way in 0..WAYS_MAX {
            let claimed = members.with_claim(way, u64::MAX);
            assert!(claimed.is_claimed(way) && !claimed.is_shown(way));
            members = claimed.with_shown(way);
            assert!(!members.is_claimed(way) && members.is_shown(way));
            assert_eq!(members.shown_slots().collect::<Vec<_>>(), (0..=way).collect::<Vec<_>>());
        }
        assert_eq!(members.0 >> VERSION_SHIFT, 2 * WAYS_MAX as u64);
        let again = members.with_claim(3, 0);
        assert!(again.is_claimed(3) && !again.is_shown(3) && again.shown_slots().count() == WAYS_MAX - 1);
        assert_ne!(again.with_shown(3), members);
        assert_eq!(again.without_claim(3).shown_slots().count(), WAYS_MAX - 1);
    }

    #[test]
    fn a_claim_grows_old() {
        for now_ms in [0, CLAIM_UNIT_MS - 1, 1023 * CLAIM_UNIT_MS, 1_795_220_833_000] {
            let members = Members(0).with_claim(0, now_ms).with_shown(0).with_claim(3, now_ms).with_claim(5, now_ms);
            for recent_ms in [now_ms, now_ms + CLAIM_UNIT_MS, now_ms.saturating_sub(CLAIM_UNIT_MS)] {
                assert_eq!(members.without_old_claims(recent_ms), members);
            }
            for later_ms in [now_ms + 2 * CLAIM_UNIT_MS, now_ms + 60_000] {
                let without = members.without_old_claims(later_ms);
                assert!(without.is_shown(0) && (0..WAYS_MAX).all(|way| !without.is_claimed(way)));
            }
        }
    }
}
