//! Requests from node to node: HTTP/2, one connection from each node to each other one, flow-controlled.
//!
//! Over TLS both sides show a certificate of the same roots that carries their node's name: another certificate of these
//! roots is not enough. Without TLS both ends are on one machine.
//!
//! A request is a POST with its kind as path and the sender's name in a field; 200 means that the node has taken it, 421 that
//! what it is about is not there (any more), 503 that another process of the node takes over. A connection that does not answer a ping is given up, so that what is on its way
//! there does not wait for a node that hangs.

mod client;
mod server;
mod tls;

pub use client::Peers;
pub use server::{Served, serve};
pub use tls::{PeerTls, PeerTlsError};

use bytes::Bytes;
use std::pin::Pin;
use std::sync::Arc;

/// The field with the name of the node that asks.
const NODE_FIELD: &str = "stillgate-node";

/// Bytes on their way on one stream and on all of a connection, until the receiver has read them.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// Requests of one node at once. More wait at the sender, or are [`CallError::Busy`].
const REQUESTS_MAX: u32 = 10_000;

/// A request of another node.
#[derive(Debug, Clone)]
pub struct Call {
    /// Its name.
    pub from: Arc<str>,
    /// What it wants: letters.
    pub kind: Box<str>,
    /// The rest.
    pub body: Bytes,
}

/// The answer to a [`Call`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// It was taken, and this came of it.
    Taken(Bytes),
    /// What it is about is not here.
    Moved,
    /// It is not here, but may be in the process that takes over from this one: ask on another connection.
    Leaving,
}

/// Why there is no [`Reply`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallError {
    /// The node has not taken the request, and will not.
    Unreachable,
    /// Not sent: the peer already had as many requests in flight as it takes.
    Busy,
    /// It may have: the connection or the time ended before its answer.
    Lost,
}

/// What a node answers to requests.
pub type Handler = Arc<dyn Fn(Call) -> Answering + Send + Sync>;

/// An answer to come.
pub type Answering = Pin<Box<dyn Future<Output = Reply> + Send>>;
