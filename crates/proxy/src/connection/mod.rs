//! What the bytes of a connection pass through, a client's or a node's: only the socket, TLS, or an HTTP/2 stream.
//!
//! Nothing here knows what is requested over it. Here `client` holds what is known of a client's connection; serving it is the
//! module `client`, and `node` is how a connection to a node is obtained.

pub(crate) mod client;
pub(crate) mod grpc;
pub(crate) mod http2;
pub(crate) mod stream;
