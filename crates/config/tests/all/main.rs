//! The meaning of configurations, and the refusal of invalid ones.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod changes;
mod consumers;
mod expressions;
mod golden;
mod hostile;
mod incremental;
mod metrics;
mod plugins;
mod store;
