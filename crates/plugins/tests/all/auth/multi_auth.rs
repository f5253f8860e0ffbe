//! `multi-auth`: one of several plugins is enough.

use super::consumers::consumers;
use super::outcome;
use base64::Engine;
use expect_test::{Expect, expect};
use stillgate_plugin_api::Consumers;

fn known() -> Consumers {
    consumers(&[
        ("jack", &[], "{key-auth: {key: jack}, basic-auth: {username: jack, password: one}}"),
        (
            "rose",
            &[],
            &format!("basic-auth: {{username: rose, password: \"{}\"}}", super::basic_auth::HASH_OF_PASSWORD),
        ),
        ("anonymous", &[], "{}"),
    ])
}

#[track_caller]
fn check(config: &str, fields: &str, expected: Expect) {
    expected.assert_eq(&outcome(config, &known(), &format!("GET / HTTP/1.1\nHost: h{fields}")));
}

const BOTH: &str = "multi-auth: {auth_plugins: [{key-auth: {}}, {basic-auth: {hide_credentials: true}}]}";

#[test]
fn one_is_enough() {
    check(
        BOTH,
        "\napikey: jack",
        expect![[r#"
        > GET /
        > Host: h
        > apikey: jack
        > X-Consumer-Username: jack
    "#]],
    );
    check(
        BOTH,
        "\nAuthorization: Basic amFjazpvbmU=",
        expect![[r#"
        > GET /
        > Host: h
        > X-Consumer-Username: jack
    "#]],
    );
    // With a hash, which is compared on another thread.
    check(
        BOTH,
        "\nAuthorization: Basic cm9zZTpwYXNzd29yZA==",
        expect![[r#"
        > GET /
        > Host: h
        > X-Consumer-Username: rose
    "#]],
    );
    check(
        BOTH,
        "\napikey: wrong\nAuthorization: Basic cm9zZTpwYXNzd29yZA==",
        expect![[r#"
        > GET /
        > Host: h
        > apikey: wrong
        > X-Consumer-Username: rose
    "#]],
    );
    check(
        BOTH,
        "\napikey: jack\nAuthorization: Basic cm9zZTpwYXNzd29yZA==",
        expect![[r#"
        > GET /
        > Host: h
        > apikey: jack
        > X-Consumer-Username: jack
    "#]],
    );
    // Several in one item.
    let one = "multi-auth: {auth_plugins: [{key-auth: {}, basic-auth: {}}, {jwt-auth: {}}]}";
    check(
        one,
        "\nAuthorization: Basic amFjazpvbmU=",
        expect![[r#"
        > GET /
        > Host: h
        > Authorization: Basic amFjazpvbmU=
        > X-Consumer-Username: jack
    "#]],
    );
}

/// Clients may send several kinds of credentials, and wrong ones beside the right one.
#[test]
fn all_plugins_that_hide_credentials_do_so() {
    let all = "multi-auth: {auth_plugins: [{key-auth: {hide_credentials: true}}, {jwt-auth: {hide_credentials: true}}, \
               {hmac-auth: {hide_credentials: true}}, {basic-auth: {hide_credentials: true}}]}";
    let everything = "\nCookie: a=b; jwt=token\nAuthorization: Basic cm9zZTp3cm9uZw==\nauthorization: bearer a.b.c\n\
                      Authorization: Signature keyId=\"a\"\nAuthorization: Digest x";
    let get = |target: &str, fields: &str| outcome(all, &known(), &format!("GET {target} HTTP/1.1\nHost: h{fields}"));
    expect![[r#"
        > GET /a?b
        > Host: h
        > X-Consumer-Username: jack
        > Cookie: a=b
        > Authorization: Digest x
    "#]]
    .assert_eq(&get("/a?apikey=jack&jwt=x&b", everything));
    // The last plugin knows the request, and the others have found nothing that is right.
    expect![[r#"
        > GET /a
        > Host: h
        > X-Consumer-Username: jack
    "#]]
    .assert_eq(&get("/a?jwt=wrong", "\napikey: wrong\nAuthorization: Basic amFjazpvbmU="));
    // One of them does not hide its own, which are in the field that others use, too.
    check(
        "multi-auth: {auth_plugins: [{jwt-auth: {hide_credentials: true}}, {basic-auth: {}}]}",
        "\nCookie: jwt=token\nAuthorization: Basic amFjazpvbmU=",
        expect![[r#"
        > GET /
        > Host: h
        > Authorization: Basic amFjazpvbmU=
        > X-Consumer-Username: jack
    "#]],
    );
    // The anonymous consumer has no right credentials at all.
    check(
        "multi-auth: {auth_plugins: [{basic-auth: {hide_credentials: true}}, {key-auth: {anonymous_consumer: anonymous}}]}",
        "\nAuthorization: Basic amFjazp0d28=",
        expect![[r#"
        > GET /
        > Host: h
        > X-Consumer-Username: anonymous
    "#]],
    );
}

#[test]
fn none_is_answered_401() {
    check(
        BOTH,
        "",
        expect![[r#"
        < 401
        < WWW-Authenticate: Basic realm="basic"
        < "{\"message\":\"Authorization Failed\"}\n"
    "#]],
    );
    check(
        BOTH,
        "\napikey: wrong\nAuthorization: Basic cm9zZTpmb28=",
        expect![[r#"
        < 401
        < WWW-Authenticate: Basic realm="basic"
        < "{\"message\":\"Authorization Failed\"}\n"
    "#]],
    );
    let anonymous = "multi-auth: {auth_plugins: [{basic-auth: {}}, {key-auth: {anonymous_consumer: anonymous}}]}";
    check(
        anonymous,
        "",
        expect![[r#"
        > GET /
        > Host: h
        > X-Consumer-Username: anonymous
    "#]],
    );
}

#[test]
fn an_answer_that_says_nothing_of_the_credentials_is_given() {
    let plugins = super::harness::plugins(BOTH).unwrap().with_consumers(known());
    plugins.set_now_ms(1_700_000_000_000);
    let request = "GET / HTTP/1.1\nHost: h\nAuthorization: Basic cm9zZTpmb28=\n\n";
    let answers: Vec<String> = (0..33).map(|_| super::part(&plugins.run(request, super::OK))).collect();
    assert!(answers[..32].iter().all(|answer| answer.starts_with("< 401")));
    expect![[r#"
        < 429
        < Retry-After: 4
        < "{\"message\":\"Too many attempts\"}\n"
    "#]]
    .assert_eq(&answers[32]);
}

#[test]
fn what_cannot_work_is_refused() {
    let check = |yaml: &str, expected: Expect| expected.assert_eq(&super::harness::refusal(yaml));
    check(
        "multi-auth: {}",
        expect![[r#"
        1:13: multi-auth: the key "auth_plugins" is missing; add it
    "#]],
    );
    check(
        "multi-auth: {auth_plugins: [{key-auth: {}}]}",
        expect![[r#"
        1:28: multi-auth.auth_plugins: one of several needs at least two plugins; add one, or use the plugin by itself
    "#]],
    );
    check(
        "multi-auth: {auth_plugins: {key-auth: {}}}",
        expect![[r#"
        1:28: multi-auth.auth_plugins: expected a list such as [{key-auth: {}}, {basic-auth: {}}], found a map
    "#]],
    );
    check(
        "multi-auth: {auth_plugins: [{key-auth: {}}, {cors: {}}, {multi-auth: {}}, {no-auth: {}}, a]}",
        expect![[r#"
            1:46: multi-auth.auth_plugins[1].cors: "cors" is not a plugin that authenticates by itself; use one of hmac-auth, basic-auth, jwt-auth, key-auth
            1:58: multi-auth.auth_plugins[2].multi-auth: "multi-auth" is not a plugin that authenticates by itself; use one of hmac-auth, basic-auth, jwt-auth, key-auth
            1:76: multi-auth.auth_plugins[3].no-auth: "no-auth" is not a plugin that authenticates by itself; use one of hmac-auth, basic-auth, jwt-auth, key-auth
            1:90: multi-auth.auth_plugins[4]: expected a map such as {key-auth: {}}, found a text
        "#]],
    );
    check(
        "multi-auth: {auth_plugins: [{key-auth: {header: 'a b'}}, {jwt-auth: {nonsense: 1}}]}",
        expect![[r#"
        1:49: multi-auth.auth_plugins[0].key-auth.header: "a b": not the name of a header field: letters, digits and !#$%&'*+-.^_`|~ only
        1:70: multi-auth.auth_plugins[1].jwt-auth.nonsense: unknown key "nonsense"; known keys: header, query, cookie, hide_credentials, key_claim_name, store_in_ctx, anonymous_consumer, realm, claims_to_verify
    "#]],
    );
}

/// Fields that one plugin has set are for its own answer.
#[test]
fn fields_of_a_failed_plugin_are_not_in_the_answer_of_another() {
    let config = "multi-auth: {auth_plugins: [{basic-auth: {}}, {key-auth: {}}]}";
    let plugins = super::harness::plugins(config).unwrap().with_consumers(known());
    plugins.set_now_ms(1_700_000_000_000);
    let run = |password: &str, fields: &str| {
        let login = base64::engine::general_purpose::STANDARD.encode(format!("rose:{password}"));
        let request = format!("GET / HTTP/1.1\nHost: h\nAuthorization: Basic {login}{fields}\n\n");
        plugins.run(&request, super::OK)
    };
    for at in 0..32 {
        run(&at.to_string(), "");
    }
    let nobody = run("wrong", "");
    assert!(nobody.contains("< 429") && nobody.contains("< Retry-After: "), "{nobody}");
    assert!(!nobody.contains("WWW-Authenticate"), "{nobody}");
    let jack = run("wrong", "\napikey: jack");
    assert!(jack.contains("X-Consumer-Username: jack") && jack.contains("< 200"), "{jack}");
    assert!(!jack.contains("Retry-After") && !jack.contains("WWW-Authenticate"), "{jack}");
}
