//! Where devices are: the API looks them up, the workers' reports update it.

mod memory;
mod shared;

pub(crate) use memory::Memory;
pub(crate) use shared::{PeerSilence, RegistrySettings, SharedRegistry};

use std::sync::Arc;
use stillgate_devices::directory::{ConnectOutcome, DirectoryEntry, DirectoryUnavailable, Duplicate};
use stillgate_proxy::device_link::Former;

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
    pub(crate) fn adopt(&self, device: &Arc<str>, connection: u64, former: Former) -> bool {
        match self {
            Registry::Memory(memory) => memory.adopt(device, connection, former),
            Registry::Shared(shared) => {
                let Former { generation, since_ms } = former;
                shared.directory().adopt(device, connection, generation, since_ms)
            }
        }
    }

    /// A connection goes on in another process of this node, which registers it.
    pub(crate) fn give(&self, device: &Arc<str>, connection: u64) {
        match self {
            // Its entries end with the process.
            Registry::Memory(_) => {}
            Registry::Shared(shared) => shared.directory().given(device, connection),
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
    pub(crate) fn is_given(&self) {
        if let Registry::Shared(shared) = self {
            shared.directory().is_given();
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
