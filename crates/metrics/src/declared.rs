//! A declared family as its writers share it: its budget, which labels have collapsed, and what is known of each label.
//!
//! Writers touch this where a label set is new to them, and not otherwise. All of it is atomics that any may change; the
//! policy word (`collapsed`) gains bits one by one, and loses all of them when the family has become small again.

use crate::family::Family;
use crate::segment::cells::Shape;
use crate::sets::Sets;
use crate::sketch::Sketch;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The value of a label that has collapsed, in series not seen before.
pub const OTHER: &str = "__other__";

/// A family of this process, known to all its writers.
pub struct Declared {
    /// Unique in the registry, from 0.
    pub(crate) id: u32,
    family: Family,
    pub(crate) shape: Shape,
    /// Label sets over all writers.
    pub(crate) sets: Sets,
    sets_max: u32,
    /// One bit a label, in the family's order.
    collapsed: AtomicU32,
    sketches: Box<[Sketch]>,
}

impl fmt::Debug for Declared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Declared").field("id", &self.id).field("name", &self.family.name).finish_non_exhaustive()
    }
}

impl Declared {
    pub(crate) fn new(id: u32, family: Family, sets_max: u32) -> io::Result<Declared> {
        let sketches = family.labels.iter().map(|_| Sketch::default()).collect();
        let shape = Shape::of(&family);
        Ok(Declared { id, shape, sets: Sets::new(sets_max)?, sets_max, collapsed: AtomicU32::new(0), sketches, family })
    }

    /// As it was declared.
    pub fn family(&self) -> &Family {
        &self.family
    }

    /// Label sets that are counted against the budget.
    pub fn sets(&self) -> u32 {
        self.sets.count()
    }

    /// The labels that have collapsed, as bits in the family's order.
    pub fn collapsed(&self) -> u32 {
        self.collapsed.load(Relaxed)
    }

    /// About how many distinct values each label has had, collapsed ones included, in the family's order.
    pub fn distinct(&self) -> Vec<u64> {
        self.sketches.iter().map(Sketch::estimate).collect()
    }

    /// Of a label of this family: about how many distinct values it has had, and whether it has collapsed.
    pub(crate) fn about(&self, family: &str, label: &str) -> Option<(u64, bool)> {
        let index = self.family.labels.iter().position(|name| name == label).filter(|_| self.family.name == family)?;
        Some((self.sketches[index].estimate(), self.collapsed() & (1 << index) != 0))
    }

    /// Bytes used beside the segments: the table of label sets, at most, and the sketches.
    pub(crate) fn bytes(&self) -> usize {
        self.sets.bytes().min(self.sets() as usize * 4096) + self.sketches.len() * size_of::<Sketch>()
    }

    /// Notes the values of a label set that was not seen before.
    pub(crate) fn note(&self, hashes: impl Iterator<Item = u64>) {
        self.sketches.iter().zip(hashes).for_each(|(sketch, hash)| sketch.note(hash));
    }

    /// Whether one more label set fits while so many labels have collapsed. The first collapses a sixteenth before the
    /// bound, each further one at half of what is then left: so the combinations of the others find room.
    pub(crate) fn has_room(&self, collapsed: u32) -> bool {
        let steps = (4 + collapsed.count_ones()).min(31);
        let reserve = if collapsed == self.all() { 0 } else { (self.sets_max >> steps).max(1) };
        self.sets() < self.sets_max - reserve
    }

    /// All labels, as bits.
    pub(crate) fn all(&self) -> u32 {
        (1u64 << self.family.labels.len()).wrapping_sub(1) as u32
    }

    /// Collapses one more label than in `seen`: the one with the most distinct values. Where another writer has done so
    /// meanwhile, theirs is enough. Returns the mask that now holds.
    #[cold]
    pub(crate) fn collapse(&self, seen: u32) -> u32 {
        let now = self.collapsed();
        if now != seen {
            return now;
        }
        let left = (0..self.sketches.len()).filter(|label| seen & (1 << label) == 0);
        let Some(label) = left.max_by_key(|label| self.sketches[*label].estimate()) else { return seen };
        // Two writers at once may pick two labels only if their sketches, which they share, said so.
        match self.collapsed.compare_exchange(seen, seen | 1 << label, Relaxed, Relaxed) {
            Ok(_) => seen | 1 << label,
            Err(now) => now,
        }
    }

    /// Lets new values have series of their own again, where half of the label sets have gone.
    pub(crate) fn relax(&self) {
        if self.collapsed() != 0 && self.sets() < self.sets_max / 2 {
            self.collapsed.store(0, Relaxed);
        }
    }

    /// The label that a shortage of the moment is to cost, without collapsing it for good.
    pub(crate) fn widest(&self, besides: u32) -> Option<usize> {
        let left = (0..self.sketches.len()).filter(|label| besides & (1 << label) == 0);
        left.max_by_key(|label| self.sketches[*label].estimate())
    }
}
