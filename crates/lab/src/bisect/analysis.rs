//! The answer that follows from the measurements: a pure function of design, commits and tries.

use super::record::BisectState;
use super::words;
use crate::result::bisect::{Answer, BisectResult, BisectVerdict, FoundChange, RelativeChange};
use stillgate_stats::{Conclusion, Estimate, Steps, conclude};

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
