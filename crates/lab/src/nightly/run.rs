//! The measurements of a night: rounds over all series, in each the commits in random order.
//!
//! Rounds and not one series after the other, so that an hour in which the machine was slow is in all of them; in turn, so
//! that it is in all commits alike. Both looks have fixed sizes.

use super::analysis::next_look;
use super::suite::{Measured, Suite};
use crate::bisect::checkouts::{Built, Checkouts};
use crate::bisect::command::Place;
use crate::bisect::run::{Tried, measure_once};
use crate::compare::alone::RawReading;
use crate::display::Progress;
use crate::error::{Error, Result};
use crate::git::short;
use crate::store::raw::Staging;
use crate::store::{Beside, Later, Line};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stillgate_stats::Random;

/// Pairs of each look.
pub(crate) const PAIRS_FIRST: usize = 10;
pub(crate) const PAIRS_SECOND: usize = 25;
pub(crate) const PAIRS_THIRD: usize = 100;

/// A series whose measurement fails so often in a night is left out of it.
const FAILURES_MAX: usize = 3;

/// A figure that was printed and read again may differ by less.
const PRINTED_DIFFERENCE_MAX: f64 = 1e-9;

/// A commit that is measured.
pub(crate) struct Side {
    /// `today`, `yesterday` or `release`.
    pub(crate) role: &'static str,
    pub(crate) commit: String,
    pub(crate) place: Place,
}

/// What a night needs besides its suite.
pub(crate) struct Night<'a> {
    /// Today's first.
    pub(crate) sides: &'a [Side],
    pub(crate) limit: Duration,
    pub(crate) machine: &'a str,
    pub(crate) at: &'a str,
    /// Where measurements leave their raw data.
    pub(crate) staging: &'a Staging,
    pub(crate) stop: &'a AtomicBool,
}

/// One series under way: of each side, its measurements.
struct Taken<'a> {
    series: &'a Measured,
    values: Vec<Vec<f64>>,
    raw: Vec<Vec<Option<String>>>,
    failures: usize,
    why: Option<String>,
}

/// Builds a commit of the night.
pub(crate) fn side(role: &'static str, commit: String, checkouts: &Checkouts, stop: &AtomicBool) -> Result<Side> {
    match checkouts.build(&commit, stop)? {
        Built::There { place, .. } => Ok(Side { role, commit, place }),
        Built::Failed(why) => Err(Error::new(format!("{role} ({}): {why}", short(&commit)))),
        Built::Stopped => Err(Error::new("interrupted").exit(crate::stop::EXIT_INTERRUPTED)),
    }
}

impl Night<'_> {
    /// A line for each series, and what could not be measured.
    pub(crate) fn measure(&self, suite: &Suite, random: &mut Random) -> Result<(Vec<Line>, Vec<String>)> {
        let begin = |series| Taken {
            series,
            values: vec![Vec::new(); self.sides.len()],
            raw: vec![Vec::new(); self.sides.len()],
            failures: 0,
            why: None,
        };
        let mut all: Vec<Taken<'_>> = suite.series.iter().map(begin).collect();
        let mut progress = Progress::new("first look", PAIRS_FIRST as u64);
        self.rounds(&mut all.iter_mut().collect::<Vec<_>>(), PAIRS_FIRST, random, &mut progress)?;
        progress.finish();
        let comparisons = all.iter().filter(|taken| taken.why.is_none()).count() * (self.sides.len() - 1);
        for (name, pairs) in [("second look", PAIRS_SECOND), ("third look", PAIRS_THIRD)] {
            let asks = |taken: &&mut Taken<'_>| {
                let values = &taken.values;
                let mut sides = values[1..].iter().map(|beside| next_look(beside, &values[0], comparisons));
                taken.why.is_none() && sides.any(|next| next == Some(pairs))
            };
            let mut again: Vec<&mut Taken<'_>> = all.iter_mut().filter(asks).collect();
            if !again.is_empty() {
                let mut progress = Progress::new(name, pairs as u64);
                self.rounds(&mut again, pairs, random, &mut progress)?;
                progress.finish();
            }
        }
        let failed = all.iter().filter_map(|taken| Some(format!("{}: {}", taken.series.name, taken.why.as_ref()?)));
        let failed = failed.collect();
        let measured = all.into_iter().filter(|taken| taken.why.is_none());
        Ok((measured.map(|taken| self.line(taken, suite, comparisons)).collect(), failed))
    }

    fn rounds(
        &self,
        series: &mut [&mut Taken<'_>],
        rounds: usize,
        random: &mut Random,
        progress: &mut Progress,
    ) -> Result {
        for _ in 0..rounds {
            progress.step(&format!("{} series", series.len()));
            for taken in series.iter_mut() {
                let mut order: Vec<usize> = (0..self.sides.len()).collect();
                random.shuffle(&mut order);
                for side in order {
                    self.once(taken, side)?;
                }
            }
        }
        Ok(())
    }

    /// One measurement, again where it fails.
    fn once(&self, taken: &mut Taken<'_>, side: usize) -> Result {
        while taken.why.is_none() {
            if self.stop.load(Ordering::Relaxed) {
                return Err(
                    Error::new("interrupted; nothing of this night is kept").exit(crate::stop::EXIT_INTERRUPTED)
                );
            }
            self.staging.clear()?;
            match measure_once(&taken.series.measure, &self.sides[side].place, self.limit, self.stop)? {
                Tried::Value(value) => {
                    taken.values[side].push(value);
                    taken.raw[side].push(self.raw(value)?);
                    break;
                }
                Tried::Stopped => {}
                Tried::Skipped(why) => taken.why = Some(why),
                Tried::Failed(why) => {
                    taken.failures += 1;
                    if taken.failures >= FAILURES_MAX {
                        taken.why = Some(why);
                    }
                }
            }
        }
        Ok(())
    }

    /// What the measurement left; but nothing of this program's from which another figure follows, as if a command
    /// prints the sum of two.
    fn raw(&self, value: f64) -> Result<Option<String>> {
        let is_value = |figure: f64| (figure / value - 1.0).abs() <= PRINTED_DIFFERENCE_MAX;
        let gives_another =
            |bytes: &[u8]| RawReading::parse(bytes).is_some_and(|reading| !reading.figure().is_ok_and(is_value));
        self.staging.take(gives_another)
    }

    fn line(&self, taken: Taken<'_>, suite: &Suite, comparisons: usize) -> Line {
        let raw = taken.raw.into_iter().map(|raw| if raw.iter().any(Option::is_some) { raw } else { Vec::new() });
        let mut sides = self.sides.iter().zip(taken.values).zip(raw);
        let ((today, values), raw) = sides.next().expect("a night has today's commit");
        let mut line = Line::new(&taken.series.name, self.machine, self.at.to_owned(), &today.commit, values);
        line.raw = raw;
        line.first_look = PAIRS_FIRST;
        line.later = Some(Later { second_look: PAIRS_SECOND, comparisons });
        line.measure = Some(taken.series.measure.clone());
        line.build = suite.build.clone();
        line.margin = Some(taken.series.margin);
        line.higher_is_better = taken.series.higher_is_better;
        line.beside = sides
            .map(|((side, values), raw)| Beside {
                role: side.role.to_owned(),
                commit: side.commit.clone(),
                values,
                raw,
            })
            .collect();
        line
    }
}
