//! Requests on connections of their own: started by the schedule, on an idle connection or the next that becomes free, or on
//! each as soon as it is free; then written, answered, judged, or failed. One costs one write, one read and two looks at the
//! clock.
//!
//! The backlog is a second position in the schedule, so it takes no memory however long it is.
//!
//! Lateness is the generator's fault, never the target's. A start that finds an idle connection is late by its send
//! minus its intended time. A start that finds none would have had to wait anyway: it is late only by the time between
//! the promised look (`look_by_ns`), or its intended time if that was later, and the actual look.

use super::streams::when;
use super::{READ_BYTES, Traffic};
use crate::engine::connection::{Request, Stage};
use crate::engine::response::{Advance, CompletedResponse};
use crate::engine::schedule::Starts;
use crate::outcome::ErrorKind;
use rustix::event::epoll;
use std::fmt::Display;
use std::io;

/// The trigger that starts requests.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one in a thread, and it is in use all the time")]
pub(super) enum Pacing {
    /// Nothing starts: before the run.
    Held,
    /// Each connection that becomes free starts a request, `left` times more in the measured time.
    Closed { left: u64 },
    /// The schedule. Starts that were due and found no connection are between `backlog` and `starts`; there is a
    /// backlog only while no connection is idle.
    Open { starts: Starts, backlog: Option<Starts> },
}

impl Traffic<'_> {
    #[inline]
    pub(super) fn start_due(&mut self, now: u64) -> u64 {
        let now = self.start_on_idle(now);
        match self.multiplex {
            None => now,
            Some(_) => self.send_asked(now),
        }
    }

    #[inline]
    fn start_on_idle(&mut self, mut now: u64) -> u64 {
        while let Pacing::Open { starts, backlog } = &mut self.pacing
            && starts.next_ns() <= now
        {
            let intended = starts.next_ns();
            let measured = intended >= self.measured_ns;
            if let Some(number) = self.idle.pop() {
                starts.advance();
                if measured {
                    self.stats.record_lateness(now - intended, self.late_ns);
                }
                now = self.ask(number, intended, now);
            } else {
                if backlog.is_none() {
                    *backlog = Some(starts.clone());
                }
                starts.advance();
                if measured {
                    self.stats.record_lateness(now.saturating_sub(intended.max(self.look_by_ns)), self.late_ns);
                }
            }
        }
        now
    }

    /// Uses a free connection: for the start that has waited longest, or it becomes idle.
    #[inline]
    pub(super) fn start_or_idle(&mut self, number: usize, now: u64) -> u64 {
        match &mut self.pacing {
            Pacing::Closed { left } if now < self.end_ns && *left > 0 => {
                *left -= u64::from(now >= self.measured_ns);
                return self.ask(number, now, now);
            }
            Pacing::Open { starts, backlog: waiting @ Some(_) } => {
                if let Some(backlog) = waiting {
                    let intended = backlog.next_ns();
                    backlog.advance();
                    if backlog.passed() == starts.passed() {
                        *waiting = None;
                    }
                    return self.ask(number, intended, now);
                }
            }
            _ => {}
        }
        self.idle.push(number);
        now
    }

    /// Counts starts that are due and never get a connection; they waited until now at least.
    pub(super) fn miss_backlog(&mut self, now: u64) {
        let Pacing::Open { starts, backlog } = &mut self.pacing else { return };
        let Some(mut waiting) = backlog.take() else { return };
        while waiting.passed() < starts.passed() {
            let intended = waiting.next_ns();
            if intended >= self.measured_ns {
                self.stats.record_missed_start(now.saturating_sub(intended));
            }
            waiting.advance();
        }
    }
}

// Opens and closes the connections of a thread; the [`Connector`](crate::engine::connector::Connector) decides which
// and when.
//
// Each is registered once, edge-triggered for both directions, so no further system call is needed.

impl Traffic<'_> {
    pub(super) fn open_some(&mut self, now: u64) {
        let wanted = match &self.pacing {
            Pacing::Held => true,
            Pacing::Closed { .. } => now < self.end_ns,
            Pacing::Open { backlog, .. } => now < self.end_ns || backlog.is_some(),
        };
        let wanted = wanted || self.has_lost();
        while wanted && let Some(number) = self.connector.next(now) {
            let (to, from) = self.connector.ends(number);
            let connection = &mut self.connections[number];
            let data = epoll::EventData::new_u64((u64::from(connection.generation) << 32) | number as u64);
            let flags =
                epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
            let opened = connection.open(to, from, now).and_then(|socket| epoll::add(&self.epoll, socket, data, flags));
            if let Err(error) = opened {
                self.connect_failed(number, error.into(), now);
            }
        }
    }

    pub(super) fn on_connecting(&mut self, number: usize, now: u64) -> u64 {
        let connection = &mut self.connections[number];
        match connection.continue_connect(self.load.tls.as_ref()) {
            Ok(false) => return now,
            Ok(true) => {}
            Err(error) => {
                self.connect_failed(number, error, now);
                return now;
            }
        }
        if self.multiplex.is_some() {
            return self.begin_session(number, now);
        }
        self.on_opened(number, now);
        self.start_or_idle(number, now)
    }

    /// A connection can be used.
    pub(super) fn on_opened(&mut self, number: usize, now: u64) {
        let connection = &mut self.connections[number];
        connection.stage = Stage::Idle;
        self.stats.totals.connect.saturating_record(now.saturating_sub(connection.request.sent_ns));
        self.connector.on_success();
    }

    #[cold]
    pub(super) fn connect_failed(&mut self, number: usize, error: io::Error, now: u64) {
        let (to, _) = self.connector.ends(number);
        if now >= self.measured_ns {
            self.stats.record_error(ErrorKind::Connect, &format_args!("{to}: {error}"));
        }
        self.connections[number].close();
        self.connector.on_failure(number, error, now);
    }

    pub(super) fn close(&mut self, number: usize) {
        let connection = &mut self.connections[number];
        connection.close();
        self.reader.reset(&mut connection.answer);
        self.connector.add(number);
    }
}

impl Traffic<'_> {
    /// Sends the next request on a free place.
    #[inline]
    pub(super) fn ask(&mut self, place: usize, intended_ns: u64, now: u64) -> u64 {
        let request = Request { intended_ns, sent_ns: now, ..Request::default() };
        if self.multiplex.is_some() {
            self.asked += 1;
            return self.ask_stream(place, request, now);
        }
        let composed = self.composer.compose();
        let connection = &mut self.connections[place];
        connection.request = Request { entry: composed.entry as u32, ..request };
        connection.stage = Stage::Asked;
        let sent = connection.send(composed.bytes);
        self.asked += 1;
        self.stats.totals.sent += 1;
        let after = self.clock.now_ns();
        self.on_written(place, sent, after)
    }

    /// Handles the result of writing.
    #[inline]
    pub(super) fn on_written(&mut self, number: usize, sent: io::Result<bool>, now: u64) -> u64 {
        let connection = &mut self.connections[number];
        match sent {
            Ok(true) => {
                let request = connection.request;
                if request.intended_ns >= self.measured_ns {
                    self.stats.totals.send.saturating_record(now - request.sent_ns);
                }
                now
            }
            Ok(false) => now,
            Err(error) => {
                // Perhaps it answered before it closed: for example, 413 to a long body.
                connection.send_error = Some(error);
                self.receive(number, true)
            }
        }
    }

    /// Reads all that has come; `ended`: the peer will send no more.
    pub(super) fn receive(&mut self, number: usize, ended: bool) -> u64 {
        loop {
            let connection = &mut self.connections[number];
            let kept = connection.restore(&mut self.buffer);
            let read = connection.read(&mut self.buffer[kept..]);
            let now = self.clock.now_ns();
            match read {
                Ok(0) => return self.end(number, None, now),
                Ok(length) => {
                    if let Some(now) = self.take(number, kept, length, ended, now) {
                        return now;
                    }
                    // A short read has emptied the socket: more bytes would be a new event.
                    if kept + length < READ_BYTES && !ended && self.connections[number].is_plain() {
                        return now;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match connection.send_error {
                    Some(_) => return self.end(number, None, now),
                    None => return now,
                },
                Err(error) => return self.end(number, Some(error), now),
            }
        }
    }

    /// Continues to read the answer, from its kept bytes and `length` bytes behind them; returns the time, once it
    /// is over.
    #[inline]
    fn take(&mut self, number: usize, kept: usize, length: usize, ended: bool, now: u64) -> Option<u64> {
        self.count_bytes(length as u64, now);
        let connection = &mut self.connections[number];
        if connection.stage == Stage::Idle {
            return Some(self.on_unasked_bytes(number, length, now));
        }
        if !connection.request.answering {
            connection.request.answering = true;
            let request = connection.request;
            self.count_first_byte(request, now);
        }
        let connection = &mut self.connections[number];
        let index = connection.request.entry as usize;
        let entry = self.composer.entry(index);
        let bytes = &mut self.buffer[..kept + length];
        match self.reader.advance(&mut connection.answer, index, entry, bytes) {
            Ok(Advance::Done(done)) => Some(self.on_answered(number, done, ended, now)),
            Ok(Advance::Partial(from)) => {
                connection.keep(&bytes[from..]);
                None
            }
            Err(malformed) => {
                self.fail(number, ErrorKind::Malformed, &malformed, now);
                Some(now)
            }
        }
    }

    #[inline]
    fn on_answered(&mut self, number: usize, done: CompletedResponse, ended: bool, now: u64) -> u64 {
        let request = self.connections[number].request;
        self.count_answer(request, done.mismatch, now);
        self.asked -= 1;
        let connection = &mut self.connections[number];
        if !connection.proven {
            connection.proven = true;
            self.connector.proven();
        }
        if done.keep_alive && !ended && !connection.is_sending() {
            connection.stage = Stage::Idle;
            connection.keep(&[]);
            return self.start_or_idle(number, now);
        }
        self.close(number);
        now
    }

    /// The peer will send no more, or the connection broke.
    fn end(&mut self, number: usize, error: Option<io::Error>, now: u64) -> u64 {
        let connection = &mut self.connections[number];
        if connection.stage == Stage::Idle {
            self.idle.remove(number);
            if !connection.proven {
                self.connector.slow_down(now);
            }
            self.close(number);
            return now;
        }
        let Request { entry, answering, .. } = connection.request;
        let entry = self.composer.entry(entry as usize);
        match (error, connection.send_error.take()) {
            (None, None) => {
                if let Some(done) = self.reader.end_with_connection(&mut connection.answer, entry) {
                    return self.on_answered(number, done, true, now);
                }
                let when = when(answering);
                self.fail(number, ErrorKind::Closed, &when, now);
            }
            (_, Some(error)) => self.fail(number, ErrorKind::Send, &error, now),
            (Some(error), None) => self.fail(number, ErrorKind::Receive, &error, now),
        }
        now
    }

    /// Handles bytes without a request. A server that closes an unused connection may announce that by 408 (RFC 9110
    /// section 15.5.9).
    fn on_unasked_bytes(&mut self, number: usize, length: usize, now: u64) -> u64 {
        let courtesy = self.buffer[..length].get(8..12) == Some(b" 408");
        if !courtesy && now >= self.measured_ns {
            self.stats.record_error(ErrorKind::Malformed, &format_args!("{length} bytes without a request"));
        }
        if !self.connections[number].proven {
            self.connector.slow_down(now);
        }
        self.idle.remove(number);
        self.close(number);
        now
    }

    pub(super) fn time_out(&mut self, number: usize, now: u64) {
        let request = self.connections[number].request;
        self.count_timeout(request, now);
        self.asked -= 1;
        self.close_failed(number, now);
    }

    /// The run ended before the answer and before the timeout: neither a latency nor a failure is known.
    pub(super) fn cut_off_request(&mut self, number: usize, now: u64) {
        let request = self.connections[number].request;
        self.count_cut_off(request, now);
        self.asked -= 1;
        self.close(number);
    }

    /// A request under way failed, and its connection with it.
    #[cold]
    fn fail(&mut self, number: usize, kind: ErrorKind, what: &dyn Display, now: u64) {
        let request = self.connections[number].request;
        self.count_failure(request, kind, what);
        self.asked -= 1;
        self.close_failed(number, now);
    }

    /// Closes a connection whose request failed.
    pub(super) fn close_failed(&mut self, number: usize, now: u64) {
        if !self.connections[number].proven {
            self.connector.slow_down(now);
        }
        self.close(number);
    }
}
