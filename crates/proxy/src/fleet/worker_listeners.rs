//! A worker's sockets and their readers: listeners that are added, changed and removed while it serves, and closed when it drains.
//!
//! ```text
//!  added ──▶ served ──▶ removed: no new connections begin, those that had begun are accepted ──▶ closed
//!                       (its connections and sessions end meanwhile, each in its own time)
//! ```
//!
//! A closed listening socket discards what waits in its queue, so it is closed once nothing can enter that queue any more: the
//! kernel drops first the packets that begin a connection, then everything, and what has arrived by then is accepted. Only a
//! connection whose handshake took longer than [`HANDSHAKE_TIME`] is lost.

use super::accept::accept;
use crate::handover::LeavingWorker;
use crate::sockets::listener::Listener;
use crate::sockets::{WorkerListener, WorkerSocket};
use crate::stream_proxy;
use crate::worker::Worker;
use socket2::{SockFilter, SockRef};
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use stillgate_config::{ListenPlace, Listener as Configured, Transport};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::{AbortHandle, spawn_local, yield_now};
use tokio::time::sleep;

/// How long a removed listener waits for handshakes that had begun. A client whose first packet is dropped sends it again after a
/// second, and then learns of it.
const HANDSHAKE_TIME: Duration = Duration::from_millis(500);
/// How often a removed UDP listener is checked for remaining sessions.
const SESSIONS_LOOK: Duration = Duration::from_millis(50);
/// Connections that are notified at once of the removal of their listener: others are served in between.
const WOKEN_AT_ONCE: usize = 64;

/// How what a worker listens on changes.
#[derive(Debug, Default)]
pub(crate) struct ListenerUpdate {
    /// Listeners that are already bound.
    pub(crate) added: Vec<WorkerListener>,
    /// Listeners that treat connections differently from now on.
    pub(crate) changed: Vec<Configured>,
    pub(crate) removed: Vec<ListenPlace>,
    /// How long connections of removed listeners have to finish.
    pub(crate) within: Duration,
    /// Dropped once the update is applied, so that its sender can wait for that.
    pub(crate) pending: Arc<()>,
}

/// The listeners of a worker.
#[derive(Default)]
pub(crate) struct WorkerListeners(RefCell<Vec<ListenerSocket>>);

/// One socket.
struct ListenerSocket {
    listener: Rc<Listener>,
    socket: ReadSocket,
    /// Shows that the socket still exists to a listener that is to bind the same place.
    _held: Arc<()>,
}

enum ReadSocket {
    Tcp {
        socket: Rc<TcpListener>,
        accepting: AbortHandle,
    },
    Udp {
        receiving: AbortHandle,
        /// Ends its sessions at once.
        is_closed: Rc<Cell<bool>>,
    },
    /// A socket that the previous process reads until this one serves alone.
    LeftUdp(UdpSocket),
}

impl WorkerListeners {
    /// Applies a change, as far as possible. An error: the system cannot watch a socket, so it is closed again.
    pub(crate) fn update(self: &Rc<Self>, worker: &Rc<Worker>, update: ListenerUpdate) -> io::Result<()> {
        let mut result = Ok(());
        for WorkerListener { configured, bound, sockets, held } in update.added {
            self.close(worker, configured.place());
            let listener = worker.listeners.add(configured, bound);
            for socket in sockets {
                let (listener, _held) = (listener.clone(), held.clone());
                match read(worker, &listener, socket) {
                    Ok(socket) => self.0.borrow_mut().push(ListenerSocket { listener, socket, _held }),
                    Err(error) => result = Err(error),
                }
            }
        }
        for configured in update.changed {
            if let Some(listener) = worker.listeners.find(configured.place()) {
                listener.configure(configured.kind);
            }
        }
        let end_ms = worker.clock.now_ms() + update.within.as_millis() as u64;
        for place in &update.removed {
            let Some(listener) = worker.listeners.find(*place) else { continue };
            listener.remove(end_ms);
            self.refuse_new(&listener);
            spawn_local(self.clone().retire(worker.clone(), listener));
        }
        if !update.removed.is_empty() {
            spawn_local(wake_connections(worker.clone()));
        }
        drop(update.pending);
        result
    }

    /// Reads also what the previous process has read until now.
    pub(crate) fn start_left_udp(&self, worker: &Rc<Worker>) {
        let readers = std::mem::take(&mut *self.0.borrow_mut());
        let read = |ListenerSocket { listener, socket, _held }: ListenerSocket| {
            let socket = match socket {
                ReadSocket::LeftUdp(socket) => receive(worker, &listener, socket),
                other => other,
            };
            ListenerSocket { listener, socket, _held }
        };
        *self.0.borrow_mut() = readers.into_iter().map(read).collect();
    }

    /// Ends all listeners except those that `stays` selects, which another process continues to read: nothing more is taken from
    /// them. What waits in the queues of the others is taken first. UDP sockets are read on, for their existing sessions.
    pub(crate) fn end(&self, worker: &Rc<Worker>, stays: impl Fn(ListenPlace) -> bool) {
        for ListenerSocket { listener, socket, .. } in self.0.take() {
            let is_left = stays(listener.bound);
            match socket {
                ReadSocket::Tcp { socket, accepting } => {
                    accepting.abort();
                    if !is_left {
                        take_waiting(worker, &listener, &socket);
                    }
                }
                ReadSocket::Udp { receiving, .. } if is_left => receiving.abort(),
                ReadSocket::Udp { .. } | ReadSocket::LeftUdp(_) => {}
            }
        }
    }

    /// Handles a removed listener until its sockets are closed.
    async fn retire(self: Rc<Self>, worker: Rc<Worker>, listener: Rc<Listener>) {
        match listener.place.transport {
            Transport::Tcp => sleep(HANDSHAKE_TIME).await,
            // Its sessions have no end to wait for except their silence.
            Transport::Udp => {
                while listener.open.get() > 0 && worker.clock.now_ms() < listener.end_ms() {
                    sleep(SESSIONS_LOOK).await;
                }
            }
        }
        // It may have returned, with other sockets.
        if listener.is_removed() {
            self.close(&worker, listener.place);
        }
    }

    /// Makes the kernel drop packets that would begin another connection. If it cannot, some connections may be lost.
    fn refuse_new(&self, listener: &Rc<Listener>) {
        for reader in self.0.borrow().iter().filter(|reader| Rc::ptr_eq(&reader.listener, listener)) {
            if let ReadSocket::Tcp { socket, .. } = &reader.socket
                && let Err(error) = SockRef::from(&**socket).attach_filter(&without_new())
            {
                tracing::debug!(%error, "a listener that was removed goes on taking connections for a moment");
            }
        }
    }

    /// Closes the sockets at a place, having taken what waits in their queues.
    fn close(&self, worker: &Rc<Worker>, place: ListenPlace) {
        let mut readers = self.0.borrow_mut();
        let closed: Vec<ListenerSocket> = readers.extract_if(.., |reader| reader.listener.place == place).collect();
        drop(readers);
        for ListenerSocket { listener, socket, .. } in closed {
            match socket {
                ReadSocket::Tcp { socket, accepting } => {
                    accepting.abort();
                    take_waiting(worker, &listener, &socket);
                }
                ReadSocket::Udp { receiving, is_closed } => {
                    receiving.abort();
                    is_closed.set(true);
                    worker.clock.wake_all();
                }
                ReadSocket::LeftUdp(_) => {}
            }
        }
    }
}

/// Begins to read a socket.
fn read(worker: &Rc<Worker>, listener: &Rc<Listener>, socket: WorkerSocket) -> io::Result<ReadSocket> {
    let WorkerSocket { socket, is_left } = socket;
    Ok(match listener.place.transport {
        Transport::Tcp => {
            let socket = Rc::new(TcpListener::from_std(socket.into())?);
            let accepting = spawn_local(accept(worker.clone(), socket.clone(), listener.clone())).abort_handle();
            ReadSocket::Tcp { socket, accepting }
        }
        Transport::Udp if is_left => ReadSocket::LeftUdp(UdpSocket::from_std(socket.into())?),
        Transport::Udp => receive(worker, listener, UdpSocket::from_std(socket.into())?),
    })
}

fn receive(worker: &Rc<Worker>, listener: &Rc<Listener>, socket: UdpSocket) -> ReadSocket {
    let is_closed = Rc::new(Cell::new(false));
    let serving = stream_proxy::serve_udp(worker.clone(), socket, listener.clone(), is_closed.clone());
    ReadSocket::Udp { receiving: spawn_local(serving).abort_handle(), is_closed }
}

/// Takes all connections that wait in the queue of a socket that is about to be closed, when no more can enter it.
fn take_waiting(worker: &Rc<Worker>, listener: &Rc<Listener>, socket: &TcpListener) {
    let socket = SockRef::from(socket);
    if let Err(error) = socket.attach_filter(&[NOTHING]) {
        tracing::debug!(%error, "connections may come to a listener that is being closed");
    }
    loop {
        let accepted = socket.accept().and_then(|(stream, peer)| {
            stream.set_nonblocking(true)?;
            let peer = peer.as_socket().ok_or(io::ErrorKind::InvalidData)?;
            Ok((TcpStream::from_std(stream.into())?, peer))
        });
        match accepted {
            Ok((stream, peer)) => worker.admit(stream, peer, listener),
            Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => {
                worker.counters.accept_errors.add(1);
                return tracing::warn!(%error, "connections that waited for a listener that is being closed are lost");
            }
        }
    }
}

/// Accepts no packet.
const NOTHING: SockFilter = filter(RETURN, 0, 0, 0);
const RETURN: u16 = 0x06;

const fn filter(code: u16, jump_if: u8, jump_else: u8, value: u32) -> SockFilter {
    SockFilter::new(code, jump_if, jump_else, value)
}

/// A packet filter, whose input begins with the TCP header: accepts all packets except those that begin a connection.
fn without_new() -> [SockFilter; 4] {
    const LOAD_BYTE: u16 = 0x30;
    const JUMP_IF_SET: u16 = 0x45;
    const FLAGS_AT: u32 = 13;
    const SYN: u32 = 0x02;
    [filter(LOAD_BYTE, 0, 0, FLAGS_AT), filter(JUMP_IF_SET, 1, 0, SYN), filter(RETURN, 0, 0, u32::MAX), NOTHING]
}

/// Makes all connections check whether their listener was removed, a few at a time.
async fn wake_connections(worker: Rc<Worker>) {
    let mut cursor = Some(Default::default());
    while let Some(from) = cursor {
        cursor = worker.clock.wake_some(from, WOKEN_AT_ONCE);
        yield_now().await;
    }
}

impl Worker {
    /// Closes the listeners, except those that a successor has as well.
    pub(super) fn start_draining(self: &Rc<Self>, serving: &WorkerListeners, giving: Option<Rc<LeavingWorker>>) {
        serving.end(self, |bound| giving.as_ref().is_some_and(|giving| giving.leaves_listener(bound)));
        self.draining.set(true);
        let gives_nothing = giving.is_none();
        self.giving.replace(giving);
        // Connections that are handed over are woken a few at a time.
        if gives_nothing {
            self.clock.wake_all();
        }
    }
}
