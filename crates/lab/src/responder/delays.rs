//! Answers that are not due yet, in order of time, and the histograms of their delays.

use super::answers::Answer;
use super::connections::Token;
use super::latency::Latency;
use hdrhistogram::Histogram;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};
use stillgate_stats::Random;

/// An answer with the time it is due.
#[derive(Debug, Clone, Copy)]
pub(super) struct DueAnswer {
    at: Instant,
    /// Orders answers due at the same moment: on one connection, the earlier request goes first.
    sequence: u64,
    arrived: Instant,
    /// The connection.
    pub(super) token: Token,
    /// The answer.
    pub(super) answer: Answer,
}

/// The answers that are not due yet.
#[derive(Debug)]
pub(super) struct Delays {
    latency: Latency,
    random: Random,
    waiting: BinaryHeap<Reverse<DueAnswer>>,
    sequence: u64,
    /// Delays as drawn, in nanoseconds.
    pub(super) drawn: Histogram<u64>,
    /// From the read of a request to the moment its answer was written, in nanoseconds.
    pub(super) kept: Histogram<u64>,
}

impl Delays {
    pub(super) fn new(latency: Latency, seed: u64) -> Delays {
        Delays {
            latency,
            random: Random::new(seed),
            waiting: BinaryHeap::new(),
            sequence: 0,
            drawn: stillgate_load::outcome::histogram(),
            kept: stillgate_load::outcome::histogram(),
        }
    }

    /// Draws the delay of a request that has just arrived; its answer is due no sooner than `not_before`, when the
    /// previous one on the same connection is due. Returns when it is due.
    pub(super) fn put(&mut self, arrived: Instant, not_before: Instant, token: Token, answer: Answer) -> Instant {
        let delay = self.latency.draw(&mut self.random);
        self.drawn.saturating_record(nanoseconds(delay));
        let at = (arrived + delay).max(not_before);
        self.sequence += 1;
        self.waiting.push(Reverse(DueAnswer { at, sequence: self.sequence, arrived, token, answer }));
        at
    }

    /// The next answer that is due by now.
    pub(super) fn take(&mut self, now: Instant) -> Option<DueAnswer> {
        let due = self.waiting.peek().filter(|due| due.0.at <= now)?.0;
        self.waiting.pop();
        self.kept.saturating_record(nanoseconds(now - due.arrived));
        Some(due)
    }

    /// The time until the next one is due.
    pub(super) fn idle(&self, now: Instant) -> Option<Duration> {
        self.waiting.peek().map(|due| due.0.at.saturating_duration_since(now))
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Ord for DueAnswer {
    fn cmp(&self, other: &DueAnswer) -> Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

impl PartialOrd for DueAnswer {
    fn partial_cmp(&self, other: &DueAnswer) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for DueAnswer {
    fn eq(&self, other: &DueAnswer) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for DueAnswer {}
