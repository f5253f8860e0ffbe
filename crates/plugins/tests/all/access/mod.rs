//! Plugins that decide whether a request may go on: what the node gets, or what the client is answered.

mod arguments;
mod asking;
mod client_control;
mod counters;
mod csrf;
mod fault_injection;
mod ip_restriction;
mod limit_req;
mod real_ip;
mod referer_restriction;
mod request_validation;
mod ua_restriction;
mod uri_blocker;

use crate::harness;
use crate::harness::{OK, plugins};

/// Whether a request goes on, or what it is answered with: status and body.
fn outcome(yaml: &str, request: &str) -> String {
    verdict(&plugins(yaml).expect("a good configuration"), request)
}

/// The same, of plugins that are there.
fn verdict(plugins: &harness::Plugins, request: &str) -> String {
    let text = plugins.run(request, OK);
    match text.contains(" answers\n") {
        true => text.lines().filter_map(|line| line.strip_prefix("< ")).collect::<Vec<_>>().join(" "),
        false => "passes".to_owned(),
    }
}
