//! The keys of `gateway.stream_proxy`: where connections that carry no HTTP come in.
//!
//! Where they go is said by `stream_routes`.

use crate::keys::address::ADDRESS;
use serde_json::{Value as Json, json};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;
use stillgate_schema::description::Definitions;
use stillgate_schema::kind::{At, Flag, Kind, LocatedKind, int, list};
use stillgate_schema::object;
use stillgate_schema::object::{Object, map};
use stillgate_schema::quantity::{DurationRange, span};
use stillgate_schema::text::diagnostic::{Fault, Path, Position, Sink};
use stillgate_schema::text::tree::Node;

/// The largest `gateway.stream_proxy.udp_sessions_per_worker`.
pub const UDP_SESSIONS_PER_WORKER_MAX: usize = 1 << 20;

const IDLE: DurationRange = span(Duration::from_millis(1), Duration::from_secs(365 * 24 * 3600));

object! {
    /// Connections that carry no HTTP: which addresses take them, and for how long. Where they go is said by `stream_routes`.
    pub struct StreamProxy: Eq {
        /// Addresses that accept TCP connections.
        tcp: Vec<StreamListener> = Listeners(has_one_tls) => default(Vec::new());
        /// Addresses that receive UDP datagrams.
        udp: Vec<UdpListener> = Listeners(|_: &UdpListener, _, _, _| ()) => default(Vec::new());
        /// A TCP connection in which nothing moves in either direction; then it is closed, unless its route's `timeout.idle` says otherwise.
        tcp_idle: Duration = IDLE => default(Duration::from_secs(600));
        /// A UDP session (what one client sends from one port to one listener, and what comes back) in which nothing moves; then it is over, unless its route's `timeout.idle` says otherwise.
        udp_idle: Duration = IDLE => default(Duration::from_secs(60));
        /// UDP sessions at once in one worker; datagrams of a further client are dropped and counted.
        udp_sessions_per_worker: usize = int(1, UDP_SESSIONS_PER_WORKER_MAX as i64) => default(4096);
    }
}

object! {
    /// One address that accepts TCP connections for `stream_routes`.
    pub struct StreamListener: Copy, Eq {
        /// Where it listens: `IP:PORT`.
        address: SocketAddr = ADDRESS => required;
        /// Whether connections begin with a TLS handshake, which is done here; the certificates are in `ssls`.
        tls: bool = Flag => default(false);
        /// Whether connections begin with a TLS handshake, which is left to the node: only the server name that the client asks for is looked at, for `sni`.
        tls_passthrough: bool = Flag => default(false);
        /// Whether every connection begins with a PROXY protocol header, as for `gateway.listeners`.
        proxy_protocol: bool = Flag => default(false);
    }
}

object! {
    /// One address that receives UDP datagrams for `stream_routes`.
    pub struct UdpListener: Copy, Eq {
        /// Where it listens: `IP:PORT`.
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

fn has_one_tls(listener: &StreamListener, at: Position, path: &Path<'_>, sink: &mut Sink) {
    if listener.tls && listener.tls_passthrough {
        let fault = Fault::new("a handshake is either done here or left to the node");
        sink.error(at, path, fault.hint("remove `tls` or `tls_passthrough`"));
    }
}
