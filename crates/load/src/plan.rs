//! What is asked of a run: whom, how fast, for how long, over how many connections, and what makes it void.
//!
//! Plain values that the caller fills in; whether this process can do it (file descriptors, CPUs) the engine finds out.

use crate::mix::Mix;
use crate::target::Target;
use crate::tls::Tls;
use std::net::IpAddr;
use std::time::Duration;

/// A run to be done.
#[derive(Debug, Clone)]
pub struct Load {
    /// Who is asked.
    pub target: Target,
    /// What is asked.
    pub mix: Mix,
    /// How it is asked.
    pub protocol: Protocol,
    /// The TLS below that; none: plain TCP.
    pub tls: Option<Tls>,
    /// How fast.
    pub pace: Pace,
    /// Load before the measured time, at the schedule's first rate; connections and caches are there when it ends.
    pub warm_up: Duration,
    /// The measured time; where `requests` is given, the longest it may be ([`DURATION_UNBOUNDED`] for no such limit).
    pub duration: Duration,
    /// Requests of the measured time, which ends with them: in a closed loop when the last was answered, in an open loop when the next
    /// would be due. None: as many as there are in `duration`.
    pub requests: Option<u64>,
    /// Connections over all threads, at least one a thread.
    pub connections: usize,
    /// Generator threads; each has its share of the connections and of the rate.
    pub threads: usize,
    /// The CPUs of the threads, taken in turn; empty: wherever the system puts them.
    pub cpus: Vec<usize>,
    /// Whether the threads of an open loop go before all other programs on their CPUs (`SCHED_FIFO`), where the system lets
    /// them: a thread that just woke may wait for milliseconds otherwise. Not where the target has the same CPUs. A
    /// closed loop, which never sleeps, ignores it.
    pub realtime: bool,
    /// Source addresses, taken in turn; empty: the system's choice, and for a target in 127.0.0.0/8 as many of that network as
    /// the connections need.
    pub sources: Vec<IpAddr>,
    /// From a request's send to its last byte; what is later is given up and counted as an error.
    pub timeout: Duration,
    /// How often the observer is told.
    pub interval: Duration,
    /// When the run is void.
    pub bounds: Bounds,
    /// Of Poisson arrivals, the choice among a mix and its variables: the same seed gives the same run.
    pub seed: u64,
}

/// More than any run lasts: its requests are counted, not its time.
pub const DURATION_UNBOUNDED: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl Load {
    /// Requests that can be under way at once.
    pub fn places(&self) -> usize {
        self.connections * self.protocol.streams()
    }
}

/// How a target is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// One request at a time on a connection.
    Http1,
    /// Over TLS agreed on by ALPN, otherwise with prior knowledge.
    Http2 {
        /// Requests under way at once on a connection, as far as the target allows them.
        streams: usize,
    },
}

impl Protocol {
    /// Requests under way at once on a connection.
    pub fn streams(self) -> usize {
        match self {
            Protocol::Http1 => 1,
            Protocol::Http2 { streams } => streams,
        }
    }
}

/// How fast requests are made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// Each connection sends its next request when the last was answered: what the target can do at most.
    Closed,
    /// Requests start by a schedule, whatever the target does.
    Open(Schedule),
}

/// The rate of an open loop over the measured time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// Requests a second at the beginning; above zero and finite.
    pub rate: f64,
    /// Requests a second at the end, reached linearly; the same for a constant rate.
    pub rate_end: f64,
    /// How starts are spread.
    pub arrivals: Arrivals,
}

/// How intended starts lie about the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// Evenly.
    Uniform,
    /// As of many independent users: exponential gaps.
    Poisson,
}

/// When a run is void. Only starts that were late by the generator's own doing count, not those that waited for a
/// connection to become free.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// A start later than this is late.
    pub late: Duration,
    /// The share of starts that may be late, 0 to 1.
    pub late_share_max: f64,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { late: Duration::from_millis(1), late_share_max: 0.001 }
    }
}
