//! The values of single keys of resources, and how the health of an upstream's nodes is checked.

use serde::Serialize;

/// `on_change` of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum OnChange {
    /// They continue.
    Keep,
    /// Each is closed once it has been idle for a moment, or after a while.
    Drain,
    /// They are closed at once.
    Close,
}

/// `proxy_protocol` of an upstream: the version of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum ProxyProtocol {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// The host of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub enum Host {
    /// A literal address.
    Ip(std::net::IpAddr),
    /// A lower-case DNS name without a trailing dot, to be resolved in the background.
    Name(String),
}

/// How a node is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum CheckType {
    /// By an HTTP exchange.
    Http,
    /// By an HTTP exchange over TLS.
    Https,
    /// By a TCP connection.
    Tcp,
}
