//! Looks at data several times with one stated chance of a false alarm.
//!
//! Group-sequential bounds are for data that grow from look to look. A screening takes up to three looks at many series
//! of paired differences: a small one at all of them, a larger one at those that look changed, and an even larger one
//! at those that are still uncertain.
//!
//! The looks use different measurements, so the chance that an unchanged series passes all of them is the product of
//! their chances. Each uses signed ranks: outliers of a shared machine count by their rank only. Most series that look
//! changed at first are unchanged, so the second look is small, and the third, which few need, can be large: with as
//! many measurements, smaller changes are found than with a single second look.

use crate::distributions::{self, rising_root};
use crate::estimate::is_level;
use crate::multiplicity::benjamini_hochberg;
use crate::rank_tests::signed_rank;
use std::f64::consts::{E, PI};

/// The most looks; with more, an always-valid method would serve better.
const LOOKS_MAX: usize = 200;

/// The least that a look must add, as a share of all information: less would need a finer grid and be useless.
const INFORMATION_STEP_MIN: f64 = 0.001;

/// How far densities and kernels are followed, in their standard deviations; the rest is below 1e-22.
const DEVIATIONS_MAX: f64 = 10.0;

/// The largest bound: the chance of passing a higher one is not representable.
const Z_MAX: f64 = 38.0;

/// How the error is spent over the information, for a look at any share t of it (Lan & DeMets 1983, "Discrete
/// Sequential Boundaries for Clinical Trials").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpendingFunction {
    /// Hardly any early, and the last look almost as good as a single one.
    OBrienFleming,
    /// About evenly, for stopping early; the last look pays for it.
    Pocock,
}

impl SpendingFunction {
    /// The two-sided error spent up to `share`, of `alpha` in all; each side has its half.
    fn spent(self, alpha: f64, share: f64) -> f64 {
        match self {
            Self::OBrienFleming => {
                4.0 * distributions::upper_tail(distributions::upper_quantile(alpha / 4.0) / share.sqrt())
            }
            Self::Pocock => alpha * ((E - 1.0) * share).ln_1p(),
        }
    }
}

/// The bound of each look: stop and report "different" as soon as |z| is at least it. Over all looks together that
/// happens with chance `alpha` without a difference.
///
/// `information` is the information of each look, ascending, in any unit (pairs so far); the last is the total. z are
/// standard normal with independent increments: for a test that gives a p-value, compare it with [`nominal_p`] instead.
/// Solved look by look with the recursion of Armitage, McPherson & Rowe 1969 (Jennison & Turnbull 2000, chapters 7 and
/// 19), to about 10 digits; a look at which less than 1e-300 may be spent has an infinite bound.
///
/// `None` without looks or with more than 200, where one adds less than a thousandth of the information, where one is
/// not finite, or where `alpha` is not in (0, 1).
pub fn boundaries(information: &[f64], alpha: f64, spending: SpendingFunction) -> Option<Vec<f64>> {
    let steps = steps(information)?;
    if !is_level(alpha) {
        return None;
    }
    let all: f64 = *information.last()?;
    let mut walk = Walk::new(0.0);
    let mut bounds = Vec::with_capacity(steps.len());
    let mut spent = 0.0;
    for (look, &step) in steps.iter().enumerate() {
        let now = spending.spent(alpha, information[look] / all);
        let tail = (now - spent) / 2.0;
        let scale = information[look].sqrt();
        let bound = if tail < f64::MIN_POSITIVE {
            f64::INFINITY
        } else {
            rising_root(0.0, Z_MAX, |z| tail - walk.chance_above(z * scale, step))
        };
        walk.advance(information[look], step, bound * scale, steps.get(look + 1).copied());
        bounds.push(bound);
        spent = now;
    }
    Some(bounds)
}

/// The two-sided p-value at which each bound is reached: stop at a look whose own p-value is at most it.
pub fn nominal_p(bounds: &[f64]) -> Vec<f64> {
    bounds.iter().map(|&bound| distributions::two_sided(bound)).collect()
}

/// The chance to stop at each look, and not before, with two-sided `bounds` if z has mean `drift` times the root of the
/// information (Jennison & Turnbull 2000, section 19.2): with drift 0 the false alarms, whose sum is alpha; with
/// another drift the power.
///
/// `None` as for [`boundaries`], and where there is not one bound above 0 for each look or `drift` is not finite.
pub fn crossing_probability(information: &[f64], bounds: &[f64], drift: f64) -> Option<Vec<f64>> {
    let steps = steps(information)?;
    let positive = bounds.iter().all(|&bound| bound > 0.0);
    if bounds.len() != steps.len() || !positive || !drift.is_finite() {
        return None;
    }
    let mut walk = Walk::new(drift);
    let mut chances = Vec::with_capacity(steps.len());
    for (look, &step) in steps.iter().enumerate() {
        let bound = bounds[look] * information[look].sqrt();
        chances.push(walk.chance_above(bound, step) + walk.chance_below(-bound, step));
        walk.advance(information[look], step, bound, steps.get(look + 1).copied());
    }
    Some(chances)
}

/// The information that each look adds; `None` if it is not suitable for a plan.
fn steps(information: &[f64]) -> Option<Vec<f64>> {
    let all = *information.last()?;
    if information.len() > LOOKS_MAX || !all.is_finite() || all <= 0.0 {
        return None;
    }
    let before = std::iter::once(&0.0).chain(information);
    let steps: Vec<f64> = information.iter().zip(before).map(|(now, before)| now - before).collect();
    // Slightly less, for the thousandth of a sum of floats. NaN is never at least anything.
    let least = all * INFORMATION_STEP_MIN * (1.0 - 1e-9);
    steps.iter().all(|&step| step >= least).then_some(steps)
}

/// The score, z times the root of the information, of the runs that have not stopped.
struct Walk {
    /// Mean of the score per information.
    drift: f64,
    /// Scores in ascending order and the probability around each.
    atoms: Vec<(f64, f64)>,
}

impl Walk {
    fn new(drift: f64) -> Self {
        Self { drift, atoms: vec![(0.0, 1.0)] }
    }

    /// The chance that the score lies above `bound` after `step` more information.
    fn chance_above(&self, bound: f64, step: f64) -> f64 {
        let tail = |&(score, mass): &(f64, f64)| mass * distributions::upper_tail(self.deviate(bound, score, step));
        self.atoms.iter().map(tail).sum()
    }

    /// The chance that the score lies below `bound` after `step` more information.
    fn chance_below(&self, bound: f64, step: f64) -> f64 {
        let tail = |&(score, mass): &(f64, f64)| mass * distributions::lower_tail(self.deviate(bound, score, step));
        self.atoms.iter().map(tail).sum()
    }

    /// How many standard deviations of the step `to` is above the expected value after `from`.
    fn deviate(&self, to: f64, from: f64, step: f64) -> f64 {
        (to - from - self.drift * step) / step.sqrt()
    }

    /// Moves on by `step` to `information`, dropping the runs that stopped beyond `bound`.
    ///
    /// The grid is as fine as the narrower of the step that made the density and the `next` that will blur it.
    fn advance(&mut self, information: f64, step: f64, bound: f64, next: Option<f64>) {
        let Some(next) = next else { return };
        let (middle, reach) = (self.drift * information, DEVIATIONS_MAX * information.sqrt());
        let (low, high) = ((middle - reach).max(-bound), (middle + reach).min(bound));
        if low >= high {
            self.atoms.clear();
            return;
        }
        let panels = ((high - low) / step.min(next).sqrt()).ceil().max(1.0) as usize;
        let nodes = distributions::nodes(low, high, panels).into_iter();
        self.atoms = nodes.map(|(score, width)| (score, width * self.density(score, step))).collect();
    }

    /// The density of the score after `step` more information, from the atoms near enough to matter.
    fn density(&self, score: f64, step: f64) -> f64 {
        let (middle, reach) = (score - self.drift * step, DEVIATIONS_MAX * step.sqrt());
        let start = self.atoms.partition_point(|atom| atom.0 < middle - reach);
        let near = self.atoms[start..].iter().take_while(|atom| atom.0 <= middle + reach);
        let kernel = |&(from, mass): &(f64, f64)| mass * (-self.deviate(score, from, step).powi(2) / 2.0).exp();
        near.map(kernel).sum::<f64>() / (2.0 * PI * step).sqrt()
    }
}

/// The p-values up to which a series is looked at again, after the first look and after the second. Missing a change here is
/// worse than another look for nothing.
pub const SCREEN_LEVELS: [f64; 2] = [0.3, 0.1];

/// The second look or the third may report a change: each may spend half of the error.
const BRANCHES: f64 = 2.0;

/// The looks at one series after the first one; `None` if they were not requested.
#[derive(Debug, Clone, Copy, Default)]
pub struct Looks<'a> {
    /// Taken if the first look was suspicious.
    pub second: Option<&'a [f64]>,
    /// Taken if the second was not decisive.
    pub third: Option<&'a [f64]>,
}

/// Whether the first look calls for a second one. No if it has no result.
pub fn is_suspicious(first: &[f64]) -> bool {
    signed_rank(first).is_some_and(|tested| tested.p_value <= SCREEN_LEVELS[0])
}

/// Whether a second look, one of `comparisons`, calls for a third: it still looks changed, but not so that `error`
/// would hold for all.
pub fn is_undecided(second: &[f64], comparisons: usize, error: f64) -> bool {
    signed_rank(second).is_some_and(|tested| {
        let is_certain = after_second(tested.p_value) * comparisons as f64 <= error;
        tested.p_value <= SCREEN_LEVELS[1] && !is_certain
    })
}

/// The p-values of all series, adjusted by Benjamini and Hochberg's correction, 1 without a second look.
/// Reporting those at most q as changed has an error of at most q: among all reports if some changed, for any report if
/// none did.
pub fn screened(all: &[Looks<'_>]) -> Vec<f64> {
    let after = |diffs: Option<&[f64]>, spent: fn(f64) -> f64| {
        diffs.and_then(signed_rank).map_or(1.0, |tested| spent(tested.p_value).min(1.0))
    };
    let of_one = |looks: &Looks<'_>| after(looks.second, after_second).min(after(looks.third, after_third));
    benjamini_hochberg(&all.iter().map(of_one).collect::<Vec<f64>>())
}

/// The p-value that the last look must reach by itself to result in `error` over `comparisons`, if no other is changed.
pub fn third_look_level(comparisons: usize, error: f64) -> f64 {
    error / comparisons.max(1) as f64 / after_third(1.0)
}

fn after_second(p_value: f64) -> f64 {
    BRANCHES * SCREEN_LEVELS[0] * p_value
}

fn after_third(p_value: f64) -> f64 {
    BRANCHES * SCREEN_LEVELS[0] * SCREEN_LEVELS[1] * p_value
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` values, `others` of which have the opposite sign; each has its own rank.
    fn diffs(count: usize, others: usize) -> Vec<f64> {
        (1..=count).map(|rank| if rank <= others { -(rank as f64) } else { rank as f64 }).collect()
    }

    #[test]
    fn each_look_asks_for_the_next_where_it_leaves_doubt() {
        assert!(is_suspicious(&diffs(10, 4)) && !is_suspicious(&diffs(10, 6)) && !is_suspicious(&[]));
        // Certainly changed; uncertain; unchanged.
        assert!(!is_undecided(&diffs(25, 2), 40, 0.01));
        assert!(is_undecided(&diffs(25, 13), 40, 0.01));
        assert!(!is_undecided(&diffs(25, 17), 40, 0.01) && !is_undecided(&[], 40, 0.01));
    }

    #[test]
    fn p_values_are_products_of_the_looks() {
        let (second, third) = (diffs(25, 13), diffs(100, 40));
        let p_value = |diffs: &[f64]| signed_rank(diffs).unwrap().p_value;
        let one = |looks: Looks<'_>| screened(&[looks])[0];
        assert_eq!(one(Looks::default()), 1.0);
        let of_second = one(Looks { second: Some(&second), third: None });
        assert!((of_second - 2.0 * 0.3 * p_value(&second)).abs() < 1e-15, "{of_second}");
        let of_both = one(Looks { second: Some(&second), third: Some(&third) });
        assert!((of_both - 2.0 * 0.3 * 0.1 * p_value(&third)).abs() < 1e-15 && of_both < of_second);
        assert!((third_look_level(40, 0.01) - 0.01 / 40.0 / 0.06).abs() < 1e-12);
    }
}
