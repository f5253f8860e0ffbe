//! From what is listened on to a connection whose first request may be read: sockets, accepting, the PROXY protocol's
//! header, the TLS handshake.

pub(crate) mod accept;
pub(crate) mod handshake;
pub(crate) mod proxy_protocol;
pub(crate) mod sockets;
