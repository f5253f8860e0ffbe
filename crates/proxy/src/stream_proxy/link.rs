//! A UDP session's link to its node: a socket of its own, and counts of what has gone over it.

use crate::node::health;
use crate::plan::snapshot::WorkerUpstream;
use crate::worker::Worker;
use socket2::SockRef;
use std::cell::{Cell, RefCell};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::task::Waker;
use stillgate_upstream::{Failure, TryReport};
use tokio::net::UdpSocket;

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
