//! Where devices are: the API looks them up, the workers' reports update it.

use crate::clock::unix_ms;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::net::TcpListener;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use stillgate_cluster::peers::{Handler, PeerTls};
use stillgate_cluster::registry::{Directory, DirectorySettings, FormerDirectory, RedisAddress};
use stillgate_cluster::{Cluster, ClusterSettings, SendError, Watch};
use stillgate_devices::directory::{
    Connect, ConnectOutcome, DeliveryError, DirectoryEntry, DirectoryUnavailable, Disconnect, Duplicate, Era, Location,
    RegistrationAnswer, connect, disconnect, register,
};
use stillgate_proxy::device_link::FormerConnection;

/// What knows which node has a device.
#[derive(Debug)]
pub(crate) enum Registry {
    /// This node, which is the only one.
    Memory(Memory),
    /// A directory, for several.
    Shared(SharedRegistry),
}

/// Why a device is not connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotConnected {
    /// It was connected. If its node has died, the time is not known.
    Offline { last_seen_ms: Option<u64> },
    /// It has never been seen.
    Unknown,
    /// The state is not known now.
    Away,
}

impl Registry {
    /// A device has connected to this node. Its handshake waits for the answer. If none comes, the device is admitted.
    pub(crate) async fn connect(
        &self,
        device: &Arc<str>,
        connection: u64,
        duplicate: Duplicate,
    ) -> Result<ConnectOutcome, DirectoryUnavailable> {
        match self {
            Registry::Memory(memory) => Ok(memory.connect(device, connection, duplicate)),
            Registry::Shared(shared) => shared.directory().connect(device, connection, duplicate).await,
        }
    }

    /// Adopts a connection of another process of this node. False: its device has a newer one.
    pub(crate) fn adopt(&self, device: &Arc<str>, connection: u64, former: FormerConnection) -> bool {
        match self {
            Registry::Memory(memory) => memory.adopt(device, connection, former),
            Registry::Shared(shared) => {
                let FormerConnection { generation, since_ms } = former;
                shared.directory().adopt(device, connection, generation, since_ms)
            }
        }
    }

    /// A connection goes on in another process of this node, which registers it.
    pub(crate) fn give(&self, device: &Arc<str>, connection: u64) {
        match self {
            // Its entries end with the process.
            Registry::Memory(_) => {}
            Registry::Shared(shared) => shared.directory().mark_handed_over(device, connection),
        }
    }

    /// A connection has ended. It never waits.
    pub(crate) fn disconnect(&self, device: &Arc<str>, connection: u64) {
        match self {
            Registry::Memory(memory) => memory.disconnect(device, connection),
            Registry::Shared(shared) => shared.directory().disconnect(device, connection),
        }
    }

    /// The way to other nodes, where there may be some.
    pub(crate) fn shared(&self) -> Option<&SharedRegistry> {
        match self {
            Registry::Memory(_) => None,
            Registry::Shared(shared) => Some(shared),
        }
    }

    /// The process that this one follows has given all that it had.
    pub(crate) fn mark_filled(&self) {
        if let Registry::Shared(shared) = self {
            shared.directory().mark_filled();
        }
    }

    /// Another process of this node takes over.
    pub(crate) fn leave(&self) {
        if let Registry::Shared(shared) = self {
            shared.leave();
        }
    }

    /// The process ends, and has no more devices.
    pub(crate) async fn end(&self) {
        if let Registry::Shared(shared) = self {
            shared.end().await;
        }
    }
}

impl From<Option<DirectoryEntry>> for NotConnected {
    /// Why a device is not here, on the only node.
    fn from(entry: Option<DirectoryEntry>) -> NotConnected {
        match entry {
            Some(DirectoryEntry::Offline { last_seen_ms, .. }) => {
                NotConnected::Offline { last_seen_ms: Some(last_seen_ms) }
            }
            None => NotConnected::Unknown,
            Some(DirectoryEntry::Online { .. }) => NotConnected::Away,
        }
    }
}

// A directory that nodes share, and the way to the other nodes.

/// The fields of a request besides its message, which may be in base64.
const WORDS_BYTES_MAX: usize = 64 * 1024;
/// Maximum size of cached look-ups, in bytes.
const LOOKUP_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The settings for taking part.
pub(crate) struct RegistrySettings {
    pub(crate) node: String,
    pub(crate) redis: RedisAddress,
    pub(crate) listener: TcpListener,
    /// The address for other nodes.
    pub(crate) advertise: String,
    pub(crate) tls: Option<PeerTls>,
    /// Directory of the process that this one follows.
    pub(crate) former: Option<FormerDirectory>,
    pub(crate) message_bytes_max: usize,
    /// Answers requests of other nodes.
    pub(crate) answers: Handler,
    /// Closes a connection that was replaced on another node.
    pub(crate) close: Arc<dyn Fn(u64) + Send + Sync>,
}

/// The directory and the peers of one node.
pub(crate) struct SharedRegistry {
    cluster: Cluster,
}

/// Why a device's node has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerSilence {
    /// No request was sent to it.
    Gone(NotConnected),
    /// Not sent: its node already has as many requests in flight as it takes.
    Busy,
    /// The request was sent, and the connection or the time ended first.
    Lost,
}

impl SharedRegistry {
    /// Begins, on the current runtime.
    pub(crate) fn start(sharing: RegistrySettings) -> io::Result<SharedRegistry> {
        let listener = tokio::net::TcpListener::from_std(sharing.listener)?;
        let cluster = Cluster::start(ClusterSettings {
            directory: DirectorySettings {
                node: sharing.node.into(),
                address: sharing.advertise.into(),
                former: sharing.former,
                redis: sharing.redis,
                lookup_bytes_max: LOOKUP_BYTES_MAX,
            },
            tls: sharing.tls,
            listener: Some(listener),
            body_bytes_max: 2 * sharing.message_bytes_max + WORDS_BYTES_MAX,
            handler: sharing.answers,
            close: sharing.close,
        });
        Ok(SharedRegistry { cluster: cluster.map_err(io::Error::other)? })
    }

    fn directory(&self) -> &Directory {
        self.cluster.directory()
    }

    pub(crate) fn watch(&self) -> Watch {
        self.cluster.watch()
    }

    fn leave(&self) {
        self.cluster.leave();
    }

    async fn end(&self) {
        self.cluster.end().await;
    }

    /// Sends a request to the node of a device that was not here a moment ago.
    pub(crate) async fn ask(
        &self,
        device: &str,
        kind: &str,
        body: Bytes,
        patience: Duration,
    ) -> Result<Bytes, PeerSilence> {
        let gone = match self.cluster.send(device, kind, body, patience).await {
            Ok(answer) => return Ok(answer),
            Err(SendError::Lost) => return Err(PeerSilence::Lost),
            Err(SendError::Busy) => return Err(PeerSilence::Busy),
            Err(SendError::Unsent(DeliveryError::NeverSeen)) => NotConnected::Unknown,
            Err(SendError::Unsent(DeliveryError::Offline { last_seen_ms })) => NotConnected::Offline { last_seen_ms },
            Err(SendError::Unsent(DeliveryError::Moved | DeliveryError::Unknown)) => NotConnected::Away,
        };
        Err(PeerSilence::Gone(gone))
    }

    /// Sends a request to every other node: its name, and its answer if it sends one.
    pub(crate) async fn ask_all(&self, kind: &str, body: Bytes, patience: Duration) -> Vec<(Arc<str>, Option<Bytes>)> {
        self.cluster.ask_all(kind, body, patience).await
    }

    /// Sends a request to every other node for something that one of them has: the first answer.
    pub(crate) async fn ask_any(&self, kind: &str, body: Bytes, patience: Duration) -> Option<Bytes> {
        self.cluster.ask_any(kind, body, patience).await.map(|(_, answer)| answer)
    }
}

impl fmt::Debug for SharedRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.directory().fmt(f)
    }
}

// The directory of a single node, in its memory: the same entries as one that nodes share, changed by the same functions.
//
// Entries of devices that are not connected are kept for a month, and at most so many as the node may have connections: beyond
// that the oldest go first.

/// Seconds since 1970 at the beginning of 2024, from which eras count.
const ERA_BEGIN_S: u64 = 1_704_067_200;
/// Maximum number of names that are checked for one page of a list.
const LOOKED_AT_MAX: usize = 100_000;

/// One node's.
#[derive(Debug)]
pub(crate) struct Memory {
    era: Era,
    entries_max: usize,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    /// Entries in order, so that a prefix can be listed.
    all: BTreeMap<Arc<str>, MemoryEntry>,
    /// The number of the last place.
    connections: u64,
    /// Devices that went offline, in that order. A device that came back may still be listed.
    left: VecDeque<Arc<str>>,
}

#[derive(Debug, Default)]
struct MemoryEntry {
    entry: Option<DirectoryEntry>,
    /// The number that the worker knows the entry's connection by. Its place has another.
    connection: u64,
}

impl Memory {
    pub(crate) fn new(entries_max: usize) -> Memory {
        let now_s = (unix_ms() / 1000).saturating_sub(ERA_BEGIN_S);
        let era = Era::next_era(None, u32::try_from(now_s).unwrap_or(u32::MAX));
        Memory { era, entries_max, entries: Mutex::default() }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place has no name: it would be the same for all, and take memory for each.
    fn place(&self, number: u64) -> Location {
        Location { node: "".into(), epoch: u64::from(self.era.0), connection: number }
    }

    fn connect(&self, device: &Arc<str>, connection: u64, duplicate: Duplicate) -> ConnectOutcome {
        self.change(device, connection, |entry, place| {
            let request = Connect { place, era: self.era, duplicate, dead: None, now_ms: unix_ms() };
            let connected = connect(entry, request);
            (matches!(connected, ConnectOutcome::Current { .. }), connected)
        })
    }

    fn adopt(&self, device: &Arc<str>, connection: u64, former: FormerConnection) -> bool {
        self.change(device, connection, |entry, place| {
            // A newer connection may have registered already: it stays.
            let is_current = register(entry, place, former.generation, former.since_ms) == RegistrationAnswer::Current;
            (is_current, is_current)
        })
    }

    /// Runs `ask` with the place of a new connection; `ask` says whether it is the current one now, too.
    fn change<T>(
        &self,
        device: &Arc<str>,
        connection: u64,
        ask: impl FnOnce(&mut Option<DirectoryEntry>, Location) -> (bool, T),
    ) -> T {
        let mut entries = self.entries();
        entries.connections += 1;
        let place = self.place(entries.connections);
        let known = entries.all.entry(device.clone()).or_default();
        let (is_current, answer) = ask(&mut known.entry, place);
        if is_current {
            known.connection = connection;
        }
        answer
    }

    fn disconnect(&self, device: &Arc<str>, connection: u64) {
        let mut entries = self.entries();
        let Some(known) = entries.all.get_mut(device).filter(|known| known.connection == connection) else { return };
        let Some(DirectoryEntry::Online { place, .. }) = &known.entry else { return };
        let ended = Disconnect { place: place.clone(), and_older: false };
        if disconnect(&mut known.entry, &ended, unix_ms()) {
            entries.left.push_back(device.clone());
            entries.forget(self.entries_max);
        }
    }

    pub(crate) fn locate(&self, device: &str) -> Option<DirectoryEntry> {
        let entries = self.entries();
        entries.all.get(device)?.entry.clone().filter(|entry| !entry.is_forgotten(unix_ms()))
    }

    pub(crate) fn offline(&self, prefix: &str, after: &str, count: usize) -> Vec<(Arc<str>, u64)> {
        let entries = self.entries();
        let begin = if after >= prefix && !after.is_empty() { Bound::Excluded(after) } else { Bound::Included(prefix) };
        let range = entries.all.range::<str, _>((begin, Bound::Unbounded));
        let of_prefix = range.take_while(|(device, _)| device.starts_with(prefix)).take(LOOKED_AT_MAX);
        let now_ms = unix_ms();
        of_prefix
            .filter_map(|(device, known)| match &known.entry {
                Some(entry @ DirectoryEntry::Offline { last_seen_ms, .. }) if !entry.is_forgotten(now_ms) => {
                    Some((device.clone(), *last_seen_ms))
                }
                _ => None,
            })
            .take(count)
            .collect()
    }
}

impl Entries {
    /// Forgets entries that are too old, or too many.
    fn forget(&mut self, entries_max: usize) {
        let now_ms = unix_ms();
        while let Some(first) = self.left.front() {
            let entry = self.all.get(first).and_then(|known| known.entry.as_ref());
            let is_offline = matches!(entry, Some(DirectoryEntry::Offline { .. }));
            let is_old = entry.is_none_or(|entry| entry.is_forgotten(now_ms));
            if is_offline && !is_old && self.left.len() <= entries_max {
                return;
            }
            if let Some(device) = self.left.pop_front().filter(|_| is_offline) {
                self.all.remove(&device);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_devices::Generation;

    #[test]
    fn devices_that_left_are_known_until_there_are_too_many() {
        let memory = Memory::new(2);
        for (number, name) in ["x1", "x2", "y1", "x3"].into_iter().enumerate() {
            let device: Arc<str> = name.into();
            memory.connect(&device, number as u64, Duplicate::Replace);
            memory.disconnect(&device, number as u64);
        }
        let names = |prefix: &str, after: &str| {
            memory.offline(prefix, after, 10).iter().map(|(device, _)| device.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names("", ""), ["x3", "y1"], "the oldest were forgotten");
        assert_eq!(names("x", ""), ["x3"]);
        assert_eq!(names("", "x3"), ["y1"]);
        assert_eq!(memory.locate("x1"), None);
        assert!(matches!(memory.locate("y1"), Some(DirectoryEntry::Offline { .. })));
    }

    #[test]
    fn a_connection_that_is_given_late_is_not_taken() {
        let memory = Memory::new(10);
        let (device, former): (Arc<str>, _) = ("d".into(), |generation| FormerConnection { generation, since_ms: 1 });
        let newest = memory.era.first_generation();
        assert!(memory.adopt(&device, 1, former(Generation(newest.0 - 2))));
        memory.connect(&device, 2, Duplicate::Replace);
        assert!(!memory.adopt(&device, 3, former(Generation(newest.0 - 1))));
        assert!(matches!(memory.locate("d"), Some(DirectoryEntry::Online { place, .. }) if place.connection == 2));
    }

    #[test]
    fn a_connection_that_ends_late_leaves_the_newer_one() {
        let memory = Memory::new(10);
        let device: Arc<str> = "d".into();
        memory.connect(&device, 1, Duplicate::Replace);
        memory.connect(&device, 2, Duplicate::Replace);
        memory.disconnect(&device, 1);
        assert!(matches!(memory.locate("d"), Some(DirectoryEntry::Online { place, .. }) if place.connection == 2));
    }
}
