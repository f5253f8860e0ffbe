//! Confidence intervals of any statistic, by resampling.

use crate::estimate::{Estimate, Interval, is_level, is_sample};
use crate::normal;
use crate::quantile::quantile;
use crate::random::Random;

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
    let bias = -normal::upper_quantile((below + not_above) as f64 / (2 * replicates.len()) as f64);
    let acceleration = acceleration(sample, &statistic)?;
    let end = |z: f64| {
        let level = normal::lower_tail(bias + (bias + z) / (1.0 - acceleration * (bias + z)));
        quantile(&replicates, level)
    };
    let reach = normal::upper_quantile(tail);
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
