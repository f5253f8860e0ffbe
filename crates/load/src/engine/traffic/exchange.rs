//! One request on its connection: written, answered, judged, or failed.
//!
//! It costs one write, one read and two looks at the clock.

use super::{READ_BYTES, Traffic};
use crate::engine::connection::Stage;
use crate::engine::response::{Advance, Done, Refused};
use crate::outcome::ErrorKind;
use rustix::io::Errno;
use std::fmt::Display;

impl Traffic<'_> {
    #[inline]
    pub(super) fn ask(&mut self, number: usize, intended: u64, now: u64) -> u64 {
        let composed = self.composer.compose();
        let connection = &mut self.connections[number];
        connection.entry = composed.entry as u32;
        (connection.intended_ns, connection.sent_ns) = (intended, now);
        (connection.stage, connection.answering) = (Stage::Asked, false);
        let sent = connection.send(composed.bytes);
        self.asked += 1;
        self.record.totals.sent += 1;
        let after = self.clock.now_ns();
        self.sent(number, sent, after)
    }

    /// Notes what came of writing.
    #[inline]
    pub(super) fn sent(&mut self, number: usize, sent: Result<bool, Errno>, now: u64) -> u64 {
        let connection = &mut self.connections[number];
        match sent {
            Ok(true) => {
                if connection.intended_ns >= self.measured_ns {
                    self.record.totals.send.saturating_record(now - connection.sent_ns);
                }
                now
            }
            Ok(false) => now,
            Err(error) => {
                // Perhaps it answered before it closed: 413 to a long body, say.
                connection.send_error = Some(error);
                self.receive(number, true)
            }
        }
    }

    /// Reads all that has come; `ended`: the peer will send no more than that.
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
                    // A short read has emptied the socket: more would be a new event.
                    if kept + length < READ_BYTES && !ended {
                        return now;
                    }
                }
                Err(Errno::AGAIN) => match connection.send_error {
                    Some(_) => return self.end(number, None, now),
                    None => return now,
                },
                Err(error) => return self.end(number, Some(error), now),
            }
        }
    }

    /// Reads the answer on, from what was kept of it and `length` bytes behind that; the time, once it is over.
    #[inline]
    fn take(&mut self, number: usize, kept: usize, length: usize, ended: bool, now: u64) -> Option<u64> {
        if now >= self.measured_ns && now < self.end_ns {
            self.record.totals.bytes_received += length as u64;
        }
        let connection = &mut self.connections[number];
        if connection.stage == Stage::Idle {
            return Some(self.unasked(number, length, now));
        }
        if !connection.answering {
            connection.answering = true;
            if connection.intended_ns >= self.measured_ns {
                self.record.totals.first_byte.saturating_record(now - connection.sent_ns);
            }
        }
        let index = connection.entry as usize;
        let entry = self.composer.entry(index);
        let bytes = &mut self.buffer[..kept + length];
        match self.reader.advance(&mut connection.answer, index, entry, bytes) {
            Ok(Advance::Done(done)) => Some(self.answered(number, done, ended, now)),
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
    fn answered(&mut self, number: usize, done: Done, ended: bool, now: u64) -> u64 {
        let connection = &mut self.connections[number];
        let entry = connection.entry as usize;
        if connection.intended_ns >= self.measured_ns {
            self.record.latency(now - connection.intended_ns, now - connection.sent_ns);
            self.record.stretch.requests += 1;
            self.record.totals.answered_in_time += u64::from(now <= self.end_ns);
            if let Some(refused) = done.refused {
                let name = &self.composer.entry(entry).name;
                match refused {
                    Refused::Status(status) => {
                        self.record.error(ErrorKind::Status, &format_args!("{status} to {name}"))
                    }
                    Refused::Body => self.record.error(ErrorKind::Body, &format_args!("not the expected, to {name}")),
                }
            }
        }
        self.asked -= 1;
        if !connection.proven {
            connection.proven = true;
            self.connector.proven();
        }
        if done.keep_alive && !ended && !connection.is_sending() {
            connection.stage = Stage::Idle;
            connection.keep(&[]);
            return self.available(number, now);
        }
        self.close(number);
        now
    }

    /// The peer sent no more, or the connection broke.
    fn end(&mut self, number: usize, error: Option<Errno>, now: u64) -> u64 {
        let connection = &mut self.connections[number];
        if connection.stage == Stage::Idle {
            self.idle.remove(number);
            if !connection.proven {
                self.connector.slow_down(now);
            }
            self.close(number);
            return now;
        }
        let entry = self.composer.entry(connection.entry as usize);
        match (error, connection.send_error) {
            (None, None) => {
                if let Some(done) = self.reader.ended(&mut connection.answer, entry) {
                    return self.answered(number, done, true, now);
                }
                let when = if connection.answering { "in the middle of the answer" } else { "before an answer" };
                self.fail(number, ErrorKind::Closed, &when, now);
            }
            (_, Some(error)) => self.fail(number, ErrorKind::Send, &error, now),
            (Some(error), None) => self.fail(number, ErrorKind::Receive, &error, now),
        }
        now
    }

    /// Bytes that nothing asked for. A server that closes an unused connection may say so by 408 (RFC 9110 section
    /// 15.5.9).
    fn unasked(&mut self, number: usize, length: usize, now: u64) -> u64 {
        let courtesy = self.buffer[..length].get(8..12) == Some(b" 408");
        if !courtesy && now >= self.measured_ns {
            self.record.error(ErrorKind::Malformed, &format_args!("{length} bytes where nothing was asked"));
        }
        if !self.connections[number].proven {
            self.connector.slow_down(now);
        }
        self.idle.remove(number);
        self.close(number);
        now
    }

    pub(super) fn time_out(&mut self, number: usize, now: u64) {
        let connection = &self.connections[number];
        if connection.intended_ns >= self.measured_ns {
            self.record.latency(now - connection.intended_ns, now - connection.sent_ns);
        }
        let waited_ms = self.load.timeout.as_millis();
        self.fail(number, ErrorKind::Timeout, &format_args!("no complete answer in {waited_ms} ms"), now);
    }

    /// The run ended before its answer and before its time was over: neither a latency nor a failure is known of it.
    pub(super) fn cut_off(&mut self, number: usize, now: u64) {
        let intended_ns = self.connections[number].intended_ns;
        if intended_ns >= self.measured_ns {
            self.record.cut_off(now - intended_ns);
        }
        self.asked -= 1;
        self.close(number);
    }

    /// A request under way failed, and its connection with it.
    #[cold]
    fn fail(&mut self, number: usize, kind: ErrorKind, what: &dyn Display, now: u64) {
        let connection = &self.connections[number];
        let name = &self.composer.entry(connection.entry as usize).name;
        if connection.intended_ns >= self.measured_ns {
            self.record.error(kind, &format_args!("{what}, to {name}"));
        }
        if !connection.proven {
            self.connector.slow_down(now);
        }
        self.asked -= 1;
        self.close(number);
    }
}
