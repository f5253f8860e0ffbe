//! Connections of devices, without IO, a clock or randomness: what a worker, the device API and peers do, as state machines
//! that a test can drive.
//!
//! ```text
//!  bytes ──▶ frame ──▶ protocol
//! ```
//!
//! - [`frame`]: WebSocket frames (RFC 6455) as a server reads and writes them.
//! - [`protocol`]: what devices and the gateway say to each other, in JSON, CBOR or bare frames.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod frame;
pub mod protocol;
