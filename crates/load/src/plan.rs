//! The plan of a run: target, rate, duration, connections, and the bounds that make it void.
//!
//! Plain values that the caller fills in; the engine finds out whether this process can do it (file descriptors, CPUs).

use crate::mix::Mix;
use crate::target::Target;
use crate::tls::Tls;
use std::net::IpAddr;
use std::time::Duration;

/// The plan of a run.
#[derive(Debug, Clone)]
pub struct Load {
    /// The server to load.
    pub target: Target,
    /// The requests.
    pub mix: Mix,
    /// The protocol.
    pub protocol: Protocol,
    /// The TLS below that; `None` for plain TCP.
    pub tls: Option<Tls>,
    /// The pace of requests.
    pub pace: Pace,
    /// Load before the measured time, at the schedule's first rate; connections and caches exist when it ends.
    pub warm_up: Duration,
    /// The measured time; if `requests` is given, its longest duration ([`DURATION_UNBOUNDED`] for no limit).
    pub duration: Duration,
    /// Requests of the measured time, which ends with them: in a closed loop when the last was answered, in an open
    /// loop when the next would be due. `None`: as many as fit in `duration`.
    pub requests: Option<u64>,
    /// Connections over all threads, at least one per thread.
    pub connections: usize,
    /// Generator threads; each has its share of the connections and of the rate.
    pub threads: usize,
    /// The CPUs of the threads, used in turn; empty to let the system place them.
    pub cpus: Vec<usize>,
    /// Whether the threads of an open loop have priority over all other programs on their CPUs (`SCHED_FIFO`), if the
    /// system allows it: otherwise a thread that just woke may wait for milliseconds. Not to be used if the target has
    /// the same CPUs. A closed loop, which never sleeps, ignores it.
    pub realtime: bool,
    /// Source addresses, used in turn; empty for the system's choice, or for a target in 127.0.0.0/8 as many of that
    /// network as the connections need.
    pub sources: Vec<IpAddr>,
    /// From a request's send to its last byte; a later answer is an error.
    pub timeout: Duration,
    /// How often the observer is called.
    pub interval: Duration,
    /// The bounds beyond which the run is void.
    pub bounds: Bounds,
    /// Seed of Poisson arrivals, the choice among a mix and its variables: an equal seed gives an equal run.
    pub seed: u64,
}

/// Longer than any run: its requests are counted, not its time.
pub const DURATION_UNBOUNDED: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl Load {
    /// Requests that can be under way at once.
    pub fn places(&self) -> usize {
        self.connections * self.protocol.streams()
    }
}

/// How requests are sent to a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// One request at a time on a connection.
    Http1,
    /// HTTP/2: over TLS agreed on by ALPN, otherwise with prior knowledge.
    Http2 {
        /// Requests under way at once on a connection, as far as the target allows.
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

/// The pace of requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// Each connection sends its next request when the last was answered: measures the target's maximum.
    Closed,
    /// Requests start by a schedule, independent of the target.
    Open(Schedule),
}

/// The rate of an open loop over the measured time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// Requests per second at the beginning; above zero and finite.
    pub rate: f64,
    /// Requests per second at the end, reached linearly; equal to `rate` for a constant rate.
    pub rate_end: f64,
    /// The distribution of starts.
    pub arrivals: Arrivals,
}

/// How intended starts are distributed around the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// At even intervals.
    Uniform,
    /// Like those of many independent users: exponential gaps.
    Poisson,
}

/// When a run is void. Only starts that were late because of the generator count, not those that waited for a
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
