//! Concurrent writers, dry runs, batches, history and rollback.

use super::stage::{Admin, STORE, Stage, upstream};
use serde_json::{Value as Json, json};
use stillgate_testkit::{Setup, Upstream, eventually};

/// Number of concurrent writers, and what each adds.
const WRITERS: usize = 4;
const ADDED: u64 = 15;

/// Adds one to a number in a route's labels; `false`: another writer was quicker.
fn add_one(admin: &Admin, node: &Json) -> bool {
    let read = admin.read("routes/1");
    let count: u64 = read["value"]["labels"]["n"].as_str().and_then(|n| n.parse().ok()).expect("a number");
    let route = json!({ "uri": "/1", "upstream": node, "labels": { "n": (count + 1).to_string() } });
    let lines = format!("X-API-KEY: {}\r\nIf-Match: \"{}\"\r\n", admin.key, read["modifiedIndex"]);
    let answer = admin.ask_with("PUT", "/apisix/admin/routes/1", &lines, route.to_string().as_bytes());
    assert!(matches!(answer.status, 200 | 412), "{answer:?}");
    answer.status == 200
}

#[test]
fn of_writers_with_if_match_nobody_overwrites_another() {
    let stage = Stage::start();
    let node = upstream("127.0.0.1:9".parse().expect("an address"));
    let route = json!({ "uri": "/1", "upstream": node, "labels": { "n": "0" } });
    let created = stage.admin.put("routes/1", &route);
    assert_eq!(created.head.get("etag"), Some("\"1\""), "{created:?}");
    std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| {
                let mut added = 0;
                while added < ADDED {
                    added += u64::from(add_one(&stage.admin, &node));
                }
            });
        }
    });
    let read = stage.admin.read("routes/1");
    assert_eq!(read["value"]["labels"]["n"], (WRITERS as u64 * ADDED).to_string());
    assert_eq!(stage.admin.revision(), 1 + WRITERS as u64 * ADDED, "one revision a write");
    let with = |method: &str, path: &str, condition: &str| {
        let lines = format!("X-API-KEY: {}\r\n{condition}\r\n", stage.admin.key);
        stage.admin.ask_with(method, path, &lines, route.to_string().as_bytes()).status
    };
    assert_eq!(with("PUT", "/apisix/admin/routes/1", "If-None-Match: *"), 412);
    assert_eq!(with("PUT", "/apisix/admin/routes/2", "If-None-Match: *"), 201);
    assert_eq!(with("DELETE", "/apisix/admin/routes/1", "If-Match: \"1\""), 412);
    assert_eq!(with("DELETE", "/apisix/admin/routes/1", &format!("If-Match: \"{}\"", read["modifiedIndex"])), 200);
    assert_eq!(with("PUT", "/apisix/admin/routes/1", "If-Match: *"), 412, "there is none any more");
}

#[test]
fn a_dry_run_tells_and_changes_nothing() {
    let node = Upstream::echo();
    let stage = Stage::start();
    stage.admin.put("upstreams/1", &upstream(node.addr()));
    stage.admin.put("routes/1", &json!({ "uri": "/1", "upstream_id": "1" }));
    let ask = |method: &str, path: &str, body: &str| {
        let answer = stage.admin.ask(method, path, body);
        (answer.status, answer.json())
    };
    let (status, told) = ask("PUT", "/apisix/admin/routes/1?dry_run=true", r#"{"uri": "/other", "upstream_id": "1"}"#);
    assert_eq!((status, &told["dry_run"]), (200, &json!(true)));
    let change = &told["changes"][0];
    assert_eq!((&change["before"]["uri"], &change["after"]["uri"]), (&json!("/1"), &json!("/other")));
    let (status, told) = ask("DELETE", "/apisix/admin/upstreams/1?force=true&dry_run=true", "");
    assert_eq!((status, &told["effects"][0]["key"]), (200, &json!("routes/1")), "{told}");
    assert!(told["effects"][0]["effect"].as_str().is_some_and(|effect| effect.contains("503")), "{told}");
    let (status, _) = ask("PUT", "/apisix/admin/routes/1?dry_run=true", r#"{"uri": "/other"}"#);
    assert_eq!(status, 400, "what would be refused is refused here, too");
    let batch = r#"[{"method": "DELETE", "path": "/apisix/admin/routes/1"}]"#;
    assert_eq!(ask("POST", "/v1/batch?dry_run=true", batch).0, 200);
    assert_eq!((stage.admin.revision(), stage.get("/1"), stage.get("/other")), (2, 200, 404));
}

#[test]
fn a_dry_run_says_what_is_probably_not_meant() {
    let node = Upstream::echo();
    let stage = Stage::start();
    stage.admin.put("upstreams/1", &upstream(node.addr()));
    stage.admin.put("routes/1", &json!({ "uri": "/1", "upstream_id": "1" }));
    let ask = |id: &str, body: &str| {
        let answer = stage.admin.ask("PUT", &format!("/apisix/admin/routes/{id}?dry_run=true"), body);
        assert_eq!(answer.status, 200);
        answer.json()
    };
    let says = |list: &serde_json::Value, part: &str| list.to_string().contains(part);
    let told = ask("2", r#"{"uri": "/1", "upstream_id": "1"}"#);
    assert!(says(&told["warnings"], "takes no request"), "{told}");
    let told = ask("2", r#"{"uri": "/1", "upstream_id": "1", "priority": 1}"#);
    assert!(told["warnings"] == json!([]) && told["effects"][0]["key"] == "routes/1", "{told}");
    assert!(says(&told["effects"], "takes no request"), "{told}");
    let told = ask("2", r#"{"uri": "/2", "upstream_id": "1", "plugins": {"key-auth": {}}}"#);
    assert!(says(&told["warnings"], "key-auth"), "{told}");
    let told = ask("2", r#"{"uri": "/2", "upstream_id": "1"}"#);
    assert_eq!((&told["warnings"], &told["effects"]), (&json!([]), &json!([])));
}

#[test]
fn a_plugin_that_reads_a_field_which_no_request_has_is_warned_of() {
    let node = Upstream::echo();
    let stage = Stage::start();
    stage.admin.put("upstreams/1", &upstream(node.addr()));
    let warnings = |name: &str| {
        let body = json!({"uri": "/1", "upstream_id": "1", "plugins": {"key-auth": {"header": name}}}).to_string();
        let answer = stage.admin.ask("PUT", "/apisix/admin/routes/1", &body);
        assert!(matches!(answer.status, 200 | 201), "{answer:?}");
        answer.head.all("x-stillgate-warning").join(" ")
    };
    let warning = warnings("api_key");
    for part in ["key-auth of route \"1\"", "\"api_key\"", "gateway.underscores_in_headers: true"] {
        assert!(warning.contains(part), "{part}: {warning}");
    }
    assert!(!warnings("api-key").contains("underscores_in_headers"));
}

#[test]
fn a_dry_run_tells_which_recent_requests_take_another_route() {
    let node = Upstream::echo();
    let log = "access_log: {path: \"{dir}/access.log\", format: json}";
    let stage = Stage::with(&Setup::default().gateway(STORE).gateway(log));
    stage.admin.put("upstreams/1", &upstream(node.addr()));
    stage.admin.put("routes/1", &json!({ "uri": "/*", "upstream_id": "1" }));
    let ask = |path: &str, body: &str| {
        let answer = stage.admin.ask("PUT", &format!("/apisix/admin/{path}?dry_run=true"), body);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["recent_requests"].clone()
    };
    let new = r#"{"uri": "/shop/*", "upstream_id": "1"}"#;
    for target in ["/", "/shop/1?secret=1", "/shop/2", "/a"] {
        assert_eq!(stage.get(target), 200);
    }
    eventually("the four requests to be kept", || ask("routes/2", new)["requests"] == 4);
    let told = ask("routes/2", new);
    assert_eq!((&told["same"], &told["changed"], &told["other_plugins"]), (&json!(2), &json!(2), &json!(0)), "{told}");
    let change = &told["changes"][0];
    assert_eq!((&change["old"]["route"], &change["new"]["route"]), (&json!("1"), &json!("2")));
    assert_eq!((&change["requests"], &change["examples"][1]["uri"]), (&json!(2), &json!("/shop/2")));
    assert_eq!(change["examples"][0]["uri"], "/shop/1?…", "queries may have keys in them");
    let told = ask("routes/1", r#"{"uri": "/*", "upstream_id": "1", "plugins": {"cors": {}, "gzip": {}}}"#);
    assert_eq!((&told["same"], &told["other_plugins"]), (&json!(4), &json!(4)), "{told}");
    let change = &told["plugin_changes"][0];
    assert_eq!(
        (&change["route"], &change["added"], &change["removed"]),
        (&json!("1"), &json!(["cors", "gzip"]), &json!([]))
    );
    let told = ask("global_rules/1", r#"{"plugins": {"cors": {}}}"#);
    assert_eq!(told["plugin_changes"][0]["added"], json!(["cors"]), "{told}");
    let told = ask("upstreams/2", r#"{"nodes": {"127.0.0.1:9": 1}}"#);
    assert_eq!((&told["same"], &told["other_plugins"]), (&json!(4), &json!(0)));
    assert_eq!(stage.admin.revision(), 2, "nothing was changed");
}

#[test]
fn without_a_log_a_dry_run_says_why_requests_are_not_known() {
    let stage = Stage::start();
    let answer = stage.admin.ask("PUT", "/apisix/admin/global_rules/1?dry_run=true", r#"{"plugins": {}}"#);
    let told = &answer.json()["recent_requests"];
    assert_eq!(told, &json!({ "requests": 0, "reason": "not known: gateway.access_log is off" }));
}

#[test]
fn a_batch_is_made_as_a_whole_or_not_at_all() {
    let node = Upstream::echo();
    let stage = Stage::start();
    let put =
        |path: &str, body: Json| json!({ "method": "PUT", "path": format!("/apisix/admin/{path}"), "body": body });
    let batch =
        |operations: &[Json]| stage.admin.ask("POST", "/v1/batch", &Json::from(operations.to_vec()).to_string());
    let good = [put("upstreams/1", upstream(node.addr())), put("routes/1", json!({ "uri": "/1", "upstream_id": "1" }))];
    let answer = batch(&good);
    assert_eq!((answer.status, &answer.json()["revision"], stage.get("/1")), (200, &json!(1), 200), "{answer:?}");
    let bad = [
        json!({ "method": "DELETE", "path": "/apisix/admin/routes/1" }),
        put("routes/2", json!({ "uri": "/2", "upstream_id": "none" })),
    ];
    let answer = batch(&bad);
    assert_eq!((answer.status, &answer.json()["operation"]), (400, &json!(1)), "{answer:?}");
    let twice = [good[1].clone(), good[1].clone()];
    assert_eq!(batch(&twice).status, 400);
    assert_eq!((stage.get("/1"), stage.admin.revision()), (200, 1));
    // Everything is deleted at once, in a permitted order.
    let gone = [
        json!({ "method": "DELETE", "path": "/apisix/admin/routes/1" }),
        json!({ "method": "DELETE", "path": "/apisix/admin/upstreams/1" }),
    ];
    assert_eq!((batch(&gone).status, stage.get("/1"), stage.admin.revision()), (200, 404, 2));
}

#[test]
fn history_leads_back() {
    let node = Upstream::echo();
    let stage = Stage::start();
    stage.admin.put("upstreams/1", &upstream(node.addr()));
    stage.admin.put("routes/1", &json!({ "uri": "/first", "upstream_id": "1" }));
    stage.admin.put("routes/1", &json!({ "uri": "/second", "upstream_id": "1" }));
    stage.admin.put("routes/2", &json!({ "uri": "/more", "upstream_id": "1" }));
    stage.admin.delete("routes/1");
    let history = stage.admin.ask("GET", "/v1/history", "").json();
    let revisions: Vec<_> =
        history["changes"].as_array().expect("a list").iter().map(|change| &change["revision"]).collect();
    assert_eq!(revisions, [5, 4, 3, 2, 1]);
    let newest = &history["changes"][0];
    assert_eq!(newest["author"]["action"], "DELETE /apisix/admin/routes/1");
    assert_eq!((&newest["author"]["name"], &newest["author"]["address"]), (&json!("admin"), &json!("127.0.0.1")));
    let one = stage.admin.ask("GET", "/v1/history/3", "").json();
    assert_eq!(
        (&one["edits"][0]["before"]["uri"], &one["edits"][0]["after"]["uri"]),
        (&json!("/first"), &json!("/second"))
    );
    let older = stage.admin.ask("GET", "/v1/history?before=3&count=1", "").json();
    assert_eq!(older["changes"][0]["revision"], 2);
    let tried = stage.admin.ask("POST", "/v1/rollback?dry_run=true", r#"{"to": 2}"#);
    assert_eq!((tried.status, stage.get("/more")), (200, 200), "{tried:?}");
    let back = stage.admin.ask("POST", "/v1/rollback", r#"{"to": 2}"#);
    assert_eq!((back.status, &back.json()["revision"]), (200, &json!(6)), "{back:?}");
    assert_eq!((stage.get("/first"), stage.get("/second"), stage.get("/more")), (200, 404, 404));
    let again = stage.admin.ask("POST", "/v1/rollback", r#"{"to": 4}"#);
    assert_eq!((again.status, stage.get("/first"), stage.get("/second"), stage.get("/more")), (200, 404, 200, 200));
    // A resource with a short lifetime does not come back for good, and that is reported.
    stage.admin.put("routes/short?ttl=1", &json!({ "uri": "/short", "upstream_id": "1" }));
    let revision = stage.admin.revision();
    eventually("its end", || stage.admin.ask("GET", "/apisix/admin/routes/short", "").status == 404);
    let back = stage.admin.ask("POST", "/v1/rollback", &json!({ "to": revision }).to_string());
    assert_eq!((back.status, stage.get("/short")), (200, 404), "{back:?}");
    let warning = back.head.get("x-stillgate-warning").unwrap_or_default();
    assert!(warning.contains("routes/short is not restored: its time to live has ended"), "{back:?}");
    for wrong in [r#"{"to": 99}"#, r#"{"to": -1}"#, "{}", ""] {
        assert_eq!(stage.admin.ask("POST", "/v1/rollback", wrong).status, 400, "{wrong}");
    }
    assert_eq!(stage.admin.ask("GET", "/v1/history/99", "").status, 404);
}
