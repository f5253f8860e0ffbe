//! The beginning of a tunnel: what an exchange or a session of `stream_proxy` has left.

use super::direction::Direction;
use crate::connection::stream::Stream;
use crate::exchange::{UpgradedExchange, UpgradedRequest};
use crate::plan::snapshot::WorkerUpstream;
use crate::plan::{Lease, TunnelBounds};
use crate::telemetry::session::ClientSession;
use std::rc::Rc;
use std::sync::Arc;

/// Everything in a tunnel except the client's connection.
pub(crate) struct NewTunnel {
    pub(crate) node: Stream,
    pub(crate) origin: TunnelOrigin,
    pub(crate) upstream: Rc<WorkerUpstream>,
    /// The node's slot in the upstream's state.
    pub(crate) slot: usize,
    /// `None`: the route does not care what becomes of its tunnels.
    pub(crate) lease: Option<Arc<Lease>>,
    pub(crate) bounds: TunnelBounds,
    pub(crate) opened_ms: u64,
    /// Client to node.
    pub(crate) up: Direction,
    /// Node to client.
    pub(crate) down: Direction,
}

/// Origin of a tunnel, which the access log and the metrics record at its end.
pub(crate) enum TunnelOrigin {
    /// A request that was answered 101.
    Request(Box<UpgradedRequest>),
    /// A connection of `stream_proxy`.
    Session(Box<ClientSession>),
}

impl From<UpgradedExchange> for NewTunnel {
    fn from(upgraded: UpgradedExchange) -> NewTunnel {
        let UpgradedExchange {
            node, request, upstream, slot, lease, bounds, opened_ms, from_client, from_node, ..
        } = upgraded;
        let (received, sent) = (upgraded.received, upgraded.sent);
        NewTunnel {
            node,
            origin: TunnelOrigin::Request(request),
            upstream,
            slot,
            lease,
            bounds,
            opened_ms,
            up: Direction::new(from_client, upgraded.client_has_ended, (received, 0), opened_ms),
            down: Direction::new(from_node, false, (0, sent), opened_ms),
        }
    }
}
