//! The guard of every request: gathers the facts, requests a decision, and delays wrong keys.

use super::failures::Failures;
use super::sessions::Sessions;
use super::{Access, Caller, Facts, Refusal, Role, Session, decide, find};
use crate::answer::Answer;
use crate::control::Control;
use crate::endpoints::writes_documents;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::middleware::Next;
use axum::response::Response;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tracing::warn;

/// The address a request came from; the server adds it to the request's extensions. A request without it is not served.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub IpAddr);

/// Number of requests with wrong keys that wait at once. It is less than the number of connections, so those with right keys find a
/// place.
const WAITING_MAX: usize = 64;

/// Access control with its state: sessions, and addresses that sent wrong keys.
///
/// Its locks are held for a look-up in a small table, never across an await.
#[derive(Debug)]
pub struct Guard {
    access: watch::Receiver<Access>,
    sessions: Mutex<Sessions>,
    failures: Mutex<Failures>,
    waiting: Semaphore,
}

impl Guard {
    /// Makes a guard for a configuration that may change.
    pub fn new(access: watch::Receiver<Access>) -> Guard {
        Guard { access, sessions: Mutex::default(), failures: Mutex::default(), waiting: Semaphore::new(WAITING_MAX) }
    }

    /// A token that opens one session at `/ui/#TOKEN`, valid for this long.
    pub fn sign_in_token(&self, name: &str, role: Role, age: Duration) -> String {
        self.lock_sessions().mint(name, role, age, Instant::now())
    }

    /// Number of wrong keys and tokens so far.
    pub fn wrong_keys(&self) -> u64 {
        lock(&self.failures).total()
    }

    pub(crate) fn session(&self, token: &str) -> Option<Session> {
        self.lock_sessions().get(token, Instant::now())
    }

    pub(crate) fn lock_sessions(&self) -> MutexGuard<'_, Sessions> {
        lock(&self.sessions)
    }

    /// Whether this peer reads everything without a key.
    pub(crate) fn reads_without_key(&self, peer: IpAddr) -> bool {
        self.access.borrow().is_loopback_reader && peer.to_canonical().is_loopback()
    }

    /// The owner of this key.
    pub(crate) fn caller_of_key(&self, key: &str) -> Option<Caller> {
        let key = find(&self.access.borrow(), key.as_bytes())?;
        Some(Caller { name: key.name.clone(), role: key.role, key: Some(key) })
    }

    /// Counts a wrong key and waits as long as its sender must, unless too many requests wait already.
    pub(crate) async fn slow_down(&self, peer: IpAddr) -> Result<(), TooManyWait> {
        let wrong = lock(&self.failures).record(peer, Instant::now());
        if wrong.is_logged() {
            warn!(target: "audit", %peer, count = wrong.count, "admin API: wrong key");
        }
        let _place = self.waiting.try_acquire().map_err(|_| TooManyWait)?;
        tokio::time::sleep(wrong.wait).await;
        Ok(())
    }

    /// Adds the [`Caller`] to a request that is allowed; the error is the response to one that is not.
    pub async fn admit(&self, request: &mut Request) -> Result<(), Response> {
        let peer = request.extensions().get::<Peer>().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.0);
        let refusal = match self.decide(peer, request) {
            Ok(caller) => {
                request.extensions_mut().insert(caller);
                return Ok(());
            }
            Err(refusal) => refusal,
        };
        if refusal == Refusal::KeyWrong
            && let Err(too_many) = self.slow_down(peer).await
        {
            return Err(too_many.answer().into_response());
        }
        if refusal == Refusal::ViewerWrites {
            warn!(target: "audit", %peer, method = %request.method(), path = request.uri().path(), "admin API: a viewer tried to write");
        }
        Err(refusal.answer().into_response())
    }

    fn decide(&self, peer: IpAddr, request: &Request<Body>) -> Result<Caller, Refusal> {
        let access = self.access.borrow();
        decide(&access, &Facts::of(peer, request, &access.hosts, self))
    }
}

/// The input of [`admit`].
#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) guard: Arc<Guard>,
    pub(crate) control: Arc<dyn Control>,
}

impl Door {
    /// The response to a write that is refused with any key, for which "a key is missing" would be misleading.
    fn is_useless(&self, request: &Request) -> Option<Answer> {
        let peer = request.extensions().get::<Peer>()?.0;
        let is_refused = || matches!(self.guard.decide(peer, request), Err(Refusal::KeyMissing));
        let is_in_question = self.guard.reads_without_key(peer)
            && writes_documents(request.method(), request.uri().path())
            && is_refused();
        let why = self.control.writable().err().filter(|_| is_in_question)?;
        Some(Answer::error(StatusCode::NOT_IMPLEMENTED, why).closing())
    }
}

/// [`Guard::admit`] as a middleware.
pub(crate) async fn admit(State(door): State<Door>, mut request: Request, next: Next) -> Response {
    if let Some(answer) = door.is_useless(&request) {
        return answer.into_response();
    }
    match door.guard.admit(&mut request).await {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal,
    }
}

/// Too many requests with wrong keys wait already, so this one is answered at once.
#[derive(Debug)]
pub(crate) struct TooManyWait;

impl TooManyWait {
    pub(crate) fn answer(&self) -> Answer {
        let message = "too many requests with wrong keys at once";
        Answer::error(StatusCode::TOO_MANY_REQUESTS, message).with(RETRY_AFTER, "10").closing()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
