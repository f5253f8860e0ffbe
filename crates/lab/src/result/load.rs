//! The result of `stillgate-lab load`: one run.

use crate::error::Result;
use crate::result::histogram;
use crate::result::run::{Percentiles, RunRecord};
use crate::result::tail::Point;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use stillgate_load::plan::DURATION_UNBOUNDED;
use stillgate_load::{Arrivals, Load, Pace, Protocol, RunSummary};

/// Figures for scripts are at the top: counts, and percentiles in microseconds. All of it except the bytes follows from
/// `run`, `parts` and the settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LoadResult {
    /// The requested URL.
    pub(crate) url: String,
    /// `open` or `closed`.
    pub(crate) pace: String,
    /// Connections.
    pub(crate) connections: usize,
    /// Generator threads.
    pub(crate) threads: usize,
    /// The seed.
    pub(crate) seed: u64,
    /// The settings fixed before the run; `None` in files of the first versions.
    #[serde(default)]
    pub(crate) design: Option<LoadDesign>,
    /// The measured time, in seconds.
    #[serde(default)]
    pub(crate) duration_s: f64,
    /// Whether it was ended early; `duration_s` is then the measured time.
    #[serde(default)]
    pub(crate) interrupted: bool,
    /// Requests that were due in the measured time and were answered by the end of it or in `drain_s`
    /// after it.
    #[serde(default)]
    pub(crate) requests: u64,
    /// Requests answered by the end of the measured time.
    #[serde(default)]
    pub(crate) answered_in_time: u64,
    /// The good ones of `requests`: answers that no check refused. `None` in files from before they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) good: Option<u64>,
    /// How long after the measured time the last answer came, or the last request timed out, in seconds.
    #[serde(default)]
    pub(crate) drain_s: f64,
    /// Requests still under way at the very end, before their timeout; these are not failures.
    #[serde(default)]
    pub(crate) cut_off: u64,
    /// Failed, all kinds together; an answer that a check refused is also in `requests`.
    #[serde(default)]
    pub(crate) errors: u64,
    /// Failed, by kind; kinds without any are left out.
    #[serde(default)]
    pub(crate) errors_by_kind: BTreeMap<String, u64>,
    /// Whether the run is void, and shows nothing about the target.
    #[serde(default)]
    pub(crate) void: bool,
    /// The reasons, in sentences.
    #[serde(default)]
    pub(crate) void_reasons: Vec<String>,
    /// Further remarks on the run, in sentences, for example that its rate was not reached.
    #[serde(default)]
    pub(crate) notes: Vec<String>,
    /// Requests per second by the schedule; `None` in a closed loop.
    #[serde(default)]
    pub(crate) rate_intended: Option<f64>,
    /// Good answers per second: in an open loop those that came by the end of the measured time; in a closed loop, a
    /// request that was under way when the measured time began or ended counts with the share of its time that lies in
    /// it.
    #[serde(default)]
    pub(crate) rate_achieved: f64,
    /// Bytes received in the measured time.
    #[serde(default)]
    pub(crate) bytes_received: u64,
    /// Requests sent again because the target ended their connection without processing them.
    #[serde(default)]
    pub(crate) sent_again: u64,
    /// The conditions of `--fail-if` and their outcomes; a void run is not judged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) conditions: Vec<ConditionResult>,
    /// Starts that were due but missed, because no connection became free.
    #[serde(default)]
    pub(crate) missed_starts: u64,
    /// The busiest generator thread's share of its CPU, 0 to 1.
    #[serde(default)]
    pub(crate) cpu_share_max: f64,
    /// Whether the generator had priority over other programs.
    #[serde(default)]
    pub(crate) realtime: bool,
    /// From the intended start.
    #[serde(with = "measured")]
    pub(crate) corrected: Percentiles,
    /// From the send.
    #[serde(with = "measured")]
    pub(crate) uncorrected: Percentiles,
    /// From the send, of answers that a check refused; `None` if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refused: Option<Percentiles>,
    /// How late the generator itself started requests.
    #[serde(default, with = "measured")]
    pub(crate) lateness: Percentiles,
    /// Time to establish a connection.
    #[serde(default, with = "measured")]
    pub(crate) connect: Percentiles,
    /// From the beginning of a send until the system had accepted the whole request.
    #[serde(default, with = "measured")]
    pub(crate) send: Percentiles,
    /// From the send to the first byte of the answer.
    #[serde(default, with = "measured")]
    pub(crate) first_byte: Percentiles,
    /// The run itself, with the histograms of whole requests.
    pub(crate) run: RunRecord,
    /// The histograms of their parts; `None` in files of the first versions.
    #[serde(default)]
    pub(crate) parts: Option<PartHistograms>,
    /// Intervals of it.
    pub(crate) points: Vec<Point>,
    /// The process of `--watch` at the end of each interval; none after its end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) watched: Vec<WatchSample>,
}

/// A process and its descendants at one time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct WatchSample {
    /// Since the measured time began.
    pub(crate) at_s: f64,
    /// Resident memory; pages of files and shared memory count once.
    pub(crate) rss_kib: u64,
    /// Resident memory without pages of files.
    pub(crate) anonymous_kib: u64,
    /// Open descriptors.
    pub(crate) descriptors: usize,
    /// CPUs that they used on average since the previous sample.
    pub(crate) cpu_cores: f64,
}

/// A condition of `--fail-if`, applied to the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ConditionResult {
    /// As it was typed.
    pub(crate) condition: String,
    /// The measured value, as text.
    pub(crate) found: String,
    /// Whether it holds, so that the run failed.
    pub(crate) holds: bool,
}

/// The settings fixed before the run, besides those at the top.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LoadDesign {
    /// Requests per second at the beginning; `None` in a closed loop.
    pub(crate) rate: Option<f64>,
    /// Requests per second at the end, reached linearly.
    pub(crate) rate_end: Option<f64>,
    /// `uniform` or `poisson`; `None` in a closed loop.
    pub(crate) arrivals: Option<String>,
    /// The planned measured time, at most; `None` if only requests were counted.
    pub(crate) duration_s: Option<f64>,
    /// The planned number of requests; `None`: as many as fit the time.
    #[serde(default)]
    pub(crate) requests: Option<u64>,
    /// `HTTP/1.1` or `HTTP/2`.
    #[serde(default)]
    pub(crate) protocol: Option<String>,
    /// With HTTP/2, concurrent requests on a connection.
    #[serde(default)]
    pub(crate) streams: Option<usize>,
    /// Load before it.
    pub(crate) warm_up_s: f64,
    /// A request without a complete answer after this time has failed.
    pub(crate) timeout_s: f64,
    /// Length of the intervals.
    pub(crate) interval_s: f64,
    /// A request that the generator started later than this was late.
    pub(crate) late_s: f64,
    /// The share of requests that was allowed to be late.
    pub(crate) late_share_max: f64,
    /// CPUs of the generator; empty: placed by the system.
    pub(crate) cpus: Vec<usize>,
    /// Source addresses; empty: the system's choice.
    pub(crate) sources: Vec<IpAddr>,
    /// SHA-256 of the file with the mix; files that it names are not included.
    pub(crate) mix_sha256: Option<String>,
}

/// The parts of the requests' time. Histograms are as those of the run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PartHistograms {
    /// Time to establish a connection.
    pub(crate) connect: String,
    /// From the beginning of a send until the system had accepted the whole request.
    pub(crate) send: String,
    /// From the send to the first byte of the answer.
    pub(crate) first_byte: String,
}

impl LoadDesign {
    fn of(load: &Load, mix_sha256: Option<String>) -> LoadDesign {
        let schedule = match &load.pace {
            Pace::Closed => None,
            Pace::Open(schedule) => Some(schedule),
        };
        let arrivals = schedule.map(|schedule| match schedule.arrivals {
            Arrivals::Uniform => "uniform",
            Arrivals::Poisson => "poisson",
        });
        LoadDesign {
            rate: schedule.map(|schedule| schedule.rate),
            rate_end: schedule.map(|schedule| schedule.rate_end),
            arrivals: arrivals.map(str::to_owned),
            duration_s: (load.duration < DURATION_UNBOUNDED).then_some(load.duration.as_secs_f64()),
            requests: load.requests,
            protocol: Some(if load.protocol == Protocol::Http1 { "HTTP/1.1" } else { "HTTP/2" }.to_owned()),
            streams: (load.protocol != Protocol::Http1).then_some(load.protocol.streams()),
            warm_up_s: load.warm_up.as_secs_f64(),
            timeout_s: load.timeout.as_secs_f64(),
            interval_s: load.interval.as_secs_f64(),
            late_s: load.bounds.late.as_secs_f64(),
            late_share_max: load.bounds.late_share_max,
            cpus: load.cpus.clone(),
            sources: load.sources.clone(),
            mix_sha256,
        }
    }
}

impl LoadResult {
    /// From a run, its intervals, and the digest of its mix, if that was in a file.
    pub(crate) fn of(
        load: &Load,
        outcome: &RunSummary,
        points: Vec<Point>,
        mix_sha256: Option<String>,
    ) -> Result<LoadResult> {
        let run = RunRecord::of(outcome)?;
        let watch = &outcome.self_watch;
        Ok(LoadResult {
            url: load.target.url.clone(),
            pace: if load.pace == Pace::Closed { "closed" } else { "open" }.to_owned(),
            connections: load.connections,
            threads: load.threads,
            seed: load.seed,
            design: Some(LoadDesign::of(load, mix_sha256)),
            duration_s: run.elapsed_s,
            interrupted: outcome.interrupted,
            requests: run.requests,
            answered_in_time: outcome.answered_in_time,
            good: Some(outcome.good),
            drain_s: outcome.drain.as_secs_f64(),
            cut_off: outcome.cut_off,
            errors: run.errors,
            errors_by_kind: run.errors_by_kind.clone(),
            void: !run.void.is_empty(),
            void_reasons: run.void.clone(),
            notes: outcome.notes.iter().map(ToString::to_string).collect(),
            rate_intended: run.rate_intended,
            rate_achieved: run.rate_achieved,
            bytes_received: outcome.bytes_received,
            sent_again: outcome.sent_again,
            conditions: Vec::new(),
            missed_starts: watch.missed_starts,
            cpu_share_max: watch.cpu_share_max,
            realtime: watch.realtime,
            corrected: histogram::percentiles(&outcome.latencies.corrected),
            uncorrected: histogram::percentiles(&outcome.latencies.uncorrected),
            refused: (!outcome.refused.is_empty()).then(|| histogram::percentiles(&outcome.refused)),
            lateness: histogram::percentiles(&watch.lateness),
            connect: histogram::percentiles(&outcome.connect),
            send: histogram::percentiles(&outcome.send),
            first_byte: histogram::percentiles(&outcome.first_byte),
            run,
            parts: Some(PartHistograms {
                connect: histogram::encode(&outcome.connect)?,
                send: histogram::encode(&outcome.send)?,
                first_byte: histogram::encode(&outcome.first_byte)?,
            }),
            points,
            watched: Vec::new(),
        })
    }
}

/// Percentiles without data are `null` in the file: a zero would look like the fastest server of all.
mod measured {
    use super::Percentiles;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct PercentilesJson {
        p50: Option<f64>,
        p90: Option<f64>,
        p99: Option<f64>,
        p99_9: Option<f64>,
        p99_99: Option<f64>,
        max: Option<f64>,
    }

    pub(super) fn serialize<S: Serializer>(figures: &Percentiles, serializer: S) -> Result<S::Ok, S::Error> {
        // No measured time is zero.
        let known = |us: f64| (figures.max > 0.0).then_some(us);
        let &Percentiles { p50, p90, p99, p99_9, p99_99, max } = figures;
        let [p50, p90, p99, p99_9, p99_99, max] = [p50, p90, p99, p99_9, p99_99, max].map(known);
        PercentilesJson { p50, p90, p99, p99_9, p99_99, max }.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Percentiles, D::Error> {
        let PercentilesJson { p50, p90, p99, p99_9, p99_99, max } = PercentilesJson::deserialize(deserializer)?;
        let [p50, p90, p99, p99_9, p99_99, max] = [p50, p90, p99, p99_9, p99_99, max].map(Option::unwrap_or_default);
        Ok(Percentiles { p50, p90, p99, p99_9, p99_99, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Part {
        #[serde(default, with = "measured")]
        part: Percentiles,
    }

    #[test]
    fn what_was_not_measured_is_null_and_comes_back() {
        let check = |part: Percentiles, p50: Option<f64>| {
            let value = serde_json::to_value(Part { part }).unwrap();
            assert_eq!(value["part"]["p50"].as_f64(), p50);
            assert!(value["part"].get("p99_99").is_some(), "the shape stays: {value}");
            assert_eq!(serde_json::from_value::<Part>(value).unwrap(), Part { part });
        };
        check(Percentiles::default(), None);
        check(Percentiles { p50: 1.5, p90: 2.0, p99: 3.0, p99_9: 4.0, p99_99: 5.0, max: 6.0 }, Some(1.5));
        check(Percentiles { max: 6.0, ..Percentiles::default() }, Some(0.0));
    }
}
