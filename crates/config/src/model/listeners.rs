//! Where the gateway listens, and what for: one list, whatever is spoken.
//!
//! A listener is known by its place, not by its position in a list, so that one that comes or goes leaves the others as they are.

use crate::keys::gateway::{Gateway, HttpListener};
use crate::keys::stream_proxy::{StreamListener, UdpListener};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::net::SocketAddr;

/// What a socket takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Connections.
    Tcp,
    /// Datagrams.
    Udp,
}

/// What makes a listener the same one in another configuration, or another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ListenPlace {
    /// For what.
    pub transport: Transport,
    /// Where. As the configuration has it the port may be zero.
    pub address: SocketAddr,
}

/// One address that is listened on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Listener {
    /// `IP:PORT`
    pub address: SocketAddr,
    /// What becomes of what comes in; may change while it listens.
    pub kind: ListenerKind,
}

/// What becomes of what comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ListenerKind {
    /// Requests, for `routes`.
    Http {
        /// Connections begin with a TLS handshake.
        tls: bool,
        /// They begin with a PROXY protocol header.
        proxy_protocol: bool,
        /// HTTP/2 is spoken, too.
        http2: bool,
    },
    /// Connections that carry no HTTP, for `stream_routes`.
    Tcp {
        /// Connections begin with a TLS handshake, which is done here.
        tls: bool,
        /// They begin with one that is left to the node.
        tls_passthrough: bool,
        /// They begin with a PROXY protocol header.
        proxy_protocol: bool,
    },
    /// Datagrams, for `stream_routes`.
    Udp,
}

impl ListenPlace {
    /// For connections.
    pub fn tcp(address: SocketAddr) -> ListenPlace {
        ListenPlace { transport: Transport::Tcp, address }
    }

    /// For datagrams.
    pub fn udp(address: SocketAddr) -> ListenPlace {
        ListenPlace { transport: Transport::Udp, address }
    }

    /// Whether a socket here is in the way of one there: the same port of the same address, or of all addresses.
    pub fn overlaps(self, other: ListenPlace) -> bool {
        let (a, b) = (self.address, other.address);
        let same_port = self.transport == other.transport && a.port() == b.port() && a.port() != 0;
        same_port && (a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified())
    }
}

impl Listener {
    /// What it is known by.
    pub fn place(&self) -> ListenPlace {
        ListenPlace { transport: self.kind.transport(), address: self.address }
    }

    /// Whether connections begin with a TLS handshake that is done here.
    pub fn has_tls(&self) -> bool {
        matches!(self.kind, ListenerKind::Http { tls: true, .. } | ListenerKind::Tcp { tls: true, .. })
    }

    /// Whether what comes in there is for `stream_routes`.
    pub fn is_of_streams(&self) -> bool {
        matches!(self.kind, ListenerKind::Tcp { .. } | ListenerKind::Udp)
    }

    /// Whether requests come in there.
    pub fn is_http(&self) -> bool {
        matches!(self.kind, ListenerKind::Http { .. })
    }
}

impl ListenerKind {
    /// What its sockets take.
    pub fn transport(self) -> Transport {
        match self {
            ListenerKind::Http { .. } | ListenerKind::Tcp { .. } => Transport::Tcp,
            ListenerKind::Udp => Transport::Udp,
        }
    }

    /// The keys that lead to the list that it is in.
    pub(crate) fn list(self) -> &'static [&'static str] {
        match self {
            ListenerKind::Http { .. } => &["gateway", "listeners"],
            ListenerKind::Tcp { .. } => &["gateway", "stream_proxy", "tcp"],
            ListenerKind::Udp => &["gateway", "stream_proxy", "udp"],
        }
    }
}

/// All that there are, those of one list in its order.
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

/// With where each stands in the file: the keys to its list, and its position in it.
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
