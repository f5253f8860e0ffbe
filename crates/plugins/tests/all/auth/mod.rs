//! Plugins that authenticate, and those that depend on the consumer.

#![allow(clippy::too_many_lines, reason = "expected texts")]

mod basic_auth;
pub(crate) mod consumers;
mod hmac_auth;
mod jwks;
mod jwt_auth;
mod jwt_keys;
mod multi_auth;
mod restriction;

use crate::harness;
use crate::harness::{OK, plugins};
use stillgate_plugin_api::Consumers;

/// The outcome of a request: the node's request, or the answer.
#[track_caller]
fn outcome(config: &str, consumers: &Consumers, head: &str) -> String {
    let plugins = plugins(config).expect("a good configuration").with_consumers(consumers.clone());
    part(&plugins.run(&format!("{head}\n\n"), OK))
}

/// The request in a transcript if it is forwarded, and the answer otherwise.
fn part(transcript: &str) -> String {
    let (request, response) = transcript.split_at(transcript.find("< ").expect("a response"));
    match request.contains(" answers\n") {
        true => response.to_owned(),
        false => request.to_owned(),
    }
}
