//! Where devices are: asked by the API, told by the workers' reports.

mod memory;

pub(crate) use memory::Memory;

use std::sync::Arc;
use stillgate_devices::directory::{Connected, Duplicate, Entry, Place};

/// The directory cannot be asked now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Away;

/// Who knows which node has a device.
#[derive(Debug)]
pub(crate) enum Registry {
    /// This node, which is the only one.
    Memory(Memory),
}

impl Registry {
    /// A device has connected to this node. Its handshake waits for the answer. Without one it is let in all the same.
    pub(crate) async fn connect(
        &self,
        device: &Arc<str>,
        connection: u64,
        duplicate: Duplicate,
    ) -> Result<Connected, Away> {
        match self {
            Registry::Memory(memory) => Ok(memory.connect(device, connection, duplicate)),
        }
    }

    /// One that another process of this node had goes on here.
    pub(crate) fn adopt(&self, device: &Arc<str>, connection: u64, former: stillgate_proxy::device_link::Former) {
        match self {
            Registry::Memory(memory) => memory.adopt(device, connection, former),
        }
    }

    /// A connection has ended. It never waits.
    pub(crate) fn disconnect(&self, device: &Arc<str>, connection: u64) {
        match self {
            Registry::Memory(memory) => memory.disconnect(device, connection),
        }
    }

    /// What is known of a device; `None`: nobody has seen it.
    pub(crate) async fn locate(&self, device: &str) -> Result<Option<Entry>, Away> {
        match self {
            Registry::Memory(memory) => Ok(memory.locate(device)),
        }
    }

    /// Devices that are not connected, in order, from a name on that begins with a prefix.
    pub(crate) fn offline(&self, prefix: &str, after: &str, count: usize) -> Vec<(Arc<str>, u64)> {
        match self {
            Registry::Memory(memory) => memory.offline(prefix, after, count),
        }
    }

    /// Whether a connection is of this node.
    pub(crate) fn is_here(&self, place: &Place) -> bool {
        match self {
            Registry::Memory(memory) => memory.is_here(place),
        }
    }
}
