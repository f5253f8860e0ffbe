//! Routes of requests and of streams.

use super::upstream::Upstream;
use crate::keys::resources::TimeoutKeys as RouteTimeouts;
use crate::keys::stream_routes::StreamTimeouts;
use crate::values::OnChange;
use ipnet::IpNet;
use std::fmt;
use std::sync::Arc;
use stillgate_plugin_api::facts::Documents;
use stillgate_plugin_api::{Chain, ChainEntry, DeviceSettings, PluginLevel};
use stillgate_route::{HostPattern, RouteSpec};

/// The destination of a route. A shared upstream is referenced by its key, so that its routes stay unchanged when it changes.
#[derive(Clone, PartialEq)]
pub enum Target {
    /// One of `upstreams`, or that of a service, by [`Upstream::key`].
    Shared(Arc<str>),
    /// An upstream that is written inline in the route.
    Own(Arc<Upstream>),
    /// None: requests that its plugins neither answer nor send elsewhere are answered with 503.
    Nowhere,
    /// The route cannot be served as intended, for this reason: everything it takes is answered with 503.
    Unavailable(Arc<str>),
}

/// One enabled route.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// The requests that it takes. `spec.id` is the route's id.
    pub spec: Arc<RouteSpec>,
    /// The destination of its requests.
    pub target: Target,
    /// Its service.
    pub service_id: Option<String>,
    /// Overrides the upstream's timeouts, if set.
    pub timeout: Option<RouteTimeouts>,
    /// Whether clients may upgrade to another protocol.
    pub upgrades: bool,
    /// How its tunnels are treated when it is changed or removed.
    pub on_change: OnChange,
    /// Its plugins, with those of its plugin config and service; `None`: there are none.
    pub chain: Option<Arc<Chain>>,
    /// A description for people.
    pub name: Option<String>,
    /// The name of its service.
    pub service_name: Option<String>,
    /// Its document for plugins that need it; `None`: none does.
    pub documents: Option<Arc<Documents>>,
}

impl Route {
    /// Whether this is the same route; parts that it has from services and plugin configs do not count.
    pub fn is_same_itself(&self, other: &Route) -> bool {
        self.itself() == other.itself() && self.custom_plugins().eq(other.custom_plugins())
    }

    /// Destructured completely, so that a new field requires a decision whether it belongs here. A name is only a label.
    fn itself(&self) -> impl PartialEq {
        let Route {
            spec,
            target,
            service_id,
            timeout,
            upgrades,
            on_change,
            chain: _,
            name: _,
            service_name: _,
            documents: _,
        } = self;
        (spec, target, service_id, timeout, upgrades, on_change)
    }

    /// The labels of the route and its service in metrics: their names if its plugins want that or all routes are `named`, and
    /// their ids otherwise or without a name.
    pub fn labels(&self, named: bool) -> (&str, Option<&str>) {
        let (id, service) = (&*self.spec.id, self.service_id.as_deref());
        if !named && !self.prefers_names() {
            return (id, service);
        }
        let of_service = service.map(|id| self.service_name.as_deref().unwrap_or(id));
        (self.name.as_deref().unwrap_or(id), of_service)
    }

    /// Whether its plugins want names in labels.
    pub fn prefers_names(&self) -> bool {
        self.chain.as_ref().is_some_and(|chain| chain.prefers_names())
    }

    /// How its devices are served; `None`: it has no device plugin.
    pub fn devices(&self) -> Option<&Arc<DeviceSettings>> {
        self.chain.as_ref()?.entries().iter().find_map(|entry| entry.plugin.devices())
    }

    /// The plugins that are written in the route itself.
    pub fn custom_plugins(&self) -> impl Iterator<Item = &ChainEntry> {
        let entries = self.chain.iter().flat_map(|chain| chain.entries());
        entries.map(|entry| &**entry).filter(|entry| entry.origin.level == PluginLevel::Route)
    }
}

/// One enabled stream route. The [`Protocol`](super::Protocol) of its upstream, `Tcp` or `Udp`, is also the one it takes.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamRoute {
    /// Unique among stream routes.
    pub id: String,
    /// The server name that the client must request; `None`: any, or none.
    pub sni: Option<HostPattern>,
    /// Whether its server name could not be read: then it refuses every name and precedes all others.
    pub is_sni_unread: bool,
    /// The allowed addresses of the client.
    pub remote_addr: Option<IpNet>,
    /// The allowed local addresses of the connection.
    pub server_addr: Option<IpNet>,
    /// The allowed local port.
    pub server_port: Option<u16>,
    /// The destination of its connections.
    pub target: Target,
    /// Its service.
    pub service_id: Option<String>,
    /// Overrides the settings of the upstream and the gateway.
    pub timeout: StreamTimeouts,
    /// How its connections are treated when it is changed or removed.
    pub on_change: OnChange,
}

impl Target {
    /// The upstream that is written in the route.
    pub fn own(&self) -> Option<Arc<Upstream>> {
        match self {
            Target::Own(upstream) => Some(upstream.clone()),
            Target::Shared(_) | Target::Nowhere | Target::Unavailable(_) => None,
        }
    }

    /// The key of its upstream; `None`: it has none.
    pub fn key(&self) -> Option<&str> {
        match self {
            Target::Shared(key) => Some(key),
            Target::Own(upstream) => Some(&upstream.key),
            Target::Nowhere | Target::Unavailable(_) => None,
        }
    }
}

/// Contains only the key of an upstream: the list of upstreams has the rest.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Shared(key) => f.debug_tuple("Shared").field(key).finish(),
            Target::Own(upstream) => f.debug_tuple("Own").field(&upstream.key).finish(),
            Target::Nowhere => f.write_str("Nowhere"),
            Target::Unavailable(reason) => f.debug_tuple("Unavailable").field(reason).finish(),
        }
    }
}
