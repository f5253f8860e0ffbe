//! The slowest requests of each minute, with where their time went: what a worker reports about them, and why they were slow as far
//! as that can be determined.
//!
//! A worker keeps the times of the few requests that it has reported in this minute, and reports a request only if it is slower
//! than one of them. So its reports are bounded, and almost all requests cost a comparison. All of this is done only if
//! `gateway.debug.slow` is set.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs;
use std::time::{Duration, Instant};

/// Requests that a worker reports in each minute before only slower ones are reported.
const TOLD_A_MINUTE: usize = 8;

/// Shorter turns of the event loop are not considered a cause.
const TURN_MIN: Duration = Duration::from_millis(2);

/// Long turns that are kept.
const TURNS_MAX: usize = 64;

/// Readings of how long the thread has waited for a CPU, one a second.
const WAITS_MAX: usize = 64;

/// What a worker knows of its slow requests.
#[derive(Debug, Default)]
pub(crate) struct Slowest {
    pub(crate) worker: usize,
    minute: Cell<u64>,
    /// How long the requests reported in this minute took.
    told: RefCell<Vec<Duration>>,
    /// The long turns: when each ended, and how long it took.
    turns: RefCell<VecDeque<(Instant, Duration)>>,
    /// When the thread's CPU wait was read, and its total since the thread's start.
    waits: RefCell<VecDeque<(Instant, Duration)>>,
}

impl Slowest {
    /// Makes the tracker of the worker with this number.
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
        push(&mut self.waits.borrow_mut(), (Instant::now(), cpu_wait_time()), WAITS_MAX);
    }

    /// Whether a request that took so long is to be reported, which then counts as done.
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

    /// The longest turn that has run since then; `present` is how long the current one has taken.
    pub(crate) fn longest_turn(&self, since: Instant, present: Duration) -> Duration {
        let turns = self.turns.borrow();
        let longest = turns.iter().filter(|(ended, _)| *ended >= since).map(|(_, took)| *took).max();
        longest.unwrap_or_default().max(present)
    }

    /// How long the thread has waited for a CPU since then, or since up to a second before; zero if that is unknown.
    pub(crate) fn cpu_wait(&self, since: Instant) -> Duration {
        let waits = self.waits.borrow();
        let before = waits.iter().rev().find(|(read, _)| *read <= since).or(waits.front());
        before.map_or(Duration::ZERO, |(_, before)| cpu_wait_time().saturating_sub(*before))
    }
}

fn push<T>(kept: &mut VecDeque<T>, one: T, max: usize) {
    if kept.len() >= max {
        kept.pop_front();
    }
    kept.push_back(one);
}

/// How long the calling thread has waited for a CPU since its start; zero if the kernel does not report it.
fn cpu_wait_time() -> Duration {
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
