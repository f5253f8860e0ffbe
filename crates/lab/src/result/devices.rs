//! The result of a run of mock devices, and that of rounds of two gateways.

use super::histogram;
use super::run::Percentiles;
use crate::error::Result;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `stillgate-lab devices`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct DevicesResult {
    pub(crate) design: DevicesDesign,
    /// Without `--compare`.
    pub(crate) run: Option<DevicesRun>,
    /// With it, in the order they were run.
    pub(crate) rounds: Vec<DevicesRound>,
    pub(crate) analysis: Option<DevicesAnalysis>,
}

/// The settings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct DevicesDesign {
    pub(crate) url: String,
    pub(crate) api: Option<String>,
    /// Further nodes of the same devices.
    #[serde(default)]
    pub(crate) nodes: Vec<String>,
    /// The node that messages are sent to, if there are several.
    #[serde(default)]
    pub(crate) via: String,
    /// B of a comparison.
    pub(crate) other_url: Option<String>,
    pub(crate) other_api: Option<String>,
    pub(crate) devices: usize,
    pub(crate) connect_rate: f64,
    pub(crate) message_rate: Option<f64>,
    pub(crate) ack: String,
    pub(crate) duration_s: f64,
    pub(crate) churn: f64,
    pub(crate) rounds: usize,
    pub(crate) alpha: f64,
    pub(crate) margin: f64,
    pub(crate) seed: u64,
}

/// One run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct DevicesRun {
    /// The gateway's, if it runs on this machine.
    pub(crate) pid: Option<u32>,
    pub(crate) process: Option<String>,
    /// Processes of further nodes; CPU time and memory are sums over all.
    #[serde(default)]
    pub(crate) further_pids: Vec<u32>,
    pub(crate) connects: Vec<ConnectStep>,
    /// From the first connect until all were connected.
    pub(crate) connects_per_s: f64,
    pub(crate) rss_bytes_per_device: Option<f64>,
    pub(crate) idle: Option<Idle>,
    pub(crate) messages: Option<Messages>,
    pub(crate) broadcast: Option<Broadcast>,
    pub(crate) storm: Option<Storm>,
    /// Connections that ended, handshakes that were refused, by reason.
    pub(crate) endings: BTreeMap<String, u64>,
    /// Sessions that continued after a device reconnected.
    pub(crate) resumed: u64,
    /// The reasons why the run is void; empty: it is valid.
    pub(crate) void: Vec<String>,
}

/// The connects between two numbers of devices.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ConnectStep {
    /// Connected at its end.
    pub(crate) devices: usize,
    pub(crate) connects: u64,
    pub(crate) seconds: f64,
    /// CPU time of the gateway's process.
    pub(crate) cpu_us_per_connect: Option<f64>,
    pub(crate) rss_kib: Option<u64>,
    /// From the first packet to 101.
    pub(crate) handshake: Percentiles,
    /// `None`: without TLS.
    pub(crate) tls: Option<TlsHandshakes>,
}

/// Counts of full and resumed TLS handshakes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TlsHandshakes {
    pub(crate) full: u64,
    /// With a ticket of the device's last connection.
    pub(crate) resumed: u64,
}

impl TlsHandshakes {
    /// Counts another one; `None`: without TLS.
    pub(crate) fn count(&mut self, is_resumed: Option<bool>) {
        match is_resumed {
            Some(true) => self.resumed += 1,
            Some(false) => self.full += 1,
            None => {}
        }
    }

    /// Handshakes since `before`; `None` if there were none at all.
    pub(crate) fn since(self, before: TlsHandshakes) -> Option<TlsHandshakes> {
        let found = TlsHandshakes { full: self.full - before.full, resumed: self.resumed - before.resumed };
        (found != TlsHandshakes::default()).then_some(found)
    }
}

/// Devices with nothing to do.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Idle {
    pub(crate) seconds: f64,
    pub(crate) pings: u64,
    /// Share of one CPU.
    pub(crate) cpu_share: Option<f64>,
}

/// Messages of a phase.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Messages {
    pub(crate) sent: u64,
    pub(crate) seconds: f64,
    /// By status, or by the reason of a missing answer.
    pub(crate) answers: BTreeMap<String, u64>,
    /// 200 and 202.
    pub(crate) acknowledged: u64,
    /// Answered with a status that means "not delivered".
    pub(crate) refused: u64,
    /// Neither of these.
    pub(crate) unknown: u64,
    /// Received by their devices, each counted once.
    pub(crate) received: u64,
    /// Acknowledged and never received.
    pub(crate) lost: u64,
    pub(crate) refused_but_delivered: u64,
    pub(crate) wrong_replies: u64,
    /// Received after one that was sent when this one was already done.
    pub(crate) reordered: u64,
    /// Received more than once.
    pub(crate) duplicated: u64,
    /// Written to a connection that then dropped.
    pub(crate) went_with_connection: u64,
    /// Started more than 10 ms after they were due, because of this program.
    pub(crate) late: u64,
    /// From when it was due until the answer.
    pub(crate) corrected: Percentiles,
    /// From the send.
    pub(crate) uncorrected: Percentiles,
    /// From when it was due until its arrival at the device.
    pub(crate) delivery: Percentiles,
    /// In nanoseconds, in HdrHistogram's V2 deflated form, in base64.
    pub(crate) corrected_histogram: String,
    /// CPU time of the gateway's process.
    pub(crate) cpu_us_per_message: Option<f64>,
}

impl Messages {
    /// Stores the times of the phase.
    pub(crate) fn keep(&mut self, corrected: &Histogram<u64>, uncorrected: &Histogram<u64>, delivery: &Histogram<u64>) {
        self.corrected = histogram::percentiles(corrected);
        self.uncorrected = histogram::percentiles(uncorrected);
        self.delivery = histogram::percentiles(delivery);
        // Only a histogram with constant bounds can be written.
        self.corrected_histogram = histogram::encode(corrected).unwrap_or_default();
    }

    /// Answers that were wrong.
    pub(crate) fn broken_promises(&self) -> u64 {
        self.lost + self.refused_but_delivered + self.wrong_replies + self.reordered
    }
}

/// A message to all, once or several times.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Broadcast {
    pub(crate) devices: usize,
    /// Received copies over all broadcasts.
    pub(crate) received: u64,
    /// From the request to the last device: the longest.
    pub(crate) last_s: f64,
    /// The time of each.
    #[serde(default)]
    pub(crate) times_s: Vec<f64>,
    /// Messages sent to single devices during them.
    pub(crate) messages: Option<Messages>,
}

/// All devices dropped at once.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Storm {
    pub(crate) devices: usize,
    /// Time until all were back.
    pub(crate) seconds: f64,
    /// Handshakes that were answered with Retry-After.
    pub(crate) refused: u64,
    pub(crate) cpu_us_per_connect: Option<f64>,
    /// `None`: without TLS.
    pub(crate) tls: Option<TlsHandshakes>,
    /// Messages sent during it.
    pub(crate) messages: Option<Messages>,
}

/// One of two gateways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum DevicesSide {
    A,
    B,
}

/// One round: both gateways, one after the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct DevicesRound {
    pub(crate) first: DevicesSide,
    pub(crate) a: DevicesRun,
    pub(crate) b: DevicesRun,
}

impl DevicesRun {
    /// CPU time per connect, over all steps.
    pub(crate) fn cpu_us_per_connect(&self) -> Option<f64> {
        let connects: u64 = self.connects.iter().map(|step| step.connects).sum();
        let cpu: Option<f64> =
            self.connects.iter().map(|step| Some(step.cpu_us_per_connect? * step.connects as f64)).sum();
        cpu.filter(|_| connects > 0).map(|cpu| cpu / connects as f64)
    }

    /// Over all phases.
    pub(crate) fn broken_promises(&self) -> u64 {
        let storm = self.storm.as_ref().and_then(|storm| storm.messages.as_ref());
        let broadcast = self.broadcast.as_ref().and_then(|broadcast| broadcast.messages.as_ref());
        self.messages.iter().chain(broadcast).chain(storm).map(Messages::broken_promises).sum()
    }
}

/// The analysis of the rounds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct DevicesAnalysis {
    pub(crate) measures: Vec<DevicesMeasure>,
    pub(crate) decision: DevicesDecision,
    pub(crate) sentence: String,
}

/// The verdict on B.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DevicesDecision {
    NotWorse,
    Worse,
    Undecided,
    #[default]
    Void,
}

/// One measure over the rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct DevicesMeasure {
    pub(crate) measure: String,
    pub(crate) unit: String,
    /// Medians.
    pub(crate) a: f64,
    pub(crate) b: f64,
    /// Ratio of B to A: 0.1 is 10% more.
    pub(crate) effect: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// Corrected over the measures by Holm's method.
    pub(crate) p_adjusted: f64,
}

/// The percentiles recomputed from the raw figures, to check a file.
pub(crate) fn recompute_percentiles(messages: &Messages) -> Result<Percentiles> {
    Ok(histogram::percentiles(&histogram::decode(&messages.corrected_histogram)?))
}
