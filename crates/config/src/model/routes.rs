//! Routes of requests and of streams.

use super::upstream::UpstreamTimeouts;
use crate::keys::stream_routes::StreamTimeouts;
use crate::values::OnChange;
use ipnet::IpNet;
use std::sync::Arc;
use stillgate_plugin::{Chain, Entry, Level};
use stillgate_route::{HostPattern, RouteSpec};

/// One enabled route.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// What requests it takes. `spec.id` is the route's id.
    pub spec: Arc<RouteSpec>,
    /// Index in [`Config::upstreams`](super::Config::upstreams).
    pub upstream: usize,
    /// The service it belongs to.
    pub service_id: Option<String>,
    /// Overrides the upstream's, where given.
    pub timeout: Option<UpstreamTimeouts>,
    /// Whether clients may ask for another protocol.
    pub upgrades: bool,
    /// What becomes of its tunnels when it is changed or removed.
    pub on_change: OnChange,
    /// Its plugins, with those of its plugin config and service; `None`: there are none.
    pub chain: Option<Arc<Chain>>,
}

impl Route {
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
    /// Where the client must be.
    pub remote_addr: Option<IpNet>,
    /// Where it must have connected to.
    pub server_addr: Option<IpNet>,
    /// The same of the port.
    pub server_port: Option<u16>,
    /// Index in [`Config::upstreams`](super::Config::upstreams).
    pub upstream: usize,
    /// The service it belongs to.
    pub service_id: Option<String>,
    /// Overrides what the upstream and the gateway say.
    pub timeout: StreamTimeouts,
    /// What becomes of its connections when it is changed or removed.
    pub on_change: OnChange,
}
