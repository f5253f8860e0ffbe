//! The result of `stillgate-lab compare`: interleaved pairs of measurements of two programs.

use crate::result::run::{Placement, RunRecord, Subject};
use serde::{Deserialize, Serialize};

/// Design, raw data, analysis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CompareResult {
    /// What was decided before the first pair.
    pub(crate) design: CompareDesign,
    /// The baseline.
    pub(crate) a: Subject,
    /// What is compared with it.
    pub(crate) b: Subject,
    /// In the order they were run.
    pub(crate) pairs: Vec<Pair>,
    /// Instructions a request, counted apart.
    pub(crate) instructions: Option<Instructions>,
    /// Why instructions were not counted.
    pub(crate) instructions_missing: Option<String>,
    /// A function of all the above.
    pub(crate) analysis: CompareAnalysis,
}

/// What was decided before the first pair.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CompareDesign {
    /// Pairs; the most of them where `sequential`.
    pub(crate) pairs: usize,
    /// Numbers of pairs after which a sequential design looks; empty: one look, at the end.
    pub(crate) looks: Vec<usize>,
    /// Probability of any false alarm, over all measures and looks.
    pub(crate) alpha: f64,
    /// Of the minimum detectable effect.
    pub(crate) power: f64,
    /// Where the minimum detectable effect of a deciding measure is above this share, the comparison is undecided.
    pub(crate) margin: f64,
    /// Measures that must be decided; a significant worsening of any measure counts all the same.
    pub(crate) deciding: Vec<String>,
    /// Unmeasured load after each start.
    pub(crate) warm_up_s: f64,
    /// Closed loop, for throughput and CPU a request.
    pub(crate) saturation_s: f64,
    /// Open loop, for latencies.
    pub(crate) rate_s: f64,
    /// Requests a second of the open loop.
    pub(crate) rate: f64,
    /// Connections of both.
    pub(crate) connections: usize,
    /// A request that the generator starts later than this is late.
    #[serde(default)]
    pub(crate) late_s: f64,
    /// Of the order within pairs, and of resampling.
    pub(crate) seed: u64,
    /// Who ran where.
    pub(crate) placement: Placement,
}

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Side {
    /// The baseline.
    A,
    /// What is compared with it.
    B,
}

/// Both measured, one right after the other, each freshly started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Pair {
    /// Who went first.
    pub(crate) first: Side,
    /// The baseline.
    pub(crate) a: SideRecord,
    /// What is compared with it.
    pub(crate) b: SideRecord,
}

/// One start of one program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SideRecord {
    /// The closed loop.
    pub(crate) saturation: RunRecord,
    /// CPU time of the program's process tree over the closed loop, in microseconds a request.
    pub(crate) cpu_us_per_request: f64,
    /// The open loop.
    pub(crate) rated: RunRecord,
    /// Resident memory of the process tree at the end, in KiB.
    pub(crate) rss_kib: u64,
}

/// Instructions a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Instructions {
    /// `callgrind` or `pmu`.
    pub(crate) counted_by: String,
    /// One a repetition, of the baseline.
    pub(crate) a: Vec<f64>,
    /// One a repetition, of what is compared with it.
    pub(crate) b: Vec<f64>,
}

/// What the raw data say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CompareAnalysis {
    /// One a measure.
    pub(crate) measures: Vec<MeasureAnalysis>,
    /// Pairs left out because one of their runs was void.
    pub(crate) void_pairs: usize,
    /// Of the others, pairs whose latencies were left out because the generator was late.
    #[serde(default)]
    pub(crate) late_pairs: usize,
    /// See [`Decision`].
    pub(crate) decision: Decision,
    /// The decision with its figures.
    pub(crate) sentence: String,
}

/// What one measure says. Effects are ratios B to A minus one: 0.05 is 5% more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct MeasureAnalysis {
    /// `throughput`, `cpu`, `p50`, `p99`, `p99.9`, `rss`, `instructions`.
    pub(crate) measure: String,
    /// `requests/s`, `us/request`, `us`, `KiB`, `instructions/request`.
    pub(crate) unit: String,
    /// Whether more of it is better.
    pub(crate) higher_is_better: bool,
    /// Median.
    pub(crate) a: f64,
    /// Median.
    pub(crate) b: f64,
    /// Estimate of the effect from the paired log ratios.
    pub(crate) effect: f64,
    /// Lower end of its interval.
    #[serde(with = "super::unbounded::below")]
    pub(crate) low: f64,
    /// Upper end.
    #[serde(with = "super::unbounded::above")]
    pub(crate) high: f64,
    /// Of no difference, by the paired test that decides.
    pub(crate) p_value: f64,
    /// After Holm's correction over the measures.
    pub(crate) p_adjusted: f64,
    /// Of no difference, by Mann and Whitney's U, which knows nothing of pairs; for comparison.
    pub(crate) p_mann_whitney: f64,
    /// The smallest effect that this many pairs would have shown with the design's power.
    #[serde(with = "super::unbounded::above")]
    pub(crate) minimum_detectable: f64,
    /// See [`MeasureVerdict`].
    pub(crate) verdict: MeasureVerdict,
    /// The verdict in words.
    pub(crate) sentence: String,
}

/// What is said of one measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MeasureVerdict {
    /// B is worse.
    Slower,
    /// B is better.
    Faster,
    /// No difference larger than the minimum detectable effect.
    NoDifference,
}

/// What is said of the whole; the exit code follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Decision {
    /// Nothing is worse. Exit code 0.
    NotWorse,
    /// A measure is worse. Exit code 1.
    Worse,
    /// A deciding measure's minimum detectable effect is above the margin. Exit code 2.
    Undecided,
    /// Too many runs were void. Exit code 3.
    Void,
}
