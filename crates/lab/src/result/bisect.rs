//! The result of `stillgate-lab bisect`: the commit that changed a measurement.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Design, raw data, answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct BisectResult {
    /// Fixed before the first measurement.
    pub(crate) design: BisectDesign,
    /// From the good one to the bad one.
    pub(crate) commits: Vec<CommitRecord>,
    /// All tries, in order.
    pub(crate) tries: Vec<Try>,
    /// How it ended; `None` while it runs, or if it was killed: the same command continues from here.
    pub(crate) ended: Option<BisectEnd>,
    /// A function of all the above. In JSON its fields are at the top level.
    #[serde(flatten)]
    pub(crate) answer: Answer,
}

impl BisectResult {
    /// Whether the first change is one for the worse.
    pub(crate) fn is_worse(&self) -> bool {
        self.answer.effect.is_some_and(|effect| (effect.value < 0.0) == self.design.higher_is_better)
    }
}

/// The settings fixed before the first measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct BisectDesign {
    /// The command that measures a commit.
    pub(crate) measure: String,
    /// The command that builds it.
    pub(crate) build: Option<String>,
    /// A patch that is applied to each commit before it is built.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) apply: Option<Applied>,
    /// The list of versions as typed, if there are versions in place of commits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) versions: Option<String>,
    /// The revisions as typed.
    pub(crate) good: String,
    /// See `good`.
    pub(crate) bad: String,
    /// Whether merges are one step each, or their commits are among the others.
    pub(crate) line: MergeOrder,
    /// Whether more is better.
    pub(crate) higher_is_better: bool,
    /// An answer is given at this probability.
    pub(crate) confidence: f64,
    /// No smaller change counts: 0.01 is 1%.
    pub(crate) min_effect: f64,
    /// Prior probability of no change.
    pub(crate) prior_none: f64,
    /// Prior probability that there are several.
    pub(crate) prior_several: f64,
    /// Commits that touch such a path are more likely by this factor.
    pub(crate) prior_paths: Vec<PathPrior>,
    /// A store, as typed, whose counts make the commits more likely that changed them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) prior_counts: Option<String>,
}

impl BisectDesign {
    /// The word for the items that are searched: commits or versions.
    pub(crate) fn items(&self) -> &'static str {
        if self.versions.is_some() { "versions" } else { "commits" }
    }
}

/// A patch, with its digest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Applied {
    /// As typed.
    pub(crate) path: String,
    /// In hexadecimal.
    pub(crate) sha256: String,
}

/// How commits with several parents are put in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MergeOrder {
    /// The line of first parents; a merge is one step.
    FirstParent,
    /// All commits, parents before children.
    Linear,
}

/// A prior belief about commits that touch a path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PathPrior {
    /// A file, or a folder with its contents.
    pub(crate) path: String,
    /// Factor of the probability.
    pub(crate) factor: f64,
}

/// A commit in the row, or a version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CommitRecord {
    /// Its full name.
    pub(crate) commit: String,
    /// The first line of its message; for a version, its path as typed.
    pub(crate) subject: String,
    /// Relative prior probability that it changed something; for the good one it has no meaning.
    pub(crate) weight: f64,
    /// Whether it has several parents.
    pub(crate) is_merge: bool,
    /// The artefact of a version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) artefact: Option<Artefact>,
}

/// An artefact built before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Artefact {
    /// Absolute.
    pub(crate) path: String,
    /// In hexadecimal; `None` for a folder.
    pub(crate) sha256: Option<String>,
}

/// A step taken with a commit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Try {
    /// Its number in the row; 0 is the good one.
    pub(crate) place: usize,
    /// When it began, in seconds since 1970.
    pub(crate) begun_unix_s: f64,
    /// How long it took.
    pub(crate) seconds: f64,
    /// Its result.
    #[serde(flatten)]
    pub(crate) outcome: TryOutcome,
}

/// The result of a try.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(crate) enum TryOutcome {
    /// It is checked out and built.
    Built,
    /// It cannot be checked out or built.
    NotBuilt {
        /// The reason as text.
        why: String,
    },
    /// It printed a number.
    Measured {
        /// Above 0.
        value: f64,
        /// Unit of `value`; `None` for a plain number, and in files of versions that read no units.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unit: Option<String>,
    },
    /// By exit code 125 its measurement reports that this commit cannot be measured.
    Skipped {
        /// The reason as text.
        why: String,
    },
    /// The measurement failed, maybe by chance.
    Failed {
        /// The reason as text.
        why: String,
    },
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BisectEnd {
    /// Enough is known.
    Decided,
    /// The budget of time or measurements was used up.
    Budget,
    /// The user stopped it.
    Interrupted,
    /// The good or the bad commit cannot be measured.
    Void,
}

/// The answer of the measurements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// See [`BisectVerdict`].
    pub(crate) verdict: BisectVerdict,
    /// The commit that changed it; `None` if it is a range, or unknown.
    pub(crate) culprit: Option<String>,
    /// All changes that were found.
    pub(crate) changes: Vec<FoundChange>,
    /// For each commit except the good one, the probability that it changed something.
    pub(crate) posterior: BTreeMap<String, f64>,
    /// Probability that nothing changed by `min_effect` or more.
    pub(crate) none: f64,
    /// Probability of several changes.
    pub(crate) several: f64,
    /// The effect of the first change that was found, or of the likeliest.
    pub(crate) effect: Option<RelativeChange>,
    /// Scatter of a measurement as a share of it, without outliers.
    pub(crate) noise: f64,
    /// Measurements that count.
    pub(crate) measurements: usize,
    /// Commits that could not be measured.
    pub(crate) unbuildable: Vec<String>,
    /// The answer as a sentence.
    pub(crate) sentence: String,
}

impl Answer {
    /// Before the first measurement.
    pub(crate) fn unknown(design: &BisectDesign) -> Answer {
        Answer {
            verdict: BisectVerdict::Undecided,
            culprit: None,
            changes: Vec::new(),
            posterior: BTreeMap::new(),
            none: design.prior_none,
            several: design.prior_several,
            effect: None,
            noise: 0.0,
            measurements: 0,
            unbuildable: Vec::new(),
            sentence: String::new(),
        }
    }
}

/// A change that was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct FoundChange {
    /// One commit, or several if those in between could not be measured. Oldest first.
    pub(crate) commits: Vec<String>,
    /// Probability that it is one of these.
    pub(crate) probability: f64,
    /// The size of the change.
    pub(crate) effect: Option<RelativeChange>,
}

/// A relative change: 0.03 is 3% more.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct RelativeChange {
    /// The median of the posterior.
    pub(crate) value: f64,
    /// Lower end of the interval that holds it with the requested confidence.
    pub(crate) low: f64,
    /// Upper end.
    pub(crate) high: f64,
}

/// The answer; the exit code follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BisectVerdict {
    /// A commit, or a range, changed it. Exit code 0.
    Found,
    /// Nothing changed by `min_effect` or more. Exit code 1.
    None,
    /// Not known yet. Exit code 2.
    Undecided,
    /// One of the ends cannot be measured. Exit code 3.
    Void,
}
