//! `stillgate status` and `stillgate slow`: a look at a running gateway from a terminal or a script.

use super::cli::{EXIT_ERRORS, EXIT_GOOD, EXIT_UNUSABLE, GatewayStatus, Slow};
use super::stdout::show;
use super::transfer::{Remote, TransferFailure};
use serde_json::Value as Json;
use stillgate_terminal::{StatusReport, slow_table, status_report};

/// Runs `stillgate status`; returns the exit code.
pub(crate) fn status(arguments: &GatewayStatus) -> u8 {
    match report(arguments) {
        Ok(report) => {
            show(&report.text);
            if report.findings == 0 { EXIT_GOOD } else { EXIT_ERRORS }
        }
        Err(failure) => {
            failure.report();
            EXIT_UNUSABLE
        }
    }
}

fn report(arguments: &GatewayStatus) -> Result<StatusReport, TransferFailure> {
    let remote = Remote::new("--admin", &arguments.admin, &arguments.asking)?;
    let status = json(&remote, "/v1/status")?;
    if !status["config"].is_object() {
        return Err(TransferFailure::Failed(format!(
            "{}: this is not the admin address of a gateway",
            arguments.admin
        )));
    }
    // Where keys are configured, this needs one.
    let upstreams = json(&remote, "/v1/upstreams");
    Ok(status_report(&status, upstreams.as_ref().map_err(TransferFailure::message)))
}

/// Runs `stillgate slow`; returns the exit code.
pub(crate) fn slow(arguments: &Slow) -> u8 {
    let slow = Remote::new("--admin", &arguments.admin, &arguments.asking);
    match slow.and_then(|remote| json(&remote, "/v1/slow")) {
        Ok(slow) => {
            show(slow_table(&slow, arguments.count));
            EXIT_GOOD
        }
        Err(failure) => failure.report(),
    }
}

fn json(remote: &Remote, path: &str) -> Result<Json, TransferFailure> {
    let page = remote.page(path)?;
    serde_json::from_slice(&page).map_err(|error| TransferFailure::Failed(format!("{path}: not JSON: {error}")))
}
