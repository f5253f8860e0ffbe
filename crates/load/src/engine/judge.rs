//! Judges whether a run measures its target or its generator, from the threads' observations of themselves.
//!
//! A bound on a share is only exceeded if chance does not explain it: with few requests a single one would be more than
//! the share.

use super::coordinator::merge;
use super::worker::FinalReport;
use crate::outcome::{ErrorKind, Outcome, PAUSE_CLOSED, SelfWatch, histogram};
use crate::plan::{Load, Pace};
use crate::verdict::{CPU_SHARE_FULL, Note, Void, late_max};
use std::time::Duration;

/// In an open loop, a single pause no longer than this, in bounds of lateness, is not enough: in a short run, one late
/// wake is more than the share.
const PAUSE_ALONE_BOUNDS: u32 = 10;

/// An open loop fell behind if more than this share of its requests, besides those that its connections may have under
/// way, was not answered.
const BEHIND_SHARE_MAX: f64 = 0.01;

/// A closed loop's thread that waited for its CPU for more than this share of the time had less throughput for it.
const CPU_WAIT_SHARE_CLOSED_MAX: f64 = 0.05;

/// The observations that a run is judged by.
pub(super) struct RunObservations<'a> {
    /// Requests that were answered, at any time.
    requests: u64,
    answered_in_time: u64,
    /// Requests that were answered, and not refused by a check.
    good: u64,
    /// The actual measured time.
    elapsed: Duration,
    /// Requests that were begun in the measured time, or never could be.
    made: u64,
    interrupted: bool,
    sent_again: u64,
    streams_allowed: Option<usize>,
    /// Requests that ended without an answer.
    failed: u64,
    /// Starts later than the bound.
    late: u64,
    watch: &'a SelfWatch,
}

impl<'a> RunObservations<'a> {
    pub(super) fn of(outcome: &'a Outcome, late: u64, streams_allowed: Option<usize>) -> Self {
        let counts = ErrorKind::ALL.iter().zip(outcome.errors.counts);
        let failed = counts.filter(|(kind, _)| ends_request(**kind)).map(|(_, count)| count).sum();
        let &Outcome { requests, answered_in_time, good, elapsed, interrupted, sent_again, ref self_watch, .. } =
            outcome;
        let made = requests + failed + outcome.cut_off + self_watch.missed_starts;
        RunObservations {
            requests,
            answered_in_time,
            good,
            elapsed,
            made,
            interrupted,
            sent_again,
            streams_allowed,
            failed,
            late,
            watch: self_watch,
        }
    }

    /// Starts that were due.
    fn due(&self) -> u64 {
        self.watch.lateness.len()
    }
}

fn ends_request(kind: ErrorKind) -> bool {
    match kind {
        ErrorKind::Send | ErrorKind::Receive | ErrorKind::Closed | ErrorKind::Timeout | ErrorKind::Malformed => true,
        ErrorKind::Connect | ErrorKind::Status | ErrorKind::Body => false,
    }
}

/// Why the run is void, and further notes on it.
pub(super) fn judge(load: &Load, seen: &RunObservations<'_>) -> (Vec<Void>, Vec<Note>) {
    let (mut void, mut notes) = (Vec::new(), Vec::new());
    let watch = seen.watch;
    if seen.late as f64 > late_max(load.bounds.late_share_max, seen.due()) {
        void.push(Void::Late {
            share: seen.late as f64 / seen.due().max(1) as f64,
            share_max: load.bounds.late_share_max,
            late: load.bounds.late,
            worst: Duration::from_nanos(watch.lateness.max()),
            cpu_wait_share: watch.cpu_wait_share_max,
            cpu_share: watch.cpu_share_max,
        });
    }
    // If requests are counted, the time that they took is the intended one.
    let duration = if load.requests.is_some() { seen.elapsed } else { load.duration };
    let pauses_max = duration.mul_f64(load.bounds.late_share_max.clamp(0.0, 1.0));
    if void.is_empty() && watch.pauses > pauses_max && watch.pause_longest > pause_alone(load) {
        void.push(Void::StoodStill { longest: watch.pause_longest, sum: watch.pauses });
    }
    let full = watch.cpu_share_max > CPU_SHARE_FULL;
    let (answered, due, cpu_share) = (seen.answered_in_time, seen.due(), watch.cpu_share_max);
    match load.pace {
        Pace::Open(_) if fell_behind(load, seen) && full => void.push(Void::Saturated { answered, due, cpu_share }),
        Pace::Open(_) if fell_behind(load, seen) => {
            notes.push(Note::FellBehind { answered, due, places: load.places(), cpu_share });
        }
        Pace::Open(_) => {}
        // Not void: a closed loop always has a limit, and the target has at least been seen to do this much.
        Pace::Closed if full => notes.push(Note::GeneratorFull { cpu_share }),
        Pace::Closed => {
            let share = watch.cpu_wait_share_max.filter(|share| *share > CPU_WAIT_SHARE_CLOSED_MAX);
            notes.extend(share.map(|share| Note::GeneratorKeptWaiting { share }));
        }
    }
    notes.extend(differing(load, seen));
    if load.realtime && matches!(load.pace, Pace::Open(_)) && !watch.realtime {
        notes.push(Note::NotFirst);
    }
    if seen.requests == 0 {
        void.push(Void::NoAnswers);
    }
    (void, notes)
}

/// Deviations of a run from its load.
fn differing(load: &Load, seen: &RunObservations<'_>) -> impl Iterator<Item = Note> {
    let fewer_requests = load
        .requests
        .filter(|of| seen.made < *of && !seen.interrupted)
        .map(|of| Note::FewerRequests { made: seen.made, of });
    let streams = load.protocol.streams();
    let fewer_streams = seen.streams_allowed.map(|allowed| Note::FewerStreams { allowed, of: streams });
    let sent_again = (seen.sent_again > 0).then_some(Note::SentAgain { requests: seen.sent_again });
    let refused = seen.requests - seen.good;
    let refused = (refused > 0).then_some(Note::Refused { refused, of: seen.requests });
    [fewer_requests, fewer_streams, sent_again, refused].into_iter().flatten()
}

/// Requests that never got an answer in the measured time, beyond those that may be under way at any moment.
fn fell_behind(load: &Load, seen: &RunObservations<'_>) -> bool {
    let unanswered = seen.due().saturating_sub(seen.answered_in_time).saturating_sub(seen.failed);
    unanswered as f64 > load.places() as f64 + BEHIND_SHARE_MAX * seen.due() as f64
}

fn pause_alone(load: &Load) -> Duration {
    match load.pace {
        Pace::Closed => PAUSE_CLOSED,
        Pace::Open(_) => load.bounds.late * PAUSE_ALONE_BOUNDS,
    }
}

/// The observations of all threads together.
pub(super) fn watch(finished: &[FinalReport]) -> SelfWatch {
    let mut watch = SelfWatch {
        lateness: histogram(),
        missed_starts: 0,
        cpu_cores: 0.0,
        cpu_share_max: 0.0,
        realtime: finished.iter().all(|thread| thread.realtime),
        pause_longest: Duration::ZERO,
        pauses: Duration::ZERO,
        cpu_wait_share_max: None,
    };
    for thread in finished {
        merge(&mut watch.lateness, &thread.totals.lateness);
        watch.missed_starts += thread.totals.missed_starts;
        watch.pause_longest = watch.pause_longest.max(Duration::from_nanos(thread.totals.pause_longest_ns));
        watch.pauses = watch.pauses.max(Duration::from_nanos(thread.totals.pauses_ns));
        let share = |ns: u64| ns as f64 / thread.metered_ns.max(1) as f64;
        let cpu = share(thread.usage.cpu_ns);
        watch.cpu_cores += cpu;
        watch.cpu_share_max = watch.cpu_share_max.max(cpu);
        let wait = thread.usage.wait_ns.map(share);
        watch.cpu_wait_share_max = watch.cpu_wait_share_max.into_iter().chain(wait).reduce(f64::max);
    }
    watch
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::Mix;
    use crate::plan::{Arrivals, Bounds, DURATION_UNBOUNDED, Protocol, Schedule};
    use crate::target::Target;

    fn load(pace: Pace) -> Load {
        let target = Target::parse("http://127.0.0.1:1/").unwrap();
        Load {
            mix: Mix::single("GET", "/", &target.host, &[], Vec::new()).unwrap(),
            target,
            pace,
            warm_up: Duration::ZERO,
            duration: Duration::from_secs(10),
            requests: None,
            protocol: Protocol::Http1,
            tls: None,
            connections: 50,
            threads: 1,
            cpus: Vec::new(),
            realtime: false,
            sources: Vec::new(),
            timeout: Duration::from_secs(10),
            interval: Duration::from_secs(1),
            bounds: Bounds::default(),
            seed: 1,
        }
    }

    fn open() -> Pace {
        Pace::Open(Schedule { rate: 100.0, rate_end: 100.0, arrivals: Arrivals::Uniform })
    }

    /// `due` starts, all answered in time; one thread, half busy.
    fn watched(due: u64) -> SelfWatch {
        let mut watch = watch(&[]);
        watch.lateness.record_n(1_000, due).unwrap();
        watch.cpu_share_max = 0.5;
        watch
    }

    fn seen(requests: u64, answered_in_time: u64, watch: &SelfWatch) -> RunObservations<'_> {
        RunObservations {
            requests,
            answered_in_time,
            good: requests,
            elapsed: Duration::from_secs(10),
            made: requests,
            interrupted: false,
            sent_again: 0,
            streams_allowed: None,
            failed: 0,
            late: 0,
            watch,
        }
    }

    #[test]
    fn few_late_starts_of_few_are_chance() {
        let check = |due: u64, late: u64, is_void: bool| {
            let watch = watched(due);
            let seen = RunObservations { late, ..seen(due, due, &watch) };
            let (void, notes) = judge(&load(open()), &seen);
            assert_eq!(!void.is_empty(), is_void, "{late} of {due}: {void:?}");
            assert_eq!(notes, []);
        };
        check(40, 1, false);
        check(40, 2, true);
        check(1_000, 4, false);
        check(1_000, 6, true);
        check(20_000, 20, false);
        check(20_000, 30, false);
        check(20_000, 40, true);
        check(1_000_000, 1_200, true);
    }

    #[test]
    fn a_missed_rate_is_noted_and_void_if_the_generator_was_busy() {
        let check = |pace: Pace, answered_in_time, failed, cpu_share_max, void: &str, note: &str| {
            let watch = SelfWatch { cpu_share_max, ..watched(1_000) };
            let seen = RunObservations { failed, ..seen(1_000, answered_in_time, &watch) };
            let said = judge(&load(pace), &seen);
            let of = |words: String, expected: &str| words.contains(expected) && (words == "[]") == expected.is_empty();
            assert!(of(format!("{:?}", said.0), void), "{said:?}");
            assert!(of(format!("{:?}", said.1), note), "{said:?}");
        };
        check(open(), 1_000, 0, 0.95, "", "");
        // One request for each connection may be under way at the end.
        check(open(), 950, 0, 0.95, "", "");
        check(open(), 900, 0, 0.95, "Saturated", "");
        check(open(), 900, 0, 0.5, "", "FellBehind");
        check(open(), 900, 60, 0.5, "", "");
        check(Pace::Closed, 900, 0, 0.5, "", "");
        check(Pace::Closed, 900, 0, 0.95, "", "GeneratorFull");
    }

    #[test]
    fn deviations_from_the_load_are_noted() {
        let watch = watched(90);
        let asked = Load { requests: Some(100), protocol: Protocol::Http2 { streams: 32 }, ..load(Pace::Closed) };
        let fewer = RunObservations { sent_again: 3, streams_allowed: Some(8), ..seen(90, 90, &watch) };
        let notes = [
            Note::FewerRequests { made: 90, of: 100 },
            Note::FewerStreams { allowed: 8, of: 32 },
            Note::SentAgain { requests: 3 },
        ];
        assert_eq!(judge(&asked, &fewer).1, notes);
        assert_eq!(judge(&asked, &RunObservations { interrupted: true, ..seen(90, 90, &watch) }).1, []);
        assert_eq!(judge(&asked, &RunObservations { made: 100, ..seen(90, 90, &watch) }).1, []);
        let refused = RunObservations { made: 100, good: 25, ..seen(90, 90, &watch) };
        assert_eq!(judge(&asked, &refused).1, [Note::Refused { refused: 65, of: 90 }]);
        // A pause of a fifth of a second in one that took four is more than a share of 1%, however long it might have taken.
        let bounds = Bounds { late_share_max: 0.01, ..Bounds::default() };
        let unbounded = Load { duration: DURATION_UNBOUNDED, bounds, ..asked };
        let pause = Duration::from_millis(200);
        let watch = SelfWatch { pauses: pause, pause_longest: pause, ..watched(90) };
        let said =
            judge(&unbounded, &RunObservations { made: 100, elapsed: Duration::from_secs(4), ..seen(90, 90, &watch) });
        assert!(matches!(said.0[..], [Void::StoodStill { .. }]), "{said:?}");
    }

    #[test]
    fn a_refused_priority_is_noted() {
        let watch = watched(10);
        let seen = seen(10, 10, &watch);
        let asked = |pace| Load { realtime: true, ..load(pace) };
        assert_eq!(judge(&asked(open()), &seen).1, if watch.realtime { vec![] } else { vec![Note::NotFirst] });
        assert_eq!(judge(&asked(Pace::Closed), &seen).1, []);
    }
}
