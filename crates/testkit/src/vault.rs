//! A Vault with a key-value engine of each version: a real one if `VAULT` names its program, which is that of
//! `xtask/vault`; otherwise a double.
//!
//! Tests use the documented API only, so the double has to answer as a real one does. `cargo xtask vault` builds a real
//! one and runs the tests against it.

use crate::connection::BufferedSocket;
use crate::message::Message;
use crate::port::ReservedPort;
use crate::process::Process;
use crate::prometheus::Client;
use crate::upstream::Upstream;
use crate::{PATIENCE, eventually_within};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
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
        let port = crate::port::ReservedPort::new();
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

// A strict double of Vault's documented API, as far as the tests use it.
//
// It answers unknown requests as unsupported paths, which no caller takes for success. Policies only allow reads; the
// root token may do everything.

const ROOT: &str = "root";
/// The lease of a token without a TTL of its own.
const LEASE: Duration = Duration::from_secs(32 * 24 * 3600);

/// Status and body.
type Answer = (u16, Value);

#[derive(Debug)]
struct VaultDouble {
    state: Arc<Mutex<VaultState>>,
    upstream: Upstream,
}

#[derive(Debug, Default)]
struct VaultState {
    is_sealed: bool,
    /// Counter for generated names.
    named: u32,
    /// Versions of engines.
    engines: BTreeMap<String, u32>,
    /// By path, including the mount. `None`: a deleted version.
    secrets: BTreeMap<String, Option<Value>>,
    /// The paths that each policy allows to read.
    policies: BTreeMap<String, Vec<String>>,
    tokens: BTreeMap<String, DoubleToken>,
    methods: BTreeMap<String, Method>,
}

#[derive(Debug)]
struct DoubleToken {
    policies: Vec<String>,
    until: Instant,
    /// Remaining uses; `None`: unlimited.
    uses: Option<u64>,
}

/// A login method.
#[derive(Debug, Default)]
struct Method {
    /// For Kubernetes, its cluster.
    config: Value,
    /// Settings by name.
    roles: BTreeMap<String, Value>,
    /// For AppRole, the role of each id.
    role_ids: BTreeMap<String, String>,
    secret_ids: BTreeMap<String, String>,
}

impl VaultDouble {
    fn start() -> VaultDouble {
        let mut double = VaultDouble { state: Arc::default(), upstream: Upstream::refusing() };
        double.listen();
        double
    }

    fn addr(&self) -> SocketAddr {
        self.upstream.addr()
    }

    fn stop(&mut self) {
        self.upstream.stop();
    }

    /// Sealed after that.
    fn start_again(&mut self) {
        self.state.lock().unwrap().is_sealed = true;
        self.listen();
    }

    fn listen(&mut self) {
        let state = self.state.clone();
        self.upstream.start(move |connection: &mut BufferedSocket| {
            while let Ok(request) = connection.read_request() {
                let (status, body) = state.lock().unwrap().answer(&request);
                let body = if body.is_null() { String::new() } else { body.to_string() };
                let length = body.len();
                let head =
                    format!("HTTP/1.1 {status} Status\r\nContent-Type: application/json\r\nContent-Length: {length}");
                if connection.try_send(format!("{head}\r\n\r\n{body}")).is_err() {
                    return;
                }
            }
        });
    }
}

impl VaultState {
    fn answer(&mut self, request: &Message) -> Answer {
        let (method, target) = request.head.method_and_target();
        let Some(path) = target.strip_prefix("/v1/").and_then(decoded) else { return errors(404, &[]) };
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        if request.head.get("x-vault-request") != Some("true") {
            return errors(412, &["missing 'X-Vault-Request' header"]);
        }
        let parts: Vec<&str> = path.split('/').collect();
        if (method, &*path) == ("PUT", "sys/unseal") {
            self.is_sealed = false;
            return (200, json!({"sealed": false}));
        }
        if self.is_sealed {
            return errors(503, &["Vault is sealed"]);
        }
        if let ["auth", mount, "login"] = parts[..]
            && self.methods.contains_key(mount)
        {
            return self.log_in(mount, method, &body);
        }
        let token = request.head.get("x-vault-token").unwrap_or_default();
        if token == ROOT {
            return self.managed(method, &path, &parts, &body);
        }
        let now = Instant::now();
        let Some(known) = self.tokens.get_mut(token).filter(|known| known.until > now && known.uses != Some(0)) else {
            return errors(403, &["permission denied"]);
        };
        known.uses = known.uses.map(|uses| uses - 1);
        let readable: Vec<&String> =
            known.policies.iter().filter_map(|name| self.policies.get(name)).flatten().collect();
        let is_readable = |rule: &&String| match rule.strip_suffix('*') {
            Some(prefix) => path.starts_with(prefix),
            None => path == ***rule,
        };
        match method {
            "GET" if readable.iter().any(is_readable) => self.read(&path),
            // For a known token, the refusal is a list with one entry.
            _ => errors(403, &["1 error occurred:\n\t* permission denied\n\n"]),
        }
    }

    fn managed(&mut self, method: &str, path: &str, parts: &[&str], body: &Value) -> Answer {
        match (method, parts) {
            ("PUT", ["sys", "seal"]) => self.is_sealed = true,
            ("POST", ["sys", "mounts", name]) if body["type"] == "kv" => {
                let version = body["options"]["version"].as_str().unwrap_or("1").parse();
                self.engines.insert((*name).to_owned(), version.expect("the version of an engine is a number"));
            }
            ("POST", ["sys", "policies", "acl", name]) => {
                let policy: Value = serde_json::from_str(body["policy"].as_str().unwrap_or("")).unwrap_or_default();
                let paths = policy["path"].as_object().into_iter().flatten();
                let read = json!({"capabilities": ["read"]});
                let readable = paths.filter(|(_, rule)| **rule == read).map(|(path, _)| path.clone()).collect();
                self.policies.insert((*name).to_owned(), readable);
            }
            ("POST", ["sys", "auth", name]) if body["type"] == *name => {
                self.methods.insert((*name).to_owned(), Method::default());
            }
            ("GET", ["auth", "token", "lookup-self"]) => return (200, json!({"data": {"id": ROOT, "ttl": 0}})),
            ("POST", ["auth", "token", "create"]) => {
                return self.token(&body["policies"], &body["ttl"], &body["num_uses"]);
            }
            ("POST", ["auth", "token", "revoke"]) => {
                self.tokens.remove(body["token"].as_str().unwrap_or_default());
            }
            (_, ["auth", mount, rest @ ..]) if self.methods.contains_key(*mount) => {
                return self.managed_method(method, mount, rest, body);
            }
            ("GET", _) => return self.read(path),
            ("POST" | "DELETE", [engine, ..]) => return self.written(method, engine, path, body),
            _ => return errors(404, &["no handler for route"]),
        }
        (204, Value::Null)
    }

    fn managed_method(&mut self, method: &str, mount: &str, rest: &[&str], body: &Value) -> Answer {
        let name = self.name("id");
        let state = self.methods.entry(mount.to_owned()).or_default();
        match (method, mount, rest) {
            ("POST", "kubernetes", ["config"]) => state.config = body.clone(),
            ("POST", _, ["role", role]) => {
                state.roles.insert((*role).to_owned(), body.clone());
                if !state.role_ids.values().any(|known| known == role) {
                    state.role_ids.insert(name, (*role).to_owned());
                }
            }
            ("GET", "approle", ["role", role, "role-id"]) => {
                let id = state.role_ids.iter().find(|(_, known)| known == role).map(|(id, _)| id);
                return (200, json!({"data": {"role_id": id}}));
            }
            ("POST", "approle", ["role", role, "secret-id"]) => {
                state.secret_ids.insert(name.clone(), (*role).to_owned());
                return (200, json!({"data": {"secret_id": name}}));
            }
            _ => return errors(404, &["no handler for route"]),
        }
        (204, Value::Null)
    }

    fn written(&mut self, method: &str, engine: &str, path: &str, body: &Value) -> Answer {
        let keys = match self.engines.get(engine) {
            Some(1) => body,
            Some(2) if path.starts_with(&format!("{engine}/data/")) => &body["data"],
            _ => return errors(404, &["no handler for route"]),
        };
        match (method, self.engines[engine]) {
            ("DELETE", 1) => drop(self.secrets.remove(path)),
            ("DELETE", _) => drop(self.secrets.insert(path.to_owned(), None)),
            _ => drop(self.secrets.insert(path.to_owned(), Some(keys.clone()))),
        }
        (if method == "POST" && self.engines[engine] == 2 { 200 } else { 204 }, Value::Null)
    }

    fn read(&self, path: &str) -> Answer {
        let version = path.split('/').next().and_then(|engine| self.engines.get(engine));
        match (self.secrets.get(path), version) {
            (Some(Some(keys)), Some(1)) => (200, json!({"lease_duration": LEASE.as_secs(), "data": keys})),
            (Some(Some(keys)), Some(2)) => (200, json!({"data": {"data": keys, "metadata": {"version": 1}}})),
            (Some(None), Some(2)) => (404, json!({"data": {"data": null, "metadata": {"version": 1}}})),
            _ => errors(404, &[]),
        }
    }

    fn log_in(&mut self, mount: &str, method: &str, body: &Value) -> Answer {
        if method != "POST" {
            return errors(405, &["unsupported operation"]);
        }
        let known = &self.methods[mount];
        let role = match mount {
            "approle" => known.app_role(body),
            _ => known.service_account(body),
        };
        match role.cloned() {
            Ok(role) => self.token(&role["token_policies"], &role["token_ttl"], &role["token_num_uses"]),
            Err(answer) => answer,
        }
    }

    /// A new token.
    fn token(&mut self, policies: &Value, ttl: &Value, uses: &Value) -> Answer {
        let ttl = ttl.as_str().map_or(LEASE, seconds);
        let policies: Vec<String> =
            policies.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
        let name = self.name("hvs.");
        let auth =
            json!({"client_token": name, "policies": policies, "lease_duration": ttl.as_secs(), "renewable": true});
        self.tokens.insert(
            name,
            DoubleToken { policies, until: Instant::now() + ttl, uses: uses.as_u64().filter(|uses| *uses > 0) },
        );
        (200, json!({"auth": auth}))
    }

    fn name(&mut self, kind: &str) -> String {
        self.named += 1;
        format!("{kind}{}", self.named)
    }
}

impl Method {
    fn app_role(&self, body: &Value) -> Result<&Value, Answer> {
        let name = body["role_id"].as_str().and_then(|id| self.role_ids.get(id));
        let Some(name) = name else { return Err(errors(400, &["invalid role ID"])) };
        let role = &self.roles[name];
        match body["secret_id"].as_str().unwrap_or_default() {
            _ if role["bind_secret_id"] == false => Ok(role),
            "" => Err(errors(400, &["missing secret_id"])),
            id if self.secret_ids.get(id) == Some(name) => Ok(role),
            // Later versions answer 400.
            _ => Err(errors(500, &["invalid secret id"])),
        }
    }

    /// Lets the cluster review the token, which alone checks the signature.
    fn service_account(&self, body: &Value) -> Result<&Value, Answer> {
        let name = body["role"].as_str().unwrap_or_default();
        let Some(role) = self.roles.get(name) else {
            return Err(errors(400, &[&format!("invalid role name {name:?}")]));
        };
        let jwt = body["jwt"].as_str().unwrap_or_default();
        let claims = jwt.split('.').nth(1).and_then(|part| URL_SAFE_NO_PAD.decode(part).ok());
        let Some(claims) = claims.and_then(|claims| serde_json::from_slice::<Value>(&claims).ok()) else {
            return Err(errors(500, &["square/go-jose: compact JWS format must have three parts"]));
        };
        let claims = &claims["kubernetes.io"];
        if claims["namespace"] != role["bound_service_account_namespaces"] {
            return Err(errors(403, &["namespace not authorized"]));
        }
        if claims["serviceaccount"]["name"] != role["bound_service_account_names"] {
            return Err(errors(403, &["service account name not authorized"]));
        }
        if self.is_reviewed(jwt) { Ok(role) } else { Err(errors(403, &["permission denied"])) }
    }

    fn is_reviewed(&self, jwt: &str) -> bool {
        let host = self.config["kubernetes_host"].as_str().and_then(|host| host.strip_prefix("http://"));
        let Some(addr) = host.and_then(|host| host.parse::<SocketAddr>().ok()) else { return false };
        if std::net::TcpStream::connect(addr).is_err() {
            return false;
        }
        let (reviewer, body) = (&self.config["token_reviewer_jwt"], json!({"spec": {"token": jwt}}).to_string());
        let mut client = Client::connect(addr);
        client.send(format!(
            "POST /apis/authentication.k8s.io/v1/tokenreviews HTTP/1.1\r\nHost: cluster\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            reviewer.as_str().unwrap_or_default(),
            body.len()
        ));
        let review: Value = serde_json::from_slice(&client.expect_response("POST").body).unwrap_or_default();
        review["status"]["authenticated"] == true
    }
}

fn errors(status: u16, errors: &[&str]) -> Answer {
    (status, json!({"errors": errors}))
}

/// Parses for example `2s`.
fn seconds(text: &str) -> Duration {
    let number = text.strip_suffix('s').and_then(|number| number.parse().ok());
    Duration::from_secs(number.expect("a number of seconds with its unit"))
}

/// Decodes percent-encoding; `None` if it is invalid.
fn decoded(path: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut parts = path.split('%');
    bytes.extend(parts.next()?.bytes());
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend(part[2..].bytes());
    }
    String::from_utf8(bytes).ok()
}
