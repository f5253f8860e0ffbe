//! Filters that hide something hide it from every client: whatever codings and ranges it accepts, and whatever the node sends.

use crate::scripted::{Node, gzip, resources, with_length};
use crate::shared::STILLGATE;
use crate::shared::reflect::{ask, asked, gateway, reflecting, setup, try_ask};
use flate2::read::MultiGzDecoder;
use std::io::Read;
use stillgate_testkit::{Gateway, Message, Upstream};

const CARDS: &str = "card 4111111111111111 end card 4111111111111111 end";
const MASKED: &str = "card **** end card **** end";
/// The filter as a function and as a replacement.
const FUNCTION: &str = r#"{"serverless-pre-function": {"phase": "body_filter", "functions": ["return function(conf, ctx) if ngx.arg[1] then ngx.arg[1] = string.gsub(ngx.arg[1], '%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d', '****') end end"]}}"#;
const REPLACEMENT: &str =
    r#"{"response-rewrite": {"filters": [{"regex": "\\d{16}", "replace": "****", "scope": "global"}]}}"#;
/// A replacement with a condition of all plugins, which may be one of the response.
const FILTERED_BY: &str =
    r#"{"response-rewrite": {"filters": [{"regex": "none", "replace": ""}], "_meta": {"filter": [WHEN]}}}"#;
const TEMPLATE: &str =
    r#"{"body-transformer": {"response": {"input_format": "plain", "template": "a new body, of some length"}}}"#;
const AROUND: &str = r#"{"echo": {"before_body": "before "}}"#;

/// The plugins, together with another that compresses, at any position.
fn with(plugins: &str, other: &str) -> String {
    format!("{}, {other}}}", plugins.strip_suffix('}').expect("an object"))
}

fn plain(response: &Message) -> String {
    let mut text = String::new();
    match response.head.get("content-encoding") {
        Some("gzip") => drop(MultiGzDecoder::new(&*response.body).read_to_string(&mut text).expect("gzip")),
        None => text = String::from_utf8(response.body.clone()).expect("text"),
        Some(other) => panic!("nobody has asked for {other}"),
    }
    text
}

/// The response to a client that accepts gzip, and whether it is compressed.
#[track_caller]
fn check(gateway: &Gateway, target: &str, expected: &str, is_coded: bool) {
    let accepts: &[&[&str]] = &[&[], &["Accept-Encoding: gzip"], &["Accept-Encoding: br;q=0.1, gzip, zstd"]];
    for accept in accepts {
        let got = ask(&mut gateway.client(), &format!("GET {target}"), accept);
        assert_eq!(got.head.status(), 200, "{target}, {accept:?}: {got:?}");
        assert_eq!(plain(&got), expected, "{target}, {accept:?}");
        let has_coding = got.head.get("content-encoding").is_some();
        assert_eq!(has_coding, is_coded && !accept.is_empty(), "{target}, {accept:?}: {:?}", got.head);
    }
}

/// As in nginx, compression is the last filter, whatever priority the plugin has.
#[test]
fn contents_are_coded_behind_all_filters() {
    const GZIP: &str = r#""gzip": {"types": "*", "min_length": 1}"#;
    const FIRST: &str = r#""gzip": {"types": "*", "min_length": 1, "_meta": {"priority": 20000}}"#;
    const LAST: &str = r#""gzip": {"types": "*", "min_length": 1, "_meta": {"priority": -20000}}"#;
    let node = Node::new();
    let masks = [("function", FUNCTION), ("replacement", REPLACEMENT)];
    let routes: Vec<(String, String)> = masks
        .iter()
        .flat_map(|(name, plugins)| {
            [("own", GZIP), ("first", FIRST), ("last", LAST)]
                .map(|(place, gzip)| (format!("/{name}-{place}"), with(plugins, gzip)))
        })
        .collect();
    let routes: Vec<(&str, &str)> = routes.iter().map(|(uri, plugins)| (&**uri, &**plugins)).collect();
    let of_node = node.gateway(&routes);
    node.sends_whole(&with_length("Content-Type: text/plain\r\n", CARDS.as_bytes()), false);
    for (uri, _) in &routes {
        check(&of_node, uri, MASKED, true);
    }
    // Compression as a global rule.
    let rule = "global_rules: [{id: g, plugins: {gzip: {types: '*', min_length: 1}}}]\n";
    let routes = [("/function", FUNCTION), ("/replacement", REPLACEMENT), ("/template", TEMPLATE), ("/around", AROUND)];
    let resources = resources(&routes);
    let global = Gateway::start(STILLGATE, &setup(node.upstream.addr(), &format!("{rule}{resources}")));
    check(&global, "/function", MASKED, true);
    check(&global, "/replacement", MASKED, true);
    check(&global, "/template", "a new body, of some length", true);
    check(&global, "/around", &format!("before {CARDS}"), true);
}

/// A node that compresses on request hides nothing from a filter.
#[test]
fn filters_see_what_the_node_has_coded() {
    let node = Node::new();
    let gateway = node.gateway(&[("/function", FUNCTION), ("/replacement", REPLACEMENT)]);
    node.sends_whole(&with_length("Content-Encoding: gzip\r\n", &gzip(CARDS.as_bytes())), false);
    check(&gateway, "/function", MASKED, false);
    check(&gateway, "/replacement", MASKED, false);
    // A body of many pieces.
    let many = format!("{}{CARDS}{}", "a".repeat(300_000), "b".repeat(300_000));
    node.sends_whole(&with_length("Content-Encoding: gzip\r\n", &gzip(many.as_bytes())), false);
    let got = ask(&mut gateway.client(), "GET /function", &["Accept-Encoding: gzip"]);
    assert!(plain(&got) == many.replace(CARDS, MASKED), "{:?}", got.head);
    // A coding that cannot be undone is not passed on.
    for coding in ["zstd", "gzip, br", "gzip, gzip", "unheard-of"] {
        node.sends_whole(&with_length(&format!("Content-Encoding: {coding}\r\n"), CARDS.as_bytes()), false);
        for path in ["/function", "/replacement"] {
            let got = try_ask(&mut gateway.client(), &format!("GET {path}"), &[]);
            assert!(got.as_ref().is_ok_and(|got| got.head.status() == 502), "{path}, {coding}: {got:?}");
        }
    }
}

/// A range would cut what is looked for in two, and a coding could not be undone. Without a filter both go on.
#[test]
fn a_node_is_asked_for_whole_bodies_in_known_codings() {
    let node = reflecting();
    let routes = [
        ("/function", FUNCTION),
        ("/replacement", REPLACEMENT),
        ("/not-now", &FILTERED_BY.replace("WHEN", r#"["arg_run", "==", "1"]"#)),
        ("/late", &FILTERED_BY.replace("WHEN", r#"["status", "==", 404]"#)),
        ("/coded", r#"{"gzip": {}, "brotli": {}, "zstd": {}}"#),
        ("/head", r#"{"response-rewrite": {"headers": {"set": {"X-A": "1"}}}}"#),
        ("/plain", "{}"),
    ];
    let gateway = gateway(node.addr(), &resources(&routes));
    let head = |path: &str, accept: &str| {
        let lines =
            ["Range: bytes=5-30", "If-Range: \"a\"", "Request-Range: bytes=5-30", "x-ms-range: bytes=5-30", accept];
        let asked = asked(&ask(&mut gateway.client(), &format!("GET {path}"), &lines));
        assert_eq!(asked.get("request-range"), asked.get("range"), "{path}");
        assert_eq!(asked.get("x-ms-range"), asked.get("range"), "{path}");
        ["range", "if-range", "accept-encoding"].map(|name| asked.get(name).map(str::to_owned))
    };
    for path in ["/function", "/replacement", "/late", "/not-now?run=1"] {
        for (accept, expected) in [
            ("Accept-Encoding: gzip", Some("gzip")),
            ("Accept-Encoding: gzip;q=0.5, zstd, BR , deflate;q=0", Some("gzip;q=0.5, BR, deflate;q=0")),
            ("Accept-Encoding: zstd, *", Some("identity")),
            ("Accept-Encoding: *", Some("identity")),
            ("X-None: 1", None),
        ] {
            assert_eq!(head(path, accept), [None, None, expected.map(str::to_owned)], "{path}, {accept}");
        }
    }
    for path in ["/coded", "/head", "/plain", "/not-now"] {
        let expected = ["bytes=5-30", "\"a\"", "identity, unheard-of"].map(|value| Some(value.to_owned()));
        assert_eq!(head(path, "Accept-Encoding: identity, unheard-of"), expected, "{path}");
    }
}

/// The node's fields about its body are removed with it, and other fields stay.
#[test]
fn the_head_does_not_describe_another_body() {
    const OF_BODY: [&str; 9] = [
        "Accept-Ranges: bytes",
        "Content-Digest: sha-256=:AAAA:",
        "Content-MD5: AAAA",
        "Digest: sha-256=AAAA",
        "ETag: \"x\"",
        "Last-Modified: Thu, 01 Jan 1970 00:00:00 GMT",
        "Repr-Digest: sha-256=:AAAA:",
        "Unencoded-Digest: sha-256=:AAAA:",
        "Repr-Digest: sha-512=:AAAA:",
    ];
    let lines: String = OF_BODY.iter().map(|line| format!("{line}\r\n")).collect();
    let answer =
        with_length(&format!("{lines}Cache-Control: no-store\r\nContent-Type: text/plain\r\n"), CARDS.as_bytes());
    let node = Upstream::serve(move |connection| {
        while connection.read_request().is_ok() {
            connection.send(&answer);
        }
    });
    let routes = [
        ("/function", FUNCTION),
        ("/replacement", REPLACEMENT),
        ("/replaced", r#"{"response-rewrite": {"body": "new"}}"#),
        ("/template", TEMPLATE),
        ("/around", AROUND),
        ("/gzip", r#"{"gzip": {"types": "*", "min_length": 1}}"#),
        ("/plain", "{}"),
    ];
    let gateway = gateway(node.addr(), &resources(&routes));
    for (path, _) in routes {
        let got = ask(&mut gateway.client(), &format!("GET {path}"), &["Accept-Encoding: gzip"]);
        let left: Vec<&str> = OF_BODY
            .iter()
            .filter_map(|line| line.split_once(": "))
            .filter(|(name, _)| got.head.get(name).is_some())
            .map(|(name, _)| name)
            .collect();
        match path {
            "/plain" => assert_eq!(left.len(), OF_BODY.len(), "{path}"),
            // The body in another coding.
            "/gzip" => assert_eq!(left, ["ETag", "Last-Modified", "Unencoded-Digest"], "{path}"),
            _ => assert!(left.is_empty(), "{path}: {left:?}"),
        }
        assert_eq!(got.head.get("cache-control"), Some("no-store"), "{path}");
    }
}
