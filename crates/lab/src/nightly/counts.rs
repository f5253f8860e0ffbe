//! Counts of each commit since the last night, for example instructions: without scatter no pairs are needed, so every
//! commit can be counted.
//!
//! In a long row, evenly spread commits come first; then, between two whose counts differ, the one in the middle, until
//! the commit that changed them is found. Then both sides of each change are counted again: a count that has two states
//! differs between two commits by chance, and then their ranges overlap. Each commit's counts are stored at once.

use super::suite::{EachCommit, SeriesSpec};
use crate::bisect::candidates::row_of_commits;
use crate::bisect::checkouts::{BuildOutcome, Checkouts};
use crate::bisect::measurement::CommandContext;
use crate::bisect::{MeasureOutcome, in_unit, measure_once};
use crate::display::Progress;
use crate::error::{Error, Result};
use crate::git::{self, git, short};
use crate::history::count_change;
use crate::result::bisect::{CommitRecord, MergeOrder};
use crate::store::{self, StoreLine};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Times that each count is taken on the first commit of a night; a value that varies is not a count.
const CHECKS: usize = 2;

/// Times that each count is taken on both sides of a change. A count with two equally frequent states looks changed between two
/// commits in half of all cases, and still does after these in one of 128.
const CHECKS_OF_CHANGE: usize = 4;

/// Failures are retried once.
const TRIES: usize = 2;

/// Commits of a store that are tried as the last night's, the newest first; others were on branches that no longer
/// exist.
const ANCESTORS_TRIED: usize = 20;

/// Commits in a row, including both ends.
pub(crate) struct Row {
    commits: Vec<CommitRecord>,
    /// Place of the first.
    place: u64,
}

/// For each series the counts of a commit; `None` if it could not be counted.
type Counts = Vec<Option<Vec<f64>>>;

/// For each series the unit of its counts; `None` if it is not known yet.
type Units = Vec<Option<Option<String>>>;

/// A row while it is counted.
struct CountedRow {
    /// For each commit; `None` before it was counted.
    seen: Vec<Option<Counts>>,
    /// For each series, whether its counts differ on the same commit.
    scattering: Vec<bool>,
    units: Units,
    /// Messages about what could not be counted.
    failed: Vec<String>,
}

/// The inputs of a night's counts besides their suite.
pub(crate) struct Sweep<'a> {
    pub(crate) top: &'a Path,
    pub(crate) checkouts: &'a Checkouts,
    pub(crate) machine: &'a str,
    pub(crate) at: &'a str,
    pub(crate) limit: Duration,
    /// Maximum of commits in the first pass; as many may follow between those that differ.
    pub(crate) commits_max: usize,
    pub(crate) min_effect: f64,
    pub(crate) stop: &'a AtomicBool,
}

/// The row from `since`, or from the newest counted commit, to `today`.
pub(crate) fn row_of_night(
    top: &Path,
    since: Option<&str>,
    today: &str,
    lines: &[StoreLine],
    machine: &str,
) -> Result<Row> {
    let last = match since {
        Some(since) => git::commit(top, since)?,
        None => last_counted(top, today, lines, machine)?.unwrap_or_else(|| today.to_owned()),
    };
    let commits = match last == today {
        true => {
            let subject = git(top, &["log", "-1", "--format=%s", today])?.map_err(Error::new)?;
            vec![CommitRecord { commit: last.clone(), subject, weight: 1.0, is_merge: false, artefact: None }]
        }
        false => {
            row_of_commits(top, &last, today, MergeOrder::FirstParent, &[]).map_err(|error| error.context("--since"))?
        }
    };
    let place = git(top, &["rev-list", "--count", "--first-parent", &last])?.map_err(Error::new)?;
    let place = place.trim().parse().map_err(|_| Error::new(format!("git counts {place:?} commits")))?;
    Ok(Row { commits, place })
}

fn last_counted(top: &Path, today: &str, lines: &[StoreLine], machine: &str) -> Result<Option<String>> {
    let mut by_place: BTreeMap<u64, &str> = BTreeMap::new();
    for line in lines.iter().filter(|line| line.machine == machine) {
        by_place.extend(line.counted.iter().map(|counted| (counted.place, line.commit.as_str())));
    }
    for commit in by_place.into_values().rev().take(ANCESTORS_TRIED) {
        if git(top, &["merge-base", "--is-ancestor", commit, today])?.is_ok() {
            return Ok(Some(commit.to_owned()));
        }
    }
    Ok(None)
}

impl Row {
    /// The commits' names.
    pub(crate) fn commits(&self) -> impl Iterator<Item = &str> {
        self.commits.iter().map(|record| record.commit.as_str())
    }
}

impl Sweep<'_> {
    /// Counts the commits that are not in `lines` yet, and passes each new line to `keep`. Returns messages about what
    /// could not be counted.
    pub(crate) fn run(
        &self,
        each: &EachCommit,
        row: &Row,
        lines: &[StoreLine],
        mut keep: impl FnMut(&[StoreLine]) -> Result,
    ) -> Result<Vec<String>> {
        let mut counted = CountedRow {
            seen: row.commits.iter().map(|record| self.known(each, &record.commit, lines)).collect(),
            scattering: vec![false; each.series.len()],
            units: each.series.iter().map(|series| self.unit_before(each, series, lines)).collect(),
            failed: Vec::new(),
        };
        let planned = spread(row.commits.len(), self.commits_max);
        let missing = planned.iter().filter(|index| counted.seen[**index].is_none()).count();
        let mut progress = Progress::new("counts", missing as u64);
        for done in 0..2 * self.commits_max {
            let Some(index) = next(&counted.seen, &planned, self.min_effect) else { break };
            if done >= missing {
                progress.add_step();
            }
            let record = &row.commits[index];
            progress.step(&format!("{} {}", short(&record.commit), record.subject));
            let lines = match self.same(each, row, &counted.seen, index)? {
                Some(same) => {
                    counted.seen[index] = counted.seen[same].clone();
                    let same = Some(row.commits[same].commit.as_str());
                    self.lines(each, row, index, &counted, same)?
                }
                None => {
                    let times = vec![if done == 0 { CHECKS } else { 1 }; each.series.len()];
                    self.count_commit(each, row, (index, &times), &mut counted, &progress)?;
                    self.lines(each, row, index, &counted, None)?
                }
            };
            keep(&lines)?;
        }
        for index in 0..counted.seen.len() {
            let times = missing_checks(&counted.seen, index, self.min_effect);
            if times.iter().any(|times| *times > 0) {
                let record = &row.commits[index];
                progress.add_step();
                progress.step(&format!("{} {}, again", short(&record.commit), record.subject));
                self.count_commit(each, row, (index, &times), &mut counted, &progress)?;
                keep(&self.lines(each, row, index, &counted, None)?)?;
            }
        }
        progress.finish();
        Ok(counted.failed)
    }

    /// Counts each series of a commit this many times more. If that fails, it remains as it was, or is `None`.
    fn count_commit(
        &self,
        each: &EachCommit,
        row: &Row,
        (index, times): (usize, &[usize]),
        counted: &mut CountedRow,
        progress: &Progress,
    ) -> Result {
        let commit = &row.commits[index].commit;
        let counts = counted.seen[index].get_or_insert_with(|| vec![None; each.series.len()]);
        let place = match self.checkouts.build(commit, self.stop)? {
            BuildOutcome::There { place, .. } => place,
            BuildOutcome::Stopped => return Err(interrupted()),
            BuildOutcome::Failed(why) => {
                progress.note(&why);
                counted.failed.push(format!("{}: {}", short(commit), why.lines().next().unwrap_or_default()));
                return Ok(());
            }
        };
        for (number, (series, times)) in each.series.iter().zip(times).enumerate() {
            // A scattering series is counted again only if it looked changed before that was known.
            if *times == 0 || counted.scattering[number] && counts[number].is_none() {
                continue;
            }
            let more = self.count(series, &place, (*times, &mut counted.units[number]), progress)?;
            let Some(more) = more else { continue };
            let values = [counts[number].take().unwrap_or_default(), more].concat();
            let scatters = !is_count(&values, self.min_effect);
            if scatters && !counted.scattering[number] {
                counted.scattering[number] = true;
                counted.failed.push(format!("{}: not a count, because it scatters: {values:?}", series.name));
            }
            // With all counts, so that a reader of them sees that it is not a change.
            let was_known = values.len() > *times;
            counts[number] = (was_known || !scatters).then_some(values);
        }
        self.checkouts.remove(commit);
        Ok(())
    }

    /// The unit of earlier counts of a series; `None` if it is not known.
    fn unit_before(&self, each: &EachCommit, series: &SeriesSpec, lines: &[StoreLine]) -> Option<Option<String>> {
        let mut counted = lines.iter().rev().filter(|line| line.counted.is_some() && line.machine == self.machine);
        let line = counted.find(|line| {
            line.series == series.name && line.measure.as_ref() == Some(&series.measure) && line.build == each.build
        });
        line?.unit.clone().map(Some)
    }

    fn known(&self, each: &EachCommit, commit: &str, lines: &[StoreLine]) -> Option<Counts> {
        let of = |series: &SeriesSpec| {
            let mut lines = lines.iter().rev().filter(|line| line.commit == commit && line.machine == self.machine);
            let line = lines.find(|line| {
                line.counted.is_some()
                    && line.series == series.name
                    && line.measure.as_ref() == Some(&series.measure)
                    && line.build == each.build
            });
            line.map(|line| line.values.clone())
        };
        let counts: Counts = each.series.iter().map(of).collect();
        counts.iter().any(Option::is_some).then_some(counts)
    }

    /// `None` if it cannot be counted: an older commit may lack what is counted.
    fn count(
        &self,
        series: &SeriesSpec,
        place: &CommandContext,
        (times, unit): (usize, &mut Option<Option<String>>),
        progress: &Progress,
    ) -> Result<Option<Vec<f64>>> {
        let mut values = Vec::new();
        let mut failures = 0;
        while values.len() < times {
            match in_unit(measure_once(&series.measure, place, self.limit, self.stop)?, unit) {
                MeasureOutcome::Value(printed) => values.push(printed.value),
                _ if self.stop.load(Ordering::Relaxed) => return Err(interrupted()),
                MeasureOutcome::Stopped => return Err(interrupted()),
                MeasureOutcome::Skipped(_) => return Ok(None),
                MeasureOutcome::Failed(why) => {
                    failures += 1;
                    if failures >= TRIES {
                        progress.note(&format!("{}: {why}", series.name));
                        return Ok(None);
                    }
                }
            }
        }
        Ok(Some(values))
    }

    /// A neighbouring commit that was counted and is equal in everything that the counts depend on.
    fn same(&self, each: &EachCommit, row: &Row, seen: &[Option<Counts>], index: usize) -> Result<Option<usize>> {
        if each.depends_on.is_empty() {
            return Ok(None);
        }
        let paths = each.depends_on.iter().map(String::as_str);
        let files = |place: usize| {
            let words = ["ls-tree", &row.commits[place].commit, "--"].into_iter().chain(paths.clone());
            git(self.top, &words.collect::<Vec<&str>>())?.map_err(Error::new)
        };
        let own = files(index)?;
        let before = (0..index).rev().find(|place| seen[*place].is_some());
        let after = (index + 1..seen.len()).find(|place| seen[*place].is_some());
        for place in before.into_iter().chain(after) {
            // A failed count may have had another reason.
            let is_counted = seen[place].as_ref().is_some_and(|counts| counts.iter().any(Option::is_some));
            if is_counted && files(place)? == own {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    fn lines(
        &self,
        each: &EachCommit,
        row: &Row,
        index: usize,
        counted: &CountedRow,
        same_as: Option<&str>,
    ) -> Result<Vec<StoreLine>> {
        let (record, place) = (&row.commits[index], row.place + index as u64);
        let Some(counts) = &counted.seen[index] else { return Ok(Vec::new()) };
        let committed = git(self.top, &["show", "--no-patch", "--format=%cI", &record.commit])?.map_err(Error::new)?;
        let same_as = same_as.map(str::to_owned);
        let commit = store::CountedCommit { place, committed, subject: record.subject.clone(), same_as };
        let lines = each.series.iter().zip(counts).zip(&counted.units).filter_map(|((series, values), unit)| {
            let mut line =
                StoreLine::new(&series.name, self.machine, self.at.to_owned(), &record.commit, values.clone()?);
            line.counted = Some(commit.clone());
            line.unit = unit.clone().flatten();
            line.measure = Some(series.measure.clone());
            line.build = each.build.clone();
            line.higher_is_better = series.higher_is_better;
            Some(line)
        });
        Ok(lines.collect())
    }
}

fn interrupted() -> Error {
    Error::new("interrupted; the counts so far are kept").exit(crate::error::EXIT_INTERRUPTED)
}

/// Whether all values are alike: within a quarter of a change.
fn is_count(values: &[f64], min_effect: f64) -> bool {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    values.iter().all(|value| value / least - 1.0 <= min_effect / 4.0)
}

/// Numbers of evenly spread commits, at most `most`, including both ends, from coarse to fine: an interrupted sweep has
/// some everywhere.
fn spread(count: usize, most: usize) -> Vec<usize> {
    let steps = count.saturating_sub(1);
    let stride = steps.div_ceil(most.saturating_sub(1).max(1)).max(1);
    let mut all: Vec<usize> = (0..count).step_by(stride).collect();
    if all.last() != Some(&steps) {
        all.push(steps);
    }
    // The ends first, then by how often two divides the place.
    let last = all.len() - 1;
    let mut places: Vec<usize> = (0..all.len()).collect();
    places.sort_by_key(|place| std::cmp::Reverse(if *place == last { u32::MAX } else { place.trailing_zeros() }));
    places.into_iter().map(|place| all[place]).collect()
}

/// The commit to count next: a planned one, or else one between the two that differ most.
fn next(seen: &[Option<Counts>], planned: &[usize], min_effect: f64) -> Option<usize> {
    if let Some(index) = planned.iter().find(|index| seen[**index].is_none()) {
        return Some(*index);
    }
    let series = seen.iter().flatten().map(Vec::len).next().unwrap_or(0);
    let mut widest: Option<(f64, usize)> = None;
    for number in 0..series {
        let of = |(index, counts): (usize, &'_ Option<Counts>)| {
            counts.as_ref().and_then(|counts| counts[number].clone()).map(|values| (index, values))
        };
        let counted: Vec<(usize, Vec<f64>)> = seen.iter().enumerate().filter_map(of).collect();
        for pair in counted.windows(2) {
            let [(from, before), (to, after)] = pair else { continue };
            let Some(effect) = count_change(before, after, min_effect) else { continue };
            let middle = (from + to) / 2;
            let between = (from + 1..*to).filter(|index| seen[*index].is_none());
            let size = effect.ln_1p().abs();
            if let Some(index) = between.min_by_key(|index| index.abs_diff(middle))
                && widest.is_none_or(|(known, _)| size > known)
            {
                widest = Some((size, index));
            }
        }
    }
    widest.map(|(_, index)| index)
}

/// How often each series of a commit is to be counted again, if it is on a side of a change with nothing left to count
/// in between.
fn missing_checks(seen: &[Option<Counts>], index: usize, min_effect: f64) -> Vec<usize> {
    let Some(counts) = &seen[index] else { return Vec::new() };
    let of = |number: usize| {
        let Some(values) = &counts[number] else { return 0 };
        let at = |place: usize| seen[place].as_ref().and_then(|counts| counts[number].as_ref());
        let before = (0..index).rev().find(|place| at(*place).is_some());
        let after = (index + 1..seen.len()).find(|place| at(*place).is_some());
        let is_change = |other: usize| {
            let between = index.min(other) + 1..index.max(other);
            let differs = at(other).is_some_and(|other| count_change(values, other, min_effect).is_some());
            differs && seen[between].iter().all(Option::is_some)
        };
        match before.into_iter().chain(after).any(is_change) {
            true => CHECKS_OF_CHANGE.saturating_sub(values.len()),
            false => 0,
        }
    };
    (0..counts.len()).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_row_is_looked_at_evenly() {
        assert_eq!(spread(1, 30), [0]);
        assert_eq!(spread(4, 30), [3, 0, 2, 1]);
        assert_eq!(spread(11, 3), [10, 0, 5]);
        assert_eq!(spread(12, 3), [11, 0, 6]);
        assert_eq!(spread(90, 10), [89, 0, 80, 40, 20, 60, 10, 30, 50, 70]);
        assert_eq!(spread(5, 1), [4, 0]);
        for count in 1..200 {
            for most in 2..40 {
                assert!(spread(count, most).len() <= most, "{count} {most}");
            }
        }
    }

    /// Counts until nothing is left to do; returns the commits in that order.
    fn swept(levels: &[Option<f64>], most: usize) -> Vec<usize> {
        let planned = spread(levels.len(), most);
        let mut seen: Vec<Option<Counts>> = vec![None; levels.len()];
        let mut order = Vec::new();
        while let Some(index) = next(&seen, &planned, 0.01) {
            assert!(seen[index].is_none());
            seen[index] = Some(vec![levels[index].map(|level| vec![level])]);
            order.push(index);
        }
        order
    }

    #[test]
    fn the_commit_that_changed_a_count_is_found_by_halving() {
        let levels: Vec<Option<f64>> = (0..101).map(|at| Some(if at < 37 { 100.0 } else { 103.0 })).collect();
        let order = swept(&levels, 11);
        assert_eq!(order[..11], [100, 0, 80, 40, 20, 60, 10, 30, 50, 70, 90]);
        assert!(order.contains(&36) && order.contains(&37) && order.len() <= 15, "{order:?}");
        // Two changes that cancel each other between the same two commits are not seen; opposite ones in different gaps
        // are.
        let levels: Vec<Option<f64>> =
            (0..101).map(|at| Some(if (37..72).contains(&at) { 100.0 } else { 103.0 })).collect();
        let order = swept(&levels, 11);
        assert!([36, 37, 71, 72].iter().all(|at| order.contains(at)), "{order:?}");
        // Half a per cent does not count.
        let levels: Vec<Option<f64>> = (0..101).map(|at| Some(if at < 37 { 100.0 } else { 100.5 })).collect();
        assert_eq!(swept(&levels, 11).len(), 11);
    }

    #[test]
    fn commits_that_cannot_be_counted_are_gone_around() {
        let broken = |at: usize| (34..=41).contains(&at);
        let levels: Vec<Option<f64>> =
            (0..101).map(|at| (!broken(at)).then_some(if at < 38 { 100.0 } else { 103.0 })).collect();
        let order = swept(&levels, 11);
        assert!(order.contains(&33) && order.contains(&42) && order.len() <= 11 + 16, "{order:?}");
        assert_eq!(swept(&[None, None, None], 2), [2, 0]);
    }

    #[test]
    fn both_sides_of_a_change_are_counted_again() {
        let counts = |values: &[f64]| Some(vec![Some(values.to_vec())]);
        // Not counted: 2 is not counted yet, and 5 cannot be.
        let seen = [
            counts(&[100.0, 100.0]),
            counts(&[100.0]),
            None,
            counts(&[150.0]),
            counts(&[100.0]),
            Some(vec![None]),
            counts(&[150.0; 5]),
            counts(&[150.0]),
        ];
        let missing = |seen: &[Option<Counts>]| -> Vec<Vec<usize>> {
            (0..seen.len()).map(|index| missing_checks(seen, index, 0.01)).collect()
        };
        assert_eq!(missing(&seen).concat(), [0, 0, 3, 3, 0, 0, 0]);
        // A scattering series is no longer a change.
        let mut again = seen.clone();
        again[3] = counts(&[150.0, 100.0, 150.0, 100.0]);
        again[4] = counts(&[100.0, 150.0, 100.0, 100.0]);
        assert_eq!(missing(&again).concat(), [0; 7]);
    }

    #[test]
    fn what_scatters_is_no_count() {
        assert!(is_count(&[1000.0], 0.01) && is_count(&[1000.0, 1002.0], 0.01));
        assert!(!is_count(&[1000.0, 1003.0], 0.01) && !is_count(&[1003.0, 1000.0], 0.01));
    }
}
