//! A device in Go: a client library of another language, which offers compression and writes messages in several frames.

use crate::shared::STILLGATE;
use crate::shared::devices::{Node, route};
use std::path::Path;
use std::process::Command;
use stillgate_testkit::{Client, Process, eventually};
use tempfile::TempDir;

/// Where `cargo xtask test` installs it, below cargo's folder.
const GO_DEVICE: &str = "peers/go-device-1.8.13/go-device";

/// Answers JSON, with what it means.
#[track_caller]
fn send(node: &Node, ack: &str, body: &str) -> (u16, String) {
    let request = format!(
        "POST /v1/devices/gopher/messages?ack={ack}&timeout=180s HTTP/1.1\r\nHost: 127.0.0.1\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut client = Client::connect(node.api.addr());
    client.send(request.as_bytes());
    let answer = client.expect_response("POST");
    (answer.head.status(), String::from_utf8_lossy(&answer.body).into_owned())
}

#[test]
fn a_device_in_go_answers_and_resumes() {
    let mut node = Node::start("", "workers: 2", &route(""));
    let target = Path::new(STILLGATE).ancestors().nth(2).expect("the folder of the profile's folder");
    let program = target.join(GO_DEVICE);
    assert!(program.is_file(), "{} is missing; `cargo xtask test` builds it", program.display());
    let dir = TempDir::new().expect("a temporary folder");
    let url = format!("ws://{}/connect?device=gopher", node.gateway.addr());
    let device = Process::spawn("go-device", Command::new(program).arg(url), &dir.path().join("log"));
    eventually("the device to connect", || device.log().contains("connected stillgate.v1"));

    assert_eq!(send(&node, "reply", r#"{"on":true}"#), (200, r#"{"got":{"on":true}}"#.to_owned()));
    assert_eq!(send(&node, "device", r#""ack only""#).0, 200);
    // Its reply comes in frames of 1,000 bytes.
    let long = format!("\"{}\"", "x".repeat(40_000));
    assert_eq!(send(&node, "reply", &long), (200, format!("{{\"got\":{long}}}")));

    // It breaks its connection without an acknowledgement, and gets the message again when it resumes: another drop, and so on.
    // What ends that is an answer in between.
    let dropped = send(&node, "written", r#""drop""#).0;
    assert!(dropped == 202, "{dropped}");
    eventually("the device to resume", || device.log().contains("resumed true"));
    eventually("the message to come again", || device.log().matches("got 4 ").count() > 1);
    node.gateway.assert_healthy();
}
