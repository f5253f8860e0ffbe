//! Judging a figure with hardly any noise from a few repetitions a side: instructions per request.
//!
//! Three repetitions a side cannot reach a usual significance by ranks: of the 20 ways to deal six figures to two sides one
//! puts all of B above all of A, so that would be a false alarm in 10% of comparisons, both directions counted.
//! The noise is estimated instead: Student's test of two samples with pooled variance, on logarithms. Its error is the stated
//! one where the noise is normal. That counts are not quite normal (a table that grows in one start and not in the other) is
//! met twice: the noise is taken to be at least [`NOISE_MIN`], and a difference below 1% is none, however certain
//! ([`Measure::effect_min`](super::measures::Measure::effect_min)), so figures that agree by luck decide nothing.
//! `false_alarms` holds the rule to the stated error with heavy tails, too.

use stillgate_stats::{effect_beyond, minimum_detectable_effect_two_sample, two_sample_t};

/// Standard deviation of a repetition's logarithm that is assumed at least.
const NOISE_MIN: f64 = 1e-4;

/// Fewer repetitions a side than this leave the noise unknown.
const REPETITIONS_MIN: usize = 2;

/// What the repetitions say, on a logarithmic scale, B over A.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Difference {
    pub(crate) effect: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// Two-sided.
    pub(crate) p_value: f64,
    pub(crate) minimum_detectable: f64,
}

/// None where a side has under two repetitions or a figure is not above zero. `level` is the two-sided error of the interval
/// and of the minimum detectable difference, `power` of the latter; a difference below `effect_min` counts as none.
pub(crate) fn difference(a: &[f64], b: &[f64], level: f64, power: f64, effect_min: f64) -> Option<Difference> {
    let positive = |values: &[f64]| values.iter().all(|value| *value > 0.0 && value.is_finite());
    if a.len().min(b.len()) < REPETITIONS_MIN || !positive(a) || !positive(b) {
        return None;
    }
    let logs = |values: &[f64]| values.iter().map(|value| value.ln()).collect::<Vec<_>>();
    let test = two_sample_t(&logs(a), &logs(b), NOISE_MIN, 1.0 - level)?;
    let seen = minimum_detectable_effect_two_sample(a.len() as u64, b.len() as u64, test.sd, level, power);
    // The difference is one value, with the scatter of its standard error.
    let error = test.sd * (1.0 / a.len() as f64 + 1.0 / b.len() as f64).sqrt();
    let counts = effect_beyond(effect_min, 1, error, power).unwrap_or(effect_min);
    Some(Difference {
        effect: test.estimate.value,
        low: test.estimate.interval.low,
        high: test.estimate.interval.high,
        p_value: test.p_value,
        minimum_detectable: seen.unwrap_or(f64::INFINITY).max(counts),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clear_difference_is_certain_and_none_is_none() {
        let clear = difference(&[1000.0, 1001.0, 999.0], &[1050.0, 1051.0, 1049.0], 0.001, 0.9, 0.0).unwrap();
        assert!(clear.p_value < 1e-6 && clear.low > 0.04 && clear.high < 0.06, "{clear:?}");
        assert!(clear.minimum_detectable < 0.02, "{clear:?}");
        let none = difference(&[1000.0, 1001.0, 999.0], &[1001.0, 999.0, 1000.0], 0.001, 0.9, 0.0).unwrap();
        assert!(none.p_value > 0.5 && none.low < 0.0 && none.high > 0.0, "{none:?}");
    }

    #[test]
    fn what_counts_as_none_is_not_detectable() {
        let detectable =
            |effect_min| difference(&[7.0; 3], &[7.0; 3], 0.01, 0.9, effect_min).unwrap().minimum_detectable;
        assert!(detectable(0.0) < 0.001, "{}", detectable(0.0));
        // An estimate of a true 1% is below 1% half of the time.
        assert!(detectable(0.01) > 0.01 && detectable(0.01) < 0.011, "{}", detectable(0.01));
    }

    #[test]
    fn figures_that_say_nothing_give_nothing() {
        for (a, b) in [(&[1.0][..], &[1.0][..]), (&[1.0, 2.0], &[1.0]), (&[0.0, 1.0], &[1.0, 1.0]), (&[], &[])] {
            assert_eq!(difference(a, b, 0.01, 0.9, 0.01), None);
        }
        let same = difference(&[7.0; 3], &[7.0; 3], 0.01, 0.9, 0.01).unwrap();
        assert!(same.p_value == 1.0 && same.effect == 0.0);
    }
}
