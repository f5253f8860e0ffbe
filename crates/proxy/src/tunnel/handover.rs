//! A tunnel moves to another process, and continues there as if nothing had happened.
//!
//! Its bounds remain those it began with, as in a reload; its route is the other configuration's, found by id. The process that has
//! it at its end records it, with all of its time and bytes.

use super::Tunnel;
use super::direction::Direction;
use super::{NewTunnel, TunnelOrigin};
use crate::connection::client::ClientConnection;
use crate::connection::stream::Stream;
use crate::exchange::UpgradedRequest;
use crate::handover::{
    HandedState, OriginState, Parcel, ParcelError, PolicyState, ROUTES, RequestState, STREAM_ROUTES, SessionState,
    TunnelState, share,
};
use crate::plan::snapshot::{Snapshot, WorkerUpstream};
use crate::plan::{Lease, PlanRoute, PlanStreamRoute};
use crate::telemetry::access_log::ResponseFields;
use crate::telemetry::outcome::{RequestOutcome, RetainedConfig};
use crate::telemetry::session::ClientSession;
use crate::worker::watches::WatchedLease;
use crate::worker::{Open, Worker};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stillgate_config::{NodeProtocol, OnChange};
use stillgate_plugin_api::record::{NodeTries, NodeTry};
use stillgate_route::Match;
use stillgate_upstream::Endpoint;

impl Tunnel {
    /// Gives it away if possible. True: it belongs to the other process, and ours is to be dropped.
    pub(super) fn give(&mut self) -> bool {
        if !self.open.worker.draining.get() {
            return false;
        }
        let Some(giving) = self.open.worker.handover() else { return false };
        let is_http = matches!(self.switched.origin, TunnelOrigin::Request(_));
        let may_go = self.client.listener.is_http() == is_http
            && self.open.worker.gives(&self.client)
            && matches!(self.switched.node, Stream::Plain(_))
            && self.switched.origin.route_key().is_some_and(|key| giving.takes_route(&key));
        self.is_given = may_go && giving.send(&self.open.worker.troubles, || self.pack());
        self.is_given
    }

    fn pack(&self) -> io::Result<Parcel> {
        let worker = &self.open.worker;
        let now_ms = worker.clock.now_ms();
        let NewTunnel { node, origin, upstream, slot, bounds, opened_ms, up, down, .. } = &self.switched;
        let sockets = vec![share(&self.client.stream)?, share(node)?];
        let mut bytes = Vec::new();
        let origin_state = origin.pack(worker, &mut bytes);
        let state = upstream.state.borrow();
        let endpoint = state.endpoint(*slot);
        let lease = self.leaving.as_ref().map(|leaving| (&leaving.lease, leaving.since_ms));
        let state = TunnelState {
            connection: worker.state_of(&self.client),
            address: self.client.address,
            origin: origin_state,
            route: origin.route_key().unwrap_or_default(),
            node: endpoint.address,
            upstream: origin.chosen_upstream(),
            node_host: endpoint.host.to_string(),
            policy: lease.and_then(|(lease, _)| match lease.policy {
                OnChange::Keep => None,
                OnChange::Drain => Some(PolicyState::Drain),
                OnChange::Close => Some(PolicyState::Close),
            }),
            revoked_ms: lease
                .filter(|(lease, _)| lease.is_revoked())
                .map(|(_, since_ms)| since_ms.map_or(0, |since_ms| now_ms.saturating_sub(since_ms))),
            bounds: *bounds,
            age_ms: now_ms.saturating_sub(*opened_ms),
            up: up.pack(&mut bytes, now_ms),
            down: down.pack(&mut bytes, now_ms),
        };
        Ok(Parcel { state: HandedState::Tunnel(Box::new(state)), bytes, sockets })
    }

    /// Continues a tunnel that another process has given. `bytes` are as many as the state says.
    pub(crate) fn resume(
        open: Open,
        mut client: ClientConnection,
        node: Stream,
        state: &TunnelState,
        bytes: &[u8],
        is_changed: bool,
    ) -> Result<Tunnel, ParcelError> {
        let worker = open.worker.clone();
        let now_ms = worker.clock.now_ms();
        let snapshot = worker.snapshot();
        let Some(route) = CurrentRoute::of(&worker, &snapshot, &state.route) else {
            return Err(cut(client, &node, format!("its route {:?} is gone", state.route)));
        };
        let chosen = state.upstream.as_deref().and_then(|key| snapshot.plan.upstreams.slot(key));
        let Some(upstream) = snapshot.upstreams.get(chosen.unwrap_or_else(|| route.upstream())).cloned() else {
            return Err(cut(client, &node, format!("its route {:?} is unavailable", state.route)));
        };
        let slot = upstream.state.borrow_mut().adopt(state.node, &state.node_host);
        client.address = state.address;
        let (held_up, held_down) = (state.up.held, state.down.held);
        let (rest, down) = bytes.split_at(bytes.len() - held_down);
        let (head, up) = rest.split_at(rest.len() - held_up);
        let origin = match (&state.origin, &route) {
            (OriginState::Request(request), CurrentRoute::Http(at, route)) => {
                let found = request.path.filter(|_| !is_changed).map(|path| Match { route: *at, path });
                let request = request.unpack(&worker, head, state, slot, found, route, &upstream);
                TunnelOrigin::Request(Box::new(request))
            }
            (OriginState::Session(session), CurrentRoute::Stream(route)) => {
                let node = upstream.state.borrow().endpoint(slot).clone();
                TunnelOrigin::Session(Box::new(session.unpack(node, route)))
            }
            _ => return Err(cut(client, &node, format!("its route {:?} is of another kind", state.route))),
        };
        let revoked_ms = state.revoked_ms.or(is_changed.then_some(0));
        let switched = NewTunnel {
            node,
            origin,
            upstream,
            slot,
            lease: lease(state.policy, revoked_ms.is_some(), route.lease()),
            bounds: state.bounds,
            opened_ms: now_ms.saturating_sub(state.age_ms),
            up: Direction::unpack(&state.up, up, &worker.buffers, now_ms),
            down: Direction::unpack(&state.down, down, &worker.buffers, now_ms),
        };
        let mut tunnel = Tunnel::begin(open, client, switched);
        if let Some(WatchedLease { since_ms, .. }) = &mut tunnel.leaving {
            *since_ms = revoked_ms.map(|revoked_ms| now_ms.saturating_sub(revoked_ms));
        }
        Ok(tunnel)
    }
}

/// Ends a tunnel that cannot continue: a truncated transfer must not look complete.
fn cut(mut client: ClientConnection, node: &Stream, why: String) -> ParcelError {
    client.ends_with_connection = true;
    node.reset_when_closed();
    ParcelError(why)
}

/// The lease that it holds: if its route has changed, one that was already revoked.
fn lease(policy: Option<PolicyState>, is_revoked: bool, present: Option<&Arc<Lease>>) -> Option<Arc<Lease>> {
    let policy = match policy? {
        PolicyState::Drain => OnChange::Drain,
        PolicyState::Close => OnChange::Close,
    };
    if !is_revoked {
        return present.cloned();
    }
    let lease = Lease::new(policy);
    lease.revoke();
    Some(Arc::new(lease))
}

/// A route of the current Plan, with its position there if it has one.
enum CurrentRoute<'a> {
    Http(usize, &'a PlanRoute),
    Stream(&'a PlanStreamRoute),
}

impl<'a> CurrentRoute<'a> {
    fn of(worker: &Worker, snapshot: &'a Snapshot, key: &str) -> Option<CurrentRoute<'a>> {
        if let Some(id) = key.strip_prefix(STREAM_ROUTES) {
            return snapshot.plan.stream_routes.iter().find(|route| route.route.id == id).map(CurrentRoute::Stream);
        }
        let at = worker.route_places.route(snapshot, key.strip_prefix(ROUTES)?)?;
        Some(CurrentRoute::Http(at, &snapshot.plan.routes[at]))
    }

    fn upstream(&self) -> usize {
        match self {
            CurrentRoute::Http(_, route) => route.upstream(),
            CurrentRoute::Stream(route) => route.upstream(),
        }
    }

    fn lease(&self) -> Option<&'a Arc<Lease>> {
        match self {
            CurrentRoute::Http(_, route) => route.lease.as_ref(),
            CurrentRoute::Stream(route) => route.lease.as_ref(),
        }
    }
}

impl TunnelOrigin {
    /// The key of the route that it came through.
    fn route_key(&self) -> Option<String> {
        Some(match self {
            TunnelOrigin::Request(request) => format!("{ROUTES}{}", request.outcome.kept.as_ref()?.route.spec.id),
            TunnelOrigin::Session(session) => format!("{STREAM_ROUTES}{}", session.route.as_ref()?.id),
        })
    }

    /// The key of its upstream if that is not its route's own.
    fn chosen_upstream(&self) -> Option<String> {
        let TunnelOrigin::Request(request) = self else { return None };
        let kept = request.outcome.kept.as_ref()?;
        let key = &kept.upstream.as_ref()?.planned.definition.key;
        (kept.route.target.key() != Some(key)).then(|| key.clone())
    }

    fn pack(&self, worker: &Worker, bytes: &mut Vec<u8>) -> OriginState {
        let UpgradedRequest { head, outcome, tries, .. } = match self {
            TunnelOrigin::Request(request) => &**request,
            TunnelOrigin::Session(session) => {
                return OriginState::Session(SessionState {
                    status: session.status,
                    server_name: session.server_name.as_deref().map(str::to_owned),
                    tries: session.tries.shown().to_vec(),
                    connect_us: session.connect_us,
                    started_us: session.started.elapsed().as_micros() as u64,
                });
            }
        };
        bytes.extend_from_slice(head);
        let ago = |time: Option<Instant>| time.map(|time| time.elapsed().as_micros() as u64);
        OriginState::Request(RequestState {
            head: head.len(),
            path: outcome
                .kept
                .as_ref()
                .filter(|kept| worker.route_places.is_present(&worker.snapshot(), &kept.route))
                .map(|kept| kept.path),
            status: outcome.status,
            head_bytes: outcome.head_bytes,
            upstream_us: outcome.upstream_us,
            tries: tries.shown().to_vec(),
            started_us: ago(outcome.started),
            node_since_us: ago(outcome.node_since),
        })
    }
}

impl SessionState {
    fn unpack(&self, node: Endpoint, route: &PlanStreamRoute) -> ClientSession {
        ClientSession {
            started: since(self.started_us).unwrap_or_else(Instant::now),
            status: self.status,
            route: Some(route.route.clone()),
            server_name: self.server_name.as_deref().map(Box::from),
            tries: tries(&self.tries, node.address, self.status),
            node: Some(node),
            connect_us: self.connect_us,
            ..ClientSession::new(NodeProtocol::Tcp)
        }
    }
}

/// The tries that another process reports; if it does not, the node that has the tunnel.
fn tries(told: &[NodeTry], node: SocketAddr, status: u16) -> NodeTries {
    let mut tries = NodeTries::default();
    told.iter().for_each(|tried| tries.push(*tried));
    if told.is_empty() {
        tries.push(NodeTry { node, status, connect_us: None });
    }
    tries
}

/// `None`: it began before the machine started.
fn since(ago_us: u64) -> Option<Instant> {
    Instant::now().checked_sub(Duration::from_micros(ago_us))
}

impl RequestState {
    #[expect(clippy::too_many_arguments, reason = "all that it belongs to, and it is called in one place")]
    fn unpack(
        &self,
        worker: &Worker,
        head: &[u8],
        state: &TunnelState,
        slot: usize,
        found: Option<Match>,
        route: &PlanRoute,
        upstream: &Rc<WorkerUpstream>,
    ) -> UpgradedRequest {
        let paths = route.route.spec.uri().map_or(1, |uri| uri.paths.len());
        let path = self.path.filter(|path| *path < paths).unwrap_or(0);
        let outcome = RequestOutcome {
            timing: worker.timing(),
            started: self.started_us.and_then(since),
            node_since: self.node_since_us.and_then(since),
            asked: Some((slot, state.node)),
            status: self.status,
            head_bytes: self.head_bytes,
            upstream_us: self.upstream_us,
            route: found.map(|found| Match { path, ..found }),
            kept: Some(Rc::new(RetainedConfig { route: route.route.clone(), path, upstream: Some(upstream.clone()) })),
            ..RequestOutcome::default()
        };
        let tries = tries(&self.tries, state.node, self.status);
        UpgradedRequest { head: head.into(), outcome, tries, fields: ResponseFields::default(), chains: None }
    }
}
