//! `jwt-auth`: tokens, good and forged.

use super::consumers::{consumers, refusal};
use super::harness::{OK, Plugins, plugins};
use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING, EcdsaKeyPair,
    EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512,
    RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaKeyPair,
};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use expect_test::{Expect, expect};
use stillgate_plugin::Consumers;

/// The time of all requests, in seconds.
const NOW: u64 = 1_700_000_000;

fn encode(text: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(text)
}

/// A token by HMAC.
fn token(secret: &[u8], header: &str, payload: &str) -> String {
    let signed = format!("{}.{}", encode(header), encode(payload));
    let algorithm = match header {
        _ if header.contains("HS384") => hmac::HMAC_SHA384,
        _ if header.contains("HS512") => hmac::HMAC_SHA512,
        _ => hmac::HMAC_SHA256,
    };
    let signature = hmac::sign(&hmac::Key::new(algorithm, secret), signed.as_bytes());
    format!("{signed}.{}", encode(signature))
}

const HS256: &str = r#"{"alg":"HS256","typ":"JWT"}"#;
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

fn with(config: &str, consumers: &Consumers) -> Plugins {
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

/// Who asks with a token, or the message that it is refused with.
fn who(plugins: &Plugins, token: &str) -> String {
    let outcome = bearer(plugins, token);
    match outcome.split_once("X-Consumer-Username: ") {
        Some((_, rest)) => rest.lines().next().unwrap().to_owned(),
        None => outcome.lines().last().unwrap().replace("\\n\"", "").replace('\\', ""),
    }
}

#[test]
fn a_good_token_says_who_asks() {
    let plugins = with("jwt-auth: {hide_credentials: true}", &known());
    // The second time it is remembered.
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
        > GET /?jwt=x
        > Host: h
        > Cookie: a=b; jwt=x
        > X-Consumer-Username: jack
        > X-Consumer-Custom-ID: 7
    "#]],
    );
    check(
        "/?jwt=x",
        &format!("\nauthorization: bearer {good}"),
        expect![[r#"
        > GET /?jwt=x
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
        > Cookie: jwt=x
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
        // A scheme that APISIX does not take off.
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
        no alg: < "{"message":"JWT token invalid"}
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
        short signature: < "{"message":"JWT token invalid"}
        long signature: < "{"message":"failed to verify jwt"}
        padding: < "{"message":"JWT token invalid"}
        standard alphabet: < "{"message":"JWT token invalid"}
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
        nbf -1: jack; rose
        nbf 0: jack; rose
        nbf 59: jack; rose
        nbf 60: jack; rose
        "exp":"9999999999": < "{"message":"failed to verify jwt"}
        "nbf":null: jack
        "exp":true: < "{"message":"failed to verify jwt"}
        "exp":[1]: < "{"message":"failed to verify jwt"}
        "exp":1e9: < "{"message":"failed to verify jwt"}
        "exp":1e308: jack
    "#]],
    );
    check(
        "jwt-auth: {claims_to_verify: []}",
        expect![[r#"
        exp -61: jack; rose
        exp -60: jack; rose
        exp -59: jack; rose
        exp 0: jack; rose
        exp 1: jack; rose
        nbf -1: jack; rose
        nbf 0: jack; rose
        nbf 59: jack; rose
        nbf 60: jack; rose
        "exp":"9999999999": jack
        "nbf":null: jack
        "exp":true: jack
        "exp":[1]: jack
        "exp":1e9: jack
        "exp":1e308: jack
    "#]],
    );
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
    // The claim that says who it is may be another.
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

fn pem(label: &str, der: &[u8]) -> String {
    let body = STANDARD.encode(der);
    let lines: Vec<&str> = (0..body.len()).step_by(64).map(|at| &body[at..(at + 64).min(body.len())]).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// Whose tokens are verified by a public key.
fn of_key(algorithm: &str, pem: &str) -> Result<Consumers, String> {
    let credential = format!("jwt-auth: {{key: k, algorithm: {algorithm}, public_key: {pem:?}}}");
    super::consumers::try_consumers(&[("jack", &[], &credential)])
}

/// Checks a signer of an algorithm: its token is taken, changed ones and those of other algorithms are not.
fn check_signer(algorithm: &str, pem: &str, sign: &dyn Fn(&[u8]) -> Vec<u8>) {
    let plugins = with("jwt-auth: {}", &of_key(algorithm, pem).unwrap());
    let signed = |alg: &str| format!("{}.{}", encode(format!(r#"{{"alg":"{alg}"}}"#)), encode(r#"{"key":"k"}"#));
    let token = |alg: &str| format!("{}.{}", signed(alg), encode(sign(signed(alg).as_bytes())));
    let unverified = r#"< "{"message":"failed to verify jwt"}"#;
    for _ in 0..2 {
        assert_eq!(who(&plugins, &token(algorithm)), "jack", "{algorithm}");
    }
    let mut signature = sign(signed(algorithm).as_bytes());
    signature[5] ^= 1;
    assert_eq!(who(&plugins, &format!("{}.{}", signed(algorithm), encode(&signature))), unverified, "{algorithm}");
    signature[5] ^= 1;
    signature.push(0);
    assert_eq!(who(&plugins, &format!("{}.{}", signed(algorithm), encode(&signature))), unverified, "{algorithm}");
    for other in ["none", "HS256", "RS384", "PS384", "ES512"].into_iter().filter(|other| *other != algorithm) {
        assert_eq!(who(&plugins, &token(other)), unverified, "{algorithm} as {other}");
    }
    // The public key as the secret of an HMAC, as PEM and as DER.
    let der = STANDARD.decode(pem.lines().filter(|line| !line.starts_with('-')).collect::<String>()).unwrap();
    for secret in [pem.as_bytes(), pem.trim_end().as_bytes(), &der] {
        assert_eq!(who(&plugins, &self::token(secret, HS256, r#"{"key":"k"}"#)), unverified, "{algorithm}");
    }
}

#[test]
fn signatures_by_elliptic_curves_are_verified() {
    let random = SystemRandom::new();
    let curves: [(&str, &'static EcdsaSigningAlgorithm); 3] = [
        ("ES256", &ECDSA_P256_SHA256_FIXED_SIGNING),
        ("ES384", &ECDSA_P384_SHA384_FIXED_SIGNING),
        ("ES512", &ECDSA_P521_SHA512_FIXED_SIGNING),
    ];
    for (name, curve) in curves {
        let pair = EcdsaKeyPair::generate(curve).unwrap();
        let der: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
        let pem = pem("PUBLIC KEY", der.as_ref());
        check_signer(name, &pem, &|message| pair.sign(&random, message).unwrap().as_ref().to_vec());
        for other in ["RS256", "EdDSA", if name == "ES256" { "ES384" } else { "ES256" }] {
            assert!(of_key(other, &pem).is_err(), "{name} as {other}");
        }
        // A signature of zeros, which broken implementations take for good.
        let plugins = with("jwt-auth: {}", &of_key(name, &pem).unwrap());
        let zeros = vec![0; pair.sign(&random, b"").unwrap().as_ref().len()];
        let header = format!(r#"{{"alg":"{name}"}}"#);
        let forged = format!("{}.{}.{}", encode(header), encode(r#"{"key":"k"}"#), encode(zeros));
        assert_eq!(who(&plugins, &forged), r#"< "{"message":"failed to verify jwt"}"#);
    }
    let pair = Ed25519KeyPair::generate().unwrap();
    let der: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
    check_signer("EdDSA", &pem("PUBLIC KEY", der.as_ref()), &|message| pair.sign(message).as_ref().to_vec());
}

#[test]
fn signatures_by_rsa_are_verified() {
    let random = SystemRandom::new();
    let pair = RsaKeyPair::generate(aws_lc_rs::rsa::KeySize::Rsa2048).unwrap();
    let der: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
    // Both forms of the key.
    let pems = [pem("PUBLIC KEY", der.as_ref()), pem("RSA PUBLIC KEY", pair.public_key().as_ref())];
    let encodings: [(&str, &'static dyn aws_lc_rs::signature::RsaEncoding); 6] = [
        ("RS256", &RSA_PKCS1_SHA256),
        ("RS384", &RSA_PKCS1_SHA384),
        ("RS512", &RSA_PKCS1_SHA512),
        ("PS256", &RSA_PSS_SHA256),
        ("PS384", &RSA_PSS_SHA384),
        ("PS512", &RSA_PSS_SHA512),
    ];
    for (at, (name, encoding)) in encodings.into_iter().enumerate() {
        check_signer(name, &pems[at % 2], &|message| {
            let mut signature = vec![0; pair.public_modulus_len()];
            pair.sign(encoding, &random, message, &mut signature).unwrap();
            signature
        });
    }
    assert!(of_key("ES256", &pems[0]).is_err() && of_key("EdDSA", &pems[1]).is_err());
}

/// RFC 7515 appendix A. Their payloads end in 2011, and say who it is by `iss`.
#[test]
fn the_examples_of_rfc_7515_are_verified() {
    let payload = "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
    let check = |credential: &str, header: &str, signature: &str| {
        let consumers = consumers(&[("joe", &[], &format!("jwt-auth: {{key: joe, {credential}}}"))]);
        let plugins = with("jwt-auth: {key_claim_name: iss}", &consumers);
        let token = format!("{header}.{payload}.{signature}");
        assert_eq!(who(&plugins, &token), r#"< "{"message":"failed to verify jwt"}"#, "it has ended");
        plugins.set_now_ms(1_300_819_379_999);
        assert_eq!(who(&plugins, &token), "joe");
        let changed = token.replace("LA0K", "LA0L");
        assert_ne!(who(&plugins, &changed), "joe");
    };
    // A.1
    let secret = "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow";
    let secret = STANDARD.encode(URL_SAFE_NO_PAD.decode(secret).unwrap());
    check(
        &format!("secret: {secret}, base64_secret: true"),
        "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9",
        "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
    );
    // A.3
    let point = |x: &str, y: &str| [URL_SAFE_NO_PAD.decode(x).unwrap(), URL_SAFE_NO_PAD.decode(y).unwrap()].concat();
    let xy = point("f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0");
    let before = "3059301306072a8648ce3d020106082a8648ce3d03010703420004";
    let before: Vec<u8> =
        (0..before.len()).step_by(2).map(|at| u8::from_str_radix(&before[at..at + 2], 16).unwrap()).collect();
    let key = pem("PUBLIC KEY", &[before, xy].concat());
    check(
        &format!("algorithm: ES256, public_key: {key:?}"),
        "eyJhbGciOiJFUzI1NiJ9",
        "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
    );
}

#[test]
fn what_cannot_work_is_refused() {
    let config = |yaml: &str, expected: Expect| expected.assert_eq(&super::harness::refusal(yaml));
    config(
        "jwt-auth: {key_claim_name: '', claims_to_verify: [iat], realm: 'a\\b', header: 'a b'}",
        expect![[r#"
        1:28: jwt-auth.key_claim_name: a claim has a name; write one, or remove the key
        1:51: jwt-auth.claims_to_verify[0]: expected exp or nbf, found the text "iat"
        1:64: jwt-auth.realm: "a\\b" is not a realm; use printable ASCII characters other than '"' and '\'
        1:79: jwt-auth.header: "a b": not the name of a header field: letters, digits and !#$%&'*+-.^_`|~ only
    "#]],
    );
    config(
        "jwt-auth: {cookie: [a], hide_credentials: 1}",
        expect![[r#"
        1:20: jwt-auth.cookie: expected a text, found a list
        1:43: jwt-auth.hide_credentials: expected true or false, found the number 1
    "#]],
    );
    let credential = |yaml: &str, expected: Expect| expected.assert_eq(&refusal(yaml));
    credential(
        "jwt-auth: {secret: a}",
        expect![[r#"
        1:11: jwt-auth: the key "key" is missing; add it
    "#]],
    );
    credential(
        "jwt-auth: {key: a}",
        expect![[r#"
        1:11: jwt-auth: the key "secret" is missing for this algorithm; add it: tokens are signed with it
    "#]],
    );
    credential(
        "jwt-auth: {key: a, secret: '', algorithm: HS384}",
        expect![[r#"
        1:11: jwt-auth: the key "secret" is missing for this algorithm; add it: tokens are signed with it
        1:28: jwt-auth.secret: a secret cannot be empty
    "#]],
    );
    credential(
        "jwt-auth: {key: a, secret: '*?', base64_secret: true}",
        expect![[r#"
        1:11: jwt-auth.secret: it is not base64; encode it, or leave `base64_secret` out
    "#]],
    );
    credential(
        "jwt-auth: {key: a, secret: '====', base64_secret: true}",
        expect![[r#"
        1:11: jwt-auth.secret: it is not base64; encode it, or leave `base64_secret` out
    "#]],
    );
    credential(
        "jwt-auth: {key: a, secret: b, algorithm: RS256}",
        expect![[r#"
        1:11: jwt-auth: the key "public_key" is missing for this algorithm; add it: tokens are verified with it
    "#]],
    );
    credential(
        "jwt-auth: {key: a, secret: b, algorithm: none}",
        expect![[r#"
        1:42: jwt-auth.algorithm: expected HS256, HS384, HS512, RS256, RS384, RS512, ES256, ES384, ES512, PS256, PS384, PS512 or EdDSA, found the text "none"
    "#]],
    );
    credential(
        "jwt-auth: {key: a, secret: b, exp: 0, lifetime_grace_period: -1}",
        expect![[r#"
            1:36: jwt-auth.exp: expected a whole number from 1 to 9223372036854775807, found the number 0
            1:62: jwt-auth.lifetime_grace_period: expected a whole number from 0 to 9223372036854775807, found the number -1
        "#]],
    );
    credential(
        "jwt-auth: {key: a, public_key: b, algorithm: RS256}",
        expect![[r#"
        1:11: jwt-auth.public_key: it is not PEM; give the PEM of the key that belongs to `algorithm`
    "#]],
    );
    let broken = pem("PUBLIC KEY", b"broken");
    credential(
        &format!("jwt-auth: {{key: a, public_key: {broken:?}, algorithm: ES256}}"),
        expect![[r#"
        1:11: jwt-auth.public_key: the key is of another kind than `algorithm`; give the PEM of the key that belongs to `algorithm`
    "#]],
    );
    let private = pem("EC PRIVATE KEY", b"secret");
    credential(
        &format!("jwt-auth: {{key: a, public_key: {private:?}, algorithm: ES256}}"),
        expect![[r#"
        1:11: jwt-auth.public_key: it is a private key, which only who signs should have; give the PEM of the key that belongs to `algorithm`
    "#]],
    );
    let pair = RsaKeyPair::generate(aws_lc_rs::rsa::KeySize::Rsa2048).unwrap();
    let mut small = pair.public_key().as_ref().to_vec();
    // 1024 bits: a sequence of a shorter modulus, and the exponent.
    let modulus = small.split_off(9)[..128].to_vec();
    let small =
        pem("RSA PUBLIC KEY", &[&[0x30, 0x81, 0x89, 0x02, 0x81, 0x81, 0x00][..], &modulus, &[2, 3, 1, 0, 1]].concat());
    credential(
        &format!("jwt-auth: {{key: a, public_key: {small:?}, algorithm: RS256}}"),
        expect![[r#"
        1:11: jwt-auth.public_key: an RSA key has from 2048 to 8192 bits; give the PEM of the key that belongs to `algorithm`
    "#]],
    );
}
