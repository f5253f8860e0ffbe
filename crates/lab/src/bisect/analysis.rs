//! The answer that follows from the measurements: a pure function of design, commits and tries.

use super::words;
use crate::result::bisect::{Answer, BisectResult, BisectVerdict, FoundChange, RelativeChange, Try, TryOutcome};
use stillgate_stats::{Conclusion, Estimate, Reading, StepPrior, Steps, conclude, next_place, steps};

/// The answer from the measurements so far.
pub(crate) fn answer(result: &BisectResult) -> Answer {
    answer_of(result, &BisectState::of(result))
}

/// As [`answer`], with the tries already summarised.
pub(crate) fn answer_of(result: &BisectResult, known: &BisectState) -> Answer {
    let last = result.commits.len() - 1;
    let name = |place: usize| result.commits[place].commit.clone();
    let mut answer = Answer {
        measurements: known.readings.len(),
        unbuildable: (0..=last).filter(|place| !known.measurable[*place]).map(name).collect(),
        ..Answer::unknown(&result.design)
    };
    if !known.measurable[0] || !known.measurable[last] {
        answer.verdict = BisectVerdict::Void;
    }
    if let Some(steps) = &known.steps {
        let effect = |place: usize| steps.size(place, result.design.confidence).map(relative);
        answer.posterior = steps.steps.iter().enumerate().map(|(before, p)| (name(before + 1), *p)).collect();
        (answer.none, answer.several, answer.noise) = (steps.none, steps.several, steps.noise.exp_m1());
        let likeliest = (0..last).max_by(|a, b| steps.steps[*a].total_cmp(&steps.steps[*b]));
        answer.effect = likeliest.and_then(effect);
        if answer.verdict != BisectVerdict::Void {
            match conclude(steps, &known.readable(), result.design.confidence) {
                Conclusion::Open => {}
                Conclusion::None => answer.verdict = BisectVerdict::None,
                Conclusion::Found(found) => {
                    answer.verdict = BisectVerdict::Found;
                    answer.changes = found
                        .iter()
                        .map(|&(from, to)| FoundChange {
                            commits: (from + 1..=to).map(name).collect(),
                            probability: steps.steps[from..to].iter().sum::<f64>().min(1.0),
                            effect: effect(from),
                        })
                        .collect();
                    answer.effect = answer.changes[0].effect;
                    answer.culprit = match answer.changes[0].commits.as_slice() {
                        [only] => Some(only.clone()),
                        _ => None,
                    };
                }
            }
        }
    }
    let is_hidden = known.steps.as_ref().is_some_and(Steps::may_hide_a_change);
    answer.sentence = words::sentence(result, &answer, is_hidden);
    answer
}

/// Converts logarithms to relative changes.
fn relative(estimate: Estimate) -> RelativeChange {
    RelativeChange {
        value: estimate.value.exp_m1(),
        low: estimate.interval.low.exp_m1(),
        high: estimate.interval.high.exp_m1(),
    }
}

// Summarises the tries so far: readings, commits that cannot be measured, costs, and so the commit to measure next.

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
