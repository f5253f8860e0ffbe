//! Places for connections at the socket for peers: each node has its own, and all others share a few until they have proved to be a
//! node's.
//!
//! The address may be reachable for anybody, and a flood may come from the address of a node. So no new connection is refused; the
//! oldest one that has not proved anything makes room for it: among those of the same source if that has its share, else among those
//! of the source with the most. A node needs its place for the milliseconds of a handshake.
//!
//! `stillgate-door` does the like for HTTP servers, but cannot tell its clients apart, and refuses new ones with an answer.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Connections at once that have not proved to be a node's.
const UNPROVED_MAX: usize = 256;
/// The part of them for one source. Loopback may have all: without TLS all nodes are there.
const UNPROVED_OF_SOURCE_MAX: usize = 64;
/// Connections of one node. It needs one for each of its processes; the oldest make room for new ones.
const OF_NODE_MAX: usize = 8;
/// Bits of an IPv6 address that one customer of a network holds.
const IPV6_SOURCE_BITS: u32 = 64;
/// The shortest interval between log lines about refused connections.
const REFUSED_LOGGED_EVERY: Duration = Duration::from_secs(10);

/// The places of one server. Clones share them.
#[derive(Clone, Default)]
pub(super) struct PeerSlots(Arc<Mutex<SlotTable>>);

#[derive(Default)]
struct SlotTable {
    /// Number of the next connection.
    next: u64,
    /// None of the queues is empty; their first ones are the oldest.
    unproved: HashMap<IpAddr, VecDeque<HeldSlot>>,
    nodes: HashMap<Arc<str>, VecDeque<HeldSlot>>,
}

/// A connection's end of its place is notified when this is dropped.
struct HeldSlot {
    number: u64,
    _stays: oneshot::Sender<()>,
}

/// The place of a connection. It is free again when this is dropped.
pub(super) struct PeerSlot {
    slots: PeerSlots,
    number: u64,
    share: SlotShare,
}

enum SlotShare {
    Unproved(IpAddr),
    Node(Arc<str>),
}

impl PeerSlots {
    /// A place for a new connection; the receiver completes when another one gets it.
    pub(super) fn take(&self, peer: IpAddr) -> (PeerSlot, oneshot::Receiver<()>) {
        let source = source_of(peer);
        let (stays, evicted) = oneshot::channel();
        let mut table = self.table();
        let number = table.next;
        table.next += 1;
        table.make_room(source);
        table.unproved.entry(source).or_default().push_back(HeldSlot { number, _stays: stays });
        drop(table);
        (PeerSlot { slots: self.clone(), number, share: SlotShare::Unproved(source) }, evicted)
    }

    fn table(&self) -> std::sync::MutexGuard<'_, SlotTable> {
        self.0.lock().expect("no holder panics")
    }
}

impl SlotTable {
    fn make_room(&mut self, source: IpAddr) {
        let of_source_max = if source.is_loopback() { UNPROVED_MAX } else { UNPROVED_OF_SOURCE_MAX };
        let of_source = self.unproved.get(&source).map_or(0, VecDeque::len);
        let all: usize = self.unproved.values().map(VecDeque::len).sum();
        let from = match (of_source >= of_source_max, all >= UNPROVED_MAX) {
            (true, _) => Some(source),
            (false, true) => self.unproved.iter().max_by_key(|(_, held)| held.len()).map(|(source, _)| *source),
            (false, false) => None,
        };
        let first = from.and_then(|from| Some((from, self.unproved.get(&from)?.front()?.number)));
        if let Some((from, number)) = first {
            drop(remove(&mut self.unproved, &from, number));
        }
    }
}

/// Takes a connection from its share.
fn remove<K: std::hash::Hash + Eq>(
    shares: &mut HashMap<K, VecDeque<HeldSlot>>,
    share: &K,
    number: u64,
) -> Option<HeldSlot> {
    let held = shares.get_mut(share)?;
    let at = held.iter().position(|held| held.number == number)?;
    let slot = held.remove(at);
    if held.is_empty() {
        shares.remove(share);
    }
    slot
}

impl PeerSlot {
    /// Whether the connection is a node's.
    pub(super) fn is_node(&self) -> bool {
        matches!(self.share, SlotShare::Node(_))
    }

    /// The connection has proved to be this node's.
    pub(super) fn prove(&mut self, node: &Arc<str>) {
        let SlotShare::Unproved(source) = self.share else { return };
        let mut table = self.slots.table();
        // Without a place it has been evicted already, and is about to learn it.
        if let Some(held) = remove(&mut table.unproved, &source, self.number) {
            let of_node = table.nodes.entry(node.clone()).or_default();
            if of_node.len() >= OF_NODE_MAX {
                of_node.pop_front();
            }
            of_node.push_back(held);
        }
        drop(table);
        self.share = SlotShare::Node(node.clone());
    }
}

impl Drop for PeerSlot {
    fn drop(&mut self) {
        let mut table = self.slots.table();
        drop(match &self.share {
            SlotShare::Unproved(source) => remove(&mut table.unproved, source, self.number),
            SlotShare::Node(node) => remove(&mut table.nodes, node, self.number),
        });
    }
}

/// The address whose connections are counted together.
fn source_of(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(peer) if !peer.is_loopback() => {
            let host_bits = Ipv6Addr::BITS - IPV6_SOURCE_BITS;
            Ipv6Addr::from_bits(peer.to_bits() >> host_bits << host_bits).into()
        }
        peer => peer,
    }
}

/// Connections that were closed before they proved to be a node's: a counter, and lines in the log.
#[derive(Debug, Default)]
pub struct PeerRefusals {
    count: AtomicU64,
    /// When a line was last logged, and the connections since then.
    logged: Mutex<(Option<Instant>, u64)>,
}

impl PeerRefusals {
    /// Their number.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    pub(super) fn add(&self, peer: SocketAddr, why: &io::Error) {
        self.count.fetch_add(1, Relaxed);
        let mut logged = self.logged.lock().expect("no holder panics");
        logged.1 += 1;
        if logged.0.is_none_or(|at| at.elapsed() >= REFUSED_LOGGED_EVERY) {
            let connections = logged.1;
            tracing::warn!(%peer, %why, connections, "connections at the address for peers were not those of a node; closed");
            *logged = (Some(Instant::now()), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot::error::TryRecvError;

    type Taken = (PeerSlot, oneshot::Receiver<()>);

    fn take(slots: &PeerSlots, peer: &str, count: usize) -> Vec<Taken> {
        (0..count).map(|_| slots.take(peer.parse().unwrap())).collect()
    }

    fn evicted(taken: &mut [Taken]) -> usize {
        taken.iter_mut().map(|(_, evicted)| usize::from(evicted.try_recv() != Err(TryRecvError::Empty))).sum()
    }

    #[test]
    fn a_source_takes_only_its_own_places() {
        let slots = PeerSlots::default();
        let mut node = take(&slots, "192.0.2.7", 1);
        let mut flood = take(&slots, "192.0.2.1", 1_000);
        assert_eq!(evicted(&mut flood), 1_000 - UNPROVED_OF_SOURCE_MAX);
        // From many sources: each loses before one that has a single connection.
        let mut many: Vec<Taken> = (10..40).flat_map(|host| take(&slots, &format!("192.0.2.{host}"), 20)).collect();
        assert!(evicted(&mut many) > 0);
        assert_eq!(evicted(&mut node), 0);
        assert_eq!(slots.table().unproved.values().map(VecDeque::len).sum::<usize>(), UNPROVED_MAX);
        // All addresses of an IPv6 network count as one source.
        let slots = PeerSlots::default();
        let mut network: Vec<Taken> =
            (0..100).flat_map(|host| take(&slots, &format!("2001:db8::{host:x}"), 1)).collect();
        assert_eq!(evicted(&mut network), 100 - UNPROVED_OF_SOURCE_MAX);
    }

    #[test]
    fn nodes_keep_their_places() {
        let slots = PeerSlots::default();
        let mut node = take(&slots, "127.0.0.1", 1);
        node[0].0.prove(&"a".into());
        let mut flood = take(&slots, "127.0.0.1", 1_000);
        assert_eq!((evicted(&mut flood), evicted(&mut node)), (1_000 - UNPROVED_MAX, 0));
        let mut again = take(&slots, "127.0.0.1", OF_NODE_MAX);
        again.iter_mut().for_each(|(slot, _)| slot.prove(&"a".into()));
        assert_eq!((evicted(&mut node), evicted(&mut again)), (1, 0), "the oldest of a node makes room");
        drop((node, flood, again));
        let table = slots.table();
        assert!(table.unproved.is_empty() && table.nodes.is_empty());
    }
}
