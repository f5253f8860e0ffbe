//! The result of `stillgate-lab tail`: for each target, number of series and scrape interval, blocks with and without scrapes.

use crate::result::run::{Percentiles, Placement, RunRecord, Subject};
use serde::{Deserialize, Serialize};

/// Design, raw data, analysis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TailResult {
    /// What was decided before the first block.
    pub(crate) design: TailDesign,
    /// One a combination of target, series and scrape interval.
    pub(crate) cells: Vec<Cell>,
    /// Cells that could not be run, each with the reason.
    #[serde(default)]
    pub(crate) failures: Vec<String>,
    /// A function of design and cells.
    pub(crate) analysis: TailAnalysis,
}

/// What was decided before the first block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TailDesign {
    /// Requests a second, open loop.
    pub(crate) rate: f64,
    /// Connections.
    pub(crate) connections: usize,
    /// The measured time of a block.
    pub(crate) block_s: f64,
    /// Unmeasured load before each block.
    pub(crate) lead_in_s: f64,
    /// Pairs of blocks a cell, without spare ones.
    pub(crate) pairs: usize,
    /// How many more pairs a cell may have: one for each in which the generator itself was late; none in files of the first
    /// versions.
    #[serde(default)]
    pub(crate) spares: usize,
    /// All cells, in the order they are run; none in files of the first versions.
    #[serde(default)]
    pub(crate) plan: Vec<Planned>,
    /// Of the order within pairs.
    pub(crate) seed: u64,
    /// Of all intervals of a cell together, 0 to 1; its tests together decide at one minus this.
    pub(crate) confidence: f64,
    /// Of the minimum detectable differences.
    pub(crate) power: f64,
    /// An effect smaller than this in relation to the value without scrapes does not count as one.
    pub(crate) margin: f64,
    /// A block is void where the generator itself started more than this share of its requests late; by default the share that
    /// would make up the p99.9.
    #[serde(default = "late_share_max")]
    pub(crate) late_share_max: f64,
    /// Whether scrapes ask for gzip.
    pub(crate) gzip: bool,
    /// Percent of the series that the load touches.
    pub(crate) touched_percent: f64,
    /// Who ran where.
    pub(crate) placement: Placement,
}

/// A cell that was decided upon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Planned {
    /// Of the target.
    pub(crate) name: String,
    /// Series asked for; none where the target has but what it has.
    pub(crate) series: Option<u64>,
    /// Seconds between scrapes.
    pub(crate) scrape_every_s: f64,
}

fn late_share_max() -> f64 {
    stillgate_load::Bounds::default().late_share_max
}

/// One combination of target, series and scrape interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cell {
    /// Its place in the plan, from 0; with the seed it gives the order of its blocks.
    pub(crate) number: usize,
    /// The target.
    pub(crate) subject: Subject,
    /// Series asked for; none where the target has but what it has.
    pub(crate) series_asked: Option<u64>,
    /// Series in its exposition before the first block.
    pub(crate) series_shown: u64,
    /// Seconds between scrapes.
    pub(crate) scrape_every_s: f64,
    /// In the order they were run.
    pub(crate) blocks: Vec<Block>,
}

/// Whether a block was scraped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Arm {
    /// No scrapes.
    Without,
    /// Scrapes.
    With,
}

/// A stretch of load with or without scrapes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Block {
    /// Of which pair, from 0.
    pub(crate) pair: usize,
    /// Whether it was scraped.
    pub(crate) arm: Arm,
    /// The load.
    pub(crate) run: RunRecord,
    /// The scrapes.
    pub(crate) scrapes: Vec<Scrape>,
    /// CPU time of the target's process tree over the block, in microseconds a request; scrapes included.
    pub(crate) cpu_us_per_request: f64,
    /// Milliseconds that the host kept CPUs from the machine.
    pub(crate) stolen_ms: f64,
    /// The block in short stretches, for the time series.
    pub(crate) points: Vec<Point>,
}

/// One scrape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Scrape {
    /// Since the block's measured time began.
    pub(crate) at_s: f64,
    /// From the request to the last byte.
    pub(crate) took_s: f64,
    /// Bytes on the wire, head included.
    pub(crate) bytes: u64,
    /// Why it failed; none: it was answered 200 in full.
    pub(crate) error: Option<String>,
    /// It had been asked for, and broke off before its end: what it did to the target it did.
    #[serde(default)]
    pub(crate) broke_off: bool,
}

/// A short stretch of a run; latencies corrected, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    /// Since the measured time began.
    pub(crate) at_s: f64,
    /// Its length.
    pub(crate) length_s: f64,
    /// Answered in it.
    pub(crate) requests: u64,
    /// Failed in it.
    pub(crate) errors: u64,
    /// The median.
    pub(crate) p50_us: f64,
    /// 99%
    pub(crate) p99_us: f64,
    /// The slowest.
    pub(crate) max_us: f64,
}

/// What the raw data say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TailAnalysis {
    /// One a cell, in their order.
    pub(crate) cells: Vec<CellAnalysis>,
    /// Over all of them, in a sentence.
    pub(crate) sentence: String,
}

/// What one cell says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CellAnalysis {
    /// Of all blocks without scrapes together, corrected.
    pub(crate) without: Percentiles,
    /// Of all blocks with scrapes together, corrected.
    pub(crate) with: Percentiles,
    /// How well the two above are known.
    #[serde(default)]
    pub(crate) pooled: Vec<PooledQuantile>,
    /// On p50, p99, p99.9, max, CPU a request, and the share of failed requests; empty without any pair.
    pub(crate) effects: Vec<Effect>,
    /// Pairs that the effects rest on. That on failed requests rests on those with many of them too.
    #[serde(default)]
    pub(crate) pairs: usize,
    /// Pairs left out because a block was void, or because more requests failed in one than latencies bear.
    pub(crate) void_pairs: usize,
    /// See [`Verdict`].
    pub(crate) verdict: Verdict,
    /// The verdict with its figures.
    pub(crate) sentence: String,
}

/// A quantile of the requests of all blocks together, with its confidence interval by order statistics: how finely so many
/// requests tell, not how much blocks differ. None where they are too few.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct PooledQuantile {
    /// 50 is the median.
    pub(crate) percentile: f64,
    /// Lower and upper end without scrapes, in microseconds.
    pub(crate) without: Option<(f64, f64)>,
    /// With scrapes.
    pub(crate) with: Option<(f64, f64)>,
}

/// What scrapes did to one measure: the paired difference, with minus without.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Effect {
    /// `p50`, `p99`, `p99.9`, `max`, `cpu`, `failed`.
    pub(crate) measure: String,
    /// `us`, `us/request` or, from 0 to 1, `share`.
    pub(crate) unit: String,
    /// Median over the blocks without.
    pub(crate) without: f64,
    /// Median over the blocks with.
    pub(crate) with: f64,
    /// The Hodges-Lehmann estimate of the paired differences.
    pub(crate) difference: f64,
    /// Lower end of its interval, one of those that hold together with the design's confidence.
    #[serde(with = "super::unbounded::below")]
    pub(crate) low: f64,
    /// Upper end.
    #[serde(with = "super::unbounded::above")]
    pub(crate) high: f64,
    /// Of no difference, by Wilcoxon's signed-rank test.
    pub(crate) p_value: f64,
    /// The same after Holm's correction over the cell's measures.
    pub(crate) p_adjusted: f64,
    /// The smallest true difference that would have been called one with the design's power, by test and margin; infinite where
    /// pairs are too few.
    #[serde(with = "super::unbounded::above")]
    pub(crate) minimum_detectable: f64,
}

impl Effect {
    /// Whether it is known that scrapes do not change the measure by more than this share: only then may it be said that they do
    /// not change it. An interval that reaches farther says nothing.
    pub(crate) fn is_within(&self, margin: f64) -> bool {
        let most = margin * self.without;
        self.low >= -most && self.high <= most
    }
}

/// What scrapes did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// They made the tail slower.
    Slower,
    /// They made more requests fail.
    Failing,
    /// They made it faster, which asks for an explanation.
    Faster,
    /// No difference was seen; the sentence says how large one could have been missed.
    NoDifference,
    /// Too many blocks were void, the cell is unfinished, or it has too few pairs to show anything.
    Void,
}
