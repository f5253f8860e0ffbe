//! Finds out when the other end of a loopback connection has seen that ours was closed.
//!
//! The system delivers a FIN when it gets to it: on a busy machine, bytes that are sent later on another connection may
//! arrive before it. If that order is what a test is about, this asks the kernel, whose table also has the peer's
//! socket.

use crate::connection::Connection;
use crate::eventually;
use std::io::ErrorKind;

/// Sockets of this network namespace; the second table is absent without IPv6.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// States of a socket that has not seen its peer's FIN yet: ESTABLISHED, FIN_WAIT1, FIN_WAIT2.
const STATES_BEFORE_FIN: [&str; 3] = ["01", "04", "05"];

/// Closes a loopback connection and waits until its peer's socket has seen that: it is in CLOSE_WAIT, beyond, or gone.
///
/// # Panics
/// If that takes longer than [`crate::PATIENCE`].
pub(crate) fn close(connection: Connection) {
    let (ours, peer) = (connection.stream().local_addr(), connection.stream().peer_addr());
    drop(connection);
    // A connection without addresses had been reset, by the peer, which therefore knows.
    let (Ok(ours), Ok(peer)) = (ours, peer) else { return };
    let awaited = format!("the FIN from {ours} to reach its peer's socket {peer} (CLOSE_WAIT, 08 in {})", TABLES[0]);
    eventually(&awaited, || knows_the_end(peer.port(), ours.port()));
}

/// Whether no socket from port `local` to port `remote` still considers its peer open.
fn knows_the_end(local: u16, remote: u16) -> bool {
    TABLES.iter().all(|table| match std::fs::read_to_string(table) {
        Ok(text) => !text.lines().skip(1).any(|line| is_before_fin(line, local, remote)),
        Err(error) if error.kind() == ErrorKind::NotFound && table != &TABLES[0] => true,
        Err(error) => panic!("{table}: {error}; it shows when a peer has seen a FIN"),
    })
}

/// A line is `number: address:port address:port state …`, all in hexadecimal digits.
fn is_before_fin(line: &str, local: u16, remote: u16) -> bool {
    let mut words = line.split_whitespace().skip(1);
    let mut has_port = |port| words.next().is_some_and(|address| address.ends_with(&format!(":{port:04X}")));
    has_port(local) && has_port(remote) && words.next().is_some_and(|state| STATES_BEFORE_FIN.contains(&state))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn an_open_peer_is_distinguished_from_one_that_has_seen_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let ours = Connection::new(listener.accept().unwrap().0);
        let knows = |peer: u16| knows_the_end(peer, listener.local_addr().unwrap().port());
        let port = peer.local_addr().unwrap().port();
        assert!(!knows(port), "it is open");
        close(ours);
        assert!(knows(port), "it is in CLOSE_WAIT");
        drop(peer);
        assert!(knows(port), "it is gone");
    }

    #[test]
    fn lines_of_the_table() {
        let check = |state: &str, before: bool| {
            let line = format!("   3: 0100007F:1F90 0100007F:0BB8 {state} 00000000:00000000 00:00000000 00000000 0");
            assert_eq!(is_before_fin(&line, 8080, 3000), before, "{state}");
            assert!(!is_before_fin(&line, 3000, 8080), "the other end's");
        };
        check("01", true);
        check("05", true);
        check("06", false);
        check("08", false);
        check("09", false);
        assert!(!is_before_fin("", 1, 1));
    }
}
