//! Key sets that issuers publish at a URL, fetched and cached by each worker separately.
//!
//! ```text
//!   kid ──▶ known? ──▶ key
//!             │ no
//!             ├──▶ fetched in the last REFETCH_MS ──▶ unknown
//!             └──▶ fetch, one at a time ──▶ wait ──▶ known? key : unknown
//! ```
//!
//! A set is fetched on first use, when a token names a key that is not in it, and when it is old. Only the first two
//! wait for it. If a fetch fails, the current set stays in use, however old. A key that an issuer removes from its set
//! stops verifying once the set is fetched again, also for cached tokens.
//!
//! Names that no key had are not remembered: anybody can send the name of a key before it is published, and tokens of that
//! key would be refused afterwards. The interval between fetches is the only bound.

use aws_lc_rs::signature::ParsedPublicKey;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value as Json;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;
use stillgate_jws::{Algorithm, parse_der};
use stillgate_plugin_api::{Call, CallError, Identity, LocalFuture, Reply, Url, Worker};
use stillgate_wire::{FieldName, FieldValue};

/// Largest set in bytes.
const SET_BYTES_MAX: usize = 128 * 1024;
/// Shortest interval of fetches of a set, whatever their results.
const REFETCH_MS: u64 = 10_000;
/// Most requests that wait for one fetch.
const WAITING_MAX: usize = 1024;
/// Most sets that a worker keeps.
const SETS_MAX: usize = 1024;

/// The location of a credential's keys.
pub(super) struct KeySet {
    url: Url,
    timeout: Duration,
    ttl_ms: u64,
    /// Digest of everything that decides what is fetched: credentials with the same one share the set.
    identity: Identity,
}

impl KeySet {
    /// The location of a credential's keys.
    pub(super) fn new(url: Url, text: &str, verifies: bool, timeout_ms: u32, ttl_s: u32) -> KeySet {
        let identity =
            Identity::of(&[text.as_bytes(), &[u8::from(verifies)], &timeout_ms.to_le_bytes(), &ttl_s.to_le_bytes()]);
        let timeout = Duration::from_millis(u64::from(timeout_ms));
        KeySet { url, timeout, ttl_ms: u64::from(ttl_s) * 1000, identity }
    }
}

/// Result of looking for a key.
pub(super) enum KeyLookup {
    /// Its serial number, and the key.
    Key(u64, Arc<ParsedPublicKey>),
    /// The set has no such key.
    Unknown,
    /// No set could be fetched yet.
    Unavailable,
    /// It may be in the set that is being fetched.
    Fetching(LocalFuture<()>),
}

/// The set that a worker has fetched from one URL.
#[derive(Default)]
struct RemoteKeySet {
    /// `None`: not fetched yet.
    keys: RefCell<Option<Vec<Jwk>>>,
    /// When the current keys were requested.
    fetched_ms: Cell<u64>,
    /// When they were last requested, with or without success.
    asked_ms: Cell<Option<u64>>,
    /// Number of finished fetches.
    ended: Cell<u64>,
    is_fetching: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

thread_local! {
    static SOURCES: RefCell<HashMap<Identity, Rc<RemoteKeySet>>> = RefCell::default();
    static SERIAL: Cell<u64> = const { Cell::new(0) };
}

/// Looks a key up. If it is missing, the result is a fetch to wait for, unless that was done.
pub(super) fn look_up_key(
    set: &KeySet,
    kid: Option<&str>,
    algorithm: Algorithm,
    worker: &Worker,
    has_waited: bool,
) -> KeyLookup {
    let source = source(set);
    let ended = source.ended.get();
    source.refresh(set, worker);
    if let Some((serial, key)) = source.key(kid, algorithm) {
        return KeyLookup::Key(serial, key);
    }
    let is_long = kid.is_some_and(|kid| kid.len() > KID_BYTES_MAX);
    let is_here = source.keys.borrow().is_some();
    if is_here && is_long {
        return KeyLookup::Unknown;
    }
    if !has_waited && (source.is_fetching.get() || source.ask(set, worker)) {
        return match source.waiting.borrow().len() < WAITING_MAX {
            true => KeyLookup::Fetching(source.wait_for_fetch(ended)),
            false => KeyLookup::Unavailable,
        };
    }
    match is_here {
        true => KeyLookup::Unknown,
        false => KeyLookup::Unavailable,
    }
}

/// Whether the set still contains a key, by its serial number. Starts a fetch if the set is old, without waiting.
pub(super) fn still_has(set: &KeySet, serial: u64, worker: &Worker) -> bool {
    let source = source(set);
    source.refresh(set, worker);
    let keys = source.keys.borrow();
    keys.as_ref().is_some_and(|keys| keys.iter().any(|key| key.serial == serial))
}

fn source(set: &KeySet) -> Rc<RemoteKeySet> {
    SOURCES.with_borrow_mut(|sources| {
        if let Some(source) = sources.get(&set.identity) {
            return source.clone();
        }
        if sources.len() >= SETS_MAX {
            // It is not known here which of them are still configured; they are fetched again.
            sources.clear();
        }
        sources.entry(set.identity).or_default().clone()
    })
}

impl RemoteKeySet {
    /// The key with a name, or the only one that fits if the token names none.
    fn key(&self, kid: Option<&str>, algorithm: Algorithm) -> Option<(u64, Arc<ParsedPublicKey>)> {
        let keys = self.keys.borrow();
        let mut fitting = keys.as_ref()?.iter().filter(|key| key.fits(kid, algorithm));
        let first = fitting.next()?;
        if kid.is_none() && fitting.next().is_some() {
            return None;
        }
        Some((first.serial, first.key(algorithm)?))
    }

    fn refresh(self: &Rc<RemoteKeySet>, set: &KeySet, worker: &Worker) {
        let is_old = worker.now_ms().saturating_sub(self.fetched_ms.get()) >= set.ttl_ms;
        if is_old && !self.is_fetching.get() && self.keys.borrow().is_some() {
            self.ask(set, worker);
        }
    }

    /// Starts to fetch the set, unless that was done a moment ago.
    fn ask(self: &Rc<RemoteKeySet>, set: &KeySet, worker: &Worker) -> bool {
        let now_ms = worker.now_ms();
        if self.asked_ms.get().is_some_and(|asked_ms| now_ms.abs_diff(asked_ms) < REFETCH_MS) {
            return false;
        }
        self.asked_ms.set(Some(now_ms));
        self.is_fetching.set(true);
        let mut call = Call::new(&set.url.origin, b"GET", set.url.target.as_bytes());
        (call.timeout, call.reply_bytes_max) = (set.timeout, SET_BYTES_MAX);
        call.header(FieldName::constant("Accept"), FieldValue::constant("application/jwk-set+json, application/json"));
        let reply = worker.io().call(call);
        let (fetch, io, host) = (Fetch(self.clone()), worker.io().clone(), set.url.origin.host.clone());
        worker.io().spawn(Box::pin(async move {
            if let Err(why) = fetch.0.take_in(reply.await, now_ms) {
                io.warn(super::NAME, &format!("the keys of {host} could not be fetched: {why}"));
            }
        }));
        true
    }

    fn take_in(&self, reply: Result<Reply, CallError>, asked_ms: u64) -> Result<(), String> {
        let reply = reply.map_err(|error| error.to_string())?;
        if reply.status() != 200 {
            return Err(format!("it answered with status {}", reply.status()));
        }
        let mut keys = read_set(&reply.body)?;
        let mut here = self.keys.borrow_mut();
        for key in &mut keys {
            let before = here.iter().flatten().find(|old| old.is_same(key)).map(|old| old.serial);
            key.serial = before.unwrap_or_else(|| {
                SERIAL.set(SERIAL.get() + 1);
                SERIAL.get()
            });
        }
        *here = Some(keys);
        self.fetched_ms.set(asked_ms);
        Ok(())
    }

    /// Completes when more fetches have finished.
    fn wait_for_fetch(self: &Rc<RemoteKeySet>, ended: u64) -> LocalFuture<()> {
        let source = self.clone();
        Box::pin(poll_fn(move |cx| {
            if source.ended.get() != ended {
                return Poll::Ready(());
            }
            let mut waiting = source.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        }))
    }
}

/// A running fetch. When it ends in any way, its waiters continue.
struct Fetch(Rc<RemoteKeySet>);

impl Drop for Fetch {
    fn drop(&mut self) {
        self.0.is_fetching.set(false);
        self.0.ended.set(self.0.ended.get() + 1);
        self.0.waiting.take().into_iter().for_each(Waker::wake);
    }
}

// Public keys from a JSON Web Key Set (RFC 7517).
//
// A key that has another use, an unknown type or errors is skipped: issuers publish such keys beside others.
// Certificates (`x5c`) and private parts are ignored. Base64 is parsed strictly.

/// Most keys of a set; a larger one is refused.
const KEYS_MAX: usize = 128;
/// Longest name; a key with a longer one is skipped.
pub(super) const KID_BYTES_MAX: usize = 256;

/// One key.
pub(super) struct Jwk {
    /// Unique among all keys of this worker; kept if a fetched set still contains the key.
    pub(super) serial: u64,
    kid: Option<Box<str>>,
    kind: JwkKind,
    /// The only algorithm that it may be used for.
    algorithm: Option<Algorithm>,
    der: Box<[u8]>,
    /// Parsed keys by algorithm, cached; `None`: it cannot be used for the algorithm.
    parsed: RefCell<Vec<(Algorithm, Option<Arc<ParsedPublicKey>>)>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JwkKind {
    Rsa,
    P256,
    P384,
    P521,
    Ed25519,
}

/// SubjectPublicKeyInfo up to the point of a curve (RFC 5480, RFC 8410).
const P256_BEFORE: &[u8] = &[
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00, 0x04,
];
const P384_BEFORE: &[u8] = &[
    0x30, 0x76, 0x30, 0x10, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x05, 0x2b, 0x81, 0x04, 0x00,
    0x22, 0x03, 0x62, 0x00, 0x04,
];
const P521_BEFORE: &[u8] = &[
    0x30, 0x81, 0x9b, 0x30, 0x10, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x05, 0x2b, 0x81, 0x04,
    0x00, 0x23, 0x03, 0x81, 0x86, 0x00, 0x04,
];
const ED25519_BEFORE: &[u8] = &[0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Parses a set. The error says why it is invalid.
pub(super) fn read_set(text: &[u8]) -> Result<Vec<Jwk>, &'static str> {
    let set: Json = serde_json::from_slice(text).map_err(|_| "what it answered is not JSON")?;
    let keys = set.get("keys").and_then(Json::as_array).ok_or("what it answered has no list of keys")?;
    match keys.len() <= KEYS_MAX {
        true => Ok(keys.iter().filter_map(Jwk::read).collect()),
        false => Err("what it answered has too many keys"),
    }
}

impl Jwk {
    fn read(json: &Json) -> Option<Jwk> {
        let text = |name: &str| json.get(name).and_then(Json::as_str);
        let bytes = |name: &str| URL_SAFE_NO_PAD.decode(text(name)?).ok();
        let is_for = |name: &str, wanted: &str| json.get(name).is_none_or(|value| value == wanted);
        let verifies = |ops: &Json| ops.as_array().is_some_and(|ops| ops.iter().any(|op| op == "verify"));
        if !is_for("use", "sig") || !json.get("key_ops").is_none_or(verifies) {
            return None;
        }
        let kid = match json.get("kid") {
            None => None,
            Some(kid) => Some(kid.as_str().filter(|kid| kid.len() <= KID_BYTES_MAX)?),
        };
        let algorithm = match json.get("alg") {
            None => None,
            Some(name) => Some(Algorithm::named(name.as_str()?)?),
        };
        let point = |before: &[u8], bytes_of_each: usize| {
            let (x, y) = (bytes("x")?, bytes("y")?);
            let is_point = x.len() == bytes_of_each && y.len() == bytes_of_each;
            is_point.then(|| [before, &x, &y].concat())
        };
        let (kind, der) = match (text("kty")?, text("crv")) {
            ("RSA", _) => (JwkKind::Rsa, sequence(&[integer(&bytes("n")?)?, integer(&bytes("e")?)?].concat())),
            ("EC", Some("P-256")) => (JwkKind::P256, point(P256_BEFORE, 32)?),
            ("EC", Some("P-384")) => (JwkKind::P384, point(P384_BEFORE, 48)?),
            ("EC", Some("P-521")) => (JwkKind::P521, point(P521_BEFORE, 66)?),
            ("OKP", Some("Ed25519")) => {
                (JwkKind::Ed25519, [ED25519_BEFORE, &bytes("x").filter(|x| x.len() == 32)?].concat())
            }
            _ => return None,
        };
        let (kid, der) = (kid.map(Into::into), der.into());
        Some(Jwk { serial: 0, kid, kind, algorithm, der, parsed: RefCell::default() })
    }

    /// Whether it has this name, and can be used for an algorithm.
    pub(super) fn fits(&self, kid: Option<&str>, algorithm: Algorithm) -> bool {
        let is_named = kid.is_none_or(|kid| self.kid.as_deref() == Some(kid));
        is_named && self.algorithm.is_none_or(|only| only == algorithm) && Some(self.kind) == kind_of(algorithm)
    }

    /// Whether it is the same key under the same name.
    pub(super) fn is_same(&self, other: &Jwk) -> bool {
        let Jwk { serial: _, kid, kind, algorithm, der, parsed: _ } = self;
        (kid, kind, algorithm, der) == (&other.kid, &other.kind, &other.algorithm, &other.der)
    }

    /// The key for an algorithm that it fits; `None`: it is unsuitable, or too weak.
    pub(super) fn key(&self, algorithm: Algorithm) -> Option<Arc<ParsedPublicKey>> {
        let mut parsed = self.parsed.borrow_mut();
        if let Some((_, key)) = parsed.iter().find(|(of, _)| *of == algorithm) {
            return key.clone();
        }
        let key = parse_der(algorithm, self.der.to_vec()).ok().map(Arc::new);
        parsed.push((algorithm, key.clone()));
        key
    }
}

/// The type of key for an algorithm; `None`: the algorithm does not use public keys.
fn kind_of(algorithm: Algorithm) -> Option<JwkKind> {
    Some(match algorithm {
        Algorithm::Hs256 | Algorithm::Hs384 | Algorithm::Hs512 => return None,
        Algorithm::Rs256 | Algorithm::Rs384 | Algorithm::Rs512 => JwkKind::Rsa,
        Algorithm::Ps256 | Algorithm::Ps384 | Algorithm::Ps512 => JwkKind::Rsa,
        Algorithm::Es256 => JwkKind::P256,
        Algorithm::Es384 => JwkKind::P384,
        Algorithm::Es512 => JwkKind::P521,
        Algorithm::EdDsa => JwkKind::Ed25519,
    })
}

/// A positive integer in DER (X.690 section 8.3).
fn integer(bytes: &[u8]) -> Option<Vec<u8>> {
    let first = bytes.iter().position(|byte| *byte != 0)?;
    let digits = &bytes[first..];
    let sign = if digits[0] >= 0x80 { &[0][..] } else { &[] };
    Some(tagged(0x02, &[sign, digits].concat()))
}

fn sequence(content: &[u8]) -> Vec<u8> {
    tagged(0x30, content)
}

fn tagged(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    let length = content.len().to_be_bytes();
    let first = length.iter().position(|byte| *byte != 0).unwrap_or(length.len() - 1);
    if content.len() >= 0x80 {
        out.push(0x80 | (length.len() - first) as u8);
    }
    out.extend_from_slice(&length[first..]);
    out.extend_from_slice(content);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;
    use std::task::Context;
    use stillgate_plugin_api::{Io, LogLevel};

    /// An event loop whose turns and server replies the test controls.
    #[derive(Default)]
    struct Loop {
        tasks: RefCell<Vec<LocalFuture<()>>>,
        asked: Cell<usize>,
        reply: Rc<RefCell<Option<&'static str>>>,
        warned: Cell<usize>,
    }

    impl Loop {
        fn turn(&self) {
            let turned =
                self.tasks.take().into_iter().filter_map(|mut task| (!is_ready(task.as_mut())).then_some(task));
            let left: Vec<_> = turned.collect();
            self.tasks.borrow_mut().extend(left);
        }
    }

    fn is_ready(future: Pin<&mut dyn Future<Output = ()>>) -> bool {
        future.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    impl Io for Loop {
        fn sleep(&self, _: Duration) -> LocalFuture<()> {
            Box::pin(std::future::ready(()))
        }

        fn call(&self, _: Call) -> LocalFuture<Result<Reply, CallError>> {
            self.asked.set(self.asked.get() + 1);
            let reply = self.reply.clone();
            Box::pin(poll_fn(move |_| match *reply.borrow() {
                Some(text) => Poll::Ready(Ok(Reply::parse_for_test(text))),
                None => Poll::Pending,
            }))
        }

        fn send(&self, _: &'static str, _: Call) {}

        fn drop_send(&self, _: &'static str) {}

        fn spawn(&self, task: LocalFuture<()>) {
            self.tasks.borrow_mut().push(task);
        }

        fn is_logged(&self, _: LogLevel) -> bool {
            false
        }

        fn log(&self, _: &'static str, _: LogLevel, _: &str) {}

        fn fail(&self, _: &'static str, _: &str) {}

        fn warn(&self, _: &'static str, _: &str) {
            self.warned.set(self.warned.get() + 1);
        }
    }

    fn bench() -> (Rc<Loop>, Worker, KeySet) {
        let event_loop = Rc::new(Loop::default());
        let worker = Worker::default().with_io(event_loop.clone());
        worker.set_now_ms(1_000_000);
        let url = "http://issuer.test/keys";
        (event_loop, worker, KeySet::new(Url::parse(url, true).unwrap(), url, true, 3_000, 300))
    }

    fn fetching(looked: KeyLookup) -> LocalFuture<()> {
        match looked {
            KeyLookup::Fetching(future) => future,
            _ => panic!("nothing is fetched"),
        }
    }

    #[test]
    fn many_requests_wait_for_one_fetch() {
        let (event_loop, worker, set) = bench();
        let look = |kid, has_waited| look_up_key(&set, Some(kid), Algorithm::EdDsa, &worker, has_waited);
        let mut waiting: Vec<_> = (0..100).map(|_| fetching(look("a", false))).collect();
        event_loop.turn();
        assert!(waiting.iter_mut().all(|future| !is_ready(future.as_mut())));
        // A client that disconnects does not cancel the fetch.
        drop(waiting.pop());
        *event_loop.reply.borrow_mut() = Some(
            "HTTP/1.1 200 OK\n\n{\"keys\":[{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"kid\":\"a\",\
             \"x\":\"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo\"}]}",
        );
        event_loop.turn();
        assert!(waiting.iter_mut().all(|future| is_ready(future.as_mut())));
        let KeyLookup::Key(serial, _) = look("a", true) else { panic!("it was fetched") };
        assert_eq!((event_loop.asked.get(), event_loop.warned.get()), (1, 0));
        // It is old: it is fetched again, without waiting.
        worker.set_now_ms(1_300_000);
        assert!(matches!(look("a", false), KeyLookup::Key(..)));
        assert_eq!(event_loop.asked.get(), 2);
        event_loop.turn();
        assert!(still_has(&set, serial, &worker) && !still_has(&set, serial + 1, &worker));
    }

    #[test]
    fn a_fetch_that_is_dropped_lets_those_go_on_that_wait() {
        let (event_loop, worker, set) = bench();
        let look = |has_waited| look_up_key(&set, None, Algorithm::EdDsa, &worker, has_waited);
        let mut future = fetching(look(false));
        assert!(!is_ready(future.as_mut()));
        event_loop.tasks.take();
        assert!(is_ready(future.as_mut()));
        assert!(matches!(look(true), KeyLookup::Unavailable));
    }

    #[test]
    fn what_waits_is_bounded() {
        let (_, worker, set) = bench();
        let look = || look_up_key(&set, None, Algorithm::EdDsa, &worker, false);
        // Distinct wakers, as those of tasks are.
        let wakers: Vec<Waker> = (0..WAITING_MAX).map(|_| Arc::new(NoopWake).into()).collect();
        for waker in &wakers {
            let mut future = fetching(look());
            assert!(future.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
        }
        assert!(matches!(look(), KeyLookup::Unavailable));
    }

    struct NoopWake;

    impl std::task::Wake for NoopWake {
        fn wake(self: Arc<Self>) {}
    }
}

#[cfg(test)]
mod jwk_tests {
    use super::*;

    /// RFC 7517 appendix A.1, with the key of RFC 8037 appendix A.2.
    const SET: &str = r#"{"keys":[
        {"kty":"EC","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM","use":"enc","kid":"1"},
        {"kty":"RSA","n":"0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw","e":"AQAB","alg":"RS256","kid":"2011-04-29"},
        {"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},
        {"kty":"oct","k":"AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ"},
        {"kty":"EC","crv":"secp256k1","x":"AA","y":"AA"},
        {"kty":"EC","crv":"P-256","x":"AA","y":"AA","kid":"short"},
        {"kty":"RSA","n":"AQAB","e":"AQAB","kid":"weak"},
        {"kty":"RSA","n":"====","e":"AQAB"}, 7, {}]}"#;

    #[test]
    fn keys_for_signatures_are_read() {
        let keys = read_set(SET.as_bytes()).unwrap();
        let named = |kid: Option<&str>, algorithm| {
            let fitting: Vec<&Jwk> = keys.iter().filter(|key| key.fits(kid, algorithm)).collect();
            (fitting.len(), fitting.first().and_then(|key| key.key(algorithm)).is_some())
        };
        assert_eq!(keys.len(), 3);
        assert_eq!(named(Some("2011-04-29"), Algorithm::Rs256), (1, true));
        assert_eq!(named(Some("2011-04-29"), Algorithm::Rs384), (0, false));
        assert_eq!(named(None, Algorithm::EdDsa), (1, true));
        assert_eq!(named(Some("1"), Algorithm::Es256), (0, false));
        assert_eq!(named(Some("weak"), Algorithm::Ps256), (1, false));
        assert_eq!(named(None, Algorithm::Hs256), (0, false));
    }

    #[test]
    fn what_is_not_a_set_is_refused() {
        let check = |text: &str, part: &str| assert!(read_set(text.as_bytes()).err().unwrap().contains(part), "{text}");
        check("", "not JSON");
        check("[]", "no list of keys");
        check("{\"keys\":{}}", "no list of keys");
        check(&format!("{{\"keys\":[{}0]}}", "0,".repeat(KEYS_MAX)), "too many keys");
        assert_eq!(read_set(b"{\"keys\":[]}").unwrap().len(), 0);
    }

    #[test]
    fn lengths_are_those_of_der() {
        assert_eq!(integer(&[0, 0x80]).unwrap(), [0x02, 0x02, 0x00, 0x80]);
        assert_eq!(integer(&[0x7f]).unwrap(), [0x02, 0x01, 0x7f]);
        assert_eq!(integer(&[0, 0]), None);
        assert_eq!(tagged(0x30, &[]), [0x30, 0x00]);
        assert_eq!(tagged(0x30, &[1; 0x80])[..3], [0x30, 0x81, 0x80]);
        assert_eq!(tagged(0x30, &[1; 0x100])[..4], [0x30, 0x82, 0x01, 0x00]);
    }
}
