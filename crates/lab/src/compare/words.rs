//! The sentences of a comparison: verdicts with their figures.
//!
//! One wording for terminal, Markdown, report and result file.

use super::analysis::worst;
use super::measures::{self, FAILED_SHARE_MAX, Measure, PAIRED};
use crate::result::compare::{
    BuildPair, CompareDesign, Crash, Decision, Failures, MeasureAnalysis, MeasureVerdict, PairwiseResult, Side,
};

/// Advice to run more pairs than this is not given.
const PAIRS_ADVISED_MAX: f64 = 1000.0;

/// The note on changes and the figures of both sides: without it they look like bad arithmetic.
pub(crate) fn paired_note(between: BuildPair) -> String {
    let BuildPair { one, other } = between;
    format!(
        "Each change is the median of the ratios within pairs (Hodges-Lehmann), less one. It is not the ratio of columns \
         {one:?} and {other:?}, which are separate medians."
    )
}

/// The first sentence of a verdict, and the rest.
pub(crate) fn headline(sentence: &str) -> (&str, &str) {
    sentence.find(". ").map_or((sentence, ""), |at| (&sentence[..=at], &sentence[at + 2..]))
}

/// The sentence about one measure.
pub(super) fn measure(measure: &Measure, analysis: &MeasureAnalysis, margin: f64) -> String {
    let name = measure.name;
    let differs = |word: &str| {
        format!(
            "{name}: {word} by {} ({}), p = {}",
            size(analysis.effect),
            interval(analysis.low, analysis.high),
            p(analysis.p_adjusted)
        )
    };
    match analysis.verdict {
        MeasureVerdict::Slower => differs(measure.worse),
        MeasureVerdict::Faster => differs(measure.better),
        MeasureVerdict::NoDifference if analysis.minimum_detectable.is_infinite() => {
            format!("{name}: too few pairs to show any difference")
        }
        MeasureVerdict::NoDifference => {
            let (detectable, interval) = (size(analysis.minimum_detectable), interval(analysis.low, analysis.high));
            let word = if analysis.is_within(margin) { "no difference" } else { "cannot say" };
            format!("{name}: {word}; {interval}, and a difference of {detectable} or more would have been detected")
        }
    }
}

/// The first line of a reason, which may contain the log of a program, and the number of the other lines.
pub(crate) fn in_short(reason: &str) -> String {
    match reason.trim_end().split_once('\n') {
        None => reason.trim_end().to_owned(),
        Some((first, rest)) => format!("{first} ({} more lines in the result file)", rest.lines().count()),
    }
}

/// The sentence about failed requests, if there are any.
pub(super) fn failures(failures: &Failures, between: BuildPair) -> String {
    let BuildPair { one, .. } = between;
    let Failures { a, b, pairs_a_more, pairs_b_more, .. } = failures;
    let word = match failures.verdict {
        MeasureVerdict::Slower => "more",
        MeasureVerdict::Faster => "fewer",
        MeasureVerdict::NoDifference => "no certain difference",
    };
    format!(
        "failed requests: {word}, {} ({one:?} {}); more than {one:?}'s in {}, fewer in {pairs_a_more}, p = {}",
        failed_share(*b),
        failed_share(*a),
        pairs_in_words(*pairs_b_more),
        p(failures.p_adjusted)
    )
}

/// The sentence about the whole, if it is not void.
pub(super) fn decision(
    decision: Decision,
    design: &CompareDesign,
    (between, found, failures): (BuildPair, &[(&Measure, MeasureAnalysis)], &Failures),
    pairs: usize,
) -> String {
    let BuildPair { one, other } = between;
    let with = |verdict| {
        let of = |(measure, analysis): &(&Measure, MeasureAnalysis)| {
            (analysis.verdict == verdict).then(|| changed(measure.name, analysis))
        };
        let failed =
            (failures.verdict == verdict && verdict != MeasureVerdict::NoDifference).then(|| failed(failures, one));
        failed.into_iter().chain(found.iter().filter_map(of)).collect::<Vec<_>>().join(", ")
    };
    let (worse, better) = (with(MeasureVerdict::Slower), with(MeasureVerdict::Faster));
    let is_judged = |measure: &&Measure| found.iter().any(|(judged, _)| judged.name == measure.name);
    let missing: Vec<&str> = PAIRED.iter().filter(|measure| !is_judged(measure)).map(|measure| measure.name).collect();
    let better = if better.is_empty() { String::new() } else { format!("; better: {better}") };
    let also = if missing.is_empty() { String::new() } else { format!(" Not judged: {}.", missing.join(", ")) };
    match decision {
        Decision::Worse => format!("{other:?} is worse than {one:?}: {worse}{better} ({pairs} pairs).{also}"),
        Decision::NotWorse => {
            let power = share(design.power);
            let seen: String =
                deciding(design, found).iter().map(|analysis| would_have_been_seen(analysis, &power)).collect();
            format!("{other:?} is not worse than {one:?}{better} ({pairs} pairs).{also}{seen}")
        }
        Decision::Undecided => {
            let open = undecided(design, (between, found, failures), pairs);
            format!("Undecided after {pairs} pairs: {}{better}.{also}", open.join("; "))
        }
        Decision::Void => String::new(),
    }
}

/// `cpu +5.2% (+4.1% to +6.3%)`
fn changed(name: &str, analysis: &MeasureAnalysis) -> String {
    format!("{name} {} ({})", change(analysis.effect), interval(analysis.low, analysis.high))
}

/// `failed requests 0.50% (A 0%)`
fn failed(failures: &Failures, one: Side) -> String {
    format!("failed requests {} ({one:?} {})", failed_share(failures.b), failed_share(failures.a))
}

fn deciding<'a>(design: &CompareDesign, found: &'a [(&Measure, MeasureAnalysis)]) -> Vec<&'a MeasureAnalysis> {
    let named = |name: &String| found.iter().find(|(measure, _)| measure.name == name).map(|(_, found)| found);
    design.deciding.iter().filter_map(named).collect()
}

fn would_have_been_seen(analysis: &MeasureAnalysis, power: &str) -> String {
    let MeasureAnalysis { measure, low, high, minimum_detectable, .. } = analysis;
    let (detectable, interval) = (size(*minimum_detectable), interval(*low, *high));
    format!(
        " The change in {measure} is {interval}; one of {detectable} or more would have been detected with a probability of {power}."
    )
}

/// The sentence about a program that ended.
pub(super) fn crashed(crash: &Crash, between: BuildPair, design: &CompareDesign) -> String {
    let BuildPair { one, other } = between;
    let when = crash.pair.map_or("the pilot".to_owned(), |pair| format!("pair {pair} of {}", design.pairs));
    format!(
        "{other:?} is worse than {one:?}: it ended under load, in {when}; the end of what it printed is in the result"
    )
}

/// The sentence about measures that lack too many pairs.
pub(super) fn not_judged(names: &[&str], missing: usize, pairs: usize, reason: &str) -> String {
    let names = names.join(", ");
    format!("{names} not judged: {missing} of {pairs} pairs cannot be used, the first because of {reason}")
}

/// The sentence about a void comparison.
pub(super) fn void(void_pairs: usize, pairs: usize, share_max: f64, reason: &str) -> String {
    let allowed = share(share_max);
    format!(
        "Void: {void_pairs} of {pairs} pairs cannot be used (at most {allowed} allowed); the first because of {reason}"
    )
}

/// The sentence about a comparison that was interrupted, or has no look planned at this point.
pub(super) fn unfinished(done: usize, planned: usize, void: usize) -> String {
    let why = match void {
        0 => "no look was planned there".to_owned(),
        void => format!("an early look needs all of them ({void} are void)"),
    };
    format!("Unfinished: {done} of {planned} pairs were run, and {why}; nothing is decided")
}

/// The sentence about all comparisons with the baseline, if there are several.
pub(super) fn together(all: &[&PairwiseResult], rounds: usize) -> String {
    let with = |decision: Decision| all.iter().filter(move |judged| judged.analysis.decision == decision);
    let worse = with(Decision::Worse).map(|judged| {
        let found = judged.analysis.measures.iter().filter(|measure| measure.verdict == MeasureVerdict::Slower);
        let failures = &judged.analysis.failures;
        let failed = (failures.verdict == MeasureVerdict::Slower).then(|| failed(failures, judged.between.one));
        let found = found.map(|analysis| changed(&analysis.measure, analysis));
        let found: Vec<String> = failed.into_iter().chain(found).collect();
        let by = if found.is_empty() { String::new() } else { format!(": {}", found.join(", ")) };
        format!("{:?} is worse than A{by}", judged.between.other)
    });
    let others =
        [(Decision::NotWorse, "not worse than A"), (Decision::Undecided, "undecided"), (Decision::Void, "void")];
    let others = others.into_iter().filter_map(|(decision, words)| {
        let names: Vec<String> = with(decision).map(|judged| format!("{:?}", judged.between.other)).collect();
        let verb = if names.len() == 1 { "is" } else { "are" };
        (!names.is_empty()).then(|| format!("{} {verb} {words}", listed(&names)))
    });
    let parts: Vec<String> = worse.chain(others).collect();
    format!("{} ({rounds} rounds).", parts.join("; "))
}

/// `B, C and D`
fn listed(names: &[String]) -> String {
    match names {
        [all @ .., last] if !all.is_empty() => format!("{} and {last}", all.join(", ")),
        _ => names.concat(),
    }
}

/// The reason why B cannot be called not worse.
fn undecided(
    design: &CompareDesign,
    (between, found, failures): (BuildPair, &[(&Measure, MeasureAnalysis)], &Failures),
    pairs: usize,
) -> Vec<String> {
    let BuildPair { one, other } = between;
    let Failures { pairs_a_failing, pairs_b_failing, .. } = failures;
    let failing = (*pairs_b_failing > 0).then(|| {
        let failing = pairs_in_words(*pairs_b_failing);
        let most = share(FAILED_SHARE_MAX);
        format!("more than {most} of {other:?}'s requests failed in {failing} ({one:?}'s in {pairs_a_failing})")
    });
    let open = design.deciding.iter().filter_map(|name| match found.iter().find(|(measure, _)| measure.name == name) {
        None => Some(format!("{name} was not judged")),
        Some((_, analysis)) => undecided_measure(analysis, design, pairs),
    });
    failing.into_iter().chain(open).collect()
}

/// `None`: it is decided.
fn undecided_measure(analysis: &MeasureAnalysis, design: &CompareDesign, pairs: usize) -> Option<String> {
    let (name, margin) = (&analysis.measure, share(design.margin));
    let detectable = analysis.minimum_detectable;
    if analysis.verdict == MeasureVerdict::Faster || detectable <= design.margin && worst(analysis) <= design.margin {
        return None;
    }
    if detectable.is_infinite() {
        return Some(format!("too few pairs to show any difference in {name}"));
    }
    if detectable <= design.margin {
        let worst = size(worst(analysis));
        return Some(format!(
            "{name} may be worse by as much as {worst}, more than the margin of {margin}; run more pairs (--pairs)"
        ));
    }
    // The detectable difference shrinks with the root of the number of pairs; the smallest change that counts does not.
    let least = measures::effect_min(name);
    let needed = (pairs as f64 * (detectable.ln_1p() / design.margin.ln_1p()).powi(2)).ceil();
    let advice = if design.margin <= least {
        format!("smaller ones do not count, so --margin cannot be below {}", share(least))
    } else if needed <= PAIRS_ADVISED_MAX {
        format!("about {needed} pairs (--pairs) would show it")
    } else {
        "a quieter machine is needed".to_owned()
    };
    let detectable = size(detectable);
    Some(format!(
        "only a change in {name} of {detectable} or more can be detected, which is above the margin of {margin}; {advice}"
    ))
}

/// `3 pairs`
fn pairs_in_words(pairs: usize) -> String {
    if pairs == 1 { "1 pair".to_owned() } else { format!("{pairs} pairs") }
}

/// `0.05%`; a share above zero is never shown as zero.
fn failed_share(share: f64) -> String {
    match share {
        0.0 => "0%".to_owned(),
        share if share < 1e-4 => "under 0.01%".to_owned(),
        share => format!("{:.2}%", share * 100.0),
    }
}

/// `5.2%` for 0.052 and for -0.052.
pub(super) fn size(effect: f64) -> String {
    format!("{:.1}%", effect.abs() * 100.0)
}

/// `+5.2%`
pub(super) fn change(effect: f64) -> String {
    format!("{:+.1}%", effect * 100.0)
}

/// `-1.0% to +2.5%`; with few pairs an end may be unbounded.
pub(super) fn interval(low: f64, high: f64) -> String {
    if high.is_infinite() { "not bounded".to_owned() } else { format!("{} to {}", change(low), change(high)) }
}

/// `5%`
pub(super) fn share(share: f64) -> String {
    format!("{}%", (share * 1e4).round() / 1e2)
}

/// A p-value to two digits.
pub(super) fn p(value: f64) -> String {
    if value >= 0.001 { format!("{value:.3}") } else { format!("{value:.1e}") }
}

/// A figure to about four digits.
pub(super) fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 1000.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

/// A minimum detectable effect.
pub(super) fn detectable(effect: f64) -> String {
    if effect.is_infinite() { "none".to_owned() } else { size(effect) }
}

/// The sentence about the design.
pub(super) fn design(design: &CompareDesign, done: usize) -> String {
    let looks = match design.looks.as_slice() {
        [] => String::new(),
        looks => {
            let looks: Vec<String> = looks.iter().map(ToString::to_string).collect();
            format!(" (looked at after {})", looks.join(", "))
        }
    };
    let unit = if design.builds > 2 { "rounds" } else { "pairs" };
    let over = match design.comparisons().len() {
        1 => "all measures".to_owned(),
        comparisons => format!("all measures of {comparisons} comparisons"),
    };
    format!(
        "{done} of {} {unit}{looks}, each side freshly started; {} connections: {:.1} s closed loop, then {} requests/s for \
         {:.1} s; error at most {} over {over}; seed {}",
        design.pairs,
        design.connections,
        design.saturation_s,
        figure(design.rate),
        design.rate_s,
        share(design.alpha),
        design.seed
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_difference_is_only_said_of_an_interval_within_the_margin() {
        let check = |low: f64, high: f64, word: &str| {
            let analysis =
                MeasureAnalysis { low, high, minimum_detectable: 0.04, ..super::super::analysis::blank_p99() };
            let said = measure(measures::named("p99").unwrap(), &analysis, 0.05);
            assert!(said.starts_with(&format!("p99: {word}; ")), "{said}");
        };
        check(-0.03, 0.049, "no difference");
        check(-0.05, 0.05, "no difference");
        check(-0.1, 12.32, "cannot say");
        check(-0.03, 0.051, "cannot say");
        check(-0.06, 0.01, "cannot say");
        check(-0.03, f64::INFINITY, "cannot say");
        check(f64::NAN, f64::NAN, "cannot say");
    }

    #[test]
    fn a_log_is_not_shown_whole() {
        assert_eq!(in_short("it did not start\n"), "it did not start");
        let log = format!("it ended: signal 4\n{}", "==7== Illegal instruction\n".repeat(60));
        assert_eq!(in_short(&log), "it ended: signal 4 (60 more lines in the result file)");
    }

    #[test]
    fn the_first_sentence_of_a_verdict() {
        let check = |sentence, first, rest| assert_eq!(headline(sentence), (first, rest));
        check("B is worse than A: cpu +5.2%. Better: p99.", "B is worse than A: cpu +5.2%.", "Better: p99.");
        check("Void: 3 of 8 pairs", "Void: 3 of 8 pairs", "");
    }
}
