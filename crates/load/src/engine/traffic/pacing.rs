//! Starts requests: by the schedule, on an idle connection or the next that becomes free; or on each as soon as it is
//! free.
//!
//! The backlog is a second position in the schedule, so it takes no memory however long it is.
//!
//! Lateness is the generator's fault, never the target's. A start that finds an idle connection is late by its send
//! minus its intended time. A start that finds none would have had to wait anyway: it is late only by the time between
//! the promised look (`look_by_ns`), or its intended time if that was later, and the actual look.

use super::Traffic;
use crate::engine::connection::Stage;
use crate::engine::schedule::Starts;
use crate::outcome::ErrorKind;
use rustix::event::epoll;
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
                    self.record.lateness(now - intended, self.late_ns);
                }
                now = self.ask(number, intended, now);
            } else {
                if backlog.is_none() {
                    *backlog = Some(starts.clone());
                }
                starts.advance();
                if measured {
                    self.record.lateness(now.saturating_sub(intended.max(self.look_by_ns)), self.late_ns);
                }
            }
        }
        now
    }

    /// Uses a free connection: for the start that has waited longest, or it becomes idle.
    #[inline]
    pub(super) fn available(&mut self, number: usize, now: u64) -> u64 {
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
                self.record.missed(now.saturating_sub(intended));
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
        match connection.connected(self.load.tls.as_ref()) {
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
        self.opened(number, now);
        self.available(number, now)
    }

    /// A connection can be used.
    pub(super) fn opened(&mut self, number: usize, now: u64) {
        let connection = &mut self.connections[number];
        connection.stage = Stage::Idle;
        self.record.totals.connect.saturating_record(now.saturating_sub(connection.request.sent_ns));
        self.connector.succeeded();
    }

    #[cold]
    pub(super) fn connect_failed(&mut self, number: usize, error: io::Error, now: u64) {
        let (to, _) = self.connector.ends(number);
        if now >= self.measured_ns {
            self.record.error(ErrorKind::Connect, &format_args!("{to}: {error}"));
        }
        self.connections[number].close();
        self.connector.failed(number, error, now);
    }

    pub(super) fn close(&mut self, number: usize) {
        let connection = &mut self.connections[number];
        connection.close();
        self.reader.reset(&mut connection.answer);
        self.connector.add(number);
    }
}
