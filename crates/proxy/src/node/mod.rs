//! Nodes as this worker sees them: connections to them, and their health as shown by tries.

mod connection;
pub(crate) mod health;
pub(crate) mod http2;

pub(crate) use connection::{ConnectError, Destination, connect, is_local, keep_shared, take_live};
