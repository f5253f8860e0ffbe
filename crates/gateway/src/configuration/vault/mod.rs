//! Secrets that Vaults keep: read when a configuration needs them, kept, and read again in the background.
//!
//! ```text
//!  resolve ─▶ kept? ─ yes ─▶ what was read last               thread `secrets`: every `refresh`, all paths in use again
//!               │ no                                             │ another value, or gone
//!               ▼                                                ▼
//!             ask and wait, at most `timeout`                  the configuration is read again
//! ```
//!
//! A configuration first fetches all its paths: they are read at the same time, [`READS_MAX`] of a Vault at once, and the wait
//! for all of them ends after `timeout`. So a slow Vault delays a configuration once, not once for each path.
//!
//! While a Vault does not answer, what was read before stays good. A Vault that did not answer, and a path that could not be
//! read, are left alone for five seconds.

#[cfg(test)]
mod tests;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Map, Value as Json, json};
use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use stillgate_outbound::HttpClient;
use stillgate_plugin_api::secrets::{KvVersion, Manager, Secret, VaultLogin};
use stillgate_tls::{Peer, ServiceRoots, towards_service};
use tokio::runtime::Builder;
use tokio::sync::{Mutex as AsyncMutex, Semaphore, mpsc, watch};
use tokio_rustls::TlsConnector;
use tracing::{info, warn};

/// The TLS connector for a Vault behind an `https` URL.
pub(crate) fn connector(manager: &Manager) -> Result<TlsConnector, String> {
    let system: Vec<Vec<u8>>;
    let roots = match (&manager.ca, manager.verify) {
        (_, false) => ServiceRoots::Anyone,
        (Some(ca), true) => ServiceRoots::Pem(ca.as_bytes()),
        (None, true) => {
            let found = rustls_native_certs::load_native_certs();
            system = found.certs.iter().map(|certificate| certificate.to_vec()).collect();
            ServiceRoots::Der(&system)
        }
    };
    towards_service(roots).map(TlsConnector::from)
}

// The secrets that were read from Vaults, and the thread that reads them.

/// How long a path that could not be read is not requested again.
const NEGATIVE: Duration = Duration::from_secs(5);
/// Maximum number of paths that are kept; more are refused.
const PATHS_MAX: usize = 4096;
/// Maximum number of paths that are read from one Vault at the same time.
const READS_MAX: usize = 32;
/// Time for an answer beyond a manager's `timeout`, which ends the request itself.
const GRACE: Duration = Duration::from_secs(1);

/// Makes the TLS connector for an `https` Vault.
type Tls = fn(&Manager) -> Result<TlsConnector, String>;
/// A secret's place: the Vault as it is configured, and the path.
type SecretPath = (Arc<Manager>, Box<str>);

/// The secrets in Vaults, as far as this process has read them.
#[derive(Clone)]
pub(crate) struct Vaults {
    shared: Arc<VaultCache>,
    orders: mpsc::Sender<SecretPath>,
}

struct VaultCache {
    kept: Mutex<HashMap<SecretPath, CachedSecret>>,
    /// Notified when something was read.
    read: Condvar,
}

struct CachedSecret {
    /// The last answer; after a temporary failure, the value before it.
    answer: Option<Result<Data, String>>,
    at: Instant,
    /// Since when it is being read; `None`: it is not.
    asked: Option<Instant>,
    /// The last attempt failed temporarily. If a value was read before, that has been logged.
    is_failing: bool,
}

impl Vaults {
    /// Starts the thread. `tls`: makes the TLS connector for an `https` Vault. `changes` counts the times that a value changed
    /// after it was read.
    pub(crate) fn start(tls: Tls, changes: watch::Sender<u64>) -> std::io::Result<Vaults> {
        let shared = Arc::new(VaultCache { kept: Mutex::default(), read: Condvar::new() });
        let (orders, ordered) = mpsc::channel(PATHS_MAX);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let reader = VaultThread { shared: shared.clone(), clients: HashMap::new(), tls, changes };
        thread::Builder::new().name("secrets".to_owned()).spawn(move || runtime.block_on(reader.run(ordered)))?;
        Ok(Vaults { shared, orders })
    }

    /// A key of the secret at a path. Blocks at the first use.
    pub(crate) fn resolve(&self, manager: &Arc<Manager>, path: &str, key: &str) -> Result<String, String> {
        let place: SecretPath = (manager.clone(), path.into());
        let mut kept = self.shared.lock();
        if !self.order(&mut kept, &place) {
            return Err(format!("more than {PATHS_MAX} paths of Vaults are in use; use keys of fewer paths"));
        }
        let mut kept = self.shared.wait_for(kept, &place);
        let answer = kept.get_mut(&place).map(|one| {
            let late = || Err(format!("{}: no answer within {} s", manager.uri, manager.timeout.as_secs()));
            // An answer that comes later is another one, so the configuration is read again.
            one.answer.get_or_insert_with(late).clone()
        });
        answer
            .unwrap_or_else(|| Err("it was forgotten while it was read; try again".to_owned()))
            .and_then(|data| text_of(data.get(key), path, key))
    }

    /// Reads all of these paths that are not known yet, at the same time. Blocks until each has its answer, or had its time.
    pub(crate) fn fetch(&self, places: &[SecretPath]) {
        let mut kept = self.shared.lock();
        for place in places {
            self.order(&mut kept, place);
        }
        for place in places {
            kept = self.shared.wait_for(kept, place);
        }
    }

    /// Has all of these paths read that are not known yet; `true`: each has its answer, or had its time.
    pub(crate) fn has_fetched(&self, places: &[SecretPath]) -> bool {
        let mut kept = self.shared.lock();
        let mut has_all = true;
        for place in places {
            self.order(&mut kept, place);
            has_all &= kept.get(place).and_then(|one| one.time_left(place)).is_none();
        }
        has_all
    }

    /// Has a path read unless it is known; `false`: there are too many.
    fn order(&self, kept: &mut HashMap<SecretPath, CachedSecret>, place: &SecretPath) -> bool {
        if kept.len() >= PATHS_MAX && !kept.contains_key(place) {
            return false;
        }
        let now = Instant::now();
        let one = kept.entry(place.clone()).or_insert_with(|| CachedSecret::new(now));
        // Each path has one order at most, so the channel has room; the thread ends with the process only.
        if one.wants(now) && self.orders.try_send(place.clone()).is_ok() {
            one.asked = Some(now);
        }
        true
    }

    /// Forgets all but these paths, each with its manager.
    pub(crate) fn keep(&self, used: &HashSet<SecretPath>) {
        self.shared.lock().retain(|place, kept| kept.asked.is_some() || used.contains(place));
    }
}

impl VaultCache {
    fn lock(&self) -> MutexGuard<'_, HashMap<SecretPath, CachedSecret>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a path that is being read has an answer, or had its time since it was ordered.
    fn wait_for<'k>(
        &'k self,
        mut kept: MutexGuard<'k, HashMap<SecretPath, CachedSecret>>,
        place: &SecretPath,
    ) -> MutexGuard<'k, HashMap<SecretPath, CachedSecret>> {
        loop {
            let Some(left) = kept.get(place).and_then(|one| one.time_left(place)) else { return kept };
            kept = self.read.wait_timeout(kept, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl CachedSecret {
    fn new(at: Instant) -> CachedSecret {
        CachedSecret { answer: None, at, asked: None, is_failing: false }
    }

    /// The time for which its answer is waited for; `None`: it is there, or had its time.
    fn time_left(&self, (manager, _): &SecretPath) -> Option<Duration> {
        let asked = self.asked.filter(|_| self.answer.is_none())?;
        (asked + manager.timeout + GRACE).checked_duration_since(Instant::now())
    }

    /// Whether it has to be read before it can be used.
    fn wants(&self, now: Instant) -> bool {
        let is_old = now.saturating_duration_since(self.at) >= NEGATIVE;
        self.asked.is_none() && (self.answer.is_none() || (is_old && matches!(self.answer, Some(Err(_)))))
    }
}

fn text_of(value: Option<&Json>, path: &str, key: &str) -> Result<String, String> {
    match value {
        Some(Json::String(text)) if text.is_empty() => Err(format!("the key {key:?} under {path:?} is empty")),
        Some(Json::String(text)) => Ok(text.clone()),
        Some(Json::Number(number)) => Ok(number.to_string()),
        Some(_) => Err(format!("the key {key:?} under {path:?} is not a text")),
        None => Err(format!("there is no key {key:?} under {path:?}")),
    }
}

/// The thread's state.
struct VaultThread {
    shared: Arc<VaultCache>,
    clients: HashMap<Arc<Manager>, Result<Arc<VaultClient>, String>>,
    tls: Tls,
    changes: watch::Sender<u64>,
}

impl VaultThread {
    async fn run(mut self, mut ordered: mpsc::Receiver<SecretPath>) {
        let mut reads = FuturesUnordered::new();
        loop {
            let due = self.next_due();
            let wait =
                due.as_ref().map_or(Duration::from_secs(3600), |(at, _)| at.saturating_duration_since(Instant::now()));
            tokio::select! {
                Some((place, answer)) = reads.next() => {
                    if self.keep(&place, answer) {
                        self.changes.send_modify(|count| *count += 1);
                    }
                }
                order = ordered.recv() => match order {
                    Some(place) => reads.push(self.read(place)),
                    None => return,
                },
                () = tokio::time::sleep(wait) => {
                    if let Some((_, place)) = due {
                        if let Some(one) = self.shared.lock().get_mut(&place) {
                            one.asked = Some(Instant::now());
                        }
                        reads.push(self.read(place));
                    }
                }
            }
        }
    }

    /// The secret that is to be read again next, and when.
    fn next_due(&self) -> Option<(Instant, SecretPath)> {
        let kept = self.shared.lock();
        let due = |(place, kept): (&SecretPath, &CachedSecret)| {
            let after = if kept.is_failing { NEGATIVE.max(place.0.refresh / 10) } else { place.0.refresh };
            kept.answer.as_ref().filter(|_| kept.asked.is_none()).map(|_| (kept.at + after, place.clone()))
        };
        kept.iter().filter_map(due).min_by_key(|(at, _)| *at)
    }

    /// Begins to read a path.
    fn read(&mut self, place: SecretPath) -> impl Future<Output = (SecretPath, Result<Data, VaultFailure>)> + use<> {
        let (manager, tls) = (&place.0, self.tls);
        if !self.clients.contains_key(manager) {
            // Forgets the managers that nothing uses any more.
            let used: HashSet<Arc<Manager>> = self.shared.lock().keys().map(|(manager, _)| manager.clone()).collect();
            self.clients.retain(|manager, _| used.contains(manager));
        }
        let client = self.clients.entry(manager.clone()).or_insert_with(|| {
            let tls = manager.uri.starts_with("https://").then(|| tls(manager)).transpose()?;
            Ok(Arc::new(VaultClient::new(manager.clone(), tls)))
        });
        let client = client.clone();
        async move {
            let answer = match client {
                Ok(client) => client.read_in_turn(&place.1).await,
                Err(why) => Err(VaultFailure::Definite(why)),
            };
            (place, answer)
        }
    }

    /// Whether the answer differs from the one before.
    fn keep(&self, place: &SecretPath, answer: Result<Data, VaultFailure>) -> bool {
        let mut kept = self.shared.lock();
        let one = kept.entry(place.clone()).or_insert_with(|| CachedSecret::new(Instant::now()));
        (one.at, one.asked) = (Instant::now(), None);
        let (path, before) = (&place.1, one.answer.take());
        let next = match (answer, before.clone()) {
            (Ok(data), _) => {
                if std::mem::take(&mut one.is_failing) {
                    info!(vault = %place.0.uri, path = %path, "a secret can be read again");
                }
                Ok(data)
            }
            (Err(VaultFailure::Passing(why)), Some(Ok(data))) => {
                if !std::mem::replace(&mut one.is_failing, true) {
                    warn!(path = %path, "a secret cannot be read again; what was read before stays in use: {why}");
                }
                Ok(data)
            }
            (Err(VaultFailure::Passing(why)), _) => {
                one.is_failing = true;
                Err(why)
            }
            (Err(VaultFailure::Definite(why)), _) => Err(why),
        };
        let is_changed = before.is_some_and(|before| before != next);
        one.answer = Some(next);
        drop(kept);
        self.shared.read.notify_all();
        is_changed
    }
}

// A client of one Vault over its HTTP API: logging in, and reading a path of a key-value engine.
//
// Requests and answers are those of the API's documentation: `secret/kv` (versions 1 and 2), `auth/kubernetes`,
// `auth/approle`. No message holds anything that a secret was read from or with.

/// Maximum size of an answer, in bytes.
const RESPONSE_BYTES_MAX: usize = 1024 * 1024;
/// The largest token of a Kubernetes service account.
const JWT_BYTES_MAX: usize = 64 * 1024;
/// Part of the error, with status 400, of an engine that is being upgraded to version 2 and cannot be read yet.
const UPGRADING: &str = "non-versioned to versioned data";
/// A token whose lease does not end is renewed after this time.
const LOGIN_AGAIN: Duration = Duration::from_secs(3600);
const AGENT: &str = concat!("stillgate/", env!("CARGO_PKG_VERSION"), " (secrets)");

/// The data under one path.
type Data = Arc<Map<String, Json>>;

/// Why the data could not be read.
#[derive(Debug, Clone, PartialEq)]
enum VaultFailure {
    /// The Vault has answered, and a repeated request would not change the answer.
    Definite(String),
    /// A later request may succeed: the last value stays good.
    Passing(String),
}

/// A client of one Vault.
struct VaultClient {
    manager: Arc<Manager>,
    http: HttpClient,
    /// Locked while logging in, so that this is done once for all that wait.
    token: AsyncMutex<Option<VaultToken>>,
    /// Limits the requests at the same time.
    turns: Semaphore,
    /// The Vault did not answer: until when it gets no requests, and why.
    down: Mutex<Option<(Instant, String)>>,
}

struct VaultToken {
    text: HeaderValue,
    /// When to log in again; `None`: the token was configured.
    until: Option<Instant>,
}

impl VaultClient {
    /// `tls`: for `https` URLs.
    fn new(manager: Arc<Manager>, tls: Option<TlsConnector>) -> VaultClient {
        let http = HttpClient {
            tls,
            allows_plain: true,
            peer: Peer::Service,
            agent: AGENT,
            timeout: manager.timeout,
            response_bytes_max: RESPONSE_BYTES_MAX,
        };
        let (token, turns, down) = (AsyncMutex::default(), Semaphore::new(READS_MAX), Mutex::default());
        VaultClient { manager, http, token, turns, down }
    }

    fn outage(&self) -> MutexGuard<'_, Option<(Instant, String)>> {
        self.down.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a path behind the prefix when not too many others are being read, unless the Vault has not answered lately.
    async fn read_in_turn(&self, path: &str) -> Result<Data, VaultFailure> {
        let _turn = self.turns.acquire().await.expect("the semaphore is never closed");
        if let Some((until, why)) = &*self.outage()
            && Instant::now() < *until
        {
            return Err(VaultFailure::Passing(why.clone()));
        }
        let answer = self.read(path).await;
        *self.outage() = match &answer {
            Err(VaultFailure::Passing(why)) => Some((Instant::now() + NEGATIVE, why.clone())),
            Ok(_) | Err(VaultFailure::Definite(_)) => None,
        };
        answer
    }

    async fn read(&self, path: &str) -> Result<Data, VaultFailure> {
        let url = self.url_of(path)?;
        let known = self.token.lock().await.as_ref().map(|token| token.text.clone());
        let response = self.get(&url).await?;
        // A revoked token is refused like one without permission: a second attempt with a new token distinguishes them.
        let response = match response.status() {
            StatusCode::FORBIDDEN if known.is_some() && !matches!(self.manager.login, VaultLogin::Token(_)) => {
                self.token.lock().await.take_if(|token| Some(&token.text) == known.as_ref());
                self.get(&url).await?
            }
            _ => response,
        };
        data_of(&response, path, self.manager.version)
    }

    async fn get(&self, url: &str) -> Result<Response<Bytes>, VaultFailure> {
        let token = self.token().await?;
        let request = self.request(Method::GET, url).header("X-Vault-Token", token);
        self.send(request.body(Full::default())).await
    }

    /// The token to authenticate with, which may have to be obtained first.
    async fn token(&self) -> Result<HeaderValue, VaultFailure> {
        let mut known = self.token.lock().await;
        if let Some(token) = &*known
            && token.until.is_none_or(|until| Instant::now() < until)
        {
            return Ok(token.text.clone());
        }
        let (mount, credentials) = match &self.manager.login {
            VaultLogin::Token(token) => {
                let text = header_of(token.reveal())?;
                *known = Some(VaultToken { text: text.clone(), until: None });
                return Ok(text);
            }
            VaultLogin::Kubernetes { mount, role, jwt_file } => {
                (mount, json!({"role": role, "jwt": service_account(jwt_file)?}))
            }
            VaultLogin::AppRole { mount, role_id, secret_id } => {
                let secret_id = secret_id.as_ref().map(Secret::reveal);
                (mount, json!({"role_id": role_id.reveal(), "secret_id": secret_id}))
            }
        };
        let url = format!("{}/v1/auth/{}/login", self.manager.uri, encoded(mount)?);
        let body = Full::from(credentials.to_string());
        let request = self.request(Method::POST, &url).header(CONTENT_TYPE, "application/json");
        let response = self.send(request.body(body)).await?;
        let token = token_of(&response, mount)?;
        let text = token.text.clone();
        *known = Some(token);
        Ok(text)
    }

    fn request(&self, method: Method, url: &str) -> hyper::http::request::Builder {
        let request = Request::builder().method(method).uri(url).header("X-Vault-Request", "true");
        match &self.manager.namespace {
            Some(namespace) => request.header("X-Vault-Namespace", &**namespace),
            None => request,
        }
    }

    async fn send(
        &self,
        request: Result<Request<Full<Bytes>>, hyper::http::Error>,
    ) -> Result<Response<Bytes>, VaultFailure> {
        let request = request.map_err(|error| VaultFailure::Definite(format!("the Vault cannot be asked: {error}")))?;
        let response = self.http.send(request).await;
        let response = response.map_err(|error| VaultFailure::Passing(format!("{}: {error}", self.manager.uri)))?;
        match response.status() {
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                let sealed = if status == StatusCode::SERVICE_UNAVAILABLE { "; is it sealed?" } else { "" };
                Err(VaultFailure::Passing(format!("{} answered {status}{sealed}", self.manager.uri)))
            }
            status if status.is_redirection() => {
                let message = format!("{} answered {status}; write the address that it leads to", self.manager.uri);
                Err(VaultFailure::Definite(message))
            }
            _ => Ok(response),
        }
    }

    /// Version 2 of the engine has `data` between its mount, which is the first part of the prefix, and the path.
    fn url_of(&self, path: &str) -> Result<String, VaultFailure> {
        let Manager { uri, prefix, version, .. } = &*self.manager;
        let (prefix, path) = (encoded(prefix)?, encoded(path)?);
        Ok(match version {
            KvVersion::One => format!("{uri}/v1/{prefix}/{path}"),
            KvVersion::Two => match prefix.split_once('/') {
                Some((mount, rest)) => format!("{uri}/v1/{mount}/data/{rest}/{path}"),
                None => format!("{uri}/v1/{prefix}/data/{path}"),
            },
        })
    }
}

/// A path in a URL. Parts that are empty or lead to a parent are refused.
fn encoded(path: &str) -> Result<String, VaultFailure> {
    let mut out = String::with_capacity(path.len());
    for (at, part) in path.trim_matches('/').split('/').enumerate() {
        if matches!(part, "" | "." | "..") {
            return Err(VaultFailure::Definite(format!("{path:?} is not a path of a Vault; write it as A/B")));
        }
        if at > 0 {
            out.push('/');
        }
        for byte in part.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(byte.into()),
                _ => out.push_str(&format!("%{byte:02X}")),
            }
        }
    }
    Ok(out)
}

fn header_of(token: &str) -> Result<HeaderValue, VaultFailure> {
    let value = HeaderValue::from_str(token.trim());
    let mut value =
        value.map_err(|_| VaultFailure::Definite("the token has characters that no token has".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

fn service_account(file: &Path) -> Result<String, VaultFailure> {
    let path = file.display();
    let bytes = stillgate_files::read_bounded(file, JWT_BYTES_MAX).map_err(|error| {
        VaultFailure::Passing(format!("the service account's token {path} cannot be read: {error}"))
    })?;
    let text = String::from_utf8(bytes).ok().filter(|text| text.len() <= JWT_BYTES_MAX);
    match text.as_deref().map(str::trim) {
        Some(text) if !text.is_empty() => Ok(text.to_owned()),
        _ => Err(VaultFailure::Definite(format!("{path} holds no token of a service account"))),
    }
}

fn data_of(response: &Response<Bytes>, path: &str, version: KvVersion) -> Result<Data, VaultFailure> {
    let body: Option<Json> = serde_json::from_slice(response.body()).ok();
    match response.status() {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => {
            let hint = match version {
                KvVersion::One => "write it, or set `kv_version: 2` if the engine has versions",
                KvVersion::Two => "write it, or remove `kv_version` if the engine has no versions",
            };
            return Err(VaultFailure::Definite(format!("the Vault has nothing under {path:?}; {hint}")));
        }
        StatusCode::FORBIDDEN => {
            let hint = "give the token a policy that can read it";
            return Err(VaultFailure::Definite(format!("the Vault does not let {path:?} be read; {hint}")));
        }
        StatusCode::BAD_REQUEST if body.as_ref().is_some_and(|body| body["errors"].to_string().contains(UPGRADING)) => {
            return Err(VaultFailure::Passing(format!(
                "the Vault is upgrading the engine of {path:?} to version 2; it can be read when that is done"
            )));
        }
        status => return Err(VaultFailure::Definite(format!("the Vault answered {status} for {path:?}"))),
    }
    let data = body.as_ref().and_then(|body| body.get("data"));
    let data = match version {
        KvVersion::One => data,
        KvVersion::Two => data.and_then(|data| data.get("data")),
    };
    match data.and_then(Json::as_object) {
        Some(data) => Ok(Arc::new(data.clone())),
        None => Err(VaultFailure::Definite(format!("what the Vault has under {path:?} is not a map of keys"))),
    }
}

fn token_of(response: &Response<Bytes>, mount: &str) -> Result<VaultToken, VaultFailure> {
    if response.status() != StatusCode::OK {
        let hint = "look at the role, and at what the Vault's audit log says";
        return Err(VaultFailure::Definite(format!(
            "logging in at auth/{mount} was answered {}; {hint}",
            response.status()
        )));
    }
    let body: Option<Json> = serde_json::from_slice(response.body()).ok();
    let auth = body.as_ref().and_then(|body| body.get("auth"));
    let Some(text) = auth.and_then(|auth| auth.get("client_token")?.as_str()) else {
        return Err(VaultFailure::Definite(format!("logging in at auth/{mount} gave no token")));
    };
    let lease = auth.and_then(|auth| auth.get("lease_duration")?.as_u64()).filter(|seconds| *seconds > 0);
    // Two thirds, so that a Vault that is away for a while is back before the token has ended.
    let lease = lease.map_or(LOGIN_AGAIN, |seconds| Duration::from_secs(seconds.min(30 * 24 * 3600)) * 2 / 3);
    Ok(VaultToken { text: header_of(text)?, until: Some(Instant::now() + lease) })
}

#[cfg(test)]
mod keeper_tests {
    use super::*;
    use stillgate_plugin_api::secrets::{KvVersion, Secret, VaultLogin};

    #[test]
    fn a_failure_that_may_pass_is_tried_again_sooner() {
        let manager = Manager {
            uri: "http://127.0.0.1:1".into(),
            prefix: "kv".into(),
            namespace: None,
            version: KvVersion::One,
            login: VaultLogin::Token(Secret::new("root")),
            ca: None,
            verify: true,
            timeout: Duration::from_secs(20),
            refresh: Duration::from_secs(3600),
        };
        let reader = VaultThread {
            shared: Arc::new(VaultCache { kept: Mutex::default(), read: Condvar::new() }),
            clients: HashMap::new(),
            tls: |_| Err(String::new()),
            changes: watch::Sender::new(0),
        };
        let place: SecretPath = (Arc::new(manager), "jack".into());
        for (answer, secs) in [
            (Err(VaultFailure::Definite("nothing there".to_owned())), 3600),
            (Err(VaultFailure::Passing("sealed".to_owned())), 360),
            (Ok(Arc::default()), 3600),
            (Err(VaultFailure::Passing("sealed".to_owned())), 360),
        ] {
            let before = Instant::now();
            reader.keep(&place, answer);
            let (due, _) = reader.next_due().unwrap();
            let wait = Duration::from_secs(secs);
            assert!((before + wait..=Instant::now() + wait).contains(&due), "{secs} s");
        }
    }
}

#[cfg(test)]
mod client_tests {
    use super::*;

    #[test]
    fn paths_cannot_lead_elsewhere() {
        assert_eq!(encoded("/kv/a b/").as_deref(), Ok("kv/a%20b"));
        assert_eq!(encoded("kv/a?b#c%2e").as_deref(), Ok("kv/a%3Fb%23c%252e"));
        for wrong in ["", "/", "a//b", "../sys", "a/./b", "a/.."] {
            assert!(encoded(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_engine_that_is_being_upgraded_is_waited_for() {
        let answered = |error: &str| {
            let body = json!({"errors": [error]}).to_string();
            let response = Response::builder().status(400).body(Bytes::from(body)).unwrap();
            data_of(&response, "jack", KvVersion::Two).unwrap_err()
        };
        // The wording is that of a server of version 1.14.0.
        for upgrading in [
            "Upgrading from non-versioned to versioned data. This backend will be unavailable for a brief period and will resume \
             service shortly.",
            "Waiting for the primary to upgrade from non-versioned to versioned data. This backend will be unavailable for a brief \
             period and will resume service when the primary is finished.",
        ] {
            assert!(
                matches!(answered(upgrading), VaultFailure::Passing(why) if why.contains("is upgrading")),
                "{upgrading}"
            );
        }
        assert!(matches!(answered("missing client token"), VaultFailure::Definite(_)));
    }
}
