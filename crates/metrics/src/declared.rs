//! A declared family as its writers share it: its budget, its collapsed labels, and the estimated number of values of
//! each label.
//!
//! Writers use this only when they meet a new label set. All of it is atomics that any writer may change; the policy
//! (`protocol::CollapseState`) gains collapsed labels one by one, and drops all of them when their values would fit again.
//!
//! ```text
//!  label sets   0 ─────────────────────────────── bound - reserve ──── bound - reserve / 4 ──── bound
//!                  each has a series               │ the widest label     │ the next one, unless
//!                                                  │ collapses            │ readers have folded by now
//! ```
//!
//! When a label collapses, readers fold the series that differ only in it (`reader/folding.rs`), and the collector
//! takes their label sets out of the budget. Until then, new combinations of the other labels use the reserve: twice as
//! many as the combinations of the other labels that have been seen.

use crate::family::{Family, LABELS_MAX};
use crate::protocol::{self, CollapseState};
use crate::segment::cells::Shape;
use crate::segment::memory::Mapping;
use crate::sync::AtomicU64;
use std::fmt;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32};

/// The value of a label that has collapsed.
pub const OTHER: &str = "__other__";

/// How long the incoming label sets have to fit into half of the budget before collapsed labels open again.
pub(crate) const REOPEN_MS: u64 = 10 * 60 * 1000;
/// A label explodes when its own values are more than this part of the bound, as a shift: an eighth.
const EXPLODING_SHIFT: u32 = 3;
/// Smallest (a sixteenth) and largest (half) reserve as a part of the bound, as shifts.
const RESERVE_SHIFTS: (u32, u32) = (4, 1);

/// A family of this process, shared by all its writers.
pub struct DeclaredFamily {
    /// Unique in the registry, from 0.
    pub(crate) id: u32,
    family: Family,
    pub(crate) shape: Shape,
    /// Label sets, counted over all writers.
    pub(crate) sets: Sets,
    sets_max: u32,
    policy: AtomicU64,
    /// Labels that collapsed at any time and have opened again since.
    ever: crate::sync::AtomicU32,
    /// The generation of the policy by which the collector last counted label sets.
    settled: AtomicU32,
    /// The reserve when a label last collapsed.
    reserve: AtomicU32,
    /// The estimated number of values of each label.
    sketches: Box<[Sketch]>,
    /// For each label, the combinations of all other labels; a collapsed label counts as one value.
    others: Box<[Sketch]>,
    /// Label sets given while a label had collapsed, since `since_ms`.
    given: Sketch,
    /// When the current observation of `given` began; only the collector uses it.
    since_ms: std::sync::atomic::AtomicU64,
}

impl fmt::Debug for DeclaredFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeclaredFamily").field("id", &self.id).field("name", &self.family.name).finish_non_exhaustive()
    }
}

impl DeclaredFamily {
    pub(crate) fn new(id: u32, family: Family, sets_max: u32) -> io::Result<DeclaredFamily> {
        let sketches = || family.labels.iter().map(|_| Sketch::default()).collect();
        Ok(DeclaredFamily {
            id,
            shape: Shape::of(&family),
            sets: Sets::new(sets_max)?,
            sets_max,
            policy: AtomicU64::new(0),
            ever: crate::sync::AtomicU32::new(0),
            settled: AtomicU32::new(0),
            reserve: AtomicU32::new(0),
            sketches: sketches(),
            others: sketches(),
            given: Sketch::default(),
            since_ms: std::sync::atomic::AtomicU64::new(0),
            family,
        })
    }

    /// The family as declared.
    pub fn family(&self) -> &Family {
        &self.family
    }

    /// Number of label sets that are counted against the budget.
    pub fn sets(&self) -> u32 {
        self.sets.count()
    }

    /// The labels that have collapsed, as bits in the family's order.
    pub fn collapsed(&self) -> u32 {
        self.policy().collapsed
    }

    /// About how many distinct values each label has had, collapsed ones included, in the family's order.
    pub fn distinct(&self) -> Vec<u64> {
        self.sketches.iter().map(Sketch::estimate).collect()
    }

    /// About how many distinct values a label of this family has had, and whether it has collapsed.
    pub(crate) fn label_cardinality(&self, family: &str, label: &str) -> Option<(u64, bool)> {
        let index = self.family.labels.iter().position(|name| name == label).filter(|_| self.family.name == family)?;
        Some((self.sketches[index].estimate(), self.collapsed() & (1 << index) != 0))
    }

    /// Bytes used besides the segments: the table of label sets, at most, and the sketches.
    pub(crate) fn bytes(&self) -> usize {
        self.sets.bytes().min(self.sets() as usize * 4096) + (2 * self.sketches.len() + 1) * size_of::<Sketch>()
    }

    /// The current policy.
    pub(crate) fn policy(&self) -> CollapseState {
        protocol::policy(&self.policy)
    }

    /// The labels in which readers fold the series that existed before a policy.
    pub(crate) fn folded(&self, policy: CollapseState) -> u32 {
        protocol::ever_collapsed(&self.ever, policy)
    }

    /// Records the values of a new label set, by their hashes.
    pub(crate) fn note(&self, hashes: impl Iterator<Item = u64>) {
        let collapsed = self.collapsed();
        let is_open = |label: usize| collapsed & (1 << label) == 0;
        // Each label's part of a combination, so that it can be taken out of the sum.
        let mut parts = [0u64; LABELS_MAX];
        for (label, (hash, part)) in hashes.zip(&mut parts).enumerate() {
            self.sketches[label].note(hash);
            *part = (hash ^ label as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15 + 2 * label as u64);
        }
        let parts = &parts[..self.sketches.len()];
        let sum = |all: u64, part: &u64| all.wrapping_add(*part);
        let open = parts.iter().enumerate().filter(|(label, _)| is_open(*label));
        let all = open.clone().map(|(_, part)| part).fold(0, sum);
        open.for_each(|(label, part)| self.others[label].note(all.wrapping_sub(*part)));
        if collapsed != 0 {
            self.given.note(parts.iter().fold(0, sum));
        }
    }

    /// Whether one more label set fits under this policy.
    pub(crate) fn has_room(&self, policy: CollapseState) -> bool {
        let (sets, max) = (self.sets(), self.sets_max);
        // The reserve is never larger than half.
        sets < max / 2 || sets < max.saturating_sub(self.reserve_of(policy))
    }

    /// Number of label sets reserved for the combinations of the labels that remain when the next one collapses.
    fn reserve_of(&self, policy: CollapseState) -> u32 {
        let Some(label) = self.widest(policy.collapsed) else { return 0 };
        if self.is_settled(policy) {
            let (least, most) = (self.sets_max >> RESERVE_SHIFTS.0, self.sets_max >> RESERVE_SHIFTS.1);
            return self.wished_reserve(label).clamp(least, most).max(1);
        }
        // Label sets from before the last collapse are still counted. Three quarters of the reserve are for
        // combinations of the other labels, or until it is clear that the next label explodes, too.
        let held = self.reserve.load(Relaxed);
        let explodes = self.sketches[label].estimate() > u64::from(self.sets_max >> EXPLODING_SHIFT);
        let wished = if explodes { self.wished_reserve(label).min(held / 4 * 3) } else { 0 };
        wished.max(held / 4).max(1)
    }

    /// Twice the combinations seen of all labels but this one, plus half as much for the error of the sketch.
    fn wished_reserve(&self, label: usize) -> u32 {
        u32::try_from(self.others[label].estimate().saturating_mul(5) / 2).unwrap_or(u32::MAX)
    }

    /// Whether the label sets that this policy has folded have been taken out of the budget.
    pub(crate) fn is_settled(&self, policy: CollapseState) -> bool {
        self.settled.load(Relaxed) == policy.generation
    }

    /// Records that all label sets folded up to this generation have been taken out of the budget.
    pub(crate) fn settle(&self, generation: u32) {
        self.settled.store(generation, Relaxed);
    }

    /// All labels, as bits.
    pub(crate) fn all(&self) -> u32 {
        (1u64 << self.family.labels.len()).wrapping_sub(1) as u32
    }

    /// Collapses one more label than in `seen`: the one with the most distinct values. If another writer has done so in
    /// the meantime, that is enough. Returns the policy that now holds.
    #[cold]
    pub(crate) fn collapse(&self, seen: CollapseState) -> CollapseState {
        let now = self.policy();
        if now != seen {
            return now;
        }
        let Some(label) = self.widest(seen.collapsed) else { return seen };
        let reserve = self.reserve_of(seen);
        match protocol::collapse(&self.policy, seen, 1 << label) {
            Ok(next) => {
                self.reserve.store(reserve, Relaxed);
                self.others.iter().for_each(Sketch::reset);
                next
            }
            // Another writer was faster. It may have reset the sketches before this one read them, so its reserve
            // holds.
            Err(next) => next,
        }
    }

    /// Lets new values have series of their own again, if all incoming label sets of some time would have fitted.
    pub(crate) fn reopen(&self, now_ms: u64) {
        let policy = self.policy();
        let begun_ms = self.since_ms.load(Relaxed);
        let is_watched = policy.collapsed != 0 && self.is_settled(policy) && begun_ms != 0;
        if is_watched && now_ms.saturating_sub(begun_ms) < REOPEN_MS {
            return;
        }
        let fits = self.given.estimate() + u64::from(self.sets()) <= u64::from(self.sets_max / 2);
        if is_watched && fits {
            protocol::reopen(&self.policy, &self.ever, policy);
            let collapsed = |label: &usize| policy.collapsed & (1 << label) != 0;
            (0..self.sketches.len()).filter(collapsed).for_each(|label| self.sketches[label].reset());
        }
        self.given.reset();
        self.since_ms.store(if policy.collapsed == 0 { 0 } else { now_ms }, Relaxed);
    }

    /// The label to give up in a momentary shortage, without collapsing it for good.
    pub(crate) fn widest(&self, besides: u32) -> Option<usize> {
        let left = (0..self.sketches.len()).filter(|label| besides & (1 << label) == 0);
        left.max_by_key(|label| self.sketches[*label].estimate())
    }
}

// Estimates how many distinct values a label has had: HyperLogLog (Flajolet et al., 2007) in 256 bytes, within some
// 7%.
//
// All writers of the process share one for each label. It is touched only when a label set is new, or collapsed.

const REGISTERS: usize = 256;
/// The constant of the estimate for so many registers.
const ALPHA: f64 = 0.7213 / (1.0 + 1.079 / REGISTERS as f64);

/// One label's sketch.
#[derive(Debug)]
pub(crate) struct Sketch([AtomicU8; REGISTERS]);

impl Default for Sketch {
    fn default() -> Self {
        Sketch([const { AtomicU8::new(0) }; REGISTERS])
    }
}

impl Sketch {
    /// Records a value, by its hash.
    pub(crate) fn note(&self, hash: u64) {
        // A hash that suits a table may be too regular here (the finaliser of SplitMix64).
        let hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let hash = hash ^ (hash >> 31);
        let register = &self.0[(hash >> 56) as usize];
        let rank = ((hash << 8 | 1 << 7).leading_zeros() + 1) as u8;
        // Usually the register does not change, and then nothing is stored that others would have to fetch.
        if register.load(Relaxed) < rank {
            register.fetch_max(rank, Relaxed);
        }
    }

    /// Clears the sketch. Values recorded at the same time may be lost or not.
    pub(crate) fn reset(&self) {
        self.0.iter().for_each(|register| register.store(0, Relaxed));
    }

    /// The estimated number of distinct values.
    pub(crate) fn estimate(&self) -> u64 {
        let ranks = self.0.iter().map(|register| register.load(Relaxed));
        let zeros = ranks.clone().filter(|rank| *rank == 0).count();
        let sum: f64 = ranks.map(|rank| (-f64::from(rank)).exp2()).sum();
        let m = REGISTERS as f64;
        let raw = ALPHA * m * m / sum;
        // While registers are empty, counting those is more exact.
        let estimate = if raw <= 2.5 * m && zeros > 0 { m * (m / zeros as f64).ln() } else { raw };
        estimate.round() as u64
    }
}

// Number of label sets of a family over all writers of the process: a set of fingerprints that they share without a
// lock.
//
// Each writer has its own record of a label set, so their counts cannot simply be added. A new label set's
// fingerprint, 32 bits of its hash, is put into one table by compare-and-swap; a writer that finds it there knows that
// the set is counted already. Two sets with equal fingerprints are counted as one, which happens about once in a
// billion.

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
    use crate::family::FamilyType;

    fn declared(sets_max: u32) -> DeclaredFamily {
        let labels = ["route", "node", "code", "tenant"].map(str::to_owned).to_vec();
        let (name, help, unit) = ("a_total".to_owned(), "h".to_owned(), String::new());
        DeclaredFamily::new(
            1,
            Family { name, help, unit, kind: FamilyType::Counter, labels, exemplars: false },
            sets_max,
        )
        .unwrap()
    }

    /// A good hash of a label's value.
    fn hash(value: u64) -> u64 {
        let x = (value + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x ^ (x >> 31)
    }

    fn note(family: &DeclaredFamily, values: [u64; 4]) {
        family.note((0..).zip(values).map(|(label, value)| hash(label << 32 | value)));
    }

    #[test]
    fn the_reserve_is_what_the_others_combine_to() {
        let family = declared(100_000);
        (0..90_000).for_each(|tenant| note(&family, [tenant % 300, tenant / 300 % 3, tenant / 900 % 4, tenant]));
        let reserve = family.reserve_of(CollapseState::default());
        assert!((7_200..12_000).contains(&reserve), "3,600 combinations: {reserve}");
        let policy = family.collapse(CollapseState::default());
        assert_eq!(policy, CollapseState { collapsed: 0b1000, generation: 1 });
        assert_eq!(family.reserve_of(policy), reserve / 4, "until what was folded has been counted");
        family.settle(1);
        (0..90_000).for_each(|tenant| note(&family, [tenant % 300, tenant / 300 % 3, tenant / 900 % 4, tenant]));
        assert_eq!(family.reserve_of(policy), 100_000 >> 4, "without routes there are 12");
    }

    #[test]
    fn labels_open_again_when_what_comes_in_fits() {
        let family = declared(1_000);
        let policy = family.collapse(CollapseState::default());
        family.reopen(1);
        assert_eq!(family.policy(), policy, "nothing has been counted yet");
        family.settle(1);
        family.reopen(2);
        (0..5_000).for_each(|tenant| note(&family, [0, 0, 0, tenant]));
        family.reopen(2 + REOPEN_MS);
        assert_eq!(family.policy(), policy, "5,000 came in");
        (0..100).for_each(|tenant| note(&family, [0, 0, 0, tenant]));
        family.reopen(2 + 2 * REOPEN_MS - 1);
        assert_eq!(family.policy(), policy, "not for long enough");
        family.reopen(2 + 2 * REOPEN_MS);
        assert_eq!(family.policy(), CollapseState { collapsed: 0, generation: 1 });
        assert_eq!(family.folded(family.policy()), policy.collapsed);
    }
}

#[cfg(test)]
mod sketch_tests {
    use super::*;

    #[test]
    fn estimates() {
        for count in [0u64, 1, 5, 50, 1000, 20_000, 1_000_000] {
            let sketch = Sketch::default();
            for number in 0..count {
                // SplitMix64.
                let mut x = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                sketch.note(x ^ (x >> 31));
            }
            let estimate = sketch.estimate();
            let error = estimate.abs_diff(count) as f64;
            assert!(error <= (count as f64 * 0.2).max(1.0), "{count}: {estimate}");
        }
    }
}

#[cfg(test)]
mod sets_tests {
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
