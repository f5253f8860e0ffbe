//! From an exchange to a tunnel: whether a 101 is one that was asked for, and what of the exchange is kept.

use super::direction::Direction;
use crate::client::Client;
use crate::exchange::{Exchange, Kept, Outcome};
use crate::forwarding;
use crate::plan::{Lease, PlanRoute, Settings, TimeoutsMs};
use crate::relay::Relay;
use crate::snapshot::{Snapshot, WorkerUpstream};
use crate::stream::Stream;
use crate::worker::Worker;
use std::rc::Rc;
use std::sync::Arc;
use stillgate_upstream::Failure;
use stillgate_wire::{switches_as_asked, upgrade_protocols, write_response, write_upgrade_lines};

/// Later than anything: added to a time it does not overflow.
const NEVER_MS: u64 = u64::MAX / 4;

/// What an exchange leaves behind when both sides speak another protocol: all of a tunnel but the client's connection.
pub(crate) struct Switched {
    pub(super) node: Stream,
    /// The request's, to the byte.
    pub(super) head: Box<[u8]>,
    /// What the access log and the metrics will tell; its `kept` is there.
    pub(super) outcome: Outcome,
    /// The node's, in the upstream's state.
    pub(super) slot: usize,
    /// `None`: the route does not mind what becomes of its tunnels.
    pub(super) lease: Option<Arc<Lease>>,
    pub(super) bounds: Bounds,
    pub(super) opened_ms: u64,
    /// Client to node.
    pub(super) up: Direction,
    /// Node to client.
    pub(super) down: Direction,
}

/// For how long a tunnel may do what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Move nothing.
    pub(super) idle_ms: u64,
    /// Be there.
    pub(super) total_ms: u64,
    /// Wait for the node to take something.
    pub(super) node_send_ms: u64,
    /// Wait for the client to.
    pub(super) client_send_ms: u64,
    /// Go on after its route was changed, where that drains it.
    pub(super) drain_ms: u64,
}

impl Bounds {
    fn new(timeouts: TimeoutsMs, settings: &Settings) -> Bounds {
        Bounds {
            idle_ms: settings.tunnel_idle_ms.unwrap_or(timeouts.read),
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
    let x = &mut *relay.x;
    let head = &x.from_node.unparsed()[..x.response.len];
    let is_asked = x.passes_upgrade && switches_as_asked(&x.request, x.from_client.head(), &x.response, head);
    if !is_asked || !is_sent {
        return Err(Failure::BadResponse);
    }
    forwarding::edit_response(worker, x, settings, true, false);
    let head = &x.from_node.unparsed()[..x.response.len];
    write_upgrade_lines(&mut x.response_edits.added, upgrade_protocols(&x.response.fields, head));
    let before = x.to_client.total;
    let out = x.to_client.head(&worker.buffers);
    write_response(out, head, &x.response, &x.response_edits);
    x.outcome.status = x.response.status;
    x.outcome.head_bytes = before + out.len() as u64;
    x.to_client.stage(&[], None, &worker.buffers);
    x.from_node.skip_head(x.response.len);
    relay.enter_switch();
    Ok(())
}

impl Switched {
    /// Of an exchange whose 101 is out.
    pub(crate) fn new(
        worker: &Worker,
        client: &Client,
        x: &mut Exchange,
        snapshot: &Snapshot,
        route: &PlanRoute,
        slot: usize,
        node: Stream,
    ) -> Switched {
        let now_ms = worker.clock.now_ms();
        let head = x.from_client.head().into();
        let mut outcome = std::mem::take(&mut x.outcome);
        outcome.kept = Some(Rc::new(Kept {
            route: route.route.clone(),
            path: outcome.route.map_or(0, |found| found.path),
            upstream: snapshot.upstreams.get(route.upstream()).expect("a route's upstream is in its Plan").clone(),
        }));
        let (received, sent) = (x.from_client.total, x.to_client.total);
        let early = x.from_client.take_leftover();
        Switched {
            node,
            head,
            outcome,
            slot,
            lease: route.lease.clone(),
            bounds: Bounds::new(snapshot.plan.timeouts(route), &snapshot.plan.settings),
            opened_ms: now_ms,
            up: Direction::new(early, client.eof, (received, 0), now_ms),
            down: Direction::new(x.from_node.take_leftover(), false, (0, sent), now_ms),
        }
    }

    pub(super) fn upstream(&self) -> &WorkerUpstream {
        &self.outcome.kept.as_ref().expect("a tunnel's outcome has it until it is recorded").upstream
    }
}
