//! The result of `stillgate-lab compare`: interleaved measurements of two programs, or of up to six.
//!
//! The first versions knew A and B only; further builds are in additional fields, absent if there are two.

use crate::result::run::{Placement, RunRecord, Subject};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Design, raw data, analysis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CompareResult {
    /// Fixed before the first pair.
    pub(crate) design: CompareDesign,
    /// The baseline.
    pub(crate) a: Subject,
    /// The build that is compared with it.
    pub(crate) b: Subject,
    /// C to F, which are compared as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) others: Vec<Subject>,
    /// In the order they were run.
    pub(crate) pairs: Vec<Pair>,
    /// Instructions per request, counted separately.
    pub(crate) instructions: Option<Instructions>,
    /// Why instructions were not counted.
    pub(crate) instructions_missing: Option<String>,
    /// A program exited under load; the comparison stopped.
    #[serde(default)]
    pub(crate) crash: Option<Crash>,
    /// A function of all the above.
    pub(crate) analysis: CompareAnalysis,
}

impl CompareResult {
    /// All builds by name, the baseline first.
    pub(crate) fn subjects(&self) -> impl Iterator<Item = (Side, &Subject)> {
        Side::ALL.into_iter().zip([&self.a, &self.b].into_iter().chain(&self.others))
    }

    /// The analysis of each comparison of two builds.
    pub(crate) fn judged(&self) -> Vec<(BuildPair, &CompareAnalysis)> {
        match self.analysis.comparisons.as_slice() {
            [] => vec![(BuildPair { one: Side::A, other: Side::B }, &self.analysis)],
            all => all.iter().map(|judged| (judged.between, &judged.analysis)).collect(),
        }
    }
}

/// The end of a compared program while it was under load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Crash {
    /// The program that ended.
    #[serde(default = "Side::second", skip_serializing_if = "Side::is_second")]
    pub(crate) side: Side,
    /// The pair in which it ended, from 1; `None`: in the pilot, before the first.
    pub(crate) pair: Option<usize>,
    /// Its exit status and the end of its output.
    pub(crate) words: String,
}

/// The settings fixed before the first pair.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CompareDesign {
    /// Number of programs, including the baseline.
    #[serde(default = "two", skip_serializing_if = "is_two")]
    pub(crate) builds: usize,
    /// Whether all of them are compared with each other, and not only each with the baseline.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) every_pair: bool,
    /// Number of pairs; the maximum if `looks` has any.
    pub(crate) pairs: usize,
    /// Numbers of pairs after which a sequential design looks; empty: one look, at the end.
    pub(crate) looks: Vec<usize>,
    /// Probability of any false alarm, over all measures and looks.
    pub(crate) alpha: f64,
    /// Power of the minimum detectable effect.
    pub(crate) power: f64,
    /// The comparison is undecided if a worsening of a deciding measure by this share could have been missed, or if its
    /// interval reaches beyond it.
    pub(crate) margin: f64,
    /// Measures that must be decided; a significant worsening of any other measure counts, too.
    pub(crate) deciding: Vec<String>,
    /// Unmeasured load after each start.
    pub(crate) warm_up_s: f64,
    /// Closed loop, for throughput and CPU per request.
    pub(crate) saturation_s: f64,
    /// The least length of a slice of that; `None`: as short as answers allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) slice_s: Option<f64>,
    /// Open loop, for latencies.
    pub(crate) rate_s: f64,
    /// Requests per second of the open loop.
    pub(crate) rate: f64,
    /// Connections of both.
    pub(crate) connections: usize,
    /// A request that the generator starts later than this is late.
    #[serde(default)]
    pub(crate) late_s: f64,
    /// A file with requests; `None`: `GET /`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mix: Option<PathBuf>,
    /// Seed of the order within pairs.
    pub(crate) seed: u64,
    /// The CPUs of each process.
    pub(crate) placement: Placement,
}

impl CompareDesign {
    /// All comparisons: each build with the baseline, then optionally the others with each other.
    pub(crate) fn comparisons(&self) -> Vec<BuildPair> {
        CompareDesign::comparisons_of(self.builds, self.every_pair)
    }

    /// All comparisons, before there is a design.
    pub(crate) fn comparisons_of(builds: usize, every_pair: bool) -> Vec<BuildPair> {
        let sides = &Side::ALL[..builds.min(Side::ALL.len())];
        let baselines = if every_pair { sides.len() } else { 1 };
        let after = |(at, one): (usize, &Side)| {
            let one = *one;
            sides[at + 1..].iter().map(move |&other| BuildPair { one, other }).collect::<Vec<_>>()
        };
        sides.iter().enumerate().take(baselines).flat_map(after).collect()
    }
}

fn two() -> usize {
    2
}

fn is_two(builds: &usize) -> bool {
    *builds == two()
}

/// One of the builds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Side {
    /// The baseline.
    A,
    /// The first build compared with it.
    B,
    /// As B.
    C,
    /// As B.
    D,
    /// As B.
    E,
    /// As B.
    F,
}

impl Side {
    /// In the order in which they were named.
    pub(crate) const ALL: [Side; 6] = [Side::A, Side::B, Side::C, Side::D, Side::E, Side::F];

    /// As tables show it.
    pub(crate) fn name(self) -> &'static str {
        ["A", "B", "C", "D", "E", "F"][self as usize]
    }

    fn second() -> Side {
        Side::B
    }

    fn is_second(&self) -> bool {
        *self == Side::B
    }
}

/// Two builds that are compared: `other` is worse or better than `one`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BuildPair {
    /// The reference.
    pub(crate) one: Side,
    /// The build that is compared with it.
    pub(crate) other: Side,
}

/// All builds measured, one right after the other, each freshly started. Any two of them are a pair.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Pair {
    /// The build that went first.
    pub(crate) first: Side,
    /// The order, with more than two.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) order: Vec<Side>,
    /// The baseline.
    pub(crate) a: SideRecord,
    /// The build that is compared with it.
    pub(crate) b: SideRecord,
    /// C to F.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) others: Vec<SideRecord>,
}

impl Pair {
    /// All builds, the baseline first.
    pub(crate) fn records(&self) -> impl Iterator<Item = (Side, &SideRecord)> {
        Side::ALL.into_iter().zip([&self.a, &self.b].into_iter().chain(&self.others))
    }

    /// One build; `None` if the file lacks it.
    pub(crate) fn record(&self, of: Side) -> Option<&SideRecord> {
        self.records().find(|(side, _)| *side == of).map(|(_, record)| record)
    }
}

/// One start of one program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SideRecord {
    /// The closed loop.
    pub(crate) saturation: RunRecord,
    /// CPU time of the program's process tree over the closed loop, in microseconds per request.
    pub(crate) cpu_us_per_request: f64,
    /// The open loop.
    pub(crate) rated: RunRecord,
    /// Resident memory of the process tree at the end, in KiB.
    pub(crate) rss_kib: u64,
}

/// Instructions per request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Instructions {
    /// `callgrind` or `pmu`.
    pub(crate) counted_by: String,
    /// Counts of the baseline, one per repetition.
    pub(crate) a: Vec<f64>,
    /// Counts of the build that is compared with it, one per repetition.
    pub(crate) b: Vec<f64>,
    /// Counts of C to F.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) others: Vec<Vec<f64>>,
}

impl Instructions {
    /// Counts of one build; empty if they were not counted.
    pub(crate) fn of(&self, side: Side) -> &[f64] {
        let all = [&self.a, &self.b].into_iter().chain(&self.others);
        Side::ALL.into_iter().zip(all).find(|(at, _)| *at == side).map_or(&[], |(_, counts)| counts.as_slice())
    }
}

/// The analysis of two builds, or of all comparisons between several.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CompareAnalysis {
    /// With more than two builds: each comparison, those with the baseline first; then there are no measures here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) comparisons: Vec<PairwiseResult>,
    /// One per measure.
    pub(crate) measures: Vec<MeasureAnalysis>,
    /// Pairs left out because one of their runs was void: for the generator's reasons, or because it could not be measured.
    pub(crate) void_pairs: usize,
    /// Pairs among the others whose latencies were left out because the generator was late.
    #[serde(default)]
    pub(crate) late_pairs: usize,
    /// Failed requests of the pairs that are not void.
    #[serde(default)]
    pub(crate) failures: Failures,
    /// The reasons why some measures are not judged, as text.
    #[serde(default)]
    pub(crate) not_judged: Vec<String>,
    /// See [`Decision`].
    pub(crate) decision: Decision,
    /// The decision with its figures.
    pub(crate) sentence: String,
}

impl MeasureAnalysis {
    /// Whether both are known not to differ by more than this: only then may the text say that they do not differ. With
    /// a wider interval nothing is known.
    pub(crate) fn is_within(&self, margin: f64) -> bool {
        self.low >= -margin && self.high <= margin
    }
}

/// One of several comparisons. Its error is corrected for all of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PairwiseResult {
    /// The two builds.
    #[serde(flatten)]
    pub(crate) between: BuildPair,
    /// Its sentences, too, use the builds' own names: B is `other` and A is `one`.
    #[serde(flatten)]
    pub(crate) analysis: CompareAnalysis,
}

/// The judgement of failed requests. Pairs with many of them count here and in no other measure: failing is not being
/// slow.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Failures {
    /// Share of the baseline's requests that failed, 0 to 1; the mean of the pairs.
    pub(crate) a: f64,
    /// Likewise for the build that is compared with it.
    pub(crate) b: f64,
    /// Pairs in which the larger share of the baseline's requests failed.
    pub(crate) pairs_a_more: usize,
    /// Likewise for the build that is compared with it.
    pub(crate) pairs_b_more: usize,
    /// Pairs in which too many of the baseline's requests failed for other measures to be valid.
    pub(crate) pairs_a_failing: usize,
    /// Likewise for the build that is compared with it.
    pub(crate) pairs_b_failing: usize,
    /// P-value of no difference, by the exact sign test of the pairs that differ.
    pub(crate) p_value: f64,
    /// After correction, as for the other measures.
    pub(crate) p_adjusted: f64,
    /// See [`MeasureVerdict`].
    pub(crate) verdict: MeasureVerdict,
    /// The verdict as a sentence; `None` if nothing failed.
    pub(crate) sentence: Option<String>,
}

/// The analysis of one measure, for A and B or the two that are compared. Effects are ratios B to A minus one: 0.05 is
/// 5% more.
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
    /// Lower end of its interval, one of those that hold together with 1 - alpha.
    #[serde(with = "super::unbounded_below")]
    pub(crate) low: f64,
    /// Upper end.
    #[serde(with = "super::unbounded_above")]
    pub(crate) high: f64,
    /// P-value of no difference, by the paired test that decides.
    pub(crate) p_value: f64,
    /// After correction over the measures: Holm's with one look; with several, Bonferroni's, and over the looks.
    pub(crate) p_adjusted: f64,
    /// P-value of no difference, by Mann and Whitney's U, which ignores pairs; for comparison.
    pub(crate) p_mann_whitney: f64,
    /// The smallest effect that would have been detected with the design's power, by its test and the smallest size
    /// that counts.
    #[serde(with = "super::unbounded_above")]
    pub(crate) minimum_detectable: f64,
    /// See [`MeasureVerdict`].
    pub(crate) verdict: MeasureVerdict,
    /// The verdict as a sentence.
    pub(crate) sentence: String,
}

/// The verdict on one measure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MeasureVerdict {
    /// B is worse.
    Slower,
    /// B is better.
    Faster,
    /// No difference was found; the minimum detectable effect shows which could have been missed.
    #[default]
    NoDifference,
}

/// The verdict on the whole; the exit code follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Decision {
    /// Nothing is worse. Exit code 0.
    NotWorse,
    /// A measure is worse, more requests failed, or it ended under load. Exit code 1.
    Worse,
    /// A deciding measure was not judged, or not well enough; or many requests failed. Exit code 2.
    Undecided,
    /// Too many runs were void: they show the generator rather than the programs. Exit code 3.
    Void,
}
