//! What a configuration means once it is known to be right: the plain values everything else is built from.
//!
//! Nothing here can be invalid: references are resolved to indices, defaults are filled in, services are folded into
//! their routes. How the text is read and what it may say is the business of the sibling modules.

use ipnet::IpNet;
use stillgate_route::{RouteSpec, Variable};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

/// One whole configuration file.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The process: listeners, limits, logs.
    pub gateway: Gateway,
    /// All upstreams, the shared ones first and then those written inline in a service or route.
    pub upstreams: Vec<Upstream>,
    /// All enabled routes, in the order of the file. `status: 0` routes are not in here.
    pub routes: Vec<Route>,
    /// SHA-256 of the file's bytes as loaded (before `${ENV}`), in lower-case hex.
    pub digest: String,
}

/// The `gateway:` section. Keys keep their YAML names; durations are parsed.
#[derive(Debug, Clone, PartialEq)]
pub struct Gateway {
    /// `workers: auto` is `None`: one per core.
    pub workers: Option<NonZeroUsize>,
    /// Never empty.
    pub listeners: Vec<Listener>,
    /// Absent: no admin address is opened.
    pub admin: Option<Admin>,
    /// Accepted for the file's sake; see the loader's warning.
    pub metrics: Option<Metrics>,
    /// Peers whose `X-Forwarded-*` and `X-Real-IP` are believed.
    pub trusted_proxies: Vec<IpNet>,
    /// Whether responses carry our `Server` header.
    pub server_header: bool,
    /// Time bounds of the client side and of shutdown.
    pub timeouts: Timeouts,
    /// Size and count bounds.
    pub limits: Limits,
    /// Absent: no access log.
    pub access_log: Option<AccessLog>,
    /// The process's own log.
    pub log: Log,
}

/// One address that accepts connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Listener {
    /// Where it listens.
    pub address: SocketAddr,
}

/// `gateway.admin`.
#[derive(Debug, Clone, PartialEq)]
pub struct Admin {
    /// Where the admin API listens.
    pub address: SocketAddr,
    /// Asked for (as `X-API-KEY`) from peers that are not loopback; absent: only loopback is served.
    pub key: Option<String>,
}

/// `gateway.metrics`.
#[derive(Debug, Clone, PartialEq)]
pub struct Metrics {
    /// Where the exposition will be served.
    pub address: SocketAddr,
    /// Its path.
    pub path: String,
}

/// `gateway.timeouts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// From a request's first byte to the end of its head; 408.
    pub head: Duration,
    /// Between two reads of a request body; 408.
    pub body: Duration,
    /// Between two successful writes to a client; the connection is closed.
    pub send: Duration,
    /// A connection without a request; closed.
    pub keepalive: Duration,
    /// What in-flight requests get to finish after SIGTERM.
    pub drain: Duration,
}

/// `gateway.limits`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request or response head; 431 (or 502).
    pub head_bytes: usize,
    /// Bytes of a request target; 414.
    pub target_bytes: usize,
    /// Header fields of one head; 431 (or 502).
    pub headers: usize,
    /// Client connections open at once in one worker; the next is answered 503 and closed.
    pub connections_per_worker: usize,
}

/// `gateway.access_log`.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessLog {
    /// Where lines go.
    pub destination: LogDestination,
    /// How a line looks.
    pub format: AccessFormat,
}

/// Where a log goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogDestination {
    /// Standard output.
    Stdout,
    /// A file that is appended to, and reopened on SIGUSR1.
    File(PathBuf),
}

/// The shape of an access log line.
#[derive(Debug, Clone, PartialEq)]
pub enum AccessFormat {
    /// The combined format of Apache and nginx.
    Combined,
    /// One JSON object a line with these fields, in this order.
    Json(Vec<AccessField>),
}

/// One field of a JSON access log line.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessField {
    /// The JSON key.
    pub name: String,
    /// Where its value comes from.
    pub value: AccessValue,
}

/// What an access log field can show.
#[derive(Debug, Clone, PartialEq)]
pub enum AccessValue {
    /// Time the response ended, RFC 3339 with milliseconds.
    Time,
    /// Response status, a number.
    Status,
    /// Bytes sent to the client, head included.
    BytesSent,
    /// Bytes received from the client for this request, head included.
    BytesReceived,
    /// Seconds from the first request byte to the last response byte, as a decimal number.
    RequestTime,
    /// Seconds from choosing the node to the upstream's response head; null where there was none.
    UpstreamTime,
    /// The node that answered, as `host:port`; null where there was none.
    UpstreamAddr,
    /// The route's id; null where none matched.
    RouteId,
    /// Any variable of the request (`request_uri`, `http_user_agent`, `remote_addr`, …).
    Variable(Variable),
}

/// `gateway.log`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// A `tracing` filter, `info` by default.
    pub level: String,
    /// How lines look.
    pub format: LogFormat,
}

/// How the process's own log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Human on a terminal, JSON otherwise.
    Auto,
    /// For people.
    Human,
    /// For machines.
    Json,
}

/// One enabled route.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// What requests it takes. `spec.id` is the route's id.
    pub spec: RouteSpec,
    /// Index in [`Config::upstreams`].
    pub upstream: usize,
    /// The service it belongs to.
    pub service_id: Option<String>,
    /// Overrides the upstream's, where given.
    pub timeout: Option<UpstreamTimeouts>,
    /// Line of the route in the file, from 1.
    pub line: usize,
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

/// `keepalive_pool` of an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepalivePool {
    /// Idle connections kept per worker, over all nodes.
    pub size: usize,
    /// How long one is kept.
    pub idle_timeout: Duration,
    /// Requests after which a connection is closed.
    pub requests: u32,
}
