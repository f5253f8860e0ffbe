//! The analysis of the blocks of a tail experiment: a pure function of design and raw data, so that anyone can repeat
//! it.
//!
//! The unit of evidence is the block, not the request: requests of one stall are not independent. Each pair of blocks
//! gives one difference per measure; the Hodges-Lehmann estimate and Wilcoxon's signed-rank test assume little about
//! their distribution, which for maxima is far from normal. Six measures are tested, so Holm's correction keeps the
//! probability of any false alarm in a cell at one minus the confidence, and the intervals are those that hold together
//! with it (Bonferroni's, a little wider than the tests); there is no correction over the cells of a sweep, and the
//! sentence over all cells says so.
//!
//! The reasons to leave out a pair are the same in both arms, otherwise the arm with fewer rules would seem slower. A
//! request that failed has no latency, so failures are a measure of their own, over all pairs that were measured
//! soundly; latencies are of the pairs in which few requests failed.

use crate::error::{Error, Result};
use crate::result::histogram;
use crate::result::run::RunRecord;
use crate::result::tail::{Arm, Block, Cell, CellAnalysis, Effect, PooledQuantile, TailAnalysis, TailDesign};
use crate::tail::design::LatePairs;
use crate::tail::verdict::{self, Evidence};
use hdrhistogram::Histogram;
use stillgate_stats as stats;

/// The figures read from a block.
#[derive(Debug, Clone, Copy)]
struct Figures {
    p50_us: f64,
    p99_us: f64,
    p99_9_us: f64,
    max_us: f64,
    cpu_us: f64,
}

/// A tested figure.
struct Measure {
    name: &'static str,
    unit: &'static str,
    of: fn(&Figures) -> f64,
}

/// The measures of the pairs in which few requests failed.
const MEASURES: [Measure; 5] = [
    Measure { name: "p50", unit: "us", of: |figures| figures.p50_us },
    Measure { name: "p99", unit: "us", of: |figures| figures.p99_us },
    Measure { name: P99_9, unit: "us", of: |figures| figures.p99_9_us },
    Measure { name: "max", unit: "us", of: |figures| figures.max_us },
    Measure { name: "cpu", unit: "us/request", of: |figures| figures.cpu_us },
];

/// The measure of sentences if there is a choice.
pub(super) const P99_9: &str = "p99.9";

/// Measures that decide the verdict if no requests fail.
pub(super) const TAIL_MEASURES: [&str; 3] = [P99_9, "max", "p99"];

/// The share of requests that failed or could not be started.
pub(crate) const FAILED: &str = "failed";

/// The number of measures in Holm's correction.
pub(crate) const MEASURES_TESTED: usize = MEASURES.len() + 1;

/// Percentiles whose order-statistic intervals are given.
const POOLED_PERCENTILES: [f64; 4] = [50.0, 99.0, 99.9, 99.99];

/// With a larger share of failed requests, latencies describe the survivors only.
const FAILED_SHARE_MAX: f64 = 0.01;

/// Two blocks of one cell.
struct Pair<'a> {
    without: &'a Block,
    with: &'a Block,
}

/// The pairs of a cell.
struct Pairs<'a> {
    /// Generator and scraper worked as intended.
    sound: Vec<Pair<'a>>,
    /// All others.
    unsound: usize,
}

/// The analysis of all cells. Fails only if a stored histogram cannot be read.
pub(crate) fn analyse(design: &TailDesign, cells: &[Cell]) -> Result<TailAnalysis> {
    let analysed = cells
        .iter()
        .map(|cell| {
            analyse_cell(design, cell).map_err(|error| {
                let (name, every) = (&cell.subject.name, cell.scrape_every_s);
                error.context(format_args!("cell {} ({name}, scraped every {every} s)", cell.number))
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let sentence = verdict::over_all(design, cells, &analysed);
    Ok(TailAnalysis { cells: analysed, sentence })
}

/// The reasons why a block's latencies are not valid; empty: they are.
pub(crate) fn void_reasons(block: &Block) -> Vec<String> {
    let mut reasons = unsound_reasons(block);
    reasons.extend(failing(block));
    reasons
}

/// All requests of the valid blocks of an arm.
pub(crate) fn pooled(cell: &Cell, arm: Arm, of: fn(&RunRecord) -> &str) -> Result<Histogram<u64>> {
    let pairs = pairs(&cell.blocks);
    let histograms = pairs
        .counted_pairs()
        .map(|pair| decode(if arm == Arm::With { pair.with } else { pair.without }, of))
        .collect::<Result<Vec<_>>>()?;
    histogram::merge(&histograms)
}

/// How much slower the slowest request of each valid pair was with scrapes, in microseconds.
pub(super) fn max_differences(cell: &Cell) -> Result<Vec<f64>> {
    let max_us = |block| Ok::<_, Error>(figures(block)?.max_us);
    let pairs = pairs(&cell.blocks);
    pairs.counted_pairs().map(|pair| Ok(max_us(pair.with)? - max_us(pair.without)?)).collect()
}

fn analyse_cell(design: &TailDesign, cell: &Cell) -> Result<CellAnalysis> {
    let pairs = pairs(&cell.blocks);
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for pair in pairs.counted_pairs() {
        without.push(figures(pair.without)?);
        with.push(figures(pair.with)?);
    }
    let failed = pairs.sound.iter().map(|pair| [pair.without.run.failed_share(), pair.with.run.failed_share()]);
    let effects = effects(design, &without, &with, &failed.collect::<Vec<_>>());
    let all_without = pooled(cell, Arm::Without, |run| &run.corrected)?;
    let all_with = pooled(cell, Arm::With, |run| &run.corrected)?;
    let standing = without.len();
    let failing_pairs = pairs.sound.len() - standing;
    let unsound_pairs = pairs.unsound;
    let lost = LatePairs::of(design, &cell.blocks)?;
    let evidence =
        Evidence { design, cell, effects: &effects, pairs: standing, failing_pairs, unsound_pairs, lost: &lost };
    let (verdict, sentence) = verdict::decide(&evidence);
    Ok(CellAnalysis {
        without: histogram::percentiles(&all_without),
        with: histogram::percentiles(&all_with),
        pooled: POOLED_PERCENTILES
            .map(|percentile| {
                let interval = |all| histogram::quantile_interval_us(all, percentile / 100.0, design.confidence);
                PooledQuantile { percentile, without: interval(&all_without), with: interval(&all_with) }
            })
            .to_vec(),
        effects,
        pairs: standing,
        void_pairs: failing_pairs + unsound_pairs,
        verdict,
        sentence,
    })
}

impl<'a> Pairs<'a> {
    /// The pairs whose latencies count.
    fn counted_pairs(&self) -> impl Iterator<Item = &Pair<'a>> {
        self.sound.iter().filter(|pair| failing(pair.with).is_none() && failing(pair.without).is_none())
    }
}

/// Blocks grouped by their pair's number; one without its partner, from an interrupted run, is left out.
fn pairs(blocks: &[Block]) -> Pairs<'_> {
    let mut pairs = Pairs { sound: Vec::new(), unsound: 0 };
    for with in blocks.iter().filter(|block| block.arm == Arm::With) {
        let partner = blocks.iter().find(|block| block.arm == Arm::Without && block.pair == with.pair);
        let Some(without) = partner else { continue };
        match unsound_reasons(with).is_empty() && unsound_reasons(without).is_empty() {
            true => pairs.sound.push(Pair { without, with }),
            false => pairs.unsound += 1,
        }
    }
    pairs
}

/// The reasons why a block was not run as intended, regardless of the target.
fn unsound_reasons(block: &Block) -> Vec<String> {
    let mut reasons = block.run.void.clone();
    // A scrape that broke off may be how a stall looks to the scraper; a refused one is not.
    let scraped = block.scrapes.iter().any(|scrape| scrape.error.is_none() || scrape.broke_off);
    if block.arm == Arm::With && !scraped {
        let example = block.scrapes.iter().find_map(|scrape| scrape.error.as_deref());
        reasons.push(example.map_or("it has no scrape".to_owned(), |why| format!("no scrape succeeded: {why}")));
    }
    reasons
}

/// Too many requests without a latency.
fn failing(block: &Block) -> Option<String> {
    let run = &block.run;
    (run.failed_share() > FAILED_SHARE_MAX).then(|| {
        let arm = if block.arm == Arm::With { "with" } else { "without" };
        let example = run.error_examples.first().map_or("no example was kept", String::as_str);
        format!("{} of {} requests failed {arm} scrapes: {example}", run.failed(), run.requested())
    })
}

fn figures(block: &Block) -> Result<Figures> {
    let corrected = decode(block, |run| &run.corrected)?;
    Ok(Figures {
        p50_us: histogram::quantile_us(&corrected, 0.5),
        p99_us: histogram::quantile_us(&corrected, 0.99),
        p99_9_us: histogram::quantile_us(&corrected, 0.999),
        max_us: histogram::max_us(&corrected),
        cpu_us: block.cpu_us_per_request,
    })
}

fn decode(block: &Block, of: fn(&RunRecord) -> &str) -> Result<Histogram<u64>> {
    let arm = if block.arm == Arm::With { "with" } else { "without" };
    histogram::decode(of(&block.run))
        .map_err(|error: Error| error.context(format_args!("block {arm} scrapes of pair {}", block.pair)))
}

/// The paired effect on each measure; none without pairs. `failed` has the shares without and with scrapes.
fn effects(design: &TailDesign, without: &[Figures], with: &[Figures], failed: &[[f64; 2]]) -> Vec<Effect> {
    let latencies = MEASURES.iter().filter_map(|measure| {
        let values = |figures: &[Figures]| figures.iter().map(measure.of).collect::<Vec<f64>>();
        let margin = if TAIL_MEASURES.contains(&measure.name) { design.margin } else { 0.0 };
        effect(design, (measure.name, measure.unit), [values(without), values(with)], margin)
    });
    let shares = [0, 1].map(|arm| failed.iter().map(|shares| shares[arm]).collect::<Vec<f64>>());
    let mut effects: Vec<Effect> = latencies.chain(effect(design, (FAILED, "share"), shares, 0.0)).collect();
    // The family is the planned one, even if some of it could not be tested.
    let mut p_values: Vec<f64> = effects.iter().map(|effect| effect.p_value).collect();
    p_values.resize(MEASURES_TESTED, 1.0);
    for (effect, p_adjusted) in effects.iter_mut().zip(stats::holm(&p_values)) {
        effect.p_adjusted = p_adjusted;
    }
    effects
}

fn effect(
    design: &TailDesign,
    (measure, unit): (&str, &str),
    [without, with]: [Vec<f64>; 2],
    margin: f64,
) -> Option<Effect> {
    let differences: Vec<f64> = with.iter().zip(&without).map(|(with, without)| with - without).collect();
    let difference = stats::median(&differences)?;
    let median_without = stats::median(&without)?;
    // With too few pairs for an interval of this confidence, it is unbounded.
    let (value, low, high) = stats::hodges_lehmann(&differences, 1.0 - level(design))
        .map_or((difference, f64::NEG_INFINITY, f64::INFINITY), |estimate| {
            (estimate.value, estimate.interval.low, estimate.interval.high)
        });
    Some(Effect {
        measure: measure.to_owned(),
        unit: unit.to_owned(),
        without: median_without,
        with: stats::median(&with)?,
        difference: value,
        low,
        high,
        p_value: stats::signed_rank(&differences).map_or(1.0, |test| test.p_value),
        p_adjusted: 1.0,
        minimum_detectable: minimum_detectable(design, &differences, margin * median_without),
    })
}

/// Bonferroni's share of the error: that of the intervals, and the one that Holm's correction begins with, so that a
/// detectable difference is detectable regardless of the other measures.
fn level(design: &TailDesign) -> f64 {
    (1.0 - design.confidence) / MEASURES_TESTED as f64
}

/// By the test, and by the threshold that an estimate must exceed.
fn minimum_detectable(design: &TailDesign, differences: &[f64], threshold: f64) -> f64 {
    let pairs = differences.len() as u64;
    let detectable = stats::standard_deviation(differences).and_then(|sd| {
        let by_test = stats::minimum_detectable_effect_signed_rank(pairs, sd, level(design), design.power)?;
        Some(by_test.max(stats::effect_beyond(threshold, pairs, sd, design.power)?))
    });
    detectable.unwrap_or(f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tail::Verdict;
    use crate::tail::synthetic;
    use stats::Random;

    /// Simulated experiments.
    const SIMULATED: usize = 600;

    /// Blocks of a machine that drifts and has heavy tails, with correlated measures; scrapes multiply the tail by
    /// `effect`.
    fn simulated(random: &mut Random, pairs: usize, effect: f64) -> (Vec<Figures>, Vec<Figures>) {
        let mut drift = 0.0;
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for _ in 0..pairs {
            drift += 0.1 * random.normal();
            for (figures, effect) in [(&mut without, 1.0), (&mut with, effect)] {
                let level = (drift + 0.05 * random.normal()).exp();
                let p99 = 3.0 * (0.1 * random.normal()).exp() * effect;
                let p99_9 = p99 * 1.5 * (0.2 * random.normal()).exp();
                let max = p99_9 * (1.0 + random.exponential(3.0));
                figures.push(Figures {
                    p50_us: 200.0 * level,
                    p99_us: 200.0 * level * p99,
                    p99_9_us: 200.0 * level * p99_9,
                    max_us: 200.0 * level * max,
                    cpu_us: 10.0 * level,
                });
            }
        }
        (without, with)
    }

    /// Verdicts over simulated experiments; any significant difference counts, however small.
    fn verdicts(effect: f64) -> Vec<Verdict> {
        let design = TailDesign { margin: 0.0, ..synthetic::design(1, 10) };
        let cell = synthetic::cell(&synthetic::design(1, 1), 0, 0.0);
        let mut random = Random::new(2026);
        (0..SIMULATED)
            .map(|_| {
                let (without, with) = simulated(&mut random, design.pairs, effect);
                let effects = effects(&design, &without, &with, &vec![[0.0; 2]; design.pairs]);
                let evidence = Evidence {
                    design: &design,
                    cell: &cell,
                    effects: &effects,
                    pairs: design.pairs,
                    failing_pairs: 0,
                    unsound_pairs: 0,
                    lost: &LatePairs::default(),
                };
                verdict::decide(&evidence).0
            })
            .collect()
    }

    #[test]
    fn false_alarms_stay_within_alpha() {
        let alarms = verdicts(1.0).iter().filter(|verdict| **verdict != Verdict::NoDifference).count() as f64;
        let (expected, variance) = (0.05 * SIMULATED as f64, 0.05 * 0.95 * SIMULATED as f64);
        assert!(alarms <= expected + 3.0 * variance.sqrt(), "{alarms} false alarms in {SIMULATED}");
    }

    #[test]
    fn a_tail_twice_as_long_is_found() {
        let found = verdicts(2.0).iter().filter(|verdict| **verdict == Verdict::Slower).count();
        assert!(found * 100 >= SIMULATED * 95, "{found} of {SIMULATED}");
    }

    #[test]
    fn a_stall_at_scrapes_is_found_with_its_size() {
        let stall_us = 50_000.0;
        for seed in 1..=3 {
            let design = synthetic::design(seed, 10);
            let cell = synthetic::cell(&design, 0, stall_us);
            let analysis = analyse(&design, &[cell]).unwrap();
            let found = &analysis.cells[0];
            let max = found.effects.iter().find(|effect| effect.measure == "max").unwrap();
            assert_eq!(found.verdict, Verdict::Slower, "{}", found.sentence);
            assert!((max.difference / stall_us - 1.0).abs() < 0.05, "{max:?}");
            assert!(max.low <= max.difference && max.difference <= max.high && max.low > 0.9 * stall_us, "{max:?}");
            let p99_9 = found.effects.iter().find(|effect| effect.measure == P99_9).unwrap();
            assert!(p99_9.p_adjusted <= 0.05 && p99_9.difference > 10_000.0, "{p99_9:?}");
            let pooled = found.pooled.iter().find(|quantile| quantile.percentile == 99.9).unwrap();
            let (low, high) = pooled.with.unwrap();
            assert!(low <= found.with.p99_9 && found.with.p99_9 <= high, "{pooled:?}");
        }
    }

    #[test]
    fn pairs_with_a_void_block_are_left_out() {
        let design = synthetic::design(1, 10);
        let check = |spoil: fn(&mut Block), arm: Arm, spoilt: usize, pairs: usize, void: usize, verdict: Verdict| {
            let mut cell = synthetic::cell(&design, 0, 50_000.0);
            let blocks = cell.blocks.iter_mut().filter(|block| block.arm == arm);
            blocks.take(spoilt).for_each(spoil);
            let analysis = analyse(&design, &[cell]).unwrap().cells.remove(0);
            assert_eq!(
                (analysis.pairs, analysis.void_pairs, analysis.verdict),
                (pairs, void, verdict),
                "{}",
                analysis.sentence
            );
        };
        let late: fn(&mut Block) = |block| block.run.void.push("the generator was late".into());
        let unscraped: fn(&mut Block) = |block| block.scrapes.clear();
        let refused: fn(&mut Block) =
            |block| block.scrapes.iter_mut().for_each(|scrape| scrape.error = Some("404 Not Found".into()));
        let broken: fn(&mut Block) = |block| {
            for scrape in &mut block.scrapes {
                (scrape.error, scrape.broke_off) = (Some("cut off after 0 bytes".into()), true);
            }
        };
        let failing: fn(&mut Block) = |block| fail(block, block.run.requests);
        check(late, Arm::Without, 2, 8, 2, Verdict::Slower);
        check(late, Arm::With, 3, 7, 3, Verdict::Void);
        check(unscraped, Arm::With, 4, 6, 4, Verdict::Void);
        check(refused, Arm::With, 10, 0, 10, Verdict::Void);
        // A stall may be the reason why the scrape is cut off.
        check(broken, Arm::With, 10, 10, 0, Verdict::Slower);
        // The same on both sides.
        check(failing, Arm::Without, 1, 9, 1, Verdict::Slower);
        check(failing, Arm::With, 1, 9, 1, Verdict::Slower);
        check(failing, Arm::Without, 10, 0, 10, Verdict::Void);
        // Failures under scrapes alone are the effect in question.
        check(failing, Arm::With, 10, 0, 10, Verdict::Failing);
    }

    /// Fails `count` requests, which then have no latency.
    fn fail(block: &mut Block, count: u64) {
        block.run.requests -= count;
        block.run.errors = count;
        block.run.errors_by_kind.insert("closed".into(), count);
    }

    #[test]
    fn requests_that_scrapes_make_fail_are_found_though_no_latency_shows_them() {
        let design = synthetic::design(4, 10);
        let check = |without: u64, with: u64, verdict: Verdict, said: &str| {
            let mut cell = synthetic::cell(&design, 0, 0.0);
            for (number, block) in cell.blocks.iter_mut().enumerate() {
                fail(block, if block.arm == Arm::With { with + number as u64 } else { without });
            }
            let analysis = analyse(&design, &[cell]).unwrap().cells.remove(0);
            assert_eq!(analysis.verdict, verdict, "{}", analysis.sentence);
            assert!(analysis.sentence.contains(said), "{}", analysis.sentence);
        };
        check(0, 1, Verdict::Failing, "made more requests of synthetic fail: ");
        check(20, 200, Verdict::Failing, "made more requests of synthetic fail: ");
        check(8, 0, Verdict::NoDifference, "requests failed with scrapes, 80 without.");
    }

    #[test]
    fn an_unfinished_cell_has_no_verdict_however_clear_it_is() {
        let design = synthetic::design(1, 10);
        let mut cell = synthetic::cell(&design, 0, 50_000.0);
        cell.blocks.truncate(18);
        let analysis = analyse(&design, &[cell]).unwrap().cells.remove(0);
        assert_eq!((analysis.pairs, analysis.verdict), (9, Verdict::Void));
        assert!(analysis.sentence.contains("it is unfinished, with 9 of 10 pairs"), "{}", analysis.sentence);
    }

    #[test]
    fn what_could_be_missed_is_never_less_than_the_margin() {
        let design = synthetic::design(1, 10);
        // Next to no noise: the test alone would distinguish far smaller differences.
        let differences = [0.0, 0.1, -0.1, 0.05, -0.05, 0.02, -0.02, 0.0, 0.1, -0.1];
        assert!(minimum_detectable(&design, &differences, 0.0) < 1.0);
        assert!(minimum_detectable(&design, &differences, 50.0) >= 50.0);
        assert!(minimum_detectable(&design, &differences[..5], 50.0).is_infinite());
    }

    #[test]
    fn a_block_without_its_partner_is_no_pair() {
        let design = synthetic::design(1, 9);
        let mut cell = synthetic::cell(&design, 0, 0.0);
        cell.blocks.pop();
        assert_eq!(analyse(&design, &[cell]).unwrap().cells[0].pairs, 8);
        assert_eq!(analyse(&design, &[]).unwrap().sentence, "No cell was finished.");
    }

    #[test]
    fn a_damaged_histogram_is_named() {
        let design = synthetic::design(1, 2);
        let mut cell = synthetic::cell(&design, 0, 0.0);
        cell.blocks[2].run.corrected = "AAAA".into();
        let error = analyse(&design, &[cell]).unwrap_err().to_string();
        assert!(
            error.starts_with("cell 0 (synthetic, scraped every 5 s): block") && error.contains("pair 1"),
            "{error}"
        );
    }
}
