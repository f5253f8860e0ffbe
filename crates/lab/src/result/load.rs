//! The result of `stillgate-lab load`: one run.

use crate::error::Result;
use crate::result::histogram;
use crate::result::run::{Percentiles, RunRecord};
use crate::result::tail::Point;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use stillgate_load::{Load, Outcome, Pace};

/// What scripts read is at the top: counts, and percentiles in microseconds. All of it follows from `run` and what was asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LoadResult {
    /// The URL asked.
    pub(crate) url: String,
    /// `open` or `closed`.
    pub(crate) pace: String,
    /// Connections.
    pub(crate) connections: usize,
    /// Generator threads.
    pub(crate) threads: usize,
    /// The seed.
    pub(crate) seed: u64,
    /// The measured time, in seconds.
    #[serde(default)]
    pub(crate) duration_s: f64,
    /// Answered in the measured time.
    #[serde(default)]
    pub(crate) requests: u64,
    /// Failed, all kinds together; an answer that a check refused is also in `requests`.
    #[serde(default)]
    pub(crate) errors: u64,
    /// Failed, by kind; kinds without any are left out.
    #[serde(default)]
    pub(crate) errors_by_kind: BTreeMap<String, u64>,
    /// Whether the run says nothing about the target.
    #[serde(default)]
    pub(crate) void: bool,
    /// Why, in sentences.
    #[serde(default)]
    pub(crate) void_reasons: Vec<String>,
    /// Requests a second by the schedule; none in a closed loop.
    #[serde(default)]
    pub(crate) rate_intended: Option<f64>,
    /// Requests a second that were answered.
    #[serde(default)]
    pub(crate) rate_achieved: f64,
    /// Bytes received in the measured time.
    #[serde(default)]
    pub(crate) bytes_received: u64,
    /// Starts that were due and never came about, for no connection became free.
    #[serde(default)]
    pub(crate) missed_starts: u64,
    /// From the intended start.
    pub(crate) corrected: Percentiles,
    /// From the send.
    pub(crate) uncorrected: Percentiles,
    /// How late the generator itself started requests.
    #[serde(default)]
    pub(crate) lateness: Percentiles,
    /// Time to establish a connection.
    #[serde(default)]
    pub(crate) connect: Percentiles,
    /// From the beginning of a send until the system had taken all of the request.
    #[serde(default)]
    pub(crate) send: Percentiles,
    /// From the send to the first byte of the answer.
    #[serde(default)]
    pub(crate) first_byte: Percentiles,
    /// The run itself, with the histograms.
    pub(crate) run: RunRecord,
    /// Stretches of it.
    pub(crate) points: Vec<Point>,
}

impl LoadResult {
    /// Of a run, and its stretches.
    pub(crate) fn of(load: &Load, outcome: &Outcome, points: Vec<Point>) -> Result<LoadResult> {
        let run = RunRecord::of(outcome)?;
        let watch = &outcome.self_watch;
        Ok(LoadResult {
            url: load.target.url.clone(),
            pace: if load.pace == Pace::Closed { "closed" } else { "open" }.to_owned(),
            connections: load.connections,
            threads: load.threads,
            seed: load.seed,
            duration_s: run.elapsed_s,
            requests: run.requests,
            errors: run.errors,
            errors_by_kind: run.errors_by_kind.clone(),
            void: !run.void.is_empty(),
            void_reasons: run.void.clone(),
            rate_intended: run.rate_intended,
            rate_achieved: run.rate_achieved,
            bytes_received: outcome.bytes_received,
            missed_starts: watch.missed_starts,
            corrected: histogram::percentiles(&outcome.latencies.corrected),
            uncorrected: histogram::percentiles(&outcome.latencies.uncorrected),
            lateness: histogram::percentiles(&watch.lateness),
            connect: histogram::percentiles(&outcome.connect),
            send: histogram::percentiles(&outcome.send),
            first_byte: histogram::percentiles(&outcome.first_byte),
            run,
            points,
        })
    }
}
