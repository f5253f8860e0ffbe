//! Access control of the Admin API and the device API: a decision from the configuration, the peer's address and the head of a request.
//!
//! ```text
//!  head ─▶ facts.rs ─▶ decide(Access, Facts) ─▶ Caller ─▶ handlers
//!                              └─▶ Refusal ─▶ 401, 403; wrong keys are counted and slowed down (failures.rs)
//! ```
//!
//! The decision is pure. Its state, sessions and wrong keys, is in [`Guard`], which calls it.

mod sessions;

use crate::hosts::{Hosts, Stranger};
use axum::body::Body;
use axum::http::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_TYPE, COOKIE, HOST, HeaderName, HeaderValue, ORIGIN, RETRY_AFTER,
    WWW_AUTHENTICATE,
};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, Request, Response, StatusCode};
use ipnet::IpNet;
use serde_json::{Value as Json, json};
use sessions::Sessions;
pub use sessions::{SESSION_COOKIE, Session};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tracing::warn;

/// The rights of a key or session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Everything, including secrets.
    Admin,
    /// GET only, with masks in place of secrets.
    Viewer,
}

/// A key of the Admin API.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminKey {
    /// The name, for the audit log and history.
    pub name: String,
    /// The secret itself.
    pub key: String,
    /// Its rights.
    pub role: Role,
}

/// The configuration of access control.
#[derive(Debug, Clone)]
pub struct Access {
    /// The section of the configuration that it comes from, for messages about refusals.
    pub section: &'static str,
    /// All keys, with unique names.
    pub keys: Vec<Arc<AdminKey>>,
    /// Networks whose addresses are served at all.
    pub allow: Vec<IpNet>,
    /// Host names under which loopback may send requests without a key.
    pub hosts: Hosts,
    /// Whether loopback can read everything without a key, masked: no key was configured.
    pub is_loopback_reader: bool,
    /// Whether loopback can do everything without a key.
    pub is_loopback_writer: bool,
}

/// The sender of an admitted request.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The name of the key, for the audit log; empty: there is none.
    pub name: String,
    /// Its rights.
    pub role: Role,
    /// The key that was verified, in this request or when the session was opened.
    pub key: Option<Arc<AdminKey>>,
}

impl Caller {
    /// Whether responses show what may be a secret.
    pub fn sees_secrets(&self) -> bool {
        self.role == Role::Admin
    }
}

/// The class of a path for access control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Area {
    /// Files of the dashboard, which are the same everywhere: for every address in `allow`, so that people can sign in.
    Files,
    /// `/`, health and status, without secrets.
    Open,
    /// The path at which sessions are opened, shown and ended.
    SignIn,
    /// Everything else.
    Data,
}

/// The loopback networks, which are served by default.
pub fn loopback() -> Vec<IpNet> {
    let network = |address: [u8; 4], bits| IpNet::new(IpAddr::from(address), bits).ok();
    let v6 = IpNet::new(IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1u16]), 128).ok();
    network([127, 0, 0, 0], 8).into_iter().chain(v6).collect()
}

/// Whether a request is served, and as which caller.
fn decide(access: &Access, facts: &Facts<'_>) -> Result<Caller, Refusal> {
    let peer = facts.peer.to_canonical();
    if !access.allow.iter().any(|network| network.contains(&peer)) {
        let section = access.section;
        let is_open = access.keys.is_empty();
        return Err(if is_open { Refusal::LoopbackOnly(section) } else { Refusal::NotAllowed(section) });
    }
    let caller = match &facts.given {
        CallerCredential::Key { key, is_ambient } if !access.keys.is_empty() => match find(access, key) {
            Some(_) if *is_ambient && is_forged(facts) => return Err(Refusal::ForeignOrigin),
            Some(key) => Caller { name: key.name.clone(), role: key.role, key: Some(key) },
            // A wrong key does not hide what is visible without one: a browser sends cookies of other servers, too.
            None if matches!(facts.area, Area::Open | Area::Files) => return keyless(access, peer, facts),
            None => return Err(Refusal::KeyWrong),
        },
        CallerCredential::Session { session, has_token } if is_alive(access, session) => {
            if is_forged(facts) {
                return Err(Refusal::ForeignOrigin);
            }
            if !facts.is_read && !has_token {
                return Err(Refusal::TokenMissing);
            }
            session.caller.clone()
        }
        _ => return keyless(access, peer, facts),
    };
    let may_write = caller.role == Role::Admin || facts.area == Area::SignIn;
    if facts.is_read || may_write { Ok(caller) } else { Err(Refusal::ViewerWrites) }
}

fn keyless(access: &Access, peer: IpAddr, facts: &Facts<'_>) -> Result<Caller, Refusal> {
    let role = if access.is_loopback_writer { Role::Admin } else { Role::Viewer };
    let anybody = || Caller { name: String::new(), role, key: None };
    let stranger = || facts.stranger.clone().map_or(Ok(()), |stranger| Err(Refusal::Stranger(stranger)));
    match facts.area {
        Area::SignIn if facts.origin == Origin::Foreign => Err(Refusal::ForeignOrigin),
        Area::SignIn => stranger().map(|()| anybody()),
        _ if !peer.is_loopback() && access.keys.is_empty() => Err(Refusal::LoopbackOnly(access.section)),
        Area::Files if facts.is_read => stranger().map(|()| anybody()),
        _ if !peer.is_loopback() => Err(Refusal::KeyMissing),
        _ if !facts.is_read && access.is_loopback_writer && is_forged(facts) => Err(Refusal::ForeignOrigin),
        _ if !facts.is_read && !access.is_loopback_writer => Err(Refusal::KeyMissing),
        Area::Data if !access.is_loopback_reader => Err(Refusal::KeyMissing),
        Area::Open | Area::Files | Area::Data => stranger().map(|()| anybody()),
    }
}

/// Whether a page of another origin may have made a browser send this with the browser's own cookie.
fn is_forged(facts: &Facts<'_>) -> bool {
    let is_cross_site = matches!(facts.stranger, Some(Stranger::CrossSite));
    !facts.is_read && (facts.origin == Origin::Foreign || is_cross_site)
}

/// Whether the key that opened a session is still configured unchanged.
fn is_alive(access: &Access, session: &Session) -> bool {
    session.caller.key.as_ref().is_none_or(|key| access.keys.contains(key))
}

/// The key with this text. All are compared, so that the time reveals nothing about similar keys.
fn find(access: &Access, given: &[u8]) -> Option<Arc<AdminKey>> {
    let compare = |found: Option<Arc<AdminKey>>, key: &Arc<AdminKey>| {
        let is_equal = equal_in_constant_time(given, key.key.as_bytes());
        found.or_else(|| (is_equal && !key.key.is_empty()).then(|| key.clone()))
    };
    access.keys.iter().fold(None, compare)
}

/// Takes the same time wherever the first difference is, so that a key cannot be guessed byte by byte. Its length is not hidden.
fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    let difference = a.iter().zip(b).fold(0, |difference, (a, b)| std::hint::black_box(difference | (a ^ b)));
    a.len() == b.len() && difference == 0
}

impl Role {
    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Role::Admin => "admin",
            Role::Viewer => "viewer",
        }
    }
}

impl fmt::Debug for AdminKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminKey").field("name", &self.name).field("role", &self.role).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

// The guard of every request: gathers the facts, requests a decision, and delays wrong keys.

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
        let _place = self.waiting.try_acquire().map_err(|_| Rejection::too_many_waiting())?;
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

// Counts wrong keys, and slows down each address that sends them.
//
// Only requests with a wrong key wait. The right one is served at once, even from an address from which others guess. The waits of
// one address are consecutive, so that guessing on many connections is not faster.

/// Number of addresses that are remembered. The one whose last wrong key is oldest makes room for a new one.
const SOURCES_MAX: usize = 1024;

/// The wait after the first wrong key; it doubles with each one.
const WAIT_FIRST: Duration = Duration::from_millis(100);

/// The bound of doubling.
const WAIT_EACH_MAX: Duration = Duration::from_secs(3);

/// The longest wait of one request.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// An address without a wrong key for this long starts over.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(15 * 60);

/// Bits of an IPv6 address that identify one customer of a network; the customer can choose the rest.
const IPV6_SOURCE_BITS: u32 = 64;

/// The wrong keys so far, by address.
#[derive(Debug, Default)]
struct Failures {
    total: u64,
    of_source: HashMap<IpAddr, AddressFailures>,
}

#[derive(Debug)]
struct AddressFailures {
    count: u32,
    last_at: Instant,
    /// When the wait of its last wrong key ends.
    until: Instant,
}

/// The consequence of one wrong key.
#[derive(Debug, PartialEq, Eq)]
struct Wrong {
    /// The wait before the response.
    wait: Duration,
    /// Number of wrong keys from this address.
    count: u32,
}

impl Wrong {
    /// The number of log lines grows with the logarithm of the wrong keys.
    fn is_logged(&self) -> bool {
        self.count.is_power_of_two()
    }
}

impl Failures {
    fn total(&self) -> u64 {
        self.total
    }

    fn record(&mut self, peer: IpAddr, now: Instant) -> Wrong {
        self.total += 1;
        let address = source_of(peer);
        if !self.of_source.contains_key(&address) {
            self.make_place(now);
        }
        let source = self.of_source.entry(address).or_insert(AddressFailures { count: 0, last_at: now, until: now });
        if now.duration_since(source.last_at) > FORGOTTEN_AFTER {
            source.count = 0;
        }
        source.count = source.count.saturating_add(1);
        source.last_at = now;
        let doublings = (source.count - 1).min(16);
        let each = WAIT_FIRST.saturating_mul(1 << doublings).min(WAIT_EACH_MAX);
        source.until = (source.until.max(now) + each).min(now + WAIT_MAX);
        Wrong { wait: source.until - now, count: source.count }
    }

    fn make_place(&mut self, now: Instant) {
        if self.of_source.len() < SOURCES_MAX {
            return;
        }
        self.of_source.retain(|_, source| now.duration_since(source.last_at) <= FORGOTTEN_AFTER);
        if self.of_source.len() >= SOURCES_MAX {
            let oldest = self.of_source.iter().min_by_key(|(_, source)| source.last_at).map(|(address, _)| *address);
            oldest.map(|address| self.of_source.remove(&address));
        }
    }
}

fn source_of(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(peer) => {
            let rest = Ipv6Addr::BITS - IPV6_SOURCE_BITS;
            Ipv6Addr::from_bits(peer.to_bits() >> rest << rest).into()
        }
        peer => peer,
    }
}

// The parts of a request's head that access depends on.
//
// A key is searched where APISIX searches: argument `api_key`, header, cookie, in this order.

/// The query argument that is searched for a key first.
pub const KEY_ARGUMENT: &str = "api_key";
const KEY_HEADER: &str = "x-api-key";
const KEY_COOKIE: &str = "x_api_key";
const TOKEN_HEADER: &str = "x-csrf-token";

/// The most arguments that are read, as in nginx.
const ARGUMENTS_MAX: usize = 100;

/// The facts about one request.
#[derive(Debug)]
struct Facts<'a> {
    peer: IpAddr,
    area: Area,
    /// Whether the method is GET or HEAD.
    is_read: bool,
    given: CallerCredential<'a>,
    /// Why a request from loopback needs a key.
    stranger: Option<Stranger>,
    origin: Origin,
}

/// The credential of a caller.
#[derive(Debug)]
enum CallerCredential<'a> {
    Nothing,
    Key {
        key: Cow<'a, [u8]>,
        /// Whether it is in a cookie, which a browser adds by itself.
        is_ambient: bool,
    },
    Session {
        session: Session,
        /// Whether the request has the token that only a page of this origin can read.
        has_token: bool,
    },
}

/// The origin of the page that made a browser send the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Absent,
    /// The requested host.
    Own,
    Foreign,
}

impl<'a> Facts<'a> {
    fn of(peer: IpAddr, request: &'a Request<Body>, hosts: &Hosts, guard: &Guard) -> Facts<'a> {
        Facts {
            peer,
            area: area(request.uri().path()),
            is_read: matches!(*request.method(), Method::GET | Method::HEAD),
            given: credential_of(request, guard),
            stranger: hosts.check(request).err(),
            origin: origin(request),
        }
    }
}

fn area(path: &str) -> Area {
    match path {
        "/" | "/v1/health" | "/v1/status" => Area::Open,
        "/ui" => Area::Files,
        "/v1/session" => Area::SignIn,
        _ if path.starts_with("/ui/") => Area::Files,
        _ => Area::Data,
    }
}

fn credential_of<'a>(request: &'a Request<Body>, guard: &Guard) -> CallerCredential<'a> {
    let headers = request.headers();
    let key = match argument(request.uri().query(), KEY_ARGUMENT) {
        Some(Cow::Borrowed(key)) => Some(key.as_bytes().into()),
        Some(Cow::Owned(key)) => Some(key.into_bytes().into()),
        None => headers.get(KEY_HEADER).map(|key| key.as_bytes().into()),
    };
    if let Some(key) = key {
        return CallerCredential::Key { key, is_ambient: false };
    }
    // Signing in again does not depend on an old session, whose token the page may not know.
    let is_sign_in = area(request.uri().path()) == Area::SignIn && *request.method() == Method::POST;
    let session = || guard.session(cookie(headers, SESSION_COOKIE)?);
    if let Some(session) = if is_sign_in { None } else { session() } {
        let token = headers.get(TOKEN_HEADER).map_or(&b""[..], |token| token.as_bytes());
        let has_token = equal_in_constant_time(token, session.csrf.as_bytes());
        return CallerCredential::Session { session, has_token };
    }
    match cookie(headers, KEY_COOKIE) {
        Some(key) => CallerCredential::Key { key: key.as_bytes().into(), is_ambient: true },
        None => CallerCredential::Nothing,
    }
}

/// The first argument of a query with this name.
fn argument<'a>(query: Option<&'a str>, name: &str) -> Option<Cow<'a, str>> {
    let mut arguments = form_urlencoded::parse(query?.as_bytes()).take(ARGUMENTS_MAX);
    arguments.find(|(known, _)| known == name).map(|(_, value)| value)
}

/// The first cookie with this name.
pub fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lines = headers.get_all(COOKIE).into_iter().filter_map(|line| line.to_str().ok());
    let mut cookies = lines.flat_map(|line| line.split(';')).filter_map(|cookie| cookie.trim().split_once('='));
    cookies.find(|(known, _)| *known == name).map(|(_, value)| value)
}

fn origin(request: &Request<Body>) -> Origin {
    let Some(origin) = request.headers().get(ORIGIN) else { return Origin::Absent };
    let of_field = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let host = request.uri().authority().map(Authority::as_str).or(of_field);
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    match (origin, host) {
        (Some((_, page)), Some(host)) if page.eq_ignore_ascii_case(host) => Origin::Own,
        _ => Origin::Foreign,
    }
}

// Requests that are not served, and the answers to them.

/// Why a request is not served.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Refusal {
    NotAllowed(&'static str),
    LoopbackOnly(&'static str),
    KeyMissing,
    KeyWrong,
    ViewerWrites,
    Stranger(Stranger),
    ForeignOrigin,
    TokenMissing,
}

/// The answer to a request that is not served. Its connection is closed: a client that is refused must not keep one.
#[derive(Debug)]
pub struct Rejection {
    /// The status.
    pub status: StatusCode,
    /// The body.
    pub body: Json,
    /// A header that belongs to the status.
    pub header: Option<(HeaderName, &'static str)>,
}

impl Rejection {
    /// The answer while too many requests with wrong keys wait already: this one is answered at once.
    fn too_many_waiting() -> Rejection {
        let status = StatusCode::TOO_MANY_REQUESTS;
        let body = json!({ "error_msg": "too many requests with wrong keys at once" });
        Rejection { status, body, header: Some((RETRY_AFTER, "10")) }
    }

    /// The whole response.
    pub fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(format!("{}\n", self.body)));
        *response.status_mut() = self.status;
        let fields = [
            (CONTENT_TYPE, "application/json"),
            (CACHE_CONTROL, "no-store"),
            (HeaderName::from_static("x-content-type-options"), "nosniff"),
        ];
        for (name, value) in fields.into_iter().chain(self.header).chain([(CONNECTION, "close")]) {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

impl Refusal {
    /// The body is APISIX's, if APISIX has the case, for its clients.
    fn rejection(&self) -> Rejection {
        let token = |description: &str| Rejection {
            status: StatusCode::UNAUTHORIZED,
            body: json!({ "error_msg": "failed to check token", "description": description }),
            header: Some((WWW_AUTHENTICATE, "X-API-KEY")),
        };
        let forbidden = |message: String| Rejection {
            status: StatusCode::FORBIDDEN,
            body: json!({ "error_msg": message }),
            header: None,
        };
        match self {
            Refusal::KeyMissing => token("missing apikey"),
            Refusal::KeyWrong => token("wrong apikey"),
            Refusal::ViewerWrites => token("invalid method for role viewer"),
            Refusal::NotAllowed(section) => forbidden(format!("your address is not in {section}.allow")),
            Refusal::LoopbackOnly(section) => forbidden(format!(
                "only loopback may connect; set {section}.keys and {section}.allow to admit other addresses"
            )),
            Refusal::Stranger(stranger) => forbidden(stranger.to_string()),
            Refusal::ForeignOrigin => forbidden(
                "this request came from a page of another origin; with a cookie, only the dashboard may write"
                    .to_owned(),
            ),
            Refusal::TokenMissing => {
                forbidden("a write in a session needs the token of the session in the header X-CSRF-Token".to_owned())
            }
        }
    }
}

#[cfg(test)]
mod guard_tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_grow_and_are_bounded() {
        let mut failures = Failures::default();
        let peer = "192.0.2.1".parse().unwrap();
        let now = Instant::now();
        let waits: Vec<u128> = (0..7).map(|_| failures.record(peer, now).wait.as_millis()).collect();
        assert_eq!(waits, [100, 300, 700, 1500, 3100, 6100, 9100]);
        let wrong = (0..10_000).map(|_| failures.record(peer, now)).last().unwrap();
        assert_eq!(wrong, Wrong { wait: WAIT_MAX, count: 10_007 });
        assert_eq!(failures.total(), 10_007);
        let later = now + FORGOTTEN_AFTER + Duration::from_secs(20);
        assert_eq!(failures.record(peer, later), Wrong { wait: WAIT_FIRST, count: 1 });
    }

    #[tokio::test(start_paused = true)]
    async fn the_table_is_bounded() {
        let mut failures = Failures::default();
        let now = Instant::now();
        for n in 0..10_000u32 {
            let peer = IpAddr::from(std::net::Ipv4Addr::from_bits(n));
            failures.record(peer, now + Duration::from_millis(n.into()));
            assert!(failures.of_source.len() <= SOURCES_MAX);
        }
        let six = |text: &str| source_of(text.parse().unwrap());
        assert_eq!(six("2001:db8::1"), six("2001:db8::ffff:1"), "one network is one source");
    }
}

#[cfg(test)]
mod facts_tests {
    use super::*;

    #[test]
    fn the_first_argument_counts() {
        let query = "b=x&a=%20y&a=z";
        assert_eq!(argument(Some(query), "a").as_deref(), Some(" y"));
        assert_eq!(argument(Some(query), "c"), None);
        assert_eq!(argument(None, "a"), None);
        let too_late = format!("{}a=1", "b&".repeat(ARGUMENTS_MAX));
        assert_eq!(argument(Some(&too_late), "a"), None);
    }
}
