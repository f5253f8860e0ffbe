//! Quantiles with intervals that assume nothing about the distribution.

use crate::binomial;
use crate::estimate::{Interval, is_level, is_sample};

/// The largest count for `quantile_ranks` (2^40): beyond it the sum takes noticeable time.
const COUNT_MAX: u64 = 1 << 40;

/// The `q`-quantile of values in ascending order, interpolated between neighbours: definition 7 of Hyndman & Fan 1996
/// ("Sample Quantiles in Statistical Packages"), the default of R and NumPy.
///
/// `None` without values, with `q` outside 0 to 1, or where one of the values used is not finite.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    if !(0.0..=1.0).contains(&q) {
        return None;
    }
    let place = last as f64 * q;
    let below = (place.floor() as usize).min(last);
    let (low, high) = (sorted[below], sorted[(below + 1).min(last)]);
    let share = place - below as f64;
    if share == 0.0 {
        return low.is_finite().then_some(low);
    }
    // Weighted, since `low` plus a share of the gap may overflow; the sum may round to just outside.
    let value = (low * (1.0 - share) + high * share).max(low).min(high);
    (low.is_finite() && high.is_finite()).then_some(value)
}

/// The ranks (from 1) of two order statistics that enclose the true `q`-quantile with at least `confidence`, for any
/// distribution (David & Nagaraja 2003, "Order Statistics", section 7.1; Hahn & Meeker 1991, section 5.2).
///
/// Each end errs with at most half of the rest of `confidence`, by exact binomial sums. `None` where the sample is too
/// small to have such ranks (p99.9 at 95% needs 3,688 values), above 2^40 values, or where an argument is not in (0,
/// 1).
pub fn quantile_ranks(count: u64, q: f64, confidence: f64) -> Option<(u64, u64)> {
    if !is_level(q) || !is_level(confidence) || count == 0 || count > COUNT_MAX {
        return None;
    }
    let tail = (1.0 - confidence) / 2.0;
    let low = binomial::lower_rank(count, q, tail);
    let from_top = binomial::lower_rank(count, 1.0 - q, tail);
    (low > 0 && from_top > 0).then(|| (low, count + 1 - from_top))
}

/// The values at the ranks of [`quantile_ranks`]: a confidence interval of the `q`-quantile from values in ascending
/// order. `None` as for the ranks, or where one of the two is not finite.
pub fn quantile_interval(sorted: &[f64], q: f64, confidence: f64) -> Option<Interval> {
    let (low, high) = quantile_ranks(sorted.len() as u64, q, confidence)?;
    let interval = Interval { low: sorted[low as usize - 1], high: sorted[high as usize - 1] };
    (interval.low.is_finite() && interval.high.is_finite()).then_some(interval)
}

/// The middle of values in any order. `None` without values or where one is not finite.
pub fn median(values: &[f64]) -> Option<f64> {
    if !is_sample(values) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    quantile(&sorted, 0.5)
}
