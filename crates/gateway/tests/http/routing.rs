//! Which route takes a request, in a running gateway: expressions and URIs in one order, with and without the route cache,
//! and while routes change.

use crate::shared::STILLGATE;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use stillgate_testkit::{
    ACCEPT_TEXT, Client, Gateway, ReservedPort, Setup, Upstream, eventually, pause_between_requests, scrape,
};

/// A node that answers with the host it was asked for, which each route sets to its id.
fn node() -> Upstream {
    Upstream::serve(|connection| {
        while let Ok(request) = connection.read_request() {
            let host = request.head.get("host").unwrap_or_default().to_owned();
            let status = if request.head.start.contains(" /refused ") { "404 Not Found" } else { "200 OK" };
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", host.len());
            if connection.try_send(head + &host).is_err() {
                return;
            }
        }
    })
}

/// Routes by id, each with its conditions.
fn resources(node: &Upstream, routes: &[(&str, &str)]) -> Setup {
    let mut yaml = "routes:\n".to_owned();
    for (id, takes) in routes {
        let upstream =
            format!("{{type: roundrobin, pass_host: rewrite, upstream_host: {id}, nodes: {{\"{}\": 1}}}}", node.addr());
        writeln!(yaml, "  - {{id: {id}, {takes}, upstream: {upstream}}}").expect("writing to a String cannot fail");
    }
    Setup::resources(yaml)
}

/// Sends a request of these lines, and returns the id of the route that took it, or the status.
#[track_caller]
fn ask(client: &mut Client, lines: &[&str]) -> String {
    client.send(format!("{}\r\n\r\n", lines.join("\r\n")));
    let response = client.expect_response("GET");
    match response.head.status() {
        200 => String::from_utf8(response.body).expect("an id"),
        status => status.to_string(),
    }
}

#[track_caller]
fn check_all(client: &mut Client, cases: &[(&[&str], &str)]) {
    for (lines, expected) in cases {
        assert_eq!(ask(client, lines), *expected, "{lines:?}");
    }
}

const ROUTES: &[(&str, &str)] = &[
    ("any", "uri: /*"),
    ("orders", "uri: /orders/*"),
    ("beta", r#"expression: 'http.path ^= "/orders" && http.headers.x_beta == "1"', priority: 10"#),
    ("first", r#"expression: 'http.path == "/orders/first"', priority: 10"#),
    ("tags", r#"expression: 'http.path == "/tags" && http.headers.x_tag ^= "a"'"#),
    ("some-tag", r#"expression: 'http.path == "/tags" && any(http.headers.x_tag) ^= "a"', priority: -1"#),
    ("query", r#"expression: 'http.queries.name == "a&b c"', priority: 5"#),
    ("flag", r#"expression: 'http.queries.flag == "" && http.method == "POST"'"#),
    (
        "local",
        r#"expression: 'http.path == "/net" && net.protocol == "http" && net.src.ip in 127.0.0.0/8 && net.src.port > 0 && net.dst.ip == 127.0.0.1 && net.dst.port > 0'"#,
    ),
    ("tls", r#"expression: 'tls.sni != "nobody"', priority: 1000"#),
    ("segment", r#"expression: 'http.path.segments.1 == "deep" && http.path.segments.len == 3'"#),
    ("regex", r##"expression: 'lower(http.host) =^ ".wild.test" && http.path ~ r#"^/users/(?<user>[a-z]+)/\d+$"#'"##),
    ("not", r#"expression: 'http.path == "/not" && !(http.headers.x_gone == "1")'"#),
    ("id", r#"uri: /ids/:id, vars: [[arg_v, "==", "2"]]"#),
    ("reserved", r#"uri: "/@v1/things:delete""#),
];

const CASES: &[(&[&str], &str)] = &[
    (&["GET /elsewhere HTTP/1.1", "Host: a"], "any"),
    (&["GET /orders/1 HTTP/1.1", "Host: a"], "orders"),
    (&["GET /orders/1 HTTP/1.1", "Host: a", "X-Beta: 1"], "beta"),
    (&["GET /orders/1 HTTP/1.1", "Host: a", "X-Beta: 10"], "orders"),
    (&["GET /orders/first HTTP/1.1", "Host: a", "X-Beta: 1"], "beta"),
    (&["GET /orders/first HTTP/1.1", "Host: a"], "first"),
    (&["GET /tags HTTP/1.1", "Host: a", "X-Tag: ab", "X-Tag: ac"], "tags"),
    (&["GET /tags HTTP/1.1", "Host: a", "X-Tag: ab", "X-Tag: bc"], "some-tag"),
    (&["GET /tags HTTP/1.1", "Host: a", "X-Tag: b"], "any"),
    (&["GET /x?name=a%26b+c HTTP/1.1", "Host: a"], "query"),
    (&["GET /x?name=a%26b+c&name=other HTTP/1.1", "Host: a"], "any"),
    (&["POST /x?flag HTTP/1.1", "Host: a", "Content-Length: 0"], "flag"),
    (&["POST /x?flag=1 HTTP/1.1", "Host: a", "Content-Length: 0"], "any"),
    (&["GET /net HTTP/1.1", "Host: a"], "local"),
    (&["GET /a/deep/c HTTP/1.1", "Host: a"], "segment"),
    (&["GET /a/deep/c/d HTTP/1.1", "Host: a"], "any"),
    (&["GET /a/./deep//c HTTP/1.1", "Host: a"], "segment"),
    (&["GET /users/eve/7 HTTP/1.1", "Host: A.Wild.test:80"], "regex"),
    (&["GET /users/eve/seven HTTP/1.1", "Host: a.wild.test"], "any"),
    (&["GET /not HTTP/1.1", "Host: a"], "not"),
    (&["GET /not HTTP/1.1", "Host: a", "X-Gone: 1"], "any"),
    (&["GET /ids/7?v=2 HTTP/1.1", "Host: a"], "id"),
    (&["GET /ids/7?v=3 HTTP/1.1", "Host: a"], "any"),
    (&["GET /.. HTTP/1.1", "Host: a"], "400"),
    (&["GET /a%2Fdeep/c HTTP/1.1", "Host: a"], "400"),
    (&["GET /orders%2Fx/../1 HTTP/1.1", "Host: a"], "400"),
    (&["GET /orders%2fx/y/../%2e%2e/1 HTTP/1.1", "Host: a"], "400"),
    (&["GET /other%2Fx/../1 HTTP/1.1", "Host: a"], "any"),
    (&["GET /@v1/things:delete HTTP/1.1", "Host: a"], "reserved"),
    (&["GET /%40v1/things%3adelete HTTP/1.1", "Host: a"], "reserved"),
    (&["GET /%2540v1/things:delete HTTP/1.1", "Host: a"], "any"),
];

#[test]
fn expressions_come_first_and_read_every_field() {
    let node = node();
    let gateway = Gateway::start(STILLGATE, &resources(&node, ROUTES));
    check_all(&mut gateway.client(), CASES);
}

#[test]
fn what_no_route_takes_is_answered_404() {
    let node = node();
    let routes = [("only", r#"expression: 'http.path ^= "/only" && http.method == "GET"'"#)];
    let gateway = Gateway::start(STILLGATE, &resources(&node, &routes));
    let cases: [(&[&str], &str); 4] = [
        (&["GET /only/this HTTP/1.1", "Host: a"], "only"),
        (&["GET /other HTTP/1.1", "Host: a"], "404"),
        (&["DELETE /only/this HTTP/1.1", "Host: a"], "404"),
        (&["GET /onl%79 HTTP/1.1", "Host: a"], "only"),
    ];
    check_all(&mut gateway.client(), &cases);
}

/// A rule that refuses, and one that lets pass: neither may be chosen by how `%2F` is read.
#[test]
fn rules_of_plugins_do_not_depend_on_how_an_encoded_slash_is_read() {
    let node = node();
    let gateway = Gateway::start(
        STILLGATE,
        &resources(
            &node,
            &[
                (
                    "denies",
                    "uri: /*, host: denies, plugins: {workflow: {rules: [\
                     {case: [[uri, '~~', ^/admin]], actions: [[return, {code: 403}]]}]}}",
                ),
                (
                    "permits",
                    "uri: /*, host: permits, plugins: {workflow: {rules: [\
                     {case: [[uri, '!', '~~', ^/admin]], actions: []}, {actions: [[return, {code: 403}]]}]}}",
                ),
                (
                    "aborts",
                    "uri: /*, host: aborts, plugins: {fault-injection: {abort: \
                     {http_status: 403, vars: [[[uri, '~~', ^/admin]]]}}}",
                ),
                (
                    "labels",
                    "uri: /*, host: labels, plugins: {traffic-label: {rules: [\
                     {match: [[uri, '~~', ^/admin]], actions: [{set_headers: {x-admin: '1'}}]}]}}",
                ),
                (
                    "splits",
                    "uri: /*, host: splits, plugins: {traffic-split: {rules: [\
                     {match: [{vars: [[uri, '~~', ^/admin]]}], weighted_upstreams: [{weight: 1}]}]}}",
                ),
            ],
        ),
    );
    let mut client = gateway.client();
    for id in ["denies", "permits", "aborts", "labels", "splits"] {
        let host = format!("Host: {id}");
        let mut check = |path: &str, expected: &str| {
            assert_eq!(ask(&mut client, &[&format!("GET {path} HTTP/1.1"), &host]), expected, "{id} {path}");
        };
        check("/x/1", id);
        check("/x%2F1", id);
        check("/admin/1", if ["labels", "splits"].contains(&id) { id } else { "403" });
        for path in ["/x/..%2Fadmin/1", "/x%2F..%2Fadmin/1", "/%2Fx/../../admin/1", "/admin%2Fx/../1", "/admin/..%2Fx"]
        {
            check(path, "400");
        }
    }
}

/// A function sees one path: that which most nodes serve.
#[test]
fn functions_see_an_encoded_slash_as_nodes_read_it() {
    let node = node();
    let of_function = |variable: &str| {
        format!(
            "uri: /*, host: {}, plugins: {{serverless-pre-function: {{functions: [\"return function(conf, ctx) \
             if {variable}:find('^/admin') then ngx.exit(403) end end\"]}}}}",
            variable.replace('.', "-")
        )
    };
    let gateway = Gateway::start(
        STILLGATE,
        &resources(
            &node,
            &[
                ("ngx-var-uri", &of_function("ngx.var.uri")),
                ("ctx-var-uri", &of_function("ctx.var.uri")),
                (
                    "guarded",
                    "uri: /*, host: filter, priority: 1, plugins: {fault-injection: {abort: {http_status: 403}}}, \
                     filter_func: \"function(vars) return vars.uri:find('^/admin') ~= nil end\"",
                ),
                ("filter", "uri: /*, host: filter"),
                (
                    "redirect",
                    "uri: /*, host: redirect, plugins: {redirect: {regex_uri: [^/admin, /no], ret_code: 302}}",
                ),
                ("rewrite", "uri: /*, host: rewrite, plugins: {proxy-rewrite: {regex_uri: [^/admin.*, /refused]}}"),
            ],
        ),
    );
    let mut client = gateway.client();
    for id in ["ngx-var-uri", "ctx-var-uri", "filter", "redirect", "rewrite"] {
        let host = format!("Host: {id}");
        let mut check = |path: &str, expected: &str| {
            assert_eq!(ask(&mut client, &[&format!("GET {path} HTTP/1.1"), &host]), expected, "{id} {path}");
        };
        let guarded = match id {
            "redirect" => "302",
            "rewrite" => "404",
            _ => "403",
        };
        for path in ["/x/1", "/x%2F1", "/admin/..%2Fx", "/x%2Fadmin"] {
            check(path, id);
        }
        for path in ["/admin/1", "/x/..%2Fadmin/1", "/x%2F..%2Fadmin/1", "/admin%2Fx/../1"] {
            check(path, guarded);
        }
    }
}

/// A parameter is the decoded text, everywhere, and is encoded once where it becomes a part of a target.
#[test]
fn parameters_of_paths_are_decoded() {
    let node = Upstream::serve(|connection| {
        while let Ok(request) = connection.read_request() {
            let name = request.head.get("x-name").unwrap_or("none");
            // The head is read as one character for each byte.
            let seen: Vec<u8> =
                format!("{} {name}", request.head.method_and_target().1).chars().map(|char| char as u8).collect();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", seen.len());
            if connection.try_send([head.as_bytes(), &seen].concat()).is_err() {
                return;
            }
        }
    });
    let lua = "plugins: {serverless-pre-function: {functions: [\"return function(conf, ctx) \
               ngx.req.set_header('X-Name', ctx.var.uri_param_name) end\"]}}";
    let gateway = Gateway::start(
        STILLGATE,
        &resources(
            &node,
            &[
                (
                    "rewrite",
                    "uri: '/users/:name', plugins: {proxy-rewrite: {uri: '/people/$uri_param_name?of=$uri_param_name', \
                     headers: {set: {X-Name: $uri_param_name}}}}",
                ),
                ("lua", &format!("uri: '/lua/:name', {lua}")),
                (
                    "guard",
                    "uri: '/f/:name', vars: [[uri_param_name, '==', 'top secret']], \
                     plugins: {fault-injection: {abort: {http_status: 403}}}",
                ),
                ("open", "uri: /f/*"),
                ("redirect", "uri: /r/*rest, plugins: {redirect: {uri: /$uri_param_rest, ret_code: 302}}"),
            ],
        ),
    );
    let mut client = gateway.client();
    let mut check = |path: &str, expected: &str| {
        assert_eq!(ask(&mut client, &[&format!("GET {path} HTTP/1.1"), "Host: a"]), expected, "{path}");
    };
    check("/users/J%C3%BCrgen", "/people/J%C3%BCrgen?of=J%C3%BCrgen J\u{fc}rgen");
    check("/users/a%20b", "/people/a%20b?of=a%20b a b");
    check("/users/a%25b", "/people/a%25b?of=a%25b a%b");
    check("/users/a&b", "/people/a&b?of=a%26b a&b");
    check("/lua/a%20%2562", "/lua/a%20%2562 a %62");
    check("/f/top%20secret", "403");
    check("/f/%74op%20secret", "403");
    check("/f/top%2520secret", "/f/top%2520secret none");
    let location = |path: &str| gateway.get(path).head.get("location").map(str::to_owned);
    assert_eq!(location("/r/a%20b/c").as_deref(), Some("/a%20b/c"));
    assert_eq!(location("/r/%5Cevil.example").as_deref(), Some("/%5Cevil.example"));
    assert_eq!(location("/r/%2Fevil.example").as_deref(), Some("/evil.example"));
}

/// A condition on `uri` holds for all spellings of its characters, wherever it is written, and `$uri` is encoded once where it
/// becomes a part of a target.
#[test]
fn the_variable_uri_is_decoded() {
    let node = Upstream::serve(|connection| {
        while let Ok(request) = connection.read_request() {
            let seen = request.head.method_and_target().1;
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{seen}", seen.len());
            if connection.try_send(answer).is_err() {
                return;
            }
        }
    });
    const CLOSED: &str = "{abort: {http_status: 403}}";
    let guarded_by = |condition: &str| {
        format!("uri: /vars/*, priority: 5, vars: [{condition}], plugins: {{fault-injection: {CLOSED}}}")
    };
    let gateway = Gateway::start(
        STILLGATE,
        &resources(
            &node,
            &[
                ("blank", &guarded_by("[uri, '~~', '^/vars/top secret']")),
                ("letters", &guarded_by("[uri, '~~', '^/vars/管理']")),
                ("equal", &guarded_by("[uri, '==', '/vars/{x}|']")),
                ("listed", &guarded_by("[uri, in, ['/vars/<a>', '/vars/100%']]")),
                ("whole", &guarded_by("[uri, '~~', '^/vars/ends/.*$']")),
                ("angle", &guarded_by("[uri, '~~', '^/vars/\\<b\\>']")),
                ("part", &guarded_by("[uri, '~~', '^/vars/part/[^/]+$']")),
                (
                    "part-parameter",
                    "uri: /named/*rest, priority: 5, vars: [[uri_param_rest, '~~', '^[^/]+$']], \
                     plugins: {fault-injection: {abort: {http_status: 403}}}",
                ),
                ("named", "uri: /named/*"),
                (
                    "part-filter",
                    "uri: /part/*, plugins: {fault-injection: {_meta: {filter: [[uri, '~~', '^/part/[^/]+$']]}, \
                     abort: {http_status: 403}}}",
                ),
                ("open", "uri: /vars/*"),
                ("negated", "uri: /not/*, priority: 5, vars: [[uri, '!', '~~', '^/not/top secret']]"),
                ("refused", &format!("uri: /not/*, plugins: {{fault-injection: {CLOSED}}}")),
                (
                    "workflow",
                    "uri: /workflow/*, plugins: {workflow: {rules: [{case: [[uri, '==', '/workflow/top secret']], \
                     actions: [[return, {code: 403}]]}]}}",
                ),
                (
                    "fault",
                    "uri: /fault/*, plugins: {fault-injection: {abort: {http_status: 403, \
                     vars: [[[uri, '==', '/fault/top secret']]]}}}",
                ),
                (
                    "filter",
                    "uri: /filter/*, plugins: {fault-injection: {_meta: {filter: [[uri, '~~', '^/filter/top secret']]}, \
                     abort: {http_status: 403}}}",
                ),
                (
                    "function",
                    "uri: /function/*, plugins: {serverless-pre-function: {functions: [\"return function(conf, ctx) \
                     if ctx.var.uri == '/function/top secret' then ngx.exit(403) end end\"]}}",
                ),
                (
                    "regex",
                    "uri: /regex/*, plugins: {proxy-rewrite: {regex_uri: ['^/regex/(.* secret)$', '/x/$1?of=$1']}}",
                ),
                ("rewrite", "uri: /rewrite/*, plugins: {proxy-rewrite: {uri: '/x$uri?of=$uri'}}"),
                ("redirect", "uri: /redirect/*, plugins: {redirect: {uri: /x$uri, ret_code: 302}}"),
                (
                    "moved",
                    "uri: /moved/*, plugins: {redirect: {regex_uri: ['^/moved/(.* secret)$', '/x/$1'], ret_code: 302}}",
                ),
            ],
        ),
    );
    let mut client = gateway.client();
    let mut check = |path: &str, expected: &str| {
        assert_eq!(ask(&mut client, &[&format!("GET {path} HTTP/1.1"), "Host: a"]), expected, "{path}");
    };
    for path in [
        "/vars/top%20secret",
        "/vars/%74op%20secret/x",
        "/vars/%e7%ae%a1%E7%90%86",
        "/vars/{x}|",
        "/vars/%7bx%7D%7c",
        "/vars/<a>",
        "/vars/%3Ca%3e",
        "/vars/100%25",
        "/vars/ends/x",
        "/vars/ends/x%0A",
        "/vars/%3Cb%3e",
        "/vars/part/x",
        "/named/x",
        "/part/x",
        "/not/top%20secret",
        "/workflow/top%20secret",
        "/workflow//x/../top%20secret",
        "/fault/top%20secret",
        "/filter/top%20secret",
        "/function/top%20secret",
    ] {
        check(path, "403");
    }
    for path in
        ["/vars/top%2520secret", "/not/top%2520secret", "/workflow/top+secret", "/filter/topsecret", "/vars/100%2525"]
    {
        check(path, path);
    }
    // For nodes that keep it in its segment, %2F is part of what is guarded; for others it is not.
    check("/vars/part/a%2Fb", "400");
    check("/named/a%2fb", "400");
    check("/part/a%2Fb", "403");
    check("/vars/part/a/b", "/vars/part/a/b");
    check("/part/a%252Fb", "403");
    check("/regex/top%20secret", "/x/top%20secret?of=top%20secret");
    check("/regex/a%3fb&c%25%20secret", "/x/a%3Fb&c%25%20secret?of=a%3Fb&c%25%20secret");
    check("/rewrite/a%20b%25%3f%26c", "/x/rewrite/a%20b%25%3F&c?of=/rewrite/a%20b%25%3F%26c");
    let location = |path: &str| gateway.get(path).head.get("location").map(str::to_owned);
    assert_eq!(location("/redirect/a%20b%3f%25").as_deref(), Some("/x/redirect/a%20b%3F%25"));
    assert_eq!(location("/moved/a%3f%20secret").as_deref(), Some("/x/a%3F%20secret"));
}

/// What describes a client is what the gateway sees of it, unless a trusted proxy says otherwise; also for conditions and limits.
#[test]
fn forged_forwarding_fields_choose_nothing() {
    let node = node();
    let routes: &[(&str, &str)] = &[
        ("forged", "uri: /forged, vars: [[http_x_forwarded_proto, '==', https]]"),
        ("plain", "uri: /plain, vars: [[http_x_forwarded_proto, '==', http]]"),
        ("host", "uri: /host, vars: [[http_x_forwarded_host, '==', 'a:8443'], [http_x_forwarded_port, '==', '8443']]"),
        ("forwarded", "uri: /forwarded, vars: [[http_forwarded, '~~', '.']]"),
        ("chain", "uri: /chain, vars: [[http_x_forwarded_for, '==', '9.9.9.9']]"),
        ("expression", "expression: 'http.path == \"/expression\" && http.headers.x_forwarded_proto == \"https\"'"),
        (
            "filter",
            "uri: /filter, plugins: {fault-injection: {_meta: {filter: [[http_x_forwarded_proto, '~=', https]]}, \
             abort: {http_status: 403}}}",
        ),
    ];
    let forged = [
        "Host: a:8443",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Host: evil.example",
        "X-Forwarded-Port: 1",
        "Forwarded: for=1.1.1.1",
        "X-Forwarded-For: 9.9.9.9",
    ];
    for (trusted, is_chain_seen, is_believed) in [
        ("", true, false),
        ("trusted_proxies: [192.0.2.0/24]", false, false),
        ("trusted_proxies: [127.0.0.1]", true, true),
    ] {
        let gateway = Gateway::start(STILLGATE, &resources(&node, routes).gateway(trusted));
        let mut client = gateway.client();
        let mut check = |path: &str, expected: &str| {
            let lines: Vec<&str> = forged.to_vec();
            let first = format!("GET {path} HTTP/1.1");
            assert_eq!(ask(&mut client, &[&[&*first][..], &lines].concat()), expected, "{trusted} {path}");
        };
        let taken = |is: bool, id: &'static str| if is { id } else { "404" };
        check("/forged", taken(is_believed, "forged"));
        check("/plain", taken(!is_believed, "plain"));
        check("/host", taken(!is_believed, "host"));
        check("/forwarded", taken(is_believed, "forwarded"));
        check("/chain", taken(is_chain_seen, "chain"));
        check("/expression", taken(is_believed, "expression"));
        check("/filter", if is_believed { "filter" } else { "403" });
        // A client that sends none of them is seen as well.
        assert_eq!(ask(&mut client, &["GET /plain HTTP/1.1", "Host: a"]), "plain", "{trusted}");
    }
}

/// The value of a series without labels.
fn metric(metrics: &ReservedPort, name: &str) -> f64 {
    let found = scrape(metrics.addr(), "/metrics", ACCEPT_TEXT, false);
    let line = found.text().lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned));
    line.map_or(f64::NAN, |value| value.parse().expect("a number"))
}

#[test]
fn the_route_cache_changes_no_answer() {
    let node = node();
    for (mode, hits) in [("on", true), ("off", false), ("auto", false)] {
        let metrics = ReservedPort::new();
        let setup = resources(&node, ROUTES)
            .gateway(&format!("route_cache: {{mode: {mode}}}\nmetrics: {{address: \"{}\"}}", metrics.addr()));
        let gateway = Gateway::start(STILLGATE, &setup);
        let mut client = gateway.client();
        for _ in 0..3 {
            check_all(&mut client, CASES);
        }
        let (hit, missed) = ("stillgate_route_cache_hits_total", "stillgate_route_cache_misses_total");
        match (mode, hits) {
            // Whatever was measured.
            ("auto", _) => eventually("the counter to be there", || metric(&metrics, hit) >= 0.0),
            (_, true) => {
                // A path above the root is not looked up, nor four with an encoded slash; and two occur here in two forms.
                let (asked, known) = (3.0 * (CASES.len() - 5) as f64, (CASES.len() - 7) as f64);
                eventually("all look-ups to be counted", || metric(&metrics, hit) + metric(&metrics, missed) == asked);
                assert_eq!(metric(&metrics, missed), known);
                eventually("the entries", || metric(&metrics, "stillgate_route_cache_entries") == known);
            }
            (_, false) => {
                // They are reported some time after the last request, and stay.
                eventually("the counters to be there", || metric(&metrics, missed) >= 0.0);
                assert_eq!((metric(&metrics, hit), metric(&metrics, missed)), (0.0, 0.0));
            }
        }
    }
}

#[test]
fn labels_tell_of_expression_routes_what_there_is() {
    let node = node();
    let metrics = ReservedPort::new();
    let setup = |dialect: &str, labels: &str| {
        resources(&node, ROUTES).gateway(&format!(
            "route_cache: {{mode: on}}\nmetrics: {{address: \"{}\", dialect: {dialect}, labels: {{{labels}}}}}",
            metrics.addr()
        ))
    };
    let gateway = Gateway::start(STILLGATE, &setup("native", "http_requests_total: {user: $uri_param_user}"));
    let has = |parts: &[&str]| {
        let found = scrape(metrics.addr(), "/metrics", ACCEPT_TEXT, false);
        found.text().lines().any(|line| parts.iter().all(|part| line.contains(part)))
    };
    // The second time the cache knows the route.
    for user in ["eve", "eve", "bob"] {
        let target = format!("GET /users/{user}/7 HTTP/1.1");
        assert_eq!(ask(&mut gateway.client(), &[&target, "Host: a.wild.test"]), "regex");
    }
    eventually("eve twice", || has(&["http_requests_total", "route=\"regex\"", "user=\"eve\"", "} 2"]));
    eventually("bob once", || has(&["http_requests_total", "route=\"regex\"", "user=\"bob\"", "} 1"]));
    gateway.reload(&setup("apisix", ""));
    assert_eq!(ask(&mut gateway.client(), &["GET /users/eve/7 HTTP/1.1", "Host: a.wild.test"]), "regex");
    assert_eq!(ask(&mut gateway.client(), &["GET /orders/7 HTTP/1.1", "Host: a"]), "orders");
    eventually("the expression", || has(&["http_status", "route=\"regex\"", "matched_uri=\"\"", "matched_host=\"\""]));
    eventually("the path", || has(&["http_status", "route=\"orders\"", "matched_uri=\"/orders/*\""]));
}

#[test]
fn one_expression_changes_while_requests_run() {
    const CHANGES: usize = 20;
    let node = node();
    // The caches hold answers that each change makes wrong.
    let setup = |version: usize| {
        let expression = format!("expression: 'http.path == \"/at\" && http.queries.v == \"{version}\"'");
        let mut routes = vec![("stays", r#"expression: 'http.path ^= "/stays"'"#), ("rest", "uri: /*")];
        // It also moves, and so do the routes behind it.
        routes.insert(version % 3, ("moves", &*expression));
        resources(&node, &routes).gateway("workers: 2\nroute_cache: {mode: on}")
    };
    let gateway = Gateway::start(STILLGATE, &setup(0));
    let (ends, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let others: Vec<_> = (0..4)
        .map(|_| {
            let (mut client, ends, asked) = (gateway.client(), ends.clone(), asked.clone());
            thread::spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    assert_eq!(ask(&mut client, &["GET /stays/here HTTP/1.1", "Host: a"]), "stays");
                    assert_eq!(ask(&mut client, &["GET /elsewhere HTTP/1.1", "Host: a"]), "rest");
                    asked.fetch_add(1, Ordering::Relaxed);
                    pause_between_requests();
                }
            })
        })
        .collect();
    let mut clients: Vec<Client> = (0..4).map(|_| gateway.client()).collect();
    for version in 1..=CHANGES {
        let before = asked.load(Ordering::Relaxed);
        gateway.reload(&setup(version));
        for client in &mut clients {
            let at = |version: usize| format!("GET /at?v={version} HTTP/1.1");
            assert_eq!(ask(client, &[&at(version), "Host: a"]), "moves");
            assert_eq!(ask(client, &[&at(version - 1), "Host: a"]), "rest");
        }
        eventually("requests of the others", || asked.load(Ordering::Relaxed) > before);
    }
    ends.store(true, Ordering::Relaxed);
    others.into_iter().for_each(|other| other.join().expect("every answer is right"));
    assert_eq!(gateway.status()["config"]["generation"], CHANGES + 1);
}

#[test]
fn a_storm_of_changes_ends_with_the_last_and_fails_no_request() {
    const CHANGES: usize = 200;
    /// What lies between two reloads at least.
    const SETTLE: Duration = Duration::from_millis(20);
    let node = node();
    let setup = |version: usize| {
        let versioned = format!("expression: 'http.path == \"/at\" && http.queries.v == \"{version}\"'");
        let id = format!("v{version}");
        let metrics = "metrics: {address: \"127.0.0.1:0\"}";
        resources(&node, &[("stays", "uri: /stays"), (&*id, &*versioned)]).gateway(metrics)
    };
    let gateway = Gateway::start(STILLGATE, &setup(0));
    let mut client = gateway.client();
    let since = Instant::now();
    for version in 1..=CHANGES {
        gateway.write_config(&setup(version));
        assert_eq!(ask(&mut client, &["GET /stays HTTP/1.1", "Host: a"]), "stays");
    }
    let last = format!("GET /at?v={CHANGES} HTTP/1.1");
    eventually("the last change", || ask(&mut client, &[&last, "Host: a"]) == format!("v{CHANGES}"));
    // Changes within the time that a change is given to settle are applied together.
    let generation = gateway.status()["config"]["generation"].as_u64().expect("a number");
    let took = since.elapsed();
    assert!(u128::from(generation) <= 2 + took.as_millis() / SETTLE.as_millis(), "{generation} in {took:?}");
}

/// `:name` is text, as in APISIX's default router; a reload changes that.
#[test]
fn a_colon_can_be_plain_text() {
    let node = node();
    let routes = [
        ("any", "uri: /*"),
        ("param", "uri: /a/:id"),
        ("named", "uri: /b/:id/*rest"),
        ("hosted", "host: h, uris: [/a/:id/c]"),
    ];
    let setup = resources(&node, &routes);
    let gateway = Gateway::start(STILLGATE, &setup.clone().gateway("path_parameters: false"));
    let mut client = gateway.client();
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: h");
    let check = |client: &mut Client, cases: [(&str, &str); 5]| {
        for (path, expected) in cases {
            assert_eq!(ask(client, &[&get(path)]), expected, "{path}");
        }
    };
    let plain = [("/a/:id", "param"), ("/a/1", "any"), ("/a/:id/c", "hosted"), ("/a/1/c", "any"), ("/b/1/2", "named")];
    check(&mut client, plain);
    gateway.reload(&setup);
    check(
        &mut client,
        [("/a/:id", "param"), ("/a/1", "param"), ("/a/:id/c", "hosted"), ("/a/1/c", "hosted"), ("/b/1/2", "named")],
    );
}
