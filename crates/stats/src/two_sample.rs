//! Two independent samples with equal scatter: Student's t between their means.
//!
//! For a few repetitions on each side, where ranks cannot reach a usual significance: the scatter is estimated from
//! both together.

use crate::estimate::{Estimate, Interval, is_level, is_sample, mean_and_deviation};
use crate::student_t;

/// The result of [`two_sample_t`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TwoSampleT {
    /// The difference of the means over its standard error; 0 or infinite if each side's values are all equal.
    pub t: f64,
    /// Degrees of freedom, two less than the values.
    pub df: f64,
    /// Two-sided.
    pub p_value: f64,
    /// The mean of `b` minus that of `a`.
    pub estimate: Estimate,
    /// The pooled standard deviation of one value, or the minimum that was set.
    pub sd: f64,
}

/// Student's t test that two samples have the same mean, with pooled variance, and the interval of the difference
/// (Student 1908; R's `t.test(b, a, var.equal = TRUE)`).
///
/// The deviation is assumed to be `sd_min` at least: few values may agree by luck, and a deviation of zero is
/// implausible. `None` unless each side has a value and both together three, all finite; where their squares overflow,
/// `sd_min` is negative or not finite, or `confidence` is not in (0, 1).
pub fn two_sample_t(a: &[f64], b: &[f64], sd_min: f64, confidence: f64) -> Option<TwoSampleT> {
    let values = a.len() + b.len();
    let is_floor = sd_min.is_finite() && sd_min >= 0.0;
    if values < 3 || !is_sample(a) || !is_sample(b) || !is_floor || !is_level(confidence) {
        return None;
    }
    let df = (values - 2) as f64;
    let ((mean_a, squares_a), (mean_b, squares_b)) = (mean_and_squares(a), mean_and_squares(b));
    let sd = ((squares_a + squares_b) / df).sqrt().max(sd_min);
    let error = sd * (1.0 / a.len() as f64 + 1.0 / b.len() as f64).sqrt();
    if !error.is_finite() {
        return None;
    }
    let difference = mean_b - mean_a;
    let t = if difference == 0.0 { 0.0 } else { difference / error };
    let reach = student_t::two_sided_quantile(1.0 - confidence, df) * error;
    let estimate =
        Estimate { value: difference, interval: Interval { low: difference - reach, high: difference + reach } };
    Some(TwoSampleT { t, df, p_value: student_t::two_sided(t, df), estimate, sd })
}

/// Mean, and sum of squared deviations from it.
fn mean_and_squares(values: &[f64]) -> (f64, f64) {
    match values {
        // A single value has no deviation over n - 1.
        [only] => (*only, 0.0),
        _ => {
            let (mean, sd) = mean_and_deviation(values);
            (mean, sd * sd * (values.len() - 1) as f64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_says_nothing_gives_nothing() {
        let check =
            |a: &[f64], b: &[f64], sd_min: f64| assert_eq!(two_sample_t(a, b, sd_min, 0.95), None, "{a:?} {b:?}");
        check(&[], &[1.0, 2.0, 3.0], 0.0);
        check(&[1.0], &[2.0], 0.0);
        check(&[1.0, f64::NAN], &[2.0, 3.0], 0.0);
        check(&[f64::MAX, -f64::MAX], &[2.0, 3.0], 0.0);
        check(&[1.0, 2.0], &[2.0, 3.0], -1.0);
        assert_eq!(two_sample_t(&[1.0, 2.0], &[2.0, 3.0], 0.0, 1.0), None);
    }

    #[test]
    fn equal_values_are_believed_as_far_as_asked() {
        let certain = two_sample_t(&[7.0; 3], &[8.0; 3], 0.0, 0.95).unwrap();
        assert_eq!((certain.p_value, certain.t), (0.0, f64::INFINITY));
        let same = two_sample_t(&[7.0; 3], &[7.0; 3], 0.0, 0.95).unwrap();
        assert_eq!((same.p_value, same.estimate.value), (1.0, 0.0));
        let doubted = two_sample_t(&[7.0; 3], &[8.0; 3], 1.0, 0.95).unwrap();
        assert!(doubted.p_value > 0.2 && doubted.sd == 1.0, "{doubted:?}");
    }
}
