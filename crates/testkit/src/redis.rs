//! A real Redis: one server or a cluster, in a temporary folder, on ports of its own, without persistence.
//!
//! A killed server therefore comes back empty, like one that has lost its data. Tests read and write with `redis-cli`,
//! which is independent of the client under test.

use crate::eventually;
use crate::peers::require_tool;
use crate::port::ReservedPort;
use crate::process::Process;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// The Debian package.
const PACKAGE: &str = "redis-server";

/// The setup of Redis.
#[derive(Debug, Clone, Default)]
pub struct RedisSetup {
    /// Number of servers of a cluster; 0 for a single server.
    pub cluster: usize,
    /// Password for clients.
    pub password: Option<String>,
    /// PEM files of a certificate for 127.0.0.1 and its key: it serves TLS only.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// Running servers. They end when dropped.
#[derive(Debug)]
pub struct Redis {
    servers: Vec<RedisServer>,
    setup: RedisSetup,
    dir: TempDir,
}

#[derive(Debug)]
struct RedisServer {
    process: Process,
    port: ReservedPort,
    /// The port for traffic between the servers of a cluster.
    bus: ReservedPort,
}

impl Redis {
    /// Starts one server.
    #[track_caller]
    pub fn start() -> Redis {
        Redis::start_with(RedisSetup::default())
    }

    /// Starts all servers, and waits until they answer; a cluster until it has all slots.
    ///
    /// # Panics
    /// If it is missing or does not start.
    #[track_caller]
    pub fn start_with(setup: RedisSetup) -> Redis {
        require_tool("redis-server", PACKAGE);
        let dir = tempfile::tempdir().expect("a temporary folder");
        let servers = (0..setup.cluster.max(1)).map(|index| {
            let (port, bus) = (crate::port::ReservedPort::new(), crate::port::ReservedPort::new());
            RedisServer { process: spawn(&dir, &setup, index, [port.addr(), bus.addr()]), port, bus }
        });
        let servers: Vec<RedisServer> = servers.collect();
        let redis = Redis { servers, setup, dir };
        redis.await_answers();
        if redis.setup.cluster > 0 {
            redis.join();
        }
        redis
    }

    /// The address of a server.
    pub fn addr(&self, server: usize) -> SocketAddr {
        self.servers[server].port.addr()
    }

    /// The URL of a server, including the password.
    pub fn url(&self, server: usize) -> String {
        let scheme = if self.setup.certificate.is_some() { "rediss" } else { "redis" };
        let user = self.setup.password.as_ref().map_or_else(String::new, |password| format!(":{password}@"));
        format!("{scheme}://{user}{}", self.addr(server))
    }

    /// Its process, for signals.
    pub fn process(&self, server: usize) -> &Process {
        &self.servers[server].process
    }

    /// Kills the first server (`kill -9`).
    #[track_caller]
    pub fn kill(&mut self) {
        self.servers[0].process.signal("KILL");
        self.servers[0].process.wait();
    }

    /// Starts it again, empty.
    #[track_caller]
    pub fn start_again(&mut self) {
        let ports = [self.addr(0), self.servers[0].bus.addr()];
        self.servers[0].process = spawn(&self.dir, &self.setup, 0, ports);
        self.await_answers();
    }

    /// Runs a command, for example `&["GET", "key"]`, on the first server or on the one that it redirects to.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn cli(&self, arguments: &[&str]) -> String {
        self.cli_of(0, arguments)
    }

    /// [`Redis::cli`] on another server.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn cli_of(&self, server: usize, arguments: &[&str]) -> String {
        let output = self.command(server).args(arguments).output().expect("run redis-cli");
        let text = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
        assert!(output.status.success(), "redis-cli {arguments:?}: {text}");
        text
    }

    fn command(&self, server: usize) -> Command {
        let mut command = Command::new("redis-cli");
        command.args(["-h", "127.0.0.1", "-p", &self.addr(server).port().to_string(), "--no-auth-warning"]);
        if self.setup.cluster > 0 {
            command.arg("-c");
        }
        if let Some(password) = &self.setup.password {
            command.args(["-a", password]);
        }
        if self.setup.certificate.is_some() {
            command.args(["--tls", "--insecure"]);
        }
        command
    }

    #[track_caller]
    fn await_answers(&self) {
        for index in 0..self.servers.len() {
            eventually("Redis to answer", || {
                self.command(index).arg("PING").output().is_ok_and(|output| output.stdout.starts_with(b"PONG"))
            });
        }
    }

    #[track_caller]
    fn join(&self) {
        let addrs: Vec<String> = (0..self.servers.len()).map(|index| self.addr(index).to_string()).collect();
        let mut create = Command::new("redis-cli");
        let created = create.args(["--cluster", "create"]).args(addrs).arg("--cluster-yes").output();
        let created = created.expect("run redis-cli");
        assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stdout));
        eventually("the cluster to have all slots", || self.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok"));
    }
}

fn spawn(dir: &TempDir, setup: &RedisSetup, index: usize, ports: [SocketAddr; 2]) -> Process {
    let (folder, [port, bus]) = (dir.path().join(format!("r{index}")), ports.map(|addr| addr.port().to_string()));
    std::fs::create_dir_all(&folder).expect("a folder for Redis");
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]).arg("--dir").arg(&folder);
    match &setup.certificate {
        None => {
            command.args(["--port", &port]);
        }
        Some((certificate, key)) => {
            command.args(["--port", "0", "--tls-port", &port, "--tls-auth-clients", "no"]);
            command.arg("--tls-cert-file").arg(certificate).arg("--tls-key-file").arg(key);
            command.arg("--tls-ca-cert-file").arg(certificate);
        }
    }
    if let Some(password) = &setup.password {
        command.args(["--requirepass", password]);
    }
    if setup.cluster > 0 {
        command.args(["--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-port", &bus]);
    }
    Process::spawn("redis-server", &mut command, &folder.join("log"))
}
