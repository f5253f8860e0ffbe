//! Devices and back-ends that break the rules: each loses its own connection, and others are not affected.

use crate::shared::devices::{Node, route};
use stillgate_testkit::is_nightly;

#[test]
fn bad_frames_end_their_connection() {
    let mut node = Node::start("", "workers: 2", &route(""));
    node.play("bad_frames", &[]);
    node.gateway.assert_healthy();
}

#[test]
fn messages_that_do_not_end_have_bounds() {
    let patience = if is_nightly() { "patient" } else { "" };
    Node::start(", limits: {node_bytes: 1MiB}", "workers: 1", &route("")).play("unfinished", &[patience]);
}

#[test]
fn bad_messages_end_their_connection() {
    let mut node = Node::start("", "", &route(""));
    node.play("bad_messages", &[]);
    node.gateway.assert_healthy();
}

#[test]
fn handshakes_that_are_none_are_refused() {
    let node = Node::start("", "", &route(""));
    node.play("bad_handshakes", &[]);
}

#[test]
fn slow_devices_cost_others_nothing() {
    let mut node = Node::start("", "", &route(""));
    node.play("slow_ones", &[]);
    node.gateway.assert_healthy();
}

#[test]
fn only_those_with_a_key_use_the_api() {
    let node = Node::start(", key: k1, keys: [{name: v, key: k2, role: viewer}]", "", &route(""));
    node.play("keys", &[]);
}

#[test]
fn a_listener_that_leaves_frees_its_place() {
    Node::start("", "", &route("")).play("listeners_come_and_go", &[]);
}

#[test]
fn malformed_bodies_are_refused() {
    Node::start("", "", &route("")).play("broken_bodies", &[]);
}

#[test]
fn many_requests_for_one_device_are_answered() {
    let mut node = Node::start("", "", &route(""));
    node.play("flood", &[]);
    node.gateway.assert_healthy();
}
