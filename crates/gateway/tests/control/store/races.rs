//! Two writes at once: a document does not go while another comes to refer to it, in a store and in etcd.

use super::stage::{Admin, KEY, Stage, upstream};
use serde_json::{Value as Json, json};
use std::sync::Barrier;
use stillgate_testkit::{EtcdServer, Setup, eventually};

/// Two requests: method, path and document of each.
type Pair = [(&'static str, &'static str, Json); 2];

fn node() -> Json {
    upstream("127.0.0.1:9".parse().expect("an address"))
}

/// The resources that exist before, and the requests one of which has to fail.
fn pairs() -> Vec<(Option<(&'static str, Json)>, Pair)> {
    let delete = |path: &'static str| ("DELETE", path, Json::Null);
    let put = |path: &'static str, document: Json| ("PUT", path, document);
    let split = json!({ "rules": [{ "weighted_upstreams": [{ "upstream_id": "t" }] }] });
    vec![
        (
            Some(("upstreams/t", node())),
            [delete("upstreams/t"), put("routes/r", json!({ "uri": "/r", "upstream_id": "t" }))],
        ),
        (
            Some(("upstreams/t", node())),
            [delete("upstreams/t"), put("global_rules/r", json!({ "plugins": { "traffic-split": split } }))],
        ),
        (
            Some(("services/t", json!({ "upstream": node() }))),
            [delete("services/t"), put("routes/r", json!({ "uri": "/r", "service_id": "t" }))],
        ),
        (
            Some(("plugin_configs/t", json!({ "plugins": { "cors": {} } }))),
            [
                delete("plugin_configs/t"),
                put("routes/r", json!({ "uri": "/r", "plugin_config_id": "t", "upstream": node() })),
            ],
        ),
        (
            Some(("consumer_groups/t", json!({ "plugins": { "cors": {} } }))),
            [delete("consumer_groups/t"), put("consumers/r", json!({ "username": "r", "group_id": "t" }))],
        ),
        (
            None,
            [
                put("global_rules/t", json!({ "plugins": { "cors": {} } })),
                put("global_rules/r", json!({ "plugins": { "cors": {} } })),
            ],
        ),
        (None, [put("consumers/t", with_key("t")), put("consumers/r", with_key("r"))]),
    ]
}

fn with_key(name: &str) -> Json {
    json!({ "username": name, "plugins": { "key-auth": { "key": "k" } } })
}

fn is_good(status: u16) -> bool {
    (200..300).contains(&status)
}

fn both(admins: [&Admin; 2], pair: &Pair) -> [u16; 2] {
    let barrier = Barrier::new(2);
    let send = |admin: &Admin, (method, path, document): &(&str, &str, Json)| {
        let body = if document.is_null() { String::new() } else { document.to_string() };
        barrier.wait();
        admin.ask(method, &format!("/apisix/admin/{path}"), &body).status
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| send(admins[0], &pair[0]));
        let second = send(admins[1], &pair[1]);
        [first.join().expect("the first"), second]
    })
}

fn race(admins: [&Admin; 2], rounds: usize) {
    let clear = |path: &str| drop(admins[0].ask("DELETE", &format!("/apisix/admin/{path}?force=true"), ""));
    let is_there = |admin: &Admin, path: &str| admin.ask("GET", &format!("/apisix/admin/{path}"), "").status == 200;
    for (before, pair) in pairs() {
        for _ in 0..rounds {
            if let Some((path, document)) = &before {
                admins[0].put(path, document);
                eventually("it is known to the other", || is_there(admins[1], path));
            }
            let statuses = both(admins, &pair);
            assert!(statuses.into_iter().filter(|status| is_good(*status)).count() == 1, "{statuses:?}: {pair:?}");
            clear(pair[1].1);
            clear(pair[0].1);
            eventually("both are gone", || {
                let there = [(admins[1], pair[0].1), (admins[1], pair[1].1)];
                !there.into_iter().any(|(admin, path)| is_there(admin, path))
            });
        }
    }
    // A consumer and its credential may both be written, one after the other; then both are gone.
    for _ in 0..rounds {
        admins[0].put("consumers/t", &json!({ "username": "t" }));
        eventually("it is known to the other", || is_there(admins[1], "consumers/t"));
        let credential = json!({ "plugins": { "key-auth": { "key": "k" } } });
        let pair: Pair = [("DELETE", "consumers/t", Json::Null), ("PUT", "consumers/t/credentials/c", credential)];
        let statuses = both(admins, &pair);
        assert!(is_good(statuses[0]) && [200, 201, 400, 404].contains(&statuses[1]), "{statuses:?}");
        eventually("both are gone", || {
            let paths = ["consumers/t", "consumers/t/credentials/c"];
            !paths.into_iter().any(|path| is_there(admins[1], path))
        });
    }
}

/// What a replacement of everything refers to and does not write goes at the same moment: whichever comes first, no route is left
/// without its upstream, and no key with two consumers.
fn race_replacements(admins: [&Admin; 2], rounds: usize) {
    let replace = |round: usize, whole: &Json| {
        let lines = format!("X-API-KEY: {}\r\nX-Digest: {round}\r\n", admins[0].key);
        admins[0].ask_with("PUT", "/apisix/admin/configs", &lines, whole.to_string().as_bytes()).status
    };
    let mut own = node();
    own["id"] = "t".into();
    let whole = json!({
        "upstreams": [own],
        "routes": [{ "id": "r", "uri": "/r", "upstream_id": "t" }],
        "consumers": [with_key("t")],
    });
    for round in 0..rounds {
        assert!(is_good(replace(2 * round, &json!({}))));
        admins[0].put("upstreams/t", &node());
        eventually("it is known to the other", || admins[1].ask("GET", "/apisix/admin/upstreams/t", "").status == 200);
        let barrier = Barrier::new(3);
        let other = |method: &str, path: &str, body: &str| {
            barrier.wait();
            admins[1].ask(method, path, body).status
        };
        std::thread::scope(|scope| {
            let replaced = scope.spawn(|| {
                barrier.wait();
                replace(2 * round + 1, &whole)
            });
            let put = scope.spawn(|| other("PUT", "/apisix/admin/consumers", &with_key("r").to_string()));
            let deleted = other("DELETE", "/apisix/admin/upstreams/t", "");
            let (replaced, put) = (replaced.join().expect("a replacement"), put.join().expect("a consumer"));
            // The replacement is refused if the consumer gets the key after it was planned.
            assert!(is_good(replaced) || replaced == 400 && is_good(put), "{replaced} {put}");
            assert!([200, 400].contains(&deleted) && [200, 201, 400].contains(&put), "{deleted} {put}");
        });
        for admin in admins {
            eventually("nothing is left half", || {
                let status = |path: &str| admin.ask("GET", &format!("/apisix/admin/{path}"), "").status;
                let consumers = ["consumers/t", "consumers/r"].map(status);
                (status("routes/r") == 404 || status("upstreams/t") == 200) && consumers.contains(&404)
            });
        }
    }
}

#[test]
fn a_store_makes_one_of_two_writes_that_exclude_each_other() {
    let stage = Stage::start();
    race([&stage.admin, &stage.admin], 12);
    race_replacements([&stage.admin, &stage.admin], 12);
    assert_eq!(stage.gateway.status()["rejected"], json!([]));
}

#[test]
fn an_etcd_makes_one_of_two_writes_that_exclude_each_other() {
    let etcd = EtcdServer::start();
    let source = format!("config: {{source: etcd, etcd: {{endpoints: [{:?}]}}}}", etcd.endpoint(0));
    let setup = Setup::default().gateway(&source).admin(&format!("key: {KEY}"));
    let stages = [Stage::with(&setup), Stage::with(&setup)];
    race([&stages[0].admin, &stages[1].admin], 6);
    race_replacements([&stages[0].admin, &stages[1].admin], 6);
    for stage in &stages {
        assert_eq!(stage.gateway.status()["rejected"], json!([]));
    }
}
