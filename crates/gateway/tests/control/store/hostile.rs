//! Requests to the Admin API that no honest client sends: refused, in bounded memory, and the gateway goes on.

use super::stage::{Stage, upstream};
use serde_json::json;
use std::net::TcpStream;
use stillgate_testkit::{BufferedSocket, Upstream};

/// Size of a body that nothing needs.
const BODY_BYTES: usize = 100 * 1024 * 1024;
const PIECE_BYTES: usize = 64 * 1024;
/// Maximum memory that refusing one may take.
const MEMORY_BYTES_MAX: usize = 96 * 1024 * 1024;
const DEPTH: usize = 10_000;

fn route() -> serde_json::Value {
    json!({ "uri": "/a", "upstream": upstream("127.0.0.1:9".parse().expect("an address")) })
}

#[test]
fn bodies_of_a_hundred_mebibytes() {
    let mut stage = Stage::start();
    let before = stage.gateway.rss();
    for path in ["/apisix/admin/routes/1", "/v1/batch", "/v1/session", "/apisix/admin/configs"] {
        for is_chunked in [false, true] {
            let framing = match is_chunked {
                true => "Transfer-Encoding: chunked".to_owned(),
                false => format!("Content-Length: {BODY_BYTES}"),
            };
            let mut connection = BufferedSocket::new(TcpStream::connect(stage.admin.addr).expect("connect"));
            let method = if path.starts_with("/v1/") { "POST" } else { "PUT" };
            let key = &stage.admin.key;
            connection
                .send(format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-API-KEY: {key}\r\n{framing}\r\n\r\n"));
            let piece = match is_chunked {
                true => format!("{PIECE_BYTES:x}\r\n{}\r\n", " ".repeat(PIECE_BYTES)),
                false => " ".repeat(PIECE_BYTES),
            };
            // It is answered before, and closed.
            for _ in 0..BODY_BYTES / PIECE_BYTES {
                if connection.try_send(&piece).is_err() {
                    break;
                }
            }
            if let Ok(answer) = connection.read_response(method) {
                assert_eq!(answer.head.status(), 413, "{path}: {answer:?}");
            }
        }
    }
    let taken = stage.gateway.rss().saturating_sub(before);
    assert!(taken < MEMORY_BYTES_MAX, "{taken} bytes");
    assert_eq!((stage.admin.revision(), stage.admin.put("routes/1", &route()).status), (0, 201));
    stage.gateway.assert_healthy();
}

/// It would never be served, and a restart could not compile it.
#[test]
fn a_route_with_too_many_pairs_of_a_host_and_a_path_is_refused() {
    let stage = Stage::start();
    let all = |prefix: &str| (0..300).map(|at| format!("{prefix}{at}")).collect::<Vec<_>>();
    let node = upstream("127.0.0.1:9".parse().expect("an address"));
    let many = json!({ "uris": all("/p"), "hosts": all("h"), "upstream": node });
    let answer = stage.admin.ask("PUT", "/apisix/admin/routes/1", &many.to_string());
    assert!(answer.status == 400 && answer.error().contains("at most 65536 pairs of a host and a path"), "{answer:?}");
    let small = json!({ "uris": all("/p"), "service_id": "s" });
    stage.admin.put("services/s", &json!({ "hosts": ["h"], "upstream": node }));
    stage.admin.put("routes/1", &small);
    // Another resource's write is made, and says what it does to the route.
    let service = json!({ "hosts": all("h"), "upstream": node }).to_string();
    let dry = stage.admin.ask("PUT", "/apisix/admin/services/s?dry_run=true", &service);
    assert!(dry.text().contains("at most 65536 pairs of a host and a path"), "{dry:?}");
    assert_eq!(stage.admin.put("routes/2", &route()).status, 201);
}

/// The thread that answers `/v1/health` also controls the gateway.
#[test]
fn checking_a_document_holds_up_nothing_else() {
    let stage = Stage::start();
    let function = "local x = 0 for i = 1, 1e7 do x = x + i % 7 end return function() return x end";
    let plugins = json!({ "serverless-pre-function": { "functions": vec![function; 60] } });
    let document = json!({ "uri": "/a", "plugins": plugins }).to_string();
    let order = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            stage.admin.ask("POST", "/apisix/admin/schema/validate/routes", &document);
            order.lock().expect("no panic").push("checked");
        });
        std::thread::sleep(std::time::Duration::from_millis(100));
        stage.admin.ask("GET", "/v1/health", "");
        order.lock().expect("no panic").push("healthy");
    });
    assert_eq!(order.into_inner().expect("no panic"), ["healthy", "checked"]);
}

#[test]
fn a_body_that_is_a_little_too_large_is_answered() {
    let stage = Stage::start();
    let document = json!({ "uri": "/a", "desc": "x".repeat(2 * 1024 * 1024) }).to_string();
    for (method, path) in [("PUT", "routes/1"), ("POST", "routes"), ("POST", "schema/validate/routes")] {
        let answer = stage.admin.ask(method, &format!("/apisix/admin/{path}"), &document);
        assert_eq!(answer.status, 413, "{answer:?}");
        assert!(answer.error().contains("greater than the maximum size 1572864 allowed"), "{answer:?}");
    }
}

/// Parsed, a list of numbers takes dozens of times its text, and an error for each of them more.
#[test]
fn bodies_with_more_values_than_text() {
    let mut stage = Stage::start();
    let before = stage.gateway.rss_peak();
    let list = |item: &str, bytes: usize| vec![item; bytes / (item.len() + 1)].join(",");
    for item in ["1", "{}", "{\"uri\":1}", "[[[[0]]]]", "\"\""] {
        for (method, path) in [("POST", "configs/validate"), ("PUT", "configs")] {
            let body = format!("{{\"routes\":[{}]}}", list(item, 8 * 1024 * 1024));
            let lines = format!("X-API-KEY: {}\r\nX-Digest: 1\r\n", stage.admin.key);
            let answer = stage.admin.ask_with(method, &format!("/apisix/admin/{path}"), &lines, body.as_bytes());
            assert_eq!(answer.status, 400, "{method} {path} {item}: {answer:?}");
            assert!(answer.body.len() < 400_000, "{} bytes", answer.body.len());
        }
    }
    for item in ["1", "[]", "{\"\":1}", "\"\""] {
        let body = format!("{{\"uri\":\"/a\",\"vars\":[{}]}}", list(item, 1_500_000));
        std::thread::scope(|scope| {
            for _ in 0..10 {
                scope.spawn(|| {
                    let answer = stage.admin.ask("PUT", "/apisix/admin/routes/1", &body);
                    assert_eq!(answer.status, 400, "{item}: {answer:?}");
                });
            }
        });
    }
    let taken = stage.gateway.rss_peak().saturating_sub(before);
    assert!(taken < MEMORY_BYTES_MAX, "{taken} bytes");
    stage.gateway.assert_healthy();
}

#[test]
fn deep_nesting_and_what_is_not_text() {
    let mut stage = Stage::start();
    stage.admin.put("routes/1", &route());
    let lines = format!("X-API-KEY: {}\r\n", stage.admin.key);
    let deep = [
        "[".repeat(DEPTH),
        format!("{}1{}", "{\"a\":".repeat(DEPTH), "}".repeat(DEPTH)),
        format!("{{\"uri\":\"/a\",\"vars\":{}1{}}}", "[".repeat(DEPTH), "]".repeat(DEPTH)),
        format!("{{\"uri\":\"/a\",\"vars\":{}1{}}}", "[".repeat(120), "]".repeat(120)),
    ];
    for body in &deep {
        for (method, path) in
            [("PUT", "routes/2"), ("PATCH", "routes/1"), ("PATCH", "routes/1/labels"), ("POST", "routes")]
        {
            let answer = stage.admin.ask_with(method, &format!("/apisix/admin/{path}"), &lines, body.as_bytes());
            assert_eq!(answer.status, 400, "{method} {path}: {answer:?}");
        }
        assert_eq!(stage.admin.ask_with("POST", "/v1/batch", &lines, body.as_bytes()).status, 400);
    }
    let deep_path = format!("/apisix/admin/routes/1/labels{}", "/a".repeat(2000));
    assert_eq!(stage.admin.ask_with("PATCH", &deep_path, &lines, b"1").status, 400);
    for body in [&b"{\"uri\": \"/\xff\"}"[..], b"\xff\xfe{\0}\0", b"{\"uri\": \"/a\", \"\xc3\x28\": 1}", b"\0"] {
        let answer = stage.admin.ask_with("PUT", "/apisix/admin/routes/2", &lines, body);
        assert_eq!(answer.status, 400, "{body:?}: {answer:?}");
    }
    assert_eq!(stage.admin.revision(), 1);
    stage.gateway.assert_healthy();
}

/// None of them becomes a resource, whatever is inside.
#[test]
fn bodies_that_are_not_objects() {
    let mut stage = Stage::start();
    let object = route().to_string();
    let before = stage.admin.revision();
    for body in [
        String::new(),
        "init_dir".to_owned(),
        "null".to_owned(),
        "7".to_owned(),
        format!("\u{feff}{object}"),
        format!("// a route\n{object}"),
        "uri: /a\n".to_owned(),
        json!(object).to_string(),
        format!("[{object}]"),
    ] {
        for kind in
            ["routes/1", "services/1", "upstreams/1", "global_rules/1", "plugin_configs/1", "ssls/1", "secrets/vault/1"]
        {
            let answer = stage.admin.ask("PUT", &format!("/apisix/admin/{kind}"), &body);
            assert_eq!(answer.status, 400, "{kind} {body:?}: {answer:?}");
        }
        let value = serde_json::from_str(&body).unwrap_or(json!(body));
        let batch = json!([{"method": "PUT", "path": "/apisix/admin/routes/1", "body": value}]).to_string();
        assert_eq!(stage.admin.ask("POST", "/v1/batch", &batch).status, 400, "{batch}");
        let whole = json!({"routes": [value]}).to_string();
        let lines = format!("X-API-KEY: {}\r\nX-Digest: 1\r\n", stage.admin.key);
        let answer = stage.admin.ask_with("PUT", "/apisix/admin/configs", &lines, whole.as_bytes());
        assert_eq!(answer.status, 400, "{whole}: {answer:?}");
    }
    assert_eq!(stage.admin.revision(), before);
    stage.gateway.assert_healthy();
}

#[test]
fn ids_that_are_paths() {
    let node = Upstream::echo();
    let stage = Stage::start();
    let document = json!({ "uri": "/a", "upstream": upstream(node.addr()) }).to_string();
    let long = "x".repeat(65);
    for id in ["a%2fb", "a%2Fb", "%2e%2e%2fx", "a%00b", "a%20b", "%c3%a9", "%3Cscript%3E", "a%25b", "a%3Fb", &long] {
        let answer = stage.admin.ask("PUT", &format!("/apisix/admin/routes/{id}"), &document);
        assert_eq!(answer.status, 400, "{id}: {answer:?}");
        let answer = stage.admin.ask("GET", &format!("/apisix/admin/routes/{id}"), "");
        assert_eq!(answer.status, 404, "{id}: {answer:?}");
    }
    for path in ["routes/a%ffb", "routes/%zz"] {
        assert_eq!(stage.admin.ask("PUT", &format!("/apisix/admin/{path}"), &document).status, 400, "{path}");
    }
    for path in ["routes/..", "routes/.", "../admin/routes/1", "routes/../../x", "/routes/1", "routes//1"] {
        let answer = stage.admin.ask("PUT", &format!("/apisix/admin/{path}"), &document);
        assert!(matches!(answer.status, 400 | 404 | 405), "{path}: {answer:?}");
    }
    assert_eq!(stage.admin.revision(), 0, "nothing was stored");
    for (sent, id) in [("a.b", "a.b"), ("a%2Eb%2Dc", "a.b-c"), ("%41", "A"), ("a_b-1", "a_b-1")] {
        let answer = stage.admin.ask("PUT", &format!("/apisix/admin/routes/{sent}"), &document);
        assert_eq!((answer.status, &answer.json()["value"]["id"]), (201, &json!(id)), "{sent}: {answer:?}");
        assert_eq!(stage.admin.read(&format!("routes/{id}"))["key"], format!("/apisix/routes/{id}"));
    }
    assert_eq!(stage.get("/a"), 200);
}

/// Filters whose text is short and that become large: when they are compiled, or by the states of their search.
#[test]
fn many_lists_with_filters_that_take_memory() {
    const ROUTES: usize = 50;
    const CLIENTS: usize = 10;
    let mut stage = Stage::start();
    for number in 0..ROUTES {
        let digits: String = (0..1000).map(|at| if (at * at + number) % 7 < 3 { '1' } else { '0' }).collect();
        let mut document = route();
        document["uri"] = format!("/{number}/{digits}").into();
        stage.admin.put(&format!("routes/{number}"), &document);
    }
    let before = stage.gateway.rss_peak();
    for (filter, total) in [
        ("(\\w{100}){100}".to_owned(), 0),
        ("(0{1000}){1000}{1000}".to_owned(), 0),
        ("\\w".repeat(512), 0),
        ("(?i)".repeat(20) + &"\\PL".repeat(300), 0),
        ("(".repeat(1024), 0),
        ("[01]*1[01]{150}2".to_owned(), 0),
        ("[01]*1[01]{150}".to_owned(), ROUTES),
    ] {
        let filter: String = filter.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let admin = &stage.admin;
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    let answer = admin.ask("GET", &format!("/apisix/admin/routes?uri={filter}"), "");
                    assert_eq!((answer.status, &answer.json()["total"]), (200, &json!(total)), "{filter}");
                });
            }
        });
    }
    let taken = stage.gateway.rss_peak().saturating_sub(before);
    assert!(taken < MEMORY_BYTES_MAX, "{taken} bytes");
    stage.gateway.assert_healthy();
}
