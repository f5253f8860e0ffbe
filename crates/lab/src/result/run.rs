//! One run of the load generator, as kept in result files.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One run of the load generator. Histograms are of nanoseconds, in HdrHistogram's V2 deflated form, in base64.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunRecord {
    /// When the measured time began, in seconds since 1970.
    pub(crate) begun_unix_s: f64,
    /// The measured time.
    pub(crate) elapsed_s: f64,
    /// Answered in the measured time.
    pub(crate) requests: u64,
    /// Failed, all kinds together.
    pub(crate) errors: u64,
    /// Failed, by kind; kinds without any are left out.
    pub(crate) errors_by_kind: BTreeMap<String, u64>,
    /// The first few failures in words.
    pub(crate) error_examples: Vec<String>,
    /// Requests a second by the schedule; none in a closed loop.
    pub(crate) rate_intended: Option<f64>,
    /// Requests a second that were answered.
    pub(crate) rate_achieved: f64,
    /// From the intended start.
    pub(crate) corrected: String,
    /// From the send.
    pub(crate) uncorrected: String,
    /// How late the generator itself was.
    pub(crate) lateness: String,
    /// Of all generator threads, in cores.
    pub(crate) generator_cpu_cores: f64,
    /// Share of time the worst-off generator thread waited for a CPU.
    pub(crate) generator_cpu_wait_share: Option<f64>,
    /// Why this run says nothing; empty: it stands.
    pub(crate) void: Vec<String>,
}

/// Percentiles of a histogram, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Percentiles {
    /// The median.
    pub(crate) p50: f64,
    /// 90%
    pub(crate) p90: f64,
    /// 99%
    pub(crate) p99: f64,
    /// 99.9%
    pub(crate) p99_9: f64,
    /// 99.99%
    pub(crate) p99_99: f64,
    /// The slowest.
    pub(crate) max: f64,
}

/// A program under measure.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Subject {
    /// As the tables show it.
    pub(crate) name: String,
    /// What it says of its version.
    pub(crate) version: Option<String>,
    /// The command as it was run.
    pub(crate) command: Vec<String>,
    /// The configuration file it was given, where the laboratory wrote one.
    pub(crate) configuration: Option<String>,
    /// SHA-256 of the binary.
    pub(crate) binary_sha256: Option<String>,
    /// The git commit it was built from.
    pub(crate) revision: Option<String>,
}

/// Which CPUs were given to whom; empty: all.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Placement {
    /// The program under measure.
    pub(crate) target_cpus: Vec<usize>,
    /// Generator, upstream and scraper.
    pub(crate) load_cpus: Vec<usize>,
}
