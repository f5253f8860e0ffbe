//! What the process publishes about itself and its requests: metrics, the access log, and its own log.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod access_log_writer;
pub mod limits;
pub mod logging;
pub mod metrics;
mod orders;
pub mod process_metrics;
pub mod process_stats;
