//! `stillgate-lab bisect`: which commit changed a measurement.
//!
//! [`candidates`] puts a history or a list of artefacts in a row; [`checkouts`] builds commits in worktrees.
//! [`measurement`] runs what measures them, for the number that it prints. [`analysis`] gives the answer, and puts it
//! into a sentence. It is pure, so `verify` can recompute everything.
//!
//! The loop is here: measure the commit that is the most informative, update the belief, repeat until enough is known. After
//! each try the whole record is saved, so an interruption costs one measurement at most.

pub(crate) mod analysis;
pub(crate) mod candidates;
pub(crate) mod checkouts;
pub(crate) mod measurement;

use crate::display::rough;
use crate::error::Result;
use crate::git::short;
use crate::result::bisect::{BisectEnd, BisectResult, BisectVerdict, Try, TryOutcome};
use analysis::{BisectState, answer_of, probability};
use checkouts::{BuildOutcome, CheckoutSource};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use measurement::{CommandContext, CommandOptions, CommandOutcome, PrintedNumber, last_lines};
use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// With this exit code a measurement reports that a commit cannot be measured, as with `git bisect run`.
const EXIT_SKIP: i32 = 125;

/// What a bisection needs besides its record.
pub(crate) struct Bisection<'a> {
    pub(crate) source: &'a CheckoutSource,
    pub(crate) measure_limit: Duration,
    pub(crate) budget: Duration,
    pub(crate) measurements_max: usize,
    /// Set when the user interrupts.
    pub(crate) stop: &'a AtomicBool,
}

impl Bisection<'_> {
    /// Continues until it ends. `save` stores the record.
    pub(crate) fn run(
        &self,
        result: &mut BisectResult,
        mut save: impl FnMut(&BisectResult) -> Result,
        display: &Display,
    ) -> Result {
        result.ended = None;
        loop {
            let known = BisectState::of(result);
            result.answer = answer_of(result, &known);
            let is_built = |place: usize| self.source.is_built(&result.commits[place]);
            let next = known.next(is_built);
            result.ended = self.end(result, &known, next.is_some_and(is_built));
            save(result)?;
            let (None, Some(place)) = (result.ended, next) else { return Ok(()) };
            let record = &result.commits[place];
            let named = format!("{} {}", short(&record.commit), record.subject);
            if !is_built(place) {
                display.report_activity(&format!("building {named}"), result);
            }
            let begun = Instant::now();
            let built = self.source.build(record, self.stop)?;
            let ready = match built {
                BuildOutcome::Stopped => continue,
                BuildOutcome::Failed(why) => {
                    display.note(&format!("{named}: {why}"));
                    result.tries.push(finished_try(place, begun, TryOutcome::NotBuilt { why }));
                    continue;
                }
                BuildOutcome::There { place: ready, reused } => {
                    if !reused {
                        result.tries.push(finished_try(place, begun, TryOutcome::Built));
                    }
                    ready
                }
            };
            display.report_activity(&format!("measuring {named} ({} so far)", known.readings.len()), result);
            let begun = Instant::now();
            let Some(outcome) = self.measure(result, &ready)? else { continue };
            match &outcome {
                TryOutcome::Measured { value, unit } => {
                    let unit = unit.as_ref().map_or_else(String::new, |unit| format!(" {unit}"));
                    display.report_measured(&format!("{} {named}: {value}{unit}", known.readings.len() + 1));
                }
                TryOutcome::Failed { why } | TryOutcome::Skipped { why } => display.note(&format!("{named}: {why}")),
                TryOutcome::Built | TryOutcome::NotBuilt { .. } => {}
            }
            result.tries.push(finished_try(place, begun, outcome));
        }
    }

    fn end(&self, result: &BisectResult, known: &BisectState, is_built: bool) -> Option<BisectEnd> {
        match result.answer.verdict {
            BisectVerdict::Void => return Some(BisectEnd::Void),
            BisectVerdict::Found | BisectVerdict::None => return Some(BisectEnd::Decided),
            BisectVerdict::Undecided => {}
        }
        if self.stop.load(Ordering::Relaxed) {
            return Some(BisectEnd::Interrupted);
        }
        let spent: f64 = result.tries.iter().map(|tried| tried.seconds).sum();
        let is_over = spent + known.seconds(is_built) > self.budget.as_secs_f64();
        // A bisection that has not begun has no answer, however small its budget.
        let has_begun = !result.tries.is_empty();
        (has_begun && is_over || result.tries.len() >= self.measurements_max).then_some(BisectEnd::Budget)
    }

    /// `None` when the user interrupts.
    fn measure(&self, result: &BisectResult, place: &CommandContext) -> Result<Option<TryOutcome>> {
        let tried = measure_once(&result.design.measure, place, self.measure_limit, self.stop)?;
        Ok(match in_unit(tried, &mut unit_before(result)) {
            MeasureOutcome::Value(PrintedNumber { value, unit }) => Some(TryOutcome::Measured { value, unit }),
            MeasureOutcome::Failed(why) => Some(TryOutcome::Failed { why }),
            MeasureOutcome::Skipped(why) => Some(TryOutcome::Skipped { why }),
            MeasureOutcome::Stopped => None,
        })
    }
}

/// The unit of the measurements so far; `None` before the first.
fn unit_before(result: &BisectResult) -> Option<Option<String>> {
    result.tries.iter().find_map(|tried| match &tried.outcome {
        TryOutcome::Measured { unit, .. } => Some(unit.clone()),
        _ => None,
    })
}

/// The result of one measurement.
pub(crate) enum MeasureOutcome {
    Value(PrintedNumber),
    /// It failed, maybe by chance.
    Failed(String),
    /// The commit cannot be measured.
    Skipped(String),
    /// The user interrupted it.
    Stopped,
}

/// Runs a command that measures a commit or a version.
pub(crate) fn measure_once(
    words: &str,
    place: &CommandContext,
    limit: Duration,
    stop: &AtomicBool,
) -> Result<MeasureOutcome> {
    Ok(match measurement::run_command(words, &CommandOptions { place, limit, stop })? {
        CommandOutcome::Stopped => MeasureOutcome::Stopped,
        CommandOutcome::TimedOut => MeasureOutcome::Failed(format!("its measurement took longer than {limit:?}")),
        CommandOutcome::Ended { status, stdout, .. } if status.success() => match measurement::last_number(&stdout) {
            Ok(printed) => MeasureOutcome::Value(printed),
            Err(why) => MeasureOutcome::Failed(format!("its output is not a measurement: {why}")),
        },
        CommandOutcome::Ended { status, stderr, .. } if status.code() == Some(EXIT_SKIP) => MeasureOutcome::Skipped(
            format!("its measurement reports that it cannot be measured (exit code 125) {}", last_lines(&stderr)),
        ),
        CommandOutcome::Ended { status, stderr, .. } => {
            MeasureOutcome::Failed(format!("its measurement failed ({status}) {}", last_lines(&stderr)))
        }
    })
}

/// A measurement in another unit than the earlier ones is a failed one; `unit` is theirs, `None` before the first.
pub(crate) fn in_unit(tried: MeasureOutcome, unit: &mut Option<Option<String>>) -> MeasureOutcome {
    let MeasureOutcome::Value(printed) = tried else { return tried };
    let before = unit.get_or_insert_with(|| printed.unit.clone());
    match printed.differs(before.as_deref()) {
        Some(why) => MeasureOutcome::Failed(why),
        None => MeasureOutcome::Value(printed),
    }
}

fn finished_try(place: usize, begun: Instant, outcome: TryOutcome) -> Try {
    let seconds = begun.elapsed().as_secs_f64();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    Try { place, begun_unix_s: now - seconds, seconds, outcome }
}

// The state of a running bisection: bars on a terminal, otherwise a line per measurement.

/// Number of commits with a bar.
const BARS_MAX: usize = 8;

/// Characters of a full bar.
const BAR_WIDTH: usize = 30;

/// From this many measurements on, the remaining number is shown, if it is small enough to be credible.
const MEASUREMENTS_TOLD_MIN: usize = 12;
const NEEDED_SHOWN_MAX: f64 = 2000.0;

/// How often the elapsed time is redrawn.
const TICK: Duration = Duration::from_millis(250);

/// The display of a running bisection.
pub(crate) struct Display {
    /// `None` if standard error is not a terminal.
    bar: Option<ProgressBar>,
}

impl Display {
    pub(crate) fn new() -> Display {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.set_style(ProgressStyle::with_template("{msg}\n({elapsed} elapsed)").expect("a constant template"));
            bar.enable_steady_tick(TICK);
            bar
        });
        Display { bar }
    }

    /// Shows the current activity and the current belief.
    fn report_activity(&self, what: &str, result: &BisectResult) {
        if let Some(bar) = &self.bar {
            let answer = &result.answer;
            let beliefs: Vec<f64> = answer.posterior.values().copied().chain([answer.none, answer.several]).collect();
            let seconds = result.tries.iter().map(|tried| tried.seconds).sum();
            let left = estimate_remaining(&beliefs, answer.measurements, seconds, result.design.confidence);
            let left = left.map(|left| format!("; {left}")).unwrap_or_default();
            bar.set_message(format!("{}{what}{left}", bars(result)));
        }
    }

    /// Prints a line that stays.
    pub(crate) fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => eprintln!("{text}"),
        }
    }

    /// Prints a measurement if bars are not shown.
    pub(crate) fn report_measured(&self, text: &str) {
        if self.bar.is_none() {
            eprintln!("{text}");
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// How many more measurements are needed, and how long they take, if each is as informative as those so far: from the
/// progress of the posterior's entropy between its first value and that of an answer. `None` while there is too little
/// to extrapolate.
fn estimate_remaining(beliefs: &[f64], measurements: usize, seconds: f64, confidence: f64) -> Option<String> {
    let entropy = |p: f64| if p > 0.0 { -p * p.ln() } else { 0.0 };
    let now: f64 = beliefs.iter().map(|p| entropy(*p)).sum();
    let first = (beliefs.len().max(2) as f64).ln();
    let (said, measured) = (first - now, measurements as f64);
    if measurements < MEASUREMENTS_TOLD_MIN || said <= 0.0 {
        return None;
    }
    let doubt = 1.0 - confidence;
    let wanted = entropy(confidence) + entropy(doubt) + doubt * first;
    let needed = ((now - wanted).max(0.0) / said * measured).ceil().max(1.0);
    if needed > NEEDED_SHOWN_MAX {
        return None;
    }
    Some(format!("about {needed} more, {}", rough(seconds / measured * needed)))
}

/// The likeliest commits in their order, and the probability of no change.
fn bars(result: &BisectResult) -> String {
    let answer = &result.answer;
    let of = |commit: &str| answer.posterior.get(commit).copied().unwrap_or(0.0);
    let mut places: Vec<usize> = (1..result.commits.len()).collect();
    places.sort_by(|a, b| of(&result.commits[*b].commit).total_cmp(&of(&result.commits[*a].commit)));
    places.truncate(BARS_MAX);
    places.sort_unstable();
    let mut out = String::new();
    let mut line = |name: &str, p: f64, more: &str| {
        let filled = (p.clamp(0.0, 1.0) * BAR_WIDTH as f64).round() as usize;
        let bar = format!("{}{}", "█".repeat(filled), "·".repeat(BAR_WIDTH - filled));
        // Writing to a `String` does not fail.
        let _ = writeln!(out, "{name:<12} {bar} {:>10}  {more}", probability(p));
    };
    if !answer.posterior.is_empty() {
        for record in places.iter().map(|place| &result.commits[*place]) {
            line(short(&record.commit), of(&record.commit), &record.subject);
        }
        line("no change", answer.none, "");
        line("several", answer.several, "");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_follows_from_what_was_learned() {
        let check = |sure: f64, measurements: usize, expected: Option<&str>| {
            let mut beliefs = vec![(1.0 - sure) / 63.0; 63];
            beliefs.push(sure);
            let said = estimate_remaining(&beliefs, measurements, 2.0 * measurements as f64, 0.95);
            assert_eq!(said.as_deref(), expected, "{sure} {measurements}");
        };
        check(0.5, 6, None);
        // All are as likely as at the start.
        check(1.0 / 64.0, 20, None);
        check(0.95, 20, Some("about 1 more, 2 s"));
        // A third of the way is done: 1.4 of 4.2, and 0.4 may remain.
        check(0.5, 40, Some("about 68 more, 2 min"));
    }
}
