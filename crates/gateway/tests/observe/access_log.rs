//! What the access log says, and that no request waits for it.

use crate::shared::STILLGATE;
use std::fs::File;
use std::process::Command;
use stillgate_testkit::{END_PATIENCE, Gateway, Setup, Upstream, eventually};

/// Requests that fill any pipe and queue when each of their lines is long.
const MANY: usize = 2_000;

fn log_of(gateway: &Gateway) -> String {
    std::fs::read_to_string(gateway.dir().join("access.log")).unwrap_or_default()
}

#[test]
fn combined_lines() {
    let upstream = Upstream::echo();
    let setup = Setup::to(upstream.addr()).gateway("access_log: {path: \"{dir}/access.log\", format: combined}");
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client();
    client.send("GET /a?size=10 HTTP/1.1\r\nHost: h\r\nUser-Agent: x\"y\r\nReferer: http://r/\r\n\r\n");
    client.expect_response("GET");
    eventually("a line", || log_of(&gateway).ends_with('\n'));
    let line = log_of(&gateway);
    assert!(line.starts_with("127.0.0.1 - - ["), "{line}");
    assert!(line.ends_with("] \"GET /a?size=10 HTTP/1.1\" 200 10 \"http://r/\" \"x\\x22y\"\n"), "{line}");
}

#[test]
fn json_lines() {
    let upstream = Upstream::echo();
    let setup = Setup::to(upstream.addr()).gateway(
        "access_log:\n  path: \"{dir}/access.log\"\n  format: json\n  fields: [time, status, bytes_sent, bytes_received, request_time, upstream_response_time, upstream_addr, route_id, remote_addr, {ua: http_user_agent}]",
    );
    let gateway = Gateway::start(STILLGATE, &setup);
    let request = b"POST /a?size=10 HTTP/1.1\r\nHost: h\r\nUser-Agent: x\"\xff\r\nContent-Length: 3\r\n\r\nabc";
    let mut client = gateway.client();
    client.send(request);
    client.expect_response("POST");
    eventually("a line", || log_of(&gateway).ends_with('\n'));
    let line: serde_json::Value = serde_json::from_str(&log_of(&gateway)).expect("one JSON object");
    assert_eq!(line["status"], 200);
    assert_eq!(line["upstream_addr"], upstream.addr().to_string());
    assert_eq!(line["route_id"], "all");
    assert_eq!(line["remote_addr"], "127.0.0.1");
    assert_eq!(line["bytes_received"], request.len());
    assert!(line["bytes_sent"].as_u64() > Some(10), "{line}");
    assert!(line["request_time"].as_f64() >= Some(0.0), "{line}");
    assert!(line["ua"].is_string(), "{line}");
}

#[test]
fn refusals_are_logged_too() {
    let dead = Upstream::refusing();
    let setup = Setup::resources(format!(
        "upstreams: [{{id: u, type: roundrobin, nodes: {{\"{}\": 1}}}}]\nroutes: [{{id: r, uri: /known, upstream_id: u}}]\n",
        dead.addr()
    ))
    .gateway("access_log: {path: \"{dir}/access.log\", format: json, fields: [status, route_id, upstream_addr]}");
    let gateway = Gateway::start(STILLGATE, &setup);
    gateway.get("/unknown");
    gateway.get("/known");
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost : h\r\n\r\n");
    client.expect_response("GET");
    eventually("three whole lines", || log_of(&gateway).matches('\n').count() == 3);
    let lines: Vec<serde_json::Value> =
        log_of(&gateway).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let statuses: Vec<_> = lines.iter().map(|line| line["status"].as_u64()).collect();
    assert_eq!(statuses, [Some(404), Some(502), Some(400)]);
    assert_eq!((&lines[0]["route_id"], &lines[1]["route_id"]), (&serde_json::Value::Null, &"r".into()));
}

#[test]
fn a_rotated_file_is_reopened() {
    let upstream = Upstream::echo();
    let setup = Setup::to(upstream.addr()).gateway("access_log: {path: \"{dir}/access.log\", format: combined}");
    let gateway = Gateway::start(STILLGATE, &setup);
    gateway.get("/before");
    eventually("a line", || log_of(&gateway).contains("/before"));
    std::fs::rename(gateway.dir().join("access.log"), gateway.dir().join("access.log.1")).expect("rotate");
    gateway.signal("USR1");
    eventually("a new file", || gateway.dir().join("access.log").exists());
    gateway.get("/after");
    eventually("a line", || log_of(&gateway).contains("/after"));
}

#[test]
fn a_full_disk_drops_lines_and_counts_them() {
    let upstream = Upstream::echo();
    let setup = Setup::to(upstream.addr()).gateway("access_log: {path: /dev/full, format: combined}");
    let mut gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client();
    for _ in 0..10 {
        assert_eq!(client.get("/").head.status(), 200);
    }
    eventually("the loss to be counted", || gateway.status()["access_log"]["dropped_lines"] == 10);
    gateway.assert_healthy();
}

#[test]
fn a_stalled_pipe_drops_lines_and_slows_nobody() {
    let upstream = Upstream::echo();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let pipe = folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("run mkfifo");
    assert!(made.success());
    // Held open for both directions and never read.
    let _reader = File::options().read(true).write(true).open(&pipe).expect("open the pipe");
    let setup =
        Setup::to(upstream.addr()).gateway(&format!("access_log: {{path: \"{}\", format: combined}}", pipe.display()));
    let mut gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client();
    let agent = "a".repeat(4000);
    for _ in 0..MANY {
        client.send(format!("GET / HTTP/1.1\r\nHost: h\r\nUser-Agent: {agent}\r\n\r\n"));
        assert_eq!(client.expect_response("GET").head.status(), 200);
    }
    eventually("lines to be dropped", || gateway.status()["access_log"]["dropped_lines"].as_u64() > Some(0));
    // A gateway whose log stalls can still end.
    gateway.signal("TERM");
    assert!(gateway.wait_within(END_PATIENCE).success());
}
