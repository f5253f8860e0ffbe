//! The analysis of a night: a pure function of its lines; and the night in Markdown, which is also readable on a terminal.
//!
//! A first look at every series leads to a second, larger one where something seems to have changed, and that to a
//! third where doubt remains; one error holds for all series and comparisons of the night together.

use super::{PAIRS_FIRST, PAIRS_SECOND, PAIRS_THIRD};
use crate::git::short;
use crate::history::{Series, SeriesChange};
use crate::result::run::Environment;
use crate::store::StoreLine;
use std::fmt::Write as _;
use stillgate_stats::{
    Looks, SCREEN_LEVELS, hodges_lehmann, is_suspicious, is_undecided, log_ratios, mann_whitney, median,
    minimum_detectable_effect_signed_rank, screened, standard_deviation, third_look_level,
};

/// Share of false ones among all reported changes; if nothing changed, the probability of any.
pub(crate) const ERROR: f64 = 0.01;

/// Confidence of the intervals shown.
const CONFIDENCE: f64 = 0.95;

/// Power for the smallest detectable difference.
const POWER: f64 = 0.9;

/// A comparison is undecided if a larger difference could have been missed; a suite may set another margin.
pub(crate) const MARGIN: f64 = 0.05;

/// One series compared with one other commit.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NightComparison {
    pub(crate) series: String,
    /// `yesterday` or `release`.
    pub(crate) role: String,
    pub(crate) beside: String,
    /// Today's relative difference, with its interval.
    pub(crate) effect: [f64; 3],
    /// The smallest difference that would have been reported.
    pub(crate) detectable: Option<f64>,
    /// The difference that must not be missed.
    pub(crate) margin: f64,
    /// Adjusted over the night.
    pub(crate) p_value: f64,
    pub(crate) pairs: usize,
    /// The comparison with the release's large sample.
    pub(crate) kept: Option<SampleComparison>,
    pub(crate) verdict: Verdict,
}

/// Fewer pairs, from an interrupted night, give no interval.
const PAIRS_SHOWN_MIN: usize = 6;

/// The verdict of a comparison, in the order of importance to a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    Worse,
    Better,
    Undecided,
    Unchanged,
}

/// All comparisons of a night; `before` are the older lines of the store.
pub(crate) fn judge_night(night: &[&StoreLine], before: &[StoreLine]) -> Vec<NightComparison> {
    let all: Vec<(&StoreLine, usize, Vec<f64>)> = night
        .iter()
        .flat_map(|line| (0..line.beside.len()).map(move |index| (*line, index)))
        .filter_map(|(line, index)| {
            let diffs = log_ratios(&line.beside[index].values, &line.values)?;
            (line.first_look <= diffs.len() && diffs.len() >= PAIRS_SHOWN_MIN).then_some((line, index, diffs))
        })
        .collect();
    let looks: Vec<Looks<'_>> =
        all.iter().map(|(line, _, diffs)| DifferencesByLook::of(line, diffs).looks(line)).collect();
    let p_values = screened(&looks);
    all.iter()
        .zip(p_values)
        .map(|((line, index, diffs), p_value)| {
            let split = DifferencesByLook::of(line, diffs);
            let looked = [split.third, split.second, split.first].into_iter().find(|look| !look.is_empty());
            let estimate = hodges_lehmann(looked.unwrap_or_default(), CONFIDENCE);
            let effect = estimate.map_or([0.0; 3], |e| [e.value, e.interval.low, e.interval.high].map(f64::exp_m1));
            let detectable = standard_deviation(diffs).and_then(|sd| {
                // A change that passes each look at its usual size.
                let least = |pairs: usize, level| minimum_detectable_effect_signed_rank(pairs as u64, sd, level, POWER);
                let first = least(split.first.len(), SCREEN_LEVELS[0])?;
                let second = least(PAIRS_SECOND, SCREEN_LEVELS[1])?;
                let third = least(PAIRS_THIRD, third_look_level(all.len(), ERROR))?;
                Some(first.max(second).max(third).exp_m1())
            });
            let verdict = match p_value <= ERROR {
                true if (effect[0] < 0.0) == line.higher_is_better => Verdict::Worse,
                true => Verdict::Better,
                false if split.lacks_a_look(line) => Verdict::Undecided,
                false if detectable.is_some_and(|least| least <= line.margin.unwrap_or(MARGIN)) => Verdict::Unchanged,
                false => Verdict::Undecided,
            };
            let beside = &line.beside[*index];
            NightComparison {
                series: line.series.clone(),
                role: beside.role.clone(),
                beside: beside.commit.clone(),
                effect,
                detectable,
                margin: line.margin.unwrap_or(MARGIN),
                p_value,
                pairs: diffs.len(),
                kept: if beside.role == "release" { beside_kept(line, before) } else { None },
                verdict,
            }
        })
        .collect()
}

/// The differences of one comparison, look by look.
struct DifferencesByLook<'a> {
    first: &'a [f64],
    second: &'a [f64],
    third: &'a [f64],
}

impl<'a> DifferencesByLook<'a> {
    fn of(line: &StoreLine, diffs: &'a [f64]) -> DifferencesByLook<'a> {
        let (first, later) = diffs.split_at(line.first_look.min(diffs.len()));
        let (second, third) = later.split_at(line.later.map_or(later.len(), |of| of.second_look.min(later.len())));
        DifferencesByLook { first, second, third }
    }

    /// Whether the night ended before a look that this comparison needs.
    fn lacks_a_look(&self, line: &StoreLine) -> bool {
        let comparisons = line.later.map_or(1, |later| later.comparisons);
        let lacks_third = || is_undecided(self.second, comparisons, ERROR) && self.third.is_empty();
        let lacks_later = is_suspicious(self.first) && (self.second.is_empty() || lacks_third());
        line.cut_short.is_some() && (self.first.len() < PAIRS_FIRST || lacks_later)
    }

    /// A look counts if the one before required it; it was taken of all commits at once.
    fn looks(&self, line: &StoreLine) -> Looks<'a> {
        let second = (is_suspicious(self.first) && !self.second.is_empty()).then_some(self.second);
        let comparisons = line.later.map_or(1, |later| later.comparisons);
        let asks = |second: &[f64]| is_undecided(second, comparisons, ERROR) && !self.third.is_empty();
        Looks { second, third: second.is_some_and(asks).then_some(self.third) }
    }
}

/// Pairs of the look that is needed after the measurements of two commits so far; `None` if they suffice.
pub(crate) fn next_look(beside: &[f64], today: &[f64], comparisons: usize) -> Option<usize> {
    let diffs = log_ratios(beside, today)?;
    let (first, second) = diffs.split_at(PAIRS_FIRST.min(diffs.len()));
    match second.len() {
        0 => is_suspicious(first).then_some(PAIRS_SECOND),
        PAIRS_SECOND => (is_suspicious(first) && is_undecided(second, comparisons, ERROR)).then_some(PAIRS_THIRD),
        _ => None,
    }
}

/// Contradictions of a line to the rules: unexpected looks, or missing ones.
pub(crate) fn contradictions(line: &StoreLine) -> Vec<String> {
    let count = line.values.len();
    if line.first_look > count || line.beside.iter().any(|beside| beside.values.len() != count) {
        return vec![format!("{} {}: its sides have different numbers of measurements", line.at, line.series)];
    }
    let diffs: Vec<Vec<f64>> =
        line.beside.iter().filter_map(|beside| log_ratios(&beside.values, &line.values)).collect();
    let splits: Vec<DifferencesByLook<'_>> = diffs.iter().map(|diffs| DifferencesByLook::of(line, diffs)).collect();
    let asks_second = splits.iter().any(|split| is_suspicious(split.first));
    let second_is_there = line.first_look < count;
    let mut found = Vec::new();
    let mut check = |name: &str, is_asked: bool, is_there: bool| match (is_asked, is_there) {
        (true, false) if line.cut_short.is_none() => {
            found.push(format!("{} {}: the {name} look is missing", line.at, line.series));
        }
        (false, true) => found.push(format!("{} {}: a {name} look that nothing called for", line.at, line.series)),
        _ => {}
    };
    check("second", asks_second, second_is_there);
    if let (Some(later), true) = (line.later, second_is_there) {
        let is_unsure = |split: &DifferencesByLook<'_>| {
            is_suspicious(split.first) && is_undecided(split.second, later.comparisons, ERROR)
        };
        check("third", splits.iter().any(is_unsure), line.first_look + later.second_look < count);
    }
    found
}

// The release's large sample: all its measurements ever taken on this machine, to which every night adds.
//
// Compared with a night's small sample by ranks, as the third reference text does it. The fresh pairs decide: only the
// large sample contains the machine's states of all those nights. So it is shown next to them, where a difference too
// small for the pairs stands out, and so does a release that was measured on a bad night.

/// Fewer measurements from other nights are not a large sample.
const COUNT_MIN: usize = 20;

/// Tonight's measurements compared with those of all other nights.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SampleComparison {
    pub(crate) count: usize,
    /// Relative difference of the medians.
    pub(crate) effect: f64,
    /// P-value of Mann and Whitney's test, unadjusted.
    pub(crate) p_value: f64,
}

/// `None` without a release, or if it has too few measurements.
fn beside_kept(tonight: &StoreLine, before: &[StoreLine]) -> Option<SampleComparison> {
    let release = &tonight.beside.iter().find(|beside| beside.role == "release")?.commit;
    let comparable = before.iter().filter(|line| {
        line.series == tonight.series
            && line.machine == tonight.machine
            && line.measure == tonight.measure
            && line.is_in_unit_of(tonight)
            && line.counted.is_none()
    });
    let mut kept: Vec<f64> = Vec::new();
    for line in comparable {
        // It was the commit of a day, too.
        let own = (line.commit == *release).then_some(&line.values);
        let beside = line.beside.iter().find(|beside| beside.commit == *release).map(|beside| &beside.values);
        kept.extend(own.into_iter().chain(beside).flatten());
    }
    if kept.len() < COUNT_MIN {
        return None;
    }
    let effect = median(&tonight.values)? / median(&kept)? - 1.0;
    Some(SampleComparison { count: kept.len(), effect, p_value: mann_whitney(&kept, &tonight.values)?.p_value })
}

/// The content of a night's report.
#[derive(Debug, Default)]
pub(crate) struct NightReport {
    pub(crate) commit: String,
    pub(crate) judged: Vec<NightComparison>,
    /// Series that were not measured.
    pub(crate) failed: Vec<String>,
    /// `None` if the suite counts nothing.
    pub(crate) counts: Option<CommitCounts>,
    pub(crate) machine: Environment,
}

/// The counts of each commit.
#[derive(Debug)]
pub(crate) struct CommitCounts {
    /// Over the commits of this night.
    pub(crate) series: Vec<Series>,
    pub(crate) failed: Vec<String>,
}

impl NightReport {
    /// 0: nothing is worse; 1: something is; 2: undecided; 3: nothing was compared.
    pub(crate) fn exit_code(&self) -> u8 {
        let is = |verdict| self.judged.iter().any(|one| one.verdict == verdict);
        let counts = self.counts.iter().flat_map(|counts| &counts.series);
        let is_worse = |series: &Series| series.changes.iter().any(|change| series.is_worse(change));
        let is_compared = |series: &Series| series.points.len() > 1;
        match self.judged.is_empty() && !counts.clone().any(is_compared) {
            true => 3,
            false if is(Verdict::Worse) || counts.clone().any(is_worse) => 1,
            false if is(Verdict::Undecided) || !self.failed.is_empty() => 2,
            false => 0,
        }
    }
}

/// The whole report.
pub(crate) fn markdown(report: &NightReport) -> String {
    let mut out = format!("### Night of {}: {}\n\n", short(&report.commit), headline(report));
    if !report.judged.is_empty() {
        out.push_str("| series | compared with | difference (95%) | smallest detectable | p | pairs | compared with its kept sample | |\n");
        out.push_str("|---|---|--:|--:|--:|--:|--:|---|\n");
    }
    for one in &report.judged {
        let [value, low, high] = one.effect.map(|share| format!("{:+.1}%", share * 100.0));
        let least = one.detectable.map_or("none".to_owned(), |least| format!("{:.1}%", least * 100.0));
        // Writing to a `String` does not fail.
        let _ = writeln!(
            out,
            "| {} | {} {} | {value} ({low} to {high}) | {least} | {} | {} | {} | {} |",
            table_cell(&one.series),
            one.role,
            short(&one.beside),
            p_value(one.p_value),
            one.pairs,
            one.kept.as_ref().map(sample_cell).unwrap_or_default(),
            if one.verdict == Verdict::Worse { "**worse**" } else { verdict_word(one.verdict) }
        );
    }
    for line in &report.failed {
        let _ = writeln!(out, "\nNot measured: {}", line.trim_end());
    }
    if let Some(counts) = &report.counts {
        counted(&mut out, counts);
    }
    let _ = writeln!(out, "\n{}", machine_in_words(&report.machine));
    out
}

/// The comparison with a release's large sample, as a cell.
fn sample_cell(kept: &SampleComparison) -> String {
    format!("{:+.1}% (of {}, p {})", kept.effect * 100.0, kept.count, p_value(kept.p_value))
}

fn p_value(p: f64) -> String {
    if p < 0.001 { "< 0.001".to_owned() } else { format!("{p:.3}") }
}

/// Each change of a count, with the commit that made it or the candidates.
fn counted(out: &mut String, counts: &CommitCounts) {
    // Writing to a `String` does not fail.
    let _ = writeln!(out, "\nCounted on {} commits:\n", counts.commits());
    if counts.series.iter().all(|series| series.changes.is_empty()) {
        out.push_str("no count changed\n");
    } else {
        out.push_str("| count | change | by | |\n|---|--:|---|---|\n");
    }
    for (series, change) in counts.changes() {
        let _ = writeln!(
            out,
            "| {} | {:+.1}% | {} | {} |",
            table_cell(&series.name),
            change.effect * 100.0,
            table_cell(&change_in_words(series, change)),
            if series.is_worse(change) { "**worse**" } else { "better" }
        );
    }
    for line in &counts.failed {
        let _ = writeln!(out, "\nNot counted: {line}");
    }
}

impl CommitCounts {
    /// The number of commits.
    pub(crate) fn commits(&self) -> usize {
        self.series.iter().map(|series| series.points.len()).max().unwrap_or(0)
    }

    /// The largest first.
    pub(crate) fn changes(&self) -> Vec<(&Series, &SeriesChange)> {
        let all = self.series.iter().flat_map(|series| series.changes.iter().map(move |change| (series, change)));
        let mut all: Vec<(&Series, &SeriesChange)> = all.collect();
        all.sort_by(|a, b| b.1.effect.abs().total_cmp(&a.1.effect.abs()));
        all
    }
}

/// The commit, if all before it were counted; otherwise the candidates.
pub(crate) fn change_in_words(series: &Series, change: &SeriesChange) -> String {
    let (before, after) = (&series.points[change.at - 1], &series.points[change.at]);
    let (Some(from), Some(to)) = (&before.counted, &after.counted) else { return String::new() };
    match to.place - from.place {
        1 => format!("{} {}", short(&after.commit), to.subject),
        count => format!("one of {count} commits after {} up to {}", short(&before.commit), short(&after.commit)),
    }
}

fn table_cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// The number of comparisons by verdict.
pub(crate) fn headline(report: &NightReport) -> String {
    let count = |verdict| report.judged.iter().filter(|one| one.verdict == verdict).count();
    let measured = format!(
        "{} worse, {} better, {} unchanged, {} undecided",
        count(Verdict::Worse),
        count(Verdict::Better),
        count(Verdict::Unchanged),
        count(Verdict::Undecided)
    );
    let Some(counts) = &report.counts else { return measured };
    let worse = counts.changes().iter().filter(|(series, change)| series.is_worse(change)).count();
    let counted = format!("counts: {worse} worse, {} better", counts.changes().len() - worse);
    if report.judged.is_empty() { counted } else { format!("{measured}; {counted}") }
}

/// The machine of the measurements.
pub(crate) fn machine_in_words(machine: &Environment) -> String {
    let cpu = machine.cpu_model.as_deref().unwrap_or("an unknown CPU");
    format!("{} CPUs, {cpu}, {}.", machine.cpus, machine.kernel)
}

pub(crate) fn verdict_word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Worse => "worse",
        Verdict::Better => "better",
        Verdict::Unchanged => "unchanged",
        Verdict::Undecided => "undecided",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{EarlyEnd, LaterLooks, PairedCommit};
    use stillgate_stats::Random;

    /// A series that differs by `effect` from yesterday, measured by the rules.
    fn taken(effect: f64, seed: u64) -> StoreLine {
        let mut random = Random::new(seed);
        let (mut today, mut other) = (Vec::new(), Vec::new());
        let mut next = Some(PAIRS_FIRST);
        while let Some(pairs) = next {
            for _ in 0..pairs {
                today.push(100.0 * (effect + 0.02 * random.normal()).exp());
                other.push(100.0 * (0.02 * random.normal()).exp());
            }
            next = next_look(&other, &today, 40);
        }
        let mut line = StoreLine::new("proxy", "m", "2026".to_owned(), "c", today);
        line.first_look = PAIRS_FIRST;
        line.later = Some(LaterLooks { second_look: PAIRS_SECOND, comparisons: 40 });
        line.beside =
            vec![PairedCommit { role: "yesterday".to_owned(), commit: "b".to_owned(), values: other, raw: Vec::new() }];
        line
    }

    #[test]
    fn looks_are_taken_as_they_are_asked_for() {
        let lines: Vec<StoreLine> = (0..200).map(|seed| taken(0.01, seed)).collect();
        assert!(lines.iter().all(|line| contradictions(line).is_empty()));
        let with = |pairs: usize| lines.iter().filter(|line| line.values.len() == pairs).count();
        assert!(with(10) > 20 && with(35) > 20 && with(135) > 20, "{} {} {}", with(10), with(35), with(135));
        // A change of half the scatter.
        let called = lines.iter().filter(|line| judge_night(&[line], &[])[0].verdict == Verdict::Worse).count();
        assert!(called > 30, "{called}");
        // A result that is clear after the second look needs no third.
        assert!((0..20).all(|seed| taken(0.2, seed).values.len() == 35));
    }

    #[test]
    fn a_look_that_there_was_no_time_for_leaves_it_undecided() {
        let line = (0..).map(|seed| taken(0.01, seed)).find(|line| line.values.len() == 135).unwrap();
        let cut = |count: usize, margin: f64| {
            let mut line = StoreLine { cut_short: Some(EarlyEnd::Budget), margin: Some(margin), ..line.clone() };
            line.values.truncate(count);
            line.beside[0].values.truncate(count);
            line.first_look = count.min(PAIRS_FIRST);
            assert_eq!(contradictions(&line), Vec::<String>::new());
            judge_night(&[&line], &[])[0].verdict
        };
        // Any difference may be missed.
        assert_eq!([7, 10].map(|count| cut(count, 9.0)), [Verdict::Undecided; 2]);
        assert_ne!(cut(35, 9.0), Verdict::Unchanged);
        let quiet = (0..).map(|seed| taken(0.0, seed)).find(|line| line.values.len() == 10).unwrap();
        let quiet = StoreLine { cut_short: Some(EarlyEnd::Budget), margin: Some(9.0), ..quiet };
        assert_eq!(
            judge_night(&[&quiet], &[])[0].verdict,
            Verdict::Unchanged,
            "this comparison called for no other look"
        );
    }

    #[test]
    fn measurements_that_were_added_or_taken_away_are_found() {
        let cut = |line: &StoreLine, count: usize| {
            let mut line = line.clone();
            line.values.truncate(count);
            line.beside[0].values.truncate(count);
            contradictions(&line)
        };
        let line = (0..).map(|seed| taken(0.01, seed)).find(|line| line.values.len() == 135).unwrap();
        assert!(cut(&line, 35)[0].contains("the third look is missing"));
        assert!(cut(&line, 10)[0].contains("the second look is missing"));
        let mut asked_for_less = line.clone();
        asked_for_less.later = None;
        assert_eq!(contradictions(&asked_for_less), Vec::<String>::new(), "of a version with two looks");
        let unchanged = (0..).map(|seed| taken(0.0, seed)).find(|line| line.values.len() == 10).unwrap();
        let mut more = unchanged.clone();
        more.values.push(1.0);
        assert!(contradictions(&more)[0].contains("different numbers"));
        more.beside[0].values.push(1.0);
        assert!(contradictions(&more)[0].contains("a second look that nothing called for"));
    }
}

#[cfg(test)]
mod kept_tests {
    use super::*;
    use crate::store::PairedCommit;
    use stillgate_stats::Random;

    fn night(commit: &str, level: f64, release: &str, seed: u64) -> StoreLine {
        let mut random = Random::new(seed);
        let mut draw = |level: f64| (0..10).map(|_| level * (0.02 * random.normal()).exp()).collect::<Vec<f64>>();
        let mut line = StoreLine::new("proxy", "m", format!("2026-01-{seed:02}"), commit, draw(level));
        line.beside = vec![PairedCommit {
            role: "release".to_owned(),
            commit: release.to_owned(),
            values: draw(100.0),
            raw: Vec::new(),
        }];
        line
    }

    #[test]
    fn a_small_sample_is_held_against_all_nights_of_the_release() {
        let mut before: Vec<StoreLine> =
            (1..8).map(|number| night(&format!("c{number}"), 103.0, "r", number)).collect();
        // The day on which the release was the day's commit counts; nights of another release, series or machine do
        // not.
        before.push(night("r", 100.0, "older", 10));
        before.push(night("c11", 50.0, "older", 11));
        before.push(StoreLine { series: "other".to_owned(), ..night("c12", 50.0, "r", 12) });
        before.push(StoreLine { machine: "n".to_owned(), ..night("c13", 50.0, "r", 13) });
        before.push(StoreLine { measure: Some("otherwise".to_owned()), ..night("c14", 50.0, "r", 14) });
        before.push(StoreLine { unit: Some("us".to_owned()), ..night("c15", 50.0, "r", 15) });
        let kept = beside_kept(&night("c20", 103.0, "r", 20), &before).unwrap();
        assert_eq!(kept.count, 80);
        assert!((kept.effect - 0.03).abs() < 0.02 && kept.p_value < 0.01, "{kept:?}");
        let same = beside_kept(&night("c20", 100.0, "r", 20), &before).unwrap();
        assert!(same.p_value > 0.01, "{same:?}");
        assert_eq!(beside_kept(&night("c20", 100.0, "r", 20), &before[..1]), None);
        assert_eq!(beside_kept(&StoreLine { beside: Vec::new(), ..before[0].clone() }, &before), None);
    }
}
