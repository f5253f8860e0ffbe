//! The table of limits, compiled from its own source with loom's atomics.

#![allow(dead_code, unreachable_pub, reason = "the sources have more than the models use")]
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

#[path = "../../../../crates/limits/src/bucket.rs"]
mod bucket;
#[path = "../../../../crates/limits/src/key.rs"]
mod key;
#[path = "../../../../crates/limits/src/leaky.rs"]
mod leaky;
mod sync;
mod table;
#[path = "../../../../crates/limits/src/window.rs"]
mod window;

/// As in the crate.
const COUNT_MAX: u64 = (1 << bucket::COUNT_BITS) - 1;
