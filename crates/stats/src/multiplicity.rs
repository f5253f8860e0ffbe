//! Several tests at once: Holm's correction, Benjamini and Hochberg's correction for many tests, some of which
//! are expected to find a difference, and a comparison of many rates.
//!
//! The last one compares many rates of two measurements at once: which of them differ, with one error over all.
//!
//! For example the hundreds of functions of two profiles, which depend on each other: the cost of a
//! function includes those it calls. A correction for independent tests would find next to nothing.

use crate::estimate::{Interval, is_level, quantile};
use crate::random::Random;
use crate::{distributions, student_t};

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
}
