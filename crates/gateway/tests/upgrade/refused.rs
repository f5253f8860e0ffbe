//! A failed upgrade changes nothing: whatever the new process is, the old one serves on.

use crate::shared::STILLGATE;
use crate::shared::upgrade::{
    UpgradedGateway, await_no_children, await_rest, children, is_impatient, script, sh, signal,
};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use stillgate_testkit::{
    ACCEPT_TEXT, BufferedSocket, Client, END_PATIENCE, ReservedPort, Setup, Upstream, eventually, eventually_within,
    scrape,
};

/// A gateway that runs from a copy of the binary, which can be replaced by something else.
struct Replaceable {
    upgraded: UpgradedGateway,
    /// Served all the time.
    client: Client,
    _bin: tempfile::TempDir,
    binary: PathBuf,
}

impl Replaceable {
    fn start(setup: &Setup) -> Replaceable {
        let bin = tempfile::tempdir().expect("a temporary folder");
        let binary = bin.path().join("stillgate");
        sh(&format!("cp {STILLGATE} {}", binary.display()));
        let upgraded = UpgradedGateway::start_from(binary.to_str().expect("a plain path"), setup);
        let client = upgraded.gateway.client();
        Replaceable { upgraded, client, _bin: bin, binary }
    }

    /// Puts a script in the binary's place. Another process does it: the file may not be open for writing when it is started.
    fn replace(&self, script: &str) {
        let (binary, new) = (self.binary.display(), format!("{}.new", self.binary.display()));
        sh(&format!("printf '%s\\n' '#!/bin/sh' '{script}' > {new} && chmod +x {new} && mv {new} {binary}"));
    }

    fn restore(&self) {
        let (binary, new) = (self.binary.display(), format!("{}.new", self.binary.display()));
        sh(&format!("cp {STILLGATE} {new} && mv {new} {binary}"));
    }

    /// `stillgate upgrade`, which must not succeed; the gateway serves on. Returns its output.
    #[track_caller]
    fn refused(&mut self, code: i32) -> String {
        let failed = self.failed();
        let output = self.upgraded.try_upgrade();
        assert_eq!(output.status.code(), Some(code), "{output:?}\n{}", self.upgraded.gateway.log());
        if is_impatient(&String::from_utf8_lossy(&output.stderr)) {
            eventually_within(END_PATIENCE, "the upgrade to fail", || self.failed() > failed);
        }
        self.serves_on();
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Upgrades that failed, according to the log.
    fn failed(&self) -> usize {
        self.upgraded.gateway.log().matches("serving on as before").count()
    }

    #[track_caller]
    fn serves_on(&mut self) {
        assert_eq!(self.client.get("/").head.status(), 200, "over the connection that was there");
        assert_eq!(self.upgraded.gateway.get("/").head.status(), 200, "over a new one");
        assert_eq!(self.upgraded.pid(), Some(self.upgraded.gateway.pid()));
        let pid = self.upgraded.gateway.pid();
        await_no_children(pid);
        self.upgraded.gateway.assert_healthy();
    }

    #[track_caller]
    fn logs(&self, text: &str) {
        eventually(&format!("{text:?} in the log"), || self.upgraded.gateway.log().contains(text));
    }
}

#[test]
fn a_binary_that_does_not_work_costs_nothing() {
    let upstream = Upstream::echo();
    let mut gateway = Replaceable::start(&Setup::to(upstream.addr()));
    gateway.replace("exit 3");
    assert!(gateway.refused(1).contains("not upgraded"));
    gateway.logs("exit status: 3");
    gateway.replace("kill -9 $$");
    gateway.refused(1);
    gateway.logs("signal: 9");
    // A program that sends messages, but wrong ones.
    gateway.replace("echo hello >&0; exec sleep 600");
    gateway.refused(1);
    gateway.logs("broke the protocol");
    std::fs::remove_file(&gateway.binary).expect("remove the binary");
    gateway.refused(1);
    gateway.logs("cannot start");
    gateway.restore();
    gateway.upgraded.upgrade();
    gateway.upgraded.await_old();
    assert_eq!(gateway.client.get("/").head.status(), 200);
}

#[test]
fn a_file_that_has_lost_its_end_is_not_what_the_new_process_serves() {
    let upstream = Upstream::echo();
    let node = upstream.addr();
    let text = format!(
        "upstreams: [{{id: node, nodes: {{\"{node}\": 1}}}}]\nroutes:\n  - {{id: a, uri: /*, upstream_id: node}}\n\
         \x20 - {{id: guard, uri: /guard, upstream_id: node, plugins: {{key-auth: {{}}}}}}\n#END\n"
    );
    let mut gateway = Replaceable::start(&Setup::resources(text));
    let file = gateway.upgraded.gateway.config_path();
    let whole = std::fs::read_to_string(&file).expect("the file");
    let half = &whole[..whole.find("  - {id: guard").expect("a route")];
    gateway.upgraded.gateway.write_config_text(half);
    gateway.refused(1);
    gateway.logs("an earlier version of the file ended with `#END`");
    assert_eq!(gateway.client.get("/guard").head.status(), 401);
    gateway.upgraded.gateway.write_config_text(&whole);
    gateway.upgraded.upgrade();
    gateway.upgraded.await_old();
    assert_eq!(gateway.client.get("/guard").head.status(), 401);
}

/// Set where this binary is started in place of a new process: what it does, besides reporting that it serves.
const IMPOSTOR: &str = "STILLGATE_TEST_IMPOSTOR";

#[test]
#[expect(clippy::disallowed_methods, reason = "the process that it plays dies halfway")]
fn plays_a_new_process() {
    let Ok(role) = std::env::var(IMPOSTOR) else { return };
    // Before it can end: later this is another one's child.
    let parent = std::os::unix::process::parent_id();
    let former_is_to_end = || signal(parent, "TERM");
    // The kind of socket is another one, which makes no difference to what is done with it.
    let former = UnixDatagram::from(std::io::stdin().as_fd().try_clone_to_owned().expect("a descriptor"));
    let mut space = vec![0; 256 * 1024];
    while former.recv(&mut space).is_ok_and(|n| !space[..n].starts_with(b"{\"end\"")) {}
    if role == "TERM before" {
        former_is_to_end();
    }
    former.send(br#"{"ready":{"listening":[],"alike":[]}}"#).expect("somebody who listens");
    if role == "dies" {
        std::process::exit(5);
    }
    if role == "dies later" {
        std::thread::sleep(std::time::Duration::from_millis(5));
        std::process::exit(6);
    }
    if let Some(micros) = role.strip_prefix("TERM after ") {
        std::thread::sleep(std::time::Duration::from_micros(micros.parse().expect("a number")));
        former_is_to_end();
    }
    while let Ok(n @ 1..) = former.recv(&mut space) {
        if space[..n].starts_with(b"{\"go\"") {
            match role.as_str() {
                "TERM on go" => former_is_to_end(),
                "dies on go" => std::process::exit(7),
                _ => {}
            }
            // It may be gone by now.
            let _ = former.send(br#"{"going":{}}"#);
        }
    }
}

/// The script that makes this binary play it.
fn impostor(role: &str) -> String {
    let this = std::env::current_exe().expect("this file");
    format!("{IMPOSTOR}=\"{role}\" exec {} --exact refused::plays_a_new_process", this.display())
}

#[test]
fn a_process_that_is_asked_to_end_when_the_new_one_is_ready_ends_both() {
    // Some come while the new process proves itself, some while the old one stops exposing, some before and some after it has
    // ordered the new one to go on.
    let after = [0, 2000, 990_000, 1_000_000, 1_001_000, 1_002_000, 1_005_000].map(|us| format!("TERM after {us}"));
    for role in after.iter().map(String::as_str).chain(["TERM before", "TERM on go"]) {
        let (upstream, metrics) = (Upstream::echo(), ReservedPort::new());
        let setup = Setup::to(upstream.addr()).gateway(&format!("metrics: {{address: \"{}\"}}", metrics.addr()));
        let mut gateway = Replaceable::start(&setup);
        let number = gateway.upgraded.gateway.dir().join("impostor");
        gateway.replace(&format!("echo $$ >{}; {}", number.display(), impostor(role)));
        signal(gateway.upgraded.gateway.pid(), "USR2");
        // Sooner than `timeouts.drain` is over, although a client is connected.
        gateway.logs("\"message\":\"ended\"");
        gateway.upgraded.await_old();
        let pid = std::fs::read_to_string(&number).expect("it was started");
        let files = PathBuf::from(format!("/proc/{}/fd", pid.trim()));
        eventually_within(END_PATIENCE, "the end of the new process", || {
            !files.read_dir().is_ok_and(|mut fds| fds.next().is_some())
        });
        let log = gateway.upgraded.gateway.log();
        assert!(log.contains("SIGTERM: finishing") && !log.contains("ERROR"), "{role}: {log}");
    }
}

#[test]
fn a_reload_waits_until_it_is_known_who_serves_on() {
    let upstream = Upstream::echo();
    let setup = Setup::to(upstream.addr());
    let mut gateway = Replaceable::start(&setup);
    let pid = gateway.upgraded.gateway.pid();
    let generation = |gateway: &Replaceable| gateway.upgraded.gateway.status()["config"]["generation"].clone();
    gateway.replace("exec sleep 600");
    signal(pid, "USR2");
    eventually("the new process", || children(pid).len() == 1);
    gateway.upgraded.configure(&setup.clone().route("priority: 7"));
    signal(pid, "HUP");
    gateway.logs("SIGHUP: reloading, as soon as");
    // Much longer than a reload takes.
    (0..50).for_each(|_| assert_eq!(generation(&gateway), 1));
    signal(children(pid)[0], "KILL");
    eventually("the reload", || generation(&gateway) != 1);
    gateway.serves_on();
}

#[test]
fn a_process_that_dies_when_it_is_ready_costs_nothing() {
    let upstream = Upstream::echo();
    let metrics = ReservedPort::new();
    let setup = Setup::to(upstream.addr()).gateway(&format!("metrics: {{address: \"{}\"}}", metrics.addr()));
    let mut gateway = Replaceable::start(&setup);
    gateway.replace(&impostor("dies"));
    for _ in 0..2 {
        gateway.refused(1);
        let scraped = scrape(metrics.addr(), "/metrics", ACCEPT_TEXT, false);
        assert!(scraped.text().contains("stillgate_"), "{}", scraped.text());
        assert_eq!(Client::connect(gateway.upgraded.gateway.admin_addr()).get("/v1/status").head.status(), 200);
    }
    gateway.logs("had started to serve, but ended (exit status: 5)");
    gateway.replace(&impostor("dies later"));
    gateway.refused(1);
    gateway.logs("had started to serve, but ended (exit status: 6)");
    // It has written its number already, and may take scrapes.
    let pid_file = gateway.upgraded.pid_file();
    gateway.replace(&format!("echo $$ >{}; {}", pid_file.display(), impostor("dies on go")));
    gateway.refused(1);
    gateway.logs("was ready, but ended (exit status: 7)");
    assert!(scrape(metrics.addr(), "/metrics", ACCEPT_TEXT, false).text().contains("stillgate_"));
    assert_eq!(Client::connect(gateway.upgraded.gateway.admin_addr()).get("/v1/status").head.status(), 200);
    gateway.restore();
    gateway.upgraded.upgrade();
    gateway.upgraded.await_old();
    assert!(scrape(metrics.addr(), "/metrics", ACCEPT_TEXT, false).text().contains("stillgate_"));
}

#[test]
fn one_that_hangs_can_be_ended_and_only_one_is_started() {
    let upstream = Upstream::echo();
    let mut gateway = Replaceable::start(&Setup::to(upstream.addr()));
    let pid = gateway.upgraded.gateway.pid();
    gateway.replace("exec sleep 600");
    signal(pid, "USR2");
    eventually("the new process", || children(pid).len() == 1);
    signal(pid, "USR2");
    gateway.logs("an upgrade is under way already");
    assert_eq!(gateway.client.get("/").head.status(), 200);
    signal(children(pid)[0], "KILL");
    gateway.logs("serving on as before");
    gateway.serves_on();
    // A process that is to end takes the new one with it.
    signal(pid, "USR2");
    eventually("the new process", || children(pid).len() == 1);
    let child = children(pid)[0];
    signal(pid, "TERM");
    gateway.upgraded.await_old();
    eventually_within(END_PATIENCE, "its end", || {
        !PathBuf::from(format!("/proc/{child}/fd")).read_dir().is_ok_and(|mut fds| fds.next().is_some())
    });
    assert!(!gateway.upgraded.pid_file().exists());
}

#[test]
fn a_new_process_that_dies_later_leaves_the_rest_with_the_former_one() {
    let upstream = Upstream::bind();
    let mut upgraded = UpgradedGateway::start(&Setup::to(upstream.addr()));
    // A request in flight keeps the former process.
    let (mut client, mut node) = ask(&upgraded, &upstream);
    let successor = upgraded.upgrade();
    signal(successor, "KILL");
    // It closes its files one after the other, and is known to be gone when it is.
    await_no_children(upgraded.gateway.pid());
    eventually("nobody to listen", || std::net::TcpStream::connect(upgraded.gateway.addr()).is_err());
    node.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    assert_eq!(client.expect_response("GET").body, b"ok");
    assert_eq!(upgraded.gateway.wait().code(), Some(1));
    assert!(upgraded.gateway.log().contains("is gone"), "{}", upgraded.gateway.log());
}

/// A request that the node has not answered.
fn ask(upgraded: &UpgradedGateway, upstream: &Upstream) -> (Client, BufferedSocket) {
    let mut client = upgraded.gateway.client();
    client.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut node = upstream.accept();
    node.expect_request();
    (client, node)
}

#[test]
fn both_processes_end_in_order() {
    let upstream = Upstream::bind();
    let mut upgraded = UpgradedGateway::start(&Setup::to(upstream.addr()));
    let mut before = ask(&upgraded, &upstream);
    let successor = upgraded.upgrade();
    let mut after = ask(&upgraded, &upstream);
    for pid in [upgraded.gateway.pid(), successor] {
        signal(pid, "TERM");
    }
    eventually("both to end", || upgraded.gateway.log().matches("SIGTERM: finishing").count() == 2);
    [upgraded.gateway.pid(), successor].into_iter().for_each(await_rest);
    for (client, node) in [&mut before, &mut after] {
        node.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        let last = client.expect_response("GET");
        assert_eq!((last.body.as_slice(), last.head.get("connection")), (&b"ok"[..], Some("close")));
    }
    upgraded.await_old();
    upgraded.await_end(successor);
    assert!(!upgraded.pid_file().exists());
}

#[test]
fn a_configuration_that_is_wrong_is_refused_by_the_command_and_by_the_new_process() {
    let upstream = Upstream::echo();
    let setup = Setup::to(upstream.addr());
    let mut gateway = Replaceable::start(&setup);
    gateway.upgraded.configure(&Setup::to(upstream.addr()).gateway("nonsense: true"));
    let said = gateway.refused(1);
    assert!(said.contains("nothing was upgraded") && said.contains("nonsense"), "{said}");
    let pid = gateway.upgraded.gateway.pid();
    signal(pid, "USR2");
    gateway.logs("serving on as before");
    gateway.serves_on();
    // An error that only shows at the start: an address of another process.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = taken.local_addr().expect("its address");
    gateway.upgraded.configure(&setup.clone().with_listener(addr));
    assert!(gateway.refused(1).contains("not upgraded"));
    gateway.logs("cannot listen on");
    drop(taken);
    gateway.upgraded.upgrade();
    gateway.upgraded.await_old();
    assert_eq!(Client::connect(addr).get("/").head.status(), 200);
}

#[test]
fn a_supervisor_that_would_not_follow_keeps_its_process() {
    let upstream = Upstream::echo();
    for (variables, is_upgraded) in [("", false), ("NOTIFY_SOCKET=/nowhere/notify", true)] {
        let lines = format!("SYSTEMD_EXEC_PID=$$ {variables} exec {STILLGATE} \"$@\"");
        let (_dir, wrapper) = script(&lines);
        let mut upgraded =
            UpgradedGateway::start_from(wrapper.to_str().expect("a plain path"), &Setup::to(upstream.addr()));
        let pid = upgraded.gateway.pid();
        if is_upgraded {
            assert_ne!(upgraded.upgrade(), pid);
            upgraded.await_old();
            continue;
        }
        signal(pid, "USR2");
        eventually("advice", || upgraded.gateway.log().contains("NotifyAccess=all"));
        assert_eq!((upgraded.pid(), children(pid)), (Some(pid), Vec::new()));
        assert_eq!(upgraded.gateway.get("/").head.status(), 200);
    }
}

#[test]
fn a_link_leads_to_what_it_names_by_then() {
    let upstream = Upstream::echo();
    let dir = tempfile::tempdir().expect("a temporary folder");
    let [first, second, current] = ["v1", "v2", "current"].map(|name| dir.path().join(name));
    let (v1, v2, link) = (first.display(), second.display(), current.display());
    sh(&format!("for v in {v1} {v2}; do mkdir $v && cp {STILLGATE} $v/stillgate; done; ln -s {v1} {link}"));
    let called = current.join("stillgate");
    let mut upgraded = UpgradedGateway::start_from(called.to_str().expect("a plain path"), &Setup::to(upstream.addr()));
    sh(&format!("ln -sfn {v2} {link}"));
    let successor = upgraded.upgrade();
    let runs = std::fs::read_link(format!("/proc/{successor}/exe")).expect("it runs");
    assert_eq!(runs, second.join("stillgate").canonicalize().expect("it is there"));
    upgraded.await_old();
}
