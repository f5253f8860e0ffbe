//! The power of a number of pairs, before and after measuring.
//!
//! "No difference" is meaningless without the smallest difference that would have been detected. Everything here is for
//! two-sided tests of paired differences with standard deviation `sd`, in the differences' own unit.

use crate::distributions::{self, rising_root};
use crate::estimate::is_level;
use crate::rank_tests::{EXACT_PAIRS_MAX, Null};
use crate::student_t;
use std::f64::consts::PI;

/// The efficiency of the signed-rank test: the share of pairs that the t test would need, if differences are normal
/// (Hodges & Lehmann 1956; Lehmann 1975, section 4.3). With heavier tails it is greater, and never less than 0.864.
pub const SIGNED_RANK_EFFICIENCY: f64 = 3.0 / PI;

/// The largest result of `pairs_needed`.
const PAIRS_MAX: u64 = 1_000_000_000;

/// The chance that a paired t test at level `alpha` over `n` pairs finds a true mean difference of `effect` (noncentral
/// t, both tails; Cohen 1988, chapter 2; R's `power.t.test(type = "paired", strict = TRUE)`).
///
/// Without scatter (`sd` 0) any effect is found for certain. NaN below 2 pairs, where `sd` is negative, `effect` or
/// `sd` not finite, or `alpha` not in (0, 1).
pub fn power(n: u64, sd: f64, effect: f64, alpha: f64) -> f64 {
    if n < 2 || !is_scatter(sd) || !effect.is_finite() || !is_level(alpha) {
        return f64::NAN;
    }
    if effect == 0.0 {
        return alpha;
    }
    let pairs = n as f64;
    Design::new(pairs, alpha).power(effect.abs() / sd * pairs.sqrt())
}

/// The smallest true mean difference that a paired t test at level `alpha` over `n` pairs finds with chance `power`.
///
/// `None` below 2 pairs, where `sd` is negative or not finite, or unless 0 < `alpha` < `power` < 1.
pub fn minimum_detectable_effect(n: u64, sd: f64, alpha: f64, power: f64) -> Option<f64> {
    if n < 2 || !is_scatter(sd) || !is_goal(alpha, power) {
        return None;
    }
    let pairs = n as f64;
    Some(Design::new(pairs, alpha).shift_found(power) * sd / pairs.sqrt())
}

/// The smallest true mean difference that the signed-rank test finds with chance `power`, by its efficiency: that of a
/// t test with [`SIGNED_RANK_EFFICIENCY`] as many pairs, at the level that the test reaches with so few ranks (with 6
/// pairs 1 in 32, if 1 in 20 was requested).
///
/// `None` also where the test cannot reach `alpha` at all: all signs alike has chance 2 / 2^n.
pub fn minimum_detectable_effect_signed_rank(n: u64, sd: f64, alpha: f64, power: f64) -> Option<f64> {
    if !is_scatter(sd) || !is_goal(alpha, power) {
        return None;
    }
    let reached =
        if n <= EXACT_PAIRS_MAX as u64 { 2.0 * Null::untied(n as usize).lower_region(alpha / 2.0).1 } else { alpha };
    let pairs = n as f64 * SIGNED_RANK_EFFICIENCY;
    (reached > 0.0 && pairs > 1.0).then(|| Design::new(pairs, reached).shift_found(power) * sd / pairs.sqrt())
}

/// The smallest true mean difference whose estimate over `n` pairs lies beyond `threshold` (0 or more) with chance
/// `power`: the difference that a rule with such a threshold can find, however small the test's own minimum is. By the
/// normal approximation with the signed-rank estimate's efficiency.
///
/// `None` without pairs, where `threshold` or `sd` is negative or not finite, or where `power` is not in (0.5, 1).
pub fn effect_beyond(threshold: f64, n: u64, sd: f64, power: f64) -> Option<f64> {
    if n == 0 || !is_scatter(threshold) || !is_scatter(sd) || !is_goal(0.5, power) {
        return None;
    }
    let error = sd / (n as f64 * SIGNED_RANK_EFFICIENCY).sqrt();
    Some(threshold + distributions::upper_quantile(1.0 - power) * error)
}

/// The smallest true difference of two means that a t test with pooled variance at level `alpha`, over `a` and `b` values
/// with standard deviation `sd`, finds with chance `power` (R's `power.t.test(type = "two.sample", strict = TRUE)`).
///
/// `None` where a side is empty or both have below 3 values together, `sd` is negative or not finite, or unless
/// 0 < `alpha` < `power` < 1.
pub fn minimum_detectable_effect_two_sample(a: u64, b: u64, sd: f64, alpha: f64, power: f64) -> Option<f64> {
    if a == 0 || b == 0 || a + b < 3 || !is_scatter(sd) || !is_goal(alpha, power) {
        return None;
    }
    // Like a paired design with that many degrees of freedom, which are all that the design uses of its pairs.
    let shift = Design::new((a + b - 1) as f64, alpha).shift_found(power);
    Some(shift * sd * (1.0 / a as f64 + 1.0 / b as f64).sqrt())
}

/// The fewest pairs with which a paired t test at level `alpha` finds a true mean difference of `effect` with chance
/// `power`; at least 2.
///
/// `None` where `effect` is 0 or not finite, `sd` is negative or not finite, unless 0 < `alpha` < `power` < 1, or above
/// 10^9 pairs.
pub fn pairs_needed(sd: f64, effect: f64, alpha: f64, power: f64) -> Option<u64> {
    if effect == 0.0 || !effect.is_finite() || !is_scatter(sd) || !is_goal(alpha, power) {
        return None;
    }
    let enough = |n: u64| self::power(n, sd, effect, alpha) >= power;
    let mut high = 2;
    while !enough(high) {
        if high >= PAIRS_MAX {
            return None;
        }
        high = (high * 2).min(PAIRS_MAX);
    }
    let mut low = high / 2;
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        if enough(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    Some(high.max(2))
}

/// A two-sided t test; the number of pairs may be fractional, for a test with a lower efficiency.
struct Design {
    df: f64,
    critical: f64,
}

impl Design {
    fn new(pairs: f64, alpha: f64) -> Self {
        let df = pairs - 1.0;
        Self { df, critical: student_t::two_sided_quantile(alpha, df) }
    }

    /// The chance to reject where the mean lies `shift` standard errors from zero.
    fn power(&self, shift: f64) -> f64 {
        // Beyond it the tails are 1 to the last bit, and infinity would turn the integral into NaN.
        if shift.is_infinite() {
            return 1.0;
        }
        student_t::noncentral_two_sided(self.critical, self.df, shift)
    }

    /// The shift that is found with chance `power`.
    fn shift_found(&self, power: f64) -> f64 {
        let mut high = self.critical + distributions::upper_quantile(1.0 - power).max(1.0);
        while self.power(high) < power {
            high *= 2.0;
        }
        rising_root(0.0, high, |shift| self.power(shift) - power)
    }
}

fn is_scatter(sd: f64) -> bool {
    sd.is_finite() && sd >= 0.0
}

fn is_goal(alpha: f64, power: f64) -> bool {
    is_level(alpha) && is_level(power) && alpha < power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_a_threshold_lies_more_than_the_threshold() {
        assert_eq!(effect_beyond(0.1, 10, 0.0, 0.9), Some(0.1));
        let found = effect_beyond(0.0, 100, 1.0, 0.9).unwrap();
        assert!((found - 1.281_551_565_544_6 / (100.0 * SIGNED_RANK_EFFICIENCY).sqrt()).abs() < 1e-12, "{found}");
        for none in [
            effect_beyond(-0.1, 10, 1.0, 0.9),
            effect_beyond(0.1, 0, 1.0, 0.9),
            effect_beyond(0.1, 10, f64::NAN, 0.9),
            effect_beyond(0.1, 10, 1.0, 0.5),
        ] {
            assert_eq!(none, None);
        }
    }
}
