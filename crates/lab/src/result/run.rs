//! One run of the load generator, as kept in result files, and the properties of the machine that affect its figures.

use crate::error::Result;
use crate::result::histogram;
use crate::result::tail::Point;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;
use stillgate_load::{ErrorKind, Interval, RunSummary};

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

// Converts a run of the load generator, and its intervals, for a result file.

impl RunRecord {
    /// The record of a run.
    pub(crate) fn of(outcome: &RunSummary) -> Result<RunRecord> {
        let counts = ErrorKind::ALL.iter().zip(outcome.errors.counts);
        Ok(RunRecord {
            // A clock before 1970 means a machine without one; the order of runs does not depend on it.
            begun_unix_s: outcome.begun.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()),
            elapsed_s: outcome.elapsed.as_secs_f64(),
            requests: outcome.requests,
            errors: outcome.errors.total(),
            errors_by_kind: counts
                .filter(|(_, count)| *count > 0)
                .map(|(kind, count)| (kind.name().to_owned(), count))
                .collect(),
            error_examples: outcome.errors.examples.clone(),
            rate_intended: outcome.rate_intended,
            rate_achieved: outcome.rate_achieved,
            answered_in_time: Some(outcome.answered_in_time),
            missed_starts: Some(outcome.self_watch.missed_starts),
            cut_off: outcome.cut_off,
            corrected: histogram::encode(&outcome.latencies.corrected)?,
            uncorrected: histogram::encode(&outcome.latencies.uncorrected)?,
            refused: Some(histogram::encode(&outcome.refused)?),
            lateness: histogram::encode(&outcome.self_watch.lateness)?,
            generator_cpu_cores: outcome.self_watch.cpu_cores,
            generator_cpu_share_max: Some(outcome.self_watch.cpu_share_max),
            generator_cpu_wait_share: outcome.self_watch.cpu_wait_share_max,
            generator_pause_longest_s: Some(outcome.self_watch.pause_longest.as_secs_f64()),
            generator_pauses_s: Some(outcome.self_watch.pauses.as_secs_f64()),
            generator_realtime: Some(outcome.self_watch.realtime),
            void: outcome.void.iter().map(ToString::to_string).collect(),
        })
    }
}

impl Point {
    /// The point of an interval of a run.
    pub(crate) fn of(interval: &Interval<'_>) -> Point {
        let corrected = &interval.latencies.corrected;
        Point {
            at_s: interval.start.as_secs_f64(),
            length_s: interval.length.as_secs_f64(),
            requests: interval.requests,
            errors: interval.errors,
            p50_us: histogram::quantile_us(corrected, 0.5),
            p99_us: histogram::quantile_us(corrected, 0.99),
            p99_9_us: Some(histogram::quantile_us(corrected, 0.999)),
            max_us: histogram::max_us(corrected),
        }
    }
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

#[cfg(test)]
mod record_tests {
    use super::*;
    use std::time::{Duration, SystemTime};
    use stillgate_load::{Errors, Latencies, SelfWatch, Void, outcome};

    #[test]
    fn a_run_is_kept_with_all_that_speaks_against_it() {
        let mut corrected = outcome::histogram();
        corrected.record_n(2_000_000, 7).unwrap();
        let mut errors = Errors::default();
        errors.counts[ErrorKind::ALL.iter().position(|kind| *kind == ErrorKind::Timeout).unwrap()] = 2;
        errors.examples.push("no answer in 1 s".into());
        let record = RunRecord::of(&RunSummary {
            begun: SystemTime::UNIX_EPOCH + Duration::from_millis(1500),
            elapsed: Duration::from_millis(250),
            requests: 7,
            answered_in_time: 7,
            good: 7,
            good_in_time: 7,
            drain: Duration::ZERO,
            cut_off: 0,
            interrupted: false,
            errors,
            sent: 10,
            sent_again: 0,
            bytes_received: 700,
            rate_achieved: 28.0,
            rate_intended: Some(40.0),
            latencies: Latencies { corrected: corrected.clone(), uncorrected: outcome::histogram() },
            refused: outcome::histogram(),
            connect: outcome::histogram(),
            send: outcome::histogram(),
            first_byte: outcome::histogram(),
            self_watch: SelfWatch {
                lateness: outcome::histogram(),
                missed_starts: 0,
                cpu_cores: 0.5,
                cpu_share_max: 0.5,
                realtime: false,
                pause_longest: Duration::ZERO,
                pauses: Duration::ZERO,
                cpu_wait_share_max: None,
            },
            void: vec![Void::NoAnswers],
            notes: Vec::new(),
        })
        .unwrap();
        assert_eq!((record.begun_unix_s, record.elapsed_s, record.requests, record.errors), (1.5, 0.25, 7, 2));
        assert_eq!(record.errors_by_kind.into_iter().collect::<Vec<_>>(), [("timeout".to_owned(), 2)]);
        assert_eq!(record.error_examples, ["no answer in 1 s"]);
        assert_eq!(histogram::decode(&record.corrected).unwrap(), corrected);
        assert_eq!(record.void, [Void::NoAnswers.to_string()]);
    }
}

/// The machine. Unknown properties are `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Environment {
    /// As `/proc/cpuinfo` names it.
    pub(crate) cpu_model: Option<String>,
    /// CPUs this process may use.
    pub(crate) cpus: usize,
    /// MHz of the first CPU when the experiment began.
    pub(crate) cpu_mhz: Option<f64>,
    /// The frequency governor of the first CPU.
    pub(crate) governor: Option<String>,
    /// Whether the CPU may go above its base frequency.
    pub(crate) turbo: Option<bool>,
    /// The hypervisor, if there is one.
    pub(crate) hypervisor: Option<String>,
    /// Name and release of the kernel.
    pub(crate) kernel: String,
    /// The system, as `/etc/os-release` names it.
    pub(crate) system: Option<String>,
    /// Memory in MiB.
    pub(crate) memory_mib: u64,
    /// The kernel's clock source.
    pub(crate) clock_source: Option<String>,
    /// Mitigations of CPU vulnerabilities that are active, one a line of `/sys/devices/system/cpu/vulnerabilities`.
    pub(crate) mitigations: Vec<String>,
    /// The one-minute load average when the experiment began.
    pub(crate) load_average: Option<f64>,
    /// The git commit of the current directory, with `+changes` if it has uncommitted ones.
    pub(crate) commit: Option<String>,
    /// Seconds that the host took from this machine's CPUs during the experiment, over all CPUs.
    pub(crate) stolen_s: Option<f64>,
    /// Other machines of the experiment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) hosts: Vec<HostEnvironment>,
}

/// Another machine of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct HostEnvironment {
    /// `target` or `upstream`.
    pub(crate) role: String,
    /// Address at which the others reached it.
    pub(crate) ip: String,
    /// Its properties.
    pub(crate) environment: Environment,
}
