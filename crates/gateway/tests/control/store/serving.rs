//! A write is served when it is answered, and after a restart; meaningless documents are refused. The metrics say how far the
//! store is followed.

use super::stage::{Stage, upstream};
use crate::shared::STILLGATE;
use crate::shared::measured::Exposition;
use serde_json::json;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::time::UNIX_EPOCH;
use stillgate_testkit::{ACCEPT_TEXT, Gateway, Setup, Upstream, eventually, scrape};

#[test]
fn a_write_is_served_when_it_is_answered() {
    let node = Upstream::echo();
    let stage = Stage::with(&Setup::default().gateway("workers: 3"));
    stage.admin.put("upstreams/1", &upstream(node.addr()));
    for round in 0..20 {
        let answer = stage.admin.put("routes/1", &json!({ "uri": format!("/{round}"), "upstream_id": "1" }));
        assert!(answer.head.get("x-stillgate-generation").is_some(), "{answer:?}");
        // Connections spread over the workers.
        for _ in 0..6 {
            assert_eq!(stage.get(&format!("/{round}")), 200);
            assert_eq!(stage.get(&format!("/{}", round + 100)), 404);
        }
    }
    let patched = stage.admin.ask("PATCH", "/apisix/admin/routes/1", r#"{"uri": "/patched"}"#);
    assert_eq!((patched.status, stage.get("/patched"), stage.get("/19")), (200, 200, 404));
    let patched = stage.admin.ask("PATCH", "/apisix/admin/routes/1/uri", r#""/deep""#);
    assert_eq!((patched.status, stage.get("/deep"), stage.get("/patched")), (200, 200, 404));
    let posted = stage.admin.ask("POST", "/apisix/admin/routes", r#"{"uri": "/posted", "upstream_id": "1"}"#);
    assert_eq!((posted.status, stage.get("/posted")), (201, 200));
    stage.admin.delete("routes/1");
    assert_eq!(stage.get("/deep"), 404);
    let stored = stage.admin.ask("PUT", "/apisix/admin/routes/2?wait=stored", r#"{"uri": "/2", "upstream_id": "1"}"#);
    assert_eq!((stored.status, stored.head.get("x-stillgate-generation")), (201, None));
    eventually("it is served, too", || stage.get("/2") == 200);
}

#[test]
fn a_plugin_that_there_is_not_is_refused_with_what_to_use() {
    let stage = Stage::start();
    for (plugin, hint) in [("limit-coutn", "did you mean \"limit-count\""), ("openid-connect", "openid-connect")] {
        let document = json!({ "uri": "/a", "plugins": { plugin: {} } }).to_string();
        let answer = stage.admin.ask("PUT", "/apisix/admin/routes/1", &document).json();
        assert_eq!(answer["error_msg"], format!("unknown plugin [{plugin}]"));
        assert!(answer["description"].as_str().is_some_and(|text| text.contains(hint)), "{answer}");
    }
}

#[test]
fn documents_that_mean_nothing_are_refused() {
    let stage = Stage::start();
    stage.admin.put("upstreams/1", &upstream("127.0.0.1:9".parse().expect("an address")));
    let before = (stage.admin.revision(), stage.gateway.status()["config"]["generation"].clone());
    for (resource, document, reason) in [
        ("routes/1", r#"{"uri": "/a", "ur": 1, "upstream_id": "1"}"#, "did you mean \"uri\""),
        ("routes/1", r#"{"uri": "/a"}"#, "nothing says where requests go"),
        ("routes/1", r#"{"uri": "/a", "upstream_id": "2"}"#, "upstream id [2]"),
        ("routes/1", r#"{"uri": "/a", "upstream_id": "1", "plugins": {"no-such": {}}}"#, "unknown plugin [no-such]"),
        ("routes/1", r#"{"uri": "/a", "upstream_id": "1", "plugins": {"limit-count": {}}}"#, "limit-count"),
        ("routes/1", r#"{"uri": "/a", "upstream_id": "1", "vars": [["a", "=!", "b"]]}"#, "vars"),
        ("routes/1", r#"{"id": "2", "uri": "/a", "upstream_id": "1"}"#, "wrong route id"),
        ("routes/1", "[]", ""),
        ("routes/1", "", "missing configurations"),
        ("routes/1", "{", "Expected"),
        ("upstreams/2", r#"{"type": "sometimes", "nodes": {"127.0.0.1:1": 1}}"#, "type"),
        ("consumers", r#"{"username": "j d"}"#, "username"),
        ("ssls/1", r#"{"sni": "a.example", "cert": "x", "key": "y"}"#, ""),
        ("global_rules/1", r#"{"plugins": {"cors": {"max_age": "x"}}}"#, "max_age"),
        ("plugin_metadata/no-such", "{}", "plugin name"),
        ("secrets/vault/1", r#"{"uri": "http://127.0.0.1:1"}"#, ""),
        ("protos/1", "{}", "content"),
    ] {
        let answer = stage.admin.ask("PUT", &format!("/apisix/admin/{resource}"), document);
        assert_eq!(answer.status, 400, "{resource} {document}: {answer:?}");
        assert!(answer.error().contains(reason), "{document}: {} has not {reason:?}", answer.error());
    }
    let after = (stage.admin.revision(), stage.gateway.status()["config"]["generation"].clone());
    assert_eq!(after, before, "nothing of it was stored");
    assert_eq!(stage.admin.ask("PUT", "/apisix/admin/nothing/1", "{}").status, 404);
    assert_eq!(stage.admin.ask("GET", "/apisix/admin/routes/1", "").status, 404);
    assert_eq!(stage.admin.ask("DELETE", "/apisix/admin/routes/1", "").status, 404);
}

#[test]
fn what_depends_on_something_that_went_is_rejected_until_it_is_back() {
    let node = Upstream::echo();
    let mut stage = Stage::start();
    stage.admin.put("upstreams/1", &upstream(node.addr()));
    stage.admin.put("upstreams/2", &upstream(node.addr()));
    stage.admin.put("routes/1", &json!({ "uri": "/a/*", "upstream_id": "1" }));
    stage.admin.put("routes/all", &json!({ "uri": "/*", "upstream_id": "2" }));
    let refused = stage.admin.ask("DELETE", "/apisix/admin/upstreams/1", "");
    assert_eq!((refused.status, refused.error().contains("route [1] is still using it now")), (400, true));
    stage.admin.delete("upstreams/1?force=true");
    for _ in 0..2 {
        let rejected = &stage.gateway.status()["rejected"];
        assert_eq!(rejected.as_array().map(Vec::len), Some(1), "{rejected}");
        let Some(first) = rejected.get(0) else { panic!("{rejected}") };
        assert_eq!((&first["kind"], &first["id"], &first["serving"]), (&json!("routes"), &json!("1"), &json!("503")));
        assert!(first["reason"].as_str().is_some_and(|reason| reason.contains("upstream_id")), "{first}");
        assert!(first["origin"].as_str().is_some_and(|origin| origin.starts_with("routes/1 @ ")), "{first}");
        assert_eq!((stage.get("/a/b"), stage.get("/b")), (503, 200), "it does not fall to the broader route");
        stage.restart("TERM");
    }
    stage.admin.put("upstreams/1", &upstream(node.addr()));
    assert_eq!((stage.get("/a/b"), &stage.gateway.status()["rejected"]), (200, &json!([])));
}

/// A consumer that a plugin names, and a secret manager: each goes only by force, whichever way the deletion comes.
#[test]
fn what_plugins_name_is_not_deleted() {
    let node = Upstream::echo();
    let stage = Stage::start();
    let route = json!({
        "id": "1",
        "uri": "/a",
        "plugins": { "key-auth": { "anonymous_consumer": "guest" } },
        "upstream": upstream(node.addr()),
    });
    let refused = stage.admin.ask("PUT", "/apisix/admin/routes/1", &route.to_string());
    assert_eq!(refused.status, 400, "{refused:?}");
    stage.admin.put("consumers", &json!({ "username": "guest" }));
    stage.admin.put("routes/1", &route);
    assert_eq!(stage.get("/a"), 200);
    let whole = json!({ "routes": [route] });
    for (method, path, body) in [
        ("DELETE", "/apisix/admin/consumers/guest", String::new()),
        ("POST", "/v1/batch", json!([{ "method": "DELETE", "path": "/apisix/admin/consumers/guest" }]).to_string()),
        ("PUT", "/apisix/admin/configs", whole.to_string()),
        ("POST", "/apisix/admin/configs/validate", whole.to_string()),
    ] {
        let lines = format!("X-API-KEY: {}\r\nX-Digest: 1\r\n", stage.admin.key);
        let refused = stage.admin.ask_with(method, path, &lines, body.as_bytes());
        assert!(refused.status == 400 && refused.text().contains("still using it"), "{method} {path}: {refused:?}");
    }
    // A validation finds errors that only the whole shows, as the write would.
    let whole =
        json!({ "routes": [{ "id": "1", "uri": "/a", "plugins": { "csrf": { "key": "$secret://vault/1/a/b" } } }] });
    for (method, path) in [("PUT", "configs"), ("POST", "configs/validate")] {
        let lines = format!("X-API-KEY: {}\r\nX-Digest: 1\r\n", stage.admin.key);
        let path = format!("/apisix/admin/{path}");
        let refused = stage.admin.ask_with(method, &path, &lines, whole.to_string().as_bytes());
        assert_eq!((refused.status, refused.text().contains("vault/1")), (400, true), "{path}: {refused:?}");
    }
    assert_eq!(stage.get("/a"), 200);
}

#[test]
fn a_restart_serves_the_same() {
    let node = Upstream::echo();
    let mut stage = Stage::start();
    stage.admin.put("upstreams/1", &upstream(node.addr()));
    for n in 0..50 {
        stage.admin.put(&format!("routes/{n}"), &json!({ "uri": format!("/{n}"), "upstream_id": "1" }));
    }
    stage.admin.put("consumers", &json!({ "username": "jack", "plugins": { "key-auth": { "key": "k" } } }));
    stage.admin.delete("routes/7");
    let everything = |stage: &Stage| {
        let list = |kind: &str| stage.admin.read(kind);
        (list("routes"), list("upstreams"), list("consumers"), stage.admin.revision())
    };
    let before = everything(&stage);
    for signal in ["TERM", "KILL"] {
        stage.restart(signal);
        assert_eq!(everything(&stage), before);
        assert_eq!((stage.get("/6"), stage.get("/7"), stage.get("/49")), (200, 404, 200));
    }
    let history = stage.admin.ask("GET", "/v1/history?count=500", "").json();
    assert_eq!(history["changes"].as_array().map(Vec::len), Some(53), "{history}");
}

#[test]
fn what_has_a_time_to_live_goes_by_itself_after_a_restart_too() {
    let node = Upstream::echo();
    let mut stage = Stage::start();
    let route = |uri: &str| json!({ "uri": uri, "upstream": upstream(node.addr()) });
    stage.admin.put("routes/1?ttl=1", &route("/1"));
    assert_eq!(stage.get("/1"), 200);
    eventually("its time to be over", || stage.get("/1") == 404);
    assert_eq!(stage.admin.ask("GET", "/apisix/admin/routes/1", "").status, 404);
    stage.admin.put("routes/2?ttl=2", &route("/2"));
    stage.admin.put("routes/3?ttl=2", &route("/3"));
    stage.admin.put("routes/3", &route("/3"));
    stage.restart("KILL");
    eventually("the time of the other to be over", || stage.get("/2") == 404);
    assert_eq!(stage.get("/3"), 200, "written again without a time");
}

/// The document is valid, and fails only when it is put to use.
#[test]
fn a_file_that_cannot_be_put_to_use_does_not_stop_writes() {
    let node = Upstream::echo();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let stage = Stage::with(&Setup::default());
    let good = std::fs::read_to_string(stage.gateway.config_path()).expect("the file");
    let error = || stage.gateway.status()["config"]["last_error"].to_string();
    let listener = format!("    - {{address: \"{}\"}}\n", taken.local_addr().expect("an address"));
    let authority = "  acme: {storage: /nowhere, agree_terms: true, ca: /nowhere/ca.pem}\n";
    for wrong in [&listener, authority] {
        stage.gateway.write_config_text(&good.replacen("  admin:\n", &format!("{wrong}  admin:\n"), 1));
        eventually("the refusal", || error() != "null");
        let told = error();
        stage.admin.put("routes/1", &json!({ "uri": "/1", "upstream": upstream(node.addr()) }));
        assert_eq!(stage.get("/1"), 200);
        stage.admin.delete("routes/1");
        assert_eq!((stage.get("/1"), error()), (404, told));
        stage.gateway.write_config_text(&good);
        eventually("the file to be right again", || error() == "null");
    }
}

#[test]
fn a_key_is_made_once_and_for_its_owner_only() {
    let mut stage = Stage::start();
    let file = stage.gateway.dir().join("config.redb.admin-key");
    let mode = std::fs::metadata(&file).expect("the key").permissions().mode() & 0o777;
    assert_eq!((mode, stage.admin.key.len()), (0o600, 64));
    assert!(stage.gateway.log().contains(&*file.to_string_lossy()), "{}", stage.gateway.log());
    assert!(!stage.gateway.log().contains(&stage.admin.key));
    let route = json!({ "uri": "/a", "upstream": upstream("127.0.0.1:9".parse().expect("an address")) }).to_string();
    for lines in ["", "X-API-KEY: 0123456789abcdef\r\n"] {
        let answer = stage.admin.ask_with("PUT", "/apisix/admin/routes/1", lines, route.as_bytes());
        assert_eq!(answer.status, 401, "{answer:?}");
    }
    // If no key is configured, this machine may read.
    assert_eq!(stage.admin.ask_with("GET", "/apisix/admin/routes", "", b"").status, 200);
    stage.restart("TERM");
    assert_eq!(std::fs::read_to_string(&file).expect("the key"), stage.admin.key, "it stays");
    assert_eq!(stage.admin.ask("PUT", "/apisix/admin/routes/1", &route).status, 201);
}

/// The values of `stillgate_config_source_NAME`.
fn source_metric(gateway: &Gateway, name: &str) -> Vec<f64> {
    let text = scrape(gateway.admin_addr(), "/metrics", ACCEPT_TEXT, false).text().to_owned();
    Exposition(text).values(&format!("stillgate_config_source_{name}"), &[])
}

#[test]
fn the_metrics_say_how_far_the_store_is_followed() {
    let unix_seconds = || UNIX_EPOCH.elapsed().expect("a clock after 1970").as_secs_f64();
    let began = unix_seconds();
    let node = Upstream::echo();
    let mut stage = Stage::start();
    stage.admin.put("upstreams/1", &upstream(node.addr()));
    stage.admin.put("routes/1", &json!({ "uri": "/1", "upstream_id": "1" }));
    for signal in ["TERM", "KILL"] {
        let gateway = &stage.gateway;
        eventually("the revision", || source_metric(gateway, "revision") == [2.0]);
        assert_eq!(source_metric(gateway, "up"), [1.0]);
        let contact = || source_metric(gateway, "last_contact_timestamp_seconds").first().copied();
        eventually("a contact", || contact().is_some());
        let first = contact().expect("it was there");
        assert!(began.floor() <= first && first <= unix_seconds() + 1.0, "{first}, started at {began}");
        // The store is in this process: it is there for as long as it can be written.
        eventually("a later contact", || contact() > Some(first));
        stage.restart(signal);
    }
    stage.admin.delete("routes/1");
    eventually("the deletion", || source_metric(&stage.gateway, "revision") == [3.0]);

    // Resources of a file have none of these.
    let of_file = Gateway::start(STILLGATE, &Setup::to(node.addr()));
    let text = || scrape(of_file.admin_addr(), "/metrics", ACCEPT_TEXT, false).text().to_owned();
    eventually("the metrics of the process", || text().contains("stillgate_config_generation 1"));
    for name in ["up", "revision", "last_contact_timestamp_seconds"] {
        assert_eq!(source_metric(&of_file, name), [0.0; 0], "{name}");
    }
}
