//! The route of one message to the node that has its device: the next step, and the answer if no node accepts it.
//!
//! ```text
//!  remembered ───────────────────────────▶ send ──▶ that node's answer
//!      │ not, or not alive                  ▲ │
//!      ▼                                    │ │ moved, unreachable: once
//!  ask the directory ──▶ read the members ──┘ │
//!      ▲   │ away         │ filling up        │
//!      │   └─▶ ask peers ◀┘                   │
//!      └──────────────────────────────────────┘
//! ```
//!
//! A live node answers for itself, regardless of its epoch: after its lease had ended, entries of the old epoch are
//! right until they are registered again. "Offline" is based on the directory, or on two answers of the node in its
//! entry; "never seen" on a complete directory.

use super::lookups::{CachedLookup, Lookups};
use super::{DirectoryEntry, Members};
use std::sync::Arc;

/// How often a message is sent: once more if the first node did not accept it.
const SENDS_MAX: u8 = 2;

/// The next step for the message. The answer goes to the function of the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeliveryStep {
    /// Read the device's entry: [`MessageRoute::on_entry`].
    LookUp,
    /// Read the members again: [`MessageRoute::members_read`].
    ReadMembers,
    /// Ask every live node whether it has the device: [`MessageRoute::peers_asked`].
    AskPeers,
    /// Send the message to that node: [`MessageRoute::on_rejection`], if the node did not accept it.
    Send {
        /// Its name.
        node: Arc<str>,
    },
    /// Answer the sender.
    Answer(DeliveryError),
}

/// Why no node has the message. It has not reached the device, and will not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryError {
    /// The device was never connected (404).
    NeverSeen,
    /// It is not connected (410).
    Offline {
        /// Since when, in milliseconds since the epoch, if it is known.
        last_seen_ms: Option<u64>,
    },
    /// It has moved twice in the meantime (503).
    Moved,
    /// The directory is unavailable or being refilled, and no reachable node has the device (503).
    Unknown,
}

/// Why a node did not accept a message. It has not stored it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejection {
    /// The device is not connected there.
    Moved,
    /// The node could not be reached: nothing of the message was sent.
    Unreachable,
}

/// The directory did not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryUnavailable;

/// Inputs of the steps.
#[derive(Debug)]
pub struct View<'a> {
    /// The node's cache.
    pub lookups: &'a mut Lookups,
    /// The latest reading.
    pub members: &'a Members,
    /// Milliseconds of any monotonic clock.
    pub now_ms: u64,
}

#[derive(Debug)]
enum FoundNode {
    Nothing,
    At(Arc<str>),
}

/// The route of one message.
#[derive(Debug)]
pub struct MessageRoute {
    device: Box<str>,
    sends: u8,
    /// The result to return once members have been read after it.
    found: FoundNode,
    last_node: Option<Arc<str>>,
}

impl MessageRoute {
    /// Begins with a device that is not connected to this node.
    pub fn begin(device: &str, view: View<'_>) -> (MessageRoute, DeliveryStep) {
        let mut sending = MessageRoute { device: device.into(), sends: 0, found: FoundNode::Nothing, last_node: None };
        let step = match view.lookups.get(device, view.now_ms) {
            Some(CachedLookup::At(node)) if view.members.get(&node).is_some() => sending.send(node, view),
            Some(CachedLookup::Offline { last_seen_ms }) => {
                DeliveryStep::Answer(DeliveryError::Offline { last_seen_ms })
            }
            Some(CachedLookup::NeverSeen) => DeliveryStep::Answer(DeliveryError::NeverSeen),
            Some(CachedLookup::At(_)) | None => DeliveryStep::LookUp,
        };
        (sending, step)
    }

    /// The directory's entry of the device.
    pub fn on_entry(
        &mut self,
        entry: Result<Option<DirectoryEntry>, DirectoryUnavailable>,
        view: View<'_>,
    ) -> DeliveryStep {
        match entry {
            Err(DirectoryUnavailable) => DeliveryStep::AskPeers,
            Ok(Some(DirectoryEntry::Online { place, .. })) if view.members.get(&place.node).is_some() => {
                self.send(place.node.into(), view)
            }
            Ok(Some(DirectoryEntry::Online { place, .. })) => {
                self.found = FoundNode::At(place.node.into());
                DeliveryStep::ReadMembers
            }
            Ok(Some(DirectoryEntry::Offline { last_seen_ms, .. })) if view.members.is_steady() => {
                self.offline(Some(last_seen_ms), view)
            }
            Ok(Some(DirectoryEntry::Offline { .. })) => DeliveryStep::AskPeers,
            Ok(None) => {
                self.found = FoundNode::Nothing;
                DeliveryStep::ReadMembers
            }
        }
    }

    /// Whether the members were read; they are in the view.
    pub fn members_read(&mut self, read: Result<(), DirectoryUnavailable>, view: View<'_>) -> DeliveryStep {
        match (read, &self.found) {
            (Err(DirectoryUnavailable), _) => DeliveryStep::AskPeers,
            (Ok(()), FoundNode::At(node)) if view.members.get(node).is_some() => {
                let node = node.clone();
                self.send(node, view)
            }
            (Ok(()), FoundNode::At(_)) if view.members.is_steady() => self.offline(None, view),
            (Ok(()), FoundNode::Nothing) if view.members.is_complete() => {
                view.lookups.insert(&self.device, CachedLookup::NeverSeen, view.now_ms);
                DeliveryStep::Answer(DeliveryError::NeverSeen)
            }
            (Ok(()), FoundNode::At(_) | FoundNode::Nothing) => DeliveryStep::AskPeers,
        }
    }

    /// The node that reports having the device, if any.
    pub fn peers_asked(&mut self, found: Option<Arc<str>>, view: View<'_>) -> DeliveryStep {
        match found {
            Some(node) if self.sends < SENDS_MAX => self.send(node, view),
            _ => DeliveryStep::Answer(DeliveryError::Unknown),
        }
    }

    /// The node that it was sent to did not accept it.
    pub fn on_rejection(&mut self, why: Rejection, node: Arc<str>, view: View<'_>) -> DeliveryStep {
        view.lookups.forget(&self.device);
        let is_same = self.last_node.replace(node.clone()).is_some_and(|last| last == node);
        if self.sends < SENDS_MAX {
            return DeliveryStep::LookUp;
        }
        match why {
            Rejection::Unreachable => DeliveryStep::Answer(DeliveryError::Unknown),
            // Right after an outage of the directory, another node may not have registered it yet.
            Rejection::Moved if is_same && view.members.is_steady() => self.offline(None, view),
            Rejection::Moved => DeliveryStep::Answer(DeliveryError::Moved),
        }
    }

    fn send(&mut self, node: Arc<str>, view: View<'_>) -> DeliveryStep {
        self.sends += 1;
        view.lookups.insert(&self.device, CachedLookup::At(node.clone()), view.now_ms);
        DeliveryStep::Send { node }
    }

    fn offline(&mut self, last_seen_ms: Option<u64>, view: View<'_>) -> DeliveryStep {
        view.lookups.insert(&self.device, CachedLookup::Offline { last_seen_ms }, view.now_ms);
        DeliveryStep::Answer(DeliveryError::Offline { last_seen_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::{Era, Lease, Location, Member};
    use crate::session::Generation;

    /// A node with its cache, and its requests for one message after the other.
    struct Node {
        lookups: Lookups,
        members: Members,
    }

    impl Node {
        fn with(living: &[&str]) -> Node {
            Node { lookups: Lookups::new(10_000), members: members(living) }
        }

        fn view(&mut self) -> View<'_> {
            View { lookups: &mut self.lookups, members: &self.members, now_ms: 0 }
        }
    }

    fn members(living: &[&str]) -> Members {
        let member =
            Member { lease: Lease { epoch: 1, until_ms: 1 }, address: "".into(), fully_registered_era: Some(Era(1)) };
        Members::new(living.iter().map(|node| ((*node).into(), member.clone())), Some(Era(1)), 0, Era(100))
    }

    fn online(node: &str) -> Result<Option<DirectoryEntry>, DirectoryUnavailable> {
        let place = Location { node: node.into(), epoch: 1, connection: 1 };
        Ok(Some(DirectoryEntry::Online { place, generation: Generation(1), since_ms: 0 }))
    }

    fn send(node: &str) -> DeliveryStep {
        DeliveryStep::Send { node: node.into() }
    }

    #[test]
    fn a_place_is_looked_up_once() {
        let mut node = Node::with(&["b"]);
        let (mut first, step) = MessageRoute::begin("d", node.view());
        assert_eq!(step, DeliveryStep::LookUp);
        assert_eq!(first.on_entry(online("b"), node.view()), send("b"));
        assert_eq!(MessageRoute::begin("d", node.view()).1, send("b"));
        node.members = members(&[]);
        assert_eq!(MessageRoute::begin("d", node.view()).1, DeliveryStep::LookUp, "its node has died");
    }

    #[test]
    fn a_device_that_moved_is_followed_once() {
        let mut node = Node::with(&["b", "c"]);
        node.lookups.insert("d", CachedLookup::At("b".into()), 0);
        let (mut sending, step) = MessageRoute::begin("d", node.view());
        assert_eq!(step, send("b"));
        assert_eq!(sending.on_rejection(Rejection::Moved, "b".into(), node.view()), DeliveryStep::LookUp);
        assert_eq!(MessageRoute::begin("d", node.view()).1, DeliveryStep::LookUp, "a wrong result is removed");
        assert_eq!(sending.on_entry(online("c"), node.view()), send("c"));
        assert_eq!(
            sending.on_rejection(Rejection::Moved, "c".into(), node.view()),
            DeliveryStep::Answer(DeliveryError::Moved)
        );
    }

    #[test]
    fn the_node_that_the_directory_names_twice_is_believed() {
        let mut node = Node::with(&["b"]);
        let (mut sending, _) = MessageRoute::begin("d", node.view());
        assert_eq!(sending.on_entry(online("b"), node.view()), send("b"));
        assert_eq!(sending.on_rejection(Rejection::Moved, "b".into(), node.view()), DeliveryStep::LookUp);
        assert_eq!(sending.on_entry(online("b"), node.view()), send("b"));
        let offline = DeliveryStep::Answer(DeliveryError::Offline { last_seen_ms: None });
        assert_eq!(sending.on_rejection(Rejection::Moved, "b".into(), node.view()), offline);
        assert_eq!(MessageRoute::begin("d", node.view()).1, offline, "and no repetition at once");
    }

    #[test]
    fn a_dead_node_is_distinguished_from_a_new_one() {
        let mut node = Node::with(&[]);
        let (mut sending, _) = MessageRoute::begin("d", node.view());
        assert_eq!(sending.on_entry(online("b"), node.view()), DeliveryStep::ReadMembers);
        node.members = members(&["b"]);
        assert_eq!(sending.members_read(Ok(()), node.view()), send("b"));
        let (mut sending, _) = MessageRoute::begin("e", node.view());
        assert_eq!(sending.on_entry(online("c"), node.view()), DeliveryStep::ReadMembers);
        let offline = DeliveryStep::Answer(DeliveryError::Offline { last_seen_ms: None });
        assert_eq!(sending.members_read(Ok(()), node.view()), offline);
    }

    #[test]
    fn a_directory_that_was_away_is_not_believed_at_once() {
        let mut node = Node::with(&[]);
        node.members = members(&[]).after_contact(0);
        let (mut sending, _) = MessageRoute::begin("d", node.view());
        assert_eq!(sending.on_entry(online("b"), node.view()), DeliveryStep::ReadMembers);
        assert_eq!(sending.members_read(Ok(()), node.view()), DeliveryStep::AskPeers);
        let (mut sending, _) = MessageRoute::begin("e", node.view());
        for said in [DeliveryStep::LookUp, DeliveryStep::Answer(DeliveryError::Moved)] {
            assert_eq!(sending.peers_asked(Some("b".into()), node.view()), send("b"));
            assert_eq!(sending.on_rejection(Rejection::Moved, "b".into(), node.view()), said);
        }
        let offline = DirectoryEntry::Offline { generation: Generation(1), last_seen_ms: 7 };
        assert_eq!(sending.on_entry(Ok(Some(offline.clone())), node.view()), DeliveryStep::AskPeers);
        node.members = members(&[]);
        let said = DeliveryStep::Answer(DeliveryError::Offline { last_seen_ms: Some(7) });
        assert_eq!(sending.on_entry(Ok(Some(offline)), node.view()), said);
    }

    #[test]
    fn never_seen_is_said_by_a_complete_directory_only() {
        let mut node = Node::with(&["b"]);
        let (mut sending, _) = MessageRoute::begin("d", node.view());
        assert_eq!(sending.on_entry(Ok(None), node.view()), DeliveryStep::ReadMembers);
        let complete = std::mem::take(&mut node.members);
        assert_eq!(sending.members_read(Ok(()), node.view()), DeliveryStep::AskPeers);
        assert_eq!(sending.peers_asked(None, node.view()), DeliveryStep::Answer(DeliveryError::Unknown));
        node.members = complete;
        assert_eq!(sending.members_read(Ok(()), node.view()), DeliveryStep::Answer(DeliveryError::NeverSeen));
    }

    #[test]
    fn without_the_directory_peers_are_asked() {
        let mut node = Node::with(&["b"]);
        let (mut sending, _) = MessageRoute::begin("d", node.view());
        assert_eq!(sending.on_entry(Err(DirectoryUnavailable), node.view()), DeliveryStep::AskPeers);
        assert_eq!(sending.peers_asked(Some("b".into()), node.view()), send("b"));
        assert_eq!(sending.on_rejection(Rejection::Unreachable, "b".into(), node.view()), DeliveryStep::LookUp);
        assert_eq!(sending.on_entry(Err(DirectoryUnavailable), node.view()), DeliveryStep::AskPeers);
        assert_eq!(sending.peers_asked(Some("b".into()), node.view()), send("b"));
        let unknown = DeliveryStep::Answer(DeliveryError::Unknown);
        assert_eq!(sending.on_rejection(Rejection::Unreachable, "b".into(), node.view()), unknown);
    }
}
