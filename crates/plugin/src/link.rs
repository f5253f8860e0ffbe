//! Connections of plugins to servers that speak no HTTP: bytes go there, and bytes come back until a reader says that they are whole.
//!
//! What the bytes mean is the plugin's business; connecting, TLS, times and idle connections are those of [`crate::Io`].

use crate::calls::{CallError, Keep, Origin};
use crate::flow::LocalFuture;
use std::sync::Arc;
use std::time::Duration;

/// Where a connection leads.
#[derive(Debug, Clone)]
pub struct LinkTo {
    /// The server.
    pub origin: Arc<Origin>,
    /// Idle connections are found again by server and pool: those of one pool stand for each other.
    pub pool: Box<str>,
    /// How long connecting may take, TLS included.
    pub timeout: Duration,
}

/// How many bytes the reply has; `None`: it is not whole yet. It is given all that has come so far.
pub type Whole = Box<dyn FnMut(&[u8]) -> Result<Option<usize>, CallError>>;

/// A message, and how its reply is read.
pub struct Exchange {
    /// What is sent.
    pub message: Vec<u8>,
    /// How long sending may take.
    pub send_timeout: Duration,
    /// How long the whole reply may take.
    pub read_timeout: Duration,
    /// The longest reply.
    pub reply_bytes_max: usize,
    /// Knows where it ends.
    pub whole: Whole,
}

/// The reply, and the connection for the next message.
pub type Exchanged = Result<(Vec<u8>, Box<dyn Link>), CallError>;

/// A connection. Dropped, it is closed.
pub trait Link {
    /// How often it was kept and taken again.
    fn reused(&self) -> u32;

    /// Sends a message and waits for its reply. After an error the connection is closed: what would come next belongs to nobody.
    fn exchange(self: Box<Self>, exchange: Exchange) -> LocalFuture<Exchanged>;

    /// Keeps the connection for whoever connects to the same server and pool.
    fn keep(self: Box<Self>, keep: Keep);
}
