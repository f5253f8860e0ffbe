//! A client's connection: what it says is read, and each request of it given to `exchange`.
//!
//! A stream of HTTP/2 is a connection of HTTP/1.1 to `connection`; that it is one of many is the business of `http2`.

mod connection;
mod http2;

pub(crate) use connection::{serve, serve_stream};
