//! A client's connection: reads what it sends, and passes each request to `exchange`.
//!
//! To `connection`, an HTTP/2 stream is an HTTP/1.1 connection; `http2` handles the fact that it is one of many.

mod connection;
mod http2;

pub(crate) use connection::{serve, serve_stream};
