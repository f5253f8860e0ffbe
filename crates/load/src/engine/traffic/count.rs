//! Counts the result of a request if it was meant to start in the measured time, for every protocol.

use super::Traffic;
use crate::engine::connection::Request;
use crate::engine::response::AnswerMismatch;
use crate::outcome::ErrorKind;
use std::fmt::Display;

impl Traffic<'_> {
    /// Whether it counts.
    #[inline]
    fn is_measured(&self, request: Request) -> bool {
        request.intended_ns >= self.measured_ns
    }

    #[inline]
    pub(super) fn count_first_byte(&mut self, request: Request, now: u64) {
        if self.is_measured(request) {
            self.record.totals.first_byte.saturating_record(now - request.sent_ns);
        }
    }

    /// Counts bytes that have just come.
    #[inline]
    pub(super) fn count_bytes(&mut self, bytes: u64, now: u64) {
        if now >= self.measured_ns && now < self.end_ns {
            self.record.totals.bytes_received += bytes;
        }
    }

    #[inline]
    pub(super) fn count_answer(&mut self, request: Request, refused: Option<AnswerMismatch>, now: u64) {
        self.answered_ns = now;
        if refused.is_none() {
            // Also counts a request that began before the measured time.
            self.record.totals.good_shares += share_within((request.sent_ns, now), (self.measured_ns, self.end_ns));
        }
        if !self.is_measured(request) {
            return;
        }
        let in_time = u64::from(now <= self.end_ns);
        self.record.stretch.requests += 1;
        self.record.totals.answered_in_time += in_time;
        let Some(refused) = refused else {
            self.record.latency(now - request.intended_ns, now - request.sent_ns);
            self.record.totals.good += 1;
            self.record.totals.good_in_time += in_time;
            return;
        };
        self.record.totals.refused.saturating_record(now - request.sent_ns);
        let name = &self.composer.entry(request.entry as usize).name;
        match refused {
            AnswerMismatch::Status(status) => self.record.error(ErrorKind::Status, &format_args!("{status} to {name}")),
            AnswerMismatch::Body => self.record.error(ErrorKind::Body, &format_args!("unexpected body, to {name}")),
        }
    }

    #[cold]
    pub(super) fn count_failure(&mut self, request: Request, kind: ErrorKind, what: &dyn Display) {
        if self.is_measured(request) {
            let name = &self.composer.entry(request.entry as usize).name;
            self.record.error(kind, &format_args!("{what}, to {name}"));
        }
    }

    pub(super) fn count_timeout(&mut self, request: Request, now: u64) {
        if self.is_measured(request) {
            self.record.latency(now - request.intended_ns, now - request.sent_ns);
        }
        let waited_ms = self.load.timeout.as_millis();
        self.count_failure(request, ErrorKind::Timeout, &format_args!("no complete answer in {waited_ms} ms"));
    }

    pub(super) fn count_cut_off(&mut self, request: Request, now: u64) {
        if self.is_measured(request) {
            self.record.cut_off(now - request.intended_ns);
        }
    }
}

/// The share of one period that lies within another, 0 to 1.
#[inline]
fn share_within((from_ns, to_ns): (u64, u64), (begin_ns, end_ns): (u64, u64)) -> f64 {
    if from_ns >= begin_ns && to_ns <= end_ns {
        return 1.0;
    }
    let within_ns = to_ns.min(end_ns).saturating_sub(from_ns.max(begin_ns));
    within_ns as f64 / to_ns.saturating_sub(from_ns).max(1) as f64
}

/// The time of a connection's end, as text.
pub(super) fn when(answering: bool) -> &'static str {
    if answering { "in the middle of the answer" } else { "before an answer" }
}

#[cfg(test)]
mod tests {
    use super::share_within;

    #[test]
    fn a_request_across_a_border_counts_with_its_share() {
        let check = |request, share: f64| assert_eq!(share_within(request, (100, 200)), share, "{request:?}");
        check((100, 200), 1.0);
        check((150, 150), 1.0);
        check((0, 100), 0.0);
        check((0, 50), 0.0);
        check((200, 300), 0.0);
        check((250, 300), 0.0);
        check((250, 250), 0.0);
        check((50, 150), 0.5);
        check((180, 260), 0.25);
        // An answer that takes longer than the measured time.
        check((0, 400), 0.25);
        check((0, 200), 0.5);
        // The measured time has not begun.
        assert_eq!(share_within((5, 9), (u64::MAX, u64::MAX)), 0.0);
    }
}
