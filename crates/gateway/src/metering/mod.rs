//! What the process tells of itself and of its requests: metrics, the access log's file, its own log.

pub(crate) mod access_log_writer;
mod leaving;
pub(crate) mod limits;
pub(crate) mod logging;
pub(crate) mod metrics;
mod orders;
pub(crate) mod own_metrics;
pub(crate) mod process_stats;
pub(crate) mod recent_lines;
