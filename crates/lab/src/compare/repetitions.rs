//! Judging a figure with hardly any noise from a few repetitions a side: instructions per request.
//!
//! Three repetitions a side cannot reach a usual significance by ranks: of the 20 ways to deal six figures to two sides one
//! puts all of B above all of A, so that would be a false alarm in 10% of comparisons, both directions counted.
//! The noise is estimated instead: Student's test of two samples with pooled variance (Student 1908; Abramowitz & Stegun
//! 26.7.4 for the distribution with an even number of degrees of freedom), on logarithms. Its error is the stated one
//! where the noise is normal. That counts are not quite normal (a table that grows in one start and not in the other) is
//! met twice: the noise is taken to be at least [`NOISE_MIN`], and a difference below 1% is none, however certain
//! ([`Measure::effect_min`](super::measures::Measure::effect_min)), so figures that agree by luck decide nothing.
//! `false_alarms` holds the rule to the stated error with heavy tails, too.

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

/// None where a side has under two repetitions, the sides differ in their number, or a figure is not above zero. `level`
/// is the two-sided error of the interval and of the minimum detectable difference, `power` of the latter.
pub(crate) fn difference(a: &[f64], b: &[f64], level: f64, power: f64) -> Option<Difference> {
    let positive = |values: &[f64]| values.iter().all(|value| *value > 0.0 && value.is_finite());
    if a.len() < REPETITIONS_MIN || a.len() != b.len() || !positive(a) || !positive(b) {
        return None;
    }
    let (mean_a, squares_a) = log_moments(a);
    let (mean_b, squares_b) = log_moments(b);
    // With as many on both sides this is even, as the distribution below needs it.
    let freedom = a.len() + b.len() - 2;
    let sd = ((squares_a + squares_b) / freedom as f64).sqrt().max(NOISE_MIN);
    let error = sd * (2.0 / a.len() as f64).sqrt();
    let effect = mean_b - mean_a;
    let reach = critical(level, freedom) * error;
    Some(Difference {
        effect,
        low: effect - reach,
        high: effect + reach,
        p_value: two_sided(effect / error, freedom),
        // The usual sum of both quantiles; the noncentral distribution would put it a little lower.
        minimum_detectable: reach + critical(2.0 * (1.0 - power), freedom) * error,
    })
}

/// Mean, and sum of squared deviations from it.
fn log_moments(values: &[f64]) -> (f64, f64) {
    let mean = values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64;
    (mean, values.iter().map(|value| (value.ln() - mean).powi(2)).sum())
}

/// Probability of a |t| at least this large; `freedom` is even.
fn two_sided(t: f64, freedom: usize) -> f64 {
    let angle = (t.abs() / (freedom as f64).sqrt()).atan();
    let square = angle.cos().powi(2);
    let mut term = 1.0;
    let mut sum = 1.0;
    for k in 1..freedom / 2 {
        term *= square * (2 * k - 1) as f64 / (2 * k) as f64;
        sum += term;
    }
    (1.0 - angle.sin() * sum).clamp(0.0, 1.0)
}

/// The |t| that is reached with this probability.
fn critical(probability: f64, freedom: usize) -> f64 {
    const HALVINGS: usize = 100;
    let (mut low, mut high) = (0.0, 1e9);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        match two_sided(middle, freedom) > probability {
            true => low = middle,
            false => high = middle,
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of R: `qt(1 - p / 2, df)`.
    #[test]
    fn the_distribution_is_students() {
        for (probability, freedom, t) in
            [(0.05, 2, 4.302653), (0.05, 4, 2.776445), (0.01, 4, 4.604095), (0.001, 6, 5.958816), (0.5, 10, 0.699812)]
        {
            assert!((critical(probability, freedom) - t).abs() < 1e-5, "{probability} {freedom}");
            assert!((two_sided(t, freedom) - probability).abs() < 1e-6, "{probability} {freedom}");
        }
    }

    #[test]
    fn a_clear_difference_is_certain_and_none_is_none() {
        let clear = difference(&[1000.0, 1001.0, 999.0], &[1050.0, 1051.0, 1049.0], 0.001, 0.9).unwrap();
        assert!(clear.p_value < 1e-6 && clear.low > 0.04 && clear.high < 0.06, "{clear:?}");
        assert!(clear.minimum_detectable < 0.02, "{clear:?}");
        let none = difference(&[1000.0, 1001.0, 999.0], &[1001.0, 999.0, 1000.0], 0.001, 0.9).unwrap();
        assert!(none.p_value > 0.5 && none.low < 0.0 && none.high > 0.0, "{none:?}");
    }

    #[test]
    fn figures_that_say_nothing_give_nothing() {
        for (a, b) in [(&[1.0][..], &[1.0][..]), (&[1.0, 2.0], &[1.0]), (&[0.0, 1.0], &[1.0, 1.0]), (&[], &[])] {
            assert_eq!(difference(a, b, 0.01, 0.9), None);
        }
        let same = difference(&[7.0; 3], &[7.0; 3], 0.01, 0.9).unwrap();
        assert!(same.p_value == 1.0 && same.effect == 0.0);
    }
}
