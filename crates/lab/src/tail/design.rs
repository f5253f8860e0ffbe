//! The decisions before the first block: the cells, how many pairs of blocks each has and may have, in which order they
//! run, and the rule by which spare pairs follow.

use crate::error::{Error, Result};
use crate::result::histogram;
use crate::result::run::RunRecord;
use crate::result::tail::{Arm, Block, CellPlan, TailDesign};
use crate::tail::title_of;
use crate::target::Spec;
use std::collections::BTreeMap;
use std::time::Duration;
use stillgate_load::Bounds;
use stillgate_load::outcome::LATENCY_NS_MAX;
use stillgate_load::verdict::late_max;
use stillgate_stats::Random;

/// At the confidence of 95% and six measures, eight pairs are the fewest that can show anything (see [`pairs_needed`]); with
/// ten, two may be lost to a machine that was busy.
pub(crate) const PAIRS_DEFAULT: u64 = 10;

/// Confidence of all intervals of a cell together; its tests together decide at 5%.
pub(crate) const CONFIDENCE: f64 = 0.95;

/// Power of the minimum detectable differences.
pub(crate) const POWER: f64 = 0.9;

/// A change of the tail by less than a tenth is not a stall, even if it is certain.
pub(crate) const MARGIN: f64 = 0.1;

/// Unmeasured load before each block: connections are opened, and the caches recover from another block's scrapes.
pub(crate) const LEAD_IN: Duration = Duration::from_millis(500);

/// The shortest block that `--hours` makes.
const BLOCK_MIN_S: f64 = 1.0;

/// One planned combination.
#[derive(Debug, Clone)]
pub(crate) struct PlannedCell {
    /// Its index, from 0.
    pub(crate) number: usize,
    /// With the number of series if the target makes series.
    pub(crate) spec: Spec,
    /// Interval between scrapes.
    pub(crate) every: Duration,
}

impl PlannedCell {
    /// The form in result files.
    pub(crate) fn planned(&self) -> CellPlan {
        CellPlan { name: self.spec.name.clone(), series: self.spec.series, scrape_every_s: self.every.as_secs_f64() }
    }
}

/// All combinations, in the order they are run. A target with a fixed exposition has one cell per interval.
pub(crate) fn cells(specs: &[Spec], series: &[u64], every: &[Duration]) -> Vec<PlannedCell> {
    let mut cells = Vec::new();
    for spec in specs {
        let numbers: Vec<Option<u64>> =
            if spec.kind.makes_series() { series.iter().copied().map(Some).collect() } else { vec![None] };
        for series in numbers {
            for &every in every {
                let spec = Spec { series, ..spec.clone() };
                cells.push(PlannedCell { number: cells.len(), spec, every });
            }
        }
    }
    cells
}

/// Refuses a plan that contains a cell twice: results are identified by target, series and interval.
pub(crate) fn check_distinct(planned: &[CellPlan]) -> Result {
    let twice = planned.iter().enumerate().find(|(number, cell)| planned[..*number].contains(cell));
    twice.map_or(Ok(()), |(_, cell)| {
        Err(Error::new(format!(
            "\"{}\" would be run twice, and results are identified by these words: name each target, number of series and time between scrapes once; to compare two builds of one program, use `stillgate-lab compare`",
            title_of(cell)
        )))
    })
}

/// The measured time of a block with which the planned blocks of all cells take this many hours.
pub(crate) fn block_s(design: &TailDesign, cells: usize, hours: f64) -> Result<f64> {
    let blocks = (cells * design.pairs * 2) as f64;
    let block_s = ((hours * 3600.0 / blocks - design.lead_in_s) * 1e3).floor() / 1e3;
    if block_s < BLOCK_MIN_S {
        return Err(Error::new(format!(
            "--hours {hours}: {blocks} blocks would be shorter than {BLOCK_MIN_S} s; write more hours, or fewer cells or --pairs"
        )));
    }
    Ok(block_s)
}

/// Refuses plans without meaningful results.
pub(crate) fn check(design: &TailDesign, every: &[Duration]) -> Result {
    if design.pairs == 0 {
        return Err("--pairs 0 measures nothing; the default is 10".into());
    }
    for every in every {
        if every.is_zero() {
            return Err("--scrape-every 0 is not an interval; write for example 5s".into());
        }
        if every.as_secs_f64() > design.block_s {
            return Err(Error::new(format!(
                "a block of {block} s is shorter than the {every} s between scrapes, so it would be scraped more often than \
                 that; write --block {every}s, or a shorter --scrape-every",
                block = design.block_s,
                every = every.as_secs_f64()
            )));
        }
    }
    Ok(())
}

/// The order of a cell's blocks, pair and arm; the order of fewer pairs is a prefix of that of more. Of each two pairs
/// one has its scraped block first and the other last, so a drift favours neither arm; the choice is random, so nothing
/// periodic on the machine can stay in step.
pub(crate) fn order(seed: u64, cell: usize, pairs: usize) -> Vec<(usize, Arm)> {
    // Each cell has its own stream, regardless of earlier cells.
    let mut random = Random::new(seed.wrapping_add(cell as u64));
    let mut scraped_first = false;
    (0..pairs)
        .flat_map(|pair| {
            scraped_first = if pair % 2 == 0 { random.below(2) == 1 } else { !scraped_first };
            let (first, second) = if scraped_first { (Arm::With, Arm::Without) } else { (Arm::Without, Arm::With) };
            [(pair, first), (pair, second)]
        })
        .collect()
}

/// The fewest pairs with which a signed-rank test can be significant at `alpha` after Holm's correction over `measures`:
/// all n differences have the same sign in 2 of 2^n cases.
pub(crate) fn pairs_needed(alpha: f64, measures: usize) -> usize {
    let mut pairs = 1;
    while 2f64.powi(1 - pairs) > alpha / measures as f64 && pairs < i32::from(u8::MAX) {
        pairs += 1;
    }
    pairs as usize
}

// Pairs of blocks that were lost because of the generator, and the number of spare pairs that a cell is due for them.
//
// The number of pairs is not chosen after seeing an effect: after the planned ones, one more is run for each pair in
// which the generator itself was late or stood still, until the planned number was measured with a punctual generator
// or the spares are used up. Latencies, failed requests and failed scrapes have no influence. Blocks are also void for
// reasons in which the target has a part: nothing was answered, the target fell behind while the generator had no CPU
// left, no scrape succeeded. Such pairs are left out of the analysis, but not replaced by spares.
//
// This does not exclude a generator that was late because of the scrapes: then the pairs in which they hurt most are
// the replaced ones. So the pairs in which it was late in only one block are counted by arm, and if chance does not
// explain their distribution, "no difference" is not reported.

/// A longer pause of an open loop, in multiples of the lateness bound, makes a run void.
const PAUSE_BOUNDS: u32 = 10;

/// The pairs of a cell in which the generator was late or stood still.
#[derive(Debug, Default)]
pub(crate) struct LatePairs {
    /// By pair.
    pairs: BTreeMap<usize, LateBlocks>,
}

/// The blocks of a pair in which it was late.
#[derive(Debug, Default, Clone, Copy)]
struct LateBlocks {
    without: bool,
    with: bool,
}

impl LatePairs {
    /// From the generator's records in the blocks. Fails only if they cannot be read.
    pub(crate) fn of(design: &TailDesign, blocks: &[Block]) -> Result<LatePairs> {
        let mut lost = LatePairs::default();
        for block in blocks {
            let of_block = |error: Error| error.context(format_args!("a block of pair {}", block.pair));
            if generator_was_late(design, &block.run).map_err(of_block)? {
                let late = lost.pairs.entry(block.pair).or_default();
                match block.arm {
                    Arm::Without => late.without = true,
                    Arm::With => late.with = true,
                }
            }
        }
        Ok(lost)
    }

    /// The number of pairs of a finished cell, as far as it is known from the existing pairs. Pairs beyond that number
    /// are ignored: they should not exist.
    pub(crate) fn due(&self, design: &TailDesign) -> usize {
        let mut due = design.pairs;
        loop {
            let next = design.pairs + self.pairs.range(..due).count().min(design.spares);
            if next == due {
                return due;
            }
            due = next;
        }
    }

    /// The sentence ` Of 13 pairs of blocks 3 are void …`; empty if no spare was run.
    pub(crate) fn words(&self, design: &TailDesign, done: usize) -> String {
        let replaced = done.saturating_sub(design.pairs);
        if replaced == 0 {
            return String::new();
        }
        let [without, with] = self.in_one_block();
        format!(
            " Of {done} pairs of blocks {} are void because the generator itself was late, and {replaced} of these were \
             replaced by spare ones (late only with scrapes: {with}, only without: {without}).",
            self.pairs.len()
        )
    }

    /// Whether the generator was late with scrapes more or less often than without, and chance does not explain it.
    pub(crate) fn is_uneven(&self, design: &TailDesign) -> bool {
        let [without, with] = self.in_one_block();
        // The sign test: the interval of a median holds zero unless too few signs are of the rarer kind.
        let ranks = stillgate_stats::quantile_ranks(without + with, 0.5, design.confidence);
        ranks.is_some_and(|(low, _)| without.min(with) < low)
    }

    /// Pairs in which it was late without scrapes only, and with scrapes only.
    fn in_one_block(&self) -> [u64; 2] {
        let count = |is: fn(&LateBlocks) -> bool| self.pairs.values().filter(|late| is(late)).count() as u64;
        [count(|late| late.without && !late.with), count(|late| late.with && !late.without)]
    }
}

/// Whether a void run is explained by its generator alone. Starts at the bound may have been on either side of it.
fn generator_was_late(design: &TailDesign, run: &RunRecord) -> Result<bool> {
    if run.void.is_empty() {
        return Ok(false);
    }
    let lateness = histogram::decode(&run.lateness)?;
    let bound = Bounds::default().late;
    let bound_ns = u64::try_from(bound.as_nanos()).unwrap_or(LATENCY_NS_MAX);
    let late = lateness.count_between(lateness.lowest_equivalent(bound_ns), LATENCY_NS_MAX);
    let (sum_s, longest_s) = (run.generator_pauses_s.unwrap_or(0.0), run.generator_pause_longest_s.unwrap_or(0.0));
    let stood_still =
        sum_s > design.block_s * design.late_share_max && longest_s > (bound * PAUSE_BOUNDS).as_secs_f64();
    Ok(late as f64 > late_max(design.late_share_max, lateness.len()) || stood_still)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tail::Verdict;
    use crate::tail::{analysis, synthetic};
    use crate::target::TargetKind;
    use proptest::prelude::*;
    use std::path::PathBuf;

    #[test]
    fn eight_pairs_are_needed_at_five_percent_over_six_measures() {
        let check = |alpha: f64, measures: usize, pairs: usize| assert_eq!(pairs_needed(alpha, measures), pairs);
        check(0.05, 1, 6);
        check(0.05, 6, 8);
        check(0.01, 6, 11);
        check(1.0, 1, 1);
        assert!(pairs_needed(1.0 - CONFIDENCE, 6) + 2 <= PAIRS_DEFAULT as usize, "the default has pairs to lose");
    }

    #[test]
    fn a_sweep_is_over_series_only_where_the_target_makes_them() {
        let spec = |kind| Spec::built_in(kind, PathBuf::new());
        let every = [5, 1].map(Duration::from_secs);
        let planned = cells(&[spec(TargetKind::Nginx), spec(TargetKind::Haproxy)], &[1_000, 100_000], &every);
        let shape: Vec<_> =
            planned.iter().map(|c| (c.number, c.spec.name.as_str(), c.spec.series, c.every.as_secs())).collect();
        assert_eq!(
            shape,
            [
                (0, "nginx", None, 5),
                (1, "nginx", None, 1),
                (2, "haproxy", Some(1_000), 5),
                (3, "haproxy", Some(1_000), 1),
                (4, "haproxy", Some(100_000), 5),
                (5, "haproxy", Some(100_000), 1),
            ]
        );
    }

    #[test]
    fn hours_make_blocks_as_long_as_they_need_to_be() {
        let design = crate::tail::synthetic::design(1, 10);
        // 20 blocks with their lead-in.
        assert_eq!(block_s(&design, 1, 1.0).unwrap(), 179.5);
        assert_eq!(block_s(&design, 4, 8.0).unwrap(), 359.5);
        let why = block_s(&design, 16, 0.1).unwrap_err().to_string();
        assert!(why.contains("320 blocks would be shorter than 1 s"), "{why}");
    }

    proptest! {
        #[test]
        fn arms_are_balanced_and_random(seed: u64, cell in 0usize..100, pairs in 1usize..30) {
            let order = order(seed, cell, pairs);
            prop_assert_eq!(&order, &super::order(seed, cell, pairs));
            prop_assert_eq!(&order, &super::order(seed, cell, pairs + 7)[..2 * pairs]);
            let mut scraped_first = Vec::new();
            for (number, pair) in order.chunks(2).enumerate() {
                prop_assert!(pair[0].0 == number && pair[1].0 == number && pair[0].1 != pair[1].1);
                scraped_first.push(pair[0].1 == Arm::With);
            }
            prop_assert!(scraped_first.chunks_exact(2).all(|two| two[0] != two[1]));
        }
    }

    #[test]
    fn both_arms_begin_about_as_often() {
        let begins_scraped = (0..1_000).filter(|&seed| order(seed, 0, 1)[0].1 == Arm::With).count();
        assert!((400..600).contains(&begins_scraped), "{begins_scraped} of 1000");
    }

    fn design(pairs: usize, spares: usize) -> TailDesign {
        TailDesign { spares, ..synthetic::design(1, pairs) }
    }

    fn lost(pairs: &[usize]) -> LatePairs {
        LatePairs { pairs: pairs.iter().map(|pair| (*pair, LateBlocks { with: true, without: true })).collect() }
    }

    #[test]
    fn one_spare_is_due_for_each_lost_pair_until_they_are_used_up() {
        let check = |spares: usize, pairs: &[usize], due: usize| {
            assert_eq!(lost(pairs).due(&design(10, spares)), due, "{spares} {pairs:?}");
        };
        check(10, &[], 10);
        check(10, &[0, 4, 9], 13);
        // Spares can be lost, too.
        check(10, &[0, 10, 11], 13);
        check(2, &[0, 10, 11], 12);
        check(0, &[0, 1, 2], 10);
        // A pair that should not exist causes no further one.
        check(10, &[10, 11, 12], 10);
        check(10, &[3, 12, 13], 11);
    }

    proptest! {
        #[test]
        fn it_is_where_one_pair_after_the_other_ends(
            pairs in 1usize..12,
            spares in 0usize..12,
            late in proptest::collection::vec(any::<bool>(), 24),
        ) {
            let mut done = 0;
            let sound = |done: usize| late[..done].iter().filter(|late| !**late).count();
            while done < pairs || (sound(done) < pairs && done < pairs + spares) {
                done += 1;
            }
            let numbers: Vec<usize> = (0..late.len()).filter(|pair| late[*pair]).collect();
            prop_assert_eq!(lost(&numbers).due(&design(pairs, spares)), done);
        }
    }

    #[test]
    fn only_what_the_generator_did_loses_a_pair() {
        let design = design(1, 1);
        let check = |spoil: fn(&mut Block), is_lost: bool| {
            let mut cell = synthetic::cell(&design, 0, 0.0);
            spoil(&mut cell.blocks[0]);
            assert_eq!(LatePairs::of(&design, &cell.blocks).unwrap().pairs.len(), usize::from(is_lost));
        };
        check(|_| {}, false);
        check(synthetic::make_late, true);
        check(
            |block| {
                block.run.void.push("the generator stood still for 90 ms".into());
                (block.run.generator_pauses_s, block.run.generator_pause_longest_s) = (Some(0.09), Some(0.09));
            },
            true,
        );
        // One short pause does not matter, and late starts that chance explains leave the run valid.
        check(
            |block| {
                block.run.void.push("nothing was answered in the measured time".into());
                (block.run.generator_pauses_s, block.run.generator_pause_longest_s) = (Some(0.009), Some(0.009));
            },
            false,
        );
        check(
            |block| {
                synthetic::make_late(block);
                block.run.void.clear();
            },
            false,
        );
        // Reasons in which the target has a part.
        check(
            |block| {
                block.run.void.push("nothing was answered in the measured time".into());
                block.run.requests = 0;
            },
            false,
        );
        check(
            |block| {
                block.run.void.push("of 5000 requests 4000 were answered, and the generator was the limit".into());
                block.run.generator_cpu_share_max = Some(0.99);
            },
            false,
        );
        check(|block| block.scrapes.clear(), false);
        check(|block| (block.run.errors, block.run.requests) = (2_500, 2_500), false);
    }

    #[test]
    fn a_generator_that_is_late_beside_scrapes_only_is_no_chance() {
        let check = |without: usize, with: usize, both: usize, uneven: bool| {
            let all = without + with + both;
            let late = |pair| (pair, LateBlocks { without: pair >= with, with: pair < with || pair >= with + without });
            let lost = LatePairs { pairs: (0..all).map(late).collect() };
            assert_eq!(lost.in_one_block(), [without as u64, with as u64]);
            assert_eq!(lost.is_uneven(&design(10, 10)), uneven, "{without} {with} {both}");
        };
        check(0, 0, 0, false);
        check(0, 5, 0, false);
        check(0, 6, 0, true);
        check(6, 0, 3, true);
        check(0, 0, 9, false);
        check(1, 7, 0, false);
        check(1, 8, 0, true);
        check(5, 5, 0, false);
    }

    #[test]
    fn a_damaged_histogram_of_a_void_block_is_named() {
        let design = design(2, 2);
        let mut cell = synthetic::cell(&design, 0, 0.0);
        synthetic::make_late(&mut cell.blocks[2]);
        cell.blocks[2].run.lateness = "AAAA".into();
        let error = LatePairs::of(&design, &cell.blocks).unwrap_err().to_string();
        assert!(error.starts_with("a block of pair 1: "), "{error}");
    }

    #[test]
    fn spares_stand_in_for_what_the_generator_lost() {
        let check = |spares: usize, done: usize, late: &[usize], unscraped: &[usize], verdict: Verdict, said: &str| {
            let mut cell = synthetic::cell(&synthetic::design(1, done), 0, 50_000.0);
            for block in &mut cell.blocks {
                if late.contains(&block.pair) && (block.arm == Arm::With) == (block.pair % 2 == 0) {
                    synthetic::make_late(block);
                }
                if unscraped.contains(&block.pair) {
                    block.scrapes.clear();
                }
            }
            let design = TailDesign { spares, ..synthetic::design(1, 10) };
            let analysis = analysis::analyse(&design, &[cell]).unwrap().cells.remove(0);
            assert_eq!(analysis.verdict, verdict, "{}", analysis.sentence);
            assert!(analysis.sentence.contains(said), "{}", analysis.sentence);
        };
        check(10, 12, &[0, 1, 11], &[], Verdict::Void, "it is unfinished, with 12 of 13 pairs of blocks, ");
        check(
            10,
            13,
            &[0, 1, 11],
            &[],
            Verdict::Slower,
            "Of 13 pairs of blocks 3 are void because the generator itself was late, and 3 of these were replaced by spare ones \
             (late only with scrapes: 1, only without: 2).",
        );
        // More were lost than a third of the planned ones, and replaced.
        check(10, 18, &[0, 1, 2, 3, 4, 5, 6, 7], &[], Verdict::Slower, "8 of these were replaced");
        check(2, 12, &[0, 1, 2, 3], &[], Verdict::Slower, "4 are void because the generator itself was late, and 2 of");
        check(
            2,
            12,
            &[0, 1, 2, 3, 4, 5],
            &[],
            Verdict::Void,
            "6 of 12 pairs of blocks are void (2 of them replaced), ",
        );
        // Pairs lost for reasons in which the target has a part are not replaced.
        check(10, 10, &[], &[0, 1], Verdict::Slower, "slower: p99.9");
        check(10, 10, &[], &[0, 1, 2, 3], Verdict::Void, "4 of 10 pairs of blocks are void, for example");
        check(10, 11, &[0], &[1], Verdict::Slower, "1 are void because the generator itself was late, and 1 of");
    }

    #[test]
    fn a_generator_that_scrapes_make_late_is_no_reason_to_see_no_difference() {
        let check = |stall_us: f64, late_with: usize, verdict: Verdict, said: &str| {
            let mut cell = synthetic::cell(&synthetic::design(4, 16), 0, stall_us);
            for block in &mut cell.blocks {
                if block.pair < 6 && (block.arm == Arm::With) == (block.pair < late_with) {
                    synthetic::make_late(block);
                }
            }
            let design = TailDesign { spares: 10, ..synthetic::design(4, 10) };
            let analysis = analysis::analyse(&design, &[cell]).unwrap().cells.remove(0);
            assert_eq!(analysis.verdict, verdict, "{}", analysis.sentence);
            assert!(analysis.sentence.contains(said), "{}", analysis.sentence);
        };
        check(0.0, 3, Verdict::NoDifference, "(late only with scrapes: 3, only without: 3)");
        check(0.0, 6, Verdict::Void, "the generator was not equally late with scrapes and without");
        check(50_000.0, 6, Verdict::Slower, "(late only with scrapes: 6, only without: 0)");
    }
}
