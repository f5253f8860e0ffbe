//! What the bytes of a connection go through, a client's or a node's: the socket alone, TLS, a stream of HTTP/2.
//!
//! Nothing here knows what is asked over it. Here `client` is what is known of a client's connection; who serves it is in the
//! room of that name, how one comes to a node in `node`.

pub(crate) mod client;
pub(crate) mod grpc;
pub(crate) mod http2;
pub(crate) mod mistaken;
pub(crate) mod stream;
pub(crate) mod tls_facts;
