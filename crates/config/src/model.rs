//! What a configuration means once it is known to be right: the plain values everything else is built from.
//!
//! Nothing here can be invalid: references are resolved to indices, defaults are filled in, services are folded into
//! their routes. Objects that mean what they say (such as `gateway`) are made by their tables of keys, in `gateway`,
//! `metrics`, `access_log` and `resources`. How the text is read and what it may say is the business of the sibling modules.

use crate::gateway::Gateway;
use crate::resources::KeepalivePool;
use std::sync::Arc;
use std::time::Duration;
use stillgate_route::{RouteSpec, Variable};

/// One whole configuration file.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The process: listeners, limits, logs.
    pub gateway: Gateway,
    /// All upstreams, the shared ones first and then those written inline in a service or route.
    pub upstreams: Vec<Arc<Upstream>>,
    /// All enabled routes, in the order of the file. `status: 0` routes are not in here.
    pub routes: Vec<Arc<Route>>,
    /// In which line of the file each of them begins, from 1. Apart from the routes, so that one that only moved is
    /// the same as before.
    pub route_lines: Vec<u32>,
    /// SHA-256 of the file's bytes as loaded (before `${ENV}`), in lower-case hex.
    pub digest: String,
}

/// One enabled route.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// What requests it takes. `spec.id` is the route's id.
    pub spec: Arc<RouteSpec>,
    /// Index in [`Config::upstreams`].
    pub upstream: usize,
    /// The service it belongs to.
    pub service_id: Option<String>,
    /// Overrides the upstream's, where given.
    pub timeout: Option<UpstreamTimeouts>,
}

/// One upstream. Two that compare equal may share a balancer's state across a reload.
#[derive(Debug, Clone, PartialEq)]
pub struct Upstream {
    /// Unique in the file: the upstream's id, or `routes/ID` or `services/ID` for one written inline.
    pub key: String,
    /// How a node is chosen.
    pub balance: Balance,
    /// May be empty: every request is answered 503.
    pub nodes: Vec<Node>,
    /// Further nodes tried after the first failed; `None`: as many as there are other nodes.
    pub retries: Option<u32>,
    /// Time after which no further try is begun; zero: no bound.
    pub retry_timeout: Duration,
    /// Bounds on each try.
    pub timeout: UpstreamTimeouts,
    /// What `Host` the node sees.
    pub pass_host: PassHost,
    /// Bounds of the idle connections kept.
    pub keepalive: KeepalivePool,
}

/// `type` of an upstream.
#[derive(Debug, Clone, PartialEq)]
pub enum Balance {
    /// Smooth weighted round robin.
    RoundRobin,
    /// Fewest requests in flight by weight.
    LeastConn,
    /// Ketama consistent hash of a request variable.
    ConsistentHash(Variable),
    /// Peak exponentially weighted moving average of latency, best of two random choices.
    Ewma,
}

/// One entry of `nodes`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Node {
    /// IP address or DNS name.
    pub host: Host,
    /// TCP port.
    pub port: u16,
    /// Zero: never chosen.
    pub weight: u32,
    /// Higher first; a lower tier is used only where all of the higher are unusable.
    pub priority: i32,
}

/// Who a node is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// A literal address.
    Ip(std::net::IpAddr),
    /// A lower-case DNS name without a trailing dot, to be resolved in the background.
    Name(String),
}

/// `timeout` of a route or upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpstreamTimeouts {
    /// TCP connect.
    pub connect: Duration,
    /// Between two successful writes.
    pub send: Duration,
    /// Between two successful reads.
    pub read: Duration,
}

/// `pass_host` of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PassHost {
    /// The client's.
    Pass,
    /// The node's own host, with its port where that is not 80.
    Node,
    /// `upstream_host`.
    Rewrite(String),
}
