//! What the process listens on: sockets that are bound, or inherited from the previous process, distributed to the workers.
//!
//! Each place has one socket per worker on the same address, and the kernel spreads connections (or datagrams) over them. An
//! inherited socket is used in any case, also if there are more of them than workers: connections wait in its queue, and closing it
//! would reset them.

pub(crate) mod listener;

use socket2::{Domain, Protocol, Socket, Type};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use stillgate_config::{ListenPlace, Listener, Transport, listener_paths};

/// Connections that may wait to be accepted, per worker and listener.
const BACKLOG: i32 = 4096;

/// The sockets of one listener.
#[derive(Debug)]
pub struct ListenerSockets {
    /// The listener as it was configured.
    pub listener: Listener,
    /// The actual address.
    address: SocketAddr,
    /// Sockets that we inherited come first.
    sockets: Vec<Socket>,
    left: usize,
    /// Others hold it as long as they have its sockets.
    held: Arc<()>,
}

/// The sockets of a place that another process has left.
#[derive(Debug)]
struct InheritedPlace {
    place: ListenPlace,
    address: SocketAddr,
    sockets: Vec<Socket>,
}

/// Sockets that the previous process has left to this one, until they are taken.
#[derive(Debug, Default)]
pub struct InheritedSockets(Vec<InheritedPlace>);

/// Everything that the workers listen on, in the order of the configuration.
#[derive(Debug, Default)]
pub struct Sockets(Vec<ListenerSockets>);

/// A listener that could not be opened.
#[derive(Debug)]
pub struct ListenError {
    /// The configuration key that names it.
    pub key: String,
    /// The reason.
    pub error: StartError,
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.error)
    }
}

/// A worker's part of a listener.
#[derive(Debug)]
pub(crate) struct WorkerListener {
    pub(crate) configured: Listener,
    pub(crate) bound: ListenPlace,
    pub(crate) sockets: Vec<WorkerSocket>,
    /// Its owner has sockets.
    pub(crate) held: Arc<()>,
}

/// One of a worker's own sockets.
#[derive(Debug)]
pub(crate) struct WorkerSocket {
    pub(crate) socket: Socket,
    /// The previous process may read it as well.
    pub(crate) is_left: bool,
}

impl InheritedSockets {
    /// Keeps the sockets left for a place. An error: they are not what they were said to be.
    pub fn add(&mut self, place: ListenPlace, sockets: Vec<OwnedFd>) -> io::Result<()> {
        let sockets: Vec<Socket> = sockets.into_iter().map(Socket::from).collect();
        let kind = match place.transport {
            Transport::Tcp => Type::STREAM,
            Transport::Udp => Type::DGRAM,
        };
        for socket in &sockets {
            if socket.r#type()? != kind || (kind == Type::STREAM && !socket.is_listener()?) {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a socket of another kind"));
            }
            socket.set_nonblocking(true)?;
        }
        let Some(first) = sockets.first() else { return Ok(()) };
        let address = local_address(first)?;
        self.0.push(InheritedPlace { place, address, sockets });
        Ok(())
    }

    fn take(&mut self, place: ListenPlace) -> Option<InheritedPlace> {
        let at = self.0.iter().position(|left| left.place == place)?;
        Some(self.0.swap_remove(at))
    }
}

impl ListenerSockets {
    /// Opens a listener with the sockets inherited for its place, and as many more as are missing. `is_ours`: sockets of this
    /// process are in the way.
    fn open(
        listener: Listener,
        sockets_min: usize,
        inherited: &mut InheritedSockets,
        is_ours: bool,
    ) -> Result<ListenerSockets, StartError> {
        let (place, held) = (listener.place(), Arc::new(()));
        let fail = |error| StartError::Bind { address: place.address, error };
        let mut listening = match inherited.take(place) {
            Some(InheritedPlace { address, sockets, .. }) => {
                ListenerSockets { listener, address, left: sockets.len(), sockets, held }
            }
            None => {
                // Every socket that shares a port requests sharing, so another gateway that is already there would not be noticed:
                // a first socket that does not share finds out, unless it would find ourselves.
                if !is_ours {
                    drop(bind(place, false).map_err(fail)?);
                }
                ListenerSockets { listener, address: place.address, sockets: Vec::new(), left: 0, held }
            }
        };
        while listening.sockets.len() < sockets_min {
            let socket = bind(ListenPlace { address: listening.address, ..place }, true).map_err(fail)?;
            listening.address = local_address(&socket).map_err(fail)?;
            listening.sockets.push(socket);
        }
        Ok(listening)
    }

    /// The place that identifies it.
    pub fn place(&self) -> ListenPlace {
        self.listener.place()
    }

    /// The place that it is bound to.
    pub fn bound_place(&self) -> ListenPlace {
        ListenPlace { address: self.address, ..self.place() }
    }

    /// Shows, as long as it can be upgraded, that sockets of this are in use.
    pub(crate) fn in_use_marker(&self) -> Weak<()> {
        Arc::downgrade(&self.held)
    }

    /// Its address: a port configured as zero is the one that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its sockets, to be left to another process.
    pub fn sockets(&self) -> impl ExactSizeIterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(AsFd::as_fd)
    }

    /// The first of its sockets, as one more descriptor: it is the only one if one was configured.
    pub fn share(&self) -> io::Result<Socket> {
        self.sockets.first().ok_or(io::ErrorKind::NotFound)?.try_clone()
    }
}

impl Sockets {
    /// Opens the sockets of all listeners; what was inherited for others stays in `inherited`.
    pub fn open(
        listeners: &[Listener],
        workers: usize,
        inherited: &mut InheritedSockets,
    ) -> Result<Sockets, ListenError> {
        let open = |(path, listener): (String, &Listener)| {
            ListenerSockets::open(*listener, workers, inherited, false).map_err(|error| ListenError::new(&path, error))
        };
        listener_paths(listeners).map(open).collect::<Result<_, _>>().map(Sockets)
    }

    /// Opens the sockets of listeners that are not among these. `closing` are places where some worker still has sockets.
    pub(crate) fn open_added(
        &self,
        listeners: &[Listener],
        workers: usize,
        closing: &[ListenPlace],
    ) -> Result<Vec<ListenerSockets>, ListenError> {
        let ours: Vec<ListenPlace> =
            self.0.iter().map(ListenerSockets::bound_place).chain(closing.iter().copied()).collect();
        let added = listener_paths(listeners).filter(|(_, listener)| self.at(listener.place()).is_none());
        let open = |(path, listener): (String, &Listener)| {
            let is_ours = ours.iter().any(|ours| ours.overlaps(listener.place()));
            ListenerSockets::open(*listener, workers, &mut InheritedSockets::default(), is_ours)
                .map_err(|error| ListenError::new(&path, error))
        };
        added.map(open).collect()
    }

    /// Where the listeners are, in the configuration's order.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.0.iter().map(ListenerSockets::address).collect()
    }

    /// All listeners, in the configuration's order.
    pub fn listening(&self) -> &[ListenerSockets] {
        &self.0
    }

    fn at(&self, place: ListenPlace) -> Option<&ListenerSockets> {
        self.0.iter().find(|listening| listening.place() == place)
    }

    /// Applies a configuration whose additional listeners are open. Returns the listeners that have changed, and those that are not
    /// in it.
    pub(crate) fn replace(
        &mut self,
        listeners: &[Listener],
        added: Vec<ListenerSockets>,
    ) -> (Vec<Listener>, Vec<ListenerSockets>) {
        let mut before: Vec<ListenerSockets> = std::mem::take(&mut self.0).into_iter().chain(added).collect();
        let mut changed = Vec::new();
        for listener in listeners {
            let at = before.iter().position(|listening| listening.place() == listener.place());
            let Some(mut listening) = at.map(|at| before.swap_remove(at)) else { continue };
            if std::mem::replace(&mut listening.listener, *listener) != *listener {
                changed.push(*listener);
            }
            self.0.push(listening);
        }
        (changed, before)
    }

    /// A descriptor of each socket for the worker that it belongs to. Ours remain open until they are dropped.
    pub(crate) fn deal(&self, workers: usize) -> io::Result<Vec<Vec<WorkerListener>>> {
        deal(&self.0, workers)
    }
}

impl ListenError {
    fn new(path: &str, error: StartError) -> ListenError {
        ListenError { key: format!("{path}.address"), error }
    }
}

/// A descriptor of each socket for the worker that it belongs to.
pub(crate) fn deal(listening: &[ListenerSockets], workers: usize) -> io::Result<Vec<Vec<WorkerListener>>> {
    let mut dealt: Vec<Vec<WorkerListener>> = (0..workers).map(|_| Vec::new()).collect();
    for of in listening {
        let part = || WorkerListener {
            configured: of.listener,
            bound: of.bound_place(),
            sockets: Vec::new(),
            held: of.held.clone(),
        };
        dealt.iter_mut().for_each(|dealt| dealt.push(part()));
        for (at, socket) in of.sockets.iter().enumerate() {
            let sockets = &mut dealt[at % workers].last_mut().expect("each has just been given one").sockets;
            sockets.push(WorkerSocket { socket: socket.try_clone()?, is_left: at < of.left });
        }
    }
    Ok(dealt)
}

fn local_address(socket: &Socket) -> io::Result<SocketAddr> {
    let address = socket.local_addr()?.as_socket();
    address.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a socket without an IP address"))
}

fn bind(place: ListenPlace, shared: bool) -> io::Result<Socket> {
    let ListenPlace { transport, address } = place;
    let (kind, protocol) = match transport {
        Transport::Tcp => (Type::STREAM, Protocol::TCP),
        Transport::Udp => (Type::DGRAM, Protocol::UDP),
    };
    let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
    // A UDP socket would share the address with any other that requests it.
    if transport == Transport::Tcp {
        socket.set_reuse_address(true)?;
    }
    socket.set_reuse_port(shared)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    if shared && transport == Transport::Tcp {
        socket.listen(BACKLOG)?;
    }
    Ok(socket)
}

// Why the workers could not start.

/// Why the workers could not be started, or did not end normally.
#[derive(Debug)]
pub enum StartError {
    /// A listener's address is not available.
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// A thread or its runtime could not be created.
    Thread(io::Error),
    /// A worker's thread ended in a panic, which its own log line describes.
    Panicked {
        /// Its number, from 0.
        worker: usize,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Bind { address, error } => {
                write!(f, "cannot listen on {address}: {error}")?;
                match error.kind() {
                    io::ErrorKind::AddrInUse => {
                        write!(f, "; see who does: ss -lntup 'sport = :{}'", address.port())
                    }
                    io::ErrorKind::PermissionDenied => {
                        write!(f, "; ports below 1024 need root or the capability CAP_NET_BIND_SERVICE")
                    }
                    io::ErrorKind::AddrNotAvailable => write!(f, "; no interface has this address (see: ip addr)"),
                    _ => Ok(()),
                }
            }
            StartError::Thread(error) => write!(f, "cannot start a worker thread: {error}"),
            StartError::Panicked { worker } => write!(f, "worker {worker} ended in a panic"),
        }
    }
}

impl std::error::Error for StartError {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use stillgate_config::ListenerKind;
    use stillgate_testkit::ReservedPort;

    fn place(transport: Transport) -> ListenPlace {
        ListenPlace { transport, address: "127.0.0.1:0".parse().unwrap() }
    }

    fn open(
        place: ListenPlace,
        sockets: usize,
        inherited: &mut InheritedSockets,
    ) -> Result<ListenerSockets, StartError> {
        let kind = match place.transport {
            Transport::Tcp => ListenerKind::Tcp { tls: false, tls_passthrough: false, proxy_protocol: false },
            Transport::Udp => ListenerKind::Udp,
        };
        ListenerSockets::open(Listener { address: place.address, kind }, sockets, inherited, false)
    }

    fn left(listening: &ListenerSockets) -> Vec<OwnedFd> {
        listening.sockets().map(|socket| socket.try_clone_to_owned().unwrap()).collect()
    }

    #[test]
    fn what_was_left_is_used_whatever_the_number_of_workers() {
        for transport in [Transport::Tcp, Transport::Udp] {
            for (before, now) in [(1, 1), (3, 1), (1, 3), (2, 3)] {
                let place = place(transport);
                let old = open(place, before, &mut InheritedSockets::default()).unwrap();
                assert_eq!(old.sockets.len(), before);
                let mut inherited = InheritedSockets::default();
                inherited.add(place, left(&old)).unwrap();
                let new = Sockets(vec![open(place, now, &mut inherited).unwrap()]);
                assert!(inherited.0.is_empty());
                assert_eq!(new.addresses(), [old.address()]);
                let dealt = new.deal(now).unwrap();
                let sockets = || dealt.iter().flatten().map(|listener| listener.sockets.len());
                assert_eq!(sockets().sum::<usize>(), before.max(now));
                assert!(sockets().all(|sockets| sockets > 0), "each worker has one");
            }
        }
    }

    #[test]
    fn connections_that_wait_go_to_whom_the_socket_was_left() {
        let old = open(place(Transport::Tcp), 1, &mut InheritedSockets::default()).unwrap();
        let mut client = TcpStream::connect(old.address()).unwrap();
        client.write_all(b"x").unwrap();
        let mut inherited = InheritedSockets::default();
        inherited.add(old.place(), left(&old)).unwrap();
        drop(old);
        let new = open(place(Transport::Tcp), 1, &mut inherited).unwrap();
        let listener = TcpListener::from(new.share().unwrap());
        assert_eq!(listener.accept().unwrap().1, client.local_addr().unwrap());
    }

    #[test]
    fn places_are_taken_once_and_by_those_who_ask_for_them() {
        let [a, b] = [(); 2].map(|()| open(place(Transport::Tcp), 1, &mut InheritedSockets::default()).unwrap());
        let mut inherited = InheritedSockets::default();
        inherited.add(a.place(), left(&a)).unwrap();
        inherited.add(b.place(), left(&b)).unwrap();
        let other = open(place(Transport::Udp), 1, &mut inherited).unwrap();
        assert_eq!((inherited.0.len(), other.place().transport), (2, Transport::Udp));
        let mut found = [(); 3].map(|()| open(a.place(), 1, &mut inherited).unwrap().address());
        found.sort_unstable();
        assert!(found.contains(&a.address()) && found.contains(&b.address()));
        assert!(found[0] != found[1] && found[1] != found[2]);
    }

    #[test]
    fn a_socket_of_another_kind_is_refused() {
        let mut inherited = InheritedSockets::default();
        let connected = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(connected.local_addr().unwrap()).unwrap();
        assert!(inherited.add(place(Transport::Tcp), vec![stream.into()]).is_err());
        assert!(inherited.add(place(Transport::Udp), vec![connected.into()]).is_err());
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(inherited.add(place(Transport::Tcp), vec![file.into()]).is_err());
    }

    #[test]
    fn only_what_is_not_there_is_opened() {
        let kind = ListenerKind::Http { tls: false, proxy_protocol: false, http2: true };
        let ports = [(); 2].map(|()| ReservedPort::new());
        let [a, b] = [0, 1].map(|at: usize| Listener { address: ports[at].addr(), kind });
        let mut sockets = Sockets::open(&[a], 2, &mut InheritedSockets::default()).unwrap();
        let secured = Listener { kind: ListenerKind::Http { tls: true, proxy_protocol: false, http2: true }, ..a };
        let added = sockets.open_added(&[b, secured], 2, &[]).unwrap();
        assert_eq!(added.iter().map(ListenerSockets::address).collect::<Vec<_>>(), [b.address]);
        let (changed, removed) = sockets.replace(&[b, secured], added);
        assert_eq!((changed, removed.len()), (vec![secured], 0));
        assert_eq!(sockets.addresses(), [b.address, a.address]);
        // All addresses, including ours.
        let wide = Listener { address: SocketAddr::from(([0; 4], a.address.port())), ..a };
        let added = sockets.open_added(&[wide], 1, &[]).unwrap();
        let (changed, removed) = sockets.replace(&[wide], added);
        assert_eq!((changed.len(), removed.len()), (0, 2));
        let error = sockets.open_added(&[wide, b], 1, &[]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("gateway.listeners[1].address: cannot listen on {}", b.address)), "{error}");
        drop(removed);
        sockets.open_added(&[wide, b], 1, &[]).unwrap();
    }

    #[test]
    fn an_address_in_use_is_not_shared_with_a_stranger() {
        for transport in [Transport::Tcp, Transport::Udp] {
            let first = open(place(transport), 2, &mut InheritedSockets::default()).unwrap();
            let same = ListenPlace { transport, address: first.address() };
            let second = open(same, 2, &mut InheritedSockets::default());
            assert!(matches!(second, Err(StartError::Bind { .. })), "{transport:?}");
        }
    }
}
