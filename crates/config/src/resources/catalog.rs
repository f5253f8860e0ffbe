//! The catalog: all resources that others refer to, by kind and id, with the parts compiled from them.
//!
//! Each source has one. A resource is compiled against the catalog and then added to it, starting with the kinds that others refer
//! to.

use super::catalog_item::{CatalogItem, find, put_item};
use super::compiled_resource::CompiledResource;
use super::consumers::Groups;
use super::plugins::{PluginList, PluginSet, ServicePlugins, SharedPlugins};
use super::refusal::takes;
use super::ssls::{ResourceId, Ssls};
use super::upstream::upstream;
use crate::keys::acme::Acme;
use crate::keys::gateway::Gateway;
use crate::keys::resources::{RouteKeys, ServiceKeys, UpstreamKeys};
use crate::model::{Listener, NodeProtocol, ResourceKind, Route, Target, Upstream, UpstreamTimeouts, listeners_of};
use serde_json::Value as Json;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use stillgate_plugin_api::facts::Documents;
use stillgate_plugin_api::{OwnUpstream, PluginLevel, Upstreams};
use stillgate_route::{HostPattern, PathPattern, RouteSpec};
use stillgate_schema::json_of;
use stillgate_schema::kind::{At, read};
use stillgate_schema::object::map;
use stillgate_schema::text::diagnostic::{Fault, Path, Position, Sink};
use stillgate_schema::text::tree::Node;

/// Why a valid route has no upstream.
pub(super) const UNUSABLE: &str = "its service or upstream cannot be used";

/// APISIX's default timeout of an upstream that is inline in a plugin.
const PLUGIN_TIMEOUT: Duration = Duration::from_secs(15);
const PLUGIN_TIMEOUTS: UpstreamTimeouts =
    UpstreamTimeouts { connect: PLUGIN_TIMEOUT, send: PLUGIN_TIMEOUT, read: PLUGIN_TIMEOUT, per_try: None };

/// The resources that others refer to.
#[derive(Debug)]
pub(crate) struct Catalog {
    pub(crate) listeners: Vec<Listener>,
    /// Whether those are the listeners of the gateway that the resources are for.
    pub(crate) are_listeners_known: bool,
    pub(crate) acme: Option<Acme>,
    /// `gateway.path_parameters`.
    has_path_parameters: bool,
    /// Their keys, and the protocols of their nodes.
    upstream_ids: HashMap<String, CatalogItem<(Arc<str>, NodeProtocol)>>,
    pub(super) services: HashMap<String, CatalogItem<Arc<Service>>>,
    /// The readable hosts of services that cannot be used; if there are none, any host.
    pub(super) refused_services: HashMap<String, Option<Vec<HostPattern>>>,
    pub(crate) ssls: Ssls,
    pub(crate) plugins: SharedPlugins,
    /// The resources that consumers refer to.
    pub(super) groups: Groups,
}

/// The parts of a service that routes use.
#[derive(Debug, PartialEq)]
pub(crate) struct Service {
    pub(super) name: Option<String>,
    pub(super) hosts: Vec<HostPattern>,
    pub(super) upstream: UpstreamTarget,
    upgrades: bool,
    pub(super) plugins: ServicePlugins,
    /// The written keys, without the upstream.
    document: Json,
}

/// A resource as written, without its upstream. Secrets remain references.
fn document(named: ResourceId<'_>) -> Json {
    // Its errors have been reported.
    let mut json = json_of(named.node, named.path, &mut Sink::default()).unwrap_or_default();
    if let Json::Object(keys) = &mut json {
        keys.remove("upstream");
        keys.insert("id".to_owned(), Json::from(named.id));
    }
    json
}

/// The upstream of a resource.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum UpstreamTarget {
    /// A named or inline one; its nodes speak this protocol.
    Target(Target, NodeProtocol),
    /// None is named.
    Absent,
    /// It is named by an invalid key, which has been reported.
    Wrong,
}

impl Catalog {
    /// An empty catalog.
    pub(crate) fn new(gateway: &Gateway, mut plugins: PluginSet) -> Catalog {
        plugins.table.ignorable.choose(&gateway.config.ignore_plugins);
        plugins.table.drops_underscores = !gateway.underscores_in_headers;
        Catalog {
            listeners: listeners_of(gateway),
            are_listeners_known: true,
            acme: gateway.acme.clone(),
            has_path_parameters: gateway.path_parameters,
            upstream_ids: HashMap::new(),
            services: HashMap::new(),
            refused_services: HashMap::new(),
            ssls: Ssls::default(),
            plugins: SharedPlugins::of(plugins),
            groups: Groups::default(),
        }
    }

    pub(super) fn drops_underscores(&self) -> bool {
        self.plugins.set.table.drops_underscores
    }

    /// A route's paths as the gateway parses them.
    pub(super) fn with_paths(&self, mut keys: RouteKeys) -> RouteKeys {
        if !self.has_path_parameters {
            let plain = |at: At<PathPattern>| At { value: at.value.with_plain_colons(), ..at };
            let all_plain = |paths: Vec<PathPattern>| paths.into_iter().map(PathPattern::with_plain_colons).collect();
            keys.uri = keys.uri.map(plain);
            keys.uris = keys.uris.map(|At { at, value }| At { at, value: all_plain(value) });
        }
        keys
    }

    /// Adds a resource for others to refer to; `None`: removes it. Returns whether it changed for those others. `line`: its line in
    /// a file.
    pub(crate) fn put(&mut self, kind: ResourceKind, id: &str, line: u32, compiled: Option<&CompiledResource>) -> bool {
        match kind {
            ResourceKind::Ssls => {
                let ssl = if let Some(CompiledResource::Ssl(ssl, _)) = compiled { Some(ssl.clone()) } else { None };
                self.ssls.put(id, line, ssl)
            }
            ResourceKind::PluginConfigs => {
                let list =
                    if let Some(CompiledResource::PluginConfig(list)) = compiled { Some(list.clone()) } else { None };
                put_item(&mut self.plugins.configs, id, line, list)
            }
            ResourceKind::ConsumerGroups => {
                let list =
                    if let Some(CompiledResource::ConsumerGroup(list)) = compiled { Some(list.clone()) } else { None };
                put_item(&mut self.groups.0, id, line, list)
            }
            ResourceKind::Upstreams => {
                let said = match compiled {
                    Some(CompiledResource::Upstream(upstream)) => {
                        Some((upstream.key.as_str().into(), upstream.protocol))
                    }
                    _ => None,
                };
                put_item(&mut self.upstream_ids, id, line, said)
            }
            ResourceKind::Services => {
                let service = match compiled {
                    Some(CompiledResource::Service(service, _)) => Some(service.clone()),
                    _ => None,
                };
                put_item(&mut self.services, id, line, service)
            }
            ResourceKind::PluginMetadata => {
                let metadata = match compiled {
                    Some(CompiledResource::Metadata(metadata)) => Some(metadata),
                    _ => None,
                };
                self.plugins.put_metadata(id, metadata)
            }
            ResourceKind::Secrets
            | ResourceKind::Credentials
            | ResourceKind::Consumers
            | ResourceKind::GlobalRules
            | ResourceKind::StreamRoutes
            | ResourceKind::Routes
            | ResourceKind::Protos => false,
        }
    }

    /// Records whether the metadata of a plugin is refused; returns whether that changed for resources with the plugin.
    pub(crate) fn refuse_metadata(&mut self, plugin: &str, is_refused: bool) -> bool {
        self.plugins.refuse_metadata(plugin, is_refused)
    }

    /// Compiles the `plugins` of a resource.
    pub(super) fn compile(
        &self,
        plugins: Option<&Node>,
        level: PluginLevel,
        id: &str,
        path: &Path<'_>,
        sink: &mut Sink,
    ) -> PluginList {
        self.plugins.compile(plugins, level, id, self, path, sink)
    }

    /// Compiles a service, and its inline upstream.
    pub(super) fn compile_service(
        &self,
        keys: ServiceKeys,
        named: ResourceId<'_>,
        sink: &mut Sink,
    ) -> (Service, Option<Arc<Upstream>>) {
        let ResourceId { id, path, .. } = named;
        let key = format!("services/{id}");
        let (upstream, own) = match self.upstream_of(keys.upstream, keys.upstream_id, key, path, sink) {
            UpstreamTarget::Target(Target::Own(own), protocol) => {
                (UpstreamTarget::Target(Target::Shared(own.key.as_str().into()), protocol), Some(own))
            }
            found => (found, None),
        };
        let list = self.compile(keys.plugins.as_ref(), PluginLevel::Service, id, path, sink);
        let plugins = ServicePlugins::new(list, path, sink);
        let name = keys.name.filter(|name| !name.is_empty());
        let (hosts, upgrades, document) = (keys.hosts, keys.enable_websocket, document(named));
        (Service { name, hosts, upstream, upgrades, plugins, document }, own)
    }

    /// Adds to a route its document and its service's, if one of its plugins needs them.
    pub(super) fn with_documents(&self, route: Route, named: ResourceId<'_>) -> Route {
        if !route.chain.as_ref().is_some_and(|chain| chain.wants_documents()) {
            return route;
        }
        let service = route.service_id.as_ref().and_then(|id| self.services.get(id));
        let service = service.map(|service| service.value.document.clone());
        Route { documents: Some(Arc::new(Documents { route: document(named), service })), ..route }
    }

    /// Compiles a route. Whether its id is taken is not checked.
    pub(super) fn compile_route(
        &self,
        mut keys: RouteKeys,
        id: String,
        at: Position,
        path: &Path<'_>,
        sink: &mut Sink,
    ) -> Route {
        let key = format!("routes/{id}");
        let place_at = match (&keys.upstream, &keys.upstream_id, &keys.service_id) {
            (_, Some(id), _) | (None, None, Some(id)) => id.at,
            (Some(inline), ..) => inline.at,
            (None, None, None) => at,
        };
        let found = self.upstream_of(keys.upstream.take(), keys.upstream_id.take(), key, path, sink);
        let (route, protocol) = self.route_to(found, keys, id, at, path, sink);
        if protocol.is_some_and(|protocol| !protocol.takes_requests()) {
            let fault = Fault::new("the nodes of this upstream are not spoken to in HTTP");
            sink.error(place_at, path, fault.hint("name it in `stream_routes`, or write `scheme: http` in it"));
        }
        route
    }

    fn route_to(
        &self,
        found: UpstreamTarget,
        keys: RouteKeys,
        id: String,
        at: Position,
        path: &Path<'_>,
        sink: &mut Sink,
    ) -> (Route, Option<NodeProtocol>) {
        let (service_id, timeout, priority) = (keys.service_id.clone(), keys.timeout, keys.priority);
        let (own_upgrades, on_change) = (keys.enable_websocket, keys.on_change);
        // Inner `None`: the service does not exist, which is reported here.
        let service = service_id.as_ref().map(|id| {
            let service = find(id, ResourceKind::Services, &self.services, &path.key("service_id"), sink);
            service.map(|service| &service.value)
        });
        let has_plugins = keys.plugins.is_some();
        let own = self.compile(keys.plugins.as_ref(), PluginLevel::Route, &id, path, sink);
        let of_service = service.flatten().map(|service| &service.plugins);
        let chain = self.plugins.chain(&own, keys.plugin_config_id.as_ref(), of_service, path, sink);
        let name = keys.name.clone().filter(|name| !name.is_empty());
        let service_name = service.flatten().and_then(|service| service.name.clone());
        let services_upgrades = service.flatten().is_some_and(|service| service.upgrades);
        let scripts = self.plugins.set.table.scripts;
        let takes = takes(
            self.with_paths(keys),
            (&id, scripts),
            service.flatten().map_or(&[], |service| &service.hosts),
            (at, path),
            sink,
        );
        let of_service = service.map(|service| service.map_or(&UpstreamTarget::Wrong, |service| &service.upstream));
        let (target, protocol) = match (found, of_service) {
            (
                UpstreamTarget::Target(target, protocol),
                None | Some(UpstreamTarget::Target(..) | UpstreamTarget::Absent),
            ) => (target, Some(protocol)),
            (UpstreamTarget::Absent, Some(UpstreamTarget::Target(target, protocol))) => {
                (target.clone(), Some(*protocol))
            }
            (UpstreamTarget::Absent, Some(UpstreamTarget::Absent)) => {
                let fault =
                    Fault::new("neither the route nor its service has an upstream, so what no plugin answers is 503");
                sink.warning(at, path, fault.hint("add upstream or upstream_id to one of them"));
                (Target::Nowhere, None)
            }
            (UpstreamTarget::Absent, None) if has_plugins => (Target::Nowhere, None),
            // Also without a service: because of a missing or unreadable key, which has been reported.
            (found, _) => {
                let protocol = if let UpstreamTarget::Target(_, protocol) = found { Some(protocol) } else { None };
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
            name,
            service_name,
            documents: None,
        };
        (route, protocol)
    }

    /// Compiles the upstream of a route or service by itself. `key` is for an inline one; beside an id it has no effect, as in
    /// APISIX.
    pub(super) fn upstream_of(
        &self,
        inline: Option<At<UpstreamKeys>>,
        id: Option<At<String>>,
        key: String,
        path: &Path<'_>,
        sink: &mut Sink,
    ) -> UpstreamTarget {
        if let (Some(inline), Some(_)) = (&inline, &id) {
            let fault = Fault::new("upstream_id takes precedence, so this upstream has no effect");
            sink.warning(inline.at, &path.key("upstream"), fault.hint("remove one of them"));
        }
        match (inline, id) {
            (None, None) => UpstreamTarget::Absent,
            (Some(inline), None) => {
                let path = path.key("upstream");
                if let Some(id) = &inline.value.id {
                    let fault = Fault::new("the id of an inline upstream has no effect").hint("remove it");
                    sink.warning(id.at, &path.key("id"), fault);
                }
                let own = upstream(inline.value, &key, &self.ssls, self.drops_underscores(), &path, sink);
                let protocol = own.protocol;
                UpstreamTarget::Target(Target::Own(own.into()), protocol)
            }
            (_, Some(id)) => {
                match find(&id, ResourceKind::Upstreams, &self.upstream_ids, &path.key("upstream_id"), sink) {
                    Some(CatalogItem { value: (key, protocol), .. }) => {
                        UpstreamTarget::Target(Target::Shared(key.clone()), *protocol)
                    }
                    None => UpstreamTarget::Wrong,
                }
            }
        }
    }
}

/// The upstreams in plugin configurations.
impl Upstreams for Catalog {
    fn shared_key(&self, id: &At<String>, path: &Path<'_>, sink: &mut Sink) -> Option<Arc<str>> {
        let CatalogItem { value: (key, protocol), .. } =
            find(id, ResourceKind::Upstreams, &self.upstream_ids, path, sink)?;
        check_http(*protocol, id.at, path, sink).then(|| key.clone())
    }

    fn register_own(&self, key: &str, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<OwnUpstream> {
        let keys = read(&map::<UpstreamKeys>(), node, path, sink)?;
        let timeout = keys.timeout;
        let own = upstream(keys, key, &self.ssls, self.drops_underscores(), path, sink);
        let timeout = PLUGIN_TIMEOUTS.overridden_by(&timeout);
        check_http(own.protocol, node.at, path, sink).then(|| Arc::new(Upstream { timeout, ..own }) as OwnUpstream)
    }
}

/// Reports an upstream that cannot take requests.
fn check_http(protocol: NodeProtocol, at: Position, path: &Path<'_>, sink: &mut Sink) -> bool {
    if !protocol.takes_requests() {
        let fault = Fault::new("the nodes of this upstream are not spoken to in HTTP");
        sink.error(at, path, fault.hint("write `scheme: http` in it"));
    }
    protocol.takes_requests()
}
