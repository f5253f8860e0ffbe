//! The Mann-Whitney test of two independent samples.

use crate::estimate::is_sample;
use crate::normal;
use crate::ranks::{MidRanks, mid_ranks};

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
    let p_value = if exact { counted(&ranks, a.len()) } else { approximate(&ranks, u, m, n) };
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
fn approximate(ranks: &MidRanks, u: f64, m: f64, n: f64) -> f64 {
    let all = m + n;
    let variance = m * n / 12.0 * (all + 1.0 - ranks.ties / (all * (all - 1.0)));
    let distance = ((u - m * n / 2.0).abs() - 0.5).max(0.0);
    if distance == 0.0 { 1.0 } else { normal::two_sided(distance / variance.sqrt()) }
}
