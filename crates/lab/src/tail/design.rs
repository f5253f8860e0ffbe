//! The decisions before the first block: the cells, how many pairs of blocks each has and may have, and in which order
//! they run.

use crate::error::{Error, Result};
use crate::result::tail::{Arm, CellPlan, TailDesign};
use crate::tail::run::title_of;
use crate::target::Spec;
use std::time::Duration;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Kind;
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
        let planned = cells(&[spec(Kind::Nginx), spec(Kind::Haproxy)], &[1_000, 100_000], &every);
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
}
