//! The verdict over a cell, in one sentence that says how sure it is.
//!
//! Only the tail decides: the median and the CPU are measured and shown, but slower requests in the middle are another
//! experiment's matter. A difference counts where it is significant after Holm's correction and larger than the design's
//! margin. Where nothing was seen, the sentence says how large a difference could have been missed: without that, "no
//! difference" is no result.

use crate::result::tail::{Arm, Cell, CellAnalysis, Effect, TailDesign, Verdict};
use crate::tail::analysis::{MEASURES_TESTED, P99_9, TAIL_MEASURES, void_reasons};
use crate::tail::{design, readable};

/// Above this share of void pairs those that are left may be a choice of quiet moments.
const VOID_SHARE_MAX: f64 = 1.0 / 3.0;

/// What a verdict rests on.
pub(super) struct Evidence<'a> {
    pub(super) design: &'a TailDesign,
    pub(super) cell: &'a Cell,
    pub(super) effects: &'a [Effect],
    pub(super) pairs: usize,
    pub(super) void_pairs: usize,
}

/// The verdict and its sentence.
pub(super) fn decide(evidence: &Evidence<'_>) -> (Verdict, String) {
    let (verdict, sentence) = if let Some(why) = nothing_to_say(evidence) {
        (Verdict::Void, why)
    } else if let Some(slower) = decisive(evidence, |effect| effect.difference > 0.0) {
        (Verdict::Slower, said(evidence, "made", "slower", slower))
    } else if let Some(faster) = decisive(evidence, |effect| effect.difference < 0.0) {
        let said = said(evidence, "came with", "being faster", faster);
        (Verdict::Faster, format!("{said} A scrape does not speed a gateway up: look for what else changed."))
    } else {
        (Verdict::NoDifference, no_difference(evidence))
    };
    (verdict, format!("{sentence}{}", failures(evidence.cell)))
}

/// The sentence over all cells.
pub(super) fn over_all(design: &TailDesign, cells: &[Cell], analysed: &[CellAnalysis]) -> String {
    let named = |verdict| {
        let names: Vec<String> = cells
            .iter()
            .zip(analysed)
            .filter(|(_, analysis)| analysis.verdict == verdict)
            .map(|(cell, _)| name(cell))
            .collect();
        names
    };
    if cells.is_empty() {
        return "No cell was finished.".to_owned();
    }
    let mut parts = Vec::new();
    for (verdict, what) in [
        (Verdict::Slower, "made slower by scrapes"),
        (Verdict::Faster, "faster with scrapes"),
        (Verdict::NoDifference, "no difference"),
        (Verdict::Void, "void"),
    ] {
        let names = named(verdict);
        if !names.is_empty() {
            parts.push(format!("{what} in {} of {}: {}", names.len(), cells.len(), names.join(", ")));
        }
    }
    let level = percent(1.0 - design.confidence);
    let caution = match cells.len() {
        1 => String::new(),
        _ => format!(" Each combination was tested at {level} by itself, so among many some may be false alarms."),
    };
    format!("The slowest requests: {}.{caution}", parts.join("; "))
}

/// Why the data allow no verdict at all.
fn nothing_to_say(evidence: &Evidence<'_>) -> Option<String> {
    let Evidence { design, cell, pairs, void_pairs, .. } = *evidence;
    let needed = design::pairs_needed(1.0 - design.confidence, MEASURES_TESTED);
    let whom = name(cell);
    let reason = || cell.blocks.iter().flat_map(void_reasons).next().unwrap_or_default();
    if void_pairs as f64 > VOID_SHARE_MAX * (pairs + void_pairs) as f64 {
        return Some(format!(
            "Nothing can be said of {whom}: {void_pairs} of {} pairs of blocks are void, for example because {}.",
            pairs + void_pairs,
            reason().trim_end_matches('.')
        ));
    }
    if pairs >= needed {
        return None;
    }
    let lost = match void_pairs {
        0 if pairs < design.pairs => format!(", of {} planned: the run ended early", design.pairs),
        0 => String::new(),
        lost => format!(" ({lost} more are void)"),
    };
    Some(format!(
        "Nothing can be said of {whom}: it has {pairs} pairs of blocks{lost}, and fewer than {needed} cannot show any \
         difference at {} confidence over {MEASURES_TESTED} measures, however large; use --pairs {} or more.",
        percent(design.confidence),
        needed + 2
    ))
}

/// The effect to tell of among those that count: the p99.9 first, then the maximum, then the p99.
fn decisive<'a>(evidence: &Evidence<'a>, wanted: impl Fn(&Effect) -> bool) -> Option<&'a Effect> {
    TAIL_MEASURES.iter().find_map(|measure| {
        evidence.effects.iter().find(|effect| {
            effect.measure == *measure
                && wanted(effect)
                && is_significant(evidence.design, effect)
                && effect.difference.abs() > evidence.design.margin * effect.without
        })
    })
}

fn is_significant(design: &TailDesign, effect: &Effect) -> bool {
    effect.p_adjusted <= 1.0 - design.confidence
}

fn said(evidence: &Evidence<'_>, made: &str, how: &str, effect: &Effect) -> String {
    let subject = &evidence.cell.subject.name;
    format!("{} {made} the slowest requests of {subject} {how}: {}.", scrapes(evidence.cell), figures(evidence, effect))
}

fn no_difference(evidence: &Evidence<'_>) -> String {
    let (design, cell) = (evidence.design, evidence.cell);
    let of = |measure: &str| evidence.effects.iter().find(|effect| effect.measure == measure);
    let shown = of(P99_9).map_or(String::new(), |effect| format!(": {}", figures(evidence, effect)));
    let small = TAIL_MEASURES
        .iter()
        .filter_map(|measure| of(measure))
        .find(|effect| is_significant(design, effect))
        .map_or(String::new(), |effect| {
            let change = readable::change(effect.difference);
            format!(
                " The change of {} by {change} is significant, but below the {} that count.",
                label(effect),
                percent(design.margin)
            )
        });
    let missed: Vec<String> = [P99_9, "max"]
        .iter()
        .filter_map(|measure| of(measure))
        .map(|effect| format!("{} by {}", label(effect), readable::time(effect.minimum_detectable)))
        .collect();
    format!(
        "{} made no significant difference to the slowest requests of {}{shown}.{small} A change smaller than this could \
         have been missed: {} ({} pairs, power {}).",
        scrapes(cell),
        cell.subject.name,
        missed.join(", "),
        evidence.pairs,
        percent(design.power)
    )
}

/// `p99.9 from 1.20 ms to 93.0 ms (+92.0 ms, 95% interval 80.0 to 101 ms)`
fn figures(evidence: &Evidence<'_>, effect: &Effect) -> String {
    format!(
        "{} from {} to {} ({}, {} interval {})",
        label(effect),
        readable::time(effect.without),
        readable::time(effect.with),
        readable::change(effect.difference),
        percent(evidence.design.confidence),
        readable::range(effect.low, effect.high)
    )
}

fn label(effect: &Effect) -> &str {
    if effect.measure == "max" { "the maximum" } else { &effect.measure }
}

/// `Scrapes every 5 s of 100,000 series`
fn scrapes(cell: &Cell) -> String {
    format!("Scrapes every {} of {} series", readable::seconds(cell.scrape_every_s), readable::count(cell.series_shown))
}

/// `haproxy (100,000 series, every 5 s)`
fn name(cell: &Cell) -> String {
    format!(
        "{} ({} series, every {})",
        cell.subject.name,
        readable::count(cell.series_shown),
        readable::seconds(cell.scrape_every_s)
    )
}

/// Failed requests, which no latency shows.
fn failures(cell: &Cell) -> String {
    let failed = |arm| cell.blocks.iter().filter(|block| block.arm == arm).map(|block| block.run.errors).sum::<u64>();
    match (failed(Arm::Without), failed(Arm::With)) {
        (0, 0) => String::new(),
        (without, with) => {
            format!(" {} requests failed with scrapes, {} without.", readable::count(with), readable::count(without))
        }
    }
}

fn percent(share: f64) -> String {
    format!("{}%", (share * 1e6).round() / 1e4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tail::{analysis, synthetic};
    use expect_test::{Expect, expect};

    /// An effect on p99.9, in microseconds; the other measures show none.
    fn effects(difference: f64, p_adjusted: f64) -> Vec<Effect> {
        ["p50", "p99", P99_9, "max", "cpu"]
            .map(|measure| {
                let of_interest = measure == P99_9;
                Effect {
                    measure: measure.to_owned(),
                    unit: "us".to_owned(),
                    without: 1_200.0,
                    with: 1_200.0 + if of_interest { difference } else { 3.0 },
                    difference: if of_interest { difference } else { 3.0 },
                    low: difference - 12_000.0,
                    high: difference + 9_000.0,
                    p_value: 1.0,
                    p_adjusted: if of_interest { p_adjusted } else { 1.0 },
                    minimum_detectable: 2_500.0,
                }
            })
            .to_vec()
    }

    fn check(effects: &[Effect], pairs: usize, void_pairs: usize, verdict: Verdict, sentence: Expect) {
        let design = synthetic::design(1, 10);
        let mut cell = synthetic::cell(&synthetic::design(1, 1), 0, 0.0);
        cell.subject.name = "haproxy".into();
        cell.series_shown = 100_000;
        cell.blocks[0].run.void.extend((void_pairs > 0).then(|| "the generator was late.".to_owned()));
        let decided = decide(&Evidence { design: &design, cell: &cell, effects, pairs, void_pairs });
        sentence.assert_eq(&decided.1);
        assert_eq!(decided.0, verdict);
    }

    #[test]
    fn a_sentence_says_how_sure_it_is() {
        check(
            &effects(92_000.0, 0.01),
            10,
            0,
            Verdict::Slower,
            expect![
                "Scrapes every 5 s of 100,000 series made the slowest requests of haproxy slower: p99.9 from 1.20 ms to 93.2 ms (+92.0 ms, 95% interval 80.0 to 101 ms)."
            ],
        );
        check(
            &effects(-600.0, 0.01),
            9,
            1,
            Verdict::Faster,
            expect![
                "Scrapes every 5 s of 100,000 series came with the slowest requests of haproxy being faster: p99.9 from 1.20 ms to 600 µs (-600 µs, 95% interval -12.6 to 8.40 ms). A scrape does not speed a gateway up: look for what else changed."
            ],
        );
        check(
            &effects(92_000.0, 0.06),
            10,
            0,
            Verdict::NoDifference,
            expect![
                "Scrapes every 5 s of 100,000 series made no significant difference to the slowest requests of haproxy: p99.9 from 1.20 ms to 93.2 ms (+92.0 ms, 95% interval 80.0 to 101 ms). A change smaller than this could have been missed: p99.9 by 2.50 ms, the maximum by 2.50 ms (10 pairs, power 90%)."
            ],
        );
        check(
            &effects(50.0, 0.01),
            10,
            0,
            Verdict::NoDifference,
            expect![
                "Scrapes every 5 s of 100,000 series made no significant difference to the slowest requests of haproxy: p99.9 from 1.20 ms to 1.25 ms (+50.0 µs, 95% interval -11.9 to 9.05 ms). The change of p99.9 by +50.0 µs is significant, but below the 10% that count. A change smaller than this could have been missed: p99.9 by 2.50 ms, the maximum by 2.50 ms (10 pairs, power 90%)."
            ],
        );
    }

    #[test]
    fn too_little_is_said_to_be_too_little() {
        check(
            &effects(92_000.0, 0.01),
            6,
            4,
            Verdict::Void,
            expect![
                "Nothing can be said of haproxy (100,000 series, every 5 s): 4 of 10 pairs of blocks are void, for example because the generator was late."
            ],
        );
        check(
            &effects(92_000.0, 0.01),
            3,
            0,
            Verdict::Void,
            expect![
                "Nothing can be said of haproxy (100,000 series, every 5 s): it has 3 pairs of blocks, of 10 planned: the run ended early, and fewer than 8 cannot show any difference at 95% confidence over 5 measures, however large; use --pairs 10 or more."
            ],
        );
        check(
            &effects(92_000.0, 0.01),
            7,
            3,
            Verdict::Void,
            expect![
                "Nothing can be said of haproxy (100,000 series, every 5 s): it has 7 pairs of blocks (3 more are void), and fewer than 8 cannot show any difference at 95% confidence over 5 measures, however large; use --pairs 10 or more."
            ],
        );
        check(
            &[],
            0,
            0,
            Verdict::Void,
            expect![
                "Nothing can be said of haproxy (100,000 series, every 5 s): it has 0 pairs of blocks, of 10 planned: the run ended early, and fewer than 8 cannot show any difference at 95% confidence over 5 measures, however large; use --pairs 10 or more."
            ],
        );
    }

    #[test]
    fn failed_requests_are_told() {
        let design = synthetic::design(1, 1);
        let mut cell = synthetic::cell(&design, 0, 0.0);
        assert_eq!(failures(&cell), "");
        cell.blocks.iter_mut().find(|block| block.arm == Arm::With).unwrap().run.errors = 1_234;
        assert_eq!(failures(&cell), " 1,234 requests failed with scrapes, 0 without.");
    }

    #[test]
    fn one_sentence_is_over_all_cells() {
        let design = synthetic::design(1, 9);
        let cells = [synthetic::cell(&design, 0, 0.0), synthetic::cell(&design, 1, 50_000.0)];
        expect!["The slowest requests: made slower by scrapes in 1 of 2: synthetic (100,123 series, every 5 s); no difference in 1 of 2: synthetic (100,123 series, every 5 s). Each combination was tested at 5% by itself, so among many some may be false alarms."].assert_eq(&analysis::analyse(&design, &cells).unwrap().sentence);
    }
}
