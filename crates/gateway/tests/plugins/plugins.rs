//! Five plugins as a client and a node see them, request by request. The expectations are APISIX's, by its documentation and tests.

use crate::shared::reflect;
use crate::shared::reflect::{ask, asked, check, gateway, reflecting, route, try_ask};
use stillgate_testkit::{Gateway, Head, Message, MessageError, Upstream, http2};

struct Gate {
    node: Upstream,
    gateway: Gateway,
}

impl Gate {
    fn of(resources: &[String]) -> Gate {
        let node = reflecting();
        let gateway = gateway(node.addr(), &resources.concat());
        Gate { node, gateway }
    }

    #[track_caller]
    fn ask(&self, start: &str, lines: &[&str]) -> Message {
        ask(&mut self.gateway.client(), start, lines)
    }

    /// The request as the node received it.
    #[track_caller]
    fn node(&self, start: &str, lines: &[&str]) -> Head {
        asked(&self.ask(start, lines))
    }

    fn assert_healthy(mut self) {
        assert_eq!(self.node.faults(), Vec::<String>::new());
        self.gateway.assert_healthy();
    }
}

pub(crate) fn routes(of: &[(&str, &str)]) -> String {
    let routes: String = of.iter().map(|(uri, plugins)| route(uri, plugins)).collect();
    format!("routes:\n{routes}")
}

fn text(response: &Message) -> &str {
    std::str::from_utf8(&response.body).expect("text")
}

// key-auth

pub(crate) const CONSUMERS: &str = "consumers:\n  - {\"username\": \"jack\", \"plugins\": {\"key-auth\": {\"key\": \"auth-one\"}}}\n  - {\"username\": \"spaced\", \"plugins\": {\"key-auth\": {\"key\": \"a b+c\"}}}\n  - {\"username\": \"guest\", \"plugins\": {}}\n";

#[test]
fn key_auth_asks_for_a_key() {
    let gate = Gate::of(&[
        CONSUMERS.to_owned(),
        routes(&[
            ("/a", r#"{"key-auth": {}}"#),
            ("/named", r#"{"key-auth": {"header": "Authorization", "query": "token"}}"#),
            ("/hidden", r#"{"key-auth": {"hide_credentials": true}}"#),
            ("/guest", r#"{"key-auth": {"anonymous_consumer": "guest"}}"#),
            ("/realm", r#"{"key-auth": {"realm": "my realm"}}"#),
        ]),
    ]);
    let refused = |start: &str, lines: &[&str], message: &str, realm: &str| {
        let response = gate.ask(start, lines);
        assert_eq!(response.head.status(), 401, "{start} {lines:?}: {response:?}");
        assert_eq!(text(&response), format!("{{\"message\":\"{message}\"}}\n"), "{start} {lines:?}");
        assert_eq!(response.head.all("www-authenticate"), [format!("apikey realm=\"{realm}\"")], "{start} {lines:?}");
    };
    const MISSING: &str = "Missing API key in request";
    const INVALID: &str = "Invalid API key in request";
    refused("GET /a", &[], MISSING, "key");
    refused("GET /a?APIKEY=auth-one", &[], MISSING, "key");
    refused("GET /realm", &[], MISSING, "my realm");
    refused("GET /a", &["apikey: auth-two"], INVALID, "key");
    refused("GET /a", &["apikey: AUTH-ONE"], INVALID, "key");
    refused("GET /a", &["apikey: auth-one2"], INVALID, "key");
    refused("GET /a?apikey=nope", &[], INVALID, "key");
    // The header comes first: a valid query does not make up for an invalid header.
    refused("GET /a?apikey=auth-one", &["apikey: nope"], INVALID, "key");
    refused("GET /named", &["apikey: auth-one"], MISSING, "key");
    let passes = |start: &str, lines: &[&str]| {
        let head = gate.node(start, lines);
        assert_eq!(head.all("x-consumer-username"), ["jack"], "{start} {lines:?}");
        head
    };
    assert_eq!(passes("GET /a", &["apikey: auth-one"]).get("apikey"), Some("auth-one"));
    assert_eq!(passes("GET /a", &["APIKEY:  auth-one "]).get("apikey"), Some("auth-one"));
    assert_eq!(passes("GET /a?x=1&apikey=auth-one", &[]).start, "GET /a?x=1&apikey=auth-one HTTP/1.1");
    passes("GET /named", &["authorization: auth-one"]);
    passes("GET /named?token=auth-one", &[]);
    let head = passes("GET /hidden", &["apikey: auth-one", "X: y"]);
    assert_eq!((head.get("apikey"), head.get("x")), (None, Some("y")));
    let head = passes("GET /hidden?apikey=auth-one&x=1", &[]);
    assert!(!head.start.contains("auth-one") && head.start.contains("x=1"), "{head:?}");
    assert_eq!(gate.node("GET /guest", &[]).all("x-consumer-username"), ["guest"]);
    assert_eq!(gate.node("GET /guest", &["apikey: auth-one"]).all("x-consumer-username"), ["jack"]);
    // The query is decoded as arguments are.
    assert_eq!(gate.node("GET /a?apikey=a%20b%2Bc", &[]).all("x-consumer-username"), ["spaced"]);
    gate.assert_healthy();
}

#[test]
fn hidden_credentials_stay_hidden_however_the_path_is_rewritten() {
    const TOKEN: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJrZXkiOiJiZW5jaCIsImV4cCI6MTk5OTk5OTk5OX0.\
                         i15WrTWF_N4F_hXpUsHCs1FlJ6yfzpwSB06GyBp37Mw";
    const KEY: &str = r#""key-auth": {"hide_credentials": true}"#;
    const JWT: &str = r#""jwt-auth": {"hide_credentials": true, "query": "apikey"}"#;
    // What a function has made of the query holds, too.
    const FUNCTION: &str = r#""serverless-pre-function": {"phase": "rewrite", "functions":
        ["return function() local args = ngx.req.get_uri_args() args.apikey = nil ngx.req.set_uri_args(args) end"]}"#;
    let consumer =
        "  - {username: bench, plugins: {jwt-auth: {key: bench, secret: bench-secret-of-some-length-0123456789}}}\n";
    let rewrites = [
        ("", "/from"),
        (r#", "proxy-rewrite": {"uri": "/to"}"#, "/to"),
        (r#", "proxy-rewrite": {"uri": "/to?b=2"}"#, "/to?b=2"),
        (r#", "proxy-rewrite": {"regex_uri": ["^/from.*", "/to"]}"#, "/to"),
        (r#", "proxy-rewrite": {"uri": "/to", "use_real_request_uri_unsafe": true}"#, "/to"),
        (r#", "proxy-rewrite": {"regex_uri": ["^/from[0-9]*", "/to"], "use_real_request_uri_unsafe": true}"#, "/to"),
    ];
    let cases = [(KEY, "auth-one"), (JWT, TOKEN), (FUNCTION, "auth-one")];
    let of_each = cases.iter().flat_map(|case| rewrites.iter().map(move |rewrite| (case, rewrite)));
    let all: Vec<(String, String)> = of_each
        .clone()
        .enumerate()
        .map(|(index, ((guard, _), (rewrite, _)))| (format!("/from{index}"), format!("{{{guard}{rewrite}}}")))
        .collect();
    let only_key = format!("{{{KEY}}}");
    let mut listed: Vec<(&str, &str)> = all.iter().map(|(uri, plugins)| (&**uri, &**plugins)).collect();
    listed.push(("/", &only_key));
    let gate = Gate::of(&[format!("{CONSUMERS}{consumer}"), routes(&listed)]);
    // An absolute target needs no path.
    assert_eq!(gate.node("GET http://a?apikey=auth-one", &[]).start, "GET / HTTP/1.1");
    assert_eq!(gate.node("GET http://a?apikey=auth-one&x=1", &[]).start, "GET /?x=1 HTTP/1.1");
    for (index, ((guard, credential), (rewrite, path))) in of_each.enumerate() {
        let head = gate.node(&format!("GET /from{index}?x=1&apikey={credential}&y"), &[]);
        let target = head.start.split(' ').nth(1).expect("a target");
        assert!(!target.contains(credential), "{guard}{rewrite}: {target}");
        let path = if *path == "/from" { format!("/from{index}") } else { (*path).to_owned() };
        assert!(
            target.starts_with(&path) && target.contains("x=1") && target.contains('y'),
            "{guard}{rewrite}: {target}"
        );
    }
    gate.assert_healthy();
}

// limit-count

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn limit_count_counts() {
    let gate = Gate::of(&[
        CONSUMERS.to_owned(),
        routes(&[
            ("/two", r#"{"limit-count": {"count": 2, "time_window": 600}}"#),
            (
                "/told",
                r#"{"limit-count": {"count": 1, "time_window": 600, "rejected_code": 429, "rejected_msg": "Requests are \"too\" frequent"}}"#,
            ),
            (
                "/silent",
                r#"{"limit-count": {"count": 1, "time_window": 600, "rejected_code": 429, "show_limit_quota_header": false}}"#,
            ),
            (
                "/by-header",
                r#"{"limit-count": {"count": 1, "time_window": 600, "rejected_code": 429, "key": "http_x_who"}}"#,
            ),
            (
                "/by-both",
                r#"{"limit-count": {"count": 1, "time_window": 600, "rejected_code": 429, "key_type": "var_combination", "key": "$http_x_who $arg_a"}}"#,
            ),
            (
                "/constant",
                r#"{"limit-count": {"count": 1, "time_window": 600, "rejected_code": 429, "key_type": "constant", "key": "same"}}"#,
            ),
            ("/shared-a", r#"{"limit-count": {"count": 2, "time_window": 600, "rejected_code": 429, "group": "g"}}"#),
            ("/shared-b", r#"{"limit-count": {"count": 2, "time_window": 600, "rejected_code": 429, "group": "g"}}"#),
            (
                "/by-consumer",
                r#"{"key-auth": {}, "limit-count": {"count": 1, "time_window": 600, "rejected_code": 429, "key": "consumer_name"}}"#,
            ),
        ]),
    ]);
    let quota = |response: &Message| {
        let of = |name: &str| response.head.all(name).join("|");
        (response.head.status(), of("x-ratelimit-limit"), of("x-ratelimit-remaining"))
    };
    let admitted = |status: u16, limit: &str, remaining: &str| (status, limit.to_owned(), remaining.to_owned());
    assert_eq!(quota(&gate.ask("GET /two", &[])), admitted(200, "2", "1"));
    let second = gate.ask("GET /two", &[]);
    assert_eq!(quota(&second), admitted(200, "2", "0"));
    let third = gate.ask("GET /two", &[]);
    assert_eq!(quota(&third), admitted(503, "2", "0"));
    for response in [&second, &third] {
        let reset: f64 = response.head.get("x-ratelimit-reset").expect("the header").parse().expect("seconds");
        assert!((500.0..=600.0).contains(&reset), "{reset}");
    }
    // Another method and query is the same route and the same client.
    assert_eq!(gate.ask("POST /two?x=1", &["Content-Length: 0"]).head.status(), 503);
    assert_eq!(gate.ask("GET /told", &[]).head.status(), 200);
    let told = gate.ask("GET /told", &[]);
    assert_eq!((told.head.status(), text(&told)), (429, "{\"error_msg\":\"Requests are \\\"too\\\" frequent\"}\n"));
    for expected in [200, 429] {
        assert_eq!(quota(&gate.ask("GET /silent", &[])), admitted(expected, "", ""));
    }
    let statuses = |of: &[(&str, &[&str])]| {
        of.iter().map(|(start, lines)| gate.ask(start, lines).head.status()).collect::<Vec<_>>()
    };
    // Where the key's value is missing, the client's address counts.
    assert_eq!(
        statuses(&[
            ("GET /by-header", &["X-Who: a"]),
            ("GET /by-header", &["X-Who: b"]),
            ("GET /by-header", &["X-Who: a"]),
            ("GET /by-header", &[]),
            ("GET /by-header", &["X-Other: a"]),
        ]),
        [200, 200, 429, 200, 429]
    );
    assert_eq!(
        statuses(&[
            ("GET /by-both?a=1", &["X-Who: a"]),
            ("GET /by-both?a=2", &["X-Who: a"]),
            ("GET /by-both?a=1", &["X-Who: b"]),
            ("GET /by-both?a=1", &["X-Who: a"]),
        ]),
        [200, 200, 200, 429]
    );
    assert_eq!(statuses(&[("GET /constant", &["X-Who: a"]), ("GET /constant", &["X-Who: b"])]), [200, 429]);
    assert_eq!(
        statuses(&[("GET /shared-a", &[]), ("GET /shared-b", &[]), ("GET /shared-a", &[]), ("GET /shared-b", &[])]),
        [200, 200, 429, 429]
    );
    assert_eq!(
        statuses(&[
            ("GET /by-consumer", &[]),
            ("GET /by-consumer", &["apikey: auth-one"]),
            ("GET /by-consumer?apikey=a%20b%2Bc", &[]),
            ("GET /by-consumer", &["apikey: auth-one"]),
        ]),
        [401, 200, 200, 429]
    );
    gate.assert_healthy();
}

/// Exactly `count` by the process, whichever worker a connection is on.
#[test]
fn limit_count_holds_over_all_workers() {
    let node = reflecting();
    let plugins = r#"{"limit-count": {"count": 100, "time_window": 600, "rejected_code": 429}}"#;
    let setup = reflect::setup(node.addr(), &routes(&[("/a", plugins)])).gateway("workers: 4");
    let gateway = Gateway::start(crate::shared::STILLGATE, &setup);
    let statuses: Vec<(u16, String)> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let each = (0..20).map(|_| {
                        let response = ask(&mut gateway.client(), "GET /a", &[]);
                        (response.head.status(), response.head.get("x-ratelimit-remaining").unwrap_or("").to_owned())
                    });
                    each.collect::<Vec<_>>()
                })
            })
            .collect();
        clients.into_iter().flat_map(|client| client.join().expect("a client")).collect()
    });
    let mut remaining: Vec<u32> =
        statuses.iter().filter(|(status, _)| *status == 200).map(|(_, left)| left.parse().expect("a number")).collect();
    remaining.sort_unstable();
    assert_eq!(remaining, (0..100).collect::<Vec<_>>(), "each of the hundred once");
    assert!(statuses.iter().filter(|(status, _)| *status != 200).all(|of| *of == (429, "0".to_owned())));
}

// cors

const CORS_FIELDS: [&str; 6] = [
    "access-control-allow-origin",
    "access-control-allow-methods",
    "access-control-allow-headers",
    "access-control-expose-headers",
    "access-control-max-age",
    "access-control-allow-credentials",
];

fn cors_of(response: &Message) -> [String; 6] {
    CORS_FIELDS.map(|name| response.head.all(name).join("|"))
}

#[test]
fn cors_says_who_may_read() {
    let listed = r#"{"cors": {"allow_origins": "https://a.example,https://b.example:8443", "allow_methods": "GET,POST", "allow_headers": "X-A,X-B", "expose_headers": "X-Node", "max_age": 7, "allow_credential": true}}"#;
    let gate = Gate::of(&[
        "plugin_metadata:\n  - {\"id\": \"cors\", \"allow_origins\": {\"named\": \"https://named.example\"}}\n"
            .to_owned(),
        routes(&[
            ("/all", r#"{"cors": {}}"#),
            ("/listed", listed),
            (
                "/forced",
                r#"{"cors": {"allow_origins": "**", "allow_methods": "**", "allow_headers": "**", "allow_credential": true}}"#,
            ),
            ("/regex", r#"{"cors": {"allow_origins_by_regex": [".*\\.test\\.example$"]}}"#),
            (
                "/metadata",
                r#"{"cors": {"allow_origins": "https://a.example", "allow_origins_by_metadata": ["named"]}}"#,
            ),
            ("/timing", r#"{"cors": {"timing_allow_origins": "https://a.example"}}"#),
        ]),
    ]);
    let of = |start: &str, lines: &[&str]| cors_of(&gate.ask(start, lines));
    let none = [""; 6];
    assert_eq!(of("GET /all", &[]), ["*", "*", "*", "", "5", ""]);
    assert_eq!(of("GET /all", &["Origin: https://x.example"]), ["*", "*", "*", "", "5", ""]);
    for origin in ["https://a.example", "https://b.example:8443"] {
        let expected = [origin, "GET,POST", "X-A,X-B", "X-Node", "7", "true"];
        assert_eq!(of("GET /listed", &[&format!("Origin: {origin}")]), expected);
    }
    for origin in [
        "https://c.example",
        "https://a.example.evil",
        "https://A.example",
        "null",
        "*",
        "https://a.example,https://b.example:8443",
    ] {
        assert_eq!(of("GET /listed", &[&format!("Origin: {origin}")]), none, "{origin}");
    }
    assert_eq!(of("GET /listed", &[]), none);
    assert_eq!(of("GET /regex", &["Origin: http://a.test.example"])[0], "http://a.test.example");
    assert_eq!(of("GET /regex", &["Origin: http://a.test.example.evil"]), none);
    assert_eq!(of("GET /metadata", &["Origin: https://named.example"])[0], "https://named.example");
    assert_eq!(of("GET /metadata", &["Origin: https://a.example"])[0], "https://a.example");
    assert_eq!(of("GET /metadata", &["Origin: https://named.example.evil"])[0], "");
    let methods = "GET,POST,PUT,DELETE,PATCH,HEAD,OPTIONS,CONNECT,TRACE";
    assert_eq!(
        of("GET /forced", &["Origin: https://x.example", "Access-Control-Request-Headers: X-One, X-Two"]),
        ["https://x.example", methods, "X-One, X-Two", "", "5", "true"]
    );
    let timing = |lines: &[&str]| gate.ask("GET /timing", lines).head.all("timing-allow-origin").join("|");
    assert_eq!(timing(&["Origin: https://a.example"]), "https://a.example");
    assert_eq!(timing(&["Origin: https://b.example"]), "");
    // The node's own Vary stays, and caches learn that the answer depends on the origin.
    let vary = |start: &str, lines: &[&str]| gate.ask(start, lines).head.all("vary").join(", ");
    assert_eq!(vary("GET /all", &["Origin: https://x.example"]), "Accept-Encoding");
    assert_eq!(vary("GET /listed", &["Origin: https://a.example"]), "Accept-Encoding, Origin");
    gate.assert_healthy();
}

#[test]
fn cors_answers_preflights_itself() {
    let gate = Gate::of(&[routes(&[(
        "/a",
        r#"{"cors": {"allow_origins": "https://a.example"}, "limit-count": {"count": 1, "time_window": 600}}"#,
    )])]);
    for _ in 0..3 {
        let lines = ["Origin: https://a.example", "Access-Control-Request-Method: PUT"];
        let response = gate.ask("OPTIONS /a", &lines);
        assert_eq!((response.head.status(), text(&response)), (200, ""), "{response:?}");
        assert_eq!(response.head.get("x-node"), None, "the node was asked");
        assert_eq!(cors_of(&response), ["https://a.example", "*", "*", "", "5", ""]);
    }
    let response = gate.ask("OPTIONS /a", &["Origin: https://b.example"]);
    assert_eq!((response.head.status(), cors_of(&response)), (200, [""; 6].map(str::to_owned)));
    gate.assert_healthy();
}

// proxy-rewrite

#[test]
fn proxy_rewrite_changes_what_the_node_gets() {
    let gate = Gate::of(&[routes(&[
        ("/uri", r#"{"proxy-rewrite": {"uri": "/new/place"}}"#),
        ("/uri-args", r#"{"proxy-rewrite": {"uri": "/new?from=$remote_addr&q=$arg_q"}}"#),
        ("/test/*", r#"{"proxy-rewrite": {"regex_uri": ["^/test/(.*)/(.*)/(.*)", "/$1_$2_$3"]}}"#),
        (
            "/chain/*",
            r#"{"proxy-rewrite": {"regex_uri": ["^/chain/a/(.*)", "/first/$1", "^/chain/(.*)", "/second/$1"]}}"#,
        ),
        (
            "/captured/*",
            r#"{"proxy-rewrite": {"regex_uri": ["^/captured/([^/]*)/(.*)", "/$2"], "headers": {"set": {"X-One": "$1", "X-Both": "$1-$2"}}}}"#,
        ),
        ("/host", r#"{"proxy-rewrite": {"host": "other.example:8080"}}"#),
        ("/method", r#"{"proxy-rewrite": {"method": "POST"}}"#),
        (
            "/headers",
            r#"{"proxy-rewrite": {"headers": {"add": {"X-Add": "more"}, "set": {"X-Set": "new $http_x_set $remote_addr", "X-Number": 7}, "remove": ["X-Gone", "x-gone-too"]}}}"#,
        ),
        ("/map", r#"{"proxy-rewrite": {"headers": {"X-Set": "new", "X-Api": "v1"}}}"#),
        ("/raw/*", r#"{"proxy-rewrite": {"regex_uri": ["^/raw/(.*)", "/$1"], "use_real_request_uri_unsafe": true}}"#),
        ("/both/*", r#"{"proxy-rewrite": {"uri": "/wins", "regex_uri": ["^/both/(.*)", "/$1"]}}"#),
    ])]);
    let target = |target: &str| {
        gate.node(&format!("GET {target}"), &[]).start.split(' ').nth(1).map(str::to_owned).expect("a target")
    };
    assert_eq!(target("/uri"), "/new/place");
    assert_eq!(target("/uri?a=1&b=%20"), "/new/place?a=1&b=%20");
    assert_eq!(target("/uri-args?q=z"), "/new?from=127.0.0.1&q=z&q=z");
    assert_eq!(target("/test/plugin/proxy/rewrite"), "/plugin_proxy_rewrite");
    assert_eq!(target("/test/plugin/proxy/rewrite?a=iresty"), "/plugin_proxy_rewrite?a=iresty");
    assert_eq!(target("/test/short"), "/test/short", "what does not match stays");
    assert_eq!(target("/chain/a/x"), "/first/x");
    assert_eq!(target("/chain/b"), "/second/b");
    assert_eq!(target("/both/x"), "/wins");
    assert_eq!(target("/raw/a%2Fb//c?x=%2F"), "/a%2Fb//c?x=%2F");
    let head = gate.node("GET /captured/one/two", &[]);
    assert_eq!(
        (&*head.start, head.get("x-one"), head.get("x-both")),
        ("GET /two HTTP/1.1", Some("one"), Some("one-two"))
    );
    let head = gate.node("GET /host", &[]);
    assert_eq!((head.all("host"), &*head.start), (vec!["other.example:8080"], "GET /host HTTP/1.1"));
    assert_eq!(gate.node("GET /method", &[]).start, "POST /method HTTP/1.1");
    let head = gate.node(
        "GET /headers",
        &["X-Add: one", "X-Set: old", "X-Set: older", "X-Gone: 1", "X-Gone: 2", "X-GONE-TOO: 3", "X-Stays: 4"],
    );
    assert_eq!(head.all("x-add"), ["one", "more"]);
    assert_eq!(head.all("x-set"), ["new old, older 127.0.0.1"]);
    assert_eq!(head.all("x-number"), ["7"]);
    assert_eq!((head.all("x-gone").len(), head.all("x-gone-too").len(), head.all("x-stays")), (0, 0, vec!["4"]));
    let head = gate.node("GET /map", &["X-Set: old"]);
    assert_eq!((head.all("x-set"), head.all("x-api")), (vec!["new"], vec!["v1"]));
    gate.assert_healthy();
}

/// Another method has another rule of bodies; the client's own is what it waits for.
#[test]
fn proxy_rewrite_keeps_bodies_and_methods_apart() {
    let gate = Gate::of(&[routes(&[
        ("/to-head", r#"{"proxy-rewrite": {"method": "HEAD"}}"#),
        ("/to-get", r#"{"proxy-rewrite": {"method": "GET"}}"#),
        ("/plain", "{}"),
    ])]);
    let mut client = gate.gateway.client();
    let response = ask(&mut client, "GET /to-head", &[]);
    assert_eq!((response.head.status(), text(&response)), (200, ""), "a response to HEAD has no body");
    assert_eq!(asked(&ask(&mut client, "GET /plain", &[])).start, "GET /plain HTTP/1.1");
    let response = ask(&mut client, "HEAD /to-get", &[]);
    assert_eq!((response.head.status(), text(&response)), (200, ""));
    assert_eq!(asked(&ask(&mut client, "GET /plain", &[])).start, "GET /plain HTTP/1.1");
    let response = client.request("POST", "/to-get", b"with a body");
    assert_eq!(asked(&response).start, "GET /to-get HTTP/1.1");
    assert!(response.body.ends_with(b"\n\nwith a body"), "{response:?}");
    assert_eq!(asked(&ask(&mut client, "GET /plain", &[])).start, "GET /plain HTTP/1.1");
    gate.assert_healthy();
}

// response-rewrite

#[test]
fn response_rewrite_changes_what_the_client_gets() {
    let gate = Gate::of(&[routes(&[
        ("/body", r#"{"response-rewrite": {"body": "new body\n"}}"#),
        ("/base64", r#"{"response-rewrite": {"body": "AAECAw==", "body_base64": true}}"#),
        ("/status", r#"{"response-rewrite": {"status_code": 403}}"#),
        (
            "/headers",
            r#"{"response-rewrite": {"headers": {"add": ["X-Twice: c", "X-Add: $status"], "set": {"X-Node": "was $http_x_set", "X-Number": 7}, "remove": ["Vary"]}}}"#,
        ),
        ("/map", r#"{"response-rewrite": {"headers": {"X-Node": "new", "X-Twice": ""}}}"#),
        (
            "/vars",
            r#"{"response-rewrite": {"status_code": 299, "headers": {"set": {"X-Changed": "1"}}, "vars": [["status", "==", 404]]}}"#,
        ),
        ("/once", r#"{"response-rewrite": {"filters": [{"regex": "X-(.)", "replace": "[$1]"}]}}"#),
        (
            "/global",
            r#"{"response-rewrite": {"filters": [{"regex": "x-a", "scope": "global", "replace": "<$0>", "options": "jio"}, {"regex": "<X-A>: 1", "replace": "second"}]}}"#,
        ),
        (
            "/own",
            r#"{"key-auth": {}, "response-rewrite": {"status_code": 418, "body": "rewritten", "headers": {"set": {"X-Own": "$status"}}}}"#,
        ),
    ])]);
    let response = gate.ask("GET /body", &[]);
    assert_eq!(
        (response.head.status(), text(&response), response.head.get("content-length")),
        (200, "new body\n", Some("9"))
    );
    assert_eq!(gate.ask("GET /base64", &[]).body, [0, 1, 2, 3]);
    let response = gate.ask("GET /status", &[]);
    assert_eq!((response.head.status(), &*asked(&response).start), (403, "GET /status HTTP/1.1"));
    let response = gate.ask("GET /headers", &["X-Set: set"]);
    let all = |name: &str| response.head.all(name).join("|");
    assert_eq!(
        ["x-twice", "x-add", "x-node", "x-number", "vary"].map(all),
        ["a|b|c", "200", "was set", "7", ""].map(str::to_owned)
    );
    let response = gate.ask("GET /map", &[]);
    assert_eq!((response.head.all("x-node"), response.head.all("x-twice").len()), (vec!["new"], 0));
    let changed = |start: &str| {
        let response = gate.ask(start, &[]);
        (response.head.status(), response.head.get("x-changed").is_some())
    };
    assert_eq!([changed("GET /vars?status=404"), changed("GET /vars?status=403")], [(299, true), (403, false)]);
    let lines = ["X-A: 1", "x-a: 2"];
    let response = gate.ask("GET /once", &lines);
    assert!(text(&response).contains("[A]: 1\nx-a: 2\n"), "{response:?}");
    let response = gate.ask("GET /global", &lines);
    assert!(text(&response).contains("second\n<x-a>: 2\n"), "{response:?}");
    // Local replies are responses, too.
    let response = gate.ask("GET /own", &[]);
    assert_eq!((response.head.status(), text(&response)), (418, "rewritten"), "{response:?}");
    gate.assert_healthy();
}

/// Meaningless settings of a plugin are refused when they are read.
#[test]
fn malformed_metadata_is_refused() {
    for (items, why) in [
        (r#"[{"id": "cors"}, {"id": "limit-count"}, {"id": "cors"}]"#, "plugin_metadata[2]"),
        (r#"[{"id": "key-auth"}]"#, "the plugin key-auth has no metadata"),
        (r#"[{"id": "no-such"}]"#, "there is no plugin \"no-such\""),
        (r#"[{"allow_origins": {}}]"#, "plugin_metadata[0]"),
        (r#"[{"id": "cors", "unknown": 1}]"#, "unknown key \"unknown\""),
        (r#"[{"id": "limit-count", "limit_header": "Content-Length"}]"#, "this field frames the message"),
    ] {
        let (good, said) = check(&format!("plugin_metadata: {items}\n{}", routes(&[("/a", "{}")])));
        assert!(!good && said.contains(why), "{items}\n{said}");
    }
}

#[test]
fn malformed_configurations_are_refused() {
    let mut taken = Vec::new();
    for plugins in [
        r#"{"key-auth": {"unknown": 1}}"#,
        r#"{"key-auth": {"realm": "a\"b"}}"#,
        r#"{"key-auth": {"realm": "a\nb"}}"#,
        r#"{"key-auth": {"header": 7}}"#,
        r#"{"limit-count": {"count": 1}}"#,
        r#"{"limit-count": {"count": -1, "time_window": 1}}"#,
        r#"{"limit-count": {"count": 1, "time_window": 0}}"#,
        r#"{"limit-count": {"count": 1, "time_window": 1, "rejected_code": 199}}"#,
        r#"{"limit-count": {"count": 1, "time_window": 1, "rejected_code": 600}}"#,
        r#"{"limit-count": {"count": 1, "time_window": 1, "key_type": "other"}}"#,
        r#"{"limit-count": {"count": 1, "time_window": 1, "rejected_msg": ""}}"#,
        r#"{"cors": {"allow_credential": true}}"#,
        r#"{"cors": {"allow_credential": true, "allow_origins": "https://a.example"}}"#,
        r#"{"cors": {"allow_origins": "a.example"}}"#,
        r#"{"cors": {"allow_origins_by_regex": ["("]}}"#,
        r#"{"cors": {"allow_origins_by_regex": []}}"#,
        r#"{"cors": {"max_age": "5"}}"#,
        r#"{"proxy-rewrite": {}}"#,
        r#"{"proxy-rewrite": {"uri": "no-slash"}}"#,
        r#"{"proxy-rewrite": {"uri": ""}}"#,
        r#"{"proxy-rewrite": {"regex_uri": ["^/a"]}}"#,
        r#"{"proxy-rewrite": {"regex_uri": ["(", "/"]}}"#,
        r#"{"proxy-rewrite": {"host": "a b"}}"#,
        r#"{"proxy-rewrite": {"method": "SPLIT"}}"#,
        r#"{"proxy-rewrite": {"headers": {"set": {"X Y": "1"}}}}"#,
        r#"{"proxy-rewrite": {"headers": {"set": {"X": "a\r\nY: b"}}}}"#,
        r#"{"proxy-rewrite": {"headers": {"remove": ["a b"]}}}"#,
        r#"{"response-rewrite": {"status_code": 199}}"#,
        r#"{"response-rewrite": {"status_code": 599}}"#,
        r#"{"response-rewrite": {"body": "?", "body_base64": true}}"#,
        r#"{"response-rewrite": {"body_base64": true}}"#,
        r#"{"response-rewrite": {"body": "a", "filters": [{"regex": "a", "replace": "b"}]}}"#,
        r#"{"response-rewrite": {"filters": [{"regex": "", "replace": "b"}]}}"#,
        r#"{"response-rewrite": {"filters": [{"regex": "a"}]}}"#,
        r#"{"response-rewrite": {"filters": [{"regex": "(", "replace": "b"}]}}"#,
        r#"{"response-rewrite": {"filters": [{"regex": "a", "replace": "b", "scope": "twice"}]}}"#,
        r#"{"response-rewrite": {"filters": [{"regex": "a", "replace": "b", "options": "?"}]}}"#,
        r#"{"response-rewrite": {"headers": {"set": {"X": "a\nb"}}}}"#,
        r#"{"response-rewrite": {"headers": {"set": {"X:Y": "a"}}}}"#,
        r#"{"response-rewrite": {"headers": {"add": ["no colon"]}}}"#,
        r#"{"response-rewrite": {"vars": [["status", "==", 1, 2, 3]]}}"#,
    ] {
        let (good, said) = check(&routes(&[("/a", plugins)]));
        if good || !said.contains("routes[0].plugins") {
            taken.push(format!("{plugins}: {said}"));
        }
    }
    assert!(taken.is_empty(), "{} are taken, or the place is not named:\n{}", taken.len(), taken.join("\n"));
}

/// HTTP/2 clients meet the same plugins.
#[test]
fn plugins_hold_for_http2() {
    let gate = Gate::of(&[
        CONSUMERS.to_owned(),
        routes(&[("/a", r#"{"key-auth": {}, "limit-count": {"count": 1, "time_window": 600, "rejected_code": 429}}"#)]),
    ]);
    let mut client = http2::Http2::connect_with(gate.gateway.addr(), &[http2::NO_DYNAMIC_TABLE]);
    let mut status = |stream: u32, key: &str| {
        let mut fields = http2::get_fields("/a").to_vec();
        fields.push(("apikey", key));
        client.send_head(stream, &fields, http2::END_STREAM);
        let (heads, _, end) = client.finish(stream);
        assert_eq!(end, http2::StreamEnd::Whole);
        heads[0].status()
    };
    assert_eq!([status(1, "nope"), status(3, "auth-one"), status(5, "auth-one")], [401, 200, 429]);
    gate.assert_healthy();
}

/// The reader of the tests above is strict.
#[test]
fn a_broken_response_is_noticed() {
    let node = Upstream::serve(|connection| {
        let _ = connection.read_request();
        let _ = connection.try_send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort");
    });
    let gateway = gateway(node.addr(), &routes(&[("/a", "{}")]));
    let broken = try_ask(&mut gateway.client(), "GET /a", &[]);
    assert!(matches!(broken, Err(MessageError::Truncated(_) | MessageError::Reset(_))), "{broken:?}");
}
