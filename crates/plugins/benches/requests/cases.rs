//! The chains that are measured, each with the requests that it gets.

use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

/// More tokens than a worker remembers.
const TOKENS: usize = 20_000;
const CONSUMERS: usize = 100_000;
const NETWORKS: usize = 100_000;
const RULES: usize = 1_000;
/// Of "password".
const HASH: &str = "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4";

/// Whether there is a plugin at all.
#[derive(PartialEq, Eq)]
pub(super) enum Kind {
    /// What the bench itself costs.
    Nothing,
    Plugins,
}

pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// What a request may pay, at most.
    pub(super) mark_ns: Option<u32>,
    pub(super) plugins: String,
    /// Each of a consumer of its own, under its plugin's name.
    pub(super) credentials: Vec<String>,
    pub(super) metadata: Option<(&'static str, &'static str)>,
    /// Header lines of requests, which come in turn.
    pub(super) fields: Vec<String>,
}

impl Case {
    fn of(name: &'static str, mark_ns: u32, plugins: impl Into<String>) -> Case {
        let (credentials, metadata, fields) = (Vec::new(), None, vec![String::new()]);
        Case {
            name,
            kind: Kind::Plugins,
            mark_ns: Some(mark_ns),
            plugins: plugins.into(),
            credentials,
            metadata,
            fields,
        }
    }
}

pub(super) fn all() -> Vec<Case> {
    let mut cases = vec![Case { kind: Kind::Nothing, mark_ns: None, ..Case::of("no plugin", 0, "{}") }];
    cases.extend(credentials());
    cases.extend(lists());
    cases.extend(traces());
    cases.push(five());
    cases
}

fn credentials() -> Vec<Case> {
    let secret = "a secret of some length";
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let fresh: Vec<String> =
        (0..TOKENS).map(|number| token("HS256", number, |text| hmac::sign(&key, text).as_ref().to_vec())).collect();
    let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    let public: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
    let pem = format!("-----BEGIN PUBLIC KEY-----\\n{}\\n-----END PUBLIC KEY-----", STANDARD.encode(public.as_ref()));
    let signed = token("ES256", 0, |text| pair.sign(&SystemRandom::new(), text).unwrap().as_ref().to_vec());
    let by_secret = vec![format!("jwt-auth: {{key: jack-key, secret: {secret}}}")];
    let by_key = vec![format!("jwt-auth: {{key: jack-key, algorithm: ES256, public_key: \"{pem}\"}}")];
    let basic = format!("Authorization: Basic {}\r\n", STANDARD.encode("jack:password"));
    let hashed = vec![format!("basic-auth: {{username: jack, password: \"{HASH}\"}}")];
    let keys = (0..CONSUMERS).map(|number| format!("key-auth: {{key: key-of-consumer-{number:06}}}"));
    // Some thousand of them, from all over.
    let used = (0..4_096).map(|number| format!("apikey: key-of-consumer-{:06}\r\n", number * 7_919 % CONSUMERS));
    let jwt =
        |name, mark_ns, fields, credentials| Case { fields, credentials, ..Case::of(name, mark_ns, "jwt-auth: {}") };
    vec![
        Case {
            mark_ns: None,
            credentials: keys.collect(),
            fields: used.collect(),
            ..Case::of("key-auth, 100,000 consumers", 0, "key-auth: {}")
        },
        jwt("jwt-auth, HS256, fresh", 800, fresh.clone(), by_secret.clone()),
        jwt("jwt-auth, HS256, verified before", 500, fresh[..1].to_vec(), by_secret),
        jwt("jwt-auth, ES256, verified before", 500, vec![signed], by_key),
        Case {
            credentials: hashed,
            fields: vec![basic],
            ..Case::of("basic-auth, argon2, verified before", 500, "basic-auth: {}")
        },
    ]
}

fn token(algorithm: &str, number: usize, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let payload = format!(
        r#"{{"iss":"https://issuer.example","sub":"user-{number:06}","key":"jack-key","exp":1999999999,"scope":"a b"}}"#
    );
    let header = format!(r#"{{"alg":"{algorithm}","typ":"JWT"}}"#);
    let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload));
    format!("Authorization: Bearer {signed}.{}\r\n", URL_SAFE_NO_PAD.encode(sign(signed.as_bytes())))
}

fn lists() -> Vec<Case> {
    let network = |number: usize| format!("11.{}.{}.{}/31", number >> 15, (number >> 7) & 255, (number & 127) * 2);
    let networks: Vec<String> = (0..NETWORKS).map(network).collect();
    let rules: Vec<String> = (0..RULES).map(|number| format!("'^/blocked-{number}/.*[.]php$'")).collect();
    vec![
        Case::of(
            "ip-restriction, 100,000 networks",
            100,
            format!("ip-restriction: {{blacklist: [{}]}}", networks.join(", ")),
        ),
        Case::of("uri-blocker, 1,000 rules", 1_000, format!("uri-blocker: {{block_rules: [{}]}}", rules.join(", "))),
    ]
}

fn traces() -> Vec<Case> {
    let metadata = Some(("opentelemetry", "{collector: {address: \"127.0.0.1:4318\"}}"));
    let ratio = "opentelemetry: {sampler: {name: trace_id_ratio, options: {fraction: 0.01}}}";
    vec![
        Case { metadata, ..Case::of("opentelemetry, 1%", 300, ratio) },
        Case { metadata, ..Case::of("opentelemetry, 100%", 2_000, "opentelemetry: {sampler: {name: always_on}}") },
    ]
}

/// Those that the bench of plugins has together, too.
fn five() -> Case {
    let plugins = "{key-auth: {}, limit-count: {count: 1000000000, time_window: 3600}, \
        cors: {allow_origins: https://bench.example, allow_methods: 'GET,POST', allow_headers: 'apikey,content-type', max_age: 600}, \
        proxy-rewrite: {regex_uri: ['^/[0-9]+/(.*)$', /rewritten/$1], headers: {set: {X-Bench: '1'}}}, \
        response-rewrite: {headers: {set: {X-Answer: bench}}}}";
    Case {
        credentials: vec!["key-auth: {key: jack}".to_owned()],
        fields: vec!["apikey: jack\r\nOrigin: https://bench.example\r\n".to_owned()],
        ..Case::of("the chain of five", 1_000, plugins)
    }
}
