//! The TCP sockets of this network namespace, and whose they are.

use super::all;
use std::fs;
use std::io;

/// The second is absent where there is no IPv6.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// A line of the kernel's tables of TCP sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpSocket {
    /// Its own port.
    pub local: u16,
    /// Its peer's port.
    pub remote: u16,
    /// The kernel's number: 1 is established, 10 listening.
    pub state: u8,
    inode: String,
}

impl TcpSocket {
    /// See [`TcpSocket::state`].
    pub const ESTABLISHED: u8 = 1;
    /// We have closed, and the peer has not acknowledged it.
    pub const FIN_WAIT1: u8 = 4;
    /// We have closed, and the peer has acknowledged it.
    pub const FIN_WAIT2: u8 = 5;
    /// It accepts connections.
    pub const LISTENING: u8 = 10;

    /// `number: address:port address:port state …`, all in hexadecimal digits; `None` is the table's head.
    fn parse(line: &str) -> Option<TcpSocket> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let port = |field: usize| u16::from_str_radix(fields.get(field)?.rsplit_once(':')?.1, 16).ok();
        let state = u8::from_str_radix(fields.get(3)?, 16).ok()?;
        Some(TcpSocket {
            local: port(1)?,
            remote: port(2)?,
            state,
            inode: fields.get(9).map(|inode| (*inode).to_owned())?,
        })
    }
}

/// All of them, of both families.
pub fn tcp_sockets() -> io::Result<Vec<TcpSocket>> {
    let mut sockets = Vec::new();
    for table in TABLES {
        match fs::read_to_string(table) {
            Ok(text) => sockets.extend(text.lines().filter_map(TcpSocket::parse)),
            Err(error) if error.kind() == io::ErrorKind::NotFound && table != TABLES[0] => {}
            Err(error) => return Err(io::Error::new(error.kind(), format!("{table}: {error}"))),
        }
    }
    Ok(sockets)
}

/// The process that has the listening socket of a port, in either family; `None`: none that we may see. Of several the youngest: an
/// older one may be about to end after an upgrade.
pub fn listener(port: u16) -> Option<u32> {
    let listens = |socket: &TcpSocket| socket.local == port && socket.state == TcpSocket::LISTENING;
    let sockets: Vec<TcpSocket> = tcp_sockets().ok()?.into_iter().filter(listens).collect();
    if sockets.is_empty() {
        return None;
    }
    let links: Vec<String> = sockets.iter().map(|socket| format!("socket:[{}]", socket.inode)).collect();
    let holds = |pid: &u32| {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        let mut targets = descriptors.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
        targets.any(|target| links.iter().any(|link| *target.to_string_lossy() == **link))
    };
    let mut pids = all();
    pids.sort_unstable_by(|a, b| b.cmp(a));
    pids.into_iter().find(holds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn the_listener_of_a_port_is_found() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(listener(socket.local_addr().unwrap().port()), Some(std::process::id()));
    }

    #[test]
    fn lines_of_the_kernel() {
        let line =
            "   0: 0100007F:2378 0100007F:0BB8 0A 00000000:00000000 00:00000000 00000000     0        0 41230 1 0";
        let socket = TcpSocket { local: 0x2378, remote: 3000, state: TcpSocket::LISTENING, inode: "41230".to_owned() };
        assert_eq!(TcpSocket::parse(line), Some(socket));
        assert_eq!(
            TcpSocket::parse("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid"),
            None
        );
        assert_eq!(TcpSocket::parse(""), None);
    }
}
