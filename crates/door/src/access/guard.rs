//! The guard of every request: gathers the facts, requests a decision, and delays wrong keys.

use super::facts::Facts;
use super::failures::Failures;
use super::refusal::{Refusal, Rejection};
use super::sessions::Sessions;
use super::{Access, Caller, Role, Session, decide, find};
use axum::body::Body;
use axum::http::{Request, Response};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tracing::warn;

/// The address a request came from; the server adds it to the request's extensions. A request without it is not served.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub IpAddr);

impl Peer {
    /// The address of a request's client; the unspecified address if the server did not add one.
    pub fn of<B>(request: &Request<B>) -> IpAddr {
        request.extensions().get::<Peer>().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.0)
    }
}

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
        lock(&self.sessions).mint(name, role, age, Instant::now())
    }

    /// Number of wrong keys and tokens so far.
    pub fn wrong_keys(&self) -> u64 {
        lock(&self.failures).total()
    }

    /// The session with this token.
    pub fn session(&self, token: &str) -> Option<Session> {
        lock(&self.sessions).get(token, Instant::now())
    }

    /// Opens a session; returns its token and its CSRF token.
    pub fn open_session(&self, caller: Caller) -> (String, String) {
        lock(&self.sessions).open(caller, Instant::now())
    }

    /// Ends a session.
    pub fn close_session(&self, token: &str) {
        lock(&self.sessions).close(token);
    }

    /// The identity of the session that a sign-in token opens. A token can be used once.
    pub fn redeem(&self, token: &str) -> Option<Caller> {
        lock(&self.sessions).redeem(token, Instant::now())
    }

    /// Whether this peer reads everything without a key.
    pub fn reads_without_key(&self, peer: IpAddr) -> bool {
        self.access.borrow().is_loopback_reader && peer.to_canonical().is_loopback()
    }

    /// The owner of this key.
    pub fn caller_of_key(&self, key: &str) -> Option<Caller> {
        let key = find(&self.access.borrow(), key.as_bytes())?;
        Some(Caller { name: key.name.clone(), role: key.role, key: Some(key) })
    }

    /// Counts a wrong key and waits as long as its sender must, unless too many requests wait already.
    pub async fn slow_down(&self, peer: IpAddr) -> Result<(), Rejection> {
        let wrong = lock(&self.failures).record(peer, Instant::now());
        if wrong.is_logged() {
            warn!(target: "audit", %peer, count = wrong.count, "admin API: wrong key");
        }
        let _place = self.waiting.try_acquire().map_err(|_| Rejection::too_many_wait())?;
        tokio::time::sleep(wrong.wait).await;
        Ok(())
    }

    /// Adds the [`Caller`] to a request that is allowed; the error is the response to one that is not.
    pub async fn admit(&self, request: &mut Request<Body>) -> Result<(), Response<Body>> {
        let peer = Peer::of(request);
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
            return Err(too_many.into_response());
        }
        if refusal == Refusal::ViewerWrites {
            warn!(target: "audit", %peer, method = %request.method(), path = request.uri().path(), "admin API: a viewer tried to write");
        }
        Err(refusal.rejection().into_response())
    }

    /// Whether a request is refused only because it has no key.
    pub fn needs_key(&self, request: &Request<Body>) -> bool {
        matches!(self.decide(Peer::of(request), request), Err(Refusal::KeyMissing))
    }

    fn decide(&self, peer: IpAddr, request: &Request<Body>) -> Result<Caller, Refusal> {
        let access = self.access.borrow();
        decide(&access, &Facts::of(peer, request, &access.hosts, self))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
