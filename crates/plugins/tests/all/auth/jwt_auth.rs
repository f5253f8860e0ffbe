//! `jwt-auth`: valid and forged tokens.

use super::consumers::consumers;
use crate::harness::{OK, Plugins, plugins};
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use expect_test::{Expect, expect};
use stillgate_plugin_api::Consumers;

/// The time of all requests, in seconds.
const NOW: u64 = 1_700_000_000;

pub(super) fn encode(text: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(text)
}

/// A token signed with HMAC.
pub(super) fn token(secret: &[u8], header: &str, payload: &str) -> String {
    let signed = format!("{}.{}", encode(header), encode(payload));
    let algorithm = match header {
        _ if header.contains("HS384") => hmac::HMAC_SHA384,
        _ if header.contains("HS512") => hmac::HMAC_SHA512,
        _ => hmac::HMAC_SHA256,
    };
    let signature = hmac::sign(&hmac::Key::new(algorithm, secret), signed.as_bytes());
    format!("{signed}.{}", encode(signature))
}

pub(super) const HS256: &str = r#"{"alg":"HS256","typ":"JWT"}"#;
const SECRET: &[u8] = b"a secret of jack";

fn jack(payload: &str) -> String {
    token(SECRET, HS256, payload)
}

fn known() -> Consumers {
    consumers(&[
        ("jack", &[("custom_id", "7")], "jwt-auth: {key: jack, secret: a secret of jack}"),
        (
            "rose",
            &[],
            "jwt-auth: {key: rose, secret: cm9zZQ, base64_secret: true, algorithm: HS512, lifetime_grace_period: 60}",
        ),
        ("anonymous", &[], "{}"),
    ])
}

pub(super) fn with(config: &str, consumers: &Consumers) -> Plugins {
    let plugins = plugins(config).expect("a good configuration").with_consumers(consumers.clone());
    plugins.set_now_ms(NOW * 1000 + 999);
    plugins
}

fn ask(plugins: &Plugins, target: &str, fields: &str) -> String {
    super::part(&plugins.run(&format!("GET {target} HTTP/1.1\nHost: h{fields}\n\n"), OK))
}

fn bearer(plugins: &Plugins, token: &str) -> String {
    ask(plugins, "/", &format!("\nAuthorization: Bearer {token}"))
}

/// The consumer of a token, or the message that refuses it.
pub(super) fn who(plugins: &Plugins, token: &str) -> String {
    let outcome = bearer(plugins, token);
    match outcome.split_once("X-Consumer-Username: ") {
        Some((_, rest)) => rest.lines().next().unwrap().to_owned(),
        None => outcome.lines().last().unwrap().replace("\\n\"", "").replace('\\', ""),
    }
}

#[test]
fn a_good_token_says_who_asks() {
    let plugins = with("jwt-auth: {hide_credentials: true}", &known());
    // The second time it is cached.
    for _ in 0..2 {
        expect![[r#"
            > GET /
            > Host: h
            > X-Consumer-Username: jack
            > X-Consumer-Custom-ID: 7
        "#]]
        .assert_eq(&bearer(&plugins, &jack(r#"{"key":"jack"}"#)));
        assert_eq!(who(&plugins, &token(b"rose", r#"{"alg":"HS512"}"#, r#"{"key":"rose"}"#)), "rose");
    }
}

#[test]
fn a_token_is_read_from_the_header_the_query_and_a_cookie() {
    let good = jack(r#"{"key":"jack"}"#);
    let plugins = with("jwt-auth: {hide_credentials: true}", &known());
    let check = |target: &str, fields: &str, expected: Expect| {
        let outcome = ask(&plugins, target, fields);
        expected.assert_eq(&outcome.replace(&good, "TOKEN"));
    };
    let field = format!("\nAuthorization: {good}\nCookie: a=b; jwt=x");
    check(
        "/?jwt=x",
        &field,
        expect![[r#"
        > GET /
        > Host: h
        > Cookie: a=b
        > X-Consumer-Username: jack
        > X-Consumer-Custom-ID: 7
    "#]],
    );
    check(
        "/?jwt=x",
        &format!("\nauthorization: bearer {good}"),
        expect![[r#"
        > GET /
        > Host: h
        > X-Consumer-Username: jack
        > X-Consumer-Custom-ID: 7
    "#]],
    );
    check(
        &format!("/?a=%7e&jwt={good}&b"),
        "\nCookie: jwt=x",
        expect![[r#"
        > GET /?a=%7e&b
        > Host: h
        > X-Consumer-Username: jack
        > X-Consumer-Custom-ID: 7
    "#]],
    );
    check(
        "/",
        &format!("\nCookie: a=\"b c\"; jwt={good};c=/d\nCookie: e=f; jwt=x"),
        expect![[r#"
        > GET /
        > Host: h
        > Cookie: a="b c"; c=/d; e=f
        > X-Consumer-Username: jack
        > X-Consumer-Custom-ID: 7
    "#]],
    );
    check(
        "/",
        &format!("\nCookie: jwt={good}"),
        expect![[r#"
        > GET /
        > Host: h
        > X-Consumer-Username: jack
        > X-Consumer-Custom-ID: 7
    "#]],
    );
    let plugins = with("jwt-auth: {header: X-Token, query: t, cookie: c}", &known());
    let check = |target: &str, fields: &str, expected: Expect| {
        let outcome = ask(&plugins, target, fields);
        expected.assert_eq(&outcome.replace(&good, "TOKEN"));
    };
    check(
        "/?jwt=x",
        &format!("\nx-token: {good}"),
        expect![[r#"
        > GET /?jwt=x
        > Host: h
        > x-token: TOKEN
        > X-Consumer-Username: jack
        > X-Consumer-Custom-ID: 7
    "#]],
    );
    check(
        &format!("/?t={good}"),
        "",
        expect![[r#"
        > GET /?t=TOKEN
        > Host: h
        > X-Consumer-Username: jack
        > X-Consumer-Custom-ID: 7
    "#]],
    );
    check(
        "/",
        &format!("\nCookie: c={good}"),
        expect![[r#"
        > GET /
        > Host: h
        > Cookie: c=TOKEN
        > X-Consumer-Username: jack
        > X-Consumer-Custom-ID: 7
    "#]],
    );
    check(
        "/",
        &format!("\nAuthorization: {good}\nCookie: jwt={good}"),
        expect![[r#"
        < 401
        < WWW-Authenticate: Bearer realm="jwt"
        < "{\"message\":\"Missing JWT token in request\"}\n"
    "#]],
    );
}

#[test]
fn others_are_answered_401() {
    let plugins = with("jwt-auth: {realm: the gate}", &known());
    expect![[r#"
        < 401
        < WWW-Authenticate: Bearer realm="the gate"
        < "{\"message\":\"Missing JWT token in request\"}\n"
    "#]]
    .assert_eq(&ask(&plugins, "/", ""));
    expect![[r#"
        < 401
        < WWW-Authenticate: Bearer realm="the gate"
        < "{\"message\":\"JWT token invalid\"}\n"
    "#]]
    .assert_eq(&bearer(&plugins, "x"));
    let good = jack(r#"{"key":"jack"}"#);
    let refused = [
        // A scheme that APISIX does not strip.
        ("scheme", format!("BEARER {good}")),
        ("empty", String::new()),
        ("no key", jack("{}")),
        ("false key", jack(r#"{"key":false}"#)),
        ("null key", jack(r#"{"key":null}"#)),
        ("number key", jack(r#"{"key":1}"#)),
        ("unknown key", jack(r#"{"key":"nobody"}"#)),
        ("name", jack(r#"{"key":"anonymous"}"#)),
        ("other's secret", token(b"rose", HS256, r#"{"key":"jack"}"#)),
        ("other's key", jack(r#"{"key":"rose"}"#)),
        ("two keys", jack(r#"{"key":"jack","key":"rose"}"#)),
    ];
    let seen: String = refused.iter().map(|(what, token)| format!("{what}: {}\n", who(&plugins, token))).collect();
    expect![[r#"
        scheme: < "{"message":"JWT token invalid"}
        empty: < "{"message":"JWT token invalid"}
        no key: < "{"message":"missing user key in JWT token"}
        false key: < "{"message":"missing user key in JWT token"}
        null key: < "{"message":"Invalid user key in JWT token"}
        number key: < "{"message":"Invalid user key in JWT token"}
        unknown key: < "{"message":"Invalid user key in JWT token"}
        name: < "{"message":"Invalid user key in JWT token"}
        other's secret: < "{"message":"failed to verify jwt"}
        other's key: < "{"message":"failed to verify jwt"}
        two keys: < "{"message":"JWT token invalid"}
    "#]]
    .assert_eq(&seen);
    let twice = ask(&plugins, &format!("/?jwt={good}&jwt={good}"), "");
    assert!(twice.contains("JWT token invalid"), "{twice}");
}

#[test]
fn no_token_chooses_how_it_is_verified() {
    let plugins = with("jwt-auth: {}", &known());
    let unsigned = |header: &str| format!("{}.{}.", encode(header), encode(r#"{"key":"jack"}"#));
    let good = jack(r#"{"key":"jack"}"#);
    let (signed, _) = good.rsplit_once('.').unwrap();
    let attacks = [
        ("none", unsigned(r#"{"alg":"none"}"#)),
        ("None", unsigned(r#"{"alg":"None"}"#)),
        ("no alg", unsigned("{}")),
        ("no signature", unsigned(HS256)),
        ("none, with a signature", token(SECRET, r#"{"alg":"none"}"#, r#"{"key":"jack"}"#)),
        ("another hash", token(SECRET, r#"{"alg":"HS384"}"#, r#"{"key":"jack"}"#)),
        ("lower case", token(SECRET, r#"{"alg":"hs256"}"#, r#"{"key":"jack"}"#)),
        ("two algs", token(SECRET, r#"{"alg":"none","alg":"HS256"}"#, r#"{"key":"jack"}"#)),
        ("crit", token(SECRET, r#"{"alg":"HS256","crit":["exp"],"exp":1}"#, r#"{"key":"jack"}"#)),
        ("b64", token(SECRET, r#"{"alg":"HS256","crit":["b64"],"b64":false}"#, r#"{"key":"jack"}"#)),
        ("own key", token(b"mine", r#"{"alg":"HS256","jwk":{"kty":"oct","k":"bWluZQ"}}"#, r#"{"key":"jack"}"#)),
        ("key by path", token(b"", r#"{"alg":"HS256","kid":"/dev/null"}"#, r#"{"key":"jack"}"#)),
        (
            "another payload",
            format!("{}.{}.{}", encode(HS256), encode(r#"{"key":"jack","a":1}"#), good.rsplit_once('.').unwrap().1),
        ),
        ("short signature", good[..good.len() - 4].to_owned()),
        ("long signature", format!("{good}AAAA")),
        ("padding", format!("{good}=")),
        ("standard alphabet", format!("{signed}.++++{}", &good[signed.len() + 5..])),
        ("five parts", format!("{good}.a.b")),
        ("serialised as JSON", r#"{"payload":"","signatures":[]}"#.to_owned()),
        ("large", jack(&format!(r#"{{"key":"jack","a":"{}"}}"#, "a".repeat(8_000)))),
        ("deep", jack(&format!(r#"{{"key":"jack","a":{}1{}}}"#, "[".repeat(500), "]".repeat(500)))),
    ];
    let seen: String = attacks.iter().map(|(what, token)| format!("{what}: {}\n", who(&plugins, token))).collect();
    expect![[r#"
        none: < "{"message":"failed to verify jwt"}
        None: < "{"message":"failed to verify jwt"}
        no alg: < "{"message":"failed to verify jwt"}
        no signature: < "{"message":"failed to verify jwt"}
        none, with a signature: < "{"message":"failed to verify jwt"}
        another hash: < "{"message":"failed to verify jwt"}
        lower case: < "{"message":"failed to verify jwt"}
        two algs: < "{"message":"JWT token invalid"}
        crit: < "{"message":"JWT token invalid"}
        b64: < "{"message":"JWT token invalid"}
        own key: < "{"message":"failed to verify jwt"}
        key by path: < "{"message":"failed to verify jwt"}
        another payload: < "{"message":"failed to verify jwt"}
        short signature: < "{"message":"failed to verify jwt"}
        long signature: < "{"message":"failed to verify jwt"}
        padding: < "{"message":"failed to verify jwt"}
        standard alphabet: < "{"message":"failed to verify jwt"}
        five parts: < "{"message":"JWT token invalid"}
        serialised as JSON: < "{"message":"JWT token invalid"}
        large: jack
        deep: jack
    "#]]
    .assert_eq(&seen);
    assert_eq!(who(&plugins, &good), "jack");
}

#[test]
fn a_token_has_a_beginning_and_an_end() {
    let check = |config: &str, expected: Expect| {
        let plugins = with(config, &known());
        let mut seen = String::new();
        for (claim, difference) in [
            ("exp", -61),
            ("exp", -60),
            ("exp", -59),
            ("exp", 0),
            ("exp", 1),
            ("nbf", -1),
            ("nbf", 0),
            ("nbf", 59),
            ("nbf", 60),
        ] {
            let time = NOW as i64 + difference;
            let of_jack = jack(&format!(r#"{{"key":"jack","{claim}":{time}}}"#));
            let of_rose = token(b"rose", r#"{"alg":"HS512"}"#, &format!(r#"{{"key":"rose","{claim}":{time}.0}}"#));
            seen.push_str(&format!("{claim} {difference}: {}; {}\n", who(&plugins, &of_jack), who(&plugins, &of_rose)));
        }
        for broken in [
            r#""exp":"9999999999""#,
            r#""nbf":null"#,
            r#""exp":true"#,
            r#""exp":false"#,
            r#""nbf":false"#,
            r#""exp":[1]"#,
            r#""exp":1e9"#,
            r#""exp":1e308"#,
        ] {
            seen.push_str(&format!("{broken}: {}\n", who(&plugins, &jack(&format!(r#"{{"key":"jack",{broken}}}"#)))));
        }
        expected.assert_eq(&seen);
    };
    check(
        "jwt-auth: {}",
        expect![[r#"
            exp -61: < "{"message":"failed to verify jwt"}; < "{"message":"failed to verify jwt"}
            exp -60: < "{"message":"failed to verify jwt"}; < "{"message":"failed to verify jwt"}
            exp -59: < "{"message":"failed to verify jwt"}; rose
            exp 0: < "{"message":"failed to verify jwt"}; rose
            exp 1: jack; rose
            nbf -1: jack; rose
            nbf 0: < "{"message":"failed to verify jwt"}; rose
            nbf 59: < "{"message":"failed to verify jwt"}; rose
            nbf 60: < "{"message":"failed to verify jwt"}; < "{"message":"failed to verify jwt"}
            "exp":"9999999999": < "{"message":"failed to verify jwt"}
            "nbf":null: < "{"message":"failed to verify jwt"}
            "exp":true: < "{"message":"failed to verify jwt"}
            "exp":false: < "{"message":"failed to verify jwt"}
            "nbf":false: < "{"message":"failed to verify jwt"}
            "exp":[1]: < "{"message":"failed to verify jwt"}
            "exp":1e9: < "{"message":"failed to verify jwt"}
            "exp":1e308: jack
        "#]],
    );
    check(
        "jwt-auth: {claims_to_verify: [exp]}",
        expect![[r#"
            exp -61: < "{"message":"failed to verify jwt"}; < "{"message":"failed to verify jwt"}
            exp -60: < "{"message":"failed to verify jwt"}; < "{"message":"failed to verify jwt"}
            exp -59: < "{"message":"failed to verify jwt"}; rose
            exp 0: < "{"message":"failed to verify jwt"}; rose
            exp 1: jack; rose
            nbf -1: < "{"message":"failed to verify jwt"}; < "{"message":"failed to verify jwt"}
            nbf 0: < "{"message":"failed to verify jwt"}; < "{"message":"failed to verify jwt"}
            nbf 59: < "{"message":"failed to verify jwt"}; < "{"message":"failed to verify jwt"}
            nbf 60: < "{"message":"failed to verify jwt"}; < "{"message":"failed to verify jwt"}
            "exp":"9999999999": < "{"message":"failed to verify jwt"}
            "nbf":null: < "{"message":"failed to verify jwt"}
            "exp":true: < "{"message":"failed to verify jwt"}
            "exp":false: < "{"message":"failed to verify jwt"}
            "nbf":false: < "{"message":"failed to verify jwt"}
            "exp":[1]: < "{"message":"failed to verify jwt"}
            "exp":1e9: < "{"message":"failed to verify jwt"}
            "exp":1e308: jack
        "#]],
    );
    check(
        "jwt-auth: {claims_to_verify: []}",
        expect![[r#"
            exp -61: < "{"message":"failed to verify jwt"}; < "{"message":"failed to verify jwt"}
            exp -60: < "{"message":"failed to verify jwt"}; < "{"message":"failed to verify jwt"}
            exp -59: < "{"message":"failed to verify jwt"}; rose
            exp 0: < "{"message":"failed to verify jwt"}; rose
            exp 1: jack; rose
            nbf -1: jack; rose
            nbf 0: < "{"message":"failed to verify jwt"}; rose
            nbf 59: < "{"message":"failed to verify jwt"}; rose
            nbf 60: < "{"message":"failed to verify jwt"}; < "{"message":"failed to verify jwt"}
            "exp":"9999999999": < "{"message":"failed to verify jwt"}
            "nbf":null: < "{"message":"failed to verify jwt"}
            "exp":true: < "{"message":"failed to verify jwt"}
            "exp":false: < "{"message":"failed to verify jwt"}
            "nbf":false: < "{"message":"failed to verify jwt"}
            "exp":[1]: < "{"message":"failed to verify jwt"}
            "exp":1e9: < "{"message":"failed to verify jwt"}
            "exp":1e308: jack
        "#]],
    );
}

/// A listed claim must be present; being valid if present is not enough.
#[test]
fn listed_claims_are_required() {
    let unverified = r#"< "{"message":"failed to verify jwt"}"#;
    let (exp, nbf) = (NOW + 10, NOW - 10);
    let check = |claims: &str, payload: String, expected: &str| {
        let plugins = with(&format!("jwt-auth: {{claims_to_verify: {claims}}}"), &known());
        // The second time it may be cached.
        for _ in 0..2 {
            assert_eq!(who(&plugins, &jack(&payload)), expected, "{claims} {payload}");
        }
    };
    let (none, both) = (r#"{"key":"jack"}"#.to_owned(), format!(r#"{{"key":"jack","exp":{exp},"nbf":{nbf}}}"#));
    let (ends, begins) = (format!(r#"{{"key":"jack","exp":{exp}}}"#), format!(r#"{{"key":"jack","nbf":{nbf}}}"#));
    check("[exp]", none.clone(), unverified);
    check("[exp]", begins.clone(), unverified);
    check("[exp]", ends.clone(), "jack");
    check("[nbf]", none.clone(), unverified);
    check("[nbf]", begins.clone(), "jack");
    check("[exp, nbf]", ends.clone(), unverified);
    check("[exp, nbf]", begins, unverified);
    check("[exp, nbf]", both, "jack");
    check("[]", none, "jack");
    // A route with weaker requirements has cached it.
    assert_eq!(who(&with("jwt-auth: {}", &known()), &jack(&ends)), "jack");
    check("[exp, nbf]", ends, unverified);
}

#[test]
fn what_is_remembered_ends() {
    let good = jack(&format!(r#"{{"key":"jack","exp":{}}}"#, NOW + 10));
    let plugins = with("jwt-auth: {}", &known());
    assert_eq!(who(&plugins, &good), "jack");
    plugins.set_now_ms((NOW + 9) * 1000);
    assert_eq!(who(&plugins, &good), "jack");
    plugins.set_now_ms((NOW + 10) * 1000);
    expect![[r#"< "{"message":"failed to verify jwt"}"#]].assert_eq(&who(&plugins, &good));
    // Another configuration, in which another consumer has the key.
    let check = |list: &str, expected: &str| {
        let name = list.split(':').next().unwrap();
        let plugins = with("jwt-auth: {}", &consumers(&[(name, &[], list.split_once(':').unwrap().1.trim())]));
        assert_eq!(who(&plugins, &good), expected, "{list}");
    };
    check("jack: jwt-auth: {key: jack, secret: a secret of jack}", "jack");
    check("judy: jwt-auth: {key: jack, secret: a secret of jack}", "judy");
    let unverified = r#"< "{"message":"failed to verify jwt"}"#;
    check("jack: jwt-auth: {key: jack, secret: another}", unverified);
    check("jack: jwt-auth: {key: jack, secret: a secret of jack, algorithm: HS384}", unverified);
    check("jack: jwt-auth: {key: jill, secret: a secret of jack}", r#"< "{"message":"Invalid user key in JWT token"}"#);
    check("jack: jwt-auth: {key: jack, secret: a secret of jack}", "jack");
    // Another claim may identify the consumer.
    let both = jack(r#"{"key":"jack","sub":"rose"}"#);
    assert_eq!(who(&with("jwt-auth: {}", &known()), &both), "jack");
    assert_eq!(who(&with("jwt-auth: {key_claim_name: sub}", &known()), &both), unverified);
}

#[test]
fn the_anonymous_consumer_stands_for_the_others() {
    let plugins = with("jwt-auth: {anonymous_consumer: anonymous, hide_credentials: true}", &known());
    expect![[r#"
        > GET /?a
        > Host: h
        > X-Consumer-Username: anonymous
    "#]]
    .assert_eq(&ask(&plugins, "/?jwt=wrong&a", ""));
    expect![[r#"
        > GET /
        > Host: h
        > X-Consumer-Username: anonymous
    "#]]
    .assert_eq(&ask(&plugins, "/", "\nX-Consumer-Username: jack"));
    let plugins = with("jwt-auth: {anonymous_consumer: nobody}", &known());
    expect![[r#"
        < 401
        < WWW-Authenticate: Bearer realm="jwt"
        < "{\"message\":\"Invalid user authorization\"}\n"
    "#]]
    .assert_eq(&ask(&plugins, "/", ""));
}

/// Tokens longer than allowed, of maximal length, and nested as deeply as possible: each is refused or understood, in
/// every place, and the next one works as before.
#[test]
fn huge_and_deep_tokens_do_no_harm() {
    const TOKEN_BYTES_MAX: usize = 32 * 1024;
    let plugins = with("jwt-auth: {}", &known());
    let refused = |message: &str| format!("< \"{{\"message\":\"{message}\"}}");
    // A token of this total length.
    let of_length = |wanted: usize| {
        let padded = |pad: usize| jack(&format!(r#"{{"key":"jack","pad":"{}"}}"#, "x".repeat(pad)));
        let fixed = padded(0).len();
        (0..4).map(|more| padded((wanted - fixed) * 3 / 4 + more)).rfind(|token| token.len() <= wanted).unwrap()
    };
    let longest = of_length(TOKEN_BYTES_MAX);
    assert!(longest.len() > TOKEN_BYTES_MAX - 4);
    assert_eq!(who(&plugins, &longest), "jack");
    assert_eq!(who(&plugins, &of_length(TOKEN_BYTES_MAX + 8)), refused("JWT token invalid"));
    let outcomes = |token: &str| {
        let cookie = format!("\nCookie: a=b; jwt={token}");
        [bearer(&plugins, token), ask(&plugins, &format!("/?jwt={token}"), ""), ask(&plugins, "/", &cookie)]
    };
    for nested in ["[", "{\"a\":"] {
        for depth in [100, 127, 128, 5_000] {
            let close = if nested == "[" { "]" } else { "}" };
            let deep = format!("{}1{}", nested.repeat(depth), close.repeat(depth));
            for payload in [format!(r#"{{"key":"jack","deep":{deep}}}"#), format!(r#"{{"deep":{deep},"key":"jack"}}"#)]
            {
                let token = jack(&payload);
                let is_understood = depth <= 100 && token.len() < TOKEN_BYTES_MAX;
                for outcome in outcomes(&token) {
                    let is_known = outcome.contains("X-Consumer-Username: jack");
                    assert!(is_known || outcome.contains("JWT token invalid"), "{nested} {depth}: {outcome}");
                    assert!(is_known || !is_understood, "{nested} {depth}: {outcome}");
                }
            }
            // As the claims themselves, and as a header.
            let as_key = jack(&format!(r#"{{"key":{deep}}}"#));
            let as_time = jack(&format!(r#"{{"key":"jack","exp":{deep}}}"#));
            let as_header =
                token(SECRET, &format!(r#"{{"alg":"HS256","x":{deep},"crit":["x"]}}"#), r#"{"key":"jack"}"#);
            for token in [as_key, as_time, as_header] {
                assert!(
                    outcomes(&token).iter().all(|outcome| !outcome.contains("X-Consumer-Username")),
                    "{nested} {depth}"
                );
            }
        }
    }
    // Many names, and one of many bytes.
    let names: String = (0..1_500).map(|number| format!(r#""n{number}":0,"#)).collect();
    assert_eq!(who(&plugins, &jack(&format!(r#"{{{names}"key":"jack"}}"#))), "jack");
    assert_eq!(who(&plugins, &jack(&format!(r#"{{"{}":1,"key":"jack"}}"#, "n".repeat(20_000)))), "jack");
    for text in [".".repeat(40_000), format!("a.b.{}", "c".repeat(40_000)), "e".repeat(40_000)] {
        assert_eq!(who(&plugins, &text), refused("JWT token invalid"));
    }
    assert_eq!(who(&plugins, &jack(r#"{"key":"jack"}"#)), "jack");
}

#[test]
fn functions_see_the_claims() {
    let writes = "return function(conf, ctx) if ctx.jwt_auth_payload then ctx.jwt_auth_payload.team = \"c\" end end";
    let reads = "return function(conf, ctx) local claims = ctx.jwt_auth_payload or {} return 200, claims.key .. claims.roles[2] .. claims.team end";
    let functions = serde_json::to_string(&[writes, reads]).unwrap();
    let post = format!("serverless-post-function: {{phase: rewrite, functions: {functions}}}");
    let good = jack(r#"{"key":"jack","roles":["a","b"]}"#);
    let plugins = with(&format!("jwt-auth: {{store_in_ctx: true, hide_credentials: true}}\n{post}"), &known());
    // The second time the token is cached.
    for _ in 0..2 {
        let outcome = bearer(&plugins, &good);
        assert!(outcome.contains("< 200\n") && outcome.contains("jackbc"), "{outcome}");
    }
    let outcome = bearer(&with(&format!("jwt-auth: {{}}\n{post}"), &known()), &good);
    assert!(outcome.contains("< 500\n"), "{outcome}");
}
