//! The experiment: a pilot that fixes the rate, then rounds of all builds in random order, each side freshly started.
//!
//! The design is not changed once the first round has begun.

use super::side::{self, RoundOutcome, generator_cpus};
use super::{analysis, rounds};
use crate::display::Progress;
use crate::error::{Error, Result};
use crate::result::compare::{CompareDesign, Crash, Instructions, Pair, Side};
use crate::result::run::Subject;
use crate::stop::EXIT_INTERRUPTED;
use crate::target::{Spec, Upstream};
use std::sync::atomic::{AtomicBool, Ordering};
use stillgate_rig::cpus;

/// Share of the slower side's maximum: below it no queue builds up, and it is far enough above idle for latencies to
/// include work.
const RATE_SHARE: f64 = 0.4;

/// A rate from a pilot is rounded to this many digits, so that it reads like a chosen one.
const RATE_DIGITS: i32 = 2;

/// The lowest rate, because a run needs some requests.
const RATE_MIN: f64 = 10.0;

/// The programs, and the upstream behind them.
pub(crate) struct Contest<'a> {
    /// The baseline first.
    pub(crate) builds: Vec<&'a Spec>,
    pub(crate) upstream: &'a Upstream,
    /// Set when the user interrupts.
    pub(crate) stop: &'a AtomicBool,
}

/// The result of the pilot.
pub(crate) struct Pilot {
    pub(crate) subjects: Vec<Subject>,
    /// For the open loop.
    pub(crate) rate: f64,
    /// Set if a program other than the baseline ended in it.
    pub(crate) crash: Option<Crash>,
}

/// The results of the pairs.
pub(crate) struct Pairs {
    pub(crate) pairs: Vec<Pair>,
    /// Set if a program other than the baseline ended in the next pair.
    pub(crate) crash: Option<Crash>,
}

impl Contest<'_> {
    /// Starts each once. This thread stays on the generator's CPUs from now on: its work between runs must not disturb
    /// the programs.
    pub(crate) fn pilot(&self, design: &CompareDesign, progress: &mut Progress) -> Result<Pilot> {
        cpus::pin(generator_cpus(&design.placement))?;
        let (mut subjects, mut slowest, mut crash) = (Vec::new(), f64::INFINITY, None);
        for (side, spec) in Side::ALL.into_iter().zip(&self.builds) {
            progress.step(&format!("trying {side:?}"));
            let (subject, fate) = side::pilot(spec, self.upstream, design)?;
            subjects.push(subject);
            match fate {
                RoundOutcome::Measured(rate) => slowest = slowest.min(rate),
                RoundOutcome::Ended(_, words) if side == Side::A => return Err(baseline_ended(&words)),
                RoundOutcome::Ended(_, words) => crash = crash.or(Some(Crash { side, pair: None, words })),
            }
        }
        Ok(Pilot { subjects, rate: rounded(slowest * RATE_SHARE), crash })
    }

    /// Runs the rounds, up to one in which a build ends; `save` is called with all results so far after each.
    /// `instructions` are already complete: a look includes everything.
    pub(crate) fn pairs(
        &self,
        design: &CompareDesign,
        instructions: Option<&Instructions>,
        progress: &mut Progress,
        mut save: impl FnMut(&[Pair]) -> Result,
    ) -> Result<Pairs> {
        let unit = if design.builds > 2 { "round" } else { "pair" };
        let mut pairs = Vec::new();
        for (number, order) in rounds::orders(design).into_iter().enumerate() {
            if self.stop.load(Ordering::Relaxed) {
                let said = format!("interrupted after {number} of {} {unit}s", design.pairs);
                return Err(Error::new(said).exit(EXIT_INTERRUPTED));
            }
            progress.step(&format!("{unit} {} of {}", number + 1, design.pairs));
            // All sides get the same requests.
            let seed = design.seed.wrapping_add(number as u64);
            match self.round(order, design, seed)? {
                Ok(pair) => pairs.push(pair),
                Err((side, words)) => {
                    return Ok(Pairs { pairs, crash: Some(Crash { side, pair: Some(number + 1), words }) });
                }
            }
            save(&pairs)?;
            let early = design.looks.contains(&pairs.len()) && pairs.len() < design.pairs;
            if early && analysis::is_certain(&analysis::analyse(design, &pairs, instructions, None)?) {
                progress.note(&format!("a difference is certain enough after {} {unit}s", pairs.len()));
                break;
            }
        }
        Ok(Pairs { pairs, crash: None })
    }

    /// The results of a round, or the program that ended, and how. If the baseline ends it is an error, because nothing
    /// is left to compare with.
    fn round(
        &self,
        order: Vec<Side>,
        design: &CompareDesign,
        seed: u64,
    ) -> Result<std::result::Result<Pair, (Side, String)>> {
        let specs: Vec<&Spec> = order.iter().map(|side| self.builds[*side as usize]).collect();
        let records = match side::measure(&specs, self.upstream, design, seed)? {
            RoundOutcome::Ended(place, words) if order[place] == Side::A => return Err(baseline_ended(&words)),
            RoundOutcome::Ended(place, words) => return Ok(Err((order[place], words))),
            RoundOutcome::Measured(records) => records,
        };
        let first = order[0];
        let mut named: Vec<_> = order.iter().map(|side| *side as usize).zip(records).collect();
        named.sort_by_key(|(side, _)| *side);
        let mut records = named.into_iter().map(|(_, record)| record);
        let (Some(a), Some(b)) = (records.next(), records.next()) else {
            unreachable!("there are at least two builds")
        };
        let others = records.collect();
        // With two, it follows from who went first.
        let order = if self.builds.len() > 2 { order } else { Vec::new() };
        Ok(Ok(Pair { first, order, a, b, others }))
    }
}

fn baseline_ended(words: &str) -> Error {
    Error::new(format!("the baseline ended under load, so there is nothing to compare with: {words}"))
}

fn rounded(rate: f64) -> f64 {
    if rate <= RATE_MIN {
        return RATE_MIN;
    }
    let unit = 10f64.powi(rate.log10().floor() as i32 + 1 - RATE_DIGITS);
    (rate / unit).round() * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_rounded_to_two_digits() {
        for (rate, expected) in [(12_345.0, 12_000.0), (999.0, 1000.0), (87.4, 87.0), (3.0, 10.0), (0.0, 10.0)] {
            assert_eq!(rounded(rate), expected, "{rate}");
        }
    }
}
