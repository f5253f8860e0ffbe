//! Telemetry: metrics, access log, attempted nodes, upstream status.

pub mod access_log;
pub(crate) mod metrics;
pub(crate) mod outcome;
pub(crate) mod overview;
pub(crate) mod session;
pub(crate) mod slow;
pub(crate) mod troubles;
