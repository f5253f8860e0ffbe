//! The listeners of the gateway, in one list for all protocols.
//!
//! A listener is identified by its address, not by its position in a list, so that adding or removing one leaves the others
//! unchanged.

use crate::keys::gateway::{Gateway, HttpListener};
use crate::keys::stream_proxy::{StreamListener, UdpListener};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::net::SocketAddr;

/// The type of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Connections.
    Tcp,
    /// Datagrams.
    Udp,
}

/// Identifies a listener across configurations and processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ListenPlace {
    /// The type of its sockets.
    pub transport: Transport,
    /// The address. As configured, so the port may be zero.
    pub address: SocketAddr,
}

/// A listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Listener {
    /// `IP:PORT`
    pub address: SocketAddr,
    /// How its traffic is handled; may change while it listens.
    pub kind: ListenerKind,
}

/// How the traffic of a listener is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ListenerKind {
    /// Requests, for `routes`.
    Http {
        /// Connections begin with a TLS handshake.
        tls: bool,
        /// Connections begin with a PROXY protocol header.
        proxy_protocol: bool,
        /// HTTP/2 is enabled.
        http2: bool,
    },
    /// Connections of other protocols, for `stream_routes`.
    Tcp {
        /// Connections begin with a TLS handshake, which the gateway performs.
        tls: bool,
        /// Connections begin with a TLS handshake, which is passed through to the node.
        tls_passthrough: bool,
        /// Connections begin with a PROXY protocol header.
        proxy_protocol: bool,
    },
    /// Datagrams, for `stream_routes`.
    Udp,
}

impl ListenPlace {
    /// Makes a listener for connections.
    pub fn tcp(address: SocketAddr) -> ListenPlace {
        ListenPlace { transport: Transport::Tcp, address }
    }

    /// Makes a listener for datagrams.
    pub fn udp(address: SocketAddr) -> ListenPlace {
        ListenPlace { transport: Transport::Udp, address }
    }

    /// Whether sockets of the two would conflict: the same port on the same address, or on all addresses.
    pub fn overlaps(self, other: ListenPlace) -> bool {
        let (a, b) = (self.address, other.address);
        let same_port = self.transport == other.transport && a.port() == b.port() && a.port() != 0;
        same_port && (a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified())
    }
}

impl Listener {
    /// Its identity.
    pub fn place(&self) -> ListenPlace {
        ListenPlace { transport: self.kind.transport(), address: self.address }
    }

    /// Whether connections begin with a TLS handshake that the gateway performs.
    pub fn has_tls(&self) -> bool {
        matches!(self.kind, ListenerKind::Http { tls: true, .. } | ListenerKind::Tcp { tls: true, .. })
    }

    /// Whether its traffic is for `stream_routes`.
    pub fn is_of_streams(&self) -> bool {
        matches!(self.kind, ListenerKind::Tcp { .. } | ListenerKind::Udp)
    }

    /// Whether it receives requests.
    pub fn is_http(&self) -> bool {
        matches!(self.kind, ListenerKind::Http { .. })
    }
}

impl ListenerKind {
    /// The type of its sockets.
    pub fn transport(self) -> Transport {
        match self {
            ListenerKind::Http { .. } | ListenerKind::Tcp { .. } => Transport::Tcp,
            ListenerKind::Udp => Transport::Udp,
        }
    }

    /// The keys that lead to its list.
    pub(crate) fn list(self) -> &'static [&'static str] {
        match self {
            ListenerKind::Http { .. } => &["gateway", "listeners"],
            ListenerKind::Tcp { .. } => &["gateway", "stream_proxy", "tcp"],
            ListenerKind::Udp => &["gateway", "stream_proxy", "udp"],
        }
    }
}

/// All listeners, those of one list in order.
pub(crate) fn listeners_of(gateway: &Gateway) -> Vec<Listener> {
    let http = gateway.listeners.iter().map(|&HttpListener { address, tls, proxy_protocol, http2 }| Listener {
        address,
        kind: ListenerKind::Http { tls, proxy_protocol, http2 },
    });
    let tcp = gateway.stream_proxy.tcp.iter();
    let tcp = tcp.map(|&StreamListener { address, tls, tls_passthrough, proxy_protocol }| Listener {
        address,
        kind: ListenerKind::Tcp { tls, tls_passthrough, proxy_protocol },
    });
    let udp = gateway.stream_proxy.udp.iter();
    let udp = udp.map(|&UdpListener { address }| Listener { address, kind: ListenerKind::Udp });
    http.chain(tcp).chain(udp).collect()
}

/// All listeners with their positions in the file: the keys of the list, and the index in it.
pub(crate) fn listed(listeners: &[Listener]) -> impl Iterator<Item = (&'static [&'static str], usize, &Listener)> {
    let mut counts: HashMap<&[&str], usize> = HashMap::new();
    listeners.iter().map(move |listener| {
        let list = listener.kind.list();
        let count = counts.entry(list).or_default();
        *count += 1;
        (list, *count - 1, listener)
    })
}

/// The paths of listeners in the file, such as `gateway.listeners[0]`.
pub fn listener_paths(listeners: &[Listener]) -> impl Iterator<Item = (String, &Listener)> {
    listed(listeners).map(|(list, index, listener)| (format!("{}[{index}]", list.join(".")), listener))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_count_by_list() {
        let listener = |kind| Listener { address: "127.0.0.1:1".parse().unwrap(), kind };
        let http = ListenerKind::Http { tls: false, proxy_protocol: false, http2: true };
        let all = [http, ListenerKind::Udp, http, ListenerKind::Udp].map(listener);
        let paths: Vec<String> = listener_paths(&all).map(|(path, _)| path).collect();
        let expected = [
            "gateway.listeners[0]",
            "gateway.stream_proxy.udp[0]",
            "gateway.listeners[1]",
            "gateway.stream_proxy.udp[1]",
        ];
        assert_eq!(paths, expected);
    }

    #[test]
    fn places_overlap_by_port_and_address() {
        let check = |a: &str, b: &str, expected| {
            let [a, b] = [a, b].map(|address| ListenPlace::tcp(address.parse().unwrap()));
            assert_eq!((a.overlaps(b), b.overlaps(a)), (expected, expected), "{a:?} {b:?}");
            assert!(!a.overlaps(ListenPlace { transport: Transport::Udp, ..b }));
        };
        check("127.0.0.1:80", "127.0.0.1:80", true);
        check("127.0.0.1:80", "0.0.0.0:80", true);
        check("[::]:80", "127.0.0.1:80", true);
        check("127.0.0.1:80", "127.0.0.2:80", false);
        check("127.0.0.1:80", "127.0.0.1:81", false);
        check("127.0.0.1:0", "127.0.0.1:0", false);
    }
}
