//! hmac-auth: authenticates consumers by a signature over parts of the request.
//!
//! Statuses, bodies and header fields are APISIX's. It differs in that all lines of a signed field count, and in that
//! the date whose age is checked must be the signed one, if the date has to be signed.

use crate::authentication::{AUTHORIZATION, BASE64, REALM, Strangers, hide_lines, is_of_scheme};
use aws_lc_rs::digest::{Context, SHA256};
use aws_lc_rs::{constant_time, hmac};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::sync::Arc;
use std::task::Poll;
use std::time::UNIX_EPOCH;
use stillgate_plugin_api::{
    Authenticate, Compile, CompileCredential, ConsumerRef, Define, Flow, Phase, Phases, Plugin, Request, Secret,
};
use stillgate_route::Lookup;
use stillgate_schema::kind::{Text, list, some};
use stillgate_schema::{Choice, Definitions, Fault, Flag, Json, Kind, Node, Path, Sink, TEXT, int, object, text};
use stillgate_wire::FieldName;

object! {
    /// Authenticates a consumer by a signature with its key.
    pub struct HmacAuthKeys {
        /// The algorithms that requests may name.
        allowed_algorithms: Vec<Algorithm> = some(ALGORITHM) => default(ALL.to_vec());
        /// Seconds by which the date of a request may differ from the present time.
        clock_skew: u64 = int(1, i64::MAX) => default(300);
        /// Header fields that must be signed. An empty list: none, so that a request can be repeated for ever.
        signed_headers: Vec<String> = list(SIGNED) => default(vec!["date".to_owned()]);
        /// The body must have the digest in `Digest`. Name `digest` in `signed_headers` with it.
        validate_request_body: bool = Flag => default(false);
        /// The largest body that is buffered for validation, in bytes. A larger one is answered with 413.
        max_req_body_size: usize = int(1, BODY_BYTES_MAX) => default(1024 * 1024);
        /// Do not forward the signature to the node.
        hide_credentials: bool = Flag => default(false);
        /// The consumer for requests without a valid signature. Without this key they are answered with 401.
        anonymous_consumer: String = TEXT => optional;
        /// The realm in `WWW-Authenticate` of an answer with 401.
        realm: String = REALM => default("hmac".to_owned());
    }
}

object! {
    /// A consumer's key.
    pub struct HmacAuthCredential {
        /// The name of the key, which requests carry. No two consumers can have the same.
        key_id: Secret = KEY => required;
        /// The key that signs requests.
        secret_key: Secret = KEY => required;
    }
}

/// Upper bound of that limit.
const BODY_BYTES_MAX: i64 = 1024 * 1024 * 1024;

/// A hash function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    /// `hmac-sha1`
    Sha1,
    /// `hmac-sha256`
    Sha256,
    /// `hmac-sha512`
    Sha512,
}

const ALL: [Algorithm; 3] = [Algorithm::Sha1, Algorithm::Sha256, Algorithm::Sha512];
const NAMES: &[(&str, Algorithm)] =
    &[("hmac-sha1", Algorithm::Sha1), ("hmac-sha256", Algorithm::Sha256), ("hmac-sha512", Algorithm::Sha512)];
const ALGORITHM: Choice<Algorithm> = Choice { words: NAMES, unbuilt: &[] };

/// APISIX's limit.
const SIGNED_CHARACTERS_MAX: usize = 50;

/// Parts of a request that are signed. Each is looked for among all fields before the signature is known to be right, so
/// that a client without a key decides how often.
const SIGNED_PARTS_MAX: usize = 32;

const SIGNED: Text<String> =
    text("the name of a header field", |text| match (1..=SIGNED_CHARACTERS_MAX).contains(&text.chars().count()) {
        true => Ok(text.to_owned()),
        false => Err(Fault::new(format!("the name of a signed field has 1 to {SIGNED_CHARACTERS_MAX} characters"))),
    })
    .shown();

/// A secret of at most 256 characters.
struct KeyText;

const KEY: KeyText = KeyText;
const KEY_CHARACTERS_MAX: usize = 256;

impl Kind for KeyText {
    type Out = Secret;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Secret> {
        let secret = stillgate_plugin_api::secrets::SECRET.read(node, path, sink)?;
        if secret.reveal().chars().count() <= KEY_CHARACTERS_MAX {
            return Some(secret);
        }
        sink.error(node.at, path, Fault::new(format!("it has more than {KEY_CHARACTERS_MAX} characters")));
        None
    }

    fn schema(&self, _: &mut Definitions) -> Json {
        serde_json::json!({"type": "string", "minLength": 1, "maxLength": KEY_CHARACTERS_MAX})
    }
}

/// hmac-auth with one configuration.
pub(crate) struct HmacAuth(Arc<HmacAuthConfig>);

struct HmacAuthConfig {
    allowed: Box<[Algorithm]>,
    clock_skew_s: u64,
    signed: Box<[String]>,
    /// The largest body that is validated; `None`: bodies are not validated.
    body_bytes_max: Option<usize>,
    hide_credentials: bool,
    strangers: Strangers,
}

/// A consumer's key. The expanded HMAC keys take more than 1 KiB for each algorithm, so they are computed for each
/// request.
pub(crate) struct SecretKey(Secret);

impl Define for HmacAuth {
    type Keys = HmacAuthKeys;
    const NAME: &'static str = "hmac-auth";
    const PRIORITY: i32 = 2530;
    const PHASES: Phases = Phases::of(&[Phase::Rewrite]);

    fn compile(keys: HmacAuthKeys, cx: &mut Compile<'_>) -> Option<HmacAuth> {
        if keys.validate_request_body && !keys.signed_headers.iter().any(|name| name.eq_ignore_ascii_case("digest")) {
            let fault = Fault::new(
                "an attacker who changes the body can change its digest as well, since the digest need not be signed",
            );
            cx.sink.warning(
                cx.at,
                &cx.path.key("validate_request_body"),
                fault.hint("add \"digest\" to signed_headers"),
            );
        }
        if keys.signed_headers.len() > SIGNED_PARTS_MAX {
            let fault = Fault::new(format!("more than {SIGNED_PARTS_MAX} fields"));
            cx.sink.error(cx.at, &cx.path.key("signed_headers"), fault.hint("name those that matter"));
            return None;
        }
        Some(HmacAuth(Arc::new(HmacAuthConfig {
            allowed: keys.allowed_algorithms.into(),
            clock_skew_s: keys.clock_skew,
            signed: keys.signed_headers.into(),
            body_bytes_max: keys.validate_request_body.then_some(keys.max_req_body_size),
            hide_credentials: keys.hide_credentials,
            strangers: Strangers::new(keys.anonymous_consumer, "hmac", &keys.realm),
        })))
    }
}

impl Authenticate for HmacAuth {
    type Credential = HmacAuthCredential;
    type Verifier = SecretKey;

    fn lookup(credential: &HmacAuthCredential) -> &[u8] {
        credential.key_id.reveal().as_bytes()
    }

    fn verifier(credential: HmacAuthCredential, _: &mut CompileCredential<'_>) -> Option<SecretKey> {
        Some(SecretKey(credential.secret_key))
    }
}

const MISSING: &str = "{\"message\":\"client request can't be validated: missing Authorization header\"}\n";
const OTHER_SCHEME: &str =
    "{\"message\":\"client request can't be validated: Authorization header does not start with 'Signature'\"}\n";
const INVALID: &str = "{\"message\":\"client request can't be validated\"}\n";

const DATE: FieldName<'static> = FieldName::constant("Date");
const X_DATE: FieldName<'static> = FieldName::constant("X-Date");
const DIGEST: FieldName<'static> = FieldName::constant("Digest");

impl Plugin for HmacAuth {
    fn each_field_read(&self, visit: &mut dyn FnMut(&str, &[u8])) {
        self.0.signed.iter().for_each(|name| visit("signed_headers", name.as_bytes()));
    }

    fn rewrite(&self, request: &mut Request<'_>) -> Flow {
        let config = self.0.clone();
        match (config.find(request), config.body_bytes_max) {
            (Ok(attached), Some(bytes_max)) => match request.first_header(DIGEST).and_then(sha256_of) {
                Some(digest) => Flow::body(bytes_max, move |request| {
                    validate(DigestedBody { config, attached, digest, hashed: Context::new(&SHA256), at: 0 }, request)
                }),
                None => config.finish(Err(INVALID), request),
            },
            (found, _) => config.finish(found, request),
        }
    }

    fn named_consumer(&self) -> Option<&str> {
        self.0.strangers.anonymous()
    }

    fn hide_credentials(&self, request: &mut Request<'_>) {
        if self.0.hide_credentials {
            hide_lines(AUTHORIZATION, |value| is_of_scheme(value, SCHEME), request);
        }
    }
}

impl HmacAuthConfig {
    fn finish(&self, found: Result<ConsumerRef, &'static str>, request: &mut Request<'_>) -> Flow {
        let (attached, is_known) = match found {
            Ok(attached) => (attached, true),
            Err(body) => match self.strangers.admit(body, request) {
                Ok(attached) => (attached, false),
                Err(answer) => return answer,
            },
        };
        if self.hide_credentials {
            request.remove_header(AUTHORIZATION);
        }
        match is_known {
            true => request.attach(attached),
            false => request.attach_anonymous(attached),
        }
        Flow::Continue
    }

    /// The consumer of the signature, or the reason for refusing it. The body is not checked.
    fn find(&self, request: &Request<'_>) -> Result<ConsumerRef, &'static str> {
        let header = request.first_header(AUTHORIZATION).ok_or(MISSING)?;
        let parameters = Parameters::parse(header.strip_prefix(SCHEME).ok_or(OTHER_SCHEME)?);
        let (key_id, signature) = parameters.key_id.zip(parameters.signature).ok_or(INVALID)?;
        if !parameters.names_each_once() {
            return Err(INVALID);
        }
        let algorithm = parameters.algorithm.and_then(algorithm_named).filter(|named| self.allowed.contains(named));
        let algorithm = algorithm.ok_or(INVALID)?;
        let (attached, verifier) = request.consumers.find_with_verifier(HmacAuth::NAME, key_id).ok_or(INVALID)?;
        let SecretKey(secret) = verifier.get().ok_or(INVALID)?;
        let date = [(DATE, "date"), (X_DATE, "x-date")];
        let date = date.into_iter().find_map(|(field, name)| Some((request.first_header(field)?, name)));
        let (date, name_of_date) = date.ok_or(INVALID)?;
        if !self.is_within_clock_skew(date, request) || !self.signs_enough(&parameters, name_of_date) {
            return Err(INVALID);
        }
        let algorithm = match algorithm {
            Algorithm::Sha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            Algorithm::Sha256 => hmac::HMAC_SHA256,
            Algorithm::Sha512 => hmac::HMAC_SHA512,
        };
        let key = hmac::Key::new(algorithm, secret.reveal().as_bytes());
        request.worker.with_buffers(|decoded, _| {
            BASE64.decode_vec(signature, decoded).map_err(|_| INVALID)?;
            let signed = parameters.sign(&key, request);
            match constant_time::verify_slices_are_equal(signed.as_ref(), decoded) {
                Ok(()) => Ok(attached),
                Err(_) => Err(INVALID),
            }
        })
    }

    /// Whether a date is close enough to the current time.
    fn is_within_clock_skew(&self, date: &[u8], request: &Request<'_>) -> bool {
        let date = std::str::from_utf8(date).ok().and_then(|date| httpdate::parse_http_date(date).ok());
        let seconds = date.and_then(|date| date.duration_since(UNIX_EPOCH).ok()).map(|time| time.as_secs());
        seconds.is_some_and(|seconds| seconds.abs_diff(request.worker.now_ms() / 1000) <= self.clock_skew_s)
    }

    /// Whether all required parts are signed. If the date is required, it must be the one that was checked.
    fn signs_enough(&self, parameters: &Parameters<'_>, name_of_date: &str) -> bool {
        self.signed.iter().all(|name| {
            let is_date = name.eq_ignore_ascii_case("date");
            parameters.signs(if is_date { name_of_date } else { name }.as_bytes())
        })
    }
}

fn algorithm_named(name: &[u8]) -> Option<Algorithm> {
    NAMES.iter().find(|(known, _)| known.as_bytes() == name).map(|(_, algorithm)| *algorithm)
}

const SHA256_BYTES: usize = 32;

/// The digest in a value of `Digest`.
fn sha256_of(value: &[u8]) -> Option<[u8; SHA256_BYTES]> {
    // With room for a block more than a digest takes, which decoding may need.
    let mut decoded = [0; SHA256_BYTES + 3];
    let count = STANDARD.decode_slice(value.strip_prefix(b"SHA-256=")?, &mut decoded).ok()?;
    (count == SHA256_BYTES).then(|| std::array::from_fn(|at| decoded[at]))
}

/// A body that is being validated.
struct DigestedBody {
    config: Arc<HmacAuthConfig>,
    attached: ConsumerRef,
    digest: [u8; SHA256_BYTES],
    hashed: Context,
    at: usize,
}

/// Bytes that are hashed in one turn: less than 100 µs.
const HASHED_BYTES_AT_ONCE: usize = 16 * 1024;

/// Hashes the body, one piece in each turn of the event loop.
fn validate(mut body: DigestedBody, request: &mut Request<'_>) -> Flow {
    let Some(bytes) = request.whole_body() else { return body.config.finish(Err(INVALID), request) };
    let rest = bytes.get(body.at..).unwrap_or_default();
    let piece = &rest[..rest.len().min(HASHED_BYTES_AT_ONCE)];
    body.hashed.update(piece);
    body.at += piece.len();
    if piece.len() < rest.len() {
        return Flow::wait(one_turn(), move |(), request| validate(body, request));
    }
    let DigestedBody { config, attached, digest, hashed, .. } = body;
    let is_same = constant_time::verify_slices_are_equal(hashed.finish().as_ref(), &digest).is_ok();
    config.finish(if is_same { Ok(attached) } else { Err(INVALID) }, request)
}

/// Completes in the next turn of the event loop.
fn one_turn() -> impl Future<Output = ()> {
    let mut is_next = false;
    std::future::poll_fn(move |cx| match std::mem::replace(&mut is_next, true) {
        true => Poll::Ready(()),
        false => {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    })
}

// The signature of a request, and the signed text: a form of the draft "Signing HTTP Messages" (cavage), as APISIX
// reads it.
//
// ```text
//  Authorization: Signature keyId="jack",algorithm="hmac-sha256",headers="@request-target date",signature="…"
//
//  jack
//  GET /orders?x=1
//  date: Tue, 19 Jan 2021 11:33:20 GMT
// ```
//
// Each line of the signed text ends with a line feed. For a field with several lines APISIX signs the first; here all
// of them count, joined by a comma and a blank, so that none can be added after signing.

/// The parameters of a signature.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Parameters<'a> {
    key_id: Option<&'a [u8]>,
    algorithm: Option<&'a [u8]>,
    signature: Option<&'a [u8]>,
    /// The names of the signed parts, separated by blanks.
    headers: Option<&'a [u8]>,
}

/// The scheme.
const SCHEME: &[u8] = b"Signature";
/// The name for the method and the target.
const REQUEST_TARGET: &[u8] = b"@request-target";

impl<'a> Parameters<'a> {
    /// Parses the text after the scheme: names and quoted values between commas. Malformed parts are skipped, and the
    /// last one of a name counts.
    fn parse(text: &'a [u8]) -> Parameters<'a> {
        let mut parameters = Parameters::default();
        for (name, value) in text.split(|byte| *byte == b',').filter_map(pair) {
            match name {
                b"keyId" => parameters.key_id = Some(value),
                b"algorithm" => parameters.algorithm = Some(value),
                b"signature" => parameters.signature = Some(value),
                b"headers" => parameters.headers = Some(value),
                _ => {}
            }
        }
        parameters
    }

    /// The names of the signed parts.
    fn signed(&self) -> impl Iterator<Item = &'a [u8]> {
        let names = self.headers.map(|names| names.split(|byte| *byte == b' '));
        names.into_iter().flatten().filter(|name| !name.is_empty())
    }

    /// Whether there are at most [`SIGNED_PARTS_MAX`] names, none of them twice: then no byte of a field is signed twice.
    fn names_each_once(&self) -> bool {
        let mut names: [&[u8]; SIGNED_PARTS_MAX] = [b""; SIGNED_PARTS_MAX];
        self.signed().enumerate().all(|(at, name)| {
            let is_new = names[..at.min(SIGNED_PARTS_MAX)].iter().all(|before| !before.eq_ignore_ascii_case(name));
            let place = names.get_mut(at).filter(|_| is_new);
            place.map(|place| *place = name).is_some()
        })
    }

    /// Whether a field is signed, or the target. Names of fields are the same in any case; [`REQUEST_TARGET`] names no field, and
    /// in another case it is a field that no request has.
    fn signs(&self, part: &[u8]) -> bool {
        let is_target = part.eq_ignore_ascii_case(REQUEST_TARGET);
        self.signed().any(|name| if is_target { name == REQUEST_TARGET } else { name.eq_ignore_ascii_case(part) })
    }

    /// Computes the signature of the named parts of a request with a key.
    fn sign(&self, key: &hmac::Key, request: &Request<'_>) -> hmac::Tag {
        let mut signing = hmac::Context::with_key(key);
        signing.update(self.key_id.unwrap_or_default());
        signing.update(b"\n");
        for name in self.signed() {
            if name == REQUEST_TARGET {
                let target = request.facts.path_and_query();
                for part in [request.facts.method(), b" ", if target.is_empty() { b"/" } else { target }, b"\n"] {
                    signing.update(part);
                }
                continue;
            }
            sign_values(&mut signing, name, request);
        }
        signing.sign()
    }
}

/// Signs the values of a field, if the request has it.
fn sign_values(signing: &mut hmac::Context, name: &[u8], request: &Request<'_>) {
    let mut is_there = false;
    request.each_header(&mut |field, value| {
        if field.eq_ignore_ascii_case(name) {
            if is_there {
                signing.update(b", ");
            } else {
                signing.update(name);
                signing.update(b": ");
            }
            signing.update(value);
            is_there = true;
        }
    });
    if is_there {
        signing.update(b"\n");
    }
}

/// A name and its value in `name="value"`, with blanks before it.
fn pair(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let equals = memchr::memmem::find(text, b"=\"")?;
    let (name, value) = (text[..equals].trim_ascii_start(), &text[equals + 2..]);
    let end = memchr::memchr(b'"', value)?;
    (!name.is_empty() && name.iter().all(u8::is_ascii_alphanumeric)).then_some((name, &value[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read() {
        let check = |text: &'static str, expected: [Option<&'static str>; 4]| {
            let [key_id, algorithm, signature, headers] = expected.map(|text| text.map(str::as_bytes));
            assert_eq!(
                Parameters::parse(text.as_bytes()),
                Parameters { key_id, algorithm, signature, headers },
                "{text}"
            );
        };
        check(
            r#" keyId="jack",algorithm="hmac-sha256", headers="@request-target date",  signature="a+/=""#,
            [Some("jack"), Some("hmac-sha256"), Some("a+/="), Some("@request-target date")],
        );
        check(r#"signature="a",keyId="b",signature="c""#, [Some("b"), None, Some("c"), None]);
        check(r#"keyId="",other="x",keyid="y""#, [Some(""), None, None, None]);
        check(r#"keyId=jack,algorithm="x,signature = "y",key-Id="z","#, [None; 4]);
        check("", [None; 4]);
        check(r#"keyId="a=b""#, [Some("a=b"), None, None, None]);
        let names = Parameters { headers: Some(b"@request-target Date x-a"), ..Parameters::default() };
        assert!(names.signs(b"date") && names.signs(b"X-A") && !names.signs(b"x"));
        assert!(!Parameters::default().signs(b""));
    }

    #[test]
    fn each_part_is_named_once_and_few_are() {
        let check = |names: &str, expected: bool| {
            let parameters = Parameters { headers: Some(names.as_bytes()), ..Parameters::default() };
            assert_eq!(parameters.names_each_once(), expected, "{names}");
        };
        let numbered = |count: usize| (0..count).map(|number| format!("x-{number} ")).collect::<String>();
        check("", true);
        check("date x y", true);
        check(" date  x ", true);
        check("date x date", false);
        check("date x DATE", false);
        check(&numbered(SIGNED_PARTS_MAX), true);
        check(&numbered(SIGNED_PARTS_MAX + 1), false);
        check(&"x ".repeat(SIGNED_PARTS_MAX + 1), false);
        assert!(Parameters::default().names_each_once());
    }
}
