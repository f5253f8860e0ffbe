//! From an exchange to a tunnel: whether a 101 is one that was asked for, and what of the exchange is kept.
//!
//! A session of `stream_proxy` comes to its tunnel by itself, with the same things in hand.

use super::direction::Direction;
use crate::client::Client;
use crate::connection::stream::Stream;
use crate::exchange::forwarding;
use crate::exchange::relay::Relay;
use crate::exchange::reply::reason;
use crate::exchange::{Exchange, Kept, Outcome};
use crate::plan::snapshot::{Snapshot, WorkerUpstream};
use crate::plan::{Lease, PlanRoute, Settings, TimeoutsMs};
use crate::stream_proxy::Session;
use crate::telemetry::access_log::ResponseFields;
use crate::telemetry::node_tries::NodeTries;
use crate::worker::Worker;
use serde::{Deserialize, Serialize};
use std::rc::Rc;
use std::sync::Arc;
use stillgate_upstream::Failure;
use stillgate_wire::{switches_as_asked, upgrade_protocols, write_response, write_upgrade_lines};

/// Later than anything: added to a time it does not overflow.
const NEVER_MS: u64 = u64::MAX / 4;

/// All of a tunnel but the client's connection.
pub(crate) struct Switched {
    pub(crate) node: Stream,
    pub(crate) origin: Origin,
    pub(crate) upstream: Rc<WorkerUpstream>,
    /// The node's, in the upstream's state.
    pub(crate) slot: usize,
    /// `None`: the route does not mind what becomes of its tunnels.
    pub(crate) lease: Option<Arc<Lease>>,
    pub(crate) bounds: Bounds,
    pub(crate) opened_ms: u64,
    /// Client to node.
    pub(crate) up: Direction,
    /// Node to client.
    pub(crate) down: Direction,
}

/// What a tunnel came from, which is what the access log and the metrics tell of at its end.
pub(crate) enum Origin {
    /// A request that was answered 101.
    Request(Box<Request>),
    /// A connection of `stream_proxy`.
    Session(Box<Session>),
}

/// What an exchange leaves behind when both sides speak another protocol.
pub(crate) struct Request {
    /// To the byte.
    pub(crate) head: Box<[u8]>,
    /// Its `kept` is there.
    pub(crate) outcome: Outcome,
    pub(crate) tries: NodeTries,
    /// Of the 101; empty where another process has sent it.
    pub(crate) fields: ResponseFields,
}

/// For how long a tunnel may do what.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bounds {
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

impl Bounds {
    /// Of one that may move nothing for so long.
    pub(crate) fn new(idle_ms: u64, timeouts: TimeoutsMs, settings: &Settings) -> Bounds {
        Bounds {
            idle_ms,
            total_ms: if settings.tunnel_total_ms == 0 { NEVER_MS } else { settings.tunnel_total_ms },
            node_send_ms: timeouts.send,
            client_send_ms: settings.send_ms,
            drain_ms: settings.drain_ms,
        }
    }
}

/// Stages the head of a 101 for the client, if the client asked for what it switches to and all of the request is out.
pub(crate) fn agree(relay: &mut Relay<'_>, settings: &Settings) -> Result<(), Failure> {
    let worker = relay.worker;
    let is_sent = relay.request_sent && !relay.node_deaf;
    let exchange = &mut *relay.exchange;
    let head = &exchange.from_node.unparsed()[..exchange.response.len];
    let is_asked = exchange.passes_upgrade
        && switches_as_asked(&exchange.request, exchange.from_client.head(), &exchange.response, head);
    if !is_asked || !is_sent {
        return Err(Failure::BadResponse);
    }
    forwarding::edit_response(worker, exchange, settings, true, false);
    let head = &exchange.from_node.unparsed()[..exchange.response.len];
    write_upgrade_lines(&mut exchange.response_edits.fields.added, upgrade_protocols(&exchange.response.fields, head));
    let before = exchange.bytes_sent();
    let out = exchange.to_client.head(&worker.buffers);
    write_response(out, head, &exchange.response, &exchange.response_edits, reason);
    exchange.outcome.status = exchange.response.status;
    exchange.outcome.head_bytes = before + out.len() as u64;
    exchange.fields.note_response(worker.wanted_fields(), &exchange.response, head, out);
    exchange.to_client.stage(&[], None, &worker.buffers);
    exchange.from_node.skip_head(exchange.response.len);
    relay.enter_switch();
    Ok(())
}

impl Switched {
    /// Of an exchange whose 101 is out.
    pub(crate) fn new(
        worker: &Worker,
        client: &Client,
        exchange: &mut Exchange,
        snapshot: &Snapshot,
        route: &PlanRoute,
        slot: usize,
        node: Stream,
    ) -> Switched {
        let now_ms = worker.clock.now_ms();
        let head = exchange.from_client.head().into();
        let upstream = snapshot.upstreams.get(route.upstream()).expect("a route's upstream is in its Plan").clone();
        let mut outcome = std::mem::take(&mut exchange.outcome);
        outcome.kept = Some(Rc::new(Kept {
            route: route.route.clone(),
            path: outcome.route.map_or(0, |found| found.path),
            upstream: upstream.clone(),
        }));
        let settings = &snapshot.plan.settings;
        let timeouts = snapshot.plan.timeouts(route);
        let (received, sent) = (exchange.from_client.total, exchange.bytes_sent());
        let early = exchange.from_client.take_leftover();
        Switched {
            node,
            origin: Origin::Request(Box::new(Request {
                head,
                outcome,
                tries: exchange.tries.clone(),
                fields: exchange.fields.clone(),
            })),
            upstream,
            slot,
            lease: route.lease.clone(),
            bounds: Bounds::new(settings.tunnel_idle_ms.unwrap_or(timeouts.read), timeouts, settings),
            opened_ms: now_ms,
            up: Direction::new(early, client.eof, (received, 0), now_ms),
            down: Direction::new(exchange.from_node.take_leftover(), false, (0, sent), now_ms),
        }
    }
}
