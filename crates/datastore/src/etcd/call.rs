//! Requests to etcd: choosing the endpoint, the token and the connection, and interpreting errors.
//!
//! An endpoint that fails is set aside for a while and the next one is asked, as long as that cannot do anything twice.
//! A token is requested when needed, and again when etcd rejects it.
//!
//! All answers are of one cluster: an endpoint of another one has failed. Requests go only over connections on which that cluster has
//! answered, since an error does not say which cluster it comes from.

use super::error::{EtcdError, RANGE, code};
use super::message::{AuthRequest, AuthResponse, EtcdErrorBody, EtcdResponse, RangeRequest, RangeResponse};
use super::options::{ENDPOINTS_MAX, EtcdEndpoint, EtcdOptions, EtcdTls, OptionsError, RenewTls};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use socket2::{SockRef, TcpKeepalive};
use std::error::Error as _;
use std::fmt;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use stillgate_tls::{Peer, ServiceRoots, handshake_failure, rustls, towards_service, towards_service_as};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// The largest response, and the largest line of a watch.
pub(crate) const RESPONSE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Number of connections kept for the next request, and for how long.
const IDLE_MAX: usize = 8;
const IDLE_KEPT: Duration = Duration::from_secs(30);

/// How long other endpoints are waited for, once one has answered, before the cluster is chosen.
const SURVEY_TIME: Duration = Duration::from_millis(500);

const AGENT: &str = concat!("stillgate/", env!("CARGO_PKG_VERSION"));

/// The JSON gateway turns this into gRPC's metadata `hasleader`: a member that has lost its leader then refuses
/// requests, and ends watches, where it would be silent otherwise.
const REQUIRE_LEADER: (HeaderName, HeaderValue) =
    (HeaderName::from_static("grpc-metadata-hasleader"), HeaderValue::from_static("true"));

const AUTHENTICATE: &str = "/v3/auth/authenticate";
const NO_AUTHENTICATION: &str = "authentication is not enabled";

/// Whether a request that may have reached etcd may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// It only reads, or repeating it has no further effect.
    Always,
    /// Only if it certainly had no effect.
    WithoutEffect,
}

/// Sends requests.
pub(crate) struct Caller {
    /// At least one endpoint.
    endpoints: Vec<EtcdEndpoint>,
    rotation: Mutex<Rotation>,
    clusters: Mutex<Clusters>,
    tls: Mutex<TlsState>,
    renew_tls: Option<RenewTls>,
    login: Option<Login>,
    token: Mutex<EtcdToken>,
    idle: Mutex<Vec<IdleConnection>>,
    pub(crate) timeout: Duration,
    /// A key that the user may read.
    known_key: Vec<u8>,
}

/// User and password, which are never shown.
struct Login {
    user: String,
    password: String,
}

#[derive(Clone, PartialEq)]
enum EtcdToken {
    Unknown,
    /// etcd's authentication is switched off.
    Needless,
    Known(HeaderValue),
}

/// Which cluster each endpoint belongs to, as far as it has answered.
struct Clusters {
    /// The one that is followed, once a list has begun.
    followed: Option<u64>,
    /// By endpoint: the cluster that it has named last.
    named: Vec<Option<u64>>,
}

impl Clusters {
    /// The cluster that more than half of all endpoints have named.
    fn most(&self) -> Option<u64> {
        let cluster = self.most_named()?;
        (2 * self.count(cluster) > self.named.len()).then_some(cluster)
    }

    /// The cluster that was named most often; of several, that of the first endpoint.
    fn most_named(&self) -> Option<u64> {
        self.named.iter().flatten().rev().copied().max_by_key(|cluster| self.count(*cluster))
    }

    fn count(&self, cluster: u64) -> usize {
        self.named.iter().filter(|named| **named == Some(cluster)).count()
    }
}

/// The TLS settings in use.
struct TlsState {
    connector: TlsConnector,
    of: Option<EtcdTls>,
    /// Why the current files cannot be used, if they cannot.
    failed: Option<String>,
}

/// A connection that is ready for the next request.
struct IdleConnection {
    endpoint: usize,
    connection: EtcdConnection,
    since: Instant,
}

impl Caller {
    pub(crate) fn new(options: EtcdOptions, known_key: Vec<u8>) -> Result<Caller, OptionsError> {
        let count = options.endpoints.len();
        if !(1..=ENDPOINTS_MAX).contains(&count) {
            return Err(OptionsError::new("endpoints", format!("{count} endpoints; write 1 to {ENDPOINTS_MAX}")));
        }
        let parsed = options.endpoints.iter().enumerate();
        let endpoints = parsed.map(|(index, url)| EtcdEndpoint::parse(url, &format!("endpoints[{index}]")));
        let login = match (options.user, options.password) {
            (Some(user), Some(password)) => Some(Login { user, password }),
            (None, None) => None,
            (Some(_), None) => {
                return Err(OptionsError::new("password", "it is missing, but `user` is set; write both"));
            }
            (None, Some(_)) => {
                return Err(OptionsError::new("user", "it is missing, but `password` is set; write both"));
            }
        };
        let endpoints = endpoints.collect::<Result<Vec<_>, _>>()?;
        let is_tls = endpoints.iter().any(|endpoint| endpoint.tls_name.is_some());
        let connector = connector(options.tls.as_ref(), is_tls).map_err(|message| OptionsError::new("tls", message))?;
        let tls = TlsState { connector, of: options.tls, failed: None };
        Ok(Caller {
            rotation: Mutex::new(Rotation::new(count, rand::random::<u32>() as usize)),
            clusters: Mutex::new(Clusters { followed: None, named: vec![None; count] }),
            tls: Mutex::new(tls),
            renew_tls: options.renew_tls.filter(|_| is_tls),
            endpoints,
            login,
            token: Mutex::new(EtcdToken::Unknown),
            idle: Mutex::default(),
            timeout: options.request_timeout,
            known_key,
        })
    }

    /// Sends a request to one endpoint after the other until one answers.
    pub(crate) async fn call<T: EtcdResponse>(
        &self,
        path: &'static str,
        request: &impl Serialize,
        repeat: Repeat,
    ) -> Result<T, EtcdError> {
        let mut tried = Vec::new();
        loop {
            let index = self.choose(&tried);
            tried.push(index);
            match self.send(index, path, request, repeat).await {
                Err(error)
                    if self.may_ask_another(&error, &tried)
                        && (repeat == Repeat::Always || error.is_without_effect()) => {}
                Err(error) if repeat == Repeat::Always => return Err(self.settled(error)),
                answer => return answer,
            }
        }
    }

    /// Sends a request to this endpoint.
    pub(crate) async fn call_at<T: EtcdResponse>(
        &self,
        index: usize,
        path: &'static str,
        request: &impl Serialize,
    ) -> Result<T, EtcdError> {
        self.send(index, path, request, Repeat::Always).await
    }

    async fn send<T: EtcdResponse>(
        &self,
        index: usize,
        path: &'static str,
        request: &impl Serialize,
        repeat: Repeat,
    ) -> Result<T, EtcdError> {
        let body = body(request);
        let token = self.token(index).await?;
        let answer = match self.exchange(index, path, &body, &token, repeat).await {
            Err(error) if self.login.is_some() && error.is_about_token() => {
                self.forget_token(&token);
                self.exchange(index, path, &body, &self.token(index).await?, repeat).await
            }
            answer => answer,
        };
        self.note(index, answer.as_ref().err());
        answer
    }

    /// Sends a request whose response has no end. The token must be known to be valid; see [`super::watch`].
    pub(crate) async fn stream_at(
        &self,
        index: usize,
        path: &'static str,
        request: &impl Serialize,
    ) -> Result<(EtcdConnection, Incoming), EtcdError> {
        let token = self.token(index).await?;
        let request = self.request(index, path, &body(request), &token);
        let opened = async {
            let mut connection = self.open(index).await?;
            self.identify(index, &mut connection, &token, Repeat::Always).await?;
            let response = connection.sender.send_request(request).await;
            Ok((connection, response.map_err(|error| self.connection_error(index, &error))?))
        };
        let (connection, response) = self.in_time(index, true, opened).await?;
        if response.status().is_success() {
            return Ok((connection, response.into_body()));
        }
        let (parts, body) = response.into_parts();
        let body = self.in_time(index, true, self.whole(index, body)).await?;
        Err(self.refusal(index, parts.status.as_u16(), &body))
    }

    /// The next endpoint in turn, among those that were not tried.
    pub(crate) fn choose(&self, tried: &[usize]) -> usize {
        self.rotation().choose(Instant::now(), tried)
    }

    /// Whether the endpoint caused the failure, and another one is left.
    pub(crate) fn may_ask_another(&self, error: &EtcdError, tried: &[usize]) -> bool {
        error.is_of_endpoint() && tried.len() < self.endpoints.len()
    }

    /// The number of endpoints.
    pub(crate) fn endpoints(&self) -> usize {
        self.endpoints.len()
    }

    /// The name of an endpoint in messages.
    pub(crate) fn url(&self, index: usize) -> String {
        self.endpoints[index].url.clone()
    }

    /// The names of all endpoints.
    pub(crate) fn urls(&self) -> String {
        self.endpoints.iter().map(|endpoint| &*endpoint.url).collect::<Vec<_>>().join(", ")
    }

    /// Records the result of a request to an endpoint.
    pub(crate) fn note(&self, index: usize, error: Option<&EtcdError>) {
        match error {
            Some(error) if error.is_of_endpoint() => self.rotation().set_aside(index, Instant::now()),
            _ => self.rotation().clear_aside(index),
        }
    }

    /// Forgets the token, so that the next request gets a new one.
    pub(crate) fn renew_token(&self) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = EtcdToken::Unknown;
    }

    pub(crate) fn unreachable(&self, index: usize, why: String, is_sent: bool) -> EtcdError {
        EtcdError::Unreachable { endpoint: self.url(index), why, is_sent }
    }

    /// An error of an established connection.
    pub(crate) fn connection_error(&self, index: usize, error: &hyper::Error) -> EtcdError {
        // Canceled: the connection was closed before any byte of the request was sent.
        self.unreachable(index, why_broken(error), !error.is_canceled())
    }

    /// An error for an answer with an error status.
    pub(crate) fn refusal(&self, index: usize, status: u16, body: &[u8]) -> EtcdError {
        match serde_json::from_slice::<EtcdErrorBody>(body) {
            Ok(refusal) if refusal.message.is_some() || refusal.error.is_some() => self.status_error(index, refusal),
            // A proxy in between, which got no answer from etcd.
            _ if matches!(status, 502..=504) => self.unreachable(index, format!("status {status}"), true),
            _ => EtcdError::Unreadable { endpoint: self.url(index), why: format!("status {status}") },
        }
    }

    pub(crate) fn status_error(&self, index: usize, refusal: EtcdErrorBody) -> EtcdError {
        let (code, message) = (refusal.code(), refusal.into_text());
        match code == code::OUT_OF_RANGE && message.contains("compacted") {
            true => EtcdError::Compacted { oldest: None },
            false => EtcdError::Refused { endpoint: self.url(index), code, message },
        }
    }

    async fn token(&self, index: usize) -> Result<EtcdToken, EtcdError> {
        let Some(login) = &self.login else { return Ok(EtcdToken::Needless) };
        let known = self.token.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if known != EtcdToken::Unknown {
            return Ok(known);
        }
        let request = body(&AuthRequest { name: &login.user, password: &login.password });
        let answer = self.exchange(index, AUTHENTICATE, &request, &EtcdToken::Needless, Repeat::Always).await;
        self.note(index, answer.as_ref().err());
        let token = match answer {
            Ok(AuthResponse { token, .. }) => {
                let why = "its token cannot be sent in a header".to_owned();
                let unreadable = |_| EtcdError::Unreadable { endpoint: self.url(index), why };
                let mut token = HeaderValue::from_str(&token).map_err(unreadable)?;
                token.set_sensitive(true);
                EtcdToken::Known(token)
            }
            Err(EtcdError::Refused { message, .. }) if message.contains(NO_AUTHENTICATION) => EtcdToken::Needless,
            // The request that needs the token has not been sent.
            Err(EtcdError::Unreachable { endpoint, why, .. }) => {
                return Err(EtcdError::Unreachable { endpoint, why, is_sent: false });
            }
            Err(error) => return Err(error),
        };
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = token.clone();
        Ok(token)
    }

    /// Forgets the token, unless another request has renewed it meanwhile.
    fn forget_token(&self, used: &EtcdToken) {
        let mut token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        if *token == *used {
            *token = EtcdToken::Unknown;
        }
    }

    /// Sends a request and returns the answer, if it is of the cluster that is followed.
    async fn exchange<T: EtcdResponse>(
        &self,
        index: usize,
        path: &'static str,
        body: &Bytes,
        token: &EtcdToken,
        repeat: Repeat,
    ) -> Result<T, EtcdError> {
        let mut connection = self.connect(index).await?;
        if path != AUTHENTICATE {
            self.identify(index, &mut connection, token, repeat).await?;
        }
        let request = self.request(index, path, body, token);
        let exchanged = async {
            let failed = |error| self.connection_error(index, &error);
            let response = match connection.sender.try_send_request(request).await {
                Ok(response) => response,
                // A kept connection was closed meanwhile, and no byte of the request was sent.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => {
                        connection = self.open(index).await?;
                        if path != AUTHENTICATE {
                            self.identify(index, &mut connection, token, repeat).await?;
                        }
                        connection.sender.send_request(unsent).await.map_err(failed)?
                    }
                    None => return Err(failed(error.into_error())),
                },
            };
            let (parts, body) = response.into_parts();
            Ok((parts.status, self.whole(index, body).await?))
        };
        let (status, body) = self.in_time(index, true, exchanged).await?;
        if !status.is_success() {
            self.keep(index, connection);
            return Err(self.refusal(index, status.as_u16(), &body));
        }
        let answer = self.read::<T>(index, &body)?;
        connection.cluster = answer.cluster().or(connection.cluster);
        self.keep(index, connection);
        Ok(answer)
    }

    /// Makes sure that the followed cluster answers on a connection, by a read.
    async fn identify(
        &self,
        index: usize,
        connection: &mut EtcdConnection,
        token: &EtcdToken,
        repeat: Repeat,
    ) -> Result<(), EtcdError> {
        let is_needless = match (self.clusters().followed, connection.cluster) {
            (None, None) => repeat == Repeat::Always,
            (None, Some(_)) => true,
            (followed, cluster) => followed == cluster,
        };
        if is_needless {
            return Ok(());
        }
        let request = self.request(index, RANGE, &body(&self.small_read()), token);
        let exchanged = async {
            let response = connection.sender.send_request(request).await;
            let (parts, body) = response.map_err(|error| self.connection_error(index, &error))?.into_parts();
            Ok((parts.status, self.whole(index, body).await?))
        };
        // What has failed is a read, and the write has not been sent.
        let unsent = |error| match error {
            EtcdError::Unreachable { endpoint, why, .. } => EtcdError::Unreachable { endpoint, why, is_sent: false },
            EtcdError::OtherCluster { endpoint, .. } => EtcdError::OtherCluster { endpoint, is_sent: false },
            error => error,
        };
        let (status, body) = self.in_time(index, true, exchanged).await.map_err(unsent)?;
        if !status.is_success() {
            return Err(unsent(self.refusal(index, status.as_u16(), &body)));
        }
        let answer = self.read::<RangeResponse>(index, &body).map_err(unsent)?;
        connection.cluster = Some(answer.header.cluster_id.0);
        Ok(())
    }

    /// The smallest request that the majority has to answer, and that the user may make.
    pub(crate) fn small_read(&self) -> RangeRequest {
        RangeRequest { key: self.known_key.clone().into(), keys_only: true, ..RangeRequest::default() }
    }

    async fn connect(&self, index: usize) -> Result<EtcdConnection, EtcdError> {
        match self.take_idle(index) {
            Some(connection) => Ok(connection),
            None => self.open(index).await,
        }
    }

    async fn open(&self, index: usize) -> Result<EtcdConnection, EtcdError> {
        let opened = async {
            let opened = EtcdConnection::open(&self.endpoints[index], &self.current_tls()).await;
            opened.map_err(|why| self.unreachable(index, why, false))
        };
        self.in_time(index, false, opened).await
    }

    /// The TLS settings for a new connection: certificates are renewed in their files. Files that cannot be used leave the former ones in
    /// use, which may be good for longer than the renewal takes.
    fn current_tls(&self) -> TlsConnector {
        let mut state = self.tls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(renew) = &self.renew_tls {
            let renewed = match renew() {
                Ok(tls) if state.of.as_ref() == Some(&tls) => Ok(None),
                Ok(tls) => connector(Some(&tls), true).map(|connector| Some((connector, tls))),
                Err(error) => Err(error),
            };
            match renewed {
                Ok(renewed) => {
                    if let Some((connector, tls)) = renewed {
                        tracing::info!("etcd: the files of gateway.config.etcd.tls have changed, and are used");
                        (state.connector, state.of) = (connector, Some(tls));
                    }
                    state.failed = None;
                }
                Err(error) => {
                    if state.failed.as_ref() != Some(&error) {
                        tracing::warn!(
                            "etcd: the files of gateway.config.etcd.tls cannot be used, and the former ones stay in use: {error}"
                        );
                        state.failed = Some(error);
                    }
                }
            }
        }
        state.connector.clone()
    }

    async fn in_time<T>(
        &self,
        index: usize,
        is_sent: bool,
        then: impl Future<Output = Result<T, EtcdError>>,
    ) -> Result<T, EtcdError> {
        let what = if is_sent { "no answer" } else { "no connection" };
        let late = |_| Err(self.unreachable(index, format!("{what} within {} ms", self.timeout.as_millis()), is_sent));
        timeout(self.timeout, then).await.unwrap_or_else(late)
    }

    async fn whole(&self, index: usize, body: Incoming) -> Result<Bytes, EtcdError> {
        let body = Limited::new(body, RESPONSE_BYTES_MAX).collect().await;
        let body = body.map_err(|error| match error.is::<LengthLimitError>() {
            true => EtcdError::TooLarge { endpoint: self.url(index), bytes_max: RESPONSE_BYTES_MAX },
            false => self.unreachable(index, error.to_string(), true),
        })?;
        Ok(body.to_bytes())
    }

    fn request(&self, index: usize, path: &'static str, body: &Bytes, token: &EtcdToken) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body.clone()));
        *request.method_mut() = hyper::Method::POST;
        *request.uri_mut() = hyper::Uri::from_static(path);
        let fields = request.headers_mut();
        fields.insert(HOST, self.endpoints[index].authority.clone());
        fields.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let (name, value) = REQUIRE_LEADER;
        fields.insert(name, value);
        if let EtcdToken::Known(token) = token {
            fields.insert(AUTHORIZATION, token.clone());
        }
        request
    }

    /// The answer in a body, if it is of the cluster that is followed.
    fn read<T: EtcdResponse>(&self, index: usize, body: &[u8]) -> Result<T, EtcdError> {
        let unreadable = |why: String| EtcdError::Unreadable { endpoint: self.url(index), why };
        let answer: T = serde_json::from_slice(body).map_err(|error| unreadable(misunderstood(&error)))?;
        let Some(cluster) = answer.cluster() else { return Ok(answer) };
        if cluster == 0 {
            return Err(unreadable("the response does not say which cluster it comes from".to_owned()));
        }
        let mut clusters = self.clusters();
        clusters.named[index] = Some(cluster);
        match clusters.followed {
            Some(followed) if followed != cluster => {
                Err(EtcdError::OtherCluster { endpoint: self.url(index), is_sent: true })
            }
            _ => Ok(answer),
        }
    }

    /// The most recently used connection to an endpoint.
    fn take_idle(&self, index: usize) -> Option<EtcdConnection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|idle| !idle.connection.sender.is_closed() && idle.since.elapsed() < IDLE_KEPT);
        let at = idle.iter().rposition(|idle| idle.endpoint == index)?;
        Some(idle.remove(at).connection)
    }

    fn keep(&self, endpoint: usize, connection: EtcdConnection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() == IDLE_MAX {
            idle.remove(0);
        }
        idle.push(IdleConnection { endpoint, connection, since: Instant::now() });
    }

    /// Decides which cluster is followed, if none is: the one that most endpoints belong to. An endpoint may have been set up again on
    /// its own, with nothing in it.
    pub(crate) async fn choose_cluster(&self) {
        if self.endpoints.len() == 1 || self.clusters().followed.is_some() {
            return;
        }
        let request = self.small_read();
        let asked = (0..self.endpoints.len()).map(|index| self.call_at::<RangeResponse>(index, RANGE, &request));
        let mut answers: FuturesUnordered<_> = asked.collect();
        let mut first_answer_at = None;
        loop {
            let due = first_answer_at.map(|at: Instant| at + SURVEY_TIME);
            let late = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                answer = answers.next() => match answer {
                    Some(Ok(_)) => first_answer_at = first_answer_at.or(Some(Instant::now())),
                    Some(Err(_)) => {}
                    None => break,
                },
                () = late => break,
            }
            if self.clusters().most().is_some() {
                break;
            }
        }
        let mut clusters = self.clusters();
        let Some(cluster) = clusters.most_named() else { return };
        let strangers: Vec<&str> = (self.endpoints.iter().zip(&clusters.named))
            .filter(|(_, named)| named.is_some_and(|named| named != cluster))
            .map(|(endpoint, _)| &*endpoint.url)
            .collect();
        if !strangers.is_empty() {
            let strangers = strangers.join(", ");
            tracing::error!("etcd: {strangers} belongs to another cluster than most endpoints, and is not used");
        }
        clusters.followed = Some(cluster);
    }

    /// Follows a cluster, if none is followed.
    pub(crate) fn follow(&self, cluster: u64) {
        self.clusters().followed.get_or_insert(cluster);
    }

    /// The error after every endpoint has been tried. If most of them belong to another cluster, etcd was replaced by it.
    pub(crate) fn settled(&self, error: EtcdError) -> EtcdError {
        let mut clusters = self.clusters();
        match clusters.most() {
            Some(most) if error.is_of_endpoint() && clusters.followed.is_some_and(|followed| followed != most) => {
                clusters.followed = None;
                EtcdError::Replaced { why: "another cluster answers".to_owned() }
            }
            _ => error,
        }
    }

    fn clusters(&self) -> MutexGuard<'_, Clusters> {
        self.clusters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rotation(&self) -> MutexGuard<'_, Rotation> {
        self.rotation.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller").field("endpoints", &self.urls()).finish_non_exhaustive()
    }
}

fn body(request: &impl Serialize) -> Bytes {
    serde_json::to_vec(request).expect("requests have text keys only, and nothing in them can fail").into()
}

/// The position of unexpected JSON. Without serde's message: it quotes the text, which could contain a token.
pub(crate) fn misunderstood(error: &serde_json::Error) -> String {
    format!("the JSON is cut off or unknown, at line {}, column {}", error.line(), error.column())
}

// Chooses the next endpoint: one after the other, those that failed lately last.

/// How long an endpoint that failed is used only if no other is left.
const SET_ASIDE: Duration = Duration::from_secs(10);

/// The rotation of endpoints, by their index.
#[derive(Debug)]
pub(crate) struct Rotation {
    next: usize,
    /// Until when each is set aside. Never empty.
    aside: Vec<Option<Instant>>,
}

impl Rotation {
    /// A rotation of `count` endpoints, at least one. `first` is used first: gateways should not all begin with the
    /// same member.
    pub(crate) fn new(count: usize, first: usize) -> Rotation {
        Rotation { next: first % count, aside: vec![None; count] }
    }

    /// The next one that is not in `tried`, which never holds all. If all others are set aside, the one whose time ends
    /// first.
    pub(crate) fn choose(&mut self, now: Instant, tried: &[usize]) -> usize {
        let count = self.aside.len();
        let turn = (0..count).map(|step| (self.next + step) % count).filter(|index| !tried.contains(index));
        let chosen = turn.min_by_key(|index| self.aside[*index].filter(|until| *until > now)).unwrap_or(self.next);
        self.next = (chosen + 1) % count;
        chosen
    }

    pub(crate) fn set_aside(&mut self, index: usize, now: Instant) {
        self.aside[index] = Some(now + SET_ASIDE);
    }

    pub(crate) fn clear_aside(&mut self, index: usize) {
        self.aside[index] = None;
    }
}

// One connection to an endpoint: TCP with keep-alive, TLS if the endpoint has it, HTTP/1.1.

/// Timeout of connecting to one address, so that an unresponsive one leaves time for the next.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A watch only receives. Without keep-alive, a connection that a middlebox has dropped would seem quiet for ever.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// An open connection. It is closed on drop, even in the middle of a response.
#[derive(Debug)]
pub(crate) struct EtcdConnection {
    pub(crate) sender: SendRequest<Full<Bytes>>,
    /// The cluster that has answered on it.
    cluster: Option<u64>,
    /// The only task that moves its bytes; it ends with the set.
    _driver: JoinSet<()>,
}

impl EtcdConnection {
    /// Opens a connection. The error is one line without the endpoint.
    pub(crate) async fn open(endpoint: &EtcdEndpoint, tls: &TlsConnector) -> Result<EtcdConnection, String> {
        let stream = tcp(endpoint)
            .await
            .map_err(|error| format!("cannot connect: {error}; is it up, and can the gateway reach it?"))?;
        let Some(name) = endpoint.tls_name.clone() else {
            return EtcdConnection::over(stream).await;
        };
        let stream = tls.connect(name, stream).await;
        EtcdConnection::over(stream.map_err(|error| format!("TLS: {}", handshake_failure(&error, Peer::Etcd)))?).await
    }

    async fn over<S>(stream: S) -> Result<EtcdConnection, String>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        let mut driver = JoinSet::new();
        // Its failure is reported by the request on it.
        driver.spawn(async move { drop(connection.await) });
        Ok(EtcdConnection { sender, cluster: None, _driver: driver })
    }
}

/// The TLS settings. If TLS is not used (`!is_needed`), the system's roots need not exist.
pub(crate) fn connector(options: Option<&EtcdTls>, is_needed: bool) -> Result<TlsConnector, String> {
    let verify = is_needed && options.is_none_or(|options| options.verify);
    let ca = options.and_then(|options| options.ca.as_deref());
    let system: Vec<Vec<u8>> = match (verify, ca) {
        (true, None) => rustls_native_certs::load_native_certs().certs.into_iter().map(|der| der.to_vec()).collect(),
        _ => Vec::new(),
    };
    let roots = match (verify, ca) {
        (false, _) => ServiceRoots::Anyone,
        (true, Some(pem)) => ServiceRoots::Pem(pem),
        (true, None) => ServiceRoots::Der(&system),
    };
    let config = match options.and_then(|options| options.client.as_ref()) {
        Some((cert, key)) => towards_service_as(roots, (cert, key)),
        None => towards_service(roots),
    };
    config.map(TlsConnector::from)
}

/// Why an open connection has failed, on one line.
pub(crate) fn why_broken(error: &hyper::Error) -> String {
    let Some(source) = error.source() else { return error.to_string() };
    match source.downcast_ref::<io::Error>() {
        // In TLS 1.3 a server rejects our certificate, or its absence, after our side of the handshake.
        Some(io) if io.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) => {
            format!("TLS: {}", handshake_failure(io, Peer::Etcd))
        }
        _ => format!("{error}: {source}"),
    }
}

/// Connects to the first address that answers.
async fn tcp(endpoint: &EtcdEndpoint) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in lookup_host((&*endpoint.host, endpoint.port)).await? {
        match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
                SockRef::from(&stream).set_tcp_keepalive(&keepalive.with_retries(KEEPALIVE_PROBES))?;
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Ok(Err(error)) => failed = error,
            Err(_) => failed = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_after_the_other_and_failed_ones_last() {
        let now = Instant::now();
        let mut rotation = Rotation::new(3, 4);
        let next = |rotation: &mut Rotation, now| rotation.choose(now, &[]);
        assert_eq!([(); 4].map(|()| next(&mut rotation, now)), [1, 2, 0, 1]);
        rotation.set_aside(2, now);
        assert_eq!([(); 3].map(|()| next(&mut rotation, now)), [0, 1, 0]);
        assert_eq!(rotation.choose(now, &[0, 1]), 2);
        rotation.set_aside(0, now + Duration::from_secs(1));
        rotation.set_aside(1, now + Duration::from_secs(2));
        let later = now + Duration::from_secs(3);
        assert_eq!([(); 2].map(|()| next(&mut rotation, later)), [2, 2]);
        rotation.clear_aside(1);
        assert_eq!(next(&mut rotation, later), 1);
        let much_later = now + SET_ASIDE * 2;
        assert_eq!([(); 3].map(|()| next(&mut rotation, much_later)), [2, 0, 1]);
    }
}
