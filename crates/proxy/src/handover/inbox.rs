//! The new process's side: connections come in from the thread that receives them, and are distributed to the workers.

use super::state::{HandedState, Parcel};
use std::cell::Cell;
use std::collections::HashSet;
use tokio::sync::mpsc;

/// Connections that may wait for a worker. A tunnel pauses while it waits.
pub const INBOX: usize = 8;

/// A parcel for a worker, with its state under the new configuration.
pub(crate) struct Arrival {
    pub(crate) parcel: Parcel,
    /// Its route differs from that in the other process.
    pub(crate) is_changed: bool,
}

/// Distributes connections from another process to the workers, one after the other.
pub struct Inbox {
    workers: Vec<mpsc::Sender<Arrival>>,
    next: Cell<usize>,
    /// Keys of routes that have changed.
    changed: HashSet<String>,
}

impl Inbox {
    pub(crate) fn new(workers: Vec<mpsc::Sender<Arrival>>, changed: HashSet<String>) -> Inbox {
        Inbox { workers, next: Cell::new(0), changed }
    }

    /// Gives a connection to a worker, and waits if that worker has many to begin with. False: the workers have ended.
    pub fn put(&self, parcel: Parcel) -> bool {
        let is_changed = match &parcel.state {
            HandedState::Connection(_) | HandedState::Broadcast { .. } => false,
            HandedState::Tunnel(tunnel) => self.changed.contains(&tunnel.route),
            HandedState::Device(device) => self.changed.contains(&device.route),
        };
        let at = self.next.get();
        self.next.set((at + 1) % self.workers.len());
        self.workers[at].blocking_send(Arrival { parcel, is_changed }).is_ok()
    }
}
