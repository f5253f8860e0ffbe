//! What was written, to what it means: references to indices, services folded into routes, dependent defaults filled
//! in.
//!
//! Checks that need more than one value are here and nowhere else. An error in one resource does not hide those of
//! others. All look-ups are by hash, so that 100,000 routes stay linear.

use crate::addresses::{check_nodes, check_own_addresses};
use crate::checks::{checks, limits};
use crate::diagnostic::{Fault, Path, Position, Sink};
use crate::kind::At;
use crate::matching::parse_variable;
use crate::model::{Balance, Config, Node, PassHost, Protocol, Route, Upstream, UpstreamTimeouts};
use crate::nodes::NodeEntry;
use crate::resolve_tls::{Ssls, refuse_without_https};
use crate::resources::{
    File, HashOn, HostChoice, Resource, RouteKeys, Scheme, ServiceKeys, TimeoutKeys, Type, UpstreamKeys,
};
use crate::stream_upstreams::check_stream_keys;
use crate::takes::takes;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use stillgate_route::{HostPattern, RouteSpec, Variable};

/// `timeout` where neither route nor upstream say otherwise; APISIX's default.
const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(60);
/// The port of a node that names none, with `scheme: http`.
const HTTP_PORT: u16 = 80;
/// And with `scheme: https`.
const HTTPS_PORT: u16 = 443;

/// The configuration, and what its routes refer to; of use only if the sink has no errors afterwards.
pub(crate) fn resolve(file: File, digest: String, sink: &mut Sink) -> (Config, Shared) {
    let ssls = Ssls::new(file.ssls, file.gateway.acme.as_ref(), sink);
    ssls.check_listeners(&file.gateway, sink);
    let mut shared = Shared::new(file.upstreams, file.services, ssls, sink);
    let stream_routes = shared.stream_routes(file.stream_routes, &file.gateway, sink);
    let mut placed = Placed { upstreams: shared.upstreams.clone(), ..Placed::default() };
    let list = Path::Root.key("routes");
    let mut ids = HashMap::with_capacity(file.routes.len());
    for Resource { index, at, keys } in file.routes {
        let path = list.index(index);
        let id = route_id(&keys, index, at);
        insert(&mut ids, id.clone(), Identified { line: at.line, value: () }, &path, sink);
        let enabled = keys.status;
        let route = shared.route(keys, id.value, at, &path, sink);
        if enabled {
            placed.push(route, at.line);
        }
    }
    let Placed { routes, route_lines, upstreams } = placed;
    check_own_addresses(&file.gateway, sink);
    upstreams.iter().for_each(|upstream| check_nodes(&file.gateway, upstream, sink));
    let ssls = shared.ssls.enabled.clone();
    (Config { gateway: file.gateway, upstreams, routes, route_lines, stream_routes, ssls, digest }, shared)
}

/// The id that a route has: its own, or its position in the list.
pub(crate) fn route_id(keys: &RouteKeys, index: usize, at: Position) -> At<String> {
    keys.id.clone().unwrap_or_else(|| At { at, value: (index + 1).to_string() })
}

/// What routes may refer to.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// All upstreams that are not a route's own.
    pub(crate) upstreams: Vec<Arc<Upstream>>,
    upstream_ids: HashMap<String, Identified<usize>>,
    pub(crate) services: HashMap<String, Identified<Service>>,
    ssls: Ssls,
}

/// A resource that can be referred to.
#[derive(Debug)]
pub(crate) struct Identified<T> {
    pub(crate) line: u32,
    pub(crate) value: T,
}

/// What routes take from a service.
#[derive(Debug)]
pub(crate) struct Service {
    hosts: Vec<HostPattern>,
    pub(crate) upstream: Place,
    upgrades: bool,
}

/// What became of a resource's upstream.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// Index in [`Shared::upstreams`].
    Index(usize),
    /// It is written inline.
    Own(Arc<Upstream>),
    /// Nothing names one.
    Absent,
    /// What names one is wrong, which has been reported.
    Wrong,
}

/// A route before it is known where an upstream of its own will stand.
pub(crate) struct Unplaced {
    /// `None`: it is wrong, which has been reported. Its `upstream` counts only where it has none of its own.
    route: Option<Route>,
    own: Option<Arc<Upstream>>,
}

/// Routes and upstreams, filled in the order of the file.
#[derive(Default)]
pub(crate) struct Placed {
    pub(crate) routes: Vec<Arc<Route>>,
    pub(crate) route_lines: Vec<u32>,
    pub(crate) upstreams: Vec<Arc<Upstream>>,
}

impl Placed {
    pub(crate) fn push(&mut self, Unplaced { route, own }: Unplaced, line: u32) {
        let own = own.map(|own| {
            self.upstreams.push(own);
            self.upstreams.len() - 1
        });
        if let Some(route) = route {
            self.routes.push(Arc::new(Route { upstream: own.unwrap_or(route.upstream), ..route }));
            self.route_lines.push(line);
        }
    }
}

impl Shared {
    fn new(
        upstreams: Vec<Resource<UpstreamKeys>>,
        services: Vec<Resource<ServiceKeys>>,
        ssls: Ssls,
        sink: &mut Sink,
    ) -> Shared {
        let mut shared = Shared { ssls, ..Shared::default() };
        let list = Path::Root.key("upstreams");
        for Resource { index, at, keys } in upstreams {
            let path = list.index(index);
            // Without an id it cannot be referred to, which has been reported; the rest of it is checked all the same.
            let id = keys.id.clone();
            let upstream = upstream(keys, id.as_ref().map_or("", |id| &id.value), &shared.ssls, &path, sink);
            let place = shared.add(upstream.into());
            if let Some(id) = id {
                let identified = Identified { line: at.line, value: place };
                insert(&mut shared.upstream_ids, id, identified, &path, sink);
            }
        }
        let list = Path::Root.key("services");
        for Resource { index, at, keys } in services {
            let path = list.index(index);
            let key = keys.id.as_ref().map_or(String::new(), |id| format!("services/{}", id.value));
            let upstream = match shared.upstream_of(keys.upstream, keys.upstream_id, key, &path, sink) {
                Place::Own(own) => Place::Index(shared.add(own)),
                place => place,
            };
            if let Some(id) = keys.id {
                let service = Service { hosts: keys.hosts, upstream, upgrades: keys.enable_websocket };
                let identified = Identified { line: at.line, value: service };
                insert(&mut shared.services, id, identified, &path, sink);
            }
        }
        shared
    }

    pub(crate) fn add(&mut self, upstream: Arc<Upstream>) -> usize {
        self.upstreams.push(upstream);
        self.upstreams.len() - 1
    }

    /// What a route means. Whether its id is taken is not looked at.
    pub(crate) fn route(
        &self,
        mut keys: RouteKeys,
        id: String,
        at: Position,
        path: &Path<'_>,
        sink: &mut Sink,
    ) -> Unplaced {
        let key = format!("routes/{id}");
        let place_at = match (&keys.upstream, &keys.upstream_id, &keys.service_id) {
            (Some(inline), ..) => inline.at,
            (None, Some(id), _) | (None, None, Some(id)) => id.at,
            (None, None, None) => at,
        };
        let place = self.upstream_of(keys.upstream.take(), keys.upstream_id.take(), key, path, sink);
        let own = match &place {
            Place::Own(own) => Some(own.clone()),
            _ => None,
        };
        let route = self.route_to(place, keys, id, at, path, sink);
        let protocol = match (&own, &route) {
            (Some(own), _) => own.protocol,
            (None, Some(route)) => self.upstreams[route.upstream].protocol,
            (None, None) => Protocol::Http,
        };
        if protocol != Protocol::Http {
            let fault = Fault::new("the nodes of this upstream are not spoken to in HTTP");
            sink.error(place_at, path, fault.hint("name it in `stream_routes`, or write `scheme: http` in it"));
        }
        Unplaced { route, own }
    }

    fn route_to(
        &self,
        place: Place,
        keys: RouteKeys,
        id: String,
        at: Position,
        path: &Path<'_>,
        sink: &mut Sink,
    ) -> Option<Route> {
        let (service_id, timeout, priority) = (keys.service_id.clone(), keys.timeout, keys.priority);
        let (own_upgrades, on_change) = (keys.enable_websocket, keys.on_change);
        // Inner `None`: there is no such service, which is reported here.
        let service = service_id.as_ref().map(|id| {
            let service = self.services.get(&id.value);
            if service.is_none() {
                dangling(id, "service", &self.services, &path.key("service_id"), sink);
            }
            service.map(|service| &service.value)
        });
        let services_upgrades = service.flatten().is_some_and(|service| service.upgrades);
        let takes = takes(keys, service.flatten().map_or(&[], |service| &service.hosts), path, sink);
        let services_place = service.map(|service| service.map_or(&Place::Wrong, |service| &service.upstream));
        let (upstream, otherwise) = match (&place, services_place) {
            (Place::Own(own), _) => (usize::MAX, own.timeout),
            (Place::Index(index), _) | (Place::Absent, Some(Place::Index(index))) => {
                (*index, self.upstreams[*index].timeout)
            }
            (Place::Absent, Some(Place::Absent)) => {
                let fault = Fault::new("neither the route nor its service has an upstream");
                sink.error(at, path, fault.hint("add upstream or upstream_id to one of them"));
                return None;
            }
            // Without a service: a key that is missing or cannot be read, which has been reported.
            _ => return None,
        };
        Some(Route {
            spec: Arc::new(RouteSpec { id, priority, takes }),
            upstream,
            service_id: service_id.map(|id| id.value),
            timeout: timeout.map(|t| timeouts(t, otherwise)),
            upgrades: own_upgrades.unwrap_or(services_upgrades),
            on_change,
        })
    }

    /// The upstream of a route or service, by itself. `key` is for one that is written inline.
    pub(crate) fn upstream_of(
        &self,
        inline: Option<At<UpstreamKeys>>,
        id: Option<At<String>>,
        key: String,
        path: &Path<'_>,
        sink: &mut Sink,
    ) -> Place {
        match (inline, id) {
            (None, None) => Place::Absent,
            (Some(_), Some(id)) => {
                let fault = Fault::new("both upstream and upstream_id are here").hint("remove one of them");
                sink.error(id.at, &path.key("upstream_id"), fault);
                Place::Wrong
            }
            (Some(inline), None) => {
                let path = path.key("upstream");
                if let Some(id) = &inline.value.id {
                    let fault = Fault::new("the id of an inline upstream has no effect").hint("remove it");
                    sink.warning(id.at, &path.key("id"), fault);
                }
                Place::Own(upstream(inline.value, &key, &self.ssls, &path, sink).into())
            }
            (None, Some(id)) => match self.upstream_ids.get(&id.value) {
                Some(upstream) => Place::Index(upstream.value),
                None => {
                    dangling(&id, "upstream", &self.upstream_ids, &path.key("upstream_id"), sink);
                    Place::Wrong
                }
            },
        }
    }
}

/// Files a resource under its id, which must be new.
pub(crate) fn insert<T>(
    ids: &mut HashMap<String, Identified<T>>,
    id: At<String>,
    identified: Identified<T>,
    path: &Path<'_>,
    sink: &mut Sink,
) {
    if let Some(first) = ids.get(&id.value) {
        let message = format!("the id {:?} is taken by the one in line {}", id.value, first.line);
        sink.error(id.at, &path.key("id"), Fault::new(message).hint("write another"));
        return;
    }
    ids.insert(id.value, identified);
}

/// Reports a reference to what is not there.
pub(crate) fn dangling<T>(id: &At<String>, what: &str, known: &HashMap<String, T>, path: &Path<'_>, sink: &mut Sink) {
    // With more than these a guess would cost much and be worth little.
    const COMPARED_MAX: usize = 1000;
    let fault = Fault::new(format!("there is no {what} with the id {:?}", id.value));
    let fault = fault.hint(format!("add it to `{what}s`"));
    let fault = match known.len() <= COMPARED_MAX {
        true => sink.guess(fault, &id.value, known.keys().map(String::as_str)),
        false => fault,
    };
    sink.error(id.at, path, fault);
}

fn timeouts(keys: TimeoutKeys, otherwise: UpstreamTimeouts) -> UpstreamTimeouts {
    UpstreamTimeouts {
        connect: keys.connect.unwrap_or(otherwise.connect),
        send: keys.send.unwrap_or(otherwise.send),
        read: keys.read.unwrap_or(otherwise.read),
        per_try: keys.per_try.or(otherwise.per_try),
    }
}

fn upstream(mut keys: UpstreamKeys, key: &str, ssls: &Ssls, path: &Path<'_>, sink: &mut Sink) -> Upstream {
    let bound = UPSTREAM_TIMEOUT;
    let defaults = UpstreamTimeouts { connect: bound, send: bound, read: bound, per_try: None };
    let balance = match keys.r#type {
        Type::RoundRobin => Balance::RoundRobin,
        Type::LeastConn => Balance::LeastConn,
        Type::Ewma => Balance::Ewma,
        Type::ConsistentHash => Balance::ConsistentHash(hashed(keys.hash_on.clone(), keys.key.clone(), path, sink)),
    };
    if keys.r#type != Type::ConsistentHash
        && let Some(key) = &keys.key
    {
        let fault = Fault::new("has no effect without `type: chash`");
        sink.warning(key.at, &path.key("key"), fault.hint("remove it"));
    }
    check_stream_keys(&mut keys, &balance, path, sink);
    let grpc = matches!(keys.scheme.value, Scheme::Grpc | Scheme::Grpcs);
    let http2 = keys.http2.value || grpc;
    let tls_path = path.key("tls");
    let port = match keys.scheme.value {
        Scheme::Http | Scheme::Grpc => Some(HTTP_PORT),
        Scheme::Https | Scheme::Grpcs => Some(HTTPS_PORT),
        Scheme::Tcp | Scheme::Tls | Scheme::Udp => None,
    };
    let tls = match keys.scheme.value {
        Scheme::Https | Scheme::Grpcs | Scheme::Tls => Some(ssls.upstream(keys.tls, &tls_path, sink)),
        Scheme::Http | Scheme::Grpc | Scheme::Tcp | Scheme::Udp => {
            refuse_without_https(keys.tls, &tls_path, sink);
            None
        }
    };
    Upstream {
        key: key.to_owned(),
        nodes: keys.nodes.map_or(Vec::new(), |n| nodes(n, port, &path.key("nodes"), sink)),
        retries: keys.retries,
        retry_timeout: keys.retry_timeout,
        retry_budget: keys.retry_budget,
        limits: limits(keys.limits, path, sink),
        checks: checks(keys.checks, &balance, tls.as_ref(), http2, path, sink),
        timeout: timeouts(keys.timeout, defaults),
        pass_host: pass_host(keys.pass_host, keys.upstream_host, path, sink),
        keepalive: keys.keepalive_pool,
        balance,
        protocol: keys.scheme.value.protocol(),
        proxy_protocol: keys.proxy_protocol.and_then(|version| version.value),
        http2,
        grpc,
        tls,
    }
}

/// The variable that `hash_on` and `key` name.
fn hashed(on: At<HashOn>, key: Option<At<String>>, path: &Path<'_>, sink: &mut Sink) -> Variable {
    let Some(key) = key else {
        if on.value != HashOn::Vars {
            let fault = Fault::new("needs the key \"key\"").hint("name the header or cookie to hash");
            sink.error(on.at, &path.key("hash_on"), fault);
        }
        return Variable::RemoteAddr;
    };
    let name = match on.value {
        HashOn::Vars => key.value.strip_prefix('$').unwrap_or(&key.value).to_owned(),
        HashOn::Header => format!("http_{}", key.value.to_ascii_lowercase().replace('-', "_")),
        HashOn::Cookie => format!("cookie_{}", key.value),
    };
    parse_variable(&name).unwrap_or_else(|fault| {
        sink.error(key.at, &path.key("key"), fault);
        Variable::RemoteAddr
    })
}

fn nodes(entries: At<Vec<NodeEntry>>, scheme_port: Option<u16>, path: &Path<'_>, sink: &mut Sink) -> Vec<Node> {
    let mut nodes = Vec::with_capacity(entries.value.len());
    let mut lines = HashMap::with_capacity(entries.value.len());
    for entry in entries.value {
        let NodeEntry { at, host, port, weight, priority } = entry;
        let Some(port) = port.or(scheme_port) else {
            let fault = Fault::new("the node has no port, and its upstream's scheme has none of its own");
            sink.error(at, path, fault.hint("write it as \"HOST:PORT\""));
            continue;
        };
        let node = Node { host, port, weight, priority };
        if let Some(first) = lines.insert((node.host.clone(), node.port), at.line) {
            let fault = Fault::new(format!("this node is here twice, first in line {first}"));
            sink.error(at, path, fault.hint("keep one of them"));
        }
        nodes.push(node);
    }
    if nodes.iter().all(|node| node.weight == 0) {
        sink.warning(entries.at, path, "no node can be chosen; every request is answered 503");
    }
    nodes
}

fn pass_host(choice: At<HostChoice>, upstream_host: Option<At<String>>, path: &Path<'_>, sink: &mut Sink) -> PassHost {
    match (choice.value, upstream_host) {
        (HostChoice::Rewrite, Some(host)) => return PassHost::Rewrite(host.value),
        (HostChoice::Rewrite, None) => {
            let fault = Fault::new("`rewrite` needs the key \"upstream_host\"").hint("add it to the upstream");
            sink.error(choice.at, &path.key("pass_host"), fault);
        }
        (_, Some(host)) => {
            let fault = Fault::new("has no effect without `pass_host: rewrite`").hint("add that, or remove the key");
            sink.warning(host.at, &path.key("upstream_host"), fault);
        }
        (_, None) => {}
    }
    match choice.value {
        HostChoice::Node => PassHost::Node,
        HostChoice::Pass | HostChoice::Rewrite => PassHost::Pass,
    }
}
