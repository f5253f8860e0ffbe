//! One run of the load generator, as kept in result files.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use stillgate_load::ErrorKind;

/// One run of the load generator. Histograms are in nanoseconds, in HdrHistogram's V2 deflated form, in base64.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunRecord {
    /// When the measured time began, in seconds since 1970.
    pub(crate) begun_unix_s: f64,
    /// The measured time.
    pub(crate) elapsed_s: f64,
    /// Due in the measured time and answered in full, with any answer, at most a time-out after it.
    pub(crate) requests: u64,
    /// Failed, all kinds together; an answer that a check refused is also in `requests`.
    pub(crate) errors: u64,
    /// Failed, by kind; kinds without any are left out.
    pub(crate) errors_by_kind: BTreeMap<String, u64>,
    /// The first few failures as text.
    pub(crate) error_examples: Vec<String>,
    /// Requests per second by the schedule; `None` in a closed loop.
    pub(crate) rate_intended: Option<f64>,
    /// Good answers per second. In a closed loop, a request that was under way when the measured time began or ended
    /// counts with the share of its time that lies in it.
    pub(crate) rate_achieved: f64,
    /// The `requests` that were answered by the end of the measured time; `None` in files from before this was
    /// stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) answered_in_time: Option<u64>,
    /// Starts that were due but missed, because no connection became free; absent in files of the first versions. They
    /// are in `corrected` with the time since they were due when the run ended, which is the least they would have
    /// waited.
    #[serde(default)]
    pub(crate) missed_starts: Option<u64>,
    /// Requests still under way when the run ended, before their time-out; also in `corrected`, in an open loop only.
    #[serde(default)]
    pub(crate) cut_off: u64,
    /// From the intended start: good answers, time-outs, missed starts and requests that were cut off.
    pub(crate) corrected: String,
    /// From the send.
    pub(crate) uncorrected: String,
    /// From the send, of answers that a check refused. `None` in older files, which have them in the other two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refused: Option<String>,
    /// How late the generator itself was.
    pub(crate) lateness: String,
    /// CPU use of all generator threads, in cores.
    pub(crate) generator_cpu_cores: f64,
    /// The busiest generator thread's share of its CPU, 0 to 1.
    #[serde(default)]
    pub(crate) generator_cpu_share_max: Option<f64>,
    /// Share of time the worst-off generator thread waited for a CPU.
    pub(crate) generator_cpu_wait_share: Option<f64>,
    /// The longest delay with which the generator woke, among those that count as pauses.
    #[serde(default)]
    pub(crate) generator_pause_longest_s: Option<f64>,
    /// Their sum, for the thread with the most.
    #[serde(default)]
    pub(crate) generator_pauses_s: Option<f64>,
    /// Whether the generator had real-time priority: without it, latencies may include delays of the system's
    /// scheduler.
    #[serde(default)]
    pub(crate) generator_realtime: Option<bool>,
    /// The reasons why this run is void; empty: it is valid.
    pub(crate) void: Vec<String>,
}

/// Kinds of failures whose requests were nevertheless answered, and therefore also count in `requests`.
const ANSWERED: [ErrorKind; 2] = [ErrorKind::Status, ErrorKind::Body];

impl RunRecord {
    /// The number of requests: each once, however it ended, including those that could not be started.
    pub(crate) fn requested(&self) -> u64 {
        self.requests + self.failed().saturating_sub(self.refusals())
    }

    /// The number of those without the expected answer.
    pub(crate) fn failed(&self) -> u64 {
        self.errors + self.missed_starts.unwrap_or(0) + self.cut_off
    }

    /// The failed ones as a share, 0 to 1.
    pub(crate) fn failed_share(&self) -> f64 {
        self.failed() as f64 / self.requested().max(1) as f64
    }

    /// Answers that a check refused.
    pub(crate) fn refusals(&self) -> u64 {
        ANSWERED.iter().map(|kind| self.failed_by(*kind)).sum()
    }

    /// Answers that latencies and rate are about: those that no check refused, and in older files all.
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

/// A measured program.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Subject {
    /// As the tables show it.
    pub(crate) name: String,
    /// Its own report of its version.
    pub(crate) version: Option<String>,
    /// The command as it was run.
    pub(crate) command: Vec<String>,
    /// The configuration file that it was given, if the laboratory wrote one.
    pub(crate) configuration: Option<String>,
    /// SHA-256 of the binary.
    pub(crate) binary_sha256: Option<String>,
    /// The git commit it was built from.
    pub(crate) revision: Option<String>,
}

/// The CPUs of each process; empty: all.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Placement {
    /// The measured program.
    pub(crate) target_cpus: Vec<usize>,
    /// Generator, upstream and scraper.
    pub(crate) load_cpus: Vec<usize>,
    /// Whether the target was on another machine, to which the numbers of its CPUs then refer.
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
            assert_eq!((run.requested(), run.failed()), (asked, failed), "{kinds:?}");
        };
        check(&[], None, 1_000, 0);
        check(&[("status", 500)], Some(0), 1_000, 500);
        check(&[("status", 5), ("body", 6), ("closed", 7), ("timeout", 8)], Some(9), 1_024, 35);
        assert_eq!(RunRecord::default().failed_share(), 0.0);
    }
}
