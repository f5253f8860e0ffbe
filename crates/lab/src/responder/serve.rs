//! The responder's loop: everything that can wake it, and how it reacts.

use super::answers::Answers;
use super::connection::{Connection, ResponderState, State};
use super::connections::{Connections, Token};
use super::delays::Delays;
use super::descriptors;
use super::latency::Latency;
use crate::error::{Error, Result};
use hdrhistogram::Histogram;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use socket2::{Domain, Protocol, Socket, Type};
use std::fmt::Display;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

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
        let connections_max = descriptors::connections_max(setup.connections_max)?;
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
                    data => self.serve(Token::from_u64(data), |connection, token, shared| {
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
        token: Token,
        work: impl FnOnce(&mut Connection, Token, &mut ResponderState) -> State,
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
