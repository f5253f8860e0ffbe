//! The size of a paired difference, read from the signed-rank test.

use crate::estimate::{Estimate, Interval, is_level, is_sample};
use crate::normal;
use crate::signed_rank::{EXACT_PAIRS_MAX, Null};

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
        (n * (n + 1.0) / 4.0 + 0.5 - normal::upper_quantile(tail) * deviation).floor()
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
