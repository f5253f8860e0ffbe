//! `stillgate import`: what it prints, that its results are valid, and that requests get what Kong gives them.

use crate::shared::STILLGATE;
use crate::shared::folder::Folder;
use crate::shared::reflect::{asked, reflecting};
use expect_test::{Expect, expect};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Output, Stdio};
use stillgate_testkit::{Gateway, Head, Message, Setup};

const SMALL: &str = r#"_format_version: "3.0"
services:
  - name: shop
    url: http://10.0.0.1:8080/v2
    routes:
      - name: orders
        paths: [/orders]
        plugins: [{name: oauth2}]
plugins: [{name: datadog}]
"#;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_result_is_on_standard_output_and_the_losses_are_on_standard_error() {
    let folder = Folder::with(&[("kong.yml", SMALL)]);
    let output = folder.run(&["import", "kong.yml"]);
    assert_eq!(output.status.code(), Some(0));
    expect![[r#"
        kong.yml:8:19: services.shop.routes.orders.plugins.oauth2: the gateway issues no OAuth tokens: use an identity provider, and `jwt-auth` for its tokens; routes with `oauth2` answer 503 until you replace their plugin `fault-injection` (`mocking` of consumers)
        kong.yml:9:11: plugins.datadog: `datadog` does not exist here: nothing is sent to Datadog; let its agent scrape the metrics (docs/metrics.md)
    "#]]
    .assert_eq(&text(&output.stderr));
    expect![[r##"
        # Made from kong.yml, a configuration of Kong, by `stillgate import`.
        # Differences from Kong: 2 (that close a route, service or consumer: 1). Each had a line on standard error.
        gateway:
          listeners:
            - address: "0.0.0.0:8000"
          underscores_in_headers: true
        routes:
          - id: orders
            name: orders
            expression: "http.path ^= \"/orders\""
            priority: 10
            service_id: shop
            plugins:
              proxy-rewrite:
                regex_uri:
                  - "(?s)^/orders$"
                  - /v2
                  - "(?s)^/orders/?(.*)$"
                  - "/v2/$1"
                headers:
                  set:
                    X-Forwarded-Prefix: /orders
              fault-injection:
                abort:
                  http_status: 503
                  body: "{\"message\":\"a plugin that guards this route was not imported\"}"
                  headers:
                    Content-Type: application/json
        services:
          - id: shop
            name: shop
            upstream:
              pass_host: node
              nodes:
                - host: "10.0.0.1"
                  port: 8080
                  weight: 1
              retries: 5
              timeout:
                connect: 60
                send: 60
                read: 60
            enable_websocket: true
        global_rules:
          - id: global
            plugins:
              proxy-rewrite:
                headers:
                  remove:
                    - X-Forwarded-Path
                    - X-Forwarded-Prefix
    "##]]
    .assert_eq(&text(&output.stdout));
}

#[test]
fn a_file_can_come_from_standard_input() {
    let folder = Folder::with::<&str>(&[]);
    let mut command = folder.command(&["import", "-"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start");
    child.stdin.take().expect("a pipe").write_all(SMALL.as_bytes()).expect("write");
    let output = child.wait_with_output().expect("wait");
    assert!(text(&output.stdout).starts_with("# Made from standard input, a configuration of Kong"), "{output:?}");
    assert!(text(&output.stderr).starts_with("standard input:8:19: services.shop"), "{output:?}");
}

#[test]
fn what_cannot_be_read_ends_with_2_and_its_place() {
    let check = |text_of_file: &str, expected: Expect| {
        let folder = Folder::with(&[("kong.yml", text_of_file)]);
        let Output { status, stdout, stderr } = folder.run(&["import", "kong.yml"]);
        assert_eq!((status.code(), &*text(&stdout)), (Some(2), ""));
        expected.assert_eq(&text(&stderr));
    };
    check(
        "_format_version: '3.0'\nservices:\n  - name: [",
        expect![[r#"
            kong.yml:4:1: not valid YAML: while parsing a node, did not find expected node content
        "#]],
    );
    check(
        "routes: []\n",
        expect![[r#"
            kong.yml:1:1: this is not a declarative configuration of Kong: the key `_format_version` is missing
        "#]],
    );
    let folder = Folder::with::<&str>(&[]);
    let output = folder.run(&["import", "kong.yml"]);
    assert_eq!((output.status.code(), &*text(&output.stdout)), (Some(2), ""));
    assert!(text(&output.stderr).starts_with("stillgate: kong.yml: "), "{output:?}");
}

/// Files whose own content deserves warnings: credentials that nothing uses, a plugin without consumers.
const WITH_WARNINGS: [&str; 6] =
    ["auth.yaml", "mistakes.yaml", "old_format.yaml", "scopes.yaml", "consumers.yaml", "unreadable_plugins.yaml"];

#[test]
fn every_result_is_valid() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/data");
    let mut count = 0;
    for entry in std::fs::read_dir(data).expect("the test data") {
        let path = entry.expect("an entry").path();
        if !path.extension().is_some_and(|end| end == "yaml" || end == "json") {
            continue;
        }
        count += 1;
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        let folder = Folder::with(&[("kong", std::fs::read(&path).expect("a file"))]);
        let imported = folder.run(&["import", "kong"]);
        assert_eq!(imported.status.code(), Some(0), "{name}: {imported:?}");
        std::fs::write(folder.path().join("new.yaml"), &imported.stdout).expect("write");
        let variables = [("DECK_KEY_OF_JACK", "a"), ("KONG_KEY_OF_JACK", "b"), ("SHOP_KEYS", r#"{"jack": "c"}"#)];
        // Each variable has a value of the type that its key takes.
        let numbers = ["DECK_MIN", "DECK_SIZE"].map(|name| (name, "5"));
        let flags = ["DECK_F", "DECK_HIDE", "DECK_VERIFY"].map(|name| (name, "true"));
        let names = ["DECK_HOST", "DECK_A", "DECK_O"].map(|name| (name, "a.example"));
        let checked = folder
            .command(&["check", "--offline", "new.yaml"])
            .envs(variables)
            .envs(numbers)
            .envs(flags)
            .envs(names)
            .output()
            .expect("run");
        let report = text(&checked.stdout) + &text(&checked.stderr);
        assert_eq!(checked.status.code(), Some(0), "{name}: {report}");
        assert!(!report.contains("warning") || WITH_WARNINGS.contains(&name), "{name}: {report}");
    }
    assert!(count > 15);
}

/// A gateway with the result for a file of Kong, in which `NODE` is a node.
fn gateway(node: SocketAddr, kong: &str) -> Gateway {
    let folder = Folder::with(&[("kong.yml", kong.replace("NODE", &node.to_string()))]);
    let imported = folder.run(&["import", "kong.yml"]);
    assert_eq!(imported.status.code(), Some(0), "{imported:?}");
    let result = text(&imported.stdout);
    // The test has listeners of its own.
    let resources = result.find("\nroutes:").map_or("", |at| &result[at + 1..]);
    Gateway::start(STILLGATE, &Setup::resources(resources).gateway("underscores_in_headers: true"))
}

/// Sends a request on a connection of its own.
#[track_caller]
fn ask(gateway: &Gateway, request: &str) -> Message {
    let mut connection = gateway.client().into_connection();
    connection.send(request);
    let method = request.split(' ').next().unwrap_or_default();
    connection.read_response(method).unwrap_or_else(|broken| panic!("{request}: {broken:?}"))
}

/// The start line and the `Host` that the node gets.
fn forwarded(gateway: &Gateway, target: &str, fields: &str) -> (String, String) {
    let response = ask(gateway, &format!("GET {target} HTTP/1.1\r\n{fields}\r\n\r\n"));
    let Head { start, .. } = asked(&response);
    let host = asked(&response).get("host").unwrap_or_default().to_owned();
    (start.trim_end_matches(" HTTP/1.1").to_owned(), host)
}

#[test]
fn paths_and_hosts_reach_the_node_as_in_kong() {
    let node = reflecting();
    let gateway = gateway(
        node.addr(),
        r#"_format_version: "3.0"
services:
  - name: base
    url: http://NODE/base
    routes:
      - {name: strip, paths: [/strip, /strip/longer]}
      - {name: keep, paths: [/keep], strip_path: false}
      - {name: host, paths: [/host], preserve_host: true}
      - {name: regex, paths: ['~/regex/(?<id>\d+)']}
      - {name: encoded, paths: ["/with%20blank"]}
  - name: root
    url: http://NODE
    routes:
      - {name: plain, paths: [/plain]}
      - {name: by-host, hosts: ["*.shop.example"]}
  - name: slash
    url: http://NODE/slash/
    routes: [{name: slash, paths: [/s]}]
"#,
    );
    let node_host = node.addr().to_string();
    for (target, want) in [
        ("/strip", "GET /base"),
        ("/strip/", "GET /base/"),
        ("/strip/a/b?c=d", "GET /base/a/b?c=d"),
        // No boundary of a segment is needed, and the rest begins with a slash all the same.
        ("/stripped", "GET /base/ped"),
        // The longer path goes first.
        ("/strip/longer/a", "GET /base/a"),
        ("/keep/a", "GET /base/keep/a"),
        ("/regex/12/a", "GET /base/a"),
        ("/regex/12", "GET /base"),
        ("/with%20blank/a%20b", "GET /base/a%20b"),
        ("/plain", "GET /"),
        ("/plain/a", "GET /a"),
        ("/s", "GET /slash"),
        ("/s/a", "GET /slash/a"),
    ] {
        assert_eq!(forwarded(&gateway, target, "Host: a.example"), (want.to_owned(), node_host.clone()), "{target}");
    }
    assert_eq!(
        forwarded(&gateway, "/host/a", "Host: a.example:81"),
        ("GET /base/a".to_owned(), "a.example:81".to_owned())
    );
    assert_eq!(forwarded(&gateway, "/a", "Host: b.shop.example"), ("GET /a".to_owned(), node_host));
    assert_eq!(gateway.get("/nothing").head.status(), 404);
}

#[test]
fn routes_are_tried_in_the_order_of_kong() {
    let node = reflecting();
    // Each service has a path by which the node tells which one it was.
    let gateway = gateway(
        node.addr(),
        r#"_format_version: "3.0"
services:
  - {name: a, url: http://NODE/path, routes: [{name: a, paths: [/x], strip_path: false}]}
  - {name: b, url: http://NODE/longer, routes: [{name: b, paths: [/x/y], strip_path: false}]}
  - {name: c, url: http://NODE/regex, routes: [{name: c, paths: ['~/x/\w+$'], strip_path: false}]}
  - {name: d, url: http://NODE/host, routes: [{name: d, hosts: [h.example], paths: [/x], strip_path: false}]}
  - {name: e, url: http://NODE/wildcard, routes: [{name: e, hosts: ["*.example"], paths: [/x/y/z], strip_path: false}]}
  - {name: f, url: http://NODE/header, routes: [{name: f, headers: {x-a: ['~*^v\d']}, methods: [GET], paths: [/x], strip_path: false}]}
"#,
    );
    for (target, fields, want) in [
        ("/x", "Host: a.b", "GET /path/x"),
        // A regex goes before every prefix.
        ("/x/y", "Host: a.b", "GET /regex/x/y"),
        ("/x/y/z", "Host: a.b", "GET /longer/x/y/z"),
        // The number of conditions goes first, then plain hosts before wildcards, whatever the paths are.
        ("/x/y/z", "Host: h.example", "GET /host/x/y/z"),
        ("/x/y/z", "Host: i.example", "GET /wildcard/x/y/z"),
        ("/x/y/z", "Host: h.example\r\nX-A: V1", "GET /header/x/y/z"),
    ] {
        assert_eq!(forwarded(&gateway, target, fields).0, want, "{target} {fields}");
    }
}

#[test]
fn authentication_groups_and_limits_hold() {
    let node = reflecting();
    let gateway = gateway(
        node.addr(),
        r#"_format_version: "3.0"
plugins:
  - {name: key-auth}
  - {name: rate-limiting, config: {minute: 2, limit_by: consumer}}
services:
  - name: s
    url: http://NODE
    plugins: [{name: acl, config: {allow: [gold]}}]
    routes:
      - {name: gold, paths: [/gold]}
      - {name: silver, paths: [/silver], plugins: [{name: acl, config: {allow: [silver], hide_groups_header: true}}]}
      - {name: free, paths: [/free], plugins: [{name: rate-limiting, config: {minute: 100, hour: 1000}}]}
      - {name: closed, paths: [/closed], plugins: [{name: openid-connect}]}
consumers:
  - {username: rose@x, custom_id: "47", keyauth_credentials: [{key: key-of-rose}], acls: [{group: gold}]}
  - {username: jack, keyauth_credentials: [{key: key-of-jack}], acls: [{group: silver}, {group: bronze}]}
"#,
    );
    let get = |target: &str, key: &str| ask(&gateway, &format!("GET {target} HTTP/1.1\r\nHost: a\r\n{key}\r\n"));
    let (rose, jack) = ("apikey: key-of-rose\r\n", "apikey: key-of-jack\r\n");
    assert_eq!(get("/gold", "").head.status(), 401);
    assert_eq!(get("/gold", "apikey: wrong\r\n").head.status(), 401);
    let refused = get("/gold", jack);
    assert_eq!(
        (refused.head.status(), &*text(&refused.body)),
        (403, "{\"message\":\"You cannot consume this service\"}\n")
    );
    let first = get("/gold", rose);
    assert_eq!(first.head.get("ratelimit-remaining"), Some("1"));
    let head = asked(&first);
    for (name, value) in
        [("x-consumer-username", "rose_x"), ("x-consumer-custom-id", "47"), ("x-consumer-groups", "gold")]
    {
        assert_eq!(head.get(name), Some(value));
    }
    // The route's groups replace the service's, and jack's own count is untouched.
    assert_eq!(asked(&get("/silver?apikey=key-of-jack", "")).get("x-consumer-groups"), None);
    assert_eq!(get("/silver", rose).head.status(), 403);
    // The global limit holds for all routes together; a route's own replaces it.
    assert_eq!(get("/gold", rose).head.status(), 200);
    let limited = get("/gold", rose);
    assert_eq!((limited.head.status(), &*text(&limited.body)), (429, "{\"message\":\"API rate limit exceeded\"}\n"));
    assert_eq!(get("/free", rose).head.status(), 200);
    assert_eq!(get("/closed", rose).head.status(), 503);
    // Kong runs no plugin for a request without a route.
    assert_eq!(get("/nothing", "").head.status(), 404);
}

#[test]
fn plain_http_is_refused_or_redirected_and_answers_are_kongs() {
    let node = reflecting();
    let gateway = gateway(
        node.addr(),
        r#"_format_version: "3.0"
services:
  - name: s
    url: http://NODE
    routes:
      - {name: refused, paths: [/refused], protocols: [https]}
      - {name: moved, paths: [/moved], protocols: [https], https_redirect_status_code: 308}
      - {name: ended, paths: [/ended], plugins: [{name: request-termination, config: {status_code: 403, message: "no $uri"}}]}
      - {name: triggered, paths: [/triggered], plugins: [{name: request-termination, config: {status_code: 410, trigger: x-end}}]}
      - {name: changed, paths: [/changed], plugins: [{name: request-transformer, config: {remove: {headers: [x-a]}, add: {headers: ["x-a:new", "x-b:added", "x-c:$(headers.x-d)"]}, append: {headers: ["x-e:more"]}}}]}
      - {name: cors, paths: [/cors], plugins: [{name: cors, config: {origins: ["https://a.example"], credentials: true}}]}
      - {name: size, paths: [/size], plugins: [{name: request-size-limiting, config: {allowed_payload_size: 3, size_unit: bytes}}]}
routes:
  - {name: alone, paths: [/alone]}
"#,
    );
    let get = |target: &str, fields: &str| {
        ask(&gateway, &format!("GET {target} HTTP/1.1\r\nHost: a.example\r\n{fields}\r\n"))
    };
    let answer = |target: &str, fields: &str| {
        let response = get(target, fields);
        (response.head.status(), text(&response.body))
    };
    assert_eq!(answer("/refused", ""), (426, "{\"message\":\"Please use HTTPS protocol\"}".to_owned()));
    let moved = get("/moved/a?b=c", "");
    assert_eq!((moved.head.status(), moved.head.get("location")), (308, Some("https://a.example/moved/a?b=c")));
    assert_eq!(answer("/ended", ""), (403, "{\"message\":\"no $uri\"}".to_owned()));
    assert_eq!(get("/triggered", "").head.status(), 200);
    assert_eq!(get("/triggered", "X-End: 1\r\n").head.status(), 410);
    assert_eq!(get("/triggered?x-end=", "").head.status(), 410);
    assert_eq!(answer("/alone", "").0, 503);
    let changed = asked(&get("/changed", "X-A: old\r\nX-B: there\r\nX-D: d\r\nX-E: e\r\n"));
    assert_eq!([changed.get("x-a"), changed.get("x-b"), changed.get("x-c")], [Some("new"), Some("there"), Some("d")]);
    assert_eq!(changed.all("x-e"), ["e", "more"]);
    let preflight =
        "OPTIONS /cors HTTP/1.1\r\nHost: a\r\nOrigin: https://a.example\r\nAccess-Control-Request-Method: PUT\r\n\r\n";
    let preflight = ask(&gateway, preflight);
    assert_eq!(preflight.head.get("access-control-allow-origin"), Some("https://a.example"));
    assert_eq!(preflight.head.get("access-control-allow-credentials"), Some("true"));
    // An ordinary OPTIONS reaches the node.
    assert_eq!(asked(&ask(&gateway, "OPTIONS /cors HTTP/1.1\r\nHost: a\r\n\r\n")).start, "OPTIONS / HTTP/1.1");
    let post = |body: &str| {
        ask(&gateway, &format!("POST /size HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
            .head
            .status()
    };
    assert_eq!((post("abc"), post("abcd")), (200, 413));
}

#[test]
fn the_closest_configuration_of_a_plugin_counts() {
    let node = reflecting();
    let gateway = gateway(
        node.addr(),
        r#"_format_version: "3.0"
plugins:
  - {name: response-transformer, config: {add: {headers: ["x-from:global"]}}}
  - {name: request-termination, consumer: blocked, route: one, config: {status_code: 410}}
  - {name: key-auth, config: {anonymous: guest}}
  - {name: basic-auth, config: {anonymous: guest}}
services:
  - name: s
    url: http://NODE
    plugins: [{name: response-transformer, config: {add: {headers: ["x-from:service"]}}}]
    routes:
      - {name: one, paths: [/one]}
      - {name: two, paths: [/two], plugins: [{name: response-transformer, config: {add: {headers: ["x-from:route"]}}}]}
  - name: plain
    url: http://NODE
    routes:
      - {name: three, paths: [/three]}
      - {name: strict, paths: [/strict], plugins: [{name: key-auth}]}
consumers:
  - {username: guest}
  - username: jack
    keyauth_credentials: [{key: key-of-jack}]
    basicauth_credentials: [{username: jack, password: word-of-jack}]
    plugins: [{name: response-transformer, config: {add: {headers: ["x-from:consumer"]}}}]
  - {username: blocked, keyauth_credentials: [{key: key-of-blocked}]}
"#,
    );
    let get = |target: &str, key: &str| ask(&gateway, &format!("GET {target} HTTP/1.1\r\nHost: a\r\n{key}\r\n"));
    let jack = "apikey: key-of-jack\r\n";
    for (target, key, want) in [
        ("/one", "", "service"),
        ("/two", "", "route"),
        ("/three", "", "global"),
        ("/one", jack, "consumer"),
        ("/two", jack, "consumer"),
        ("/three", jack, "consumer"),
    ] {
        assert_eq!(get(target, key).head.get("x-from"), Some(want), "{target} {key}");
    }
    let username = |key: &str| asked(&get("/one", key)).get("x-consumer-username").map(str::to_owned);
    // One of the two is enough, and without either the client is the guest.
    assert_eq!(username(jack).as_deref(), Some("jack"));
    assert_eq!(username("Authorization: Basic amFjazp3b3JkLW9mLWphY2s=\r\n").as_deref(), Some("jack"));
    assert_eq!(username("").as_deref(), Some("guest"));
    // The route's own requires a key.
    assert_eq!((get("/strict", "").head.status(), get("/strict", jack).head.status()), (401, 200));
    let blocked = "apikey: key-of-blocked\r\n";
    assert_eq!((get("/one", blocked).head.status(), get("/two", blocked).head.status()), (410, 200));
}

#[test]
fn clients_cannot_say_who_they_are() {
    let node = reflecting();
    let gateway = gateway(
        node.addr(),
        r#"_format_version: "3.0"
services:
  - name: s
    url: http://NODE
    routes:
      - {name: root, hosts: [root.example]}
      - {name: key, paths: [/key], plugins: [{name: key-auth}]}
      - {name: groups, paths: [/groups], plugins: [{name: key-auth}, {name: acl, config: {deny: [banned]}}]}
      - {name: hidden, paths: [/hidden], plugins: [{name: key-auth}, {name: acl, config: {deny: [banned], hide_groups_header: true}}]}
      - {name: guests, paths: [/guests], plugins: [{name: key-auth, config: {anonymous: guest}}, {name: basic-auth, config: {anonymous: guest}}]}
      - {name: changed, paths: [/changed], plugins: [{name: key-auth}, {name: request-transformer, config: {add: {headers: ["x-consumer-id:fixed"]}, replace: {headers: ["x-user:$(headers.x-consumer-id)"]}}}]}
consumers:
  - {username: guest}
  - {username: jack, keyauth_credentials: [{key: key-of-jack}], acls: [{group: gold}]}
  - {username: rose, keyauth_credentials: [{key: key-of-rose}]}
"#,
    );
    const FORGED: [&str; 5] =
        ["X-Consumer-ID", "X-Consumer-Groups", "X-Anonymous-Consumer", "X-Forwarded-Path", "X-Forwarded-Prefix"];
    let ask = |target: &str, host: &str, key: &str| {
        let mut fields = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nX-User: forged\r\n");
        for name in FORGED {
            fields.push_str(&format!("{name}: forged\r\n{}: forged\r\n", name.replace('-', "_")));
        }
        let response = ask(&gateway, &format!("{fields}apikey: {key}\r\n\r\n"));
        assert_eq!(response.head.status(), 200, "{target}");
        asked(&response)
    };
    let (jack, rose) = ("key-of-jack", "key-of-rose");
    for (target, host, key, want) in [
        ("/groups", "a", jack, [None, Some("gold"), None, None, Some("/groups")]),
        ("/groups", "a", rose, [None, None, None, None, Some("/groups")]),
        ("/hidden", "a", jack, [None, None, None, None, Some("/hidden")]),
        ("/key", "a", jack, [None, None, None, None, Some("/key")]),
        ("/guests", "a", jack, [None, None, None, None, Some("/guests")]),
        ("/guests", "a", "wrong", [None, None, Some("true"), None, Some("/guests")]),
        ("/changed", "a", jack, [Some("fixed"), None, None, None, Some("/changed")]),
        // A route without authentication says nothing of clients, in Kong neither.
        ("/", "root.example", jack, [Some("forged"), Some("forged"), Some("forged"), None, None]),
    ] {
        let head = ask(target, host, key);
        assert_eq!(FORGED.map(|name| head.get(name)), want, "{target} {key}");
        let lookalikes = FORGED.map(|name| head.get(&name.replace('-', "_")));
        let passed = if host == "a" { None } else { Some("forged") };
        assert_eq!(lookalikes, [passed, passed, passed, None, None], "{target} {key}");
    }
    assert_eq!(ask("/changed", "a", jack).get("x-user"), None);
}

#[test]
fn limits_hold_for_requests_without_what_they_count_by() {
    let node = reflecting();
    let gateway = gateway(
        node.addr(),
        r#"_format_version: "3.0"
services:
  - name: s
    url: http://NODE
    routes:
      - {name: one, paths: [/one], plugins: [{name: rate-limiting, config: {minute: 2, limit_by: header, header_name: x-user}}]}
      - {name: two, paths: [/two], plugins: [{name: rate-limiting, config: {minute: 2, hour: 100, limit_by: header, header_name: x-user}}]}
      - {name: preflight, paths: [/preflight], plugins: [{name: key-auth, config: {run_on_preflight: false}}, {name: rate-limiting, config: {minute: 2, hour: 100}}]}
consumers:
  - {username: jack, keyauth_credentials: [{key: key-of-jack}]}
"#,
    );
    let statuses = |line: &str, fields: &str| {
        [(); 3].map(|()| ask(&gateway, &format!("{line} HTTP/1.1\r\nHost: a\r\n{fields}\r\n")).head.status())
    };
    for (line, fields) in [
        ("GET /one", ""),
        ("GET /two", ""),
        ("GET /two", "X-User: a\r\n"),
        ("GET /two", "X-User: b\r\n"),
        ("OPTIONS /preflight", ""),
        ("GET /preflight", "apikey: key-of-jack\r\n"),
    ] {
        assert_eq!(statuses(line, fields), [200, 200, 429], "{line} {fields}");
    }
}

#[test]
fn guards_of_all_groups_of_a_consumer_hold() {
    let node = reflecting();
    let gateway = gateway(
        node.addr(),
        r#"_format_version: "3.0"
services: [{name: s, url: http://NODE, routes: [{name: r, paths: [/], plugins: [{name: key-auth}]}]}]
consumer_groups:
  - {name: sizes, plugins: [{name: request-size-limiting, config: {allowed_payload_size: 5}}]}
  - {name: banned, plugins: [{name: request-termination, config: {status_code: 403}}]}
  - {name: small, plugins: [{name: request-size-limiting, config: {allowed_payload_size: 2}}]}
consumers:
  - {username: one, groups: [sizes], keyauth_credentials: [{key: one}]}
  - {username: two, groups: [sizes, banned], keyauth_credentials: [{key: two}]}
  - {username: colliding, groups: [sizes, small], keyauth_credentials: [{key: colliding}]}
"#,
    );
    for (key, want) in [("one", 200), ("two", 403), ("colliding", 503)] {
        let response = ask(&gateway, &format!("GET / HTTP/1.1\r\nHost: a\r\napikey: {key}\r\n\r\n"));
        assert_eq!(response.head.status(), want, "{key}");
    }
}
