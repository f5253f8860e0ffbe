//! `stillgate status`, `stillgate slow` and `stillgate top`: a look at a running gateway from a terminal or a script.

use super::cli::{EXIT_ERRORS, EXIT_GOOD, EXIT_UNUSABLE, GatewayStatus, Slow, Top};
use super::stdout::show;
use super::transfer::{Remote, TransferFailure};
use serde_json::Value as Json;
use std::fmt::Write as _;
use std::io::{IsTerminal as _, stdout};
use std::thread::sleep;
use std::time::Duration;
use stillgate_terminal::{ScreenSize, StatusReport, slow_table, status_report, top_screen};

/// Routes of a screen where the output is not a terminal.
const ROWS: usize = 50;

/// Moves to the first place of the screen, and clears it.
const CLEAR: &str = "\x1b[H\x1b[J";

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

/// Runs `stillgate top`; returns the exit code. It ends with the process, or where the gateway does not answer the first time.
pub(crate) fn top(arguments: &Top) -> u8 {
    let remote = match Remote::new("--admin", &arguments.admin, &arguments.asking) {
        Ok(remote) => remote,
        Err(failure) => return failure.report(),
    };
    let is_terminal = stdout().is_terminal();
    if arguments.once || !is_terminal {
        return match screen(&remote, arguments, screen_size()) {
            Ok(screen) => {
                show(screen);
                EXIT_GOOD
            }
            Err(failure) => failure.report(),
        };
    }
    let mut has_answered = false;
    loop {
        let mut shown = CLEAR.to_owned();
        match screen(&remote, arguments, screen_size()) {
            Ok(screen) => shown.push_str(&screen),
            Err(failure) if !has_answered => return failure.report(),
            // It may be about to start again.
            Err(failure) => {
                let _ = writeln!(shown, "{}: {}; trying again", arguments.admin, failure.message());
            }
        }
        has_answered = true;
        show(shown);
        sleep(Duration::from_secs(arguments.every));
    }
}

fn screen(remote: &Remote, arguments: &Top, size: ScreenSize) -> Result<String, TransferFailure> {
    let status = json(remote, "/v1/status")?;
    let live = remote.page("/v1/live?events=1&history=10")?;
    let live = String::from_utf8_lossy(&live);
    let event = live.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or_default();
    let live: Json = serde_json::from_str(event).unwrap_or_default();
    let sort = arguments.sort.name();
    let routes = json(remote, &format!("/v1/routes?sort={sort}&order=desc&page_size={}", size.rows.clamp(1, ROWS)))?;
    Ok(top_screen(&status, &live, &routes, size))
}

/// The size of the terminal; where there is none, that of a wide one.
fn screen_size() -> ScreenSize {
    match rustix::termios::tcgetwinsize(stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
            ScreenSize { columns: usize::from(size.ws_col), rows: usize::from(size.ws_row) }
        }
        _ => ScreenSize { columns: 120, rows: ROWS },
    }
}

fn json(remote: &Remote, path: &str) -> Result<Json, TransferFailure> {
    let page = remote.page(path)?;
    serde_json::from_slice(&page).map_err(|error| TransferFailure::Failed(format!("{path}: not JSON: {error}")))
}
