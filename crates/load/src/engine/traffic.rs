//! The requests of a thread on its connections: started when due, answered, judged, given up.
//!
//! One turn waits for events once and handles them all: requests that are due start, answers are read, closed connections
//! are opened (`requests`). A slot for a request is a connection or, if several are under way on one, a stream of it
//! (`streams`); results are counted in the same way (`count`). Before it waits, the generator stores the time by which it
//! will look again (`look_by_ns`): if it looks later, that is its own lateness.

mod requests;
mod streams;

use super::connection::{Connection, Stage};
use super::connector::{Connector, LoadError};
use super::response::Reader;
use super::schedule::Starts;
use super::thread_stats::ThreadStats;
use crate::mix::{ComposedRequest, Composer, Entry};
use crate::plan::{Load, Protocol};
use bytes::Bytes;
use http::uri::Scheme;
use http::{HeaderName, HeaderValue, Method, Request, Uri};
use memchr::memmem;
use requests::Pacing;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::time::{Duration, Instant};
use stillgate_wire::HEAD_BYTES_MAX;
use streams::Multiplex;

/// Bytes per read, over all connections; the beginning of a head that came in pieces is here too.
const READ_BYTES: usize = 64 * 1024;
const _: () = assert!(READ_BYTES > HEAD_BYTES_MAX);

/// Events handled in a turn; more would make a turn long, and requests that are due meanwhile late.
const EVENTS_MAX: usize = 128;

/// Connections and requests of one thread.
pub(super) struct Traffic<'a> {
    load: &'a Load,
    clock: Clock,
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    buffer: Vec<u8>,
    connections: Vec<Connection>,
    /// The streams; `None` if connections carry one request at a time.
    multiplex: Option<Box<Multiplex>>,
    pub(super) connector: Connector,
    idle: IdleList,
    composer: Composer,
    reader: Reader,
    pub(super) stats: ThreadStats,
    pacing: Pacing,
    /// Requests begun and not ended.
    asked: usize,
    measured_ns: u64,
    end_ns: u64,
    timeout_ns: u64,
    late_ns: u64,
    look_by_ns: u64,
    /// The time of the last answer.
    answered_ns: u64,
    /// The connection that is checked next for a timeout.
    overdue_at: usize,
}

/// The time in which a run is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub(super) begin_ns: u64,
    pub(super) end_ns: u64,
}

impl<'a> Traffic<'a> {
    /// Begins with all connections closed, and no requests.
    pub(super) fn new(
        load: &'a Load,
        clock: Clock,
        composer: Composer,
        connector: Connector,
        record: ThreadStats,
    ) -> Result<Self, LoadError> {
        let connections = connector.not_open();
        let entries = load.mix.entries();
        let multiplex = match load.protocol {
            Protocol::Http1 => None,
            Protocol::Http2 { streams } => {
                let messages = Messages::new(entries, load.tls.is_some())?;
                Some(Box::new(Multiplex::new(messages, connections, streams)))
            }
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| LoadError::Epoll(error.into()))?;
        Ok(Traffic {
            load,
            clock,
            epoll,
            multiplex,
            events: Vec::with_capacity(EVENTS_MAX),
            buffer: vec![0; READ_BYTES],
            connections: std::iter::repeat_with(Connection::closed).take(connections).collect(),
            connector,
            idle: IdleList::new(connections * load.protocol.streams()),
            composer,
            reader: Reader::new(entries.len()),
            stats: record,
            pacing: Pacing::Held,
            asked: 0,
            measured_ns: NEVER_NS,
            end_ns: NEVER_NS,
            timeout_ns: nanos(load.timeout),
            late_ns: nanos(load.bounds.late),
            look_by_ns: 0,
            answered_ns: 0,
            overdue_at: 0,
        })
    }

    /// Begins to make requests: by a schedule, or without one as many as are left, on each connection as soon as it is free.
    pub(super) fn begin(&mut self, starts: Option<Starts>, left: u64, window: Window) {
        let now = self.clock.now_ns();
        (self.measured_ns, self.end_ns) = (window.begin_ns, window.end_ns);
        self.connector.hurry();
        if let Some(starts) = starts {
            self.pacing = Pacing::Open { starts, backlog: None };
            return;
        }
        self.pacing = Pacing::Closed { left };
        for _ in 0..self.idle.len() {
            if let Some(place) = self.idle.pop() {
                self.start_or_idle(place, now);
            }
        }
        self.start_due(now);
    }

    /// If requests are counted: when the measured time ends, once all of them were begun.
    pub(super) fn ends_at(&self, now: u64) -> Option<u64> {
        match &self.pacing {
            Pacing::Closed { left: 0 } if self.asked == 0 => Some(now),
            Pacing::Open { starts, .. } => starts.ended_ns(),
            _ => None,
        }
    }

    /// Whether each connection waits for an answer, or for the next attempt to open it, and no answer came since.
    pub(super) fn is_stalled(&self, since_ns: u64) -> bool {
        matches!(self.pacing, Pacing::Closed { .. }) && self.answered_ns < since_ns && self.measured_ns < since_ns
    }

    /// Ends the measured time before its planned end.
    pub(super) fn end_at(&mut self, end_ns: u64) {
        self.end_ns = self.end_ns.min(end_ns);
    }

    /// Starts nothing more; requests that were due and have no connection are missed.
    pub(super) fn stop(&mut self, now: u64) {
        self.end_ns = self.end_ns.min(now);
        if let Pacing::Open { starts, .. } = &mut self.pacing {
            starts.cut(now);
        }
        self.miss_backlog(now);
    }

    /// Whether everything is answered that ever will be.
    pub(super) fn is_over(&self, now: u64) -> bool {
        let nothing_due = match &self.pacing {
            Pacing::Open { starts, backlog } => {
                starts.next_ns() == NEVER_NS && (backlog.is_none() || self.connector.is_shut_out())
            }
            Pacing::Held | Pacing::Closed { .. } => true,
        };
        now >= self.end_ns && self.asked == 0 && nothing_due
    }

    /// The counts.
    pub(super) fn into_stats(self) -> ThreadStats {
        self.stats
    }

    /// Gives up requests under way and those that wait.
    pub(super) fn give_up(&mut self, now: u64) {
        self.miss_backlog(now);
        if self.multiplex.is_some() {
            return self.give_up_streams(now);
        }
        for number in 0..self.connections.len() {
            let connection = &self.connections[number];
            if connection.stage != Stage::Asked {
                continue;
            }
            // It was sent late, since no connection was free before, or the run was ended early: the target still had
            // time.
            match now.saturating_sub(connection.request.sent_ns) < self.timeout_ns {
                true => self.cut_off_request(number, now),
                false => self.time_out(number, now),
            }
        }
    }

    /// Opens connections, waits for events until `until` at the latest, handles them, starts requests that are due.
    /// Returns the time afterwards.
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

    /// Gives up timed-out connections among the next `count`; over several calls, all are checked.
    pub(super) fn look_for_overdue(&mut self, count: usize, now: u64) {
        for _ in 0..count.min(self.connections.len()) {
            let number = self.overdue_at;
            self.overdue_at = (number + 1) % self.connections.len();
            let connection = &self.connections[number];
            let is_overdue = now.saturating_sub(connection.request.sent_ns) >= self.timeout_ns;
            match connection.stage {
                Stage::Connecting if is_overdue => self.abandon(number, now),
                Stage::Asked if is_overdue => self.time_out(number, now),
                Stage::Idle if self.multiplex.is_some() => self.look_for_overdue_streams(number, now),
                _ => {}
            }
        }
        self.look_for_overdue_lost(now);
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
    fn on_event(&mut self, event: epoll::Event, mut now: u64) -> u64 {
        let data = event.data.u64();
        let number = data as u32 as usize;
        let connection = &mut self.connections[number];
        if connection.generation != (data >> 32) as u32 {
            return now;
        }
        let flags = event.flags;
        let ended = flags.intersects(epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR);
        connection.woken(ended);
        if self.multiplex.as_ref().is_some_and(|multiplex| multiplex.has_session(number)) {
            return self.on_session_event(number, ended, now);
        }
        let connection = &mut self.connections[number];
        if connection.stage == Stage::Connecting {
            return self.on_connecting(number, now);
        }
        if connection.is_sending() && flags.contains(epoll::EventFlags::OUT) {
            let sent = connection.flush();
            now = self.clock.now_ns();
            now = self.on_written(number, sent, now);
        }
        let connection = &self.connections[number];
        if connection.stage != Stage::Closed && (ended || flags.contains(epoll::EventFlags::IN)) {
            return self.receive(number, ended);
        }
        now
    }
}

// The idle connections, the longest unused first.
//
// Linked through indices, because a connection that its peer closes must leave from the middle: in a plain queue, ten
// thousand closed at once would be searched for ten thousand times.

const NONE: u32 = u32::MAX;

/// A first-in-first-out list of connection numbers; each is in it at most once.
#[derive(Debug)]
pub(super) struct IdleList {
    links: Vec<Link>,
    first: u32,
    last: u32,
    len: usize,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    before: u32,
    after: u32,
}

impl IdleList {
    /// An empty list, for connection numbers below `connections`.
    pub(super) fn new(connections: usize) -> Self {
        IdleList { links: vec![Link { before: NONE, after: NONE }; connections], first: NONE, last: NONE, len: 0 }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.first == NONE
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Appends a number that is not in it.
    #[inline]
    pub(super) fn push(&mut self, number: usize) {
        let added = number as u32;
        self.links[number] = Link { before: self.last, after: NONE };
        match self.last {
            NONE => self.first = added,
            last => self.links[last as usize].after = added,
        }
        self.last = added;
        self.len += 1;
    }

    /// Takes the longest unused one.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<usize> {
        let first = self.first;
        if first == NONE {
            return None;
        }
        self.remove(first as usize);
        Some(first as usize)
    }

    /// Removes a number that is in it.
    #[inline]
    pub(super) fn remove(&mut self, number: usize) {
        let Link { before, after } = self.links[number];
        match before {
            NONE => self.first = after,
            before => self.links[before as usize].after = after,
        }
        match after {
            NONE => self.last = before,
            after => self.links[after as usize].before = before,
        }
        self.len -= 1;
    }
}

// Time as the engine counts it: nanoseconds since the run was prepared, the same for all its threads.
//
// Plain integers, because a latency is one subtraction and an intended start one comparison. Monotonic: a step of the
// wall clock is not a latency.

/// Later than any time.
pub(super) const NEVER_NS: u64 = u64::MAX;

/// The run's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    epoch: Instant,
}

impl Clock {
    /// A clock that is at zero now.
    pub(super) fn start() -> Self {
        Clock { epoch: Instant::now() }
    }

    /// Nanoseconds since the start; enough for five centuries.
    #[inline]
    pub(super) fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }
}

/// In nanoseconds, capped at five centuries.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4)
}

// A request as HTTP/2 sends it, made of the bytes that HTTP/1 would send.
//
// A mix is composed in one form only. An entry without variables is translated once, before the run; parts that HTTP/2
// does not have are refused there by name.

/// Fields of a connection (RFC 9113 section 8.2.2).
const CONNECTION_FIELDS: [&str; 5] = ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];

/// A request and its body.
pub(super) type Message = (Request<()>, Bytes);

/// Translates the requests of a mix.
#[derive(Debug)]
pub(super) struct Messages {
    scheme: Scheme,
    /// By entry, those without variables.
    fixed: Vec<Option<Message>>,
}

impl Messages {
    /// Translates these entries, with TLS or without.
    pub(super) fn new(entries: &[Entry], is_secure: bool) -> Result<Messages, LoadError> {
        let scheme = if is_secure { Scheme::HTTPS } else { Scheme::HTTP };
        let fixed = entries.iter().map(|entry| {
            let untranslatable = |reason| LoadError::NotHttp2 { request: entry.name.clone(), reason };
            let is_connections =
                |name: &&String| CONNECTION_FIELDS.iter().any(|field| name.eq_ignore_ascii_case(field));
            if let Some(field) = entry.fields.iter().find(is_connections) {
                return Err(untranslatable(format!(
                    "the field {field} belongs to HTTP/1 connections, and HTTP/2 forbids it; remove it"
                )));
            }
            entry.fixed().map(|bytes| translate(bytes, &scheme).map_err(untranslatable)).transpose()
        });
        Ok(Messages { fixed: fixed.collect::<Result<_, _>>()?, scheme })
    }

    /// Translates a composed request.
    pub(super) fn of(&self, composed: &ComposedRequest<'_>) -> Result<Message, String> {
        match &self.fixed[composed.entry] {
            Some(message) => Ok(message.clone()),
            None => translate(composed.bytes, &self.scheme),
        }
    }
}

fn translate(bytes: &[u8], scheme: &Scheme) -> Result<Message, String> {
    let words = |error: http::Error| error.to_string();
    let (head, body) = split_at(bytes, b"\r\n\r\n").ok_or("no end of its head")?;
    let (line, mut fields) = split_at(head, b"\r\n").unwrap_or((head, b""));
    let mut parts = line.splitn(3, |byte| *byte == b' ');
    let (method, path) = parts.next().zip(parts.next()).ok_or("no request line")?;
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(method).map_err(|error| words(error.into()))?;
    let mut authority: &[u8] = b"";
    while !fields.is_empty() {
        let (field, rest) = split_at(fields, b"\r\n").unwrap_or((fields, b""));
        fields = rest;
        let (name, value) = split_at(field, b":").ok_or("a field without a colon")?;
        let value = value.trim_ascii();
        if name.eq_ignore_ascii_case(b"host") {
            authority = value;
            continue;
        }
        let name = HeaderName::from_bytes(name).map_err(|error| words(error.into()))?;
        request.headers_mut().append(name, HeaderValue::from_bytes(value).map_err(|error| words(error.into()))?);
    }
    let uri = Uri::builder().scheme(scheme.clone()).authority(authority).path_and_query(path);
    *request.uri_mut() = uri.build().map_err(words)?;
    Ok((request, Bytes::copy_from_slice(body)))
}

/// The parts before and behind the first separator.
fn split_at<'a>(bytes: &'a [u8], separator: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = memmem::find(bytes, separator)?;
    Some((&bytes[..at], &bytes[at + separator.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn equals_a_searched_queue(steps in prop::collection::vec((0..3, 0usize..8), 0..200)) {
            let (mut list, mut queue) = (IdleList::new(8), VecDeque::new());
            for (step, number) in steps {
                match step {
                    0 if !queue.contains(&number) => {
                        list.push(number);
                        queue.push_back(number);
                    }
                    1 if queue.contains(&number) => {
                        list.remove(number);
                        queue.retain(|&held| held != number);
                    }
                    2 => prop_assert_eq!(list.pop(), queue.pop_front()),
                    _ => {}
                }
                prop_assert_eq!((list.len(), list.is_empty()), (queue.len(), queue.is_empty()));
            }
        }
    }
}

#[cfg(test)]
mod message_tests {
    use super::*;
    use crate::mix::Mix;

    fn messages(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Result<Messages, LoadError> {
        let headers: Vec<(String, String)> =
            headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let mix = Mix::single(method, path, "a.example:81", &headers, body.as_bytes().to_vec()).unwrap();
        Messages::new(mix.entries(), true)
    }

    #[test]
    fn method_target_fields_and_body() {
        let made =
            messages("POST", "/a?b=[c]|{d}^", &[("X-Ä".trim_end_matches('Ä'), "1"), ("x-b", "2")], "body").unwrap();
        let (request, body) = made.fixed[0].clone().unwrap();
        assert_eq!((request.method(), body.as_ref()), (&Method::POST, b"body".as_slice()));
        assert_eq!(request.uri(), "https://a.example:81/a?b=[c]|{d}^");
        assert_eq!(
            (&request.headers()["x-"], &request.headers()["x-b"]),
            (&"1".parse().unwrap(), &"2".parse().unwrap())
        );
        assert_eq!(request.headers()["content-length"], "4");
        let made = messages("GET", "/", &[("Host", "b.example")], "").unwrap();
        assert_eq!(made.fixed[0].as_ref().unwrap().0.uri(), "https://b.example/");
    }

    #[test]
    fn what_http2_does_not_know_is_named() {
        let check = |headers: &[(&str, &str)], words: &str| {
            let error = messages("GET", "/", headers, "").unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("GET /"), "{error}");
        };
        check(&[("Connection", "close")], "the field Connection");
        check(&[("Upgrade", "websocket")], "the field Upgrade");
        check(&[("Host", "a b")], "invalid");
    }
}
