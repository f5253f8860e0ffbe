//! The atomics of the table: std's, or loom's where `--cfg loom` explores every interleaving of the protocol.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
