//! `jwt-auth` with keys by URL: an issuer that rotates its keys, tokens that name unknown keys, and a server that is
//! dead, broken or sends too much.

use super::consumers::{consumers, refusal};
use super::jwt_auth::{encode, who};
use crate::harness::{OK, Plugins, Server, plugins};
use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use expect_test::expect;
use std::rc::Rc;
use stillgate_plugin_api::CallError;

const NOW: u64 = 1_700_000_000;
const UNVERIFIED: &str = r#"< "{"message":"failed to verify jwt"}"#;

/// Signs tokens with ES256 under a name.
struct Issuer {
    pair: EcdsaKeyPair,
    kid: &'static str,
}

impl Issuer {
    fn new(kid: &'static str) -> Issuer {
        Issuer { pair: EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap(), kid }
    }

    fn jwk(&self, more: &str) -> String {
        let der: PublicKeyX509Der<'_> = self.pair.public_key().as_der().unwrap();
        let point = &der.as_ref()[der.as_ref().len() - 64..];
        let (x, y, kid) = (encode(&point[..32]), encode(&point[32..]), self.kid);
        format!(r#"{{"kty":"EC","crv":"P-256","x":"{x}","y":"{y}","kid":"{kid}"{more}}}"#)
    }

    fn token(&self) -> String {
        self.token_with(&format!(r#"{{"alg":"ES256","kid":"{}"}}"#, self.kid))
    }

    fn token_with(&self, header: &str) -> String {
        self.sign(header, r#"{"key":"k"}"#)
    }

    fn claims(&self, claims: &str) -> String {
        self.sign(&format!(r#"{{"alg":"ES256","kid":"{}"}}"#, self.kid), claims)
    }

    fn sign(&self, header: &str, payload: &str) -> String {
        let signed = format!("{}.{}", encode(header), encode(payload));
        let signature = self.pair.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
        format!("{signed}.{}", encode(signature.as_ref()))
    }
}

fn set(keys: &[&str]) -> String {
    format!("HTTP/1.1 200 OK\nContent-Type: application/json\n\n{{\"keys\":[{}]}}", keys.join(","))
}

const CREDENTIAL: &str =
    "jwt-auth: {key: k, algorithm: ES256, jwks_uri: \"https://issuer.test/keys.json\", jwks_ttl: 300}";

fn gate(credential: &str, replies: &[Result<&str, CallError>]) -> (Plugins, Rc<Server>) {
    let known = consumers(&[("jack", &[], credential)]);
    let (plugins, server) = plugins("jwt-auth: {}").unwrap().with_consumers(known).answered_by(replies);
    plugins.set_now_ms(NOW * 1000);
    (plugins, server)
}

fn status(plugins: &Plugins, token: &str) -> String {
    let seen = plugins.run(&format!("GET / HTTP/1.1\nHost: h\nAuthorization: Bearer {token}\n\n"), OK);
    seen.lines().find_map(|line| line.strip_prefix("< ")).unwrap().to_owned()
}

#[test]
fn keys_are_fetched_once_and_found_by_name() {
    let (one, two) = (Issuer::new("1"), Issuer::new("2"));
    let (plugins, server) = gate(CREDENTIAL, &[Ok(&set(&[&one.jwk(""), &two.jwk(r#","use":"sig","alg":"ES256""#)]))]);
    for _ in 0..3 {
        assert_eq!(who(&plugins, &one.token()), "jack");
        assert_eq!(who(&plugins, &two.token()), "jack");
    }
    expect![[r#"
        GET /keys.json HTTP/1.1
        Accept: application/jwk-set+json, application/json
        Host: issuer.test

    "#]]
    .assert_eq(&server.asked.borrow().join("---\n"));
    // The right key under the wrong name, and the other way round.
    assert_eq!(who(&plugins, &one.token_with(r#"{"alg":"ES256","kid":"2"}"#)), UNVERIFIED);
    // Without a name it could be either.
    assert_eq!(who(&plugins, &one.token_with(r#"{"alg":"ES256"}"#)), UNVERIFIED);
    let (plugins, _) = gate(&CREDENTIAL.replace("keys.json", "one.json"), &[Ok(&set(&[&one.jwk("")]))]);
    assert_eq!(who(&plugins, &one.token_with(r#"{"alg":"ES256"}"#)), "jack");
}

#[test]
fn issuer_and_audience_are_those_of_the_credential() {
    let one = Issuer::new("1");
    let gate = |keys: &str| gate(&CREDENTIAL.replace("jwks_ttl: 300", keys), &[Ok(&set(&[&one.jwk("")]))]).0;
    let both = gate("issuers: [\"https://a\", \"https://b\"], audiences: [api, account]");
    let check = |plugins: &Plugins, claims: &str, is_good: bool| {
        let token = one.claims(&format!(r#"{{"key":"k"{claims}}}"#));
        // Twice: a refused token is not cached as good.
        for _ in 0..2 {
            assert_eq!(who(plugins, &token), if is_good { "jack" } else { UNVERIFIED }, "{claims}");
        }
    };
    for (claims, is_good) in [
        (r#","iss":"https://a","aud":"api""#, true),
        (r#","iss":"https://b","aud":["other","account"]"#, true),
        (r#","iss":"https:\/\/a","aud":["\u0061pi"]"#, true),
        (r#","iss":"https://c","aud":"api""#, false),
        (r#","iss":"https://a/","aud":"api""#, false),
        (r#","iss":["https://a"],"aud":"api""#, false),
        (r#","aud":"api""#, false),
        (r#","iss":"https://a""#, false),
        (r#","iss":"https://a","aud":"other""#, false),
        (r#","iss":"https://a","aud":"API""#, false),
        (r#","iss":"https://a","aud":[]"#, false),
        (r#","iss":"https://a","aud":["api",7]"#, false),
        (r#","iss":"https://a","aud":{"api":1}"#, false),
        (r#","iss":"https://a","aud":[["api"]]"#, false),
        (r#","iss":"https://a","aud":null"#, false),
        (r#","iss":"https://a","aud":"other","aud":"api""#, false),
        (r#","iss":"https://c","iss":"https://a","aud":"api""#, false),
    ] {
        check(&both, claims, is_good);
    }
    let issuer = gate("issuers: [\"https://a\"]");
    check(&issuer, r#","iss":"https://a""#, true);
    check(&issuer, r#","iss":"https://c""#, false);
    let audience = gate("audiences: [api]");
    check(&audience, r#","aud":"api""#, true);
    check(&audience, "", false);
}

#[test]
fn the_credential_still_chooses_the_algorithm() {
    let one = Issuer::new("1");
    let pair = Ed25519KeyPair::generate().unwrap();
    let of_edwards =
        format!(r#"{{"kty":"OKP","crv":"Ed25519","kid":"ed","x":"{}"}}"#, encode(pair.public_key().as_ref()));
    let shared = r#"{"kty":"oct","kid":"shared","k":"c2VjcmV0"}"#;
    let for_other = Issuer::new("other");
    let (plain, of_other) = (one.jwk(""), for_other.jwk(r#","alg":"ES384""#));
    let keys = set(&[&plain, &of_edwards, shared, &of_other]);
    let (plugins, _) = gate(CREDENTIAL, &[Ok(&keys)]);
    let signed = format!("{}.{}", encode(r#"{"alg":"EdDSA","kid":"ed"}"#), encode(r#"{"key":"k"}"#));
    let by_edwards = format!("{signed}.{}", encode(pair.sign(signed.as_bytes()).as_ref()));
    assert_eq!(who(&plugins, &by_edwards), UNVERIFIED);
    let by_shared = super::jwt_auth::token(b"secret", r#"{"alg":"HS256","kid":"shared"}"#, r#"{"key":"k"}"#);
    assert_eq!(who(&plugins, &by_shared), UNVERIFIED);
    assert_eq!(who(&plugins, &for_other.token()), UNVERIFIED);
    assert_eq!(who(&plugins, &one.token_with(r#"{"alg":"none","kid":"1"}"#)), UNVERIFIED);
    assert_eq!(who(&plugins, &one.token()), "jack");
}

#[test]
fn a_rotated_key_is_fetched_and_the_old_one_is_forgotten() {
    let (old, new) = (Issuer::new("old"), Issuer::new("new"));
    let (plugins, server) = gate(
        CREDENTIAL,
        &[Ok(&set(&[&old.jwk("")])), Ok(&set(&[&old.jwk(""), &new.jwk("")])), Ok(&set(&[&new.jwk("")]))],
    );
    assert_eq!(who(&plugins, &old.token()), "jack");
    let (kept, fresh) = (old.token(), new.token());
    assert_eq!(who(&plugins, &kept), "jack");
    // Too soon after the last fetch.
    plugins.set_now_ms(NOW * 1000 + 9_999);
    assert_eq!(who(&plugins, &fresh), UNVERIFIED);
    plugins.set_now_ms(NOW * 1000 + 10_000);
    assert_eq!(who(&plugins, &fresh), "jack");
    assert_eq!(who(&plugins, &kept), "jack");
    // The set is old: the next request fetches it. The removed key verifies nothing, not even cached tokens.
    plugins.set_now_ms((NOW + 311) * 1000);
    assert_eq!(who(&plugins, &fresh), "jack");
    assert_eq!(who(&plugins, &kept), UNVERIFIED);
    assert_eq!(who(&plugins, &fresh), "jack");
    assert_eq!(server.asked.borrow().len(), 3);
}

#[test]
fn names_that_no_key_has_cause_few_fetches() {
    let one = Issuer::new("1");
    let keys = set(&[&one.jwk("")]);
    let (plugins, server) = gate(CREDENTIAL, &vec![Ok(&*keys); 100]);
    let forged = |kid: &str| one.token_with(&format!(r#"{{"alg":"ES256","kid":"{kid}"}}"#));
    assert_eq!(who(&plugins, &one.token()), "jack");
    for at in 0..2_000_u64 {
        plugins.set_now_ms(NOW * 1000 + at * 10);
        assert_eq!(who(&plugins, &forged(&format!("x{at}"))), UNVERIFIED);
    }
    // 20 seconds: at 0, at 10, and not yet at 20.
    assert_eq!(server.asked.borrow().len(), 2);
    // One name again and again: the interval bounds its fetches, too.
    for at in 2_000..4_000_u64 {
        plugins.set_now_ms(NOW * 1000 + at * 10);
        assert_eq!(who(&plugins, &forged("y")), UNVERIFIED);
        assert_eq!(who(&plugins, &forged(&"z".repeat(257))), UNVERIFIED);
    }
    assert_eq!(server.asked.borrow().len(), 4);
    assert_eq!(who(&plugins, &one.token()), "jack");
}

/// Anybody can send the name of the next key before it is published.
#[test]
fn a_name_that_came_early_does_not_keep_out_its_key() {
    let (old, new) = (Issuer::new("old"), Issuer::new("new"));
    let forger = Issuer::new("new");
    let (before, after) = (set(&[&old.jwk("")]), set(&[&old.jwk(""), &new.jwk("")]));
    let (plugins, server) = gate(CREDENTIAL, &[Ok(&before), Ok(&before), Ok(&after)]);
    assert_eq!(who(&plugins, &old.token()), "jack");
    plugins.set_now_ms((NOW + 10) * 1000);
    assert_eq!(who(&plugins, &forger.token()), UNVERIFIED);
    assert_eq!(server.asked.borrow().len(), 2);
    // Published now. The set may be fetched again after ten seconds, and then the key is found.
    plugins.set_now_ms((NOW + 20) * 1000);
    assert_eq!(who(&plugins, &new.token()), "jack");
    assert_eq!(who(&plugins, &forger.token()), UNVERIFIED);
    assert_eq!(server.asked.borrow().len(), 3);
}

#[test]
fn keys_stay_where_they_cannot_be_fetched() {
    let one = Issuer::new("1");
    let keys = set(&[&one.jwk("")]);
    let huge = Err(CallError::TooLarge);
    let bad = [
        Err(CallError::Connect),
        Ok("HTTP/1.1 500 Internal Server Error\n\n{\"keys\":[]}"),
        Ok("HTTP/1.1 200 OK\n\n<html>"),
        Ok("HTTP/1.1 200 OK\n\n{\"keys\":7}"),
        huge,
    ];
    let mut replies = vec![Ok(&*keys)];
    replies.extend(bad);
    replies.push(Ok("HTTP/1.1 200 OK\n\n{\"keys\":[]}"));
    let (plugins, server) = gate(CREDENTIAL, &replies);
    assert_eq!(who(&plugins, &one.token()), "jack");
    for at in 0..bad.len() as u64 {
        plugins.set_now_ms((NOW + 300 + at * 10) * 1000);
        assert_eq!(who(&plugins, &one.token()), "jack", "{at}");
        assert_eq!(server.asked.borrow().len(), 2 + at as usize);
    }
    assert_eq!(server.warned.borrow().len(), bad.len());
    assert_eq!(
        server.warned.borrow()[0],
        "jwt-auth: the keys of issuer.test could not be fetched: it could not be connected to"
    );
    // An empty set is valid: the issuer has revoked its keys.
    plugins.set_now_ms((NOW + 400) * 1000);
    who(&plugins, &one.token());
    assert_eq!(who(&plugins, &one.token()), UNVERIFIED);
}

#[test]
fn without_keys_nobody_is_let_in() {
    let one = Issuer::new("1");
    let keys = set(&[&one.jwk("")]);
    let (plugins, server) = gate(CREDENTIAL, &[Err(CallError::Timeout), Ok(&keys)]);
    for at in 0..10 {
        plugins.set_now_ms((NOW + at) * 1000);
        assert_eq!(status(&plugins, &one.token()), "503");
    }
    assert_eq!(server.asked.borrow().len(), 1);
    plugins.set_now_ms((NOW + 10) * 1000);
    assert_eq!(who(&plugins, &one.token()), "jack");
}

#[test]
fn credentials_with_one_url_share_what_is_fetched() {
    let one = Issuer::new("1");
    let of_rose = CREDENTIAL.replace("key: k", "key: r");
    let known = consumers(&[("jack", &[], CREDENTIAL), ("rose", &[], of_rose.as_str())]);
    let keys = set(&[&one.jwk("")]);
    let (plugins, server) = plugins("jwt-auth: {}").unwrap().with_consumers(known).answered_by(&[Ok(&keys)]);
    plugins.set_now_ms(NOW * 1000);
    let signed = format!("{}.{}", encode(r#"{"alg":"ES256","kid":"1"}"#), encode(r#"{"key":"r"}"#));
    let signature = one.pair.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
    assert_eq!(who(&plugins, &format!("{signed}.{}", encode(signature.as_ref()))), "rose");
    assert_eq!(who(&plugins, &one.token()), "jack");
    assert_eq!(server.asked.borrow().len(), 1);
}

#[test]
fn bad_credentials_are_refused() {
    let all: String = [
        "jwt-auth: {key: k, jwks_uri: \"https://issuer.test\"}",
        "jwt-auth: {key: k, algorithm: RS256, jwks_uri: \"issuer.test\"}",
        "jwt-auth: {key: k, algorithm: RS256, jwks_uri: \"https://issuer.test\", public_key: x}",
        "jwt-auth: {key: k, algorithm: RS256, jwks_uri: \"https://issuer.test\", jwks_ttl: 9, jwks_timeout: 0}",
    ]
    .into_iter()
    .map(refusal)
    .collect();
    expect![[r#"
        1:11: jwt-auth.jwks_uri: secrets are not published at a URL; choose an algorithm with public keys, or remove the key
        1:11: jwt-auth.jwks_uri: it is not a URL of http or https; write it as in `https://issuer.example/.well-known/jwks.json`
        1:11: jwt-auth.jwks_uri: it cannot be combined with `public_key`; keep one of the two
        1:81: jwt-auth.jwks_ttl: expected a whole number from 10 to 86400, found the number 9
        1:98: jwt-auth.jwks_timeout: expected a whole number from 1 to 60000, found the number 0
    "#]].assert_eq(&all);
}
