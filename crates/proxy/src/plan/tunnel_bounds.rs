//! For how long a tunnel may do what, as its route and the gateway's settings have it.

use super::{Settings, TimeoutsMs};
use serde::{Deserialize, Serialize};

/// Later than anything: added to a time it does not overflow.
const NEVER_MS: u64 = u64::MAX / 4;

/// For how long a tunnel may do what.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct TunnelBounds {
    /// Move nothing.
    pub(crate) idle_ms: u64,
    /// Be there.
    pub(crate) total_ms: u64,
    /// Wait for the node to take something.
    pub(crate) node_send_ms: u64,
    /// Wait for the client to.
    pub(crate) client_send_ms: u64,
    /// Go on after its route was changed, where that drains it.
    pub(crate) drain_ms: u64,
}

impl TunnelBounds {
    /// Of one that may move nothing for so long.
    pub(crate) fn new(idle_ms: u64, timeouts: TimeoutsMs, settings: &Settings) -> TunnelBounds {
        TunnelBounds {
            idle_ms,
            total_ms: if settings.tunnel_total_ms == 0 { NEVER_MS } else { settings.tunnel_total_ms },
            node_send_ms: timeouts.send,
            client_send_ms: settings.send_ms,
            drain_ms: settings.drain_ms,
        }
    }
}
