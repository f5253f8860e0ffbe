//! A load of constant rate that does not wait for answers: latency counts from when a request should have started.
//!
//! A closed loop asks less of a gateway that stalls, and so hides the stall. One thread drives all connections: it sleeps
//! until the next request is due or an answer is there, which costs a tenth of a CPU at 10,000 requests a second. A
//! request that finds no free connection waits for one, and its waiting counts. The generator also says how late it was
//! itself: where that is much, the run says nothing.

use super::load_connection::{LoadConnection, wait};
use crate::Result;
use rustix::thread::set_current_timer_slack;
use std::collections::VecDeque;
use std::io::Write;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Between two looks for answers that are overdue.
const OVERDUE_INTERVAL: Duration = Duration::from_millis(100);

/// Failures kept word for word; all are counted.
const FAILURES_KEPT: usize = 3;

/// What is asked for.
#[derive(Clone)]
pub(super) struct Load {
    pub(super) address: SocketAddr,
    /// Requests a second, over all connections.
    pub(super) rate: f64,
    pub(super) connections: u32,
    /// Asked for in turn.
    pub(super) paths: Vec<String>,
    /// Load before the measured time, for connections and caches to be there.
    pub(super) lead_in: Duration,
}

/// What came of it.
#[derive(Default)]
pub(super) struct Outcome {
    /// One a request that was answered 200, in no order.
    pub(super) latencies_us: Vec<u32>,
    /// One a request: how late after its intended start the generator woke up for it.
    pub(super) late_us: Vec<u32>,
    pub(super) failed: u64,
    pub(super) failures: Vec<String>,
    /// Requests sent in all, those of the lead-in too.
    pub(super) sent: u64,
}

impl Outcome {
    pub(super) fn merge(&mut self, other: Self) {
        self.latencies_us.extend(other.latencies_us);
        self.late_us.extend(other.late_us);
        self.failed += other.failed;
        self.sent += other.sent;
        let room = FAILURES_KEPT.saturating_sub(self.failures.len());
        self.failures.extend(other.failures.into_iter().take(room));
    }

    fn fail(&mut self, why: String) {
        self.failed += 1;
        if self.failures.len() < FAILURES_KEPT {
            self.failures.push(why);
        }
    }
}

/// Keeps the load up for `duration` after its lead-in, on connections of its own.
pub(super) fn run(load: &Load, duration: Duration) -> Result<Outcome> {
    // The default slack of 50 µs would be most of what is measured. Refused: the figures are a little coarser.
    let _ = set_current_timer_slack(NonZeroU64::new(1_000));
    let mut generator = Generator::new(load, duration)?;
    loop {
        generator.start_due()?;
        let Some(pause) = generator.pause() else {
            return Ok(generator.outcome);
        };
        let open = generator.slots.iter().enumerate();
        let ready = wait(open.filter_map(|(number, slot)| Some((number, slot.connection.as_ref()?))), pause)?;
        for number in ready {
            generator.progress(number);
        }
        generator.give_up_overdue();
    }
}

/// A connection and what it is asked.
struct Slot {
    /// None once it was closed; opened again when it is needed.
    connection: Option<LoadConnection>,
    /// When the request that is under way should have started.
    asked: Option<Instant>,
}

struct Generator<'a> {
    load: &'a Load,
    slots: Vec<Slot>,
    /// Those that nothing is asked of, the longest unused first.
    free: VecDeque<usize>,
    /// Intended starts of requests that wait for a connection.
    due: VecDeque<Instant>,
    next: Instant,
    interval: Duration,
    measured_from: Instant,
    end: Instant,
    next_overdue_look: Instant,
    request: Vec<u8>,
    outcome: Outcome,
}

impl<'a> Generator<'a> {
    fn new(load: &'a Load, duration: Duration) -> Result<Self> {
        if load.paths.is_empty() {
            return Err("a load needs a path".into());
        }
        let open = |_| Ok(Slot { connection: Some(LoadConnection::open(load.address)?), asked: None });
        let slots = (0..load.connections).map(open).collect::<Result<Vec<_>>>()?;
        let expected = ((load.lead_in + duration).as_secs_f64() * load.rate) as usize + 1;
        let begin = Instant::now();
        Ok(Self {
            load,
            free: (0..slots.len()).collect(),
            slots,
            due: VecDeque::with_capacity(expected),
            next: begin,
            interval: Duration::from_secs_f64(1.0 / load.rate),
            measured_from: begin + load.lead_in,
            end: begin + load.lead_in + duration,
            next_overdue_look: begin + OVERDUE_INTERVAL,
            request: Vec::new(),
            // Growing in the middle would be a pause of our own making.
            outcome: Outcome {
                latencies_us: Vec::with_capacity(expected),
                late_us: Vec::with_capacity(expected),
                ..Outcome::default()
            },
        })
    }

    /// Notes the requests that are due, and sends those that have a connection.
    fn start_due(&mut self) -> Result {
        let now = Instant::now();
        while self.next <= now && self.next < self.end {
            if self.next >= self.measured_from {
                self.outcome.late_us.push(micros(now - self.next));
            }
            self.due.push_back(self.next);
            self.next += self.interval;
        }
        while let (Some(&number), Some(&intended)) = (self.free.front(), self.due.front()) {
            self.free.pop_front();
            self.due.pop_front();
            self.ask(number, intended)?;
        }
        Ok(())
    }

    fn ask(&mut self, number: usize, intended: Instant) -> Result {
        let path = &self.load.paths[self.outcome.sent as usize % self.load.paths.len()];
        self.outcome.sent += 1;
        self.request.clear();
        write!(self.request, "GET {path} HTTP/1.1\r\nHost: load.example\r\n\r\n")?;
        let slot = &mut self.slots[number];
        slot.asked = Some(intended);
        let sent = match &mut slot.connection {
            Some(connection) => connection.send(&self.request),
            None => LoadConnection::open(self.load.address)
                .and_then(|connection| slot.connection.insert(connection).send(&self.request)),
        };
        if let Err(error) = sent {
            self.fail(number, &error.to_string());
        }
        Ok(())
    }

    /// How long there is nothing to do; none when all is done.
    fn pause(&self) -> Option<Duration> {
        let now = Instant::now();
        let over = self.next >= self.end;
        if over && self.due.is_empty() && self.free.len() == self.slots.len() {
            return None;
        }
        let until = if over { self.next_overdue_look } else { self.next.min(self.next_overdue_look) };
        Some(until.saturating_duration_since(now))
    }

    /// Takes what has come on a connection.
    fn progress(&mut self, number: usize) {
        let slot = &mut self.slots[number];
        let Some(connection) = &mut slot.connection else { return };
        match (connection.progress(), slot.asked) {
            (Ok(received), _) if received.answers == 0 => {}
            (Ok(received), Some(intended)) if received.answers == 1 => {
                if intended >= self.measured_from {
                    self.outcome.latencies_us.push(micros(intended.elapsed()));
                }
                slot.asked = None;
                // The gateway may say so when it is to be replaced.
                if received.closes {
                    slot.connection = None;
                }
                self.free.push_back(number);
            }
            (Ok(_), _) => self.fail(number, "more answers than requests"),
            (Err(error), Some(_)) => self.fail(number, &error.to_string()),
            // A kept connection that the gateway closed while nothing was asked of it.
            (Err(_), None) => slot.connection = None,
        }
    }

    fn give_up_overdue(&mut self) {
        let now = Instant::now();
        if now < self.next_overdue_look {
            return;
        }
        self.next_overdue_look = now + OVERDUE_INTERVAL;
        for number in 0..self.slots.len() {
            let asked = self.slots[number].asked;
            if asked.is_some_and(|asked| now.saturating_duration_since(asked) > ANSWER_TIMEOUT) {
                self.fail(number, "no answer in time");
            }
        }
    }

    fn fail(&mut self, number: usize, why: &str) {
        self.outcome.fail(why.to_owned());
        let slot = &mut self.slots[number];
        slot.connection = None;
        if slot.asked.take().is_some() {
            self.free.push_back(number);
        }
    }
}

fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    /// Answers every request on every connection, after `pause` the first on each, until the connection ends.
    fn answering(pause: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                std::thread::spawn(move || {
                    let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                    let mut stall = Some(pause);
                    for _ in lines.map_while(std::io::Result::ok).filter(String::is_empty) {
                        std::thread::park_timeout(stall.take().unwrap_or_default());
                        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
                    }
                });
            }
        });
        address
    }

    fn load(address: SocketAddr, connections: u32) -> Load {
        Load { address, rate: 1000.0, connections, paths: vec!["/".to_owned()], lead_in: Duration::ZERO }
    }

    #[test]
    fn every_request_of_the_schedule_is_counted() {
        let outcome = run(&load(answering(Duration::ZERO), 4), Duration::from_millis(200)).unwrap();
        assert_eq!((outcome.latencies_us.len(), outcome.late_us.len()), (200, 200));
        assert_eq!((outcome.sent, outcome.failed), (200, 0));
    }

    #[test]
    fn the_lead_in_is_sent_and_not_measured() {
        let load = Load { lead_in: Duration::from_millis(100), ..load(answering(Duration::ZERO), 4) };
        let outcome = run(&load, Duration::from_millis(100)).unwrap();
        assert_eq!((outcome.latencies_us.len(), outcome.sent), (100, 200));
    }

    #[test]
    fn a_stall_counts_for_all_that_waited() {
        let stall = Duration::from_millis(100);
        let outcome = run(&load(answering(stall), 1), Duration::from_millis(300)).unwrap();
        let waited = outcome.latencies_us.iter().filter(|&&took| took > 50_000).count();
        assert!(waited >= 40, "{waited} of {} waited", outcome.latencies_us.len());
    }

    #[test]
    fn failures_are_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || listener.incoming().for_each(drop));
        let outcome = run(&load(address, 2), Duration::from_millis(20)).unwrap();
        assert_eq!(outcome.latencies_us.len(), 0);
        assert!(outcome.failed > 0 && !outcome.failures.is_empty());
    }
}
