//! Finds out when the other end of a loopback connection has seen that ours was closed.
//!
//! The system delivers a FIN when it gets to it: on a busy machine, bytes that are sent later on another connection may
//! arrive before it. If that order is what a test is about, this asks the kernel, whose table also has the peer's
//! socket.

use crate::connection::BufferedSocket;
use crate::eventually;
use stillgate_rig::proc::{self, TcpSocket};

/// States of a socket that has not seen its peer's FIN yet: ESTABLISHED, FIN_WAIT1, FIN_WAIT2.
const STATES_BEFORE_FIN: [u8; 3] = [TcpSocket::ESTABLISHED, TcpSocket::FIN_WAIT1, TcpSocket::FIN_WAIT2];

/// Closes a loopback connection and waits until its peer's socket has seen that: it is in CLOSE_WAIT, beyond, or gone.
///
/// # Panics
/// If that takes longer than [`crate::PATIENCE`].
pub(crate) fn close(connection: BufferedSocket) {
    let (ours, peer) = (connection.stream().local_addr(), connection.stream().peer_addr());
    drop(connection);
    // A connection without addresses had been reset, by the peer, which therefore knows.
    let (Ok(ours), Ok(peer)) = (ours, peer) else { return };
    let awaited = format!("the FIN from {ours} to reach its peer's socket {peer} (CLOSE_WAIT)");
    eventually(&awaited, || knows_the_end(peer.port(), ours.port()));
}

/// Whether no socket from port `local` to port `remote` still considers its peer open.
fn knows_the_end(local: u16, remote: u16) -> bool {
    let sockets = proc::tcp_sockets().unwrap_or_else(|error| panic!("{error}; it shows when a peer has seen a FIN"));
    let between = |socket: &TcpSocket| socket.local == local && socket.remote == remote;
    !sockets.iter().any(|socket| between(socket) && STATES_BEFORE_FIN.contains(&socket.state))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn an_open_peer_is_distinguished_from_one_that_has_seen_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let ours = BufferedSocket::new(listener.accept().unwrap().0);
        let knows = |peer: u16| knows_the_end(peer, listener.local_addr().unwrap().port());
        let port = peer.local_addr().unwrap().port();
        assert!(!knows(port), "it is open");
        close(ours);
        assert!(knows(port), "it is in CLOSE_WAIT");
        drop(peer);
        assert!(knows(port), "it is gone");
    }
}
