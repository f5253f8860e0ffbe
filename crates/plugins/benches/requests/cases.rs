//! The measured chains, each with its requests.

use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm,
    Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PSS_SHA512, RsaEncoding, RsaKeyPair,
};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use std::net::{IpAddr, Ipv4Addr};

/// More tokens than a worker remembers.
const TOKENS: usize = 20_000;
const CONSUMERS: usize = 100_000;
const NETWORKS: usize = 100_000;
const RULES: usize = 1_000;
/// Number of addresses and paths that are used in turn.
const SEVERAL: usize = 4_096;
const TARGET: &str = "/12/item";
/// A hash of "password".
const HASH: &str = "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4";

/// Whether the case has a plugin at all.
#[derive(PartialEq, Eq)]
pub(super) enum Kind {
    /// The cost of the bench itself.
    Nothing,
    Plugins,
}

pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Target for the cost of a request, in nanoseconds.
    pub(super) mark_ns: Option<u32>,
    pub(super) plugins: String,
    /// Credentials under their plugin's name, each of a consumer of its own.
    pub(super) credentials: Vec<String>,
    pub(super) metadata: Option<(&'static str, &'static str)>,
    /// Header lines of requests, used in turn.
    pub(super) fields: Vec<String>,
    /// Targets of requests, used in turn.
    pub(super) targets: Vec<String>,
    /// Addresses of clients, used in turn.
    pub(super) clients: Vec<IpAddr>,
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
            targets: vec![TARGET.to_owned()],
            clients: vec![Ipv4Addr::LOCALHOST.into()],
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
    let by_secret = vec![format!("jwt-auth: {{key: jack-key, secret: {secret}}}")];
    let basic = format!("Authorization: Basic {}\r\n", STANDARD.encode("jack:password"));
    let bcrypt = bcrypt::hash_with_salt("password", 10, [7; 16]).unwrap().to_string();
    let by_bcrypt = vec![format!("basic-auth: {{username: jack, password: \"{bcrypt}\"}}")];
    let hashed = vec![format!("basic-auth: {{username: jack, password: \"{HASH}\"}}")];
    let keys = (0..CONSUMERS).map(|number| format!("key-auth: {{key: key-of-consumer-{number:06}}}"));
    // Some thousand of them, spread over all.
    let used = (0..4_096).map(|number| format!("apikey: key-of-consumer-{:06}\r\n", number * 7_919 % CONSUMERS));
    let jwt =
        |name, mark_ns, fields, credentials| Case { fields, credentials, ..Case::of(name, mark_ns, "jwt-auth: {}") };
    let mut cases = vec![
        Case {
            mark_ns: None,
            credentials: keys.collect(),
            fields: used.collect(),
            ..Case::of("key-auth, 100,000 consumers", 0, "key-auth: {}")
        },
        jwt("jwt-auth, HS256, fresh", 800, fresh.clone(), by_secret.clone()),
        jwt("jwt-auth, HS256, verified before", 500, fresh[..1].to_vec(), by_secret),
        Case {
            credentials: hashed,
            fields: vec![basic.clone()],
            ..Case::of("basic-auth, argon2, verified before", 500, "basic-auth: {}")
        },
        Case {
            credentials: by_bcrypt,
            fields: vec![basic],
            ..Case::of("basic-auth, bcrypt, verified before", 500, "basic-auth: {}")
        },
    ];
    cases.extend(signed().map(|(name, credential, token)| jwt(name, 500, vec![token], vec![credential])));
    cases
}

/// A case of each kind of key: its name, credential and token.
fn signed() -> [(&'static str, String, String); 5] {
    let rsa = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    let by_rsa = |algorithm, encoding: &'static dyn RsaEncoding| {
        let sign = |text: &[u8]| {
            let mut signature = vec![0; rsa.public_modulus_len()];
            rsa.sign(encoding, &SystemRandom::new(), text, &mut signature).unwrap();
            signature
        };
        (credential(algorithm, rsa.public_key().as_der().unwrap()), token(algorithm, 0, sign))
    };
    let by_curve = |algorithm, curve: &'static EcdsaSigningAlgorithm| {
        let pair = EcdsaKeyPair::generate(curve).unwrap();
        let sign = |text: &[u8]| pair.sign(&SystemRandom::new(), text).unwrap().as_ref().to_vec();
        (credential(algorithm, pair.public_key().as_der().unwrap()), token(algorithm, 0, sign))
    };
    let edwards = Ed25519KeyPair::generate().unwrap();
    let by_edwards = (
        credential("EdDSA", edwards.public_key().as_der().unwrap()),
        token("EdDSA", 0, |text| edwards.sign(text).as_ref().to_vec()),
    );
    [
        ("jwt-auth, ES256, verified before", by_curve("ES256", &ECDSA_P256_SHA256_FIXED_SIGNING)),
        ("jwt-auth, ES512, verified before", by_curve("ES512", &ECDSA_P521_SHA512_FIXED_SIGNING)),
        ("jwt-auth, RS256, verified before", by_rsa("RS256", &RSA_PKCS1_SHA256)),
        ("jwt-auth, PS512, verified before", by_rsa("PS512", &RSA_PSS_SHA512)),
        ("jwt-auth, EdDSA, verified before", by_edwards),
    ]
    .map(|(name, (credential, token))| (name, credential, token))
}

fn credential(algorithm: &str, public: PublicKeyX509Der<'_>) -> String {
    let pem = format!("-----BEGIN PUBLIC KEY-----\\n{}\\n-----END PUBLIC KEY-----", STANDARD.encode(public.as_ref()));
    format!("jwt-auth: {{key: jack-key, algorithm: {algorithm}, public_key: \"{pem}\"}}")
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
    // Two of every four addresses, so that there are others between them.
    let apart = |number: usize| (number >> 14, (number >> 6) & 255, (number & 63) * 4);
    let sparse: Vec<String> = (0..NETWORKS).map(apart).map(|(a, b, c)| format!("11.{a}.{b}.{c}/31")).collect();
    let sparse_v6: Vec<String> =
        (0..NETWORKS).map(|number| format!("2001:db8:{:x}:{:x}::/64", number >> 8, (number & 255) * 2)).collect();
    let several = || (0..SEVERAL).map(|number| number * 7_919 % NETWORKS);
    let beside = |by: usize| -> Vec<IpAddr> {
        several().map(apart).map(|(a, b, c)| format!("11.{a}.{b}.{}", c + by).parse().unwrap()).collect()
    };
    let beside_v6: Vec<IpAddr> = several()
        .map(|number| format!("2001:db8:{:x}:{:x}::1", number >> 8, (number & 255) * 2 + 1).parse().unwrap())
        .collect();
    let near = |number: usize| format!("/blocked-{}/item-{number}.phpx", number % (2 * RULES));
    let other = |number: usize| format!("/shop/{number}/items?page={}", number % 7);
    // They share no prefix, suffix or infix.
    let unlike: Vec<String> = (0..RULES)
        .map(|number| match number % 3 {
            0 => format!("'^/[a-f]{{2}}{number}[.](cgi|pl)'"),
            1 => format!("'{number}/[0-9]+/(edit|drop)$'"),
            _ => format!("'(wp|old)[-_]{number}[.]zip'"),
        })
        .collect();
    let blocker = |name, rules: &[String], target: &dyn Fn(usize) -> String| Case {
        targets: (0..SEVERAL).map(target).collect(),
        ..Case::of(name, 1_000, format!("uri-blocker: {{block_rules: [{}]}}", rules.join(", ")))
    };
    let of_clients = |name, kind: &str, networks: &[String], clients: Vec<IpAddr>| Case {
        clients,
        ..Case::of(name, 100, format!("ip-restriction: {{{kind}: [{}]}}", networks.join(", ")))
    };
    vec![
        of_clients("ip-restriction, clients near networks", "blacklist", &sparse, beside(2)),
        of_clients("ip-restriction, clients in a whitelist", "whitelist", &sparse, beside(1)),
        of_clients("ip-restriction, IPv6, near networks", "blacklist", &sparse_v6, beside_v6),
        blocker("uri-blocker, many paths", &rules, &other),
        blocker("uri-blocker, near misses", &rules, &near),
        blocker("uri-blocker, rules unlike each other", &unlike, &other),
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

/// The chain that the bench of plugins uses, too.
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
