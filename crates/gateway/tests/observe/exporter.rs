//! `stillgate exporter`: a process that exposes what other processes write to a shared folder.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::shared::STILLGATE;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use stillgate_metrics::{Family, FamilyType, Registry, RegistryOptions, SegmentProcess as Writing, Writer};
use stillgate_testkit::{ACCEPT_TEXT, BufferedSocket, END_PATIENCE, Process, ReservedPort, eventually, scrape};

/// The process under test, and the address that it was given to listen on.
fn start(folder: &Path, log: &Path) -> (Process, SocketAddr) {
    start_with(folder, log, &[])
}

fn start_with(folder: &Path, log: &Path, more: &[&str]) -> (Process, SocketAddr) {
    let port = ReservedPort::new();
    let addr = port.addr();
    let mut command = Command::new(STILLGATE);
    command.args(["exporter", "--listen", &addr.to_string(), "--metrics-dir"]).arg(folder).args(more);
    let mut process = Process::spawn("stillgate exporter", &mut command, log);
    eventually("the exporter to listen", || {
        assert!(process.ended().is_none(), "it ended: {}", process.log());
        TcpStream::connect(addr).is_ok()
    });
    (process, addr)
}

/// Writes to a folder, as a gateway does.
fn write(folder: &Path, requests: u64) -> (Arc<Registry>, Writer) {
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let process = Writing { pid: std::process::id(), start: 1 };
    let options = RegistryOptions { shared: Some(folder.to_owned()), ..RegistryOptions::new(process, now_ms, 7) };
    let registry = Arc::new(Registry::start(options).unwrap());
    let family = Family {
        name: "requests_total".into(),
        help: "Requests.".into(),
        unit: String::new(),
        kind: FamilyType::Counter,
        labels: Vec::new(),
        exemplars: false,
    };
    let family = registry.declare(family).unwrap();
    let mut writer = registry.writer().unwrap();
    let handle = writer.series(&family, &[]);
    assert!(writer.add(handle, requests));
    (registry, writer)
}

#[test]
fn it_waits_for_a_gateway_and_outlives_it() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("shared");
    let (mut exporter, addr) = start(&folder, &dir.path().join("log"));
    let nothing = scrape(addr, "/metrics", ACCEPT_TEXT, false);
    assert_eq!(nothing.status, 503);
    let body = String::from_utf8(nothing.body).unwrap();
    assert!(body.contains(folder.to_str().unwrap()), "{body}");
    eventually("the log to tell", || exporter.log().contains("nothing to expose"));

    let gateway = write(&folder, 5);
    let scraped = scrape(addr, "/metrics", ACCEPT_TEXT, true);
    assert!(scraped.text().contains("requests_total 5\n"), "{}", scraped.text());
    eventually("the log to tell", || exporter.log().contains("there is something to expose"));
    drop(gateway);
    assert!(scrape(addr, "/metrics", ACCEPT_TEXT, false).text().contains("requests_total 5\n"));

    exporter.signal("TERM");
    assert!(exporter.wait_within(END_PATIENCE).success());
    assert!(exporter.log().contains("SIGTERM"), "{}", exporter.log());
}

#[test]
fn over_loopback_it_answers_to_the_names_it_was_given() {
    let dir = tempfile::tempdir().unwrap();
    let _gateway = write(dir.path(), 3);
    let (_exporter, addr) =
        start_with(dir.path(), &dir.path().join("log"), &["--host", "one.example", "--host", "two.example"]);
    for (host, status) in [("one.example:9091", 200), ("two.example", 200), ("localhost", 200), ("three.example", 403)]
    {
        let mut connection = BufferedSocket::new(TcpStream::connect(addr).unwrap());
        connection.send(format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        let response = connection.expect_response("GET");
        assert_eq!(response.head.status(), status, "{host}");
        assert!(status == 200 || String::from_utf8_lossy(&response.body).contains("--host"), "{response:?}");
    }
}

#[test]
fn it_outlives_signals_of_gateways_and_ends_when_it_is_asked_to() {
    let dir = tempfile::tempdir().unwrap();
    for last in ["TERM", "INT", "QUIT"] {
        let (mut exporter, addr) = start(dir.path(), &dir.path().join(last));
        for name in ["HUP", "USR1", "USR2", "ALRM"] {
            exporter.signal(name);
            assert_eq!(scrape(addr, "/metrics", ACCEPT_TEXT, false).status, 503, "{name}");
        }
        exporter.signal(last);
        assert!(exporter.wait_within(END_PATIENCE).success());
        assert!(exporter.log().contains(&format!("SIG{last}: finishing")), "{}", exporter.log());
    }
}

#[test]
fn two_read_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let _gateway = write(dir.path(), 3);
    let (_one, at_one) = start(dir.path(), &dir.path().join("log1"));
    let (_two, at_two) = start(dir.path(), &dir.path().join("log2"));
    let text = scrape(at_one, "/metrics", ACCEPT_TEXT, false);
    assert!(text.text().contains("requests_total 3\n"));
    assert_eq!(text.text(), scrape(at_two, "/metrics", ACCEPT_TEXT, true).text());
}

#[test]
fn what_cannot_be_is_said() {
    fn run(folder: &str, listen: &str) -> Output {
        let mut command = Command::new(STILLGATE);
        command.args(["exporter", "--metrics-dir", folder, "--listen", listen]).output().unwrap()
    }
    fn check(output: &Output, code: i32, parts: &[&str]) {
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        parts.iter().for_each(|part| assert!(said.contains(part), "{said}"));
    }
    check(&run("/dev/null", "127.0.0.1:0"), 2, &["--metrics-dir /dev/null: not a folder", "gateway.metrics.shared"]);
    check(&run("/none", "localhost"), 2, &["--listen"]);
    check(&run("/none", "192.0.2.1:9"), 1, &["--listen: cannot listen on 192.0.2.1:9", "ip addr"]);
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    check(&run("/none", &held.local_addr().unwrap().to_string()), 1, &["cannot listen on", "ss -lntup"]);
}
