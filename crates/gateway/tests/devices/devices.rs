//! Devices that are connected to the gateway: messages to one of them, and their outcomes.

use crate::shared::devices::{Node, finish, route};
use stillgate_testkit::eventually;

#[test]
fn back_ends_send_messages_and_learn_what_became_of_them() {
    let mut node = Node::start("", "", &route(", labels: {model: $arg_model}"));
    node.play("messages", &[]);
    node.gateway.assert_healthy();
}

#[test]
fn a_request_that_is_repeated_is_sent_once() {
    let node = Node::start("", "", &route(""));
    node.play("idempotency", &[]);
}

#[test]
fn queues_are_bounded_and_policies_decide() {
    let refuse = Node::start(", limits: {queue_bytes: 4KiB, message_bytes: 2KiB}", "", &route(""));
    refuse.play("queue_refuses", &[]);
    let latest =
        Node::start(", limits: {queue_bytes: 4KiB, message_bytes: 2KiB}", "", &route(", queue_policy: latest"));
    latest.play("queue_keeps_the_latest", &[]);
}

#[test]
fn a_device_that_comes_back_gets_what_it_has_missed() {
    let node = Node::start("", "workers: 2", &route(""));
    node.play("resume", &[]);
}

#[test]
fn one_connection_of_a_device_is_there() {
    let replace = Node::start("", "workers: 2", &route(""));
    replace.play("replaced", &[]);
    let refuse = Node::start("", "workers: 2", &route(", duplicate: refuse"));
    refuse.play("refused", &[]);
}

#[test]
fn cbor_and_bare_frames_are_spoken() {
    let node = Node::start("", "", &route(""));
    node.play("cbor", &[]);
    let raw = Node::start("", "", &route(", protocol: raw"));
    raw.play("raw", &[]);
}

#[test]
fn back_ends_see_who_is_there() {
    let node = Node::start("", "workers: 2", &route(", labels: {model: $arg_model}"));
    node.play("presence", &[]);
}

#[test]
fn a_broadcast_reaches_all_that_match() {
    let node = Node::start("", "workers: 2", &route(", labels: {model: $arg_model}"));
    node.play("broadcast", &[]);
}

#[test]
fn silent_devices_are_found() {
    let node = Node::start("", "", &route(", ping_interval: 300ms, ping_timeout: 5s"));
    node.play("silent", &[]);
}

#[test]
fn as_many_connect_as_may() {
    let node = Node::start(", limits: {devices: 2}", "", &route(""));
    node.play("full", &[]);
    let node = Node::start("", "", &route(", connects_per_second: 1"));
    node.play("too_fast", &[]);
}

#[test]
fn a_silent_device_does_not_hold_up_the_end() {
    let mut node = Node::start("", "timeouts: {drain: 10m}", &route(""));
    let mut script = node.begin("silent_at_the_end", &[]);
    eventually("the message to be there", || script.output().contains("waiting"));
    node.gateway.signal("TERM");
    finish(&mut script, "silent_at_the_end");
    assert!(node.gateway.wait().success());
}

#[test]
fn a_node_that_is_terminated_ends() {
    let mut node = Node::start("", "", &route(""));
    node.play("left_open", &[]);
    node.gateway.signal("TERM");
    assert!(node.gateway.wait().success());
}
