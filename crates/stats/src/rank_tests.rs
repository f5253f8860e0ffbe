//! Tests that use the order of values only.
//!
//! The Mann-Whitney test is of two independent samples, Wilcoxon's signed-rank test of paired differences. Ties share
//! their ranks. Twice the mid-rank is a whole number, which lets null distributions be counted without rounding.
//! The size of a paired difference is read from the signed-rank test.

use crate::distributions;
use crate::estimate::{Estimate, Interval, is_level, is_sample};

/// The largest sample, of both, for which the null distribution is counted; R's bound too.
const EXACT_SAMPLE_MAX: usize = 49;

/// The result of [`mann_whitney`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MannWhitney {
    /// Pairs in which the value of `b` is above that of `a`, ties counted as half: R's `W` of `wilcox.test(b, a)`.
    pub u: f64,
    /// Two-sided, of the hypothesis that both samples come from one distribution.
    pub p_value: f64,
    /// P(b > a) + P(b = a) / 2 as estimated: a half where neither tends to be above.
    pub superiority: f64,
    /// Whether the p-value was counted and not approximated.
    pub exact: bool,
}

/// Tests whether values of `b` tend to be above or below those of `a` (Mann & Whitney 1947; Hollander & Wolfe 1999,
/// section 4.1).
///
/// Up to 49 values in each the p-value is exact, with ties too: the distribution of the rank sum over all ways to deal
/// out the mid-ranks at hand. Above, the normal approximation with tie and continuity correction, as R's
/// `wilcox.test(exact = FALSE)`. Where all values are equal it is 1. `None` where a sample is empty or a value not
/// finite.
pub fn mann_whitney(a: &[f64], b: &[f64]) -> Option<MannWhitney> {
    if !is_sample(a) || !is_sample(b) {
        return None;
    }
    let ranks = mid_ranks(&[a, b].concat());
    let (m, n) = (a.len() as f64, b.len() as f64);
    let doubled: u64 = ranks.doubled[a.len()..].iter().sum();
    let u = (doubled as f64 - n * (n + 1.0)) / 2.0;
    let exact = a.len().max(b.len()) <= EXACT_SAMPLE_MAX;
    let p_value = if exact { counted(&ranks, a.len()) } else { approximate_rank_sum(&ranks, u, m, n) };
    Some(MannWhitney { u, p_value, superiority: u / (m * n), exact })
}

/// The exact two-sided p-value; the first `split` ranks are the one sample, the rest the other.
fn counted(ranks: &MidRanks, split: usize) -> f64 {
    let (first, second) = ranks.doubled.split_at(split);
    let smaller = if first.len() <= second.len() { first } else { second };
    // Without ties all are even, and half the table is enough.
    let unit = if ranks.doubled.iter().all(|rank| rank % 2 == 0) { 2 } else { 1 };
    let whole = |rank: &u64| (rank / unit) as usize;
    let observed: usize = smaller.iter().map(whole).sum();
    let ways = ways_to_sum(ranks.doubled.iter().map(whole), smaller.len());
    let total: f64 = ways.iter().sum();
    let low: f64 = ways[..=observed].iter().sum();
    let high: f64 = ways[observed..].iter().sum();
    (2.0 * low.min(high) / total).min(1.0)
}

/// The number of ways in which `chosen` of the ranks add up to each sum; the numbers stay below 10^29, exact to 16
/// digits.
fn ways_to_sum(ranks: impl Iterator<Item = usize> + Clone, chosen: usize) -> Vec<f64> {
    let mut descending: Vec<usize> = ranks.collect();
    descending.sort_unstable_by(|a, b| b.cmp(a));
    let highest: usize = descending[..chosen].iter().sum();
    let mut ways = vec![vec![0.0; highest + 1]; chosen + 1];
    ways[0][0] = 1.0;
    // Ascending, so that sums are small while few ranks are in.
    for (used, &rank) in descending.iter().rev().enumerate() {
        for count in (1..=chosen.min(used + 1)).rev() {
            let (fewer, more) = ways.split_at_mut(count);
            for (with, without) in more[0][rank.min(highest + 1)..].iter_mut().zip(&fewer[count - 1]) {
                *with += without;
            }
        }
    }
    ways.swap_remove(chosen)
}

/// Hollander & Wolfe 1999, equations 4.9 and 4.13, with the continuity correction.
fn approximate_rank_sum(ranks: &MidRanks, u: f64, m: f64, n: f64) -> f64 {
    let all = m + n;
    let variance = m * n / 12.0 * (all + 1.0 - ranks.ties / (all * (all - 1.0)));
    let distance = ((u - m * n / 2.0).abs() - 0.5).max(0.0);
    if distance == 0.0 { 1.0 } else { distributions::two_sided(distance / variance.sqrt()) }
}

/// The most differences whose null distribution is counted; up to here every probability is exact in an `f64`.
pub(crate) const EXACT_PAIRS_MAX: usize = 50;

/// The result of [`signed_rank`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SignedRank {
    /// The sum of the ranks of the positive differences.
    pub w_plus: f64,
    /// Two-sided: the chance of at least as lopsided a sum if each sign is a fair coin.
    pub p_value: f64,
    /// Whether the p-value was counted and not approximated.
    pub exact: bool,
}

/// Tests whether differences lie symmetrically around zero (Wilcoxon 1945; Hollander & Wolfe 1999, section 3.1).
///
/// Zeros are dropped, as Wilcoxon, R and SciPy do. Up to 50 others the p-value is exact, with ties too: the sum's
/// distribution over all signs of the present mid-ranks (Pratt & Gibbons 1981, chapter 3). Above, the normal
/// approximation with tie and continuity correction, as R's `wilcox.test(exact = FALSE)`. If all are zero there is no
/// evidence of a difference: the p-value is 1. `None` without values or where one is not finite.
pub fn signed_rank(diffs: &[f64]) -> Option<SignedRank> {
    if !is_sample(diffs) {
        return None;
    }
    let moved: Vec<f64> = diffs.iter().copied().filter(|&diff| diff != 0.0).collect();
    let sizes: Vec<f64> = moved.iter().map(|diff| diff.abs()).collect();
    let ranks = mid_ranks(&sizes);
    let positive = |(diff, &rank): (&f64, &u64)| if *diff > 0.0 { rank } else { 0 };
    let doubled: u64 = moved.iter().zip(&ranks.doubled).map(positive).sum();
    let exact = moved.len() <= EXACT_PAIRS_MAX;
    let p_value = if exact {
        let total: u64 = ranks.doubled.iter().sum();
        (2.0 * Null::new(&ranks.doubled).lower_tail(doubled.min(total - doubled))).min(1.0)
    } else {
        approximate_signed_rank(&ranks, doubled)
    };
    Some(SignedRank { w_plus: doubled as f64 / 2.0, p_value, exact })
}

/// The distribution of the doubled rank sum if each sign is a fair coin.
pub(crate) struct Null {
    /// The chance of each doubled sum from 0 up.
    masses: Vec<f64>,
}

impl Null {
    /// Counts it by adding one rank after the other. At most [`EXACT_PAIRS_MAX`] ranks.
    pub(crate) fn new(doubled_ranks: &[u64]) -> Self {
        let total: u64 = doubled_ranks.iter().sum();
        let mut masses = vec![0.0; total as usize + 1];
        masses[0] = 1.0;
        let mut reached = 0;
        for rank in doubled_ranks.iter().map(|&rank| rank as usize) {
            reached += rank;
            for sum in (0..=reached).rev() {
                let with = if sum >= rank { masses[sum - rank] } else { 0.0 };
                masses[sum] = 0.5 * (masses[sum] + with);
            }
        }
        Self { masses }
    }

    /// The distribution for the ranks 1 to `pairs`, without ties.
    pub(crate) fn untied(pairs: usize) -> Self {
        Self::new(&(1..=pairs as u64).map(|rank| 2 * rank).collect::<Vec<u64>>())
    }

    /// The chance of a doubled sum of at most `doubled`.
    pub(crate) fn lower_tail(&self, doubled: u64) -> f64 {
        self.masses.iter().take(doubled as usize + 1).sum()
    }

    /// The number of sums from the lowest up (in whole ranks) whose total chance is at most `tail`, and that chance.
    pub(crate) fn lower_region(&self, tail: f64) -> (usize, f64) {
        let (mut sums, mut chance) = (0, 0.0);
        for mass in self.masses.iter().step_by(2) {
            if chance + mass > tail {
                break;
            }
            chance += mass;
            sums += 1;
        }
        (sums, chance)
    }
}

/// Hollander & Wolfe 1999, equations 3.8 and 3.13, with the continuity correction.
fn approximate_signed_rank(ranks: &MidRanks, doubled: u64) -> f64 {
    let n = ranks.doubled.len() as f64;
    let distance = (doubled as f64 / 2.0 - n * (n + 1.0) / 4.0).abs();
    let variance = n * (n + 1.0) * (2.0 * n + 1.0) / 24.0 - ranks.ties / 48.0;
    distributions::two_sided((distance - 0.5).max(0.0) / variance.sqrt())
}

/// Twice the mid-rank of each value, and the amount by which ties reduce a variance: the sum of t^3 - t over the tied
/// groups.
struct MidRanks {
    /// In the order of the values given.
    pub(crate) doubled: Vec<u64>,
    /// Exactly 0 if no two values are equal.
    pub(crate) ties: f64,
}

/// Ranks `values` (finite) from 1 upwards; equal values share the mean of their ranks.
fn mid_ranks(values: &[f64]) -> MidRanks {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_unstable_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = MidRanks { doubled: vec![0; values.len()], ties: 0.0 };
    let mut start = 0;
    // Uses `==`, not `total_cmp`: 0.0 and -0.0 are equal values, and they are adjacent.
    for group in order.chunk_by(|&a, &b| values[a] == values[b]) {
        for &index in group {
            ranks.doubled[index] = (2 * start + group.len() + 1) as u64;
        }
        let size = group.len() as f64;
        ranks.ties += size * (size * size - 1.0);
        start += group.len();
    }
    ranks
}

/// The pseudo-median of differences: the median of the means of all pairs of them, each with itself too (Hodges &
/// Lehmann 1963), with the interval of all shifts that the signed-rank test does not reject (Tukey 1949; Hollander &
/// Wolfe 1999, sections 3.2 and 3.3).
///
/// Zeros count as any other value; ties make the interval wider than need be, never narrower. The test's critical
/// value is exact up to 50 differences. `None` without values, where one is not finite, where `confidence` is not in
/// (0, 1), or where so few differences cannot give it (95% needs 6).
pub fn hodges_lehmann(diffs: &[f64], confidence: f64) -> Option<Estimate> {
    if !is_sample(diffs) || !is_level(confidence) {
        return None;
    }
    let mut sorted = diffs.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let n = sorted.len() as u64;
    let means = n * (n + 1) / 2;
    let place = interval_place(sorted.len(), (1.0 - confidence) / 2.0)?;
    let value = 0.5 * walsh(&sorted, means.div_ceil(2)) + 0.5 * walsh(&sorted, means / 2 + 1);
    Some(Estimate { value, interval: Interval { low: walsh(&sorted, place), high: walsh(&sorted, means + 1 - place) } })
}

/// The largest k (from 1) with P(W < k) <= `tail`: the interval runs from the k-th lowest to the k-th highest mean.
fn interval_place(n: usize, tail: f64) -> Option<u64> {
    let place = if n <= EXACT_PAIRS_MAX {
        Null::untied(n).lower_region(tail).0 as f64
    } else {
        let n = n as f64;
        let deviation = (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt();
        (n * (n + 1.0) / 4.0 + 0.5 - distributions::upper_quantile(tail) * deviation).floor()
    };
    (place >= 1.0).then_some(place as u64)
}

/// The k-th lowest (from 1) of the means of all pairs of sorted values, found by halving the range of numbers rather
/// than by listing the means: there are half a million of them for a thousand values.
fn walsh(sorted: &[f64], k: u64) -> f64 {
    let (mut low, mut high) = (key(sorted[0]), key(sorted[sorted.len() - 1]));
    while low < high {
        let middle = low + (high - low) / 2;
        if means_up_to(sorted, number(middle)) >= k {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    number(low)
}

/// The number of means that are at most `limit`; one walk from both ends, since the mean rises with either value.
fn means_up_to(sorted: &[f64], limit: f64) -> u64 {
    let mut count = 0;
    let mut end = sorted.len();
    for (start, &low) in sorted.iter().enumerate() {
        while end > start && 0.5 * low + 0.5 * sorted[end - 1] > limit {
            end -= 1;
        }
        if end <= start {
            break;
        }
        count += (end - start) as u64;
    }
    count
}

/// The bits of a finite number, rearranged to ascend as the number does.
fn key(number: f64) -> u64 {
    // Adding zero makes one key of 0.0 and -0.0.
    let bits = (number + 0.0).to_bits();
    if bits >> 63 == 0 { bits | (1 << 63) } else { !bits }
}

/// The number with that key.
fn number(key: u64) -> f64 {
    f64::from_bits(if key >> 63 == 1 { key & !(1 << 63) } else { !key })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_share_the_mean_rank() {
        let check = |values: &[f64], doubled: &[u64], ties: f64| {
            let ranks = mid_ranks(values);
            assert_eq!((ranks.doubled.as_slice(), ranks.ties), (doubled, ties), "{values:?}");
        };
        check(&[], &[], 0.0);
        check(&[3.0, 1.0, 2.0], &[6, 2, 4], 0.0);
        check(&[5.0, 5.0, 1.0], &[5, 5, 2], 6.0);
        check(&[0.0, -0.0, 0.0], &[4, 4, 4], 24.0);
    }
}
