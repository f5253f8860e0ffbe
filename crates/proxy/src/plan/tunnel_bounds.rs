//! Time limits of a tunnel, according to its route and the gateway's settings.

use super::{Settings, TimeoutsMs};
use serde::{Deserialize, Serialize};

/// Later than any time: added to a time it does not overflow.
const NEVER_MS: u64 = u64::MAX / 4;

/// How long a tunnel may do each of these.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct TunnelBounds {
    /// Be idle.
    pub(crate) idle_ms: u64,
    /// Exist.
    pub(crate) total_ms: u64,
    /// Wait for the node to take something.
    pub(crate) node_send_ms: u64,
    /// Wait for the client to take something.
    pub(crate) client_send_ms: u64,
    /// Continue after its route was changed, if that drains it.
    pub(crate) drain_ms: u64,
}

impl TunnelBounds {
    /// Bounds of a tunnel that may be idle for so long.
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
