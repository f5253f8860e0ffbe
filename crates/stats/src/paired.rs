//! Paired measurements: their log ratios, and Student's t over differences.

use crate::estimate::{Estimate, Interval, is_level, is_sample, mean_and_deviation};
use crate::student_t;

/// ln(b / a) of each pair: the change from `a` to `b`, where +0.01 and -0.01 are opposite and equally large.
///
/// `None` where the lengths differ, without pairs, or where a value is not finite and above 0.
pub fn log_ratios(a: &[f64], b: &[f64]) -> Option<Vec<f64>> {
    let positive = |values: &[f64]| is_sample(values) && values.iter().all(|&value| value > 0.0);
    if a.len() != b.len() || !positive(a) || !positive(b) {
        return None;
    }
    // The logarithm of the quotient is not used, since the quotient may overflow.
    Some(a.iter().zip(b).map(|(a, b)| b.ln() - a.ln()).collect())
}

/// The result of [`paired_t`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairedT {
    /// The mean over its standard error; 0 or infinite where all differences are equal.
    pub t: f64,
    /// Degrees of freedom, one less than the differences.
    pub df: f64,
    /// Two-sided.
    pub p_value: f64,
    /// The mean difference.
    pub estimate: Estimate,
    /// The standard deviation of the differences, over n - 1.
    pub sd: f64,
}

/// Student's t test that differences have mean zero, with the interval of their mean (Student 1908; R's `t.test`).
///
/// If all differences are equal the interval is that one value and the p-value 1 (all zero) or 0 (not zero): correct
/// by the formula, but as implausible as a deviation of zero. `None` below 2 differences, where one is not finite or
/// their squares overflow, or where `confidence` is not in (0, 1).
pub fn paired_t(diffs: &[f64], confidence: f64) -> Option<PairedT> {
    if diffs.len() < 2 || !is_sample(diffs) || !is_level(confidence) {
        return None;
    }
    let (mean, sd) = mean_and_deviation(diffs);
    let df = (diffs.len() - 1) as f64;
    let error = sd / (diffs.len() as f64).sqrt();
    if !error.is_finite() {
        return None;
    }
    let t = if mean == 0.0 { 0.0 } else { mean / error };
    let reach = student_t::two_sided_quantile(1.0 - confidence, df) * error;
    let estimate = Estimate { value: mean, interval: Interval { low: mean - reach, high: mean + reach } };
    Some(PairedT { t, df, p_value: student_t::two_sided(t, df), estimate, sd })
}
