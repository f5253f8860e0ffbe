//! The answer as text.

use crate::git::short;
use crate::result::bisect::{
    Answer, BisectDesign, BisectResult, BisectVerdict, FoundChange, MergeOrder, RelativeChange, TryOutcome,
};
use std::fmt::Write as _;

/// How many commits of a range, and of those that cannot be measured, are named.
const NAMED_MAX: usize = 12;

/// How many commits are named if the result is undecided.
const LIKELY_MAX: usize = 5;

/// One sentence: which commit changed it, and by how much. `is_hidden`: a change could be among measurements far from
/// the others.
pub(super) fn sentence(result: &BisectResult, answer: &Answer, is_hidden: bool) -> String {
    let design = &result.design;
    let wanted = percent(design.min_effect);
    match answer.verdict {
        BisectVerdict::Found => {
            let changes: Vec<String> = answer.changes.iter().map(|change| found(result, change)).collect();
            format!("{}.", changes.join("; and "))
        }
        BisectVerdict::None => format!(
            "Nothing between {} and {} changed it by {wanted} or more (probability {}).",
            design.good,
            design.bad,
            probability(answer.none)
        ),
        BisectVerdict::Void => {
            let place =
                if answer.unbuildable.contains(&result.commits[0].commit) { 0 } else { result.commits.len() - 1 };
            let end = if place == 0 { &design.good } else { &design.bad };
            format!("{end} cannot be measured: {}", reason(result, place))
        }
        BisectVerdict::Undecided if answer.none >= design.confidence && is_hidden => format!(
            "Not decided after {} measurements: their usual level has not changed by {wanted} or more (probability {}), but some \
             are far from it, and a commit that makes these more frequent would not be seen.",
            answer.measurements,
            probability(answer.none)
        ),
        BisectVerdict::Undecided => format!(
            "Not decided after {} measurements: no change of {wanted} or more with probability {}, several with {}.",
            answer.measurements,
            probability(answer.none),
            probability(answer.several)
        ),
    }
}

/// The sentence with its details.
pub(crate) fn report(result: &BisectResult) -> String {
    let answer = &result.answer;
    let mut out = format!("{}\n", answer.sentence);
    // Writing to a `String` does not fail.
    let _ = writeln!(
        out,
        "{} measurements of {} {}; a single one scatters by {}, without outliers. {}",
        answer.measurements,
        result.commits.len(),
        result.design.items(),
        percent(answer.noise),
        line(result)
    );
    if answer.verdict == BisectVerdict::Undecided {
        let mut likely: Vec<(&String, &f64)> = answer.posterior.iter().collect();
        likely.sort_by(|a, b| b.1.total_cmp(a.1));
        for (commit, p) in likely.iter().take(LIKELY_MAX) {
            let _ = writeln!(out, "  {} {}  {}", short(commit), probability(**p), subject(result, commit));
        }
    }
    if answer.changes.len() < 2 && answer.several > 0.5 {
        let _ = writeln!(out, "There is more than one change (probability {}).", probability(answer.several));
    }
    if !answer.unbuildable.is_empty() {
        let _ = writeln!(out, "Could not be measured: {}", named(&answer.unbuildable));
    }
    for change in &answer.changes {
        if let [only] = change.commits.as_slice()
            && result.commits.iter().any(|commit| commit.commit == *only && commit.is_merge)
        {
            let only = short(only);
            let _ = writeln!(out, "{only} is a merge; look into it with --good {only}^1 --bad {only}^2");
        }
    }
    out
}

/// The first of them, and the number of the rest.
fn named(commits: &[String]) -> String {
    let names: Vec<&str> = commits.iter().take(NAMED_MAX).map(|commit| short(commit)).collect();
    let more = commits.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", names.join(", "))
}

fn found(result: &BisectResult, change: &FoundChange) -> String {
    let by = change.effect.map_or(String::new(), |effect| format!(" by {}", with_interval(&result.design, effect)));
    let p = probability(change.probability);
    match change.commits.as_slice() {
        [only] => format!("{} changed it{by} (probability {p}): {}", short(only), subject(result, only)),
        several => {
            let names = named(several);
            format!(
                "One of {names} changed it{by} (probability {p}); which one is open, as some of them cannot be measured"
            )
        }
    }
}

fn with_interval(design: &BisectDesign, effect: RelativeChange) -> String {
    let is_worse = (effect.value < 0.0) == design.higher_is_better;
    let word = if is_worse { "worse" } else { "better" };
    format!("{} ({} to {}; {word})", signed(effect.value), signed(effect.low), signed(effect.high))
}

/// The reason why a commit cannot be measured.
fn reason(result: &BisectResult, place: usize) -> String {
    let of_place = result.tries.iter().rev().filter(|tried| tried.place == place);
    let why = of_place.filter_map(|tried| match &tried.outcome {
        TryOutcome::NotBuilt { why } | TryOutcome::Skipped { why } | TryOutcome::Failed { why } => Some(why.clone()),
        TryOutcome::Built | TryOutcome::Measured { .. } => None,
    });
    why.take(1).next().unwrap_or_else(|| "no reason is recorded".to_owned())
}

fn line(result: &BisectResult) -> String {
    let merges = result.commits.iter().filter(|commit| commit.is_merge).count();
    match (result.design.line, merges) {
        _ if result.design.versions.is_some() => String::new(),
        (_, 0) => "None of these commits is a merge.".to_owned(),
        (MergeOrder::FirstParent, _) => format!("Along first parents: each of {merges} merges is one step."),
        (MergeOrder::Linear, _) => format!("All commits in a row, with {merges} merges among them."),
    }
}

fn subject<'a>(result: &'a BisectResult, commit: &str) -> &'a str {
    result.commits.iter().find(|record| record.commit == commit).map_or("", |record| &record.subject)
}

/// Never rounded up to certainty.
pub(super) fn probability(p: f64) -> String {
    match p {
        p if p > 0.999 => "over 99.9%".to_owned(),
        p if p < 0.001 => "below 0.1%".to_owned(),
        p => format!("{:.1}%", p * 100.0),
    }
}

fn percent(share: f64) -> String {
    format!("{:.2}%", share * 100.0)
}

fn signed(share: f64) -> String {
    format!("{:+.2}%", share * 100.0)
}
