//! A Vault with a key-value engine of each version: a real one if `VAULT` names its program, which is that of
//! `xtask/vault`; otherwise a double.
//!
//! Tests use the documented API only, so the double has to answer as a real one does. `cargo xtask vault` builds a real
//! one and runs the tests against it.

mod double;

use crate::client::Client;
use crate::port::ReservedPort;
use crate::process::Process;
use crate::{PATIENCE, eventually_within};
use double::VaultDouble;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// Names the program of a real Vault, which takes an address and a folder.
const VARIABLE: &str = "VAULT";
/// Readable with the policy `gate`.
const READABLE: [&str; 2] = ["kv/gate/*", "kv2/data/gate/*"];
/// A real Vault first loads a program of 40 MB, possibly on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(240);

/// A running Vault with the engines `kv` (version 1) and `kv2` (version 2), whose paths below `gate/` are readable with
/// the policy `gate`, and with two login methods. It ends when dropped.
#[derive(Debug)]
pub struct Vault {
    server: VaultServer,
    root: String,
    unseal_key: String,
}

#[derive(Debug)]
enum VaultServer {
    Real { program: OsString, port: ReservedPort, folder: TempDir, process: Process },
    Double(VaultDouble),
}

/// The credentials of an application role.
#[derive(Debug)]
pub struct AppRole {
    /// Id of the role.
    pub role_id: String,
    /// One of the role's secrets; empty if it needs none.
    pub secret_id: String,
}

impl Vault {
    /// The token with which Vault requests token reviews from the API of Kubernetes. It has to be a JWT.
    pub const REVIEWER: &str = "eyJhbGciOiJSUzI1NiJ9.e30.cGxhbnRlZA";

    /// Starts an empty one.
    ///
    /// # Panics
    /// If it does not start.
    #[track_caller]
    pub fn start() -> Vault {
        let mut vault = match std::env::var_os(VARIABLE) {
            Some(program) => Vault::real(program),
            None => Vault {
                server: VaultServer::Double(VaultDouble::start()),
                root: "root".to_owned(),
                unseal_key: "k".to_owned(),
            },
        };
        vault.set_up();
        vault
    }

    fn real(program: OsString) -> Vault {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let port = ReservedPort::new();
        let process = spawn(&program, port.addr(), folder.path());
        let server = VaultServer::Real { program, port, folder, process };
        let mut vault = Vault { server, root: String::new(), unseal_key: String::new() };
        vault.await_listening();
        let made = vault.manage("PUT", "sys/init", &json!({"secret_shares": 1, "secret_threshold": 1}));
        vault.root = text(&made["root_token"]);
        vault.unseal_key = text(&made["keys"][0]);
        vault.unseal();
        vault
    }

    fn set_up(&mut self) {
        self.manage("POST", "sys/mounts/kv", &json!({"type": "kv", "options": {"version": "1"}}));
        self.manage("POST", "sys/mounts/kv2", &json!({"type": "kv", "options": {"version": "2"}}));
        let rules: serde_json::Map<String, Value> =
            READABLE.iter().map(|path| ((*path).to_owned(), json!({"capabilities": ["read"]}))).collect();
        let policy = json!({"path": rules}).to_string();
        self.manage("POST", "sys/policies/acl/gate", &json!({"policy": policy}));
        for method in ["approle", "kubernetes"] {
            self.manage("POST", &format!("sys/auth/{method}"), &json!({"type": method}));
        }
    }

    /// Its address.
    pub fn addr(&self) -> SocketAddr {
        match &self.server {
            VaultServer::Real { port, .. } => port.addr(),
            VaultServer::Double(double) => double.addr(),
        }
    }

    /// Sends any request: returns the status, and the body of the answer.
    ///
    /// # Panics
    /// If there is no answer.
    #[track_caller]
    pub fn ask(&self, method: &str, path: &str, token: Option<&str>, body: &Value) -> (u16, Value) {
        let token = token.map(|token| format!("X-Vault-Token: {token}\r\n")).unwrap_or_default();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut client = Client::connect(self.addr());
        // A real Vault is slow at some requests on a busy machine.
        client.set_patience(START_PATIENCE);
        client.send(format!(
            "{method} /v1/{path} HTTP/1.1\r\nHost: vault\r\nX-Vault-Request: true\r\n{token}Content-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        let answer = client.expect_response(method);
        (answer.head.status(), serde_json::from_slice(&answer.body).unwrap_or_default())
    }

    /// Sends a request as the operator, who may do everything.
    #[track_caller]
    fn manage(&self, method: &str, path: &str, body: &Value) -> Value {
        let token = Some(&*self.root).filter(|root| !root.is_empty());
        let mut answered = (0, Value::Null);
        // Right after its mount an engine of version 2 answers 400 for a moment.
        eventually_within(PATIENCE, "the Vault to do it", || {
            answered = self.ask(method, path, token, body);
            answered.0 < 300 || !answered.1.to_string().contains("Upgrading from non-versioned")
        });
        assert!(answered.0 < 300, "{method} {path}: {answered:?}");
        answered.1
    }

    /// Writes keys under a path: `kv/…` or `kv2/…`.
    #[track_caller]
    pub fn put(&self, path: &str, keys: &Value) {
        match path.strip_prefix("kv2/") {
            Some(rest) => self.manage("POST", &format!("kv2/data/{rest}"), &json!({"data": keys})),
            None => self.manage("POST", path, keys),
        };
    }

    /// Deletes a path's keys; with an engine of version 2, their last version.
    #[track_caller]
    pub fn delete(&self, path: &str) {
        match path.strip_prefix("kv2/") {
            Some(rest) => self.manage("DELETE", &format!("kv2/data/{rest}"), &Value::Null),
            None => self.manage("DELETE", path, &Value::Null),
        };
    }

    /// A token with the policy `gate`, which expires after `ttl`.
    #[track_caller]
    pub fn token(&self, ttl: &str) -> String {
        let made = self.manage("POST", "auth/token/create", &json!({"policies": ["gate"], "ttl": ttl}));
        text(&made["auth"]["client_token"])
    }

    /// Revokes a token.
    #[track_caller]
    pub fn revoke(&self, token: &str) {
        self.manage("POST", "auth/token/revoke", &json!({"token": token}));
    }

    /// Writes the role `gate` of the method AppRole, with these settings in addition to its policy.
    #[track_caller]
    pub fn app_role(&self, settings: Value) -> AppRole {
        let needs_secret = settings["bind_secret_id"] != false;
        self.manage("POST", "auth/approle/role/gate", &with_policy(settings));
        let role_id = self.manage("GET", "auth/approle/role/gate/role-id", &Value::Null);
        let secret_id = needs_secret.then(|| self.manage("POST", "auth/approle/role/gate/secret-id", &json!({})));
        AppRole {
            role_id: text(&role_id["data"]["role_id"]),
            secret_id: secret_id.map(|made| text(&made["data"]["secret_id"])).unwrap_or_default(),
        }
    }

    /// Configures the method Kubernetes for the cluster whose API listens at `cluster`, and writes the role `gate` for the service
    /// account `gate` in the namespace `edge`. `certificate`: in PEM; a real Vault requires one even for plain HTTP.
    #[track_caller]
    pub fn kubernetes(&self, cluster: SocketAddr, certificate: &str, settings: Value) {
        let host = format!("http://{cluster}");
        let config = json!({
            "kubernetes_host": host, "kubernetes_ca_cert": certificate, "token_reviewer_jwt": Vault::REVIEWER,
            "disable_local_ca_jwt": true,
        });
        self.manage("POST", "auth/kubernetes/config", &config);
        let mut role = with_policy(settings);
        role["bound_service_account_names"] = "gate".into();
        role["bound_service_account_namespaces"] = "edge".into();
        self.manage("POST", "auth/kubernetes/role/gate", &role);
    }

    /// Seals it.
    #[track_caller]
    pub fn seal(&self) {
        self.manage("PUT", "sys/seal", &Value::Null);
    }

    /// Unseals it.
    ///
    /// # Panics
    /// If it stays sealed.
    #[track_caller]
    pub fn unseal(&self) {
        let unsealed = self.manage("PUT", "sys/unseal", &json!({"key": self.unseal_key}));
        assert_eq!(unsealed["sealed"], false, "{unsealed}");
        // It mounts its engines first.
        eventually_within(START_PATIENCE, "the Vault to answer", || {
            self.ask("GET", "auth/token/lookup-self", Some(&self.root), &Value::Null).0 == 200
        });
    }

    /// Kills it (`kill -9`).
    #[track_caller]
    pub fn kill(&mut self) {
        match &mut self.server {
            VaultServer::Real { process, .. } => {
                process.signal("KILL");
                process.wait();
            }
            VaultServer::Double(double) => double.stop(),
        }
    }

    /// Starts it again with its data, sealed.
    #[track_caller]
    pub fn start_again(&mut self) {
        match &mut self.server {
            VaultServer::Real { program, port, folder, process } => {
                *process = spawn(program, port.addr(), folder.path())
            }
            VaultServer::Double(double) => double.start_again(),
        }
        self.await_listening();
    }

    #[track_caller]
    fn await_listening(&self) {
        let addr = self.addr();
        eventually_within(START_PATIENCE, "the Vault to listen", || TcpStream::connect(addr).is_ok());
    }
}

fn spawn(program: &OsString, addr: SocketAddr, folder: &Path) -> Process {
    let mut command = Command::new(program);
    command.arg(addr.to_string()).arg(folder.join("data"));
    Process::spawn("vault", &mut command, &folder.join("log"))
}

fn with_policy(mut settings: Value) -> Value {
    settings["token_policies"] = json!(["gate"]);
    settings
}

#[track_caller]
fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("not a text: {value}")).to_owned()
}
