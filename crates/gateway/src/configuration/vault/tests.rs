//! Vaults against a double that answers only what the API's documentation says, to requests that are exactly as documented.

use super::{READS_MAX, SecretPath, Vaults};
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use stillgate_plugin_api::secrets::{KvVersion, Manager, Secret, VaultLogin};
use tokio::sync::watch;

/// A Vault with one engine of each version, `kv` and `kv2`, and two ways to log in.
#[derive(Clone)]
struct Double {
    uri: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    secrets: BTreeMap<String, Json>,
    /// Tokens that may read.
    tokens: HashSet<String>,
    logins: u32,
    requests: u32,
    namespace: Option<String>,
    /// Answers this to everything.
    broken: Option<u16>,
    /// Requests wait here before they are answered.
    gate: Option<Arc<Barrier>>,
    /// The time until it answers.
    delay: Duration,
}

impl Double {
    fn start() -> Double {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap());
        let double = Double { uri, state: Arc::default() };
        let state = double.state.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let state = state.clone();
                thread::spawn(move || answer(stream.unwrap(), &state));
            }
        });
        double.state.lock().unwrap().tokens.insert("root".to_owned());
        double
    }

    fn put(&self, path: &str, data: Json) {
        self.state.lock().unwrap().secrets.insert(path.to_owned(), data);
    }

    fn breaks(&self, status: Option<u16>) {
        self.state.lock().unwrap().broken = status;
    }

    fn manager(&self, prefix: &str, version: KvVersion) -> Manager {
        Manager {
            uri: self.uri.clone().into(),
            prefix: prefix.into(),
            namespace: None,
            version,
            login: VaultLogin::Token(Secret::new("root")),
            ca: None,
            verify: true,
            timeout: Duration::from_secs(20),
            refresh: Duration::from_secs(3600),
        }
    }
}

fn answer(mut stream: TcpStream, state: &Mutex<State>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let (mut fields, mut length) = (BTreeMap::new(), 0);
    loop {
        let mut field = String::new();
        if reader.read_line(&mut field).unwrap() <= 2 {
            break;
        }
        let (name, value) = field.trim().split_once(": ").unwrap();
        if name.eq_ignore_ascii_case("content-length") {
            length = value.parse().unwrap();
        }
        fields.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let gate = state.lock().unwrap().gate.clone();
    if let Some(gate) = gate {
        gate.wait();
    }
    let delay = state.lock().unwrap().delay;
    thread::sleep(delay);
    let (status, json) = respond(line.trim(), &fields, &body, &mut state.lock().unwrap());
    let json = json.to_string();
    let head =
        format!("HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", json.len());
    // A client that has given up is gone.
    let _ = stream.write_all([head.as_bytes(), json.as_bytes()].concat().as_slice());
}

fn respond(line: &str, fields: &BTreeMap<String, String>, body: &[u8], state: &mut State) -> (u16, Json) {
    state.requests += 1;
    let errors = |status: u16, error: &str| (status, json!({"errors": [error]}));
    if let Some(status) = state.broken {
        return errors(status, "Vault is sealed");
    }
    assert_eq!(fields.get("x-vault-request").map(String::as_str), Some("true"));
    if fields.get("x-vault-namespace").cloned() != state.namespace {
        return errors(404, "no handler for route");
    }
    let mut words = line.split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap().strip_prefix("/v1/").unwrap());
    if let Some(mount) = path.strip_prefix("auth/").and_then(|path| path.strip_suffix("/login")) {
        assert_eq!((method, fields.get("x-vault-token")), ("POST", None));
        let body: Json = serde_json::from_slice(body).unwrap();
        let is_known = match mount {
            "kubernetes" => body == json!({"role": "gate", "jwt": "a.b.c"}),
            "approle" => body == json!({"role_id": "role", "secret_id": "hidden"}),
            _ => false,
        };
        if !is_known {
            return errors(400, "invalid role or secret ID");
        }
        state.logins += 1;
        let token = format!("hvs.{}", state.logins);
        state.tokens.insert(token.clone());
        return (200, json!({"auth": {"client_token": token, "lease_duration": 3600, "renewable": true}}));
    }
    assert_eq!(method, "GET");
    if !fields.get("x-vault-token").is_some_and(|token| state.tokens.contains(token)) {
        return errors(403, "permission denied");
    }
    match (state.secrets.get(path), path.starts_with("kv2/")) {
        (None, _) => (404, json!({"errors": []})),
        (Some(data), false) => (200, json!({"lease_duration": 2_764_800, "data": data})),
        (Some(data), true) => (200, json!({"data": {"data": data, "metadata": {"version": 3}}})),
    }
}

fn vaults() -> Vaults {
    Vaults::start(|_| Err("no TLS in this test".to_owned()), watch::Sender::new(0)).unwrap()
}

/// Waits until `holds`, with a bound that only a failure reaches.
fn eventually(holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(300), "it never came");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn keys_are_read_of_both_versions() {
    let double = Double::start();
    double.put("kv/apisix/jack", json!({"auth-key": "one", "number": 7, "empty": "", "list": []}));
    double.put("kv2/data/apisix/jack", json!({"auth-key": "two"}));
    let vaults = vaults();
    let (one, two) = (double.manager("kv/apisix", KvVersion::One), double.manager("/kv2/apisix/", KvVersion::Two));
    let (one, two) = (Arc::new(one), Arc::new(two));
    assert_eq!(vaults.resolve(&one, "jack", "auth-key").as_deref(), Ok("one"));
    assert_eq!(vaults.resolve(&one, "jack", "number").as_deref(), Ok("7"));
    assert_eq!(vaults.resolve(&two, "jack", "auth-key").as_deref(), Ok("two"));
    let requests = double.state.lock().unwrap().requests;
    assert_eq!(requests, 2, "a path is read once for all its keys");
    for (key, expected) in [
        ("empty", "the key \"empty\" under \"jack\" is empty"),
        ("list", "the key \"list\" under \"jack\" is not a text"),
        ("none", "there is no key \"none\" under \"jack\""),
    ] {
        assert_eq!(vaults.resolve(&one, "jack", key), Err(expected.to_owned()));
    }
    let missing = vaults.resolve(&one, "rose", "auth-key").unwrap_err();
    assert!(missing.contains("nothing under \"rose\"; write it, or set `kv_version: 2`"), "{missing}");
    assert!(vaults.resolve(&one, "../sys", "auth-key").unwrap_err().contains("is not a path"));
}

#[test]
fn paths_are_fetched_at_the_same_time() {
    let double = Double::start();
    let (vaults, manager) = (vaults(), Arc::new(double.manager("kv", KvVersion::One)));
    let places: Vec<SecretPath> = (0..READS_MAX).map(|path| (manager.clone(), path.to_string().into())).collect();
    places.iter().for_each(|(_, path)| double.put(&format!("kv/{path}"), json!({"key": path})));
    // None is answered until all have come.
    double.state.lock().unwrap().gate = Some(Arc::new(Barrier::new(READS_MAX)));
    vaults.fetch(&places);
    for (manager, path) in &places {
        assert_eq!(vaults.resolve(manager, path, "key").as_deref(), Ok(&**path));
    }
    assert_eq!(double.state.lock().unwrap().requests as usize, READS_MAX);
}

/// A caller that must not wait looks again.
#[test]
fn paths_can_be_fetched_without_waiting() {
    let double = Double::start();
    let (vaults, manager) = (vaults(), Arc::new(double.manager("kv", KvVersion::One)));
    double.put("kv/a", json!({"key": "value"}));
    let gate = Arc::new(Barrier::new(2));
    double.state.lock().unwrap().gate = Some(gate.clone());
    let places: [SecretPath; 1] = [(manager.clone(), "a".into())];
    assert!(!vaults.has_fetched(&places));
    assert!(!vaults.has_fetched(&places));
    gate.wait();
    eventually(|| vaults.has_fetched(&places));
    assert_eq!(vaults.resolve(&manager, "a", "key").as_deref(), Ok("value"));
    assert_eq!(double.state.lock().unwrap().requests, 1);
}

#[test]
fn a_vault_that_does_not_answer_is_waited_for_once() {
    let double = Double::start();
    let gate = Arc::new(Barrier::new(usize::MAX));
    double.state.lock().unwrap().gate = Some(gate);
    let manager = Arc::new(Manager { timeout: Duration::from_secs(2), ..double.manager("kv", KvVersion::One) });
    let vaults = vaults();
    let places: Vec<SecretPath> = (0..100).map(|path| (manager.clone(), path.to_string().into())).collect();
    let began = Instant::now();
    vaults.fetch(&places);
    for (manager, path) in &places {
        assert!(vaults.resolve(manager, path, "key").is_err());
    }
    assert!(began.elapsed() < Duration::from_secs(60), "one after the other would take 200 s: {:?}", began.elapsed());
}

#[test]
fn an_answer_that_came_too_late_is_a_change() {
    let double = Double::start();
    double.put("kv/a", json!({"key": "value"}));
    // The login takes a time of its own, so the wait ends before the request does.
    let timeout = Duration::from_secs(8);
    let login = VaultLogin::AppRole {
        mount: "approle".into(),
        role_id: Secret::new("role"),
        secret_id: Some(Secret::new("hidden")),
    };
    let manager = Arc::new(Manager { login, timeout, ..double.manager("kv", KvVersion::One) });
    let changes = watch::Sender::new(0);
    let vaults = Vaults::start(|_| Err(String::new()), changes.clone()).unwrap();
    double.state.lock().unwrap().delay = Duration::from_secs(5);
    let why = vaults.resolve(&manager, "a", "key").unwrap_err();
    assert!(why.contains("no answer within 8 s"), "{why}");
    eventually(|| *changes.borrow() == 1);
    assert_eq!(vaults.resolve(&manager, "a", "key").as_deref(), Ok("value"));
}

#[test]
fn what_failed_is_not_asked_for_again_at_once() {
    let double = Double::start();
    let (vaults, manager) = (vaults(), Arc::new(double.manager("kv", KvVersion::One)));
    double.breaks(Some(503));
    for path in ["a", "b", "c", "a"] {
        let why = vaults.resolve(&manager, path, "key").unwrap_err();
        assert!(why.contains("503 Service Unavailable; is it sealed?"), "{why}");
    }
    assert_eq!(double.state.lock().unwrap().requests, 1, "a Vault that is down is left alone");
}

#[test]
fn logins_get_a_token_and_another_when_it_is_taken_back() {
    let double = Double::start();
    double.put("kv/a", json!({"key": "value"}));
    double.put("kv/b", json!({"key": "value"}));
    let folder = tempfile::tempdir().unwrap();
    let jwt_file = folder.path().join("token");
    std::fs::write(&jwt_file, "a.b.c\n").unwrap();
    let kubernetes = VaultLogin::Kubernetes { mount: "kubernetes".into(), role: "gate".into(), jwt_file };
    let (role_id, secret_id) = (Secret::new("role"), Some(Secret::new("hidden")));
    let app_role = VaultLogin::AppRole { mount: "approle".into(), role_id, secret_id };
    for login in [kubernetes, app_role] {
        let vaults = vaults();
        let manager = Arc::new(Manager { login, ..double.manager("kv", KvVersion::One) });
        assert_eq!(vaults.resolve(&manager, "a", "key").as_deref(), Ok("value"));
        double.state.lock().unwrap().tokens.clear();
        assert_eq!(vaults.resolve(&manager, "b", "key").as_deref(), Ok("value"));
    }
    assert_eq!(double.state.lock().unwrap().logins, 4);
    let (role_id, secret_id) = (Secret::new("role"), Some(Secret::new("planted")));
    let login = VaultLogin::AppRole { mount: "approle".into(), role_id, secret_id };
    let manager = Arc::new(Manager { login, ..double.manager("kv", KvVersion::One) });
    let why = vaults().resolve(&manager, "a", "key").unwrap_err();
    assert!(why.contains("logging in at auth/approle was answered 400") && !why.contains("planted"), "{why}");
    let token = VaultLogin::Token(Secret::new("planted"));
    let manager = Arc::new(Manager { login: token, ..double.manager("kv", KvVersion::One) });
    let why = vaults().resolve(&manager, "a", "key").unwrap_err();
    assert!(why.contains("does not let \"a\" be read") && !why.contains("planted"), "{why}");
}

#[test]
fn a_namespace_is_named() {
    let double = Double::start();
    double.put("kv/a", json!({"key": "value"}));
    double.state.lock().unwrap().namespace = Some("team".to_owned());
    let manager = Manager { namespace: Some("team".into()), ..double.manager("kv", KvVersion::One) };
    assert_eq!(vaults().resolve(&Arc::new(manager), "a", "key").as_deref(), Ok("value"));
    assert!(vaults().resolve(&Arc::new(double.manager("kv", KvVersion::One)), "a", "key").is_err());
}

#[test]
fn what_was_read_stays_while_the_vault_is_away_and_changes_are_noticed() {
    let double = Double::start();
    double.put("kv/a", json!({"key": "first"}));
    let refresh = Duration::from_millis(1);
    let manager = Arc::new(Manager { refresh, ..double.manager("kv", KvVersion::One) });
    let vaults = vaults();
    let value = || vaults.resolve(&manager, "a", "key");
    assert_eq!(value().as_deref(), Ok("first"));
    double.put("kv/a", json!({"key": "second"}));
    eventually(|| value().as_deref() == Ok("second"));
    let requests = || double.state.lock().unwrap().requests;
    double.breaks(Some(500));
    let before = requests();
    eventually(|| requests() > before);
    assert_eq!(value().as_deref(), Ok("second"));
    double.breaks(None);
    double.put("kv/a", json!({"key": "third"}));
    eventually(|| value().as_deref() == Ok("third"));
    double.state.lock().unwrap().secrets.clear();
    eventually(|| value().is_err());
}

#[test]
fn paths_that_nothing_uses_are_forgotten() {
    let double = Double::start();
    double.put("kv/a", json!({"key": "first"}));
    let (vaults, manager) = (vaults(), Arc::new(double.manager("kv", KvVersion::One)));
    assert_eq!(vaults.resolve(&manager, "a", "key").as_deref(), Ok("first"));
    double.put("kv/a", json!({"key": "second"}));
    vaults.keep(&HashSet::from([(manager.clone(), "a".into())]));
    assert_eq!(vaults.resolve(&manager, "a", "key").as_deref(), Ok("first"));
    vaults.keep(&HashSet::new());
    assert_eq!(vaults.resolve(&manager, "a", "key").as_deref(), Ok("second"));
}
