//! A night in Markdown, which is readable on a terminal, too.

use super::analysis::{Judged, Verdict};
use crate::git::short;
use crate::result::environment::Environment;
use std::fmt::Write as _;

/// The whole report.
pub(crate) fn markdown(commit: &str, judged: &[Judged], failed: &[String], machine: &Environment) -> String {
    let mut out = format!("### Night of {}: {}\n\n", short(commit), headline(judged));
    out.push_str("| series | compared with | difference (95%) | smallest detectable | p | pairs | |\n");
    out.push_str("|---|---|--:|--:|--:|--:|---|\n");
    for one in judged {
        let [value, low, high] = one.effect.map(|share| format!("{:+.1}%", share * 100.0));
        let least = one.detectable.map_or("none".to_owned(), |least| format!("{:.1}%", least * 100.0));
        // Writing to a `String` does not fail.
        let _ = writeln!(
            out,
            "| {} | {} {} | {value} ({low} to {high}) | {least} | {:.3} | {} | {} |",
            one.series.replace('|', "\\|"),
            one.role,
            short(&one.beside),
            one.p_value,
            one.pairs,
            if one.verdict == Verdict::Worse { "**worse**" } else { word(one.verdict) }
        );
    }
    for line in failed {
        let _ = writeln!(out, "\nNot measured: {line}");
    }
    let _ = writeln!(out, "\n{}", self::machine(machine));
    out
}

/// How many comparisons came to what.
pub(crate) fn headline(judged: &[Judged]) -> String {
    let count = |verdict| judged.iter().filter(|one| one.verdict == verdict).count();
    format!(
        "{} worse, {} better, {} unchanged, {} undecided",
        count(Verdict::Worse),
        count(Verdict::Better),
        count(Verdict::Unchanged),
        count(Verdict::Undecided)
    )
}

/// What it was measured on.
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
