//! Logs what the authors of a configuration should know: warnings, and resources that are not served as they were put.

use std::collections::HashSet;
use stillgate_config::{Diagnostic, LoadedConfig, RejectedResource};
use tracing::{error, warn};

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
