//! Opens and closes the connections of a thread; the [`Connector`](crate::engine::connector::Connector) decides which
//! and when.
//!
//! Each is registered once, edge-triggered for both directions, so no further system call is needed.

use super::Traffic;
use super::pacing::Pacing;
use crate::engine::connection::Stage;
use crate::outcome::ErrorKind;
use rustix::event::epoll;
use std::io;

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
