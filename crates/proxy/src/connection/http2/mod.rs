//! HTTP/2, on `h2`. An HTTP/2 stream is an HTTP/1.1 connection to our engine: each request, whichever side speaks which version,
//! runs through the same parser, exchange and relay. The server half of a whole connection is `client::http2`; the client half is
//! driven by `node::http2`.
//!
//! ```text
//!   socket ── transport ── connection        node ── transport ── socket      (a task each: frames, windows, floods)
//!              inbound        │ h2             │ h2   inbound                  (what `h2` is given of the bytes that came)
//!                        client_stream    node_stream                          (an exchange has one of either, or sockets)
//!                           request          response                          (heads)
//!                       bodies, incoming, outgoing                             (bodies)
//!                                            grpc_web                          (what becomes gRPC on the way)
//! ```

mod bodies;
pub(crate) mod bounds;
pub(crate) mod client_stream;
mod field_watch;
pub(crate) mod frames;
mod grpc_web;
mod inbound;
mod incoming_body;
pub(crate) mod node;
mod node_stream;
mod outgoing_body;
mod owed_frames;
mod request;
mod response;
pub(crate) mod transport;
mod windows;

pub(crate) use client_stream::ClientStream;
pub(crate) use frames::{PREFACE, starts};
pub(crate) use grpc_web::is_bad_base64;
pub(crate) use node::NodeConnection;
pub(crate) use node_stream::{NodeStream, is_inexpressible};
