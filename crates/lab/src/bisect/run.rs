//! The loop: measure the commit that is the most informative, update the belief, repeat until enough is known.
//!
//! After each try the whole record is saved, so an interruption costs one measurement at most.

use super::analysis::answer_of;
use super::checkouts::Built;
use super::command::{self, Done, Manner, Place, last_lines};
use super::display::Display;
use super::number::{self, Printed};
use super::record::Known;
use super::source::Source;
use crate::error::Result;
use crate::git::short;
use crate::result::bisect::{BisectResult, BisectVerdict, Ended, Outcome, Try};
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
            let known = Known::of(result);
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
                Built::Stopped => continue,
                Built::Failed(why) => {
                    display.note(&format!("{named}: {why}"));
                    result.tries.push(tried(place, begun, Outcome::NotBuilt { why }));
                    continue;
                }
                Built::There { place: ready, reused } => {
                    if !reused {
                        result.tries.push(tried(place, begun, Outcome::Built));
                    }
                    ready
                }
            };
            display.doing(&format!("measuring {named} ({} so far)", known.readings.len()), result);
            let begun = Instant::now();
            let Some(outcome) = self.measure(result, &ready)? else { continue };
            match &outcome {
                Outcome::Measured { value, unit } => {
                    let unit = unit.as_ref().map_or_else(String::new, |unit| format!(" {unit}"));
                    display.measured(&format!("{} {named}: {value}{unit}", known.readings.len() + 1));
                }
                Outcome::Failed { why } | Outcome::Skipped { why } => display.note(&format!("{named}: {why}")),
                Outcome::Built | Outcome::NotBuilt { .. } => {}
            }
            result.tries.push(tried(place, begun, outcome));
        }
    }

    fn end(&self, result: &BisectResult, known: &Known, is_built: bool) -> Option<Ended> {
        match result.answer.verdict {
            BisectVerdict::Void => return Some(Ended::Void),
            BisectVerdict::Found | BisectVerdict::None => return Some(Ended::Decided),
            BisectVerdict::Undecided => {}
        }
        if self.stop.load(Ordering::Relaxed) {
            return Some(Ended::Interrupted);
        }
        let spent: f64 = result.tries.iter().map(|tried| tried.seconds).sum();
        let is_over = spent + known.seconds(is_built) > self.budget.as_secs_f64();
        // A bisection that has not begun has no answer, however small its budget.
        let has_begun = !result.tries.is_empty();
        (has_begun && is_over || result.tries.len() >= self.measurements_max).then_some(Ended::Budget)
    }

    /// `None` when the user interrupts.
    fn measure(&self, result: &BisectResult, place: &Place) -> Result<Option<Outcome>> {
        let tried = measure_once(&result.design.measure, place, self.measure_limit, self.stop)?;
        Ok(match in_unit(tried, &mut unit_before(result)) {
            Tried::Value(Printed { value, unit }) => Some(Outcome::Measured { value, unit }),
            Tried::Failed(why) => Some(Outcome::Failed { why }),
            Tried::Skipped(why) => Some(Outcome::Skipped { why }),
            Tried::Stopped => None,
        })
    }
}

/// The unit of the measurements so far; `None` before the first.
fn unit_before(result: &BisectResult) -> Option<Option<String>> {
    result.tries.iter().find_map(|tried| match &tried.outcome {
        Outcome::Measured { unit, .. } => Some(unit.clone()),
        _ => None,
    })
}

/// The result of one measurement.
pub(crate) enum Tried {
    Value(Printed),
    /// It failed, maybe by chance.
    Failed(String),
    /// The commit cannot be measured.
    Skipped(String),
    /// The user interrupted it.
    Stopped,
}

/// Runs a command that measures a commit or a version.
pub(crate) fn measure_once(words: &str, place: &Place, limit: Duration, stop: &AtomicBool) -> Result<Tried> {
    Ok(match command::run(words, &Manner { place, limit, stop })? {
        Done::Stopped => Tried::Stopped,
        Done::TimedOut => Tried::Failed(format!("its measurement took longer than {limit:?}")),
        Done::Ended { status, stdout, .. } if status.success() => match number::last(&stdout) {
            Ok(printed) => Tried::Value(printed),
            Err(why) => Tried::Failed(format!("its output is not a measurement: {why}")),
        },
        Done::Ended { status, stderr, .. } if status.code() == Some(EXIT_SKIP) => Tried::Skipped(format!(
            "its measurement reports that it cannot be measured (exit code 125) {}",
            last_lines(&stderr)
        )),
        Done::Ended { status, stderr, .. } => {
            Tried::Failed(format!("its measurement failed ({status}) {}", last_lines(&stderr)))
        }
    })
}

/// A measurement in another unit than the earlier ones is a failed one; `unit` is theirs, `None` before the first.
pub(crate) fn in_unit(tried: Tried, unit: &mut Option<Option<String>>) -> Tried {
    let Tried::Value(printed) = tried else { return tried };
    let before = unit.get_or_insert_with(|| printed.unit.clone());
    match printed.differs(before.as_deref()) {
        Some(why) => Tried::Failed(why),
        None => Tried::Value(printed),
    }
}

fn tried(place: usize, begun: Instant, outcome: Outcome) -> Try {
    let seconds = begun.elapsed().as_secs_f64();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    Try { place, begun_unix_s: now - seconds, seconds, outcome }
}
