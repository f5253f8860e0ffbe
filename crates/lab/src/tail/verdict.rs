//! The verdict on a cell, in one sentence with its certainty.
//!
//! Only failures and the tail decide: the median and the CPU are measured and shown, but slower requests in the middle
//! are another experiment's subject. A difference of the tail counts if it is significant after Holm's correction and
//! larger than the design's margin; one of failed requests if it is significant. Before the last due pair there is no
//! verdict: stopping at any pair would mean stopping when chance is kind. If nothing was found, the sentence states how
//! large a difference could have been missed: without that, "no difference" is not a result.

use crate::result::tail::{Arm, Cell, CellAnalysis, CellPlan, Effect, TailDesign, TailResult, Verdict};
use crate::tail::analysis::{FAILED, MEASURES_TESTED, P99_9, TAIL_MEASURES, void_reasons};
use crate::tail::design::{self, LatePairs};
use crate::tail::readable;

/// With a larger share of void pairs that are not replaced by spares, the rest may be a selection of quiet moments.
const VOID_SHARE_MAX: f64 = 1.0 / 3.0;

/// With a larger share of time taken by the host, it may have caused the slowest requests.
const STOLEN_SHARE_MAX: f64 = 0.01;

/// The evidence for a verdict.
pub(super) struct Evidence<'a> {
    pub(super) design: &'a TailDesign,
    pub(super) cell: &'a Cell,
    pub(super) effects: &'a [Effect],
    /// Pairs whose latencies count.
    pub(super) pairs: usize,
    /// Left out because too many of their requests failed.
    pub(super) failing_pairs: usize,
    /// Left out because generator or scraper did not work as intended.
    pub(super) unsound_pairs: usize,
    /// The ones among them for which spare pairs are due.
    pub(super) lost: &'a LatePairs,
}

impl Evidence<'_> {
    /// All pairs, of any kind.
    fn done(&self) -> usize {
        self.pairs + self.failing_pairs + self.unsound_pairs
    }

    /// Spare pairs among them.
    fn spares(&self) -> usize {
        self.done().saturating_sub(self.design.pairs)
    }
}

/// The verdict and its sentence.
pub(super) fn decide(evidence: &Evidence<'_>) -> (Verdict, String) {
    let (verdict, sentence) = if let Some(why) = unfinished(evidence).or_else(|| unsound(evidence)) {
        (Verdict::Void, why)
    } else if let Some(failing) = failing(evidence) {
        return (Verdict::Failing, format!("{failing}{}{}", replaced(evidence), stolen(evidence.cell)));
    } else if let Some(why) = too_few(evidence) {
        (Verdict::Void, why)
    } else if let Some(slower) = decisive(evidence, |effect| effect.difference > 0.0) {
        (Verdict::Slower, difference_sentence(evidence, "made", "slower", slower))
    } else if let Some(why) = uneven(evidence) {
        (Verdict::Void, why)
    } else if let Some(faster) = decisive(evidence, |effect| effect.difference < 0.0) {
        let said = difference_sentence(evidence, "came with", "being faster", faster);
        (Verdict::Faster, format!("{said} A scrape does not speed a gateway up: look for what else changed."))
    } else {
        (Verdict::NoDifference, no_difference(evidence))
    };
    let (failures, stolen) = (failures(evidence.cell), stolen(evidence.cell));
    (verdict, format!("{sentence}{}{failures}{stolen}", replaced(evidence)))
}

/// The verdict on a cell in few words. A missing finding does not exclude a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShownVerdict {
    Slower,
    Failing,
    Faster,
    /// The intervals of all measures of the tail are within the margin.
    NoDifference,
    /// Nothing was found, and a difference that counts is not excluded.
    CannotSay,
    Void,
}

impl ShownVerdict {
    pub(crate) fn of(analysis: &CellAnalysis, design: &TailDesign) -> ShownVerdict {
        let of_tail = || analysis.effects.iter().filter(|effect| TAIL_MEASURES.contains(&effect.measure.as_str()));
        let is_known = of_tail().next().is_some() && of_tail().all(|effect| effect.is_within(design.margin));
        match analysis.verdict {
            Verdict::Slower => ShownVerdict::Slower,
            Verdict::Failing => ShownVerdict::Failing,
            Verdict::Faster => ShownVerdict::Faster,
            Verdict::NoDifference if is_known => ShownVerdict::NoDifference,
            Verdict::NoDifference => ShownVerdict::CannotSay,
            Verdict::Void => ShownVerdict::Void,
        }
    }
}

/// The sentence over all cells in the stored form: without a finding it says "no difference".
pub(super) fn over_all(design: &TailDesign, cells: &[Cell], analysed: &[CellAnalysis]) -> String {
    let kept = |analysis: &CellAnalysis| match ShownVerdict::of(analysis, design) {
        ShownVerdict::CannotSay => ShownVerdict::NoDifference,
        other => other,
    };
    over_all_by(design, cells, analysed, kept)
}

/// The sentence over all cells in the displayed form.
pub(crate) fn shown_over_all(result: &TailResult) -> String {
    let TailResult { design, cells, analysis, .. } = result;
    over_all_by(design, cells, &analysis.cells, |analysis| ShownVerdict::of(analysis, design))
}

fn over_all_by(
    design: &TailDesign,
    cells: &[Cell],
    analysed: &[CellAnalysis],
    verdict_of: impl Fn(&CellAnalysis) -> ShownVerdict,
) -> String {
    let named = |verdict| {
        let names: Vec<String> = cells
            .iter()
            .zip(analysed)
            .filter(|(_, analysis)| verdict_of(analysis) == verdict)
            .map(|(cell, _)| cell_name(cell))
            .collect();
        names
    };
    if cells.is_empty() {
        return "No cell was finished.".to_owned();
    }
    let measured = |number: usize| cells.iter().any(|cell| cell.number == number);
    let missing = design.plan.iter().enumerate().filter(|(number, _)| !measured(*number));
    let missing: Vec<String> = missing.map(|(_, planned)| planned_name(planned)).collect();
    let of = design.plan.len().max(cells.len());
    let mut parts = Vec::new();
    for (names, what) in [
        (named(ShownVerdict::Slower), "made slower by scrapes"),
        (named(ShownVerdict::Failing), "more of all requests failed with scrapes"),
        (named(ShownVerdict::Faster), "faster with scrapes"),
        (named(ShownVerdict::NoDifference), "no difference"),
        (named(ShownVerdict::CannotSay), "cannot say"),
        (named(ShownVerdict::Void), "void"),
        (missing, "planned, but not measured"),
    ] {
        if !names.is_empty() {
            parts.push(format!("{what} in {} of {of}: {}", names.len(), names.join(", ")));
        }
    }
    let level = percent(1.0 - design.confidence);
    let caution = match of {
        1 => String::new(),
        _ if analysed.iter().all(|analysis| analysis.verdict == Verdict::Void) => String::new(),
        _ => format!(" Each combination was tested at {level} by itself, so among many some may be false alarms."),
    };
    format!("The slowest requests: {}.{caution}", parts.join("; "))
}

fn unfinished(evidence: &Evidence<'_>) -> Option<String> {
    let (done, due) = (evidence.done(), evidence.lost.due(evidence.design));
    (done < due).then(|| {
        format!(
            "No verdict on {}: it is unfinished, with {done} of {due} pairs of blocks, and a verdict before the last would be one at a chosen moment.",
            cell_name(evidence.cell)
        )
    })
}

fn unsound(evidence: &Evidence<'_>) -> Option<String> {
    left_out(evidence, evidence.unsound_pairs)
}

/// The sentence about more failed requests, which no latency shows.
fn failing(evidence: &Evidence<'_>) -> Option<String> {
    let effect =
        find(evidence, FAILED).filter(|effect| effect.difference > 0.0 && is_significant(evidence.design, effect))?;
    Some(format!(
        "{} made more requests of {} fail: {} of them with, {} without ({} percentage points, simultaneous {} interval {} to {}).",
        scrapes(evidence.cell),
        evidence.cell.subject.name,
        percent(effect.with),
        percent(effect.without),
        points(effect.difference),
        percent(evidence.design.confidence),
        points(effect.low),
        points(effect.high),
    ))
}

/// The reason why the latencies allow no verdict.
fn too_few(evidence: &Evidence<'_>) -> Option<String> {
    let Evidence { design, cell, pairs, failing_pairs, unsound_pairs, .. } = *evidence;
    let lost = failing_pairs + unsound_pairs;
    if let Some(why) = left_out(evidence, lost) {
        return Some(why);
    }
    let needed = design::pairs_needed(1.0 - design.confidence, MEASURES_TESTED);
    if pairs >= needed {
        return None;
    }
    let lost = if lost == 0 { String::new() } else { format!(" ({lost} more are void)") };
    Some(format!(
        "No verdict on {}: it has {pairs} pairs of blocks{lost}, and fewer than {needed} cannot show any \
         difference at {} confidence over {MEASURES_TESTED} measures, however large; use --pairs {} or more.",
        cell_name(cell),
        percent(design.confidence),
        needed + 2
    ))
}

/// Only void pairs that were not replaced by spares count.
fn left_out(evidence: &Evidence<'_>, lost: usize) -> Option<String> {
    let reason = || evidence.cell.blocks.iter().flat_map(void_reasons).next().unwrap_or_default();
    let (done, spares) = (evidence.done(), evidence.spares());
    let missing = lost.saturating_sub(spares);
    let replaced = if spares == 0 { String::new() } else { format!(" ({spares} of them replaced)") };
    (missing as f64 > VOID_SHARE_MAX * (done - spares) as f64).then(|| {
        format!(
            "No verdict on {}: {lost} of {done} pairs of blocks are void{replaced}, for example because {}.",
            cell_name(evidence.cell),
            reason().trim_end_matches('.')
        )
    })
}

/// Pairs replaced because scrapes disturbed the generator might have shown their effect on the target.
fn uneven(evidence: &Evidence<'_>) -> Option<String> {
    (evidence.spares() > 0 && evidence.lost.is_uneven(evidence.design)).then(|| {
        format!(
            "No verdict on {}: the generator was not equally late with scrapes and without, and chance does not explain it, so the replaced pairs may be those that would have shown a difference; give the generator CPUs of \
             its own (--load-cpus), or a lower rate.",
            cell_name(evidence.cell)
        )
    })
}

fn replaced(evidence: &Evidence<'_>) -> String {
    evidence.lost.words(evidence.design, evidence.done())
}

/// The effect to report among those that count: the p99.9 first, then the maximum, then the p99.
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

fn find<'a>(evidence: &Evidence<'a>, measure: &str) -> Option<&'a Effect> {
    evidence.effects.iter().find(|effect| effect.measure == measure)
}

fn is_significant(design: &TailDesign, effect: &Effect) -> bool {
    effect.p_adjusted <= 1.0 - design.confidence
}

fn difference_sentence(evidence: &Evidence<'_>, made: &str, how: &str, effect: &Effect) -> String {
    let subject = &evidence.cell.subject.name;
    format!("{} {made} the slowest requests of {subject} {how}: {}.", scrapes(evidence.cell), figures(evidence, effect))
}

fn no_difference(evidence: &Evidence<'_>) -> String {
    let (design, cell) = (evidence.design, evidence.cell);
    let of = |measure: &str| find(evidence, measure);
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

/// `p99.9 from 1.20 ms to 93.0 ms (+92.0 ms, simultaneous 95% interval 80.0 to 101 ms)`
fn figures(evidence: &Evidence<'_>, effect: &Effect) -> String {
    format!(
        "{} from {} to {} ({}, simultaneous {} interval {})",
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
fn cell_name(cell: &Cell) -> String {
    format!(
        "{} ({} series, every {})",
        cell.subject.name,
        readable::count(cell.series_shown),
        readable::seconds(cell.scrape_every_s)
    )
}

fn planned_name(planned: &CellPlan) -> String {
    let series = planned.series.map_or(String::new(), |series| format!("{} series, ", readable::count(series)));
    format!("{} ({series}every {})", planned.name, readable::seconds(planned.scrape_every_s))
}

/// Failed requests, which no latency shows.
fn failures(cell: &Cell) -> String {
    let failed = |arm| cell.blocks.iter().filter(|block| block.arm == arm).map(|block| block.run.failed()).sum::<u64>();
    match (failed(Arm::Without), failed(Arm::With)) {
        (0, 0) => String::new(),
        (without, with) => {
            format!(" {} requests failed with scrapes, {} without.", readable::count(with), readable::count(without))
        }
    }
}

/// The time taken by the host of a virtual machine, if it is much.
fn stolen(cell: &Cell) -> String {
    let share = |arm: Option<Arm>| {
        let blocks = || cell.blocks.iter().filter(|block| arm.is_none_or(|arm| block.arm == arm));
        let time_s: f64 = blocks().map(|block| block.run.elapsed_s).sum();
        let stolen_s = blocks().map(|block| block.stolen_ms).sum::<f64>() / 1e3;
        if time_s > 0.0 { stolen_s / time_s } else { 0.0 }
    };
    if share(None) <= STOLEN_SHARE_MAX {
        return String::new();
    }
    let words = |arm| format!("{:.1}%", share(Some(arm)) * 100.0);
    format!(
        " The host took CPUs from the machine for {} of the time with scrapes and {} without: it may have caused some of the slowest requests.",
        words(Arm::With),
        words(Arm::Without)
    )
}

/// A difference of shares, in percentage points.
fn points(share: f64) -> String {
    if share.is_finite() { format!("{:+}", (share * 1e6).round() / 1e4) } else { "any value".to_owned() }
}

pub(super) fn percent(share: f64) -> String {
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

    fn check(effects: &[Effect], pairs: usize, unsound_pairs: usize, verdict: Verdict, sentence: Expect) {
        let design = synthetic::design(1, 10);
        let mut cell = synthetic::cell(&synthetic::design(1, 1), 0, 0.0);
        cell.subject.name = "haproxy".into();
        cell.series_shown = 100_000;
        cell.blocks[0].run.void.extend((unsound_pairs > 0).then(|| "the generator was late.".to_owned()));
        let decided = decide(&Evidence {
            design: &design,
            cell: &cell,
            effects,
            pairs,
            failing_pairs: 0,
            unsound_pairs,
            lost: &LatePairs::default(),
        });
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
                "Scrapes every 5 s of 100,000 series made the slowest requests of haproxy slower: p99.9 from 1.20 ms to 93.2 ms (+92.0 ms, simultaneous 95% interval 80.0 to 101 ms)."
            ],
        );
        check(
            &effects(-600.0, 0.01),
            9,
            1,
            Verdict::Faster,
            expect![
                "Scrapes every 5 s of 100,000 series came with the slowest requests of haproxy being faster: p99.9 from 1.20 ms to 600 µs (-600 µs, simultaneous 95% interval -12.6 to 8.40 ms). A scrape does not speed a gateway up: look for what else changed."
            ],
        );
        check(
            &effects(92_000.0, 0.06),
            10,
            0,
            Verdict::NoDifference,
            expect![
                "Scrapes every 5 s of 100,000 series made no significant difference to the slowest requests of haproxy: p99.9 from 1.20 ms to 93.2 ms (+92.0 ms, simultaneous 95% interval 80.0 to 101 ms). A change smaller than this could have been missed: p99.9 by 2.50 ms, the maximum by 2.50 ms (10 pairs, power 90%)."
            ],
        );
        check(
            &effects(50.0, 0.01),
            10,
            0,
            Verdict::NoDifference,
            expect![
                "Scrapes every 5 s of 100,000 series made no significant difference to the slowest requests of haproxy: p99.9 from 1.20 ms to 1.25 ms (+50.0 µs, simultaneous 95% interval -11.9 to 9.05 ms). The change of p99.9 by +50.0 µs is significant, but below the 10% that count. A change smaller than this could have been missed: p99.9 by 2.50 ms, the maximum by 2.50 ms (10 pairs, power 90%)."
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
                "No verdict on haproxy (100,000 series, every 5 s): 4 of 10 pairs of blocks are void, for example because the generator was late."
            ],
        );
        check(
            &effects(92_000.0, 0.01),
            3,
            0,
            Verdict::Void,
            expect![
                "No verdict on haproxy (100,000 series, every 5 s): it is unfinished, with 3 of 10 pairs of blocks, and a verdict before the last would be one at a chosen moment."
            ],
        );
        check(
            &effects(92_000.0, 0.01),
            7,
            3,
            Verdict::Void,
            expect![
                "No verdict on haproxy (100,000 series, every 5 s): it has 7 pairs of blocks (3 more are void), and fewer than 8 cannot show any difference at 95% confidence over 6 measures, however large; use --pairs 10 or more."
            ],
        );
        check(
            &[],
            0,
            0,
            Verdict::Void,
            expect![
                "No verdict on haproxy (100,000 series, every 5 s): it is unfinished, with 0 of 10 pairs of blocks, and a verdict before the last would be one at a chosen moment."
            ],
        );
    }

    #[test]
    fn failed_requests_are_reported() {
        let design = synthetic::design(1, 1);
        let mut cell = synthetic::cell(&design, 0, 0.0);
        assert_eq!(failures(&cell), "");
        cell.blocks.iter_mut().find(|block| block.arm == Arm::With).unwrap().run.errors = 1_234;
        assert_eq!(failures(&cell), " 1,234 requests failed with scrapes, 0 without.");
    }

    #[test]
    fn that_there_is_no_difference_is_said_within_the_margin_only() {
        let design = synthetic::design(1, 9);
        let mut analysis = analysis::analyse(&design, &[synthetic::cell(&design, 0, 0.0)]).unwrap().cells.remove(0);
        analysis.verdict = Verdict::NoDifference;
        let mut check = |low: f64, high: f64, other_high: f64, shown: ShownVerdict| {
            for effect in &mut analysis.effects {
                effect.without = 1_000.0;
                (effect.low, effect.high) = match effect.measure.as_str() {
                    P99_9 => (low, high),
                    "max" | "p99" => (-50.0, other_high),
                    _ => (-5_000.0, 5_000.0),
                };
            }
            assert_eq!(ShownVerdict::of(&analysis, &design), shown, "{low} to {high}, {other_high}");
        };
        assert_eq!(design.margin, 0.1);
        check(-100.0, 100.0, 100.0, ShownVerdict::NoDifference);
        check(-100.0, 12_320.0, 0.0, ShownVerdict::CannotSay);
        check(-101.0, 0.0, 0.0, ShownVerdict::CannotSay);
        check(0.0, 0.0, 101.0, ShownVerdict::CannotSay);
        check(f64::NEG_INFINITY, f64::INFINITY, 0.0, ShownVerdict::CannotSay);
        check(f64::NAN, f64::NAN, 0.0, ShownVerdict::CannotSay);
        analysis.effects.clear();
        assert_eq!(ShownVerdict::of(&analysis, &design), ShownVerdict::CannotSay);
        analysis.verdict = Verdict::Slower;
        assert_eq!(ShownVerdict::of(&analysis, &design), ShownVerdict::Slower);
    }

    #[test]
    fn much_time_taken_by_the_host_is_reported() {
        let design = synthetic::design(1, 1);
        let mut cell = synthetic::cell(&design, 0, 0.0);
        let mut check = |with_ms: f64, said: &str| {
            cell.blocks
                .iter_mut()
                .for_each(|block| block.stolen_ms = if block.arm == Arm::With { with_ms } else { 40.0 });
            assert_eq!(stolen(&cell).split(':').next().unwrap(), said);
        };
        check(50.0, "");
        check(90.0, " The host took CPUs from the machine for 1.8% of the time with scrapes and 0.8% without");
    }

    #[test]
    fn cells_that_were_left_out_are_named() {
        let mut design = synthetic::design(1, 9);
        let cells = [synthetic::cell(&design, 1, 0.0)];
        design.plan = ["nginx", "synthetic"]
            .map(|name| CellPlan { name: name.into(), series: Some(1_000), scrape_every_s: 5.0 })
            .to_vec();
        let sentence = analysis::analyse(&design, &cells).unwrap().sentence;
        assert!(
            sentence.contains("planned, but not measured in 1 of 2: nginx (1,000 series, every 5 s)"),
            "{sentence}"
        );
        assert!(sentence.contains("no difference in 1 of 2: synthetic"), "{sentence}");
    }

    #[test]
    fn one_sentence_is_over_all_cells() {
        let design = synthetic::design(1, 9);
        let cells = [synthetic::cell(&design, 0, 0.0), synthetic::cell(&design, 1, 50_000.0)];
        expect!["The slowest requests: made slower by scrapes in 1 of 2: synthetic (100,123 series, every 5 s); no difference in 1 of 2: synthetic (100,123 series, every 5 s). Each combination was tested at 5% by itself, so among many some may be false alarms."].assert_eq(&analysis::analyse(&design, &cells).unwrap().sentence);
    }
}
