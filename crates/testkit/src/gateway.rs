//! A gateway under test: the real binary, its own ports, its own folder.
//!
//! Its path comes from the caller (`env!("CARGO_BIN_EXE_stillgate")` is known to the tests of that crate only), so this
//! crate need not depend on the gateway.

use crate::eventually;
use crate::message::Message;
use crate::port::ReservedPort;
use crate::process::{Process, kill_all};
use crate::prometheus::Client;
use crate::soak::sha256;
use std::fmt::Write;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Timeouts of the gateway unless a [`Setup`] sets others: much longer than [`crate::PATIENCE`], so that a slow machine
/// breaks no connection, and a test notices if it depends on one of them.
const PATIENT: &str = "30m";
/// The timeouts in `gateway.timeouts`.
const PATIENT_TIMEOUTS: [&str; 5] = ["head", "body", "send", "keepalive", "drain"];
/// The timeouts of an upstream.
const PATIENT_UPSTREAM: &str = "timeout: {connect: 1800, send: 1800, read: 1800}\n";

/// The gateway logs this once it listens everywhere, and its workers and its admin API run.
const SERVING: &str = "\"message\":\"serving\"";

/// The setup of a gateway. Lines are YAML without indentation; `{dir}` in them is the gateway's own folder.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// Further lines of the `gateway:` section. `workers: 1` unless they set another number.
    pub gateway: String,
    /// Further lines of the one upstream.
    pub upstream: String,
    /// Further lines of the one route; `uri: /*` unless they set another one.
    pub route: String,
    /// Nodes of the one upstream, the best first if they have different priorities.
    pub nodes: Vec<SocketAddr>,
    /// Instead of the one route and upstream: all resources.
    pub resources: Option<String>,
    /// A limit on file descriptors, soft and hard.
    pub open_files: Option<usize>,
    /// Further lines of the listener.
    pub listener: String,
    /// A further address to listen on.
    pub further_listener: Option<SocketAddr>,
    /// Further lines of `gateway.admin`.
    pub admin: String,
}

impl Setup {
    /// One route that sends everything to one upstream with one node.
    pub fn to(node: SocketAddr) -> Self {
        Self { nodes: vec![node], ..Self::default() }
    }

    /// One route to several nodes, tried in this order (each has a lower priority than the one before).
    pub fn to_tiers(nodes: &[SocketAddr]) -> Self {
        Self { nodes: nodes.to_vec(), ..Self::default() }
    }

    /// All resources given as YAML.
    pub fn resources(yaml: impl Into<String>) -> Self {
        Self { resources: Some(yaml.into()), ..Self::default() }
    }

    /// Adds lines to the `gateway:` section.
    #[must_use]
    pub fn gateway(mut self, lines: &str) -> Self {
        writeln!(self.gateway, "{lines}").expect("writing to a String cannot fail");
        self
    }

    /// Adds lines to `gateway.admin`.
    #[must_use]
    pub fn admin(mut self, lines: &str) -> Self {
        writeln!(self.admin, "{lines}").expect("writing to a String cannot fail");
        self
    }

    /// Adds lines to the listener.
    #[must_use]
    pub fn listener(mut self, lines: &str) -> Self {
        writeln!(self.listener, "{lines}").expect("writing to a String cannot fail");
        self
    }

    /// Adds a listener.
    #[must_use]
    pub fn with_listener(mut self, addr: SocketAddr) -> Self {
        self.further_listener = Some(addr);
        self
    }

    /// Adds lines to the upstream.
    #[must_use]
    pub fn upstream(mut self, lines: &str) -> Self {
        writeln!(self.upstream, "{lines}").expect("writing to a String cannot fail");
        self
    }

    /// Adds lines to the route.
    #[must_use]
    pub fn route(mut self, lines: &str) -> Self {
        writeln!(self.route, "{lines}").expect("writing to a String cannot fail");
        self
    }

    /// The whole file.
    pub fn render(&self, listen: SocketAddr, admin: SocketAddr, dir: &Path) -> String {
        let mut gateway = String::new();
        if !self.gateway.contains("workers:") {
            gateway.push_str("workers: 1\n");
        }
        // At the top: the setup may continue with the admin section.
        if !self.gateway.contains("timeouts:") {
            writeln!(gateway, "timeouts: {{{}}}", patient_timeouts("")).expect("writing to a String cannot fail");
        }
        let further = self
            .further_listener
            .map(|addr| {
                format!(
                    "  - address: \"{addr}\"
"
                )
            })
            .unwrap_or_default();
        write!(
            gateway,
            "listeners:\n  - address: \"{listen}\"\n{}{further}admin:\n  address: \"{admin}\"\n{}{}",
            indented(&self.listener, 4),
            indented(&self.admin, 2),
            with_patient_timeouts(&self.gateway)
        )
        .expect("writing to a String cannot fail");
        let yaml = format!("gateway:\n{}{}", indented(&gateway, 2), self.render_resources());
        yaml.replace("{dir}", &dir.display().to_string())
    }

    fn render_resources(&self) -> String {
        if let Some(resources) = &self.resources {
            return resources.clone();
        }
        let mut upstream = self.upstream.clone();
        if !upstream.contains("type:") {
            upstream.push_str("type: roundrobin\n");
        }
        if !upstream.lines().any(|line| line.starts_with("timeout:")) {
            upstream.push_str(PATIENT_UPSTREAM);
        }
        upstream.push_str("nodes:\n");
        for (tier, node) in self.nodes.iter().enumerate() {
            let (ip, port) = (node.ip(), node.port());
            let priority = -i32::try_from(tier).expect("a handful of nodes");
            writeln!(upstream, "  - {{host: {ip}, port: {port}, weight: 1, priority: {priority}}}")
                .expect("writing to a String cannot fail");
        }
        let uri = if self.route.contains("uri") { "" } else { "uri: /*\n" };
        let route = indented(&format!("{uri}{}upstream_id: main", self.route), 4);
        format!("upstreams:\n  - id: main\n{}routes:\n  - id: all\n{route}", indented(&upstream, 4))
    }
}

/// The lines of a `gateway:` section, whose timeouts, if any, are on one line.
fn with_patient_timeouts(lines: &str) -> String {
    let Some((before, (said, after))) =
        lines.split_once("timeouts: {").and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
    else {
        return lines.to_owned();
    };
    let further = patient_timeouts(said);
    let separator = if further.is_empty() { "" } else { ", " };
    format!("{before}timeouts: {{{said}{separator}{further}}}{after}")
}

/// The [`PATIENT_TIMEOUTS`] that are not set.
fn patient_timeouts(said: &str) -> String {
    let is_left = |name: &&&str| !said.contains(&format!("{name}:"));
    let left: Vec<String> = PATIENT_TIMEOUTS.iter().filter(is_left).map(|name| format!("{name}: {PATIENT}")).collect();
    left.join(", ")
}

fn indented(lines: &str, by: usize) -> String {
    let mut text = String::new();
    for line in lines.lines() {
        writeln!(text, "{:by$}{line}", "").expect("writing to a String cannot fail");
    }
    text
}

/// A running gateway. It ends when dropped, and so do its successors; it dereferences to [`Process`].
#[derive(Debug)]
pub struct Gateway {
    process: Process,
    listen: ReservedPort,
    admin: ReservedPort,
    dir: TempDir,
}

impl Gateway {
    /// Starts `binary` and waits until its log reports that it serves: nothing connects to it before the test does.
    ///
    /// # Panics
    /// If it ends instead, with its log.
    #[track_caller]
    pub fn start(binary: &str, setup: &Setup) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (listen, admin) = (crate::port::ReservedPort::new(), crate::port::ReservedPort::new());
        let config = dir.path().join("stillgate.yaml");
        let yaml = setup.render(listen.addr(), admin.addr(), dir.path());
        std::fs::write(&config, yaml).expect("write the config");
        let process = spawn(binary, setup.open_files, dir.path());
        let mut gateway = Self { process, listen, admin, dir };
        gateway.await_serving(1);
        // So that tests may compare with its current memory and descriptors.
        eventually("the gateway's threads to have started", || gateway.process.is_at_rest());
        gateway
    }

    /// Starts a gateway that has ended again, with the current configuration.
    ///
    /// # Panics
    /// If it does not serve in time.
    #[track_caller]
    pub fn restart(&mut self, binary: &str) {
        let before = self.times_serving();
        self.process = spawn(binary, None, self.dir.path());
        self.await_serving(before + 1);
    }

    /// Address for clients.
    pub fn addr(&self) -> SocketAddr {
        self.listen.addr()
    }

    /// Address of the admin API.
    pub fn admin_addr(&self) -> SocketAddr {
        self.admin.addr()
    }

    /// Its folder, `{dir}` in a [`Setup`].
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The configuration file.
    pub fn config_path(&self) -> PathBuf {
        self.dir.path().join("stillgate.yaml")
    }

    /// Connects a client.
    #[track_caller]
    pub fn client(&self) -> Client {
        Client::connect(self.addr())
    }

    /// One `GET` on its own connection.
    #[track_caller]
    pub fn get(&self, target: &str) -> Message {
        self.client().get(target)
    }

    /// `GET /v1/status` as JSON.
    ///
    /// # Panics
    /// If the admin address does not answer 200 with JSON.
    #[track_caller]
    pub fn status(&self) -> serde_json::Value {
        let response = Client::connect(self.admin.addr()).get("/v1/status");
        assert_eq!(response.head.status(), 200, "{response:?}");
        serde_json::from_slice(&response.body).expect("the status is JSON")
    }

    /// Replaces the configuration and waits until it is in use.
    ///
    /// # Panics
    /// If it is not accepted.
    #[track_caller]
    pub fn reload(&self, setup: &Setup) {
        let digest = sha256(self.write_config(setup).as_bytes());
        eventually("the new config's digest in the status", || self.status()["config"]["digest"] == digest.as_str());
    }

    /// Replaces the configuration file in one step and returns its text; does not check whether it is accepted.
    pub fn write_config(&self, setup: &Setup) -> String {
        let yaml = setup.render(self.listen.addr(), self.admin.addr(), self.dir.path());
        self.write_config_text(&yaml);
        yaml
    }

    /// [`Gateway::write_config`] with any text.
    pub fn write_config_text(&self, yaml: &str) {
        let beside = self.dir.path().join("stillgate.yaml.new");
        std::fs::write(&beside, yaml).expect("write the new config");
        std::fs::rename(&beside, self.config_path()).expect("put the new config in place");
    }

    /// The number of its threads whose names begin with `prefix`.
    pub fn threads(&self, prefix: &str) -> usize {
        self.process.threads(prefix)
    }

    /// # Panics
    /// If the process has ended or its log has a panic.
    #[track_caller]
    pub fn assert_healthy(&mut self) {
        let ended = self.process.ended();
        assert!(ended.is_none(), "the gateway has ended: {ended:?}\n{}", self.log());
        let log = self.log();
        assert!(!log.contains("panicked"), "a panic in the log:\n{log}");
    }

    /// Waits for its log to report that. A connection that only checks whether it listens would be one that the test
    /// does not count: accepted at any later time, it takes a slot, and is counted.
    #[track_caller]
    fn await_serving(&mut self, times: usize) {
        eventually("the gateway to log that it serves", || {
            if let Some(status) = self.process.ended() {
                panic!("the gateway ended at its start ({status})");
            }
            self.times_serving() >= times
        });
    }

    fn times_serving(&self) -> usize {
        self.log().matches(SERVING).count()
    }
}

fn spawn(binary: &str, open_files: Option<usize>, dir: &Path) -> Process {
    let mut command = match open_files {
        None => Command::new(binary),
        Some(limit) => {
            let mut shell = Command::new("sh");
            let script = format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
            shell.args(["-c", &script, binary]);
            shell
        }
    };
    command.arg("run").arg("--config").arg(dir.join("stillgate.yaml"));
    // A log filter of the caller must not change a test.
    command.env_remove("RUST_LOG").env("RUST_BACKTRACE", "1");
    Process::spawn("stillgate", &mut command, &dir.join("stillgate.log"))
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // The number of a process that was waited for may belong to another by now.
        let running = self.process.ended().is_none().then(|| self.process.pid());
        kill_all(running, self.dir.path());
    }
}

impl Deref for Gateway {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Gateway {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_one_route() {
        let setup = Setup::to("127.0.0.1:1".parse().unwrap()).gateway("server_header: false").upstream("retries: 0");
        let yaml = setup.render("127.0.0.1:2".parse().unwrap(), "127.0.0.1:3".parse().unwrap(), Path::new("/d"));
        let expected = "gateway:\n  workers: 1\n  timeouts: {head: 30m, body: 30m, send: 30m, keepalive: 30m, drain: 30m}\n  listeners:\n    - address: \"127.0.0.1:2\"\n  admin:\n    address: \"127.0.0.1:3\"\n  server_header: false\n\
            upstreams:\n  - id: main\n    retries: 0\n    type: roundrobin\n    timeout: {connect: 1800, send: 1800, read: 1800}\n    nodes:\n      - {host: 127.0.0.1, port: 1, weight: 1, priority: 0}\n\
            routes:\n  - id: all\n    uri: /*\n    upstream_id: main\n";
        assert_eq!(yaml, expected);
    }

    #[test]
    fn timeouts_that_are_said_are_kept() {
        let check = |lines: &str, expected: &str| assert_eq!(with_patient_timeouts(lines), expected);
        check("workers: 2\n", "workers: 2\n");
        check(
            "timeouts: {drain: 1s, tunnel_idle: 1h}\nworkers: 2\n",
            "timeouts: {drain: 1s, tunnel_idle: 1h, head: 30m, body: 30m, send: 30m, keepalive: 30m}\nworkers: 2\n",
        );
        let all = "timeouts: {head: 1s, body: 1s, send: 1s, keepalive: 1s, drain: 1s}\n";
        check(all, all);
    }
}
