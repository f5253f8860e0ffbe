//! The requests of a thread on its connections: started when due, answered, judged, given up.
//!
//! One turn waits for events once and handles them all. A request costs one write, one read and two looks at the clock;
//! the connections are registered once, edge-triggered for both directions, so no further call is needed for any. What
//! waits for a connection is a second position in the schedule, so a backlog of any length takes no memory.
//!
//! Lateness is what the generator did wrong, never what the target did. Before it waits for events the generator says
//! by when it will look again (`look_by_ns`). A start that finds an idle connection is late by its send minus its intended
//! time. One that finds none would have had to wait anyway: it is late only by what passed between the promised look,
//! or its intended time if that was later, and the look that came about.

use super::clock::{Clock, NEVER_NS, nanos};
use super::connection::{Connection, Stage};
use super::connector::Connector;
use super::idle::IdleList;
use super::record::Record;
use super::response::{Advance, Done, Reader, Refused};
use super::schedule::Starts;
use crate::mix::Composer;
use crate::outcome::ErrorKind;
use crate::plan::Load;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::fmt::Display;
use stillgate_wire::HEAD_BYTES_MAX;

/// Read at once, over all connections; a head that came in pieces has its beginning here too.
const READ_BYTES: usize = 64 * 1024;
const _: () = assert!(READ_BYTES > HEAD_BYTES_MAX);

/// Events handled in a turn; more make a turn long, and what is due meanwhile late.
const EVENTS_MAX: usize = 128;

/// Connections and requests of one thread.
pub(super) struct Traffic<'a> {
    load: &'a Load,
    clock: Clock,
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    buffer: Vec<u8>,
    connections: Vec<Connection>,
    pub(super) connector: Connector,
    idle: IdleList,
    composer: Composer,
    reader: Reader,
    pub(super) record: Record,
    pacing: Pacing,
    /// Requests begun and not ended.
    asked: usize,
    measured_ns: u64,
    end_ns: u64,
    timeout_ns: u64,
    late_ns: u64,
    look_by_ns: u64,
    /// The connection that is looked at next for being overdue.
    overdue_at: usize,
}

/// What makes requests start.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one in a thread, and it is in use all the time")]
enum Pacing {
    /// Nothing does: before the run.
    Held,
    /// A connection's becoming free.
    Closed,
    /// The schedule. What was due and found no connection lies between `backlog` and `starts`; there is a backlog only
    /// while no connection is idle.
    Open { starts: Starts, backlog: Option<Starts> },
}

/// When a run is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub(super) begin_ns: u64,
    pub(super) end_ns: u64,
}

impl<'a> Traffic<'a> {
    /// All connections closed, nothing asked.
    pub(super) fn new(
        load: &'a Load,
        clock: Clock,
        composer: Composer,
        connector: Connector,
        record: Record,
    ) -> Result<Self, Errno> {
        let connections = connector.not_open();
        Ok(Traffic {
            load,
            clock,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(EVENTS_MAX),
            buffer: vec![0; READ_BYTES],
            connections: std::iter::repeat_with(Connection::closed).take(connections).collect(),
            connector,
            idle: IdleList::new(connections),
            composer,
            reader: Reader::new(load.mix.entries().len()),
            record,
            pacing: Pacing::Held,
            asked: 0,
            measured_ns: NEVER_NS,
            end_ns: NEVER_NS,
            timeout_ns: nanos(load.timeout),
            late_ns: nanos(load.bounds.late),
            look_by_ns: 0,
            overdue_at: 0,
        })
    }

    /// Begins to make requests: by a schedule, or without one on each connection as soon as it is free.
    pub(super) fn begin(&mut self, starts: Option<Starts>, window: Window) {
        let now = self.clock.now_ns();
        (self.measured_ns, self.end_ns) = (window.begin_ns, window.end_ns);
        self.connector.hurry();
        if let Some(starts) = starts {
            self.pacing = Pacing::Open { starts, backlog: None };
            return;
        }
        self.pacing = Pacing::Closed;
        for _ in 0..self.idle.len() {
            if let Some(number) = self.idle.pop() {
                self.available(number, now);
            }
        }
    }

    /// Starts nothing more; what was due and has no connection is missed.
    pub(super) fn stop(&mut self, now: u64) {
        self.end_ns = self.end_ns.min(now);
        if let Pacing::Open { starts, .. } = &mut self.pacing {
            starts.cut(now);
        }
        self.miss_backlog(now);
    }

    /// Whether all is answered that ever will be.
    pub(super) fn is_over(&self, now: u64) -> bool {
        let nothing_due = match &self.pacing {
            Pacing::Open { starts, backlog } => {
                starts.next_ns() == NEVER_NS && (backlog.is_none() || self.connector.is_shut_out())
            }
            Pacing::Held | Pacing::Closed => true,
        };
        now >= self.end_ns && self.asked == 0 && nothing_due
    }

    /// What was counted.
    pub(super) fn into_record(self) -> Record {
        self.record
    }

    /// Gives up what is under way and what waits.
    pub(super) fn give_up(&mut self, now: u64) {
        self.miss_backlog(now);
        for number in 0..self.connections.len() {
            if self.connections[number].stage == Stage::Asked {
                self.time_out(number, now);
            }
        }
    }

    /// Opens what may be opened, waits for events until `until` at the latest, handles them, starts what is due. The time
    /// afterwards.
    pub(super) fn turn(&mut self, until: u64) -> Result<u64, Errno> {
        let before = self.clock.now_ns();
        self.open_some(before);
        let until = match &self.pacing {
            Pacing::Open { starts, .. } if !self.idle.is_empty() => until.min(starts.next_ns()),
            _ => until,
        };
        self.look_by_ns = until.max(before);
        self.wait(self.look_by_ns - before)?;
        let woken = self.clock.now_ns();
        let mut now = self.start_due(woken);
        for at in 0..self.events.len() {
            now = self.on_event(self.events[at], now);
            if !self.idle.is_empty() {
                now = self.start_due(now);
            }
        }
        self.look_by_ns = woken;
        Ok(self.start_due(now))
    }

    /// Gives up connections that are overdue among the next `count`; by and by, all are looked at.
    pub(super) fn look_for_overdue(&mut self, count: usize, now: u64) {
        for _ in 0..count.min(self.connections.len()) {
            let number = self.overdue_at;
            self.overdue_at = (number + 1) % self.connections.len();
            let connection = &self.connections[number];
            if now.saturating_sub(connection.sent_ns) < self.timeout_ns {
                continue;
            }
            match connection.stage {
                Stage::Connecting => self.connect_failed(number, Errno::TIMEDOUT, now),
                Stage::Asked => self.time_out(number, now),
                Stage::Closed | Stage::Idle => {}
            }
        }
    }

    fn wait(&mut self, ns: u64) -> Result<(), Errno> {
        let timeout = Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as _ };
        self.events.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }

    #[inline]
    fn start_due(&mut self, mut now: u64) -> u64 {
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

    /// A connection is free: it takes what has waited longest, or is idle.
    #[inline]
    fn available(&mut self, number: usize, now: u64) -> u64 {
        match &mut self.pacing {
            Pacing::Closed if now < self.end_ns => return self.ask(number, now, now),
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

    #[inline]
    fn ask(&mut self, number: usize, intended: u64, now: u64) -> u64 {
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
    fn sent(&mut self, number: usize, sent: Result<bool, Errno>, now: u64) -> u64 {
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

    #[inline]
    fn on_event(&mut self, event: epoll::Event, mut now: u64) -> u64 {
        let data = event.data.u64();
        let number = data as u32 as usize;
        let connection = &mut self.connections[number];
        if connection.generation != (data >> 32) as u32 {
            return now;
        }
        let flags = event.flags;
        let ended = flags.intersects(epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR);
        if connection.stage == Stage::Connecting {
            return self.on_connected(number, now);
        }
        if connection.is_sending() && flags.contains(epoll::EventFlags::OUT) {
            let sent = connection.flush();
            now = self.clock.now_ns();
            now = self.sent(number, sent, now);
        }
        let connection = &self.connections[number];
        if connection.stage != Stage::Closed && (ended || flags.contains(epoll::EventFlags::IN)) {
            return self.receive(number, ended);
        }
        now
    }

    /// Reads all that has come; `ended`: the peer will send no more than that.
    fn receive(&mut self, number: usize, ended: bool) -> u64 {
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

    fn time_out(&mut self, number: usize, now: u64) {
        let connection = &self.connections[number];
        if connection.intended_ns >= self.measured_ns {
            self.record.latency(now - connection.intended_ns, now - connection.sent_ns);
        }
        let waited_ms = self.load.timeout.as_millis();
        self.fail(number, ErrorKind::Timeout, &format_args!("no complete answer in {waited_ms} ms"), now);
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

    fn close(&mut self, number: usize) {
        let connection = &mut self.connections[number];
        connection.close();
        self.reader.reset(&mut connection.answer);
        self.connector.add(number);
    }

    fn open_some(&mut self, now: u64) {
        let wanted = match &self.pacing {
            Pacing::Held => true,
            Pacing::Closed => now < self.end_ns,
            Pacing::Open { backlog, .. } => now < self.end_ns || backlog.is_some(),
        };
        while wanted && let Some(number) = self.connector.next(now) {
            let (to, from) = self.connector.ends(number);
            let connection = &mut self.connections[number];
            let data = epoll::EventData::new_u64((u64::from(connection.generation) << 32) | number as u64);
            let flags =
                epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
            let opened = connection.open(to, from, now).and_then(|socket| epoll::add(&self.epoll, socket, data, flags));
            if let Err(error) = opened {
                self.connect_failed(number, error, now);
            }
        }
    }

    fn on_connected(&mut self, number: usize, now: u64) -> u64 {
        let connection = &mut self.connections[number];
        if let Err(error) = connection.connected() {
            self.connect_failed(number, error, now);
            return now;
        }
        connection.stage = Stage::Idle;
        self.record.totals.connect.saturating_record(now.saturating_sub(connection.sent_ns));
        self.connector.succeeded();
        self.available(number, now)
    }

    #[cold]
    fn connect_failed(&mut self, number: usize, error: Errno, now: u64) {
        let (to, _) = self.connector.ends(number);
        if now >= self.measured_ns {
            self.record.error(ErrorKind::Connect, &format_args!("{to}: {error}"));
        }
        self.connections[number].close();
        self.connector.failed(number, error, now);
    }

    /// What is due and never gets a connection; it waited until now at least.
    fn miss_backlog(&mut self, now: u64) {
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
