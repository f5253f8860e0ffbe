//! Names that nodes behind CGI, WSGI or PHP cannot distinguish from those that the gateway sets: what a client sends under them
//! never reaches a node beside the gateway's own.

use crate::shared::STILLGATE;
use crate::shared::reflect::{ask, asked, check, check_with, reflecting, route, setup};
use stillgate_testkit::http2::{END_STREAM, Http2, get_fields};
use stillgate_testkit::{BufferedSocket, Gateway, Setup, Upstream, eventually};

const CONSUMERS: &str = r#"consumers: [{"username": "jack", "labels": {"custom_id": "7", "team": "blue"}, "credentials": [{"id": "c1", "plugins": {"key-auth": {"key": "k"}}}]}]
routes:
"#;

/// The fields that plugins set; `AUTHORITY` is a server that allows everything.
const SETTERS: &[(&str, &str, &[&str])] = &[
    (
        "/consumer",
        r#"{"key-auth": {}, "attach-consumer-label": {"headers": {"X-Team": "$team", "X-None": "$none"}}}"#,
        &["X-Consumer-Username", "X-Credential-Identifier", "X-Consumer-Custom-ID", "X-Team", "X-None"],
    ),
    (
        "/forward",
        r#"{"forward-auth": {"uri": "http://AUTHORITY/", "upstream_headers": ["X-User-Id", "X-Not-Said"]}}"#,
        &["X-User-Id", "X-Not-Said"],
    ),
    (
        "/opa",
        r#"{"opa": {"host": "http://AUTHORITY", "policy": "p", "send_headers_upstream": ["X-User-Id", "X-Not-Said"]}}"#,
        &["X-User-Id", "X-Not-Said"],
    ),
    (
        "/rewrite",
        r#"{"proxy-rewrite": {"headers": {"set": {"X-Tenant-Id": "$arg_t", "X-Fix-Ed": "1"}, "remove": ["X-In-Ternal"]}}}"#,
        &["X-Tenant-Id", "X-Fix-Ed", "X-In-Ternal"],
    ),
    ("/id", r#"{"request-id": {}}"#, &["X-Request-Id"]),
    (
        "/label",
        r#"{"traffic-label": {"rules": [{"actions": [{"set_headers": {"X-Server-Id": "1"}}]}]}}"#,
        &["X-Server-Id"],
    ),
    (
        "/trace",
        r#"{"zipkin": {"endpoint": "http://AUTHORITY/spans", "sample_ratio": 0.00001}}"#,
        &["X-B3-TraceId", "X-B3-Sampled"],
    ),
    (
        "/lua",
        r#"{"serverless-pre-function": {"phase": "rewrite", "functions": ["return function(conf, ctx) local core = require('apisix.core') core.request.set_header(ctx, 'X-By-Lua', '1') ngx.req.set_header('X-By-Ngx', {'1', '2'}) ngx.req.clear_header('X-Cleared-Lua') end"]}}"#,
        &["X-By-Lua", "X-By-Ngx", "X-Cleared-Lua"],
    ),
    (
        "/validated",
        r#"{"request-validation": {"header_schema": {"type": "object", "properties": {"X-Num-Ber": {"type": "string"}}}}}"#,
        &["X-Num-Ber"],
    ),
    ("/plain", "{}", &["X-Real-IP", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Port", "X-Forwarded-Proto"]),
];

/// A server that admits every request: it gives the user's name to `forward-auth` in a header, to `opa` in its decision.
fn authority() -> Upstream {
    Upstream::serve(|connection| {
        while connection.read_request().is_ok() {
            let body = r#"{"result": {"allow": true, "headers": {"X-User-Id": "u1"}}}"#;
            let length = body.len();
            let _ = connection
                .try_send(format!("HTTP/1.1 200 OK\r\nX-User-Id: u1\r\nContent-Length: {length}\r\n\r\n{body}"));
        }
    })
}

/// Other spellings of a name.
fn spellings(name: &str) -> Vec<String> {
    let with = |other: &str| name.replace('-', other);
    let mut all = vec![with("_"), with("_").to_uppercase(), with("_").to_lowercase(), name.replacen('-', "_", 1)];
    all.extend(name.rsplit_once('-').map(|(first, last)| format!("{first}_{last}")));
    all.extend([".", "!", "~", "|", "*"].map(with));
    all
}

/// The name as those nodes fold it.
fn folded(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}

fn gateway(node: &Upstream, authority: &Upstream, lines: &str) -> Gateway {
    let plugins = |text: &str| text.replace("AUTHORITY", &authority.addr().to_string());
    let routes: String = SETTERS.iter().map(|(uri, text, _)| route(uri, &plugins(text))).collect();
    Gateway::start(STILLGATE, &setup(node.addr(), &format!("{CONSUMERS}{routes}")).gateway(lines))
}

fn check_forged(client: &mut BufferedSocket, is_dropped: bool) {
    for (uri, _, names) in SETTERS {
        for name in *names {
            for spelling in spellings(name) {
                let line = format!("{spelling}: forged");
                let head = asked(&ask(client, &format!("GET {uri}"), &["apikey: k", &line, "X_Free: mine"]));
                let forged: Vec<_> = head.fields.iter().filter(|(_, value)| value.contains("forged")).collect();
                assert!(forged.is_empty(), "{uri}: {line}: {forged:?}");
                let mut same = head.fields.iter().filter(|(of, _)| folded(of) == folded(name));
                assert!(same.all(|(of, _)| of.eq_ignore_ascii_case(name)), "{uri}: {line}: {head:?}");
                let free = head.get("x_free");
                assert_eq!(free, if is_dropped { None } else { Some("mine") }, "{uri}: {line}");
            }
        }
    }
}

#[test]
fn nobody_says_what_the_gateway_says() {
    let (node, authority) = (reflecting(), authority());
    let gateway = gateway(&node, &authority, "workers: 1\nunderscores_in_headers: true");
    check_forged(&mut gateway.client(), false);
    // The configured fields are present, and the client's own id of a request stays without the other one.
    let mut client = gateway.client();
    let head = asked(&ask(&mut client, "GET /consumer", &["apikey: k", "X_Consumer_Username: root"]));
    assert_eq!((head.all("x-consumer-username"), head.get("x-team")), (vec!["jack"], Some("blue")));
    let head = asked(&ask(&mut client, "GET /id", &["X-Request-Id: own", "X_Request_Id: forged"]));
    assert_eq!((head.get("x-request-id"), head.get("x_request_id")), (Some("own"), None));
    let head = asked(&ask(&mut client, "GET /rewrite?t=a", &["X.Tenant.Id: b", "X-Tenant-Ix: c", "XaTenant-Id: d"]));
    assert_eq!(head.all("x-tenant-id"), ["a"]);
    assert_eq!((head.get("x-tenant-ix"), head.get("xatenant-id")), (Some("c"), Some("d")), "these are others");
    assert_eq!(gateway.status()["requests"]["header_lines_dropped"], 0);
}

#[test]
fn names_with_underscores_are_dropped_unless_they_are_wanted() {
    let (node, authority) = (reflecting(), authority());
    let gateway = gateway(&node, &authority, "workers: 1");
    let mut client = gateway.client();
    check_forged(&mut client, true);
    let before = gateway.status()["requests"]["header_lines_dropped"].as_u64().expect("a number");
    let lines = ["_: 1", "A_: 2", "X-Kept: a_b", "_B: 3", "Cookie: a_b=c_d", "C_D: 4"];
    let head = asked(&ask(&mut client, "GET /plain?a_b=c_d", &lines));
    assert_eq!((head.get("x-kept"), head.get("cookie")), (Some("a_b"), Some("a_b=c_d")));
    assert_eq!(head.start, "GET /plain?a_b=c_d HTTP/1.1");
    assert!(head.fields.iter().all(|(name, _)| !name.contains('_')), "{head:?}");
    assert_eq!(gateway.status()["requests"]["header_lines_dropped"], before + 4);
    // A field that a plugin sets may have one, and a field that resembles one for framing is refused.
    let head = asked(&ask(&mut client, "GET /rewrite", &["X_Tenant_Id: 1"]));
    assert_eq!(head.get("x_tenant_id"), None);
    for line in ["Content_Length: 5", "transfer_encoding: chunked"] {
        assert_eq!(ask(&mut gateway.client(), "GET /plain", &[line]).head.status(), 400, "{line}");
    }
    let head = asked(&ask(&mut client, "GET /plain", &["Content.Length: 5", "Transfer~Encoding: chunked"]));
    assert_eq!((head.get("content.length"), head.get("transfer~encoding")), (None, None));
    // The same names over HTTP/2.
    let mut streams = Http2::connect(gateway.addr());
    let forged = [("x_forwarded_for", "forged"), ("a_b", "forged"), ("x-kept", "1")];
    streams.send_head(1, &[&get_fields("/plain")[..], &forged].concat(), END_STREAM);
    let text = String::from_utf8(streams.finish(1).1).expect("text");
    assert!(!text.contains("forged") && text.to_lowercase().contains("x-kept: 1"), "{text}");
}

/// Trailers are fields as well: some servers read them as if they had been in the head.
#[test]
fn trailers_with_underscores_are_dropped_unless_they_are_wanted() {
    for (keys, expected, dropped) in
        [("workers: 1", "X-Sum: a_b\r\n\r\n", 2), ("workers: 1\nunderscores_in_headers: true", "X_User: root\r\n", 0)]
    {
        let node = Upstream::bind();
        let gateway = Gateway::start(STILLGATE, &Setup::to(node.addr()).gateway(keys));
        let mut client = gateway.client();
        client.send(
            "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\
             X_User: root\r\nX-Sum: a_b\r\nX_Forwarded_For: forged\r\n\r\n",
        );
        let mut taken = node.accept();
        taken.read_head().expect("the head");
        let rest = taken.read_exactly("2\r\nab\r\n0\r\n".len() + expected.len()).expect("the body");
        assert!(rest.ends_with(expected.as_bytes()), "{}", String::from_utf8_lossy(&rest));
        taken.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(client.expect_response("POST").head.status(), 200);
        eventually("it is counted", || gateway.status()["requests"]["header_lines_dropped"] == dropped);
    }
}

/// A plugin that reads a field which no request can have is silently dead: the operator is warned.
#[test]
fn names_that_never_arrive_are_warned_of() {
    const PLUGINS: &[(&str, &str, &str)] = &[
        ("key-auth", "header", r#"{"key-auth": {"header": "api_key"}}"#),
        ("jwt-auth", "header", r#"{"jwt-auth": {"header": "api_key"}}"#),
        ("hmac-auth", "signed_headers", r#"{"hmac-auth": {"signed_headers": ["date", "api_key"]}}"#),
        (
            "multi-auth",
            "auth_plugins",
            r#"{"multi-auth": {"auth_plugins": [{"key-auth": {"header": "api_key"}}, {"basic-auth": {}}]}}"#,
        ),
        ("csrf", "name", r#"{"csrf": {"key": "k", "name": "api_key"}}"#),
        (
            "forward-auth",
            "request_headers",
            r#"{"forward-auth": {"uri": "http://127.0.0.1:1/", "request_headers": ["X-A", "api_key"]}}"#,
        ),
        ("request-id", "header_name", r#"{"request-id": {"header_name": "api_key"}}"#),
    ];
    for (plugin, key, plugins) in PLUGINS {
        let (is_good, messages) = check(&format!("routes:\n{}", route("/a", plugins)));
        let warning = messages.lines().find(|line| line.contains("underscores_in_headers")).unwrap_or_default();
        assert!(is_good, "{messages}");
        let path = format!("routes[0].plugins.{plugin}.{key}: ");
        for part in
            [&path[..], plugin, "route \"r-a\"", "\"api_key\"", "gateway.underscores_in_headers: true", "\"api-key\""]
        {
            assert!(warning.contains(part), "{part}: {messages}");
        }
        let quiet = |keys: &str, plugins: &str| {
            let (is_good, messages) = check_with(keys, &format!("routes:\n{}", route("/a", plugins)));
            assert!(is_good && !messages.contains("underscores_in_headers"), "{keys} {plugins}: {messages}");
        };
        quiet("underscores_in_headers: true", plugins);
        quiet("", &plugins.replace("api_key", "api-key"));
    }
    let hashed = |name: &str| {
        let upstream =
            format!(r#"{{"type": "chash", "hash_on": "header", "key": "{name}", "nodes": {{"127.0.0.1:1": 1}}}}"#);
        check(&format!("routes:\n  - {{\"uri\": \"/a\", \"upstream\": {upstream}}}\n")).1
    };
    let warning = hashed("x_session");
    assert!(warning.contains("routes[0].upstream.key") && warning.contains("\"x-session\""), "{warning}");
    assert!(!hashed("X-Session").contains("underscores_in_headers"));
    // The operator reads the same warning in the log.
    let node = reflecting();
    let gateway = Gateway::start(STILLGATE, &setup(node.addr(), &format!("routes:\n{}", route("/a", PLUGINS[0].2))));
    eventually("the warning", || gateway.log().contains("gateway.underscores_in_headers: true"));
}

/// The gateway's statements about itself and about the client, and fields that a plugin removes.
#[test]
fn what_a_plugin_removes_is_not_said_by_the_gateway_either() {
    const REMOVED: &str = r#"{"proxy-rewrite": {"headers": {"remove": ["X-Forwarded-Host", "x-forwarded-port", "X-Forwarded-Proto", "X-Forwarded-For", "X-Real-IP"]}}, "response-rewrite": {"headers": {"remove": ["Server", "X-Node"]}}}"#;
    const LUA: &str = r#"{"serverless-pre-function": {"phase": "rewrite", "functions": ["return function() ngx.req.clear_header('X-Forwarded-Host') ngx.req.set_header('X-Forwarded-Port', nil) ngx.req.set_header('X-Forwarded-Proto', 'wss') end"]}, "serverless-post-function": {"phase": "header_filter", "functions": ["return function() ngx.header.Server = nil end"]}}"#;
    let node = reflecting();
    let routes = [route("/removed", REMOVED), route("/lua", LUA), route("/kept", "{}")].concat();
    let resources = format!("routes:\n{routes}");
    for trusted in ["[]", "[127.0.0.1]"] {
        let keys = format!("workers: 1\ntrusted_proxies: {trusted}");
        let gateway = Gateway::start(STILLGATE, &setup(node.addr(), &resources).gateway(&keys));
        for lines in [
            &[][..],
            &["X-Forwarded-Host: a", "X-Forwarded-Port: 1", "X-Forwarded-Proto: https", "X-Forwarded-For: 9.9.9.9"],
        ] {
            let mut client = gateway.client();
            let response = ask(&mut client, "GET /removed", lines);
            let head = asked(&response);
            let said = |name| head.all(name);
            let nothing = ["x-forwarded-host", "x-forwarded-port", "x-forwarded-proto"];
            assert!(nothing.iter().all(|name| said(name).is_empty()), "{trusted} {lines:?}: {head:?}");
            // The connection that the request comes by is always named.
            assert_eq!(said("x-forwarded-for"), ["127.0.0.1"], "{trusted} {lines:?}");
            assert_eq!(said("x-real-ip").len(), 1, "{trusted} {lines:?}");
            assert_eq!((response.head.get("server"), response.head.get("x-node")), (None, None));
            assert!(response.head.get("date").is_some());
            let response = ask(&mut client, "GET /lua", lines);
            let head = asked(&response);
            assert_eq!(
                (head.get("x-forwarded-host"), head.get("x-forwarded-port")),
                (None, None),
                "{trusted} {lines:?}"
            );
            assert_eq!((head.all("x-forwarded-proto"), response.head.get("server")), (vec!["wss"], None));
            let response = ask(&mut client, "GET /kept", lines);
            let head = asked(&response);
            assert!(nothing.iter().all(|name| head.all(name).len() == 1) && response.head.get("server").is_some());
        }
    }
}

#[test]
fn a_line_break_at_the_end_of_a_value_is_refused_as_anywhere_else() {
    let keys = [
        r#"{"proxy-rewrite": {"headers": {"set": {"X-A": "VALUE"}}}}"#,
        r#"{"proxy-rewrite": {"headers": {"add": {"X-A": "VALUE"}}}}"#,
        r#"{"response-rewrite": {"headers": {"set": {"X-A": "VALUE"}}}}"#,
        r#"{"response-rewrite": {"headers": {"add": ["X-A: VALUE"]}}}"#,
        r#"{"echo": {"body": "b", "headers": {"X-A": "VALUE"}}}"#,
        r#"{"mocking": {"response_example": "", "response_headers": {"X-A": "VALUE"}}}"#,
        r#"{"fault-injection": {"abort": {"http_status": 418, "headers": {"X-A": "VALUE"}}}}"#,
    ];
    for plugins in keys {
        let with = |value: &str| {
            let routes = route("/a", &plugins.replace("VALUE", value));
            check(&format!("routes:\n{routes}"))
        };
        assert!(with("b").0 && with(" b\\t").0, "{plugins}: {}", with("b").1);
        for bad in ["b\\r\\n", "b\\n", "b\\r", "\\r\\nb", "\\nb", "b \\n "] {
            let (is_good, messages) = with(bad);
            assert!(!is_good && messages.contains("control character"), "{plugins} {bad}: {messages}");
        }
    }
}
