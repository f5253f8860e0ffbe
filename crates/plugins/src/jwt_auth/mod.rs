//! jwt-auth: authenticates consumers by tokens signed with their keys.
//!
//! Statuses, bodies and header fields are APISIX's. The credential chooses the algorithm, and the token has to name it;
//! a token with critical headers is refused.
//!
//! A verified token is cached by its digest, per worker, with its times: it stays valid while these hold, its consumer
//! has the same credential, and a key from a published set is still published.

mod key;
mod key_set;
mod plain_json;
mod token;

use crate::authentication::{AUTHORIZATION, HEADER, REALM, Strangers, hide_lines, is_of_scheme};
use crate::digest_cache::DigestCache;
use key::{LastSecret, Verifier};
use key_set::KeyLookup;
use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;
use stillgate_jws::{ALGORITHMS, Algorithm, is_slow};
use stillgate_plugin_api::query::{Argument, argument, decoded};
use stillgate_plugin_api::secrets::SECRET;
use stillgate_plugin_api::{
    Answer, Authenticate, Compile, CompileCredential, ConsumerRef, CredentialVerifier, Define, Flow, Identity, Phase,
    Phases, Plugin, Request, RequestState, Secret,
};
use stillgate_route::path::target_path;
use stillgate_schema::kind::{Text, list, some, unique};
use stillgate_schema::{Choice, Fault, Flag, Json, TEXT, int, object, text};
use stillgate_wire::{FieldName, FieldValue, OwnedFieldName};
use token::{ClaimValue, Claims, LastHeader, Time, Token};

object! {
    /// Authenticates a consumer by a token.
    pub struct JwtAuthKeys {
        /// The header field that contains the token, with or without the prefix `Bearer `. It takes precedence.
        header: String = HEADER => default("authorization".to_owned());
        /// The query argument that contains the token if the header field is absent.
        query: String = TEXT.shown() => default("jwt".to_owned());
        /// The cookie that contains the token if both are absent.
        cookie: String = TEXT.shown() => default("jwt".to_owned());
        /// Do not forward the token to the node.
        hide_credentials: bool = Flag => default(false);
        /// The claim that identifies the consumer: the `key` of a credential.
        key_claim_name: String = CLAIM => default("key".to_owned());
        /// Functions in Lua see the claims as `ctx.jwt_auth_payload`.
        store_in_ctx: bool = Flag => default(false);
        /// The consumer for requests without a valid token. Without this key they are answered with 401.
        anonymous_consumer: String = TEXT => optional;
        /// The realm in `WWW-Authenticate` of an answer with 401.
        realm: String = REALM => default("jwt".to_owned());
        /// The claims that a token must have, and that are verified. Without the key, or with an empty list, `exp` and
        /// `nbf` are verified if a token has them.
        claims_to_verify: Vec<Claim> = unique(list(CLAIM_TO_VERIFY)) => optional;
    }
}

object! {
    /// Verifies a consumer's tokens.
    pub struct JwtAuthCredential {
        /// The value of the claim `key_claim_name` in the consumer's tokens. No two consumers can have the same.
        key: Secret = SECRET => required;
        /// The secret that signs the tokens, for HS256, HS384 and HS512.
        secret: Secret = SECRET => optional;
        /// The PEM of the public key, or of a certificate, for the other algorithms.
        public_key: Secret = SECRET => optional;
        /// For tokens that APISIX issues; has no effect.
        private_key: Secret = SECRET => optional;
        /// The URL of a JSON Web Key Set (RFC 7517), instead of `public_key`: the header's `kid` selects one of its
        /// keys.
        jwks_uri: String = TEXT.shown() => optional;
        /// Whether the certificate of an `https` server is verified for it.
        jwks_ssl_verify: bool = Flag => default(true);
        /// Timeout in milliseconds of connecting, of sending, and of the whole answer, each.
        jwks_timeout: u32 = int(1, 60_000) => default(3_000);
        /// Seconds after which the set is fetched again. A key that was removed from it stays valid for at most so
        /// long.
        jwks_ttl: u32 = int(10, 86_400) => default(300);
        /// Accepted values of the claim `iss`; any if it is absent.
        issuers: Vec<String> = some(TEXT) => optional;
        /// Accepted audiences: the claim `aud` must be one of these, or a list that contains one; any if it is absent.
        /// Set it if the issuer signs tokens for others, too.
        audiences: Vec<String> = some(TEXT) => optional;
        /// How the tokens are signed. They must name it.
        algorithm: Algorithm = ALGORITHM => default(Algorithm::Hs256);
        /// Seconds for tokens that APISIX issues; has no effect.
        exp: u64 = int(1, i64::MAX) => default(86400);
        /// `secret` is base64.
        base64_secret: bool = Flag => default(false);
        /// Tolerated difference of the clocks, in seconds.
        lifetime_grace_period: u64 = int(0, i64::MAX) => default(0);
    }
}

const ALGORITHM: Choice<Algorithm> = Choice { words: ALGORITHMS, unbuilt: &[] };

const CLAIM: Text<String> = text("the name of a claim", |text| match text.is_empty() {
    true => Err(Fault::new("a claim has a name").hint("write one, or remove the key")),
    false => Ok(text.to_owned()),
})
.shown();

/// A claim that can be verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The expiry.
    Exp,
    /// The start of validity.
    Nbf,
}

const CLAIM_TO_VERIFY: Choice<Claim> = Choice { words: &[("exp", Claim::Exp), ("nbf", Claim::Nbf)], unbuilt: &[] };

/// The check of a time claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    Required,
    WherePresent,
    Never,
}

impl Check {
    fn passes(self, time: Time, is_good: impl FnOnce(f64) -> bool) -> bool {
        match (self, time) {
            (Check::Never, _) | (Check::WherePresent, Time::Absent) => true,
            (Check::Required, Time::Absent) | (_, Time::Broken) => false,
            (_, Time::At(time)) => is_good(time),
        }
    }
}

/// jwt-auth with one configuration.
pub(crate) struct JwtAuth(Arc<JwtAuthConfig>);

struct JwtAuthConfig {
    places: TokenLocations,
    hide_credentials: bool,
    keeps_claims: bool,
    key_claim: Box<str>,
    exp: Check,
    nbf: Check,
    strangers: Strangers,
}

impl Define for JwtAuth {
    type Keys = JwtAuthKeys;
    const NAME: &'static str = NAME;
    const PRIORITY: i32 = 2510;
    const PHASES: Phases = Phases::of(&[Phase::Rewrite]);

    fn compile(keys: JwtAuthKeys, _: &mut Compile<'_>) -> Option<JwtAuth> {
        // An empty list counts as absent, in APISIX since 3.17: otherwise it would admit expired tokens.
        let listed = keys.claims_to_verify.unwrap_or_default();
        let check = |claim| match listed.contains(&claim) {
            true => Check::Required,
            false if listed.is_empty() => Check::WherePresent,
            false => Check::Never,
        };
        Some(JwtAuth(Arc::new(JwtAuthConfig {
            exp: check(Claim::Exp),
            nbf: check(Claim::Nbf),
            places: TokenLocations::new(keys.header, keys.query, keys.cookie),
            hide_credentials: keys.hide_credentials,
            keeps_claims: keys.store_in_ctx,
            key_claim: keys.key_claim_name.into(),
            strangers: Strangers::new(keys.anonymous_consumer, "Bearer", &keys.realm),
        })))
    }
}

impl Authenticate for JwtAuth {
    type Credential = JwtAuthCredential;
    type Verifier = Verifier;

    fn lookup(credential: &JwtAuthCredential) -> &[u8] {
        credential.key.reveal().as_bytes()
    }

    fn verifier(credential: JwtAuthCredential, cx: &mut CompileCredential<'_>) -> Option<Verifier> {
        Verifier::new(credential, cx)
    }
}

/// The claims of the token that admitted a request, for functions.
struct KeptClaims(Json);

/// The claims that were stored last.
pub(crate) fn claims_of(settled: &RequestState) -> Option<&Json> {
    let kept = settled.held.iter().rev().find_map(|held| held.downcast_ref::<KeptClaims>());
    kept.map(|KeptClaims(claims)| claims)
}

/// APISIX's name.
const NAME: &str = "jwt-auth";

const MISSING: &str = "{\"message\":\"Missing JWT token in request\"}\n";
const INVALID: &str = "{\"message\":\"JWT token invalid\"}\n";
const NO_KEY: &str = "{\"message\":\"missing user key in JWT token\"}\n";
const UNKNOWN_KEY: &str = "{\"message\":\"Invalid user key in JWT token\"}\n";
const UNVERIFIED: &str = "{\"message\":\"failed to verify jwt\"}\n";

/// A worker's state: verified tokens, of all configurations, and buffers.
struct JwtAuthMemory {
    verified: DigestCache<VerifiedToken>,
    text: Vec<u8>,
    json: Vec<u8>,
    signature: Vec<u8>,
    last: Last,
}

/// Results for the last token, which usually help with the next.
#[derive(Default)]
struct Last {
    header: LastHeader,
    /// The expanded form of its secret.
    prepared: LastSecret,
}

/// A verified token.
struct VerifiedToken {
    /// The credential that verified it.
    credential_verifier: Identity,
    key: Box<[u8]>,
    exp: Time,
    nbf: Time,
    /// The serial number of the key in a set that verified it.
    of_set: Option<u64>,
}

thread_local! {
    /// Workers are threads: each has one, whatever the number of configurations.
    static MEMORY: RefCell<JwtAuthMemory> = RefCell::new(JwtAuthMemory {
        verified: DigestCache::new(),
        text: Vec::new(),
        json: Vec::new(),
        signature: Vec::new(),
        last: Last::default(),
    });
}

/// Result of looking at a request.
enum JwtAuthOutcome {
    VerifiedToken(ConsumerRef),
    Stranger(&'static str),
    /// Its token is verified on another thread.
    Slow(Slow),
    /// Its key is published at a URL.
    OfSet(OfSet),
}

/// A token whose key is in a set.
struct OfSet {
    kid: Option<Box<str>>,
    token: Slow,
}

/// A token that takes long to verify.
struct Slow {
    attached: ConsumerRef,
    credential_verifier: Arc<CredentialVerifier>,
    signed: Box<[u8]>,
    signature: Box<[u8]>,
    digest: u128,
    known: VerifiedToken,
}

impl Plugin for JwtAuth {
    fn each_field_read(&self, visit: &mut dyn FnMut(&str, &[u8])) {
        visit("header", self.0.places.header());
    }

    fn rewrite(&self, request: &mut Request<'_>) -> Flow {
        let config = &self.0;
        let outcome = MEMORY.with_borrow_mut(|memory| {
            let JwtAuthMemory { verified, text, json, signature, last } = memory;
            match config.places.find(request, text) {
                TokenLookup::Missing => JwtAuthOutcome::Stranger(MISSING),
                TokenLookup::Malformed => JwtAuthOutcome::Stranger(INVALID),
                TokenLookup::Found(token) => {
                    let outcome = config.verify(request, token, verified, (json, signature), last);
                    outcome.unwrap_or_else(JwtAuthOutcome::Stranger)
                }
            }
        });
        match outcome {
            JwtAuthOutcome::VerifiedToken(attached) => config.finish(Ok(attached), request),
            JwtAuthOutcome::Stranger(body) => config.finish(Err(body), request),
            JwtAuthOutcome::Slow(slow) => {
                let credential_verifier = slow.credential_verifier.clone();
                let verifies = move |signed: &[u8], signature: &[u8]| {
                    credential_verifier.get::<Verifier>().is_some_and(|verifier| verifier.verifies(signed, signature))
                };
                verify_elsewhere(config.clone(), slow, verifies)
            }
            JwtAuthOutcome::OfSet(of_set) => verify_by_set(config.clone(), of_set, false, request),
        }
    }

    fn named_consumer(&self) -> Option<&str> {
        self.0.strangers.anonymous()
    }

    fn hide_credentials(&self, request: &mut Request<'_>) {
        if self.0.hide_credentials {
            MEMORY.with_borrow_mut(|memory| self.0.places.hide_tokens(request, &mut memory.text));
        }
    }
}

/// Verifies a token on a thread that does not serve requests.
fn verify_elsewhere(
    config: Arc<JwtAuthConfig>,
    slow: Slow,
    verifies: impl FnOnce(&[u8], &[u8]) -> bool + Send + 'static,
) -> Flow {
    let Slow { attached, signed, signature, digest, known, .. } = slow;
    let verify = move || verifies(&signed, &signature);
    Flow::offload(verify, move |is_good, request| match is_good {
        Err(full) => full.into(),
        Ok(false) => config.finish(Err(UNVERIFIED), request),
        Ok(true) => {
            MEMORY.with_borrow_mut(|memory| memory.verified.put(digest, known));
            config.finish(Ok(attached), request)
        }
    })
}

/// Verifies a token by the key that it names, once that is available.
fn verify_by_set(config: Arc<JwtAuthConfig>, of_set: OfSet, has_waited: bool, request: &mut Request<'_>) -> Flow {
    let credential_verifier = of_set.token.credential_verifier.clone();
    let Some(verifier) = credential_verifier.get::<Verifier>() else { return config.finish(Err(UNVERIFIED), request) };
    let Some(set) = verifier.key_set() else { return config.finish(Err(UNVERIFIED), request) };
    let algorithm = verifier.algorithm;
    match key_set::look_up_key(set, of_set.kid.as_deref(), algorithm, request.worker, has_waited) {
        KeyLookup::Unknown => config.finish(Err(UNVERIFIED), request),
        // This is not the client's fault.
        KeyLookup::Unavailable => Flow::Answer(Answer::page(503)),
        KeyLookup::Fetching(fetched) => {
            Flow::wait(fetched, move |(), request| verify_by_set(config, of_set, true, request))
        }
        KeyLookup::Key(serial, key) => {
            let OfSet { mut token, .. } = of_set;
            token.known.of_set = Some(serial);
            let is_slow = is_slow(algorithm, &key);
            let verifies = move |signed: &[u8], signature: &[u8]| key.verify_sig(signed, signature).is_ok();
            if is_slow {
                return verify_elsewhere(config, token, verifies);
            }
            let Slow { attached, signed, signature, digest, known, .. } = token;
            if !verifies(&signed, &signature) {
                return config.finish(Err(UNVERIFIED), request);
            }
            MEMORY.with_borrow_mut(|memory| memory.verified.put(digest, known));
            config.finish(Ok(attached), request)
        }
    }
}

impl JwtAuthConfig {
    fn finish(&self, found: Result<ConsumerRef, &'static str>, request: &mut Request<'_>) -> Flow {
        let (attached, is_known) = match found {
            Ok(attached) => (attached, true),
            Err(body) => match self.strangers.admit(body, request) {
                Ok(attached) => (attached, false),
                Err(answer) => return answer,
            },
        };
        if is_known && self.keeps_claims {
            let claims =
                MEMORY.with_borrow_mut(|JwtAuthMemory { text, json, .. }| match self.places.find(request, text) {
                    TokenLookup::Found(token) => Token::split(token).and_then(|token| token.payload(json)),
                    _ => None,
                });
            request.settled.held.extend(claims.map(|claims| Box::new(KeptClaims(claims)) as Box<dyn Any>));
        }
        if self.hide_credentials {
            MEMORY.with_borrow_mut(|memory| self.places.hide(request, &mut memory.text));
        }
        match is_known {
            true => request.attach(attached),
            false => request.attach_anonymous(attached),
        }
        Flow::Continue
    }

    /// The consumer of the token, or the reason for refusing it.
    fn verify(
        &self,
        request: &Request<'_>,
        token: &[u8],
        verified: &mut DigestCache<VerifiedToken>,
        (json, signature): (&mut Vec<u8>, &mut Vec<u8>),
        last: &mut Last,
    ) -> Result<JwtAuthOutcome, &'static str> {
        let digest = verified.digest(&[self.key_claim.as_bytes(), token]);
        if let Some(known) = verified.get(digest)
            && let Some((attached, credential_verifier)) =
                request.consumers.find_with_verifier(JwtAuth::NAME, &known.key)
            && credential_verifier.identity == known.credential_verifier
            && let Some(verifier) = credential_verifier.get::<Verifier>()
            && is_still_published(verifier, known, request)
        {
            return self
                .in_time(known.exp, known.nbf, verifier, request)
                .map(|()| JwtAuthOutcome::VerifiedToken(attached));
        }
        let parts = Token::split(token).ok_or(INVALID)?;
        let algorithm = parts.algorithm_with(&mut last.header, json).ok_or(INVALID)?;
        let Claims { key, exp, nbf } = parts.claims(&self.key_claim, json).ok_or(INVALID)?;
        let key = match key {
            None | Some(ClaimValue::False) => return Err(NO_KEY),
            Some(ClaimValue::Text(key)) => key,
            Some(ClaimValue::Number(_) | ClaimValue::Other) => return Err(UNKNOWN_KEY),
        };
        let found = request.consumers.find_with_verifier(JwtAuth::NAME, key.as_bytes());
        let (attached, credential_verifier) = found.ok_or(UNKNOWN_KEY)?;
        let verifier = credential_verifier.get::<Verifier>().ok_or(UNVERIFIED)?;
        let signature = parts.signature(signature).ok_or(UNVERIFIED)?;
        if algorithm != Some(verifier.algorithm) {
            return Err(UNVERIFIED);
        }
        // Checked before the signature, which costs more.
        self.in_time(exp, nbf, verifier, request)?;
        let known = VerifiedToken {
            credential_verifier: credential_verifier.identity,
            key: key.as_bytes().into(),
            exp,
            nbf,
            of_set: None,
        };
        // For a cached token they were checked, for the same credential.
        if verifier.expected.as_ref().is_some_and(|expected| !expected.are_in(&parts)) {
            return Err(UNVERIFIED);
        }
        if verifier.key_set().is_some() {
            let kid = parts.kid(json).ok_or(UNVERIFIED)?;
            let (credential_verifier, signed, signature) =
                (credential_verifier.clone(), parts.signed.into(), signature.into());
            let token = Slow { attached, credential_verifier, signed, signature, digest, known };
            return Ok(JwtAuthOutcome::OfSet(OfSet { kid, token }));
        }
        if verifier.is_slow() {
            let (credential_verifier, signed, signature) =
                (credential_verifier.clone(), parts.signed.into(), signature.into());
            return Ok(JwtAuthOutcome::Slow(Slow { attached, credential_verifier, signed, signature, digest, known }));
        }
        if !verifier.verifies_with(&mut last.prepared, credential_verifier.identity, parts.signed, signature) {
            return Err(UNVERIFIED);
        }
        verified.put(digest, known);
        Ok(JwtAuthOutcome::VerifiedToken(attached))
    }

    /// As in APISIX, to the second: a token ends with the second of `exp`, and begins after that of `nbf`.
    fn in_time(&self, exp: Time, nbf: Time, verifier: &Verifier, request: &Request<'_>) -> Result<(), &'static str> {
        let now = (request.worker.now_ms() / 1000) as f64;
        let grace = verifier.grace_s as f64;
        let is_in_time = self.nbf.passes(nbf, |nbf| nbf < now + grace) && self.exp.passes(exp, |exp| exp > now - grace);
        if let (Time::At(exp), true) = (exp, self.exp != Check::Never) {
            request.settled.authenticated_until.set(Some(exp + grace));
        }
        match is_in_time {
            true => Ok(()),
            false => Err(UNVERIFIED),
        }
    }
}

/// Whether the key that verified a token is still published, if it came from a set.
fn is_still_published(verifier: &Verifier, known: &VerifiedToken, request: &Request<'_>) -> bool {
    match (known.of_set, verifier.key_set()) {
        (None, None) => true,
        (Some(serial), Some(set)) => key_set::still_has(set, serial, request.worker),
        _ => false,
    }
}

// Where a request carries its token, and how it is removed.

/// The places where tokens are searched.
struct TokenLocations {
    header: OwnedFieldName,
    query: Box<[u8]>,
    cookie: Box<str>,
}

/// Result of the search in a request.
enum TokenLookup<'a> {
    Missing,
    /// Something that cannot be a token.
    Malformed,
    Found(&'a [u8]),
}

const COOKIE: FieldName<'static> = FieldName::constant("Cookie");

impl TokenLocations {
    /// Creates it with the names of the places.
    fn new(header: String, query: String, cookie: String) -> TokenLocations {
        let header = OwnedFieldName::new(header.as_bytes()).expect("checked when it was read");
        TokenLocations { header, query: query.into_bytes().into(), cookie: cookie.into() }
    }

    /// The name of the header field.
    fn header(&self) -> &[u8] {
        self.header.name().bytes()
    }

    /// The first of these: the header field, the query, the cookie.
    fn find<'a>(&self, request: &'a Request<'_>, buffer: &'a mut Vec<u8>) -> TokenLookup<'a> {
        if let Some(value) = request.first_header(self.header.name()) {
            let token = value.strip_prefix(b"Bearer ").or_else(|| value.strip_prefix(b"bearer "));
            return TokenLookup::Found(token.unwrap_or(value));
        }
        let query = target_path(request.target()).1.unwrap_or_default();
        match argument(query, &self.query) {
            Argument::Absent => {}
            Argument::Other => return TokenLookup::Malformed,
            Argument::One(value) => {
                buffer.clear();
                buffer.extend(decoded(value));
                return TokenLookup::Found(buffer);
            }
        }
        match request.facts.cookie(&self.cookie) {
            Some(token) => TokenLookup::Found(token),
            None => TokenLookup::Missing,
        }
    }

    /// Removes tokens from the request for the node, wherever one may be: beside the one that was found there may be another.
    /// Everything around them is unchanged.
    fn hide(&self, request: &mut Request<'_>, buffer: &mut Vec<u8>) {
        request.remove_header(self.header.name());
        self.hide_behind_header(request, buffer);
    }

    /// Like [`TokenLocations::hide`], but `Authorization` keeps credentials of other schemes: they are for other plugins.
    fn hide_tokens(&self, request: &mut Request<'_>, buffer: &mut Vec<u8>) {
        // A token has no blanks; with another scheme there is one behind it.
        let is_token =
            |value: &[u8]| is_of_scheme(value, b"Bearer") || !value.trim_ascii().iter().any(u8::is_ascii_whitespace);
        match AUTHORIZATION.is(self.header()) {
            true => hide_lines(AUTHORIZATION, is_token, request),
            false => request.remove_header(self.header.name()),
        }
        self.hide_behind_header(request, buffer);
    }

    fn hide_behind_header(&self, request: &mut Request<'_>, buffer: &mut Vec<u8>) {
        request.hide_argument(&self.query, buffer);
        let name = self.cookie.as_bytes();
        let lines = || request.edits.fields.values(&request.facts.request.fields, request.facts.head, COOKIE);
        let pairs = || lines().flat_map(|line| line.split(|byte| *byte == b';')).map(<[u8]>::trim_ascii);
        if !pairs().any(|pair| is_of(pair, name)) {
            return;
        }
        buffer.clear();
        for pair in pairs().filter(|pair| !pair.is_empty() && !is_of(pair, name)) {
            if !buffer.is_empty() {
                buffer.extend_from_slice(b"; ");
            }
            buffer.extend_from_slice(pair);
        }
        request.remove_header(COOKIE);
        if !buffer.is_empty() {
            request.add_header(COOKIE, FieldValue::of_head(buffer));
        }
    }
}

fn is_of(pair: &[u8], name: &[u8]) -> bool {
    pair.strip_prefix(name).is_some_and(|rest| rest.starts_with(b"="))
}
