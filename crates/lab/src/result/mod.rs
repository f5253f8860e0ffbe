//! Result files: the output of an experiment, in self-describing JSON.
//!
//! A file holds the design (with its seed and order), the raw data and the analysis. The analysis is a function of the
//! other two, so `stillgate-lab verify` can recompute it and compare. Fields are only ever added; if one must change
//! its meaning, [`SCHEMA_VERSION`] is raised and `migrate` converts older files.

pub(crate) mod bisect;
pub(crate) mod compare;
pub(crate) mod devices;
pub(crate) mod environment;
pub(crate) mod explain;
pub(crate) mod figures;
pub(crate) mod file;
pub(crate) mod histogram;
mod layout;
pub(crate) mod load;
mod migrate;
pub(crate) mod record;
pub(crate) mod run;
pub(crate) mod tail;
mod unbounded;

use environment::Environment;
use serde::{Deserialize, Serialize};

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
    Figures(Box<figures::FiguresResult>),
}
