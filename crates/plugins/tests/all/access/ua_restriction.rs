//! `ua-restriction`.

use super::outcome;
use crate::harness::refusal;
use expect_test::expect;

fn check(keys: &str, lines: &str, expected: &str) {
    let request = format!("GET / HTTP/1.1\nHost: h.example\n{lines}");
    assert_eq!(outcome(&format!("ua-restriction: {keys}"), request.trim_end()), expected, "{keys} {lines}");
}

const REFUSED: &str = r#"403 "{\"message\":\"Not allowed\"}\n""#;

#[test]
fn an_allowlist_lets_in_what_one_of_its_rules_matches() {
    let keys = r#"{allowlist: ["my-bot1", "^(Baidu|Google)spider/[0-9]+"]}"#;
    for agent in ["my-bot1", "x my-bot12", "Baiduspider/3.0", "Googlespider/7"] {
        check(keys, &format!("User-Agent: {agent}"), "passes");
    }
    for agent in ["My-bot1", "baiduspider/3.0", "a Baiduspider/3.0", "Baiduspider/x", "\u{fffd}", ""] {
        check(keys, &format!("User-Agent: {agent}"), REFUSED);
    }
    check(keys, "", REFUSED);
    // One of several lines is enough.
    check(keys, "User-Agent: other\nUser-Agent: my-bot1", "passes");
}

#[test]
fn a_denylist_keeps_out_what_one_of_its_rules_matches() {
    let keys = r#"{denylist: ["my-bot2", "(?i)twitterspider"], message: go}"#;
    let refused = r#"403 "{\"message\":\"go\"}\n""#;
    for agent in ["my-bot2", "TwitterSpider/2.0", "a TWITTERSPIDER"] {
        check(keys, &format!("User-Agent: {agent}"), refused);
    }
    check(keys, "User-Agent: curl/8", "passes");
    // One of several lines is enough: two that are denied are refused.
    for lines in ["User-Agent: curl\nUser-Agent: my-bot2", "User-Agent: my-bot2\nuser-agent: my-bot2"] {
        check(keys, lines, refused);
    }
    check(keys, "User-Agent: curl\nUser-Agent: wget", "passes");
}

#[test]
fn what_names_no_agent_can_be_let_in() {
    for list in ["allowlist", "denylist"] {
        check(&format!("{{{list}: [x], bypass_missing: true}}"), "", "passes");
        check(&format!("{{{list}: [x]}}"), "", REFUSED);
    }
    check("{allowlist: [x], bypass_missing: true}", "User-Agent:", REFUSED);
}

#[test]
fn rules_that_explode_take_no_longer() {
    let keys = r#"{denylist: ["(a+)+$", "(x|xx)*y", "(.*)(.*)(.*)(.*)=z"]}"#;
    for agent in [&"a".repeat(7000), &"x".repeat(7000)] {
        let expected = if agent.starts_with('a') { REFUSED } else { "passes" };
        check(keys, &format!("User-Agent: {agent}"), expected);
    }
}

#[test]
fn bad_configurations_are_refused() {
    let all: String = [
        "ua-restriction: {}",
        "ua-restriction: {allowlist: [a], denylist: [b]}",
        "ua-restriction: {allowlist: []}",
        "ua-restriction: {allowlist: [\"\"]}",
        "ua-restriction: {allowlist: [\"a(\"]}",
        "ua-restriction: {denylist: [fine, \"(?=a)\"]}",
        "ua-restriction: {denylist: [\"(a{1000}){1000}\"]}",
        "ua-restriction: {denylist: [fine, \"[ab]*a[ab]{1500}\"]}",
        "ua-restriction: {denylist: [7]}",
    ]
    .map(refusal)
    .concat();
    expect![[r#"
        1:17: ua-restriction: there is no list; add allowlist or denylist
        1:17: ua-restriction: `allowlist` and `denylist` cannot be combined; keep one of the two
        1:29: ua-restriction.allowlist: an empty list; name at least one, or remove the key
        1:30: ua-restriction.allowlist[0]: a regular expression has from 1 to 4096 characters
        1:30: ua-restriction.allowlist[0]: not a regular expression: unclosed group
        1:35: ua-restriction.denylist[1]: not a regular expression: look-around, including look-ahead and look-behind, is not supported; write it without: matching takes linear time, which rules them out
        1:17: ua-restriction.denylist[0]: matching the rule takes too much memory; write it with smaller repetitions, or without
        accepted
        1:29: ua-restriction.denylist[0]: expected a regular expression, found the number 7; write it in quotes: "7"
    "#]].assert_eq(&all);
}
