//! The loop: measure the commit that is the most informative, update the belief, repeat until enough is known.
//!
//! After each try the whole record is saved, so an interruption costs one measurement at most.

use super::analysis::answer_of;
use super::checkouts::BuildOutcome;
use super::command::{self, CommandContext, CommandOptions, CommandOutcome, last_lines};
use super::display::Display;
use super::number::{self, PrintedNumber};
use super::record::BisectState;
use super::source::Source;
use crate::error::Result;
use crate::git::short;
use crate::result::bisect::{BisectEnd, BisectResult, BisectVerdict, Try, TryOutcome};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// With this exit code a measurement reports that a commit cannot be measured, as with `git bisect run`.
const EXIT_SKIP: i32 = 125;

/// What a bisection needs besides its record.
pub(crate) struct Bisection<'a> {
    pub(crate) source: &'a Source,
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
                display.doing(&format!("building {named}"), result);
            }
            let begun = Instant::now();
            let built = self.source.build(record, self.stop)?;
            let ready = match built {
                BuildOutcome::Stopped => continue,
                BuildOutcome::Failed(why) => {
                    display.note(&format!("{named}: {why}"));
                    result.tries.push(tried(place, begun, TryOutcome::NotBuilt { why }));
                    continue;
                }
                BuildOutcome::There { place: ready, reused } => {
                    if !reused {
                        result.tries.push(tried(place, begun, TryOutcome::Built));
                    }
                    ready
                }
            };
            display.doing(&format!("measuring {named} ({} so far)", known.readings.len()), result);
            let begun = Instant::now();
            let Some(outcome) = self.measure(result, &ready)? else { continue };
            match &outcome {
                TryOutcome::Measured { value, unit } => {
                    let unit = unit.as_ref().map_or_else(String::new, |unit| format!(" {unit}"));
                    display.measured(&format!("{} {named}: {value}{unit}", known.readings.len() + 1));
                }
                TryOutcome::Failed { why } | TryOutcome::Skipped { why } => display.note(&format!("{named}: {why}")),
                TryOutcome::Built | TryOutcome::NotBuilt { .. } => {}
            }
            result.tries.push(tried(place, begun, outcome));
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
    Ok(match command::run(words, &CommandOptions { place, limit, stop })? {
        CommandOutcome::Stopped => MeasureOutcome::Stopped,
        CommandOutcome::TimedOut => MeasureOutcome::Failed(format!("its measurement took longer than {limit:?}")),
        CommandOutcome::Ended { status, stdout, .. } if status.success() => match number::last(&stdout) {
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

fn tried(place: usize, begun: Instant, outcome: TryOutcome) -> Try {
    let seconds = begun.elapsed().as_secs_f64();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    Try { place, begun_unix_s: now - seconds, seconds, outcome }
}
