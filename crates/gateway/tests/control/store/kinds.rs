//! Every kind of resource takes effect through the API as it does in a file.

use super::stage::{Stage, upstream};
use crate::shared::STILLGATE;
use crate::shared::authority::Authority;
use serde_json::{Value as Json, json};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use stillgate_testkit::{BufferedSocket, ReservedPort, Setup, Upstream, eventually};

/// A route behind key-auth.
fn guarded(stage: &Stage, node: &Upstream) {
    let plugins = json!({ "key-auth": {} });
    stage.admin.put("routes/1", &json!({ "uri": "/*", "upstream": upstream(node.addr()), "plugins": plugins }));
}

#[test]
fn consumers_and_their_credentials() {
    let node = Upstream::echo();
    let stage = Stage::start();
    guarded(&stage, &node);
    let with = |key: &str| stage.get(&format!("/?apikey={key}"));
    assert_eq!(with("one"), 401);
    stage.admin.put("consumers", &json!({ "username": "jack", "plugins": { "key-auth": { "key": "one" } } }));
    assert_eq!(with("one"), 200);
    stage.admin.put("consumers/jack/credentials/c", &json!({ "plugins": { "key-auth": { "key": "two" } } }));
    assert_eq!((with("one"), with("two")), (200, 200));
    let refused = stage.admin.ask(
        "PUT",
        "/apisix/admin/consumers/nobody/credentials/c",
        r#"{"plugins": {"key-auth": {"key": "three"}}}"#,
    );
    assert_eq!(refused.status, 404, "{refused:?}");
    let same = r#"{"username": "jill", "plugins": {"key-auth": {"key": "two"}}}"#;
    assert_eq!(stage.admin.ask("PUT", "/apisix/admin/consumers", same).status, 400, "the key is jack's");
    stage.admin.put(
        "consumer_groups/slow",
        &json!({ "plugins": { "limit-count": {
        "count": 1, "time_window": 600, "rejected_code": 429, "key": "consumer_name" } } }),
    );
    let jill = json!({ "username": "jill", "group_id": "slow", "plugins": { "key-auth": { "key": "jill" } } });
    stage.admin.put("consumers", &jill);
    assert_eq!((with("jill"), with("jill"), with("one")), (200, 429, 200));
    assert_eq!(stage.admin.ask("DELETE", "/apisix/admin/consumer_groups/slow", "").status, 400, "jill is in it");
    stage.admin.delete("consumers/jack/credentials/c");
    assert_eq!((with("one"), with("two")), (200, 401));
    stage.admin.put("consumers/jack/credentials/c", &json!({ "plugins": { "key-auth": { "key": "two" } } }));
    stage.admin.delete("consumers/jack");
    assert_eq!((with("one"), with("two"), with("jill")), (401, 401, 429), "a consumer goes with its credentials");
}

/// Serves one secret to every client.
fn vault(secret: &'static str) -> Upstream {
    Upstream::serve(move |connection: &mut BufferedSocket| {
        let Ok(request) = connection.read_request() else { return };
        let is_known = request.head.start == "GET /v1/kv/gate/jack HTTP/1.1";
        let body = json!({ "data": { "key": secret } }).to_string();
        let status = if is_known { "200 OK" } else { "404 Not Found" };
        connection.send(format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    })
}

#[test]
fn secrets_of_managers() {
    let (node, vault) = (Upstream::echo(), vault("from-the-vault"));
    let stage = Stage::start();
    guarded(&stage, &node);
    let manager = json!({ "uri": format!("http://{}", vault.addr()), "prefix": "kv/gate", "token": "t" });
    stage.admin.put("secrets/vault/1", &manager);
    let jack = json!({ "username": "jack", "plugins": { "key-auth": { "key": "$secret://vault/1/jack/key" } } });
    stage.admin.put("consumers", &jack);
    eventually("the secret to be read", || stage.get("/?apikey=from-the-vault") == 200);
    let shown = stage.admin.read("consumers/jack");
    assert_eq!(shown["value"]["plugins"]["key-auth"]["key"], "$secret://vault/1/jack/key", "the reference is kept");
    let file = stage.gateway.dir().join("secret");
    fs::write(&file, "from-a-file\n").expect("write");
    let jill = format!("$secret://file{}", file.display());
    stage.admin.put("consumers", &json!({ "username": "jill", "plugins": { "key-auth": { "key": jill } } }));
    assert_eq!(stage.get("/?apikey=from-a-file"), 200);
    fs::write(&file, "changed\n").expect("write");
    eventually("the changed file", || stage.get("/?apikey=changed") == 200);
    assert_eq!(stage.get("/?apikey=from-a-file"), 401);
    // The right to write resources does not include reading every file of the gateway.
    let outside = json!({ "username": "jim", "plugins": { "key-auth": { "key": "$secret://file/etc/hostname" } } });
    let refused = stage.admin.ask("PUT", "/apisix/admin/consumers", &outside.to_string());
    assert!(refused.status == 400 && refused.text().contains("gateway.config.secret_folders"), "{refused:?}");
    let text = fs::read_to_string(stage.gateway.config_path()).expect("the file");
    stage.gateway.write_config_text(&text.replace("secret_folders: [", "secret_folders: [\"/etc\", "));
    eventually("the folder to be permitted", || {
        stage.admin.ask("PUT", "/apisix/admin/consumers", &outside.to_string()).status < 300
    });
}

#[test]
fn services_plugin_configs_global_rules_and_metadata() {
    let node = Upstream::echo();
    let stage = Stage::start();
    let header = |name: &str| json!({ "response-rewrite": { "headers": { "set": { name: "1" } } } });
    stage.admin.put("upstreams/1", &upstream(node.addr()));
    stage.admin.put("services/s", &json!({ "upstream_id": "1", "plugins": header("X-Service") }));
    stage.admin.put("plugin_configs/p", &json!({ "plugins": header("X-Config") }));
    stage.admin.put("routes/1", &json!({ "uri": "/service", "service_id": "s" }));
    stage.admin.put("routes/2", &json!({ "uri": "/config", "service_id": "s", "plugin_config_id": "p" }));
    stage.admin.put("global_rules/g", &json!({ "plugins": { "cors": {} } }));
    let has = |target: &str, name: &str| stage.gateway.get(target).head.get(name).is_some();
    assert!(has("/service", "x-service") && has("/config", "x-config"));
    assert!(has("/service", "access-control-allow-origin"));
    for used in ["services/s", "plugin_configs/p", "upstreams/1"] {
        assert_eq!(stage.admin.ask("DELETE", &format!("/apisix/admin/{used}"), "").status, 400, "{used} is used");
    }
    stage.admin.put("global_rules/pages", &json!({ "plugins": { "error-page": {} } }));
    stage.admin.put("plugin_metadata/error-page", &json!({ "enable": true, "error_404": { "body": "not here" } }));
    assert_eq!(stage.gateway.get("/nowhere").body, b"not here");
    stage.admin.delete("plugin_metadata/error-page");
    assert_ne!(stage.gateway.get("/nowhere").body, b"not here");
    stage.admin.delete("global_rules/g");
    assert!(!has("/service", "access-control-allow-origin"));
}

#[test]
fn certificates() {
    let (node, authority) = (Upstream::echo(), Authority::new());
    authority.issue("a", &["a.example"]);
    authority.issue("b", &["b.example"]);
    let stage = Stage::with(&Setup::default().listener("tls: true"));
    let pem = |name: &str, kind: &str| fs::read_to_string(authority.file(&format!("{name}.{kind}"))).expect("PEM");
    let ssl =
        |name: &str| json!({ "snis": [format!("{name}.example")], "cert": pem(name, "pem"), "key": pem(name, "key") });
    stage.admin.put("routes/1", &json!({ "uri": "/*", "upstream": upstream(node.addr()) }));
    let answered = |name: &str| {
        let mut client = authority.connect(stage.gateway.addr(), name, &["http/1.1"]);
        let mut answer = String::new();
        let asked = client.write_all(format!("GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n").as_bytes());
        asked.and_then(|()| client.read_to_string(&mut answer)).is_ok() && answer.starts_with("HTTP/1.1 200")
    };
    assert!(!answered("a.example"), "there is no certificate yet");
    stage.admin.put("ssls/a", &ssl("a"));
    assert_eq!((answered("a.example"), answered("b.example")), (true, false));
    stage.admin.put("ssls/b", &ssl("b"));
    assert_eq!((answered("a.example"), answered("b.example")), (true, true));
    let shown = stage.admin.read("ssls/a");
    assert!(shown["value"]["cert"].is_string() && !shown.to_string().contains("PRIVATE KEY"), "{shown}");
    let mut others = ssl("a");
    others["key"] = pem("b", "key").into();
    let refused = stage.admin.ask("PUT", "/apisix/admin/ssls/a", &others.to_string());
    assert_eq!(refused.status, 400, "a key of another certificate: {refused:?}");
    assert!(!refused.text().contains("PRIVATE KEY"), "{refused:?}");
    let patched = stage.admin.ask("PATCH", "/apisix/admin/ssls/b", r#"{"status": 0}"#);
    assert_eq!((patched.status, answered("b.example"), answered("a.example")), (200, false, true));
    stage.admin.delete("ssls/a");
    assert!(!answered("a.example"));
}

#[test]
fn stream_routes_and_protos() {
    let port = ReservedPort::new();
    let setup = Setup::default().gateway(&format!("stream_proxy: {{tcp: [{{address: \"{}\"}}]}}", port.addr()));
    let stage = Stage::with(&setup);
    let node = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut tcp = upstream(node.local_addr().expect("bound"));
    tcp["scheme"] = "tcp".into();
    stage.admin.put("upstreams/tcp", &tcp);
    stage.admin.put("stream_routes/1", &json!({ "server_port": port.addr().port(), "upstream_id": "tcp" }));
    let mut client = TcpStream::connect(port.addr()).expect("connect");
    client.write_all(b"hello").expect("write");
    let (mut accepted, _) = node.accept().expect("the node is reached");
    let mut came = [0; 5];
    accepted.read_exact(&mut came).expect("read");
    assert_eq!(&came, b"hello");
    let proto = json!({ "content": "syntax = \"proto3\";\npackage a;\nmessage Hello { string name = 1; }" });
    stage.admin.put("protos/1", &proto);
    assert_eq!(stage.admin.read("protos/1")["value"]["content"], proto["content"]);
    assert_eq!(stage.admin.ask("PUT", "/apisix/admin/protos/2", r#"{"content": 7}"#).status, 400);
    assert_eq!(stage.gateway.status()["rejected"], json!([]));
}

/// APISIX gives a stream route the plugins of its service, and no guard may be ignored.
#[test]
fn plugins_of_a_service_close_its_stream_routes() {
    let port = ReservedPort::new();
    let setup = Setup::default().gateway(&format!("stream_proxy: {{tcp: [{{address: \"{}\"}}]}}", port.addr()));
    let stage = Stage::with(&setup);
    let node = Upstream::serve(|connection: &mut BufferedSocket| {
        if connection.read_exactly(2).is_ok() {
            connection.send("ok");
        }
    });
    let service = |plugins: Json| json!({ "upstream": upstream(node.addr()), "plugins": plugins });
    let served = || {
        let mut client = BufferedSocket::new(TcpStream::connect(port.addr()).expect("connect"));
        client.send("hi");
        client.read_exactly(2).is_ok()
    };
    let guard = || json!({ "ip-restriction": { "whitelist": ["10.0.0.0/8"] } });
    stage.admin.put("services/open", &service(json!({ "key-auth": {} })));
    stage.admin.put("services/guarded", &service(guard()));
    let named = stage.admin.ask("PUT", "/apisix/admin/stream_routes/1", r#"{"service_id": "guarded"}"#);
    assert_eq!(named.status, 400, "{named:?}");
    assert!(named.text().contains("ip-restriction") && named.text().contains("service_id"), "{named:?}");
    stage.admin.put("stream_routes/1", &json!({ "service_id": "open" }));
    assert!(served(), "APISIX ignores plugins of HTTP, too");
    stage.admin.put("services/open", &service(guard()));
    assert!(!served());
    let rejected = stage.gateway.status()["rejected"].clone();
    assert_eq!((&rejected[0]["kind"], &rejected[0]["serving"]), (&json!("stream_routes"), &json!("503")), "{rejected}");
    let disabled = json!({ "ip-restriction": { "whitelist": ["10.0.0.0/8"], "_meta": { "disable": true } } });
    stage.admin.put("services/open", &service(disabled));
    assert!(served());
    let text = json!({ "services": [{ "id": "s", "upstream": upstream(node.addr()), "plugins": guard() }],
        "stream_routes": [{ "id": "r", "service_id": "s" }] });
    let file = stage.gateway.dir().join("streams.yaml");
    fs::write(&file, text.to_string()).expect("write");
    let checked = Command::new(STILLGATE).args(["check", "--offline"]).arg(&file).output().expect("run stillgate");
    let said = String::from_utf8_lossy(&[checked.stdout, checked.stderr].concat()).into_owned();
    assert!(checked.status.code() != Some(0) && said.contains("stream_routes[0].service_id: "), "{said}");
}
