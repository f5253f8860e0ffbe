//! Connections without HTTP: TCP, TLS and UDP between clients and nodes, by `stream_routes`.
//!
//! ```text
//!  TCP  accept ─▶ PROXY header? ─▶ TLS here, or a look at its hello ─▶ route ─▶ node ─▶ PROXY header? ─▶ Tunnel ─▶ one record
//!  UDP  datagram ─▶ session of its sender ──────── none yet: route ─▶ node ────────────────────────────▶ one record
//! ```
//!
//! What follows are bytes, which `tunnel` handles, or datagrams, which `udp` and `link` handle.

mod client_hello;
mod link;
mod nodes;
mod tcp;
mod udp;

pub(crate) use tcp::admit;
pub(crate) use udp::serve as serve_udp;

/// No route takes the session.
const STATUS_NO_ROUTE: u16 = 404;
/// The session's name requires a client certificate, which the handshake did not request.
const STATUS_MISDIRECTED: u16 = 421;
/// The node refuses what is sent to it.
const STATUS_NODE_FAILED: u16 = 502;
/// The upstream has no node, or has reached its maximum of sessions.
const STATUS_UNAVAILABLE: u16 = 503;
