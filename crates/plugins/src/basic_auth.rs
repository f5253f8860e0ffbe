//! basic-auth: authenticates consumers by a user name and a password.
//!
//! Statuses, bodies and header fields are APISIX's. It differs in that a password extends to the end of the header and
//! not only to its second colon.

//!
//! An addition: the password in the configuration may be a hash by argon2 or bcrypt. Comparing with one takes
//! milliseconds, so it is done by threads that do not serve requests; correct passwords are remembered by their
//! digests, per worker, and are valid as long as the consumer has the same credential. Equal passwords that come at the
//! same time are compared once.

mod comparisons;

use crate::authentication::{AUTHORIZATION, BASE64, REALM, Strangers, hide_lines, is_of_scheme};
use crate::digest_cache::DigestCache;
use argon2::{Argon2, Params, PasswordHash, PasswordVerifier};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::Engine;
use bcrypt::HashParts;
use comparisons::{Admission, BegunComparison, PasswordVerdict, RETRY_AFTER_S};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use stillgate_plugin_api::secrets::SECRET;
use stillgate_plugin_api::{
    Answer, Authenticate, Compile, CompileCredential, ConsumerRef, CredentialVerifier, Define, Flow, Phase, Phases,
    Plugin, Request, Secret,
};
use stillgate_schema::{Fault, Flag, TEXT, object};
use stillgate_wire::{FieldName, FieldValue};

object! {
    /// Authenticates a consumer by its user name and password.
    pub struct BasicAuthKeys {
        /// Do not forward the user name and the password to the node.
        hide_credentials: bool = Flag => default(false);
        /// The consumer for requests without a valid password. Without this key they are answered with 401.
        anonymous_consumer: String = TEXT => optional;
        /// The realm in `WWW-Authenticate` of an answer with 401.
        realm: String = REALM => default("basic".to_owned());
    }
}

object! {
    /// A consumer's user name and password.
    pub struct BasicAuthCredential {
        /// The user name. No two consumers can have the same.
        username: Secret = SECRET => required;
        /// The password, or a hash of it: `$argon2id$…`, `$argon2i$…`, `$argon2d$…`, or `$2b$…` of bcrypt.
        password: Secret = SECRET => required;
    }
}

/// basic-auth with one configuration.
pub(crate) struct BasicAuth(Arc<BasicAuthConfig>);

struct BasicAuthConfig {
    hide_credentials: bool,
    strangers: Strangers,
}

impl Define for BasicAuth {
    type Keys = BasicAuthKeys;
    const NAME: &'static str = "basic-auth";
    const PRIORITY: i32 = 2520;
    const PHASES: Phases = Phases::of(&[Phase::Rewrite]);

    fn compile(keys: BasicAuthKeys, _: &mut Compile<'_>) -> Option<BasicAuth> {
        Some(BasicAuth(Arc::new(BasicAuthConfig {
            hide_credentials: keys.hide_credentials,
            strangers: Strangers::new(keys.anonymous_consumer, "Basic", &keys.realm),
        })))
    }
}

impl Authenticate for BasicAuth {
    type Credential = BasicAuthCredential;
    type Verifier = Password;

    fn lookup(credential: &BasicAuthCredential) -> &[u8] {
        credential.username.reveal().as_bytes()
    }

    fn verifier(credential: BasicAuthCredential, cx: &mut CompileCredential<'_>) -> Option<Password> {
        Password::new(credential.password, cx)
    }
}

const MISSING: &str = "{\"message\":\"Missing authorization in request\"}\n";
const MALFORMED: &str = "{\"message\":\"Invalid authorization in request\"}\n";
const INVALID: &str = "{\"message\":\"Invalid user authorization\"}\n";

const TOO_MANY: &str = "{\"message\":\"Too many attempts\"}\n";
const RETRY_AFTER: FieldName<'static> = FieldName::constant("Retry-After");

thread_local! {
    /// Passwords that were found to match a hash. Workers are threads: each has one, whatever the number of configurations.
    static RIGHT: RefCell<DigestCache<()>> = RefCell::new(DigestCache::new());
}

/// Result of looking at a request.
enum BasicAuthOutcome {
    Known(ConsumerRef),
    /// The password has to be compared with a hash.
    Hashed(Login),
}

/// A password, and the consumer that it should belong to.
struct Login {
    /// `None`: the user name is unknown. The password is compared nevertheless, so that timing reveals nothing.
    attached: Option<ConsumerRef>,
    /// Identifies the credential.
    identity: u128,
    verifier: Arc<CredentialVerifier>,
    password: Vec<u8>,
}

impl Plugin for BasicAuth {
    fn rewrite(&self, request: &mut Request<'_>) -> Flow {
        let worker = request.worker;
        match worker.with_buffers(|buffer, spare| find(request, buffer, spare)) {
            Ok(BasicAuthOutcome::Known(attached)) => self.0.finish(Ok(attached), request),
            Ok(BasicAuthOutcome::Hashed(login)) => compare(self.0.clone(), login, request),
            Err(body) => self.0.finish(Err(body), request),
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

/// Compares a password with a hash, unless it was correct before. If that is already under way, its result is awaited.
fn compare(config: Arc<BasicAuthConfig>, login: Login, request: &mut Request<'_>) -> Flow {
    let known = RIGHT.with_borrow_mut(|right| {
        // Includes the credential's identity: a match with one hash says nothing about another.
        let digest = right.digest(&[&login.identity.to_le_bytes(), &login.password]);
        match right.get(digest) {
            Some(()) if login.attached.is_some() => Ok(()),
            _ => Err(digest),
        }
    });
    let Err(digest) = known else { return config.finish(login.attached.ok_or(INVALID), request) };
    match comparisons::admit(digest, login.identity, request.facts.client, request.worker.now_ms()) {
        Admission::Begun(begun) => begin(config, login, digest, begun),
        Admission::UnderWay(awaited) => Flow::wait(awaited, move |verdict, request| match verdict {
            PasswordVerdict::Right => config.finish(login.attached.ok_or(INVALID), request),
            PasswordVerdict::Wrong => config.finish(Err(INVALID), request),
            PasswordVerdict::Abandoned => compare(config, login, request),
        }),
        Admission::Refused => {
            request.response.add(RETRY_AFTER, FieldValue::constant(RETRY_AFTER_S));
            Flow::Answer(Answer::text(429, TOO_MANY))
        }
    }
}

/// Compares a password on a thread that does not serve requests.
fn begin(config: Arc<BasicAuthConfig>, login: Login, digest: u128, begun: BegunComparison) -> Flow {
    let Login { attached, verifier, password, .. } = login;
    let has_run = begun.has_run();
    let is_right = move || {
        has_run.store(true, Ordering::Relaxed);
        match verifier.get::<Password>() {
            Some(Password::Hashed(hash)) => hash.is_of(&password) && attached.is_some(),
            _ => false,
        }
    };
    Flow::offload(is_right, move |is_right, request| match is_right {
        Ok(true) => {
            RIGHT.with_borrow_mut(|right| right.put(digest, ()));
            begun.end(PasswordVerdict::Right);
            config.finish(attached.ok_or(INVALID), request)
        }
        Ok(false) => {
            begun.end(PasswordVerdict::Wrong);
            config.finish(Err(INVALID), request)
        }
        Err(full) => {
            begun.end(PasswordVerdict::Abandoned);
            full.into()
        }
    })
}

impl BasicAuthConfig {
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
}

/// The consumer, or the reason for refusing the request. The buffers are for decoded data.
fn find(request: &Request<'_>, buffer: &mut Vec<u8>, spare: &mut Vec<u8>) -> Result<BasicAuthOutcome, &'static str> {
    let header = request.first_header(AUTHORIZATION).ok_or(MISSING)?;
    let (user, password) = decode(header, buffer).ok_or(MALFORMED)?;
    let user = without_blanks(user, spare);
    let Some((attached, verifier)) = request.consumers.find_with_verifier(BasicAuth::NAME, user) else {
        let identity = RIGHT.with_borrow(|right| right.digest(&[user]));
        let verifier = request.consumers.decoy_verifier(BasicAuth::NAME, identity as u64).ok_or(INVALID)?;
        let password = without_line_end(password).to_vec();
        return match verifier.get::<Password>() {
            Some(Password::Hashed(_)) => {
                Ok(BasicAuthOutcome::Hashed(Login { attached: None, identity, verifier: verifier.clone(), password }))
            }
            _ => Err(INVALID),
        };
    };
    match verifier.get::<Password>() {
        Some(Password::Plain(known)) => {
            match is_same(known, password) || is_same(known, without_blanks(password, spare)) {
                true => Ok(BasicAuthOutcome::Known(attached)),
                false => Err(INVALID),
            }
        }
        Some(Password::Hashed(_)) => {
            let password = without_line_end(password).to_vec();
            let (attached, identity) = (Some(attached), verifier.identity.0);
            Ok(BasicAuthOutcome::Hashed(Login { attached, identity, verifier: verifier.clone(), password }))
        }
        None => Err(INVALID),
    }
}

/// For a hashed password, blanks count; a line end behind it does not.
fn without_line_end(password: &[u8]) -> &[u8] {
    let password = password.strip_suffix(b"\n").unwrap_or(password);
    password.strip_suffix(b"\r").unwrap_or(password)
}

/// The scheme.
const SCHEME: &[u8] = b"Basic";

/// The user name and the password in a value of `Authorization`.
fn decode<'a>(header: &[u8], buffer: &'a mut Vec<u8>) -> Option<(&'a [u8], &'a [u8])> {
    let (scheme, encoded) = header.split_at_checked(SCHEME.len())?;
    if !scheme.eq_ignore_ascii_case(SCHEME) || !encoded.first()?.is_ascii_whitespace() {
        return None;
    }
    buffer.clear();
    BASE64.decode_vec(encoded.trim_ascii(), buffer).ok()?;
    let colon = memchr::memchr(b':', buffer)?;
    // As in APISIX, which splits at colons and then misses the second part.
    if colon + 1 == buffer.len() {
        return None;
    }
    Some((&buffer[..colon], &buffer[colon + 1..]))
}

/// Trims a user name or a password like APISIX: some clients encode a line end with them.
fn without_blanks<'a>(text: &'a [u8], spare: &'a mut Vec<u8>) -> &'a [u8] {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    if !text.iter().any(is_blank) {
        return text;
    }
    spare.clear();
    spare.extend(text.iter().filter(|byte| !is_blank(byte)));
    spare
}

// The stored form of a password: the password itself, or a hash of it.

/// A consumer's password.
pub(crate) enum Password {
    /// The password itself.
    Plain(Secret),
    /// A hash of it, which takes long to compare with.
    Hashed(Hash),
}

/// A hash in its text form.
pub(crate) enum Hash {
    Argon2(Secret),
    Bcrypt(Secret),
}

/// Prefixes of argon2 hashes.
const ARGON2: [&str; 3] = ["$argon2id$", "$argon2i$", "$argon2d$"];
const BCRYPT: [&str; 4] = ["$2a$", "$2b$", "$2x$", "$2y$"];

/// Most memory for comparing with a hash.
const ARGON2_MEMORY_KIB_MAX: u32 = 256 * 1024;
/// Most work for comparing with a hash, as memory times passes over it: a second or two.
const ARGON2_WORK_KIB_MAX: u64 = 1024 * 1024;
/// Most work for bcrypt: two to this power.
const BCRYPT_COST_MAX: u32 = 15;

impl Password {
    /// Parses a credential's password. A text that begins like a hash is one, or is refused.
    fn new(password: Secret, cx: &mut CompileCredential<'_>) -> Option<Password> {
        let text = password.reveal();
        let begins = |starts: &[&str]| starts.iter().any(|start| text.starts_with(start));
        let checked = match (begins(&ARGON2), begins(&BCRYPT)) {
            (true, _) => check_argon2(text),
            (_, true) => check_bcrypt(text),
            _ => return Some(Password::Plain(password)),
        };
        if let Err(why) = checked {
            let fault = Fault::new(format!("the hash cannot be used: {why}"));
            cx.sink.error(cx.at, &cx.path.key("password"), fault.hint("make it again"));
            return None;
        }
        Some(Password::Hashed(if begins(&ARGON2) { Hash::Argon2(password) } else { Hash::Bcrypt(password) }))
    }
}

fn check_argon2(text: &str) -> Result<(), String> {
    let hash = PasswordHash::new(text).map_err(|error| error.to_string())?;
    if hash.hash.is_none() || hash.salt.is_none() {
        return Err("it has no salt or no hash".to_owned());
    }
    let params = Params::try_from(&hash).map_err(|error| error.to_string())?;
    let (memory, passes) = (params.m_cost(), params.t_cost());
    let work = u64::from(memory) * u64::from(passes);
    match memory <= ARGON2_MEMORY_KIB_MAX && work <= ARGON2_WORK_KIB_MAX {
        true => Ok(()),
        false => {
            Err(format!("it takes more than {ARGON2_MEMORY_KIB_MAX} KiB, or {ARGON2_WORK_KIB_MAX} KiB in all passes"))
        }
    }
}

fn check_bcrypt(text: &str) -> Result<(), String> {
    let parts: HashParts = text.parse().map_err(|error: bcrypt::BcryptError| error.to_string())?;
    match parts.get_cost() <= BCRYPT_COST_MAX {
        true => Ok(()),
        false => Err(format!("its cost is above {BCRYPT_COST_MAX}")),
    }
}

/// Whether two passwords are equal. The duration reveals only whether their lengths are.
fn is_same(known: &Secret, password: &[u8]) -> bool {
    verify_slices_are_equal(known.reveal().as_bytes(), password).is_ok()
}

impl Hash {
    /// Whether it is the hash of a password. It takes milliseconds, and memory.
    fn is_of(&self, password: &[u8]) -> bool {
        match self {
            Hash::Argon2(hash) => PasswordHash::new(hash.reveal())
                .is_ok_and(|hash| Argon2::default().verify_password(password, &hash).is_ok()),
            Hash::Bcrypt(hash) => bcrypt::verify(password, hash.reveal()).unwrap_or(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_decoded_as_nginx_does() {
        let check = |header: &str, expected: Option<(&str, &str)>| {
            let mut buffer = b"rest".to_vec();
            let expected = expected.map(|(user, password)| (user.as_bytes(), password.as_bytes()));
            assert_eq!(decode(header.as_bytes(), &mut buffer), expected, "{header}");
        };
        check("Basic Zm9vOmJhcg==", Some(("foo", "bar")));
        check("basic \t Zm9vOmJhcg", Some(("foo", "bar")));
        check("Basic Zm9vOmJhcjpiYXo=", Some(("foo", "bar:baz")));
        check("Basic Zm9vOg==", None);
        check("Basic OmJhcg==", Some(("", "bar")));
        check("Basic YmFy", None);
        check("Basic aca_a", None);
        check("Basic ", None);
        check("Basic", None);
        check("BasicZm9vOmJhcg==", None);
        check("Bearer Zm9vOmJhcg==", None);
        check("", None);
        check("Bas", None);
    }

    #[test]
    fn blanks_are_left_out() {
        let mut spare = b"rest".to_vec();
        assert_eq!(without_blanks(b"foo", &mut spare), b"foo");
        assert_eq!(without_blanks(b" f o\to\r\n", &mut spare), b"foo");
        assert_eq!(without_blanks(b" \n", &mut spare), b"");
    }
}
