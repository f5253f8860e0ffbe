//! Connects and disconnects, published to listeners.

use std::sync::Arc;
use stillgate_devices::Generation;
use tokio::sync::broadcast::{Receiver, Sender, channel};

/// Changes that a slow listener may be behind; it misses older ones, and is sent their number.
const BEHIND_MAX: usize = 4096;

/// A device came or went.
#[derive(Debug, Clone)]
pub(super) struct PresenceChange {
    pub(super) device: Arc<str>,
    pub(super) is_connected: bool,
    pub(super) generation: Generation,
    pub(super) route: Arc<str>,
    /// Why it went.
    pub(super) reason: &'static str,
    /// Milliseconds since 1970.
    pub(super) at_ms: u64,
}

/// Where changes go.
#[derive(Debug)]
pub(super) struct Presence(Sender<PresenceChange>);

impl Default for Presence {
    fn default() -> Presence {
        Presence(channel(BEHIND_MAX).0)
    }
}

impl Presence {
    pub(super) fn listen(&self) -> Receiver<PresenceChange> {
        self.0.subscribe()
    }

    pub(super) fn tell(&self, change: impl FnOnce() -> PresenceChange) {
        if self.0.receiver_count() > 0 {
            // Without listeners the change is dropped.
            let _ = self.0.send(change());
        }
    }
}
