//! `stillgate-lab devices`: mock devices that hold a WebSocket each, and a back-end that sends them messages by the
//! device API.
//!
//! ```text
//!  fleet ── epoll ──┬─ device … device      connect, answer, drop, come back
//!                   └─ back_end … back_end  POST /v1/devices/{id}/messages, keep-alive, on a schedule
//!                          └─ ledger: what was sent, received and answered
//! ```
//!
//! One thread does all of it: deliveries and answers are compared without a lock, and the other CPUs are left to the
//! gateway. [`plan`] holds the arguments, and [`analysis`] a pure function of the rounds, and the results as text.
//!
//! The phases of one run are here: connecting in steps, idle time, messages with churn, a broadcast, a storm; after each
//! phase, the resources that the gateway's process used. Two gateways are measured in alternation: each round connects new
//! devices to both, in random order, and sends them messages.

pub(crate) mod analysis;
mod device;
mod fleet;
mod ledger;
pub(crate) mod plan;

use crate::display::Progress;
use crate::error::{EXIT_INTERRUPTED, Error, Result};
use crate::result::devices::{Broadcast, ConnectStep, DevicesRound, DevicesRun, DevicesSide, Idle, Messages, Storm};
use crate::result::histogram;
use fleet::{Fleet, Phase};
use plan::{GatewayNode, Plan};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use stillgate_load::outcome;
use stillgate_rig::proc;
use stillgate_stats::Random;

/// Numbers of devices at which the connects so far are summed up; the last step is all devices.
const STEPS: [usize; 2] = [1_000, 10_000];

/// Wait after the last message for data that was written but not yet received.
const SETTLE: Duration = Duration::from_secs(5);

/// Wait after the last connect until memory and CPU have settled.
const REST: Duration = Duration::from_millis(300);

/// Time limit of a broadcast.
const BROADCAST: Duration = Duration::from_secs(60);

/// With a larger share of late messages the latencies are this program's, not the gateway's.
const LATE_SHARE_MAX: f64 = 0.01;

/// Number of steps that [`run`] shows.
pub(crate) fn steps(plan: &Plan) -> u64 {
    let others = [!plan.idle.is_zero(), plan.message_rate.is_some(), plan.broadcasts > 0, plan.storm];
    (ends(plan.devices).len() + others.iter().filter(|is| **is).count()) as u64
}

/// A run; `label` is shown before each step. If interrupted, it has the measurements so far; without any, it fails.
pub(crate) fn run(
    plan: &Plan,
    places: &[GatewayNode],
    stop: &AtomicBool,
    label: &str,
    progress: &mut Progress,
) -> Result<DevicesRun> {
    let processes = places.iter().map(|place| Process::find(place.pid, place.door.address));
    // All or none: a sum that lacks one of them would be wrong.
    let processes = processes.collect::<Result<Option<Vec<_>>>>()?.unwrap_or_default();
    let mut out = DevicesRun::default();
    if let Some((first, further)) = processes.split_first() {
        out.pid = Some(first.pid);
        out.process = Some(first.name.clone());
        out.further_pids = further.iter().map(|process| process.pid).collect();
    }
    let mut phases = Phases { plan, fleet: Fleet::new(plan, places, stop)?, processes, label, progress };
    let ended = phases.all(&mut out);
    out.endings = std::mem::take(&mut phases.fleet.endings);
    out.resumed = phases.fleet.seen.resumed;
    if ended? == Phase::Interrupted {
        if out.connects.is_empty() {
            return Err(Error::new("interrupted before anything was measured").exit(EXIT_INTERRUPTED));
        }
        out.void.push("it was interrupted".to_owned());
    }
    let during = out.broadcast.as_ref().and_then(|broadcast| broadcast.messages.as_ref());
    out.void.extend(out.messages.iter().chain(during).find_map(late));
    Ok(out)
}

/// A run in its phases.
struct Phases<'a, 'p> {
    plan: &'a Plan,
    fleet: Fleet<'a>,
    /// Processes of all nodes; empty unless all of them run on this machine.
    processes: Vec<Process>,
    label: &'a str,
    progress: &'p mut Progress,
}

impl Phases<'_, '_> {
    fn all(&mut self, out: &mut DevicesRun) -> Result<Phase> {
        let before_kib = self.rss_kib();
        let begin = Instant::now();
        let mut from = 0;
        for end in ends(self.plan.devices) {
            self.step(&format!("connecting {end} devices"));
            let (step, phase) = self.connect(from, end)?;
            out.connects.push(step);
            if phase == Phase::Interrupted {
                return Ok(phase);
            }
            from = end;
        }
        out.connects_per_s = self.fleet.connected as f64 / begin.elapsed().as_secs_f64();
        if self.rest(REST)? == Phase::Interrupted {
            return Ok(Phase::Interrupted);
        }
        let after_kib = self.rss_kib();
        let grown = after_kib.zip(before_kib).map(|(after, before)| (after as f64 - before as f64) * 1024.0);
        out.rss_bytes_per_device = grown.map(|bytes| bytes / self.fleet.online.max(1) as f64);
        let further: [fn(&mut Self, &mut DevicesRun) -> Result<Phase>; 4] =
            [Self::idle, Self::messages, Self::broadcast, Self::storm];
        for phase in further {
            if phase(self, out)? == Phase::Interrupted {
                return Ok(Phase::Interrupted);
            }
        }
        Ok(Phase::Done)
    }

    fn connect(&mut self, from: usize, end: usize) -> Result<(ConnectStep, Phase)> {
        let (begin, cpu) = (Instant::now(), self.cpu_us());
        let (before, tls) = (self.fleet.connected, self.fleet.seen.tls);
        self.fleet.connects = Pace::new(self.plan.connect_rate, self.fleet.now_ns());
        self.fleet.connect(from..end);
        let phase = self.fleet.run(|fleet| fleet.online + fleet.refused >= end)?;
        let seconds = begin.elapsed().as_secs_f64();
        let connects = self.fleet.connected - before;
        let handshake = std::mem::replace(&mut self.fleet.handshake, outcome::histogram());
        let step = ConnectStep {
            devices: self.fleet.online,
            connects,
            seconds,
            cpu_us_per_connect: self.cpu_since(cpu, connects),
            rss_kib: self.rss_kib(),
            handshake: histogram::percentiles(&handshake),
            tls: self.fleet.seen.tls.since(tls),
        };
        Ok((step, phase))
    }

    fn idle(&mut self, out: &mut DevicesRun) -> Result<Phase> {
        if self.plan.idle.is_zero() {
            return Ok(Phase::Done);
        }
        self.step("idle");
        let (begin, cpu, pings) = (Instant::now(), self.cpu_us(), self.fleet.seen.pings);
        let phase = self.rest(self.plan.idle)?;
        let seconds = begin.elapsed().as_secs_f64();
        let used = self.cpu_us().zip(cpu).map(|(after, before)| (after - before) / 1e6);
        out.idle =
            Some(Idle { seconds, pings: self.fleet.seen.pings - pings, cpu_share: used.map(|used| used / seconds) });
        Ok(phase)
    }

    fn messages(&mut self, out: &mut DevicesRun) -> Result<Phase> {
        let Some(rate) = self.plan.message_rate else { return Ok(Phase::Done) };
        self.step(&format!("{rate} messages per second"));
        let from = self.fleet.ledger.next();
        let (begin, cpu) = (Instant::now(), self.cpu_us());
        let now = self.fleet.now_ns();
        self.fleet.messages = Some(Pace::new(rate, now));
        if self.plan.churn > 0.0 {
            self.fleet.churn = Some(Pace::new(self.plan.churn * self.plan.devices as f64, now));
        }
        let phase = self.rest(self.plan.duration)?;
        self.fleet.churn = None;
        let mut messages = self.end_messages(from, begin)?;
        messages.cpu_us_per_message = self.cpu_since(cpu, messages.sent);
        out.messages = Some(messages);
        Ok(phase)
    }

    /// Sends no more, and waits for those under way.
    fn end_messages(&mut self, from: u32, begin: Instant) -> Result<Messages> {
        self.fleet.messages = None;
        let seconds = begin.elapsed().as_secs_f64();
        self.fleet.run(|fleet| fleet.is_quiet())?;
        let until = Instant::now() + SETTLE;
        self.fleet.run(|fleet| fleet.ledger.is_settled(from) || Instant::now() >= until)?;
        let connections: Vec<u32> = (0..self.plan.devices as u32).map(|device| self.fleet.connection(device)).collect();
        Ok(self.fleet.ledger.close(from, seconds, |device| connections[device as usize]))
    }

    fn broadcast(&mut self, out: &mut DevicesRun) -> Result<Phase> {
        if self.plan.broadcasts == 0 {
            return Ok(Phase::Done);
        }
        self.step("a message to all");
        // A device that reconnects during a broadcast may get it or not.
        let mut phase = self.fleet.run(|fleet| fleet.online + fleet.refused >= self.plan.devices)?;
        let (from, begin, now) = (self.fleet.ledger.next(), Instant::now(), self.fleet.now_ns());
        self.fleet.messages = self.plan.message_rate.map(|rate| Pace::new(rate, now));
        let mut found = Broadcast { devices: self.fleet.online, ..Broadcast::default() };
        while phase == Phase::Done && found.times_s.len() < self.plan.broadcasts {
            phase = self.one_broadcast(&mut found)?;
        }
        // Messages that became due during a broadcast.
        if self.plan.message_rate.is_some() {
            found.messages = Some(self.end_messages(from, begin)?);
        } else {
            self.fleet.run(|fleet| fleet.is_quiet())?;
        }
        found.last_s = found.times_s.iter().copied().fold(0.0, f64::max);
        out.broadcast = Some(found);
        Ok(phase)
    }

    /// The time from the request to the last device.
    fn one_broadcast(&mut self, found: &mut Broadcast) -> Result<Phase> {
        let before = self.fleet.seen.broadcast;
        let all = before + found.devices as u64;
        let (begin_ns, until) = (self.fleet.now_ns(), Instant::now() + BROADCAST);
        self.fleet.broadcast()?;
        let phase = self
            .fleet
            .run(|fleet| fleet.seen.broadcast >= all && !fleet.is_broadcasting() || Instant::now() >= until)?;
        if phase == Phase::Interrupted {
            return Ok(phase);
        }
        // A broadcast that did not reach all has no last device: it gets the waiting time.
        let end_ns =
            if self.fleet.seen.broadcast >= all { self.fleet.seen.broadcast_last_ns } else { self.fleet.now_ns() };
        found.times_s.push(end_ns.saturating_sub(begin_ns) as f64 / 1e9);
        found.received += self.fleet.seen.broadcast - before;
        Ok(phase)
    }

    fn storm(&mut self, out: &mut DevicesRun) -> Result<Phase> {
        if !self.plan.storm {
            return Ok(Phase::Done);
        }
        self.step("all drop at once and reconnect");
        let (devices, from) = (self.fleet.online, self.fleet.ledger.next());
        let (begin, cpu, connected, refused) =
            (Instant::now(), self.cpu_us(), self.fleet.connected, self.fleet.refused_for_now);
        let (now, tls) = (self.fleet.now_ns(), self.fleet.seen.tls);
        self.fleet.messages = self.plan.message_rate.map(|rate| Pace::new(rate, now));
        self.fleet.connects = Pace::new(self.plan.connect_rate, now);
        self.fleet.storm();
        let phase = self.fleet.run(|fleet| fleet.online >= devices)?;
        let seconds = begin.elapsed().as_secs_f64();
        let connects = self.fleet.connected - connected;
        let tls = self.fleet.seen.tls.since(tls);
        let cpu_us_per_connect = self.cpu_since(cpu, connects).filter(|_| self.plan.message_rate.is_none());
        let messages = match self.plan.message_rate {
            Some(_) => Some(self.end_messages(from, begin)?),
            None => None,
        };
        let refused = self.fleet.refused_for_now - refused;
        out.storm = Some(Storm { devices, seconds, refused, cpu_us_per_connect, tls, messages });
        Ok(phase)
    }

    fn rest(&mut self, time: Duration) -> Result<Phase> {
        let until = Instant::now() + time;
        self.fleet.run(|_| Instant::now() >= until)
    }

    fn step(&mut self, what: &str) {
        self.progress.step(&format!("{}{what}", self.label));
    }

    fn cpu_us(&self) -> Option<f64> {
        self.sum(Process::cpu_us)
    }

    fn rss_kib(&self) -> Option<u64> {
        self.sum(Process::rss_kib)
    }

    /// The sum over all nodes. `None` if they run elsewhere, or one has ended, as in an upgrade: the run continues
    /// without it.
    fn sum<T: std::iter::Sum>(&self, of: fn(&Process) -> Result<T>) -> Option<T> {
        if self.processes.is_empty() {
            return None;
        }
        self.processes.iter().map(of).sum::<Result<T>>().ok()
    }

    /// CPU time since then, divided by `of`.
    fn cpu_since(&self, before: Option<f64>, of: u64) -> Option<f64> {
        let used = self.cpu_us().zip(before).map(|(after, before)| after - before);
        used.filter(|_| of > 0).map(|used| used / of as f64)
    }
}

fn ends(devices: usize) -> Vec<usize> {
    STEPS.into_iter().filter(|step| *step < devices).chain([devices]).collect()
}

fn late(messages: &Messages) -> Option<String> {
    let share = messages.late as f64 / messages.sent.max(1) as f64;
    (share > LATE_SHARE_MAX).then(|| {
        format!(
            "{:.1}% of the messages were started more than 10 ms late by this program: it had too little CPU; use a lower --message-rate",
            share * 100.0
        )
    })
}

// The gateway's process: found by its listening port, and read for its CPU time and memory.

/// A process on this machine.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Its name in the kernel.
    pub(crate) name: String,
}

impl Process {
    /// The given process, or the one that listens at the address; `None` if this machine has none that we may see.
    pub(crate) fn find(asked: Option<u32>, address: SocketAddr) -> Result<Option<Process>> {
        let Some(pid) = asked.or_else(|| proc::listener(address.port())) else { return Ok(None) };
        let name =
            proc::name(pid).map_err(|error| Error::new(format!("--pid {pid}: no process has this id ({error})")))?;
        Ok(Some(Process { pid, name }))
    }

    /// CPU time so far, in microseconds.
    pub(crate) fn cpu_us(&self) -> Result<f64> {
        proc::cpu_time_us(self.pid).map_err(|error| self.gone(&error))
    }

    /// Resident memory.
    pub(crate) fn rss_kib(&self) -> Result<u64> {
        proc::rss_kib(self.pid).map_err(|error| self.gone(&error))
    }

    fn gone(&self, error: &std::io::Error) -> Error {
        Error::new(format!("process {} ({}) has ended or cannot be read: {error}", self.pid, self.name))
    }
}

// A schedule of evenly spaced events that does not wait for late ones.

/// A fixed rate per second from `begin_ns` on.
#[derive(Debug, Clone)]
struct Pace {
    begin_ns: u64,
    interval_ns: f64,
    taken: u64,
}

impl Pace {
    /// The first is due at once.
    fn new(per_s: f64, now_ns: u64) -> Pace {
        Pace { begin_ns: now_ns, interval_ns: 1e9 / per_s, taken: 0 }
    }

    /// When the next one is due.
    fn due_ns(&self) -> u64 {
        self.begin_ns + (self.taken as f64 * self.interval_ns) as u64
    }

    /// Takes the next one if it is due, and returns when it was.
    fn take(&mut self, now_ns: u64) -> Option<u64> {
        let due = self.due_ns();
        (due <= now_ns).then(|| {
            self.taken += 1;
            due
        })
    }

    /// The schedule continues from now: missed events are not made up for in a burst.
    fn skip_to(&mut self, now_ns: u64) {
        if self.due_ns() < now_ns {
            *self = Pace { begin_ns: now_ns, taken: 0, interval_ns: self.interval_ns };
        }
    }
}

/// The completed rounds; `keep` is called after each.
pub(crate) fn run_rounds(
    plan: &Plan,
    places: (&[GatewayNode], &[GatewayNode]),
    rounds: usize,
    stop: &AtomicBool,
    mut keep: impl FnMut(&[DevicesRound]) -> Result,
) -> Result<Vec<DevicesRound>> {
    let mut progress = Progress::new("devices", steps(plan) * 2 * rounds as u64);
    let mut random = Random::new(plan.seed);
    // Devices of an earlier command must not still be connected.
    let begun = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut done: Vec<DevicesRound> = Vec::new();
    for round in 0..rounds {
        let plan = Plan { prefix: format!("{}{begun:x}-{round}-", plan.prefix), ..plan.clone() };
        let first = if random.below(2) == 0 { DevicesSide::A } else { DevicesSide::B };
        let mut side = |side: DevicesSide| {
            let place = if side == DevicesSide::A { places.0 } else { places.1 };
            let label = format!("round {} of {rounds}, {side:?}: ", round + 1);
            run(&plan, place, stop, &label, &mut progress).map_err(|error| error.context(format!("{side:?}")))
        };
        let (a, b) = match first {
            DevicesSide::A => {
                let a = side(DevicesSide::A)?;
                (a, side(DevicesSide::B)?)
            }
            DevicesSide::B => {
                let b = side(DevicesSide::B)?;
                (side(DevicesSide::A)?, b)
            }
        };
        if stop.load(Ordering::Relaxed) {
            break;
        }
        done.push(DevicesRound { first, a, b });
        keep(&done)?;
    }
    progress.finish();
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_end_with_all() {
        assert_eq!(ends(1), [1]);
        assert_eq!(ends(1_000), [1_000]);
        assert_eq!(ends(19_000), [1_000, 10_000, 19_000]);
    }

    #[test]
    fn late_messages_make_a_run_void() {
        let of = |late| {
            let messages = Messages { sent: 1_000, late, ..Messages::default() };
            super::late(&messages)
        };
        assert_eq!(of(10), None);
        assert!(of(11).unwrap().starts_with("1.1% of the messages"));
    }
}

#[cfg(test)]
mod process_tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn the_listener_of_a_port_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let found = Process::find(None, listener.local_addr().unwrap()).unwrap().unwrap();
        assert_eq!(found.pid, std::process::id());
        assert!(found.cpu_us().unwrap() > 0.0 && found.rss_kib().unwrap() > 0);
    }

    #[test]
    fn a_missing_process_is_reported() {
        let error = Process::find(Some(1 << 23), "127.0.0.1:1".parse().unwrap()).unwrap_err();
        assert!(error.to_string().starts_with("--pid 8388608: no process has this id"), "{error}");
    }
}

#[cfg(test)]
mod pace_tests {
    use super::*;

    #[test]
    fn what_is_late_keeps_its_time() {
        let mut pace = Pace::new(1000.0, 5_000_000);
        assert_eq!(pace.take(4_999_999), None);
        assert_eq!(pace.take(7_500_000), Some(5_000_000));
        assert_eq!(pace.take(7_500_000), Some(6_000_000));
        assert_eq!(pace.take(7_500_000), Some(7_000_000));
        assert_eq!(pace.take(7_500_000), None);
        pace.skip_to(20_000_000);
        assert_eq!((pace.take(20_000_000), pace.take(20_000_000)), (Some(20_000_000), None));
    }
}
