//! Numbers with the range of their plausible values, by methods that assume nothing about the distribution.
//!
//! They are quantiles, any statistic by resampling, and the slope of a line through scattered points, without trusting any single one.

use crate::distributions;
use crate::random::Random;

/// A closed range of plausible values, in the unit of the estimate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// The lower end, itself plausible.
    pub low: f64,
    /// The upper end, at least `low`.
    pub high: f64,
}

/// A point estimate with its confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The best single value.
    pub value: f64,
    /// The interval at the requested confidence.
    pub interval: Interval,
}

/// The standard deviation over n - 1. `None` below 2 values, where one is not finite or their squares overflow.
pub fn standard_deviation(values: &[f64]) -> Option<f64> {
    if values.len() < 2 || !is_sample(values) {
        return None;
    }
    Some(mean_and_deviation(values).1).filter(|deviation| deviation.is_finite())
}

/// Mean and standard deviation over n - 1, in two passes, the second correcting the mean by the rest of the first.
pub(crate) fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let rough = values.iter().sum::<f64>() / n;
    let left = values.iter().map(|value| value - rough).sum::<f64>() / n;
    let mean = rough + left;
    let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
    (mean, (squares / (n - 1.0)).sqrt())
}

/// Whether a confidence, significance or power is valid: strictly between 0 and 1.
pub(crate) fn is_level(level: f64) -> bool {
    level > 0.0 && level < 1.0
}

/// Whether there are values and every one is finite.
pub(crate) fn is_sample(values: &[f64]) -> bool {
    !values.is_empty() && values.iter().all(|value| value.is_finite())
}

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
    let low = distributions::lower_rank(count, q, tail);
    let from_top = distributions::lower_rank(count, 1.0 - q, tail);
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

/// The statistic with its bias-corrected and accelerated interval (Efron 1987, "Better Bootstrap Confidence Intervals";
/// acceleration by the jackknife: Efron & Tibshirani 1993, section 14.3).
///
/// Each resample draws `sample.len()` indices by `random.below`, one after the other: the same seed gives the same
/// interval. Resamples equal to the estimate count half for the bias, as in SciPy, so that a statistic with few values
/// (a maximum, a median of ties) has an interval too. If every resample gives one value, as for a constant sample, the
/// interval is that value: it does not measure the scatter.
///
/// `None` below 2 values, where a value, the confidence or the statistic of any resample is not finite or the
/// confidence not in (0, 1), where fewer than one resample would lie in each tail (95% needs 40), or where all lie on
/// one side of the estimate.
pub fn bca(
    sample: &[f64],
    statistic: impl Fn(&[f64]) -> f64,
    resamples: usize,
    confidence: f64,
    random: &mut Random,
) -> Option<Estimate> {
    let tail = (1.0 - confidence) / 2.0;
    // With a small tolerance, since 40 times 0.025 is not quite 1.
    if sample.len() < 2 || !is_sample(sample) || !is_level(confidence) || (resamples as f64) * tail < 1.0 - 1e-9 {
        return None;
    }
    let value = statistic(sample);
    let replicates = replicate(sample, &statistic, resamples, random);
    if !value.is_finite() || !is_sample(&replicates) {
        return None;
    }
    if replicates[0] == value && replicates[replicates.len() - 1] == value {
        return Some(Estimate { value, interval: Interval { low: value, high: value } });
    }
    let below = replicates.partition_point(|&replicate| replicate < value);
    let not_above = replicates.partition_point(|&replicate| replicate <= value);
    let bias = -distributions::upper_quantile((below + not_above) as f64 / (2 * replicates.len()) as f64);
    let acceleration = acceleration(sample, &statistic)?;
    let end = |z: f64| {
        let level = distributions::lower_tail(bias + (bias + z) / (1.0 - acceleration * (bias + z)));
        quantile(&replicates, level)
    };
    let reach = distributions::upper_quantile(tail);
    let (first, second) = (end(-reach)?, end(reach)?);
    // They cross where the acceleration is so strong that the formula's denominator turns negative.
    Some(Estimate { value, interval: Interval { low: first.min(second), high: first.max(second) } })
}

/// The statistic of each resample, ascending.
fn replicate(sample: &[f64], statistic: impl Fn(&[f64]) -> f64, resamples: usize, random: &mut Random) -> Vec<f64> {
    let mut resample = sample.to_vec();
    let mut replicates: Vec<f64> = (0..resamples)
        .map(|_| {
            for slot in &mut resample {
                *slot = sample[random.below(sample.len() as u64) as usize];
            }
            statistic(&resample)
        })
        .collect();
    replicates.sort_unstable_by(f64::total_cmp);
    replicates
}

/// The skewness of the statistic over samples that lack one value, over six. 0 where none makes a difference; `None`
/// where one is not finite.
fn acceleration(sample: &[f64], statistic: impl Fn(&[f64]) -> f64) -> Option<f64> {
    let mut shorter = sample[1..].to_vec();
    let mut lacking = vec![statistic(&shorter)];
    for index in 0..shorter.len() {
        // The value that is put back takes the place of the next one, so the order of the others stays.
        shorter[index] = sample[index];
        lacking.push(statistic(&shorter));
    }
    if !is_sample(&lacking) {
        return None;
    }
    let mean = lacking.iter().sum::<f64>() / lacking.len() as f64;
    let (mut squares, mut cubes) = (0.0, 0.0);
    for difference in lacking.iter().map(|value| mean - value) {
        squares += difference * difference;
        cubes += difference * difference * difference;
    }
    Some(if squares > 0.0 { cubes / (6.0 * squares.powf(1.5)) } else { 0.0 })
}

/// The median of the slopes between any two points of different `x`, with Sen's interval (Sen 1968, "Estimates of the
/// Regression Coefficient Based on Kendall's Tau"): all slopes whose residuals correlate with `x` no more than chance
/// explains, by the normal approximation of Kendall's S with ties.
///
/// `None` where lengths differ, a value is not finite, `confidence` is not in (0, 1), no two `x` differ, or where there
/// are too few points for the interval.
pub fn theil_sen(x: &[f64], y: &[f64], confidence: f64) -> Option<Estimate> {
    if x.len() != y.len() || !x.iter().chain(y).all(|value| value.is_finite()) || !is_level(confidence) {
        return None;
    }
    let mut slopes = Vec::new();
    for (first, (x1, y1)) in x.iter().zip(y).enumerate() {
        let others = x[first + 1..].iter().zip(&y[first + 1..]);
        slopes.extend(others.filter(|(x2, _)| *x2 != x1).map(|(x2, y2)| (y2 - y1) / (x2 - x1)));
    }
    slopes.sort_unstable_by(f64::total_cmp);
    let value = median(&slopes)?;
    let n = x.len() as f64;
    let variance = (weight(n) - of_ties(x) - of_ties(y)) / 18.0;
    let half = distributions::upper_quantile((1.0 - confidence) / 2.0) * variance.max(0.0).sqrt() / 2.0;
    let count = slopes.len() as f64;
    let (low, high) = ((count / 2.0 - half).round() - 1.0, (count / 2.0 + half).round());
    (low >= 0.0 && high < count).then(|| {
        let interval = Interval { low: slopes[low as usize], high: slopes[high as usize] };
        Estimate { value, interval }
    })
}

/// The amount by which a group of `size` equal values reduces 18 times the variance of S; all of it if all values are
/// equal.
fn weight(size: f64) -> f64 {
    size * (size - 1.0) * (2.0 * size + 5.0)
}

fn of_ties(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.chunk_by(|a, b| a == b).map(|group| weight(group.len() as f64)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deviation_needs_two_values() {
        let check =
            |values: &[f64], expected: Option<f64>| assert_eq!(standard_deviation(values), expected, "{values:?}");
        check(&[], None);
        check(&[3.0], None);
        check(&[3.0, f64::NAN], None);
        check(&[f64::MAX, -f64::MAX], None);
        check(&[3.0, 3.0, 3.0], Some(0.0));
        check(&[1.0, 3.0], Some(2f64.sqrt()));
    }

    #[test]
    fn an_outlier_bends_no_line() {
        let x: Vec<f64> = (0..12).map(f64::from).collect();
        let mut y: Vec<f64> = x.iter().map(|x| 3.0 + 2.0 * x).collect();
        y[11] = 500.0;
        let slope = theil_sen(&x, &y, 0.95).unwrap();
        assert!(slope.value == 2.0 && slope.interval.low == 2.0 && slope.interval.high < 50.0, "{slope:?}");
    }

    #[test]
    fn what_says_nothing_gives_nothing() {
        let check = |x: &[f64], y: &[f64], confidence| assert_eq!(theil_sen(x, y, confidence), None, "{x:?}");
        check(&[], &[], 0.95);
        check(&[1.0, 2.0], &[1.0], 0.95);
        check(&[1.0, 1.0, 1.0, 1.0], &[1.0, 2.0, 3.0, 4.0], 0.95);
        check(&[1.0, 2.0], &[1.0, f64::NAN], 0.95);
        check(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0], 1.0);
        // Three points cannot be that certain.
        check(&[1.0, 2.0, 3.0], &[1.0, 5.0, 3.0], 0.999);
    }
}
