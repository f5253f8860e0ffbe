//! What came of a run, and of each interval of it.

use hdrhistogram::Histogram;
use std::fmt;
use std::time::{Duration, SystemTime};

/// Significant decimal digits of all histograms.
pub const HISTOGRAM_DIGITS: u8 = 3;

/// The longest latency that is told apart, in nanoseconds; above it, everything counts as this.
pub const LATENCY_NS_MAX: u64 = 3_600_000_000_000;

/// An empty histogram of nanoseconds as all here are.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, HISTOGRAM_DIGITS).expect("constant bounds are valid")
}

/// Latencies of the same requests, seen two ways; in nanoseconds.
///
/// All that were answered in full, whatever the answer. A request that was given up for its timeout is in both, with the
/// time it had been waited for: leaving it out would hide the slowest. A start that never came about is in the corrected
/// ones, with the time it had been due. Other failures are not in them.
#[derive(Debug, Clone)]
pub struct Latencies {
    /// From the intended start. In a closed loop the same as uncorrected.
    pub corrected: Histogram<u64>,
    /// From the actual send.
    pub uncorrected: Histogram<u64>,
}

/// A run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// When the measured time began.
    pub begun: SystemTime,
    /// The measured time, as it came to be.
    pub elapsed: Duration,
    /// Requests of the measured time that were answered in full, whatever the answer.
    pub requests: u64,
    /// Those that failed, by kind; an answer that a check refused is also in `requests`.
    pub errors: Errors,
    /// Requests sent in all, warm-up included.
    pub sent: u64,
    /// Bytes received in the measured time.
    pub bytes_received: u64,
    /// Requests that were answered by the end of the measured time, a second: less than the intended rate where the
    /// target fell behind.
    pub rate_achieved: f64,
    /// The intended rate over the measured time; none in a closed loop.
    pub rate_intended: Option<f64>,
    /// Latencies of the measured time.
    pub latencies: Latencies,
    /// Time to establish a connection, in nanoseconds.
    pub connect: Histogram<u64>,
    /// From the beginning of a send until the system had taken all of the request, in nanoseconds.
    pub send: Histogram<u64>,
    /// From the send to the first byte of the answer, in nanoseconds.
    pub first_byte: Histogram<u64>,
    /// What the generator saw of itself.
    pub self_watch: SelfWatch,
    /// Why the run says nothing; empty: it stands.
    pub void: Vec<Void>,
}

/// What the generator saw of itself.
#[derive(Debug, Clone)]
pub struct SelfWatch {
    /// How late requests were started by the generator's own doing, one a request, in nanoseconds.
    pub lateness: Histogram<u64>,
    /// Starts that were due in the measured time and never came about: no connection became free in time.
    pub missed_starts: u64,
    /// CPU time of all generator threads over the measured time, in cores.
    pub cpu_cores: f64,
    /// The busiest thread's share of its CPU, 0 to 1; near 1 the generator is the limit.
    pub cpu_share_max: f64,
    /// Whether all threads of an open loop went before other programs; see [`crate::Load::realtime`].
    pub realtime: bool,
    /// The longest time by which the generator woke later than it meant to, where that was more than a pause (see [`PAUSE_CLOSED`]).
    pub pause_longest: Duration,
    /// The sum of such times, of the thread that had most.
    pub pauses: Duration,
    /// The largest share of time in which a thread could have run and another had its CPU, 0 to 1; none where the system does
    /// not tell.
    pub cpu_wait_share_max: Option<f64>,
}

/// Why a run is void. `Display` is one sentence with the figures and what to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Void {
    /// Too many requests were started late.
    Late {
        /// Share of starts later than the bound.
        share: f64,
        /// The share allowed.
        share_max: f64,
        /// The bound.
        late: Duration,
        /// The latest start.
        worst: Duration,
        /// See [`SelfWatch::cpu_wait_share_max`].
        cpu_wait_share: Option<f64>,
        /// See [`SelfWatch::cpu_share_max`].
        cpu_share: f64,
    },
    /// The generator did nothing for too long, so that answers waited for it; in an open loop perhaps between two starts.
    StoodStill {
        /// The longest pause.
        longest: Duration,
        /// All pauses together.
        sum: Duration,
    },
    /// Nothing was answered in the measured time.
    NoAnswers,
}

/// A closed loop that wakes so much later than it meant to was stopped, or starved; a scheduler's usual turns are shorter. In an
/// open loop a pause is what is longer than [`crate::Bounds::late`].
pub const PAUSE_CLOSED: Duration = Duration::from_millis(100);

/// A thread busier than this has no CPU left for being punctual.
const CPU_SHARE_FULL: f64 = 0.9;

/// A thread that waited for its CPU for more than this share of the time shares it with something.
const CPU_WAIT_SHARE_MUCH: f64 = 0.01;

impl fmt::Display for Void {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Void::NoAnswers => f.write_str(
                "nothing was answered in the measured time; see the errors, and ask the target once by hand \
                 (`curl -v URL`)",
            ),
            Void::StoodStill { longest, sum } => write!(
                f,
                "the generator stood still for {:.0} ms ({:.0} ms at a time), so the figures are partly its own; do not suspend it, \
                 and pin it to CPUs that the target and everything else leave alone",
                sum.as_secs_f64() * 1e3,
                longest.as_secs_f64() * 1e3,
            ),
            Void::Late { share, share_max, late, worst, cpu_wait_share, cpu_share } => {
                write!(
                    f,
                    "the generator started {:.3}% of the requests more than {late:?} late ({:.3}% may be; the worst was \
                     {:.1} ms late), so the latencies are partly its own; ",
                    share * 100.0,
                    share_max * 100.0,
                    worst.as_secs_f64() * 1e3,
                )?;
                match cpu_wait_share {
                    _ if *cpu_share > CPU_SHARE_FULL => write!(
                        f,
                        "a thread of it used {:.0}% of its CPU: give it more threads and CPUs, or a lower rate",
                        cpu_share * 100.0
                    ),
                    Some(wait) if *wait > CPU_WAIT_SHARE_MUCH => write!(
                        f,
                        "another program had its CPU for {:.1}% of the time: pin it to CPUs that the target and \
                         everything else leave alone",
                        wait * 100.0
                    ),
                    _ => f.write_str(
                        "it was neither busy nor waiting for a CPU, so it was stopped or the whole machine was: do not \
                         suspend it, and on a virtual machine see its steal time (`vmstat 1`, column st)",
                    ),
                }
            }
        }
    }
}

/// A failed request's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ErrorKind {
    /// No connection.
    Connect,
    /// The request could not be written.
    Send,
    /// The connection broke while the answer was awaited.
    Receive,
    /// The connection ended before the answer was complete.
    Closed,
    /// No complete answer in time.
    Timeout,
    /// The answer was not HTTP/1.
    Malformed,
    /// The status was none of the expected.
    Status,
    /// The body was not the expected.
    Body,
}

impl ErrorKind {
    /// All, in the order of the counters.
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

    /// As in JSON.
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

/// Failed requests by kind, with the first few told in words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Errors {
    /// By [`ErrorKind::ALL`].
    pub counts: [u64; ErrorKind::ALL.len()],
    /// At most [`ERROR_EXAMPLES_MAX`], each of another wording.
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

/// What the observer is told while a run goes on: one stretch of it, merged over the threads.
#[derive(Debug)]
pub struct Interval<'a> {
    /// When it began, since the measured time began.
    pub start: Duration,
    /// How long it was.
    pub length: Duration,
    /// The whole measured time, for progress.
    pub of: Duration,
    /// Requests answered in it.
    pub requests: u64,
    /// Errors in it.
    pub errors: u64,
    /// Latencies of the requests that were answered in it.
    pub latencies: &'a Latencies,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn void_says_what_to_do() {
        let check = |cpu_share, cpu_wait_share, advice: &str| {
            let (late, worst) = (Duration::from_millis(1), Duration::from_millis(500));
            let (share, share_max) = (0.05, 0.001);
            let text = Void::Late { share, share_max, late, worst, cpu_wait_share, cpu_share }.to_string();
            assert!(text.contains("5.000% of the requests more than 1ms late (0.100% may be"), "{text}");
            assert!(text.contains("500.0 ms late") && text.contains(advice), "{text}");
        };
        check(0.97, Some(0.3), "used 97% of its CPU");
        check(0.3, Some(0.2), "for 20.0% of the time");
        check(0.3, Some(0.0), "steal time");
        check(0.3, None, "steal time");
        assert!(Void::NoAnswers.to_string().contains("curl"));
    }
}
