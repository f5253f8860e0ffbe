//! The status of the configuration: which one is served, since when, and why a later one is not.
//!
//! Here is also what is logged of it: warnings, resources that are not served as they were put, and plugins that
//! `gateway.config.ignore_plugins` leaves out, with how many of the served resources have each.

use serde::Serialize;
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use stillgate_config::{Config, Diagnostic, LoadedConfig, RejectedResource};
use stillgate_plugin_api::ChainEntry;
use stillgate_proxy::access_log::rfc3339;
use tracing::{error, warn};

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

impl RejectedStatus {
    /// The resource and the beginning of the reason, for reports to other nodes.
    pub(crate) fn summary(&self, reason_bytes_max: usize) -> Json {
        let reason = &self.reason[..self.reason.floor_char_boundary(reason_bytes_max)];
        json!({ "kind": self.kind, "id": self.id, "reason": reason })
    }
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

/// Number of resources in which a plugin is ignored, by its name.
pub(crate) type IgnoredPlugins = BTreeMap<&'static str, usize>;

/// The plugins of a configuration that are ignored. It checks each route, but costs nothing where no plugin is to be ignored.
pub(crate) fn ignored_plugins(config: &Config) -> IgnoredPlugins {
    if config.gateway.config.ignore_plugins.is_empty() {
        return IgnoredPlugins::new();
    }
    let chains = config.routes.iter().filter_map(|route| route.chain.as_ref()).chain([&config.plugins.global]);
    let of_chains = chains.flat_map(|chain| chain.left_out());
    let of_consumers = config.plugins.consumers.iter().flat_map(|consumer| consumer.plugins.iter());
    let is_ignored = |entry: &&Arc<ChainEntry>| entry.meta.is_ignored;
    let key = |entry: &'_ Arc<ChainEntry>| (entry.name, entry.origin.to_string());
    // Resources that routes share are in each of their chains.
    let resources: BTreeSet<(&'static str, String)> =
        of_chains.chain(of_consumers).filter(is_ignored).map(key).collect();
    let mut ignored = IgnoredPlugins::new();
    for (name, _) in resources {
        *ignored.entry(name).or_default() += 1;
    }
    ignored
}

/// Logs plugins that are ignored and were not before.
pub(crate) fn warn_of_ignored(now: &IgnoredPlugins, before: &IgnoredPlugins) {
    for (plugin, resources) in now.iter().filter(|(plugin, _)| !before.contains_key(*plugin)) {
        warn!(plugin, resources, "requests are served without this plugin, as gateway.config.ignore_plugins says");
    }
}

/// Logs warnings for the authors of a configuration, except those already logged for the served one. The contents of a datastore
/// are not in the file.
pub(crate) fn report_warnings(loaded: &LoadedConfig, served: Option<&LoadedConfig>, file: Option<&str>) {
    let key = |warning: &'_ Diagnostic| (warning.path.clone(), warning.message.clone());
    let all = |loaded: &'_ LoadedConfig| loaded.warnings.iter().chain(&loaded.warnings_beside).map(key).collect();
    let told: HashSet<(String, String)> = served.map(all).unwrap_or_default();
    let of_resources = file.filter(|_| loaded.config.gateway.config.source.is_file());
    for (warnings, file) in [(&loaded.warnings, of_resources), (&loaded.warnings_beside, file)] {
        for warning in warnings.iter().filter(|warning| !told.contains(&key(warning))) {
            warn!("{}", warning.in_file(file).trim_start_matches("warning: "));
        }
    }
}

/// Logs rejected resources, except those logged before.
pub(crate) fn report_rejected(rejected: &[RejectedResource], told: &[RejectedResource]) {
    for of in rejected.iter().filter(|of| !told.contains(of)) {
        let RejectedResource { kind, id, reason, origin, serving } = of;
        error!(kind = kind.name(), id, %origin, %serving, "resource rejected: {reason}");
    }
}
