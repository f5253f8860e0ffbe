//! Upgrades one after another, while earlier processes still hold something, and signals meanwhile.

use crate::shared::STILLGATE;
use crate::shared::tunnel;
use crate::shared::tunnel::{AGREE, ASK, Tunnel};
use crate::shared::upgrade::{UpgradedGateway, await_no_children, children, is_gateway, signal};
use std::process::{Command, Stdio};
use stillgate_testkit::{
    BufferedSocket, Client, END_PATIENCE, ReservedPort, Setup, Upstream, eventually, eventually_within,
};

const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// A request that the node has not answered.
fn ask(upgraded: &UpgradedGateway, upstream: &Upstream, request: &str) -> (Client, BufferedSocket) {
    let mut client = upgraded.gateway.client();
    client.send(request);
    let mut node = upstream.accept();
    node.expect_request();
    (client, node)
}

const GET: &str = "GET /slow HTTP/1.1\r\nHost: a\r\n\r\n";

/// One more request over a connection, to a node over a new connection or over the one that it has.
#[track_caller]
fn get(client: &mut Client, upstream: &Upstream) -> Option<String> {
    client.send(GET);
    let mut node = upstream.accept();
    node.expect_request();
    node.send(ANSWER);
    let response = client.expect_response("GET");
    assert_eq!(response.body, b"ok");
    response.head.get("connection").map(str::to_owned)
}

#[test]
fn what_the_first_process_still_has_comes_to_the_third() {
    let upstream = Upstream::bind();
    let mut upgraded = UpgradedGateway::start(&tunnel::setup(&upstream).gateway("workers: 2"));
    let (mut client, mut node) = ask(&upgraded, &upstream, GET);
    let mut late = ask(&upgraded, &upstream, ASK);
    let second = upgraded.upgrade();
    let third = upgraded.upgrade();
    assert_ne!(second, third);
    // It holds nothing, but without it the first would have no recipient for its connections.
    eventually("the second to have been followed", || {
        std::fs::read_to_string(format!("/proc/{second}/comm")).is_ok_and(|name| name.trim() == "stillgate-old")
    });
    node.send(ANSWER);
    let response = client.expect_response("GET");
    assert_eq!((response.body.as_slice(), response.head.get("connection")), (&b"ok"[..], None));
    late.1.send(AGREE);
    assert_eq!(late.0.read_head().expect("an answer").status(), 101);
    let mut tunnel = Tunnel { client: late.0, node: late.1 };
    tunnel.check();
    upgraded.await_old();
    upgraded.await_end(second);
    assert_eq!(get(&mut client, &upstream), None, "served by the third");
    tunnel.check();
    assert_eq!(upgraded.gateway.status()["tunnels"]["open"], 1);
    let log = upgraded.gateway.log();
    assert!(!log.contains("ERROR") && !log.contains(" WARN "), "{log}");
}

/// More tunnels than are handed over before the second upgrade begins.
const TUNNELS: usize = 400;

#[test]
fn a_second_upgrade_in_the_midst_of_the_first_loses_nothing() {
    let upstream = Upstream::bind();
    let mut upgraded = UpgradedGateway::start(&tunnel::setup(&upstream).gateway("workers: 2"));
    let mut tunnels: Vec<Tunnel> = (0..TUNNELS).map(|_| Tunnel::open(&upgraded.gateway, &upstream)).collect();
    let first = upgraded.gateway.pid();
    signal(first, "USR2");
    eventually("the second", || upgraded.pid().is_some_and(|pid| pid != first));
    let second = upgraded.pid().expect("a number");
    // It takes signals before it writes its number.
    signal(second, "USR2");
    eventually("the third", || upgraded.pid().is_some_and(|pid| pid != second));
    upgraded.await_old();
    upgraded.await_end(second);
    tunnels.iter_mut().for_each(Tunnel::check);
    assert_eq!(upgraded.gateway.status()["tunnels"]["open"], TUNNELS);
}

#[test]
fn a_former_process_that_is_asked_to_end_hands_over_first() {
    let upstream = Upstream::bind();
    let mut upgraded = UpgradedGateway::start(&tunnel::setup(&upstream).gateway("workers: 2"));
    let mut tunnels: Vec<Tunnel> = (0..TUNNELS).map(|_| Tunnel::open(&upgraded.gateway, &upstream)).collect();
    let first = upgraded.gateway.pid();
    signal(first, "USR2");
    eventually("the second", || upgraded.gateway.log().contains("handing over, and finishing"));
    signal(first, "TERM");
    upgraded.await_old();
    tunnels.iter_mut().for_each(Tunnel::check);
    eventually("the second to serve", || upgraded.pid().is_some_and(|pid| pid != first));
    assert_eq!(upgraded.gateway.status()["tunnels"]["open"], TUNNELS);
}

#[test]
fn a_former_process_whose_successor_has_ended_in_order_finishes_what_it_has() {
    let upstream = Upstream::bind();
    let mut upgraded = UpgradedGateway::start(&Setup::to(upstream.addr()));
    let (mut client, mut node) = ask(&upgraded, &upstream, GET);
    let second = upgraded.upgrade();
    signal(second, "TERM");
    await_no_children(upgraded.gateway.pid());
    eventually("a line about it", || upgraded.gateway.log().contains("the successor exited (exit status: 0)"));
    node.send(ANSWER);
    let response = client.expect_response("GET");
    assert_eq!((response.body.as_slice(), response.head.get("connection")), (&b"ok"[..], Some("close")));
    upgraded.await_old();
    assert!(!upgraded.gateway.log().contains("ERROR"), "{}", upgraded.gateway.log());
}

#[test]
fn the_command_says_that_an_upgrade_is_under_way() {
    let upstream = Upstream::echo();
    let bin = tempfile::tempdir().expect("a temporary folder");
    let binary = bin.path().join("stillgate");
    let sh = |script: String| {
        assert!(Command::new("sh").args(["-c", &script]).status().expect("run sh").success(), "{script}");
    };
    sh(format!("cp {STILLGATE} {}", binary.display()));
    let upgraded = UpgradedGateway::start_from(binary.to_str().expect("a plain path"), &Setup::to(upstream.addr()));
    sh(format!(
        "printf '#!/bin/sh\\nexec sleep 60\\n' > {0}.new && chmod +x {0}.new && mv {0}.new {0}",
        binary.display()
    ));
    let pid = upgraded.gateway.pid();
    signal(pid, "USR2");
    eventually("the new process", || children(pid).len() == 1);
    let output = upgraded.try_upgrade();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("is already being upgraded"), "{said}");
    signal(children(pid)[0], "KILL");
}

/// It is started as by a shell that finds it in its path: its successors have another command line.
#[test]
fn the_command_knows_the_successor_of_a_process_that_was_started_by_name() {
    let upstream = Upstream::echo();
    let dir = tempfile::tempdir().expect("a temporary folder");
    let port = ReservedPort::new();
    let config = dir.path().join("stillgate.yaml");
    let text = format!(
        "gateway: {{listeners: [{{address: \"{}\"}}], pid_file: \"{}\"}}\nupstreams:\n  - {{id: main, nodes: {{\"{}\": 1}}}}\n\
         routes:\n  - {{id: all, uri: /*, upstream_id: main}}\n",
        port.addr(),
        dir.path().join("pid").display(),
        upstream.addr()
    );
    std::fs::write(&config, text).expect("write");
    let addr = port.addr();
    let folder = std::path::Path::new(STILLGATE).parent().expect("a folder");
    let mut process = Command::new("stillgate")
        .env("PATH", folder)
        .args(["run", "--config"])
        .arg(&config)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("start it");
    let read = || std::fs::read_to_string(dir.path().join("pid")).ok()?.trim().parse::<u32>().ok();
    eventually("its number", || read() == Some(process.id()));
    let mut last = process.id();
    for _ in 0..3 {
        let output = Command::new(STILLGATE).args(["upgrade", "--config"]).arg(&config).output().expect("run it");
        eventually("another number", || read().is_some_and(|pid| pid != last));
        last = read().expect("a number");
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains(&last.to_string()), "{said}");
    }
    assert_eq!(Client::connect(addr).get("/").head.status(), 200);
    assert!(process.wait().expect("its end").success());
    signal(last, "TERM");
    eventually_within(END_PATIENCE, "the end of the last", || !is_gateway(last, dir.path()));
}
