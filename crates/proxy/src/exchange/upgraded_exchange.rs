//! From an exchange to a tunnel: whether a 101 was requested, and which parts of the exchange are kept.

use super::chain::{self, Chains, ResponseSource};
use super::device::BegunDevice;
use super::relay::{Relay, RelayEvent};
use super::{RequestContext, forwarding};
use crate::basics::buffer::Buffer;
use crate::connection::stream::Stream;
use crate::plan::snapshot::WorkerUpstream;
use crate::plan::{Lease, TunnelBounds};
use crate::telemetry::access_log::ResponseFields;
use crate::telemetry::outcome::{RequestOutcome, RetainedConfig};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use stillgate_plugin_api::record::NodeTries;
use stillgate_upstream::Failure;
use stillgate_wire::{Fields, Name, reason, switches_as_asked, upgrade_protocols, write_response, write_upgrade_lines};

/// What a client's connection becomes.
pub(crate) enum Switch {
    /// It carries bytes both ways.
    Tunnel(Box<UpgradedExchange>),
    /// It is a device's, and terminated here.
    Device(Box<BegunDevice>),
}

/// What an exchange leaves when both sides speak another protocol.
pub(crate) struct UpgradedExchange {
    pub(crate) node: Stream,
    pub(crate) request: Box<UpgradedRequest>,
    pub(crate) upstream: Rc<WorkerUpstream>,
    /// The node's slot in the upstream's state.
    pub(crate) slot: usize,
    /// `None`: the route does not care what becomes of its tunnels.
    pub(crate) lease: Option<Arc<Lease>>,
    pub(crate) bounds: TunnelBounds,
    pub(crate) opened_ms: u64,
    /// Bytes of the client that arrived after its request, and how many arrived in total.
    pub(crate) from_client: Option<(Buffer, Range<usize>)>,
    pub(crate) received: u64,
    /// The client sends nothing more.
    pub(crate) client_has_ended: bool,
    /// Bytes of the node that arrived after its 101, and how many the client was sent.
    pub(crate) from_node: Option<(Buffer, Range<usize>)>,
    pub(crate) sent: u64,
}

/// The request that was answered 101, which the access log and the metrics record at the end.
pub(crate) struct UpgradedRequest {
    /// The head, byte for byte.
    pub(crate) head: Box<[u8]>,
    /// Its `kept` is set.
    pub(crate) outcome: RequestOutcome,
    pub(crate) tries: NodeTries,
    /// Fields of the 101; empty where another process has sent it.
    pub(crate) fields: ResponseFields,
    /// `None`: it has no plugins, or another process had it.
    pub(crate) chains: Option<Box<Chains>>,
}

/// Stages the head of a 101 for the client, if the client requested what it switches to and all of the request is out.
pub(super) fn agree(relay: &mut Relay<'_>) -> Result<(), RelayEvent> {
    let is_sent = relay.request_sent && !relay.node_deaf;
    let settings = relay.serving.settings();
    let exchange = &mut *relay.serving.exchange;
    let head = &exchange.from_node.unparsed()[..exchange.response.len];
    let is_asked = exchange.passes_upgrade
        && switches_as_asked(&exchange.request, exchange.from_client.head(), &exchange.response, head);
    if !is_asked || !is_sent {
        let is_of_client = mentions_upgrade(&exchange.request.fields, exchange.from_client.head());
        let failure = RelayEvent::NodeFailed(Failure::BadResponse);
        return Err(if is_of_client { RelayEvent::Disagreed } else { failure });
    }
    forwarding::edit_interim(exchange, settings);
    if exchange.chains.is_on() {
        chain::header_filter(&mut relay.serving, ResponseSource::Switching).map_err(|_| RelayEvent::PluginFailed)?;
        // What follows is not a body, and only a 101 says so.
        relay.serving.exchange.response_body.clear();
        relay.serving.exchange.response_edits.keep_status();
    }
    let exchange = &mut *relay.serving.exchange;
    let head = &exchange.from_node.unparsed()[..exchange.response.len];
    write_upgrade_lines(
        &mut exchange.response_edits.fields.appended,
        upgrade_protocols(&exchange.response.fields, head),
    );
    let before = exchange.bytes_sent();
    let worker = relay.serving.worker;
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

/// Whether nodes may switch to another protocol because of what the client sends. Some look at the fields of WebSocket only, which
/// they get with and without an upgrade.
#[cold]
fn mentions_upgrade(fields: &Fields, head: &[u8]) -> bool {
    const WEBSOCKET: &[u8] = b"sec-websocket-";
    fields.iter().any(|field| {
        let start = field.name.of(head).get(..WEBSOCKET.len());
        field.id == Name::Upgrade || start.is_some_and(|start| start.eq_ignore_ascii_case(WEBSOCKET))
    })
}

impl UpgradedExchange {
    /// Takes over an exchange whose 101 is out.
    pub(super) fn new(serving: &mut RequestContext<'_>, slot: usize, node: Stream) -> UpgradedExchange {
        let chains = chain::keep_for_tunnel(serving);
        let RequestContext { worker, client, exchange, snapshot, route } = serving;
        let route = route.expect("a request that was sent to a node has a route");
        let head = exchange.from_client.head().into();
        let at = exchange.outcome.upstream.unwrap_or_else(|| route.upstream());
        let upstream = snapshot.upstreams.get(at).expect("the upstream of a request is in its Plan").clone();
        let mut outcome = std::mem::take(&mut exchange.outcome);
        outcome.kept = Some(Rc::new(RetainedConfig {
            route: route.route.clone(),
            path: outcome.route.map_or(0, |found| found.path),
            upstream: Some(upstream.clone()),
        }));
        let settings = &snapshot.plan.settings;
        let timeouts = snapshot.plan.timeouts(route, at);
        let (received, sent) = (exchange.from_client.total, exchange.bytes_sent());
        UpgradedExchange {
            node,
            request: Box::new(UpgradedRequest {
                head,
                outcome,
                tries: exchange.tries.clone(),
                fields: exchange.fields.clone(),
                chains,
            }),
            upstream,
            slot,
            lease: route.lease.clone(),
            bounds: TunnelBounds::new(settings.tunnel_idle_ms.unwrap_or(timeouts.read), timeouts, settings),
            opened_ms: worker.clock.now_ms(),
            from_client: exchange.from_client.take_leftover(),
            received,
            client_has_ended: client.eof,
            from_node: exchange.from_node.take_leftover(),
            sent,
        }
    }
}
