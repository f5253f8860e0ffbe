//! `stillgate-lab connections` with gateways and a bare responder.

use crate::processes::run;
use serde_json::Value;
use std::fs;
use stillgate_testkit::require_tool;

#[test]
fn tunnels_through_a_gateway_beside_a_server_that_needs_none() {
    require_tool("nginx", "nginx");
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("connections.json");
    let start = format!("'{}' respond --address {{address}}", env!("CARGO_BIN_EXE_stillgate-lab"));
    let words = ["nginx", "--start", &start, "--count", "70", "--rounds", "1", "--time", "200ms", "--json"];
    let done = run(&["connections"], &[&words[..], &[json.to_str().unwrap()]].concat());
    assert_eq!(done.code, Some(0), "{}{}", done.stdout, done.stderr);
    let result: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let value = |line: &str, column: usize| {
        let at = result["lines"].as_array().unwrap().iter().position(|own| own["name"] == line).unwrap();
        result["rounds"][0][column]["values"][at].as_f64().unwrap()
    };
    for column in 0..2 {
        assert!(value("memory before", column) > 0.1 && value("CPU of a connect", column) > 0.0, "{result}");
        assert!(value("messages per second, many at once", column) > 10.0, "{result}");
    }
    let verified = run(&["verify"], &[json.to_str().unwrap()]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
}

#[test]
fn a_target_that_takes_no_tunnels_is_left_out_and_the_others_go_on() {
    let other = format!("'{}' respond --address {{address}}", env!("CARGO_BIN_EXE_stillgate-lab"));
    let files = "python3 -m http.server --bind 127.0.0.1 {port}";
    let words = ["--start", files, "--start", &other, "--count", "70", "--rounds", "1", "--time", "100ms"];
    let done = run(&["connections"], &words);
    assert_eq!(done.code, Some(1), "{}{}", done.stdout, done.stderr);
    assert!(done.stdout.contains("failed in round 1: tunnel 0: the handshake was answered"), "{}", done.stdout);
    assert!(done.stdout.contains("CPU of a connect"), "{}", done.stdout);
}

#[test]
fn wrong_arguments_are_refused() {
    let refused = |words: &[&str], expected: &str| {
        let done = run(&["connections"], words);
        assert_eq!(done.code, Some(2), "{words:?}: {}", done.stderr);
        assert!(done.stderr.contains(expected), "{words:?}: {}", done.stderr);
    };
    refused(&[], "TARGET");
    refused(&["apache"], "is not one of stillgate, nginx, haproxy, stillgate-devices");
    refused(&["envoy"], "is not one of");
    refused(&["nginx", "--time", "0"], "--time 0 measures nothing");
    refused(&["nginx", "--count", "10", "--at-once", "20"], "fewer than the 20 of --at-once");
}
