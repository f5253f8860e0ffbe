//! The admin API's server: `GET /v1/status`, `/v1/health`, `/v1/upstreams`, `/v1/metrics/cardinality` and `/v1/explain`, on
//! the control thread; what takes long is done on another.
//!
//! It owns no state: what it answers is asked of the control loop, which owns everything there is to know. Everything is
//! bounded, since this address may be reachable for others: connections, a connection's age, the time for a head.

use crate::cardinality::Cardinality;
use crate::explain_query::ExplainQuery;
use crate::explanation::Answer;
use crate::status::Status;
use crate::upstreams::{Known, Upstreams};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use serde_json::json;
use std::borrow::Cow;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use stillgate_config::Loaded;
use stillgate_proxy::{Plan, UpstreamOverview};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tracing::{debug, warn};

/// Connections served at once; further ones wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 256;

/// Within this a request's head has to be there, on a new connection as on one that is kept.
const HEAD_TIMEOUT: Duration = Duration::from_secs(3);

/// After this a connection gets no further request, so that nobody holds a place for good.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(300);

/// What a connection has to finish in, once it is too old.
const CONNECTION_END_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Only every so-manieth failure in a row is logged.
const FAILURES_PER_LINE: u64 = 100;
/// How long accepting pauses after it failed, e.g. for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Questions to the control loop that may wait at once; more connections than this there are not.
pub(crate) const QUESTIONS_MAX: usize = CONNECTIONS_MAX;

/// Requests explained, or accounts of all upstreams given, at once; more wait. One takes up to a second where there are very many routes.
pub(crate) const EXPLAINED_MAX: usize = 1;

const API_KEY: &str = "x-api-key";

/// What is asked of the control loop.
pub(crate) enum Question {
    /// How it is.
    Status(oneshot::Sender<Status>),
    /// How many series there are of what; `None`: nothing is measured.
    Cardinality(oneshot::Sender<Option<Cardinality>>),
    /// How the nodes are: what is known, and what each worker answers.
    Upstreams(oneshot::Sender<(Known, Vec<Option<Vec<UpstreamOverview>>>)>),
    /// What it serves.
    Served(oneshot::Sender<Served>),
}

/// A Plan and what it was built from.
pub(crate) struct Served {
    pub(crate) plan: Arc<Plan>,
    pub(crate) loaded: Arc<Loaded>,
}

/// What every connection needs.
struct Api {
    /// Changes with the configuration.
    key: watch::Receiver<Option<String>>,
    questions: mpsc::Sender<Question>,
    /// [`EXPLAINED_MAX`] places.
    explaining: Arc<Semaphore>,
}

/// Serves until the task is dropped with its runtime.
pub(crate) async fn serve(
    listener: TcpListener,
    key: watch::Receiver<Option<String>>,
    questions: mpsc::Sender<Question>,
) {
    let api = Arc::new(Api { key, questions, explaining: Arc::new(Semaphore::new(EXPLAINED_MAX)) });
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut failures = 0u64;
    loop {
        let place = places.clone().acquire_owned().await.expect("the semaphore is never closed");
        match listener.accept().await {
            Ok((stream, peer)) => {
                failures = 0;
                let api = api.clone();
                tokio::spawn(async move {
                    serve_connection(stream, peer, &api).await;
                    drop(place);
                });
            }
            Err(error) => {
                if failures.is_multiple_of(FAILURES_PER_LINE) {
                    warn!(%error, "admin API: cannot accept connections; they wait");
                }
                failures += 1;
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_connection(stream: TcpStream, peer: SocketAddr, api: &Api) {
    let service =
        service_fn(
            |request: Request<Incoming>| async move { Ok::<_, Infallible>(answer(&request, peer.ip(), api).await) },
        );
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), service)
    );
    let ended = match tokio::time::timeout(CONNECTION_AGE_MAX, connection.as_mut()).await {
        Ok(ended) => ended,
        Err(_) => {
            connection.as_mut().graceful_shutdown();
            // A connection that does not even end in this time is dropped, which closes it.
            tokio::time::timeout(CONNECTION_END_TIMEOUT, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        debug!(%peer, %error, "admin API: connection failed");
    }
}

async fn answer(request: &Request<Incoming>, peer: IpAddr, api: &Api) -> Response<Full<Bytes>> {
    let given = request.headers().get(API_KEY).map(HeaderValue::as_bytes);
    let admitted = admit(peer, given, api.key.borrow().as_deref());
    if let Err(refusal) = admitted {
        return refuse(refusal);
    }
    let endpoint = match find(request.method(), request.uri().path()) {
        Ok(endpoint) => endpoint,
        Err(refusal) => return refuse(refusal),
    };
    if endpoint == Endpoint::Explain {
        return explain(request.uri().query().unwrap_or_default(), api).await;
    }
    if endpoint == Endpoint::Upstreams {
        return upstreams(api).await;
    }
    if endpoint == Endpoint::Cardinality {
        return match ask(api, Question::Cardinality).await {
            Some(Some(cardinality)) => json(StatusCode::OK, &cardinality),
            Some(None) => refuse(Refusal::NoMetrics),
            None => refuse(Refusal::Ending),
        };
    }
    match (endpoint, ask(api, Question::Status).await) {
        (_, None) => refuse(Refusal::Ending),
        (Endpoint::Health, Some(status)) if status.draining => json(StatusCode::SERVICE_UNAVAILABLE, &status.health()),
        (Endpoint::Health, Some(status)) => json(StatusCode::OK, &status.health()),
        (_, Some(status)) => json(StatusCode::OK, &status),
    }
}

/// Which route a request takes of those that are served now.
async fn explain(query: &str, api: &Api) -> Response<Full<Bytes>> {
    let asked = match ExplainQuery::parse(query) {
        Ok(asked) => asked,
        Err(wrong) => return error(StatusCode::BAD_REQUEST, Cow::Owned(wrong)),
    };
    let place = api.explaining.clone().acquire_owned().await.expect("the semaphore is never closed");
    let Some(Served { plan, loaded }) = ask(api, Question::Served).await else {
        return refuse(Refusal::Ending);
    };
    // The place is kept until it is done, even where whoever asked has gone.
    let explained = spawn_blocking(move || {
        let mut answer = Answer::new(&plan, &loaded.config, &asked.head, asked.route.as_deref()).json();
        answer["generation"] = json!(plan.generation);
        let answer = json(StatusCode::OK, &answer);
        drop(place);
        answer
    });
    match explained.await {
        Ok(answer) => answer,
        Err(error) => {
            warn!(%error, "admin API: explaining failed, which is a bug");
            refuse(Refusal::Failed)
        }
    }
}

/// How the nodes are. There may be very many.
async fn upstreams(api: &Api) -> Response<Full<Bytes>> {
    let place = api.explaining.clone().acquire_owned().await.expect("the semaphore is never closed");
    let Some((known, answers)) = ask(api, Question::Upstreams).await else {
        return refuse(Refusal::Ending);
    };
    let answered = spawn_blocking(move || {
        let answer = json(StatusCode::OK, &Upstreams::new(&known, answers));
        drop(place);
        answer
    });
    answered.await.unwrap_or_else(|error| {
        warn!(%error, "admin API: telling of upstreams failed, which is a bug");
        refuse(Refusal::Failed)
    })
}

/// `None`: the gateway is ending.
async fn ask<T>(api: &Api, question: impl FnOnce(oneshot::Sender<T>) -> Question) -> Option<T> {
    let (answer, answered) = oneshot::channel();
    api.questions.send(question(answer)).await.ok()?;
    answered.await.ok()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Endpoint {
    Status,
    Health,
    Cardinality,
    Explain,
    Upstreams,
}

/// Why a request is not answered with what it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    LoopbackOnly,
    KeyMissing,
    KeyWrong,
    NoSuchPath,
    NoMetrics,
    MethodNotAllowed,
    Ending,
    Failed,
}

#[derive(Serialize)]
struct ErrorBody {
    error_msg: Cow<'static, str>,
}

/// Loopback is trusted; everybody else needs the key, and where there is none, nobody else is served.
fn admit(peer: IpAddr, given: Option<&[u8]>, key: Option<&str>) -> Result<(), Refusal> {
    if peer.to_canonical().is_loopback() {
        return Ok(());
    }
    match (given, key) {
        (_, None) => Err(Refusal::LoopbackOnly),
        (None, Some(_)) => Err(Refusal::KeyMissing),
        (Some(given), Some(key)) if equal_in_constant_time(given, key.as_bytes()) => Ok(()),
        (Some(_), Some(_)) => Err(Refusal::KeyWrong),
    }
}

/// Takes the same time wherever the first difference is, so that a key cannot be guessed byte by byte. Its length shows.
fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    let difference = a.iter().zip(b).fold(0, |difference, (a, b)| std::hint::black_box(difference | (a ^ b)));
    a.len() == b.len() && difference == 0
}

fn find(method: &Method, path: &str) -> Result<Endpoint, Refusal> {
    let endpoint = match path {
        "/v1/status" => Endpoint::Status,
        "/v1/health" => Endpoint::Health,
        "/v1/metrics/cardinality" => Endpoint::Cardinality,
        "/v1/explain" => Endpoint::Explain,
        "/v1/upstreams" => Endpoint::Upstreams,
        _ => return Err(Refusal::NoSuchPath),
    };
    match *method {
        Method::GET | Method::HEAD => Ok(endpoint),
        _ => Err(Refusal::MethodNotAllowed),
    }
}

fn refuse(refusal: Refusal) -> Response<Full<Bytes>> {
    let (status, error_msg) = match refusal {
        Refusal::LoopbackOnly => (
            StatusCode::FORBIDDEN,
            "this address is served to loopback only; set gateway.admin.key to open it to others",
        ),
        Refusal::KeyMissing => (StatusCode::UNAUTHORIZED, "send the admin key in the header X-API-KEY"),
        Refusal::KeyWrong => (StatusCode::UNAUTHORIZED, "wrong admin key"),
        Refusal::NoSuchPath => (
            StatusCode::NOT_FOUND,
            "404 Not Found: there are /v1/status, /v1/health, /v1/upstreams, /v1/metrics/cardinality and /v1/explain",
        ),
        Refusal::NoMetrics => {
            (StatusCode::NOT_FOUND, "404 Not Found: nothing is measured; add gateway.metrics to the configuration")
        }
        Refusal::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "405 Method Not Allowed: use GET"),
        Refusal::Ending => (StatusCode::SERVICE_UNAVAILABLE, "the gateway is ending"),
        Refusal::Failed => (StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error; see the gateway's log"),
    };
    let mut response = error(status, Cow::Borrowed(error_msg));
    match refusal {
        Refusal::MethodNotAllowed => {
            let methods = HeaderValue::from_static("GET, HEAD");
            response.headers_mut().insert(ALLOW, methods);
        }
        Refusal::KeyMissing | Refusal::KeyWrong => {
            let scheme = HeaderValue::from_static("X-API-KEY");
            response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
        }
        _ => {}
    }
    response
}

fn error(status: StatusCode, error_msg: Cow<'static, str>) -> Response<Full<Bytes>> {
    json(status, &ErrorBody { error_msg })
}

fn json(status: StatusCode, body: &impl Serialize) -> Response<Full<Bytes>> {
    let mut bytes = serde_json::to_vec(body).expect("these shapes have string keys only");
    bytes.push(b'\n');
    let mut response = Response::new(Full::new(Bytes::from(bytes)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_admitted() {
        let check = |peer: &str, given: Option<&[u8]>, key: Option<&str>, expected| {
            let peer = peer.parse().expect("an address");
            assert_eq!(admit(peer, given, key), expected, "{peer} {given:?} {key:?}");
        };
        check("127.0.0.1", None, Some("k"), Ok(()));
        check("127.9.9.9", Some(b"wrong"), Some("k"), Ok(()));
        check("::1", None, None, Ok(()));
        check("::ffff:127.0.0.1", None, None, Ok(()));
        check("192.0.2.1", Some(b"k"), None, Err(Refusal::LoopbackOnly));
        check("::ffff:192.0.2.1", None, None, Err(Refusal::LoopbackOnly));
        check("192.0.2.1", None, Some("k"), Err(Refusal::KeyMissing));
        check("192.0.2.1", Some(b""), Some("k"), Err(Refusal::KeyWrong));
        check("192.0.2.1", Some(b"kk"), Some("k"), Err(Refusal::KeyWrong));
        check("192.0.2.1", Some(b"l"), Some("k"), Err(Refusal::KeyWrong));
        check("192.0.2.1", Some(b"k"), Some("k"), Ok(()));
    }

    #[test]
    fn what_is_found() {
        let check = |method: Method, path: &str, expected| {
            assert_eq!(find(&method, path), expected, "{method} {path}");
        };
        check(Method::GET, "/v1/status", Ok(Endpoint::Status));
        check(Method::HEAD, "/v1/health", Ok(Endpoint::Health));
        check(Method::GET, "/v1/metrics/cardinality", Ok(Endpoint::Cardinality));
        check(Method::GET, "/v1/explain", Ok(Endpoint::Explain));
        check(Method::GET, "/v1/upstreams", Ok(Endpoint::Upstreams));
        check(Method::GET, "/v1/metrics", Err(Refusal::NoSuchPath));
        check(Method::GET, "/v1/status/", Err(Refusal::NoSuchPath));
        check(Method::GET, "/", Err(Refusal::NoSuchPath));
        check(Method::POST, "/v1/status", Err(Refusal::MethodNotAllowed));
    }

    #[test]
    fn refusals_say_how_to_do_better() {
        let response = refuse(Refusal::MethodNotAllowed);
        assert_eq!(response.status(), 405);
        assert_eq!(response.headers()["allow"], "GET, HEAD");
        let response = refuse(Refusal::KeyMissing);
        assert_eq!(response.status(), 401);
        assert_eq!(response.headers()["www-authenticate"], "X-API-KEY");
        assert_eq!(response.headers()["content-type"], "application/json");
    }
}
