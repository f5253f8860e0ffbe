//! The calling thread's part: it checks the load, starts the threads, adds up their reports, and judges the run.

use super::clock::{Clock, nanos};
use super::descriptors;
use super::error::{LoadError, PreparationPhase};
use super::judge::{RunObservations, judge, watch};
use super::record::{Stretch, Totals};
use super::schedule::requests_due;
use super::sources::Endpoints;
use super::worker::{Common, FinalReport, Report, Wires, work};
use crate::outcome::{ERROR_EXAMPLES_MAX, Errors, Interval, Latencies, Outcome, histogram};
use crate::plan::{DURATION_UNBOUNDED, Load, Pace};
use hdrhistogram::Histogram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, SystemTime};

/// Spare empty intervals of each thread: one may be read here while another is on its way.
const STRETCHES_SPARE: usize = 2;

/// Reports of one thread that can be under way: its intervals, that it is ready, and the end.
const REPORTS_MAX: usize = STRETCHES_SPARE + 2;

/// The time between the signal to begin and the beginning, so that all threads begin together.
const HEAD_START: Duration = Duration::from_millis(1);

/// Does a run. `observe` is called with each interval, on this thread. Once `interrupt` is set the run ends, in any
/// phase: in the measured time with the outcome so far, before it with [`LoadError::Interrupted`].
///
/// Connections are opened before the time counts. After the measured time, requests that are under way or were due and
/// still wait for a connection have [`Load::timeout`] to be answered. An error means that there was no run.
pub fn run(load: &Load, interrupt: &AtomicBool, observe: &mut dyn FnMut(&Interval<'_>)) -> Result<Outcome, LoadError> {
    validate(load)?;
    let endpoints = Endpoints::of(load)?;
    descriptors::provide(load.connections, load.threads)?;
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
    empty: SyncSender<Box<Stretch>>,
}

fn wire(reports: &SyncSender<Report>) -> (Line, Wires) {
    let (go, begin) = sync_channel(1);
    let (empty, stretches) = sync_channel(STRETCHES_SPARE);
    for _ in 0..STRETCHES_SPARE {
        // It has room, and its receiver is on the next line.
        let _ = empty.try_send(Box::new(Stretch::new()));
    }
    (Line { go, empty }, Wires { reports: reports.clone(), go: begin, stretches })
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
    interval: Stretch,
    /// The beginning of that interval.
    interval_ns: u64,
    /// By thread, the time up to which it has reported.
    until_ns: Vec<u64>,
    finished: Vec<FinalReport>,
}

impl Coordinator<'_, '_> {
    fn run(mut self) -> Result<Outcome, LoadError> {
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
            interval: Stretch::new(),
            interval_ns: measured_ns,
            until_ns: vec![measured_ns; load.threads],
            finished: Vec::with_capacity(load.threads),
        };
        while let Ok(report) = self.reports.recv() {
            match report {
                Report::Ready => {}
                Report::Failed(error) => return Err(error),
                Report::Stretch { thread, until_ns, mut stretch } => {
                    sum.add(&mut stretch, matches!(load.pace, Pace::Open(_)));
                    sum.until_ns[thread] = until_ns;
                    stretch.clear();
                    // There is room: the interval came from there. A thread that has finished needs none.
                    let _ = self.lines[thread].empty.try_send(stretch);
                }
                Report::Finished { thread, mut finished } => {
                    sum.add(&mut finished.stretch, matches!(load.pace, Pace::Open(_)));
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
    fn add(&mut self, stretch: &mut Stretch, corrects: bool) {
        self.requests += stretch.requests;
        self.interval.requests += stretch.requests;
        self.interval.errors += stretch.errors;
        let Latencies { corrected, uncorrected } = &stretch.latencies;
        let corrected = if corrects { corrected } else { uncorrected };
        for latencies in [&mut self.latencies, &mut self.interval.latencies] {
            merge(&mut latencies.corrected, corrected);
            merge(&mut latencies.uncorrected, uncorrected);
        }
    }

    fn outcome(self, load: &Load, begun: SystemTime, measured_ns: u64) -> Outcome {
        let end_ns = self.finished.iter().map(|finished| finished.end_ns).max().unwrap_or(measured_ns);
        let elapsed = Duration::from_nanos(end_ns.saturating_sub(measured_ns));
        let per_second = |count: f64| if elapsed.is_zero() { 0.0 } else { count / elapsed.as_secs_f64() };
        let sum_of =
            |count: fn(&Totals) -> u64| self.finished.iter().map(|finished| count(&finished.totals)).sum::<u64>();
        let answered_in_time = sum_of(|totals| totals.answered_in_time);
        let (good, good_in_time) = (sum_of(|totals| totals.good), sum_of(|totals| totals.good_in_time));
        let good_shares: f64 = self.finished.iter().map(|finished| finished.totals.good_shares).sum();
        let rate_intended = match &load.pace {
            Pace::Open(schedule) => Some(per_second(requests_due(schedule, load.duration, elapsed))),
            Pace::Closed => None,
        };
        let finished_ns = self.finished.iter().map(|finished| finished.finished_ns).max().unwrap_or(end_ns);
        let mut outcome = Outcome {
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
            add(&mut outcome, &finished.totals);
        }
        let late = self.finished.iter().map(|finished| finished.totals.late).sum();
        let allowed = self.finished.iter().filter_map(|finished| finished.totals.streams_allowed).min();
        (outcome.void, outcome.notes) = judge(load, &RunObservations::of(&outcome, late, allowed));
        outcome
    }
}

fn add(outcome: &mut Outcome, totals: &Totals) {
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

pub(super) fn merge(into: &mut Histogram<u64>, from: &Histogram<u64>) {
    into.add(from).expect("all have the bounds of outcome::histogram, so nothing exceeds them");
}
