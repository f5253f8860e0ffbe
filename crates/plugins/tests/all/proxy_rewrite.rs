//! `proxy-rewrite`: the node's request.

use crate::harness::{OK, plugins, refusal, said_of_store};
use expect_test::{Expect, expect};
use proptest::prelude::*;

/// The node's request line, or the answer.
fn target(config: &str, target: &str) -> String {
    let plugins = plugins(&format!("proxy-rewrite: {config}")).expect("a good configuration");
    let request = format!("GET {target} HTTP/1.1\nHost: h\nX-A: from the client\n\n");
    let transcript = plugins.run(&request, OK);
    let first = transcript.lines().next().expect("a line");
    first.trim_start_matches("> GET ").to_owned()
}

fn check(config: &str, request: &str, expected: Expect) {
    let plugins = plugins(&format!("proxy-rewrite: {config}")).expect("a good configuration");
    let transcript = plugins.run(request, OK);
    expected.assert_eq(&transcript[..transcript.find("< ").expect("a response")]);
}

#[test]
fn uri_takes_the_place_of_the_path() {
    for (config, asked, expected) in [
        ("{uri: /b}", "/a", "/b"),
        ("{uri: /b}", "/a?x=1", "/b?x=1"),
        ("{uri: /b}", "/a?", "/b"),
        ("{uri: '/b?y=2'}", "/a?x=1", "/b?y=2&x=1"),
        ("{uri: '/b?y=2'}", "/a", "/b?y=2"),
        ("{uri: '/b/$arg_x/c'}", "/a?x=1", "/b/1/c?x=1"),
        ("{uri: '/b/$arg_none/c'}", "/a?x=1", "/b//c?x=1"),
        ("{uri: '/b?q=$arg_x'}", "/a?x=1?2", "/b?q=1%3F2&x=1?2"),
        ("{uri: '/b/$arg_x'}", "/a?x=1?2", "/b/1%3F2?x=1?2"),
        ("{uri: '/b?q=$arg_x'}", "/a?x=1%262+3%2b", "/b?q=1%262%203%2B&x=1%262+3%2b"),
        ("{uri: '/b/$arg_x'}", "/a?x=1%2F2%20%25", "/b/1/2%20%25?x=1%2F2%20%25"),
        ("{uri: '/b$uri'}", "/a%20b/%3Fc", "/b/a%20b/%3Fc"),
        ("{uri: '/b c/100%/{x}'}", "/a", "/b%20c/100%25/%7Bx%7D"),
        ("{uri: '/b/$1'}", "/a", "/b/"),
        (r"{uri: '/b/\$uri'}", "/a", "/b/$uri"),
        ("{uri: '/b/$http_x_a'}", "/a", "/b/from%20the%20client"),
    ] {
        assert_eq!(target(config, asked), expected, "{config} {asked}");
    }
}

#[test]
fn regex_uri_takes_the_first_pair_that_matches() {
    let two = r"{regex_uri: ['^/user/(.*)/(.*)', '/$2-$1', '^/shop/', '/store/']}";
    for (config, asked, expected) in [
        (two, "/user/a/b?x=1", "/b-a?x=1"),
        (two, "/shop/c", "/store/c"),
        (two, "/other/./d%41", "/other/./d%41"),
        ("{regex_uri: ['^/control/(.*)/', '/$1/']}", "/control/a/b", "/a/b"),
        ("{regex_uri: ['^/api', '']}", "/api/x", "/x"),
        ("{regex_uri: ['^/(.*)', '/q?name=$1']}", "/a%20b?x=1", "/q?name=a%20b&x=1"),
        ("{regex_uri: ['^/(.*)', '/${1}0$$1/$arg_x']}", "/a?x=1/2?", "/a0$1/1/2%3F?x=1/2?"),
        ("{regex_uri: ['^/(a)|(b)', '/[$2]']}", "/a", "/[]"),
        ("{uri: /first, regex_uri: ['^/', '/second']}", "/a", "/first"),
    ] {
        assert_eq!(target(config, asked), expected, "{config} {asked}");
    }
}

#[test]
fn the_real_target_is_taken_as_it_came() {
    for (config, asked, expected) in [
        ("{use_real_request_uri_unsafe: true}", "/a/../b%2f?x=1", "/a/../b%2f?x=1"),
        ("{use_real_request_uri_unsafe: true, regex_uri: ['^/a(.*)', '$1']}", "/a/../b%2f?x=1", "/../b%2f?x=1"),
        ("{use_real_request_uri_unsafe: true, regex_uri: ['^/a', '/b']}", "/a?x=1", "/b?x=1"),
        ("{use_real_request_uri_unsafe: true, regex_uri: ['^/no', '/b']}", "/a?x=%20", "/a?x=%20"),
        ("{use_real_request_uri_unsafe: true, uri: '/b?$arg_x'}", "/a?x=1", "/b?1&x=1"),
        ("{use_real_request_uri_unsafe: true, uri: /b}", "/a?x=1%20y", "/b?x=1%20y"),
        ("{use_real_request_uri_unsafe: true, uri: /b}", "/a", "/b"),
        ("{use_real_request_uri_unsafe: true, uri: '/b?y=2'}", "/a", "/b?y=2"),
        // As it came, even an empty one.
        ("{use_real_request_uri_unsafe: true, uri: /b}", "/a?", "/b?"),
        ("{use_real_request_uri_unsafe: true, uri: '/b?y=2'}", "/a?x?z", "/b?y=2&x?z"),
        // A `?` in a value does not begin a query.
        ("{use_real_request_uri_unsafe: true, uri: '/b/$arg_x'}", "/a?x=1?2", "/b/1%3F2?x=1?2"),
    ] {
        assert_eq!(target(config, asked), expected, "{config} {asked}");
    }
}

#[test]
fn values_do_not_lead_to_another_path() {
    let argument = "{uri: '/b/$arg_x/c'}";
    for value in
        ["..", ".", "%2e%2E", "a/..", "../../admin", "..%2Fadmin", "a%2f..", "..%5cadmin", "..\\admin", "..;a=b"]
    {
        assert_eq!(target(argument, &format!("/a?x={value}")), "> proxy-rewrite answers", "{value}");
    }
    for (value, path) in
        [("a.b", "a.b"), ("...", "..."), ("..a", "..a"), ("a..", "a.."), ("%252e%252e", "%252e%252e"), ("", "")]
    {
        assert_eq!(target(argument, &format!("/a?x={value}")), format!("/b/{path}/c?x={value}"));
    }
    // The text around a value counts, too, and groups are values.
    for (config, asked) in [
        ("{uri: '/b/.$arg_x'}", "/a?x=."),
        ("{uri: '/b/$arg_x.'}", "/a?x=."),
        ("{uri: '/b/.$arg_x'}", "/a"),
        ("{uri: '/b/$arg_x$arg_y'}", "/a?x=.&y=."),
        ("{uri: '/b$arg_x..'}", "/a?x=/"),
        ("{regex_uri: ['^/a(.*)b', '/$1/c']}", "/a..b"),
        ("{regex_uri: ['^/a(.*)', '/b/$1']}", "/a..%2Fc"),
        ("{regex_uri: ['^/x', '/']}", "/x../y"),
        ("{regex_uri: ['x/y', '']}", "/a/..x/y"),
    ] {
        assert_eq!(target(config, asked), "> proxy-rewrite answers", "{config} {asked}");
    }
    // The text of the configuration is the operator's, and a query leads nowhere.
    for (config, asked, expected) in [
        ("{uri: '/b/../c/$arg_x'}", "/a?x=1", "/b/../c/1?x=1"),
        ("{uri: '/b?p=$arg_x'}", "/a?x=../..", "/b?p=../..&x=../.."),
        ("{uri: '/b/$arg_x'}", "/a?x=1&y=/../", "/b/1?x=1&y=/../"),
    ] {
        assert_eq!(target(config, asked), expected, "{config} {asked}");
    }
    let plugins = plugins(&format!("proxy-rewrite: {argument}")).expect("good");
    expect![[r#"
        > proxy-rewrite answers
        < 400
        < "{\"error_msg\":\"proxy-rewrite: a value leads to another path\"}\n"
    "#]]
    .assert_eq(&plugins.run("GET /a?x=.. HTTP/1.1\nHost: h\n\n", OK));
}

#[test]
fn lists_of_values_make_several_lines() {
    check(
        "{regex_uri: ['^/user/(.*)', '/u'], headers: {add: {X-A: [2, 'id-$1'], X-One: [1]}, \
            set: {X-Version: [v1, 010, $arg_none, '$http_x_b'], X-Gone: ['', ''], X-None: [$arg_none, z], Host: [n.example]}}}",
        "GET /user/7 HTTP/1.1\nHost: h\nX-A: 1\nX-Version: old\nX-Version: older\nX-Gone: g\nX-None: n\nX-B: b\n\n",
        expect![[r#"
            > GET /u
            > host of the node: n.example
            > Host: h
            > X-A: 1
            > X-B: b
            > X-A: 2
            > X-A: id-7
            > X-One: 1
            > X-Version: v1
            > X-Version: 8
            > X-Version: b
            > X-None: z
        "#]],
    );
}

#[test]
fn groups_that_no_match_fills_are_reported() {
    for (config, warned) in [
        ("{regex_uri: ['^/(.*)/(.*)', '/$2']}", None),
        ("{regex_uri: ['^/(.*)', '/$2']}", Some("regex_uri[1]: there is one group, so $2 is always empty")),
        (
            "{regex_uri: ['^/(a)(b)', /x, '^/', '/${1}']}",
            Some("regex_uri[3]: there is no group, so $1 is always empty"),
        ),
        ("{uri: '/b/$1'}", Some("uri: there is no group, so $1 is always empty")),
        ("{regex_uri: ['^/(a)(b)', /x, '^/', /y], headers: {X: $2}}", None),
        ("{regex_uri: ['^/(a)', '/$0'], headers: {X: $2}}", Some("headers: there is one group, so $2 is always empty")),
        ("{headers: {set: {X: ['$1']}}}", Some("headers: there is no group, so $1 is always empty")),
    ] {
        let warnings = said_of_store(&format!("proxy-rewrite: {config}"));
        match warned {
            None => assert_eq!(warnings, "", "{config}"),
            Some(warned) => assert!(warnings.contains(warned), "{config}: {warnings}"),
        }
    }
}

#[test]
fn header_fields_host_and_method() {
    let request = "GET /user/7?b=2 HTTP/1.1\nHost: h\nX-A: 1\nx-a: 2\nX-Gone: g\nX-Empty: e\n\n";
    check(
        "{method: POST, host: 'node.example:8080', regex_uri: ['^/user/(.*)', '/u'], headers: {\
            add: {X-A: '3', X-New: 'id-$1-$arg_b', X-Nothing: $arg_none}, \
            set: {X-Set: 4, X-Empty: '', X-Client: $remote_addr}, remove: [x-gone]}}",
        request,
        expect![[r#"
            > POST /u?b=2
            > host of the node: node.example:8080
            > Host: h
            > X-A: 1
            > x-a: 2
            > X-A: 3
            > X-New: id-7-2
            > X-Set: 4
            > X-Client: 192.0.2.7
        "#]],
    );
    check(
        "{headers: {X-A: 5, X-Seen: '$http_x_a', Host: other.example, add: text}}",
        request,
        expect![[r#"
        > GET /user/7?b=2
        > host of the node: other.example
        > Host: h
        > X-Gone: g
        > X-Empty: e
        > X-A: 5
        > X-Seen: 5
        > add: text
    "#]],
    );
}

#[test]
fn what_would_split_the_head_is_not_sent() {
    // A path is normal, and a head holds no control characters: the remaining cases are blanks, and targets that are
    // not paths.
    for (config, asked) in [
        ("{uri: '/b?q=$http_x_a'}", "/a"),
        ("{regex_uri: ['^/api(.*)', '$1']}", "/api"),
        ("{regex_uri: ['^/', 'http://other.example/']}", "/api"),
    ] {
        assert_eq!(target(config, asked), "> proxy-rewrite answers", "{config} {asked}");
    }
    let plugins = plugins("proxy-rewrite: {regex_uri: ['^/api(.*)', '$1']}").expect("good");
    expect![[r#"
        > proxy-rewrite answers
        < 500
        < "{\"error_msg\":\"proxy-rewrite: a request target begins with \\\"/\\\" and holds no blanks or control characters\"}\n"
    "#]].assert_eq(&plugins.run("GET /api HTTP/1.1\nHost: h\n\n", OK));
}

proptest! {
    /// For any input of a client: one request line, without blanks, and never another path than the configured one.
    #[test]
    fn no_value_reaches_beyond_its_place(value in "[ -~]{0,12}", name in "(arg_v|http_v|cookie_v|uri|request_uri)") {
        let config = format!("proxy-rewrite: {{uri: '/fixed/${name}', headers: {{X-V: 'v=${name}'}}}}");
        let plugins = plugins(&config).expect("good");
        let in_target: String = value.bytes().map(|byte| match byte {
            b' ' | b'#' | b'%' => format!("%{byte:02x}"),
            _ => char::from(byte).to_string(),
        }).collect();
        let request = format!("GET /p?v={in_target} HTTP/1.1\nHost: h\nV: {value}\nCookie: v={value}\n\n");
        let transcript = plugins.run(&request, OK);
        let sent: Vec<&str> = transcript.lines().filter_map(|line| line.strip_prefix("> ")).collect();
        if sent[0] == "proxy-rewrite answers" {
            prop_assert!(value.contains('.'));
            return Ok(());
        }
        let (method, target) = sent[0].split_once(' ').expect("a request line");
        let (path, query) = target.split_once('?').expect("the query of the request");
        prop_assert_eq!(method, "GET");
        prop_assert!(path.starts_with("/fixed/"), "{}", target);
        prop_assert!(path.bytes().all(|byte| byte > b' ' && byte != b'#'), "{}", target);
        prop_assert!(!path.split('/').any(|segment| matches!(segment, "." | "..")), "{}", target);
        prop_assert_eq!(query, format!("v={in_target}"));
        // Host, V, Cookie and X-V.
        prop_assert_eq!(sent.len(), 5);
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn bad_configurations_are_refused() {
    let mut all = String::new();
    for config in [
        "{}",
        "{uri: b}",
        "{uri: ''}",
        "{uri: /$no_such_variable}",
        "{method: CONNECT}",
        "{method: get}",
        "{regex_uri: ['^/a']}",
        "{regex_uri: []}",
        "{regex_uri: ['^/a', /b, '^/c']}",
        "{regex_uri: ['(', /b]}",
        "{regex_uri: ['^/(?!a)', /b]}",
        "{regex_uri: [^/, /$nothing]}",
        "{host: 'a b'}",
        "{host: 'a:123456'}",
        r#"{host: "a\r\nX: y"}"#,
        "{scheme: https}",
        "{headers: {}}",
        "{headers: {add: {}}}",
        "{headers: {add: [a]}}",
        "{headers: {remove: {a: b}}}",
        "{headers: {set: {a: b}, X-A: 1}}",
        "{headers: {'a b': c}}",
        "{headers: {'a:b': c}}",
        "{headers: {'': c}}",
        "{headers: {a: [b]}}",
        "{headers: {set: {a: []}}}",
        "{headers: {set: {a: [b, true]}}}",
        "{headers: {add: {a: [[b]]}}}",
        "{headers: {set: {Host: [a, b]}}}",
        r#"{headers: {add: {a: [b, "c\nd"]}}}"#,
        "{headers: {a: true}}",
        r#"{headers: {a: "b\r\nX: y"}}"#,
        r#"{headers: {a: "$uri\nX: y"}}"#,
        "{headers: {Content-Length: 7}}",
        "{headers: {set: {transfer-encoding: chunked}}}",
        "{headers: {add: {Connection: close}}}",
        "{headers: {remove: [Upgrade]}}",
        "{headers: {remove: [Host]}}",
        "{headers: {set: {Host: 'a b'}}}",
        "{host: a..b}",
        "{headers: {add: {host: a}}}",
    ] {
        all.push_str(&format!("{config}\n    {}", refusal(&format!("proxy-rewrite: {config}"))));
    }
    let long = "a".repeat(4096);
    let refused = refusal(&format!("proxy-rewrite: {{uri: /{long}}}"));
    all.push_str(&format!("4097 characters\n    {refused}"));
    assert_eq!(refusal(&format!("proxy-rewrite: {{uri: /{}}}", &long[1..])), "accepted\n");
    expect![[r#"
        {}
            1:16: proxy-rewrite: nothing to rewrite; add uri, method, regex_uri, host, headers or use_real_request_uri_unsafe
        {uri: b}
            1:22: proxy-rewrite.uri: a path begins with "/" and has at most 4096 characters
        {uri: ''}
            1:22: proxy-rewrite.uri: a path begins with "/" and has at most 4096 characters
        {uri: /$no_such_variable}
            accepted
        {method: CONNECT}
            1:25: proxy-rewrite.method: expected GET, POST, PUT, HEAD, DELETE, OPTIONS, MKCOL, COPY, MOVE, PROPFIND, LOCK, UNLOCK, PATCH or TRACE, found the text "CONNECT"
        {method: get}
            1:25: proxy-rewrite.method: expected GET, POST, PUT, HEAD, DELETE, OPTIONS, MKCOL, COPY, MOVE, PROPFIND, LOCK, UNLOCK, PATCH or TRACE, found the text "get"; did you mean "GET"?
        {regex_uri: ['^/a']}
            1:28: proxy-rewrite.regex_uri: The length of regex_uri should be an even number; write pairs of a regular expression and what takes its place
        {regex_uri: []}
            1:28: proxy-rewrite.regex_uri: The length of regex_uri should be an even number; write pairs of a regular expression and what takes its place
        {regex_uri: ['^/a', /b, '^/c']}
            1:28: proxy-rewrite.regex_uri: The length of regex_uri should be an even number; write pairs of a regular expression and what takes its place
        {regex_uri: ['(', /b]}
            1:28: proxy-rewrite.regex_uri[0]: not a regular expression: unclosed group
        {regex_uri: ['^/(?!a)', /b]}
            1:28: proxy-rewrite.regex_uri[0]: not a regular expression: look-around, including look-ahead and look-behind, is not supported; write it without: matching takes linear time, which rules them out
        {regex_uri: [^/, /$nothing]}
            accepted
        {host: 'a b'}
            1:23: proxy-rewrite.host: "a b" is not a host; write it like "a.example" or "a.example:8080"
        {host: 'a:123456'}
            1:23: proxy-rewrite.host: "a:123456" is not a host; write it like "a.example" or "a.example:8080"
        {host: "a\r\nX: y"}
            1:23: proxy-rewrite.host: "a\r\nX: y" is not a host; write it like "a.example" or "a.example:8080"
        {scheme: https}
            1:16: proxy-rewrite: nothing to rewrite; add uri, method, regex_uri, host, headers or use_real_request_uri_unsafe
        1:17: proxy-rewrite.scheme: unknown key "scheme"; known keys: uri, method, regex_uri, host, headers, use_real_request_uri_unsafe
        {headers: {}}
            1:26: proxy-rewrite.headers: an empty map; name at least one field, or remove the key
        {headers: {add: {}}}
            1:32: proxy-rewrite.headers.add: the map is empty; name at least one field, or remove the key
        {headers: {add: [a]}}
            1:32: proxy-rewrite.headers.add: expected a map of names and values, found a list
        {headers: {remove: {a: b}}}
            1:35: proxy-rewrite.headers.remove: expected a list of names, found a map
        {headers: {set: {a: b}, X-A: 1}}
            1:40: proxy-rewrite.headers.X-A: "X-A" beside `add`, `set` and `remove`; write it under `set`
        {headers: {'a b': c}}
            1:27: proxy-rewrite.headers["a b"]: not the name of a header field: letters, digits and !#$%&'*+-.^_`|~ only
        {headers: {'a:b': c}}
            1:27: proxy-rewrite.headers["a:b"]: not the name of a header field: letters, digits and !#$%&'*+-.^_`|~ only
        {headers: {'': c}}
            1:27: proxy-rewrite.headers[""]: not the name of a header field: letters, digits and !#$%&'*+-.^_`|~ only
        {headers: {a: [b]}}
            1:30: proxy-rewrite.headers.a: expected a text or a number, found a list
        {headers: {set: {a: []}}}
            1:36: proxy-rewrite.headers.set.a: the map is empty; name at least one field, or remove the key
        {headers: {set: {a: [b, true]}}}
            1:40: proxy-rewrite.headers.set.a[1]: expected a text or a number, found true
        {headers: {add: {a: [[b]]}}}
            1:37: proxy-rewrite.headers.add.a[0]: expected a text or a number, found a list
        {headers: {set: {Host: [a, b]}}}
            1:33: proxy-rewrite.headers.set.Host[1]: a request has exactly one Host; write it under `set`, or as the key `host`
        {headers: {add: {a: [b, "c\nd"]}}}
            1:33: proxy-rewrite.headers.add.a[1]: a header value cannot hold control characters such as line breaks
        {headers: {a: true}}
            1:30: proxy-rewrite.headers.a: expected a text or a number, found true
        {headers: {a: "b\r\nX: y"}}
            1:27: proxy-rewrite.headers.a: a header value cannot hold control characters such as line breaks
        {headers: {a: "$uri\nX: y"}}
            1:27: proxy-rewrite.headers.a: a header value cannot hold control characters such as line breaks
        {headers: {Content-Length: 7}}
            1:27: proxy-rewrite.headers.Content-Length: this field frames the message or belongs to one connection; the gateway sets it
        {headers: {set: {transfer-encoding: chunked}}}
            1:33: proxy-rewrite.headers.set.transfer-encoding: this field frames the message or belongs to one connection; the gateway sets it
        {headers: {add: {Connection: close}}}
            1:33: proxy-rewrite.headers.add.Connection: this field frames the message or belongs to one connection; the gateway sets it
        {headers: {remove: [Upgrade]}}
            1:36: proxy-rewrite.headers.remove[0]: this field frames the message or belongs to one connection; the gateway sets it
        {headers: {remove: [Host]}}
            1:36: proxy-rewrite.headers.remove[0]: a request has exactly one Host; write it under `set`, or as the key `host`
        {headers: {set: {Host: 'a b'}}}
            1:33: proxy-rewrite.headers.set.Host: "a b" is not a host; write a name or an address, perhaps with a port
        {host: a..b}
            1:23: proxy-rewrite.host: "a..b" is not a host; write it like "a.example" or "a.example:8080"
        {headers: {add: {host: a}}}
            1:33: proxy-rewrite.headers.add.host: a request has exactly one Host; write it under `set`, or as the key `host`
        4097 characters
            1:22: proxy-rewrite.uri: a path begins with "/" and has at most 4096 characters
    "#]].assert_eq(&all);
}
