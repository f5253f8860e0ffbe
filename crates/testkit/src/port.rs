//! Ports that stay ours for a whole test.
//!
//! "Bind to 0, drop, reuse" loses the port to whoever comes first, and with `SO_REUSEPORT` listeners two gateways would
//! even share it silently. So a bound socket that never listens is kept: the kernel hands the port to nobody else,
//! connecting to it is refused, and a listener that sets `SO_REUSEADDR` or `SO_REUSEPORT` may still bind it.

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// A loopback port reserved until this is dropped.
#[derive(Debug)]
pub struct ReservedPort {
    _holder: Socket,
    addr: SocketAddr,
}

impl ReservedPort {
    /// Any free port.
    pub fn new() -> Self {
        let holder = reusable_socket();
        let any = SockAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        holder.bind(&any).expect("bind to any loopback port");
        let addr = holder.local_addr().unwrap().as_socket().unwrap();
        Self { _holder: holder, addr }
    }

    /// Its address. Refuses connections until somebody listens there.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Listens on it. May be done again after the listener was dropped.
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
