//! Places for the connections of a server that is separate from the gateway's traffic: exporter, Admin API, device API.
//!
//! The address may be reachable for anybody, so no peer may take what others need: loopback, where the operator and the
//! sidecar are, has places of its own, and one source address has its share of the others. Sources are distinguished by
//! address alone; nothing else is known before the first request.

use socket2::SockRef;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tracing::warn;

/// Connections at once.
pub const CONNECTIONS_MAX: usize = 256;

/// The part of them that only loopback gets.
const LOOPBACK_KEPT: usize = 64;

/// Most places of one source among the others.
const OF_SOURCE_MAX: usize = 32;

/// Bits of an IPv6 address that one customer of a network holds; the rest is theirs to choose.
const IPV6_SOURCE_BITS: u32 = 64;

/// Factor on all bounds for a server that back-ends send their traffic to.
const WIDE: usize = 16;

/// Hands out places.
#[derive(Debug, Clone, Default)]
pub struct ConnectionSlots(watch::Sender<SlotCounts>);

/// A place. It is free again when this is dropped.
#[derive(Debug)]
pub struct ConnectionSlot {
    places: ConnectionSlots,
    source: PeerGroup,
}

impl ConnectionSlots {
    /// Bounds for a server that back-ends send their traffic to.
    pub fn wide() -> ConnectionSlots {
        ConnectionSlots(watch::Sender::new(SlotCounts { more: WIDE - 1, ..SlotCounts::default() }))
    }

    /// A place for a connection of this peer; `None` if none is free for it.
    pub fn take(&self, peer: IpAddr) -> Option<ConnectionSlot> {
        let source = PeerGroup::of(peer);
        let is_taken = self.0.send_if_modified(|taken| taken.take(source));
        is_taken.then(|| ConnectionSlot { places: self.clone(), source })
    }

    /// Waits until all places are free.
    pub async fn all_free(&self) {
        // This cannot fail: the sender is `self.0`.
        let _ = self.0.subscribe().wait_for(|taken| taken.all() == 0).await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.places.0.send_modify(|taken| taken.free(self.source));
    }
}

/// The peers whose places are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum PeerGroup {
    Loopback,
    Remote(IpAddr),
}

impl PeerGroup {
    fn of(peer: IpAddr) -> PeerGroup {
        match peer.to_canonical() {
            peer if peer.is_loopback() => PeerGroup::Loopback,
            IpAddr::V6(peer) => {
                let network = peer.to_bits() >> (Ipv6Addr::BITS - IPV6_SOURCE_BITS);
                PeerGroup::Remote(Ipv6Addr::from_bits(network << (Ipv6Addr::BITS - IPV6_SOURCE_BITS)).into())
            }
            peer => PeerGroup::Remote(peer),
        }
    }
}

/// The places that are taken.
#[derive(Debug, Default)]
struct SlotCounts {
    loopback: usize,
    remote: usize,
    /// Additional multiples of the usual number of places.
    more: usize,
    /// The parts of `remote`; none of them is 0.
    of_source: HashMap<IpAddr, usize>,
}

impl SlotCounts {
    fn all(&self) -> usize {
        self.loopback + self.remote
    }

    /// Returns whether a place was free.
    fn take(&mut self, source: PeerGroup) -> bool {
        let times = self.more + 1;
        match source {
            _ if self.all() >= CONNECTIONS_MAX * times => false,
            PeerGroup::Loopback => {
                self.loopback += 1;
                true
            }
            PeerGroup::Remote(_) if self.remote >= (CONNECTIONS_MAX - LOOPBACK_KEPT) * times => false,
            PeerGroup::Remote(address) => {
                let of_source = self.of_source.entry(address).or_default();
                let is_free = *of_source < OF_SOURCE_MAX * times;
                if is_free {
                    *of_source += 1;
                    self.remote += 1;
                }
                is_free
            }
        }
    }

    fn free(&mut self, source: PeerGroup) {
        match source {
            PeerGroup::Loopback => self.loopback -= 1,
            PeerGroup::Remote(address) => {
                self.remote -= 1;
                if let Some(of_source) = self.of_source.get_mut(&address) {
                    *of_source -= 1;
                    if *of_source == 0 {
                        self.of_source.remove(&address);
                    }
                }
            }
        }
    }
}

// Accepts the connections of a server that is separate from the gateway's traffic: exporter, Admin API, device API.
//
// A connection without a place is refused at once. In the kernel's queue it would hold up everybody behind it, including peers
// with a reserved place.

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

    fn take(places: &ConnectionSlots, peer: &str, wanted: usize) -> Vec<ConnectionSlot> {
        (0..wanted).map_while(|_| places.take(peer.parse().unwrap())).collect()
    }

    #[test]
    fn nobody_can_take_the_places_of_others() {
        let places = ConnectionSlots::default();
        let one = take(&places, "192.0.2.1", 300);
        assert_eq!(one.len(), OF_SOURCE_MAX);
        assert!(take(&places, "::ffff:192.0.2.1", 1).is_empty(), "the same source");
        let many: Vec<ConnectionSlot> = (2..=20).flat_map(|n| take(&places, &format!("192.0.2.{n}"), 300)).collect();
        assert_eq!(one.len() + many.len(), CONNECTIONS_MAX - LOOPBACK_KEPT);
        // Whatever others have, loopback is served.
        for loopback in ["127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(take(&places, loopback, 300).len(), LOOPBACK_KEPT, "{loopback}");
        }
        drop(many);
        assert_eq!(take(&places, "192.0.2.1", 1).len(), 0, "its share is still taken");
        drop(one);
        assert_eq!(take(&places, "192.0.2.1", 300).len(), OF_SOURCE_MAX);
        assert!(places.0.borrow().of_source.is_empty(), "no entries are left of closed connections");
    }

    #[test]
    fn loopback_has_all_places_at_most() {
        let places = ConnectionSlots::default();
        let all = take(&places, "127.0.0.1", 300);
        assert_eq!(all.len(), CONNECTIONS_MAX);
        assert!(take(&places, "192.0.2.1", 1).is_empty());
    }

    #[test]
    fn one_network_of_ipv6_is_one_source() {
        let places = ConnectionSlots::default();
        let one: Vec<ConnectionSlot> =
            (0..300).flat_map(|n| take(&places, &format!("2001:db8:0:1::{n:x}"), 1)).collect();
        assert_eq!(one.len(), OF_SOURCE_MAX);
        assert_eq!(take(&places, "2001:db8:0:2::1", 1).len(), 1);
    }

    #[test]
    fn the_last_one_to_go_is_waited_for() {
        let places = ConnectionSlots::default();
        let mut place = take(&places, "127.0.0.1", 1);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let waiting = tokio::spawn({
                let places = places.clone();
                async move { places.all_free().await }
            });
            tokio::task::yield_now().await;
            assert!(!waiting.is_finished());
            place.clear();
            waiting.await.unwrap();
        });
    }
}

#[cfg(test)]
mod accept_tests {
    use super::*;

    #[test]
    fn the_refusal_has_no_body() {
        let text = std::str::from_utf8(TURNED_AWAY).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("\r\ncontent-length: 0\r\n"), "{head}");
        assert_eq!(body, "");
    }
}
