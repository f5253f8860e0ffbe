//! A thread's counts during a run: preallocated, so that counting neither allocates nor locks.
//!
//! Latencies are kept by interval in a [`IntervalStats`], which is handed over whole and replaced by a cleared one;
//! everything else is reported once, at the end.

use crate::outcome::{ERROR_EXAMPLES_MAX, ErrorKind, Errors, Latencies, histogram};
use hdrhistogram::Histogram;
use std::fmt;

/// Failures of a kind that are formatted to see whether their wording is new. A flood of one failure must not make the
/// generator a formatter.
const WORDED_MAX: u32 = 32;

/// The results of requests in an interval.
#[derive(Debug)]
pub(super) struct IntervalStats {
    pub(super) requests: u64,
    pub(super) errors: u64,
    /// In a closed loop only the uncorrected, which equal the others.
    pub(super) latencies: Latencies,
}

/// Counts that are reported at the end.
#[derive(Debug)]
pub(super) struct ThreadTotals {
    pub(super) sent: u64,
    pub(super) answered_in_time: u64,
    pub(super) good: u64,
    pub(super) good_in_time: u64,
    /// Good answers, each counted with the share of its time within the measured time.
    pub(super) good_shares: f64,
    pub(super) refused: Histogram<u64>,
    pub(super) bytes_received: u64,
    pub(super) errors: Errors,
    pub(super) connect: Histogram<u64>,
    pub(super) send: Histogram<u64>,
    pub(super) first_byte: Histogram<u64>,
    pub(super) lateness: Histogram<u64>,
    /// Starts later than the bound.
    pub(super) late: u64,
    pub(super) missed_starts: u64,
    /// Requests under way when the run was given up, before their timeout.
    pub(super) cut_off: u64,
    /// Requests that a target did not process and that were sent again.
    pub(super) sent_again: u64,
    /// The smallest number of streams that a target allowed, if that was less than the load's.
    pub(super) streams_allowed: Option<usize>,
    /// See [`crate::SelfWatch::pause_longest`] and `pauses`.
    pub(super) pause_longest_ns: u64,
    pub(super) pauses_ns: u64,
}

/// A thread's counters.
#[derive(Debug)]
pub(super) struct ThreadStats {
    pub(super) interval: Box<IntervalStats>,
    pub(super) totals: Box<ThreadTotals>,
    corrects: bool,
    worded: [u32; ErrorKind::ALL.len()],
}

impl IntervalStats {
    /// An empty interval whose memory was touched: the first touch of a page in the middle of a run would be a pause of
    /// our own.
    pub(super) fn new() -> Self {
        let latencies = Latencies { corrected: prefaulted_histogram(), uncorrected: prefaulted_histogram() };
        IntervalStats { requests: 0, errors: 0, latencies }
    }

    /// Empties it, keeping the memory.
    pub(super) fn clear(&mut self) {
        (self.requests, self.errors) = (0, 0);
        self.latencies.corrected.reset();
        self.latencies.uncorrected.reset();
    }
}

impl ThreadStats {
    /// Empty counts; `corrects`: whether corrected latencies differ from the others.
    pub(super) fn new(corrects: bool) -> Self {
        let totals = ThreadTotals {
            sent: 0,
            answered_in_time: 0,
            good: 0,
            good_in_time: 0,
            good_shares: 0.0,
            refused: prefaulted_histogram(),
            bytes_received: 0,
            errors: Errors::default(),
            connect: prefaulted_histogram(),
            send: prefaulted_histogram(),
            first_byte: prefaulted_histogram(),
            lateness: prefaulted_histogram(),
            late: 0,
            missed_starts: 0,
            cut_off: 0,
            sent_again: 0,
            streams_allowed: None,
            pause_longest_ns: 0,
            pauses_ns: 0,
        };
        ThreadStats {
            interval: Box::new(IntervalStats::new()),
            totals: Box::new(totals),
            corrects,
            worded: Default::default(),
        }
    }

    /// Counts a request's latencies.
    #[inline]
    pub(super) fn record_latency(&mut self, corrected_ns: u64, uncorrected_ns: u64) {
        let latencies = &mut self.interval.latencies;
        latencies.uncorrected.saturating_record(uncorrected_ns);
        if self.corrects {
            latencies.corrected.saturating_record(corrected_ns);
        }
    }

    /// Counts how late a start was because of the generator.
    #[inline]
    pub(super) fn record_lateness(&mut self, late_ns: u64, bound_ns: u64) {
        self.totals.lateness.saturating_record(late_ns);
        self.totals.late += u64::from(late_ns > bound_ns);
    }

    /// Counts a start that never happened, and how long it had been due.
    pub(super) fn record_missed_start(&mut self, due_for_ns: u64) {
        self.totals.missed_starts += 1;
        self.interval.latencies.corrected.saturating_record(due_for_ns);
    }

    /// Counts a request that was still under way at the end, and how long it had been due.
    pub(super) fn record_cut_off(&mut self, due_for_ns: u64) {
        self.totals.cut_off += 1;
        if self.corrects {
            self.interval.latencies.corrected.saturating_record(due_for_ns);
        }
    }

    /// Records that the thread woke this much later than planned.
    pub(super) fn record_late_wake(&mut self, late_ns: u64, bound_ns: u64) {
        if late_ns > bound_ns {
            self.totals.pauses_ns += late_ns;
            self.totals.pause_longest_ns = self.totals.pause_longest_ns.max(late_ns);
        }
    }

    /// Counts a failure.
    pub(super) fn record_error(&mut self, kind: ErrorKind, what: &dyn fmt::Display) {
        self.interval.errors += 1;
        let errors = &mut self.totals.errors;
        errors.counts[kind as usize] += 1;
        let worded = &mut self.worded[kind as usize];
        if errors.examples.len() < ERROR_EXAMPLES_MAX && *worded < WORDED_MAX {
            *worded += 1;
            let words = format!("{}: {what}", kind.name());
            if !errors.examples.contains(&words) {
                errors.examples.push(words);
            }
        }
    }
}

/// An empty histogram whose memory was touched.
fn prefaulted_histogram() -> Histogram<u64> {
    let mut histogram = histogram();
    // Writes every count.
    histogram.reset();
    histogram
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_failures_are_counted_and_a_few_described() {
        let mut stats = ThreadStats::new(true);
        for number in 0..100 {
            stats.record_error(ErrorKind::Status, &format_args!("{}", number % 3));
            stats.record_error(ErrorKind::Closed, &number);
        }
        let errors = &stats.totals.errors;
        assert_eq!(errors.total(), 200);
        assert_eq!(errors.counts[ErrorKind::Status as usize], 100);
        assert_eq!(errors.examples, ["status: 0", "closed: 0", "status: 1", "closed: 1", "status: 2"]);
    }

    #[test]
    fn kinds_are_counted_in_their_order() {
        for (place, kind) in ErrorKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, place);
        }
    }
}
