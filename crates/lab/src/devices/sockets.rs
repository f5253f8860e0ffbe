//! Non-blocking connects.

use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use stillgate_rig::ports;

/// One in this many of a source's ports is used: beyond half of them Linux takes milliseconds to find a free one, which
/// would be measured as the gateway's time.
const PORTS_SHARE: usize = 3;

/// Source addresses for this many connections to one address: none if one source has enough ports.
///
/// On the loopback network every address of 127.0.0.0/8 belongs to this machine.
pub(super) fn sources(destination: SocketAddr, connections: usize) -> Result<Vec<IpAddr>, String> {
    choose(destination, connections, ports::of_connections().len())
}

fn choose(destination: SocketAddr, connections: usize, ports: usize) -> Result<Vec<IpAddr>, String> {
    let usable = ports / PORTS_SHARE;
    match destination.ip() {
        _ if connections <= usable => Ok(Vec::new()),
        // Slower, but they exist.
        ip if !ip.is_loopback() && connections <= ports => Ok(Vec::new()),
        IpAddr::V4(ip) if ip.is_loopback() => {
            let first = u32::from(Ipv4Addr::LOCALHOST);
            Ok((0..connections.div_ceil(usable.max(1)) as u32)
                .map(|number| Ipv4Addr::from(first + number).into())
                .collect())
        }
        _ => Err(format!(
            "{connections} connections to one address need more ports than this machine's {ports}; \
             run several of these commands on several machines, or widen net.ipv4.ip_local_port_range"
        )),
    }
}

/// Begins a connection; it is established when the socket becomes writable.
pub(super) fn connect(to: SocketAddr, from: Option<IpAddr>) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    // Dropping it resets the connection, as when a device loses power; no port stays in TIME_WAIT.
    socket.set_linger(Some(Duration::ZERO))?;
    if let Some(from) = from {
        socket.bind(&SocketAddr::new(from, 0).into())?;
    }
    match socket.connect(&to.into()) {
        Err(error) if error.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => Err(error),
        _ => Ok(socket),
    }
}

/// Whether an error means "later".
pub(super) fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::NotConnected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_connections_than_ports_take_more_sources() {
        let check = |destination: &str, connections, expected: Result<&[&str], &str>| {
            let chosen = choose(destination.parse().unwrap(), connections, 10_000);
            match (chosen, expected) {
                (Ok(chosen), Ok(expected)) => {
                    assert_eq!(chosen.iter().map(IpAddr::to_string).collect::<Vec<_>>(), expected);
                }
                (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
                (chosen, expected) => panic!("{chosen:?}, expected {expected:?}"),
            }
        };
        check("127.0.0.1:1", 3_333, Ok(&[]));
        check("127.0.0.1:1", 3_334, Ok(&["127.0.0.1", "127.0.0.2"]));
        check("10.0.0.1:1", 10_000, Ok(&[]));
        check("10.0.0.1:1", 10_001, Err("several machines"));
    }
}
