//! What was written, to what it means: references to indices, services folded into routes, dependent defaults filled
//! in.
//!
//! Checks that need more than one value are here and nowhere else. An error in one resource does not hide those of
//! others. All look-ups are by hash, so that 100,000 routes stay linear.

use crate::addresses::check_addresses;
use crate::diagnostic::{Fault, Path, Position, Sink};
use crate::kind::At;
use crate::matching::parse_variable;
use crate::model::{Balance, Config, Node, PassHost, Route, Upstream, UpstreamTimeouts};
use crate::nodes::NodeEntry;
use crate::resources::{File, HashOn, HostChoice, Resource, RouteKeys, ServiceKeys, TimeoutKeys, Type, UpstreamKeys};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use stillgate_route::{HostPattern, PathPattern, RouteSpec, Takes, UriRoute, Variable, vars::Expr};

/// `timeout` where neither route nor upstream say otherwise; APISIX's default.
const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(60);
/// The port of a node that names none, with `scheme: http`.
const HTTP_PORT: u16 = 80;

/// The configuration; of use only if the sink has no errors afterwards.
pub(crate) fn resolve(file: File, digest: String, sink: &mut Sink) -> Config {
    let mut resolver = Resolver { sink, upstreams: Vec::new(), upstream_ids: HashMap::new(), services: HashMap::new() };
    resolver.shared_upstreams(file.upstreams);
    resolver.services(file.services);
    let routes = resolver.routes(file.routes);
    let upstreams = std::mem::take(&mut resolver.upstreams);
    check_addresses(&file.gateway, &upstreams, resolver.sink);
    Config { gateway: file.gateway, upstreams, routes, digest }
}

struct Resolver<'a> {
    sink: &'a mut Sink,
    upstreams: Vec<Upstream>,
    upstream_ids: HashMap<String, Identified<usize>>,
    services: HashMap<String, Identified<Service>>,
}

/// A resource that can be referred to.
struct Identified<T> {
    line: u32,
    value: T,
}

/// What routes take from a service.
struct Service {
    hosts: Vec<HostPattern>,
    upstream: Place,
}

/// What became of a resource's upstream.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// Index in the configuration's upstreams.
    Index(usize),
    /// Nothing names one.
    Absent,
    /// What names one is wrong, which has been reported.
    Wrong,
}

impl Resolver<'_> {
    fn shared_upstreams(&mut self, resources: Vec<Resource<UpstreamKeys>>) {
        let list = Path::Root.key("upstreams");
        for Resource { index, at, keys } in resources {
            let path = list.index(index);
            // Without an id it cannot be referred to, which has been reported; the rest of it is checked all the same.
            let id = keys.id.clone();
            let place = self.upstreams.len();
            let upstream = upstream(keys, id.as_ref().map_or("", |id| &id.value), &path, self.sink);
            self.upstreams.push(upstream);
            if let Some(id) = id {
                let identified = Identified { line: at.line, value: place };
                insert(&mut self.upstream_ids, id, identified, &path, self.sink);
            }
        }
    }

    fn services(&mut self, resources: Vec<Resource<ServiceKeys>>) {
        let list = Path::Root.key("services");
        for Resource { index, at, keys } in resources {
            let path = list.index(index);
            let key = keys.id.as_ref().map_or(String::new(), |id| format!("services/{}", id.value));
            let upstream = self.upstream_of(keys.upstream, keys.upstream_id, key, &path);
            if let Some(id) = keys.id {
                let service = Service { hosts: keys.hosts, upstream };
                let identified = Identified { line: at.line, value: service };
                insert(&mut self.services, id, identified, &path, self.sink);
            }
        }
    }

    fn routes(&mut self, resources: Vec<Resource<RouteKeys>>) -> Vec<Arc<Route>> {
        let list = Path::Root.key("routes");
        let mut ids = HashMap::with_capacity(resources.len());
        let mut routes = Vec::with_capacity(resources.len());
        for Resource { index, at, keys } in resources {
            let path = list.index(index);
            let id = keys.id.clone().unwrap_or_else(|| At { at, value: (index + 1).to_string() });
            insert(&mut ids, id.clone(), Identified { line: at.line, value: () }, &path, self.sink);
            let enabled = keys.status;
            let upstreams = self.upstreams.len();
            let route = self.route(keys, id.value, at, &path);
            if enabled {
                routes.extend(route.map(Arc::new));
            } else {
                self.upstreams.truncate(upstreams);
            }
        }
        routes
    }

    fn route(&mut self, keys: RouteKeys, id: String, at: Position, path: &Path<'_>) -> Option<Route> {
        let mut hosts = one_or_several(keys.host, keys.hosts, ("host", "hosts"), path, self.sink);
        let remote_addrs =
            one_or_several(keys.remote_addr, keys.remote_addrs, ("remote_addr", "remote_addrs"), path, self.sink);
        let paths = one_or_several(keys.uri, keys.uris, ("uri", "uris"), path, self.sink);
        if let Some(vars) = &keys.vars {
            check_params(vars, &paths, &path.key("vars"), self.sink);
        }
        let own = self.upstream_of(keys.upstream, keys.upstream_id, format!("routes/{id}"), path);
        let service = match &keys.service_id {
            None => None,
            Some(id) => match self.services.get(&id.value) {
                Some(service) => Some(&service.value),
                None => {
                    dangling(id, "service", &self.services, &path.key("service_id"), self.sink);
                    return None;
                }
            },
        };
        if let Some(service) = service
            && hosts.is_empty()
        {
            hosts = service.hosts.clone();
        }
        let upstream = match (own, service.map(|s| s.upstream)) {
            (Place::Index(index), _) | (Place::Absent, Some(Place::Index(index))) => index,
            // Without a service: a key that is missing or cannot be read, which has been reported.
            (Place::Wrong, _) | (_, Some(Place::Wrong)) | (Place::Absent, None) => return None,
            (Place::Absent, Some(Place::Absent)) => {
                let fault = Fault::new("neither the route nor its service has an upstream");
                self.sink.error(at, path, fault.hint("add upstream or upstream_id to one of them"));
                return None;
            }
        };
        let timeout = keys.timeout.map(|t| timeouts(t, self.upstreams[upstream].timeout));
        Some(Route {
            spec: Arc::new(RouteSpec {
                id,
                priority: keys.priority,
                takes: Takes::Uri(UriRoute {
                    hosts,
                    paths,
                    methods: keys.methods.into_iter().collect(),
                    remote_addrs,
                    vars: keys.vars.map(|vars| vars.value),
                }),
            }),
            upstream,
            service_id: keys.service_id.map(|id| id.value),
            timeout,
            line: at.line as usize,
        })
    }

    /// The upstream of a route or service, by itself. `key` is for one that is written inline.
    fn upstream_of(
        &mut self,
        inline: Option<At<UpstreamKeys>>,
        id: Option<At<String>>,
        key: String,
        path: &Path<'_>,
    ) -> Place {
        match (inline, id) {
            (None, None) => Place::Absent,
            (Some(_), Some(id)) => {
                let fault = Fault::new("both upstream and upstream_id are here").hint("remove one of them");
                self.sink.error(id.at, &path.key("upstream_id"), fault);
                Place::Wrong
            }
            (Some(inline), None) => {
                let path = path.key("upstream");
                if let Some(id) = &inline.value.id {
                    let fault = Fault::new("the id of an inline upstream has no effect").hint("remove it");
                    self.sink.warning(id.at, &path.key("id"), fault);
                }
                let upstream = upstream(inline.value, &key, &path, self.sink);
                self.upstreams.push(upstream);
                Place::Index(self.upstreams.len() - 1)
            }
            (None, Some(id)) => match self.upstream_ids.get(&id.value) {
                Some(upstream) => Place::Index(upstream.value),
                None => {
                    dangling(&id, "upstream", &self.upstream_ids, &path.key("upstream_id"), self.sink);
                    Place::Wrong
                }
            },
        }
    }
}

/// Files a resource under its id, which must be new.
fn insert<T>(
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
fn dangling<T>(id: &At<String>, what: &str, known: &HashMap<String, T>, path: &Path<'_>, sink: &mut Sink) {
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

/// The values of a key and its plural, of which only one may be there.
fn one_or_several<T>(
    one: Option<At<T>>,
    several: Option<At<Vec<T>>>,
    keys: (&str, &str),
    path: &Path<'_>,
    sink: &mut Sink,
) -> Vec<T> {
    match (one, several) {
        (None, None) => Vec::new(),
        (Some(one), None) => vec![one.value],
        (None, Some(several)) => several.value,
        (Some(_), Some(several)) => {
            let fault = Fault::new(format!("both {} and {} are here", keys.0, keys.1));
            sink.error(several.at, &path.key(keys.1), fault.hint(format!("put all into {}", keys.1)));
            several.value
        }
    }
}

/// Conditions can read only those path parameters that a path of the route has.
fn check_params(vars: &At<Expr>, paths: &[PathPattern], path: &Path<'_>, sink: &mut Sink) {
    vars.value.each_variable(&mut |variable| {
        if let Variable::PathParam(name) = variable
            && !paths.is_empty()
            && !paths.iter().any(|path| path.names().contains(name))
        {
            let fault = Fault::new(format!("no path of the route has the parameter {name:?}"));
            sink.error(vars.at, path, fault.hint(format!("write \":{name}\" in a path, or remove the condition")));
        }
    });
}

fn timeouts(keys: TimeoutKeys, otherwise: UpstreamTimeouts) -> UpstreamTimeouts {
    UpstreamTimeouts {
        connect: keys.connect.unwrap_or(otherwise.connect),
        send: keys.send.unwrap_or(otherwise.send),
        read: keys.read.unwrap_or(otherwise.read),
    }
}

fn upstream(keys: UpstreamKeys, key: &str, path: &Path<'_>, sink: &mut Sink) -> Upstream {
    let defaults = UpstreamTimeouts { connect: UPSTREAM_TIMEOUT, send: UPSTREAM_TIMEOUT, read: UPSTREAM_TIMEOUT };
    let balance = match keys.r#type {
        Type::RoundRobin => Balance::RoundRobin,
        Type::LeastConn => Balance::LeastConn,
        Type::Ewma => Balance::Ewma,
        Type::ConsistentHash => Balance::ConsistentHash(hashed(keys.hash_on, keys.key.clone(), path, sink)),
    };
    if keys.r#type != Type::ConsistentHash
        && let Some(key) = &keys.key
    {
        let fault = Fault::new("has no effect without `type: chash`");
        sink.warning(key.at, &path.key("key"), fault.hint("remove it"));
    }
    Upstream {
        key: key.to_owned(),
        balance,
        nodes: keys.nodes.map_or(Vec::new(), |n| nodes(n, &path.key("nodes"), sink)),
        retries: keys.retries,
        retry_timeout: keys.retry_timeout,
        timeout: timeouts(keys.timeout, defaults),
        pass_host: pass_host(keys.pass_host, keys.upstream_host, path, sink),
        keepalive: keys.keepalive_pool,
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

fn nodes(entries: At<Vec<NodeEntry>>, path: &Path<'_>, sink: &mut Sink) -> Vec<Node> {
    let mut nodes = Vec::with_capacity(entries.value.len());
    let mut lines = HashMap::with_capacity(entries.value.len());
    for entry in entries.value {
        let NodeEntry { at, host, port, weight, priority } = entry;
        let node = Node { host, port: port.unwrap_or(HTTP_PORT), weight, priority };
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
