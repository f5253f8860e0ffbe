//! Performs a run: threads that make requests by the schedule, and one that adds up their counts.
//!
//! The calling thread coordinates: it starts the generator threads, lets them begin together, reports each interval to
//! the observer and composes the outcome. Each generator thread has its own connections, schedule and counters, and
//! shares nothing on the path of a request. Linux only: epoll is the way to drive many connections from one thread.

mod connection;
mod connector;
mod response;
mod schedule;
mod session;
mod thread_stats;
mod traffic;
mod worker;

use crate::outcome::{
    ERROR_EXAMPLES_MAX, ErrorKind, Errors, Interval, Latencies, PAUSE_CLOSED, RunSummary, SelfWatch, histogram,
};
use crate::plan::{DURATION_UNBOUNDED, Load, Pace};
use crate::verdict::{CPU_SHARE_FULL, Note, Void, late_max};
pub use connection::Link;
use connector::Endpoints;
pub use connector::{LoadError, PreparationPhase};
use hdrhistogram::Histogram;
use schedule::requests_due;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, SystemTime};
use thread_stats::{IntervalStats, ThreadTotals};
use traffic::{Clock, nanos};
use worker::{Common, FinalReport, Report, Wires, work};

// The calling thread's part: it checks the load, starts the threads, adds up their reports, and judges the run.

/// Spare empty intervals of each thread: one may be read here while another is on its way.
const SPARE_INTERVALS: usize = 2;

/// Reports of one thread that can be under way: its intervals, that it is ready, and the end.
const REPORTS_MAX: usize = SPARE_INTERVALS + 2;

/// The time between the signal to begin and the beginning, so that all threads begin together.
const HEAD_START: Duration = Duration::from_millis(1);

/// Does a run. `observe` is called with each interval, on this thread. Once `interrupt` is set the run ends, in any
/// phase: in the measured time with the outcome so far, before it with [`LoadError::Interrupted`].
///
/// Connections are opened before the time counts. After the measured time, requests that are under way or were due and
/// still wait for a connection have [`Load::timeout`] to be answered. An error means that there was no run.
pub fn run(
    load: &Load,
    interrupt: &AtomicBool,
    observe: &mut dyn FnMut(&Interval<'_>),
) -> Result<RunSummary, LoadError> {
    validate(load)?;
    let endpoints = Endpoints::of(load)?;
    connector::provide_descriptors(load.connections, load.threads)?;
    let common = Common { load, endpoints, clock: Clock::start(), stop: AtomicBool::new(false), interrupt };
    thread::scope(|scope| {
        let (report, reports) = sync_channel(load.threads * REPORTS_MAX);
        let mut lines = Vec::with_capacity(load.threads);
        for number in 0..load.threads {
            let (line, wires) = wire(&report);
            lines.push(line);
            let common = &common;
            let watched = move || {
                let _ended = StopOnPanic { common };
                work(common, number, &wires);
            };
            let spawned = thread::Builder::new().name(format!("load-{number}")).spawn_scoped(scope, watched);
            if let Err(error) = spawned {
                common.stop.store(true, Ordering::Relaxed);
                return Err(LoadError::Thread(error));
            }
        }
        drop(report);
        let coordinator = Coordinator { common: &common, reports, lines, observe };
        // Threads that are still opening connections must end in every case.
        let outcome = coordinator.run();
        common.stop.store(true, Ordering::Relaxed);
        outcome
    })
}

/// A longer duration counts as unbounded.
const DURATION_MAX: Duration = Duration::from_secs(DURATION_UNBOUNDED.as_secs() - 1);

fn validate(load: &Load) -> Result<(), LoadError> {
    let invalid = |what| Err(LoadError::Invalid(what));
    if load.threads == 0 {
        return invalid("a load needs at least one thread");
    }
    if load.connections < load.threads {
        return invalid(
            "each thread needs a connection: use at least as many connections as threads, or fewer threads",
        );
    }
    if load.duration.is_zero() || load.interval.is_zero() || load.timeout.is_zero() {
        return invalid("duration, interval and timeout must be above zero");
    }
    if load.requests == Some(0) || load.protocol.streams() == 0 {
        return invalid("a run needs at least one request, and a connection at least one stream");
    }
    if load.tls.is_some() != load.target.is_secure {
        return invalid("TLS needs an https:// target, and an https:// target needs TLS");
    }
    if load.duration > DURATION_MAX && load.requests.is_none() {
        return invalid("an unlimited run needs a number of requests");
    }
    if let Pace::Open(schedule) = &load.pace {
        if load.requests.is_some() && schedule.rate_end != schedule.rate && load.duration > DURATION_MAX {
            return invalid("a changing rate needs a duration");
        }
        if !(schedule.rate.is_finite() && schedule.rate > 0.0) {
            return invalid("the rate must be above zero; for the target's maximum, give no rate");
        }
        if !(schedule.rate_end.is_finite() && schedule.rate_end >= 0.0) {
            return invalid("the rate at the end must be a number, zero at least");
        }
    }
    Ok(())
}

/// The coordinator's side of a thread's channels.
struct Line {
    go: SyncSender<u64>,
    empty: SyncSender<Box<IntervalStats>>,
}

fn wire(reports: &SyncSender<Report>) -> (Line, Wires) {
    let (go, begin) = sync_channel(1);
    let (empty, intervals) = sync_channel(SPARE_INTERVALS);
    for _ in 0..SPARE_INTERVALS {
        // It has room, and its receiver is on the next line.
        let _ = empty.try_send(Box::new(IntervalStats::new()));
    }
    (Line { go, empty }, Wires { reports: reports.clone(), start_signal: begin, cleared_intervals: intervals })
}

/// Stops the other threads if a thread panics; the scope reports the panic.
struct StopOnPanic<'a> {
    common: &'a Common<'a>,
}

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.common.stop.store(true, Ordering::Relaxed);
        }
    }
}

struct Coordinator<'c, 'o> {
    common: &'c Common<'c>,
    reports: Receiver<Report>,
    lines: Vec<Line>,
    observe: &'o mut dyn FnMut(&Interval<'_>),
}

/// The sum of all reports of the run.
struct Sum {
    requests: u64,
    latencies: Latencies,
    /// The interval that was not reported yet.
    interval: IntervalStats,
    /// The beginning of that interval.
    interval_ns: u64,
    /// By thread, the time up to which it has reported.
    until_ns: Vec<u64>,
    finished: Vec<FinalReport>,
}

impl Coordinator<'_, '_> {
    fn run(mut self) -> Result<RunSummary, LoadError> {
        self.await_ready()?;
        let load = self.common.load;
        let begin_ns = self.common.clock.now_ns() + nanos(HEAD_START);
        let measured_ns = begin_ns + nanos(load.warm_up);
        let begun = SystemTime::now() + HEAD_START + load.warm_up;
        for line in &self.lines {
            // Fails for a thread that panicked; the scope reports that.
            let _ = line.go.send(begin_ns);
        }
        let mut sum = Sum {
            requests: 0,
            latencies: Latencies { corrected: histogram(), uncorrected: histogram() },
            interval: IntervalStats::new(),
            interval_ns: measured_ns,
            until_ns: vec![measured_ns; load.threads],
            finished: Vec::with_capacity(load.threads),
        };
        while let Ok(report) = self.reports.recv() {
            match report {
                Report::Ready => {}
                Report::Failed(error) => return Err(error),
                Report::Interval { thread, until_ns, mut interval } => {
                    sum.add(&mut interval, matches!(load.pace, Pace::Open(_)));
                    sum.until_ns[thread] = until_ns;
                    interval.clear();
                    // There is room: the interval came from there. A thread that has finished needs none.
                    let _ = self.lines[thread].empty.try_send(interval);
                }
                Report::Finished { thread, mut finished } => {
                    sum.add(&mut finished.interval, matches!(load.pace, Pace::Open(_)));
                    sum.until_ns[thread] = u64::MAX;
                    sum.finished.push(*finished);
                }
            }
            self.report_interval(&mut sum, measured_ns);
        }
        if sum.finished.iter().any(|thread| thread.interrupted && thread.end_ns <= measured_ns) {
            return Err(LoadError::Interrupted(PreparationPhase::WarmUp));
        }
        Ok(sum.outcome(load, begun, measured_ns))
    }

    /// Waits until all threads have their connections.
    fn await_ready(&self) -> Result<(), LoadError> {
        let mut ready = 0;
        while ready < self.common.load.threads {
            match self.reports.recv_timeout(PANIC_CHECK_INTERVAL) {
                Ok(Report::Failed(error)) => return Err(error),
                Ok(_) => ready += 1,
                Err(_) if self.common.is_ending() => break,
                Err(_) => {}
            }
        }
        match self.common.interrupt.load(Ordering::Relaxed) {
            true => Err(LoadError::Interrupted(PreparationPhase::Connecting)),
            false => Ok(()),
        }
    }

    /// Calls the observer with the interval that all threads have reported, if there is one.
    fn report_interval(&mut self, sum: &mut Sum, measured_ns: u64) {
        let reported = sum.until_ns.iter().copied().min().unwrap_or(u64::MAX);
        let last = sum.finished.iter().map(|finished| finished.finished_ns.max(finished.end_ns)).max();
        let until_ns = if reported == u64::MAX { last.unwrap_or(sum.interval_ns) } else { reported };
        if until_ns <= sum.interval_ns {
            return;
        }
        let interval = Interval {
            start: Duration::from_nanos(sum.interval_ns - measured_ns),
            length: Duration::from_nanos(until_ns - sum.interval_ns),
            of: self.common.load.duration,
            requests: sum.interval.requests,
            errors: sum.interval.errors,
            latencies: &sum.interval.latencies,
        };
        (self.observe)(&interval);
        sum.interval.clear();
        sum.interval_ns = until_ns;
    }
}

/// How soon the panic of a thread is noticed while others wait.
const PANIC_CHECK_INTERVAL: Duration = Duration::from_millis(100);

impl Sum {
    fn add(&mut self, interval: &mut IntervalStats, corrects: bool) {
        self.requests += interval.requests;
        self.interval.requests += interval.requests;
        self.interval.errors += interval.errors;
        let Latencies { corrected, uncorrected } = &interval.latencies;
        let corrected = if corrects { corrected } else { uncorrected };
        for latencies in [&mut self.latencies, &mut self.interval.latencies] {
            merge(&mut latencies.corrected, corrected);
            merge(&mut latencies.uncorrected, uncorrected);
        }
    }

    fn outcome(self, load: &Load, begun: SystemTime, measured_ns: u64) -> RunSummary {
        let end_ns = self.finished.iter().map(|finished| finished.end_ns).max().unwrap_or(measured_ns);
        let elapsed = Duration::from_nanos(end_ns.saturating_sub(measured_ns));
        let per_second = |count: f64| if elapsed.is_zero() { 0.0 } else { count / elapsed.as_secs_f64() };
        let sum_of =
            |count: fn(&ThreadTotals) -> u64| self.finished.iter().map(|finished| count(&finished.totals)).sum::<u64>();
        let answered_in_time = sum_of(|totals| totals.answered_in_time);
        let (good, good_in_time) = (sum_of(|totals| totals.good), sum_of(|totals| totals.good_in_time));
        let good_shares: f64 = self.finished.iter().map(|finished| finished.totals.good_shares).sum();
        let rate_intended = match &load.pace {
            Pace::Open(schedule) => Some(per_second(requests_due(schedule, load.duration, elapsed))),
            Pace::Closed => None,
        };
        let finished_ns = self.finished.iter().map(|finished| finished.finished_ns).max().unwrap_or(end_ns);
        let mut outcome = RunSummary {
            begun,
            elapsed,
            requests: self.requests,
            answered_in_time,
            good,
            good_in_time,
            drain: Duration::from_nanos(finished_ns.saturating_sub(end_ns)),
            cut_off: self.finished.iter().map(|finished| finished.totals.cut_off).sum(),
            interrupted: self.finished.iter().any(|finished| finished.interrupted),
            errors: Errors::default(),
            sent: 0,
            sent_again: 0,
            bytes_received: 0,
            rate_achieved: per_second(match load.pace {
                Pace::Open(_) => good_in_time as f64,
                Pace::Closed => good_shares,
            }),
            rate_intended,
            latencies: self.latencies,
            refused: histogram(),
            connect: histogram(),
            send: histogram(),
            first_byte: histogram(),
            self_watch: watch(&self.finished),
            void: Vec::new(),
            notes: Vec::new(),
        };
        for finished in &self.finished {
            add_totals(&mut outcome, &finished.totals);
        }
        let late = self.finished.iter().map(|finished| finished.totals.late).sum();
        let allowed = self.finished.iter().filter_map(|finished| finished.totals.streams_allowed).min();
        (outcome.void, outcome.notes) = judge_run(load, &RunObservations::of(&outcome, late, allowed));
        outcome
    }
}

fn add_totals(outcome: &mut RunSummary, totals: &ThreadTotals) {
    outcome.sent += totals.sent;
    outcome.sent_again += totals.sent_again;
    outcome.bytes_received += totals.bytes_received;
    merge(&mut outcome.refused, &totals.refused);
    merge(&mut outcome.connect, &totals.connect);
    merge(&mut outcome.send, &totals.send);
    merge(&mut outcome.first_byte, &totals.first_byte);
    for (sum, count) in outcome.errors.counts.iter_mut().zip(totals.errors.counts) {
        *sum += count;
    }
    for example in &totals.errors.examples {
        let examples = &mut outcome.errors.examples;
        if examples.len() < ERROR_EXAMPLES_MAX && !examples.contains(example) {
            examples.push(example.clone());
        }
    }
}

fn merge(into: &mut Histogram<u64>, from: &Histogram<u64>) {
    into.add(from).expect("all have the bounds of outcome::histogram, so nothing exceeds them");
}

// Judges whether a run measures its target or its generator, from the threads' observations of themselves.
//
// A bound on a share is only exceeded if chance does not explain it: with few requests a single one would be more than
// the share.

/// In an open loop, a single pause no longer than this, in bounds of lateness, is not enough: in a short run, one late
/// wake is more than the share.
const SINGLE_PAUSE_BOUNDS: u32 = 10;

/// An open loop fell behind if more than this share of its requests, besides those that its connections may have under
/// way, was not answered.
const BEHIND_SHARE_MAX: f64 = 0.01;

/// A closed loop's thread that waited for its CPU for more than this share of the time had less throughput for it.
const CPU_WAIT_SHARE_CLOSED_MAX: f64 = 0.05;

/// The observations that a run is judged by.
struct RunObservations<'a> {
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
    fn of(outcome: &'a RunSummary, late: u64, streams_allowed: Option<usize>) -> Self {
        let counts = ErrorKind::ALL.iter().zip(outcome.errors.counts);
        let failed = counts.filter(|(kind, _)| ends_request(**kind)).map(|(_, count)| count).sum();
        let &RunSummary { requests, answered_in_time, good, elapsed, interrupted, sent_again, ref self_watch, .. } =
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
fn judge_run(load: &Load, seen: &RunObservations<'_>) -> (Vec<Void>, Vec<Note>) {
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
    if void.is_empty() && watch.pauses > pauses_max && watch.pause_longest > single_pause_max(load) {
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

fn single_pause_max(load: &Load) -> Duration {
    match load.pace {
        Pace::Closed => PAUSE_CLOSED,
        Pace::Open(_) => load.bounds.late * SINGLE_PAUSE_BOUNDS,
    }
}

/// The observations of all threads together.
fn watch(finished: &[FinalReport]) -> SelfWatch {
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
            let (void, notes) = judge_run(&load(open()), &seen);
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
            let said = judge_run(&load(pace), &seen);
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
        assert_eq!(judge_run(&asked, &fewer).1, notes);
        assert_eq!(judge_run(&asked, &RunObservations { interrupted: true, ..seen(90, 90, &watch) }).1, []);
        assert_eq!(judge_run(&asked, &RunObservations { made: 100, ..seen(90, 90, &watch) }).1, []);
        let refused = RunObservations { made: 100, good: 25, ..seen(90, 90, &watch) };
        assert_eq!(judge_run(&asked, &refused).1, [Note::Refused { refused: 65, of: 90 }]);
        // A pause of a fifth of a second in one that took four is more than a share of 1%, however long it might have taken.
        let bounds = Bounds { late_share_max: 0.01, ..Bounds::default() };
        let unbounded = Load { duration: DURATION_UNBOUNDED, bounds, ..asked };
        let pause = Duration::from_millis(200);
        let watch = SelfWatch { pauses: pause, pause_longest: pause, ..watched(90) };
        let said = judge_run(
            &unbounded,
            &RunObservations { made: 100, elapsed: Duration::from_secs(4), ..seen(90, 90, &watch) },
        );
        assert!(matches!(said.0[..], [Void::StoodStill { .. }]), "{said:?}");
    }

    #[test]
    fn a_refused_priority_is_noted() {
        let watch = watched(10);
        let seen = seen(10, 10, &watch);
        let asked = |pace| Load { realtime: true, ..load(pace) };
        assert_eq!(judge_run(&asked(open()), &seen).1, if watch.realtime { vec![] } else { vec![Note::NotFirst] });
        assert_eq!(judge_run(&asked(Pace::Closed), &seen).1, []);
    }
}
