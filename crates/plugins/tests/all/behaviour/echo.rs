//! `echo`

use super::{check, harness, run};
use expect_test::expect;
use flate2::{Compression, write::GzEncoder};
use harness::{plugins, refusal};
use std::io::Write;

const GET: &str = "GET / HTTP/1.1\nHost: h\n\n";

#[test]
fn texts_stand_around_and_in_place_of_the_body() {
    check(
        "echo: {before_body: '[', after_body: ']', headers: {X-A: b, X-N: 5}}",
        GET,
        expect![[r#"
        > GET /
        > Host: h
        < 200
        < Content-Type: text/plain
        < X-A: b
        < X-N: 5
        < "[hello world\n]"
    "#]],
    );
    check(
        "echo: {before_body: '[', body: new, after_body: ']'}",
        GET,
        expect![[r#"
        > GET /
        > Host: h
        < 200
        < Content-Type: text/plain
        < "[new]"
    "#]],
    );
    check(
        "echo: {after_body: ']'}",
        GET,
        expect![[r#"
        > GET /
        > Host: h
        < 200
        < Content-Type: text/plain
        < "hello world\n]"
    "#]],
    );
    let response = "HTTP/1.1 200 OK\nETag: \"a\"\nLast-Modified: x\nContent-Encoding: identity\n\n";
    expect![[r#"
        > GET /
        > Host: h
        < 200
        < "b"
    "#]]
    .assert_eq(&run("echo: {before_body: b}", GET, response));
}

#[test]
fn empty_texts_leave_the_body() {
    expect![[r#"
        > GET /
        > Host: h
        < 200
        < X-A: b
        < ""
    "#]]
    .assert_eq(&run("echo: {before_body: '', headers: {X-A: b}}", GET, "HTTP/1.1 200 OK\nETag: \"a\"\n\n"));
}

#[test]
fn a_body_in_a_coding_goes_on_without() {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(b"hello").unwrap();
    let gzip = encoder.finish().unwrap();
    let plugins = plugins("echo: {before_body: '[', after_body: ']'}").unwrap();
    for middle in 0..gzip.len() {
        let (first, rest) = gzip.split_at(middle);
        let head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n";
        let transcript = plugins.exchange(GET, head, &[first, rest]);
        assert!(transcript.ends_with("< 200\n< \"[hello]\"\n"), "{transcript}");
    }
}

#[test]
fn bad_configurations_are_refused() {
    let all = [
        "echo: {}",
        "echo: {headers: {a: b}}",
        "echo: {body: a, headers: {a: \"b\\nc\"}}",
        "echo: {body: a, headers: {a: [b]}}",
    ];
    let text: String = all.into_iter().map(refusal).collect();
    expect![[r#"
        1:7: echo: there is nothing to put anywhere; add before_body, body or after_body
        1:7: echo: there is nothing to put anywhere; add before_body, body or after_body
        1:27: echo.headers.a: a header value cannot hold control characters such as line breaks
        1:30: echo.headers.a: expected a text or a number, found a list
    "#]]
    .assert_eq(&text);
}
