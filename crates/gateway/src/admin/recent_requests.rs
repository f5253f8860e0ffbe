//! Which of the last requests a change would send to another route, or through other plugins: a part of the answer to a dry run.

use super::context::{PageContext, Question};
use crate::configuration::reload::ServedPlan;
use serde_json::{Value as Json, json};
use stillgate_config::{AccessFormat, Config, Gateway};
use stillgate_replay::replay::{self, Comparison, RoutedConfig};
use tokio::task::spawn_blocking;
use tracing::warn;

/// Why the comparison is missing.
const NO_LOG: &str = "not known: gateway.access_log is off";
const NOT_JSON: &str = "not known: gateway.access_log does not write JSON";
const NOT_COMPILED: &str = "not known: the routes cannot be compiled";
const ENDING: &str = "not known: the gateway is shutting down";

/// The last requests with the served configuration and with `next`: the shape of `stillgate check --requests`, or a reason.
pub(super) async fn compared(api: &PageContext, next: Config) -> Json {
    let Some(recent) = api.recent.clone() else { return reason(NO_LOG) };
    // A comparison takes as long as an explanation, and one runs at a time.
    let place = api.explaining.clone().acquire_owned().await.expect("the semaphore is never closed");
    let Some(served) = api.ask(Question::Served).await else { return reason(ENDING) };
    if let Some(why) = unrecorded(&served.loaded.config.gateway) {
        return reason(why);
    }
    let compared = spawn_blocking(move || {
        let found = compare(&recent.copied(), &served, &next);
        drop(place);
        found
    });
    match compared.await {
        Ok(Some(found)) => json!(found),
        Ok(None) => reason(NOT_COMPILED),
        Err(error) => {
            warn!(%error, "admin API: comparing the last requests failed, which is a bug");
            reason("not known: a bug; see the log")
        }
    }
}

fn compare(lines: &[u8], served: &ServedPlan, next: &Config) -> Option<Comparison> {
    let matcher = served.plan.matcher_of(next).ok()?;
    let old = RoutedConfig { config: &served.loaded.config, matcher: served.plan.matcher() };
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    Some(replay::run_lines(lines, old, RoutedConfig { config: next, matcher: &matcher }).without_queries())
}

/// Why requests are not recorded, if they are not.
fn unrecorded(gateway: &Gateway) -> Option<&'static str> {
    match gateway.access_log.as_ref().map(|log| &log.format) {
        Some(AccessFormat::Json(_)) => None,
        Some(_) => Some(NOT_JSON),
        None => Some(NO_LOG),
    }
}

fn reason(why: &str) -> Json {
    json!({ "requests": 0, "reason": why })
}
