//! The result of `stillgate-lab tail`: for each target, number of series and scrape interval, blocks with and without scrapes.

use crate::result::run::{Percentiles, Placement, RunRecord, Subject};
use serde::{Deserialize, Serialize};

/// Design, raw data, analysis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TailResult {
    /// Fixed before the first block.
    pub(crate) design: TailDesign,
    /// One per combination of target, series and scrape interval.
    pub(crate) cells: Vec<Cell>,
    /// Cells that could not be run, each with the reason.
    #[serde(default)]
    pub(crate) failures: Vec<String>,
    /// A function of design and cells.
    pub(crate) analysis: TailAnalysis,
}

/// The settings fixed before the first block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TailDesign {
    /// Requests per second, open loop.
    pub(crate) rate: f64,
    /// Connections.
    pub(crate) connections: usize,
    /// The measured time of a block.
    pub(crate) block_s: f64,
    /// Unmeasured load before each block.
    pub(crate) lead_in_s: f64,
    /// Pairs of blocks per cell, without spare ones.
    pub(crate) pairs: usize,
    /// How many more pairs a cell may have: one for each in which the generator itself was late; absent in files of the
    /// first versions.
    #[serde(default)]
    pub(crate) spares: usize,
    /// All cells, in the order they are run; absent in files of the first versions.
    #[serde(default)]
    pub(crate) plan: Vec<CellPlan>,
    /// Seed of the order within pairs.
    pub(crate) seed: u64,
    /// Confidence of all intervals of a cell together, 0 to 1; its tests together have an error of one minus this.
    pub(crate) confidence: f64,
    /// Power of the minimum detectable differences.
    pub(crate) power: f64,
    /// A smaller effect, relative to the value without scrapes, does not count.
    pub(crate) margin: f64,
    /// A block is void if the generator itself started more than this share of its requests late; by default the share
    /// that would make up the p99.9.
    #[serde(default = "late_share_max")]
    pub(crate) late_share_max: f64,
    /// Whether scrapes request gzip.
    pub(crate) gzip: bool,
    /// Percentage of the series that the load touches.
    pub(crate) touched_percent: f64,
    /// The CPUs of each process.
    pub(crate) placement: Placement,
}

/// A planned cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CellPlan {
    /// Name of the target.
    pub(crate) name: String,
    /// Requested series; `None` if the target has only its own.
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
    /// Its index in the plan, from 0; with the seed it gives the order of its blocks.
    pub(crate) number: usize,
    /// The target.
    pub(crate) subject: Subject,
    /// Requested series; `None` if the target has only its own.
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

/// A period of load with or without scrapes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Block {
    /// Its pair, from 0.
    pub(crate) pair: usize,
    /// Whether it was scraped.
    pub(crate) arm: Arm,
    /// The load.
    pub(crate) run: RunRecord,
    /// The scrapes.
    pub(crate) scrapes: Vec<Scrape>,
    /// CPU time of the target's process tree over the block, including scrapes, in microseconds per request.
    pub(crate) cpu_us_per_request: f64,
    /// Milliseconds that the host took from the machine's CPUs.
    pub(crate) stolen_ms: f64,
    /// The block in short intervals, for the time series.
    pub(crate) points: Vec<Point>,
}

/// One scrape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Scrape {
    /// Since the block's measured time began.
    pub(crate) at_s: f64,
    /// From the request to the last byte.
    pub(crate) took_s: f64,
    /// Bytes on the wire, including the head.
    pub(crate) bytes: u64,
    /// Why it failed; `None`: it was answered 200 in full.
    pub(crate) error: Option<String>,
    /// It was sent but broke off before its end, so it still affected the target.
    #[serde(default)]
    pub(crate) broke_off: bool,
}

/// A short interval of a run; latencies are corrected, in microseconds.
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
    /// 99.9%; `None` in files from before it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) p99_9_us: Option<f64>,
    /// The slowest.
    pub(crate) max_us: f64,
}

/// The analysis of the raw data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TailAnalysis {
    /// One per cell, in their order.
    pub(crate) cells: Vec<CellAnalysis>,
    /// A sentence on all of them.
    pub(crate) sentence: String,
}

/// The analysis of one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CellAnalysis {
    /// Percentiles of all blocks without scrapes together, corrected.
    pub(crate) without: Percentiles,
    /// Percentiles of all blocks with scrapes together, corrected.
    pub(crate) with: Percentiles,
    /// The precision of the two above.
    #[serde(default)]
    pub(crate) pooled: Vec<PooledQuantile>,
    /// On p50, p99, p99.9, max, CPU per request, and the share of failed requests; empty without any pair.
    pub(crate) effects: Vec<Effect>,
    /// Number of pairs behind the effects. The effect on failed requests also includes pairs with many of them.
    #[serde(default)]
    pub(crate) pairs: usize,
    /// Pairs left out because a block was void, or because too many requests failed in one for latencies to be valid.
    pub(crate) void_pairs: usize,
    /// See [`Verdict`].
    pub(crate) verdict: Verdict,
    /// The verdict with its figures.
    pub(crate) sentence: String,
}

/// A quantile of the requests of all blocks together, with its confidence interval by order statistics: it shows the
/// resolution of that many requests, not how much blocks differ. `None` if there are too few.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct PooledQuantile {
    /// 50 is the median.
    pub(crate) percentile: f64,
    /// Lower and upper end without scrapes, in microseconds.
    pub(crate) without: Option<(f64, f64)>,
    /// With scrapes.
    pub(crate) with: Option<(f64, f64)>,
}

/// The effect of scrapes on one measure: the paired difference, with minus without.
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
    /// Lower end of its interval; all intervals hold together with the design's confidence.
    #[serde(with = "super::unbounded_below")]
    pub(crate) low: f64,
    /// Upper end.
    #[serde(with = "super::unbounded_above")]
    pub(crate) high: f64,
    /// P-value of no difference, by Wilcoxon's signed-rank test.
    pub(crate) p_value: f64,
    /// The p-value after Holm's correction over the cell's measures.
    pub(crate) p_adjusted: f64,
    /// The smallest true difference that would have been detected with the design's power, by test and margin; infinite
    /// if there are too few pairs.
    #[serde(with = "super::unbounded_above")]
    pub(crate) minimum_detectable: f64,
}

impl Effect {
    /// Whether scrapes are known not to change the measure by more than this share: only then may the text say that
    /// they do not change it. With a wider interval nothing is known.
    pub(crate) fn is_within(&self, margin: f64) -> bool {
        let most = margin * self.without;
        self.low >= -most && self.high <= most
    }
}

/// The effect of scrapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// They made the tail slower.
    Slower,
    /// They made more requests fail.
    Failing,
    /// They made it faster, which needs an explanation.
    Faster,
    /// No difference was found; the sentence states how large a difference could have been missed.
    NoDifference,
    /// Too many blocks were void, the cell is unfinished, or it has too few pairs to show anything.
    Void,
}
