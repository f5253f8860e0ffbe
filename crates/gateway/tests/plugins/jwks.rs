//! `jwt-auth` with keys by URL, against a server that publishes them: one fetch for many requests, tokens that name unknown keys,
//! tokens for others, and answers that are too large.

use crate::shared::STILLGATE;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{KeyPair, PKCS_ED25519, SigningKey as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use stillgate_testkit::{Client, Gateway, Setup, Upstream, eventually};

/// RFC 7515 appendix A.3; the payload says `iss: joe`, and ended in 2011.
const KEY: &str = r#"{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}"#;
const TOKEN: &str = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";

/// A server that publishes a set once it is allowed to, and the number of requests that it got.
fn issuer(set: String, is_open: bool) -> (Upstream, Arc<AtomicUsize>, Arc<AtomicBool>) {
    let (asked, opened) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(is_open)));
    let (counted, gate) = (asked.clone(), opened.clone());
    let issuer = Upstream::serve(move |connection| {
        while connection.read_request().is_ok() {
            counted.fetch_add(1, Ordering::SeqCst);
            eventually("the server answers", || gate.load(Ordering::SeqCst));
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", set.len());
            if connection.try_send(head + &set).is_err() {
                return;
            }
        }
    });
    (issuer, asked, opened)
}

fn gateway(node: &Upstream, issuer: &Upstream, workers: usize) -> Gateway {
    let resources = format!(
        "routes:\n- {{id: a, uri: /*, plugins: {{jwt-auth: {{key_claim_name: iss}}}}, upstream: {{nodes: {{\"{}\": 1}}}}}}\n\
         consumers:\n- username: joe\n  plugins:\n    jwt-auth: {{key: joe, algorithm: ES256, \
         lifetime_grace_period: 9000000000, jwks_uri: \"http://{}/keys.json\"}}\n",
        node.addr(),
        issuer.addr()
    );
    Gateway::start(STILLGATE, &Setup::resources(resources).gateway(&format!("workers: {workers}")))
}

fn status(client: &mut Client, token: &str) -> u16 {
    client.get(&format!("/?jwt={token}")).head.status()
}

#[test]
fn many_requests_wait_for_one_fetch() {
    let node = Upstream::echo();
    let (issuer, asked, opened) = issuer(format!("{{\"keys\":[{KEY}]}}"), false);
    let mut gateway = gateway(&node, &issuer, 1);
    let addr = gateway.addr();
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..20).map(|_| scope.spawn(move || status(&mut Client::connect(addr), TOKEN))).collect();
        eventually("the set is asked for", || asked.load(Ordering::SeqCst) == 1);
        assert_eq!(node.requests(), 0);
        opened.store(true, Ordering::SeqCst);
        waiting.into_iter().for_each(|client| assert_eq!(client.join().expect("a client"), 200));
    });
    let mut client = gateway.client();
    (0..50).for_each(|_| assert_eq!(status(&mut client, TOKEN), 200));
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    gateway.assert_healthy();
}

#[test]
fn names_that_no_key_has_do_not_reach_the_server() {
    let node = Upstream::echo();
    let (issuer, asked, _) = issuer(format!("{{\"keys\":[{KEY}]}}"), true);
    let mut gateway = gateway(&node, &issuer, 2);
    let mut client = gateway.client();
    assert_eq!(status(&mut client, TOKEN), 200);
    let (_, rest) = TOKEN.split_once('.').expect("a token");
    for at in 0..300 {
        let header = encoded(&format!(r#"{{"alg":"ES256","kid":"{at:03}"}}"#));
        assert_eq!(status(&mut client, &format!("{header}.{rest}")), 401);
    }
    assert_eq!(status(&mut client, TOKEN), 200);
    // Each worker may send two requests: at first, and for the first of the names.
    assert!(asked.load(Ordering::SeqCst) <= 4, "{asked:?}");
    gateway.assert_healthy();
}

/// Base64 for URLs; the length is a multiple of three, so padding is not needed.
fn encoded(text: &str) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    assert_eq!(text.len() % 3, 0, "{text}");
    let groups =
        text.as_bytes().chunks(3).map(|group| group.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)));
    groups.flat_map(|word| [18, 12, 6, 0].map(|shift| char::from(ALPHABET[(word >> shift & 63) as usize]))).collect()
}

#[test]
fn a_set_that_is_too_large_is_none() {
    let node = Upstream::echo();
    let (issuer, asked, _) = issuer(format!("{{\"keys\":[{KEY}],\"x\":\"{}\"}}", "x".repeat(128 * 1024)), true);
    let mut gateway = gateway(&node, &issuer, 1);
    let mut client = gateway.client();
    for _ in 0..10 {
        assert_eq!(status(&mut client, TOKEN), 503);
    }
    assert_eq!((asked.load(Ordering::SeqCst), node.requests()), (1, 0));
    eventually("the failure in the log", || gateway.log().contains("could not be fetched"));
    gateway.assert_healthy();
}

/// An issuer signs the tokens of all its clients with the same keys.
#[test]
fn a_token_must_be_of_an_issuer_and_for_an_audience_of_the_credential() {
    let key = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
    let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let set = format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","x":"{}"}}]}}"#, encode(key.public_key_raw()));
    let token = |claims: &str| {
        let payload = format!(r#"{{"key":"joe"{claims}}}"#);
        let signed = format!("{}.{}", encode(br#"{"alg":"EdDSA"}"#), encode(payload.as_bytes()));
        format!("{signed}.{}", encode(&key.sign(signed.as_bytes()).expect("a signature")))
    };
    let node = Upstream::echo();
    let (issuer, ..) = issuer(set, true);
    let resources = format!(
        "routes:\n- {{id: a, uri: /*, plugins: {{jwt-auth: {{}}}}, upstream: {{nodes: {{\"{}\": 1}}}}}}\n\
         consumers:\n- username: joe\n  plugins:\n    jwt-auth: {{key: joe, algorithm: EdDSA, issuers: [\"https://a.test\"], \
         audiences: [api, account], jwks_uri: \"http://{}/keys.json\"}}\n",
        node.addr(),
        issuer.addr()
    );
    let mut gateway = Gateway::start(STILLGATE, &Setup::resources(resources));
    let mut client = gateway.client();
    let mut served = 0;
    for (claims, expected) in [
        (r#","iss":"https://a.test","aud":"api""#, 200),
        (r#","iss":"https://a.test","aud":["other","account"]"#, 200),
        (r#","iss":"https://b.test","aud":"api""#, 401),
        (r#","iss":"https://a.test","aud":"other""#, 401),
        (r#","iss":"https://a.test","aud":[]"#, 401),
        (r#","aud":"api""#, 401),
        (r#","iss":"https://a.test""#, 401),
        ("", 401),
    ] {
        // The second time a good token is remembered; a refused one must not be.
        for _ in 0..2 {
            let response = client.get(&format!("/?jwt={}", token(claims)));
            assert_eq!(response.head.status(), expected, "{claims}");
            served += usize::from(expected == 200);
            let is_told = String::from_utf8_lossy(&response.body).contains("failed to verify jwt");
            assert_eq!(is_told, expected == 401, "{claims}: {response:?}");
        }
    }
    assert_eq!(node.requests(), served);
    gateway.assert_healthy();
}

/// A key that was published while its server failed is found by the next fetch.
#[test]
fn a_fetch_that_failed_says_nothing_of_a_name() {
    let keys =
        [KeyPair::generate_for(&PKCS_ED25519).expect("a key"), KeyPair::generate_for(&PKCS_ED25519).expect("a key")];
    let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let published = |count: usize| {
        let of = |(kid, key): (usize, &KeyPair)| {
            format!(r#"{{"kty":"OKP","crv":"Ed25519","kid":"{kid}","x":"{}"}}"#, encode(key.public_key_raw()))
        };
        let body = format!("{{\"keys\":[{}]}}", keys[..count].iter().enumerate().map(of).collect::<Vec<_>>().join(","));
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    };
    let token = |kid: usize| {
        let head = encode(format!(r#"{{"alg":"EdDSA","kid":"{kid}"}}"#).as_bytes());
        let signed = format!("{head}.{}", encode(br#"{"key":"joe"}"#));
        format!("{signed}.{}", encode(&keys[kid].sign(signed.as_bytes()).expect("a signature")))
    };
    let answers =
        [published(1), "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n".to_owned(), published(2)];
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let issuer = Upstream::serve(move |connection| {
        while connection.read_request().is_ok() {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            if connection.try_send(answers[number.min(2)].clone()).is_err() {
                return;
            }
        }
    });
    let node = Upstream::echo();
    let resources = format!(
        "routes:\n- {{id: a, uri: /*, plugins: {{jwt-auth: {{}}}}, upstream: {{nodes: {{\"{}\": 1}}}}}}\n\
         consumers:\n- username: joe\n  plugins:\n    jwt-auth: {{key: joe, algorithm: EdDSA, \
         jwks_uri: \"http://{}/keys.json\"}}\n",
        node.addr(),
        issuer.addr()
    );
    let mut gateway = Gateway::start(STILLGATE, &Setup::resources(resources).gateway("workers: 1"));
    assert_eq!(status(&mut gateway.client(), &token(0)), 200);
    // A worker fetches once in ten seconds.
    eventually("a fetch that fails", || {
        assert_eq!(status(&mut gateway.client(), &token(1)), 401);
        asked.load(Ordering::SeqCst) == 2
    });
    let failed_at = Instant::now();
    eventually("the new key", || status(&mut gateway.client(), &token(1)) == 200);
    assert!(failed_at.elapsed() < Duration::from_secs(50), "{:?}", failed_at.elapsed());
    gateway.assert_healthy();
}
