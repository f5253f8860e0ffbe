//! The live nodes, as the directory was last read.
//!
//! While the directory is unreachable the last reading holds: nodes that were alive then are tried, and their
//! connections show whether they still are.

use super::{Era, Lease};
use std::collections::BTreeMap;

/// Milliseconds of a lease. A node that is killed is found dead within this and the [`HEARTBEAT_MS`] of who reads it: 5 s.
pub const LEASE_MS: u64 = 4_000;

/// Milliseconds between renewals of a lease, which also read those of the others.
pub const HEARTBEAT_MS: u64 = 1_000;

/// A node, as the directory keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its own.
    pub lease: Lease,
    /// Where other nodes reach it; empty if they cannot.
    pub address: Box<str>,
    /// The era in which everything it has is registered.
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

    /// Names and addresses that another process of this node has read: the nodes to ask until the directory was read
    /// here.
    pub fn told(read: impl IntoIterator<Item = (Box<str>, Box<str>)>) -> Members {
        let lease = Lease { epoch: 0, until_ms: u64::MAX };
        let living = read.into_iter().map(|(node, address)| (node, Member { lease, address, filled: None }));
        Members { living: living.collect(), is_complete: false, is_steady: false }
    }

    /// The members for a node that has reached the directory for so long: after an outage, other nodes are behind with
    /// their registrations and leases.
    pub fn after(self, contact_ms: u64) -> Members {
        let is_steady = contact_ms > LEASE_MS;
        Members { is_complete: self.is_complete && is_steady, is_steady, ..self }
    }

    /// A node, if it lives.
    pub fn get(&self, node: &str) -> Option<&Member> {
        self.living.get(node)
    }

    /// All that live, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Member)> {
        self.living.iter().map(|(node, member)| (&**node, member))
    }

    /// Whether the directory was there for long enough that what it says of a device that is not connected, or of a node that
    /// does not live, is not left over from before it was away.
    pub fn is_steady(&self) -> bool {
        self.is_steady
    }

    /// Whether the directory names every device that is connected: not while it fills up again. Concludes about a look-up
    /// that was made before this reading.
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
        assert!(!members(vec![member(101, Some(Era(9)))], 15).is_complete(), "it registers its devices still");
        assert!(!members(vec![member(101, era)], 14).is_complete(), "others may come still");
        assert!(!Members::new([member(101, era)], None, 100, Era(15)).is_complete());
        let told = Members::told([("n".into(), "address".into())]);
        assert_eq!(told.get("n").map(|member| &*member.address), Some("address"));
        assert!(!told.is_complete() && !told.is_steady(), "it may be old");
        let read = Members::new([member(101, era)], era, 100, Era(15));
        assert!(!read.clone().after(LEASE_MS).is_complete() && read.after(LEASE_MS + 1).is_complete());
    }
}
