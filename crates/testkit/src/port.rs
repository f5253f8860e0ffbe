//! Ports that stay ours for a whole test.
//!
//! "Bind to 0, drop, reuse" loses the port to another process, and with `SO_REUSEPORT` listeners two gateways would
//! even share it silently. So a bound socket that never listens is kept: the kernel gives the port to no other process,
//! connecting to it is refused, and a listener that sets `SO_REUSEADDR` or `SO_REUSEPORT` may still bind it.

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::Range;

/// Ports that the kernel assigns only on request (see `net.ipv4.ip_local_port_range`).
const NEVER_UNASKED: Range<u16> = 10_000..32_000;

/// A UDP port reserved here is reserved for all users of this crate. Nothing is sent to it.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 64, 0, 1);

/// A loopback port reserved until this is dropped.
#[derive(Debug)]
pub struct ReservedPort {
    _holder: Socket,
    _elsewhere: Option<UdpSocket>,
    addr: SocketAddr,
}

impl ReservedPort {
    /// Any free port.
    pub fn new() -> Self {
        let holder = reusable_socket();
        let any = SockAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        holder.bind(&any).expect("bind to any loopback port");
        let addr = holder.local_addr().unwrap().as_socket().unwrap();
        Self { _holder: holder, _elsewhere: None, addr }
    }

    /// A port that is also free for UDP. A UDP port cannot be reserved for another process to bind, and the kernel
    /// would give it to the next socket that requests any port: so it is one of those that the kernel assigns only on
    /// request.
    ///
    /// # Panics
    /// If all of them are in use.
    pub fn for_udp_too() -> Self {
        let first = RandomState::new().build_hasher().finish() as usize % NEVER_UNASKED.len();
        let reserved = NEVER_UNASKED.cycle().skip(first).take(NEVER_UNASKED.len()).find_map(Self::at);
        reserved.expect("a port below those that the kernel assigns")
    }

    /// This port; `None` if it is in use.
    fn at(port: u16) -> Option<Self> {
        let elsewhere = UdpSocket::bind((ELSEWHERE, port)).ok()?;
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let is_free = UdpSocket::bind(addr).is_ok() && TcpListener::bind(addr).is_ok();
        let holder = reusable_socket();
        (is_free && holder.bind(&addr.into()).is_ok()).then_some(Self {
            _holder: holder,
            _elsewhere: Some(elsewhere),
            addr,
        })
    }

    /// Its address. Refuses connections until something listens there.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Listens on it. May be repeated after the listener was dropped.
    pub fn listen(&self) -> TcpListener {
        let socket = reusable_socket();
        socket.bind(&SockAddr::from(self.addr)).expect("bind to the reserved port");
        socket.listen(1024).expect("listen on the reserved port");
        socket.into()
    }
}

impl Default for ReservedPort {
    fn default() -> Self {
        Self::new()
    }
}

fn reusable_socket() -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).expect("open a TCP socket");
    socket.set_reuse_address(true).expect("SO_REUSEADDR");
    socket.set_reuse_port(true).expect("SO_REUSEPORT");
    socket
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    #[test]
    fn one_for_udp_too_is_given_once_and_may_be_bound() {
        let port = ReservedPort::for_udp_too();
        assert!(ReservedPort::at(port.addr().port()).is_none());
        assert!(TcpStream::connect(port.addr()).is_err());
        let listener = port.listen();
        let datagrams = UdpSocket::bind(port.addr()).expect("a foreign socket may take it");
        assert!(TcpStream::connect(port.addr()).is_ok());
        let taken = port.addr().port();
        drop((port, listener));
        assert!(ReservedPort::at(taken).is_none(), "it is still bound");
        drop(datagrams);
    }

    #[test]
    fn refuses_until_listened_on_and_again_after() {
        let port = ReservedPort::new();
        assert!(TcpStream::connect(port.addr()).is_err());
        let listener = port.listen();
        assert!(TcpStream::connect(port.addr()).is_ok());
        drop(listener);
        assert!(TcpStream::connect(port.addr()).is_err());
        // The standard library sets SO_REUSEADDR only, as nginx does.
        let plain = TcpListener::bind(port.addr()).expect("a foreign listener may take it");
        assert!(TcpStream::connect(plain.local_addr().unwrap()).is_ok());
    }
}
