//! `stillgate-lab nightly`: today's commit measured in alternation with yesterday's and the release's, series by
//! series.
//!
//! [`suite`] defines the series, and [`counts`] counts each commit. [`analysis`] is pure and judges a night from its lines
//! in the store, beside those of other nights, and formats the report.
//!
//! The measurements are here: rounds over all series, in each the commits in random order. Rounds, not one series after the
//! other, spread an hour in which the machine was slow over all series; alternation spreads it over all commits. Both
//! looks have fixed sizes.

pub(crate) mod analysis;
pub(crate) mod counts;
pub(crate) mod suite;

use crate::bisect::checkouts::{BuildOutcome, Checkouts};
use crate::bisect::measurement::CommandContext;
use crate::bisect::{MeasureOutcome, in_unit, measure_once};
use crate::compare::alone::RawReading;
use crate::display::Progress;
use crate::error::{Error, Result};
use crate::git::short;
use crate::store::raw::StagedData;
use crate::store::{EarlyEnd, LaterLooks, PairedCommit, StoreLine};
use analysis::next_look;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use stillgate_stats::Random;
use suite::{SeriesSpec, Suite};

/// Pairs of each look.
pub(crate) const PAIRS_FIRST: usize = 10;
pub(crate) const PAIRS_SECOND: usize = 25;
pub(crate) const PAIRS_THIRD: usize = 100;

/// A series whose measurement fails this often in a night is left out.
const FAILURES_MAX: usize = 3;

/// Relative difference allowed between a figure and its printed form.
const PRINTED_DIFFERENCE_MAX: f64 = 1e-9;

/// A commit under measurement.
pub(crate) struct Side {
    /// `today`, `yesterday` or `release`.
    pub(crate) role: &'static str,
    pub(crate) commit: String,
    pub(crate) place: CommandContext,
}

/// The inputs of a night besides its suite.
pub(crate) struct Night<'a> {
    /// Today's first.
    pub(crate) sides: &'a [Side],
    pub(crate) limit: Duration,
    /// No look begins that would not end by then; the first one always begins.
    pub(crate) end: Option<Instant>,
    pub(crate) machine: &'a str,
    pub(crate) at: &'a str,
    /// Folder for the raw data of measurements.
    pub(crate) staging: &'a StagedData,
    pub(crate) stop: &'a AtomicBool,
}

/// One series under way: the measurements of each side.
struct SeriesRun<'a> {
    series: &'a SeriesSpec,
    values: Vec<Vec<f64>>,
    raw: Vec<Vec<Option<String>>>,
    /// Unit of all of them; `None` before the first.
    unit: Option<Option<String>>,
    failures: usize,
    why: Option<String>,
    cut_short: Option<EarlyEnd>,
    /// Duration of all its measurements.
    seconds: f64,
}

/// The results of a night.
pub(crate) struct NightOutcome {
    /// One for each series that was measured.
    pub(crate) lines: Vec<StoreLine>,
    /// Messages about what could not be measured.
    pub(crate) failed: Vec<String>,
    /// The user pressed Ctrl-C.
    pub(crate) is_interrupted: bool,
}

/// Builds a commit of the night, or returns why it cannot be built.
pub(crate) fn side(
    role: &'static str,
    commit: String,
    checkouts: &Checkouts,
    stop: &AtomicBool,
) -> Result<Result<Side, String>> {
    match checkouts.build(&commit, stop)? {
        BuildOutcome::There { place, .. } => Ok(Ok(Side { role, commit, place })),
        BuildOutcome::Failed(why) => Ok(Err(format!("{role} ({}): {why}", short(&commit)))),
        BuildOutcome::Stopped => Err(Error::new("interrupted").exit(crate::error::EXIT_INTERRUPTED)),
    }
}

impl Night<'_> {
    /// All looks, or those for which there is time.
    pub(crate) fn measure(&self, suite: &Suite, random: &mut Random) -> Result<NightOutcome> {
        let begin = |series| SeriesRun {
            series,
            values: vec![Vec::new(); self.sides.len()],
            raw: vec![Vec::new(); self.sides.len()],
            unit: None,
            failures: 0,
            why: None,
            cut_short: None,
            seconds: 0.0,
        };
        let mut all: Vec<SeriesRun<'_>> = suite.series.iter().map(begin).collect();
        let mut is_whole = self.look("first look", &mut all.iter_mut().collect::<Vec<_>>(), PAIRS_FIRST, random)?;
        let comparisons = all.iter().filter(|taken| taken.why.is_none()).count() * (self.sides.len() - 1);
        for (name, pairs) in [("second look", PAIRS_SECOND), ("third look", PAIRS_THIRD)] {
            let asks = |taken: &&mut SeriesRun<'_>| {
                let values = &taken.values;
                let mut sides = values[1..].iter().map(|beside| next_look(beside, &values[0], comparisons));
                taken.why.is_none() && sides.any(|next| next == Some(pairs))
            };
            if is_whole {
                let again = all.iter_mut().filter(asks).collect();
                is_whole = self.look(name, &mut self.in_time(again, pairs), pairs, random)?;
            }
        }
        let failed = all.iter().filter_map(|taken| Some(format!("{}: {}", taken.series.name, taken.why.as_ref()?)));
        let failed = failed.collect();
        let measured = all.into_iter().filter(|taken| taken.why.is_none() && !taken.values[0].is_empty());
        let lines = measured.map(|taken| self.line(taken, suite, comparisons)).collect();
        Ok(NightOutcome { lines, failed, is_interrupted: !is_whole })
    }

    /// The series whose look ends in time, one after the other; the others are marked.
    fn in_time<'t, 's>(&self, asking: Vec<&'t mut SeriesRun<'s>>, pairs: usize) -> Vec<&'t mut SeriesRun<'s>> {
        let Some(end) = self.end else { return asking };
        let mut left = end.saturating_duration_since(Instant::now()).as_secs_f64();
        let mut fitting = Vec::new();
        for taken in asking {
            let needed = taken.seconds * pairs as f64 / taken.values[0].len().max(1) as f64;
            if needed <= left {
                left -= needed;
                fitting.push(taken);
            } else {
                taken.cut_short = Some(EarlyEnd::Budget);
            }
        }
        fitting
    }

    /// This many rounds over some series; false if the user interrupts. A first look then keeps its whole rounds, a
    /// later one nothing.
    fn look(&self, name: &str, series: &mut [&mut SeriesRun<'_>], rounds: usize, random: &mut Random) -> Result<bool> {
        if series.is_empty() {
            return Ok(true);
        }
        let before: Vec<usize> = series.iter().map(|taken| taken.values[0].len()).collect();
        let mut progress = Progress::new(name, rounds as u64);
        for _ in 0..rounds {
            progress.step(&format!("{} series", series.len()));
            for index in 0..series.len() {
                let mut order: Vec<usize> = (0..self.sides.len()).collect();
                random.shuffle(&mut order);
                for side in order {
                    if !self.once(series[index], side)? {
                        series.iter_mut().zip(&before).for_each(|(taken, before)| taken.cut(*before));
                        return Ok(false);
                    }
                }
            }
        }
        progress.finish();
        Ok(true)
    }

    /// One measurement, with a retry; false if the user interrupts.
    fn once(&self, taken: &mut SeriesRun<'_>, side: usize) -> Result<bool> {
        while taken.why.is_none() {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            self.staging.clear()?;
            let begun = Instant::now();
            let tried = measure_once(&taken.series.measure, &self.sides[side].place, self.limit, self.stop)?;
            taken.seconds += begun.elapsed().as_secs_f64();
            match in_unit(tried, &mut taken.unit) {
                MeasureOutcome::Value(printed) => {
                    taken.values[side].push(printed.value);
                    taken.raw[side].push(self.raw(printed.value)?);
                    break;
                }
                MeasureOutcome::Stopped => {}
                MeasureOutcome::Skipped(why) => taken.why = Some(why),
                MeasureOutcome::Failed(why) => {
                    taken.failures += 1;
                    if taken.failures >= FAILURES_MAX {
                        taken.why = Some(why);
                    }
                }
            }
        }
        Ok(true)
    }

    /// The raw data of the measurement; none if the printed figure does not follow from this program's own, as when a
    /// command prints the sum of two.
    fn raw(&self, value: f64) -> Result<Option<String>> {
        let is_value = |figure: f64| (figure / value - 1.0).abs() <= PRINTED_DIFFERENCE_MAX;
        let gives_another =
            |bytes: &[u8]| RawReading::parse(bytes).is_some_and(|reading| !reading.figure().is_ok_and(is_value));
        self.staging.take(gives_another)
    }

    fn line(&self, taken: SeriesRun<'_>, suite: &Suite, comparisons: usize) -> StoreLine {
        let raw = taken.raw.into_iter().map(|raw| if raw.iter().any(Option::is_some) { raw } else { Vec::new() });
        let mut sides = self.sides.iter().zip(taken.values).zip(raw);
        let ((today, values), raw) = sides.next().expect("a night has today's commit");
        let mut line = StoreLine::new(&taken.series.name, self.machine, self.at.to_owned(), &today.commit, values);
        line.raw = raw;
        line.unit = taken.unit.flatten();
        line.first_look = PAIRS_FIRST.min(line.values.len());
        line.cut_short = taken.cut_short;
        line.later = Some(LaterLooks { second_look: PAIRS_SECOND, comparisons });
        line.measure = Some(taken.series.measure.clone());
        line.build = suite.build.clone();
        line.margin = Some(taken.series.margin);
        line.higher_is_better = taken.series.higher_is_better;
        line.beside = sides
            .map(|((side, values), raw)| PairedCommit {
                role: side.role.to_owned(),
                commit: side.commit.clone(),
                values,
                raw,
            })
            .collect();
        line
    }
}

impl SeriesRun<'_> {
    /// Restores the state before an interrupted look; a first look keeps its whole rounds.
    fn cut(&mut self, before: usize) {
        let whole = self.values.iter().map(Vec::len).min().unwrap_or(0);
        let kept = if before == 0 { whole } else { before };
        self.values.iter_mut().for_each(|values| values.truncate(kept));
        self.raw.iter_mut().for_each(|raw| raw.truncate(kept));
        self.cut_short = Some(EarlyEnd::Interrupted);
    }
}
