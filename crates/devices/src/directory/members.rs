//! The live nodes, as the directory was last read.
//!
//! While the directory is unreachable the last reading holds: nodes that were alive then are tried, and their
//! connections show whether they still are.

use super::{Era, Lease};
use std::collections::BTreeMap;

/// Milliseconds of a lease. A killed node is found dead within this and the reader's [`HEARTBEAT_MS`]: 5 s.
pub const LEASE_MS: u64 = 4_000;

/// Milliseconds between renewals of a lease, which also read those of the others.
pub const HEARTBEAT_MS: u64 = 1_000;

/// A node, as the directory keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The node's own lease.
    pub lease: Lease,
    /// The address for other nodes; empty if they cannot reach it.
    pub address: Box<str>,
    /// The era in which all its devices are registered.
    pub filled: Option<Era>,
}

/// The nodes whose lease had not ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Members {
    living: BTreeMap<Box<str>, Member>,
    is_complete: bool,
    is_steady: bool,
}

impl Members {
    /// The members read at `now_ms`, in milliseconds of the directory's clock, which also dates `era`; `era_now` is the era
    /// that would begin now.
    pub fn new(
        read: impl IntoIterator<Item = (Box<str>, Member)>,
        era: Option<Era>,
        now_ms: u64,
        era_now: Era,
    ) -> Members {
        let living = read.into_iter().filter(|(_, member)| now_ms < member.lease.until_ms);
        let living: BTreeMap<Box<str>, Member> = living.collect();
        // A directory that came back empty: until every node can have renewed its lease, some may be missing here.
        let is_settled = era.is_some_and(|era| u64::from(era_now.0.saturating_sub(era.0)) * 1000 > LEASE_MS);
        let is_complete = is_settled && living.values().all(|member| member.filled == era);
        Members { living, is_complete, is_steady: true }
    }

    /// Names and addresses read by another process of this node: the nodes to ask until this process has read the
    /// directory.
    pub fn from_predecessor(read: impl IntoIterator<Item = (Box<str>, Box<str>)>) -> Members {
        let lease = Lease { epoch: 0, until_ms: u64::MAX };
        let living = read.into_iter().map(|(node, address)| (node, Member { lease, address, filled: None }));
        Members { living: living.collect(), is_complete: false, is_steady: false }
    }

    /// The members for a node that has been in contact with the directory for this long: after an outage, other nodes
    /// are behind with their registrations and leases.
    pub fn after(self, contact_ms: u64) -> Members {
        let is_steady = contact_ms > LEASE_MS;
        Members { is_complete: self.is_complete && is_steady, is_steady, ..self }
    }

    /// A node, if it is alive.
    pub fn get(&self, node: &str) -> Option<&Member> {
        self.living.get(node)
    }

    /// All live nodes, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Member)> {
        self.living.iter().map(|(node, member)| (&**node, member))
    }

    /// Whether the directory was available for long enough that its entry about a device that is not connected, or
    /// about a dead node, does not date from before an outage.
    pub fn is_steady(&self) -> bool {
        self.is_steady
    }

    /// Whether the directory lists every connected device: not while it is being refilled. It applies to look-ups made
    /// before this reading.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(until_ms: u64, filled: Option<Era>) -> (Box<str>, Member) {
        let lease = Lease { epoch: 1, until_ms };
        (format!("until-{until_ms}").into(), Member { lease, address: "".into(), filled })
    }

    #[test]
    fn only_the_living_count() {
        let era = Some(Era(10));
        let members = |read: Vec<_>, era_now| Members::new(read, era, 100, Era(era_now));
        assert!(members(vec![member(101, era), member(100, None)], 15).is_complete());
        assert!(members(vec![member(100, era)], 15).get("until-100").is_none());
        assert!(!members(vec![member(101, Some(Era(9)))], 15).is_complete(), "it is still registering its devices");
        assert!(!members(vec![member(101, era)], 14).is_complete(), "others may still come");
        assert!(!Members::new([member(101, era)], None, 100, Era(15)).is_complete());
        let told = Members::from_predecessor([("n".into(), "address".into())]);
        assert_eq!(told.get("n").map(|member| &*member.address), Some("address"));
        assert!(!told.is_complete() && !told.is_steady(), "it may be old");
        let read = Members::new([member(101, era)], era, 100, Era(15));
        assert!(!read.clone().after(LEASE_MS).is_complete() && read.after(LEASE_MS + 1).is_complete());
    }
}
