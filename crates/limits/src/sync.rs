//! The atomics of the table. `xtask/interleavings` puts loom's in their place and explores every interleaving.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
