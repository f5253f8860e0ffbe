//! The phase `target`: where a request goes, within which limits, and with which head and `Host`.

use super::answer::LocalReply;
use super::{Exchange, RequestContext, chain, forwarding};
use crate::basics::min_rate;
use crate::connection::grpc;
use crate::plan::snapshot::WorkerUpstream;
use crate::plan::{Settings, TimeoutsMs};
use stillgate_config::{Balance, PassHost};
use stillgate_plugin_api::TemplatePart;
use stillgate_plugin_api::facts::append_address;
use stillgate_route::Lookup;
use stillgate_wire::HeadLimits;

/// Where a request goes.
pub(super) struct ExchangeTarget<'a> {
    pub(super) upstream: &'a WorkerUpstream,
    pub(super) bounds: ExchangeBounds,
}

/// The time and size bounds of an exchange.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExchangeBounds {
    pub(crate) node: TimeoutsMs,
    pub(crate) client_body_ms: u64,
    pub(crate) client_send_ms: u64,
    pub(crate) client_send_bytes_min: u64,
    pub(crate) response_head: HeadLimits,
    /// When the client needs its whole response at the latest; in the far future if it does not say so.
    pub(crate) deadline_ms: u64,
}

/// The answer to a CONNECT for a protocol that is not served (RFC 9220 section 3).
const STATUS_NOT_IMPLEMENTED: u16 = 501;

/// A time that never comes.
const FAR_MS: u64 = u64::MAX / 2;

/// How long another thread of this process, which gets the time that others leave, may be silent.
const OWN_TIMEOUT_MS: u64 = 60_000;

impl ExchangeBounds {
    fn new(node: TimeoutsMs, settings: &Settings) -> ExchangeBounds {
        ExchangeBounds {
            node,
            client_body_ms: settings.body_ms,
            client_send_ms: settings.send_ms,
            client_send_bytes_min: min_rate::client_bytes_min(settings.send_ms),
            response_head: HeadLimits { target_bytes_max: 0, ..settings.request_limits },
            deadline_ms: FAR_MS,
        }
    }

    /// Bounds for a response that another thread of this process makes.
    pub(super) fn of_own(settings: &Settings) -> ExchangeBounds {
        let node = TimeoutsMs { connect: OWN_TIMEOUT_MS, send: OWN_TIMEOUT_MS, read: OWN_TIMEOUT_MS, per_try: FAR_MS };
        ExchangeBounds::new(node, settings)
    }
}

impl<'a> ExchangeTarget<'a> {
    /// The upstream that a plugin has chosen, or otherwise that of the request's route; the client's own deadline is among the
    /// bounds if it uses gRPC.
    #[inline]
    pub(super) fn new(serving: &mut RequestContext<'a>) -> Result<ExchangeTarget<'a>, LocalReply> {
        let snapshot = serving.snapshot;
        let route = serving.route.ok_or_else(LocalReply::no_route)?;
        let unavailable = || LocalReply::error(503, "Route Unavailable");
        let chosen = match serving.exchange.chains.upstream() {
            None => None,
            Some(key) => Some(snapshot.plan.upstreams.slot(key).ok_or_else(unavailable)?),
        };
        serving.exchange.outcome.upstream = chosen;
        let slot = chosen.unwrap_or_else(|| route.upstream());
        let upstream = snapshot.upstreams.get(slot).ok_or_else(unavailable)?;
        let may_upgrade = serving.exchange.request.asks_upgrade && route.route.upgrades;
        if serving.client.stream.is_connect() && !may_upgrade {
            return Err(LocalReply::error(STATUS_NOT_IMPLEMENTED, "the route does not pass another protocol on"));
        }
        let mut bounds = ExchangeBounds::new(snapshot.plan.timeouts(route, slot), serving.settings());
        // Without HTTP/2 there can be no gRPC except gRPC-Web.
        let is_grpc = serving.client.stream.is_http2() || upstream.planned.link.grpc;
        let exchange = &*serving.exchange;
        if let Some(deadline_ms) = exchange.call_deadline_ms {
            bounds.deadline_ms = deadline_ms;
        } else if is_grpc && let Some(timeout_ms) = grpc::timeout_ms(&exchange.request, exchange.from_client.head()) {
            bounds.deadline_ms = serving.worker.clock.now_ms().saturating_add(timeout_ms);
        }
        Ok(ExchangeTarget { upstream, bounds })
    }

    /// Makes the head that every node gets, and the key by which the node is chosen.
    #[inline]
    pub(super) fn prepare(&self, serving: &mut RequestContext<'_>) {
        let definition = &self.upstream.planned.definition;
        let is_upgrading = serving.exchange.request.asks_upgrade;
        serving.exchange.passes_upgrade = is_upgrading && serving.route.is_some_and(|route| route.route.upgrades);
        // Before the lines that we add ourselves: plugins' changes are the only ones.
        serving.exchange.has_key = hash_key(serving, &definition.balance);
        forwarding::edit_request(serving, &definition.pass_host);
    }
}

/// Writes the text for the consistent hash into `exchange.key`, as plugins have left it; the client's address if the request has
/// none of its variables, as in APISIX. False: nothing is hashed.
fn hash_key(serving: &mut RequestContext<'_>, balance: &Balance) -> bool {
    let Balance::ConsistentHash(hashed) = balance else { return false };
    // Taken out while the exchange lends its facts.
    let mut key = std::mem::take(&mut serving.exchange.key);
    let mut buffer = std::mem::take(&mut serving.exchange.value);
    key.clear();
    let mut has_value = false;
    for part in hashed.parts() {
        let (variable, default) = match part {
            TemplatePart::Text(text) => {
                key.extend_from_slice(text);
                continue;
            }
            TemplatePart::Variable(variable) => (variable, None),
            TemplatePart::WithDefault(variable, default) => (variable, Some(&**default)),
        };
        let mut take = |value: Option<&[u8]>| value.or(default).map(|value| key.extend_from_slice(value)).is_some();
        has_value |= match serving.exchange.chains.is_on() {
            true => chain::edited_value(serving, variable, &mut buffer, &mut take),
            false => {
                let facts = serving.exchange.facts(serving.client, &serving.snapshot.plan);
                take(facts.value(variable, &mut buffer))
            }
        };
    }
    if !has_value {
        key.clear();
        append_address(&mut key, serving.client.address);
    }
    (serving.exchange.key, serving.exchange.value) = (key, buffer);
    true
}

/// The `Host` that a node gets if it is not the client's own line.
pub(crate) fn host_for<'a>(exchange: &'a Exchange, pass_host: &'a PassHost, node_host: &'a str) -> &'a [u8] {
    let authority = exchange.request.authority.of(exchange.from_client.head());
    host_of(exchange.request_edits.host(), authority, pass_host, node_host)
}

/// Like `host_for`, from the parts of an exchange: the host that a plugin has set, and the one that was requested.
pub(crate) fn host_of<'a>(
    set: Option<&'a [u8]>,
    authority: &'a [u8],
    pass_host: &'a PassHost,
    node_host: &'a str,
) -> &'a [u8] {
    if let Some(host) = set {
        return host;
    }
    match pass_host {
        PassHost::Rewrite(host) => host.as_bytes(),
        PassHost::Pass if !authority.is_empty() => authority,
        // HTTP/1.0 without Host: only the node's own name is available.
        PassHost::Pass | PassHost::Node => node_host.as_bytes(),
    }
}
