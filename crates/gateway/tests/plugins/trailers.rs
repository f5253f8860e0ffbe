//! Trailer fields: some nodes and clients read them as if they had been in the head, so none brings back what a plugin checked,
//! set or removed there.

use crate::shared::STILLGATE;
use crate::shared::reflect::{route, setup};
use stillgate_testkit::http2::{END_HEADERS, END_STREAM, Http2, encode_fields, kind};
use stillgate_testkit::{BufferedSocket, Gateway, Message, Setup, Upstream, eventually};

const CONSUMERS: &str = r#"consumers: [{"username": "jack", "plugins": {"key-auth": {"key": "k"}, "basic-auth": {"username": "jack", "password": "p"}}}]
routes:
"#;

/// Plugins that check, set or remove fields of a request, each on a route of its own.
const GUARDED: &[(&str, &str)] = &[
    ("/hidden", r#"{"key-auth": {"hide_credentials": true}}"#),
    ("/shown", r#"{"key-auth": {}}"#),
    ("/anonymous", r#"{"key-auth": {"header": "X-None", "query": "none", "anonymous_consumer": "jack"}}"#),
    ("/set", r#"{"proxy-rewrite": {"headers": {"set": {"X-User": "a"}}}}"#),
    ("/removed", r#"{"proxy-rewrite": {"headers": {"remove": ["X-User", "apikey"]}}}"#),
    (
        "/filtered",
        r#"{"proxy-rewrite": {"_meta": {"filter": [["arg_a", "==", "b"]]}, "headers": {"remove": ["X-User"]}}}"#,
    ),
    (
        "/checked",
        r#"{"request-validation": {"header_schema": {"type": "object", "properties": {"X-User": {"enum": ["a"]}}}}}"#,
    ),
    ("/id", r#"{"request-id": {}}"#),
    (
        "/lua",
        r#"{"serverless-pre-function": {"phase": "access", "functions": ["return function() ngx.req.clear_header('X-User') end"]}}"#,
    ),
    (
        "/body",
        r#"{"serverless-pre-function": {"phase": "access", "functions": ["return function() ngx.req.read_body() ngx.req.set_body_data('new') end"]}}"#,
    ),
];

const SENT: [(&str, &str); 7] = [
    ("apikey", "k"),
    ("x-user", "root"),
    ("x-consumer-username", "root"),
    ("x-credential-identifier", "c"),
    ("x-request-id", "1"),
    ("x.user", "root"),
    ("x-sum", "7"),
];

fn sent_lines() -> String {
    SENT.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect()
}

fn gateway(node: &Upstream) -> Gateway {
    let more = [("/plain", "{}"), ("/counted", r#"{"prometheus": {}}"#)];
    let routes: String = GUARDED.iter().chain(&more).map(|(uri, plugins)| route(uri, plugins)).collect();
    Gateway::start(STILLGATE, &setup(node.addr(), &format!("{CONSUMERS}{routes}")))
}

/// The request as the node gets it.
fn at_node(node: &mut Option<BufferedSocket>, upstream: &Upstream) -> Message {
    let connection = node.get_or_insert_with(|| upstream.accept());
    let request = connection.expect_request();
    connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    request
}

#[test]
fn none_of_a_request_passes_a_plugin_that_sees_it_first() {
    let upstream = Upstream::bind();
    let gateway = gateway(&upstream);
    let (mut client, mut node) = (gateway.client(), None);
    let mut ask = |path: &str| {
        client.send(format!(
            "POST {path} HTTP/1.1\r\nHost: h\r\napikey: k\r\nTrailer: x-sum\r\nTransfer-Encoding: chunked\r\n\r\n\
             3\r\nabc\r\n0\r\n{}\r\n",
            sent_lines()
        ));
        let request = at_node(&mut node, &upstream);
        assert_eq!(client.expect_response("POST").head.status(), 200, "{path}");
        request
    };
    for (path, _) in GUARDED {
        let request = ask(path);
        assert!(request.trailers.is_empty(), "{path}: {request:?}");
        assert_eq!(request.head.get("trailer"), None, "{path}: {request:?}");
    }
    for path in ["/plain", "/counted"] {
        let request = ask(path);
        assert_eq!((request.trailers.len(), request.head.get("trailer")), (SENT.len(), Some("x-sum")), "{path}");
    }
    let dropped = GUARDED.len() * SENT.len();
    eventually("they are counted", || gateway.status()["requests"]["header_lines_dropped"] == dropped);
}

#[test]
fn none_of_a_request_of_http_2_does_either() {
    let upstream = Upstream::bind();
    let gateway = gateway(&upstream);
    let mut client = Http2::connect(gateway.addr());
    let mut node = None;
    let paths = GUARDED.iter().map(|(path, _)| (*path, 0)).chain([("/plain", SENT.len()), ("/counted", SENT.len())]);
    for ((path, expected), stream) in paths.zip((1..).step_by(2)) {
        let head = [(":method", "POST"), (":scheme", "http"), (":authority", "h"), (":path", path), ("apikey", "k")];
        client.send_head(stream, &head, 0);
        client.send(kind::DATA, 0, stream, b"abc");
        client.send(kind::HEADERS, END_HEADERS | END_STREAM, stream, &encode_fields(&SENT));
        assert_eq!(at_node(&mut node, &upstream).trailers.len(), expected, "{path}");
        client.finish(stream);
    }
}

/// Where routes are chosen by fields of the header, a client could add there what would have led to a guarded route.
#[test]
fn none_of_a_request_passes_where_fields_of_the_header_choose_the_route() {
    let upstream = Upstream::bind();
    let node = upstream.addr();
    let guards = [
        ("header", r#"{"uri": "/*", "priority": 1, "vars": [["http_x_user", "==", "root"]]"#, 0),
        (
            "cookie",
            r#"{"uri": "/*", "priority": 1, "vars": [["OR", ["arg_a", "==", "1"], ["cookie_user", "==", "root"]]]"#,
            0,
        ),
        ("function", r#"{"uri": "/*", "priority": 1, "filter_func": "function(vars) return vars.arg_a == '1' end""#, 0),
        ("expression", r#"{"expression": "http.headers.x_user == \"root\"""#, 0),
        ("argument", r#"{"uri": "/*", "priority": 1, "vars": [["arg_a", "==", "1"]]"#, SENT.len()),
    ];
    for (name, guard, passing) in guards {
        let guard =
            format!("  - {guard}, \"id\": \"g\", \"plugins\": {{\"key-auth\": {{}}}}, \"upstream_id\": \"u\"}}\n");
        let open = r#"  - {"id": "open", "uri": "/*", "upstream_id": "u"}"#;
        let text = format!("upstreams: [{{\"id\": \"u\", \"nodes\": {{\"{node}\": 1}}}}]\nroutes:\n{guard}{open}\n");
        let gateway = Gateway::start(STILLGATE, &Setup::resources(text));
        let mut client = gateway.client();
        client.send(format!(
            "POST /x HTTP/1.1\r\nHost: h\r\nTrailer: x-sum\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n{}\r\n",
            sent_lines()
        ));
        let request = at_node(&mut None, &upstream);
        assert_eq!(client.expect_response("POST").head.status(), 200, "{name}");
        assert_eq!((request.trailers.len(), request.head.get("trailer").is_some()), (passing, passing > 0), "{name}");
    }
}

#[test]
fn none_of_a_response_brings_back_what_a_plugin_set_or_removed() {
    const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTrailer: X-Secret, X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n\
        3\r\nabc\r\n0\r\nX-Secret: s\r\nx-secret: t\r\nX-Sum: 7\r\nGrpc-Status: 0\r\n\r\n";
    let plugins = [
        ("/removed", r#"{"response-rewrite": {"headers": {"remove": ["x-secret"]}}}"#, 2, Some("X-Sum")),
        ("/set", r#"{"response-rewrite": {"headers": {"set": {"X-Secret": "none"}}}}"#, 2, Some("X-Sum")),
        (
            "/lua",
            r#"{"serverless-post-function": {"phase": "header_filter", "functions": ["return function() ngx.header['X-Secret'] = nil end"]}}"#,
            2,
            Some("X-Sum"),
        ),
        ("/masked", r#"{"response-rewrite": {"filters": [{"regex": "b", "replace": "*"}]}}"#, 0, None),
        ("/plain", "{}", 4, Some("X-Secret, X-Sum")),
    ];
    let upstream = Upstream::serve(|connection| {
        while connection.read_request().is_ok() {
            connection.send(ANSWER);
        }
    });
    let routes: String = plugins.iter().map(|(uri, plugins, ..)| route(uri, plugins)).collect();
    let gateway = Gateway::start(STILLGATE, &setup(upstream.addr(), &format!("routes:\n{routes}")));
    for (path, _, passing, announced) in plugins {
        let mut client = gateway.client();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n"));
        let response = client.expect_response("GET");
        assert_eq!(response.trailers.len(), passing, "{path}: {response:?}");
        assert_eq!(response.trailers.iter().any(|(name, _)| name == "Grpc-Status"), passing > 0, "{path}");
        assert_eq!(response.head.get("trailer"), announced, "{path}");
        // A client of HTTP/1.0 gets none.
        let mut client = gateway.client();
        client.send(format!("GET {path} HTTP/1.0\r\nHost: h\r\n\r\n"));
        assert_eq!(client.expect_response("GET").head.get("trailer"), None, "{path}");
    }
}
