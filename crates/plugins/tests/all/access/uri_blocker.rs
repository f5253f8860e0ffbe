//! `uri-blocker`.

use super::outcome;
use crate::harness::refusal;
use expect_test::expect;

fn check(keys: &str, target: &str, expected: &str) {
    let request = format!("GET {target} HTTP/1.1\nHost: h.example");
    assert_eq!(outcome(&format!("uri-blocker: {keys}"), &request), expected, "{keys} {target}");
}

fn is_blocked(keys: &str, target: &str) -> bool {
    let request = format!("GET {target} HTTP/1.1\nHost: h.example");
    match outcome(&format!("uri-blocker: {keys}"), &request).as_str() {
        "passes" => false,
        answer => {
            assert!(answer.starts_with("403 \"<html>") && answer.contains("403 Forbidden"), "{answer}");
            true
        }
    }
}

#[test]
fn rules_see_path_and_query() {
    let keys = r#"{block_rules: ["root.exe", "root.m+", "^/internal/", "\\?.*select", "\\.php$"]}"#;
    for target in ["/a/root.exe", "/root.mmm", "/internal/", "/x?q=1&select", "/x?root!exe", "/a.php", "/x?y.php"] {
        assert!(is_blocked(keys, target), "{target}");
    }
    for target in ["/a/root-e.xe", "/ROOT.EXE", "/a/internal/", "/select", "/a.php?", "/a.php5"] {
        assert!(!is_blocked(keys, target), "{target}");
    }
    assert!(!is_blocked("{block_rules: []}", "/"), "APISIX takes an empty list");
}

#[test]
fn what_is_written_otherwise_is_seen_too() {
    let keys = r#"{block_rules: ["^/admin/x"]}"#;
    for target in ["/%61dmin/x", "/a/../admin/x", "//admin/./x?y", "/%61dmin/x?y", "http://h.example/admin/x"] {
        assert!(is_blocked(keys, target), "{target}");
    }
    assert!(!is_blocked(keys, "/?/admin/x"));
    // The undecoded form, too.
    assert!(is_blocked(r#"{block_rules: ["%61"]}"#, "/%61dmin"));
    assert!(is_blocked(r#"{block_rules: ["^//"]}"#, "//a"));
    assert!(is_blocked(r#"{block_rules: ["/a\\?b=%3c$"]}"#, "/%61?b=%3c"));
}

#[test]
fn what_nodes_may_read_is_seen_too() {
    for target in ["/x?b=%3cscript", "/%61?b=%3Cscript%3E", "/x?b=1&%3Cscript"] {
        assert!(is_blocked(r#"{block_rules: ["<script"]}"#, target), "{target}");
    }
    assert!(is_blocked(r#"{block_rules: ["union select"]}"#, "/x?q=1+union+select"));
    assert!(is_blocked(r#"{block_rules: ["union select"]}"#, "/x?q=1%20%75nion%20select"));
    for target in ["/x%2F..%2Fadmin/", "/x%2f%2e%2e%2fadmin/", "/x%5c..%5Cadmin/", "/%2Fadmin/", "/x\\..\\admin/"] {
        assert!(is_blocked(r#"{block_rules: ["^/admin/"]}"#, target), "{target}");
    }
    for target in ["/a%2Fb", "/a/b", "/a%5cb"] {
        assert!(is_blocked(r#"{block_rules: ["^/a/b$"]}"#, target), "{target}");
    }
    assert!(is_blocked(r#"{block_rules: ["cmd\\.exe"]}"#, "/a%5ccmd%2eexe"));
    // Dot segments that the normalised path does not have any more, as a node that decodes first sees them.
    for target in ["/x/%2e%2e/etc/passwd", "/x/%2E./etc/passwd", "/x/.%2e/etc/passwd?a", "/x%2f%2e%2e%2fetc"] {
        assert!(is_blocked(r#"{block_rules: ["\\.\\./"]}"#, target), "{target}");
    }
    assert!(is_blocked(r#"{block_rules: ["^/x//y$"]}"#, "/%78//y"));
    // Decoded once, as nodes do.
    assert!(!is_blocked(r#"{block_rules: ["<"]}"#, "/x?b=%253c"));
    assert!(!is_blocked(r#"{block_rules: ["^/admin"]}"#, "/x%252fadmin"));
}

#[test]
fn case_and_flags() {
    assert!(is_blocked(r#"{block_rules: ["Select.*", b], case_insensitive: true}"#, "/SELECT"));
    assert!(is_blocked(r#"{block_rules: ["(?i)a", b]}"#, "/B"), "as if the rules were joined by |");
    assert!(is_blocked(r#"{block_rules: ["x(?i)|y", b]}"#, "/B"));
    assert!(!is_blocked(r#"{block_rules: ["(?i:a)", b]}"#, "/B"));
    assert!(is_blocked(r#"{block_rules: ["(?x)a # all else", b]}"#, "/b"));
    assert!(!is_blocked(r#"{block_rules: [b, "(?i)a"]}"#, "/B"));
}

#[test]
fn status_and_message_can_be_changed() {
    let keys = r#"{block_rules: [a], rejected_code: 451, rejected_msg: "not \"this\""}"#;
    check(keys, "/a", r#"451 "{\"error_msg\":\"not \\\"this\\\"\"}\n""#);
    check("{block_rules: [a], rejected_code: 200}", "/a", r#"200 """#);
}

#[test]
fn texts_that_no_rule_was_made_for() {
    let rules: Vec<String> = (0..200).map(|number| format!("\"w{number}a.*w{number}b.*w{number}c\"")).collect();
    let keys = format!("{{block_rules: [{}]}}", rules.join(","));
    let mut hostile: String = (0..200).map(|number| format!("w{number}a")).collect();
    hostile.push_str(&"w1b".repeat(1500));
    assert!(!is_blocked(&keys, &format!("/{hostile}")));
    assert!(is_blocked(&keys, &format!("/{hostile}w199b-w199c")));
}

#[test]
fn bad_configurations_are_refused() {
    let all: String = [
        "uri-blocker: {}",
        "uri-blocker: {block_rules: []}",
        "uri-blocker: {block_rules: [a, b, a]}",
        "uri-blocker: {block_rules: [a, \"b(\"]}",
        "uri-blocker: {block_rules: [\"(?<=a)b\"]}",
        "uri-blocker: {block_rules: [\"(a)\\\\1\"]}",
        "uri-blocker: {block_rules: [\"(?:[ab]{200}c){20}\", \"[ab]*a[ab]{1990}\"]}",
        "uri-blocker: {block_rules: [a], rejected_code: 600}",
        "uri-blocker: {block_rules: [a], rejected_msg: \"\"}",
        "uri-blocker: {block_rules: [a], case_insensitive: maybe}",
    ]
    .map(refusal)
    .concat();
    expect![[r#"
        1:14: uri-blocker: the key "block_rules" is missing; add it
        accepted
        1:14: uri-blocker.block_rules[2]: the rule "a" is given twice; remove it
        1:32: uri-blocker.block_rules[1]: not a regular expression: unclosed group
        1:29: uri-blocker.block_rules[0]: not a regular expression: look-around, including look-ahead and look-behind, is not supported; write it without: matching takes linear time, which rules them out
        1:29: uri-blocker.block_rules[0]: not a regular expression: backreferences are not supported; write it without: matching takes linear time, which rules them out
        1:14: uri-blocker.block_rules[0]: matching the rule takes too much time; write it with smaller repetitions, or without
        1:48: uri-blocker.rejected_code: expected a whole number from 200 to 599, found the number 600
        1:47: uri-blocker.rejected_msg: the message is empty; write one, or remove the key
        1:51: uri-blocker.case_insensitive: expected true or false, found the text "maybe"
    "#]].assert_eq(&all);
}
