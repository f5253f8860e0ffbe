//! What `stillgate check NEW --against OLD --requests LOG` reports, for good logs and for any others.

use crate::shared::folder::Folder;
use expect_test::{Expect, expect};
use serde_json::{Value, json};
use stillgate_testkit::{Gateway, Setup, Upstream};

const HEAD: &str = r#"gateway:
  access_log: {format: json, fields: [request_method, host, {target: request_uri}, remote_addr, {beta: http_x_beta}]}
upstreams:
  - id: shop
    type: roundrobin
    nodes: {"10.0.0.1:8080": 1}
routes:
"#;

const OLD: &str = r#"  - id: orders
    uri: /orders/*
    upstream_id: shop
  - id: inside
    uri: /inside/*
    remote_addrs: [10.0.0.0/8]
    upstream_id: shop
  - id: gone
    host: gone.example.com
    uri: /*
    upstream_id: shop
"#;

const NEW: &str = r#"  - id: inside
    expression: http.path ^= "/inside/" && net.src.ip in 10.0.0.0/8
    upstream_id: shop
  - id: beta
    expression: http.path ^= "/orders/" && http.headers.x_beta == "1" && net.dst.port == 443
    upstream_id: shop
  - id: beta-open
    expression: http.path ^= "/orders/" && http.headers.x_beta == "1"
    upstream_id: shop
  - id: search
    expression: http.path == "/search" && any(http.queries.q) == "a b"
    upstream_id: shop
  - id: orders
    uri: /orders/*
    upstream_id: shop
"#;

/// A line as the access log of the old configuration has it.
const LOG: &str = r#"{"request_method":"GET","host":"a.example.com","target":"/orders/1","remote_addr":"192.0.2.1","beta":null}
{"request_method":"GET","host":"a.example.com","target":"/orders/2?x=1","remote_addr":"192.0.2.1","beta":"1"}
{"request_method":"POST","host":"a.example.com","target":"/orders/3","remote_addr":"192.0.2.1","beta":"1"}
{"request_method":"GET","host":"a.example.com","target":"/inside/x","remote_addr":"10.1.2.3","beta":null}
{"request_method":"GET","host":"a.example.com","target":"/inside/x","remote_addr":"192.0.2.1","beta":null}
{"request_method":"GET","host":"gone.example.com","target":"/else","remote_addr":"192.0.2.1","beta":null}
{"request_method":"GET","host":"a.example.com","target":"/search?q=a+b","remote_addr":"192.0.2.1","beta":null}
{"request_method":"GET","host":"a.example.com","target":"/search?q=c","remote_addr":"192.0.2.1","beta":null}
{"request_method":"GET","host":"a.example.com","target":"/../x","remote_addr":"192.0.2.1","beta":null}
"#;

/// A folder with these lines as the log.
fn folder(log: impl AsRef<[u8]>) -> Folder {
    let (old, new) = (format!("{HEAD}{OLD}"), format!("{HEAD}{NEW}"));
    Folder::with(&[("old.yaml", old.as_bytes()), ("new.yaml", new.as_bytes()), ("log.json", log.as_ref())])
}

const ARGUMENTS: [&str; 6] = ["check", "new.yaml", "--against", "old.yaml", "--requests", "log.json"];

fn check(log: impl AsRef<[u8]>, expected: Expect) {
    folder(log).check(&ARGUMENTS, expected);
}

/// The part of the JSON report that is about requests.
fn requests(log: impl AsRef<[u8]>) -> Value {
    let output = folder(log).run(&[&ARGUMENTS[..], &["--format", "json"]].concat());
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    report["requests"].clone()
}

#[test]
fn the_changes_are_printed() {
    check(
        LOG,
        expect![[r#"
        exit 1
        new.yaml: ok (5 routes, 1 upstream)
        log.json: of 9 requests, 4 other than with old.yaml: 2 changed, 1 now without route, 1 newly routed
          "orders" (line 8) -> "beta-open" (line 14): 2 requests
            line 2: GET http://a.example.com/orders/2?x=1
            line 3: POST http://a.example.com/orders/3
          "gone" (line 15) -> no route (404): 1 request
            line 6: GET http://gone.example.com/else
          no route (404) -> "search" (line 17): 1 request
            line 7: GET http://a.example.com/search?q=a+b
        log.json: warning: 1 route reads net.dst.port, but 9 lines lack server_port, so the answer may be wrong; log it too
    "#]],
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn the_changes_are_printed_as_json() {
    let expected = expect![[r#"
        {
          "file": "log.json",
          "against": "old.yaml",
          "requests": 9,
          "same": 5,
          "changed": 2,
          "without_route": 1,
          "newly_routed": 1,
          "changes": [
            {
              "old": {
                "route": "orders",
                "line": 8,
                "status": null
              },
              "new": {
                "route": "beta-open",
                "line": 14,
                "status": null
              },
              "requests": 2,
              "examples": [
                {
                  "line": 2,
                  "method": "GET",
                  "scheme": "http",
                  "host": "a.example.com",
                  "uri": "/orders/2?x=1"
                },
                {
                  "line": 3,
                  "method": "POST",
                  "scheme": "http",
                  "host": "a.example.com",
                  "uri": "/orders/3"
                }
              ]
            },
            {
              "old": {
                "route": "gone",
                "line": 15,
                "status": null
              },
              "new": {
                "route": null,
                "line": null,
                "status": 404
              },
              "requests": 1,
              "examples": [
                {
                  "line": 6,
                  "method": "GET",
                  "scheme": "http",
                  "host": "gone.example.com",
                  "uri": "/else"
                }
              ]
            },
            {
              "old": {
                "route": null,
                "line": null,
                "status": 404
              },
              "new": {
                "route": "search",
                "line": 17,
                "status": null
              },
              "requests": 1,
              "examples": [
                {
                  "line": 7,
                  "method": "GET",
                  "scheme": "http",
                  "host": "a.example.com",
                  "uri": "/search?q=a+b"
                }
              ]
            }
          ],
          "other_plugins": 0,
          "plugin_changes": [],
          "omitted": {
            "changes": 0,
            "requests": 0,
            "ungrouped": 0
          },
          "unreadable": {
            "lines": 0,
            "first": []
          },
          "recorded_otherwise": 0,
          "missing_fields": [
            {
              "field": "net.dst.port",
              "name": "server_port",
              "routes": 1,
              "lines": 9
            }
          ]
        }
    "#]];
    expected.assert_eq(&format!("{:#}\n", requests(LOG)));
}

#[test]
fn the_same_configuration_changes_nothing() {
    let folder = folder(LOG);
    folder.check(
        &["check", "old.yaml", "--against", "old.yaml", "--requests", "log.json"],
        expect![[r#"
        exit 0
        old.yaml: ok (3 routes, 1 upstream)
        log.json: 9 requests, each takes the route it takes with old.yaml
    "#]],
    );
}

#[test]
fn other_plugins_of_the_same_route_are_reported() {
    let with = |plugins: &str, global: &str| {
        let route = |id: &str, uri: &str, plugins: &str| {
            format!("  - {{id: {id}, uri: {uri}, upstream_id: shop, plugins: {{{plugins}}}}}\n")
        };
        let rules = format!("global_rules:\n  - {{id: g, plugins: {{{global}}}}}\n");
        format!("{HEAD}{}{}{rules}", route("orders", "/orders/*", plugins), route("inside", "/inside/*", ""))
    };
    let old = with("gzip: {}, cors: {}", "request-id: {}");
    let new = with("gzip: {comp_level: 2}, csrf: {key: abc}", "request-id: {}");
    let folder = Folder::with(&[("old.yaml", &old), ("new.yaml", &new), ("log.json", &LOG.to_owned())]);
    folder.check(
        &ARGUMENTS,
        expect![[r#"
        exit 0
        new.yaml: ok (2 routes, 1 upstream)
        log.json: 9 requests, each takes the route it takes with old.yaml
        log.json: 3 requests keep their route and go through other plugins
          "orders": adds csrf; removes cors; changes gzip: 3 requests
    "#]],
    );
    let new = with("gzip: {}, cors: {}", "ip-restriction: {blacklist: [10.0.0.0/8]}");
    let folder = Folder::with(&[("old.yaml", &old), ("new.yaml", &new), ("log.json", &LOG.to_owned())]);
    let told = String::from_utf8(folder.run(&ARGUMENTS).stdout).expect("text");
    assert!(told.contains("8 requests keep their route and go through other plugins\n"), "{told}");
    assert!(told.contains("  no route (404): adds ip-restriction; removes request-id: 3 requests\n"), "{told}");
}

#[test]
fn lines_may_hold_all_header_fields_or_parts_of_the_target() {
    let counted = |line: Value| {
        let report = requests(line.to_string());
        let missing = report["missing_fields"].as_array().unwrap();
        let missing: Vec<&str> = missing.iter().map(|field| field["name"].as_str().unwrap()).collect();
        let change = &report["changes"][0];
        (change["new"]["route"].as_str().map(str::to_owned), missing.join(" "))
    };
    let new = |route: &str, missing: &str| (Some(route.to_owned()), missing.to_owned());
    // A whole line, with every field that a route reads.
    let whole = json!({"method": "GET", "http_host": "a:443", "request_uri": "/orders/1", "remote_addr": "192.0.2.1",
        "server_port": 443, "headers": {"X-Beta": ["1"], "Accept": ["a", "b"]}, "args": ""});
    assert_eq!(counted(whole), new("beta", ""));
    // A field that was recorded twice is one field.
    let twice = json!({"request_uri": "/orders/1", "host": "a", "http_x_beta": "1", "headers": {"x-beta": "1"}});
    assert_eq!(counted(twice), new("beta-open", "remote_addr server_port"));
    // All must match, as on the wire.
    let two = json!({"request_uri": "/orders/1", "host": "a", "headers": {"x-beta": ["1", "2"]}});
    assert_eq!(counted(two), (None, "remote_addr server_port".to_owned()));
    let parts = json!({"uri": "/search", "args": "q=a%20b", "headers": {"host": "a"}});
    assert_eq!(counted(parts), new("search", "remote_addr server_port"));
    let absolute = json!({"request_uri": "http://gone.example.com/search?q=a+b", "host": "b", "remote_addr": "unix:"});
    assert_eq!(counted(absolute), new("search", "http_x_beta remote_addr server_port"));
    let path_only = json!({"uri": "/inside/1", "remote_addr": "10.0.0.1"});
    assert_eq!(counted(path_only), (None, "http_x_beta args host server_port".to_owned()));
}

#[test]
fn any_file_is_survived() {
    let good = LOG.lines().next().unwrap();
    let told = |bytes: &[u8]| {
        let report = requests([good.as_bytes(), b"\n", bytes].concat());
        let first = report["unreadable"]["first"].as_array().unwrap().clone();
        let reasons: Vec<String> =
            first.iter().map(|reason| format!("{}: {}", reason["line"], reason["reason"])).collect();
        (report["requests"].as_u64().unwrap(), report["unreadable"]["lines"].as_u64().unwrap(), reasons.join("\n"))
    };
    let windows = LOG.replace('\n', "\r\n");
    assert_eq!(told(windows.as_bytes()), (10, 0, String::new()));
    assert_eq!(told(b"\n \n\t\r\n"), (1, 0, String::new()));
    assert_eq!(told(good.as_bytes()), (2, 0, String::new()));
    let lines = [
        "{",
        "[1]",
        "7",
        "null",
        "{}",
        r#"{"request_uri": null}"#,
        r#"{"request_uri": {}}"#,
        r#"{"uri": "/", "headers": 1}"#,
        // No gateway could have served these.
        r#"{"request_uri": "/", "method": "G T"}"#,
        r#"{"request_uri": "nope"}"#,
        r#"{"request_uri": "/a b"}"#,
        r#"{"request_uri": "/a\u0000"}"#,
        r#"{"request_uri": "/", "host": "a,b"}"#,
        r#"{"request_uri": "/", "scheme": "ftp"}"#,
    ];
    expect![[r#"["2: \"not JSON: EOF while parsing an object at line 1 column 1\"", "2: \"not a JSON object\"", "2: \"not a JSON object\"", "2: \"not a JSON object\"", "2: \"no request_uri\"", "2: \"no request_uri\"", "2: \"\\\"request_uri\\\" is not text\"", "2: \"\\\"headers\\\" is not an object of header fields\"", "2: \"\\\"G T\\\" is not a method\"", "2: \"\\\"nope\\\" is neither a path nor an http or https URL\"", "2: \"\\\"/a b\\\" holds ' ', which no request line does\"", "2: \"\\\"/a\\\\0\\\" holds '\\\\0', which no request line does\"", "2: \"\\\"a,b\\\" is not a host\"", "2: \"\\\"ftp\\\" is neither http nor https\""]"#]].assert_eq(&format!("{:?}", lines.map(|line| told(line.as_bytes()).2)));
    for unrouted in [r#"{"request_uri": "*", "method": "OPTIONS"}"#, r#"{"request_uri": "h:443", "method": "CONNECT"}"#]
    {
        assert_eq!(told(unrouted.as_bytes()), (2, 0, String::new()));
    }
    let garbage: Vec<u8> = (0..100_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let (requests, unreadable, _) = told(&garbage);
    assert!(requests == 1 && unreadable > 100);
    let deep = "[".repeat(100_000);
    assert_eq!(told(deep.as_bytes()).1, 1);
    let long = format!("{{\"target\":\"/{}\"}}\n{good}", "x".repeat(1 << 20));
    assert_eq!(told(long.as_bytes()), (2, 1, "2: \"longer than 1048576 bytes\"".to_owned()));
    let nearly = format!("{{\"target\":\"/{}\"}}\n{good}", "x".repeat((1 << 20) - 100));
    assert_eq!(told(nearly.as_bytes()).0, 3);
}

#[test]
fn a_log_may_come_by_standard_input() {
    let folder = folder(LOG);
    let mut arguments = ARGUMENTS;
    arguments[5] = "-";
    let log = std::fs::File::open(folder.path().join("log.json")).expect("the log");
    let output = folder.command(&arguments).stdin(log).output().expect("run stillgate");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("\n-: of 9 requests, 4 other than with old.yaml: 2 changed"), "{told}");
}

#[test]
fn logs_that_cannot_be_used_end_with_2() {
    check(
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03",
        expect![[r#"
        exit 2
        stillgate: log.json is compressed with gzip; uncompress it: zcat log.json | stillgate check … --requests -
    "#]],
    );
    check(
        "\n\n",
        expect![[r#"
        exit 2
        stillgate: log.json: it is empty, so nothing was compared; was it rotated just now?
    "#]],
    );
    check(
        "",
        expect![[r#"
            exit 2
            stillgate: log.json: it is empty, so nothing was compared; was it rotated just now?
        "#]],
    );
    check(
        "127.0.0.1 - - [21/Nov/2026:00:00:00 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"-\"\n",
        expect![[r#"
        exit 2
        stillgate: log.json: no line holds a request, e.g. line 1: not a JSON object; it takes one JSON object a line, as gateway.access_log writes them with `format: json`
    "#]],
    );
    let folder = folder(LOG);
    folder.check(
        &["check", "new.yaml", "--against", "old.yaml", "--requests", "none.json"],
        expect![[r#"
        exit 2
        stillgate: cannot read none.json: No such file or directory (os error 2)
    "#]],
    );
    folder.check(
        &["check", "new.yaml", "--against", "old.yaml", "--requests", "."],
        expect![[r#"
        exit 2
        stillgate: cannot read .: Is a directory (os error 21)
    "#]],
    );
    folder.check(
        &["check", "new.yaml", "--against", "none.yaml", "--requests", "log.json"],
        expect![[r#"
        exit 2
        stillgate: cannot read none.yaml: No such file or directory (os error 2)
    "#]],
    );
    folder.check(
        &["check", "new.yaml", "--against", "log.json", "--requests", "log.json"],
        expect![[r#"
        exit 2
        stillgate: --against: log.json:2:1: not valid YAML: did not find expected <document start>
        log.json: refused (1 error)
    "#]],
    );
    assert_eq!(folder.run(&["check", "new.yaml", "--against", "old.yaml"]).status.code(), Some(2));
    // The first difference decides.
    assert_eq!(
        folder.run(&["check", "log.json", "--against", "old.yaml", "--requests", "log.json"]).status.code(),
        Some(1)
    );
}

#[test]
fn many_changes_are_bounded() {
    let routes = |prefix: &str| {
        let route = |n: usize| format!("  - {{id: {prefix}{n}, uri: /{n}, upstream_id: shop}}\n");
        format!("{HEAD}{}", (0..1_100).map(route).collect::<String>())
    };
    let log: String =
        (0..1_100).map(|n| format!("{{\"request_uri\":\"/{n}\"}}\n").repeat(1 + usize::from(n == 7) * 5)).collect();
    let folder = Folder::with(&[("old.yaml", routes("a")), ("new.yaml", routes("b")), ("log.json", log)]);
    let output = folder.run(&ARGUMENTS);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1));
    let lines: Vec<&str> = text.lines().skip(1).take(6).collect();
    expect![[r#"
        log.json: of 1105 requests, 1105 other than with old.yaml: 1105 changed
          "a7" (line 15) -> "b7" (line 15): 6 requests
            line 8: GET /7
            line 9: GET /7
            line 10: GET /7
          "a0" (line 8) -> "b0" (line 8): 1 request"#]]
    .assert_eq(&lines.join("\n"));
    assert!(text.ends_with("  and 1050 further changes of 1050 requests\n"), "{text}");
    let output = folder.run(&[&ARGUMENTS[..], &["--format", "json"]].concat());
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["requests"]["changes"].as_array().unwrap().len(), 1000);
    assert_eq!(report["requests"]["omitted"], json!({"changes": 100, "requests": 100, "ungrouped": 0}));
}

#[test]
fn a_log_of_another_configuration_is_noticed() {
    let line = |uri: &str, id: &str| format!("{{\"request_uri\":\"{uri}\",\"route_id\":{id}}}\n");
    let as_it_is =
        [line("/orders/1", "\"orders\""), line("/x", "null"), "{\"request_uri\":\"/x\"}\n".to_owned()].concat();
    assert_eq!(requests(&as_it_is)["recorded_otherwise"], json!(0));
    let log = [line("/orders/1", "\"other\""), line("/orders/1", "null"), line("/gone", "\"gone\"")].concat();
    let folder = folder(log);
    folder.check(&["check", "old.yaml", "--against", "old.yaml", "--requests", "log.json"], expect![[r#"
        exit 0
        old.yaml: ok (3 routes, 1 upstream)
        log.json: 3 requests, each takes the route it takes with old.yaml
        log.json: warning: it names another route than old.yaml for 3 requests; was it written with another configuration?
        log.json: warning: 1 route reads http.host, but 3 lines lack host, so the answer may be wrong; log it too
        log.json: warning: 1 route reads net.src.ip, but 3 lines lack remote_addr, so the answer may be wrong; log it too
    "#]]);
}

#[test]
fn what_a_gateway_logs_can_be_replayed() {
    let upstream = Upstream::echo();
    let routes = "routes:\n  - {id: a, uri: /a/*, upstream_id: node}\n  \
                  - {id: b, expression: 'http.path ^= \"/a/\" && http.queries.x == \"1\" && http.method == \"PUT\"', upstream_id: node}\n";
    let resources =
        format!("upstreams: [{{id: node, type: roundrobin, nodes: {{\"{}\": 1}}}}]\n{routes}", upstream.addr());
    let setup = Setup::resources(resources).gateway("access_log: {path: '{dir}/access.json', format: json}");
    let mut gateway = Gateway::start(env!("CARGO_BIN_EXE_stillgate"), &setup);
    for (method, target) in [
        ("GET", "/a/1"),
        ("PUT", "/a/1?x=1"),
        ("PUT", "/a/%41%2e?x=%31&"),
        ("GET", "/none"),
        ("GET", "/a/\"\\x"),
        ("GET", "/\x7f"),
    ] {
        // Some requests are refused, which ends the connection.
        gateway.client().request(method, target, b"");
    }
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    let yaml = std::fs::read_to_string(gateway.config_path()).expect("the configuration");
    let new = yaml.replace("x == \"1\"", "x == \"2\"");
    let log = std::fs::read_to_string(gateway.dir().join("access.json")).expect("the log");
    let folder = Folder::with(&[("old.yaml", &yaml), ("new.yaml", &new), ("log.json", &log)]);
    let replay = |file: &str, expected: Expect| {
        folder.check(&["check", file, "--against", "old.yaml", "--requests", "log.json"], expected);
    };
    replay(
        "old.yaml",
        expect![[r#"
        exit 0
        old.yaml: ok (2 routes, 1 upstream)
        log.json: 5 requests, each takes the route it takes with old.yaml
        log.json: 1 line cannot be read
          line 6: no request_uri
    "#]],
    );
    replay(
        "new.yaml",
        expect![[r#"
            exit 1
            new.yaml: ok (2 routes, 1 upstream)
            log.json: of 5 requests, 2 other than with old.yaml: 2 changed
              "b" (line 12) -> "a" (line 11): 2 requests
                line 2: PUT http://localhost/a/1?x=1
                line 3: PUT http://localhost/a/%41%2e?x=%31&
            log.json: 1 line cannot be read
              line 6: no request_uri
        "#]],
    );
}

/// An endless file and an empty one are not logs.
#[test]
fn a_file_without_an_end_is_not_a_log() {
    let folder = folder("");
    for (file, words) in [("/dev/zero", "line 1 has no end within 64 MiB"), ("/dev/null", "it is empty")] {
        let mut arguments = ARGUMENTS;
        arguments[5] = file;
        let output = folder.run(&arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && errors.contains(words), "{file}: {output:?}");
    }
}
