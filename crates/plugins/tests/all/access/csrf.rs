//! `csrf`.

use super::verdict;
use crate::harness::{OK, plugins, refusal};
use expect_test::expect;

/// The token in a response's cookie.
fn token(text: &str) -> &str {
    let cookie = text.split("< Set-Cookie: ").nth(1).expect("a cookie");
    let (pair, attributes) = cookie.split_once(';').expect("attributes");
    let attributes = attributes.lines().next().unwrap();
    assert_eq!(attributes, "path=/;SameSite=Lax;Expires=Thu, 01-Jan-70 02:16:40 GMT");
    pair.split_once('=').unwrap().1
}

#[test]
fn a_token_of_ours_is_asked_for_where_something_changes() {
    let plugins = plugins("csrf: {key: secret, name: X-Token}").unwrap();
    plugins.worker.set_now_ms(1_000_000);
    let first = plugins.run("GET / HTTP/1.1\nHost: h", OK);
    let (one, second) = (token(&first), plugins.run("HEAD / HTTP/1.1\nHost: h", OK));
    assert_ne!(one, token(&second));
    for method in ["GET", "HEAD", "OPTIONS"] {
        assert_eq!(verdict(&plugins, &format!("{method} / HTTP/1.1\nHost: h")), "passes");
    }
    let check = |lines: &str, expected: &str| {
        for method in ["POST", "PUT", "DELETE", "PURGE", "GETS"] {
            let request = format!("{method} / HTTP/1.1\nHost: h\n{lines}");
            let found = verdict(&plugins, request.trim_end());
            match expected {
                "passes" => assert_eq!(found, expected, "{lines}"),
                // A refusal has a new token, too.
                _ => {
                    assert!(found.starts_with("401 Set-Cookie: X-Token="), "{found}");
                    assert!(found.ends_with(&format!(r#""{{\"error_msg\":\"{expected}\"}}\n""#)), "{found}");
                }
            }
        }
    };
    check("", "no csrf token in headers");
    check("X-Token:", "no csrf token in headers");
    check(&format!("X-Token: {one}"), "no csrf cookie");
    check(&format!("X-Token: {one}\nCookie: x-token={one}"), "no csrf cookie");
    check(&format!("X-Token: {one}\nCookie: X-Token={}", token(&second)), "csrf token mismatch");
    check("X-Token: x\nCookie: X-Token=x", "Failed to verify the csrf token signature");
    check(&format!("x-token: {one}\nCookie: a=b; X-Token={one}"), "passes");
    // The first of several lines and cookies counts.
    check(&format!("X-Token: {one}\nX-Token: x\nCookie: X-Token={one}; X-Token=x"), "passes");
    plugins.worker.set_now_ms((1_000 + 7_200) * 1_000);
    check(&format!("X-Token: {one}\nCookie: X-Token={one}"), "passes");
    plugins.worker.set_now_ms((1_000 + 7_201) * 1_000);
    check(&format!("X-Token: {one}\nCookie: X-Token={one}"), "Failed to verify the csrf token signature");
}

#[test]
fn another_key_makes_other_tokens() {
    let (one, other) = (plugins("csrf: {key: one, expires: 0}").unwrap(), plugins("csrf: {key: other}").unwrap());
    let text = one.run("GET / HTTP/1.1\nHost: h", OK);
    let token = text.split("apisix-csrf-token=").nth(1).unwrap().split(';').next().unwrap();
    let request = format!("POST / HTTP/1.1\nHost: h\napisix-csrf-token: {token}\nCookie: apisix-csrf-token={token}");
    assert!(verdict(&other, &request).contains("Failed to verify"));
    one.worker.set_now_ms(u64::MAX);
    assert_eq!(verdict(&one, &request), "passes", "it never ends");
}

#[test]
fn bad_configurations_are_refused() {
    let all: String = [
        "csrf: {}",
        "csrf: {key: \"\"}",
        "csrf: {key: a, name: \"a b\"}",
        "csrf: {key: a, name: Connection}",
        "csrf: {key: a, expires: soon}",
        "csrf: {key: a, expires: 99999999999}",
    ]
    .map(refusal)
    .concat();
    expect![[r#"
        1:7: csrf: the key "key" is missing; add it
        1:13: csrf.key: a secret cannot be empty
        1:22: csrf.name: not the name of a header field: letters, digits and !#$%&'*+-.^_`|~ only
        1:22: csrf.name: this field frames the message or belongs to one connection; the gateway sets it
        1:25: csrf.expires: expected a whole number from -3153600000 to 3153600000, found the text "soon"
        1:25: csrf.expires: expected a whole number from -3153600000 to 3153600000, found the number 99999999999
    "#]]
    .assert_eq(&all);
}
