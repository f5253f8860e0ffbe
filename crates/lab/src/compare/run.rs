//! The experiment: a pilot that fixes the rate, then pairs in random order, each side freshly started.
//!
//! Half of the pairs begin with A, which half is drawn: a machine that slows down over the run, or whose second start of two
//! is the warmer one, then favours neither. What is designed is not touched once the first pair has begun.

use super::analysis;
use super::side::{self, Fate, generator_cpus};
use crate::display::Progress;
use crate::error::{Error, Result};
use crate::result::compare::{CompareDesign, Crash, Decision, Instructions, Pair, Side};
use crate::result::run::Subject;
use crate::target::{Spec, Upstream, placement};
use std::sync::atomic::{AtomicBool, Ordering};
use stillgate_stats::Random;

/// Of what the slower side can do: below it no queue builds up, above idle the latencies are of some work.
const RATE_SHARE: f64 = 0.4;

/// A rate found by a pilot is rounded to this many digits, so that it reads like one that was chosen.
const RATE_DIGITS: i32 = 2;

/// No lower rate is chosen, for a run needs some requests.
const RATE_MIN: f64 = 10.0;

/// Steps of progress that a pilot takes.
pub(crate) const STEPS_OF_PILOT: usize = 2;

/// Two programs, and what stands behind them.
pub(crate) struct Contest<'a> {
    pub(crate) a: &'a Spec,
    pub(crate) b: &'a Spec,
    pub(crate) upstream: &'a Upstream,
    /// Set where the user wants an end.
    pub(crate) stop: &'a AtomicBool,
}

/// What the pilot found out.
pub(crate) struct Pilot {
    pub(crate) a: Subject,
    pub(crate) b: Subject,
    /// For the open loop.
    pub(crate) rate: f64,
    /// That B ended under it.
    pub(crate) crash: Option<Crash>,
}

/// What came of the pairs.
pub(crate) struct Pairs {
    pub(crate) pairs: Vec<Pair>,
    /// That B ended in the next one.
    pub(crate) crash: Option<Crash>,
}

impl Contest<'_> {
    /// Starts both once. This thread stays on the generator's CPUs from now on: what it does between runs is none of the
    /// programs' business.
    pub(crate) fn pilot(&self, design: &CompareDesign, progress: &mut Progress) -> Result<Pilot> {
        placement::pin(generator_cpus(&design.placement))?;
        progress.step("trying A");
        let (a, rate_a) = match side::pilot(self.a, self.upstream, design)? {
            (subject, Fate::Measured(rate)) => (subject, rate),
            (_, Fate::Ended(_, words)) => return Err(baseline_ended(&words)),
        };
        progress.step("trying B");
        let (b, rate_b, crash) = match side::pilot(self.b, self.upstream, design)? {
            (subject, Fate::Measured(rate)) => (subject, rate, None),
            (subject, Fate::Ended(_, words)) => (subject, rate_a, Some(Crash { pair: None, words })),
        };
        Ok(Pilot { a, b, rate: rounded(rate_a.min(rate_b) * RATE_SHARE), crash })
    }

    /// Runs the pairs, up to one in which B ends; `save` is given all so far after each. `instructions` are there already: a look is at everything.
    pub(crate) fn pairs(
        &self,
        design: &CompareDesign,
        instructions: Option<&Instructions>,
        progress: &mut Progress,
        mut save: impl FnMut(&[Pair]) -> Result,
    ) -> Result<Pairs> {
        let mut pairs = Vec::new();
        for (number, first) in order(design).into_iter().enumerate() {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::new(format!("stopped after {number} of {} pairs", design.pairs)));
            }
            progress.step(&format!("pair {} of {}", number + 1, design.pairs));
            // Both sides are asked the same.
            let seed = design.seed.wrapping_add(number as u64);
            match self.pair(first, design, seed)? {
                Fate::Measured(pair) => pairs.push(pair),
                Fate::Ended(_, words) => {
                    return Ok(Pairs { pairs, crash: Some(Crash { pair: Some(number + 1), words }) });
                }
            }
            save(&pairs)?;
            // Only a worse B ends it early: that nothing is worse can be said of no measure before the last look.
            let early = design.looks.contains(&pairs.len()) && pairs.len() < design.pairs;
            if early && analysis::analyse(design, &pairs, instructions, None)?.decision == Decision::Worse {
                progress.note(&format!("a difference is certain enough after {} pairs", pairs.len()));
                break;
            }
        }
        Ok(Pairs { pairs, crash: None })
    }

    /// That it ended is said of B only: without a baseline there is nothing to compare with.
    fn pair(&self, first: Side, design: &CompareDesign, seed: u64) -> Result<Fate<Pair>> {
        let specs = if first == Side::A { [self.a, self.b] } else { [self.b, self.a] };
        Ok(match (side::measure(specs, self.upstream, design, seed)?, first) {
            (Fate::Measured([a, b]), Side::A) | (Fate::Measured([b, a]), Side::B) => {
                Fate::Measured(Pair { first, a, b })
            }
            (Fate::Ended(place, words), first) if (place == 0) == (first == Side::A) => {
                return Err(baseline_ended(&words));
            }
            (Fate::Ended(place, words), _) => Fate::Ended(place, words),
        })
    }
}

fn baseline_ended(words: &str) -> Error {
    Error::new(format!("the baseline ended under load, so there is nothing to compare with: {words}"))
}

/// Who goes first in each pair: a function of pairs and seed.
pub(crate) fn order(design: &CompareDesign) -> Vec<Side> {
    let mut order: Vec<Side> = (0..design.pairs).map(|pair| if pair % 2 == 0 { Side::A } else { Side::B }).collect();
    Random::new(design.seed).shuffle(&mut order);
    order
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
