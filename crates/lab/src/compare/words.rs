//! The sentences of a comparison: verdicts with their figures.
//!
//! One wording for terminal, Markdown, report and result file.

use super::measures::Measure;
use crate::result::compare::{CompareDesign, Decision, MeasureAnalysis, MeasureVerdict};

/// More pairs than this are no advice.
const PAIRS_ADVISED_MAX: f64 = 1000.0;

/// Of one measure.
pub(super) fn measure(measure: &Measure, analysis: &MeasureAnalysis) -> String {
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
            format!("{name}: so few pairs can show no difference")
        }
        MeasureVerdict::NoDifference => {
            format!("{name}: no difference larger than {}", size(analysis.minimum_detectable))
        }
    }
}

/// Of the whole, where it is not void.
pub(super) fn decision(
    decision: Decision,
    design: &CompareDesign,
    found: &[(&Measure, MeasureAnalysis)],
    pairs: usize,
) -> String {
    let with = |verdict| {
        let of = |(measure, analysis): &(&Measure, MeasureAnalysis)| {
            (analysis.verdict == verdict).then(|| format!("{} {}", measure.name, change(analysis.effect)))
        };
        found.iter().filter_map(of).collect::<Vec<_>>().join(", ")
    };
    let (worse, better) = (with(MeasureVerdict::Slower), with(MeasureVerdict::Faster));
    let also = if better.is_empty() { String::new() } else { format!(" Better: {better}.") };
    let deciding = |name: &String| found.iter().find(|(measure, _)| measure.name == name).map(|(_, found)| found);
    match decision {
        Decision::Worse => format!("B is worse than A: {worse} ({pairs} pairs).{also}"),
        Decision::NotWorse => {
            let seen = design
                .deciding
                .iter()
                .filter_map(deciding)
                .map(|analysis| format!("{} of {} or more", analysis.measure, size(analysis.minimum_detectable)));
            format!(
                "B is not worse than A ({pairs} pairs).{also} A change in {} would have been seen with a probability of {}.",
                seen.collect::<Vec<_>>().join(", in "),
                share(design.power)
            )
        }
        Decision::Undecided => {
            let open = design.deciding.iter().filter(|name| {
                deciding(name).is_none_or(|analysis| {
                    analysis.verdict == MeasureVerdict::NoDifference && analysis.minimum_detectable > design.margin
                })
            });
            let open: Vec<String> = open.map(|name| undecided(name, deciding(name), design, pairs)).collect();
            format!("Undecided after {pairs} pairs: {}.{also}", open.join("; "))
        }
        Decision::Void => String::new(),
    }
}

/// Of a comparison that says nothing.
pub(super) fn void(void_pairs: usize, pairs: usize, share_max: f64, reason: &str) -> String {
    let allowed = share(share_max);
    format!("Void: {void_pairs} of {pairs} pairs cannot be used, {allowed} may be; the first because of {reason}")
}

/// Of latencies that cannot be judged; behind the decision.
pub(super) fn late(late: usize, pairs: usize, reason: &str) -> String {
    format!(
        " Latencies are not judged: they cannot be used in {late} of {pairs} pairs; in the first because of {reason}"
    )
}

/// Of a comparison that was broken off.
pub(super) fn unfinished(done: usize, planned: usize) -> String {
    format!("Unfinished: {done} of {planned} pairs were run, and no look was planned there; nothing is decided")
}

fn undecided(name: &str, analysis: Option<&MeasureAnalysis>, design: &CompareDesign, pairs: usize) -> String {
    let Some(analysis) = analysis else {
        return format!("{name} was not measured");
    };
    let detectable = analysis.minimum_detectable;
    if detectable.is_infinite() {
        return format!("so few pairs can show no difference in {name}");
    }
    // What can be seen goes with the root of the number of pairs.
    let needed = (pairs as f64 * (detectable.ln_1p() / design.margin.ln_1p()).powi(2)).ceil();
    let advice = if needed <= PAIRS_ADVISED_MAX {
        format!("about {needed} pairs (--pairs) would show it")
    } else {
        "a quieter machine is needed".to_owned()
    };
    format!(
        "a change in {name} must be {} to be seen, more than the margin of {}; {advice}",
        size(detectable),
        share(design.margin)
    )
}

/// `5.2%` of 0.052 and of -0.052.
pub(super) fn size(effect: f64) -> String {
    format!("{:.1}%", effect.abs() * 100.0)
}

/// `+5.2%`
pub(super) fn change(effect: f64) -> String {
    format!("{:+.1}%", effect * 100.0)
}

/// `-1.0% to +2.5%`; so few pairs may bound nothing.
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

/// A figure to some four digits.
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

/// What was done.
pub(super) fn design(design: &CompareDesign, done: usize) -> String {
    let looks = match design.looks.as_slice() {
        [] => String::new(),
        looks => {
            let looks: Vec<String> = looks.iter().map(ToString::to_string).collect();
            format!(" (looked at after {})", looks.join(", "))
        }
    };
    format!(
        "{done} of {} pairs{looks}, each side freshly started; {} connections: {:.1} s closed loop, then {} requests/s for \
         {:.1} s; error at most {} over all measures; seed {}",
        design.pairs,
        design.connections,
        design.saturation_s,
        figure(design.rate),
        design.rate_s,
        share(design.alpha),
        design.seed
    )
}
