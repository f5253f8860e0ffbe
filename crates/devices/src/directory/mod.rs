//! The location of each device: one entry per device, changed by pure functions of the entry and a request.
//!
//! ```text
//!  connect ─▶ entry: online (node, epoch, connection, generation) ─disconnect of that connection─▶ offline (generation)
//! ```
//!
//! Each function here reads and writes one entry and nothing else, so it can be a Lua script over one key of Redis,
//! with the same numbers: generations stay below 2^53. Whether a node is alive is in another entry ([`Lease`]); the
//! connecting node has looked it up and reports it ([`Connect::dead`]), and the generation ensures that the entry has
//! not changed since.
//!
//! Generations grow for a device, also over the loss of the whole directory: their upper part is the directory's
//! [`Era`], which changes whenever it comes back empty. A node that finds another era registers all its devices again,
//! paced; see [`NodeRegistrations`]. [`MessageRoute`] finds the node of a message's device, or the reason for a failure.

mod lookups;
mod message_route;
mod registrations;

use crate::session::Generation;
pub use lookups::{ABSENCE_KEPT_MS, CachedLookup, Lookups, PLACE_KEPT_MS};
pub use message_route::{DeliveryError, DeliveryStep, DirectoryUnavailable, MessageRoute, Rejection, View};
pub use registrations::{NodeRegistrations, RegistrationEffect, RegistrationRequest};
use std::collections::BTreeMap;

/// How long the entry of a device that is offline is kept: 30 days.
pub const OFFLINE_RETENTION_MS: u64 = 30 * 24 * 60 * 60 * 1000;

/// Bits of a generation below the era's: a million connections of one device within one era, before its generations run
/// ahead of the era's beginning, which only costs them their order over the next loss.
const COUNTER_BITS: u32 = 20;

/// When a directory began, in seconds since 2024, or later: it grows with each loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Era(pub u32);

impl Era {
    /// The era to begin if the directory has none, or one that is older than a node has seen. `now_s` is in seconds
    /// since 2024; `known` compensates for a clock that is behind.
    pub fn next_era(known: Option<Era>, now_s: u32) -> Era {
        Era(known.map_or(now_s, |known| now_s.max(known.0.saturating_add(1))))
    }

    /// The lowest generation of a connection that begins in it.
    pub fn first_generation(self) -> Generation {
        Generation(u64::from(self.0) << COUNTER_BITS)
    }
}

/// A connection: its node, process and number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Location {
    /// The node's name.
    pub node: Box<str>,
    /// Epoch of the node's process; random, and new when its lease has ended.
    pub epoch: u64,
    /// Its number on its node: higher than those of the device's earlier connections to the same process. A connection that moves
    /// to another process of the node gets a higher number there.
    pub connection: u64,
}

/// The directory's entry for a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectoryEntry {
    /// Connected, if the place's node is alive in this epoch.
    Online {
        /// The connection.
        place: Location,
        /// Generation of the connection.
        generation: Generation,
        /// Since when, in milliseconds since the epoch.
        since_ms: u64,
    },
    /// Not connected.
    Offline {
        /// Generation of the last connection.
        generation: Generation,
        /// When it ended, in milliseconds since the epoch.
        last_seen_ms: u64,
    },
}

/// The policy for a second connection of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duplicate {
    /// It replaces the first.
    Replace,
    /// It is refused while the first is alive.
    Refuse,
}

/// A device has connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connect {
    /// The new connection.
    pub place: Location,
    /// The directory's era, as known to the node.
    pub era: Era,
    /// The policy for another connection of the device.
    pub duplicate: Duplicate,
    /// With [`Duplicate::Refuse`]: the entry of this generation was looked up, and its node is dead.
    pub dead: Option<Generation>,
    /// Milliseconds since the epoch.
    pub now_ms: u64,
}

/// The answer to [`Connect`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectOutcome {
    /// It is the device's connection now.
    Current {
        /// Its generation.
        generation: Generation,
        /// The connection that it replaced, which has to be closed.
        replaced: Option<Location>,
    },
    /// Another connection of this generation is current. If its node is dead, repeat the request with `dead`.
    Occupied {
        /// The other connection.
        place: Location,
        /// Generation of that connection.
        generation: Generation,
    },
}

/// A connection has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disconnect {
    /// The ended connection.
    pub place: Location,
    /// Lower numbers of the same node and epoch have ended as well. The directory may still name one of them.
    pub and_older: bool,
}

/// The answer to a registration that is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegistrationAnswer {
    /// The entry is this connection's.
    Current,
    /// A newer connection is current: close this one.
    Superseded,
}

impl DirectoryEntry {
    /// Generation of the current or last connection.
    pub fn generation(&self) -> Generation {
        match self {
            DirectoryEntry::Online { generation, .. } | DirectoryEntry::Offline { generation, .. } => *generation,
        }
    }

    /// Whether the entry has expired.
    pub fn is_forgotten(&self, now_ms: u64) -> bool {
        matches!(self, DirectoryEntry::Offline { last_seen_ms, .. } if now_ms >= last_seen_ms.saturating_add(OFFLINE_RETENTION_MS))
    }
}

/// The entry's connection, if it has the same node and epoch and a higher number: the request is late.
fn newer<'a>(entry: &'a Option<DirectoryEntry>, place: &Location) -> Option<(&'a Location, Generation)> {
    match entry {
        Some(DirectoryEntry::Online { place: other, generation, .. })
            if (&other.node, other.epoch) == (&place.node, place.epoch) && other.connection > place.connection =>
        {
            Some((other, *generation))
        }
        _ => None,
    }
}

/// Makes a connection the current one.
pub fn connect(entry: &mut Option<DirectoryEntry>, request: Connect) -> ConnectOutcome {
    let Connect { place, era, duplicate, dead, now_ms } = request;
    if let Some((other, generation)) = newer(entry, &place) {
        return ConnectOutcome::Occupied { place: other.clone(), generation };
    }
    if let Some(DirectoryEntry::Online { place: other, generation, .. }) = entry
        && duplicate == Duplicate::Refuse
        // A node that connects again has closed its former connection.
        && (&other.node, other.epoch) != (&place.node, place.epoch)
        && dead != Some(*generation)
    {
        return ConnectOutcome::Occupied { place: other.clone(), generation: *generation };
    }
    let generation = match entry {
        None => Generation(1),
        // The same connection, whose answer was lost: a repeated request gets the same generation.
        Some(DirectoryEntry::Online { place: other, generation, .. }) if *other == place => *generation,
        Some(entry) => Generation(entry.generation().0 + 1),
    };
    let generation = generation.max(era.first_generation());
    let new = DirectoryEntry::Online { place: place.clone(), generation, since_ms: now_ms };
    let replaced = match entry.replace(new) {
        Some(DirectoryEntry::Online { place: other, .. }) if other != place => Some(other),
        _ => None,
    };
    ConnectOutcome::Current { generation, replaced }
}

/// Makes a device offline, unless the entry belongs to another connection by now; returns whether it did. It takes no
/// generation: a place belongs to one connection, and the answer with the generation may have been lost.
pub fn disconnect(entry: &mut Option<DirectoryEntry>, ended: &Disconnect, now_ms: u64) -> bool {
    let Some(DirectoryEntry::Online { place: current, generation, .. }) = entry else { return false };
    let Disconnect { place, and_older } = ended;
    let is_older = *and_older && current.connection < place.connection;
    if (&current.node, current.epoch) != (&place.node, place.epoch)
        || !(is_older || current.connection == place.connection)
    {
        return false;
    }
    *entry = Some(DirectoryEntry::Offline { generation: *generation, last_seen_ms: now_ms });
    true
}

/// Registers a connection again that has its generation: after a loss of the directory, or of the node's lease, and
/// periodically to find out whether it is still current.
pub fn register(
    entry: &mut Option<DirectoryEntry>,
    place: Location,
    generation: Generation,
    since_ms: u64,
) -> RegistrationAnswer {
    if newer(entry, &place).is_some() {
        return RegistrationAnswer::Superseded;
    }
    match entry {
        // The connection's own entry. If its generation is higher, the answer that carried it was lost, so it is unused. If its
        // number differs, the connection has moved to another process of the same node.
        Some(DirectoryEntry::Online { place: other, generation: stored, .. })
            if other.node == place.node && (other.connection == place.connection || *stored == generation) => {}
        // Including one with the same generation: a directory that lost its last writes gave it twice. The stored one
        // stays.
        Some(entry) if entry.generation() >= generation => return RegistrationAnswer::Superseded,
        _ => {}
    }
    *entry = Some(DirectoryEntry::Online { place, generation, since_ms });
    RegistrationAnswer::Current
}

// Whether a node is alive: it has its own lease, renewed by its heartbeat. Devices have none, so their number costs no
// renewals.

/// A node's lease in the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Epoch of the process that holds it.
    pub epoch: u64,
    /// When it ends, in milliseconds of the directory's clock.
    pub until_ms: u64,
}

/// Another process with this node's name holds the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseConflict {
    /// When it ends, unless it is renewed.
    pub until_ms: u64,
}

impl Lease {
    /// Takes or renews a node's lease. A renewal of a lease that has ended succeeds if no other process has taken it: its
    /// epoch was dead in between, so the process takes a new one ([`NodeRegistrations::begin_epoch`]).
    pub fn acquire_or_renew(
        lease: &mut Option<Lease>,
        epoch: u64,
        now_ms: u64,
        ttl_ms: u64,
    ) -> Result<(), LeaseConflict> {
        match lease {
            Some(Lease { epoch: other, until_ms }) if *other != epoch && now_ms < *until_ms => {
                Err(LeaseConflict { until_ms: *until_ms })
            }
            _ => {
                *lease = Some(Lease { epoch, until_ms: now_ms.saturating_add(ttl_ms) });
                Ok(())
            }
        }
    }

    /// Whether connections of this epoch are alive.
    pub fn is_alive(lease: Option<&Lease>, epoch: u64, now_ms: u64) -> bool {
        lease.is_some_and(|lease| lease.epoch == epoch && now_ms < lease.until_ms)
    }
}

// The live nodes, as the directory was last read.
//
// While the directory is unreachable the last reading holds: nodes that were alive then are tried, and their
// connections show whether they still are.

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
    pub fully_registered_era: Option<Era>,
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
        let is_complete = is_settled && living.values().all(|member| member.fully_registered_era == era);
        Members { living, is_complete, is_steady: true }
    }

    /// Names and addresses read by another process of this node: the nodes to ask until this process has read the
    /// directory.
    pub fn from_predecessor(read: impl IntoIterator<Item = (Box<str>, Box<str>)>) -> Members {
        let lease = Lease { epoch: 0, until_ms: u64::MAX };
        let living =
            read.into_iter().map(|(node, address)| (node, Member { lease, address, fully_registered_era: None }));
        Members { living: living.collect(), is_complete: false, is_steady: false }
    }

    /// The members for a node that has been in contact with the directory for this long: after an outage, other nodes
    /// are behind with their registrations and leases.
    pub fn after_contact(self, contact_ms: u64) -> Members {
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

    fn at(node: &str, connection: u64) -> Location {
        Location { node: node.into(), epoch: 1, connection }
    }

    fn end(node: &str, connection: u64) -> Disconnect {
        Disconnect { place: at(node, connection), and_older: false }
    }

    fn request(place: Location, duplicate: Duplicate) -> Connect {
        Connect { place, era: Era(5), duplicate, dead: None, now_ms: 0 }
    }

    const FIRST: Generation = Generation(5 << COUNTER_BITS);
    const SECOND: Generation = Generation(FIRST.0 + 1);

    #[test]
    fn a_second_connection_replaces_the_first() {
        let mut entry = None;
        let current = |generation, replaced| ConnectOutcome::Current { generation, replaced };
        assert_eq!(connect(&mut entry, request(at("a", 1), Duplicate::Replace)), current(FIRST, None));
        let second = connect(&mut entry, request(at("b", 1), Duplicate::Replace));
        assert_eq!(second, current(SECOND, Some(at("a", 1))));
        assert!(!disconnect(&mut entry, &end("a", 1), 9), "the end of the first leaves the second");
        assert_eq!(register(&mut entry, at("a", 1), FIRST, 0), RegistrationAnswer::Superseded);
        assert!(disconnect(&mut entry, &end("b", 1), 9));
        assert_eq!(entry, Some(DirectoryEntry::Offline { generation: SECOND, last_seen_ms: 9 }));
    }

    #[test]
    fn a_second_connection_is_refused_while_the_first_lives() {
        let mut entry = None;
        connect(&mut entry, request(at("a", 1), Duplicate::Refuse));
        let again = request(at("b", 1), Duplicate::Refuse);
        let occupied = ConnectOutcome::Occupied { place: at("a", 1), generation: FIRST };
        assert_eq!(connect(&mut entry, again.clone()), occupied);
        // Its node is dead, but the entry is another one by now.
        assert_eq!(connect(&mut entry, Connect { dead: Some(Generation(1)), ..again.clone() }), occupied);
        let taken = connect(&mut entry, Connect { dead: Some(FIRST), ..again });
        assert_eq!(taken, ConnectOutcome::Current { generation: SECOND, replaced: Some(at("a", 1)) });
    }

    #[test]
    fn an_answer_that_was_lost_is_asked_for_again() {
        let mut entry = None;
        connect(&mut entry, request(at("a", 1), Duplicate::Refuse));
        let again = connect(&mut entry, request(at("a", 1), Duplicate::Refuse));
        assert_eq!(again, ConnectOutcome::Current { generation: FIRST, replaced: None });
    }

    #[test]
    fn a_connection_after_a_loss_outranks_those_before() {
        let era = Era::next_era(Some(Era(5)), 3);
        assert_eq!(era, Era(6), "a clock that is behind");
        let mut entry = None;
        connect(&mut entry, Connect { era, ..request(at("b", 1), Duplicate::Replace) });
        let old = Generation(FIRST.0 + 1000);
        assert_eq!(register(&mut entry, at("a", 1), old, 0), RegistrationAnswer::Superseded);
        // In the other order, too.
        let mut entry = None;
        assert_eq!(register(&mut entry, at("a", 1), old, 0), RegistrationAnswer::Current);
        let newer = connect(&mut entry, Connect { era, ..request(at("b", 1), Duplicate::Replace) });
        assert_eq!(
            newer,
            ConnectOutcome::Current { generation: Generation(6 << COUNTER_BITS), replaced: Some(at("a", 1)) }
        );
    }

    #[test]
    fn a_connection_whose_second_generation_was_not_heard_stays_current() {
        let mut entry = None;
        connect(&mut entry, request(at("a", 1), Duplicate::Refuse));
        connect(&mut entry, Connect { era: Era(6), ..request(at("a", 1), Duplicate::Refuse) });
        assert_eq!(register(&mut entry, at("a", 1), FIRST, 0), RegistrationAnswer::Current);
        assert_eq!(entry.as_ref().map(DirectoryEntry::generation), Some(FIRST));
        assert!(disconnect(&mut entry, &end("a", 1), 9));
    }

    #[test]
    fn a_connection_goes_on_in_another_process_of_its_node() {
        let mut entry = None;
        connect(&mut entry, request(at("a", 1), Duplicate::Replace));
        assert_eq!(register(&mut entry, at("b", 7), FIRST, 0), RegistrationAnswer::Superseded);
        assert_eq!(register(&mut entry, at("a", 7), FIRST, 0), RegistrationAnswer::Current);
        assert!(!disconnect(&mut entry, &end("a", 1), 9) && disconnect(&mut entry, &end("a", 7), 9));
    }

    #[test]
    fn a_request_that_comes_late_does_not_take_the_place_of_a_newer_one_of_its_node() {
        let mut entry = None;
        connect(&mut entry, request(at("a", 7), Duplicate::Replace));
        let late = connect(&mut entry, request(at("a", 5), Duplicate::Replace));
        assert_eq!(late, ConnectOutcome::Occupied { place: at("a", 7), generation: FIRST });
        assert_eq!(register(&mut entry, at("a", 5), SECOND, 0), RegistrationAnswer::Superseded);
        assert!(disconnect(&mut entry, &end("a", 7), 9));
    }

    #[test]
    fn the_end_of_a_connection_ends_those_it_has_followed() {
        let mut entry = None;
        let ended = |node, connection| Disconnect { and_older: true, ..end(node, connection) };
        connect(&mut entry, request(at("a", 5), Duplicate::Replace));
        assert!(!disconnect(&mut entry, &ended("b", 7), 9) && !disconnect(&mut entry, &ended("a", 4), 9));
        let other_epoch = Disconnect { place: Location { epoch: 2, ..at("a", 7) }, and_older: true };
        assert!(!disconnect(&mut entry, &other_epoch, 9) && !disconnect(&mut entry, &end("a", 7), 9));
        assert!(disconnect(&mut entry, &ended("a", 7), 9));
    }

    #[test]
    fn a_new_epoch_keeps_its_connections() {
        let mut entry = None;
        connect(&mut entry, request(at("a", 1), Duplicate::Replace));
        let place = Location { epoch: 2, ..at("a", 1) };
        assert_eq!(register(&mut entry, place.clone(), FIRST, 0), RegistrationAnswer::Current);
        assert!(matches!(entry, Some(DirectoryEntry::Online { place: stored, .. }) if stored == place));
    }

    #[test]
    fn generations_fit_into_a_double() {
        let last = (u64::from(u32::MAX) << COUNTER_BITS) + (1 << COUNTER_BITS);
        assert!(last < 1 << 53);
    }

    #[test]
    fn offline_entries_are_kept_for_a_month() {
        let entry = DirectoryEntry::Offline { generation: FIRST, last_seen_ms: 1 };
        assert!(!entry.is_forgotten(OFFLINE_RETENTION_MS) && entry.is_forgotten(OFFLINE_RETENTION_MS + 1));
    }
}

#[cfg(test)]
mod lease_tests {
    use super::*;

    #[test]
    fn one_process_holds_it() {
        let mut lease = None;
        Lease::acquire_or_renew(&mut lease, 1, 0, 5_000).unwrap();
        assert_eq!(Lease::acquire_or_renew(&mut lease, 2, 4_999, 5_000), Err(LeaseConflict { until_ms: 5_000 }));
        Lease::acquire_or_renew(&mut lease, 1, 4_999, 5_000).unwrap();
        assert!(Lease::is_alive(lease.as_ref(), 1, 9_998) && !Lease::is_alive(lease.as_ref(), 1, 9_999));
        Lease::acquire_or_renew(&mut lease, 2, 9_999, 5_000).unwrap();
        assert!(!Lease::is_alive(lease.as_ref(), 1, 9_999));
    }
}

#[cfg(test)]
mod members_tests {
    use super::*;

    fn member(until_ms: u64, fully_registered_era: Option<Era>) -> (Box<str>, Member) {
        let lease = Lease { epoch: 1, until_ms };
        (format!("until-{until_ms}").into(), Member { lease, address: "".into(), fully_registered_era })
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
        assert!(!read.clone().after_contact(LEASE_MS).is_complete() && read.after_contact(LEASE_MS + 1).is_complete());
    }
}
