//! UDP: datagrams between clients and nodes, in sessions.
//!
//! A session is what one client sends from one port to one listener, and what comes back. It has a socket of its own that is
//! connected to its node, so the kernel shows whose answers come, and that the node is gone. The kernel also keeps a client at one
//! worker's socket, as long as there are as many. What cannot be passed on at once is dropped and counted: that is UDP.

use super::STATUS_NODE_FAILED;
use super::nodes::SessionTries;
use crate::basics::clock::{Timer, wake_after_others};
use crate::node::health;
use crate::plan::snapshot::WorkerUpstream;
use crate::plan::{Lease, StreamProperties, millis};
use crate::sockets::listener::Listener;
use crate::telemetry::session::{ClientSession, Ends, STATUS_SERVED};
use crate::worker::Worker;
use crate::worker::watches::{QUIET_MS, WatchedLease};
use socket2::SockRef;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use stillgate_config::NodeProtocol;
use stillgate_upstream::{Failure, TryReport};
use tokio::io::ReadBuf;
use tokio::net::UdpSocket;
use tokio::task::{spawn_local, yield_now};

/// Maximum size of a datagram.
const DATAGRAM_BYTES_MAX: usize = 64 * 1024;
/// Datagrams read from one socket before others have their turn.
const DATAGRAMS_AT_ONCE: usize = 32;
/// Minimum time between two records of datagrams without a session, for one socket.
const REFUSAL_EVERY_MS: u64 = 1_000;
/// Room for so many sessions is always kept.
const SESSIONS_KEPT: usize = 64;
/// How long receiving pauses after it failed.
const RECEIVE_REST: Duration = Duration::from_millis(100);

/// A worker's socket of one listener, and its sessions.
struct UdpListener {
    worker: Rc<Worker>,
    listener: Rc<Listener>,
    /// None of its sessions continues.
    is_closed: Rc<Cell<bool>>,
    socket: UdpSocket,
    local: SocketAddr,
    /// Sessions by client.
    sessions: RefCell<HashMap<SocketAddr, Rc<SessionLink>>>,
    /// When the next datagram without a session is recorded.
    next_refusal_ms: Cell<u64>,
    /// Buffer for datagrams being passed on.
    buffer: RefCell<Box<[u8]>>,
}

/// Receives from one socket until the worker ends.
pub(crate) async fn serve(worker: Rc<Worker>, socket: UdpSocket, listener: Rc<Listener>, is_closed: Rc<Cell<bool>>) {
    let local = match socket.local_addr() {
        Ok(local) => local,
        // This would be the kernel's fault. Routes need the address.
        Err(error) => return tracing::error!(%error, "a listener of UDP does not tell its address, and is not served"),
    };
    let buffer = RefCell::new(vec![0; DATAGRAM_BYTES_MAX].into_boxed_slice());
    let (sessions, next_refusal_ms) = (RefCell::default(), Cell::new(0));
    let listening =
        Rc::new(UdpListener { worker, listener, is_closed, socket, local, sessions, next_refusal_ms, buffer });
    loop {
        if let Err(error) = listening.socket.readable().await {
            tracing::warn!(%error, %local, "cannot receive datagrams");
            tokio::time::sleep(RECEIVE_REST).await;
        }
        listening.receive();
        yield_now().await;
    }
}

impl UdpListener {
    fn receive(self: &Rc<Self>) {
        for _ in 0..DATAGRAMS_AT_ONCE {
            let mut buffer = self.buffer.borrow_mut();
            match self.socket.try_recv_from(&mut buffer) {
                Ok((len, client)) => self.pass_on(client, &buffer[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The result of an answer of ours: the client is gone, or the cause is unknown.
                Err(_) => {}
            }
        }
    }

    /// Passes a datagram from a client to its node.
    fn pass_on(self: &Rc<Self>, client: SocketAddr, datagram: &[u8]) {
        let known = self.sessions.borrow().get(&client).cloned();
        if let Some(link) = &known {
            // While we are ending there would be no other session.
            if !self.is_ending() && link.is_to_be_left(&self.worker) {
                link.end();
            } else {
                match link.send(datagram, self.worker.clock.now_ms()) {
                    Ok(()) => return link.vouch(&self.worker),
                    Err(error) if is_refused(&error) => link.fail(&self.worker),
                    Err(_) => return self.drop_one(),
                }
            }
        }
        // A client's first datagram, or the first after its node has gone: it must not be lost.
        match self.open(client, known.is_some()) {
            Some(link) if link.send(datagram, self.worker.clock.now_ms()).is_ok() => {}
            _ => self.drop_one(),
        }
    }

    /// Whether sessions can no longer begin.
    fn is_ending(&self) -> bool {
        self.worker.draining.get() || self.listener.is_removed()
    }

    fn drop_one(&self) {
        self.worker.counters.udp_datagrams_dropped.add(1);
    }

    /// Opens a session with a client, if there is a route and a node for it and room. A session that replaces another takes that
    /// one's place, which counts until its task has run.
    fn open(self: &Rc<Self>, client: SocketAddr, is_replacing: bool) -> Option<Rc<SessionLink>> {
        let worker = &self.worker;
        let snapshot = worker.snapshot();
        let settings = &snapshot.plan.settings;
        if self.is_ending() {
            return None;
        }
        let asked = StreamProperties { client: client.ip(), local: self.local, server_name: None };
        let Some(found) = snapshot.plan.stream_routes.find(NodeProtocol::Udp, &asked) else {
            worker.troubles.note_datagram(client, format!("no stream route takes datagrams to {}", self.local));
            return None;
        };
        if !is_replacing && worker.counters.udp_sessions_open.get() >= settings.udp_sessions_max as u64 {
            let message = "there are gateway.stream_proxy.udp_sessions_per_worker sessions already".to_owned();
            worker.troubles.note_datagram(client, message);
            return None;
        }
        let Some(upstream) = snapshot.upstreams.get(found.upstream()).cloned() else {
            worker.troubles.note_datagram(client, format!("the stream route {:?} is unavailable", found.route.id));
            return None;
        };
        let mut session = ClientSession::new(NodeProtocol::Udp);
        session.route = Some(found.route.clone());
        let ends = Ends { peer: client, local: self.local, tls: None };
        let link = match connect(worker, &upstream, &mut session, ends) {
            Ok((socket, slot)) => Rc::new(SessionLink::new(socket, upstream, slot, worker)),
            Err(status) => {
                session.status = status;
                self.record_refusal(&session, ends);
                return None;
            }
        };
        let idle_ms = found.route.timeout.idle.map_or(settings.udp_idle_ms, millis);
        let running = UdpSession::new(self, client, session, &link, found.lease.clone(), idle_ms, settings.drain_ms);
        self.sessions.borrow_mut().insert(client, link.clone());
        spawn_local(running.run());
        Some(link)
    }

    /// Records some of them only, as nothing slows the sender. All are counted as dropped.
    fn record_refusal(&self, session: &ClientSession, ends: Ends<'_>) {
        let now_ms = self.worker.clock.now_ms();
        if now_ms >= self.next_refusal_ms.get() {
            self.next_refusal_ms.set(now_ms + REFUSAL_EVERY_MS);
            self.worker.record_session(session, ends, 0, 0);
        }
    }
}

/// A socket that is connected to a node. That takes no time, and proves little: only an answer shows that the node is there.
fn connect(
    worker: &Rc<Worker>,
    upstream: &Rc<WorkerUpstream>,
    session: &mut ClientSession,
    ends: Ends<'_>,
) -> Result<(UdpSocket, usize), u16> {
    let mut choice = SessionTries::new(worker, upstream, session, ends)?;
    loop {
        let trying = choice.pick(session)?;
        let slot = trying.slot;
        let address = upstream.state.borrow().endpoint(slot).address;
        match socket_to(address) {
            Ok(socket) => return Ok((socket, slot)),
            Err(error) => {
                drop(trying);
                let is_local = crate::node::is_local(&error);
                choice.on_failed(session, slot, Failure::Connect, is_local, &error.to_string())?;
            }
        }
    }
}

/// A running session. Its end, whatever causes it, is recorded as it is dropped.
struct UdpSession {
    listening: Rc<UdpListener>,
    client: SocketAddr,
    session: ClientSession,
    link: Rc<SessionLink>,
    leaving: Option<WatchedLease>,
    timer: Timer,
    idle_ms: u64,
    drain_ms: u64,
    /// The node has sent something.
    has_answered: bool,
}

impl UdpSession {
    fn new(
        listening: &Rc<UdpListener>,
        client: SocketAddr,
        session: ClientSession,
        link: &Rc<SessionLink>,
        lease: Option<Arc<Lease>>,
        idle_ms: u64,
        drain_ms: u64,
    ) -> UdpSession {
        let worker = &listening.worker;
        listening.listener.open.add(1);
        worker.counters.udp_sessions_open.add(1);
        worker.counters.stream_sessions_open.add(1);
        link.upstream.state.borrow_mut().on_start(link.slot);
        UdpSession {
            listening: listening.clone(),
            client,
            session,
            link: link.clone(),
            leaving: lease.map(|lease| WatchedLease::new(&worker.watches, lease)),
            timer: Timer::new(),
            idle_ms,
            drain_ms,
            has_answered: false,
        }
    }

    async fn run(mut self) {
        poll_fn(|cx| {
            let mut waker = self.link.waker.borrow_mut();
            if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
            drop(waker);
            match self.poll_answers(cx) {
                Poll::Ready(()) => Poll::Ready(()),
                Poll::Pending => self.poll_time(cx),
            }
        })
        .await;
        if !self.link.has_failed() {
            self.link.vouch(&self.listening.worker);
        }
    }

    /// Passes datagrams from the node to the client; ready when the session has ended.
    fn poll_answers(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let UdpListener { worker, socket, buffer, .. } = &*self.listening;
        let (link, mut buffer) = (&self.link, buffer.borrow_mut());
        for _ in 0..DATAGRAMS_AT_ONCE {
            if link.is_over() {
                return Poll::Ready(());
            }
            let mut space = ReadBuf::new(&mut buffer);
            match link.socket.poll_recv(cx, &mut space) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) if is_refused(&error) => link.fail(worker),
                // The next one may succeed.
                Poll::Ready(Err(_)) => {}
                Poll::Ready(Ok(())) => {
                    let datagram = space.filled();
                    link.moved_ms.set(worker.clock.now_ms());
                    if !self.has_answered {
                        self.has_answered = true;
                        let since = self.session.started;
                        self.session.connect_us = Some(Instant::now().duration_since(since).as_micros() as u64);
                        health::report(worker, &link.upstream, link.slot, TryReport::Opened, String::new);
                    }
                    match SockRef::from(socket).send_to(datagram, &self.client.into()) {
                        Ok(_) => link.sent.set(link.sent.get() + datagram.len() as u64),
                        Err(_) => worker.counters.udp_datagrams_dropped.add(1),
                    }
                }
            }
        }
        wake_after_others(cx);
        Poll::Pending
    }

    /// Sets the timer, or ends the session if its time is up.
    fn poll_time(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let worker = &self.listening.worker;
        let (now_ms, moved_ms) = (worker.clock.now_ms(), self.link.moved_ms.get());
        let mut end_ms = moved_ms + self.idle_ms;
        if let Some(leaving) = &mut self.leaving {
            leaving.look(cx, now_ms);
            end_ms = leaving.end_ms(moved_ms, self.drain_ms).map_or(end_ms, |(at_ms, _)| at_ms.min(end_ms));
        }
        if self.listening.is_ending() {
            // Sessions have no end of their own to wait for.
            end_ms = end_ms.min(moved_ms + QUIET_MS).min(self.listening.listener.end_ms());
        }
        if end_ms <= now_ms || self.listening.is_closed.get() {
            return Poll::Ready(());
        }
        self.timer.set(&worker.clock, end_ms, cx);
        Poll::Pending
    }
}

impl Drop for UdpSession {
    fn drop(&mut self) {
        let worker = &self.listening.worker;
        let link = &self.link;
        link.upstream.state.borrow_mut().on_finish(link.slot, None, worker.clock.now_ms());
        self.listening.listener.open.sub(1);
        worker.counters.udp_sessions_open.sub(1);
        worker.counters.stream_sessions_open.sub(1);
        if let Some(leaving) = &self.leaving {
            leaving.end(&worker.watches);
        }
        let mut sessions = self.listening.sessions.borrow_mut();
        // If it has left its node, another session may have taken its place.
        if sessions.get(&self.client).is_some_and(|present| Rc::ptr_eq(present, link)) {
            sessions.remove(&self.client);
            give_room_back(&mut sessions);
        }
        drop(sessions);
        // The waker keeps the task's memory.
        link.waker.take();
        // After a panic the state is unknown, so nothing is recorded.
        if !std::thread::panicking() {
            self.session.status =
                if link.has_failed() && !self.has_answered { STATUS_NODE_FAILED } else { STATUS_SERVED };
            let ends = Ends { peer: self.client, local: self.listening.local, tls: None };
            worker.record_session(&self.session, ends, link.received.get(), link.sent.get());
        }
    }
}

/// Shrinks a table that is nearly empty: one burst of clients must not cost its memory for good.
fn give_room_back<T>(sessions: &mut HashMap<SocketAddr, T>) {
    if sessions.len() < sessions.capacity() / 4 {
        sessions.shrink_to((2 * sessions.len()).max(SESSIONS_KEPT));
    }
}

// A UDP session's link to its node: a socket of its own, and counts of what has gone over it.

/// How long datagrams to a node must not have been refused before it counts as healthy again if it never answers. Longer than it
/// takes to find that a machine in our own network is gone (three seconds, RFC 4861 section 10).
const TRIAL_MS: u64 = 5_000;

/// A session's link to its node, and counts of what has gone over it.
pub(super) struct SessionLink {
    pub(super) socket: UdpSocket,
    pub(super) upstream: Rc<WorkerUpstream>,
    pub(super) slot: usize,
    /// The snapshot in which its node was last looked for.
    version: Cell<u64>,
    began_ms: u64,
    /// Bytes from the client, and to it.
    pub(super) received: Cell<u64>,
    pub(super) sent: Cell<u64>,
    pub(super) moved_ms: Cell<u64>,
    /// Nothing more may go over it.
    is_over: Cell<bool>,
    /// Its node refuses what is sent to it.
    has_failed: Cell<bool>,
    /// The session's task.
    pub(super) waker: RefCell<Option<Waker>>,
}

impl SessionLink {
    pub(super) fn new(socket: UdpSocket, upstream: Rc<WorkerUpstream>, slot: usize, worker: &Worker) -> SessionLink {
        let now_ms = worker.clock.now_ms();
        SessionLink {
            socket,
            upstream,
            slot,
            version: Cell::new(worker.snapshot().version),
            began_ms: now_ms,
            received: Cell::new(0),
            sent: Cell::new(0),
            moved_ms: Cell::new(now_ms),
            is_over: Cell::new(false),
            has_failed: Cell::new(false),
            waker: RefCell::default(),
        }
    }

    /// Sends without the event loop, which does not know yet whether a new socket is writable.
    pub(super) fn send(&self, datagram: &[u8], now_ms: u64) -> io::Result<()> {
        SockRef::from(&self.socket).send(datagram)?;
        self.received.set(self.received.get() + datagram.len() as u64);
        self.moved_ms.set(now_ms);
        Ok(())
    }

    /// Whether its client should get another session: this one has ended, or no stream route leads to its node any more, or the
    /// node has failed since or been found unhealthy, and another one is better.
    pub(super) fn is_to_be_left(&self, worker: &Worker) -> bool {
        if self.is_over.get() {
            return true;
        }
        let snapshot = worker.snapshot();
        if self.version.replace(snapshot.version) != snapshot.version && !snapshot.has_streams_to(&self.upstream) {
            return true;
        }
        self.upstream.state.borrow().is_to_be_left(self.slot, self.began_ms, worker.clock.now_ms())
    }

    /// A node that failed and answers nothing, as one that takes logs, is available again once it has not refused anything for long
    /// enough.
    pub(super) fn vouch(&self, worker: &Worker) {
        let is_long = worker.clock.now_ms() >= self.began_ms + TRIAL_MS;
        if is_long && self.upstream.state.borrow().is_doubted_since(self.slot, self.began_ms) {
            health::report(worker, &self.upstream, self.slot, TryReport::Opened, String::new);
        }
    }

    /// The node is unreachable: the session ends.
    pub(super) fn fail(&self, worker: &Worker) {
        if !self.has_failed.replace(true) {
            let why = || "nobody listens there (ICMP)".to_owned();
            health::report(worker, &self.upstream, self.slot, TryReport::Failed(Failure::Connect), why);
        }
        self.end();
    }

    /// Ends the session.
    pub(super) fn end(&self) {
        self.is_over.set(true);
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.get()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.get()
    }
}

/// A socket that is connected to this node only.
pub(super) fn socket_to(node: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match node {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = std::net::UdpSocket::bind(any)?;
    socket.connect(node)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

/// Whether the node's machine has reported that nothing listens there.
pub(super) fn is_refused(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_sessions_leaves_no_memory_behind() {
        const BURST: u16 = 20_000;
        let client = |port: u16| SocketAddr::from(([192, 0, 2, 1], port));
        let mut sessions: HashMap<_, _> = (0..BURST).map(|port| (client(port), ())).collect();
        let most = sessions.capacity();
        let mut moves = 0;
        for port in 10..BURST {
            let before = sessions.capacity();
            sessions.remove(&client(port));
            give_room_back(&mut sessions);
            // The slot of a removed one may still count as taken.
            moves += usize::from(sessions.capacity() + 1 < before);
        }
        assert_eq!(sessions.len(), 10);
        assert!(sessions.capacity() <= 4 * SESSIONS_KEPT && most >= usize::from(BURST), "{}", sessions.capacity());
        assert!(moves < 20, "moved {moves} times");
    }
}
