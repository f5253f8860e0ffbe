//! What routes refer to, and routes by what they refer to.

use super::consumers::{self, Groups};
use super::plugins::{ServicePlugins, SharedPlugins};
use super::ssls::Ssls;
use super::takes::takes;
use super::upstream::upstream;
use crate::keys::plugins::ConsumerKeys;
use crate::keys::resources::{Resource, RouteKeys, ServiceKeys, UpstreamKeys};
use crate::model::{Kind, Protocol, Route, Target, Upstream};
use std::collections::HashMap;
use std::sync::Arc;
use stillgate_plugin::{Consumer, Credential, Level};
use stillgate_route::{HostPattern, RouteSpec};
use stillgate_schema::kind::At;
use stillgate_schema::text::diagnostic::{Fault, Path, Position, Sink};

/// Why a route has no upstream that has nothing wrong itself.
pub(crate) const UNUSABLE: &str = "its service or upstream cannot be used";

/// What routes may refer to.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// All upstreams that are not a route's own.
    pub(crate) upstreams: Vec<Arc<Upstream>>,
    /// Their keys, and what their nodes speak.
    pub(crate) upstream_ids: HashMap<String, Identified<(Arc<str>, Protocol)>>,
    pub(crate) services: HashMap<String, Identified<Service>>,
    pub(crate) ssls: Ssls,
    pub(crate) plugins: SharedPlugins,
    /// What consumers may refer to.
    pub(crate) groups: Groups,
}

/// A resource that can be referred to.
#[derive(Debug)]
pub(crate) struct Identified<T> {
    pub(crate) line: u32,
    pub(crate) value: T,
}

/// What routes take from a service.
#[derive(Debug, PartialEq)]
pub(crate) struct Service {
    hosts: Vec<HostPattern>,
    pub(crate) upstream: Found,
    upgrades: bool,
    plugins: ServicePlugins,
}

/// What became of a resource's upstream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Found {
    /// It is named, or written inline; its nodes speak this.
    Target(Target, Protocol),
    /// Nothing names one.
    Absent,
    /// What names one is wrong, which has been reported.
    Wrong,
}

/// What a route comes to.
pub(crate) struct Resolved {
    /// Unavailable where something is wrong with where it leads, which has been reported.
    pub(crate) route: Route,
    /// Its own upstream, which may be right where the route is wrong.
    pub(crate) own: Option<Arc<Upstream>>,
}

/// Routes and upstreams, filled in the order of the file.
#[derive(Default)]
pub(crate) struct Placed {
    pub(crate) routes: Vec<Arc<Route>>,
    pub(crate) route_lines: Vec<u32>,
    pub(crate) upstreams: Vec<Arc<Upstream>>,
}

impl Placed {
    pub(crate) fn push(&mut self, Resolved { route, own }: Resolved, line: u32) {
        self.upstreams.extend(own);
        self.routes.push(Arc::new(route));
        self.route_lines.push(line);
    }
}

impl Shared {
    pub(super) fn new(
        upstreams: Vec<Resource<UpstreamKeys>>,
        services: Vec<Resource<ServiceKeys>>,
        ssls: Ssls,
        plugins: SharedPlugins,
        sink: &mut Sink,
    ) -> Shared {
        let mut shared = Shared { ssls, plugins, ..Shared::default() };
        let list = Path::Root.key("upstreams");
        for Resource { index, at, keys } in upstreams {
            let path = list.index(index);
            // Without an id it cannot be referred to, which has been reported; the rest of it is checked all the same.
            let id = keys.id.clone();
            let upstream = upstream(keys, id.as_ref().map_or("", |id| &id.value), &shared.ssls, &path, sink);
            let value = (upstream.key.as_str().into(), upstream.protocol);
            shared.upstreams.push(Arc::new(upstream));
            if let Some(id) = id {
                let identified = Identified { line: at.line, value };
                insert(&mut shared.upstream_ids, id, identified, &path, sink);
            }
        }
        let list = Path::Root.key("services");
        for Resource { index, at, keys } in services {
            let (path, id) = (list.index(index), keys.id.clone());
            let (service, own) = shared.service(keys, id.as_ref().map_or("", |id| &id.value), &path, sink);
            shared.upstreams.extend(own);
            if let Some(id) = id {
                let identified = Identified { line: at.line, value: service };
                insert(&mut shared.services, id, identified, &path, sink);
            }
        }
        shared
    }

    /// What a service means, and the upstream that is written in it.
    pub(crate) fn service(
        &self,
        keys: ServiceKeys,
        id: &str,
        path: &Path<'_>,
        sink: &mut Sink,
    ) -> (Service, Option<Arc<Upstream>>) {
        let key = format!("services/{id}");
        let (upstream, own) = match self.upstream_of(keys.upstream, keys.upstream_id, key, path, sink) {
            Found::Target(Target::Own(own), protocol) => {
                (Found::Target(Target::Shared(own.key.as_str().into()), protocol), Some(own))
            }
            found => (found, None),
        };
        let list = self.plugins.compile(keys.plugins.as_ref(), Level::Service, id, path, sink);
        let plugins = ServicePlugins::new(list, path, sink);
        (Service { hosts: keys.hosts, upstream, upgrades: keys.enable_websocket, plugins }, own)
    }

    /// What a route means. Whether its id is taken is not looked at.
    pub(crate) fn route(
        &self,
        mut keys: RouteKeys,
        id: String,
        at: Position,
        path: &Path<'_>,
        sink: &mut Sink,
    ) -> Resolved {
        let key = format!("routes/{id}");
        let place_at = match (&keys.upstream, &keys.upstream_id, &keys.service_id) {
            (Some(inline), ..) => inline.at,
            (None, Some(id), _) | (None, None, Some(id)) => id.at,
            (None, None, None) => at,
        };
        let found = self.upstream_of(keys.upstream.take(), keys.upstream_id.take(), key, path, sink);
        let own = match &found {
            Found::Target(Target::Own(own), _) => Some(own.clone()),
            _ => None,
        };
        let (route, protocol) = self.route_to(found, keys, id, at, path, sink);
        if protocol.is_some_and(|protocol| protocol != Protocol::Http) {
            let fault = Fault::new("the nodes of this upstream are not spoken to in HTTP");
            sink.error(place_at, path, fault.hint("name it in `stream_routes`, or write `scheme: http` in it"));
        }
        Resolved { route, own }
    }

    fn route_to(
        &self,
        found: Found,
        keys: RouteKeys,
        id: String,
        at: Position,
        path: &Path<'_>,
        sink: &mut Sink,
    ) -> (Route, Option<Protocol>) {
        let (service_id, timeout, priority) = (keys.service_id.clone(), keys.timeout, keys.priority);
        let (own_upgrades, on_change) = (keys.enable_websocket, keys.on_change);
        // Inner `None`: there is no such service, which is reported here.
        let service = service_id.as_ref().map(|id| {
            let service = find(id, Kind::Services, &self.services, &path.key("service_id"), sink);
            service.map(|service| &service.value)
        });
        let own = self.plugins.compile(keys.plugins.as_ref(), Level::Route, &id, path, sink);
        let of_service = service.flatten().map(|service| &service.plugins);
        let chain = self.plugins.chain(&own, keys.plugin_config_id.as_ref(), of_service, path, sink);
        let services_upgrades = service.flatten().is_some_and(|service| service.upgrades);
        let takes = takes(keys, service.flatten().map_or(&[], |service| &service.hosts), path, sink);
        let of_service = service.map(|service| service.map_or(&Found::Wrong, |service| &service.upstream));
        let (target, protocol) = match (found, of_service) {
            (Found::Target(target, protocol), None | Some(Found::Target(..) | Found::Absent)) => {
                (target, Some(protocol))
            }
            (Found::Absent, Some(Found::Target(target, protocol))) => (target.clone(), Some(*protocol)),
            (Found::Absent, Some(Found::Absent)) => {
                let fault = Fault::new("neither the route nor its service has an upstream");
                sink.error(at, path, fault.hint("add upstream or upstream_id to one of them"));
                (Target::Unavailable(UNUSABLE.into()), None)
            }
            // Also without a service: a key that is missing or cannot be read, which has been reported.
            (found, _) => {
                let protocol = if let Found::Target(_, protocol) = found { Some(protocol) } else { None };
                (Target::Unavailable(UNUSABLE.into()), protocol)
            }
        };
        let route = Route {
            spec: Arc::new(RouteSpec { id, priority, takes }),
            timeout,
            target,
            service_id: service_id.map(|id| id.value),
            upgrades: own_upgrades.unwrap_or(services_upgrades),
            on_change,
            chain,
        };
        (route, protocol)
    }

    /// What a consumer means, and what it is found by. Whether its name or a credential is taken is not looked at.
    pub(crate) fn consumer(&self, keys: ConsumerKeys, path: &Path<'_>, sink: &mut Sink) -> (Consumer, Vec<Credential>) {
        consumers::consumer(keys, &self.groups, &self.plugins, path, sink)
    }

    /// The upstream of a route or service, by itself. `key` is for one that is written inline.
    pub(crate) fn upstream_of(
        &self,
        inline: Option<At<UpstreamKeys>>,
        id: Option<At<String>>,
        key: String,
        path: &Path<'_>,
        sink: &mut Sink,
    ) -> Found {
        match (inline, id) {
            (None, None) => Found::Absent,
            (Some(_), Some(id)) => {
                let fault = Fault::new("both upstream and upstream_id are here").hint("remove one of them");
                sink.error(id.at, &path.key("upstream_id"), fault);
                Found::Wrong
            }
            (Some(inline), None) => {
                let path = path.key("upstream");
                if let Some(id) = &inline.value.id {
                    let fault = Fault::new("the id of an inline upstream has no effect").hint("remove it");
                    sink.warning(id.at, &path.key("id"), fault);
                }
                let own = upstream(inline.value, &key, &self.ssls, &path, sink);
                let protocol = own.protocol;
                Found::Target(Target::Own(own.into()), protocol)
            }
            (None, Some(id)) => match find(&id, Kind::Upstreams, &self.upstream_ids, &path.key("upstream_id"), sink) {
                Some(Identified { value: (key, protocol), .. }) => {
                    Found::Target(Target::Shared(key.clone()), *protocol)
                }
                None => Found::Wrong,
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

/// The resource that is referred to; reports one that is not there.
pub(crate) fn find<'a, T>(
    id: &At<String>,
    kind: Kind,
    known: &'a HashMap<String, T>,
    path: &Path<'_>,
    sink: &mut Sink,
) -> Option<&'a T> {
    // With more than these a guess would cost much and be worth little.
    const COMPARED_MAX: usize = 1000;
    sink.refers(kind.name(), &id.value);
    let found = known.get(&id.value);
    if found.is_some() || sink.is_alone() {
        return found;
    }
    let fault = Fault::new(format!("there is no {} with the id {:?}", kind.singular(), id.value));
    let fault = fault.hint(format!("add it to `{}`", kind.name()));
    let fault = match known.len() <= COMPARED_MAX {
        true => sink.guess(fault, &id.value, known.keys().map(String::as_str)),
        false => fault,
    };
    sink.error(id.at, path, fault);
    None
}
