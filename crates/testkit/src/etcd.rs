//! A real etcd: one member or a cluster, in a temporary folder, on ports of its own.
//!
//! Tests write and read it over its JSON gateway without TLS, by this crate's own client, which is independent of the
//! client under test. A member with TLS listens on a second address for that.

use crate::connection::BufferedSocket;
use crate::eventually;
use crate::peers::require_tool;
use crate::port::ReservedPort;
use crate::process::Process;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// The Debian package.
const PACKAGE: &str = "etcd-server";

/// Default limit of operations in a transaction.
const OPERATIONS_MAX: usize = 128;

/// The setup of etcd.
#[derive(Debug, Clone)]
pub struct EtcdSetup {
    /// 1 or more.
    pub members: usize,
    /// PEM files of a certificate for 127.0.0.1 and its key: each member also serves TLS, see [`EtcdServer::tls_endpoint`].
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// A PEM file of roots: over TLS, clients need a certificate issued by one of them.
    pub client_ca: Option<PathBuf>,
    /// Further arguments.
    pub arguments: Vec<String>,
}

impl Default for EtcdSetup {
    fn default() -> Self {
        Self { members: 1, certificate: None, client_ca: None, arguments: Vec::new() }
    }
}

/// A running etcd. It ends when dropped, and its data is deleted.
#[derive(Debug)]
pub struct EtcdServer {
    members: Vec<Member>,
    dir: TempDir,
}

#[derive(Debug)]
struct Member {
    process: Process,
    port: ReservedPort,
    tls_port: ReservedPort,
    _peer_port: ReservedPort,
    arguments: Vec<String>,
}

impl EtcdServer {
    /// Starts one member.
    ///
    /// # Panics
    /// If it is missing or does not start.
    #[track_caller]
    pub fn start() -> Self {
        Self::start_with(&EtcdSetup::default())
    }

    /// Starts all members, and waits until they have a leader.
    ///
    /// # Panics
    /// If it is missing or does not start.
    #[track_caller]
    pub fn start_with(setup: &EtcdSetup) -> Self {
        require_tool("etcd", PACKAGE);
        let dir = tempfile::tempdir().expect("a temporary folder");
        let peer_ports: Vec<ReservedPort> = (0..setup.members).map(|_| ReservedPort::new()).collect();
        let peers = peer_ports.iter().enumerate().map(|(index, port)| format!("m{index}=http://{}", port.addr()));
        let cluster = peers.collect::<Vec<_>>().join(",");
        let members = peer_ports.into_iter().enumerate().map(|(index, peer_port)| {
            let (port, tls_port) = (ReservedPort::new(), ReservedPort::new());
            let addrs = [port.addr(), tls_port.addr(), peer_port.addr()];
            let arguments = arguments(setup, index, addrs, &cluster);
            Member { process: spawn(&dir, index, &arguments), port, tls_port, _peer_port: peer_port, arguments }
        });
        let members = members.collect();
        let mut etcd = Self { members, dir };
        (0..setup.members).for_each(|index| etcd.await_healthy(index));
        etcd
    }

    /// The URL of a member, without TLS.
    pub fn endpoint(&self, member: usize) -> String {
        format!("http://{}", self.addr(member))
    }

    /// The URL of a member, with TLS.
    pub fn tls_endpoint(&self, member: usize) -> String {
        format!("https://{}", self.members[member].tls_port.addr())
    }

    /// The address of a member without TLS.
    pub fn addr(&self, member: usize) -> SocketAddr {
        self.members[member].port.addr()
    }

    /// Its process, for signals.
    pub fn process(&self, member: usize) -> &Process {
        &self.members[member].process
    }

    /// Kills a member (`kill -9`).
    #[track_caller]
    pub fn kill(&mut self, member: usize) {
        self.members[member].process.signal("KILL");
        self.members[member].process.wait();
    }

    /// Starts a killed member with its old data. Waits until it answers, if the other members suffice for a leader.
    #[track_caller]
    pub fn start_again(&mut self, member: usize) {
        self.start_without_waiting(member);
        self.await_healthy(member);
    }

    /// [`EtcdServer::start_again`] if there is no leader yet.
    #[track_caller]
    pub fn start_without_waiting(&mut self, member: usize) {
        self.members[member].process = spawn(&self.dir, member, &self.members[member].arguments);
    }

    /// Removes the data of a killed member.
    pub fn wipe(&self, member: usize) {
        std::fs::remove_dir_all(self.dir.path().join(format!("m{member}"))).expect("remove etcd's data");
    }

    /// Sends a request to a member, for example `("/v3/kv/range", json!({…}))`, and returns the answer.
    ///
    /// # Panics
    /// If it refuses, or does not answer.
    #[track_caller]
    pub fn call(&self, member: usize, path: &str, request: &Value) -> Value {
        self.try_call(member, path, request).unwrap_or_else(|answer| panic!("etcd: {path}: {answer}"))
    }

    /// As [`EtcdServer::call`].
    ///
    /// # Errors
    /// Its refusal, or the reason why it does not answer.
    pub fn try_call(&self, member: usize, path: &str, request: &Value) -> Result<Value, String> {
        let stream = TcpStream::connect(self.addr(member)).map_err(|error| error.to_string())?;
        let mut connection = BufferedSocket::new(stream);
        let body = request.to_string();
        let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
        connection.try_send([head, body].concat()).map_err(|error| error.to_string())?;
        let answer = connection.read_response("POST").map_err(|broken| format!("{broken:?}"))?;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        match answer.head.status() {
            200 => serde_json::from_str(&text).map_err(|error| error.to_string()),
            status => Err(format!("{status}: {text}")),
        }
    }

    /// Writes a key through a member, and returns the revision.
    #[track_caller]
    pub fn put(&self, member: usize, key: &str, value: impl AsRef<[u8]>) -> u64 {
        revision(&self.call(member, "/v3/kv/put", &json!({"key": bytes(key), "value": bytes(value)})))
    }

    /// The value of a key; `None` if it does not exist.
    #[track_caller]
    pub fn get(&self, member: usize, key: &str) -> Option<String> {
        let answer = self.call(member, "/v3/kv/range", &json!({"key": bytes(key)}));
        let value = answer["kvs"][0]["value"].as_str()?;
        Some(String::from_utf8(STANDARD.decode(value).expect("base64")).expect("UTF-8"))
    }

    /// Deletes a key, and returns the revision.
    #[track_caller]
    pub fn delete(&self, member: usize, key: &str) -> u64 {
        revision(&self.call(member, "/v3/kv/deleterange", &json!({"key": bytes(key)})))
    }

    /// Writes several keys at one revision, and returns it. `None` deletes.
    #[track_caller]
    pub fn write(&self, member: usize, writes: &[(&str, Option<&str>)]) -> u64 {
        let operation = |(key, value): &(&str, Option<&str>)| match value {
            Some(value) => json!({"request_put": {"key": bytes(key), "value": bytes(value)}}),
            None => json!({"request_delete_range": {"key": bytes(key)}}),
        };
        let operations: Vec<Value> = writes.iter().map(operation).collect();
        revision(&self.call(member, "/v3/kv/txn", &json!({"success": operations})))
    }

    /// Writes many keys, in as few revisions as possible.
    #[track_caller]
    pub fn fill(&self, member: usize, pairs: impl IntoIterator<Item = (String, String)>) {
        let pairs: Vec<_> = pairs.into_iter().collect();
        for some in pairs.chunks(OPERATIONS_MAX) {
            let some: Vec<_> = some.iter().map(|(key, value)| (&**key, Some(&**value))).collect();
            self.write(member, &some);
        }
    }

    /// The current revision.
    #[track_caller]
    pub fn revision(&self, member: usize) -> u64 {
        self.try_revision(member).unwrap_or_else(|answer| panic!("etcd: {answer}"))
    }

    /// The current revision.
    ///
    /// # Errors
    /// The member's refusal, or the reason why it does not answer, for example without a leader.
    pub fn try_revision(&self, member: usize) -> Result<u64, String> {
        self.try_call(member, "/v3/kv/range", &json!({"key": bytes("x"), "keys_only": true}))
            .as_ref()
            .map(revision)
            .map_err(Clone::clone)
    }

    /// Compacts everything older than a revision.
    #[track_caller]
    pub fn compact(&self, member: usize, to: u64) {
        self.call(member, "/v3/kv/compaction", &json!({"revision": to.to_string(), "physical": true}));
    }

    /// Switches authentication on: the user `root` with this password may do everything, others nothing.
    #[track_caller]
    pub fn require_password(&self, password: &str) {
        self.call(0, "/v3/auth/user/add", &json!({"name": "root", "password": password}));
        self.call(0, "/v3/auth/role/add", &json!({"name": "root"}));
        self.call(0, "/v3/auth/user/grant", &json!({"user": "root", "role": "root"}));
        self.call(0, "/v3/auth/enable", &json!({}));
    }

    #[track_caller]
    fn await_healthy(&mut self, member: usize) {
        eventually("etcd to have a leader", || {
            let process = &mut self.members[member].process;
            assert!(process.ended().is_none(), "etcd ended at its start:\n{}", process.log());
            match self.try_call(member, "/v3/kv/range", &json!({"key": bytes("x")})) {
                Ok(_) => true,
                // With authentication on this needs a leader, too.
                Err(answer) => answer.contains("user name is empty"),
            }
        });
    }
}

fn arguments(setup: &EtcdSetup, index: usize, addrs: [SocketAddr; 3], cluster: &str) -> Vec<String> {
    let [plain, tls, peer] = addrs;
    let listen = match setup.certificate {
        Some(_) => format!("http://{plain},https://{tls}"),
        None => format!("http://{plain}"),
    };
    let mut arguments = vec![
        format!("--name=m{index}"),
        format!("--listen-client-urls={listen}"),
        format!("--advertise-client-urls={listen}"),
        format!("--listen-peer-urls=http://{peer}"),
        format!("--initial-advertise-peer-urls=http://{peer}"),
        format!("--initial-cluster={cluster}"),
        "--log-level=warn".to_owned(),
        "--logger=zap".to_owned(),
        // A test kills processes, not machines.
        "--unsafe-no-fsync".to_owned(),
    ];
    if let Some((certificate, key)) = &setup.certificate {
        arguments.extend([format!("--cert-file={}", certificate.display()), format!("--key-file={}", key.display())]);
    }
    if let Some(roots) = &setup.client_ca {
        arguments.extend(["--client-cert-auth".to_owned(), format!("--trusted-ca-file={}", roots.display())]);
    }
    arguments.extend(setup.arguments.iter().cloned());
    arguments
}

fn spawn(dir: &TempDir, index: usize, arguments: &[String]) -> Process {
    let mut command = Command::new("etcd");
    command.args(arguments).arg(format!("--data-dir={}", dir.path().join(format!("m{index}")).display()));
    // It would read options from there, and use a proxy for its own requests.
    command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    Process::spawn("etcd", &mut command, &dir.path().join(format!("m{index}.log")))
}

/// Base64, as the JSON gateway requires.
fn bytes(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

fn revision(answer: &Value) -> u64 {
    answer["header"]["revision"].as_str().and_then(|text| text.parse().ok()).expect("each answer has a revision")
}
