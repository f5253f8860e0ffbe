//! An etcd as a source: resources that cannot be read, keys that are ignored, and what is reported while it is away.

use super::gateways::{ask, await_status, endpoints, put, rejected, route, setup, start, status};
use super::write;
use crate::shared::STILLGATE;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use stillgate_testkit::{
    BufferedSocket, Client, EtcdServer, Gateway, ReservedPort, Setup, Upstream, eventually, scrape,
};

/// Beside a route that is open to everybody, each of these requires a key and cannot be read in part. A request that it guards is
/// never answered without one.
#[test]
fn what_cannot_be_read_in_part_does_not_leave_its_requests_to_an_open_route() {
    let (etcd, node) = (EtcdServer::start(), Upstream::echo());
    let open = |host: Option<&str>| {
        let mut open = route("/*", node.addr());
        if let Some(host) = host {
            open["host"] = host.into();
        }
        open
    };
    let guarded = |uri: Value, more: Value| {
        let mut guarded = open(None);
        guarded["uri"] = uri;
        guarded["plugins"] = json!({"key-auth": {}});
        guarded.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
        guarded
    };
    write(
        &etcd,
        "services/s",
        &json!({"hosts": ["service.test"], "script": "x", "upstream": {"nodes": {"127.0.0.1:1": 1}}}),
    );
    for (id, route) in [
        ("open", open(None)),
        ("open-too", open(Some("open.test"))),
        ("open-service", open(Some("service.test"))),
        ("a", guarded("/a/*".into(), json!({"hosts": ["x y"]}))),
        ("b", guarded(7.into(), json!({"host": "b.test"}))),
        ("d", guarded("/d/*".into(), json!({"script": "local _M = {} return _M"}))),
        ("e", guarded("/e/*".into(), json!({"service_protocol": "grpc"}))),
        ("f", guarded("/f/*".into(), json!({"vars": [["http_x", "~~", "^(?!a)"]]}))),
        ("g", guarded("/g/*".into(), json!({"filter_func": "function("}))),
        ("h", guarded("/h/*".into(), json!({"priority": "high"}))),
        ("i", guarded("/i/*".into(), json!({"service_id": "s", "upstream": null}))),
        ("j", guarded("/j/*".into(), json!({"remote_addr": "everywhere"}))),
    ] {
        write(&etcd, &format!("routes/{id}"), &route);
    }
    // Bytes that are not UTF-8, which APISIX accepts.
    let text = guarded("/k/*".into(), json!({"desc": "caf?"})).to_string();
    etcd.put(
        0,
        "/apisix/routes/k",
        text.bytes().map(|byte| if byte == b'?' { 0xe9 } else { byte }).collect::<Vec<_>>(),
    );
    // Texts that lua-cjson accepts although they are not JSON, and texts that are cut off.
    let text = guarded("/PATH/*".into(), json!({"VALUE": 1})).to_string();
    for (id, value) in [
        ("l", r#""priority":010"#),
        ("m", r#""vars":[["arg_x","==",nan]]"#),
        ("n", r#""priority":1e999"#),
        ("o", &format!("\"desc\":{}1{}", "[".repeat(900), "]".repeat(900))),
        ("p", r#""desc":"\ud800""#),
    ] {
        let text = text.replace("PATH", id).replace("\"VALUE\":1", value);
        etcd.put(0, &format!("/apisix/routes/{id}"), text);
    }
    etcd.put(0, "/apisix/routes/q", r#"{"uri":"/q/*","plugins":{"key-auth":{}},"upstream":{"nodes":{"#);
    // Keys that no Admin API writes. APISIX serves them.
    write(&etcd, "routes/r/s", &guarded("/r/*".into(), json!({})));
    write(&etcd, "routes/a/b/c/d/e", &guarded("/s/*".into(), json!({})));
    etcd.call(
        0,
        "/v3/kv/put",
        &json!({
            "key": STANDARD.encode(b"/apisix/routes/\xff"),
            "value": STANDARD.encode(guarded("/t/*".into(), json!({})).to_string()),
        }),
    );
    // Texts that APISIX does not read either, but that somebody wrote to guard something.
    let object = guarded("/u/*".into(), json!({})).to_string();
    etcd.put(0, "/apisix/routes/u", format!("\u{feff}{object}"));
    etcd.put(0, "/apisix/routes/v", Value::String(object.replace("/u/", "/v/")).to_string());
    etcd.put(0, "/apisix/routes/w", format!("[{}]", object.replace("/u/", "/w/")));
    // Keys below which APISIX finds resources, too.
    write(&etcd, "routes/", &guarded("/x/*".into(), json!({})));
    write(&etcd, "routes", &guarded("/y/*".into(), json!({})));
    write(&etcd, "routes_old/1", &guarded("/z/*".into(), json!({})));
    // Only these are not resources.
    etcd.put(0, "/apisix/services/", "init_dir");
    etcd.put(0, "/apisix/ssls/", "");
    etcd.put(0, "/apisix/global_rules/", "init_dir");
    let gateway = start(&etcd, 1);
    let status = |host: &str, path: &str| {
        let mut connection = BufferedSocket::new(TcpStream::connect(gateway.addr()).expect("connect"));
        connection.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        connection.expect_response("GET").head.status()
    };
    for name in "adefghjklmnopqrstuvwxyz".chars() {
        assert_eq!(status("other.test", &format!("/{name}/1")), 503, "{name}");
    }
    // The host could have been that of the open route.
    assert_eq!((status("open.test", "/a/1"), status("open.test", "/d/1")), (503, 200));
    assert_eq!((status("b.test", "/any"), status("other.test", "/any")), (503, 200));
    assert_eq!((status("service.test", "/i/1"), status("other.test", "/i/1")), (503, 200));
    let of_a = gateway.status()["rejected"].as_array().expect("a list").iter().find(|of| of["id"] == "a").cloned();
    let reason = of_a.expect("it is rejected")["reason"].to_string();
    assert!(reason.contains("so that no other answers in its place, it refuses any host"), "{reason}");
    etcd.delete(0, "/apisix/routes/a/b/c/d/e");
    eventually("the route that is gone", || status("other.test", "/s/1") == 200);
    // Once repaired, it requires its key.
    write(&etcd, "routes/a", &guarded("/a/*".into(), json!({})));
    eventually("the mended route", || status("other.test", "/a/1") == 401);
    // A marker in the place of a document without an id removes it.
    etcd.put(0, "/apisix/routes/", "init_dir");
    eventually("the route without an id is gone", || status("other.test", "/x/1") == 200);
}

/// Each of these replaces one document by a text that is not an object, and no request that it guarded is answered.
#[test]
fn a_document_that_is_not_an_object_closes_what_it_could_have_guarded() {
    let (etcd, node) = (EtcdServer::start(), Upstream::echo());
    let metrics = ReservedPort::new();
    write(&etcd, "routes/open", &route("/*", node.addr()));
    write(&etcd, "upstreams/u", &json!({"nodes": {node.addr().to_string(): 1}}));
    write(&etcd, "services/s", &json!({"upstream_id": "u"}));
    write(&etcd, "plugin_configs/p", &json!({"plugins": {"echo": {"body": "p"}}}));
    write(&etcd, "routes/s", &json!({"uri": "/s/*", "service_id": "s"}));
    write(&etcd, "routes/u", &json!({"uri": "/u/*", "upstream_id": "u"}));
    write(&etcd, "routes/p", &json!({"uri": "/p/*", "plugin_config_id": "p", "upstream_id": "u"}));
    let exposed = format!("metrics: {{address: \"{}\"}}", metrics.addr());
    let gateway = Gateway::start(STILLGATE, &setup(&endpoints(&etcd, 1), "").gateway(&exposed));
    let status = |path: &str| gateway.get(path).head.status();
    let all = ["/any", "/s/1", "/u/1", "/p/1"];
    let yaml = "id: g\nuri: /g/*\nplugins: {key-auth: {}}\n";
    for (key, text, refused) in [
        ("routes/g", yaml, &all[..]),
        ("routes/g", "// a guard\n{\"uri\": \"/g/*\"}", &all),
        ("routes/", "null", &all),
        ("global_rules/g", "\u{feff}{\"plugins\": {}}", &all),
        ("global_rules/", yaml, &all),
        ("global_rules_old/1", "{}", &all),
        ("services/s", "[]", &["/s/1"]),
        ("upstreams/u", "\"{}\"", &["/s/1", "/u/1", "/p/1"]),
        ("plugin_configs/p", yaml, &["/p/1"]),
    ] {
        let before = etcd.get(0, &format!("/apisix/{key}"));
        etcd.delete(0, &format!("/apisix/{key}"));
        etcd.put(0, &format!("/apisix/{key}"), text);
        eventually(&format!("{key} is refused"), || status(refused[0]) == 503);
        for path in all {
            assert_eq!(status(path), if refused.contains(&path) { 503 } else { 200 }, "{key} {text:?} {path}");
        }
        let origin = format!("/apisix/{key} @ ");
        let named = |of: &Value| of["origin"].as_str().is_some_and(|of| of.starts_with(&origin));
        // What refers to a document that is deleted is refused, too, so the one that follows may not have been read yet.
        eventually(&format!("{key} is listed"), || {
            gateway.status()["rejected"].as_array().expect("a list").iter().any(named)
        });
        eventually("it is in the log", || gateway.log().contains(&origin));
        let kind = key.split(['/', '_']).next().unwrap_or_default();
        let counted = || {
            let text = String::from_utf8(scrape(metrics.addr(), "/metrics", "text/plain", false).body).expect("UTF-8");
            text.lines().any(|line| {
                line.starts_with(&format!("stillgate_config_rejected{{kind=\"{kind}")) && !line.ends_with(" 0")
            })
        };
        eventually("it is counted", counted);
        match before {
            Some(before) => etcd.put(0, &format!("/apisix/{key}"), before),
            None => etcd.delete(0, &format!("/apisix/{key}")),
        };
        eventually("all is served again", || all.iter().all(|path| status(path) == 200));
    }
    // APISIX has no such collections.
    etcd.put(0, "/apisix//routes/g", "{\"uri\": \"/g/*\"}");
    etcd.put(0, "/apisix/Routes/g", "{\"uri\": \"/g/*\"}");
    for key in ["/apisix//routes/g", "/apisix/Routes/g"] {
        eventually(key, || gateway.log().contains(&format!("{key}: nothing reads this document")));
    }
    assert_eq!(status("/any"), 200);
}

/// The value of a metric; `None`: it is not exposed.
fn metric(port: &ReservedPort, name: &str) -> Option<f64> {
    let text = String::from_utf8(scrape(port.addr(), "/metrics", "text/plain", false).body).expect("UTF-8");
    let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

#[test]
fn an_etcd_that_is_away_is_in_the_metrics_and_the_health() {
    let (mut etcd, node) = (EtcdServer::start(), Upstream::echo());
    let port = ReservedPort::new();
    let metrics = format!("metrics: {{address: \"{}\", dialect: apisix}}", port.addr());
    let gateway = Gateway::start(STILLGATE, &setup(&endpoints(&etcd, 1), "").gateway(&metrics));
    put(&gateway, "routes/1", &route("/one", node.addr()));
    put(&gateway, "consumers", &json!({"username": "jack"}));
    let stored =
        |path: &str| ask(&gateway, &format!("GET /apisix/admin/{path}"), "", &Value::Null).2["modifiedIndex"].clone();
    let index = |key: &str| metric(&port, &format!("apisix_etcd_modify_indexes{{key=\"{key}\"}}"));
    let [of_route, of_consumer] = ["routes/1", "consumers/jack"].map(|path| stored(path).as_f64());
    eventually("the revisions", || [index("routes"), index("consumers")] == [of_route, of_consumer]);
    assert_eq!([index("max_modify_index"), index("prev_index"), index("x_etcd_index")], [of_consumer; 3]);
    assert_eq!([index("services"), index("upstreams"), index("protos")], [Some(0.0); 3]);
    let up = || [metric(&port, "stillgate_config_source_up"), metric(&port, "apisix_etcd_reachable")];
    assert_eq!(up(), [Some(1.0); 2]);
    assert_eq!(metric(&port, "stillgate_config_source_revision"), of_consumer);
    let contact = || metric(&port, "stillgate_config_source_last_contact_timestamp_seconds").expect("a time");
    let is_stale = || {
        let answer = Client::connect(gateway.admin_addr()).get("/v1/health");
        let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
        (answer.head.status(), body["status"].clone())
    };
    assert_eq!(is_stale(), (200, "ok".into()));
    // A newest resource that is deleted leaves the one before.
    etcd.delete(0, "/apisix/consumers/jack");
    eventually("the deletion", || index("consumers") == Some(0.0) && index("max_modify_index") == of_route);
    etcd.kill(0);
    eventually("the loss", || up() == [Some(0.0); 2]);
    assert_eq!(is_stale(), (200, "stale".into()));
    let (last, since) = (contact(), Instant::now());
    eventually("two seconds", || since.elapsed() > Duration::from_secs(2));
    assert_eq!(contact(), last, "nothing was heard");
    assert_eq!(status(&gateway, "/one"), 200);
    etcd.start_again(0);
    eventually("the return", || up() == [Some(1.0); 2] && contact() > last);
    assert_eq!(is_stale(), (200, "ok".into()));
    // The connection is quiet but alive: it is probed now and then.
    let heard = contact();
    eventually("a quiet etcd to be heard of", || contact() > heard);
}

#[test]
fn plugins_that_only_watch_can_be_ignored() {
    let (etcd, node, port) = (EtcdServer::start(), Upstream::echo(), ReservedPort::new());
    let text = |ignored: &str| {
        let etcd = format!("etcd: {{endpoints: {:?}, timeout: 50s}}", endpoints(&etcd, 1));
        Setup::resources("").gateway(&format!(
            "metrics: {{address: \"{}\"}}\nconfig: {{source: etcd, {etcd}, ignore_plugins: [{ignored}]}}",
            port.addr()
        ))
    };
    let kafka = json!({"brokers": {"10.0.0.1": 9092}, "kafka_topic": "t"});
    let with = |uri: &str, plugins: Value| {
        let mut route = route(uri, node.addr());
        route["plugins"] = plugins;
        route
    };
    write(&etcd, "routes/a", &with("/a", json!({"kafka-logger": kafka})));
    write(&etcd, "routes/b", &with("/b", json!({"kafka-logger": kafka, "key-auth": {}})));
    write(&etcd, "routes/c", &with("/c", json!({"kafka-logger": 7, "ext-plugin-pre-req": {}})));
    // A function before it can refuse requests.
    let guarded = json!({"kafka-logger": {"_meta": {"pre_function": "return function() ngx.exit(403) end"}}});
    write(&etcd, "routes/d", &with("/d", guarded));
    write(&etcd, "plugin_metadata/kafka-logger", &json!({"log_format": {"a": 7}}));
    let gateway = Gateway::start(STILLGATE, &text("kafka-logger"));
    let statuses = || ["/a", "/b", "/c", "/d"].map(|path| status(&gateway, path));
    await_status(&gateway, "/a", 200);
    assert_eq!(statuses(), [200, 401, 503, 503]);
    let refused = ["c", "d"].map(|id| ("routes".to_owned(), id.to_owned(), "503".to_owned()));
    assert_eq!(rejected(&gateway), refused);
    assert_eq!(gateway.status()["ignored_plugins"], json!({"kafka-logger": 2}));
    let counted = || metric(&port, "stillgate_config_ignored_plugins{plugin=\"kafka-logger\"}");
    eventually("the metric", || counted() == Some(2.0));
    eventually("a warning", || gateway.log().contains("requests are served without this plugin"));
    // Without the key they are refused again; the file is read without a restart.
    let file = std::fs::read_to_string(gateway.config_path()).expect("the file");
    gateway.write_config_text(&file.replace("ignore_plugins: [kafka-logger]", "ignore_plugins: []"));
    await_status(&gateway, "/a", 503);
    assert_eq!(gateway.status()["ignored_plugins"], Value::Null);
    eventually("the metric", || counted() == Some(0.0));
    for (ignored, why) in
        [("key-auth", "can refuse or change requests"), ("kafka-loger", "did you mean \"kafka-logger\"?")]
    {
        gateway.write_config_text(&file.replace("[kafka-logger]", &format!("[{ignored}]")));
        eventually(why, || gateway.status()["config"]["last_error"].to_string().contains(&why.replace('"', "\\\"")));
    }
}
