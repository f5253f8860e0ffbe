//! The life of a generator thread: its CPU, its connections, the signal to begin, the run, the final report.
//!
//! In an open loop it wakes every millisecond at least, so that it notices being stopped or starved even while no
//! connection is free. Its work besides the traffic is done in small portions at those wakes: one long chore would
//! delay a start.

use super::connector::{Connector, Endpoints, LoadError};
use super::schedule::{Share, Starts};
use super::thread_stats::{IntervalStats, ThreadStats, ThreadTotals};
use super::traffic::{Clock, NEVER_NS, Traffic, Window, nanos};
use crate::mix::Composer;
use crate::outcome::PAUSE_CLOSED;
use crate::plan::{Load, Pace};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity, set_current_timer_slack};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};
use stillgate_rig::proc::{Meter, Usage};
use thread_priority::unix::{
    RealtimeThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
};
use thread_priority::{ThreadPriority, ThreadPriorityValue};

/// Longest time between two wakes of an open loop.
const WAKE_OPEN_NS: u64 = 1_000_000;

/// Longest time between two wakes of a closed loop, which has no starts to be late for.
const WAKE_CLOSED_NS: u64 = 5_000_000;

/// How often each connection is checked for a timeout.
const OVERDUE_ROUND_NS: u64 = 100_000_000;

/// Connections that are not open by then, counted from the first attempt, are left for the run to open.
const OPENING_NS_MAX: u64 = 10_000_000_000;

/// How long answers are awaited after a stop.
const STOP_GRACE_NS: u64 = 1_000_000_000;

/// How late the kernel may wake us; its default of 50 µs would be most of a short latency.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::new(1_000).expect("not zero");

/// Shared by all threads.
#[derive(Debug)]
pub(super) struct Common<'a> {
    pub(super) load: &'a Load,
    pub(super) endpoints: Endpoints,
    pub(super) clock: Clock,
    /// Set by this crate if the run cannot continue.
    pub(super) stop: AtomicBool,
    /// Set by the caller: the run is to end.
    pub(super) interrupt: &'a AtomicBool,
}

impl Common<'_> {
    /// Whether the run is to end.
    pub(super) fn is_ending(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.interrupt.load(Ordering::Relaxed)
    }
}

/// The channels between a thread and the coordinator.
#[derive(Debug)]
pub(super) struct Wires {
    pub(super) reports: SyncSender<Report>,
    /// Receives the start of the warm-up as the signal to begin. If the channel closes, there is no run.
    pub(super) start_signal: Receiver<u64>,
    /// Emptied intervals, to be filled again.
    pub(super) cleared_intervals: Receiver<Box<IntervalStats>>,
}

/// A thread's message to the coordinator.
#[derive(Debug)]
pub(super) enum Report {
    /// Its connections are open.
    Ready,
    /// It cannot work.
    Failed(LoadError),
    /// All counts since its last one until `until_ns`; not sent while no cleared interval is available.
    Interval { thread: usize, until_ns: u64, interval: Box<IntervalStats> },
    /// Everything else.
    Finished { thread: usize, finished: Box<FinalReport> },
}

/// A thread's last report.
#[derive(Debug)]
pub(super) struct FinalReport {
    pub(super) interval: Box<IntervalStats>,
    pub(super) totals: Box<ThreadTotals>,
    /// Usage over the measured time.
    pub(super) usage: Usage,
    /// The time of `usage`.
    pub(super) metered_ns: u64,
    /// When the measured time ended; earlier than planned if it was stopped.
    pub(super) end_ns: u64,
    /// When its last request ended.
    pub(super) finished_ns: u64,
    /// Whether it had priority over other programs.
    pub(super) realtime: bool,
    /// Whether it was ended early.
    pub(super) interrupted: bool,
}

/// Runs a thread from beginning to end.
pub(super) fn work(common: &Common<'_>, thread: usize, wires: &Wires) {
    let begun = Worker::prepare(common, thread, wires).and_then(|mut worker| {
        worker.open_connections()?;
        if wires.reports.send(Report::Ready).is_err() {
            return Ok(None);
        }
        let Ok(begin_ns) = wires.start_signal.recv() else { return Ok(None) };
        worker.run(begin_ns).map_err(epoll_failed)?;
        Ok(Some(worker.finish()))
    });
    let report = match begun {
        Ok(Some(finished)) => Report::Finished { thread, finished: Box::new(finished) },
        Ok(None) => return,
        Err(error) => Report::Failed(error),
    };
    // If it fails, the coordinator has given up and needs no report.
    let _ = wires.reports.send(report);
}

struct Worker<'a> {
    common: &'a Common<'a>,
    wires: &'a Wires,
    share: Share,
    traffic: Traffic<'a>,
    connections: usize,
    meter: Meter,
    /// At the beginning and the end of the measured time.
    metered: [Option<(u64, Usage)>; 2],
    window: Window,
    /// When everything still under way is given up.
    give_up_ns: u64,
    wake_ns: u64,
    /// A longer delay is a pause.
    pause_ns: u64,
    realtime: bool,
    interrupted: bool,
    chores_at_ns: u64,
    interval_until_ns: u64,
    finished_ns: u64,
}

impl<'a> Worker<'a> {
    fn prepare(common: &'a Common<'a>, thread: usize, wires: &'a Wires) -> Result<Self, LoadError> {
        let load = common.load;
        if !load.cpus.is_empty() {
            pin(load.cpus[thread % load.cpus.len()])?;
        }
        // If it fails, wakes are a little later, which lateness measures.
        let _ = set_current_timer_slack(Some(TIMER_SLACK_NS));
        let threads = load.threads;
        let connections = load.connections / threads + usize::from(thread < load.connections % threads);
        let is_open = matches!(load.pace, Pace::Open(_));
        let composer = Composer::new(&load.mix, load.seed, thread, threads);
        let connector = Connector::new(common.endpoints.clone(), connections, thread, threads);
        let traffic = Traffic::new(load, common.clock, composer, connector, ThreadStats::new(is_open))?;
        Ok(Worker {
            common,
            wires,
            share: Share { thread, threads },
            traffic,
            connections,
            meter: Meter::new(),
            metered: [None, None],
            window: Window { begin_ns: NEVER_NS, end_ns: NEVER_NS },
            give_up_ns: NEVER_NS,
            wake_ns: if is_open { WAKE_OPEN_NS } else { WAKE_CLOSED_NS },
            pause_ns: nanos(if is_open { load.bounds.late } else { PAUSE_CLOSED }),
            realtime: is_open && load.realtime && go_first(),
            interrupted: false,
            chores_at_ns: 0,
            interval_until_ns: NEVER_NS,
            finished_ns: 0,
        })
    }

    /// Opens all connections; an error only where none can be.
    fn open_connections(&mut self) -> Result<(), LoadError> {
        let mut now = self.common.clock.now_ns();
        let deadline = now + OPENING_NS_MAX;
        let url = &self.common.load.target.url;
        let unreachable = |(address, error)| LoadError::Unreachable { address, url: url.clone(), error };
        while self.traffic.connector.not_open() > 0 && !self.common.is_ending() {
            if let Some(failure) = self.traffic.connector.unreachable() {
                return Err(unreachable(failure));
            }
            if now >= deadline {
                if self.traffic.connector.has_reached() {
                    return Ok(());
                }
                return Err(unreachable((self.traffic.connector.destination(), Errno::TIMEDOUT.into())));
            }
            now = self.traffic.turn(now + WAKE_CLOSED_NS).map_err(epoll_failed)?;
            self.traffic.look_for_overdue(self.overdue_count(), now);
        }
        Ok(())
    }

    fn run(&mut self, begin_ns: u64) -> Result<(), Errno> {
        let load = self.common.load;
        let measured_ns = begin_ns + nanos(load.warm_up);
        self.window = Window { begin_ns: measured_ns, end_ns: measured_ns + nanos(load.duration) };
        self.give_up_ns = self.window.end_ns + nanos(load.timeout);
        self.interval_until_ns = self.next_interval(measured_ns);
        let starts = match &load.pace {
            Pace::Open(schedule) => {
                let lengths = (load.warm_up, load.duration);
                Some(Starts::new(schedule, lengths, load.requests, self.share, load.seed, begin_ns))
            }
            Pace::Closed => None,
        };
        let mut now = self.common.clock.now_ns();
        // A schedule begins by itself, and its first start must not be late.
        while starts.is_none() && now < begin_ns {
            now = self.traffic.turn(begin_ns)?;
        }
        let left = load.requests.map_or(u64::MAX, |requests| self.share.of(requests));
        self.traffic.begin(starts, left, self.window);
        while !self.traffic.is_over(now) {
            if now >= self.chores_at_ns {
                if (self.window.begin_ns..self.window.end_ns).contains(&self.chores_at_ns) {
                    self.traffic.stats.record_late_wake(now - self.chores_at_ns, self.pause_ns);
                }
                self.chores_at_ns = now + self.wake_ns;
                self.chores(now);
                if now >= self.give_up_ns {
                    break;
                }
            }
            now = self.traffic.turn(self.chores_at_ns)?;
            if load.requests.is_some() {
                self.end_with_requests(now);
            }
        }
        self.traffic.give_up(now);
        self.finished_ns = now;
        self.record_cpu_usage(now);
        Ok(())
    }

    fn chores(&mut self, now: u64) {
        if !self.interrupted && self.common.is_ending() {
            self.interrupt(now);
        }
        self.record_cpu_usage(now);
        self.traffic.look_for_overdue(self.overdue_count(), now);
        if now >= self.interval_until_ns {
            self.hand_over(now);
        }
    }

    /// Ends early: the warm-up at once, since its answers are not needed; anything later once some more have come.
    fn interrupt(&mut self, now: u64) {
        self.interrupted = true;
        let measures = now >= self.window.begin_ns;
        if now < self.window.end_ns {
            self.traffic.stop(now);
            self.window.end_ns = now;
        }
        let grace_ns = if measures { STOP_GRACE_NS.min(nanos(self.common.load.timeout)) } else { 0 };
        self.give_up_ns = self.give_up_ns.min(now + grace_ns);
    }

    /// Ends the measured time if all its requests were begun, or hardly ever will be: it does not wait for a target
    /// that answers nothing within the timeout of a request.
    fn end_with_requests(&mut self, now: u64) {
        let timeout_ns = nanos(self.common.load.timeout);
        let (end_ns, give_up_ns) = match self.traffic.ends_at(now) {
            Some(end_ns) => (end_ns, end_ns + timeout_ns),
            None if self.traffic.is_stalled(now.saturating_sub(timeout_ns + OVERDUE_ROUND_NS)) => (now, now),
            None => return,
        };
        if end_ns < self.window.end_ns {
            self.window.end_ns = end_ns;
            self.traffic.end_at(end_ns);
            self.give_up_ns = self.give_up_ns.min(give_up_ns);
        }
    }

    /// Records the CPU usage when the measured time begins and when it ends.
    fn record_cpu_usage(&mut self, now: u64) {
        for (metered, at) in self.metered.iter_mut().zip([self.window.begin_ns, self.window.end_ns]) {
            if metered.is_none() && now >= at {
                *metered = Some((now, self.meter.usage()));
            }
        }
    }

    fn overdue_count(&self) -> usize {
        (self.connections * self.wake_ns as usize).div_ceil(OVERDUE_ROUND_NS as usize)
    }

    /// Gives the coordinator the counts, if there is a cleared interval to continue with; otherwise the next time.
    fn hand_over(&mut self, now: u64) {
        let until_ns = self.interval_until_ns;
        while self.interval_until_ns <= now {
            self.interval_until_ns = self.next_interval(self.interval_until_ns);
        }
        if let Ok(empty) = self.wires.cleared_intervals.try_recv() {
            let interval = std::mem::replace(&mut self.traffic.stats.interval, empty);
            // There is room: there are no more reports than intervals. If the coordinator has gone, it needs none.
            let _ = self.wires.reports.try_send(Report::Interval { thread: self.share.thread, until_ns, interval });
        }
    }

    /// The last interval includes answers soon after the end, or it would be a short one.
    fn next_interval(&self, after_ns: u64) -> u64 {
        let interval = nanos(self.common.load.interval);
        let next = after_ns.saturating_add(interval);
        if next >= self.window.end_ns && after_ns < self.window.end_ns {
            return self.window.end_ns.saturating_add(interval);
        }
        next
    }

    fn finish(self) -> FinalReport {
        let (metered_ns, usage) = match self.metered {
            [Some((begin, before)), Some((end, after))] => (end - begin, after.since(before)),
            _ => (0, Usage::default()),
        };
        let ThreadStats { interval, totals, .. } = self.traffic.into_stats();
        let (end_ns, finished_ns) = (self.window.end_ns, self.finished_ns);
        let (realtime, interrupted) = (self.realtime, self.interrupted);
        FinalReport { interval, totals, usage, metered_ns, end_ns, finished_ns, realtime, interrupted }
    }
}

fn pin(cpu: usize) -> Result<(), LoadError> {
    let mut set = CpuSet::new();
    if cpu >= CpuSet::MAX_CPU {
        return Err(LoadError::Cpu { cpu, error: Errno::INVAL.into() });
    }
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|error| LoadError::Cpu { cpu, error: error.into() })
}

/// Gives this thread priority on its CPU over all threads that are not real-time; returns whether that is allowed.
fn go_first() -> bool {
    let lowest = ThreadPriorityValue::try_from(1u8).map(ThreadPriority::Crossplatform);
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    lowest.is_ok_and(|priority| set_thread_priority_and_policy(thread_native_id(), priority, policy).is_ok())
}

fn epoll_failed(error: Errno) -> LoadError {
    LoadError::Epoll(error.into())
}
