//! Upstreams: who answers, how one of them is chosen, and within which bounds.

use super::ssls::UpstreamTls;
use crate::keys::checks::{Checks, UpstreamLimits};
use crate::keys::resources::{KeepalivePool, TimeoutKeys, UpstreamOptions};
use crate::values::{Host, ProxyProtocol};
use serde::{Serialize, Serializer};
use std::sync::Arc;
use std::time::Duration;
use stillgate_plugin::{Part, Template};
use stillgate_route::{Lookup, Variable};

/// One upstream. Two that compare equal may share a balancer's state across a reload.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Upstream {
    /// Unique in the file: the upstream's id, or `routes/ID`, `stream_routes/ID` or `services/ID` for one written inline.
    pub key: String,
    /// How a node is chosen.
    pub balance: Balance,
    /// May be empty: every request is answered 503.
    pub nodes: Vec<Node>,
    /// What means what it says. A digest names its keys as those of the upstream.
    #[serde(flatten)]
    pub options: UpstreamOptions,
    /// What each worker takes on at once.
    pub limits: UpstreamLimits,
    /// How the health of the nodes is found out; `None`: by connections that fail.
    #[serde(serialize_with = "checks")]
    pub checks: Option<Arc<Checks>>,
    /// Bounds on each try.
    pub timeout: UpstreamTimeouts,
    /// What `Host` the node sees.
    pub pass_host: PassHost,
    /// Bounds of the idle connections kept.
    pub keepalive: KeepalivePool,
    /// What is spoken with the nodes.
    pub protocol: Protocol,
    /// The header that a node's connection begins with.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Whether nodes are spoken to in HTTP/2.
    pub http2: bool,
    /// Whether they speak gRPC, so that calls of gRPC-Web become such.
    pub grpc: bool,
    /// TLS towards the nodes, with `scheme: https` or `tls`; `None`: without.
    pub tls: Option<UpstreamTls>,
}

/// What the nodes of an upstream are spoken to in, below TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Protocol {
    /// Requests, of `routes`.
    Http,
    /// Requests of `routes`, and what clients of `stream_routes` speak: TCP or UDP. That is `scheme: http`, which APISIX writes where
    /// nothing is said, without anything that only HTTP has.
    #[serde(rename = "Http")]
    Plain,
    /// Bytes both ways, of `stream_routes`.
    Tcp,
    /// Datagrams both ways, of `stream_routes`.
    Udp,
}

impl Protocol {
    /// Whether requests can go there.
    pub(crate) fn takes_requests(self) -> bool {
        matches!(self, Protocol::Http | Protocol::Plain)
    }
}

/// `type` of an upstream.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum Balance {
    /// Smooth weighted round robin.
    RoundRobin,
    /// Fewest requests in flight by weight.
    LeastConn,
    /// Ketama consistent hash of a text of the request.
    ConsistentHash(HashKey),
    /// Peak exponentially weighted moving average of latency, best of two random choices.
    Ewma,
}

/// The text that a consistent hash hashes: a variable, or several with text between them.
#[derive(Debug, Clone, PartialEq)]
pub struct HashKey {
    written: Box<str>,
    template: Template,
}

impl HashKey {
    /// The key of `hash_on: vars_combinations`.
    pub(crate) fn new(written: &str, template: Template) -> HashKey {
        HashKey { written: written.into(), template }
    }

    /// Its variables and the text between them. Where the request has none of the variables, the client's address is hashed.
    pub fn parts(&self) -> &[Part] {
        self.template.parts()
    }

    /// Appends the text, and returns how many of the variables `vars` has.
    pub fn write(&self, vars: &dyn Lookup, out: &mut Vec<u8>, buffer: &mut Vec<u8>) -> usize {
        self.template.write(vars, out, buffer)
    }
}

impl From<Variable> for HashKey {
    fn from(variable: Variable) -> HashKey {
        HashKey { written: variable.to_string().into(), template: Template::from(variable) }
    }
}

impl Serialize for HashKey {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.written)
    }
}

/// One entry of `nodes`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
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

/// `timeout` of a route or upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct UpstreamTimeouts {
    /// TCP connect.
    pub connect: Duration,
    /// In which the node must take at least 1,024 bytes of a request that waits for it, or all of it; of a tunnel or stream
    /// any byte.
    pub send: Duration,
    /// Between two successful reads.
    pub read: Duration,
    /// One whole try up to the response's head; `None`: no bound.
    pub per_try: Option<Duration>,
}

/// `pass_host` of an upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum PassHost {
    /// The client's.
    Pass,
    /// The node's own host, with its port where that is not the scheme's own (80, 443).
    Node,
    /// `upstream_host`.
    Rewrite(String),
}

impl UpstreamTimeouts {
    /// These, but for what a route says otherwise.
    pub fn overridden_by(self, route: &TimeoutKeys) -> UpstreamTimeouts {
        UpstreamTimeouts {
            connect: route.connect.unwrap_or(self.connect),
            send: route.send.unwrap_or(self.send),
            read: route.read.unwrap_or(self.read),
            per_try: route.per_try.or(self.per_try),
        }
    }
}

fn checks<S: Serializer>(checks: &Option<Arc<Checks>>, to: S) -> Result<S::Ok, S::Error> {
    checks.as_deref().serialize(to)
}
