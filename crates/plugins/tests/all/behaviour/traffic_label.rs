//! `traffic-label`

use super::{check, harness};
use expect_test::expect;
use harness::{OK, plugins, refusal};

#[test]
fn the_first_rule_that_matches_counts() {
    let config = "traffic-label: {rules: [\
        {match: [[uri, '==', /a]], actions: [{set_headers: {X-Label: 'of $remote_addr', X-Old: ''}}]}, \
        {match: [OR, [arg_v, '==', '1'], [arg_v, '==', '2']], actions: [{set_headers: {X-Label: v}}]}, \
        {actions: [{set_headers: {X-Label: other}}]}]}";
    check(
        config,
        "GET /a?v=1 HTTP/1.1\nHost: h\nx-label: client\nX-Old: 1\n\n",
        expect![[r#"
        > GET /a?v=1
        > Host: h
        > X-Label: of 192.0.2.7
        < 200
        < Content-Type: text/plain
        < "hello world\n"
    "#]],
    );
    check(
        config,
        "GET /b?v=2 HTTP/1.1\nHost: h\n\n",
        expect![[r#"
        > GET /b?v=2
        > Host: h
        > X-Label: v
        < 200
        < Content-Type: text/plain
        < "hello world\n"
    "#]],
    );
    check(
        config,
        "GET /b HTTP/1.1\nHost: h\n\n",
        expect![[r#"
        > GET /b
        > Host: h
        > X-Label: other
        < 200
        < Content-Type: text/plain
        < "hello world\n"
    "#]],
    );
    check(
        "traffic-label: {rules: [{match: [[uri, '==', /z]], actions: [{set_headers: {A: b}}]}]}",
        "GET /b HTTP/1.1\nHost: h\n\n",
        expect![[r#"
            > GET /b
            > Host: h
            < 200
            < Content-Type: text/plain
            < "hello world\n"
        "#]],
    );
}

#[test]
fn actions_share_requests_by_their_weights() {
    let config = "traffic-label: {rules: [{actions: [\
        {set_headers: {X: a}, weight: 3}, {set_headers: {X: b}, weight: 2}, {weight: 5}]}]}";
    let plugins = plugins(config).unwrap();
    let labels: String = (0..20)
        .map(|_| {
            let transcript = plugins.run("GET / HTTP/1.1\nHost: h\n\n", OK);
            let label = transcript.lines().find_map(|line| line.strip_prefix("> X: ")).unwrap_or("-");
            label.to_owned()
        })
        .collect();
    assert_eq!(labels, "-ab-a--ba-".repeat(2));
}

#[test]
fn bad_configurations_are_refused() {
    let all = [
        "traffic-label: {}",
        "traffic-label: {rules: []}",
        "traffic-label: {rules: [{}]}",
        "traffic-label: {rules: [{actions: []}]}",
        "traffic-label: {rules: [{match: [], actions: [{weight: 1}]}]}",
        "traffic-label: {rules: [{actions: [{weight: 0}]}]}",
        "traffic-label: {rules: [{actions: [{set_body: a}]}]}",
        "traffic-label: {rules: [{match: [[uri, '?', a]], actions: [{weight: 1}]}]}",
        "traffic-label: {rules: [{actions: [{set_headers: {A: \"b\\r\\nc\"}}]}]}",
    ];
    let text: String = all.into_iter().map(refusal).collect();
    expect![[r#"
        1:16: traffic-label: the key "rules" is missing; add it
        1:24: traffic-label.rules: an empty list; name at least one, or remove the key
        1:25: traffic-label.rules[0]: the key "actions" is missing; add it
        1:35: traffic-label.rules[0].actions: an empty list; name at least one, or remove the key
        1:33: traffic-label.rules[0].match: an empty list; name at least one, or remove the key
        1:45: traffic-label.rules[0].actions[0].weight: expected a whole number from 1 to 1000000, found the number 0
        1:37: traffic-label.rules[0].actions[0].set_body: unknown key "set_body"; known keys: set_headers, weight
        1:40: traffic-label.rules[0].match[0][1]: "?": unknown operator; write one of "==", "~=", ">", ">=", "<", "<=", "~~", "~*", "in", "has", "ipmatch"
        1:51: traffic-label.rules[0].actions[0].set_headers.A: a header value cannot hold control characters such as line breaks
    "#]].assert_eq(&text);
}
