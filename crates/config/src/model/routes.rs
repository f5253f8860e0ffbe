//! Routes of requests and of streams.

use super::upstream::Upstream;
use crate::keys::resources::TimeoutKeys as RouteTimeouts;
use crate::keys::stream_routes::StreamTimeouts;
use crate::values::OnChange;
use ipnet::IpNet;
use std::fmt;
use std::sync::Arc;
use stillgate_plugin::facts::Documents;
use stillgate_plugin::{Chain, DeviceSettings, Entry, Level};
use stillgate_route::{HostPattern, RouteSpec};

/// Where a route leads. A shared upstream is referred to by its key: when it changes, its routes are the same as before.
#[derive(Clone, PartialEq)]
pub enum Target {
    /// One of `upstreams`, or a service's, by [`Upstream::key`].
    Shared(Arc<str>),
    /// An upstream that is written inline in the route.
    Own(Arc<Upstream>),
    /// It has none: what its plugins neither answer nor lead elsewhere is answered 503.
    Nowhere,
    /// The route cannot be served as it was meant, and why: everything it takes is answered 503.
    Unavailable(Arc<str>),
}

/// One enabled route.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// What requests it takes. `spec.id` is the route's id.
    pub spec: Arc<RouteSpec>,
    /// Where its requests go.
    pub target: Target,
    /// The service it belongs to.
    pub service_id: Option<String>,
    /// Overrides the upstream's, where given.
    pub timeout: Option<RouteTimeouts>,
    /// Whether clients may ask for another protocol.
    pub upgrades: bool,
    /// What becomes of its tunnels when it is changed or removed.
    pub on_change: OnChange,
    /// Its plugins, with those of its plugin config and service; `None`: there are none.
    pub chain: Option<Arc<Chain>>,
    /// For the reader.
    pub name: Option<String>,
    /// That of its service.
    pub service_name: Option<String>,
    /// For plugins that want them; `None`: none does.
    pub documents: Option<Arc<Documents>>,
}

impl Route {
    /// Whether this is the same route: what it has of services and plugin configs is not itself.
    pub fn is_same_itself(&self, other: &Route) -> bool {
        self.itself() == other.itself() && self.own_plugins().eq(other.own_plugins())
    }

    /// Taken apart in full, so that whoever adds a field says whether it belongs here. A name is no more than a label.
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

    /// What labels of metrics call it, and its service: by their names where its plugins want that or all routes are `named`, by
    /// their ids otherwise and where they have none.
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

    /// How its devices are served; `None`: it has no plugin for them.
    pub fn devices(&self) -> Option<&Arc<DeviceSettings>> {
        self.chain.as_ref()?.entries().iter().find_map(|entry| entry.plugin.devices())
    }

    /// The plugins that are written in the route itself.
    pub fn own_plugins(&self) -> impl Iterator<Item = &Entry> {
        let entries = self.chain.iter().flat_map(|chain| chain.entries());
        entries.map(|entry| &**entry).filter(|entry| entry.origin.level == Level::Route)
    }
}

/// One enabled stream route. What it goes to is `Tcp` or `Udp` of [`Protocol`](super::Protocol), and so is what it takes.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamRoute {
    /// Unique among stream routes.
    pub id: String,
    /// The name that the client must ask for; `None`: any, and none.
    pub sni: Option<HostPattern>,
    /// Its name could not be read, so it refuses every name and comes before all others.
    pub is_sni_unread: bool,
    /// Where the client must be.
    pub remote_addr: Option<IpNet>,
    /// Where it must have connected to.
    pub server_addr: Option<IpNet>,
    /// The same of the port.
    pub server_port: Option<u16>,
    /// Where its connections go.
    pub target: Target,
    /// The service it belongs to.
    pub service_id: Option<String>,
    /// Overrides what the upstream and the gateway say.
    pub timeout: StreamTimeouts,
    /// What becomes of its connections when it is changed or removed.
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

/// Of an upstream only the key: all of it stands in the list of upstreams.
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
