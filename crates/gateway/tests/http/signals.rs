//! Signals: those that the gateway acts on, however it was started, and those that do it no harm.

use crate::shared::STILLGATE;
use crate::shared::upgrade::{UpgradedGateway, signal};
use std::path::{Path, PathBuf};
use std::process::Command;
use stillgate_testkit::{Gateway, Process, Setup, Upstream, eventually};

/// A program in a folder of its own that does this in a shell and then becomes the gateway.
fn wrapper(lines: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("wrapper");
    let script = format!("#!/bin/sh\n{lines}\nexec {STILLGATE} \"$@\"\n");
    std::fs::write(&file, script).expect("write the script");
    let made = Command::new("chmod").arg("+x").arg(&file).status().expect("run chmod");
    assert!(made.success());
    (dir, file)
}

fn logs(gateway: &Gateway, text: &str) {
    eventually(&format!("{text:?} in the log"), || gateway.log().contains(text));
}

#[test]
fn what_was_ignored_at_the_start_means_what_it_always_means() {
    let upstream = Upstream::echo();
    // `nohup` does this, and a shell with background jobs. A process that ignores SIGCHLD could not wait for a successor.
    let (_dir, wrapper) = wrapper("trap '' HUP INT QUIT TERM USR1 USR2 CHLD");
    let binary = wrapper.to_str().expect("a plain path");
    let mut upgraded = UpgradedGateway::start_from(binary, &Setup::to(upstream.addr()));
    upgraded.gateway.signal("HUP");
    logs(&upgraded.gateway, "SIGHUP: reloading");
    upgraded.gateway.signal("USR1");
    logs(&upgraded.gateway, "SIGUSR1:");
    let successor = upgraded.upgrade();
    upgraded.await_old();
    assert_eq!(upgraded.gateway.get("/").head.status(), 200);
    signal(successor, "INT");
    logs(&upgraded.gateway, "SIGINT: finishing");
    upgraded.await_end(successor);
    for (name, told) in [("INT", "SIGINT: finishing"), ("QUIT", "SIGQUIT: finishing"), ("TERM", "SIGTERM: finishing")] {
        let mut gateway = Gateway::start(binary, &Setup::to(upstream.addr()));
        gateway.signal(name);
        assert!(gateway.wait().success(), "{name}");
        logs(&gateway, told);
    }
}

#[test]
fn sigquit_lets_requests_finish() {
    let upstream = Upstream::bind();
    let mut gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut node = upstream.accept();
    node.expect_request();
    gateway.signal("QUIT");
    eventually("new connections to be refused", || std::net::TcpStream::connect(gateway.addr()).is_err());
    assert!(gateway.ended().is_none(), "it must wait for the request");
    node.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!(client.expect_response("GET").body, b"hello");
    assert!(gateway.wait().success());
    // The second one does not wait, as a second SIGTERM does not.
    let mut gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let mut client = gateway.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    upstream.accept().expect_request();
    gateway.signal("QUIT");
    logs(&gateway, "SIGQUIT: finishing");
    gateway.signal("QUIT");
    assert_eq!(gateway.wait().code(), Some(1));
    assert!(gateway.log().contains("SIGQUIT again"), "{}", gateway.log());
}

#[test]
fn signals_that_mean_nothing_to_us_do_no_harm() {
    let upstream = Upstream::echo();
    let mut gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let mut client = gateway.client();
    // 16 is SIGSTKFLT, for which not every shell has a name.
    for name in ["ALRM", "VTALRM", "PROF", "IO", "PWR", "16", "XFSZ", "CHLD", "PIPE", "URG", "WINCH", "CONT"] {
        gateway.signal(name);
        assert_eq!(client.get("/").head.status(), 200, "{name}");
    }
    gateway.assert_healthy();
}

#[test]
fn a_file_that_may_not_grow_costs_lines_and_not_the_gateway() {
    let upstream = Upstream::echo();
    let log = "access_log: {path: \"{dir}/access.log\", format: json}";
    let mut gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()).gateway(log));
    let file = gateway.dir().join("access.log");
    let size = || std::fs::metadata(&file).map_or(0, |metadata| metadata.len());
    let mut client = gateway.client();
    client.get("/");
    eventually("the first line", || size() > 0);
    // The process's own log is a file as well, and has more in it.
    let limit = std::fs::metadata(gateway.dir().join("stillgate.log")).expect("it is there").len() + 1000;
    let pid = gateway.pid().to_string();
    let limited = Command::new("prlimit").args(["--pid", &pid, &format!("--fsize={limit}")]).status();
    assert!(limited.expect("run prlimit").success());
    eventually("lines to be dropped", || {
        assert_eq!(client.get("/").head.status(), 200);
        gateway.status()["access_log"]["dropped_lines"].as_u64().is_some_and(|lines| lines > 0)
    });
    assert!(size() <= limit);
    gateway.assert_healthy();
}

/// /proc/PID/status.
fn proc_status(process: &Process) -> String {
    std::fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap_or_default()
}

/// Bits of `SigCgt:`.
fn catches(process: &Process, signals: &[u32]) -> bool {
    let status = proc_status(process);
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigCgt:")?.trim(), 16).ok());
    mask.is_some_and(|mask| signals.iter().all(|signal| mask >> (signal - 1) & 1 == 1))
}

/// A gateway that is stopped while it starts, after it has taken over its signals.
fn stopped_during_start(config: &Path) -> Process {
    let mut stopped = None;
    // Where the machine stalls it may be up before it is stopped; then another one is started.
    eventually("one that is stopped early enough", || {
        let mut command = Command::new(STILLGATE);
        command.arg("run").arg("--config").arg(config);
        let log = tempfile::NamedTempFile::new_in(config.parent().expect("its folder")).expect("a log");
        let log = log.into_temp_path().keep().expect("it stays");
        let process = Process::spawn("stillgate", &mut command, &log);
        // HUP, INT, QUIT, USR1, USR2, ALRM, TERM.
        eventually("its handlers", || catches(&process, &[1, 2, 3, 10, 12, 14, 15]));
        process.signal("STOP");
        eventually("it to stop", || proc_status(&process).contains("\nState:\tT"));
        stopped = Some(process).filter(|process| !process.log().contains("\"starting\""));
        stopped.is_some()
    });
    stopped.expect("the loop above ends with one")
}

#[test]
fn signals_that_come_during_the_start_wait_for_its_end() {
    const ROUTES: usize = 20_000;
    let upstream = Upstream::echo();
    let dir = tempfile::tempdir().expect("a temporary folder");
    let listener = stillgate_testkit::ReservedPort::new();
    let mut text = format!("gateway: {{workers: 1, listeners: [{{address: \"{}\"}}]}}\n", listener.addr());
    text += &format!("upstreams: [{{id: main, nodes: {{\"{}\": 1}}}}]\nroutes:\n", upstream.addr());
    (0..ROUTES).for_each(|n| text += &format!("  - {{id: r{n}, uri: /r{n}, upstream_id: main}}\n"));
    let config = dir.path().join("stillgate.yaml");
    std::fs::write(&config, text).expect("write the configuration");
    for last in ["USR1", "INT"] {
        let mut process = stopped_during_start(&config);
        for name in ["HUP", "USR1", "ALRM", last, "CONT"] {
            process.signal(name);
        }
        match last {
            "INT" => assert!(process.wait().success(), "{}", process.log()),
            _ => {
                eventually("it to act on them", || {
                    ["SIGHUP: reloading", "SIGUSR1:"].iter().all(|told| process.log().contains(told))
                });
                assert_eq!(stillgate_testkit::Client::connect(listener.addr()).get("/r7").head.status(), 200);
            }
        }
    }
}
