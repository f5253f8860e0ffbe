//! The outcome of a run, and of each interval of it.

use crate::verdict::{Note, Void};
use hdrhistogram::Histogram;
use std::time::{Duration, SystemTime};

/// Significant decimal digits of all histograms.
pub const HISTOGRAM_DIGITS: u8 = 3;

/// The longest latency that histograms distinguish, in nanoseconds; longer ones count as this.
pub const LATENCY_NS_MAX: u64 = 3_600_000_000_000;

/// An empty histogram of nanoseconds as all here are.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, HISTOGRAM_DIGITS).expect("constant bounds are valid")
}

/// Latencies of the same requests, seen two ways; in nanoseconds.
///
/// They contain good answers, in full and as expected: an answer that a check refused is in [`RunSummary::refused`],
/// because a fast refusal does not show how fast the work is done. A request that timed out is in both, with the time
/// until then: leaving it out would hide the slowest. A start that was missed, or was under way when an open loop's run
/// ended, is in the corrected ones with the time since it was due, which is the least it would have taken. Other
/// failures are not in them.
#[derive(Debug, Clone)]
pub struct Latencies {
    /// From the intended start. In a closed loop the same as uncorrected.
    pub corrected: Histogram<u64>,
    /// From the actual send.
    pub uncorrected: Histogram<u64>,
}

/// The outcome of a run.
#[derive(Debug, Clone)]
pub struct RunSummary {
    /// When the measured time began.
    pub begun: SystemTime,
    /// The actual measured time.
    pub elapsed: Duration,
    /// Requests of the measured time that were answered in full, with any answer and at any time: see `drain`.
    pub requests: u64,
    /// Requests among them that were answered by the end of the measured time.
    pub answered_in_time: u64,
    /// Good answers among `requests`: those that no check refused.
    pub good: u64,
    /// Good answers among `answered_in_time`.
    pub good_in_time: u64,
    /// How long after the measured time the last answer came, or the last request timed out.
    pub drain: Duration,
    /// Requests that were under way at the very end, before their timeout: because they were sent late, as no
    /// connection was free before, or because the run was interrupted. They are not failures.
    pub cut_off: u64,
    /// Whether the run was ended early.
    pub interrupted: bool,
    /// Failed requests by kind; an answer that a check refused is also in `requests`.
    pub errors: Errors,
    /// Requests sent in total, including the warm-up.
    pub sent: u64,
    /// Requests that were sent again, because the target ended their connection without processing them (HTTP/2's
    /// GOAWAY).
    pub sent_again: u64,
    /// Bytes received in the measured time.
    pub bytes_received: u64,
    /// Good answers per second. In an open loop `good_in_time` per second, which is less than the intended rate if the
    /// target fell behind. In a closed loop, a request that was under way when the measured time began or ended counts
    /// with the share of its time that lies in it: whole requests only would lose up to one per connection, which is
    /// much if answers are slow.
    pub rate_achieved: f64,
    /// The intended rate over the measured time; `None` in a closed loop.
    pub rate_intended: Option<f64>,
    /// Latencies of the measured time.
    pub latencies: Latencies,
    /// From the send, for answers that a check refused, in nanoseconds.
    pub refused: Histogram<u64>,
    /// Time to establish a connection, TLS and the beginning of HTTP/2 included, in nanoseconds.
    pub connect: Histogram<u64>,
    /// From the beginning of a send until the system had taken all of the request, in nanoseconds. Unknown for HTTP/2.
    pub send: Histogram<u64>,
    /// From the send to the first byte of the answer, in nanoseconds.
    pub first_byte: Histogram<u64>,
    /// The generator's observations of itself.
    pub self_watch: SelfWatch,
    /// Why the run is void; empty if it is valid.
    pub void: Vec<Void>,
    /// Further notes for its reader.
    pub notes: Vec<Note>,
}

/// The generator's observations of itself.
#[derive(Debug, Clone)]
pub struct SelfWatch {
    /// How late requests were started because of the generator, one value per request, in nanoseconds.
    pub lateness: Histogram<u64>,
    /// Starts that were due in the measured time and never happened: no connection became free in time.
    pub missed_starts: u64,
    /// CPU time of all generator threads over the measured time, in cores.
    pub cpu_cores: f64,
    /// The busiest thread's share of its CPU, 0 to 1; near 1 the generator is the limit.
    pub cpu_share_max: f64,
    /// Whether all threads of an open loop had priority over other programs; see [`crate::Load::realtime`].
    pub realtime: bool,
    /// The longest time by which the generator woke later than planned, if that was more than a pause (see
    /// [`PAUSE_CLOSED`]).
    pub pause_longest: Duration,
    /// The sum of these times, for the thread with the most.
    pub pauses: Duration,
    /// The largest share of time in which a thread could have run but another had its CPU, 0 to 1; `None` if the system
    /// does not report it.
    pub cpu_wait_share_max: Option<f64>,
}

/// A closed loop that wakes this much later than planned was stopped, or starved; a scheduler's usual turns are
/// shorter. In an open loop any delay longer than [`crate::Bounds::late`] is a pause.
pub const PAUSE_CLOSED: Duration = Duration::from_millis(100);

/// A failed request's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ErrorKind {
    /// No connection.
    Connect,
    /// The request could not be written.
    Send,
    /// The connection broke while the answer was awaited, or the target ended the stream.
    Receive,
    /// The connection ended before the answer was complete.
    Closed,
    /// No complete answer in time.
    Timeout,
    /// The answer was not HTTP.
    Malformed,
    /// An unexpected status.
    Status,
    /// An unexpected body.
    Body,
}

impl ErrorKind {
    /// All kinds, in the order of the counters.
    pub const ALL: [ErrorKind; 8] = [
        ErrorKind::Connect,
        ErrorKind::Send,
        ErrorKind::Receive,
        ErrorKind::Closed,
        ErrorKind::Timeout,
        ErrorKind::Malformed,
        ErrorKind::Status,
        ErrorKind::Body,
    ];

    /// Its name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            ErrorKind::Connect => "connect",
            ErrorKind::Send => "send",
            ErrorKind::Receive => "receive",
            ErrorKind::Closed => "closed",
            ErrorKind::Timeout => "timeout",
            ErrorKind::Malformed => "malformed",
            ErrorKind::Status => "status",
            ErrorKind::Body => "body",
        }
    }
}

/// Failed requests by kind, with the first few as text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Errors {
    /// By [`ErrorKind::ALL`].
    pub counts: [u64; ErrorKind::ALL.len()],
    /// At most [`ERROR_EXAMPLES_MAX`], all with different wordings.
    pub examples: Vec<String>,
}

/// Failures kept word for word.
pub const ERROR_EXAMPLES_MAX: usize = 5;

impl Errors {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// A part of a run for the observer: one interval of it, merged over the threads.
#[derive(Debug)]
pub struct Interval<'a> {
    /// Its beginning, since the measured time began.
    pub start: Duration,
    /// Its length.
    pub length: Duration,
    /// The whole measured time, for a progress display.
    pub of: Duration,
    /// Requests answered in it.
    pub requests: u64,
    /// Errors in it.
    pub errors: u64,
    /// Latencies of the good answers in it.
    pub latencies: &'a Latencies,
}
