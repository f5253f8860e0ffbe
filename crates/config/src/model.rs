//! What a configuration means once it is known to be right: the plain values everything else is built from.
//!
//! Nothing here can be invalid: references are resolved to indices, defaults are filled in, services are folded into
//! their routes. Objects that mean what they say (such as `gateway`) are made by their tables of keys, in `gateway`,
//! `metrics`, `access_log` and `resources`. How the text is read and what it may say is the business of the sibling modules.
//!
//! What an upgrade compares between two processes has a form for `serde`. No secret is in it: of PEM text there is a digest.

use crate::checks::{Checks, RetryBudget, UpstreamLimits};
use crate::digest;
use crate::gateway::Gateway;
use crate::resources::KeepalivePool;
use crate::stream_routes::StreamTimeouts;
use ipnet::IpNet;
use serde::{Serialize, Serializer};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use stillgate_route::{HostPattern, RouteSpec, Variable};

/// One whole configuration file.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The process: listeners, limits, logs.
    pub gateway: Gateway,
    /// All upstreams, the shared ones first and then those written inline in a service, stream route or route.
    pub upstreams: Vec<Arc<Upstream>>,
    /// All enabled routes, in the order of the file. `status: 0` routes are not in here.
    pub routes: Vec<Arc<Route>>,
    /// In which line of the file each of them begins, from 1. Apart from the routes, so that one that only moved is
    /// the same as before.
    pub route_lines: Vec<u32>,
    /// All enabled stream routes, in the order of the file.
    pub stream_routes: Vec<Arc<StreamRoute>>,
    /// All enabled entries of `ssls`, in the order of the file.
    pub ssls: Vec<Arc<Ssl>>,
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
    /// Whether clients may ask for another protocol.
    pub upgrades: bool,
    /// What becomes of its tunnels when it is changed or removed.
    pub on_change: OnChange,
}

/// One enabled stream route. What it goes to is of [`Protocol::Tcp`] or [`Protocol::Udp`], and so is what it takes.
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
    /// Index in [`Config::upstreams`].
    pub upstream: usize,
    /// The service it belongs to.
    pub service_id: Option<String>,
    /// Overrides what the upstream and the gateway say.
    pub timeout: StreamTimeouts,
    /// What becomes of its connections when it is changed or removed.
    pub on_change: OnChange,
}

/// `on_change` of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum OnChange {
    /// They go on.
    Keep,
    /// Each is closed when it has been idle for a moment, or after a while.
    Drain,
    /// They are closed at once.
    Close,
}

/// One upstream. Two that compare equal may share a balancer's state across a reload.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Upstream {
    /// Unique in the file: the upstream's id, or `routes/ID`, `stream_routes/ID` or `services/ID` for one written inline.
    pub key: String,
    /// How a node is chosen.
    pub balance: Balance,
    /// May be empty: every request is answered 503.
    pub nodes: Vec<Node>,
    /// Further nodes tried after the first failed; `None`: as many as there are other nodes.
    pub retries: Option<u32>,
    /// Time after which no further try is begun; zero: no bound.
    pub retry_timeout: Duration,
    /// Bounds retries in flight, in each worker; `None`: nothing does.
    pub retry_budget: Option<RetryBudget>,
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
    /// Bytes both ways, of `stream_routes`.
    Tcp,
    /// Datagrams both ways, of `stream_routes`.
    Udp,
}

/// `proxy_protocol` of an upstream: the version of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum ProxyProtocol {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// `type` of an upstream.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum Balance {
    /// Smooth weighted round robin.
    RoundRobin,
    /// Fewest requests in flight by weight.
    LeastConn,
    /// Ketama consistent hash of a request variable.
    ConsistentHash(#[serde(serialize_with = "text")] Variable),
    /// Peak exponentially weighted moving average of latency, best of two random choices.
    Ewma,
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

/// Who a node is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub enum Host {
    /// A literal address.
    Ip(std::net::IpAddr),
    /// A lower-case DNS name without a trailing dot, to be resolved in the background.
    Name(String),
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

/// One enabled entry of `ssls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ssl {
    /// Unique in the file.
    pub id: String,
    /// Who is shown the certificates.
    pub usage: SslUse,
    /// Never empty; `cert` and `key` first.
    pub pairs: Vec<KeyPair>,
    /// Its one pair is ordered from an ACME server: one file has both, and may not be there yet.
    pub acme: bool,
}

/// `type` of an entry of `ssls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum SslUse {
    /// Clients of our listeners.
    Server(ServerSsl),
    /// Upstreams.
    Client,
}

/// What an entry of `ssls` says of the clients of our listeners.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServerSsl {
    /// DNS names in lower case, without a trailing dot; one that begins with `*.` stands for any one label. No name is
    /// in two entries.
    pub names: Vec<String>,
    /// It takes clients that ask for no name or for one that no entry has. At most one entry of a file.
    pub is_default: bool,
    /// What is asked of a client's certificate; `None`: clients need none.
    pub client: Option<ClientAuth>,
    /// Which versions are spoken; at least one.
    pub versions: TlsVersions,
    /// A file with an OCSP response in DER.
    pub ocsp: Option<PathBuf>,
}

/// `client` of an entry of `ssls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClientAuth {
    /// The certificates that may have signed a client's.
    pub ca: Pem,
    /// Most certificates between a client's and one of `ca`.
    pub depth: u8,
}

/// A version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsVersion {
    /// RFC 5246.
    V12,
    /// RFC 8446.
    V13,
}

/// `ssl_protocols` of an entry of `ssls`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TlsVersions {
    /// TLS 1.2.
    pub v12: bool,
    /// TLS 1.3.
    pub v13: bool,
}

/// A certificate with those that lead to its root, and its private key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyPair {
    /// The certificate first.
    pub cert: Pem,
    /// Not encrypted.
    pub key: Pem,
}

/// Where PEM text is found.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// In the configuration itself.
    Inline(String),
    /// In a file; relative to the folder that the process was started in, as all paths of the configuration are.
    File(PathBuf),
}

impl Pem {
    /// The file, where it is one.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Pem::Inline(_) => None,
            Pem::File(file) => Some(file),
        }
    }
}

/// Without the text, which may be a private key.
impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pem::Inline(text) => write!(f, "Inline({} bytes)", text.len()),
            Pem::File(file) => write!(f, "File({file:?})"),
        }
    }
}

/// As with `Debug`, not the text, but its digest, so that another text is another value.
impl Serialize for Pem {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Pem::Inline(text) => to.serialize_newtype_variant("Pem", 0, "Inline", &digest(text.as_bytes())),
            Pem::File(file) => to.serialize_newtype_variant("Pem", 1, "File", file),
        }
    }
}

fn checks<S: Serializer>(checks: &Option<Arc<Checks>>, to: S) -> Result<S::Ok, S::Error> {
    checks.as_deref().serialize(to)
}

fn entry<S: Serializer>(entry: &Arc<Ssl>, to: S) -> Result<S::Ok, S::Error> {
    (**entry).serialize(to)
}

fn text<S: Serializer>(variable: &Variable, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(variable)
}

/// `tls` of an upstream with `scheme: https` or `tls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UpstreamTls {
    /// What nodes are shown that ask for a certificate.
    pub client: Option<ClientPair>,
    /// Whether a node's certificate must be valid for its name and lead to a known root.
    pub verify: bool,
    /// The roots; `None`: the system's.
    pub ca: Option<Pem>,
    /// The name that nodes are asked for, a DNS name or an IP address; `None`: the `Host` they see.
    pub sni: Option<String>,
}

/// The certificate that upstreams are shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum ClientPair {
    /// `client_cert` and `client_key`.
    Own(KeyPair),
    /// `client_cert_id`; its use is [`SslUse::Client`].
    Ssl(#[serde(serialize_with = "entry")] Arc<Ssl>),
}
