//! The answer that follows from the measurements: a pure function of design, commits and tries; and the same
//! answer as text.

use crate::git::short;
use crate::result::bisect::{
    Answer, BisectDesign, BisectResult, BisectVerdict, FoundChange, MergeOrder, RelativeChange, Try, TryOutcome,
};
use std::fmt::Write as _;
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
    answer.sentence = sentence(result, &answer, is_hidden);
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

/// How many commits of a range, and of those that cannot be measured, are named.
const NAMED_MAX: usize = 12;

/// How many commits are named if the result is undecided.
const LIKELY_MAX: usize = 5;

/// One sentence: which commit changed it, and by how much. `is_hidden`: a change could be among measurements far from
/// the others.
pub(super) fn sentence(result: &BisectResult, answer: &Answer, is_hidden: bool) -> String {
    let design = &result.design;
    let wanted = percent(design.min_effect);
    match answer.verdict {
        BisectVerdict::Found => {
            let changes: Vec<String> = answer.changes.iter().map(|change| found(result, change)).collect();
            format!("{}.", changes.join("; and "))
        }
        BisectVerdict::None => format!(
            "Nothing between {} and {} changed it by {wanted} or more (probability {}).",
            design.good,
            design.bad,
            probability(answer.none)
        ),
        BisectVerdict::Void => {
            let place =
                if answer.unbuildable.contains(&result.commits[0].commit) { 0 } else { result.commits.len() - 1 };
            let end = if place == 0 { &design.good } else { &design.bad };
            format!("{end} cannot be measured: {}", reason(result, place))
        }
        BisectVerdict::Undecided if answer.none >= design.confidence && is_hidden => format!(
            "Not decided after {} measurements: their usual level has not changed by {wanted} or more (probability {}), but some \
             are far from it, and a commit that makes these more frequent would not be seen.",
            answer.measurements,
            probability(answer.none)
        ),
        BisectVerdict::Undecided => format!(
            "Not decided after {} measurements: no change of {wanted} or more with probability {}, several with {}.",
            answer.measurements,
            probability(answer.none),
            probability(answer.several)
        ),
    }
}

/// The sentence with its details.
pub(crate) fn report(result: &BisectResult) -> String {
    let answer = &result.answer;
    let mut out = format!("{}\n", answer.sentence);
    // Writing to a `String` does not fail.
    let _ = writeln!(
        out,
        "{} measurements of {} {}; a single one scatters by {}, without outliers. {}",
        answer.measurements,
        result.commits.len(),
        result.design.items(),
        percent(answer.noise),
        line(result)
    );
    if answer.verdict == BisectVerdict::Undecided {
        let mut likely: Vec<(&String, &f64)> = answer.posterior.iter().collect();
        likely.sort_by(|a, b| b.1.total_cmp(a.1));
        for (commit, p) in likely.iter().take(LIKELY_MAX) {
            let _ = writeln!(out, "  {} {}  {}", short(commit), probability(**p), subject(result, commit));
        }
    }
    if answer.changes.len() < 2 && answer.several > 0.5 {
        let _ = writeln!(out, "There is more than one change (probability {}).", probability(answer.several));
    }
    if !answer.unbuildable.is_empty() {
        let _ = writeln!(out, "Could not be measured: {}", list_commits(&answer.unbuildable));
    }
    for change in &answer.changes {
        if let [only] = change.commits.as_slice()
            && result.commits.iter().any(|commit| commit.commit == *only && commit.is_merge)
        {
            let only = short(only);
            let _ = writeln!(out, "{only} is a merge; look into it with --good {only}^1 --bad {only}^2");
        }
    }
    out
}

/// The first of them, and the number of the rest.
fn list_commits(commits: &[String]) -> String {
    let names: Vec<&str> = commits.iter().take(NAMED_MAX).map(|commit| short(commit)).collect();
    let more = commits.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", names.join(", "))
}

fn found(result: &BisectResult, change: &FoundChange) -> String {
    let by = change.effect.map_or(String::new(), |effect| format!(" by {}", with_interval(&result.design, effect)));
    let p = probability(change.probability);
    match change.commits.as_slice() {
        [only] => format!("{} changed it{by} (probability {p}): {}", short(only), subject(result, only)),
        several => {
            let names = list_commits(several);
            format!(
                "One of {names} changed it{by} (probability {p}); which one is open, as some of them cannot be measured"
            )
        }
    }
}

fn with_interval(design: &BisectDesign, effect: RelativeChange) -> String {
    let is_worse = (effect.value < 0.0) == design.higher_is_better;
    let word = if is_worse { "worse" } else { "better" };
    format!("{} ({} to {}; {word})", signed(effect.value), signed(effect.low), signed(effect.high))
}

/// The reason why a commit cannot be measured.
fn reason(result: &BisectResult, place: usize) -> String {
    let of_place = result.tries.iter().rev().filter(|tried| tried.place == place);
    let why = of_place.filter_map(|tried| match &tried.outcome {
        TryOutcome::NotBuilt { why } | TryOutcome::Skipped { why } | TryOutcome::Failed { why } => Some(why.clone()),
        TryOutcome::Built | TryOutcome::Measured { .. } => None,
    });
    why.take(1).next().unwrap_or_else(|| "no reason is recorded".to_owned())
}

fn line(result: &BisectResult) -> String {
    let merges = result.commits.iter().filter(|commit| commit.is_merge).count();
    match (result.design.line, merges) {
        _ if result.design.versions.is_some() => String::new(),
        (_, 0) => "None of these commits is a merge.".to_owned(),
        (MergeOrder::FirstParent, _) => format!("Along first parents: each of {merges} merges is one step."),
        (MergeOrder::Linear, _) => format!("All commits in a row, with {merges} merges among them."),
    }
}

fn subject<'a>(result: &'a BisectResult, commit: &str) -> &'a str {
    result.commits.iter().find(|record| record.commit == commit).map_or("", |record| &record.subject)
}

/// Never rounded up to certainty.
pub(crate) fn probability(p: f64) -> String {
    match p {
        p if p > 0.999 => "over 99.9%".to_owned(),
        p if p < 0.001 => "below 0.1%".to_owned(),
        p => format!("{:.1}%", p * 100.0),
    }
}

fn percent(share: f64) -> String {
    format!("{:.2}%", share * 100.0)
}

fn signed(share: f64) -> String {
    format!("{:+.2}%", share * 100.0)
}
