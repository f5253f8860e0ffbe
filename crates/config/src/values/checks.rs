//! How the health of an upstream's nodes is found out.

use serde::Serialize;

/// How a node is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum CheckType {
    /// By an HTTP exchange.
    Http,
    /// By one over TLS.
    Https,
    /// By a connection.
    Tcp,
}
