//! Made-up results of a tail experiment, for tests: log-normal latencies, and at each scrape a stall of a given length.

use crate::result::run::{Placement, RunRecord, Subject};
use crate::result::tail::{Arm, Block, Cell, CellPlan, Point, Scrape, TailDesign, TailResult};
use crate::result::{Experiment, ResultFile, histogram};
use crate::tail::{analysis, design};
use std::collections::BTreeMap;
use stillgate_load::outcome;
use stillgate_stats::Random;

const RATE: f64 = 1_000.0;
const BLOCK_S: f64 = 5.0;
const POINTS: usize = 50;

/// When the first block begins, from one block to the next, and from one cell to the next.
const BEGUN_UNIX_S: f64 = 1_795_000_000.0;
const PERIOD_S: f64 = 6.0;
const CELL_S: f64 = 10_000.0;

/// A design with the defaults.
pub(crate) fn design(seed: u64, pairs: usize) -> TailDesign {
    TailDesign {
        rate: RATE,
        connections: 50,
        block_s: BLOCK_S,
        lead_in_s: 0.5,
        pairs,
        spares: 0,
        plan: Vec::new(),
        seed,
        confidence: design::CONFIDENCE,
        power: design::POWER,
        margin: design::MARGIN,
        late_share_max: 0.001,
        gzip: true,
        touched_percent: 1.0,
        placement: Placement { target_cpus: vec![0], load_cpus: vec![1], target_apart: false },
    }
}

/// A finished cell; a scrape stalls it for `stall_us`.
pub(crate) fn cell(design: &TailDesign, number: usize, stall_us: f64) -> Cell {
    let mut random = Random::new(design.seed ^ (number as u64) << 32);
    let order = design::order(design.seed, number, design.pairs);
    Cell {
        number,
        subject: Subject { name: "synthetic".into(), command: vec!["synthetic".into()], ..Subject::default() },
        series_asked: Some(100_000),
        series_shown: 100_123,
        scrape_every_s: BLOCK_S,
        blocks: (0u32..)
            .zip(order)
            .map(|(at, (pair, arm))| {
                let mut block = block(&mut random, pair, arm, stall_us);
                block.run.begun_unix_s = BEGUN_UNIX_S + CELL_S * number as f64 + PERIOD_S * f64::from(at);
                block
            })
            .collect(),
    }
}

/// A whole file of two cells; the second one stalls.
pub(crate) fn file(seed: u64, pairs: usize, stall_us: f64) -> ResultFile {
    let mut design = design(seed, pairs);
    let cells = vec![cell(&design, 0, 0.0), cell(&design, 1, stall_us)];
    design.plan = cells.iter().map(planned).collect();
    let analysis = analysis::analyse(&design, &cells).unwrap();
    let tail = TailResult { design, cells, failures: vec!["envoy: not found".into()], analysis };
    ResultFile::new(
        vec!["tail".into(), "synthetic".into()],
        crate::result::run::Environment::default(),
        Experiment::Tail(Box::new(tail)),
    )
}

/// Makes a block as it looks when the generator itself was late.
pub(crate) fn make_late(block: &mut Block) {
    let mut lateness = outcome::histogram();
    lateness.saturating_record_n(2_000_000, (RATE * BLOCK_S) as u64 / 50);
    block.run.lateness = histogram::encode(&lateness).unwrap();
    block.run.void.push("the generator was late".into());
}

fn planned(cell: &Cell) -> CellPlan {
    CellPlan { name: cell.subject.name.clone(), series: cell.series_asked, scrape_every_s: cell.scrape_every_s }
}

fn block(random: &mut Random, pair: usize, arm: Arm, stall_us: f64) -> Block {
    let level_us = 200.0 * (0.05 * random.normal()).exp();
    let requests = (RATE * BLOCK_S) as u64;
    let stalled = if arm == Arm::With { (RATE * stall_us / 1e6) as u64 } else { 0 };
    let (mut corrected, mut uncorrected) = (outcome::histogram(), outcome::histogram());
    for number in 0..requests {
        let served_us = level_us * (0.3 * random.normal()).exp();
        // Requests that arrive during a stall wait for its rest.
        let waited_us = if number < stalled { stall_us * (1.0 - number as f64 / stalled as f64) } else { 0.0 };
        corrected.saturating_record(((served_us + waited_us) * 1e3) as u64);
        uncorrected.saturating_record((served_us * 1e3) as u64);
    }
    let figures = histogram::percentiles(&corrected);
    let length_s = BLOCK_S / POINTS as f64;
    Block {
        pair,
        arm,
        run: RunRecord {
            begun_unix_s: 0.0,
            elapsed_s: BLOCK_S,
            requests,
            errors: 0,
            errors_by_kind: BTreeMap::new(),
            error_examples: Vec::new(),
            rate_intended: Some(RATE),
            rate_achieved: RATE,
            answered_in_time: None,
            refused: None,
            missed_starts: Some(0),
            cut_off: 0,
            corrected: histogram::encode(&corrected).unwrap(),
            uncorrected: histogram::encode(&uncorrected).unwrap(),
            lateness: histogram::encode(&outcome::histogram()).unwrap(),
            generator_cpu_cores: 0.1,
            generator_cpu_share_max: Some(0.1),
            generator_cpu_wait_share: None,
            generator_pause_longest_s: Some(0.0),
            generator_pauses_s: Some(0.0),
            generator_realtime: Some(true),
            void: Vec::new(),
        },
        scrapes: match arm {
            Arm::Without => Vec::new(),
            Arm::With => {
                vec![Scrape { at_s: BLOCK_S / 2.0, took_s: 0.04, bytes: 1_234_567, error: None, broke_off: false }]
            }
        },
        cpu_us_per_request: 20.0 * (0.02 * random.normal()).exp(),
        stolen_ms: 0.0,
        points: (0..POINTS)
            .map(|at| Point {
                at_s: at as f64 * length_s,
                length_s,
                requests: requests / POINTS as u64,
                errors: 0,
                p50_us: figures.p50,
                p99_us: figures.p99,
                p99_9_us: Some(figures.p99_9),
                max_us: figures.max,
            })
            .collect(),
    }
}
