//! Changes as text, with the commits in between and the command that finds the one.

use super::analysis::{NIGHTS_MAX, Series, SeriesChange};
use crate::cli::typed::quoted_word;
use crate::error::Result;
use crate::git::{git, short};
use std::fmt::Write as _;
use std::path::Path;

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
