//! `redirect`

use super::{check, harness, run};
use expect_test::expect;
use harness::{OK, plugins, refusal};

/// Status and location of a redirect.
fn place(config: &str, target: &str) -> String {
    let config = config.replace("${", "$${");
    let transcript = run(&config, &format!("GET {target} HTTP/1.1\nHost: h.example:8080\n\n"), OK);
    let line = |mark: &str| transcript.lines().find_map(|line| line.strip_prefix(mark)).unwrap_or("-").to_owned();
    format!("{} {}", line("< "), line("< Location: "))
}

#[test]
fn the_place_is_put_together_from_variables() {
    let check = |uri: &str, target: &str, expected: &str| {
        let place = place(&format!("redirect: {{uri: '{uri}'}}"), target);
        assert_eq!(place, format!("302 {expected}"), "{uri} {target}");
    };
    check("/test/add", "/hello", "/test/add");
    check("$uri/test/a${arg_name}c", "/hello?name=json", "/hello/test/ajsonc");
    check("/foo$$uri", "/hello?name=json", "/foo$/hello");
    check(r"\$uri/foo$uri\$uri/bar", "/hello", r"\$uri/foo/hello\$uri/bar");
    check(r"/a\b\\c$", "/hello", "/abc$");
    check("$uri/$arg_none/bar", "/hello", "/hello//bar");
    // An unknown variable is like one that the request does not have.
    check("$uri/$bad_var/bar", "/hello", "/hello//bar");
    check("${uri}/${bad_var}/bar", "/hello", "/hello//bar");
    check("https://$host$request_uri", "//evil.example/%2e?a", "https://h.example//evil.example/%2e?a");
    check("$uri", "//evil.example", "/evil.example");
    check("${uri}x", "/a%20b", "/a%20bx");
}

#[test]
fn the_body_is_nginx_s_page() {
    check(
        "redirect: {uri: /b, ret_code: 301}",
        "GET /a HTTP/1.1\nHost: h\n\n",
        expect![[r#"
        > redirect answers
        < 301
        < Location: /b
        < "<html>\r\n<head><title>301 Moved Permanently</title></head>\r\n<body>\r\n<center><h1>301 Moved Permanently</h1></center>\r\n<hr><center>stillgate</center>\r\n</body>\r\n</html>\r\n"
    "#]],
    );
}

#[test]
fn http_becomes_https() {
    let config = "redirect: {http_to_https: true, ret_code: 302}";
    assert_eq!(place(config, "/a?b=c"), "301 https://h.example/a?b=c");
    let post = run(config, "POST /a HTTP/1.1\nHost: h\n\n", OK);
    assert!(post.contains("< 308\n") && post.contains("Location: https://h.example/a\n"), "{post}");
    assert_eq!(place("redirect: {http_to_https: false}", "/a"), "200 -");
    let with_port = plugins(config).unwrap().with_metadata("redirect", "https_port: 9443").unwrap();
    let transcript = with_port.run("GET /a HTTP/1.1\nHost: h\n\n", OK);
    assert!(transcript.contains("Location: https://h.example:9443/a\n"), "{transcript}");
}

#[test]
fn only_a_trusted_proxy_says_what_its_client_uses() {
    let config = "redirect: {http_to_https: true}";
    let request = "GET / HTTP/1.1\nHost: h\nX-Forwarded-Proto: https\n\n";
    assert!(run(config, request, OK).contains("< 301"));
    let trusting = plugins(config).unwrap().trusting();
    assert!(trusting.run(request, OK).contains("< 200"));
    assert!(trusting.run("GET / HTTP/1.1\nHost: h\nX-Forwarded-Proto: http\n\n", OK).contains("< 301"));
}

#[test]
fn the_path_is_matched_and_replaced() {
    let config = "redirect: {regex_uri: ['^/test/(.*)/(.*)', '/$1-${2}-$$'], ret_code: 307}";
    assert_eq!(place(config, "/test/a/b?c=d"), "307 /a-b-$");
    assert_eq!(place(config, "/other"), "200 -");
    assert_eq!(place("redirect: {regex_uri: [b, /x/]}", "/abc"), "302 /a/x/c");
}

#[test]
fn queries_are_added_and_paths_encoded() {
    let appended =
        |uri: &str, target: &str| place(&format!("redirect: {{uri: '{uri}', append_query_string: true}}"), target);
    assert_eq!(appended("/b", "/a?c=d"), "302 /b?c=d");
    assert_eq!(appended("/b?x", "/a?c=d"), "302 /b?x&c=d");
    assert_eq!(appended("/b", "/a?"), "302 /b");
    assert_eq!(appended("/b", "/a"), "302 /b");
    let encoded = |uri: &str, target: &str| place(&format!("redirect: {{uri: '{uri}', encode_uri: true}}"), target);
    assert_eq!(encoded("/b c%20$uri?d e", "/a%20b%41"), "302 /b%20c%2520/a%20bA?d e");
    assert_eq!(encoded("/$arg_a", "/x?a=%20%0d"), "302 /%20%0D");
    let both = "redirect: {regex_uri: ['^/(.*)$', '/t est/$1'], encode_uri: true, append_query_string: true}";
    assert_eq!(place(both, "/a%c3%a4?b"), "302 /t%20est/a%C3%A4?b");
}

#[test]
fn bad_configurations_are_refused() {
    let all = [
        "redirect: {}",
        "redirect: {uri: /, ret_code: 302}",
        "redirect: {uri: /a, http_to_https: true}",
        "redirect: {uri: /a, regex_uri: [a, b]}",
        "redirect: {http_to_https: true, append_query_string: true}",
        "redirect: {regex_uri: [a]}",
        "redirect: {regex_uri: ['(', b]}",
        "redirect: {regex_uri: [a, '$host']}",
        "redirect: {uri: /$no_such_variable}",
        "redirect: {uri: /a, ret_code: 199}",
    ];
    let text: String = all.into_iter().map(refusal).collect();
    expect![[r#"
        1:11: redirect: there is no location; add http_to_https, uri or regex_uri
        1:17: redirect.uri: a place to go to has at least two characters
        1:11: redirect: only one of `http_to_https`, `uri` and `regex_uri` can be configured; keep one of them
        1:11: redirect: only one of `http_to_https`, `uri` and `regex_uri` can be configured; keep one of them
        1:11: redirect.append_query_string: only one of `http_to_https` and `append_query_string` can be configured; the query is kept without it
        1:23: redirect.regex_uri: `regex_uri` has two items; write a regular expression and what takes the place of its match
        1:23: redirect.regex_uri[0]: not a regular expression: unclosed group
        1:23: redirect.regex_uri[1]: "$" must be followed by the number of a group; write "$$" for a dollar
        accepted
        1:31: redirect.ret_code: expected a whole number from 200 to 599, found the number 199
    "#]].assert_eq(&text);
}
