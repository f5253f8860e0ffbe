//! Summarises the tries so far: readings, commits that cannot be measured, costs, and so the commit to measure next.

use crate::result::bisect::{BisectResult, Try, TryOutcome};
use stillgate_stats::{Reading, StepPrior, Steps, next_place, steps};

/// A commit whose measurement fails this often in a row cannot be measured.
pub(crate) const FAILURES_MAX: usize = 3;

/// Assumed cost of a build or a measurement before the first one, in seconds.
const SECONDS_UNKNOWN: f64 = 1.0;

/// Smallest assumed cost of a measurement: starting a process.
const SECONDS_MIN: f64 = 1e-3;

/// Probability that the neighbour of an unmeasurable commit has the same fault; it halves with each commit further
/// away.
const FAULT_SHARED: f64 = 0.5;

/// The state after the tries so far.
pub(crate) struct BisectState {
    /// In order, as logarithms.
    pub(crate) readings: Vec<Reading>,
    /// Whether each commit can be measured, as far as is known.
    pub(crate) measurable: Vec<bool>,
    /// `None` before both ends were measured.
    pub(crate) steps: Option<Steps>,
    measure_s: f64,
    build_s: f64,
}

impl BisectState {
    pub(crate) fn of(result: &BisectResult) -> BisectState {
        let tries = &result.tries;
        let readings: Vec<Reading> = tries
            .iter()
            .filter_map(|tried| match tried.outcome {
                TryOutcome::Measured { value, .. } => Some(Reading { place: tried.place, value: value.ln() }),
                _ => None,
            })
            .collect();
        let measurable: Vec<bool> = (0..result.commits.len()).map(|place| is_measurable(tries, place)).collect();
        let steps = steps(&readings, &prior(result));
        let mean = |of: fn(&TryOutcome) -> bool| {
            let seconds: Vec<f64> =
                tries.iter().filter(|tried| of(&tried.outcome)).map(|tried| tried.seconds).collect();
            match seconds.len() {
                0 => SECONDS_UNKNOWN,
                count => (seconds.iter().sum::<f64>() / count as f64).max(SECONDS_MIN),
            }
        };
        let measure_s = mean(|outcome| matches!(outcome, TryOutcome::Measured { .. }));
        let build_s = mean(|outcome| matches!(outcome, TryOutcome::Built | TryOutcome::NotBuilt { .. }));
        BisectState { readings, measurable, steps, measure_s, build_s }
    }

    /// The commit to measure next; `None` if an end cannot be measured. `is_built` marks the commits that need no
    /// build.
    pub(crate) fn next(&self, is_built: impl Fn(usize) -> bool) -> Option<usize> {
        let last = self.measurable.len() - 1;
        if !self.measurable[0] || !self.measurable[last] {
            return None;
        }
        let read: Vec<usize> = self.readings.iter().map(|reading| reading.place).collect();
        next_place(&read, self.steps.as_ref(), last, |place| {
            let build_s = if is_built(place) { 0.0 } else { self.build_s };
            self.measurable[place].then(|| (self.measure_s + build_s) / self.likely_measurable(place, &read))
        })
    }

    /// Expected time of the next measurement of a commit, built or not.
    pub(crate) fn seconds(&self, is_built: bool) -> f64 {
        self.measure_s + if is_built { 0.0 } else { self.build_s }
    }

    /// Whether a commit can be distinguished from its neighbours: it was measured, or can be.
    pub(crate) fn readable(&self) -> Vec<bool> {
        let read = |place: usize| self.readings.iter().any(|reading| reading.place == place);
        self.measurable.iter().enumerate().map(|(place, measurable)| *measurable || read(place)).collect()
    }

    fn likely_measurable(&self, place: usize, read: &[usize]) -> f64 {
        let faulty = (0..self.measurable.len()).filter(|other| !self.measurable[*other]);
        match faulty.map(|other| other.abs_diff(place)).min() {
            Some(distance) if !read.contains(&place) => 1.0 - FAULT_SHARED.powi(distance as i32),
            _ => 1.0,
        }
    }
}

/// The belief before the first measurement.
fn prior(result: &BisectResult) -> StepPrior {
    StepPrior {
        weights: result.commits.iter().skip(1).map(|commit| commit.weight).collect(),
        step_min: result.design.min_effect.ln_1p(),
        none: result.design.prior_none,
        several: result.design.prior_several,
    }
}

fn is_measurable(tries: &[Try], place: usize) -> bool {
    let mut failures = 0;
    for tried in tries.iter().filter(|tried| tried.place == place) {
        match tried.outcome {
            TryOutcome::NotBuilt { .. } | TryOutcome::Skipped { .. } => return false,
            TryOutcome::Failed { .. } => failures += 1,
            TryOutcome::Measured { .. } => failures = 0,
            TryOutcome::Built => {}
        }
        if failures >= FAILURES_MAX {
            return false;
        }
    }
    true
}
