//! `request-id`

use super::{check, harness, run};
use expect_test::expect;
use harness::{OK, plugins, refusal};

const GET: &str = "GET / HTTP/1.1\nHost: h\n\n";

/// The node's id, and the client's.
fn ids(config: &str, request: &str) -> (Option<String>, Option<String>) {
    let transcript = run(config, request, OK);
    let line = |mark: &str| transcript.lines().find_map(|line| line.strip_prefix(mark)).map(str::to_owned);
    (line("> X-Request-Id: "), line("< X-Request-Id: "))
}

#[test]
fn a_request_without_an_id_gets_one() {
    let check = |algorithm: &str, form: &str| {
        let regex = regex_lite(form);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..200 {
            let (node, client) = ids(&format!("request-id: {{algorithm: {algorithm}}}"), GET);
            let id = node.expect("an id");
            assert_eq!(client.as_ref(), Some(&id));
            assert!(regex.is_match(&id), "{algorithm}: {id}");
            assert!(seen.insert(id));
        }
    };
    check("uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$");
    check("uuidv7", "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$");
    check("nanoid", "^[0-9a-zA-Z_-]{21}$");
    check("range_id", "^[0-9a-zA-Z]{16}$");
    check("ksuid", "^[0-9a-zA-Z]{27}$");
    check("range_id, range_id: {char_set: abcdef, length: 40}", "^[a-f]{40}$");
}

fn regex_lite(form: &str) -> regex::Regex {
    regex::Regex::new(form).unwrap()
}

#[test]
fn an_id_of_the_client_or_of_the_node_is_kept() {
    check(
        "request-id: {}",
        "GET / HTTP/1.1\nHost: h\nx-request-id: mine\n\n",
        expect![[r#"
        > GET /
        > Host: h
        > x-request-id: mine
        < 200
        < Content-Type: text/plain
        < X-Request-Id: mine
        < "hello world\n"
    "#]],
    );
    let (node, client) = ids("request-id: {}", "GET / HTTP/1.1\nHost: h\nX-Request-Id:\n\n");
    assert!(node.is_some_and(|id| id.len() == 36) && client.is_some());
    let response = "HTTP/1.1 200 OK\nx-request-id: of the node\n\n";
    let transcript = run("request-id: {}", "GET / HTTP/1.1\nHost: h\nX-Request-Id: mine\n\n", response);
    expect![[r#"
        > GET /
        > Host: h
        > X-Request-Id: mine
        < 200
        < X-Request-Id: of the node
        < ""
    "#]]
    .assert_eq(&transcript);
}

#[test]
fn the_client_does_not_get_it_where_the_key_says_so() {
    check(
        "request-id: {include_in_response: false, header_name: X-Trace}",
        "GET / HTTP/1.1\nHost: h\nX-Trace: 1\n\n",
        expect![[r#"
            > GET /
            > Host: h
            > X-Trace: 1
            < 200
            < Content-Type: text/plain
            < "hello world\n"
        "#]],
    );
}

#[test]
fn answers_of_plugins_carry_it_too() {
    check(
        "request-id: {}\nworkflow: {rules: [{actions: [[return, {code: 403}]]}]}",
        "GET / HTTP/1.1\nHost: h\nX-Request-Id: 1\n\n",
        expect![[r#"
            > workflow answers
            < 403
            < X-Request-Id: 1
            < "{\"error_msg\":\"rejected by workflow\"}\n"
        "#]],
    );
}

#[test]
fn bad_configurations_are_refused() {
    let all = [
        "request-id: {header_name: 'a b'}",
        "request-id: {header_name: Content-Length}",
        "request-id: {algorithm: snowflake}",
        "request-id: {range_id: {length: 5}}",
        "request-id: {range_id: {char_set: abc}}",
        "request-id: {range_id: {char_set: \"ab\\r\\ncdef\"}}",
    ];
    let text: String = all.into_iter().map(refusal).collect();
    expect![[r#"
        1:27: request-id.header_name: "a b": not the name of a header field: letters, digits and !#$%&'*+-.^_`|~ only
        1:27: request-id.header_name: "Content-Length": this field frames the message or belongs to one connection; the gateway sets it
        1:25: request-id.algorithm: expected uuid, nanoid, range_id, ksuid or uuidv7, found the text "snowflake"
        1:33: request-id.range_id.length: expected a whole number from 6 to 1024, found the number 5
        1:35: request-id.range_id.char_set: "abc" cannot make ids; write at least six printable ASCII characters without blanks
        1:35: request-id.range_id.char_set: "ab\r\ncdef" cannot make ids; write at least six printable ASCII characters without blanks
    "#]].assert_eq(&text);
    assert!(plugins("request-id: {range_id: {length: 1024}}").is_ok());
}
