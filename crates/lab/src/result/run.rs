//! One run of the load generator, as kept in result files.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use stillgate_load::ErrorKind;

/// One run of the load generator. Histograms are of nanoseconds, in HdrHistogram's V2 deflated form, in base64.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunRecord {
    /// When the measured time began, in seconds since 1970.
    pub(crate) begun_unix_s: f64,
    /// The measured time.
    pub(crate) elapsed_s: f64,
    /// Meant to start in the measured time and answered in full, whatever the answer, at most a time-out after it.
    pub(crate) requests: u64,
    /// Failed, all kinds together; an answer that a check refused is also in `requests`.
    pub(crate) errors: u64,
    /// Failed, by kind; kinds without any are left out.
    pub(crate) errors_by_kind: BTreeMap<String, u64>,
    /// The first few failures in words.
    pub(crate) error_examples: Vec<String>,
    /// Requests a second by the schedule; none in a closed loop.
    pub(crate) rate_intended: Option<f64>,
    /// Good answers a second. In a closed loop, a request that was under way when the measured time began or ended counts with the
    /// share of its time that lies in it.
    pub(crate) rate_achieved: f64,
    /// Those of `requests` that were answered by the end of the measured time; none in files before this was in a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) answered_in_time: Option<u64>,
    /// Starts that were due and never came about, for no connection became free; none in files of the first versions. They are
    /// in `corrected` with the time they had been due when the run was over, which is the least they would have waited.
    #[serde(default)]
    pub(crate) missed_starts: Option<u64>,
    /// Requests still under way when the run was given up, before their time-out; also in `corrected` of an open loop only.
    #[serde(default)]
    pub(crate) cut_off: u64,
    /// From the intended start: good answers, time-outs, missed starts and what was cut off.
    pub(crate) corrected: String,
    /// From the send.
    pub(crate) uncorrected: String,
    /// From the send, of answers that a check refused. None in older files, which have them in the other two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refused: Option<String>,
    /// How late the generator itself was.
    pub(crate) lateness: String,
    /// Of all generator threads, in cores.
    pub(crate) generator_cpu_cores: f64,
    /// The busiest generator thread's share of its CPU, 0 to 1.
    #[serde(default)]
    pub(crate) generator_cpu_share_max: Option<f64>,
    /// Share of time the worst-off generator thread waited for a CPU.
    pub(crate) generator_cpu_wait_share: Option<f64>,
    /// The longest time by which the generator woke later than it meant to, of those that are pauses.
    #[serde(default)]
    pub(crate) generator_pause_longest_s: Option<f64>,
    /// Their sum, of the thread that had most.
    #[serde(default)]
    pub(crate) generator_pauses_s: Option<f64>,
    /// Whether the generator had real-time priority: without, latencies may hold the delays of the system's scheduler.
    #[serde(default)]
    pub(crate) generator_realtime: Option<bool>,
    /// Why this run says nothing; empty: it stands.
    pub(crate) void: Vec<String>,
}

/// Kinds of failures whose requests were answered all the same, and so are counted in `requests` too.
const ANSWERED: [ErrorKind; 2] = [ErrorKind::Status, ErrorKind::Body];

impl RunRecord {
    /// What was asked for: each request once, however it ended, and each that could not even be started.
    pub(crate) fn asked(&self) -> u64 {
        self.requests + self.failed().saturating_sub(self.refusals())
    }

    /// Of those, how many did not get the answer they should have got.
    pub(crate) fn failed(&self) -> u64 {
        self.errors + self.missed_starts.unwrap_or(0) + self.cut_off
    }

    /// The same as a share, 0 to 1.
    pub(crate) fn failed_share(&self) -> f64 {
        self.failed() as f64 / self.asked().max(1) as f64
    }

    /// Answers that a check refused.
    pub(crate) fn refusals(&self) -> u64 {
        ANSWERED.iter().map(|kind| self.failed_by(*kind)).sum()
    }

    /// Answers of which latencies and rate are: those that no check refused, and in older files all.
    pub(crate) fn good(&self) -> u64 {
        self.requests - if self.refused.is_some() { self.refusals().min(self.requests) } else { 0 }
    }

    /// Failures of one kind.
    pub(crate) fn failed_by(&self, kind: ErrorKind) -> u64 {
        self.errors_by_kind.get(kind.name()).copied().unwrap_or(0)
    }
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
    /// Whether the target was on another machine, so that the numbers of its CPUs are of that one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) target_apart: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_answer_is_asked_for_once() {
        let check = |kinds: &[(&str, u64)], missed: Option<u64>, asked: u64, failed: u64| {
            let errors_by_kind: BTreeMap<String, u64> =
                kinds.iter().map(|(kind, count)| ((*kind).to_owned(), *count)).collect();
            let errors = errors_by_kind.values().sum();
            let run =
                RunRecord { requests: 1_000, errors, errors_by_kind, missed_starts: missed, ..RunRecord::default() };
            assert_eq!((run.asked(), run.failed()), (asked, failed), "{kinds:?}");
        };
        check(&[], None, 1_000, 0);
        check(&[("status", 500)], Some(0), 1_000, 500);
        check(&[("status", 5), ("body", 6), ("closed", 7), ("timeout", 8)], Some(9), 1_024, 35);
        assert_eq!(RunRecord::default().failed_share(), 0.0);
    }
}
