//! Key sets that issuers publish at a URL, fetched and cached by each worker separately.
//!
//! ```text
//!   kid ──▶ known? ──▶ key
//!             │ no                 one fetch at a time, at most one in REFETCH_MS
//!             ├──▶ lately absent ──▶ unknown
//!             └──▶ fetch ──▶ wait ──▶ known? key : unknown, and absent for a while
//! ```
//!
//! A set is fetched on first use, when a token names a key that is not in it, and when it is old. Only the first two
//! wait for it. If a fetch fails, the current set stays in use, however old. A key that an issuer removes from its set
//! stops verifying once the set is fetched again, also for cached tokens.

use super::jwk::{Jwk, KID_BYTES_MAX, read_set};
use aws_lc_rs::signature::ParsedPublicKey;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;
use stillgate_jws::Algorithm;
use stillgate_plugin::{Call, CallError, Identity, LocalFuture, Reply, Url, Worker};
use stillgate_wire::{FieldName, FieldValue};

/// Largest set in bytes.
const SET_BYTES_MAX: usize = 128 * 1024;
/// Shortest interval of fetches of a set, whatever their results.
const REFETCH_MS: u64 = 10_000;
/// How long an unknown key name causes no further fetch.
const ABSENT_MS: u64 = 60_000;
/// Most such names that are remembered for a set.
const ABSENT_MAX: usize = 256;
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
    /// Unknown key names, each with its expiry.
    absent: RefCell<HashMap<Box<str>, u64>>,
}

thread_local! {
    static SOURCES: RefCell<HashMap<Identity, Rc<RemoteKeySet>>> = RefCell::default();
    static SERIAL: Cell<u64> = const { Cell::new(0) };
}

/// Looks a key up. If it is missing, the result is a fetch to wait for, unless that was done.
pub(super) fn look(
    set: &KeySet,
    kid: Option<&str>,
    algorithm: Algorithm,
    worker: &Worker,
    has_waited: bool,
) -> KeyLookup {
    let (source, now_ms) = (source(set), worker.now_ms());
    let ended = source.ended.get();
    source.refresh(set, worker);
    if let Some((serial, key)) = source.key(kid, algorithm) {
        return KeyLookup::Key(serial, key);
    }
    let is_long = kid.is_some_and(|kid| kid.len() > KID_BYTES_MAX);
    let is_here = source.keys.borrow().is_some();
    let name = kid.unwrap_or_default();
    if is_here && (is_long || source.is_absent(name, now_ms)) {
        return KeyLookup::Unknown;
    }
    if !has_waited && (source.is_fetching.get() || source.ask(set, worker)) {
        return match source.waiting.borrow().len() < WAITING_MAX {
            true => KeyLookup::Fetching(source.after(ended)),
            false => KeyLookup::Unavailable,
        };
    }
    match is_here {
        true if has_waited => source.note_absent(name, now_ms),
        true => {}
        false => return KeyLookup::Unavailable,
    }
    KeyLookup::Unknown
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
    fn after(self: &Rc<RemoteKeySet>, ended: u64) -> LocalFuture<()> {
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

    fn is_absent(&self, name: &str, now_ms: u64) -> bool {
        self.absent.borrow().get(name).is_some_and(|until_ms| now_ms < *until_ms)
    }

    fn note_absent(&self, name: &str, now_ms: u64) {
        let mut absent = self.absent.borrow_mut();
        if absent.len() >= ABSENT_MAX {
            absent.retain(|_, until_ms| now_ms < *until_ms);
        }
        if absent.len() < ABSENT_MAX {
            absent.insert(name.into(), now_ms + ABSENT_MS);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;
    use std::task::Context;
    use stillgate_plugin::{Io, LogLevel};

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
                Some(text) => Poll::Ready(Ok(Reply::of_text(text))),
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
        let look = |kid, has_waited| look(&set, Some(kid), Algorithm::EdDsa, &worker, has_waited);
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
        let look = |has_waited| look(&set, None, Algorithm::EdDsa, &worker, has_waited);
        let mut future = fetching(look(false));
        assert!(!is_ready(future.as_mut()));
        event_loop.tasks.take();
        assert!(is_ready(future.as_mut()));
        assert!(matches!(look(true), KeyLookup::Unavailable));
    }

    #[test]
    fn what_waits_is_bounded() {
        let (_, worker, set) = bench();
        let look = || look(&set, None, Algorithm::EdDsa, &worker, false);
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
