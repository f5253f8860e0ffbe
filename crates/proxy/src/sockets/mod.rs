//! What the process listens on: sockets that are bound, or were left to it by the process before, shared out to the workers.
//!
//! Each place has one socket per worker on the same address, and the kernel spreads connections (or datagrams) over them. A
//! socket that was left to us is used in any case, also where there are more of them than workers: connections wait in its queue,
//! and closing it would reset them.

mod error;

pub use error::StartError;

use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use stillgate_config::Gateway;

/// Connections that may wait to be accepted, per worker and listener.
const BACKLOG: i32 = 4096;

/// What is spoken on a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Connections.
    Tcp,
    /// Datagrams.
    Udp,
}

/// Where to listen. As the configuration says it the port may be zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ListenPlace {
    /// For what.
    pub transport: Transport,
    /// Where.
    pub address: SocketAddr,
}

/// The sockets of one place.
#[derive(Debug)]
pub struct Listening {
    /// As it was asked for.
    pub place: ListenPlace,
    /// Where that is.
    address: SocketAddr,
    /// Those that were left to us come first.
    sockets: Vec<Socket>,
    left: usize,
}

/// What the process before has left to this one, until it is taken.
#[derive(Debug, Default)]
pub struct Inherited(Vec<Listening>);

/// Everything that the workers listen on, in the order of the configuration.
#[derive(Debug)]
pub struct Sockets(Vec<Listening>);

/// One of a worker's own.
#[derive(Debug)]
pub(crate) struct WorkerSocket {
    /// Which of the configured listeners it is one of.
    pub(crate) listener: usize,
    pub(crate) socket: Socket,
    /// The process before may read it as well.
    pub(crate) is_left: bool,
}

impl ListenPlace {
    /// For connections.
    pub fn tcp(address: SocketAddr) -> ListenPlace {
        ListenPlace { transport: Transport::Tcp, address }
    }

    /// For datagrams.
    pub fn udp(address: SocketAddr) -> ListenPlace {
        ListenPlace { transport: Transport::Udp, address }
    }
}

impl Inherited {
    /// Keeps what was left of a place. An error: they are not what they were said to be.
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
        let left = sockets.len();
        self.0.push(Listening { place, address, sockets, left });
        Ok(())
    }

    fn take(&mut self, place: ListenPlace) -> Option<Listening> {
        let at = self.0.iter().position(|listening| listening.place == place)?;
        Some(self.0.swap_remove(at))
    }
}

impl Listening {
    /// Those that were left of a place, and as many more as are missing.
    pub fn open(place: ListenPlace, sockets_min: usize, inherited: &mut Inherited) -> Result<Listening, StartError> {
        let fail = |error| StartError::Bind { address: place.address, error };
        let mut listening = match inherited.take(place) {
            Some(left) => left,
            None => {
                // Sharing a port is asked for by every socket that shares it, so another gateway already there would not be
                // noticed: a first socket that does not share finds out.
                drop(bind(place, false).map_err(fail)?);
                Listening { place, address: place.address, sockets: Vec::new(), left: 0 }
            }
        };
        while listening.sockets.len() < sockets_min {
            let socket = bind(ListenPlace { address: listening.address, ..place }, true).map_err(fail)?;
            listening.address = local_address(&socket).map_err(fail)?;
            listening.sockets.push(socket);
        }
        Ok(listening)
    }

    /// Where that has come to be.
    pub fn bound(&self) -> ListenPlace {
        ListenPlace { address: self.address, ..self.place }
    }

    /// Where it is: a port that was asked for as zero is what the system made of it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its sockets, to be left to another process.
    pub fn sockets(&self) -> impl ExactSizeIterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(AsFd::as_fd)
    }

    /// The first of its sockets, as one more descriptor: there is no other where one was asked for.
    pub fn share(&self) -> io::Result<Socket> {
        self.sockets.first().ok_or(io::ErrorKind::NotFound)?.try_clone()
    }
}

impl Sockets {
    /// Those of all listeners; what was left of others stays in `inherited`.
    pub fn open(gateway: &Gateway, workers: usize, inherited: &mut Inherited) -> Result<Sockets, StartError> {
        let streams = &gateway.stream_proxy;
        let places = gateway.listeners.iter().map(|listener| ListenPlace::tcp(listener.address));
        let places = places.chain(streams.tcp.iter().map(|listener| ListenPlace::tcp(listener.address)));
        let places = places.chain(streams.udp.iter().map(|listener| ListenPlace::udp(listener.address)));
        places.map(|place| Listening::open(place, workers, inherited)).collect::<Result<_, _>>().map(Sockets)
    }

    /// Where the listeners are, in the configuration's order.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.0.iter().map(Listening::address).collect()
    }

    /// What there is, in the configuration's order.
    pub fn listening(&self) -> &[Listening] {
        &self.0
    }

    /// A descriptor of each socket for the worker that it belongs to. Ours stay open until they are dropped.
    pub(crate) fn deal(&self, workers: usize) -> io::Result<Vec<Vec<WorkerSocket>>> {
        let mut dealt: Vec<Vec<WorkerSocket>> = (0..workers).map(|_| Vec::new()).collect();
        for (listener, listening) in self.0.iter().enumerate() {
            for (at, socket) in listening.sockets.iter().enumerate() {
                let is_left = at < listening.left;
                dealt[at % workers].push(WorkerSocket { listener, socket: socket.try_clone()?, is_left });
            }
        }
        Ok(dealt)
    }
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
    // Of a UDP socket it would share the address with any other that asks for it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    fn place(transport: Transport) -> ListenPlace {
        ListenPlace { transport, address: "127.0.0.1:0".parse().unwrap() }
    }

    fn left(listening: &Listening) -> Vec<OwnedFd> {
        listening.sockets().map(|socket| socket.try_clone_to_owned().unwrap()).collect()
    }

    #[test]
    fn what_was_left_is_used_whatever_the_number_of_workers() {
        for transport in [Transport::Tcp, Transport::Udp] {
            for (before, now) in [(1, 1), (3, 1), (1, 3), (2, 3)] {
                let place = place(transport);
                let old = Listening::open(place, before, &mut Inherited::default()).unwrap();
                assert_eq!(old.sockets.len(), before);
                let mut inherited = Inherited::default();
                inherited.add(place, left(&old)).unwrap();
                let new = Sockets(vec![Listening::open(place, now, &mut inherited).unwrap()]);
                assert!(inherited.0.is_empty());
                assert_eq!(new.addresses(), [old.address()]);
                let dealt = new.deal(now).unwrap();
                assert_eq!(dealt.iter().map(Vec::len).sum::<usize>(), before.max(now));
                assert!(dealt.iter().all(|sockets| !sockets.is_empty()), "each worker has one");
            }
        }
    }

    #[test]
    fn connections_that_wait_go_to_whom_the_socket_was_left() {
        let old = Listening::open(place(Transport::Tcp), 1, &mut Inherited::default()).unwrap();
        let mut client = TcpStream::connect(old.address()).unwrap();
        client.write_all(b"x").unwrap();
        let mut inherited = Inherited::default();
        inherited.add(old.place, left(&old)).unwrap();
        drop(old);
        let new = Listening::open(place(Transport::Tcp), 1, &mut inherited).unwrap();
        let listener = TcpListener::from(new.share().unwrap());
        assert_eq!(listener.accept().unwrap().1, client.local_addr().unwrap());
    }

    #[test]
    fn places_are_taken_once_and_by_those_who_ask_for_them() {
        let [a, b] = [(); 2].map(|()| Listening::open(place(Transport::Tcp), 1, &mut Inherited::default()).unwrap());
        let mut inherited = Inherited::default();
        inherited.add(a.place, left(&a)).unwrap();
        inherited.add(b.place, left(&b)).unwrap();
        let other = Listening::open(place(Transport::Udp), 1, &mut inherited).unwrap();
        assert_eq!((inherited.0.len(), other.place.transport), (2, Transport::Udp));
        let mut found = [(); 3].map(|()| Listening::open(a.place, 1, &mut inherited).unwrap().address());
        found.sort_unstable();
        assert!(found.contains(&a.address()) && found.contains(&b.address()));
        assert!(found[0] != found[1] && found[1] != found[2]);
    }

    #[test]
    fn a_socket_of_another_kind_is_refused() {
        let mut inherited = Inherited::default();
        let connected = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(connected.local_addr().unwrap()).unwrap();
        assert!(inherited.add(place(Transport::Tcp), vec![stream.into()]).is_err());
        assert!(inherited.add(place(Transport::Udp), vec![connected.into()]).is_err());
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(inherited.add(place(Transport::Tcp), vec![file.into()]).is_err());
    }

    #[test]
    fn an_address_in_use_is_not_shared_with_a_stranger() {
        for transport in [Transport::Tcp, Transport::Udp] {
            let first = Listening::open(place(transport), 2, &mut Inherited::default()).unwrap();
            let same = ListenPlace { transport, address: first.address() };
            let second = Listening::open(same, 2, &mut Inherited::default());
            assert!(matches!(second, Err(StartError::Bind { .. })), "{transport:?}");
        }
    }
}
