//! The words that hold a series' value, by kind: their number and meaning, changing and reading them.
//!
//! ```text
//!  counter           value
//!  float, info       value as f64 bits
//!  gauge, last       value, when it was set
//!  histogram         sequence, sum, a count per classic bucket (not cumulative, +Inf last), native part
//!  each may be followed by exemplar slots: sequence, when, value, bytes of text, the text
//! ```
//!
//! A histogram's count is not stored: it is the sum of its buckets, so that neither a reader nor a crash between two
//! stores can make them contradict each other.

use super::layout::{HEAD_WORDS, WORD};
use super::native::{self, NativeShape};
use crate::family::{Family, FamilyType, Merge};
use crate::protocol::{self, ReadOutcome};
use crate::sync::{AtomicU64, Ordering::Relaxed, Word};
use crate::value::{Distribution, Exemplar};

/// Longest label text of an exemplar; longer ones are not recorded.
pub const EXEMPLAR_BYTES_MAX: usize = 160;
const EXEMPLAR_WORDS: usize = 4 + EXEMPLAR_BYTES_MAX / WORD;

/// Number of tries to read a histogram that keeps changing, before a reader continues with the previous value.
pub(crate) const READ_TRIES: usize = 64;

/// The layout of the cells of a family's series.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) form: CellForm,
    /// Slots for exemplars: none, one, or one per classic bucket.
    pub(crate) exemplars: usize,
    /// Index of the first slot, in words from the first cell.
    exemplars_at: usize,
    /// Words of all cells and slots.
    pub(crate) words: usize,
}

#[derive(Debug, Clone)]
pub(crate) enum CellForm {
    Unsigned,
    Float,
    Last,
    Histogram { bounds: Box<[f64]>, native: Option<NativeShape> },
}

impl Shape {
    pub(crate) fn of(family: &Family) -> Shape {
        let (form, value_words) = match &family.kind {
            FamilyType::Counter => (CellForm::Unsigned, 1),
            FamilyType::FloatCounter | FamilyType::Info | FamilyType::Gauge(Merge::Sum | Merge::Total | Merge::Max) => {
                (CellForm::Float, 1)
            }
            FamilyType::Gauge(Merge::Last) => (CellForm::Last, 2),
            FamilyType::Histogram(buckets) => {
                let classic = classic_words(&buckets.classic);
                let native = buckets.native.map(|native| NativeShape::new(native, 2 + classic));
                let words = 2 + classic + native.as_ref().map_or(0, |native| native.words);
                (CellForm::Histogram { bounds: buckets.classic.clone().into(), native }, words)
            }
        };
        let exemplars = match (family.exemplars, &family.kind) {
            (false, _) | (_, FamilyType::Gauge(_) | FamilyType::Info) => 0,
            (_, FamilyType::Counter | FamilyType::FloatCounter) => 1,
            (_, FamilyType::Histogram(buckets)) => classic_words(&buckets.classic),
        };
        Shape { form, exemplars, exemplars_at: value_words, words: value_words + exemplars * EXEMPLAR_WORDS }
    }

    /// A single value, without exemplars.
    pub(crate) fn single() -> Shape {
        Shape { form: CellForm::Unsigned, exemplars: 0, exemplars_at: 1, words: 1 }
    }

    /// Words of a record with a label text of so many bytes.
    pub(crate) fn record_words(&self, text_bytes: usize) -> usize {
        HEAD_WORDS + self.words + text_bytes.div_ceil(WORD)
    }

    fn slot<'a, W>(&self, cells: &'a [W], index: usize) -> &'a [W] {
        &cells[self.exemplars_at + index * EXEMPLAR_WORDS..][..EXEMPLAR_WORDS]
    }

    /// Stores an exemplar over the older one of its counter or bucket; returns false if it is too long, or the family
    /// has none.
    pub(crate) fn keep_exemplar(
        &self,
        cells: &[AtomicU64],
        bucket: usize,
        value: f64,
        unix_ms: u64,
        text: &[u8],
    ) -> bool {
        if bucket >= self.exemplars || text.len() > EXEMPLAR_BYTES_MAX {
            return false;
        }
        let slot = self.slot(cells, bucket);
        protocol::write(&slot[0], || {
            slot[1].store(unix_ms, Relaxed);
            slot[2].store(value.to_bits(), Relaxed);
            slot[3].store(text.len() as u64, Relaxed);
            for (word, bytes) in slot[4..].iter().zip(text.chunks(WORD)) {
                word.store(to_word(bytes), Relaxed);
            }
        });
        true
    }

    /// Appends the stored exemplars; one that is being changed is left out.
    pub(crate) fn read_exemplars(&self, cells: &[impl Word<Value = u64>], out: &mut Vec<Exemplar>) {
        for bucket in 0..self.exemplars {
            let slot = self.slot(cells, bucket);
            let mut exemplar = Exemplar { bucket: bucket as u32, labels: Vec::new(), value: 0.0, unix_ms: 0 };
            if slot[0].get() == 0 {
                continue;
            }
            let seen = protocol::read(&slot[0], READ_TRIES, || {
                exemplar.unix_ms = slot[1].get();
                exemplar.value = f64::from_bits(slot[2].get());
                let bytes = (slot[3].get() as usize).min(EXEMPLAR_BYTES_MAX);
                exemplar.labels.clear();
                slot[4..].iter().for_each(|word| exemplar.labels.extend(word.get().to_le_bytes()));
                exemplar.labels.truncate(bytes);
            });
            // A damaged file must not make a damaged exposition.
            if seen == ReadOutcome::Whole && std::str::from_utf8(&exemplar.labels).is_ok() {
                out.push(exemplar);
            }
        }
    }
}

fn classic_words(bounds: &[f64]) -> usize {
    if bounds.is_empty() { 0 } else { bounds.len() + 1 }
}

/// Packs up to eight bytes into a word, padded with zeros.
pub(crate) fn to_word(bytes: &[u8]) -> u64 {
    let mut word = [0; WORD];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// Adds to a word that has a single writer.
#[inline]
pub(crate) fn add(cell: &AtomicU64, amount: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(amount), Relaxed);
}

/// Adds to an f64 that has a single writer.
#[inline]
pub(crate) fn add_float(cell: &AtomicU64, amount: f64) {
    cell.store((f64::from_bits(cell.load(Relaxed)) + amount).to_bits(), Relaxed);
}

/// The classic bucket of a value: the first whose bound is not below it; NaN goes into the last one.
#[inline]
pub(crate) fn bucket_of(bounds: &[f64], value: f64) -> usize {
    if value.is_nan() {
        return bounds.len();
    }
    // A few dozen comparisons without a branch are faster than a search that mispredicts.
    match bounds.len() {
        0..=32 => bounds.iter().map(|bound| usize::from(*bound < value)).sum(),
        _ => bounds.partition_point(|bound| *bound < value),
    }
}

/// Counts an observation.
#[inline]
pub(crate) fn observe(cells: &[AtomicU64], bounds: &[f64], native: Option<&NativeShape>, value: f64) {
    protocol::write(&cells[0], || {
        if !bounds.is_empty() {
            add(&cells[2 + bucket_of(bounds, value)], 1);
        }
        if let Some(native) = native {
            native::observe(cells, native, value);
        }
        add_float(&cells[1], value);
    });
}

/// Reads a histogram; unless the result is whole, sum and buckets, or classic and native buckets, may differ by one
/// observation.
pub(crate) fn read_histogram(
    cells: &[impl Word<Value = u64>],
    bounds: &[f64],
    native: Option<&NativeShape>,
    out: &mut Distribution,
) -> ReadOutcome {
    protocol::read(&cells[0], READ_TRIES, || {
        out.sum = f64::from_bits(cells[1].get());
        out.classic.clear();
        let classic = &cells[2..][..classic_words(bounds)];
        out.classic.extend(classic.iter().map(|count| count.get()));
        out.native = native.map(|shape| native::read(cells, shape));
    })
}

/// Adds a histogram's whole state to cells that no reader sees yet.
pub(crate) fn restore_histogram(
    cells: &[AtomicU64],
    bounds: &[f64],
    native: Option<&NativeShape>,
    from: &Distribution,
) {
    add_float(&cells[1], from.sum);
    if from.classic.len() == classic_words(bounds) {
        from.classic.iter().zip(&cells[2..]).for_each(|(count, cell)| add(cell, *count));
    }
    if let (Some(shape), Some(state)) = (native, &from.native) {
        let mut all = native::read(cells, shape);
        all.merge(state);
        native::restore(cells, shape, &all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::Buckets;

    fn family(kind: FamilyType, exemplars: bool) -> Family {
        let (name, help, unit) = ("a".into(), "h".into(), String::new());
        Family { name, help, unit, kind, labels: vec![], exemplars }
    }

    fn cells(shape: &Shape) -> Vec<AtomicU64> {
        (0..shape.words).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn buckets_end_with_their_bound() {
        let bounds = [0.1, 1.0, 10.0];
        let check = |value: f64, expected| assert_eq!(bucket_of(&bounds, value), expected, "{value}");
        check(-5.0, 0);
        check(0.1, 0);
        check(0.100_000_1, 1);
        check(1.0, 1);
        check(10.0, 2);
        check(10.1, 3);
        check(f64::INFINITY, 3);
        check(f64::NEG_INFINITY, 0);
        check(f64::NAN, 3);
        let many: Vec<f64> = (0..100).map(f64::from).collect();
        assert_eq!(bucket_of(&many, 50.5), 51);
        assert_eq!(bucket_of(&many, 50.0), 50);
        assert_eq!(bucket_of(&many, f64::NAN), 100);
    }

    #[test]
    fn a_histogram_reads_back() {
        let shape = Shape::of(&family(FamilyType::Histogram(Buckets { classic: vec![1.0, 2.0], native: None }), false));
        let cells = cells(&shape);
        let CellForm::Histogram { bounds, native } = &shape.form else { panic!("a histogram") };
        for value in [0.5, 1.0, 1.5, 99.0] {
            observe(&cells, bounds, native.as_ref(), value);
        }
        let mut read = Distribution::default();
        assert_eq!(read_histogram(&cells, bounds, native.as_ref(), &mut read), ReadOutcome::Whole);
        assert_eq!((read.sum, read.classic.as_slice(), read.count()), (102.0, &[2, 1, 1][..], 4));
    }

    #[test]
    fn a_change_that_never_ended_is_read_as_it_is() {
        let shape = Shape::of(&family(FamilyType::Histogram(Buckets { classic: vec![1.0], native: None }), false));
        let cells = cells(&shape);
        let CellForm::Histogram { bounds, .. } = &shape.form else { panic!("a histogram") };
        observe(&cells, bounds, None, 0.5);
        // The writer is killed between the bucket and the sum.
        cells[0].store(3, Relaxed);
        add(&cells[2], 1);
        let mut read = Distribution::default();
        assert_eq!(read_histogram(&cells, bounds, None, &mut read), ReadOutcome::Stuck);
        assert_eq!((read.sum, read.count()), (0.5, 2));
    }

    #[test]
    fn the_newest_exemplar_wins() {
        let shape = Shape::of(&family(FamilyType::Histogram(Buckets { classic: vec![1.0], native: None }), true));
        let cells = cells(&shape);
        assert!(shape.keep_exemplar(&cells, 1, 7.0, 1, b"trace_id=\"a\""));
        assert!(shape.keep_exemplar(&cells, 1, 8.0, 2, b"trace_id=\"b\""));
        assert!(!shape.keep_exemplar(&cells, 2, 8.0, 2, b"no such bucket"));
        assert!(!shape.keep_exemplar(&cells, 0, 8.0, 2, &[b'a'; EXEMPLAR_BYTES_MAX + 1]));
        let mut read = Vec::new();
        shape.read_exemplars(&cells, &mut read);
        let labels = b"trace_id=\"b\"".to_vec();
        assert_eq!(read, [Exemplar { bucket: 1, labels, value: 8.0, unix_ms: 2 }]);
    }

    #[test]
    fn counters_have_one_exemplar_and_gauges_none() {
        assert_eq!(Shape::of(&family(FamilyType::Counter, true)).exemplars, 1);
        assert_eq!(Shape::of(&family(FamilyType::Counter, true)).words, 1 + EXEMPLAR_WORDS);
        assert_eq!(Shape::of(&family(FamilyType::Gauge(Merge::Last), true)).words, 2);
    }
}
