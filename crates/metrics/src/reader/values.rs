//! The merged value of a series: the values of all its records, read from the segments at this moment.
//!
//! Each record's count only grows, so their sum does too, without comparing it with an earlier value. Floats are added
//! in the order of the list, which changes only with the list.

use super::gather::merge;
use super::store::{SeriesSlot, Store};
use crate::family::{FamilyType, Merge, NATIVE_SCHEMAS};
use crate::protocol::ReadOutcome;
use crate::segment::cells::{CellForm, Shape, read_histogram};
use crate::segment::layout::HEAD_WORDS;
use crate::sync::Word;
use crate::value::{Distribution, Exemplar, Value};

/// The value of these bits, an integer or a float, as its family's kind says.
pub(super) fn value_of(kind: &FamilyType, bits: u64) -> Value<'static> {
    match kind {
        FamilyType::Counter => Value::Unsigned(bits),
        _ => Value::Float(f64::from_bits(bits)),
    }
}

/// No writer counts this far. A damaged file may claim more, and sums must not overflow.
const COUNT_MAX: u64 = 1 << 48;
/// No schema has a native bucket beyond this one.
const BUCKET_MAX: u32 = 1 << 20;

/// Clamps a state that is out of range, so that it can be added up and printed.
fn bound(state: &mut Distribution) {
    state.classic.iter_mut().for_each(|count| *count = (*count).min(COUNT_MAX));
    if let Some(native) = &mut state.native {
        native.zero_count = native.zero_count.min(COUNT_MAX);
        native.nan_count = native.nan_count.min(COUNT_MAX);
        native.schema = native.schema.clamp(*NATIVE_SCHEMAS.start(), *NATIVE_SCHEMAS.end());
        for buckets in [&mut native.positive, &mut native.negative] {
            buckets.retain(|(index, _)| index.unsigned_abs() <= BUCKET_MAX);
            buckets.iter_mut().for_each(|(_, count)| *count = (*count).min(COUNT_MAX));
        }
    }
}

/// Accepts what a dead writer left in the middle of a change: it stays so for ever. If its classic and native buckets
/// disagree, the missing observation is added where it does the least harm.
fn settle(state: &mut Distribution) {
    if let Some(native) = state.native.as_mut().filter(|_| !state.classic.is_empty()) {
        native.zero_count += state.classic.iter().sum::<u64>().saturating_sub(native.count());
    }
}

impl FamilyType {
    /// Whether a value is true only while the process that set it lives. Counts outlive their process.
    pub(super) fn ends_with_its_process(&self) -> bool {
        matches!(self, FamilyType::Gauge(Merge::Sum | Merge::Last | Merge::Max) | FamilyType::Info)
    }
}

impl Store {
    /// The value of a series that has a single one, as bits.
    #[inline]
    pub(super) fn single(&self, kind: &FamilyType, slot: SeriesSlot) -> u64 {
        let words = self.places(slot).map(|(place, contribution)| {
            let cells = contribution.record() + HEAD_WORDS;
            let log = self.mounted(place.mount).segment.log();
            (log, cells)
        });
        match kind {
            FamilyType::Counter
            | FamilyType::FloatCounter
            | FamilyType::Gauge(Merge::Sum | Merge::Total | Merge::Max) => {
                let values = words.map(|(log, cells)| log[cells].get());
                // The sum does not start from 0.0: a single value keeps all its bits.
                values.reduce(|sum, each| merge(kind, sum, each)).unwrap_or(0)
            }
            FamilyType::Gauge(Merge::Last) => {
                let last = words.map(|(log, cells)| (log[cells + 1].get(), log[cells].get()));
                last.max_by_key(|(stamp, _)| *stamp).map_or(0, |(_, bits)| bits)
            }
            FamilyType::Info => 1f64.to_bits(),
            FamilyType::Histogram(_) => 0,
        }
    }

    /// Reads a histogram; returns false if one of its records is in the middle of a change. If its writer was killed in
    /// it, the sum may lack one observation.
    pub(super) fn histogram(
        &self,
        shape: &Shape,
        slot: SeriesSlot,
        part: &mut Distribution,
        out: &mut Distribution,
    ) -> bool {
        let CellForm::Histogram { bounds, native } = &shape.form else { return false };
        let mut is_whole = true;
        for (index, (place, contribution)) in self.places(slot).enumerate() {
            let log = self.mounted(place.mount).segment.log();
            let cells = &log[contribution.record() + HEAD_WORDS..];
            let to = if index == 0 { &mut *out } else { &mut *part };
            let seen = read_histogram(cells, bounds, native.as_ref(), to);
            bound(to);
            if seen == ReadOutcome::Stuck && !self.mounted(place.mount).is_alive {
                settle(to);
            } else {
                is_whole &= seen == ReadOutcome::Whole;
            }
            if index > 0 {
                out.merge(part);
            }
        }
        is_whole
    }

    /// When the first of its records was made.
    #[inline]
    pub(super) fn created_ms(&self, slot: SeriesSlot) -> u64 {
        let created = self.places(slot).map(|(place, record)| self.mounted(place.mount).created_ms(record.record()));
        created.min().unwrap_or(0)
    }

    /// The exemplars of all its records.
    pub(super) fn exemplars(&self, slot: SeriesSlot, out: &mut Vec<Exemplar>) {
        for (place, contribution) in self.places(slot) {
            let mounted = self.mounted(place.mount);
            if let Some(declared) = mounted.declared(contribution.record()) {
                let cells = contribution.record() + HEAD_WORDS;
                declared.shape.read_exemplars(&mounted.segment.log()[cells..], out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::Exponential;

    #[test]
    fn native_buckets_of_the_dead_come_to_what_the_classic_ones_do() {
        let native = Exponential { positive: vec![(1, 4)], ..Exponential::default() };
        let mut state = Distribution { sum: 4.0, classic: vec![2, 3], native: Some(native) };
        for _ in 0..2 {
            settle(&mut state);
            assert_eq!(state.native.as_ref().unwrap().count(), 5);
        }
    }
}
