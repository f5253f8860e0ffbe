//! One stated chance of a false alarm over several tests, or over several looks at the same data.
//!
//! Several tests at once: Holm's correction, Benjamini and Hochberg's correction for many tests, some of which are expected
//! to find a difference, and a comparison of many rates of two measurements: which of them differ, with one error over all.
//! For example the hundreds of functions of two profiles, which depend on each other: the cost of a function includes those
//! it calls. A correction for independent tests would find next to nothing.
//!
//! Several looks: group-sequential bounds are for data that grow from look to look. A screening takes up to three looks at
//! many series of paired differences: a small one at all of them, a larger one at those that look changed, and an even
//! larger one at those that are still uncertain.
//!
//! The looks of a screening use different measurements, so the chance that an unchanged series passes all of them is the
//! product of their chances. Each uses signed ranks: outliers of a shared machine count by their rank only. Most series
//! that look changed at first are unchanged, so the second look is small, and the third, which few need, can be large: with
//! as many measurements, smaller changes are found than with a single second look.

use crate::distributions::{self, rising_root};
use crate::estimate::{Interval, is_level, quantile};
use crate::random::Random;
use crate::rank_tests::signed_rank;
use crate::student_t;
use std::f64::consts::{E, PI};

/// The p-values adjusted so that comparing each with alpha keeps the chance of any false alarm at most alpha, however
/// the tests depend on each other (Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure").
///
/// In the order given, never below the raw value, at most 1, and as R's `p.adjust(p, "holm")`; but a value that is
/// not a probability (NaN, below 0, above 1) counts as 1: a measure without an answer was still one of the questions.
pub fn holm(p: &[f64]) -> Vec<f64> {
    let raw: Vec<f64> = p.iter().map(|&p| if (0.0..=1.0).contains(&p) { p } else { 1.0 }).collect();
    let mut order: Vec<usize> = (0..raw.len()).collect();
    order.sort_by(|&a, &b| raw[a].total_cmp(&raw[b]));
    let mut adjusted = vec![0.0; raw.len()];
    let mut floor = 0.0_f64;
    for (rejected, &index) in order.iter().enumerate() {
        floor = floor.max((raw.len() - rejected) as f64 * raw[index]).min(1.0);
        adjusted[index] = floor;
    }
    adjusted
}

/// The p-values adjusted so that among those at most q, no more than a share q is expected to be false, if tests are
/// independent or positively dependent (Benjamini & Hochberg 1995, "Controlling the False Discovery Rate").
///
/// In the order given and at most 1, as R's `p.adjust(p, "BH")`; a value that is not a probability counts as 1, as
/// in [`holm`](crate::holm). If nothing differs at all, any is at most q with a probability of at most q.
pub fn benjamini_hochberg(p: &[f64]) -> Vec<f64> {
    let raw: Vec<f64> = p.iter().map(|&p| if (0.0..=1.0).contains(&p) { p } else { 1.0 }).collect();
    let mut order: Vec<usize> = (0..raw.len()).collect();
    order.sort_by(|&a, &b| raw[a].total_cmp(&raw[b]));
    let mut adjusted = vec![0.0; raw.len()];
    let mut ceiling = 1.0_f64;
    for (rank, &index) in order.iter().enumerate().rev() {
        ceiling = ceiling.min(raw.len() as f64 / (rank + 1) as f64 * raw[index]);
        adjusted[index] = ceiling;
    }
    adjusted
}

/// A slice of a measurement: the work that was done in it, and the cost of each item.
#[derive(Debug, Clone, PartialEq)]
pub struct Slice {
    /// Above 0, for example a number of requests.
    pub work: f64,
    /// Costs by item; as many in every slice.
    pub spent: Vec<f64>,
}

/// The additional cost of an item for each unit of work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateChange {
    /// The rate of the second measurement, minus that of the first.
    pub value: f64,
    /// The intervals of all items hold together with the requested confidence.
    pub interval: Interval,
    /// Whether the interval excludes 0.
    pub is_certain: bool,
}

/// A side's rates and their standard errors, by item.
struct Rates {
    rates: Vec<f64>,
    errors: Vec<f64>,
}

/// The changes of all items between two measurements in slices, by the bootstrap of the largest one.
///
/// Slices are redrawn, with all items of a slice together, which preserves their dependence (single-step maxT: Westfall
/// & Young 1993, "Resampling-Based Multiple Testing", section 2.6). A rate is the sum of costs over the sum of work;
/// its error is that of a ratio estimator (Cochran 1977, "Sampling Techniques", section 6.4). The bootstrap reflects
/// the items' dependence and shape, but not that errors are estimated from few slices: so its bound counts as a normal
/// quantile, and the interval has Student's quantile of the same level.
///
/// `None` below 3 slices on either side, where slices differ in their items, where a work is not above 0 or a cost not
/// finite, or where the confidence is not in (0, 1).
pub fn rate_changes(
    a: &[Slice],
    b: &[Slice],
    resamples: usize,
    confidence: f64,
    random: &mut Random,
) -> Option<Vec<RateChange>> {
    let items = a.first()?.spent.len();
    let sound = |slice: &Slice| {
        let costs = slice.spent.iter().all(|cost| cost.is_finite());
        slice.work.is_finite() && slice.work > 0.0 && slice.spent.len() == items && costs
    };
    if a.len() < 3 || b.len() < 3 || !a.iter().chain(b).all(sound) || !is_level(confidence) || resamples == 0 {
        return None;
    }
    let (of_a, of_b) = (rates(a), rates(b));
    let values: Vec<f64> = of_b.rates.iter().zip(&of_a.rates).map(|(b, a)| b - a).collect();
    let errors: Vec<f64> = of_b.errors.iter().zip(&of_a.errors).map(|(b, a)| b.hypot(*a)).collect();
    let mut largest: Vec<f64> = (0..resamples).map(|_| largest_deviation((a, b), (&of_a, &of_b), random)).collect();
    largest.sort_unstable_by(f64::total_cmp);
    let bound = quantile(&largest, confidence)?;
    let student = student_t::two_sided_quantile(distributions::two_sided(bound), (a.len() + b.len() - 2) as f64);
    let change = |(value, error): (f64, f64)| {
        let reach = student * error;
        let interval = Interval { low: value - reach, high: value + reach };
        // If an item is equal in all slices, its scatter is unknown.
        RateChange { value, interval, is_certain: error > 0.0 && value.abs() > reach }
    };
    Some(values.into_iter().zip(errors).map(change).collect())
}

fn rates(slices: &[Slice]) -> Rates {
    let count = slices.len() as f64;
    let work: f64 = slices.iter().map(|slice| slice.work).sum();
    let mut rates = Rates { rates: Vec::new(), errors: Vec::new() };
    for item in 0..slices[0].spent.len() {
        let rate = slices.iter().map(|slice| slice.spent[item]).sum::<f64>() / work;
        let square = |slice: &Slice| (slice.spent[item] - rate * slice.work).powi(2);
        let squares = slices.iter().map(square).sum::<f64>();
        rates.rates.push(rate);
        rates.errors.push((squares * count / (count - 1.0)).sqrt() / work);
    }
    rates
}

/// The largest deviation among all items in one resample, in their standard errors.
fn largest_deviation((a, b): (&[Slice], &[Slice]), (of_a, of_b): (&Rates, &Rates), random: &mut Random) -> f64 {
    let mut redrawn = |slices: &[Slice]| -> Vec<f64> {
        let mut sums = vec![0.0; slices[0].spent.len()];
        let mut work = 0.0;
        for _ in slices {
            let slice = &slices[random.below(slices.len() as u64) as usize];
            work += slice.work;
            sums.iter_mut().zip(&slice.spent).for_each(|(sum, cost)| *sum += cost);
        }
        sums.iter().map(|sum| sum / work).collect()
    };
    let (new_a, new_b) = (redrawn(a), redrawn(b));
    // The variance of a resample of n values has the divisor n, not n - 1.
    let shrunk = |slices: &[Slice]| ((slices.len() - 1) as f64 / slices.len() as f64).sqrt();
    let (shrunk_a, shrunk_b) = (shrunk(a), shrunk(b));
    let deviation = |item: usize| {
        let moved = (new_b[item] - of_b.rates[item]) - (new_a[item] - of_a.rates[item]);
        let error = (of_b.errors[item] * shrunk_b).hypot(of_a.errors[item] * shrunk_a);
        if error > 0.0 { (moved / error).abs() } else { 0.0 }
    };
    (0..new_a.len()).map(deviation).fold(0.0, f64::max)
}

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
    use crate::two_sample_t;

    /// Slices whose items have common and individual noise; `step` is the additional cost of item 0.
    fn slices(count: usize, items: usize, step: f64, random: &mut Random) -> Vec<Slice> {
        let slice = |_| {
            let luck = 1.0 + 0.05 * random.normal();
            let work = 1000.0 * (1.0 + 0.1 * random.normal());
            let spent = (0..items).map(|item| {
                let mean = 1.0 / (1 + item) as f64 * if item == 0 { 1.0 + step } else { 1.0 };
                mean * work * luck * (0.1 * random.normal()).exp()
            });
            Slice { work, spent: spent.collect() }
        };
        (0..count).map(slice).collect()
    }

    #[test]
    fn where_nothing_differs_all_intervals_hold_together_as_often_as_stated() {
        let mut random = Random::new(7);
        let any = |random: &mut Random| {
            let (a, b) = (slices(10, 30, 0.0, random), slices(10, 30, 0.0, random));
            rate_changes(&a, &b, 400, 0.95, random).unwrap().iter().any(|change| change.is_certain)
        };
        let alarms = (0..400).filter(|_| any(&mut random)).count();
        // 5% of 400, within what chance allows.
        assert!((6..=36).contains(&alarms), "{alarms}");
    }

    #[test]
    fn what_differs_is_found_and_only_that() {
        let mut random = Random::new(8);
        let found = (0..50).filter(|_| {
            let (a, b) = (slices(10, 30, 0.0, &mut random), slices(10, 30, 0.4, &mut random));
            let changes = rate_changes(&a, &b, 400, 0.95, &mut random).unwrap();
            changes[0].is_certain && changes[0].interval.low < 0.4 && changes[0].interval.high > 0.4
        });
        let found = found.count();
        assert!(found >= 43, "{found}");
    }

    #[test]
    fn one_item_for_equal_work_is_students_test() {
        let mut random = Random::new(9);
        let mut side = |mean: f64| -> Vec<f64> { (0..12).map(|_| mean + random.normal()).collect() };
        let (a, b) = (side(10.0), side(11.0));
        let slices = |values: &[f64]| -> Vec<Slice> {
            values.iter().map(|value| Slice { work: 1.0, spent: vec![*value] }).collect()
        };
        let found = rate_changes(&slices(&a), &slices(&b), 20_000, 0.95, &mut Random::new(1)).unwrap()[0];
        let student = two_sample_t(&a, &b, 0.0, 0.95).unwrap().estimate;
        assert!((found.value - student.value).abs() < 1e-12);
        let widths = [found.interval, student.interval].map(|interval| interval.high - interval.low);
        assert!((widths[0] / widths[1] - 1.0).abs() < 0.05, "{widths:?}");
    }

    #[test]
    fn what_has_no_answer_has_none() {
        let slice = |work, spent: &[f64]| Slice { work, spent: spent.to_vec() };
        let good = vec![slice(1.0, &[1.0]); 3];
        let of = |a: &[Slice], confidence| rate_changes(a, &good, 10, confidence, &mut Random::new(1));
        assert!(!of(&good, 0.9).unwrap()[0].is_certain, "the scatter is unknown");
        assert_eq!(of(&good[..2], 0.9), None);
        assert_eq!(of(&good, 1.0), None);
        assert_eq!(of(&vec![slice(0.0, &[1.0]); 3], 0.9), None);
        assert_eq!(of(&vec![slice(1.0, &[f64::NAN]); 3], 0.9), None);
        assert_eq!(of(&vec![slice(1.0, &[]); 3], 0.9), None);
    }

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
