//! What routes refer to, and routes by what they refer to.

use super::consumers::{self, Groups};
use super::plugins::{ServicePlugins, SharedPlugins};
use super::ssls::Ssls;
use super::takes::takes;
use super::upstream::{timeouts, upstream};
use crate::keys::plugins::ConsumerKeys;
use crate::keys::resources::{Resource, RouteKeys, ServiceKeys, UpstreamKeys};
use crate::model::{Protocol, Route, Upstream};
use std::collections::HashMap;
use std::sync::Arc;
use stillgate_plugin::{Consumer, Credential, Level};
use stillgate_route::{HostPattern, RouteSpec};
use stillgate_schema::kind::At;
use stillgate_schema::text::diagnostic::{Fault, Path, Position, Sink};

/// What routes may refer to.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// All upstreams that are not a route's own.
    pub(crate) upstreams: Vec<Arc<Upstream>>,
    upstream_ids: HashMap<String, Identified<usize>>,
    pub(crate) services: HashMap<String, Identified<Service>>,
    pub(super) ssls: Ssls,
    pub(super) plugins: SharedPlugins,
    /// What consumers may refer to.
    pub(super) groups: Groups,
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
    pub(crate) upstream: UpstreamPlace,
    upgrades: bool,
    plugins: ServicePlugins,
}

/// What became of a resource's upstream.
#[derive(Debug, Clone)]
pub(crate) enum UpstreamPlace {
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
                UpstreamPlace::Own(own) => UpstreamPlace::Index(shared.add(own)),
                place => place,
            };
            if let Some(id) = keys.id {
                let list = shared.plugins.compile(keys.plugins.as_ref(), Level::Service, &id.value, &path, sink);
                let plugins = ServicePlugins::new(list, &path, sink);
                let service = Service { hosts: keys.hosts, upstream, upgrades: keys.enable_websocket, plugins };
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
            UpstreamPlace::Own(own) => Some(own.clone()),
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
        place: UpstreamPlace,
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
        let own = self.plugins.compile(keys.plugins.as_ref(), Level::Route, &id, path, sink);
        let of_service = service.flatten().map(|service| &service.plugins);
        let chain = self.plugins.chain(&own, keys.plugin_config_id.as_ref(), of_service, path, sink);
        let services_upgrades = service.flatten().is_some_and(|service| service.upgrades);
        let takes = takes(keys, service.flatten().map_or(&[], |service| &service.hosts), path, sink);
        let services_place = service.map(|service| service.map_or(&UpstreamPlace::Wrong, |service| &service.upstream));
        let (upstream, otherwise) = match (&place, services_place) {
            (UpstreamPlace::Own(own), _) => (usize::MAX, own.timeout),
            (UpstreamPlace::Index(index), _) | (UpstreamPlace::Absent, Some(UpstreamPlace::Index(index))) => {
                (*index, self.upstreams[*index].timeout)
            }
            (UpstreamPlace::Absent, Some(UpstreamPlace::Absent)) => {
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
            chain,
        })
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
    ) -> UpstreamPlace {
        match (inline, id) {
            (None, None) => UpstreamPlace::Absent,
            (Some(_), Some(id)) => {
                let fault = Fault::new("both upstream and upstream_id are here").hint("remove one of them");
                sink.error(id.at, &path.key("upstream_id"), fault);
                UpstreamPlace::Wrong
            }
            (Some(inline), None) => {
                let path = path.key("upstream");
                if let Some(id) = &inline.value.id {
                    let fault = Fault::new("the id of an inline upstream has no effect").hint("remove it");
                    sink.warning(id.at, &path.key("id"), fault);
                }
                UpstreamPlace::Own(upstream(inline.value, &key, &self.ssls, &path, sink).into())
            }
            (None, Some(id)) => match self.upstream_ids.get(&id.value) {
                Some(upstream) => UpstreamPlace::Index(upstream.value),
                None => {
                    dangling(&id, "upstream", &self.upstream_ids, &path.key("upstream_id"), sink);
                    UpstreamPlace::Wrong
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
