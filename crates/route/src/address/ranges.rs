//! Finds out whether one of many disjoint ranges holds an address.
//!
//! A binary search over 100,000 ranges reads memory at each of its 17 steps, and waits each time. Instead, a table cuts the space
//! between the first and the last range into equal pieces, up to as many as there are ranges. For each piece it says where to
//! look: at a window of a few neighbouring ranges, which are compared without a jump. Where too many ranges are in one piece, as
//! networks are seldom spread evenly, it names another table, of that piece alone.
//!
//! Where ranges are close together, as in lists of single clients or of one site's networks, a table holds bits
//! instead: each bit describes a block of neighbouring addresses that are either all in ranges or all outside. That is
//! far smaller than the ranges, so it stays in the CPU's cache, and nothing more has to be read.
//!
//! Most addresses are looked up in one to three tables. A table has at most eight bytes for each of its ranges. A piece of
//! a table with `n` ranges covers at most `2 / n` of the table's span and has at least one range less, so tables nest only a few
//! levels deep. The worst lists (twenty to a hundred ranges at ever smaller distances) take 120 bytes for each range, others far
//! less.

use std::ops::Range;

/// Ranges that are compared at once.
const WINDOW: usize = 4;
/// Set in a piece: the rest is the number of a table, not of a range.
const IS_TABLE: u32 = 1 << 31;

/// Disjoint ranges, sorted; both ends included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ranges<T> {
    pub(super) all: Box<[(T, T)]>,
    /// The first covers all ranges; empty where one window is enough.
    tables: Box<[RangeTable<T>]>,
    /// Pieces of all tables. Each is the number of the first range of its window, or a table's number with
    /// [`IS_TABLE`]. The window has the last range that begins at an address of the piece, and the one before that
    /// reaches into it.
    pieces: Box<[u32]>,
    /// Words of all tables that hold bits.
    words: Box<[u64]>,
}

/// Finds ranges by where they begin, or records for blocks of addresses whether they are in a range.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RangeTable<T> {
    /// The beginning of its first unit. Addresses before it are in no range, or count to that unit.
    begin: T,
    /// The size of a unit (a piece, or the block that one bit represents) as a power of two.
    unit_bits: u32,
    /// Its first piece, or its first word.
    first: u32,
    /// Its last unit, from the first. Addresses behind it are in no range, or count to its last piece.
    last: u32,
    holds_bits: bool,
}

impl<T: Address> Ranges<T> {
    /// There are fewer than 2^31 of them: each was a text in a configuration.
    pub(super) fn new(mut all: Vec<(T, T)>) -> Ranges<T> {
        all.sort_unstable();
        let mut index = RangeIndex { all: &all, tables: Vec::new(), pieces: Vec::new(), words: Vec::new() };
        if all.len() > WINDOW {
            index.add(0..all.len(), all[0].0);
        }
        let (tables, pieces, words) = (index.tables.into(), index.pieces.into(), index.words.into());
        Ranges { all: all.into(), tables, pieces, words }
    }

    /// Whether one of the ranges holds an address.
    pub(super) fn contains(&self, address: T) -> bool {
        let mut begin = 0;
        let mut next = self.tables.first();
        while let Some(table) = next {
            let unit = address.units_from(table.begin, table.unit_bits);
            if table.holds_bits {
                let is_inside = address >= table.begin && unit <= table.last;
                return is_inside
                    && self.words[(table.first + unit / u64::BITS) as usize] >> (unit % u64::BITS) & 1 == 1;
            }
            let piece = self.pieces[(table.first + unit.min(table.last)) as usize];
            (begin, next) = match piece & IS_TABLE {
                0 => (piece as usize, None),
                _ => (0, Some(&self.tables[(piece ^ IS_TABLE) as usize])),
            };
        }
        match self.all[begin..].first_chunk::<WINDOW>() {
            Some(window) => holds(window, address),
            None => holds(&self.all, address),
        }
    }

    /// Whether one of the ranges holds this one. Neighbours are not put together.
    pub(super) fn includes(&self, (first, last): (T, T)) -> bool {
        let behind = self.all.partition_point(|range| range.0 <= first);
        self.all[..behind].last().is_some_and(|range| last <= range.1)
    }

    /// Whether this range overlaps none of them.
    pub(super) fn is_outside(&self, (first, last): (T, T)) -> bool {
        self.all.iter().all(|range| range.1 < first || last < range.0)
    }
}

/// The length of a window is known, so this is compiled without jumps.
#[inline(always)]
fn holds<T: Ord + Copy>(ranges: &[(T, T)], address: T) -> bool {
    ranges.iter().fold(false, |is_found, range| is_found | ((range.0 <= address) & (address <= range.1)))
}

/// Tables as they are made.
struct RangeIndex<'a, T> {
    all: &'a [(T, T)],
    tables: Vec<RangeTable<T>>,
    pieces: Vec<u32>,
    words: Vec<u64>,
}

impl<T: Address> RangeIndex<'_, T> {
    /// Adds a table of some ranges, more than [`WINDOW`], and the tables below it. Returns its number. Addresses before
    /// `begin` are only looked up in it where no range has them.
    fn add(&mut self, ranges: Range<usize>, begin: T) -> u32 {
        let number = self.tables.len() as u32;
        if !self.add_bits(&self.all[ranges.clone()], begin) {
            self.add_pieces(ranges, begin);
        }
        number
    }

    /// Like [`Self::add`], but makes a table of bits, if they take no more than eight bytes for each range.
    fn add_bits(&mut self, ranges: &[(T, T)], begin: T) -> bool {
        let units = |(first, last): &(T, T)| first.zeros_from(begin).min(last.ones_from(begin));
        let (Some(unit_bits), Some((_, end))) = (ranges.iter().map(units).min(), ranges.last()) else { return false };
        let last = end.units_from(begin, unit_bits);
        let (first, count) = (self.words.len(), (last / u64::BITS) as usize + 1);
        if count > ranges.len() {
            return false;
        }
        self.words.resize(first + count, 0);
        for range in ranges {
            for unit in range.0.units_from(begin, unit_bits)..=range.1.units_from(begin, unit_bits) {
                self.words[first + (unit / u64::BITS) as usize] |= 1 << (unit % u64::BITS);
            }
        }
        self.tables.push(RangeTable { begin, unit_bits, first: first as u32, last, holds_bits: true });
        true
    }

    fn add_pieces(&mut self, ranges: Range<usize>, begin: T) {
        let end = self.all[ranges.end - 1].0;
        // The most pieces that are not more than the ranges: at least three, so that no piece has all of them.
        let is_few = |bits: &u32| (end.units_from(begin, *bits) as usize) < ranges.len();
        let unit_bits = (0..T::BITS).find(is_few).expect("one bit is left, so there are at most two pieces");
        let last = end.units_from(begin, unit_bits);
        let first = self.pieces.len();
        self.tables.push(RangeTable { begin, unit_bits, first: first as u32, last, holds_bits: false });
        // Its pieces are contiguous, before those of the tables below it.
        self.pieces.resize(first + last as usize + 1, 0);
        let mut from = ranges.start;
        for piece in 0..=last {
            let is_inside = |range: &&(T, T)| range.0.units_from(begin, unit_bits) == piece;
            let to = from + self.all[from..ranges.end].iter().take_while(is_inside).count();
            self.pieces[first + piece as usize] = self.piece(from..to, begin.plus_units(piece, unit_bits));
            from = to;
        }
    }

    /// The value of the piece that begins at an address, and in which some ranges begin.
    fn piece(&mut self, ranges: Range<usize>, begin: T) -> u32 {
        let reaches = self.all[..ranges.start].last().is_some_and(|before| before.1 >= begin);
        let from = ranges.start - usize::from(reaches);
        match ranges.end - from <= WINDOW {
            true => from.min(self.all.len() - WINDOW) as u32,
            // An empty beginning need not be cut.
            false => self.add(from..ranges.end, begin.max(self.all[from].0)) | IS_TABLE,
        }
    }
}

/// An address as a number.
pub(super) trait Address: Copy + Ord {
    /// The number of bits of an address.
    const BITS: u32;
    /// The distance behind another address, in units of a power of two. Zero where it is before it, and at most what a
    /// `u32` holds.
    fn units_from(self, begin: Self, unit_bits: u32) -> u32;
    /// The address so many units further on; a unit begins there.
    fn plus_units(self, units: u32, unit_bits: u32) -> Self;
    /// The number of trailing zero bits of the distance behind another address; all bits where it is before it.
    fn zeros_from(self, begin: Self) -> u32;
    /// The number of trailing one bits of that distance, for an address that is not before the other.
    fn ones_from(self, begin: Self) -> u32;
}

macro_rules! address {
    ($number:ty) => {
        impl Address for $number {
            const BITS: u32 = <$number>::BITS;

            fn units_from(self, begin: $number, unit_bits: u32) -> u32 {
                (self.saturating_sub(begin) >> unit_bits).try_into().unwrap_or(u32::MAX)
            }

            fn plus_units(self, units: u32, unit_bits: u32) -> $number {
                self + (<$number>::from(units) << unit_bits)
            }

            fn zeros_from(self, begin: $number) -> u32 {
                self.saturating_sub(begin).trailing_zeros()
            }

            fn ones_from(self, begin: $number) -> u32 {
                (self - begin).trailing_ones()
            }
        }
    };
}

address!(u32);
address!(u64);
address!(u128);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A range is in no more tables above each other than the list has ranges, and each of them, where there are `n`, takes `log2(n) - 1`
    /// bits of an address. So a range has `min(n / 2, 128 / (log2(n) - 1))` pieces at most, which is 26 where `n` is 50. The range
    /// that reaches into a piece may add a sixth.
    const PIECES_OF_EACH_MAX: usize = 30;
    /// A range counts where it begins, and where it reaches to.
    const WORDS_OF_EACH_MAX: usize = 2;

    /// Compares with a scan of all ranges, for every address near their ends.
    fn check<T: Address + std::fmt::Debug>(all: &[(T, T)], near: impl Fn(T) -> [T; 3]) {
        let ranges = Ranges::new(all.to_vec());
        let ends: Vec<T> = all.iter().flat_map(|range| [range.0, range.1]).collect();
        // Some tests have too many ranges for a scan.
        let expected = |first: T, last: T| {
            let begin = all.partition_point(|range| range.1 < first);
            all[begin..].first().is_some_and(|range| range.0 <= first && last <= range.1)
        };
        for address in ends.iter().flat_map(|end| near(*end)) {
            assert_eq!(ranges.contains(address), expected(address, address), "{address:?}");
            assert_eq!(ranges.includes((address, address)), expected(address, address), "{address:?}");
        }
        for pair in ends.windows(2) {
            assert_eq!(ranges.includes((pair[0], pair[1])), expected(pair[0], pair[1]), "{pair:?}");
        }
        assert!(ranges.words.len() <= WORDS_OF_EACH_MAX * all.len(), "{} of {}", ranges.words.len(), all.len());
        assert!(ranges.pieces.len() <= PIECES_OF_EACH_MAX * all.len(), "{} of {}", ranges.pieces.len(), all.len());
    }

    fn check_v4(all: &[(u32, u32)]) {
        check(all, |end| [end.saturating_sub(1), end, end.saturating_add(1)]);
    }

    fn check_v6(all: &[(u128, u128)]) {
        check(all, |end| [end.saturating_sub(1), end, end.saturating_add(1)]);
    }

    #[test]
    fn any_number_of_ranges_is_searched() {
        for count in 0..100 {
            check_v4(&(0..count).map(|number| (number * 1024, number * 1024 + 255)).collect::<Vec<_>>());
            check_v4(&(0..count).map(|number| (number, number)).collect::<Vec<_>>());
            let at_the_end = |number: u32| u128::MAX - u128::from(count - 1 - number) * 2;
            check_v6(&(0..count).map(|number| (at_the_end(number), at_the_end(number))).collect::<Vec<_>>());
        }
        check_v4(&[(0, u32::MAX)]);
        check_v6(&[(0, u128::MAX)]);
    }

    /// Each piece of each table has all ranges but a few.
    #[test]
    fn ranges_that_crowd_are_found() {
        let halves: Vec<_> = (0..32).map(|bit| (1u32 << bit, 1 << bit)).collect();
        check_v4(&halves);
        let halves: Vec<_> = (0..128).map(|bit| (1u128 << bit, 1 << bit)).collect();
        check_v6(&halves);
        let crowds = (0..16u128).flat_map(|bit| (0..500).map(move |number| (1u128 << (120 - bit * 7)) + number * 2));
        let mut crowds: Vec<_> = crowds.map(|address| (address, address)).collect();
        crowds.sort_unstable();
        crowds.dedup();
        check_v6(&crowds);
    }

    /// Each table parts one range from the others, which are all in a piece of the shortest length.
    #[test]
    fn ranges_at_ever_smaller_distances_are_found() {
        for bits in 1..16 {
            for count_at_the_end in [1, 2, 5, 20, 40, 80] {
                let far = (0..).map(|step| 127 - step * bits).take_while(|bit| *bit > 8).map(|bit| 1u128 << bit);
                let mut all: Vec<_> = far.chain((0..count_at_the_end).map(|number| number * 3)).collect();
                all.sort_unstable();
                check_v6(&all.into_iter().map(|address| (address, address)).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_hundred_thousand_ranges_are_searched() {
        check_v4(&(0..100_000).map(|number| (number * 4, number * 4 + 1)).collect::<Vec<_>>());
        let apart = |number: u128| (number >> 8) << 80 | (number & 255) << 65;
        check_v6(&(0..100_000).map(|number| (apart(number), apart(number) | u128::from(u64::MAX))).collect::<Vec<_>>());
    }

    proptest! {
        /// Numbers with different counts of leading zeros are near each other at all scales.
        #[test]
        fn tables_agree_with_looking_at_each_range(numbers in proptest::collection::vec((any::<u128>(), 0u32..128), 0..300)) {
            let mut ends: Vec<u128> = numbers.iter().map(|(number, zeros)| number >> zeros).collect();
            ends.sort_unstable();
            ends.dedup();
            let pairs = |ends: &[u128]| ends.chunks_exact(2).map(|pair| (pair[0], if pair[0] % 3 == 0 { pair[0] } else { pair[1] })).collect::<Vec<_>>();
            check_v6(&pairs(&ends));
            let mut ends: Vec<u128> = numbers.iter().map(|(number, zeros)| u128::from(*number as u32 >> (zeros % 32))).collect();
            ends.sort_unstable();
            ends.dedup();
            check_v4(&pairs(&ends).into_iter().map(|(first, last)| (first as u32, last as u32)).collect::<Vec<_>>());
        }
    }
}
