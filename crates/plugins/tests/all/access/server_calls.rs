//! Plugins that ask other servers, or count what is under way: `forward-auth`, `opa`, `proxy-mirror`, `limit-conn`, `api-breaker`.

use crate::auth::consumers::consumers;
use crate::harness::{OK, plugins, refusal};
use expect_test::{Expect, expect};
use stillgate_plugin_api::CallError;

const GET: &str = "GET /a?b=c&b=d&e HTTP/1.1\nHost: H.example:81\nAuthorization: secret\nX-User: forged";

/// What a server is asked, and what becomes of the request.
fn check(yaml: &str, request: &str, replies: &[Result<&str, CallError>], expected: Expect) {
    let (plugins, server) = plugins(yaml).expect("a good configuration").answered_by(replies);
    let outcome = plugins.run(request, OK);
    let asked = server.asked.borrow().join("\n---\n");
    expected.assert_eq(&format!("{asked}\n===\n{outcome}"));
}

#[test]
fn forward_auth_asks_and_passes_fields_on() {
    let keys = "forward-auth: {uri: \"http://auth.test/check?x\", request_headers: [Authorization, X-Forwarded-Uri], \
                upstream_headers: [X-User, X-Gone], extra_headers: {X-Extra: \"$request_method-$http_none\"}}";
    check(
        keys,
        GET,
        &[Ok("HTTP/1.1 204 No Content\nX-User: jack\nX-User: jill")],
        expect![[r#"
        GET /check?x HTTP/1.1
        X-Forwarded-Proto: http
        X-Forwarded-Method: GET
        X-Forwarded-Host: h.example
        X-Forwarded-Uri: /a?b=c&b=d&e
        X-Forwarded-For: 192.0.2.7
        X-Extra: GET-
        Authorization: secret
        Host: auth.test


        ===
        > GET /a?b=c&b=d&e
        > Host: H.example:81
        > Authorization: secret
        > X-User: jack
        > X-User: jill
        < 200
        < Content-Type: text/plain
        < "hello world\n"
    "#]],
    );
}

/// Its server is not a node: it gets a hidden key neither in a field nor in the target.
#[test]
fn forward_auth_does_not_get_hidden_keys() {
    let known = consumers(&[("jack", &[], "key-auth: {key: sesame}")]);
    let keys = "key-auth: {hide_credentials: true}\nproxy-rewrite: {uri: /new}\n\
                forward-auth: {uri: \"http://auth.test\", request_headers: [apikey]}";
    let (plugins, server) = plugins(keys).unwrap().with_consumers(known).answered_by(&[Ok("HTTP/1.1 200 OK")]);
    let outcome = plugins.run("GET /a?b=c&%61pikey=sesame&e HTTP/1.1\nHost: h\napikey: sesame\n\n", OK);
    assert!(outcome.starts_with("> GET /new?b=c&e\n"), "{outcome}");
    expect![[r#"
        GET / HTTP/1.1
        X-Forwarded-Proto: http
        X-Forwarded-Method: GET
        X-Forwarded-Host: h.example
        X-Forwarded-Uri: /a?b=c&e
        X-Forwarded-For: 192.0.2.7
        Host: auth.test

    "#]]
    .assert_eq(&server.asked.borrow().concat());
}

#[test]
fn forward_auth_refuses_as_the_server_does() {
    let keys = "forward-auth: {uri: \"http://auth.test\", client_headers: [Location]}";
    check(
        keys,
        GET,
        &[Ok("HTTP/1.1 302 Found\nLocation: /login\nOther: x\n\nplease")],
        expect![[r#"
        GET / HTTP/1.1
        X-Forwarded-Proto: http
        X-Forwarded-Method: GET
        X-Forwarded-Host: h.example
        X-Forwarded-Uri: /a?b=c&b=d&e
        X-Forwarded-For: 192.0.2.7
        Host: auth.test


        ===
        > forward-auth answers
        < 302
        < Location: /login
        < "please"
    "#]],
    );
}

#[test]
fn forward_auth_posts_the_body() {
    let keys = "forward-auth: {uri: \"http://auth.test\", request_method: POST}";
    let request = "POST / HTTP/1.1\nHost: h\nContent-Length: 4\nContent-Encoding: br\n\nbody";
    check(
        keys,
        request,
        &[Ok("HTTP/1.1 200 OK")],
        expect![[r#"
        POST / HTTP/1.1
        X-Forwarded-Proto: http
        X-Forwarded-Method: POST
        X-Forwarded-Host: h.example
        X-Forwarded-Uri: /
        X-Forwarded-For: 192.0.2.7
        Content-Encoding: br
        Host: auth.test
        Content-Length: 4

        body
        ===
        > POST /
        > Host: h
        > Content-Length: 4
        > Content-Encoding: br
        < 200
        < Content-Type: text/plain
        < "hello world\n"
    "#]],
    );
}

#[test]
fn forward_auth_reads_arguments_of_the_body() {
    let keys = "forward-auth: {uri: \"http://auth.test\", max_req_body_size: 20000, extra_headers: {X-Tenant: \"$post_arg.tenant.id\", \
                X-Form: \"$${post_arg_tenant ?? none}/$request_method\"}}";
    let told = |content_type: &str, body: &str| {
        let (plugins, server) = plugins(keys).unwrap().answered_by(&[Ok("HTTP/1.1 200 OK")]);
        let outcome = plugins.run(&format!("PUT / HTTP/1.1\nHost: h\nContent-Type: {content_type}\n\n{body}"), OK);
        let asked = server.asked.borrow().concat();
        assert!(asked.is_empty() || asked.starts_with("GET / ") && asked.ends_with("\n\n"), "{asked}");
        let lines = asked.lines().filter(|line| line.starts_with("X-Tenant") || line.starts_with("X-Form"));
        let status = outcome.lines().find(|line| line.starts_with("< ")).unwrap().to_owned();
        format!("{} {status}", lines.collect::<Vec<_>>().join(" "))
    };
    let long = format!("{{\"tenant\":{{\"id\":\"a\"}},\"x\":\"{}\"}}", "x".repeat(9_000));
    assert_eq!(told("application/json", r#"{"tenant":{"id":7}}"#), "X-Tenant: 7 X-Form: none/PUT < 200");
    assert_eq!(told("application/json", &long), "X-Tenant: a X-Form: none/PUT < 200");
    assert_eq!(told("application/x-www-form-urlencoded", "tenant=b%20c"), "X-Tenant:  X-Form: b c/PUT < 200");
    assert_eq!(told("text/plain", "tenant=b"), "X-Tenant:  X-Form: none/PUT < 200");
    // Without a value that would split the message, the server would decide on less.
    assert_eq!(told("application/x-www-form-urlencoded", "tenant=b%0d%0aX: y"), " < 500");
    assert_eq!(told("application/json", &"1".repeat(20_001)), " < 413");
}

#[test]
fn forward_auth_without_a_server() {
    let keys = |more: &str| format!("forward-auth: {{uri: \"http://auth.test\"{more}}}");
    let status = |more: &str| {
        let (plugins, _) = plugins(&keys(more)).unwrap().answered_by(&[Err(CallError::Timeout)]);
        plugins.run(GET, OK).lines().find_map(|line| line.strip_prefix("< ").map(str::to_owned))
    };
    assert_eq!(status("").as_deref(), Some("403"));
    assert_eq!(status(", status_on_error: 503").as_deref(), Some("503"));
    assert_eq!(status(", allow_degradation: true").as_deref(), Some("200"));
}

/// What the server would have said is not taken from the client, in any spelling.
#[test]
fn forward_auth_that_degrades_believes_no_client() {
    let keys = "forward-auth: {uri: \"http://auth.test\", allow_degradation: true, upstream_headers: [X-User, X-Role]}";
    let request = "GET / HTTP/1.1\nHost: h\nX-User: root\nX_User: root\nx-role: admin\nX-Users: 1";
    for error in [CallError::Timeout, CallError::Connect, CallError::Resting, CallError::Closed] {
        let (plugins, _) = plugins(keys).unwrap().answered_by(&[Err(error)]);
        let outcome = plugins.run(request, OK);
        assert!(outcome.starts_with("> GET /\n> Host: h\n> X-Users: 1\n< 200\n"), "{error}: {outcome}");
    }
    // A client can make a reply too large, or cause many calls: it must not pass by that.
    for error in [CallError::TooLarge, CallError::BadReply, CallError::Busy] {
        let (plugins, _) = plugins(keys).unwrap().answered_by(&[Err(error)]);
        let outcome = plugins.run(request, OK);
        assert!(outcome.contains("< 403"), "{error}: {outcome}");
    }
}

/// Whatever lists name a field, there is one line of it; `extra_headers` goes before what the plugin says itself, and that
/// before the client.
#[test]
fn forward_auth_says_nothing_twice() {
    let lines = |keys: &str| {
        let keys = format!("forward-auth: {{uri: \"http://auth.test\", request_method: POST, {keys}}}");
        let (plugins, server) = plugins(&keys).unwrap().answered_by(&[Ok("HTTP/1.1 200 OK")]);
        plugins.run(
            "POST / HTTP/1.1\nHost: a.example\nContent-Length: 1\nContent-Encoding: br\nX-Foo: 1\nUser-Agent: u\n\nb",
            OK,
        );
        let asked = server.asked.borrow().concat();
        let head = asked.split("\n\n").next().unwrap_or_default().to_owned();
        let is_usual = |line: &&str| line.starts_with("X-Forwarded-") || line.starts_with("Content-Length");
        head.lines().skip(1).filter(|line| !is_usual(line)).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(lines("request_headers: [Host]"), "Content-Encoding: br, Host: a.example");
    assert_eq!(lines("request_headers: [X-Foo, hOST, x-foo, host]"), "X-Foo: 1, Content-Encoding: br, Host: a.example");
    assert_eq!(
        lines("extra_headers: {Host: b.example}, request_headers: [Host]"),
        "Content-Encoding: br, Host: b.example"
    );
    assert_eq!(lines("request_headers: [content-encoding]"), "content-encoding: br, Host: auth.test");
    let (plugins, server) = plugins(
        "forward-auth: {uri: \"http://auth.test\", extra_headers: {X-Forwarded-Host: c, X-Foo: d}, request_headers: [X-Foo, X-Forwarded-For]}",
    )
    .unwrap()
    .answered_by(&[Ok("HTTP/1.1 200 OK")]);
    plugins.run("GET / HTTP/1.1\nHost: a.example\nX-Foo: 1\nX-Forwarded-For: 1.2.3.4", OK);
    let asked = server.asked.borrow().concat();
    for (name, value) in
        [("X-Forwarded-Host", "c"), ("X-Foo", "d"), ("X-Forwarded-For", "192.0.2.7"), ("Host", "auth.test")]
    {
        let said: Vec<&str> = asked.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).collect();
        assert_eq!(said, [value], "{name}: {asked}");
    }
}

#[test]
fn opa_decides() {
    let keys = "opa: {host: \"http://opa.test:8181/\", policy: /http/authz, send_headers_upstream: [X-User, X-Gone]}";
    let reply = "HTTP/1.1 200 OK\n\n{\"result\":{\"allow\":true,\"headers\":{\"x-user\":\"jack\",\"other\":1}}}";
    check(
        keys,
        GET,
        &[Ok(reply)],
        expect![[r#"
        POST /v1/data/http/authz HTTP/1.1
        Content-Type: application/json
        Host: opa.test:8181
        Content-Length: 340

        {"input":{"type":"http","request":{"scheme":"http","method":"GET","host":"h.example","port":40000,"path":"/a","headers":{"host":"H.example:81","authorization":"secret","x-user":"forged"},"query":{"b":["c","d"],"e":true}},"var":{"server_addr":"127.0.0.1","server_port":"40000","remote_addr":"192.0.2.7","remote_port":"40000","timestamp":0}}}
        ===
        > GET /a?b=c&b=d&e
        > Host: H.example:81
        > Authorization: secret
        > X-User: jack
        < 200
        < Content-Type: text/plain
        < "hello world\n"
    "#]],
    );
    let outcome = |reply: Result<&str, CallError>| {
        let (plugins, _) = plugins(keys).unwrap().answered_by(&[reply]);
        let text = plugins.run(GET, OK);
        text.lines().filter(|line| line.starts_with("< ")).collect::<Vec<_>>().join(" ")
    };
    let all: Vec<String> = [
        Ok("HTTP/1.1 200 OK\n\n{\"result\":{\"allow\":false}}"),
        Ok("HTTP/1.1 200 OK\n\n{\"result\":{}}"),
        Ok("HTTP/1.1 200 OK\n\n{\"result\":{\"allow\":false,\"status_code\":302,\"headers\":{\"Location\":\"/a\",\"Bad\":\"a\\r\\nb\"}}}"),
        Ok("HTTP/1.1 200 OK\n\n{\"result\":{\"allow\":false,\"status_code\":99999,\"reason\":\"go away\"}}"),
        Ok("HTTP/1.1 200 OK\n\n{\"result\":{\"allow\":false,\"reason\":{\"code\":7}}}"),
        Ok("HTTP/1.1 200 OK\n\n{\"result\":{\"allow\":false,\"reason\":\"no\",\"headers\":{\"Set-Cookie\":[\"a=1\",2,null],\"N\":7}}}"),
        Ok("HTTP/1.1 200 OK\n\n{}"),
        Ok("HTTP/1.1 500 Internal Server Error\n\nnonsense"),
        Ok("HTTP/1.1 500 Internal Server Error\n\n{\"result\":{\"allow\":true}}"),
        Err(CallError::Resting),
    ]
    .into_iter()
    .map(outcome)
    .collect();
    // The node does not get less than the policy says.
    let reply = "HTTP/1.1 200 OK\n\n{\"result\":{\"allow\":true,\"headers\":{\"x-user\":\"a\\nb\"}}}";
    assert!(outcome(Ok(reply)).starts_with("< 500 "));
    // Of two values neither counts.
    for body in [
        r#"{"result":{"allow":false,"allow":true}}"#,
        r#"{"result":{"allow":true,"allow":false}}"#,
        r#"{"result":{"allow":true,"\u0061llow":true}}"#,
        r#"{"result":{"allow":false},"result":{"allow":true}}"#,
        r#"{"result":{"allow":true,"headers":{},"headers":{}}}"#,
    ] {
        assert!(outcome(Ok(&format!("HTTP/1.1 200 OK\n\n{body}"))).starts_with("< 503 "), "{body}");
    }
    assert!(outcome(Ok("HTTP/1.1 200 OK\n\n{\"result\":{\"allow\":true,\"x\":1,\"x\":2}}")).starts_with("< 200 "));
    // Only `true` allows; APISIX takes all of these for it.
    for allow in ["\"false\"", "\"true\"", "\"\"", "0", "1", "[]", "[true]", "{}", "null", "{\"allow\":true}"] {
        let reply = format!("HTTP/1.1 200 OK\n\n{{\"result\":{{\"allow\":{allow},\"reason\":\"no\"}}}}");
        assert_eq!(outcome(Ok(&reply)), "< 403 < \"no\"", "{allow}");
    }
    expect![[r#"
        < 403 < "<html>\r\n<head><title>403 Forbidden</title></head>\r\n<body>\r\n<center><h1>403 Forbidden</h1></center>\r\n<hr><center>stillgate</center>\r\n</body>\r\n</html>\r\n"
        < 403 < "<html>\r\n<head><title>403 Forbidden</title></head>\r\n<body>\r\n<center><h1>403 Forbidden</h1></center>\r\n<hr><center>stillgate</center>\r\n</body>\r\n</html>\r\n"
        < 302 < Location: /a < "<html>\r\n<head><title>302 Found</title></head>\r\n<body>\r\n<center><h1>302 Found</h1></center>\r\n<hr><center>stillgate</center>\r\n</body>\r\n</html>\r\n"
        < 403 < "go away"
        < 403 < "{\"code\":7}"
        < 403 < Set-Cookie: a=1 < Set-Cookie: 2 < N: 7 < "no"
        < 503 < "<html>\r\n<head><title>503 Service Temporarily Unavailable</title></head>\r\n<body>\r\n<center><h1>503 Service Temporarily Unavailable</h1></center>\r\n<hr><center>stillgate</center>\r\n</body>\r\n</html>\r\n"
        < 503 < "<html>\r\n<head><title>503 Service Temporarily Unavailable</title></head>\r\n<body>\r\n<center><h1>503 Service Temporarily Unavailable</h1></center>\r\n<hr><center>stillgate</center>\r\n</body>\r\n</html>\r\n"
        < 503 < "<html>\r\n<head><title>503 Service Temporarily Unavailable</title></head>\r\n<body>\r\n<center><h1>503 Service Temporarily Unavailable</h1></center>\r\n<hr><center>stillgate</center>\r\n</body>\r\n</html>\r\n"
        < 403 < "<html>\r\n<head><title>403 Forbidden</title></head>\r\n<body>\r\n<center><h1>403 Forbidden</h1></center>\r\n<hr><center>stillgate</center>\r\n</body>\r\n</html>\r\n""#]].assert_eq(&all.join("\n"));
}

#[test]
fn proxy_mirror_copies_requests() {
    let mirror = |keys: &str| format!("proxy-mirror: {{host: \"http://mirror.test\"{keys}}}");
    let post = "POST /a?b HTTP/1.1\nHost: h.example\nContent-Length: 4\nExpect: 100-continue\nA: 1\n\nbody";
    check(
        &mirror(""),
        post,
        &[],
        expect![[r#"
        POST /a?b HTTP/1.1
        A: 1
        Host: h.example
        Content-Length: 4

        body
        ===
        > POST /a?b
        > Host: h.example
        > Content-Length: 4
        > Expect: 100-continue
        > A: 1
        < 200
        < Content-Type: text/plain
        < "hello world\n"
    "#]],
    );
    let target = |keys: &str| {
        let (plugins, server) = plugins(&mirror(keys)).unwrap().answered_by(&[]);
        plugins.run("GET /a?b HTTP/1.1\nHost: h", OK);
        server.asked.borrow().first().and_then(|text| text.split(' ').nth(1).map(str::to_owned))
    };
    assert_eq!(target(", path: /p").as_deref(), Some("/p?b"));
    assert_eq!(target(", path: /p, path_concat_mode: prefix").as_deref(), Some("/p/a?b"));
    let sampled = (0..2_000).filter(|_| target(", sample_ratio: 0.5").is_some()).count();
    assert!((800..1_200).contains(&sampled), "{sampled}");
}

/// A mirror of gRPC gets calls only, with their path.
#[test]
fn proxy_mirror_copies_calls() {
    let keys = "proxy-mirror: {host: \"grpc://mirror.test:50051\", path: /shadow}";
    check(
        keys,
        "POST /shop.Orders/Get HTTP/1.1\nHost: h.example\nContent-Type: application/grpc+proto\nTE: trailers\nContent-Length: 5\n\n12345",
        &[],
        expect![[r#"
        POST /shop.Orders/Get HTTP/1.1
        Content-Type: application/grpc+proto
        TE: trailers
        Host: h.example
        Content-Length: 5

        12345
        ===
        > POST /shop.Orders/Get
        > Host: h.example
        > Content-Type: application/grpc+proto
        > TE: trailers
        > Content-Length: 5
        < 200
        < Content-Type: text/plain
        < "hello world\n"
    "#]],
    );
    let (plugins, server) = plugins(keys).unwrap().answered_by(&[]);
    for fields in ["", "Content-Type: application/json\n", "Content-Type: application/grp\n"] {
        plugins.run(&format!("POST /a HTTP/1.1\nHost: h\n{fields}Content-Length: 1\n\nx"), OK);
    }
    assert_eq!(server.asked.borrow().len(), 0);
}

#[test]
fn limit_conn_counts_a_request_until_it_has_ended() {
    // One after the other: none is turned away, and none waits.
    let keys = "limit-conn: {conn: 1, burst: 0, default_conn_delay: 0.1, key: remote_addr}";
    let (plugins, server) = plugins(keys).unwrap().answered_by(&[]);
    for _ in 0..3 {
        assert!(plugins.run(GET, OK).contains("< 200"));
    }
    assert!(server.slept.borrow().is_empty());
}

#[test]
fn limit_conn_takes_numbers_from_requests() {
    let status = |keys: &str, fields: &str| {
        let (plugins, _) =
            plugins(&format!("limit-conn: {{default_conn_delay: 0.1, {keys}}}")).unwrap().answered_by(&[]);
        let outcome = plugins.run(&format!("GET / HTTP/1.1\nHost: h{fields}"), OK);
        outcome.lines().find_map(|line| line.strip_prefix("< ").map(str::to_owned)).unwrap()
    };
    let late = "conn: \"$${http_conn ?? 1}\", burst: \"$http_burst\", key: remote_addr";
    assert_eq!(status(late, "\nBurst: 0"), "200");
    // What comes to no limit: nothing is counted.
    for fields in ["", "\nBurst: x", "\nBurst: -1", "\nBurst: 1\nConn: 0", "\nBurst: 9007199254740992"] {
        assert_eq!(status(late, fields), "500", "{fields}");
        assert_eq!(status(&format!("{late}, allow_degradation: true"), fields), "200", "{fields}");
    }
    let rules =
        "rules: [{conn: 1, burst: 0, key: \"$http_user\"}, {conn: \"$http_conn\", burst: 0, key: \"$http_project\"}]";
    assert_eq!(status(rules, "\nUser: jack"), "200");
    // A rule without its number does not apply, like one without its key.
    assert_eq!(status(rules, "\nUser: jack\nProject: p"), "200");
    assert_eq!(status(rules, "\nProject: p\nConn: 2"), "200");
    assert_eq!(status(rules, "\nProject: p"), "500");
    assert_eq!(status(rules, ""), "500");
    assert_eq!(status(&format!("{rules}, allow_degradation: true"), ""), "200");
}

#[test]
fn api_breaker_lets_requests_through_before_any_failed() {
    // Its own host and path: the process counts failures by them, over all its tests.
    let keys = "api-breaker: {break_response_code: 599, break_response_body: later, \
                break_response_headers: [{key: X-Why, value: \"$request_method\"}]}";
    check(
        keys,
        "GET /first HTTP/1.1\nHost: first.example",
        &[],
        expect![[r#"

            ===
            > GET /first
            > Host: first.example
            < 200
            < Content-Type: text/plain
            < "hello world\n"
        "#]],
    );
}

/// Three failures open it for 2 s, three more for 4, and so on up to its bound; successes close it.
#[test]
fn api_breaker_opens_for_longer_each_time_and_heals() {
    let keys = "api-breaker: {break_response_code: 599, break_response_body: later, max_breaker_sec: 7, \
                break_response_headers: [{key: X-Why, value: \"$request_method\"}], \
                unhealthy: {http_statuses: [500, 503], failures: 3}, healthy: {http_statuses: [200, 204], successes: 2}}";
    let plugins = plugins(keys).unwrap().logging();
    let answer = |second: u64, node: &str| {
        plugins.set_now_ms((1_700_000_000 + second) * 1000);
        plugins.run(GET, &format!("HTTP/1.1 {node} Node\n\n"))
    };
    assert!((0..3).all(|_| answer(0, "500").contains("< 500\n")));
    let broken = "> api-breaker answers\n< 599\n< X-Why: GET\n< \"later\"\n";
    assert_eq!(answer(0, "200"), broken);
    // What comes of requests at seconds: a status of the node, which is asked, or that of the plugin.
    let check = |second: u64, node: &str, expected: &str| {
        let outcome = answer(second, node);
        assert!(outcome.contains(&format!("< {expected}\n")), "{node} at {second}: {outcome}");
        assert_eq!(outcome == broken, expected == "599", "{node} at {second}: {outcome}");
    };
    for (second, node, expected) in [
        (2, "200", "599"),
        // The node is asked again: one more failure counts for the next three, and opens it again, for 4 s from the first time.
        (3, "503", "503"),
        (3, "200", "599"),
        (4, "200", "599"),
        (5, "500", "500"),
        (5, "500", "500"),
        (5, "200", "599"),
        (9, "200", "599"),
        // 8 s from then would be above the bound.
        (10, "500", "500"),
        (10, "200", "599"),
        (12, "200", "599"),
        (13, "500", "500"),
        (13, "503", "503"),
        (20, "200", "599"),
        (21, "404", "404"),
        (21, "200", "200"),
        (21, "204", "204"),
        // It has healed: three failures again, for 2 s.
        (22, "500", "500"),
        (22, "500", "500"),
        (22, "200", "200"),
        (22, "500", "500"),
        (24, "200", "599"),
        (25, "200", "200"),
    ] {
        check(second, node, expected);
    }
}

#[test]
fn bad_configurations_are_refused() {
    let all: String = [
        "forward-auth: {}",
        "forward-auth: {uri: ftp://a}",
        "forward-auth: {uri: \"http://a\", request_headers: [Content-Length], timeout: 0}",
        "forward-auth: {uri: \"http://a\", extra_headers: {A: \"$nothing\"}}",
        "opa: {host: \"http://a\"}",
        "opa: {host: \"http://a\", policy: \"a b\", with_body: true}",
        "proxy-mirror: {host: \"http://a/b\"}",
        "proxy-mirror: {host: \"grpc://a/b\", sample_ratio: 1}",
        "proxy-mirror: {host: \"grpc+x://a\"}",
        "proxy-mirror: {host: \"grpcs://a\", sample_ratio: 0}",
        "proxy-mirror: {host: \"http://a\", path: \"/a?b\", sample_ratio: x}",
        "limit-conn: {conn: 0, burst: 0, default_conn_delay: 0, key: remote_addr}",
        "limit-conn: {conn: 1, burst: 0, default_conn_delay: 1, key: no_such, policy: x}",
        "limit-conn: {conn: 1, burst: 0, default_conn_delay: 1, key: remote_addr, rules: [{conn: 1, burst: 0, key: $host}]}",
        "limit-conn: {conn: 1, default_conn_delay: 1, key: remote_addr}",
        "limit-conn: {default_conn_delay: 1, rules: []}",
        "limit-conn: {default_conn_delay: 1, rules: [{conn: 1.5, burst: -1, key: $nothing}]}",
        "api-breaker: {break_response_code: 199, max_breaker_sec: 2}",
        "api-breaker: {break_response_code: 200, unhealthy: {http_statuses: [200]}, healthy: {successes: 0}}",
        "api-breaker: {break_response_code: 200, break_response_headers: [], healthy: {http_statuses: [206, 206]}}",
    ]
    .into_iter()
    .map(refusal)
    .collect();
    expect![[r#"
        1:15: forward-auth: the key "uri" is missing; add it
        1:21: forward-auth.uri: "ftp://a" is not a URL; write `http://HOST/PATH` or `https://HOST/PATH`
        1:51: forward-auth.request_headers[0]: "Content-Length": this field frames the message or belongs to one connection; the gateway sets it
        1:77: forward-auth.timeout: expected a whole number from 1 to 60000, found the number 0
        accepted
        1:6: opa: the key "policy" is missing; add it
        1:33: opa.policy: "a b" is not a path of a policy; write it as in `http/authz`
        1:40: opa.with_body: unknown key "with_body"; did you mean "with_route"?
        1:22: proxy-mirror.host: the host has a path; write it under `path`
        1:22: proxy-mirror.host: the host has a path; write it under `path`
        1:22: proxy-mirror.host: "grpc+x://a" is not a URL; write `http://HOST/PATH` or `https://HOST/PATH`
        1:49: proxy-mirror.sample_ratio: expected a number from 0.00001 to 1, found the number 0
        1:40: proxy-mirror.path: "/a?b" is not a path; begin with '/', without '?' and '&'
        1:62: proxy-mirror.sample_ratio: expected a number from 0.00001 to 1, found the text "x"
        1:20: limit-conn.conn: expected a whole number above 0, found the number 0; write a number, or variables such as "$http_x_limit"
        1:53: limit-conn.default_conn_delay: expected a number from 0.001 to 3600, found the number 0
        1:61: limit-conn.key: "no_such": unknown variable; write one of uri, document_uri, request_uri, args, query_string, is_args, host, request_method, method, scheme, server_protocol, protocol, remote_addr, remote_port, remote_user, realip_remote_addr, server_addr, server_port, ssl_server_name, ssl_protocol, ssl_cipher, ssl_client_verify, ssl_client_s_dn, ssl_client_serial, ssl_client_fingerprint, content_type, content_length, arg_NAME, http_NAME, cookie_NAME, uri_param_NAME
        1:78: limit-conn.policy: expected local, found the text "x"
        1:13: limit-conn: `rules` cannot be combined with `conn`, `burst` or `key`; keep one of them
        1:13: limit-conn: there is no limit; add `conn`, `burst` and `key`, or `rules`
        1:13: limit-conn: there is no limit; add `conn`, `burst` and `key`, or `rules`
        1:44: limit-conn.rules: an empty list; name at least one, or remove the key
        1:52: limit-conn.rules[0].conn: expected a whole number above 0, found the number 1.5; write a number, or variables such as "$http_x_limit"
        1:64: limit-conn.rules[0].burst: expected a whole number of at least 0, found the number -1; write a number, or variables such as "$http_x_limit"
        1:36: api-breaker.break_response_code: expected a whole number from 200 to 599, found the number 199
        1:58: api-breaker.max_breaker_sec: expected a whole number from 3 to 86400, found the number 2
        1:69: api-breaker.unhealthy.http_statuses[0]: expected a whole number from 500 to 599, found the number 200
        1:97: api-breaker.healthy.successes: expected a whole number from 1 to 1000000, found the number 0
        1:94: api-breaker.healthy.http_statuses[1]: a duplicate item; remove it
    "#]].assert_eq(&all);
}
