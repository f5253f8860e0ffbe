//! Finds the place in a row at which the level of noisy readings steps, if it does: the arithmetic of a bisection over
//! commits.
//!
//! The levels of the places are a hidden chain: none, one or two steps anywhere between the first place and the last.
//! Its posterior is summed exactly over a grid of levels and a grid of noise models ([`chain`]), so nothing
//! is assumed to be normal that is not, and a probability may be looked at any number of times. A period of the machine
//! ([`period`]) and drift over time ([`walk`]) are subtracted first. [`choice`] chooses the place to read next and
//! decides when to stop.

mod chain;
mod choice;
mod period;
#[cfg(test)]
mod tests;
mod walk;

use crate::estimate::{Estimate, Interval};
use chain::{ChainRow, Fates, ForwardSums, Grid, Jump, NoiseChain};
pub use choice::{Conclusion, choose, conclude, next_place};
use walk::WalkReading;

/// How often levels and drift are estimated in alternation, each from the residuals of the other.
const DRIFT_ROUNDS_MAX: usize = 4;

/// Noise models whose share is below this explain the readings too badly to change the result.
const MODEL_SHARE_MIN: f64 = 1e-12;

/// If the probability that the machine drifts is below this, drift is ignored.
const WALK_SHARE_MIN: f64 = 0.01;

/// One measurement: a place and its value. Steps are differences of values, so ratios need logarithms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// 0 is the first place.
    pub place: usize,
    /// Finite.
    pub value: f64,
}

/// The belief before the first reading.
#[derive(Debug, Clone, PartialEq)]
pub struct StepPrior {
    /// How likely a step between each place and the next is, relative to the others; one weight fewer than places.
    pub weights: Vec<f64>,
    /// A smaller step does not count; above 0.
    pub step_min: f64,
    /// Probability of no step, in (0, 1).
    pub none: f64,
    /// Probability that there are several, in (0, 1); one step has the rest.
    pub several: f64,
}

/// Mean and variance of the belief about a place's level.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LevelBelief {
    /// In the unit of the values.
    pub mean: f64,
    /// In the square of the unit of the values.
    pub variance: f64,
}

/// The belief after some readings.
#[derive(Debug, Clone)]
pub struct Steps {
    /// Probability of no step.
    pub none: f64,
    /// Probability of two steps.
    pub several: f64,
    /// Probability of a step between each place and the next, whether or not there is another step; the sum is the
    /// expected number of steps.
    pub steps: Vec<f64>,
    /// The level of each place.
    pub levels: Vec<LevelBelief>,
    /// The scale of one reading's noise: its standard deviation without outliers.
    pub noise: f64,
    /// How much better a step explains the readings than no step does, as a logarithm. If there is no step, the
    /// probability that this ever exceeds ln(1 / a) is at most a, under any number of looks (Ville's inequality).
    pub log_evidence: f64,
    /// The drift that was subtracted from each reading, besides a period.
    pub drift: Vec<f64>,
    /// The places in the order they were read.
    order: Vec<usize>,
    /// The values in that order, without the drift and a period.
    values: Vec<f64>,
    /// Number of readings of each place.
    counts: Vec<usize>,
    /// See [`StepPrior::step_min`].
    step_min: f64,
    grid: Grid,
    chains: Vec<NoiseChain>,
    /// Fates of each place.
    fates: Vec<Fates>,
}

/// The posterior after `readings`, in the order they were taken.
///
/// Noise is Student's t with 3 or 11 degrees of freedom and an unknown scale; a step's size exceeds `step_min` by an
/// amount with two exponential tails, one of a few per cent and one of tens of per cent (values are assumed to be
/// logarithms). `None` unless the first and the last place have readings, all values are finite, there are at least
/// three, and the prior is valid.
pub fn steps(readings: &[Reading], prior: &StepPrior) -> Option<Steps> {
    let places = prior.weights.len() + 1;
    let read = |place: usize| readings.iter().any(|reading| reading.place == place);
    let sound = readings.iter().all(|reading| reading.value.is_finite() && reading.place < places);
    if readings.len() < 3 || !sound || !is_prior(prior) || !read(0) || !read(places - 1) {
        return None;
    }
    let readings = &period::without_period(readings)[..];
    let still = without_drift(readings, vec![0.0; readings.len()], prior)?;
    let mut drifting: Option<Steps> = None;
    for _ in 0..DRIFT_ROUNDS_MAX {
        let known = drifting.as_ref().unwrap_or(&still);
        let left: Vec<f64> = readings.iter().map(|reading| reading.value - known.levels[reading.place].mean).collect();
        let Some(drift) = walk::smoothed(&left, &known.drift, known.noise) else { break };
        let moved = drift.iter().zip(&known.drift).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        let has_settled = moved < known.noise * walk::SETTLED_NOISES;
        drifting = Some(without_drift(readings, drift, prior)?);
        if has_settled {
            break;
        }
    }
    Some(walking(still, drifting, readings, prior))
}

fn is_prior(prior: &StepPrior) -> bool {
    let StepPrior { weights, step_min, none, several } = prior;
    let weighed = weights.iter().all(|weight| weight.is_finite() && *weight >= 0.0);
    let positive = |value: f64| value > 0.0 && value.is_finite();
    let one = 1.0 - none - several;
    weighed && [weights.iter().sum(), *step_min, *none, *several, one].into_iter().all(positive)
}

fn without_drift(readings: &[Reading], drift: Vec<f64>, prior: &StepPrior) -> Option<Steps> {
    let values: Vec<Reading> = readings
        .iter()
        .zip(&drift)
        .map(|(reading, drift)| Reading { value: reading.value - drift, ..*reading })
        .collect();
    on_grid(&values, drift, prior, Grid::of(&values))
}

/// The posterior with the levels and the noise models of a grid.
fn on_grid(readings: &[Reading], drift: Vec<f64>, prior: &StepPrior, grid: Grid) -> Option<Steps> {
    let NormalizedPrior { weights, ends, pairs } = NormalizedPrior::of(prior);
    let rows = chain::rows(readings, &weights);
    let jump = Jump::new(prior.step_min, &grid);
    let explained: Vec<ForwardSums> =
        grid.noises.iter().map(|noise| ForwardSums::of(&rows, *noise, ends, &jump, &grid)).collect();
    let best = explained.iter().map(|explained| explained.log_evidence).fold(f64::NEG_INFINITY, f64::max);
    if !best.is_finite() {
        return None;
    }
    let share = |explained: &ForwardSums| (explained.log_evidence - best).exp();
    let counted: Vec<(f64, ForwardSums)> = explained
        .into_iter()
        .map(|explained| (share(&explained), explained))
        .filter(|(share, _)| *share >= MODEL_SHARE_MIN)
        .collect();
    let sum: f64 = counted.iter().map(|(share, _)| share).sum();
    let chains: Vec<NoiseChain> = counted
        .into_iter()
        .map(|(share, explained)| NoiseChain::of(explained, &rows, share / sum, ends, &jump))
        .collect();
    let over = |of: fn(&NoiseChain) -> f64| chains.iter().map(|chain| chain.share * of(chain)).sum::<f64>();
    let (none, several) = (over(|chain| chain.none), over(|chain| chain.several));
    let noise = over(|chain| chain.noise.scale);
    let log_evidence = log_evidence(none, ends, pairs);
    let steps = chain::steps(&chains, &rows, &weights);
    let fates = chain::fates(&chains, &rows, &weights);
    let levels = fates.iter().map(|fates| chain::level(fates, &grid)).collect();
    let mut counts = vec![0; weights.len() + 1];
    readings.iter().for_each(|reading| counts[reading.place] += 1);
    let order = readings.iter().map(|reading| reading.place).collect();
    let values = readings.iter().map(|reading| reading.value).collect();
    let step_min = prior.step_min;
    Some(Steps {
        none,
        several,
        steps,
        levels,
        noise,
        log_evidence,
        drift,
        order,
        values,
        counts,
        step_min,
        grid,
        chains,
        fates,
    })
}

/// A prior whose weights add up to 1.
struct NormalizedPrior {
    weights: Vec<f64>,
    /// Weights of chains with none, one, two steps.
    ends: [f64; 3],
    /// Sum of the products of two different weights.
    pairs: f64,
}

impl NormalizedPrior {
    fn of(prior: &StepPrior) -> NormalizedPrior {
        let total: f64 = prior.weights.iter().sum();
        let weights: Vec<f64> = prior.weights.iter().map(|weight| weight / total).collect();
        let pairs = (1.0 - weights.iter().map(|weight| weight * weight).sum::<f64>()) / 2.0;
        // Without two places for two steps, their share has no meaning.
        let several = if pairs > f64::EPSILON { prior.several / pairs } else { 0.0 };
        NormalizedPrior { weights, ends: [prior.none, 1.0 - prior.none - prior.several, several], pairs }
    }
}

/// Posterior odds over prior odds.
fn log_evidence(none: f64, ends: [f64; 3], pairs: f64) -> f64 {
    ((1.0 - none).max(f64::MIN_POSITIVE) / none.max(f64::MIN_POSITIVE)).ln()
        - ((ends[1] + ends[2] * pairs) / ends[0]).ln()
}

/// Weighs two posteriors by the probability that the machine drifts: if it does, the position of the step follows from
/// [`walk`] and not from the residuals of one estimate of the drift; if it does not, from the readings as they are
/// (`still`).
fn walking(still: Steps, drifting: Option<Steps>, readings: &[Reading], prior: &StepPrior) -> Steps {
    let NormalizedPrior { weights, ends, pairs } = NormalizedPrior::of(prior);
    let rows = chain::rows(readings, &weights);
    let known = drifting.as_ref().unwrap_or(&still);
    let degrees = known.degrees();
    let seen = known.seen(readings, &rows, degrees);
    let Some(walked) = walk::walked(&seen, degrees, &rows, ends, prior.step_min) else {
        return drifting.unwrap_or(still);
    };
    if walked.share < WALK_SHARE_MIN {
        return still;
    }
    // For two steps the estimate has to suffice, relative to one.
    let (one, several) = ((1.0 - known.none - known.several).max(f64::MIN_POSITIVE), known.several);
    let total = 1.0 + (1.0 - walked.none) * several / one;
    let of_walk = [walked.none / total, (1.0 - walked.none) * several / one / total];
    let mut steps = vec![0.0; weights.len()];
    let mut before = 0.0;
    for (index, row) in rows.iter().enumerate().skip(1) {
        let up_to: f64 = known.fates[row.place][1].iter().sum();
        for step in rows[index - 1].place..row.place {
            let share = if row.one > 0.0 { weights[step] / row.one } else { 0.0 };
            let others = (known.steps[step] - (up_to - before) * share).max(0.0);
            let of_several = if several > 0.0 { others * of_walk[1] / several } else { 0.0 };
            steps[step] = walked.gaps[index - 1] * share / total + of_several;
        }
        before = up_to;
    }
    let mixed = |of_walk: f64, still: f64| walked.share * of_walk + (1.0 - walked.share) * still;
    let (none, several) = (mixed(of_walk[0], still.none), mixed(of_walk[1], still.several));
    let steps = steps.iter().zip(&still.steps).map(|(of_walk, still)| mixed(*of_walk, *still)).collect();
    let log_evidence = log_evidence(none, ends, pairs);
    let mut known = Steps { none, several, steps, log_evidence, ..drifting.unwrap_or(still) };
    known.weigh_fates();
    known
}

impl Steps {
    /// Degrees of freedom of the noise, on average.
    fn degrees(&self) -> f64 {
        self.chains.iter().map(|chain| chain.share * chain.noise.degrees).sum()
    }

    /// The readings as input of the walk.
    fn seen(&self, readings: &[Reading], rows: &[ChainRow], degrees: f64) -> Vec<WalkReading> {
        let row = |place: usize| rows.iter().position(|row| row.place == place).unwrap_or(0);
        let seen = readings.iter().zip(&self.drift).map(|(reading, drift)| {
            let left = (reading.value - drift - self.levels[reading.place].mean) / self.noise;
            let variance = (degrees + left * left) / (degrees + 1.0);
            WalkReading { value: reading.value, variance, row: row(reading.place) }
        });
        seen.collect()
    }

    /// Makes the fates of each place add up to the probabilities of none, one and several steps.
    fn weigh_fates(&mut self) {
        let one = (1.0 - self.none - self.several).max(0.0);
        // The expected number of steps is P(one) + 2 P(several); each place's share of a single step is not known by
        // itself.
        let all = self.steps.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        let mut passed = 0.0;
        for (place, fates) in self.fates.iter_mut().enumerate() {
            if place > 0 {
                passed += self.steps[place - 1] / all;
            }
            let wanted = [self.none, one * passed, one * (1.0 - passed), self.several];
            for (fate, wanted) in fates.iter_mut().zip(wanted) {
                let sum: f64 = fate.iter().sum();
                let factor = if sum > 0.0 { wanted / sum } else { 0.0 };
                fate.iter_mut().for_each(|mass| *mass *= factor);
            }
        }
    }

    /// The size of the step between `place` and the next if there is one: median, and the interval that holds it with
    /// probability `confidence`. `None` where there can be no step.
    pub fn size(&self, place: usize, confidence: f64) -> Option<Estimate> {
        let sizes = chain::sizes(&self.chains, place, &self.grid);
        let total: f64 = sizes.iter().sum();
        if total.is_nan() || total <= 0.0 {
            return None;
        }
        let middle = (sizes.len() / 2) as f64;
        let at = |share: f64| {
            let mut below = 0.0;
            for (index, mass) in sizes.iter().enumerate() {
                // Within a cell the mass is assumed to be uniform.
                if *mass > 0.0 && below + mass >= share * total {
                    let within = (share * total - below) / mass - 0.5;
                    return (index as f64 + within - middle) * self.grid.cell;
                }
                below += mass;
            }
            middle * self.grid.cell
        };
        let tail = (1.0 - confidence) / 2.0;
        Some(Estimate { value: at(0.5), interval: Interval { low: at(tail), high: at(1.0 - tail) } })
    }
}
