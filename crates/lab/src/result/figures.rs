//! The result of an experiment whose outcome is a table of figures: rounds in which each column is measured once.

use super::run::Subject;
use serde::{Deserialize, Serialize};

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
