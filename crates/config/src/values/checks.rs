//! How the health of an upstream's nodes is checked.

use serde::Serialize;

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
