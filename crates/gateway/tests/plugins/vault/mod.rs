//! The gateway and a Vault: secrets that change, end and are refused; ways to log in; a Vault that is sealed, killed and back, or
//! behind a proxy.

use crate::secrets::{FIRST, INLINE, SECOND, assert_hidden, setup, status};
use crate::shared::STILLGATE;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use stillgate_testkit::{BufferedSocket, Client, Gateway, Setup, Upstream, Vault, eventually};

/// How long a token lives where a test waits for its end.
const TTL: &str = "4s";
/// Longer than [`TTL`]: a test that runs for this long outlives at least one token.
const BEYOND_TTL: Duration = Duration::from_secs(6);

/// A gateway whose consumer jack has the key `$secret://vault/main/REFERENCE`, with these keys of `vault/main`.
fn using(vault: &Vault, node: &Upstream, keys: &str, reference: &str) -> Setup {
    let mut setup = setup(node, &format!("$secret://vault/main/{reference}"));
    let resources = setup.resources.as_mut().expect("resources");
    let uri = format!("http://{}", vault.addr());
    resources.push_str(&format!("secrets:\n- {{id: vault/main, uri: \"{uri}\", refresh: 1s, {keys}}}\n"));
    setup
}

fn start(vault: &Vault, node: &Upstream, keys: &str) -> Gateway {
    Gateway::start(STILLGATE, &using(vault, node, keys, "jack/key"))
}

#[track_caller]
fn await_key(gateway: &Gateway, key: &str) {
    eventually("the key to be known", || status(gateway, key) == 200);
}

#[track_caller]
fn await_refusal(gateway: &Gateway, why: &str) {
    eventually(&format!("the refusal {why:?}"), || {
        let errors = &gateway.status()["config"]["last_error"]["errors"];
        errors.as_array().into_iter().flatten().any(|error| error.as_str().is_some_and(|error| error.contains(why)))
    });
}

fn key(key: &str) -> Value {
    json!({"key": key})
}

/// Reloads with another key for another consumer, so that jack's secret is resolved again.
fn reload_with(gateway: &Gateway, [old, new]: [&str; 2]) {
    let text = fs::read_to_string(gateway.config_path()).expect("the file");
    gateway.write_config_text(&text.replace(old, new));
    await_key(gateway, new);
}

#[test]
fn a_secret_is_read_again_and_stays_while_the_vault_is_sealed() {
    let (node, vault) = (Upstream::echo(), Vault::start());
    vault.put("kv2/gate/jack", &key(FIRST));
    let folder = tempfile::tempdir().expect("a folder");
    let token = folder.path().join("token");
    fs::write(&token, format!("{}\n", vault.token("600s"))).expect("write");
    let keys = format!("prefix: kv2/gate, kv_version: 2, token: \"$secret://file{}\"", token.display());
    let mut gateway = start(&vault, &node, &keys);
    assert_eq!((status(&gateway, FIRST), status(&gateway, SECOND)), (200, 401));
    vault.put("kv2/gate/jack", &key(SECOND));
    await_key(&gateway, SECOND);
    assert_eq!(status(&gateway, FIRST), 401);
    vault.seal();
    eventually("the warning", || gateway.log().contains("what was read before stays in use"));
    eventually("the reason", || gateway.log().contains("503 Service Unavailable; is it sealed?"));
    reload_with(&gateway, [INLINE, "new"]);
    assert_eq!(status(&gateway, SECOND), 200);
    vault.unseal();
    vault.put("kv2/gate/jack", &key(FIRST));
    await_key(&gateway, FIRST);
    assert_hidden(&gateway, None);
    gateway.assert_healthy();
}

#[test]
fn a_secret_stays_while_the_vault_is_away() {
    let (node, mut vault) = (Upstream::echo(), Vault::start());
    vault.put("kv/gate/jack", &key(FIRST));
    let mut gateway = start(&vault, &node, &format!("prefix: kv/gate, token: \"{}\"", vault.token("600s")));
    assert_eq!(status(&gateway, FIRST), 200);
    vault.kill();
    eventually("the warning", || gateway.log().contains("what was read before stays in use"));
    reload_with(&gateway, [INLINE, "new"]);
    assert_eq!(status(&gateway, FIRST), 200);
    vault.start_again();
    reload_with(&gateway, ["new", INLINE]);
    assert_eq!(status(&gateway, FIRST), 200, "it is sealed");
    vault.unseal();
    vault.put("kv/gate/jack", &key(SECOND));
    await_key(&gateway, SECOND);
    gateway.assert_healthy();
}

#[test]
fn what_a_vault_does_not_give_is_refused() {
    let (node, vault) = (Upstream::echo(), Vault::start());
    vault.put("kv/gate/jack", &key(FIRST));
    vault.put("kv/gate/a%20b", &key(SECOND));
    vault.put("kv/other/jack", &key("planted-other"));
    vault.put("kv2/gate/jack", &json!({"key": 7, "list": ["planted-list"]}));
    vault.put("kv2/gate/gone", &key("planted-gone"));
    vault.delete("kv2/gate/gone");
    let token = vault.token("600s");
    let (one, two) = (
        format!("prefix: kv/gate, token: \"{token}\""),
        format!("prefix: kv2/gate, kv_version: 2, token: \"{token}\""),
    );
    let mut gateway = start(&vault, &node, &one);
    for (keys, reference, why) in [
        (one.clone(), "rose/key", "the Vault has nothing under \"rose\"; write it, or set `kv_version: 2`"),
        (one.clone(), "jack/none", "there is no key \"none\" under \"jack\""),
        (two.clone(), "rose/key", "the Vault has nothing under \"rose\"; write it, or remove `kv_version`"),
        (two.clone(), "gone/key", "the Vault has nothing under \"gone\""),
        (two.clone(), "jack/list", "the key \"list\" under \"jack\" is not a text"),
        (one.replace("kv/gate", "kv/other"), "jack/key", "the Vault does not let \"jack\" be read"),
        (one.replace("kv/gate", "none/gate"), "jack/key", "the Vault does not let \"jack\" be read"),
        (one.replace(&token, "planted-token"), "jack/key", "the Vault does not let \"jack\" be read"),
    ] {
        gateway.write_config(&using(&vault, &node, &keys, reference));
        await_refusal(&gateway, why);
        assert_eq!(status(&gateway, FIRST), 200, "the one before stays in service");
        assert_hidden(&gateway, None);
        gateway.reload(&using(&vault, &node, &one, "jack/key"));
        eventually("the good one", || gateway.status()["config"]["last_error"].is_null());
    }
    gateway.reload(&using(&vault, &node, &one, "a b/key"));
    await_key(&gateway, SECOND);
    gateway.reload(&using(&vault, &node, &two, "jack/key"));
    await_key(&gateway, "7");
    gateway.assert_healthy();
}

#[test]
fn a_token_that_has_ended_is_refused_and_another_is_taken() {
    let (node, vault) = (Upstream::echo(), Vault::start());
    vault.put("kv/gate/jack", &key(FIRST));
    let folder = tempfile::tempdir().expect("a folder");
    let (file, beside) = (folder.path().join("token"), folder.path().join("new"));
    let write = |token: &str| {
        fs::write(&beside, token).expect("write");
        fs::rename(&beside, &file).expect("rename");
    };
    write(&vault.token("600s"));
    let mut gateway = start(&vault, &node, &format!("prefix: kv/gate, token: \"$secret://file{}\"", file.display()));
    assert_eq!(status(&gateway, FIRST), 200);
    write(&vault.token(TTL));
    await_refusal(&gateway, "the Vault does not let \"jack\" be read");
    assert_eq!(status(&gateway, FIRST), 200, "what was read before stays in service");
    vault.put("kv/gate/jack", &key(SECOND));
    let token = vault.token("600s");
    write(&token);
    await_key(&gateway, SECOND);
    eventually("no error", || gateway.status()["config"]["last_error"].is_null());
    vault.revoke(&token);
    await_refusal(&gateway, "the Vault does not let \"jack\" be read");
    assert_eq!(status(&gateway, SECOND), 200);
    gateway.assert_healthy();
}

/// Changes the secret until tokens of [`TTL`] have ended, and sees each change.
#[track_caller]
fn follows_beyond_one_token(gateway: &Gateway, vault: &Vault) {
    let begin = Instant::now();
    for number in 0.. {
        let value = format!("planted-{number}");
        vault.put("kv/gate/jack", &key(&value));
        await_key(gateway, &value);
        if begin.elapsed() > BEYOND_TTL {
            return;
        }
    }
}

#[test]
fn an_application_role_logs_in_again_and_again() {
    let (node, vault) = (Upstream::echo(), Vault::start());
    vault.put("kv/gate/jack", &key(FIRST));
    let role = vault.app_role(json!({"token_ttl": TTL}));
    let ids = format!("role_id: \"{}\", secret_id: \"{}\"", role.role_id, role.secret_id);
    let keys = format!("prefix: kv/gate, auth: {{method: approle, {ids}}}");
    let mut gateway = start(&vault, &node, &keys);
    assert_eq!(status(&gateway, FIRST), 200);
    follows_beyond_one_token(&gateway, &vault);
    // Tokens that are good for one request, and a role that needs no secret.
    vault.app_role(json!({"token_ttl": "600s", "token_num_uses": 1}));
    follows_beyond_one_token(&gateway, &vault);
    gateway.write_config(&using(&vault, &node, &keys.replace(&role.role_id, "planted-id"), "jack/key"));
    await_refusal(&gateway, "logging in at auth/approle was answered 400");
    assert_hidden(&gateway, None);
    let open = vault.app_role(json!({"bind_secret_id": false, "token_bound_cidrs": ["127.0.0.1/32"]}));
    let keys = format!("prefix: kv/gate, auth: {{method: approle, role_id: \"{}\"}}", open.role_id);
    vault.put("kv/gate/jack", &key(SECOND));
    gateway.reload(&using(&vault, &node, &keys, "jack/key"));
    await_key(&gateway, SECOND);
    gateway.assert_healthy();
}

/// A token of a service account, as Kubernetes makes it, with a signature that only the cluster could check.
fn service_account(namespace: &str, number: u32) -> String {
    let account = json!({"name": "gate", "uid": "11111111-2222-3333-4444-555555555555"});
    let claims = json!({
        "iss": "https://kubernetes.default.svc", "sub": format!("system:serviceaccount:{namespace}:gate"), "jti": number.to_string(),
        "kubernetes.io": {"namespace": namespace, "serviceaccount": account},
    });
    let header = json!({"alg": "RS256", "kid": "planted", "typ": "JWT"});
    let parts = [header.to_string(), claims.to_string(), "planted".repeat(40)].map(|part| URL_SAFE_NO_PAD.encode(part));
    parts.join(".")
}

/// A cluster's API that knows one token at a time.
fn cluster(known: &Arc<Mutex<String>>) -> Upstream {
    let known = known.clone();
    Upstream::serve(move |connection: &mut BufferedSocket| {
        while let Ok(request) = connection.read_request() {
            assert_eq!(request.head.start, "POST /apis/authentication.k8s.io/v1/tokenreviews HTTP/1.1");
            assert_eq!(request.head.get("authorization"), Some(&*format!("Bearer {}", Vault::REVIEWER)));
            let review: Value = serde_json::from_slice(&request.body).expect("a review");
            let user =
                json!({"username": "system:serviceaccount:edge:gate", "uid": "11111111-2222-3333-4444-555555555555"});
            let status = match review["spec"]["token"] == known.lock().expect("no panic").as_str() {
                true => json!({"authenticated": true, "user": user}),
                false => json!({"user": {}, "error": "invalid bearer token"}),
            };
            let kind = json!({"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "status": status});
            let body = kind.to_string();
            let head = format!(
                "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            if connection.try_send(head + &body).is_err() {
                return;
            }
        }
    })
}

#[test]
fn a_service_account_logs_in_with_the_token_that_its_file_has() {
    let (node, vault) = (Upstream::echo(), Vault::start());
    vault.put("kv/gate/jack", &key(FIRST));
    let known = Arc::new(Mutex::new(service_account("edge", 1)));
    let cluster = cluster(&known);
    let certificate = rcgen::generate_simple_self_signed(["cluster".to_owned()]).expect("a certificate").cert.pem();
    vault.kubernetes(cluster.addr(), &certificate, json!({"token_ttl": TTL}));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    let write = |number: u32| {
        let token = service_account("edge", number);
        fs::write(&file, &token).expect("write");
        *known.lock().expect("no panic") = token;
    };
    write(1);
    let keys = format!("prefix: kv/gate, auth: {{method: kubernetes, role: gate, jwt_file: \"{}\"}}", file.display());
    let mut gateway = start(&vault, &node, &keys);
    assert_eq!(status(&gateway, FIRST), 200);
    write(2);
    follows_beyond_one_token(&gateway, &vault);
    // A namespace that the role is not for, a role that is not there, a token that the cluster has taken back.
    let elsewhere = folder.path().join("elsewhere");
    fs::write(&elsewhere, service_account("default", 3)).expect("write");
    let elsewhere = keys.replace(&*file.to_string_lossy(), &elsewhere.to_string_lossy());
    for (keys, status) in [(elsewhere, 403), (keys.replace("role: gate", "role: none"), 400), (keys.clone(), 403)] {
        if status == 403 && !keys.contains("elsewhere") {
            known.lock().expect("no panic").clear();
        }
        gateway.write_config(&using(&vault, &node, &keys, "jack/key"));
        await_refusal(&gateway, &format!("logging in at auth/kubernetes was answered {status}"));
        assert_hidden(&gateway, None);
    }
    gateway.assert_healthy();
}

/// A proxy that has a Vault below `/services/vault`, and nothing else.
fn proxy(vault: &Vault) -> Upstream {
    let addr = vault.addr();
    Upstream::serve(move |connection: &mut BufferedSocket| {
        while let Ok(request) = connection.read_request() {
            let (method, target) = request.head.method_and_target();
            let (status, body) = match target.strip_prefix("/services/vault/v1/") {
                Some(path) => {
                    let fields: String =
                        request.head.fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
                    let mut client = Client::connect(addr);
                    let head = format!("{method} /v1/{path} HTTP/1.1\r\n{fields}\r\n");
                    client.send([head.as_bytes(), &request.body].concat());
                    let answer = client.expect_response(method);
                    (answer.head.status(), answer.body)
                }
                None => (404, Vec::new()),
            };
            let head = format!("HTTP/1.1 {status} Status\r\nContent-Length: {}\r\n\r\n", body.len());
            if connection.try_send([head.as_bytes(), &body].concat()).is_err() {
                return;
            }
        }
    })
}

#[test]
fn a_vault_behind_a_proxy_is_asked_below_its_path() {
    let (node, vault) = (Upstream::echo(), Vault::start());
    vault.put("kv/gate/jack", &key(FIRST));
    vault.put("kv2/gate/jack", &key(SECOND));
    let proxy = proxy(&vault);
    let role = vault.app_role(json!({"token_ttl": "600s"}));
    let auth = format!("auth: {{method: approle, role_id: \"{}\", secret_id: \"{}\"}}", role.role_id, role.secret_id);
    let at = |path: &str, keys: &str| {
        let mut setup = using(&vault, &node, keys, "jack/key");
        let (direct, behind) = (format!("http://{}", vault.addr()), format!("http://{}{path}", proxy.addr()));
        setup.resources = setup.resources.map(|resources| resources.replace(&direct, &behind));
        setup
    };
    let one = format!("prefix: kv/gate, {auth}");
    let mut gateway = Gateway::start(STILLGATE, &at("/services/vault", &one));
    assert_eq!((status(&gateway, FIRST), status(&gateway, SECOND)), (200, 401));
    // Both versions of the engine, and both ways to authenticate.
    let two = format!("prefix: kv2/gate, kv_version: 2, token: \"{}\"", vault.token("600s"));
    gateway.reload(&at("/services/vault/", &two));
    await_key(&gateway, SECOND);
    gateway.write_config(&at("/services", &one));
    await_refusal(&gateway, "logging in at auth/approle was answered 404");
    assert_eq!(status(&gateway, SECOND), 200, "the one before stays in service");
    gateway.assert_healthy();
}
