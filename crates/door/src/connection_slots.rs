//! Places for the connections of a server that is separate from the gateway's traffic: exporter, Admin API, device API.
//!
//! The address may be reachable for anybody, so no peer may take what others need: loopback, where the operator and the
//! sidecar are, has places of its own, and one source address has its share of the others. Sources are distinguished by
//! address alone; nothing else is known before the first request.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use tokio::sync::watch;

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
