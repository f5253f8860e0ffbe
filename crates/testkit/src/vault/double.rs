//! A strict double of Vault's documented API, as far as the tests use it.
//!
//! It answers unknown requests as unsupported paths, which no caller takes for success. Policies only allow reads; the
//! root token may do everything.

use crate::client::Client;
use crate::connection::BufferedSocket;
use crate::message::Message;
use crate::upstream::Upstream;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const ROOT: &str = "root";
/// The lease of a token without a TTL of its own.
const LEASE: Duration = Duration::from_secs(32 * 24 * 3600);

/// Status and body.
type Answer = (u16, Value);

#[derive(Debug)]
pub(super) struct VaultDouble {
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
    pub(super) fn start() -> VaultDouble {
        let mut double = VaultDouble { state: Arc::default(), upstream: Upstream::refusing() };
        double.listen();
        double
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.upstream.addr()
    }

    pub(super) fn stop(&mut self) {
        self.upstream.stop();
    }

    /// Sealed after that.
    pub(super) fn start_again(&mut self) {
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
