//! The status of the configuration: which one is served, since when, and why a later one is not.

use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};
use stillgate_config::RejectedResource;
use stillgate_proxy::access_log::rfc3339;

/// The configuration that is served, and what became of the last attempt to replace it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ConfigStatus {
    /// Counts the configurations that were published, from 1. Changed DNS answers do not count.
    pub(crate) generation: u64,
    /// SHA-256 of the file as loaded.
    pub(crate) digest: String,
    /// When it was published, RFC 3339.
    pub(crate) loaded_at: String,
    /// Why a later file is not served; null where the last attempt succeeded.
    pub(crate) last_error: Option<LastError>,
}

/// A resource that is not served as it was put.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct RejectedStatus {
    /// Name of the kind in the configuration: `routes`.
    kind: &'static str,
    /// Unique among its kind.
    id: String,
    /// What is wrong with it.
    reason: String,
    /// Where it comes from.
    origin: String,
    /// What is served in its place: `previous`, `503` or `nothing`.
    serving: String,
}

impl From<&RejectedResource> for RejectedStatus {
    fn from(rejected: &RejectedResource) -> Self {
        let RejectedResource { kind, id, reason, origin, serving } = rejected;
        RejectedStatus {
            kind: kind.name(),
            id: id.clone(),
            reason: reason.clone(),
            origin: origin.to_string(),
            serving: serving.to_string(),
        }
    }
}

/// A configuration that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct LastError {
    /// When, RFC 3339.
    pub(crate) at: String,
    /// One line per finding.
    pub(crate) errors: Vec<String>,
}

/// This moment as the status shows it.
pub(crate) fn now_rfc3339() -> String {
    // A clock set before 1970 is shown as 1970.
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    rfc3339(since_epoch.as_millis() as u64)
}
