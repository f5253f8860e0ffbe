//! Student's t: its distribution, and the tests of paired measurements and of two samples.
//!
//! The distribution is central and noncentral. The central tails come from the incomplete beta function for few degrees
//! of freedom and from a normal expansion for many; quantiles are solved for. (`statrs` ends its beta function after
//! 140 terms, even if it has not converged.)
//!
//! The test of paired measurements is over differences, usually of log ratios. The one of two independent samples
//! assumes equal scatter. It is for a few repetitions on each side, where ranks cannot reach a usual significance: the
//! scatter is estimated from both together.

use crate::distributions::{self, rising_root};
use crate::estimate::{Estimate, Interval, is_level, is_sample, mean_and_deviation};
use std::f64::consts::PI;

/// From here on the expansion in 1 / degrees is exact to 10 digits, and the gamma functions below it no longer are.
const EXPANSION_DF_MIN: f64 = 10_000.0;

/// Several times the number of terms at which it converges for fewer degrees.
const FRACTION_TERMS_MAX: u32 = 2000;

/// How far the scale's density is integrated around its middle, in its standard deviations.
const SCALE_DEVIATIONS: f64 = 12.0;

/// Panels between two cuts of the scale.
const PANELS: usize = 12;

/// P(|T| >= |t|), `df` above 0.
pub(crate) fn two_sided(t: f64, df: f64) -> f64 {
    if t == 0.0 || (t * t).is_infinite() {
        return if t == 0.0 { 1.0 } else { 0.0 };
    }
    if df >= EXPANSION_DF_MIN {
        return distributions::two_sided(normal_equivalent(t.abs(), df));
    }
    // The tail is the regularised incomplete beta function of df/2 and 1/2 at `outer`; either it or its complement is
    // quick to sum (DLMF 8.17.4 and 8.17.22).
    let a = df / 2.0;
    let (outer, inner) = (df / (df + t * t), t * t / (df + t * t));
    let log_front = libm::lgamma(a + 0.5) - libm::lgamma(a) - a * (t * t / df).ln_1p();
    let front = (inner / PI).sqrt() * log_front.exp();
    if outer < (a + 1.0) / (a + 2.5) {
        front / (a * beta_fraction(a, 0.5, outer))
    } else {
        1.0 - front / (0.5 * beta_fraction(0.5, a, inner))
    }
}

/// The t with P(|T| >= t) = `p`, for `p` in (0, 1).
pub(crate) fn two_sided_quantile(p: f64, df: f64) -> f64 {
    let mut high = distributions::upper_quantile(p / 2.0).max(1.0);
    while two_sided(high, df) > p {
        high *= 2.0;
    }
    rising_root(0.0, high, |t| p - two_sided(t, df))
}

/// P(|T| >= t) of the t distribution with noncentrality `shift`.
///
/// T is (Z + shift) / S with S independent, S^2 a chi-square over `df`: the normal tails are averaged over S's
/// density, which is normalised by its own integral (so no gamma function is needed).
pub(crate) fn noncentral_two_sided(t: f64, df: f64, shift: f64) -> f64 {
    let (mut inside, mut weight_sum) = (0.0, 0.0);
    for (scale, width) in scale_nodes(t, df, shift) {
        let weight = width * scale_density(scale, df);
        weight_sum += weight;
        inside +=
            weight * (distributions::upper_tail(t * scale - shift) + distributions::upper_tail(t * scale + shift));
    }
    inside / weight_sum
}

/// The density of S at `scale`, relative to that at 1.
fn scale_density(scale: f64, df: f64) -> f64 {
    let off = scale - 1.0;
    ((df - 1.0) * off.ln_1p() - df * off * (1.0 + off / 2.0)).exp()
}

/// Nodes that are dense both where S's density is and where the normal tail turns from 0 to 1 (at `shift` / `t`).
fn scale_nodes(t: f64, df: f64, shift: f64) -> Vec<(f64, f64)> {
    let reach = SCALE_DEVIATIONS / (2.0 * df).sqrt();
    let (low, high) = ((1.0 - reach).max(0.0), 1.0 + reach);
    let turn = |deviations: f64| ((shift.abs() + deviations) / t).clamp(low, high);
    // Over the root of the scale, since the density is a fractional power of it at 0.
    let cuts = [low, turn(-9.0), turn(-3.0), turn(3.0), turn(9.0), high].map(f64::sqrt);
    let piece = |ends: &[f64]| distributions::nodes(ends[0], ends[1], if ends[0] < ends[1] { PANELS } else { 0 });
    cuts.windows(2).flat_map(piece).map(|(root, width)| (root * root, 2.0 * root * width)).collect()
}

/// The continued fraction of the incomplete beta function, DLMF 8.17.22, by Lentz's method (Thompson & Barnett 1986);
/// the function is its front factor over this.
fn beta_fraction(a: f64, b: f64, x: f64) -> f64 {
    let (mut value, mut c, mut d) = (1.0, 1.0, 0.0);
    for term in 1..=FRACTION_TERMS_MAX {
        let m = f64::from(term / 2);
        let numerator = if term % 2 == 0 {
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
        } else {
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0))
        };
        d = 1.0 / (1.0 + numerator * d);
        c = 1.0 + numerator / c;
        value *= c * d;
        if (c * d - 1.0).abs() < f64::EPSILON {
            break;
        }
    }
    value
}

/// The z whose normal tail is that of `t` (Hill 1970, "Algorithm 395: Student's t-Distribution").
fn normal_equivalent(t: f64, df: f64) -> f64 {
    let a = df - 0.5;
    let b = 48.0 * a * a;
    let square = a * (t * t / df).ln_1p();
    let inner = ((-0.4 * square - 3.3) * square - 24.0) * square - 85.5;
    ((inner / (0.8 * square * square + 100.0 + b) + square + 3.0) / b + 1.0) * square.sqrt()
}

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
    let reach = two_sided_quantile(1.0 - confidence, df) * error;
    let estimate = Estimate { value: mean, interval: Interval { low: mean - reach, high: mean + reach } };
    Some(PairedT { t, df, p_value: two_sided(t, df), estimate, sd })
}

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
    let reach = two_sided_quantile(1.0 - confidence, df) * error;
    let estimate =
        Estimate { value: difference, interval: Interval { low: difference - reach, high: difference + reach } };
    Some(TwoSampleT { t, df, p_value: two_sided(t, df), estimate, sd })
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
    use serde_json::Value;

    /// Compares `function` of each case of `kind` with its value `want`.
    fn check(kind: &str, want: &str, tolerance: f64, floor: f64, function: impl Fn(&dyn Fn(&str) -> f64) -> f64) {
        let all: Value = serde_json::from_str(include_str!("../tests/data/scipy.json")).unwrap();
        for case in all["student"][kind].as_array().unwrap() {
            let number = |key: &str| case[key].as_f64().unwrap();
            let (got, want) = (function(&number), number(want));
            assert!((got - want).abs() <= tolerance * want.abs() + floor, "{got} of {case}");
        }
    }

    #[test]
    fn central_of_scipy() {
        check("central", "p", 1e-10, 0.0, |case| two_sided(case("t"), case("df")));
    }

    #[test]
    fn quantile_of_scipy() {
        check("quantile", "t", 1e-10, 0.0, |case| two_sided_quantile(case("p"), case("df")));
    }

    #[test]
    fn noncentral_of_scipy() {
        check("noncentral", "p", 1e-8, 1e-13, |case| noncentral_two_sided(case("t"), case("df"), case("shift")));
    }

    #[test]
    fn no_shift_is_central() {
        for df in [1.0, 2.5, 7.0, 100.0, 1e5, 1e9] {
            for t in [0.1, 1.0, 3.0, 8.0] {
                let (shifted, central) = (noncentral_two_sided(t, df, 0.0), two_sided(t, df));
                assert!((shifted - central).abs() < 1e-12, "{t} {df}: {shifted} {central}");
            }
        }
    }

    #[test]
    fn infinite_t_is_certain() {
        assert_eq!((two_sided(f64::INFINITY, 5.0), two_sided(f64::INFINITY, 1e6)), (0.0, 0.0));
    }

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
