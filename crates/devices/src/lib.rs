//! Connections of devices, without IO, a clock or randomness: what a worker, the device API and peers do, as state machines
//! that a test can drive.
//!
//! ```text
//!  a device's bytes ──▶ frame ──▶ protocol ──▶ session ◀── messages of back-ends
//! ```
//!
//! - [`frame`]: WebSocket frames (RFC 6455) as a server reads and writes them.
//! - [`protocol`]: what devices and the gateway say to each other, in JSON, CBOR or bare frames.
//! - [`session`]: what was sent to a device and is not done, over one connection after the other; when to ping.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod frame;
mod generation;
pub mod protocol;
pub mod session;

pub use generation::Generation;
