//! `stillgate-lab history`: what changed when, from a store.
//!
//! The analysis is pure: series, and the change points in them. The rest is text for a terminal, with the commits in
//! between and the command that finds the one; the page is made in `report`.
//!
//! A point is the logarithm of the ratio of a day's measurements to those of the release, taken in alternation with
//! them: the machine's state that night affects both. Without a release it is the logarithm of the measurement itself.
//! Where the release changes, points before and after are not comparable unless the new release was itself measured as
//! a day's commit together with the old one; otherwise the series is divided there.
//!
//! Counts do not scatter: their points are commits, in the order of these, and each difference between two of them that
//! is large enough is a change.

use crate::command_line::quoted_word;
use crate::error::Result;
use crate::git::{git, short};
use crate::store::{CountedCommit, StoreLine};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use stillgate_stats::{ChangePoint, Random, e_divisive, median};

/// Probability that chance gives as large a change in one series.
const SIGNIFICANCE: f64 = 0.01;

/// Least number of values between two changes.
const SEGMENT_MIN: usize = 4;

/// A night that was interrupted before this many rounds is left out.
const ROUNDS_MIN: usize = 6;

/// Permutations of each test.
const PERMUTATIONS: usize = 499;

/// Seed of the permutations: the same store gives the same changes.
const SEED: u64 = 20_240_415;

/// Nights of one series that are analysed; older ones are left out, since time grows with their square.
const NIGHTS_MAX: usize = 730;

/// One series on one machine.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) machine: String,
    pub(crate) higher_is_better: bool,
    pub(crate) measure: Option<String>,
    pub(crate) build: Option<String>,
    /// Whether points are counted commits rather than nights.
    pub(crate) is_counted: bool,
    /// By time, or in the order of commits.
    pub(crate) points: Vec<Point>,
    pub(crate) changes: Vec<SeriesChange>,
    /// Nights left out because there are too many.
    pub(crate) left_out: usize,
}

/// One night, or one counted commit.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Point {
    pub(crate) at: String,
    pub(crate) commit: String,
    /// A logarithm.
    pub(crate) value: f64,
    /// Points with the same number are comparable.
    pub(crate) stretch: usize,
    /// For a count, its commit.
    pub(crate) counted: Option<CountedCommit>,
}

/// A change of a series.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SeriesChange {
    /// Index of the first point after it.
    pub(crate) at: usize,
    /// The ratio of the levels on both sides, less one: from the median difference of two nights.
    pub(crate) effect: f64,
    /// `None` for counts.
    pub(crate) p_value: Option<f64>,
}

/// All series of a store, by name and machine. Counts change if they differ by `min_effect`.
pub(crate) fn series(lines: &[StoreLine], min_effect: f64) -> Vec<Series> {
    let mut by_name: BTreeMap<(&str, &str, bool), Vec<&StoreLine>> = BTreeMap::new();
    for line in lines {
        by_name.entry((&line.series, &line.machine, line.counted.is_some())).or_default().push(line);
    }
    let all = by_name.into_iter();
    all.map(|((.., is_counted), lines)| if is_counted { counted(&lines, min_effect) } else { one(&lines) }).collect()
}

/// The counts of one name and machine; there is at least one.
fn counted(lines: &[&StoreLine], min_effect: f64) -> Series {
    let newest = lines[lines.len() - 1];
    // Counts of another command are a different series. If a commit was counted twice, the later count holds.
    let place = |line: &StoreLine| line.counted.as_ref().map_or(0, |counted| counted.place);
    let comparable = lines
        .iter()
        .filter(|line| line.measure == newest.measure && line.build == newest.build && line.is_in_unit_of(newest));
    let by_place: BTreeMap<u64, &StoreLine> = comparable.map(|line| (place(line), *line)).collect();
    let left_out = by_place.len().saturating_sub(NIGHTS_MAX);
    let lines: Vec<&StoreLine> = by_place.into_values().skip(left_out).collect();
    let point = |line: &&StoreLine| Point {
        at: line.counted.as_ref().map_or_else(String::new, |counted| counted.committed.clone()),
        commit: line.commit.clone(),
        value: mean_log(&line.values),
        stretch: 0,
        counted: line.counted.clone(),
    };
    let pairs = lines.windows(2).enumerate();
    let changes = pairs.filter_map(|(index, pair)| {
        let effect = count_change(&pair[0].values, &pair[1].values, min_effect)?;
        Some(SeriesChange { at: index + 1, effect, p_value: None })
    });
    Series {
        is_counted: true,
        changes: changes.collect(),
        left_out,
        ..series_without_changes(newest, lines.iter().map(point).collect())
    }
}

/// The difference of counts, if none is within the range of the others and it is large enough.
pub(crate) fn count_change(before: &[f64], after: &[f64], min_effect: f64) -> Option<f64> {
    let range = |values: &[f64]| {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        (least, values.iter().copied().fold(0.0, f64::max))
    };
    let ((low_before, high_before), (low_after, high_after)) = (range(before), range(after));
    let change = mean_log(after) - mean_log(before);
    let is_apart = low_after > high_before || low_before > high_after;
    (is_apart && change.abs() >= min_effect.ln_1p()).then(|| change.exp_m1())
}

/// By time, of one name and machine; there is at least one.
fn one(lines: &[&StoreLine]) -> Series {
    // The few measurements of an interrupted night scatter more than the others.
    let is_whole = |line: &&&StoreLine| line.cut_short.is_none() || line.first_look >= ROUNDS_MIN;
    let whole: Vec<&StoreLine> = lines.iter().filter(is_whole).copied().collect();
    let lines = if whole.is_empty() { lines } else { &whole[..] };
    let left_out = lines.len().saturating_sub(NIGHTS_MAX);
    let lines = &lines[left_out..];
    let points = points(lines);
    Series { changes: changes(&points), left_out, ..series_without_changes(lines[lines.len() - 1], points) }
}

/// A series without changes.
fn series_without_changes(newest: &StoreLine, points: Vec<Point>) -> Series {
    Series {
        name: newest.series.clone(),
        machine: newest.machine.clone(),
        higher_is_better: newest.higher_is_better,
        measure: newest.measure.clone(),
        build: newest.build.clone(),
        is_counted: false,
        changes: Vec::new(),
        points,
        left_out: 0,
    }
}

fn points(lines: &[&StoreLine]) -> Vec<Point> {
    let mut points: Vec<Point> = Vec::new();
    // For each release that is compared with: its place on the scale, and its stretch.
    let mut release: Option<(&str, f64)> = None;
    let mut stretch = 0;
    let mut before: Option<&StoreLine> = None;
    for &line in lines {
        let beside = line.beside.iter().find(|beside| beside.role == "release");
        let name = beside.map_or("", |beside| beside.commit.as_str());
        if release.is_none_or(|(known, _)| known != name) {
            let known = points.iter().rev().find(|point| point.stretch == stretch && point.commit == name);
            let offset = known.map(|point| point.value);
            if release.is_some() && offset.is_none() {
                stretch += 1;
            }
            release = Some((name, offset.unwrap_or(0.0)));
        }
        // Ratios have no unit.
        if beside.is_none() && before.replace(line).is_some_and(|before| !before.is_in_unit_of(line)) {
            stretch += 1;
        }
        let offset = release.map_or(0.0, |(_, offset)| offset);
        let value = mean_log(&line.values) - beside.map_or(0.0, |beside| mean_log(&beside.values)) + offset;
        points.push(Point { at: line.at.clone(), commit: line.commit.clone(), value, stretch, counted: None });
    }
    points
}

fn mean_log(values: &[f64]) -> f64 {
    values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64
}

fn changes(points: &[Point]) -> Vec<SeriesChange> {
    let mut all = Vec::new();
    let mut from = 0;
    for stretch in points.chunk_by(|a, b| a.stretch == b.stretch) {
        let values: Vec<f64> = stretch.iter().map(|point| point.value).collect();
        let found = e_divisive(&values, SIGNIFICANCE, SEGMENT_MIN, PERMUTATIONS, &mut Random::new(SEED));
        let found = found.unwrap_or_default();
        for (index, ChangePoint { at, p_value, .. }) in found.iter().enumerate() {
            let begin = index.checked_sub(1).map_or(0, |before| found[before].at);
            let end = found.get(index + 1).map_or(values.len(), |next| next.at);
            let effect = shift(&values[begin..*at], &values[*at..end]).exp_m1();
            all.push(SeriesChange { at: from + at, effect, p_value: Some(*p_value) });
        }
        from += stretch.len();
    }
    all
}

/// The shift between two stretches of logarithms: the median of all differences (Hodges & Lehmann 1963), which a single
/// odd night hardly affects.
fn shift(before: &[f64], behind: &[f64]) -> f64 {
    let mut differences: Vec<f64> =
        behind.iter().flat_map(|behind| before.iter().map(move |before| behind - before)).collect();
    differences.sort_unstable_by(f64::total_cmp);
    median(&differences).unwrap_or(0.0)
}

impl Series {
    /// Whether a change is one for the worse.
    pub(crate) fn is_worse(&self, change: &SeriesChange) -> bool {
        (change.effect < 0.0) == self.higher_is_better
    }

    /// The last commit before a change, and the first one with it.
    pub(crate) fn between(&self, change: &SeriesChange) -> (&str, &str) {
        (&self.points[change.at - 1].commit, &self.points[change.at].commit)
    }
}

/// Commits between two nights that are listed.
const NAMED_MAX: usize = 10;

/// All series; those that changed with the candidate commits.
pub(crate) fn report(all: &[Series], repo: Option<&Path>) -> Result<String> {
    let mut out = String::new();
    for series in all {
        // Writing to a `String` does not fail.
        let _ = writeln!(out, "{}", headline(series));
        for change in &series.changes {
            let _ = writeln!(out, "  {}", change_line(series, change));
            for commit in commits(series, change, repo)? {
                let _ = writeln!(out, "    {commit}");
            }
            if let Some(command) = next_step(series, change) {
                let _ = writeln!(out, "    {command}");
            }
        }
    }
    Ok(out)
}

/// A series in a line.
pub(crate) fn headline(series: &Series) -> String {
    format!("{} on {}: {}", series.name, series.machine, summary(series))
}

/// How often it changed.
pub(crate) fn summary(series: &Series) -> String {
    let unit = if series.is_counted { "commit" } else { "night" };
    let nights = match series.points.len() {
        1 => format!("1 {unit}"),
        count => format!("{count} {unit}s"),
    };
    let older = match series.left_out {
        0 => String::new(),
        count => format!(", {count} older ones left out ({NIGHTS_MAX} at most)"),
    };
    let changes = match series.changes.len() {
        0 => "no change".to_owned(),
        1 => "1 change".to_owned(),
        count => format!("{count} changes"),
    };
    format!("{changes} in {nights}{older}")
}

/// The newest change as a headline.
pub(crate) fn since(series: &Series, change: &SeriesChange) -> String {
    let word = if series.is_worse(change) { "worse" } else { "better" };
    let at = &series.points[change.at].at;
    format!("{:+.1}% since {}, which is {word}", change.effect * 100.0, at.get(..10).unwrap_or(at))
}

/// A change in a line.
pub(crate) fn change_line(series: &Series, change: &SeriesChange) -> String {
    let word = if series.is_worse(change) { "worse" } else { "better" };
    let (before, after) = series.between(change);
    let at = &series.points[change.at].at;
    let day = at.get(..10).unwrap_or(at);
    let p_value = change.p_value.map(|p| format!("; p {p:.3}")).unwrap_or_default();
    let percent = change.effect * 100.0;
    format!("{day}: {percent:+.1}% ({word}{p_value}), after {}, at {}", short(before), short(after))
}

/// The commits between the two nights of a change, newest last; empty without a repository, or if it does not have
/// them.
pub(crate) fn commits(series: &Series, change: &SeriesChange, repo: Option<&Path>) -> Result<Vec<String>> {
    let Some(repo) = repo else { return Ok(Vec::new()) };
    let (before, after) = series.between(change);
    let range = format!("{before}..{after}");
    let Ok(log) = git(repo, &["log", "--reverse", "--first-parent", "--format=%h %s", &range])? else {
        return Ok(vec![format!("{range} is not in the repository")]);
    };
    let lines: Vec<&str> = log.lines().collect();
    let mut named: Vec<String> = lines.iter().take(NAMED_MAX).map(|line| (*line).to_owned()).collect();
    if lines.len() > NAMED_MAX {
        named.push(format!("and {} more", lines.len() - NAMED_MAX));
    }
    Ok(named)
}

/// The command that finds the commit; `None` if it is known.
pub(crate) fn next_step(series: &Series, change: &SeriesChange) -> Option<String> {
    let (before, after) = series.between(change);
    let place = |at: usize| series.points[at].counted.as_ref().map(|counted| counted.place);
    if let (Some(from), Some(to)) = (place(change.at - 1), place(change.at)) {
        let (since, commit) = (short(before), short(after));
        let command = format!(
            "stillgate-lab nightly --suite SUITE --store STORE --counts-only --since {since} --commit {commit}"
        );
        return (to - from > 1).then_some(command);
    }
    Some(bisect(series, before, after))
}

fn bisect(series: &Series, before: &str, after: &str) -> String {
    let mut words = format!("stillgate-lab bisect --good {} --bad {}", short(before), short(after));
    if let Some(build) = &series.build {
        let _ = write!(words, " --build {}", quoted_word(build));
    }
    let measure = series.measure.as_deref().unwrap_or("COMMAND");
    let _ = write!(words, " --measure {}", quoted_word(measure));
    if series.higher_is_better {
        words.push_str(" --higher-is-better");
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::PairedCommit;

    fn night(number: usize, value: f64, release: Option<(&str, f64)>, random: &mut Random) -> StoreLine {
        let at = format!("2026-{:02}-{:02}T00:00:00Z", 1 + number / 28, 1 + number % 28);
        // The machine is slower or faster each night by 20%, which affects both.
        let machine = (0.2 * random.normal()).exp();
        let mut draw =
            |level: f64| (0..5).map(|_| machine * level * (0.01 * random.normal()).exp()).collect::<Vec<f64>>();
        let mut line = StoreLine::new("proxy", "m", at, &format!("c{number}"), draw(value));
        line.beside = release
            .map(|(commit, level)| PairedCommit {
                role: "release".into(),
                commit: commit.into(),
                values: draw(level),
                raw: Vec::new(),
            })
            .into_iter()
            .collect();
        line
    }

    #[test]
    fn a_change_is_found_where_it_is_though_nights_differ() {
        let mut random = Random::new(1);
        let level = |number: usize| if number < 25 { 1.0 } else { 1.05 };
        let lines: Vec<StoreLine> =
            (0..40).map(|number| night(number, level(number), Some(("r1", 0.9)), &mut random)).collect();
        let all = series(&lines, 0.01);
        let [only] = all.as_slice() else { panic!("{all:?}") };
        let [change] = only.changes.as_slice() else { panic!("{:?}", only.changes) };
        assert_eq!((change.at, only.between(change)), (25, ("c24", "c25")));
        assert!((change.effect - 0.05).abs() < 0.01 && only.is_worse(change), "{change:?}");
        assert_eq!(series(&lines, 0.01)[0].changes, only.changes);
    }

    #[test]
    fn a_new_release_is_no_change() {
        let mut random = Random::new(2);
        // r2 is the commit of night 10, 5% slower than r1; it was measured together with r1.
        let release = |number: usize| if number <= 20 { ("r1", 1.0) } else { ("c10", 1.05) };
        let level = |number: usize| if number < 10 { 1.0 } else { 1.05 };
        let lines: Vec<StoreLine> =
            (0..40).map(|number| night(number, level(number), Some(release(number)), &mut random)).collect();
        let places: Vec<usize> = series(&lines, 0.01)[0].changes.iter().map(|change| change.at).collect();
        assert_eq!(places, [10]);
        // A release that was never measured divides the series instead.
        let release = |number: usize| if number <= 20 { ("r1", 1.0) } else { ("other", 2.0) };
        let lines: Vec<StoreLine> =
            (0..40).map(|number| night(number, 1.0, Some(release(number)), &mut random)).collect();
        let divided = &series(&lines, 0.01)[0];
        assert_eq!((divided.changes.len(), divided.points[20].stretch, divided.points[21].stretch), (0, 0, 1));
    }

    #[test]
    fn a_night_that_went_differently_is_not_in_the_size_of_a_change() {
        for (spike, factor) in [(2, 1.3), (6, 1.3), (17, 0.7), (4, 1.2)] {
            let mut random = Random::new(6);
            let release = Some(("r1", 1.0));
            let level =
                |number: usize| if number < 12 { 1.0 } else { 1.06 } * if number == spike { factor } else { 1.0 };
            let lines: Vec<StoreLine> =
                (0..24).map(|number| night(number, level(number), release, &mut random)).collect();
            let all = series(&lines, 0.01);
            let change =
                all[0].changes.iter().find(|change| change.at == 12).unwrap_or_else(|| panic!("{spike}: {all:?}"));
            assert!((change.effect - 0.06).abs() < 0.01, "a spike in night {spike}: {change:?}");
        }
    }

    #[test]
    fn another_unit_divides_a_series_without_release() {
        let mut random = Random::new(4);
        let mut lines: Vec<StoreLine> = (0..12).map(|number| night(number, 1.0, None, &mut random)).collect();
        for line in &mut lines[6..] {
            line.unit = Some("us".to_owned());
            line.values.iter_mut().for_each(|value| *value *= 1000.0);
        }
        let divided = &series(&lines, 0.01)[0];
        let stretches: Vec<usize> = divided.points.iter().map(|point| point.stretch).collect();
        assert_eq!((divided.changes.len(), stretches[5], stretches[6], stretches[11]), (0, 0, 1, 1));
    }

    #[test]
    fn machines_are_series_of_their_own() {
        let mut random = Random::new(3);
        let mut lines = vec![night(0, 1.0, None, &mut random), night(1, 1.0, None, &mut random)];
        lines[1].machine = "n".to_owned();
        let all = series(&lines, 0.01);
        assert_eq!(all.iter().map(|series| series.machine.as_str()).collect::<Vec<_>>(), ["m", "n"]);
        assert!(all.iter().all(|series| series.changes.is_empty() && series.points.len() == 1));
    }

    #[test]
    fn counts_are_in_the_order_of_commits_and_change_where_they_differ() {
        let count = |at: &str, place: u64, values: &[f64]| {
            let mut line = StoreLine::new("parser", "m", at.to_owned(), &format!("c{place}"), values.to_vec());
            let committed = format!("2026-01-{place:02}T00:00:00Z");
            line.counted = Some(CountedCommit { place, committed, subject: String::new(), same_as: None });
            line
        };
        // Out of order; 0.5% at 3 is too little, 2% at 5 is a change; 6 scatters over the level of 5.
        let mut lines = vec![
            count("1", 5, &[1025.0, 1025.0]),
            count("1", 1, &[1000.0]),
            count("2", 3, &[1005.0]),
            count("2", 6, &[1020.0, 1100.0]),
        ];
        let changes = |lines: &[StoreLine]| {
            let all = series(lines, 0.01);
            let [only] = all.as_slice() else { panic!("{all:?}") };
            assert!(only.is_counted);
            let between =
                |change: &SeriesChange| (only.between(change).0.to_owned(), only.between(change).1.to_owned());
            only.changes.iter().map(between).collect::<Vec<_>>()
        };
        assert_eq!(changes(&lines), [("c3".to_owned(), "c5".to_owned())]);
        // Counted again, and by another command.
        lines.push(count("3", 5, &[1006.0]));
        assert_eq!(changes(&lines), [("c5".to_owned(), "c6".to_owned())]);
        lines.push(StoreLine { measure: Some("other".to_owned()), ..count("4", 7, &[1.0]) });
        assert_eq!(changes(&lines), []);
    }
}
