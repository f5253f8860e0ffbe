//! The slowest requests of each minute, with where their time went: what a worker tells of them, and why they were slow as far as it
//! can be told.
//!
//! A worker keeps the times of the few that it has told of in this minute, and tells of a request only if it is slower than one of
//! them. So what it tells is bounded, and almost all requests cost a comparison. Only where `gateway.debug.slow` is set is anything of
//! this done.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Requests that a worker tells of for each minute, before slower ones come.
const TOLD_A_MINUTE: usize = 8;

/// Shorter turns of the event loop are no reason.
const TURN_MIN: Duration = Duration::from_millis(2);

/// Long turns that are kept.
const TURNS_MAX: usize = 64;

/// Readings of how long the thread has waited for a CPU, one a second.
const WAITS_MAX: usize = 64;

/// Bytes of a path that are told.
pub(crate) const PATH_BYTES_MAX: usize = 256;

/// Requests on their way to who keeps them.
pub const SLOW_QUEUE_MAX: usize = 256;

/// Where the time of a request went.
///
/// ```text
///  first byte read        node chosen     node's last byte read   last byte written
///        ├── before (queued) ──┼───── node ──────────┼────── after ───────┤   took: all of it
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// All of it.
    pub took: Duration,
    /// Until a node was chosen: its head, routing, plugins, and waiting for a place at the upstream. All of it where no node was asked.
    pub before: Duration,
    /// Of that, waiting for a place at the upstream.
    pub queued: Duration,
    /// From the first try's choice of a node to the last try's end.
    pub node: Duration,
    /// From then until the client had all.
    pub after: Duration,
    /// Of the worker, in the same time: its longest turn of the event loop.
    pub longest_turn: Duration,
    /// Of the worker, in the same time and up to a second before: how long it waited for a CPU.
    pub cpu_wait: Duration,
}

/// What took at least half of the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The worker waited for a CPU: the machine had too few.
    Cpu,
    /// One turn of the worker's event loop, in which all its requests waited.
    Turn,
    /// Waiting for a place at the upstream.
    Queue,
    /// The node, or a client that sent its body slowly to it.
    Node,
    /// The client, which took the response slowly.
    Client,
    /// Plugins, or a client whose body had to be read first.
    Before,
    /// Nothing alone.
    Several,
}

impl Times {
    /// Why it took so long.
    pub fn cause(&self) -> Cause {
        let is_most = |part: Duration| part * 2 >= self.took;
        if is_most(self.longest_turn) {
            // A turn is also long because its thread had no CPU.
            let had_none = self.cpu_wait * 2 >= self.longest_turn;
            return if had_none { Cause::Cpu } else { Cause::Turn };
        }
        let causes = [
            (self.cpu_wait, Cause::Cpu),
            (self.queued, Cause::Queue),
            (self.node, Cause::Node),
            (self.after, Cause::Client),
            (self.before, Cause::Before),
        ];
        causes.into_iter().find(|(part, _)| is_most(*part)).map_or(Cause::Several, |(_, cause)| cause)
    }
}

/// A slow request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlowRequest {
    /// The worker's number.
    pub worker: usize,
    /// Milliseconds since 1970.
    pub ended_unix_ms: u64,
    /// Where its time went.
    pub times: Times,
    /// As the client got it.
    pub status: u16,
    /// The route's id; `None`: there was none.
    pub route: Option<String>,
    /// Its method.
    pub method: String,
    /// Its path without the query, the beginning of it if it is long.
    pub path: String,
    /// Asked last.
    pub node: Option<SocketAddr>,
}

/// What a worker knows of its slow requests.
#[derive(Debug, Default)]
pub(crate) struct Slowest {
    pub(crate) worker: usize,
    minute: Cell<u64>,
    /// Of this minute's that were told: how long they took.
    told: RefCell<Vec<Duration>>,
    /// The long turns: when each ended, and how long it took.
    turns: RefCell<VecDeque<(Instant, Duration)>>,
    /// When the thread's waiting for a CPU was read, and how much it had been since its start.
    waits: RefCell<VecDeque<(Instant, Duration)>>,
}

impl Slowest {
    /// Of the worker with this number.
    pub(crate) fn new(worker: usize) -> Slowest {
        Slowest { worker, ..Slowest::default() }
    }

    /// A turn has ended.
    pub(crate) fn note_turn(&self, ended: Instant, took: Duration) {
        if took >= TURN_MIN {
            push(&mut self.turns.borrow_mut(), (ended, took), TURNS_MAX);
        }
    }

    /// Reads how long the thread has waited for a CPU; to be called about once a second.
    pub(crate) fn note_wait(&self) {
        push(&mut self.waits.borrow_mut(), (Instant::now(), waited()), WAITS_MAX);
    }

    /// Whether a request that took so long is told of, which then counts as done.
    pub(crate) fn is_slow(&self, took: Duration, now_unix_ms: u64) -> bool {
        let (minute, mut told) = (now_unix_ms / 60_000, self.told.borrow_mut());
        if self.minute.replace(minute) != minute {
            told.clear();
        }
        if told.len() < TOLD_A_MINUTE {
            told.push(took);
            return true;
        }
        match told.iter_mut().min().filter(|fastest| took > **fastest) {
            Some(fastest) => {
                *fastest = took;
                true
            }
            None => false,
        }
    }

    /// The longest turn that went on since then; `present` is how long the present one has taken.
    pub(crate) fn longest_turn(&self, since: Instant, present: Duration) -> Duration {
        let turns = self.turns.borrow();
        let longest = turns.iter().filter(|(ended, _)| *ended >= since).map(|(_, took)| *took).max();
        longest.unwrap_or_default().max(present)
    }

    /// How long the thread has waited for a CPU since then, or since up to a second before; zero where that is not known.
    pub(crate) fn cpu_wait(&self, since: Instant) -> Duration {
        let waits = self.waits.borrow();
        let before = waits.iter().rev().find(|(read, _)| *read <= since).or(waits.front());
        before.map_or(Duration::ZERO, |(_, before)| waited().saturating_sub(*before))
    }
}

fn push<T>(kept: &mut VecDeque<T>, one: T, max: usize) {
    if kept.len() >= max {
        kept.pop_front();
    }
    kept.push_back(one);
}

/// How long the calling thread has waited for a CPU since its start; zero where the kernel does not say.
fn waited() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited_ns = text.split_ascii_whitespace().nth(1).and_then(|word| word.parse().ok());
    Duration::from_nanos(waited_ns.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_minute_tells_of_its_slowest_only() {
        let slowest = Slowest::new(0);
        let told: Vec<u32> = (1..=20).filter(|ms| slowest.is_slow(MS * *ms, 60_000)).collect();
        assert_eq!(told.len(), 20, "each was slower than all before");
        assert!(!slowest.is_slow(MS * 12, 60_000 + 59_999), "there are eight that are slower");
        assert!(slowest.is_slow(MS * 14, 60_000 + 59_999));
        assert!(slowest.is_slow(MS, 120_000), "a new minute");
        let falling = (1..=20).rev().filter(|ms| slowest.is_slow(MS * *ms, 180_000)).count();
        assert_eq!(falling, TOLD_A_MINUTE);
    }

    #[test]
    fn the_cause_is_what_took_half_of_the_time() {
        let took = MS * 100;
        let times = Times { took, ..Times::default() };
        assert_eq!(times.cause(), Cause::Several);
        assert_eq!(Times { node: MS * 50, before: MS * 50, ..times }.cause(), Cause::Node);
        assert_eq!(Times { queued: MS * 60, before: MS * 70, node: MS * 30, ..times }.cause(), Cause::Queue);
        assert_eq!(Times { after: MS * 90, ..times }.cause(), Cause::Client);
        assert_eq!(Times { before: MS * 90, ..times }.cause(), Cause::Before);
        assert_eq!(Times { node: MS * 90, cpu_wait: MS * 70, ..times }.cause(), Cause::Cpu);
        let long_turn = Times { node: MS * 90, longest_turn: MS * 80, ..times };
        assert_eq!(long_turn.cause(), Cause::Turn);
        assert_eq!(Times { cpu_wait: MS * 60, ..long_turn }.cause(), Cause::Cpu);
    }

    #[test]
    fn turns_count_if_they_ended_in_the_time() {
        let (slowest, now) = (Slowest::new(0), Instant::now());
        slowest.note_turn(now, MS * 50);
        slowest.note_turn(now + MS * 100, MS * 20);
        slowest.note_turn(now + MS * 200, MS);
        assert_eq!(slowest.longest_turn(now, MS), MS * 50);
        assert_eq!(slowest.longest_turn(now + MS, MS), MS * 20);
        assert_eq!(slowest.longest_turn(now + MS * 150, MS * 3), MS * 3);
        (0..1000).for_each(|_| slowest.note_turn(now, MS * 50));
        assert_eq!(slowest.turns.borrow().len(), TURNS_MAX);
    }
}
