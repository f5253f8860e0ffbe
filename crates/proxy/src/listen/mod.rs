//! What comes before the first request of a connection, or the first byte of a stream: the PROXY protocol header, the TLS
//! handshake.

pub(crate) mod handshake;
pub(crate) mod proxy_protocol;
