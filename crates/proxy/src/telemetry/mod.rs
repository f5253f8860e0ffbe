//! What is told of all this: the metrics, the access log, which nodes were tried, the state of upstreams for who asks.

pub mod access_log;
pub(crate) mod metrics;
pub(crate) mod outcome;
pub(crate) mod overview;
pub(crate) mod session;
pub(crate) mod slow;
pub(crate) mod troubles;
