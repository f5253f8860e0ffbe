//! Plugins that find out who asks, and those that ask who that is.

#![allow(clippy::too_many_lines, reason = "expected texts")]

mod basic_auth;
mod consumers;
mod hmac_auth;
mod jwks;
mod jwt_auth;
mod jwt_keys;
mod multi_auth;
mod restriction;

use crate::harness;
use crate::harness::{OK, plugins};
use stillgate_plugin::Consumers;

/// What becomes of a request: what the node gets, or what the client is answered.
#[track_caller]
fn outcome(config: &str, consumers: &Consumers, head: &str) -> String {
    let plugins = plugins(config).expect("a good configuration").with_consumers(consumers.clone());
    part(&plugins.run(&format!("{head}\n\n"), OK))
}

/// Of a transcript the request, if a node gets it, and the answer otherwise.
fn part(transcript: &str) -> String {
    let (request, response) = transcript.split_at(transcript.find("< ").expect("a response"));
    match request.contains(" answers\n") {
        true => response.to_owned(),
        false => request.to_owned(),
    }
}
