//! The admin API's server, on the control thread; what takes long is done on another. What there is to ask is in `endpoint`.
//!
//! It owns no state: what it answers is asked of the control loop, which owns everything there is to know. Everything is
//! bounded, since this address may be reachable for others: connections, a connection's age, the time for a head.

use super::access::Access;
use super::cardinality::Cardinality;
use super::endpoint::{self, Endpoint, NotFound};
use super::refusal::{Refusal, error, json, refuse, text};
use super::status::Status;
use super::upstreams::{Upstreams, UpstreamsSnapshot};
use crate::configuration::reload::Served;
use crate::explaining::chain::consumer;
use crate::explaining::explanation::Answer;
use crate::explaining::query::ExplainQuery;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use std::borrow::Cow;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use stillgate_exporter::{CONNECTIONS_MAX, Places, accept};
use stillgate_proxy::UpstreamOverview;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tracing::{debug, warn};

/// Within this a request's head has to be there, on a new connection as on one that is kept.
const HEAD_TIMEOUT: Duration = Duration::from_secs(3);

/// After this a connection gets no further request, so that nobody holds a place for good.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(300);

/// What a connection has to finish in, once it is too old.
const CONNECTION_END_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Questions to the control loop that may wait at once; more connections than this there are not.
pub(crate) const QUESTIONS_MAX: usize = CONNECTIONS_MAX;

/// Requests explained, or accounts of all upstreams given, at once; more wait. One takes up to a second where there are very many routes.
pub(crate) const EXPLAINED_MAX: usize = 1;

/// What is asked of the control loop.
pub(crate) enum Question {
    /// How it is.
    Status(oneshot::Sender<Status>),
    /// How many series there are of what; `None`: nothing is measured.
    Cardinality(oneshot::Sender<Option<Cardinality>>),
    /// How the nodes are: what is known, and what each worker answers.
    Upstreams(oneshot::Sender<(UpstreamsSnapshot, Vec<Option<Vec<UpstreamOverview>>>)>),
    /// What it serves.
    Served(oneshot::Sender<Served>),
}

/// What every connection needs.
struct Api {
    /// Changes with the configuration.
    access: watch::Receiver<Access>,
    questions: mpsc::Sender<Question>,
    /// [`EXPLAINED_MAX`] places.
    explaining: Arc<Semaphore>,
}

/// Serves until the task is dropped with its runtime.
pub(crate) async fn serve(listener: TcpListener, access: watch::Receiver<Access>, questions: mpsc::Sender<Question>) {
    let api = Arc::new(Api { access, questions, explaining: Arc::new(Semaphore::new(EXPLAINED_MAX)) });
    accept(&listener, &Places::default(), "admin API", |stream, peer, place| {
        let api = api.clone();
        tokio::spawn(async move {
            serve_connection(stream, peer, &api).await;
            drop(place);
        });
    })
    .await;
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
    let admitted = api.access.borrow().admit(peer, request);
    if let Err(refusal) = admitted {
        return refuse(&refusal);
    }
    let endpoint = match endpoint::find(request.method(), request.uri().path()) {
        Ok(endpoint) => endpoint,
        Err(NotFound::Path) => return refuse(&Refusal::NoSuchPath),
        Err(NotFound::Method) => return refuse(&Refusal::MethodNotAllowed),
    };
    match endpoint {
        Endpoint::Index => text(endpoint::index()),
        Endpoint::Explain => explain(request.uri().query().unwrap_or_default(), api).await,
        Endpoint::Upstreams => upstreams(api).await,
        Endpoint::Cardinality => match ask(api, Question::Cardinality).await {
            Some(Some(cardinality)) => json(StatusCode::OK, &cardinality),
            Some(None) => refuse(&Refusal::NoMetrics),
            None => refuse(&Refusal::Ending),
        },
        Endpoint::Status => match ask(api, Question::Status).await {
            Some(status) => json(StatusCode::OK, &status),
            None => refuse(&Refusal::Ending),
        },
        Endpoint::Health => match ask(api, Question::Status).await {
            Some(status) if status.draining => json(StatusCode::SERVICE_UNAVAILABLE, &status.health()),
            Some(status) => json(StatusCode::OK, &status.health()),
            None => refuse(&Refusal::Ending),
        },
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
        return refuse(&Refusal::Ending);
    };
    // The place is kept until it is done, even where whoever asked has gone.
    let explained = spawn_blocking(move || {
        let answer = match consumer(&loaded.config, asked.consumer.as_deref()) {
            Ok(consumer) => {
                let answer = Answer::new(&plan, &loaded.config, &asked.head, asked.route.as_deref(), consumer);
                let mut answer = answer.json();
                answer["generation"] = json!(plan.generation);
                json(StatusCode::OK, &answer)
            }
            Err(wrong) => error(StatusCode::BAD_REQUEST, Cow::Owned(format!("consumer: {wrong}"))),
        };
        drop(place);
        answer
    });
    match explained.await {
        Ok(answer) => answer,
        Err(error) => {
            warn!(%error, "admin API: explaining failed, which is a bug");
            refuse(&Refusal::Failed)
        }
    }
}

/// How the nodes are. There may be very many.
async fn upstreams(api: &Api) -> Response<Full<Bytes>> {
    let place = api.explaining.clone().acquire_owned().await.expect("the semaphore is never closed");
    let Some((snapshot, answers)) = ask(api, Question::Upstreams).await else {
        return refuse(&Refusal::Ending);
    };
    let answered = spawn_blocking(move || {
        let answer = json(StatusCode::OK, &Upstreams::new(&snapshot, answers));
        drop(place);
        answer
    });
    answered.await.unwrap_or_else(|error| {
        warn!(%error, "admin API: telling of upstreams failed, which is a bug");
        refuse(&Refusal::Failed)
    })
}

/// `None`: the gateway is shutting down.
async fn ask<T>(api: &Api, question: impl FnOnce(oneshot::Sender<T>) -> Question) -> Option<T> {
    let (answer, answered) = oneshot::channel();
    api.questions.send(question(answer)).await.ok()?;
    answered.await.ok()
}

#[cfg(test)]
mod tests;
