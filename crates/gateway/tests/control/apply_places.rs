//! Resources from and to places other than a store over HTTP: an etcd, an APISIX, an address with TLS.

use crate::shared::authority::Authority;
use crate::transfer::{KEY, Site, resources, run, server};
use serde_json::{Value as Json, json};
use stillgate_testkit::EtcdServer;

#[test]
fn resources_go_from_a_store_to_an_etcd() {
    let (store, etcd) = (Site::new(), EtcdServer::start());
    let route = |id: usize| format!("  - {{id: r{id}, uri: /{id}, upstream_id: main, plugins: {{key-auth: {{}}}}}}\n");
    let routes: String = (0..300).map(route).collect();
    let text = format!(
        "upstreams:\n  - {{id: main, nodes: {{\"127.0.0.1:9\": 1}}}}\nconsumers:\n  - {{username: jack, credentials: \
         [{{id: c, plugins: {{key-auth: {{key: k}}}}}}]}}\nroutes:\n{routes}"
    );
    store.apply(&text, &[]).expect(0);
    let exported = store.export();
    let endpoint = etcd.endpoint(0);
    let keyring = "data_encryption: {keyring: [0123456789abcdef]}";
    let site = Site::with(&format!("config: {{source: etcd, etcd: {{endpoints: [\"{endpoint}\"]}}}}\n{keyring}"));
    let done = site.apply(&exported, &[]).expect(0);
    assert_eq!(done.summary(), "303 created, 0 changed, 0 deleted, 0 unchanged");
    assert_eq!(site.gateway.get("/299").head.status(), 401);
    site.run("diff", &site.path("apply.yaml"), &[]).expect(0);
    assert_eq!(resources(&site.export()), resources(&exported));
    let refused = run(KEY, &["store", "backup", "/tmp/nothing.redb", "--to", site.url()]).expect(1);
    assert!(refused.err.contains("501") && refused.err.contains("etcdctl snapshot save"), "{refused:?}");
    let gone = site.apply("routes: []\n", &["--prune"]).expect(0);
    assert_eq!(gone.summary(), "0 created, 0 changed, 303 deleted, 0 unchanged");
}

/// A store accepts keys of unknown plugins, and warns: other gateways that know them may use it.
#[test]
fn what_a_store_takes_comes_from_a_file_too() {
    let (one, other) = (Site::new(), Site::new());
    let text = "plugin_metadata: [{id: cors, later: 1}]\nconsumers:\n  - {username: jack, plugins: {key-auth: {key: auth-one, later: 1}}}\n\
                routes:\n  - {id: a, uri: /a, upstream: {nodes: {\"127.0.0.1:9\": 1}}, plugins: {cors: {later: 1}}}\n";
    let done = one.apply(text, &[]).expect(0);
    assert_eq!(done.err.matches("unknown key \"later\"").count(), 3, "{done:?}");
    assert_eq!(done.err.matches("warning: ").count(), 3, "{done:?}");
    let exported = one.export();
    other.apply(&exported, &[]).expect(0);
    other.run("diff", &other.path("apply.yaml"), &[]).expect(0);
    assert_eq!(resources(&other.export()), resources(&exported));
    let refused = one.apply("routes: [{id: a, uri: /a, later: 1}]\n", &[]).expect(1);
    assert!(refused.err.contains("unknown key \"later\""), "only plugins: {refused:?}");
}

#[test]
fn an_address_with_tls_is_asked_with_its_roots_and_our_certificate() {
    let authority = Authority::new();
    authority.issue("server", &["127.0.0.1"]);
    authority.issue("client", &["ops"]);
    let dir = authority.dir().display();
    let admin = format!(
        "  tls: {{cert: \"{dir}/server.pem\", key: \"{dir}/server.key\", client_ca: \"{dir}/ca.pem\"}}\n\
         config: {{source: store, store: \"{{dir}}/config.redb\"}}"
    );
    let site = Site::with(&admin);
    let url = site.url().replace("http://", "https://");
    let [ca, cert, key] = ["ca.pem", "client.pem", "client.key"].map(|name| format!("{dir}/{name}"));
    let own = ["--client-cert", &cert, "--client-key", &key];
    let export = |more: &[&str]| run(KEY, &[&["export", "--from", &url][..], more].concat());
    assert!(export(&own).expect(1).err.contains("TLS: "), "the system does not know our authority");
    export(&["--ca", &ca]).expect(1);
    assert!(export(&[&["--ca", &ca][..], &own].concat()).expect(0).out.contains("routes: []"));
    assert!(export(&["--ca", "/nowhere.pem"]).expect(2).err.contains("/nowhere.pem"));
}

/// Answers as the Admin API of an APISIX that keeps its resources in etcd does: pages of lists, and no `configs`.
fn answer(target: &str) -> (u16, String) {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let node = |key: &str, value: Json, index: u64| json!({"key": format!("/apisix/{key}"), "value": value, "createdIndex": index, "modifiedIndex": index + 1});
    let times = |mut value: Json| {
        value["create_time"] = 1_700_000_000.into();
        value["update_time"] = 1_700_000_000.into();
        value
    };
    let route = |id: usize| {
        times(json!({"id": id.to_string(), "uri": format!("/{id}"), "priority": 0, "status": 1, "upstream_id": "1"}))
    };
    let list = |items: Vec<Json>| (200, json!({"total": items.len(), "list": items}).to_string());
    match path.trim_start_matches("/apisix/admin/") {
        "routes" => {
            let from = if query.contains("page=1&") {
                0
            } else if query.contains("page=2&") {
                500
            } else {
                700
            };
            let items =
                (from..(from + 500).min(700)).map(|id| node(&format!("routes/{id}"), route(id), 1000 - id as u64));
            list(items.collect())
        }
        "upstreams" => list(vec![node(
            "upstreams/1",
            times(
                json!({"id": "1", "type": "roundrobin", "hash_on": "vars", "scheme": "http", "pass_host": "pass", "nodes": {"127.0.0.1:9": 1}}),
            ),
            5,
        )]),
        "consumers" => list(vec![node("consumers/jack", times(json!({"username": "jack"})), 6)]),
        "consumers/jack/credentials" => list(vec![node(
            "consumers/jack/credentials/c1",
            times(json!({"id": "c1", "plugins": {"key-auth": {"key": "k"}}})),
            7,
        )]),
        "ssls" => {
            list(vec![node("ssls/1", times(json!({"id": "1", "cert": "/etc/shop.pem", "snis": ["shop.example"]})), 8)])
        }
        "plugin_metadata" => list(vec![node(
            "plugin_metadata/http-logger",
            json!({"id": "http-logger", "log_format": {"host": "$host"}}),
            9,
        )]),
        "stream_routes" => {
            (400, json!({"error_msg": "stream mode is disabled, can not add stream routes"}).to_string())
        }
        "configs" => (404, json!({"error_msg": "Unsupported resource type: configs"}).to_string()),
        "secrets" | "services" | "global_rules" => (200, "{\"total\":0,\"list\":{}}".to_owned()),
        _ => (404, json!({"error_msg": "not found"}).to_string()),
    }
}

#[test]
fn an_apisix_is_exported_and_applied() {
    let url = server("APISIX/3.14.0", answer);
    let exported = run("k", &["export", "--from", &url, "--secrets"]).expect(0);
    assert!(exported.err.contains("1 resource with masks") && exported.err.contains("ssls/1"), "{exported:?}");
    let out = &exported.out;
    assert_eq!(out.matches("uri: ").count(), 700, "{out}");
    assert!(!out.contains("create_time"), "{out}");
    assert!(out.find("/699") < out.find("/0\n"), "the oldest route comes first");
    assert!(out.contains("credentials:\n      - id: c1\n"), "{out}");
    let site = Site::new();
    let refused = site.apply(out, &[]).expect(1);
    assert!(refused.err.contains("ssls/1: key is a mask"), "{refused:?}");
    // Its key is taken from where APISIX had it.
    let (before, after) = out.split_once("ssls:\n").expect("the certificate");
    let rest = after.split_once("\nupstreams:").expect("the next list").1;
    let done = site.apply(&format!("{before}upstreams:{rest}"), &[]).expect(0);
    assert_eq!(done.summary(), "704 created, 0 changed, 0 deleted, 0 unchanged");
}
