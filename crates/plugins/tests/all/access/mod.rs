//! Plugins that decide whether a request may continue: the node's request, or the answer.

mod arguments;
mod client_control;
mod counters;
mod csrf;
mod fault_injection;
mod ip_restriction;
mod limit_req;
mod pattern_budget;
mod real_ip;
mod referer_restriction;
mod request_validation;
mod server_calls;
mod ua_restriction;
mod uri_blocker;

use crate::harness;
use crate::harness::{OK, plugins};

/// Whether a request continues, or status and body of its answer.
fn outcome(yaml: &str, request: &str) -> String {
    verdict(&plugins(yaml).expect("a good configuration"), request)
}

/// The outcome for plugins that are compiled already.
fn verdict(plugins: &harness::Plugins, request: &str) -> String {
    let text = plugins.run(request, OK);
    match text.contains(" answers\n") {
        true => text.lines().filter_map(|line| line.strip_prefix("< ")).collect::<Vec<_>>().join(" "),
        false => "passes".to_owned(),
    }
}
