//! `stillgate-lab connections`: what an idle connection costs, and a message over it, beside others in the same run.
//!
//! ```text
//!  tunnels    fleet ── WebSocket ──▶ target ── WebSocket ──▶ upstream (`respond`)      a message is a ping and its pong
//!  addressed  back-ends ── HTTP or MQTT ──▶ target ── WebSocket or MQTT ──▶ clients    a message has a receiver's name
//! ```
//!
//! Each round starts each target again on its CPU; everything else shares the others. All targets are measured by the same steps
//! ([`run`]), through [`Clients`]: what opens connections and sends messages. A target whose clients address each other is a row of
//! [`addressed::SERVERS`]; any other is a gateway that tunnels pass, as the built-in targets are configured for.

pub(crate) mod addressed;
pub(crate) mod fleet;
pub(crate) mod run;

use crate::error::Result;
use hdrhistogram::Histogram;
use std::time::Duration;
use stillgate_rig::{descriptors, ports};

/// When messages are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum MessagePace {
    /// This many per second, to the connections in turn.
    Clock(f64),
    /// This many are under way; the answer to one triggers the next, to the next connection.
    Answers(usize),
}

/// What opens connections to a target, and sends messages over them.
pub(crate) trait Clients {
    /// Opens further connections.
    fn open(&mut self, count: usize) -> Result;
    /// Closes all of them.
    fn close(&mut self);
    /// Sends messages for this long.
    fn run(&mut self, pace: MessagePace, duration: Duration) -> Result<MessageTotals>;
}

/// The messages of a run.
#[derive(Debug, Clone)]
pub(crate) struct MessageTotals {
    pub(crate) sent: u64,
    pub(crate) answered: u64,
    /// Messages that were never answered, or passed over by a later answer.
    pub(crate) lost: u64,
    /// Messages that were answered again.
    pub(crate) doubled: u64,
    /// Number of connections that ended.
    pub(crate) broken: u64,
    /// Why the first of them ended.
    pub(crate) ends: Vec<String>,
    /// From a message to its answer, in microseconds.
    pub(crate) answer_us: Histogram<u64>,
    /// The longest time of each connection.
    pub(crate) worst_us: Histogram<u64>,
    /// How late messages were sent.
    pub(crate) late_us: Histogram<u64>,
    /// The longest time without an answer on any connection.
    pub(crate) silence_us: u64,
}

impl MessageTotals {
    pub(crate) fn new() -> MessageTotals {
        let empty = || Histogram::new(3).expect("three digits are valid");
        MessageTotals {
            sent: 0,
            answered: 0,
            lost: 0,
            doubled: 0,
            broken: 0,
            ends: Vec::new(),
            answer_us: empty(),
            worst_us: empty(),
            late_us: empty(),
            silence_us: 0,
        }
    }

    /// The errors in a sentence; `None`: there were none.
    pub(crate) fn wrong(&self) -> Option<String> {
        let MessageTotals { lost, doubled, broken, ends, .. } = self;
        (lost + doubled + broken > 0).then(|| {
            format!("{broken} connections ended, {lost} messages were lost and {doubled} doubled; {}", ends.join("; "))
        })
    }
}

// How many tunnels are possible on this machine.

/// Descriptors that a gateway needs besides its tunnels' two each.
const OTHER_FILES: u64 = 512;
/// Ports of loopback left for other uses.
const OTHER_PORTS: u64 = 2_000;

/// The requested number of tunnels, or the possible one with the reason why it is lower. This process, and what it starts, may then
/// open as many files as the system allows.
pub(crate) fn tunnels(wanted: usize) -> (usize, Option<String>) {
    descriptors::raise_to(descriptors::limit().hard);
    let files = descriptors::limit().current;
    let range = ports::of_connections();
    let by_files = files.saturating_sub(OTHER_FILES) / 2;
    let by_ports = (range.len() as u64).saturating_sub(OTHER_PORTS);
    let most = usize::try_from(by_files.min(by_ports)).unwrap_or(usize::MAX);
    if most >= wanted {
        return (wanted, None);
    }
    let why = if by_files <= by_ports {
        format!("a process may open {files} files (ulimit -Hn), and a gateway needs two for each tunnel")
    } else {
        format!("there are {} ports for connections to one address (ip_local_port_range)", range.len())
    };
    (most, Some(format!("{most} tunnels and not {wanted}: {why}.")))
}
