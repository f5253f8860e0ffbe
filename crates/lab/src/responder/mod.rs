//! A bare HTTP/1.1 responder on one thread: the least an upstream can cost, and a server whose latencies are known.
//!
//! Waits in `epoll` and nowhere else, so it costs nothing while idle. Without latency a request is one read and one write,
//! and requests that came together are answered together. It has no timeouts: its clients are the laboratory's. WebSockets of those
//! clients are answered, too: each frame by itself, a ping by a pong.

mod connection;
mod latency;

use crate::error::{Error, Result};
use crate::websocket;
use connection::{Connection, ResponderState, State};
use hdrhistogram::Histogram;
pub(crate) use latency::Latency;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use socket2::{Domain, Protocol, Socket, Type};
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use stillgate_rig::descriptors;
use stillgate_stats::Random;

// The responder's loop: everything that can wake it, and how it reacts.

/// Connections that the system may queue for us; it reduces this to its own limit.
const BACKLOG: i32 = 65_535;

/// Most events per wait.
const EVENTS_MAX: usize = 512;

/// Most connections accepted at once, so that open ones do not wait for a flood of new ones.
const ACCEPTS_MAX: usize = 64;

/// Epoll data of other descriptors than connections; no token equals one of them.
const LISTENER: u64 = u64::MAX;
const ENDING: u64 = u64::MAX - 1;

/// The settings of a responder.
#[derive(Debug)]
pub(crate) struct Setup {
    /// Address to listen at; port 0: any.
    pub(crate) address: SocketAddr,
    /// Length of every body.
    pub(crate) body_bytes: usize,
    /// Its delay.
    pub(crate) latency: Latency,
    /// Seed of the delays.
    pub(crate) seed: u64,
    /// `None`: as many as the descriptor limit allows.
    pub(crate) connections_max: Option<usize>,
}

/// The totals of a responder.
#[derive(Debug)]
pub(crate) struct ResponderTotals {
    /// Requests.
    pub(crate) answered: u64,
    /// Delays as drawn and as kept, in nanoseconds; `None` without latency.
    pub(crate) delays: Option<(Histogram<u64>, Histogram<u64>)>,
}

/// A responder.
#[derive(Debug)]
pub(crate) struct Responder {
    listener: Socket,
    /// The address that it listens at.
    pub(crate) address: SocketAddr,
    epoll: OwnedFd,
    connections: Connections,
    connections_max: usize,
    /// Whether new connections are accepted; false while there are too many.
    accepting: bool,
    shared: ResponderState,
}

impl Responder {
    /// Listens.
    pub(crate) fn bind(setup: &Setup) -> Result<Responder> {
        let at = |what: &str, error: &dyn Display| Error::new(format!("{}: {what}: {error}", setup.address));
        let connections_max = connections_max(setup.connections_max)?;
        let listener = listen(setup.address).map_err(|error| at("cannot listen", &error))?;
        let address = listener.local_addr().ok().and_then(|address| address.as_socket());
        let address = address.ok_or_else(|| at("cannot listen", &"the system does not report the address"))?;
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|error| at("epoll", &error))?;
        watch(&epoll, &listener, LISTENER)?;
        let delays = (setup.latency != Latency::None).then(|| Delays::new(setup.latency, setup.seed));
        let shared = ResponderState::new(Answers::new(setup.body_bytes), delays);
        let connections = Connections::default();
        Ok(Responder { listener, address, epoll, connections, connections_max, accepting: true, shared })
    }

    /// Ends [`Responder::run`] when `end` becomes readable.
    pub(crate) fn end_when_readable(&self, end: impl AsFd) -> Result {
        watch(&self.epoll, end, ENDING)
    }

    /// Ends [`Responder::run`] when the other end of `end` is closed.
    pub(crate) fn end_when_closed(&self, end: impl AsFd) -> Result {
        // For a pipe the system always reports HUP.
        epoll::add(&self.epoll, end, EventData::new_u64(ENDING), EventFlags::RDHUP)
            .map_err(|error| unusable("epoll", error))
    }

    /// Answers until it ends.
    pub(crate) fn run(mut self) -> Result<ResponderTotals> {
        // By default the kernel lets a timer be 50 us late to save wake-ups.
        let precise = NonZeroU64::new(1);
        rustix::thread::set_current_timer_slack(precise).map_err(|error| unusable("timer slack", error))?;
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        loop {
            events.clear();
            let idle = self.shared.delays.as_ref().and_then(|delays| delays.idle(Instant::now()));
            match epoll::wait(&self.epoll, spare_capacity(&mut events), idle.map(timespec).as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(unusable("epoll", error)),
            }
            for event in &events {
                // A copy: the kernel's struct is packed.
                let (data, flags) = (event.data.u64(), event.flags);
                match data {
                    LISTENER => self.accept()?,
                    ENDING => return Ok(self.into_served()),
                    data => self.serve(ConnectionToken::from_u64(data), |connection, token, shared| {
                        connection.ready(flags, token, shared)
                    })?,
                }
                // Also between events: a batch of them takes longer than an answer may be late.
                self.answer_due()?;
            }
            self.answer_due()?;
        }
    }

    fn answer_due(&mut self) -> Result {
        if self.shared.delays.is_none() {
            return Ok(());
        }
        let now = Instant::now();
        while let Some(due) = self.shared.delays.as_mut().and_then(|delays| delays.take(now)) {
            self.serve(due.token, |connection, token, shared| connection.answer_due(due.answer, token, shared))?;
        }
        Ok(())
    }

    /// Lets a connection work, and registers the events that it needs next, or closes it.
    fn serve(
        &mut self,
        token: ConnectionToken,
        work: impl FnOnce(&mut Connection, ConnectionToken, &mut ResponderState) -> State,
    ) -> Result {
        let Some(connection) = self.connections.get(token) else { return Ok(()) };
        let state = work(connection, token, &mut self.shared);
        if state == State::Over {
            self.connections.close(token);
            return self.set_accepting(true);
        }
        let wanted = connection.wanted();
        if wanted != connection.watched {
            connection.watched = wanted;
            epoll::modify(&self.epoll, &*connection, EventData::new_u64(token.to_u64()), wanted)
                .map_err(|error| unusable("epoll", error))?;
        }
        Ok(())
    }

    fn accept(&mut self) -> Result {
        for _ in 0..ACCEPTS_MAX {
            if self.connections.len() >= self.connections_max {
                return self.set_accepting(false);
            }
            match rustix::net::accept_with(&self.listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(socket) => {
                    let token = self.connections.vacancy();
                    watch(&self.epoll, &socket, token.to_u64())?;
                    self.connections.insert(token, Connection::new(socket));
                }
                Err(Errno::AGAIN) => return Ok(()),
                // The client closed it before it was accepted.
                Err(Errno::CONNABORTED | Errno::INTR | Errno::PROTO) => {}
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) if self.connections.len() > 0 => {
                    return self.set_accepting(false);
                }
                Err(error) => return Err(unusable("cannot take connections", error)),
            }
        }
        Ok(())
    }

    /// While there is no room, the listener is not watched: it would wake us for nothing.
    fn set_accepting(&mut self, accepting: bool) -> Result {
        if accepting == self.accepting {
            return Ok(());
        }
        self.accepting = accepting;
        let flags = if accepting { EventFlags::IN } else { EventFlags::empty() };
        epoll::modify(&self.epoll, &self.listener, EventData::new_u64(LISTENER), flags)
            .map_err(|error| unusable("epoll", error))
    }

    fn into_served(self) -> ResponderTotals {
        ResponderTotals {
            answered: self.shared.answered,
            delays: self.shared.delays.map(|delays| (delays.drawn, delays.kept)),
        }
    }
}

fn listen(address: SocketAddr) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    // Accepted sockets inherit it: no answer waits for an acknowledgement of the one before.
    socket.set_tcp_nodelay(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

fn watch(epoll: &OwnedFd, source: impl AsFd, data: u64) -> Result {
    epoll::add(epoll, source, EventData::new_u64(data), EventFlags::IN).map_err(|error| unusable("epoll", error))
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

fn unusable(what: &str, error: Errno) -> Error {
    Error::new(format!("{what}: {error}"))
}

// The number of connections that the descriptor limit allows, after raising it as far as this process may.

/// Descriptors other than connections: standard streams, epoll, listener, signals, and some to spare.
const OTHERS: u64 = 32;

/// The number requested, or as many as the limit allows.
fn connections_max(asked: Option<usize>) -> Result<usize> {
    let needed = asked.map_or(descriptors::limit().hard, |asked| asked as u64 + OTHERS);
    descriptors::raise_to(needed);
    let available = descriptors::limit().current;
    if asked.is_some() && available < needed {
        return Err(Error::new(format!(
            "--connections-max {} needs {needed} file descriptors, and this process may have {available}; \
             raise the limit with `ulimit -n {needed}` or allow fewer",
            needed - OTHERS
        )));
    }
    Ok(asked.unwrap_or(usize::try_from(available.saturating_sub(OTHERS)).unwrap_or(usize::MAX)))
}

// All possible answers, as bytes made once.

/// The kind of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Its content.
    content: Content,
    /// Its effect on the connection.
    connection: Persistence,
}

/// The content of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// 200 with the body.
    Full,
    /// 200 with the body's length only, for HEAD.
    HeadOnly,
    /// 101; from then on the connection carries WebSocket frames.
    WebSocket,
    /// 400; always the last of its connection.
    BadRequest,
}

/// The effect of an answer on the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Persistence {
    /// Kept, as is the default of HTTP/1.1.
    Kept,
    /// Kept, with a header field for HTTP/1.0.
    KeptAloud,
    /// Closed after it.
    Close,
}

/// Sent to a client that waits for it before it sends its body.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// All answers with the body of one length.
#[derive(Debug)]
pub(crate) struct Answers {
    /// By persistence: each with its body, and the length of the head.
    ok: [(Vec<u8>, usize); 3],
    web_socket: Vec<u8>,
    bad_request: Vec<u8>,
}

/// The text that bodies are filled with.
const FILLING: &[u8] = b"still ";

impl Answers {
    /// With a body of `body_bytes` bytes.
    fn new(body_bytes: usize) -> Answers {
        let body: Vec<u8> = FILLING.iter().copied().cycle().take(body_bytes).collect();
        let ok = |connection: &str| {
            let mut bytes = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {body_bytes}\r\n{connection}\r\n"
            )
            .into_bytes();
            let head = bytes.len();
            bytes.extend_from_slice(&body);
            (bytes, head)
        };
        Answers {
            ok: [ok(""), ok("Connection: keep-alive\r\n"), ok("Connection: close\r\n")],
            web_socket: websocket::acceptance().into_bytes(),
            bad_request: b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec(),
        }
    }

    /// The bytes of an answer.
    fn bytes(&self, answer: Answer) -> &[u8] {
        let index = match answer.connection {
            Persistence::Kept => 0,
            Persistence::KeptAloud => 1,
            Persistence::Close => 2,
        };
        let (bytes, head) = &self.ok[index];
        match answer.content {
            Content::Full => bytes,
            Content::HeadOnly => &bytes[..*head],
            Content::WebSocket => &self.web_socket,
            Content::BadRequest => &self.bad_request,
        }
    }
}

// Answers that are not due yet, in order of time, and the histograms of their delays.

/// An answer with the time it is due.
#[derive(Debug, Clone, Copy)]
struct DueAnswer {
    at: Instant,
    /// Orders answers due at the same moment: on one connection, the earlier request goes first.
    sequence: u64,
    arrived: Instant,
    /// The connection.
    token: ConnectionToken,
    /// The answer.
    answer: Answer,
}

/// The answers that are not due yet.
#[derive(Debug)]
struct Delays {
    latency: Latency,
    random: Random,
    waiting: BinaryHeap<Reverse<DueAnswer>>,
    sequence: u64,
    /// Delays as drawn, in nanoseconds.
    drawn: Histogram<u64>,
    /// From the read of a request to the moment its answer was written, in nanoseconds.
    kept: Histogram<u64>,
}

impl Delays {
    fn new(latency: Latency, seed: u64) -> Delays {
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
    fn schedule(&mut self, arrived: Instant, not_before: Instant, token: ConnectionToken, answer: Answer) -> Instant {
        let delay = self.latency.draw(&mut self.random);
        self.drawn.saturating_record(nanoseconds(delay));
        let at = (arrived + delay).max(not_before);
        self.sequence += 1;
        self.waiting.push(Reverse(DueAnswer { at, sequence: self.sequence, arrived, token, answer }));
        at
    }

    /// The next answer that is due by now.
    fn take(&mut self, now: Instant) -> Option<DueAnswer> {
        let due = self.waiting.peek().filter(|due| due.0.at <= now)?.0;
        self.waiting.pop();
        self.kept.saturating_record(nanoseconds(now - due.arrived));
        Some(due)
    }

    /// The time until the next one is due.
    fn idle(&self, now: Instant) -> Option<Duration> {
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

// All open connections, each in its own slot, with tokens that do not outlive them.

/// Names a connection: its slot, and a number that counts the slot's tenants. An event or an answer for an ended
/// connection finds none, even if the slot is in use again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ConnectionToken {
    place: u32,
    tenancy: u32,
}

impl ConnectionToken {
    /// As data of an epoll event.
    fn to_u64(self) -> u64 {
        (u64::from(self.tenancy) << 32) | u64::from(self.place)
    }

    /// The inverse.
    fn from_u64(data: u64) -> ConnectionToken {
        ConnectionToken { place: data as u32, tenancy: (data >> 32) as u32 }
    }
}

/// The largest tenancy: all numbers above are free for other events.
const TENANCY_MAX: u32 = u32::MAX / 2;

#[derive(Debug, Default)]
struct Slot {
    tenancy: u32,
    connection: Option<Connection>,
}

/// All open connections.
#[derive(Debug, Default)]
struct Connections {
    places: Vec<Slot>,
    free: Vec<u32>,
}

impl Connections {
    /// The number of open connections.
    fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// A token for the next one.
    fn vacancy(&mut self) -> ConnectionToken {
        let place = self.free.last().copied().unwrap_or_else(|| {
            self.places.push(Slot::default());
            self.free.push(self.places.len() as u32 - 1);
            self.places.len() as u32 - 1
        });
        ConnectionToken { place, tenancy: self.places[place as usize].tenancy }
    }

    /// Opens a connection under the token of the last [`Connections::vacancy`].
    fn insert(&mut self, token: ConnectionToken, connection: Connection) {
        debug_assert_eq!(self.free.last(), Some(&token.place));
        self.free.pop();
        self.places[token.place as usize].connection = Some(connection);
    }

    /// An open connection.
    fn get(&mut self, token: ConnectionToken) -> Option<&mut Connection> {
        let place = self.places.get_mut(token.place as usize)?;
        place.connection.as_mut().filter(|_| place.tenancy == token.tenancy)
    }

    /// Closes a connection; its socket leaves epoll with its descriptor.
    fn close(&mut self, token: ConnectionToken) {
        if self.get(token).is_some() {
            let place = &mut self.places[token.place as usize];
            place.connection = None;
            place.tenancy = (place.tenancy + 1) % TENANCY_MAX;
            self.free.push(token.place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    fn open(connections: &mut Connections) -> ConnectionToken {
        let token = connections.vacancy();
        connections.insert(token, Connection::new(OwnedFd::from(UnixStream::pair().unwrap().0)));
        token
    }

    #[test]
    fn a_token_never_finds_another_connection() {
        let mut connections = Connections::default();
        let (first, second) = (open(&mut connections), open(&mut connections));
        assert_ne!(first, second);
        connections.close(first);
        connections.close(first);
        assert_eq!(connections.len(), 1);
        let third = open(&mut connections);
        assert_eq!(third.place, first.place);
        assert!(connections.get(first).is_none() && connections.get(third).is_some());
        assert_eq!(ConnectionToken::from_u64(third.to_u64()), third);
        assert!(connections.get(ConnectionToken::from_u64(u64::MAX)).is_none());
    }
}
