//! What became of a request, counted where it was meant to start in the measured time. The same for every protocol.

use super::Traffic;
use crate::engine::connection::Request;
use crate::engine::response::Refused;
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

    /// Bytes that came just now.
    #[inline]
    pub(super) fn count_bytes(&mut self, bytes: u64, now: u64) {
        if now >= self.measured_ns && now < self.end_ns {
            self.record.totals.bytes_received += bytes;
        }
    }

    #[inline]
    pub(super) fn count_answer(&mut self, request: Request, refused: Option<Refused>, now: u64) {
        self.answered_ns = now;
        if !self.is_measured(request) {
            return;
        }
        self.record.latency(now - request.intended_ns, now - request.sent_ns);
        self.record.stretch.requests += 1;
        self.record.totals.answered_in_time += u64::from(now <= self.end_ns);
        if let Some(refused) = refused {
            let name = &self.composer.entry(request.entry as usize).name;
            match refused {
                Refused::Status(status) => self.record.error(ErrorKind::Status, &format_args!("{status} to {name}")),
                Refused::Body => self.record.error(ErrorKind::Body, &format_args!("unexpected body, to {name}")),
            }
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

/// When a connection ended, in words.
pub(super) fn when(answering: bool) -> &'static str {
    if answering { "in the middle of the answer" } else { "before an answer" }
}
