//! At which place of a row the level of noisy readings steps, if it does: the arithmetic of a bisection over commits.
//!
//! The levels of the places are a hidden chain: none, one or two steps anywhere between the first place and the last. Its
//! posterior is summed exactly over a grid of levels and a grid of noise models ([`chain`], [`grid`]), so nothing is
//! taken for normal that is not, and a probability may be looked at as often as one likes. What drifts with time is
//! taken out before ([`drift`]). [`choice`] says where the next reading tells most, and when to stop.

mod chain;
mod choice;
mod drift;
mod grid;

pub use choice::{Conclusion, choose, conclude, next_place};

use crate::estimate::{Estimate, Interval};
use chain::{Chain, Fates};
use grid::Grid;

/// How often levels and drift are estimated in turn, each from what the other leaves.
const DRIFT_ROUNDS_MAX: usize = 4;

/// One measurement: of which place, and the value. Steps are differences of values, so ratios need logarithms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// 0 is the first place.
    pub place: usize,
    /// Finite.
    pub value: f64,
}

/// What is believed before the first reading.
#[derive(Debug, Clone, PartialEq)]
pub struct StepPrior {
    /// How likely a step between each place and the next is, relative to the others; one less than there are places.
    pub weights: Vec<f64>,
    /// No smaller step counts as one; above 0.
    pub step_min: f64,
    /// Probability that there is no step, in (0, 1).
    pub none: f64,
    /// Probability that there are several, in (0, 1); one step has the rest.
    pub several: f64,
}

/// Mean and variance of what is believed about a place's level.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Level {
    /// In the unit of the values.
    pub mean: f64,
    /// In its square.
    pub variance: f64,
}

/// What is believed after some readings.
#[derive(Debug, Clone)]
pub struct Steps {
    /// Probability that there is no step.
    pub none: f64,
    /// Probability of two steps.
    pub several: f64,
    /// Probability of a step between each place and the next, whether or not there is another; adds up to the expected
    /// number of steps.
    pub steps: Vec<f64>,
    /// Of each place.
    pub levels: Vec<Level>,
    /// The scale of one reading's noise: its standard deviation, were it not for outliers.
    pub noise: f64,
    /// How much better some step explains the readings than none does, as a logarithm. Where there is no step this ever
    /// exceeds ln(1 / a) with a probability of at most a, however often one looks (Ville's inequality).
    pub log_evidence: f64,
    /// What was taken out of each reading as drift.
    pub drift: Vec<f64>,
    /// Readings of each place.
    counts: Vec<usize>,
    grid: Grid,
    chains: Vec<Chain>,
    /// Of each place.
    fates: Vec<Fates>,
}

/// The posterior after `readings`, in the order they were taken.
///
/// Noise is Student's t with 3 or 11 degrees of freedom and a scale that is not known; a step's size is at least
/// `step_min` more, with two exponential tails, one of some per cent and one of tens (values are taken for logarithms).
/// `None` unless the first and the last place have readings, all values are finite, there are at least three, and the
/// prior is one.
pub fn steps(readings: &[Reading], prior: &StepPrior) -> Option<Steps> {
    let places = prior.weights.len() + 1;
    let read = |place: usize| readings.iter().any(|reading| reading.place == place);
    let sound = readings.iter().all(|reading| reading.value.is_finite() && reading.place < places);
    if readings.len() < 3 || !sound || !is_prior(prior) || !read(0) || !read(places - 1) {
        return None;
    }
    let mut posterior = without_drift(readings, vec![0.0; readings.len()], prior)?;
    for _ in 0..DRIFT_ROUNDS_MAX {
        let left: Vec<f64> =
            readings.iter().map(|reading| reading.value - posterior.levels[reading.place].mean).collect();
        let Some(drift) = drift::smoothed(&left, &posterior.drift, posterior.noise) else { break };
        let moved = drift.iter().zip(&posterior.drift).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        posterior = without_drift(readings, drift, prior)?;
        if moved < posterior.noise * drift::SETTLED_NOISES {
            break;
        }
    }
    Some(posterior)
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

/// The posterior where levels and noise are those of a grid.
fn on_grid(readings: &[Reading], drift: Vec<f64>, prior: &StepPrior, grid: Grid) -> Option<Steps> {
    let total: f64 = prior.weights.iter().sum();
    let weights: Vec<f64> = prior.weights.iter().map(|weight| weight / total).collect();
    let pairs = (1.0 - weights.iter().map(|weight| weight * weight).sum::<f64>()) / 2.0;
    // Without two places for two steps their share is no share of anything.
    let several = if pairs > f64::EPSILON { prior.several / pairs } else { 0.0 };
    let ends = [prior.none, 1.0 - prior.none - prior.several, several];
    let rows = chain::rows(readings, &weights);
    let mut chains: Vec<Chain> =
        grid.noises.iter().map(|noise| Chain::of(&rows, *noise, ends, prior.step_min, &grid)).collect();
    let best = chains.iter().map(|chain| chain.log_evidence).fold(f64::NEG_INFINITY, f64::max);
    if !best.is_finite() {
        return None;
    }
    let sum: f64 = chains.iter().map(|chain| (chain.log_evidence - best).exp()).sum();
    for chain in &mut chains {
        chain.share = (chain.log_evidence - best).exp() / sum;
    }
    let over = |of: fn(&Chain) -> f64| chains.iter().map(|chain| chain.share * of(chain)).sum::<f64>();
    let (none, several) = (over(|chain| chain.none), over(|chain| chain.several));
    let noise = over(|chain| chain.noise.scale);
    // Posterior odds over prior odds.
    let log_evidence = ((1.0 - none).max(f64::MIN_POSITIVE) / none.max(f64::MIN_POSITIVE)).ln()
        - ((ends[1] + several_share(ends, pairs)) / ends[0]).ln();
    let steps = chain::steps(&chains, &rows, &weights);
    let fates = chain::fates(&chains, &rows, &weights);
    let levels = fates.iter().map(|fates| chain::level(fates, &grid)).collect();
    let mut counts = vec![0; weights.len() + 1];
    readings.iter().for_each(|reading| counts[reading.place] += 1);
    Some(Steps { none, several, steps, levels, noise, log_evidence, drift, counts, grid, chains, fates })
}

fn several_share(ends: [f64; 3], pairs: f64) -> f64 {
    ends[2] * pairs
}

impl Steps {
    /// How large the step between `place` and the next is if there is one: median and the interval that holds it with
    /// probability `confidence`. `None` where there can be none.
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
                // Within a cell the mass is taken to be even.
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

#[cfg(test)]
mod tests;
