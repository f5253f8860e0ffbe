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
mod kernel;
mod mqtt;
mod pushpin;
mod room;
pub(crate) mod run;

pub(crate) use room::tunnels;

use crate::error::Result;
use hdrhistogram::Histogram;
use std::time::Duration;

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
