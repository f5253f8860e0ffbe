//! The cluster of nodes of a gateway that holds connections of devices.
//!
//! ```text
//!  a node's request ──▶ Directory ──────▶ task: NodeRegistrations ──▶ Redis ◀── the other nodes
//!                         │ memory of look-ups, members
//!  a message ─────────▶ Cluster::send ──▶ Peers ══ HTTP/2, mutual TLS ══▶ the node that has the device
//! ```
//!
//! - [`registry`]: the directory of `stillgate-devices` in Redis: its functions as Lua scripts, one task that registers
//!   a node's devices, holds its lease and reads those of the others.
//! - [`peers`]: requests from node to node.
//! - [`Cluster`]: routes a message from a device's id to the node that has it.
//!
//! Messages and their answers are bytes here; the callers interpret them.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cluster;
pub mod peers;
pub mod registry;

pub use cluster::{Cluster, ClusterSettings, SendError, Watch};
