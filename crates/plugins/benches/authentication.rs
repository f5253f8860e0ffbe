//! Cost of a request's authentication, in nanoseconds: `cargo bench -p stillgate-plugins`.
//!
//! Prints the best of several runs, as an indication: times on a shared machine are not a gate. Verifying a signature
//! is the whole cost of a new token except with HMAC, so it shows which algorithms are too slow for a worker.

#![allow(clippy::unwrap_used, reason = "a bench may stop at the first surprise")]

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED, ECDSA_P384_SHA384_FIXED_SIGNING,
    ECDSA_P521_SHA512_FIXED, ECDSA_P521_SHA512_FIXED_SIGNING, ED25519, EcdsaKeyPair, Ed25519KeyPair, KeyPair,
    ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, RsaKeyPair, VerificationAlgorithm,
};
use aws_lc_rs::{hmac, rsa::KeySize};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;
use stillgate_plugin_api::{
    BodyChanges, Consumer, Consumers, Credential, Facts, Flow, MetadataTable, NoSecrets, NoUpstreams, PluginLevel,
    PluginOrigin, Request, RequestState, Worker,
};
use stillgate_plugins::TABLE;
use stillgate_schema::text::tree;
use stillgate_schema::{Path, Sink, Value};
use stillgate_wire::{Edits, HeadLimits, RequestEdits, RequestHead};

const RUNS: usize = 9;
const NOW_MS: u64 = 1_795_220_833_000;
/// A hash of "password".
const HASH: &str = "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4";

fn main() {
    let token = |number: usize| {
        let payload = format!(
            r#"{{"iss":"https://issuer.example","sub":"user-{number:06}","key":"jack-key","exp":1999999999,"scope":"a b"}}"#
        );
        let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256","typ":"JWT"}"#);
        let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(payload));
        let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, b"a secret of some length"), signed.as_bytes());
        format!("Authorization: Bearer {signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    };
    // More tokens than a worker remembers, each used once a round.
    let many: Vec<String> = (0..20_000).map(token).collect();
    show_plugin("key-auth", "key-auth: {key: jack}", &["apikey: jack".to_owned()]);
    show_plugin("jwt-auth", "jwt-auth: {key: jack-key, secret: a secret of some length}", &many);
    show_plugin("jwt-auth", "jwt-auth: {key: jack-key, secret: a secret of some length}", &many[..1]);
    let basic = format!("Authorization: Basic {}", STANDARD.encode("jack:password"));
    show_plugin("basic-auth", "basic-auth: {username: jack, password: password}", std::slice::from_ref(&basic));
    show_plugin("basic-auth", &format!("basic-auth: {{username: jack, password: \"{HASH}\"}}"), &[basic]);
    signatures();
}

fn show(what: &str, count: usize, mut run: impl FnMut(usize)) {
    let mut once = || {
        let begin = Instant::now();
        (0..count).for_each(&mut run);
        begin.elapsed().as_nanos() as f64 / count as f64
    };
    let best = (0..RUNS).map(|_| once()).fold(f64::MAX, f64::min);
    println!("{best:>10.0} ns  {what}");
}

/// Measures a plugin with one consumer, for each of some header fields in turn.
fn show_plugin(name: &str, credential: &str, fields: &[String]) {
    let mut sink = Sink::default();
    let origin = PluginOrigin { level: PluginLevel::Route, id: "r".into() };
    let route = tree::parse(0, &format!("{name}: {{}}"), None, &mut sink).unwrap();
    let entries = TABLE.compile(&route.root, &origin, (&NoSecrets, &NoUpstreams), &Path::Root, &mut sink);
    let tree = tree::parse(0, credential, None, &mut sink).unwrap();
    let Value::Map(written) = &tree.root.value else { return };
    let (_, plugin) = TABLE.find(name).unwrap();
    let read = plugin.credential.unwrap().read;
    let (lookup, verifier) = read(&written[0].value, &Path::Root, &mut sink).unwrap();
    let mut consumers = Consumers::default();
    let (labels, plugins, credentials) = Default::default();
    let consumer = Consumer { name: "jack".into(), group: None, labels, plugins, credentials };
    consumers.insert(consumer, vec![Credential { plugin: plugin.name, lookup, place: None, verifier }]).unwrap();
    let heads: Vec<String> = fields.iter().map(|f| format!("GET /a HTTP/1.1\r\nHost: h\r\n{f}\r\n\r\n")).collect();
    let (worker, metadata) = (Worker::default(), MetadataTable::default());
    worker.set_now_ms(NOW_MS);
    let (mut edits, mut response, mut body) = (RequestEdits::default(), Edits::default(), BodyChanges::default());
    let (mut consumer, mut settled, mut parsed) = (None, RequestState::default(), RequestHead::default());
    let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 40000));
    let mut at_last = usize::MAX;
    let count = if heads.len() == 1 { 100_000 } else { heads.len() };
    show(&format!("{name}, {} credentials: {}", heads.len(), credential.len()), count, |at| {
        let at = at % heads.len();
        let head = heads[at].as_bytes();
        if at != at_last {
            parsed = RequestHead::default();
            parsed.advance(head, &HeadLimits::default()).unwrap();
            at_last = at;
        }
        edits.clear();
        let facts = Facts {
            head,
            request: &parsed,
            host: b"h",
            path: None,
            client: peer.ip(),
            client_port: peer.port(),
            peer,
            trusted_proxies: &[],
            https_port: None,
            local: peer,
            protocol: "HTTP/1.1",
            scheme: "http",
            tls: None,
            route: None,
        };
        let mut request = Request {
            facts,
            edits: &mut edits,
            body: &mut body,
            received: None,
            settled: &mut settled,
            response: &mut response,
            consumer: &mut consumer,
            consumers: &consumers,
            id: &stillgate_plugin_api::record::RequestId::default(),
            worker: &worker,
            metadata: &metadata,
        };
        let flow = match entries[0].plugin.rewrite(&mut request) {
            Flow::Offload(offload) => (offload.then)(Ok((offload.work)()), &mut request),
            flow => flow,
        };
        assert!(matches!(flow, Flow::Continue));
    });
}

fn signatures() {
    let random = SystemRandom::new();
    let message = [b'a'; 200];
    let show = |what: &str, algorithm: &'static dyn VerificationAlgorithm, key: &[u8], signature: &[u8]| {
        let key = ParsedPublicKey::new(algorithm, key).unwrap();
        show(&format!("verify {what}"), 500, |_| key.verify_sig(&message, signature).unwrap());
    };
    for (what, size) in [("RSA 2048", KeySize::Rsa2048), ("RSA 4096", KeySize::Rsa4096)] {
        let pair = RsaKeyPair::generate(size).unwrap();
        let mut signature = vec![0; pair.public_modulus_len()];
        pair.sign(&RSA_PKCS1_SHA256, &random, &message, &mut signature).unwrap();
        show(what, &RSA_PKCS1_2048_8192_SHA256, pair.public_key().as_ref(), &signature);
    }
    let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    let signature = pair.sign(&random, &message).unwrap();
    show("P-256", &ECDSA_P256_SHA256_FIXED, pair.public_key().as_ref(), signature.as_ref());
    let pair = EcdsaKeyPair::generate(&ECDSA_P384_SHA384_FIXED_SIGNING).unwrap();
    let signature = pair.sign(&random, &message).unwrap();
    show("P-384", &ECDSA_P384_SHA384_FIXED, pair.public_key().as_ref(), signature.as_ref());
    let pair = EcdsaKeyPair::generate(&ECDSA_P521_SHA512_FIXED_SIGNING).unwrap();
    let signature = pair.sign(&random, &message).unwrap();
    show("P-521", &ECDSA_P521_SHA512_FIXED, pair.public_key().as_ref(), signature.as_ref());
    let pair = Ed25519KeyPair::generate().unwrap();
    show("Ed25519", &ED25519, pair.public_key().as_ref(), pair.sign(&message).as_ref());
}
