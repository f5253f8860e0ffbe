//! Compiles one resource of any kind. All sources use this path.

use super::catalog::{Catalog, Service, UNUSABLE, UpstreamTarget};
use super::catalog_item::find;
use super::claims::Claim;
use super::consumers::{consumer, credential};
use super::plugins::{Metadata, PluginList, PluginSet, metadata, unavailable};
use super::ssls::{ResourceId, ssl};
use super::take_id;
use super::upstream::upstream;
use crate::keys::plugins::{
    ConsumerGroupKeys, ConsumerKeys, CredentialKeys, GlobalRuleKeys, MetadataKeys, PluginConfigKeys,
};
use crate::keys::resource_list::Resource;
use crate::keys::resources::{ProtoKeys, RouteKeys, Scheme, ServiceKeys, UpstreamKeys};
use crate::keys::secrets::{SecretManagerKeys, VaultAuthKeys, VaultMethod};
use crate::keys::ssls::SslKeys;
use crate::keys::stream_routes::StreamRouteKeys;
use crate::model::{
    Listener, ListenerKind, NodeProtocol, ResourceKind, Route, Ssl, SslUse, StreamRoute, Target, Upstream,
};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use stillgate_plugin_api::secrets::{Manager, Managers, Secret, Secrets, VaultLogin, is_reference};
use stillgate_plugin_api::{ChainEntry, Consumer, Credential, PluginLevel};
use stillgate_schema::kind::{At, read};
use stillgate_schema::object::{Object, map};
use stillgate_schema::text::diagnostic::{Fault, Path, Position, Sink};
use stillgate_schema::text::tree::Node;

/// The written keys of a resource.
#[expect(clippy::large_enum_variant, reason = "it is moved once, and never kept")]
pub(crate) enum ResourceKeys {
    Secret(SecretManagerKeys),
    Credential(CredentialKeys),
    Proto(ProtoKeys),
    Ssl(SslKeys),
    Metadata(MetadataKeys),
    PluginConfig(PluginConfigKeys),
    ConsumerGroup(ConsumerGroupKeys),
    Upstream(UpstreamKeys),
    Service(ServiceKeys),
    Consumer(ConsumerKeys),
    GlobalRule(GlobalRuleKeys),
    StreamRoute(StreamRouteKeys),
    Route(RouteKeys),
}

/// The compiled resource. A disabled one compiles to nothing.
#[derive(Debug)]
pub(crate) enum CompiledResource {
    Secret(Arc<Manager>),
    Credential(Credential),
    Proto,
    Ssl(Option<Arc<Ssl>>, Vec<Claim>),
    Metadata(Metadata),
    PluginConfig(PluginList),
    ConsumerGroup(PluginList),
    Upstream(Arc<Upstream>),
    Service(Arc<Service>, Option<Arc<Upstream>>),
    Consumer(Consumer, Vec<Credential>),
    GlobalRule(PluginList),
    StreamRoute(Option<Arc<StreamRoute>>),
    Route(Option<Arc<Route>>),
}

impl ResourceKeys {
    /// Reads the keys of a kind; `None`: they cannot be read, which has been reported.
    pub(crate) fn read(kind: ResourceKind, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<ResourceKeys> {
        fn keys<T: Object>(node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<T> {
            read(&map::<T>(), node, path, sink)
        }
        Some(match kind {
            ResourceKind::Secrets => ResourceKeys::Secret(keys(node, path, sink)?),
            ResourceKind::Credentials => ResourceKeys::Credential(keys(node, path, sink)?),
            ResourceKind::Protos => ResourceKeys::Proto(keys(node, path, sink)?),
            ResourceKind::Ssls => ResourceKeys::Ssl(keys(node, path, sink)?),
            ResourceKind::PluginMetadata => ResourceKeys::Metadata(MetadataKeys::read(node, path, sink)?),
            ResourceKind::PluginConfigs => ResourceKeys::PluginConfig(keys(node, path, sink)?),
            ResourceKind::ConsumerGroups => ResourceKeys::ConsumerGroup(keys(node, path, sink)?),
            ResourceKind::Upstreams => ResourceKeys::Upstream(keys(node, path, sink)?),
            ResourceKind::Services => ResourceKeys::Service(keys(node, path, sink)?),
            ResourceKind::Consumers => ResourceKeys::Consumer(keys(node, path, sink)?),
            ResourceKind::GlobalRules => ResourceKeys::GlobalRule(keys(node, path, sink)?),
            ResourceKind::StreamRoutes => ResourceKeys::StreamRoute(keys(node, path, sink)?),
            ResourceKind::Routes => ResourceKeys::Route(keys(node, path, sink)?),
        })
    }

    /// The id in its text.
    pub(crate) fn id(&self) -> Option<&At<String>> {
        match self {
            ResourceKeys::Secret(keys) => Some(&keys.id),
            ResourceKeys::Credential(keys) => keys.id.as_ref(),
            ResourceKeys::Proto(keys) => keys.id.as_ref(),
            ResourceKeys::Ssl(keys) => keys.id.as_ref(),
            ResourceKeys::Metadata(keys) => keys.id.as_ref(),
            ResourceKeys::PluginConfig(keys) => keys.id.as_ref(),
            ResourceKeys::ConsumerGroup(keys) => keys.id.as_ref(),
            ResourceKeys::Upstream(keys) => keys.id.as_ref(),
            ResourceKeys::Service(keys) => keys.id.as_ref(),
            ResourceKeys::Consumer(keys) => Some(&keys.username),
            ResourceKeys::GlobalRule(keys) => keys.id.as_ref(),
            ResourceKeys::StreamRoute(keys) => keys.id.as_ref(),
            ResourceKeys::Route(keys) => keys.id.as_ref(),
        }
    }
}

impl Catalog {
    /// Compiles a resource against the catalog. Usable only if the sink has no errors afterwards; `None`: it cannot be compiled at
    /// all. Whether its id is taken, or its claims conflict, is not checked.
    pub(crate) fn compile_resource(
        &self,
        written: ResourceKeys,
        named: ResourceId<'_>,
        sink: &mut Sink,
    ) -> Option<CompiledResource> {
        let ResourceId { id, at, path, .. } = named;
        sink.budget().begin_resource();
        let list = |plugins: &Node, level, sink: &mut Sink| self.compile(Some(plugins), level, id, path, sink);
        let compiled = match written {
            ResourceKeys::Secret(keys) => {
                CompiledResource::Secret(Arc::new(manager(keys, &*self.plugins.set.secrets, at, path, sink)?))
            }
            ResourceKeys::Credential(keys) => {
                CompiledResource::Credential(credential(keys, &self.plugins, at, path, sink)?)
            }
            ResourceKeys::Proto(_) => CompiledResource::Proto,
            ResourceKeys::Ssl(keys) => {
                let (ssl, claims) = ssl(keys, named, self.acme.as_ref(), &*self.plugins.set.secrets, sink);
                CompiledResource::Ssl(ssl.map(Arc::new), claims)
            }
            ResourceKeys::Metadata(keys) => {
                CompiledResource::Metadata(metadata(&keys, named, &self.plugins.set, sink)?)
            }
            ResourceKeys::PluginConfig(keys) => {
                CompiledResource::PluginConfig(list(&keys.plugins, PluginLevel::PluginConfig, sink))
            }
            ResourceKeys::ConsumerGroup(keys) => {
                CompiledResource::ConsumerGroup(list(&keys.plugins, PluginLevel::ConsumerGroup, sink))
            }
            ResourceKeys::Upstream(keys) => CompiledResource::Upstream(Arc::new(upstream(
                keys,
                id,
                &self.ssls,
                self.drops_underscores(),
                path,
                sink,
            ))),
            ResourceKeys::Service(keys) => {
                let (service, own) = self.compile_service(keys, named, sink);
                CompiledResource::Service(Arc::new(service), own)
            }
            ResourceKeys::Consumer(keys) => {
                let (consumer, credentials) = consumer(keys, self, path, sink);
                CompiledResource::Consumer(consumer, credentials)
            }
            ResourceKeys::GlobalRule(keys) => {
                CompiledResource::GlobalRule(list(&keys.plugins, PluginLevel::GlobalRule, sink))
            }
            ResourceKeys::StreamRoute(keys) => {
                let is_enabled = keys.status;
                let (route, protocol) = self.stream_route(keys, id.to_owned(), at, path, sink);
                if let Some(protocol) = protocol.filter(|_| is_enabled && self.are_listeners_known) {
                    check_reach(&route, protocol, &self.listeners, at, path, sink);
                }
                CompiledResource::StreamRoute(is_enabled.then(|| Arc::new(route)))
            }
            ResourceKeys::Route(keys) => {
                let is_enabled = keys.status;
                let route = self.compile_route(keys, id.to_owned(), at, path, sink);
                let route = self.with_documents(route, named);
                CompiledResource::Route(is_enabled.then(|| Arc::new(route)))
            }
        };
        Some(compiled)
    }
}

impl CompiledResource {
    /// The things that only one resource may have, except credentials.
    pub(crate) fn claims(&self) -> Vec<Claim> {
        let mut claims = match self {
            CompiledResource::Ssl(_, claims) => claims.clone(),
            _ => Vec::new(),
        };
        claims.extend(Claim::groups(self.entries().iter()));
        claims
    }

    /// A consumer's credentials, which only it may have.
    pub(crate) fn credentials(&self) -> impl Iterator<Item = Claim> {
        let credentials = match self {
            CompiledResource::Consumer(_, credentials) => &credentials[..],
            CompiledResource::Credential(own) => std::slice::from_ref(own),
            _ => &[],
        };
        credentials.iter().map(|own| Claim::credential(own.plugin, &own.lookup))
    }

    /// Its inline plugins.
    pub(crate) fn entries(&self) -> Vec<Arc<ChainEntry>> {
        let of_level = |entries: &[Arc<ChainEntry>], level| {
            entries.iter().filter(|entry| entry.origin.level == level).cloned().collect::<Vec<_>>()
        };
        match self {
            CompiledResource::PluginConfig(list)
            | CompiledResource::ConsumerGroup(list)
            | CompiledResource::GlobalRule(list) => list.to_vec(),
            CompiledResource::Service(service, _) => service.plugins.list().to_vec(),
            CompiledResource::Consumer(consumer, _) => of_level(&consumer.plugins, PluginLevel::Consumer),
            CompiledResource::Route(Some(route)) => route.chain.as_ref().map_or(Vec::new(), |chain| {
                let mut own = of_level(chain.entries(), PluginLevel::Route);
                own.append(&mut of_level(chain.left_out(), PluginLevel::Route));
                own
            }),
            _ => Vec::new(),
        }
    }

    /// The upstream itself, or the inline ones: its own, then those of its plugins.
    pub(crate) fn upstreams(&self) -> Vec<Arc<Upstream>> {
        let own = match self {
            CompiledResource::Upstream(upstream) => Some(upstream.clone()),
            CompiledResource::Service(_, own) => own.clone(),
            CompiledResource::StreamRoute(Some(route)) => route.target.own(),
            CompiledResource::Route(Some(route)) => return own_upstreams(route).collect(),
            _ => None,
        };
        own.into_iter().chain(self.entries().iter().flat_map(|entry| of_plugin(entry))).collect()
    }

    /// A consumer that must not be served: requests with its credentials are answered with 503. `None`: none of them can be read.
    pub(crate) fn into_refused_consumer(self) -> Option<CompiledResource> {
        let CompiledResource::Consumer(consumer, credentials) = self else { return None };
        let plugins = Arc::new([unavailable(PluginLevel::Consumer, &consumer.name)]);
        Some(CompiledResource::Consumer(Consumer { plugins, ..consumer }, credentials))
    }

    /// Whether clients of a certificate's names must have certificates of their own, or may have to.
    pub(crate) fn asks_clients(&self) -> bool {
        let CompiledResource::Ssl(Some(ssl), _) = self else { return false };
        match &ssl.usage {
            SslUse::Server(server) => server.client.is_some(),
            SslUse::Refused(refused) => refused.asks,
            SslUse::Client => false,
        }
    }

    /// Why it has no destination, if it has none.
    pub(crate) fn unavailable_reason(&self) -> Option<String> {
        let target = match self {
            CompiledResource::Route(Some(route)) => &route.target,
            CompiledResource::StreamRoute(Some(route)) => &route.target,
            _ => return None,
        };
        match target {
            Target::Unavailable(reason) => Some(reason.to_string()),
            Target::Shared(_) | Target::Own(_) | Target::Nowhere => None,
        }
    }
}

/// The inline upstreams of a route and its plugins, except those of disabled plugins.
pub(crate) fn own_upstreams(route: &Route) -> impl Iterator<Item = Arc<Upstream>> {
    route.target.own().into_iter().chain(route.custom_plugins().flat_map(of_plugin))
}

/// The inline upstreams in a plugin's configuration.
fn of_plugin(entry: &ChainEntry) -> impl Iterator<Item = Arc<Upstream>> {
    entry.plugin.own_upstreams().iter().filter_map(|own| own.clone().downcast().ok())
}

// Compiles stream routes, and checks whether a listener receives their connections.

impl Catalog {
    /// Compiles a stream route, and determines the protocol of its destination.
    pub(super) fn stream_route(
        &self,
        mut keys: StreamRouteKeys,
        id: String,
        at: Position,
        path: &Path<'_>,
        sink: &mut Sink,
    ) -> (StreamRoute, Option<NodeProtocol>) {
        if let Some(inline) = &mut keys.upstream
            && inline.value.scheme.value == Scheme::Http
        {
            inline.value.scheme.value = Scheme::Plain;
        }
        let place_at = match (&keys.upstream, &keys.upstream_id, &keys.service_id) {
            (_, Some(id), _) => (id.at, "upstream_id"),
            (Some(inline), ..) => (inline.at, "upstream"),
            (None, None, Some(id)) => (id.at, "service_id"),
            (None, None, None) => (at, "upstream"),
        };
        let key = format!("stream_routes/{id}");
        let mut found = self.upstream_of(keys.upstream.take(), keys.upstream_id.take(), key, path, sink);
        if let Some(id) = &keys.service_id {
            match find(id, ResourceKind::Services, &self.services, &path.key("service_id"), sink) {
                None => found = UpstreamTarget::Wrong,
                Some(service) => {
                    if keys.status {
                        check_service_plugins(service.value.plugins.list(), id, path, sink);
                    }
                    if found == UpstreamTarget::Absent {
                        found = service.value.upstream.clone();
                    }
                }
            }
            if found == UpstreamTarget::Absent {
                let fault = Fault::new("neither the stream route nor its service has an upstream");
                sink.error(at, path, fault.hint("add upstream or upstream_id to one of them"));
            }
        }
        let (target, protocol) = match found {
            UpstreamTarget::Target(target, protocol) => (target, Some(protocol)),
            UpstreamTarget::Absent | UpstreamTarget::Wrong => (Target::Unavailable(UNUSABLE.into()), None),
        };
        match (protocol, &keys.sni) {
            (Some(NodeProtocol::Http), _) => {
                let fault = Fault::new("the nodes of this upstream are spoken to in HTTP, which is for `routes`");
                let fault =
                    fault.hint("write `scheme: tcp`, `tls` or `udp` in the upstream, and a port with each node");
                sink.error(place_at.0, &path.key(place_at.1), fault);
            }
            (Some(NodeProtocol::Udp), Some(sni)) => {
                let fault = Fault::new("UDP has no server name").hint("remove the key, or use `scheme: tcp` or `tls`");
                sink.error(sni.at, &path.key("sni"), fault);
            }
            _ => {}
        }
        let StreamRouteKeys { remote_addr, server_addr, server_port, sni, timeout, on_change, service_id, .. } = keys;
        let (sni, service_id) = (sni.map(|sni| sni.value), service_id.map(|id| id.value));
        let route = StreamRoute {
            id,
            sni,
            is_sni_unread: false,
            remote_addr,
            server_addr,
            server_port,
            target,
            service_id,
            timeout,
            on_change,
        };
        (route, protocol.filter(|protocol| *protocol != NodeProtocol::Http))
    }
}

/// The plugins that APISIX runs for connections, too: `stream_plugins` of its default configuration.
const STREAM_PLUGINS: [&str; 5] = ["ip-restriction", "limit-conn", "mqtt-proxy", "syslog", "traffic-split"];

/// APISIX adds the plugins of the service to those of the stream route. Those that it runs for connections are refused, as in the
/// stream route itself: a guard must not be ignored. The others have no effect there either, which a warning says.
fn check_service_plugins(plugins: &[Arc<ChainEntry>], service: &At<String>, path: &Path<'_>, sink: &mut Sink) {
    let active = || plugins.iter().filter(|entry| !entry.meta.disable && !entry.meta.is_ignored);
    let path = path.key("service_id");
    let (guards, others): (Vec<_>, Vec<_>) =
        active().map(|entry| entry.name).partition(|name| STREAM_PLUGINS.contains(name));
    if !guards.is_empty() {
        let message = format!(
            "the service {:?} has plugins for connections, which are not supported yet: {}",
            service.value,
            guards.join(", ")
        );
        let hint = "remove them from the service, or name a service without them; `remote_addr` admits one network";
        sink.error(service.at, &path, Fault::new(message).hint(hint));
    }
    if !others.is_empty() {
        let message =
            format!("plugins of the service {:?} have no effect on connections: {}", service.value, others.join(", "));
        sink.warning(service.at, &path, Fault::new(message).hint("name a service without them"));
    }
}

/// Warns of a route whose connections no listener receives.
pub(super) fn check_reach(
    route: &StreamRoute,
    protocol: NodeProtocol,
    listeners: &[Listener],
    at: Position,
    path: &Path<'_>,
    sink: &mut Sink,
) {
    let holds = |address: SocketAddr| {
        route.server_port.is_none_or(|port| port == address.port() || address.port() == 0)
            && route.server_addr.is_none_or(|net| address.ip().is_unspecified() || net.contains(&address.ip()))
    };
    // For a datagram to a listener on all addresses, the destination address is unknown.
    let is_told = |address: SocketAddr| route.server_addr.is_none_or(|net| net.contains(&address.ip()));
    let of_udp = listeners.iter().filter(|listener| listener.kind == ListenerKind::Udp);
    let datagrams = || of_udp.clone().map(|listener| listener.address);
    let (what, is_there, has_names) = match protocol {
        NodeProtocol::Udp => {
            let mut all = datagrams();
            ("udp", all.any(|address| holds(address) && is_told(address)), true)
        }
        NodeProtocol::Plain if route.sni.is_none() && datagrams().any(|address| holds(address) && is_told(address)) => {
            ("udp", true, true)
        }
        NodeProtocol::Http | NodeProtocol::Plain | NodeProtocol::Tcp => {
            // The local address in a PROXY header does not count.
            let learns_names =
                listeners.iter().filter(|listener| holds(listener.address)).filter_map(|of| match of.kind {
                    ListenerKind::Tcp { tls, tls_passthrough, .. } => Some(tls || tls_passthrough),
                    _ => None,
                });
            let learns_names: Vec<bool> = learns_names.collect();
            ("tcp", !learns_names.is_empty(), learns_names.contains(&true))
        }
    };
    if !is_there {
        let which = match (route.server_addr, route.server_port) {
            (None, None) => "",
            _ => " of its server_addr and server_port",
        };
        let fault = Fault::new(format!("it takes no connection: no listener{which} is in gateway.stream_proxy.{what}"));
        let is_wide = protocol == NodeProtocol::Udp && datagrams().any(|address| holds(address) && !is_told(address));
        let hint = match is_wide {
            true => {
                "a UDP listener on all addresses does not know which one a datagram was sent to; give it the address itself"
            }
            false => "add one there, or `status: 0` here",
        };
        sink.warning(at, path, fault.hint(hint));
    } else if route.sni.is_some() && !has_names {
        let fault = Fault::new("it takes no connection: no listener learns the name that clients ask for");
        sink.warning(
            at,
            &path.key("sni"),
            fault.hint("write `tls` or `tls_passthrough` in one of gateway.stream_proxy.tcp"),
        );
    }
}

// Compiles secret managers, which resolve references.

/// These plugins, with references to these managers.
pub(crate) fn with_managers(set: PluginSet, written: Vec<Resource<SecretManagerKeys>>, sink: &mut Sink) -> PluginSet {
    let mut managers = Managers::default();
    let mut ids = HashMap::new();
    let list = Path::Root.key("secrets");
    for Resource { index, at, keys, .. } in written {
        let path = list.index(index);
        take_id(&mut ids, &keys.id, at.line, &path, sink);
        let name = keys.id.value.trim_start_matches("vault/").into();
        if let Some(manager) = manager(keys, &*set.secrets, at, &path, sink) {
            managers.0.insert(name, Arc::new(manager));
        }
    }
    match set.secrets.with_managers(&managers) {
        Some(secrets) => PluginSet { secrets, ..set },
        None => set,
    }
}

/// Compiles a manager's keys.
pub(super) fn manager(
    keys: SecretManagerKeys,
    secrets: &dyn Secrets,
    at: Position,
    path: &Path<'_>,
    sink: &mut Sink,
) -> Option<Manager> {
    let login = match (keys.token, keys.auth) {
        (Some(token), None) => {
            VaultLogin::Token(resolve_secret(token.value, secrets, token.at, &path.key("token"), sink)?)
        }
        (None, Some(auth)) => login(auth, secrets, at, &path.key("auth"), sink)?,
        (Some(token), Some(_)) => {
            let fault = Fault::new("both \"token\" and \"auth\" are here").hint("remove one");
            sink.error(token.at, &path.key("token"), fault);
            return None;
        }
        // Reported with the keys.
        (None, None) => return None,
    };
    Some(Manager {
        uri: keys.uri.into(),
        prefix: keys.prefix.into(),
        namespace: keys.namespace.map(Into::into),
        version: keys.kv_version,
        login,
        ca: keys.ca.map(Into::into),
        verify: keys.ssl_verify,
        timeout: keys.timeout,
        refresh: keys.refresh,
    })
}

fn login(
    keys: VaultAuthKeys,
    secrets: &dyn Secrets,
    at: Position,
    path: &Path<'_>,
    sink: &mut Sink,
) -> Option<VaultLogin> {
    let mut missing = |key: &str| {
        let fault = Fault::new(format!("the key {key:?} is missing"));
        sink.error(at, path, fault.hint("the method needs it"));
        None
    };
    match keys.method {
        VaultMethod::Kubernetes => {
            let Some(role) = keys.role else { return missing("role") };
            let mount = keys.mount.unwrap_or_else(|| "kubernetes".to_owned());
            Some(VaultLogin::Kubernetes { mount: mount.into(), role: role.into(), jwt_file: keys.jwt_file })
        }
        VaultMethod::AppRole => {
            let Some(role_id) = keys.role_id else { return missing("role_id") };
            let role_id = resolve_secret(role_id, secrets, at, &path.key("role_id"), sink)?;
            let secret_id = match keys.secret_id {
                Some(id) => Some(resolve_secret(id, secrets, at, &path.key("secret_id"), sink)?),
                None => None,
            };
            let mount = keys.mount.unwrap_or_else(|| "approle".to_owned());
            Some(VaultLogin::AppRole { mount: mount.into(), role_id, secret_id })
        }
    }
}

/// The value of a secret, which may be a reference.
fn resolve_secret(
    secret: Secret,
    secrets: &dyn Secrets,
    at: Position,
    path: &Path<'_>,
    sink: &mut Sink,
) -> Option<Secret> {
    if !is_reference(secret.reveal()) {
        sink.hide(secret.reveal());
        return Some(secret);
    }
    match secrets.resolve(secret.reveal()) {
        Ok(text) => {
            sink.hide(&text);
            Some(Secret::new(text))
        }
        Err(why) => {
            sink.error(at, path, Fault::new(format!("{}: {why}", secret.reveal())));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::unavailable;

    #[test]
    fn plugins_of_a_service_count_for_its_stream_routes() {
        let entry = |(name, disable): (&'static str, bool)| {
            let mut entry = Arc::into_inner(unavailable(PluginLevel::Service, "s")).expect("the only handle");
            (entry.name, entry.meta.disable) = (name, disable);
            Arc::new(entry)
        };
        let check = |plugins: &[(&'static str, bool)], error: &str, warning: &str| {
            let list: Vec<_> = plugins.iter().copied().map(entry).collect();
            let service = At { at: Position::NOWHERE, value: "s".to_owned() };
            let mut sink = Sink::default();
            check_service_plugins(&list, &service, &Path::Root, &mut sink);
            assert_eq!(sink.has_errors(), !error.is_empty(), "{plugins:?}");
            let said = sink.into_errors().to_string();
            assert!(said.contains(error) && said.contains(warning), "{plugins:?}: {said}");
            assert_eq!(said.is_empty(), error.is_empty() && warning.is_empty(), "{plugins:?}: {said}");
        };
        check(
            &[("ip-restriction", false), ("limit-conn", false)],
            "not supported yet: ip-restriction, limit-conn;",
            "",
        );
        check(&[("ip-restriction", true)], "", "");
        check(&[("key-auth", false), ("cors", true)], "", "have no effect on connections: key-auth;");
        check(&[("syslog", false), ("key-auth", false)], "not supported yet: syslog;", "connections: key-auth;");
        check(&[], "", "");
    }
}
