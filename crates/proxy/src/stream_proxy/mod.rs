//! Connections that carry no HTTP: TCP, TLS and UDP between clients and nodes, by `stream_routes`.
//!
//! ```text
//!  TCP  accept ─▶ PROXY header? ─▶ TLS here, or a look at its hello ─▶ route ─▶ node ─▶ PROXY header? ─▶ Tunnel ─▶ one record
//!  UDP  datagram ─▶ session of its sender ──────── none yet: route ─▶ node ────────────────────────────▶ one record
//! ```
//!
//! What follows is bytes, and the business of `tunnel`, or datagrams, and that of `udp` and `link`.

mod client_hello;
mod link;
mod nodes;
mod tcp;
mod udp;

pub(crate) use tcp::admit;
pub(crate) use udp::serve as serve_udp;

/// Of one that no route takes.
const STATUS_NO_ROUTE: u16 = 404;
/// Of one whose name asks for a client certificate, which the handshake did not ask for.
const STATUS_MISDIRECTED: u16 = 421;
/// Of one whose node refuses what is sent to it.
const STATUS_NODE_FAILED: u16 = 502;
/// Of one whose upstream has no node, or as many sessions as it may have.
const STATUS_UNAVAILABLE: u16 = 503;
