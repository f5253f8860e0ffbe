//! A bare HTTP/1.1 responder on one thread: the least an upstream can cost, and a server whose latencies are known.
//!
//! Waits in `epoll` and nowhere else, so it costs nothing while idle. Without latency a request is one read and one write,
//! and requests that came together are answered together. It has no timeouts: its clients are the laboratory's. WebSockets of those
//! clients are answered, too: each frame by itself, a ping by a pong.

mod answers;
mod connection;
mod connections;
mod delays;
mod descriptors;
mod latency;
mod requests;
mod serve;

pub(crate) use latency::Latency;
pub(crate) use serve::{Responder, ResponderTotals, Setup};
