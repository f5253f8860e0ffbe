//! A gateway whose resources are in an etcd with other writers: what is served, through all failures of etcd.

mod fleet;
mod gateways;
mod source;
mod starts;

use crate::shared::STILLGATE;
use crate::shared::authority::Authority;
use gateways::{
    Load, ask, await_equal, await_status, endpoints, generation, health, put, rejected, route, setup, setup_within,
    start, status,
};
use serde_json::{Value, json};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use stillgate_testkit::{
    BufferedSocket, CutEnd, CutPoint, Cutter, EtcdServer, EtcdSetup, Gateway, PATIENCE, ReservedPort, Setup, Side,
    Upstream, eventually, eventually_within, run_tool, with_longer_times,
};

/// Cuts every connection, until it is disarmed.
const CUT: CutPoint = CutPoint { side: Side::Client, after: 0, end: CutEnd::Fin };

/// How long etcd is stopped; `STILLGATE_ETCD_STOPPED_SECONDS` overrides it.
const STOPPED_SECONDS: u64 = 3;

/// A key of `gateway.data_encryption.keyring`, and the same in hexadecimal digits.
const KEYRING: (&str, &str) = ("qeddd145sfvddff3", "71656464643134357366766464666633");

/// A secret as APISIX encrypts it with [`KEYRING`], by OpenSSL.
fn encrypted(secret: &str) -> String {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("secret");
    std::fs::write(&file, secret).expect("write");
    let file = file.display().to_string();
    let arguments = ["enc", "-aes-128-cbc", "-K", KEYRING.1, "-iv", KEYRING.1, "-A", "-base64", "-in", &file];
    let output = run_tool("openssl", "openssl", &arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
}

fn write(etcd: &EtcdServer, key: &str, value: &Value) {
    etcd.put(0, &format!("/apisix/{key}"), value.to_string());
}

/// Answers every request with one secret.
fn vault(secret: &'static str) -> Upstream {
    Upstream::serve(move |connection| {
        let body = json!({"data": {"key": secret}}).to_string();
        while connection.read_request().is_ok() {
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            if connection.try_send(answer).is_err() {
                return;
            }
        }
    })
}

#[test]
fn every_kind_of_resource_that_another_program_writes_is_served() {
    let (etcd, node, vault, stream) =
        (EtcdServer::start(), Upstream::echo(), vault("of-the-vault"), ReservedPort::new());
    let setup = setup(&endpoints(&etcd, 1), "").gateway(&format!("data_encryption: {{keyring: [{}]}}", KEYRING.0));
    let with_streams = format!("stream_proxy: {{tcp: [{{address: \"{}\"}}]}}", stream.addr());
    let gateway = Gateway::start(STILLGATE, &setup.clone().gateway(&with_streams));
    let headers = |name: &str| json!({"response-rewrite": {"headers": {"set": {name: "yes"}}}});
    let nodes = json!({"type": "roundrobin", "nodes": {node.addr().to_string(): 1}});
    let (consumer, abort) = (json!({"username": "jack", "group_id": "1"}), json!({"abort": {"http_status": 503}}));
    let page = json!({"enable": true, "error_503": {"body": "a page", "content_type": "text/plain"}});
    let with = |uri: &str, plugins: Value| json!({"id": "x", "uri": uri, "upstream_id": "1", "plugins": plugins});
    let id = |mut document: Value, id: &str| {
        document["id"] = id.into();
        document
    };
    for (key, value) in [
        ("upstreams/1", nodes.clone()),
        ("services/1", json!({"upstream_id": "1", "plugins": headers("X-Service")})),
        ("plugin_configs/1", json!({"plugins": {"proxy-rewrite": {"uri": "/from-config"}}})),
        ("global_rules/1", json!({"plugins": {"cors": {}}})),
        ("consumer_groups/1", json!({"plugins": headers("X-Group")})),
        ("consumers/jack", consumer),
        ("consumers/jack/credentials/1", json!({"id": "1", "plugins": {"key-auth": {"key": encrypted("of-jack")}}})),
        (
            "consumers/rose",
            json!({"username": "rose", "plugins": {"key-auth": {"key": "$secret://vault/main/jack/key"}}}),
        ),
        ("secrets/vault/main", json!({"uri": format!("http://{}", vault.addr()), "prefix": "kv/gate", "token": "t"})),
        ("plugin_metadata/error-page", page),
        ("protos/1", json!({"content": "syntax = \"proto3\"; message A { string b = 1; }"})),
        ("stream_routes/1", json!({"server_port": stream.addr().port(), "upstream": nodes})),
        ("routes/a", json!({"id": "a", "uri": "/a/*", "service_id": "1", "plugin_config_id": "1", "status": 1})),
        ("routes/auth", id(with("/auth", json!({"key-auth": {}})), "auth")),
        ("routes/abort", id(with("/abort", json!({"fault-injection": abort, "error-page": {}})), "abort")),
        // Keys of APISIX that are not resources.
        ("data_plane/server_info/1", json!({"version": "3"})),
        ("plugins", json!([{"name": "cors"}])),
    ] {
        write(&etcd, key, &value);
    }
    await_status(&gateway, "/abort", 503);
    await_status(&gateway, "/a/b", 200);
    assert_eq!(rejected(&gateway), []);
    let answer = gateway.get("/a/b");
    assert_eq!(answer.head.get("x-service"), Some("yes"));
    assert_eq!(answer.head.get("x-got"), Some("GET /from-config HTTP/1.1"));
    assert_eq!(answer.head.get("access-control-allow-origin"), Some("*"));
    eventually("the page", || gateway.get("/abort").body == b"a page");
    assert_eq!(status(&gateway, "/auth"), 401);
    await_status(&gateway, "/auth?apikey=of-the-vault", 200);
    assert_eq!(gateway.get("/auth?apikey=of-jack").head.get("x-group"), Some("yes"));
    let mut client = BufferedSocket::new(TcpStream::connect(stream.addr()).expect("connect"));
    client.send("GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(client.expect_response("GET").head.get("x-got"), Some("GET /stream HTTP/1.1"));
    let (proto, _, body) = ask(&gateway, "GET /apisix/admin/protos/1", "", &Value::Null);
    assert!(proto == 200 && body.to_string().contains("message A"), "{proto} {body}");
    // Deletions are followed, too.
    etcd.write(0, &[("/apisix/routes/a", None), ("/apisix/consumers/jack/credentials/1", None)]);
    await_status(&gateway, "/a/b", 404);
    assert_eq!(status(&gateway, "/auth?apikey=of-jack"), 401);
    await_equal(&gateway, &setup);
}

#[test]
fn a_certificate_whose_key_is_encrypted_is_shown() {
    let (etcd, node, authority) = (EtcdServer::start(), Upstream::echo(), Authority::new());
    authority.issue("shop", &["shop.example.com"]);
    let read = |name: &str| std::fs::read_to_string(authority.file(name)).expect("read");
    let (cert, key) = (read("shop.pem"), encrypted(&read("shop.key")));
    write(&etcd, "ssls/1", &json!({"id": "1", "cert": cert, "key": key, "snis": ["shop.example.com"]}));
    write(&etcd, "routes/1", &route("/*", node.addr()));
    let setup = setup(&endpoints(&etcd, 1), "")
        .gateway(&format!("data_encryption: {{keyring: [{}]}}", KEYRING.0))
        .listener("tls: true");
    let gateway = Gateway::start(STILLGATE, &setup);
    let (port, ca) = (gateway.addr().port(), authority.path("ca.pem"));
    let curl = |name: &str| {
        let (at, url) = (format!("{name}:{port}:127.0.0.1"), format!("https://{name}:{port}/"));
        run_tool("curl", "curl", &["--silent", "--fail", "--max-time", "300", "--cacert", &ca, "--resolve", &at, &url])
    };
    assert!(curl("shop.example.com").status.success());
    // A certificate that cannot be used takes nothing from the others.
    let broken = json!({"id": "2", "cert": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", "key": key, "snis": ["b.example.com"]});
    write(&etcd, "ssls/2", &broken);
    eventually("the refusal", || rejected(&gateway).iter().any(|(kind, id, _)| (&**kind, &**id) == ("ssls", "2")));
    assert!(curl("shop.example.com").status.success());
    assert!(!curl("b.example.com").status.success());
    // Nor does one that asks clients for certificates give way to an older one that does not.
    let asking =
        json!({"id": "3", "cert": cert, "key": key, "snis": ["shop.example.com"], "client": {"ca": read("ca.pem")}});
    write(&etcd, "ssls/3", &asking);
    eventually("the refusal", || rejected(&gateway).iter().any(|(kind, id, _)| (&**kind, &**id) == ("ssls", "3")));
    assert!(!curl("shop.example.com").status.success());
    await_equal(&gateway, &setup);
    etcd.delete(0, "/apisix/ssls/3");
    eventually("the older one", || curl("shop.example.com").status.success());
    // Keys are encrypted wherever an upstream is written.
    let mut route = route("/split", node.addr());
    let tls = json!({"client_cert": cert, "client_key": read("shop.key")});
    let upstream = json!({"type": "roundrobin", "scheme": "https", "nodes": {"127.0.0.1:9": 1}, "tls": tls});
    let split = json!({"rules": [{"weighted_upstreams": [{"upstream": upstream, "weight": 1}]}]});
    route["plugins"] = json!({ "traffic-split": split });
    put(&gateway, "routes/2", &route);
    let kept = etcd.get(0, "/apisix/routes/2").expect("a value");
    assert!(kept.contains("client_key") && !kept.contains("PRIVATE KEY"), "{kept}");
    assert!(!rejected(&gateway).iter().any(|(kind, ..)| kind == "routes"));
}

/// A copy of a guard that is switched off, or has a filter, does not take the place of one in another rule.
#[test]
fn two_global_rules_with_a_guard() {
    let (etcd, node) = (EtcdServer::start(), Upstream::echo());
    write(&etcd, "routes/1", &route("/*", node.addr()));
    let rule = |id: &str, blacklist: &str, meta: Value| {
        let guard = json!({"blacklist": [blacklist], "_meta": meta});
        write(&etcd, &format!("global_rules/{id}"), &json!({"id": id, "plugins": {"ip-restriction": guard}}));
    };
    rule("1", "192.0.2.1", json!({"disable": true}));
    rule("2", "127.0.0.1", json!({"disable": false}));
    let gateway = Gateway::start(STILLGATE, &setup(&endpoints(&etcd, 1), ""));
    await_status(&gateway, "/", 403);
    rule("1", "127.0.0.1", json!({"filter": [["arg_a", "==", "1"]]}));
    rule("2", "127.0.0.1", json!({"filter": [["arg_a", "==", "2"]]}));
    await_status(&gateway, "/?a=3", 200);
    assert_eq!((status(&gateway, "/?a=1"), status(&gateway, "/?a=2")), (403, 403));
}

#[test]
fn a_ciphertext_that_no_key_decrypts_is_not_a_credential() {
    let (etcd, node) = (EtcdServer::start(), Upstream::echo());
    let jack = |secret: &str| json!({"username": "jack", "plugins": {"key-auth": {"key": secret}}});
    let mut with_auth = route("/*", node.addr());
    with_auth["plugins"] = json!({"key-auth": {}});
    let secret = encrypted("of-jack");
    write(&etcd, "consumers/jack", &jack(&secret));
    write(&etcd, "consumers/jill", &json!({"username": "jill", "plugins": {"key-auth": {"key": "plain-of-jill"}}}));
    write(&etcd, "routes/1", &with_auth);
    let known = |gateway: &Gateway, key: &str| {
        status(gateway, &format!("/?apikey={}", key.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D")))
    };
    for keyring in ["[]", "[another-16-bytes]"] {
        let setup = setup(&endpoints(&etcd, 1), "").gateway(&format!("data_encryption: {{keyring: {keyring}}}"));
        let gateway = Gateway::start(STILLGATE, &setup);
        let statuses = [&*secret, "of-jack", "plain-of-jill"].map(|key| known(&gateway, key));
        assert_eq!(statuses, [401, 401, 200], "{keyring}");
        assert_eq!(rejected(&gateway), [("consumers".to_owned(), "jack".to_owned(), "nothing".to_owned())]);
        let log = gateway.log();
        assert!(log.contains("ERROR") && log.contains("data_encryption.keyring"), "{log}");
        if keyring == "[]" {
            // It would be misread.
            let (refused, _, answer) = ask(&gateway, "PUT /apisix/admin/consumers", "", &jack(&secret));
            assert!(refused == 400 && answer.to_string().contains("keyring"), "{refused} {answer}");
        }
    }
}

#[test]
fn etcd_comes_and_goes_under_load() {
    let (mut etcd, node) = (EtcdServer::start(), Upstream::echo());
    let relay = Cutter::to(etcd.addr(0));
    write(&etcd, "routes/always", &route("/always", node.addr()));
    // The timeout is short enough to notice an etcd that sends nothing.
    let setup_here = setup_within(&[format!("http://{}", relay.addr())], "5s", "");
    let gateway = Gateway::start(STILLGATE, &setup_here.gateway("workers: 2"));
    let load = Load::start(gateway.addr(), "/always");
    let lost = || !gateway.status()["source_error"].is_null();
    let change = |etcd: &EtcdServer, number: usize| {
        write(etcd, "routes/1", &route(&format!("/v{number}"), node.addr()));
        await_status(&gateway, &format!("/v{number}"), 200);
        assert_eq!(status(&gateway, &format!("/v{}", number - 1)), 404);
    };
    change(&etcd, 1);
    for round in 2..5 {
        let before = generation(&gateway);
        etcd.kill(0);
        eventually("the loss to be told", lost);
        assert_eq!((status(&gateway, &format!("/v{}", round - 1)), health(&gateway)), (200, 200));
        etcd.start_again(0);
        eventually("the return", || !lost());
        assert_eq!(generation(&gateway), before, "nothing was written, and something was applied");
        change(&etcd, round);
    }
    // Compacted while away: everything is listed again, and only what is new is applied.
    relay.arm(Some(CUT));
    eventually("the loss to be told", lost);
    for number in 0..20 {
        write(&etcd, &format!("routes/x{number}"), &route(&format!("/x{number}"), node.addr()));
    }
    etcd.compact(0, etcd.delete(0, "/apisix/routes/1"));
    relay.arm(None);
    await_status(&gateway, "/x19", 200);
    assert_eq!(status(&gateway, "/v4"), 404);
    // etcd is silent, but running.
    let seconds = std::env::var("STILLGATE_ETCD_STOPPED_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let stopped = Duration::from_secs(seconds.unwrap_or(STOPPED_SECONDS));
    let since = Instant::now();
    etcd.process(0).signal("STOP");
    eventually_within(stopped + PATIENCE, "the loss, and the time", || lost() && since.elapsed() > stopped);
    assert_eq!(status(&gateway, "/x0"), 200);
    etcd.process(0).signal("CONT");
    change(&etcd, 9);
    load.end();
    await_equal(&gateway, &setup(&endpoints(&etcd, 1), ""));
}

#[test]
fn members_of_a_cluster_are_lost_one_after_the_other() {
    let (mut etcd, node) =
        (EtcdServer::start_with(&EtcdSetup { members: 3, ..EtcdSetup::default() }), Upstream::echo());
    write(&etcd, "routes/always", &route("/always", node.addr()));
    let gateway = start(&etcd, 3);
    let load = Load::start(gateway.addr(), "/always");
    for member in 0..3 {
        etcd.kill(member);
        let other = (member + 1) % 3;
        // While etcd has no leader, nothing can be written.
        eventually("a leader", || etcd.try_revision(other).is_ok());
        for number in 0..5 {
            let uri = format!("/m{member}/{number}");
            etcd.put(other, &format!("/apisix/routes/m{member}-{number}"), route(&uri, node.addr()).to_string());
            await_status(&gateway, &uri, 200);
        }
        etcd.start_again(member);
    }
    load.end();
    await_equal(&gateway, &setup(&endpoints(&etcd, 3), ""));
}

/// All orders of these.
fn orders(of: &[usize]) -> Vec<Vec<usize>> {
    if of.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (index, first) in of.iter().enumerate() {
        let rest: Vec<usize> = of.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, of)| *of).collect();
        all.extend(orders(&rest).into_iter().map(|rest| [vec![*first], rest].concat()));
    }
    all
}

#[test]
fn references_may_come_in_any_order() {
    let (etcd, node) = (EtcdServer::start(), Upstream::echo());
    let gateway = start(&etcd, 1);
    let orders = orders(&[0, 1, 2, 3]);
    for (number, order) in orders.iter().enumerate() {
        let id = format!("{number}");
        let resource = |which: usize| match which {
            0 => ("upstreams", json!({"type": "roundrobin", "nodes": {node.addr().to_string(): 1}})),
            1 => ("services", json!({"upstream_id": id})),
            2 => ("plugin_configs", json!({"plugins": {"response-rewrite": {"headers": {"set": {"X-Config": id}}}}})),
            _ => ("routes", json!({"uri": format!("/{id}"), "service_id": id, "plugin_config_id": id})),
        };
        for (place, which) in order.iter().enumerate() {
            let (collection, document) = resource(*which);
            write(&etcd, &format!("{collection}/{id}"), &document);
            // Until the resources that it refers to exist, a route is not served, and its requests do not match another one.
            if *which == 3 && place < 3 {
                await_status(&gateway, &format!("/{id}"), 503);
            }
        }
        await_status(&gateway, &format!("/{id}"), 200);
        assert_eq!(gateway.get(&format!("/{id}")).head.get("x-config"), Some(&*id), "{order:?}");
    }
    assert_eq!(rejected(&gateway), []);
    etcd.delete(0, "/apisix/upstreams/0");
    await_status(&gateway, "/0", 503);
    assert_eq!(status(&gateway, "/1"), 200);
    let rejected_now = rejected(&gateway);
    assert!(rejected_now.iter().any(|(kind, id, _)| (&**kind, &**id) == ("routes", "0")), "{rejected_now:?}");
    await_equal(&gateway, &setup(&endpoints(&etcd, 1), ""));
}

#[test]
fn what_cannot_be_used_is_listed_and_closes_only_what_it_would_take() {
    let (etcd, node) = (EtcdServer::start(), Upstream::echo());
    let gateway = start(&etcd, 1);
    let good = |id: &str| route(&format!("/{id}"), node.addr());
    let with = |id: &str, key: &str, value: Value| {
        let mut route = good(id);
        route[key] = value;
        route
    };
    let unbuilt = json!({"ext-plugin-pre-req": {}});
    write(&etcd, "routes/good", &good("good"));
    write(&etcd, "routes/bytes", &good("bytes"));
    write(&etcd, "routes/was-good", &good("was-good"));
    await_status(&gateway, "/was-good", 200);
    write(&etcd, "routes/unbuilt", &with("unbuilt", "plugins", unbuilt.clone()));
    write(&etcd, "routes/was-good", &with("was-good", "plugins", unbuilt));
    write(&etcd, "routes/function", &with("function", "filter_func", json!("function(vars) return true")));
    write(&etcd, "routes/script", &with("script", "script", json!("return 1")));
    write(
        &etcd,
        "upstreams/discovered",
        &json!({"type": "roundrobin", "service_name": "a", "discovery_type": "nacos"}),
    );
    write(&etcd, "routes/discovered", &json!({"uri": "/discovered", "upstream_id": "discovered"}));
    etcd.put(0, "/apisix/routes/text", "not JSON");
    etcd.put(0, "/apisix/routes/bytes", [0xff_u8, 0xfe]);
    let expected = [
        ("routes", "bytes", "previous"),
        ("routes", "discovered", "503"),
        ("routes", "function", "503"),
        ("routes", "unbuilt", "503"),
        ("routes", "script", "503"),
        ("routes", "text", "503"),
        ("routes", "was-good", "previous"),
        ("upstreams", "discovered", "503"),
    ];
    let is_listed = |of: &(&str, &str, &str)| {
        rejected(&gateway).iter().any(|(kind, id, serving)| (&**kind, &**id, &**serving) == *of)
    };
    for of in expected {
        eventually(&format!("{of:?} in {:?}", rejected(&gateway)), || is_listed(&of));
    }
    // Nothing says which requests it takes, so it may be the one that keeps clients out of any.
    assert_eq!(status(&gateway, "/good"), 503);
    etcd.delete(0, "/apisix/routes/text");
    await_status(&gateway, "/good", 200);
    for (path, expected) in
        [("was-good", 200), ("bytes", 200), ("unbuilt", 503), ("discovered", 503), ("function", 503), ("script", 503)]
    {
        assert_eq!(status(&gateway, &format!("/{path}")), expected, "{path}");
    }
    let reasons = gateway.status()["rejected"].to_string();
    assert!(reasons.contains("ext-plugin-pre-req") && reasons.contains("/apisix/routes/unbuilt @ "), "{reasons}");
    // The resource may be the one that keeps clients out.
    write(&etcd, "global_rules/1", &json!({"plugins": {"no-such-plugin": {}}}));
    await_status(&gateway, "/good", 503);
    etcd.delete(0, "/apisix/global_rules/1");
    await_status(&gateway, "/good", 200);
}

#[test]
fn writes_through_the_admin_api_are_in_etcd_and_served() {
    let (etcd, node) = (EtcdServer::start(), Upstream::echo());
    let gateway = Gateway::start(STILLGATE, &setup(&endpoints(&etcd, 1), "").gateway("workers: 2"));
    for number in 0..20 {
        let head = put(&gateway, "routes/1", &route(&format!("/v{number}"), node.addr()));
        assert_eq!(status(&gateway, &format!("/v{number}")), 200, "a writer reads its write");
        assert!(head.get("x-stillgate-generation").is_some());
    }
    let kept: Value = serde_json::from_str(&etcd.get(0, "/apisix/routes/1").expect("a value")).expect("JSON");
    assert_eq!((&kept["id"], &kept["uri"]), (&json!("1"), &json!("/v19")));
    // Another writer was faster.
    let (_, head, _) = ask(&gateway, "GET /apisix/admin/routes/1", "", &Value::Null);
    let matches = format!("If-Match: {}\r\n", head.get("etag").expect("a revision"));
    write(&etcd, "routes/1", &route("/other", node.addr()));
    let own = route("/own", node.addr());
    let put_if = |matches: &str| ask(&gateway, "PUT /apisix/admin/routes/1", matches, &own).0;
    assert_eq!(put_if(&matches), 412);
    await_status(&gateway, "/other", 200);
    let (_, head, _) = ask(&gateway, "GET /apisix/admin/routes/1", "", &Value::Null);
    assert_eq!(put_if(&format!("If-Match: {}\r\n", head.get("etag").expect("a revision"))), 200);
    assert_eq!(status(&gateway, "/own"), 200);
    // A lease ends it.
    with_longer_times(Duration::from_secs(1), "a route before its end", |ttl| {
        let asked = Instant::now();
        put(&gateway, &format!("routes/short?ttl={}", ttl.as_secs()), &route("/short", node.addr()));
        let was_there = status(&gateway, "/short") == 200;
        assert!(was_there || asked.elapsed() >= ttl, "{:?}", asked.elapsed());
        await_status(&gateway, "/short", 404);
        was_there
    });
    assert_eq!(etcd.get(0, "/apisix/routes/short"), None);
    // Features that etcd lacks.
    for (line, body) in [("GET /v1/history", Value::Null), ("POST /v1/rollback", json!({"to": 1}))] {
        let (status, _, answer) = ask(&gateway, line, "", &body);
        assert!(status == 501 && answer.to_string().contains("etcd keeps no history"), "{line}: {status} {answer}");
    }
    let operation = |number: usize| {
        let path = format!("/apisix/admin/routes/b{number}");
        json!({"method": "PUT", "path": path, "body": route(&format!("/b{number}"), node.addr())})
    };
    let batch = |count: usize| {
        let operations: Vec<Value> = (0..count).map(operation).collect();
        ask(&gateway, "POST /v1/batch", "", &operations.into())
    };
    let (refused, _, answer) = batch(129);
    assert!(refused == 400 && answer.to_string().contains("128"), "{refused} {answer}");
    assert_eq!((status(&gateway, "/b0"), etcd.get(0, "/apisix/routes/b0")), (404, None), "refused, and not split");
    let (made, _, answer) = batch(128);
    assert_eq!(made, 200, "{answer}");
    assert_eq!((status(&gateway, "/b0"), status(&gateway, "/b127")), (200, 200));
    let (refused, _, answer) = ask(&gateway, "PUT /apisix/admin/routes/bad", "", &json!({"uri": 1}));
    assert_eq!((refused, etcd.get(0, "/apisix/routes/bad")), (400, None), "{answer}");
    await_equal(&gateway, &setup(&endpoints(&etcd, 1), ""));
}

#[test]
fn an_etcd_that_is_away_refuses_writes() {
    let (mut etcd, node) = (EtcdServer::start(), Upstream::echo());
    let gateway = start(&etcd, 1);
    put(&gateway, "routes/1", &route("/one", node.addr()));
    etcd.kill(0);
    let (refused, _, answer) = ask(&gateway, "PUT /apisix/admin/routes/2", "", &route("/two", node.addr()));
    assert_eq!(refused, 503, "{answer}");
    assert_eq!((status(&gateway, "/one"), status(&gateway, "/two")), (200, 404));
    etcd.start_again(0);
    eventually("the return", || gateway.status()["source_error"].is_null());
    put(&gateway, "routes/2", &route("/two", node.addr()));
    assert_eq!(status(&gateway, "/two"), 200);
}

/// APISIX's parser of JSON accepts them; they occur where a certificate is put into etcd from a shell.
#[test]
fn raw_line_breaks_in_strings_are_read() {
    let (etcd, node) = (EtcdServer::start(), Upstream::echo());
    let gateway = start(&etcd, 1);
    let document = route("/a", node.addr()).to_string().replacen('{', "{\"desc\": \"one\ntwo\t\u{1}\", ", 1);
    etcd.put(0, "/apisix/routes/1", &document);
    await_status(&gateway, "/a", 200);
    let (_, _, read) = ask(&gateway, "GET /apisix/admin/routes/1", "", &Value::Null);
    assert_eq!(read["value"]["desc"], "one\ntwo\t\u{1}", "{read}");
    assert_eq!(rejected(&gateway), []);
}

#[test]
fn two_gateways_see_each_others_writes() {
    let (etcd, node) = (EtcdServer::start(), Upstream::echo());
    let gateways = [start(&etcd, 1), start(&etcd, 1)];
    std::thread::scope(|scope| {
        for (index, gateway) in gateways.iter().enumerate() {
            let addr = node.addr();
            scope.spawn(move || {
                for number in 0..20 {
                    let id = format!("{index}-{number}");
                    put(gateway, &format!("routes/{id}"), &route(&format!("/{id}"), addr));
                    assert_eq!(status(gateway, &format!("/{id}")), 200);
                }
            });
        }
    });
    for (gateway, other) in [(&gateways[0], 1), (&gateways[1], 0)] {
        await_status(gateway, &format!("/{other}-19"), 200);
        await_equal(gateway, &setup(&endpoints(&etcd, 1), ""));
    }
}

#[test]
fn a_mistake_in_the_file_does_not_stop_changes_of_etcd() {
    let (etcd, node) = (EtcdServer::start(), Upstream::echo());
    let gateway = start(&etcd, 1);
    let file = std::fs::read_to_string(gateway.config_path()).expect("the file");
    let error = || gateway.status()["config"]["last_error"].clone();
    gateway.write_config_text(&file.replace("workers: 1", "workers: none"));
    eventually("the refusal", || !error().is_null());
    let told = error();
    write(&etcd, "routes/1", &route("/one", node.addr()));
    await_status(&gateway, "/one", 200);
    put(&gateway, "routes/2", &route("/two", node.addr()));
    assert_eq!(status(&gateway, "/two"), 200);
    assert_eq!(error(), told, "the file is still wrong");
    gateway.write_config_text(&file);
    eventually("the file that is right again", || error().is_null());
    assert_eq!(status(&gateway, "/one"), 200);
}

#[test]
fn etcd_may_ask_for_a_password() {
    let (mut etcd, node) = (EtcdServer::start(), Upstream::echo());
    write(&etcd, "routes/1", &route("/one", node.addr()));
    etcd.require_password("correct-horse");
    let with = |password: &str| setup(&endpoints(&etcd, 1), &format!(", user: root, password: {password}"));
    let (gateway, other) =
        (Gateway::start(STILLGATE, &with("correct-horse")), Gateway::start(STILLGATE, &with("planted-mistake")));
    assert_eq!((status(&gateway, "/one"), status(&other, "/one")), (200, 503));
    assert!(!other.log().contains("planted"), "{}", other.log());
    let without = start(&etcd, 1);
    for (gateway, advice) in [(&other, "are `user` and `password` right?"), (&without, "set `user` and `password`")] {
        let why = gateway.status()["source_error"].to_string();
        assert!(why.contains(advice), "{why}");
        eventually("the advice in the log", || gateway.log().contains(advice));
    }
    put(&gateway, "routes/2", &route("/two", node.addr()));
    // Its tokens are in memory only.
    etcd.kill(0);
    etcd.start_again(0);
    eventually("the return", || gateway.status()["source_error"].is_null());
    put(&gateway, "routes/3", &route("/three", node.addr()));
    assert_eq!((status(&gateway, "/two"), status(&gateway, "/three")), (200, 200));
}

#[test]
fn etcd_may_ask_for_a_certificate() {
    let (authority, node) = (Authority::new(), Upstream::echo());
    authority.issue("etcd", &["127.0.0.1"]);
    authority.issue("gateway", &["gateway.example.com"]);
    let etcd = EtcdServer::start_with(&EtcdSetup {
        certificate: Some((authority.file("etcd.pem"), authority.file("etcd.key"))),
        client_ca: Some(authority.file("ca.pem")),
        ..EtcdSetup::default()
    });
    write(&etcd, "routes/1", &route("/one", node.addr()));
    let tls = |keys: &str| -> Setup {
        let keys = keys.replace("{ca}", &authority.dir().display().to_string());
        setup(&[etcd.tls_endpoint(0)], &format!(", tls: {{{keys}}}"))
    };
    let gateway =
        Gateway::start(STILLGATE, &tls("ca: \"{ca}/ca.pem\", cert: \"{ca}/gateway.pem\", key: \"{ca}/gateway.key\""));
    assert_eq!(status(&gateway, "/one"), 200);
    put(&gateway, "routes/2", &route("/two", node.addr()));
    assert_eq!(status(&gateway, "/two"), 200);
    let stranger = Gateway::start(STILLGATE, &tls("ca: \"{ca}/ca.pem\""));
    assert_eq!((status(&stranger, "/one"), health(&stranger)), (503, 503));
}
