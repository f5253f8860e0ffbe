//! Upstreams: their nodes, the choice of a node, and their limits.

use crate::keys::checks::{Checks, UpstreamLimits};
use crate::keys::resources::{KeepalivePool, TimeoutKeys, UpstreamOptions};
use crate::values::{Host, Pem, ProxyProtocol};
use serde::{Serialize, Serializer};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use stillgate_plugin_api::{Template, TemplatePart};
use stillgate_route::{Lookup, Variable};

/// One upstream. Two that compare equal may share a balancer's state across a reload.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Upstream {
    /// Unique in the file: the upstream's id, or `routes/ID`, `stream_routes/ID` or `services/ID` for an inline one.
    pub key: String,
    /// How a node is chosen.
    pub balance: Balance,
    /// May be empty: then every request is answered with 503.
    pub nodes: Vec<Node>,
    /// The keys that need no interpretation. A digest treats them as keys of the upstream.
    #[serde(flatten)]
    pub options: UpstreamOptions,
    /// The load that each worker accepts at once.
    pub limits: UpstreamLimits,
    /// How the health of the nodes is determined; `None`: by failed connections.
    #[serde(serialize_with = "checks")]
    pub checks: Option<Arc<Checks>>,
    /// Limits of each try.
    pub timeout: UpstreamTimeouts,
    /// The `Host` that the node receives.
    pub pass_host: PassHost,
    /// Limits of the idle connections.
    pub keepalive: KeepalivePool,
    /// The protocol of the nodes.
    pub protocol: NodeProtocol,
    /// The header at the beginning of a connection to a node.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Whether requests are sent to nodes over HTTP/2.
    pub http2: bool,
    /// Whether the nodes speak gRPC, so that calls of gRPC-Web are converted.
    pub grpc: bool,
    /// TLS for the nodes, with `scheme: https` or `tls`; `None`: without.
    pub tls: Option<UpstreamTls>,
}

/// The protocol of an upstream's nodes, below TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum NodeProtocol {
    /// HTTP, for `routes`.
    Http,
    /// HTTP for `routes`, and TCP or UDP for `stream_routes`, like the client. This is `scheme: http`, APISIX's default, without
    /// any setting that only HTTP has.
    #[serde(rename = "Http")]
    Plain,
    /// TCP, for `stream_routes`.
    Tcp,
    /// UDP, for `stream_routes`.
    Udp,
}

impl NodeProtocol {
    /// Whether requests can be sent there.
    pub(crate) fn takes_requests(self) -> bool {
        matches!(self, NodeProtocol::Http | NodeProtocol::Plain)
    }
}

/// `type` of an upstream.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum Balance {
    /// Smooth weighted round robin.
    RoundRobin,
    /// Fewest requests in flight by weight.
    LeastConn,
    /// Ketama consistent hash of a text from the request.
    ConsistentHash(HashKey),
    /// Peak exponentially weighted moving average of latency, best of two random choices.
    Ewma,
}

/// The input of a consistent hash: a variable, or several with text between them.
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

    /// Its variables and the text between them. If the request has none of the variables, the client's address is hashed.
    pub fn parts(&self) -> &[TemplatePart] {
        self.template.parts()
    }

    /// Appends the text; returns the number of variables that `vars` has.
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
    /// Higher first; a lower tier is used only if all nodes of the higher ones are unusable.
    pub priority: i32,
}

/// `timeout` of a route or upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct UpstreamTimeouts {
    /// TCP connect.
    pub connect: Duration,
    /// The time in which the node must read at least 1,024 bytes of a waiting request, or all of it; for a tunnel or stream, any
    /// byte.
    pub send: Duration,
    /// Between two successful reads.
    pub read: Duration,
    /// A whole try up to the response's head; `None`: unlimited.
    pub per_try: Option<Duration>,
}

/// `pass_host` of an upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum PassHost {
    /// The client's `Host`.
    Pass,
    /// The node's host, with its port unless that is the scheme's default (80, 443).
    Node,
    /// `upstream_host`.
    Rewrite(String),
}

impl UpstreamTimeouts {
    /// These timeouts, with the route's overrides.
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

// Certificates and keys: to which peers they are presented, and what is required of the peers.

/// One enabled entry of `ssls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ssl {
    /// Unique in the file.
    pub id: String,
    /// How the certificates are used.
    pub usage: SslUse,
    /// `cert` and `key` first; empty only with [`SslUse::Refused`].
    pub pairs: Vec<KeyPair>,
    /// Whether its only pair is ordered from an ACME server: one file contains both, and may not exist yet.
    pub acme: bool,
}

/// `type` of an entry of `ssls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum SslUse {
    /// For clients of our listeners.
    Server(ServerSsl),
    /// For upstreams.
    Client,
    /// For nobody: the entry cannot be used. Handshakes that it would have taken are refused, so that none of them gets another
    /// entry, which may not require a client certificate.
    Refused(RefusedSsl),
}

/// The handshakes that an unusable entry of `ssls` would have taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefusedSsl {
    /// Like [`ServerSsl::names`].
    pub names: Vec<String>,
    /// Whether one of its names could not be read: then it takes every name that no earlier entry has exactly, and later ones are
    /// refused.
    pub is_name_unread: bool,
    /// Like [`ServerSsl::is_default`].
    pub is_default: bool,
    /// Whether it requires client certificates, or may do so: then no entry that does not answers under a name of both.
    pub asks: bool,
}

/// An entry of `ssls` for the clients of our listeners.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServerSsl {
    /// DNS names in lower case, without a trailing dot; a leading `*.` matches any one label. No name is in two entries.
    pub names: Vec<String>,
    /// Whether it takes clients that request no name or an unknown one. At most one entry of a file does.
    pub is_default: bool,
    /// The requirements on a client's certificate; `None`: clients need none.
    pub client: Option<ClientAuth>,
    /// The allowed versions; at least one.
    pub versions: TlsVersions,
    /// A file with an OCSP response in DER.
    pub ocsp: Option<PathBuf>,
}

/// `client` of an entry of `ssls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClientAuth {
    /// The certificate authorities for client certificates.
    pub ca: Pem,
    /// The most certificates between a client's and one of `ca`.
    pub depth: u8,
}

/// `ssl_protocols` of an entry of `ssls`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TlsVersions {
    /// TLS 1.2.
    pub v12: bool,
    /// TLS 1.3.
    pub v13: bool,
}

/// A certificate with its chain, and its private key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyPair {
    /// The certificate comes first.
    pub cert: Pem,
    /// Unencrypted.
    pub key: Pem,
}

/// `tls` of an upstream with `scheme: https` or `tls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UpstreamTls {
    /// The certificate for nodes that request one.
    pub client: Option<ClientPair>,
    /// Whether a node's certificate must be valid for its name and issued by a known root.
    pub verify: bool,
    /// The root certificates; `None`: the system's.
    pub ca: Option<Pem>,
    /// The server name sent to nodes, a DNS name or an IP address; `None`: the `Host` they receive.
    pub sni: Option<String>,
}

/// The client certificate for upstreams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum ClientPair {
    /// `client_cert` and `client_key`.
    Own(KeyPair),
    /// `client_cert_id`; the use of that entry is [`SslUse::Client`].
    Ssl(#[serde(serialize_with = "entry")] Arc<Ssl>),
}

impl UpstreamTls {
    /// The files it is read from.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let own = match &self.client {
            Some(ClientPair::Own(pair)) => Some([&pair.cert, &pair.key]),
            _ => None,
        };
        own.into_iter().flatten().chain(&self.ca).filter_map(Pem::file)
    }
}

fn entry<S: Serializer>(entry: &Arc<Ssl>, to: S) -> Result<S::Ok, S::Error> {
    (**entry).serialize(to)
}
