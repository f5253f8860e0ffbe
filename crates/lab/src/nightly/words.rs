//! A night in Markdown, which is also readable on a terminal.

use super::analysis::{NightComparison, SampleComparison, Verdict};
use crate::git::short;
use crate::history::{Series, SeriesChange};
use crate::result::run::Environment;
use std::fmt::Write as _;

/// The content of a night's report.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) commit: String,
    pub(crate) judged: Vec<NightComparison>,
    /// Series that were not measured.
    pub(crate) failed: Vec<String>,
    /// `None` if the suite counts nothing.
    pub(crate) counts: Option<Counts>,
    pub(crate) machine: Environment,
}

/// The counts of each commit.
#[derive(Debug)]
pub(crate) struct Counts {
    /// Over the commits of this night.
    pub(crate) series: Vec<Series>,
    pub(crate) failed: Vec<String>,
}

impl Report {
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
pub(crate) fn markdown(report: &Report) -> String {
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
            cell(&one.series),
            one.role,
            short(&one.beside),
            p_value(one.p_value),
            one.pairs,
            one.kept.as_ref().map(sample_cell).unwrap_or_default(),
            if one.verdict == Verdict::Worse { "**worse**" } else { word(one.verdict) }
        );
    }
    for line in &report.failed {
        let _ = writeln!(out, "\nNot measured: {}", line.trim_end());
    }
    if let Some(counts) = &report.counts {
        counted(&mut out, counts);
    }
    let _ = writeln!(out, "\n{}", machine(&report.machine));
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
fn counted(out: &mut String, counts: &Counts) {
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
            cell(&series.name),
            change.effect * 100.0,
            cell(&by(series, change)),
            if series.is_worse(change) { "**worse**" } else { "better" }
        );
    }
    for line in &counts.failed {
        let _ = writeln!(out, "\nNot counted: {line}");
    }
}

impl Counts {
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
pub(crate) fn by(series: &Series, change: &SeriesChange) -> String {
    let (before, after) = (&series.points[change.at - 1], &series.points[change.at]);
    let (Some(from), Some(to)) = (&before.counted, &after.counted) else { return String::new() };
    match to.place - from.place {
        1 => format!("{} {}", short(&after.commit), to.subject),
        count => format!("one of {count} commits after {} up to {}", short(&before.commit), short(&after.commit)),
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// The number of comparisons by verdict.
pub(crate) fn headline(report: &Report) -> String {
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
pub(crate) fn machine(machine: &Environment) -> String {
    let cpu = machine.cpu_model.as_deref().unwrap_or("an unknown CPU");
    format!("{} CPUs, {cpu}, {}.", machine.cpus, machine.kernel)
}

pub(crate) fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Worse => "worse",
        Verdict::Better => "better",
        Verdict::Unchanged => "unchanged",
        Verdict::Undecided => "undecided",
    }
}
