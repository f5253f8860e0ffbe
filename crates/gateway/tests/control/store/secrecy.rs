//! Secrets are encrypted where they are stored, and hidden from users who may only read.

use super::stage::{Admin, KEY, Stage, upstream};
use crate::shared::authority::Authority;
use serde_json::json;
use stillgate_testkit::{Setup, Upstream};

/// A keyring for AES-128, as in APISIX; [`NEW_KEYRING`] puts a new key before it.
const KEYRING: &str = "data_encryption: {keyring: [edd1c9f0985e76a2]}";
const NEW_KEYRING: &str = "data_encryption: {keyring: [qeddd145sfvddff3, edd1c9f0985e76a2]}";

const SECRET: &str = "plain-secret-42";
/// `openssl enc -aes-128-cbc -base64` of [`SECRET`] with the key as key and initial vector, which is what APISIX writes.
const SECRET_AS_IN_APISIX: &str = "FJ6cvmRn5YaSDmxo/xJ8Jg==";

const VIEWER: &str = "key-of-a-viewer-0123456789";

fn has(file: &[u8], text: &str) -> bool {
    file.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn secrets_are_not_in_the_file() {
    let (node, authority) = (Upstream::echo(), Authority::new());
    authority.issue("a", &["a.example"]);
    let pem = |kind: &str| std::fs::read_to_string(authority.file(&format!("a.{kind}"))).expect("PEM");
    let key_line = pem("key").lines().nth(1).expect("a line of the key").to_owned();
    for (keyring, is_hidden) in [(KEYRING, true), ("", false)] {
        let mut stage = Stage::with(&Setup::default().gateway(keyring));
        let jack = json!({ "username": "jack", "plugins": { "key-auth": { "key": SECRET } } });
        stage.admin.put("consumers", &jack);
        let credential = json!({ "plugins": { "basic-auth": { "username": "j", "password": "another-secret-43" } } });
        stage.admin.put("consumers/jack/credentials/c", &credential);
        stage.admin.put("ssls/a", &json!({ "snis": ["a.example"], "cert": pem("pem"), "key": pem("key") }));
        let route = json!({ "uri": "/*", "upstream": upstream(node.addr()), "plugins": { "key-auth": {} } });
        stage.admin.put("routes/1", &route);
        // The secret was in plain text, in history.
        stage.admin.put("consumers", &json!({ "username": "jack", "plugins": { "key-auth": { "key": "other" } } }));
        stage.admin.put("consumers", &jack);
        stage.restart("TERM");
        let file = std::fs::read(stage.store_file()).expect("the store");
        for secret in [SECRET, "another-secret-43", &key_line] {
            assert_eq!(has(&file, secret), !is_hidden, "{secret} with {keyring:?}");
        }
        assert_eq!(has(&file, SECRET_AS_IN_APISIX), is_hidden);
        assert_eq!(stage.get(&format!("/?apikey={SECRET}")), 200, "it is known after a restart");
        assert_eq!(stage.admin.read("consumers/jack")["value"]["plugins"]["key-auth"]["key"], SECRET);
        assert!(!stage.gateway.log().contains(SECRET));
    }
}

#[test]
fn a_new_key_reads_what_an_old_one_wrote() {
    let node = Upstream::echo();
    let setup = Setup::default().gateway(KEYRING);
    let mut stage = Stage::with(&setup);
    stage.admin.put("consumers", &json!({ "username": "jack", "plugins": { "key-auth": { "key": SECRET } } }));
    let route = json!({ "uri": "/*", "upstream": upstream(node.addr()), "plugins": { "key-auth": {} } });
    stage.admin.put("routes/1", &route);
    let text = std::fs::read_to_string(stage.gateway.config_path()).expect("the file");
    stage.gateway.write_config_text(&text.replace(KEYRING, NEW_KEYRING));
    stage.restart("TERM");
    assert_eq!(stage.get(&format!("/?apikey={SECRET}")), 200);
    stage.admin.put("consumers", &json!({ "username": "jill", "plugins": { "key-auth": { "key": "j" } } }));
    let rolled = stage.admin.ask("POST", "/v1/rollback", r#"{"to": 2}"#);
    assert_eq!(rolled.status, 200, "{rolled:?}");
    assert_eq!((stage.get(&format!("/?apikey={SECRET}")), stage.get("/?apikey=j")), (200, 401));
}

#[test]
fn without_the_key_a_ciphertext_is_not_a_credential() {
    let node = Upstream::echo();
    let mut stage = Stage::with(&Setup::default().gateway(KEYRING).admin(&format!("key: {KEY}")));
    stage.admin.put("consumers", &json!({ "username": "jack", "plugins": { "key-auth": { "key": SECRET } } }));
    let route = json!({ "uri": "/*", "upstream": upstream(node.addr()), "plugins": { "key-auth": {} } });
    stage.admin.put("routes/1", &route);
    let text = std::fs::read_to_string(stage.gateway.config_path()).expect("the file");
    let escaped = SECRET_AS_IN_APISIX.replace('/', "%2F").replace('=', "%3D");
    let statuses = |stage: &Stage| [SECRET, &escaped].map(|key| stage.get(&format!("/?apikey={key}")));
    for other in ["data_encryption: {keyring: [another-16-bytes]}", ""] {
        stage.gateway.write_config_text(&text.replace(KEYRING, other));
        stage.restart("TERM");
        assert_eq!(statuses(&stage), [401, 401], "{other}");
        let rejected = stage.gateway.status()["rejected"].clone();
        assert_eq!((&rejected[0]["id"], &rejected[0]["serving"]), (&json!("jack"), &json!("nothing")), "{rejected}");
        let log = stage.gateway.log();
        let line = log.lines().rfind(|line| line.contains("resource rejected")).expect("a line");
        assert!(line.contains("ERROR") && line.contains("data_encryption.keyring"), "{line}");
        // A document as it is read cannot be written back.
        let read = stage.admin.read("consumers/jack")["value"].to_string();
        let answer = stage.admin.ask("PUT", "/apisix/admin/consumers", &read);
        assert_eq!(answer.status, 400, "{answer:?}");
        // Writes of other resources do not harm it.
        stage.admin.put("consumers", &json!({ "username": "jill", "plugins": { "key-auth": { "key": "j" } } }));
        assert_eq!(stage.get("/?apikey=j"), 200);
        stage.admin.delete("consumers/jill");
    }
    stage.gateway.write_config_text(&text);
    stage.restart("TERM");
    assert_eq!(statuses(&stage), [200, 401], "the key is back");
}

#[test]
fn what_was_plain_before_the_keyring_stays_known() {
    // Base64 of 32 bytes, as a ciphertext is.
    const RANDOM: &str = "y4Z2rmvYl0Pc2l2k3w3mG7p2C0l8m8mYJt9mVbqv2kE=";
    let node = Upstream::echo();
    let mut stage = Stage::with(&Setup::default().gateway("data_encryption: {keyring: []}"));
    stage.admin.put("consumers", &json!({ "username": "jack", "plugins": { "key-auth": { "key": RANDOM } } }));
    let route = json!({ "uri": "/*", "upstream": upstream(node.addr()), "plugins": { "key-auth": {} } });
    stage.admin.put("routes/1", &route);
    let text = std::fs::read_to_string(stage.gateway.config_path()).expect("the file");
    stage.gateway.write_config_text(&text.replace("data_encryption: {keyring: []}", KEYRING));
    stage.restart("TERM");
    assert_eq!(stage.get(&format!("/?apikey={}", RANDOM.replace('=', "%3D"))), 200);
    assert_eq!(stage.gateway.status()["rejected"], json!([]));
}

#[test]
fn viewers_see_masks_and_change_nothing() {
    let keys = format!("keys: [{{name: ci, key: {KEY}}}, {{name: eyes, key: {VIEWER}, role: viewer}}]");
    let stage = Stage::with(&Setup::default().admin(&keys));
    let viewer = Admin { key: VIEWER.to_owned(), ..stage.admin.clone() };
    let jack = json!({ "username": "jack", "plugins": { "key-auth": { "key": SECRET } } });
    stage.admin.put("consumers", &jack);
    stage.admin.put("secrets/vault/1", &json!({ "uri": "http://127.0.0.1:9", "prefix": "kv", "token": SECRET }));
    for path in [
        "/apisix/admin/consumers",
        "/apisix/admin/consumers/jack",
        "/apisix/admin/secrets/vault/1",
        "/v1/history/1",
        "/v1/history/2",
        "/apisix/admin/configs",
    ] {
        let seen = viewer.ask("GET", path, "");
        assert_eq!(seen.status, 200, "{path}: {seen:?}");
        assert!(!seen.text().contains(SECRET) && seen.text().contains("********"), "{path}: {seen:?}");
        assert!(stage.admin.ask("GET", path, "").text().contains(SECRET), "{path}: admins see it");
    }
    let before = stage.admin.revision();
    for (method, path, body) in [
        ("PUT", "/apisix/admin/consumers", jack.to_string()),
        ("PATCH", "/apisix/admin/routes/1", "{}".to_owned()),
        ("DELETE", "/apisix/admin/consumers/jack", String::new()),
        ("POST", "/v1/rollback", r#"{"to": 1}"#.to_owned()),
        ("POST", "/v1/batch", "[]".to_owned()),
        ("PUT", "/apisix/admin/configs", "{}".to_owned()),
        ("PUT", "/apisix/admin/consumers?dry_run=true", jack.to_string()),
    ] {
        let answer = viewer.ask(method, path, &body);
        assert_eq!(answer.status, 401, "{method} {path}: {answer:?}");
        assert!(answer.text().contains("viewer"), "{answer:?}");
    }
    let masked = viewer.read("consumers/jack")["value"].to_string();
    let answer = stage.admin.ask("PUT", "/apisix/admin/consumers", &masked);
    assert_eq!((answer.status, answer.error().contains("masked secret")), (400, true), "{answer:?}");
    assert_eq!(stage.admin.revision(), before);
    assert_eq!(stage.admin.read("consumers/jack")["value"]["plugins"]["key-auth"]["key"], SECRET);
    let log = stage.gateway.log();
    assert!(log.contains("\"key\":\"ci\"") && log.contains("a viewer tried to write"), "{log}");
    for secret in [SECRET, KEY, VIEWER] {
        assert!(!log.contains(secret), "{log}");
    }
}

#[test]
fn a_viewer_guesses_no_secret_by_filters() {
    let keys = format!("keys: [{{name: ci, key: {KEY}}}, {{name: eyes, key: {VIEWER}, role: viewer}}]");
    let stage = Stage::with(&Setup::default().admin(&keys));
    let viewer = Admin { key: VIEWER.to_owned(), ..stage.admin.clone() };
    let node = upstream("127.0.0.1:9".parse().expect("an address"));
    let named = json!({ "name": "see https://u:hunter2@h/x", "uri": "/r", "upstream": node });
    stage.admin.put("routes/r", &named);
    let total = |admin: &Admin, filter: &str| {
        let found = admin.ask("GET", &format!("/apisix/admin/routes?name={filter}"), "");
        serde_json::from_str::<serde_json::Value>(&found.text()).expect("JSON")["total"].clone()
    };
    assert_eq!((total(&viewer, "^see"), total(&stage.admin, "hunter[0-9]")), (json!(1), json!(1)));
    assert_eq!(total(&viewer, "hunter[0-9]"), 0, "what is masked is not found");
}

/// Where a secret may be, other than where plugins say that there is one.
fn route_with_secrets() -> serde_json::Value {
    let mut upstream = upstream("127.0.0.1:9".parse().expect("an address"));
    upstream["checks"] = json!({ "active": { "req_headers": [format!("Authorization: {SECRET}")] } });
    let function = format!("return function(conf, ctx) local key = '{SECRET}' end");
    json!({
        "uri": "/r",
        "vars": [["http_x_api_key", "==", SECRET], ["OR", ["arg_sig", "==", SECRET], ["http_x_any", "in", [SECRET]]]],
        "upstream": upstream,
        "plugins": {
            "body-transformer": { "request": { "input_format": "json", "template": format!("{{\"k\":\"{SECRET}\"}}") } },
            "limit-count": { "count": 1, "time_window": 1, "key_type": "constant", "key": SECRET },
            "request-validation": { "header_schema": { "properties": { "x-partner": { "const": SECRET } } } },
            "tcp-logger": { "host": "127.0.0.1", "port": 9, "log_format": { "partner": SECRET } },
            "proxy-rewrite": { "regex_uri": ["^/r(.*)", format!("/b$1?sig={SECRET}")], "headers": { "set": { "Authorization": format!("Basic {SECRET}"), "X-Any": SECRET } } },
            "forward-auth": { "uri": "http://127.0.0.1:9/", "extra_headers": { "X-Any": SECRET } },
            "serverless-pre-function": { "phase": "access", "functions": [function] },
            "http-logger": { "uri": format!("http://127.0.0.1:9/services/{SECRET}") },
            "loki-logger": {
                "endpoint_addrs": [format!("http://127.0.0.1:9/{SECRET}")],
                "endpoint_uri": format!("/push?sig={SECRET}"),
            },
            "traffic-split": { "rules": [{ "match": [{ "vars": [["cookie_a", "==", SECRET]] }], "weighted_upstreams": [{ "weight": 1 }] }] },
        },
    })
}

#[test]
fn viewers_see_no_secret_that_only_its_place_gives_away() {
    let keys = format!("keys: [{{name: ci, key: {KEY}}}, {{name: eyes, key: {VIEWER}, role: viewer}}]");
    let stage = Stage::with(&Setup::default().admin(&keys));
    let viewer = Admin { key: VIEWER.to_owned(), ..stage.admin.clone() };
    stage.admin.put("routes/r", &route_with_secrets());
    stage.admin.put("services/s", &json!({ "plugins": route_with_secrets()["plugins"] }));
    for path in [
        "/apisix/admin/routes/r",
        "/apisix/admin/routes",
        "/apisix/admin/services",
        "/apisix/admin/configs",
        "/v1/history/1",
    ] {
        assert!(stage.admin.ask("GET", path, "").text().contains(SECRET), "{path}: admins see it");
        let seen = viewer.ask("GET", path, "");
        assert!(seen.status == 200 && !seen.text().contains(SECRET), "{path}: {seen:?}");
    }
    // Hidden text is not found either.
    assert_eq!(viewer.ask("GET", &format!("/apisix/admin/routes?search={SECRET}"), "").json()["total"], 0);
    // Once it has run, LuaJIT knows it.
    let function = format!("return function(conf, ctx) ngx.exit(ngx.var.arg_x == '{SECRET}' and 204 or 403) end");
    let plugins = json!({ "serverless-pre-function": { "phase": "access", "functions": [function] } });
    stage.admin.put(
        "routes/lua",
        &json!({ "uri": "/lua", "upstream": upstream("127.0.0.1:9".parse().expect("an address")), "plugins": plugins }),
    );
    assert_eq!(stage.get("/lua"), 403);
    assert!(stage.admin.ask("GET", "/v1/lua/jit", "").text().contains(SECRET));
    let index = viewer.ask("GET", "/", "").text();
    let paths = index.lines().filter(|line| line.starts_with("GET")).filter_map(|line| line.split_whitespace().nth(1));
    let paths: Vec<&str> = paths.filter(|path| !path.contains('{') && !path.contains("live")).collect();
    assert!(paths.len() > 5, "{index}");
    for path in paths.into_iter().chain(["/v1/explain?url=/r", "/v1/routes?search=r", "/v1/routes/r"]) {
        let seen = viewer.ask("GET", path, "");
        assert!(!seen.text().contains(SECRET), "{path}: {seen:?}");
    }
}

#[test]
fn viewers_see_what_expressions_read_and_not_what_they_compare_with() {
    let keys = format!("keys: [{{name: ci, key: {KEY}}}, {{name: eyes, key: {VIEWER}, role: viewer}}]");
    let stage = Stage::with(&Setup::default().admin(&keys));
    let viewer = Admin { key: VIEWER.to_owned(), ..stage.admin.clone() };
    let expression =
        format!("http.path ^= \"/in/\" && (http.headers.x_any == \"{SECRET}\" || http.queries.sig == r#\"{SECRET}\"#)");
    let of_expression =
        json!({ "expression": expression, "upstream": upstream("127.0.0.1:9".parse().expect("an address")) });
    stage.admin.put("routes/e", &of_expression);
    stage
        .admin
        .put("routes/off", &json!({ "expression": expression, "status": 0, "upstream": of_expression["upstream"] }));
    for path in
        ["/apisix/admin/routes/e", "/v1/routes/e", "/v1/routes/off", "/v1/explain?url=/in/x&route=e", "/v1/history/1"]
    {
        assert!(stage.admin.ask("GET", path, "").text().contains(SECRET), "{path}: admins see it");
        let seen = viewer.ask("GET", path, "");
        assert!(seen.status == 200 && !seen.text().contains(SECRET), "{path}: {seen:?}");
        assert!(seen.text().contains("http.path ^= ") && seen.text().contains("********"), "{path}: {seen:?}");
    }
    for admin in [&viewer, &stage.admin] {
        assert_eq!(admin.ask("GET", &format!("/v1/routes?search={SECRET}"), "").json()["total"], 0);
        assert_eq!(admin.ask("GET", "/v1/routes?search=/in/", "").json()["total"], 2);
    }
    let masked = viewer.read("routes/e")["value"].to_string();
    let answer = stage.admin.ask("PUT", "/apisix/admin/routes/e", &masked);
    assert_eq!((answer.status, answer.error().contains("masked secret")), (400, true), "{answer:?}");
}

/// Documents with a mistake in place of a secret, or next to one.
fn refused_documents() -> Vec<(&'static str, serde_json::Value)> {
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----");
    let route = |plugins: serde_json::Value| json!({ "uri": "/r", "upstream": upstream("127.0.0.1:9".parse().expect("an address")), "plugins": plugins });
    let checks = json!({ "type": "roundrobin", "nodes": {}, "checks": { "active": { "req_headers": SECRET } } });
    let of_match = |keys: serde_json::Value| {
        let mut route = route(json!({}));
        route.as_object_mut().expect("an object").extend(keys.as_object().expect("keys").clone());
        route
    };
    let of_expression = |text: String| json!({ "expression": text, "upstream": route(json!({}))["upstream"] });
    vec![
        ("ssls/1", json!({ "snis": ["a"], "cert": "c", "keys": SECRET })),
        ("ssls/1", json!({ "snis": ["a"], "cert": "c", "key": [SECRET] })),
        ("ssls/1", json!({ "snis": ["a"], "cert": "c", "key": SECRET })),
        ("ssls/1", json!({ "snis": ["a"], "cert": "c", "key": pem })),
        ("ssls/1", json!({ "snis": ["a"], "cert": pem, "key": pem })),
        ("upstreams/1", json!({ "nodes": {}, "tls": { "client_cert": "c", "client_key": SECRET } })),
        ("upstreams/1", json!({ "nodes": {}, "tls": SECRET })),
        ("upstreams/1", checks),
        ("consumers", json!({ "username": "j", "plugins": { "key-auth": SECRET } })),
        ("consumers", json!({ "username": "j", "plugins": { "key-auth": { "key": [SECRET] } } })),
        (
            "consumers",
            json!({ "username": "j", "plugins": { "basic-auth": { "username": "j", "password": { "p": SECRET } } } }),
        ),
        (
            "routes/1",
            route(json!({ "proxy-rewrite": { "headers": { "set": { "Authorization": format!("{SECRET}\n") } } } })),
        ),
        ("routes/1", route(json!({ "proxy-rewrite": { "headers": SECRET } }))),
        ("routes/1", route(json!({ "forward-auth": { "uri": "http://a/", "extra_headers": SECRET } }))),
        (
            "routes/1",
            route(
                json!({ "limit-count": { "count": 1, "time_window": 1, "policy": "redis", "redis_password": [SECRET] } }),
            ),
        ),
        ("routes/1", route(json!({ "http-logger": { "uri": format!("ftp://a:{SECRET}@b/") } }))),
        ("routes/1", route(json!({ "serverless-pre-function": { "functions": SECRET } }))),
        ("routes/1", route(json!({ "serverless-pre-function": { "functions": [format!("error('{SECRET}')")] } }))),
        ("routes/1", route(json!({ "serverless-pre-function": { "functions": [format!("return {SECRET} x")] } }))),
        ("routes/1", route(json!({ "proxy-rewrite": { "headers": { "set": { format!("Bearer {SECRET}"): "v" } } } }))),
        ("routes/1", route(json!({ "proxy-rewrite": { "headers": { format!("Bearer {SECRET}"): "v" } } }))),
        ("routes/1", route(json!({ "key-auth": { "_meta": { "filter": [["arg_pin", SECRET]] } } }))),
        ("routes/1", of_match(json!({ "vars": [["http_authorization", SECRET]] }))),
        ("routes/1", of_match(json!({ "vars": [["http_authorization", "=", SECRET]] }))),
        ("routes/1", of_match(json!({ "vars": [[format!("http_authorization == {SECRET}")]] }))),
        ("routes/1", of_match(json!({ "vars": format!("http_authorization == {SECRET}") }))),
        ("routes/1", of_match(json!({ "vars": ["http_authorization", "==", SECRET] }))),
        ("routes/1", of_match(json!({ "vars": [["http_x_key", "~~", format!("({SECRET}")]] }))),
        ("routes/1", of_match(json!({ "filter_func": format!("function(vars) return vars.x == '{SECRET}' end end") }))),
        ("routes/1", of_match(json!({ "filter_func": format!("function(vars) return {SECRET} x end") }))),
        ("routes/1", of_match(json!({ "vars": [["http_x_key", "in", { SECRET: 1 }]] }))),
        ("routes/1", of_match(json!({ "vars": [[SECRET, "==", "arg_sig"]] }))),
        ("routes/1", of_match(json!({ "upstream": { "nodes": { format!("u:{SECRET}@h:1"): 1 } } }))),
        ("routes/1", route(json!({ "forward-auth": { "uri": format!("http:u:{SECRET}@127.0.0.1:9/") } }))),
        ("routes/1", route(json!({ "forward-auth": { "uri": format!("//u:{SECRET}@127.0.0.1:9/") } }))),
        (
            "routes/1",
            route(json!({ "proxy-rewrite": { "headers": { "set": { "A": [format!("${SECRET}")] } }, "method": "?" } })),
        ),
        ("routes/1", route(json!({ "proxy-rewrite": { "regex_uri": ["(", format!("/b?sig={SECRET}")] } }))),
        ("routes/1", route(json!({ "no-such-plugin": { "x": SECRET } }))),
        ("routes/1", of_match(json!({ "filter_func": format!("error('{SECRET}')") }))),
        ("routes/1", of_expression(format!("http.headers.authorization == {SECRET}"))),
        ("routes/1", of_expression(format!("http.headers.authorization = \"Bearer {SECRET}\""))),
        ("routes/1", of_expression(format!("http.header.authorization == \"Bearer {SECRET}\" && x"))),
        ("routes/1", of_expression(format!("http.headers.x ~ \"({SECRET}\""))),
        ("secrets/vault/1", json!({ "uri": format!("http://u:{SECRET}@127.0.0.1:9"), "prefix": "kv", "token": "t" })),
        ("secrets/vault/1", json!({ "uri": "http://127.0.0.1:9", "prefix": "kv", "token": [SECRET] })),
    ]
}

#[test]
fn no_refusal_shows_a_secret() {
    let keys = format!("keys: [{{name: ci, key: {KEY}}}, {{name: eyes, key: {VIEWER}, role: viewer}}]");
    let stage = Stage::with(&Setup::default().admin(&keys));
    for (path, document) in &refused_documents() {
        let body = document.to_string();
        let answer = stage.admin.ask("PUT", &format!("/apisix/admin/{path}"), &body);
        assert_eq!(answer.status, 400, "{document}: {answer:?}");
        assert!(!answer.text().contains(SECRET), "{document}: {answer:?}");
        let collection = path.split('/').next().expect("a collection");
        let answer = stage.admin.ask("POST", &format!("/apisix/admin/schema/validate/{collection}"), &body);
        assert!(!answer.text().contains(SECRET), "{document}: {answer:?}");
        let mut whole = document.clone();
        whole["id"] = if collection == "secrets" { "vault/1".into() } else { "1".into() };
        let body = json!({ collection: [whole] }).to_string();
        let answer = stage.admin.ask("POST", "/apisix/admin/configs/validate", &body);
        assert!(!answer.text().contains(SECRET), "{document}: {answer:?}");
    }
    assert!(!stage.gateway.log().contains(SECRET), "{}", stage.gateway.log());
}

/// Certificate and key in one text, as many tools write it.
#[test]
fn a_private_key_beside_a_certificate_is_shown_to_nobody() {
    let authority = Authority::new();
    authority.issue("a", &["a.example"]);
    let pem = |kind: &str| std::fs::read_to_string(authority.file(&format!("a.{kind}"))).expect("PEM");
    let keys = format!("keys: [{{name: ci, key: {KEY}}}, {{name: eyes, key: {VIEWER}, role: viewer}}]");
    let stage = Stage::with(&Setup::default().admin(&keys).gateway(KEYRING));
    let viewer = Admin { key: VIEWER.to_owned(), ..stage.admin.clone() };
    let (cert, key) = (pem("pem"), pem("key"));
    let key_line = key.lines().nth(1).expect("a line of the key");
    let both = format!("{key}{cert}");
    stage.admin.put("ssls/a", &json!({ "snis": ["a.example"], "cert": both, "key": key }));
    let mut upstream = upstream("127.0.0.1:9".parse().expect("an address"));
    upstream["scheme"] = "https".into();
    upstream["tls"] = json!({ "client_cert": both, "client_key": key });
    stage.admin.put("upstreams/a", &upstream);
    for admin in [&stage.admin, &viewer] {
        assert_eq!(admin.read("ssls/a")["value"]["cert"], cert);
        for path in ["/apisix/admin/ssls", "/v1/history", "/v1/history/1", "/v1/status"] {
            assert!(!admin.ask("GET", path, "").text().contains(key_line), "{path}");
        }
    }
    assert!(!viewer.ask("GET", "/apisix/admin/upstreams/a", "").text().contains(key_line));
    // What was read can be written again.
    let read = stage.admin.read("ssls/a")["value"].clone();
    stage.admin.put("ssls/a", &json!({ "snis": read["snis"], "cert": read["cert"], "key": key }));
    assert!(!has(&std::fs::read(stage.store_file()).expect("the store"), key_line), "it is encrypted in the store");
}

/// The request as APISIX documents it: `'{"cert":"'"$(cat a.crt)"'","key":"'"$(cat a.key)"'"…`.
#[test]
fn a_certificate_is_taken_with_its_line_breaks() {
    let authority = Authority::new();
    authority.issue("a", &["a.example"]);
    let pem = |kind: &str| std::fs::read_to_string(authority.file(&format!("a.{kind}"))).expect("PEM");
    let stage = Stage::start();
    let body = format!(r#"{{"cert":"{}","key":"{}","snis":["a.example"]}}"#, pem("pem"), pem("key"));
    let answer = stage.admin.ask("PUT", "/apisix/admin/ssls/1", &body);
    assert_eq!(answer.status, 201, "{answer:?}");
    assert_eq!(stage.admin.read("ssls/1")["value"]["cert"], pem("pem"));
    let key_line = pem("key").lines().nth(1).expect("a line of the key").to_owned();
    let broken = stage.admin.ask("PUT", "/apisix/admin/ssls/2", &body[..body.len() - 1]);
    assert_eq!(broken.status, 400, "{broken:?}");
    for text in [broken.text(), stage.gateway.log(), stage.admin.ask("GET", "/v1/status", "").text()] {
        assert!(!text.contains(&key_line), "{text}");
    }
}
