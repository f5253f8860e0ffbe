//! Result files: the output of an experiment, in self-describing JSON.
//!
//! A file holds the design (with its seed and order), the raw data and the analysis. The analysis is a function of the
//! other two, so `stillgate-lab verify` can recompute it and compare. Fields are only ever added; if one must change
//! its meaning, [`SCHEMA_VERSION`] is raised and `migrate` converts older files.

pub(crate) mod bisect;
pub(crate) mod compare;
pub(crate) mod devices;
pub(crate) mod explain;
pub(crate) mod file;
pub(crate) mod histogram;
pub(crate) mod load;
pub(crate) mod run;
pub(crate) mod tail;

use run::{Environment, Subject};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The layout this program writes.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// A result file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ResultFile {
    /// See [`SCHEMA_VERSION`].
    pub(crate) schema_version: u32,
    /// Version of the program that wrote it.
    pub(crate) lab_version: String,
    /// RFC 3339, UTC.
    pub(crate) written_at: String,
    /// As typed, without the program's name and the values of secret header fields and bodies.
    pub(crate) arguments: Vec<String>,
    /// The machine it ran on.
    pub(crate) environment: Environment,
    /// The experiment and its result. In JSON its fields are at the top level with those above, including `kind`:
    /// scripts read `requests` or `corrected` of a load without knowing about result files.
    #[serde(flatten)]
    pub(crate) experiment: Experiment,
}

/// The experiment and its result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Experiment {
    /// `stillgate-lab load`
    Load(Box<load::LoadResult>),
    /// `stillgate-lab tail`
    Tail(Box<tail::TailResult>),
    /// `stillgate-lab compare`
    Compare(Box<compare::CompareResult>),
    /// `stillgate-lab bisect`
    Bisect(Box<bisect::BisectResult>),
    /// `stillgate-lab devices`
    Devices(Box<devices::DevicesResult>),
    /// `stillgate-lab explain`
    Explain(Box<explain::ExplainResult>),
    /// Commands whose outcome is a table of figures: `stillgate-lab churn`
    Figures(Box<FiguresResult>),
}

// The result of an experiment whose outcome is a table of figures: rounds in which each column is measured once.

/// A table of figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct FiguresResult {
    /// The command.
    pub(crate) experiment: String,
    /// What was measured, in a few words.
    pub(crate) title: String,
    /// The arguments that shaped it, with the defaults.
    pub(crate) settings: Vec<Setting>,
    /// What is measured in each round, in the order of the table; ratios are to the first.
    pub(crate) columns: Vec<String>,
    /// The figures.
    pub(crate) lines: Vec<FigureLine>,
    /// The programs, as far as they were started.
    pub(crate) subjects: Vec<Subject>,
    /// The number of rounds that were to be run.
    pub(crate) planned: usize,
    /// The raw data: for each round a sample of each column, or none.
    pub(crate) rounds: Vec<Vec<Option<Sample>>>,
    /// Durations that belong to no round.
    pub(crate) durations: Vec<Durations>,
    /// Remarks, in sentences.
    pub(crate) notes: Vec<String>,
    /// Requirements that were not met, in sentences.
    pub(crate) faults: Vec<String>,
    /// A function of the above.
    pub(crate) analysis: Vec<LineAnalysis>,
}

/// An argument or a default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Setting {
    pub(crate) name: String,
    pub(crate) value: String,
}

/// A line of the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FigureLine {
    pub(crate) name: String,
    pub(crate) unit: String,
}

/// One column of one round.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// A value for each line; `None` where it was not measured.
    pub(crate) values: Vec<Option<f64>>,
    /// Why it shows the generator rather than its target; empty: it is valid.
    pub(crate) void: Vec<String>,
}

/// Durations of one kind of event.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Durations {
    /// From what to what.
    pub(crate) of: String,
    /// In the order in which they happened.
    pub(crate) us: Vec<u64>,
}

/// The analysis of a line: a cell for each column.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LineAnalysis {
    pub(crate) cells: Vec<CellAnalysis>,
}

/// The analysis of a line in a column.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CellAnalysis {
    /// Over the rounds.
    pub(crate) median: Option<f64>,
    /// The median of the ratios to the first column within rounds (Hodges-Lehmann); not in the first.
    pub(crate) ratio: Option<f64>,
    /// The 95% interval of the ratio, if there are enough rounds for one.
    pub(crate) interval: Option<(f64, f64)>,
}

// Figures in JSON that may be infinite; JSON has no infinity, so `null` represents it.
//
// With too few pairs an interval is unbounded, and there is no smallest detectable effect; both must be read back
// unchanged, or a recomputed analysis would seem to differ.

/// For `#[serde(with = "unbounded_above")]`: `null` is infinity.
pub(crate) mod unbounded_above {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        super::serialize_finite(*value, serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::INFINITY))
    }
}

/// For `#[serde(with = "unbounded_below")]`: `null` is negative infinity.
pub(crate) mod unbounded_below {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        super::serialize_finite(*value, serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NEG_INFINITY))
    }
}

fn serialize_finite<S: Serializer>(value: f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.is_finite() { serializer.serialize_some(&value) } else { serializer.serialize_none() }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Range {
        #[serde(with = "super::unbounded_below")]
        low: f64,
        #[serde(with = "super::unbounded_above")]
        high: f64,
    }

    #[test]
    fn infinity_comes_back() {
        let check = |low: f64, high: f64, text: &str| {
            let range = Range { low, high };
            assert_eq!(serde_json::to_string(&range).unwrap(), text);
            assert_eq!(serde_json::from_str::<Range>(text).unwrap(), range);
        };
        check(-0.1, 2.5e300, r#"{"low":-0.1,"high":2.5e+300}"#);
        check(f64::NEG_INFINITY, f64::INFINITY, r#"{"low":null,"high":null}"#);
    }
}
