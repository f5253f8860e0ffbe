//! The native (exponential) part of a histogram: Prometheus' "sparse high-resolution histograms" in a fixed number of words.
//!
//! ```text
//!  state, zero count, count of NaN, bank 0, bank 1          state: which bank is valid, its schema, which signs it has
//!  a bank:  first positive index, first negative index │ counts of positive buckets │ counts of negative buckets
//! ```
//!
//! Each sign has a window of consecutive buckets. An observation outside moves the window, and if that is not enough,
//! the schema is halved (two neighbours become one bucket) until all fit; at schema -4 all numbers do. The new
//! arrangement is made in the other bank and becomes valid by one store: a crash in between loses nothing.

use super::cells::add;
use super::layout::{pair, unpair};
use crate::family::Native;
use crate::protocol;
use crate::sync::{AtomicU64, Ordering::Relaxed, Word};
use crate::value::{Exponential, coarser};
use std::sync::LazyLock;

/// The coarsest schema.
const SCHEMA_MIN: i8 = *crate::family::NATIVE_SCHEMAS.start();

/// The finest schema.
const SCHEMA_MAX: i8 = *crate::family::NATIVE_SCHEMAS.end();

/// Pieces of equal length that a power of two is divided into. Each has at most one bound of the finest schema.
const PIECES: usize = 512;

/// The buckets of the finest schema within one power of two.
#[derive(Debug)]
struct Octave {
    /// Upper bounds: `2^(i/256) / 2`.
    bounds: [f64; 257],
    /// How many bounds are below the beginning of each piece.
    below: [u16; PIECES],
}

static OCTAVE: LazyLock<Octave> = LazyLock::new(|| {
    let bounds = std::array::from_fn(|i| (i as f64 / 256.0).exp2() / 2.0);
    let begins = |piece: usize| 0.5 + piece as f64 / (2 * PIECES) as f64;
    let below = |piece| bounds.partition_point(|bound| *bound < begins(piece)) as u16;
    Octave { bounds, below: std::array::from_fn(below) }
});

/// Layout of the native part of a family's series.
#[derive(Debug, Clone)]
pub(crate) struct NativeShape {
    pub(crate) declared: Native,
    octave: &'static Octave,
    /// Index of the first word, from the first cell.
    at: usize,
    /// Number of words.
    pub(crate) words: usize,
}

const STATE: usize = 0;
const ZERO: usize = 1;
const NAN: usize = 2;
const BANKS: usize = 3;

impl NativeShape {
    pub(crate) fn new(declared: Native, at: usize) -> NativeShape {
        let window = declared.buckets_max as usize;
        NativeShape { declared, octave: &OCTAVE, at, words: BANKS + 2 * (1 + 2 * window) }
    }

    fn window(&self) -> usize {
        self.declared.buckets_max as usize
    }
}

/// The word `state`.
#[derive(Debug, Clone, Copy)]
struct NativeState {
    bank: usize,
    schema: i8,
    /// Whether the sign (positive, negative) has any observation.
    used: [bool; 2],
}

impl NativeState {
    /// The state of a series that was never touched is all zeros: its schema is stored as the distance from the
    /// declared one.
    fn unpack(word: u64, declared: i8) -> NativeState {
        // Not trusted: the memory may be damaged.
        let schema = declared.wrapping_sub((word >> 8) as u8 as i8).clamp(SCHEMA_MIN, declared);
        NativeState { bank: (word & 1) as usize, schema, used: [word & 2 != 0, word & 4 != 0] }
    }

    fn pack(self, declared: i8) -> u64 {
        let used = u64::from(self.used[0]) << 1 | u64::from(self.used[1]) << 2;
        self.bank as u64 | used | ((declared - self.schema) as u64) << 8
    }
}

/// One arrangement of the buckets.
struct Bank<'a, W> {
    firsts: &'a W,
    /// Counts of the positive and of the negative buckets.
    counts: [&'a [W]; 2],
}

fn bank<'a, W>(cells: &'a [W], shape: &NativeShape, index: usize) -> Bank<'a, W> {
    let window = shape.window();
    let words = &cells[shape.at + BANKS + index * (1 + 2 * window)..][..1 + 2 * window];
    let (positive, negative) = words[1..].split_at(window);
    Bank { firsts: &words[0], counts: [positive, negative] }
}

impl<W: Word<Value = u64>> Bank<'_, W> {
    fn firsts(&self) -> [i32; 2] {
        let (positive, negative) = unpair(self.firsts.get());
        [positive.cast_signed(), negative.cast_signed()]
    }
}

impl Bank<'_, AtomicU64> {
    fn set_firsts(&self, firsts: [i32; 2]) {
        self.firsts.store(pair(firsts[0].cast_unsigned(), firsts[1].cast_unsigned()), Relaxed);
    }
}

/// Counts an observation; must be called within the histogram's sequence.
pub(crate) fn observe(cells: &[AtomicU64], shape: &NativeShape, value: f64) {
    let words = &cells[shape.at..];
    if value.is_nan() {
        return add(&words[NAN], 1);
    }
    if value.abs() <= shape.declared.zero_threshold {
        return add(&words[ZERO], 1);
    }
    add_at(cells, shape, value < 0.0, |schema| shape.octave.index_of(value.abs(), schema), 1);
}

/// Adds to a bucket; rearranges the windows if it does not fit.
fn add_at(cells: &[AtomicU64], shape: &NativeShape, negative: bool, index_at: impl Fn(i8) -> i32, count: u64) {
    let sign = usize::from(negative);
    let declared = shape.declared.schema;
    let state = NativeState::unpack(cells[shape.at + STATE].load(Relaxed), declared);
    let present = bank(cells, shape, state.bank);
    let place = i64::from(index_at(state.schema)) - i64::from(present.firsts()[sign]);
    if state.used[sign] && (0..shape.window() as i64).contains(&place) {
        return add(&present.counts[sign][place as usize], count);
    }
    rearrange(cells, shape, state, sign, &index_at, count);
}

/// Moves everything to the other bank, at the finest schema at which the new bucket fits too.
#[cold]
fn rearrange(
    cells: &[AtomicU64],
    shape: &NativeShape,
    state: NativeState,
    sign: usize,
    index_at: &impl Fn(i8) -> i32,
    count: u64,
) {
    let window = shape.window() as i64;
    let old = bank(cells, shape, state.bank);
    let old_firsts = old.firsts();
    let occupied = |sign: usize| {
        let counts = old.counts[sign];
        let first = counts.iter().position(|count| count.load(Relaxed) > 0)? as i32;
        let last = counts.iter().rposition(|count| count.load(Relaxed) > 0)? as i32;
        state.used[sign].then_some((old_firsts[sign] + first, old_firsts[sign] + last))
    };
    let ranges = [occupied(0), occupied(1)];
    let mut schema = state.schema;
    let wanted = loop {
        let shift = state.schema - schema;
        let coarse = |range: Option<(i32, i32)>| range.map(|(from, to)| (coarser(from, shift), coarser(to, shift)));
        let mut wanted = [coarse(ranges[0]), coarse(ranges[1])];
        let index = index_at(schema);
        wanted[sign] = Some(wanted[sign].map_or((index, index), |(from, to)| (from.min(index), to.max(index))));
        let fits = |range: &Option<(i32, i32)>| range.is_none_or(|(from, to)| i64::from(to) - i64::from(from) < window);
        if wanted.iter().all(fits) || schema == SCHEMA_MIN {
            break wanted;
        }
        schema -= 1;
    };
    let next = NativeState { bank: 1 - state.bank, schema, used: [wanted[0].is_some(), wanted[1].is_some()] };
    let new = bank(cells, shape, next.bank);
    // The used range is put in the middle: both sides have room to grow.
    let first = |range: Option<(i32, i32)>| {
        range.map_or(0, |(from, to)| from - ((window - (i64::from(to) - i64::from(from) + 1)) / 2) as i32)
    };
    let firsts = [first(wanted[0]), first(wanted[1])];
    new.set_firsts(firsts);
    for each in 0..2 {
        new.counts[each].iter().for_each(|count| count.store(0, Relaxed));
        for (place, count) in old.counts[each].iter().enumerate().filter(|_| state.used[each]) {
            let count = count.load(Relaxed);
            if count > 0 {
                let index = coarser(old_firsts[each] + place as i32, state.schema - schema);
                add(&new.counts[each][place_in(index, firsts[each], window)], count);
            }
        }
    }
    add(&new.counts[sign][place_in(index_at(schema), firsts[sign], window)], count);
    // One store makes all of it valid, with the new observation; a crash before leaves the old state.
    cells[shape.at + STATE].store(next.pack(shape.declared.schema), crate::sync::Ordering::Release);
}

/// Index of a bucket in its window. All numbers fit at the coarsest schema; only indices of damaged memory do not.
fn place_in(index: i32, first: i32, window: i64) -> usize {
    (i64::from(index) - i64::from(first)).clamp(0, window - 1) as usize
}

impl Octave {
    /// The bucket of a positive number: its upper bound is `2^(index / 2^schema)`, inclusive.
    #[inline]
    fn index_of(&self, value: f64, schema: i8) -> i32 {
        coarser(self.finest_index_of(value), SCHEMA_MAX - schema) + i32::from(value == f64::INFINITY)
    }

    /// [`Octave::index_of`] at the finest schema, where that of infinity is the largest number's.
    #[inline]
    fn finest_index_of(&self, value: f64) -> i32 {
        let (fraction, exponent) = split(value.min(f64::MAX));
        // The first bits below the exponent.
        let piece = (fraction.to_bits() >> 43) as usize % PIECES;
        let below = usize::from(self.below[piece]);
        let below = below + usize::from(self.bounds[below] < fraction);
        below as i32 + (exponent - 1) * 256
    }
}

/// Splits a positive finite number into a fraction from 0.5 up to 1 and an exponent of two: C's `frexp`.
#[inline]
fn split(value: f64) -> (f64, i32) {
    const EXPONENT: u64 = 0x7ff << 52;
    // Subnormal numbers are scaled up first.
    let (value, offset) = if value < f64::MIN_POSITIVE { (value * 2f64.powi(54), -54) } else { (value, 0) };
    let bits = value.to_bits();
    let exponent = ((bits & EXPONENT) >> 52) as i32 - 1022;
    (f64::from_bits(bits & !EXPONENT | 1022 << 52), exponent + offset)
}

/// The state in the form that readers use.
pub(crate) fn read(cells: &[impl Word<Value = u64>], shape: &NativeShape) -> Exponential {
    let words = &cells[shape.at..];
    let state = NativeState::unpack(protocol::acquire(&words[STATE]), shape.declared.schema);
    let bank = bank(cells, shape, state.bank);
    let firsts = bank.firsts();
    let side = |sign: usize| {
        let counts = bank.counts[sign].iter().enumerate().filter(|_| state.used[sign]);
        counts
            .map(|(place, count)| (firsts[sign].wrapping_add(place as i32), count.get()))
            .filter(|(_, count)| *count > 0)
            .collect()
    };
    Exponential {
        schema: state.schema,
        zero_threshold: shape.declared.zero_threshold,
        zero_count: words[ZERO].get(),
        positive: side(0),
        negative: side(1),
        nan_count: words[NAN].get(),
    }
}

/// Writes a state into cells that no reader sees yet; a finer schema is made coarser.
pub(crate) fn restore(cells: &[AtomicU64], shape: &NativeShape, from: &Exponential) {
    let words = &cells[shape.at..];
    let declared = shape.declared.schema;
    words[ZERO].store(from.zero_count, Relaxed);
    words[NAN].store(from.nan_count, Relaxed);
    words[BANKS..shape.words].iter().for_each(|word| word.store(0, Relaxed));
    let schema = from.schema.clamp(SCHEMA_MIN, declared);
    words[STATE].store(NativeState { bank: 0, schema, used: [false; 2] }.pack(declared), Relaxed);
    for (negative, buckets) in [(false, &from.positive), (true, &from.negative)] {
        for (index, count) in buckets {
            add_at(cells, shape, negative, |schema| coarser(*index, from.schema - schema), *count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shape(schema: i8, buckets_max: u16) -> NativeShape {
        NativeShape::new(Native { schema, zero_threshold: 1e-30, buckets_max }, 0)
    }

    fn observed(shape: &NativeShape, values: &[f64]) -> Exponential {
        let cells: Vec<AtomicU64> = (0..shape.words).map(|_| AtomicU64::new(0)).collect();
        values.iter().for_each(|value| observe(&cells, shape, *value));
        read(&cells, shape)
    }

    #[test]
    fn bounds_are_inside() {
        let check =
            |value: f64, schema: i8, index: i32| assert_eq!(OCTAVE.index_of(value, schema), index, "{value} {schema}");
        check(1.0, 0, 0);
        check(1.000_000_1, 0, 1);
        check(2.0, 0, 1);
        check(0.5, 0, -1);
        check(1.0, 3, 0);
        check(2.0, 3, 8);
        check(1.09, 3, 1);
        check(1.1, 3, 2);
        check(4.0, -1, 1);
        check(4.1, -1, 2);
        check(65536.0, -4, 1);
        check(f64::MAX, -4, 64);
        check(f64::INFINITY, -4, 65);
        check(f64::from_bits(1), -4, -67);
        check(f64::INFINITY, 8, 1024 * 256 + 1);
    }

    #[test]
    fn a_search_through_the_bounds_finds_the_same() {
        for bound in OCTAVE.bounds {
            for fraction in [bound.next_down(), bound, bound.next_up()].into_iter().filter(|f| (0.5..1.0).contains(f)) {
                for schema in 1..=8 {
                    let step = 1 << (8 - schema);
                    let below = OCTAVE.bounds[..256].iter().step_by(step).filter(|bound| **bound < fraction).count();
                    // 2^-1 is the lower bound of its first bucket.
                    assert_eq!(OCTAVE.index_of(fraction, schema), below as i32 - (1 << schema), "{fraction} {schema}");
                    assert_eq!(OCTAVE.index_of(8.0 * fraction, schema), below as i32 + (2 << schema));
                }
            }
        }
    }

    #[test]
    fn all_numbers_fit() {
        let state =
            observed(&shape(8, 136), &[f64::from_bits(1) * 1e300, 1.0, f64::MAX, f64::INFINITY, f64::NAN, 0.0, -3.0]);
        assert_eq!(state.count(), 7);
        assert_eq!((state.zero_count, state.nan_count), (1, 1));
        let tiny = NativeShape::new(Native { schema: 8, zero_threshold: 0.0, buckets_max: 136 }, 0);
        let state = observed(&tiny, &[f64::from_bits(1), f64::INFINITY, -f64::from_bits(1), f64::NEG_INFINITY]);
        assert_eq!((state.schema, state.count()), (-4, 4));
    }

    proptest! {
        #[test]
        fn buckets_agree_with_a_count_of_each(
            values in prop::collection::vec(prop_oneof![1e-9..1e9f64, -1e3..1e3f64, Just(0.0), Just(1.0)], 0..300),
            schema in -4i8..=8,
        ) {
            let shape = shape(schema, 136);
            let state = observed(&shape, &values);
            prop_assert!(state.schema <= schema);
            let expected = |negative: bool| {
                let mut counts = std::collections::BTreeMap::new();
                for value in values.iter().filter(|value| value.abs() > 1e-30 && (**value < 0.0) == negative) {
                    *counts.entry(OCTAVE.index_of(value.abs(), state.schema)).or_insert(0u64) += 1;
                }
                counts.into_iter().collect::<Vec<_>>()
            };
            prop_assert_eq!(&state.positive, &expected(false));
            prop_assert_eq!(&state.negative, &expected(true));
            let cells: Vec<AtomicU64> = (0..shape.words).map(|_| AtomicU64::new(0)).collect();
            restore(&cells, &shape, &state);
            prop_assert_eq!(read(&cells, &shape), state);
        }
    }
}
