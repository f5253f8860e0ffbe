//! `cors`: permissions of pages of other origins.

use crate::harness::{OK, plugins, refusal};
use expect_test::{Expect, expect};

fn check(config: &str, request: &str, expected: Expect) {
    check_with(config, request, OK, expected);
}

fn check_with(config: &str, request: &str, response: &str, expected: Expect) {
    let plugins = plugins(config).expect("a good configuration");
    let transcript = plugins.run(request, response);
    // The node's request is the same in every test.
    let (_, response) = transcript.split_at(transcript.find("< ").expect("a response"));
    expected.assert_eq(response);
}

#[test]
fn defaults_allow_everything_without_credentials() {
    check(
        "cors: {}",
        "GET / HTTP/1.1\nHost: h\nOrigin: https://a.example\n\n",
        expect![[r#"
        < 200
        < Content-Type: text/plain
        < Access-Control-Allow-Methods: *
        < Access-Control-Allow-Headers: *
        < Access-Control-Max-Age: 5
        < Access-Control-Allow-Origin: *
        < "hello world\n"
    "#]],
    );
    check(
        "cors: {}",
        "GET / HTTP/1.1\nHost: h\n\n",
        expect![[r#"
        < 200
        < Content-Type: text/plain
        < Access-Control-Allow-Methods: *
        < Access-Control-Allow-Headers: *
        < Access-Control-Max-Age: 5
        < Access-Control-Allow-Origin: *
        < "hello world\n"
    "#]],
    );
}

#[test]
fn a_preflight_is_answered_here() {
    let request = "OPTIONS /x HTTP/1.1\nHost: h\nOrigin: https://a.example\nAccess-Control-Request-Method: PUT\n\
        Access-Control-Request-Headers: x-a, x-b\n\n";
    let plugins =
        plugins("cors: {allow_origins: '**', allow_methods: '**', allow_headers: '**', allow_credential: true}");
    expect![[r#"
        > cors answers
        < 200
        < Vary: Origin
        < Access-Control-Allow-Methods: GET,POST,PUT,DELETE,PATCH,HEAD,OPTIONS,CONNECT,TRACE
        < Access-Control-Max-Age: 5
        < Access-Control-Allow-Credentials: true
        < Access-Control-Allow-Origin: https://a.example
        < Access-Control-Allow-Headers: x-a, x-b
        < ""
    "#]]
    .assert_eq(&plugins.expect("a good configuration").run(request, OK));
    check(
        "cors: {}",
        "OPTIONS /x HTTP/1.1\nHost: h\n\n",
        expect![[r#"
        < 200
        < Access-Control-Allow-Methods: *
        < Access-Control-Allow-Headers: *
        < Access-Control-Max-Age: 5
        < Access-Control-Allow-Origin: *
        < ""
    "#]],
    );
}

#[test]
fn two_stars_name_the_origin_and_what_is_asked_for() {
    let config = "cors: {allow_origins: '**', allow_methods: '**', allow_headers: '**', expose_headers: '*'}";
    check(
        config,
        "GET / HTTP/1.1\nHost: h\nOrigin: https://sub.domain.com\n\
        Access-Control-Request-Headers: req-header1,req-header2\n\n",
        expect![[r#"
            < 200
            < Content-Type: text/plain
            < Vary: Origin
            < Access-Control-Allow-Methods: GET,POST,PUT,DELETE,PATCH,HEAD,OPTIONS,CONNECT,TRACE
            < Access-Control-Expose-Headers: *
            < Access-Control-Max-Age: 5
            < Access-Control-Allow-Origin: https://sub.domain.com
            < Access-Control-Allow-Headers: req-header1,req-header2
            < "hello world\n"
        "#]],
    );
    check(
        config,
        "GET / HTTP/1.1\nHost: h\n\n",
        expect![[r#"
        < 200
        < Content-Type: text/plain
        < Vary: Origin
        < Access-Control-Allow-Methods: GET,POST,PUT,DELETE,PATCH,HEAD,OPTIONS,CONNECT,TRACE
        < Access-Control-Expose-Headers: *
        < Access-Control-Max-Age: 5
        < Access-Control-Allow-Origin: *
        < "hello world\n"
    "#]],
    );
}

#[test]
fn listed_origins_are_allowed_one_by_one() {
    let config = "cors: {allow_origins: 'http://a.example,http://b.example', allow_methods: 'GET,POST', \
        allow_headers: h1, expose_headers: e1, max_age: 50, allow_credential: true}";
    check_with(
        config,
        "GET / HTTP/1.1\nHost: h\nOrigin: http://b.example\n\n",
        "HTTP/1.1 200 OK\nVary: Via\nAccess-Control-Allow-Origin: *\naccess-control-max-age: 1\n\n",
        expect![[r#"
            < 200
            < Vary: Via
            < Vary: Origin
            < Access-Control-Allow-Methods: GET,POST
            < Access-Control-Allow-Headers: h1
            < Access-Control-Expose-Headers: e1
            < Access-Control-Max-Age: 50
            < Access-Control-Allow-Credentials: true
            < Access-Control-Allow-Origin: http://b.example
            < ""
        "#]],
    );
    for origin in ["http://c.example", "http://b.example:80", "HTTP://B.example", "null", ""] {
        let request = format!("GET / HTTP/1.1\nHost: h\nOrigin: {origin}\n\n");
        let transcript = plugins(config).expect("a good configuration").run(&request, OK);
        assert!(!transcript.contains("Access-Control"), "{origin}: {transcript}");
        assert!(transcript.contains("< Vary: Origin\n"), "{origin}: {transcript}");
    }
}

#[test]
fn regexes_take_the_place_of_the_list() {
    let config =
        r"cors: {allow_origins: 'http://a.example', allow_origins_by_regex: ['.*\.test\.example$', '^https://x']}";
    check(
        config,
        "GET / HTTP/1.1\nHost: h\nOrigin: http://a.test.example\n\n",
        expect![[r#"
        < 200
        < Content-Type: text/plain
        < Vary: Origin
        < Access-Control-Allow-Methods: *
        < Access-Control-Allow-Headers: *
        < Access-Control-Max-Age: 5
        < Access-Control-Allow-Origin: http://a.test.example
        < "hello world\n"
    "#]],
    );
    check(
        config,
        "GET / HTTP/1.1\nHost: h\nOrigin: http://a.example\n\n",
        expect![[r#"
        < 200
        < Content-Type: text/plain
        < Vary: Origin
        < "hello world\n"
    "#]],
    );
    check(
        config,
        "GET / HTTP/1.1\nHost: h\n\n",
        expect![[r#"
        < 200
        < Content-Type: text/plain
        < Vary: Origin
        < "hello world\n"
    "#]],
    );
}

#[test]
fn metadata_names_origins() {
    let metadata = "allow_origins: {one: 'https://a.example', two: 'https://b.example,https://c.example', all: '*'}";
    let check = |config: &str, origin: &str, allowed: Option<&str>| {
        let plugins = plugins(config).and_then(|plugins| plugins.with_metadata("cors", metadata)).expect("good");
        let transcript = plugins.run(&format!("GET / HTTP/1.1\nHost: h\nOrigin: {origin}\n\n"), OK);
        let line = transcript.lines().find_map(|line| line.strip_prefix("< Access-Control-Allow-Origin: "));
        assert_eq!(line, allowed, "{config} {origin}");
        assert!(transcript.contains("< Vary: Origin"), "{config} {origin}");
    };
    let listed = "cors: {allow_origins: 'https://t.example', allow_origins_by_metadata: [one, two, none]}";
    for origin in ["https://t.example", "https://a.example", "https://c.example"] {
        check(listed, origin, Some(origin));
    }
    check(listed, "https://d.example", None);
    let all = "cors: {allow_origins: 'https://t.example', allow_origins_by_metadata: [all]}";
    check(all, "https://d.example", Some("https://d.example"));
    // With names, the default `*` is ignored.
    check("cors: {allow_origins_by_metadata: [one]}", "https://d.example", None);
    check("cors: {allow_origins_by_metadata: [one]}", "https://a.example", Some("https://a.example"));
}

#[test]
fn timings_are_allowed_apart() {
    let config = "cors: {allow_origins: 'http://one.example', timing_allow_origins: 'http://two.example'}";
    check(
        config,
        "GET / HTTP/1.1\nHost: h\nOrigin: http://two.example\n\n",
        expect![[r#"
        < 200
        < Content-Type: text/plain
        < Vary: Origin
        < Timing-Allow-Origin: http://two.example
        < "hello world\n"
    "#]],
    );
    let config = "cors: {timing_allow_origins: 'http://no.example', timing_allow_origins_by_regex: ['^http://t']}";
    check(
        config,
        "GET / HTTP/1.1\nHost: h\nOrigin: http://two.example\n\n",
        expect![[r#"
        < 200
        < Content-Type: text/plain
        < Vary: Origin
        < Access-Control-Allow-Methods: *
        < Access-Control-Allow-Headers: *
        < Access-Control-Max-Age: 5
        < Access-Control-Allow-Origin: *
        < Timing-Allow-Origin: http://two.example
        < "hello world\n"
    "#]],
    );
}

#[test]
fn bad_configurations_are_refused() {
    let mut all = String::new();
    for config in [
        "{allow_credential: true}",
        "{allow_credential: true, allow_origins: '**'}",
        "{allow_credential: true, allow_origins: '**', allow_methods: '**'}",
        "{allow_credential: true, allow_origins: '**', allow_methods: '**', allow_headers: '**', expose_headers: '*'}",
        "{allow_credential: true, allow_origins: '**', allow_methods: GET, allow_headers: a, timing_allow_origins: '*'}",
        "{allow_origins: 'x.com'}",
        "{allow_origins: 'https://x.com,*'}",
        "{allow_origins: ''}",
        "{allow_origins: 'https://x.com,,https://y.com'}",
        r#"{allow_origins: "https://x.com\r\nSet-Cookie: a=b"}"#,
        r#"{allow_methods: "GET\r\nSet-Cookie: a=b"}"#,
        r#"{allow_headers: "a\nb"}"#,
        r#"{expose_headers: "a\0"}"#,
        "{allow_origins_by_regex: []}",
        "{allow_origins_by_regex: ['(']}",
        "{allow_origins_by_regex: ['(?=a)']}",
        "{allow_origins_by_regex: ['a', 'b', 'a']}",
        "{allow_origins_by_metadata: ['']}",
        "{max_age: yes}",
        "{allow_orgins: '*'}",
    ] {
        all.push_str(&format!("{config}\n    {}", refusal(&format!("cors: {config}"))));
    }
    let metadata = plugins("cors: {}").expect("good").with_metadata("cors", "allow_origins: {a: 'x.com'}");
    all.push_str(&metadata.err().expect("refused"));
    expect![[r#"
        {allow_credential: true}
            1:7: cors.allow_origins: you can not set '*' for other option when 'allow_credential' is true; list the origins in `allow_origins`; its default is `*`
        {allow_credential: true, allow_origins: '**'}
            1:7: cors.allow_methods: you can not set '*' for other option when 'allow_credential' is true; list them in `allow_methods`; its default is `*`
        {allow_credential: true, allow_origins: '**', allow_methods: '**'}
            1:7: cors.allow_headers: you can not set '*' for other option when 'allow_credential' is true; list them in `allow_headers`; its default is `*`
        {allow_credential: true, allow_origins: '**', allow_methods: '**', allow_headers: '**', expose_headers: '*'}
            1:7: cors.expose_headers: you can not set '*' for other option when 'allow_credential' is true; list the fields in `expose_headers`
        {allow_credential: true, allow_origins: '**', allow_methods: GET, allow_headers: a, timing_allow_origins: '*'}
            1:7: cors.timing_allow_origins: you can not set '*' for other option when 'allow_credential' is true; list the origins in `timing_allow_origins`; its default is `*`
        {allow_origins: 'x.com'}
            1:23: cors.allow_origins: "x.com" is not a list of origins; write "*", "**", "null" or origins such as "https://a.example,https://b.example"
        {allow_origins: 'https://x.com,*'}
            1:23: cors.allow_origins: "https://x.com,*" is not a list of origins; write "*", "**", "null" or origins such as "https://a.example,https://b.example"
        {allow_origins: ''}
            1:23: cors.allow_origins: "" is not a list of origins; write "*", "**", "null" or origins such as "https://a.example,https://b.example"
        {allow_origins: 'https://x.com,,https://y.com'}
            1:23: cors.allow_origins: "https://x.com,,https://y.com" is not a list of origins; write "*", "**", "null" or origins such as "https://a.example,https://b.example"
        {allow_origins: "https://x.com\r\nSet-Cookie: a=b"}
            1:23: cors.allow_origins: a header value cannot hold control characters such as line breaks
        {allow_methods: "GET\r\nSet-Cookie: a=b"}
            1:7: cors.allow_methods: a header value cannot hold control characters such as line breaks
        {allow_headers: "a\nb"}
            1:7: cors.allow_headers: a header value cannot hold control characters such as line breaks
        {expose_headers: "a\0"}
            1:7: cors.expose_headers: a header value cannot hold control characters such as line breaks
        {allow_origins_by_regex: []}
            1:32: cors.allow_origins_by_regex: an empty list; name at least one, or remove the key
        {allow_origins_by_regex: ['(']}
            1:33: cors.allow_origins_by_regex[0]: not a regular expression: unclosed group
        {allow_origins_by_regex: ['(?=a)']}
            1:33: cors.allow_origins_by_regex[0]: not a regular expression: look-around, including look-ahead and look-behind, is not supported; write it without: matching takes linear time, which rules them out
        {allow_origins_by_regex: ['a', 'b', 'a']}
            1:32: cors.allow_origins_by_regex[2]: a duplicate item; remove it
        {allow_origins_by_metadata: ['']}
            1:36: cors.allow_origins_by_metadata[0]: a name has from 1 to 4096 characters
        {max_age: yes}
            1:17: cors.max_age: expected a whole number, found yes
        {allow_orgins: '*'}
            1:8: cors.allow_orgins: unknown key "allow_orgins"; did you mean "allow_origins"?
        1:20: allow_origins.a: "x.com" is not a list of origins; write "*", "**", "null" or origins such as "https://a.example,https://b.example""#]].assert_eq(&all);
}
