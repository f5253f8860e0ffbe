//! The protocol of segments, compiled from its own source with loom's atomics.

#![allow(dead_code, reason = "the source has more than the models use")]
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

#[path = "../../../../crates/metrics/src/protocol.rs"]
mod protocol;
mod segments;
mod sync;
