//! `hmac-auth`: signatures over parts of a request.

use super::consumers::{consumers, refusal};
use crate::harness::{OK, Plugins, plugins};
use aws_lc_rs::{digest, hmac};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use expect_test::{Expect, expect};

const NOW: u64 = 1_700_000_000;
const DATE: &str = "Tue, 14 Nov 2023 22:13:20 GMT";

fn with(config: &str) -> Plugins {
    let consumers = consumers(&[
        ("jack", &[("custom_id", "7")], "hmac-auth: {key_id: k, secret_key: the secret}"),
        ("anonymous", &[], "{}"),
    ]);
    let plugins = plugins(config).expect("a good configuration").with_consumers(consumers);
    plugins.set_now_ms(NOW * 1000 + 999);
    plugins
}

/// `Authorization` for a signed text.
fn signed(algorithm: &str, headers: &str, text: &str) -> String {
    let with = match algorithm {
        "hmac-sha1" => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
        "hmac-sha512" => hmac::HMAC_SHA512,
        _ => hmac::HMAC_SHA256,
    };
    let signature = STANDARD.encode(hmac::sign(&hmac::Key::new(with, b"the secret"), text.as_bytes()));
    format!(
        "\nAuthorization: Signature keyId=\"k\",algorithm=\"{algorithm}\",headers=\"{headers}\",signature=\"{signature}\""
    )
}

fn ask(plugins: &Plugins, request: &str) -> String {
    super::part(&plugins.run(request, OK))
}

/// Whether a request is admitted as jack's.
fn is_jack(plugins: &Plugins, fields: &str) -> bool {
    ask(plugins, &format!("GET /a?b=%7e HTTP/1.1\nHost: h{fields}\n\n")).contains("X-Consumer-Username: jack")
}

fn usual() -> String {
    signed("hmac-sha256", "@request-target date", &format!("k\nGET /a?b=%7e\ndate: {DATE}\n"))
}

#[test]
fn a_good_signature_says_who_asks() {
    let plugins = with("hmac-auth: {hide_credentials: true}");
    expect![[r#"
        > GET /a?b=%7e
        > Host: h
        > Date: Tue, 14 Nov 2023 22:13:20 GMT
        > X-Consumer-Username: jack
        > X-Consumer-Custom-ID: 7
    "#]]
    .assert_eq(&ask(&plugins, &format!("GET /a?b=%7e HTTP/1.1\nHost: h\nDate: {DATE}{}\n\n", usual())));
    for algorithm in ["hmac-sha1", "hmac-sha512"] {
        let fields = signed(algorithm, "date", &format!("k\ndate: {DATE}\n"));
        assert!(is_jack(&plugins, &format!("\nDate: {DATE}{fields}")), "{algorithm}");
    }
    // Names as the client has written them, in its order; absent fields are left out.
    let text = format!("k\nX-A: 1\nDATE: {DATE}\nhost: h\nGET /a?b=%7e\n");
    let fields = signed("hmac-sha256", "X-A DATE host x-b @request-target", &text);
    assert!(is_jack(&plugins, &format!("\nx-a: 1\ndate: {DATE}{fields}")));
    // For clients that cannot set `Date`.
    let fields = signed("hmac-sha256", "x-date", &format!("k\nx-date: {DATE}\n"));
    assert!(is_jack(&plugins, &format!("\nX-Date: {DATE}{fields}")));
}

#[test]
fn what_was_changed_behind_the_signature_is_refused() {
    let plugins = with("hmac-auth: {}");
    let date = format!("\nDate: {DATE}");
    assert!(is_jack(&plugins, &(date.clone() + &usual())));
    let method = format!("POST /a?b=%7e HTTP/1.1\nHost: h{date}{}\n\n", usual());
    let target = format!("GET /a?b=~ HTTP/1.1\nHost: h{date}{}\n\n", usual());
    for request in [method, target] {
        expect![[r#"
            < 401
            < WWW-Authenticate: hmac realm="hmac"
            < "{\"message\":\"client request can't be validated\"}\n"
        "#]]
        .assert_eq(&ask(&plugins, &request));
    }
    let a = |headers: &str, text: &str| signed("hmac-sha256", headers, &format!("k\n{text}"));
    let refused = [
        ("another date", format!("\nDate: Tue, 14 Nov 2023 22:13:21 GMT{}", usual())),
        ("no date", usual()),
        ("a second date", format!("{date}\nDate: {DATE}{}", usual())),
        ("reordered", date.clone() + &usual().replace("@request-target date", "date @request-target")),
        ("less is said to be signed", date.clone() + &usual().replace("@request-target date", "date")),
        ("another algorithm", date.clone() + &usual().replace("sha256", "sha512")),
        ("no algorithm", date.clone() + &usual().replace("algorithm", "algo")),
        ("another key", date.clone() + &usual().replace("\"k\"", "\"jack\"")),
        ("no key", date.clone() + &usual().replace("keyId", "keyid")),
        ("no signature", date.clone() + &usual().replace("signature=", "sig=")),
        ("a short signature", date.clone() + &signed("hmac-sha256", "date", "").replace("=\"\n", "\"")),
        (
            "an empty signature",
            format!(
                "{date}\nAuthorization: Signature keyId=\"k\",algorithm=\"hmac-sha256\",headers=\"date\",signature=\"\""
            ),
        ),
        ("the date is not signed", date.clone() + &a("@request-target", "GET /a?b=%7e\n")),
        ("nothing is signed", date.clone() + &a("", "")),
        // The signed `date` is absent, and the date that counts is not signed.
        ("x-date beside a signed date", format!("\nX-Date: {DATE}{}", a("date", ""))),
        (
            "a second line of a signed field",
            format!("{date}\nx-a: 1\nx-a: 2{}", a("date x-a", &format!("date: {DATE}\nx-a: 1\n"))),
        ),
    ];
    for (what, fields) in refused {
        assert!(!is_jack(&plugins, &fields), "{what}");
    }
    let joined = a("date x-a", &format!("date: {DATE}\nx-a: 1, 2\n"));
    assert!(is_jack(&plugins, &format!("{date}\nx-a: 1\nx-a: 2{joined}")));
}

/// Before the signature is known to be right, a client decides how much is signed.
#[test]
fn each_part_is_signed_once() {
    let plugins = with("hmac-auth: {}");
    let date = format!("\nDate: {DATE}\nx-a: 1");
    let a = |headers: &str, text: &str| signed("hmac-sha256", headers, &format!("k\n{text}"));
    assert!(is_jack(&plugins, &format!("{date}{}", a("date x-a", &format!("date: {DATE}\nx-a: 1\n")))));
    let twice = a("date x-a X-A", &format!("date: {DATE}\nx-a: 1\nX-A: 1\n"));
    assert!(!is_jack(&plugins, &format!("{date}{twice}")));
    let names = |count: usize| (0..count).map(|number| format!(" x-{number}")).collect::<String>();
    for (count, expected) in [(31, true), (32, false)] {
        let many = a(&format!("date{}", names(count)), &format!("date: {DATE}\n"));
        assert_eq!(is_jack(&plugins, &format!("{date}{many}")), expected, "{count}");
    }
}

#[test]
fn the_date_must_be_close() {
    let plugins = with("hmac-auth: {clock_skew: 10}");
    let at = |date: &str| {
        is_jack(&plugins, &format!("\nDate: {date}{}", signed("hmac-sha256", "date", &format!("k\ndate: {date}\n"))))
    };
    assert!(at("Tue, 14 Nov 2023 22:13:10 GMT") && at("Tue, 14 Nov 2023 22:13:30 GMT"));
    assert!(at("Tuesday, 14-Nov-23 22:13:20 GMT") && at("Tue Nov 14 22:13:20 2023"));
    assert!(!at("Tue, 14 Nov 2023 22:13:09 GMT") && !at("Tue, 14 Nov 2023 22:13:31 GMT"));
    for broken in
        ["", "now", "1700000000", "2023-11-14T22:13:20Z", "Tue, 14 Nov 1923 22:13:20 GMT", "Tue, 14 Nov 2023 22:13:20"]
    {
        assert!(!at(broken), "{broken}");
    }
}

#[test]
fn what_must_be_signed_is_configured() {
    let date = format!("\nDate: {DATE}");
    let plugins = with("hmac-auth: {signed_headers: [date, X-Tenant], allowed_algorithms: [hmac-sha512]}");
    let text = format!("k\ndate: {DATE}\nx-tenant: a\n");
    assert!(is_jack(&plugins, &format!("{date}\nX-Tenant: a{}", signed("hmac-sha512", "date x-tenant", &text))));
    assert!(!is_jack(&plugins, &format!("{date}\nX-Tenant: a{}", signed("hmac-sha256", "date x-tenant", &text))));
    assert!(!is_jack(&plugins, &(date.clone() + &signed("hmac-sha512", "date", &format!("k\ndate: {DATE}\n")))));
    // An empty list requires nothing.
    let plugins = with("hmac-auth: {signed_headers: []}");
    let nothing = signed("hmac-sha256", "", "k\n").replace("headers=\"\",", "");
    assert!(is_jack(&plugins, &(date + &nothing)));
    assert!(!is_jack(&plugins, &nothing), "the date must be there");
}

#[test]
fn the_body_is_validated() {
    let plugins = with("hmac-auth: {validate_request_body: true, signed_headers: [date, digest]}");
    let is_good = |body: &str, digest: &str| {
        let text = format!("k\ndate: {DATE}\ndigest: {digest}\n");
        let fields = signed("hmac-sha256", "date digest", &text);
        let length = body.len();
        let request = format!(
            "POST / HTTP/1.1\nHost: h\nContent-Length: {length}\nDate: {DATE}\nDigest: {digest}{fields}\n\n{body}"
        );
        ask(&plugins, &request).contains("X-Consumer-Username: jack")
    };
    let digest = |body: &str| format!("SHA-256={}", STANDARD.encode(digest::digest(&digest::SHA256, body.as_bytes())));
    for body in ["", "a", &"b".repeat(16 * 1024), &"c".repeat(100_000)] {
        assert!(is_good(body, &digest(body)), "{} bytes", body.len());
        assert!(!is_good(body, &digest("other")), "{} bytes", body.len());
        assert!(!is_good(&format!("{body}x"), &digest(body)), "{} bytes", body.len());
    }
    for broken in ["", "SHA-256=", "SHA-256=YQ==", "SHA-512=YQ==", "sha-256=x"] {
        assert!(!is_good("a", broken), "{broken}");
    }
    let none = format!(
        "GET /a?b=%7e HTTP/1.1\nHost: h\nDate: {DATE}{}\n\n",
        signed("hmac-sha256", "date digest", &format!("k\ndate: {DATE}\n"))
    );
    assert!(!ask(&plugins, &none).contains("jack"), "no digest");
}

#[test]
fn others_are_answered_401() {
    let plugins = with("hmac-auth: {realm: the gate}");
    expect![[r#"
        < 401
        < WWW-Authenticate: hmac realm="the gate"
        < "{\"message\":\"client request can't be validated: missing Authorization header\"}\n"
    "#]]
    .assert_eq(&ask(&plugins, "GET / HTTP/1.1\nHost: h\n\n"));
    expect![[r#"
        < 401
        < WWW-Authenticate: hmac realm="the gate"
        < "{\"message\":\"client request can't be validated: Authorization header does not start with 'Signature'\"}\n"
    "#]]
    .assert_eq(&ask(&plugins, "GET / HTTP/1.1\nHost: h\nAuthorization: signature a\n\n"));
    expect![[r#"
        < 401
        < WWW-Authenticate: hmac realm="the gate"
        < "{\"message\":\"client request can't be validated\"}\n"
    "#]]
    .assert_eq(&ask(&plugins, "GET / HTTP/1.1\nHost: h\nAuthorization: Signature\n\n"));
    let plugins = with("hmac-auth: {anonymous_consumer: anonymous, hide_credentials: true}");
    expect![[r#"
        > GET /
        > Host: h
        > X-Consumer-Username: anonymous
    "#]]
    .assert_eq(&ask(&plugins, "GET / HTTP/1.1\nHost: h\nAuthorization: Signature\n\n"));
    let plugins = with("hmac-auth: {anonymous_consumer: nobody}");
    expect![[r#"
        < 401
        < WWW-Authenticate: hmac realm="hmac"
        < "{\"message\":\"Invalid user authorization\"}\n"
    "#]]
    .assert_eq(&ask(&plugins, "GET / HTTP/1.1\nHost: h\n\n"));
}

#[test]
fn what_cannot_work_is_refused() {
    let config = |yaml: &str, expected: Expect| expected.assert_eq(&super::harness::refusal(yaml));
    config(
        "hmac-auth: {allowed_algorithms: [], clock_skew: 0, max_req_body_size: 0}",
        expect![[r#"
            1:33: hmac-auth.allowed_algorithms: an empty list; name at least one, or remove the key
            1:49: hmac-auth.clock_skew: expected a whole number, 1 or more, found the number 0
            1:71: hmac-auth.max_req_body_size: expected a whole number from 1 to 1073741824, found the number 0
        "#]],
    );
    config(
        "hmac-auth: {allowed_algorithms: [hmac-md5], signed_headers: [''], realm: ''}",
        expect![[r#"
        1:34: hmac-auth.allowed_algorithms[0]: expected hmac-sha1, hmac-sha256 or hmac-sha512, found the text "hmac-md5"
        1:62: hmac-auth.signed_headers[0]: the name of a signed field has 1 to 50 characters
        1:74: hmac-auth.realm: "" is not a realm; use printable ASCII characters other than '"' and '\'
    "#]],
    );
    config(
        &format!("hmac-auth: {{signed_headers: [date{}]}}", ", x".repeat(32)),
        expect![[r#"
            1:12: hmac-auth.signed_headers: more than 32 fields; name those that matter
        "#]],
    );
    let credential = |yaml: &str, expected: Expect| expected.assert_eq(&refusal(yaml));
    credential(
        "hmac-auth: {key_id: a}",
        expect![[r#"
        1:12: hmac-auth: the key "secret_key" is missing; add it
    "#]],
    );
    credential(
        "hmac-auth: {key_id: '', secret_key: b, algorithm: hmac-sha1}",
        expect![[r#"
        1:21: hmac-auth.key_id: a secret cannot be empty
        1:40: hmac-auth.algorithm: unknown key "algorithm"; known keys: key_id, secret_key
    "#]],
    );
    credential(
        &format!("hmac-auth: {{key_id: {}, secret_key: b}}", "a".repeat(257)),
        expect![[r#"
        1:21: hmac-auth.key_id: it has more than 256 characters
    "#]],
    );
}
