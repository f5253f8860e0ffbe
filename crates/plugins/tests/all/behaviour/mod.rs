//! Plugins that answer, label and change: each key, each default, and refused configurations.

mod body_transformer;
mod compression;
mod device_gateway;
mod echo;
mod error_page;
mod grpc_web;
mod mocking;
mod names;
mod prometheus;
mod public_api;
mod redirect;
mod request_id;
mod serverless;
mod traffic_label;
mod workflow;

use crate::harness;
use crate::harness::{OK, plugins};
use expect_test::Expect;

/// The outcome of a request, and of a node's response to it.
fn check(config: &str, request: &str, expected: Expect) {
    expected.assert_eq(&run(config, request, OK));
}

fn run(config: &str, request: &str, response: &str) -> String {
    plugins(config).unwrap_or_else(|why| panic!("{why}")).run(request, response)
}
