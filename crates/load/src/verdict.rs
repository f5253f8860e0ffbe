//! The verdict on a run, to be read before its figures: why it is void, or which further notes apply.
//!
//! Sentences for people, with the figures and a suggestion. The engine decides when a run is void.

use std::fmt;
use std::time::Duration;

/// Why a run is void. `Display` is one sentence with the figures and a suggestion.
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
        /// See [`crate::SelfWatch::cpu_wait_share_max`].
        cpu_wait_share: Option<f64>,
        /// See [`crate::SelfWatch::cpu_share_max`].
        cpu_share: f64,
    },
    /// The generator did nothing for too long, so that answers waited for it; in an open loop perhaps between two starts.
    StoodStill {
        /// The longest pause.
        longest: Duration,
        /// All pauses together.
        sum: Duration,
    },
    /// An open loop did not keep its rate, perhaps because of the generator: latencies include time that requests
    /// waited for it.
    Saturated {
        /// Requests answered by the end of the measured time.
        answered: u64,
        /// Requests of the schedule.
        due: u64,
        /// See [`crate::SelfWatch::cpu_share_max`].
        cpu_share: f64,
    },
    /// Nothing was answered in the measured time.
    NoAnswers,
}

/// A note that a reader needs, even if the run is valid. `Display` is one sentence.
#[derive(Debug, Clone, PartialEq)]
pub enum Note {
    /// An open loop did not keep its rate, and the generator had CPU time left.
    FellBehind {
        /// Requests answered by the end of the measured time.
        answered: u64,
        /// Requests of the schedule.
        due: u64,
        /// See [`crate::Load::places`].
        places: usize,
        /// See [`crate::SelfWatch::cpu_share_max`].
        cpu_share: f64,
    },
    /// A closed loop whose generator had no CPU time left: the target's maximum is at least this.
    GeneratorFull {
        /// See [`crate::SelfWatch::cpu_share_max`].
        cpu_share: f64,
    },
    /// A closed loop whose generator shared its CPU with others: throughput also depends on the scheduler.
    GeneratorKeptWaiting {
        /// See [`crate::SelfWatch::cpu_wait_share_max`].
        share: f64,
    },
    /// Fewer requests were made than planned.
    FewerRequests {
        /// The number that was made.
        made: u64,
        /// The planned number.
        of: u64,
    },
    /// The target allows fewer streams on a connection than planned.
    FewerStreams {
        /// The smallest number that it allowed.
        allowed: usize,
        /// The planned number.
        of: usize,
    },
    /// Requests that the target did not process before it ended their connection, and that were sent again.
    SentAgain {
        /// Their number.
        requests: u64,
    },
    /// Answers that a check refused.
    Refused {
        /// Their number.
        refused: u64,
        /// The number of all answers.
        of: u64,
    },
    /// The generator should have had priority over other programs, but the system did not allow it; see
    /// [`crate::Load::realtime`].
    NotFirst,
}

/// A thread busier than this has no CPU left to be punctual.
pub const CPU_SHARE_FULL: f64 = 0.9;

/// A thread that waited for its CPU for more than this share of the time shares it with something.
pub(crate) const CPU_WAIT_SHARE_MUCH: f64 = 0.01;

/// Late starts up to this many standard deviations above the allowed number may be chance (one in some hundred runs,
/// and fewer if they are many).
const CHANCE_DEVIATIONS: f64 = 3.0;

/// The number of `due` starts that may be late before a run is void, given the allowed share; one always may.
pub fn late_max(share_max: f64, due: u64) -> f64 {
    let allowed = share_max * due as f64;
    allowed + CHANCE_DEVIATIONS * (allowed * (1.0 - share_max).max(0.0)).sqrt() + 1.0
}

/// A shorter pause is hardly due to a user who stops a generator by hand.
const STOP_LIKELY: Duration = Duration::from_millis(20);

impl fmt::Display for Void {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Void::NoAnswers => f.write_str(
                "nothing was answered in the measured time; see the errors, and try the target once by hand (`curl -v URL`)",
            ),
            Void::Saturated { answered, due, cpu_share } => write!(
                f,
                "of {due} requests {answered} were answered in the measured time, and the generator itself was the limit: a thread of it \
                 used {:.0}% of its CPU; give it more threads and CPUs, or a lower rate",
                cpu_share * 100.0
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
                    "the generator started {:.3}% of the requests more than {late:?} late ({:.3}% are allowed; the worst was \
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
                    _ if *worst < STOP_LIKELY => f.write_str(
                        "it was neither busy nor kept waiting by another program, so perhaps a timer or an interrupt was late, or a \
                         virtual machine's host took the CPU (`vmstat 1`, column st): run it again, or with real-time priority",
                    ),
                    _ => f.write_str(
                        "it was neither busy nor waiting for a CPU, so perhaps it was stopped, or the whole machine was: do not \
                         suspend it, and on a virtual machine see its steal time (`vmstat 1`, column st)",
                    ),
                }
            }
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::FellBehind { answered, due, places, cpu_share } => write!(
                f,
                "only {answered} of {due} requests were answered in the measured time, the others waited: the target is too slow for \
                 this rate or gone, or {places} requests under way are too few for it (the generator's busiest thread used {:.0}% of its CPU)",
                cpu_share * 100.0
            ),
            Note::GeneratorFull { cpu_share } => write!(
                f,
                "a thread of the generator used {:.0}% of its CPU, so the target can perhaps do more than this; give the generator more \
                 threads and CPUs",
                cpu_share * 100.0
            ),
            Note::GeneratorKeptWaiting { share } => write!(
                f,
                "another program had the generator's CPU for {:.1}% of the time, so the target can perhaps do more than this; pin \
                 the generator to CPUs that everything else leaves alone",
                share * 100.0
            ),
            Note::FewerRequests { made, of } => write!(
                f,
                "only {made} of {of} requests were made: the measured time ended first, or the target answered nothing \
                 within the timeout"
            ),
            Note::FewerStreams { allowed, of } => write!(
                f,
                "the target allows only {allowed} streams on a connection instead of {of}; use more connections to have \
                 more requests under way"
            ),
            Note::SentAgain { requests } => write!(
                f,
                "the target closed connections (GOAWAY) before it processed all their requests; requests were sent again \
                 {requests} times, and their latency counts from the first send"
            ),
            Note::Refused { refused, of } => write!(
                f,
                "{refused} of {of} answers were refused by a check ({:.1}%, see the errors); the rate and the latencies are of \
                 the good answers only",
                100.0 * *refused as f64 / *of as f64
            ),
            Note::NotFirst => f.write_str(
                "the generator has no priority over other programs: the system refused it real-time priority; run it as root or with \
                 CAP_SYS_NICE",
            ),
        }
    }
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
            assert!(text.contains("5.000% of the requests more than 1ms late (0.100% are allowed"), "{text}");
            assert!(text.contains("500.0 ms late") && text.contains(advice), "{text}");
        };
        check(0.97, Some(0.3), "used 97% of its CPU");
        check(0.3, Some(0.2), "for 20.0% of the time");
        check(0.3, Some(0.0), "perhaps it was stopped");
        check(0.3, None, "steal time");
        assert!(Void::NoAnswers.to_string().contains("curl"));
    }

    #[test]
    fn a_start_that_was_a_little_late_was_not_suspended() {
        let (late, worst) = (Duration::from_millis(1), Duration::from_micros(1100));
        let (cpu_share, cpu_wait_share) = (0.1, Some(0.0));
        let text = Void::Late { share: 0.05, share_max: 0.001, late, worst, cpu_wait_share, cpu_share }.to_string();
        assert!(text.contains("perhaps a timer") && !text.contains("suspend"), "{text}");
    }

    #[test]
    fn notes_name_what_may_be_the_limit() {
        let check = |note: Note, words: &[&str]| {
            let text = note.to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        };
        check(
            Note::FellBehind { answered: 117, due: 1000, places: 50, cpu_share: 0.31 },
            &["117 of 1000", "50 requests under way", "31%"],
        );
        check(Note::GeneratorFull { cpu_share: 0.97 }, &["97%", "more threads"]);
        check(Note::GeneratorKeptWaiting { share: 0.25 }, &["25.0%", "alone"]);
        check(Note::NotFirst, &["CAP_SYS_NICE"]);
        check(Note::Refused { refused: 72, of: 100 }, &["72 of 100", "72.0%", "good answers only"]);
    }
}
