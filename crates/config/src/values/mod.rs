//! The values of single keys: plain types that tables of keys and the model are built from.
//!
//! Nothing here can be invalid, and nothing here depends on the written form.

mod dialect;
mod digest;
mod gateway;
mod metrics;

pub(crate) use dialect::families_as_markdown;
pub use dialect::{Dialect, FamilyKind, FamilySpec, Label, Measure};
pub use digest::{Pem, TlsVersion, digest};
pub use gateway::{
    AccessField, AccessFormat, AccessLog, AccessValue, AcmeChallenge, ApiKeyRole, DeviceRegistry, HmacKey,
    LogDestination, LogFormat, RejectedGlobalRule, RouteCacheMode, SourceKind,
};
pub use metrics::{LabelSource, Metrics};

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
