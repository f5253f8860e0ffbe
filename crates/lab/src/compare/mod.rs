//! `stillgate-lab compare`: which of two to six programs is slower, with a stated error.
//!
//! [`subject`] turns the arguments into targets, and builds git revisions. They are measured in rounds, each side by
//! [`side`]; [`instructions`] counts separately. [`analysis`] is pure and judges the results, two builds at a time, by the
//! measures of [`measures`], and the rules and the error budget of [`rules`]. [`tables`] shows it in the sentences of
//! [`words`]. [`alone`] measures one program by the same means.
//!
//! The experiment is here: a pilot that fixes the rate, then rounds of all builds in random order, each side freshly
//! started. The design is not changed once the first round has begun. Half of the pairs begin with A: a machine that slows
//! down over the run, or whose second start of two is the warmer one, then favours neither. With more builds each is as
//! often in each place, and comes as often right after each other one, as the number of rounds allows (Williams 1949).
//! The assignment of orders to rounds is random.

pub(crate) mod alone;
pub(crate) mod analysis;
#[cfg(test)]
mod false_alarms;
pub(crate) mod instructions;
pub(crate) mod measures;
pub(crate) mod rules;
pub(crate) mod side;
pub(crate) mod subject;
pub(crate) mod tables;
pub(crate) mod words;

use crate::display::Progress;
use crate::error::{EXIT_INTERRUPTED, Error, Result};
use crate::result::compare::{CompareDesign, Crash, Instructions, Pair, Side};
use crate::result::run::Subject;
use crate::target::{Spec, Upstream};
use side::{RoundOutcome, generator_cpus};
use std::sync::atomic::{AtomicBool, Ordering};
use stillgate_rig::cpus;
use stillgate_stats::Random;

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
        for (number, order) in round_orders(design).into_iter().enumerate() {
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

/// The order of each round: a function of builds, rounds and seed.
pub(crate) fn round_orders(design: &CompareDesign) -> Vec<Vec<Side>> {
    let rows = williams(design.builds.clamp(2, Side::ALL.len()));
    let mut orders: Vec<Vec<Side>> = (0..design.pairs).map(|round| rows[round % rows.len()].clone()).collect();
    Random::new(design.seed).shuffle(&mut orders);
    orders
}

/// A square in which each row and column has each build once, and no two rows have the same two neighbours in sequence;
/// for an odd number of builds, two squares.
fn williams(builds: usize) -> Vec<Vec<Side>> {
    // 0, 1, n-1, 2, n-2, …: all steps between neighbours differ.
    let step = |place: usize| if place.is_multiple_of(2) { (builds - place / 2) % builds } else { place.div_ceil(2) };
    let row = |shift: usize| (0..builds).map(|place| Side::ALL[(step(place) + shift) % builds]).collect::<Vec<_>>();
    let square: Vec<Vec<Side>> = (0..builds).map(row).collect();
    if builds.is_multiple_of(2) {
        return square;
    }
    let reversed = square.iter().map(|row| row.iter().rev().copied().collect()).collect::<Vec<_>>();
    [square, reversed].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::false_alarms;

    #[test]
    fn a_rate_is_rounded_to_two_digits() {
        for (rate, expected) in [(12_345.0, 12_000.0), (999.0, 1000.0), (87.4, 87.0), (3.0, 10.0), (0.0, 10.0)] {
            assert_eq!(rounded(rate), expected, "{rate}");
        }
    }

    fn orders_of(builds: usize, rounds: usize) -> Vec<Vec<Side>> {
        round_orders(&CompareDesign { builds, ..false_alarms::design(rounds, &[]) })
    }

    #[test]
    fn each_build_has_each_place_and_each_neighbour_equally_often() {
        for builds in 2..=Side::ALL.len() {
            // A whole number of squares.
            let rounds = 2 * builds;
            let orders = orders_of(builds, rounds);
            for &one in &Side::ALL[..builds] {
                for place in 0..builds {
                    let there = orders.iter().filter(|order| order[place] == one).count();
                    assert_eq!(there, 2, "{builds} builds, {one:?} in place {place}");
                }
                for &other in Side::ALL[..builds].iter().filter(|other| **other != one) {
                    let follows = |order: &&Vec<Side>| order.windows(2).any(|two| two == [one, other]);
                    assert_eq!(orders.iter().filter(follows).count(), 2, "{builds} builds, {other:?} after {one:?}");
                }
            }
        }
    }

    #[test]
    fn places_differ_by_one_at_most_where_rounds_do_not_divide() {
        for builds in 2..=Side::ALL.len() {
            let orders = orders_of(builds, 16);
            let firsts = |side: Side| orders.iter().filter(|order| order[0] == side).count();
            let counts: Vec<usize> = Side::ALL[..builds].iter().map(|side| firsts(*side)).collect();
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(most - least <= 1, "{builds} builds: {counts:?}");
        }
    }
}
