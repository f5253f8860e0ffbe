//! The keys of `gateway.stream_proxy`: where connections that carry no HTTP come in.
//!
//! Where they go is said by `stream_routes`.

use serde_json::{Value as Json, json};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;
use stillgate_schema::description::Definitions;
use stillgate_schema::kind::{ADDRESS, At, Flag, Kind, LocatedKind, int, list};
use stillgate_schema::object;
use stillgate_schema::object::{Object, map};
use stillgate_schema::quantity::{DurationRange, span};
use stillgate_schema::text::diagnostic::{Fault, Path, Position, Sink};
use stillgate_schema::text::tree::Node;

/// The largest `gateway.stream_proxy.udp_sessions_per_worker`.
pub const UDP_SESSIONS_PER_WORKER_MAX: usize = 1 << 20;

const IDLE: DurationRange = span(Duration::from_millis(1), Duration::from_secs(365 * 24 * 3600));

object! {
    /// Proxying of TCP and UDP: listening addresses and idle timeouts. `stream_routes` define where connections go.
    pub struct StreamProxy: Eq {
        /// Addresses that accept TCP connections.
        tcp: Vec<StreamListener> = Listeners(check_one_tls) => default(Vec::new());
        /// Addresses that receive UDP datagrams.
        udp: Vec<UdpListener> = Listeners(|_: &UdpListener, _, _, _| ()) => default(Vec::new());
        /// Time without data in either direction after which a TCP connection is closed. The route's `timeout.idle`
        /// overrides it.
        tcp_idle: Duration = IDLE => default(Duration::from_secs(600));
        /// Time without datagrams after which a UDP session (datagrams between one client port and one listener) ends.
        /// The route's `timeout.idle` overrides it.
        udp_idle: Duration = IDLE => default(Duration::from_secs(60));
        /// Maximum UDP sessions per worker; datagrams of further sessions are dropped and counted.
        udp_sessions_per_worker: usize = int(1, UDP_SESSIONS_PER_WORKER_MAX as i64) => default(4096);
    }
}

object! {
    /// One address that accepts TCP connections for `stream_routes`.
    pub struct StreamListener: Copy, Eq {
        /// Listen address: `IP:PORT`.
        address: SocketAddr = ADDRESS => required;
        /// Whether the gateway terminates TLS, with the certificates in `ssls`.
        tls: bool = Flag => default(false);
        /// Whether to pass TLS through to the node, which terminates it: the gateway only reads the server name from
        /// the ClientHello, to match `sni`.
        tls_passthrough: bool = Flag => default(false);
        /// Whether connections must begin with a PROXY protocol header, as in `gateway.listeners`.
        proxy_protocol: bool = Flag => default(false);
    }
}

object! {
    /// One address that receives UDP datagrams for `stream_routes`.
    pub struct UdpListener: Copy, Eq {
        /// Listen address: `IP:PORT`.
        address: SocketAddr = ADDRESS => required;
    }
}

/// What has an address.
trait Listens {
    fn address(&self) -> SocketAddr;
}

impl Listens for StreamListener {
    fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Listens for UdpListener {
    fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Listeners, no two of them on one address.
struct Listeners<T>(fn(&T, Position, &Path<'_>, &mut Sink));

impl<T: Object + Listens> Kind for Listeners<T> {
    type Out = Vec<T>;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Vec<T>> {
        let listeners = list(LocatedKind(map::<T>())).read(node, path, sink)?;
        let mut lines = HashMap::with_capacity(listeners.len());
        for (index, At { at, value }) in listeners.iter().enumerate() {
            let path = path.index(index);
            if let Some(first) = lines.insert(value.address(), at.line) {
                let message = format!("{} is listed twice, first in line {first}", value.address());
                sink.error(*at, &path, Fault::new(message).hint("remove one"));
            }
            self.0(value, *at, &path, sink);
        }
        Some(listeners.into_iter().map(|listener| listener.value).collect())
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        list(map::<T>()).schema(definitions)
    }

    fn show(&self, _: &Vec<T>) -> Json {
        json!([])
    }
}

fn check_one_tls(listener: &StreamListener, at: Position, path: &Path<'_>, sink: &mut Sink) {
    if listener.tls && listener.tls_passthrough {
        let fault = Fault::new("a handshake is either done here or left to the node");
        sink.error(at, path, fault.hint("remove `tls` or `tls_passthrough`"));
    }
}
