//! `public-api`, `node-status` and `server-info`

use super::{harness, run};
use expect_test::expect;
use harness::{OK, refusal};

#[test]
fn the_status_is_served() {
    for config in [
        "public-api: {}",
        "public-api: {uri: /apisix/status}",
        "public-api: {}\nnode-status: {}\nserver-info: {}\nprometheus: {}",
    ] {
        let transcript = run(config, "GET /apisix/status HTTP/1.1\nHost: h\n\n", OK);
        let line = transcript.lines().last().and_then(|line| line.strip_prefix("< ")).expect("a body");
        let body: String = serde_json::from_str(line).expect("a text");
        assert!(body.ends_with("}\n"), "{body}");
        let json: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(json["id"].as_str().map(str::len), Some(36));
        for name in ["active", "accepted", "handled", "total", "reading", "writing", "waiting"] {
            assert_eq!(json["status"][name], "0", "{name}");
        }
    }
}

#[test]
fn nothing_else_is_served() {
    let status = |config: &str, start: &str| {
        let transcript = run(config, &format!("{start} HTTP/1.1\nHost: h\n\n"), OK);
        transcript.lines().find_map(|line| line.strip_prefix("< ")).expect("a status").to_owned()
    };
    assert_eq!(status("public-api: {}", "GET /apisix/other"), "404");
    assert_eq!(status("public-api: {}", "POST /apisix/status"), "404");
    assert_eq!(status("public-api: {uri: /apisix/status}", "GET /mine"), "200");
    assert_eq!(status("public-api: {uri: /v1/server_info}", "GET /apisix/status"), "404");
    assert_eq!(status("public-api: {uri: /apisix/prometheus/metrics}", "POST /mine"), "404");
    let all = ["node-status: {a: 1}", "server-info: {a: 1}"];
    let text: String = all.into_iter().map(refusal).collect();
    expect![[r#"
        1:15: node-status.a: unknown key "a"; known keys: 
        1:15: server-info.a: unknown key "a"; known keys: 
    "#]]
    .assert_eq(&text);
}

/// The exporter, which is not part of these tests, makes them for the proxy.
#[test]
fn metrics_are_left_to_who_makes_them() {
    for config in ["public-api: {}", "public-api: {uri: /apisix/prometheus/metrics}", "public-api: {}\nprometheus: {}"]
    {
        let transcript = run(config, "GET /apisix/prometheus/metrics?name[]=a HTTP/1.1\nHost: h\n\n", OK);
        assert_eq!(transcript.lines().last(), Some("< \"(the metrics)\""), "{config}: {transcript}");
    }
}
