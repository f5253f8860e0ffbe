//! Compiles one resource of any kind. All sources use this path.

use super::catalog::{Catalog, Service};
use super::claims::Claim;
use super::consumers::{consumer, credential};
use super::plugins::{List, Metadata, metadata};
use super::resource_id::ResourceId;
use super::secrets::manager;
use super::ssls::ssl;
use super::stream_routes::check_reach;
use super::unavailable::unavailable;
use super::upstream::upstream;
use crate::keys::plugins::{
    ConsumerGroupKeys, ConsumerKeys, CredentialKeys, GlobalRuleKeys, MetadataKeys, PluginConfigKeys,
};
use crate::keys::protos::ProtoKeys;
use crate::keys::resources::{RouteKeys, ServiceKeys, UpstreamKeys};
use crate::keys::secrets::SecretManagerKeys;
use crate::keys::ssls::SslKeys;
use crate::keys::stream_routes::StreamRouteKeys;
use crate::model::{Kind, Route, Ssl, StreamRoute, Target, Upstream};
use std::sync::Arc;
use stillgate_plugin::secrets::Manager;
use stillgate_plugin::{ChainEntry, Consumer, Credential, Level};
use stillgate_schema::kind::{At, read};
use stillgate_schema::object::{Object, map};
use stillgate_schema::text::diagnostic::{Path, Sink};
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
pub(crate) enum Definition {
    Secret(Arc<Manager>),
    Credential(Credential),
    Proto,
    Ssl(Option<Arc<Ssl>>, Vec<Claim>),
    Metadata(Metadata),
    PluginConfig(List),
    ConsumerGroup(List),
    Upstream(Arc<Upstream>),
    Service(Arc<Service>, Option<Arc<Upstream>>),
    Consumer(Consumer, Vec<Credential>),
    GlobalRule(List),
    StreamRoute(Option<Arc<StreamRoute>>),
    Route(Option<Arc<Route>>),
}

impl ResourceKeys {
    /// Reads the keys of a kind; `None`: they cannot be read, which has been reported.
    pub(crate) fn read(kind: Kind, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<ResourceKeys> {
        fn keys<T: Object>(node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<T> {
            read(&map::<T>(), node, path, sink)
        }
        Some(match kind {
            Kind::Secrets => ResourceKeys::Secret(keys(node, path, sink)?),
            Kind::Credentials => ResourceKeys::Credential(keys(node, path, sink)?),
            Kind::Protos => ResourceKeys::Proto(keys(node, path, sink)?),
            Kind::Ssls => ResourceKeys::Ssl(keys(node, path, sink)?),
            Kind::PluginMetadata => ResourceKeys::Metadata(MetadataKeys::read(node, path, sink)?),
            Kind::PluginConfigs => ResourceKeys::PluginConfig(keys(node, path, sink)?),
            Kind::ConsumerGroups => ResourceKeys::ConsumerGroup(keys(node, path, sink)?),
            Kind::Upstreams => ResourceKeys::Upstream(keys(node, path, sink)?),
            Kind::Services => ResourceKeys::Service(keys(node, path, sink)?),
            Kind::Consumers => ResourceKeys::Consumer(keys(node, path, sink)?),
            Kind::GlobalRules => ResourceKeys::GlobalRule(keys(node, path, sink)?),
            Kind::StreamRoutes => ResourceKeys::StreamRoute(keys(node, path, sink)?),
            Kind::Routes => ResourceKeys::Route(keys(node, path, sink)?),
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
    pub(crate) fn define(&self, written: ResourceKeys, named: ResourceId<'_>, sink: &mut Sink) -> Option<Definition> {
        let ResourceId { id, at, path, .. } = named;
        let list = |plugins: &Node, level, sink: &mut Sink| self.compile(Some(plugins), level, id, path, sink);
        let definition = match written {
            ResourceKeys::Secret(keys) => {
                Definition::Secret(Arc::new(manager(keys, &*self.plugins.set.secrets, at, path, sink)?))
            }
            ResourceKeys::Credential(keys) => Definition::Credential(credential(keys, &self.plugins, at, path, sink)?),
            ResourceKeys::Proto(_) => Definition::Proto,
            ResourceKeys::Ssl(keys) => {
                let (ssl, claims) = ssl(keys, named, self.acme.as_ref(), sink);
                Definition::Ssl(ssl.map(Arc::new), claims)
            }
            ResourceKeys::Metadata(keys) => Definition::Metadata(metadata(&keys, named, &self.plugins.set, sink)?),
            ResourceKeys::PluginConfig(keys) => {
                Definition::PluginConfig(list(&keys.plugins, Level::PluginConfig, sink))
            }
            ResourceKeys::ConsumerGroup(keys) => {
                Definition::ConsumerGroup(list(&keys.plugins, Level::ConsumerGroup, sink))
            }
            ResourceKeys::Upstream(keys) => {
                Definition::Upstream(Arc::new(upstream(keys, id, &self.ssls, self.drops_underscores(), path, sink)))
            }
            ResourceKeys::Service(keys) => {
                let (service, own) = self.service(keys, named, sink);
                Definition::Service(Arc::new(service), own)
            }
            ResourceKeys::Consumer(keys) => {
                let (consumer, credentials) = consumer(keys, self, path, sink);
                Definition::Consumer(consumer, credentials)
            }
            ResourceKeys::GlobalRule(keys) => Definition::GlobalRule(list(&keys.plugins, Level::GlobalRule, sink)),
            ResourceKeys::StreamRoute(keys) => {
                let is_enabled = keys.status;
                let (route, protocol) = self.stream_route(keys, id.to_owned(), at, path, sink);
                if let Some(protocol) = protocol.filter(|_| is_enabled && self.are_listeners_known) {
                    check_reach(&route, protocol, &self.listeners, at, path, sink);
                }
                Definition::StreamRoute(is_enabled.then(|| Arc::new(route)))
            }
            ResourceKeys::Route(keys) => {
                let is_enabled = keys.status;
                let route = self.route(keys, id.to_owned(), at, path, sink);
                let route = self.with_documents(route, named);
                Definition::Route(is_enabled.then(|| Arc::new(route)))
            }
        };
        Some(definition)
    }
}

impl Definition {
    /// The things that only one resource may have, except credentials.
    pub(crate) fn claims(&self) -> Vec<Claim> {
        let mut claims = match self {
            Definition::Ssl(_, claims) => claims.clone(),
            _ => Vec::new(),
        };
        claims.extend(Claim::groups(self.entries().iter()));
        claims
    }

    /// A consumer's credentials, which only it may have.
    pub(crate) fn credentials(&self) -> impl Iterator<Item = Claim> {
        let credentials = match self {
            Definition::Consumer(_, credentials) => &credentials[..],
            Definition::Credential(own) => std::slice::from_ref(own),
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
            Definition::PluginConfig(list) | Definition::ConsumerGroup(list) | Definition::GlobalRule(list) => {
                list.to_vec()
            }
            Definition::Service(service, _) => service.plugins.list().to_vec(),
            Definition::Consumer(consumer, _) => of_level(&consumer.plugins, Level::Consumer),
            Definition::Route(Some(route)) => route.chain.as_ref().map_or(Vec::new(), |chain| {
                let mut own = of_level(chain.entries(), Level::Route);
                own.append(&mut of_level(chain.left_out(), Level::Route));
                own
            }),
            _ => Vec::new(),
        }
    }

    /// The upstream itself, or the inline ones: its own, then those of its plugins.
    pub(crate) fn upstreams(&self) -> Vec<Arc<Upstream>> {
        let own = match self {
            Definition::Upstream(upstream) => Some(upstream.clone()),
            Definition::Service(_, own) => own.clone(),
            Definition::StreamRoute(Some(route)) => route.target.own(),
            Definition::Route(Some(route)) => return own_upstreams(route).collect(),
            _ => None,
        };
        own.into_iter().chain(self.entries().iter().flat_map(|entry| of_plugin(entry))).collect()
    }

    /// A consumer that must not be served: requests with its credentials are answered with 503. `None`: none of them can be read.
    pub(crate) fn into_refused_consumer(self) -> Option<Definition> {
        let Definition::Consumer(consumer, credentials) = self else { return None };
        let plugins = Arc::new([unavailable(Level::Consumer, &consumer.name)]);
        Some(Definition::Consumer(Consumer { plugins, ..consumer }, credentials))
    }

    /// Why it has no destination, if it has none.
    pub(crate) fn is_unavailable(&self) -> Option<String> {
        let target = match self {
            Definition::Route(Some(route)) => &route.target,
            Definition::StreamRoute(Some(route)) => &route.target,
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
    route.target.own().into_iter().chain(route.own_plugins().flat_map(of_plugin))
}

/// The inline upstreams in a plugin's configuration.
fn of_plugin(entry: &ChainEntry) -> impl Iterator<Item = Arc<Upstream>> {
    entry.plugin.own_upstreams().iter().filter_map(|own| own.clone().downcast().ok())
}
