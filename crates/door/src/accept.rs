//! Accepts the connections of a server that is separate from the gateway's traffic: exporter, Admin API, device API.
//!
//! A connection without a place is refused at once. In the kernel's queue it would hold up everybody behind it, including peers
//! with a reserved place.

use crate::connection_slots::{ConnectionSlot, ConnectionSlots};
use socket2::SockRef;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tracing::warn;

/// One in this many failures in a row is logged.
const FAILURES_PER_LINE: u64 = 100;
/// How long accepting pauses after a failure, for example without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The shortest interval between log lines about refused connections.
const TURNED_AWAY_EVERY: Duration = Duration::from_secs(10);

/// Without a body, because the request is not read: the response to a HEAD must not have one.
const TURNED_AWAY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nretry-after: 1\r\nconnection: close\r\n\r\n";

/// Accepts connections as long as it is polled. The log calls the server by this name; `serve` gets each connection with its
/// place.
pub async fn accept(
    listener: &TcpListener,
    places: &ConnectionSlots,
    server: &str,
    mut serve: impl FnMut(TcpStream, SocketAddr, ConnectionSlot),
) {
    let mut failures = 0u64;
    let mut turned_away = 0u64;
    let mut tell_at = Instant::now();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                failures = 0;
                if let Some(place) = places.take(peer.ip()) {
                    serve(stream, peer, place);
                    continue;
                }
                turn_away(&stream);
                turned_away += 1;
                if Instant::now() >= tell_at {
                    warn!(%peer, connections = turned_away, "{server}: too many connections; new ones are closed");
                    (turned_away, tell_at) = (0, Instant::now() + TURNED_AWAY_EVERY);
                }
            }
            Err(error) => {
                if failures.is_multiple_of(FAILURES_PER_LINE) {
                    warn!(%error, "{server}: cannot accept connections; they wait");
                }
                failures += 1;
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn turn_away(stream: &TcpStream) {
    // The buffer is still empty, so it takes all of it; if not, closing the connection is enough.
    let _ = SockRef::from(stream).send(TURNED_AWAY);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_has_no_body() {
        let text = std::str::from_utf8(TURNED_AWAY).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("\r\ncontent-length: 0\r\n"), "{head}");
        assert_eq!(body, "");
    }
}
