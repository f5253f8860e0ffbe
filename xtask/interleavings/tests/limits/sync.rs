//! The atomics that the sources import, from loom.

pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
