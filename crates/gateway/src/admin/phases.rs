//! The phases of a worker's work, for profiles.

/// Each phase with a part of the names of the functions that begin it: those of the module that does it. The first match counts.
pub(super) const PHASES: &[(&str, &str)] = &[
    ("TLS handshake", "stillgate_proxy::listen::handshake"),
    ("parsing", "stillgate_wire::"),
    ("routing", "stillgate_proxy::exchange::matching"),
    ("routing", "stillgate_route::"),
    ("plugins", "stillgate_plugins::"),
    ("choosing a node", "stillgate_upstream::"),
    ("connecting to a node", "stillgate_proxy::exchange::connecting"),
    ("relaying bodies", "stillgate_proxy::exchange::relay"),
    ("log and metrics", "stillgate_proxy::telemetry::"),
    ("log and metrics", "stillgate_metrics::"),
    ("HTTP/2", "h2::"),
    ("TLS records", "rustls::"),
    ("rest of the request", "stillgate_proxy::exchange::"),
    ("client connection", "stillgate_proxy::client::"),
    ("event loop", "stillgate_proxy::fleet::"),
    ("event loop", "tokio::runtime::"),
];
