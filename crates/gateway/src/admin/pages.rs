//! The gateway's own answers at the admin address: its state, what it serves, and why.
//!
//! `GET /metrics` is what `gateway.metrics.address` exposes, in the format that the request accepts. The exporter's thread makes it
//! and sends it over a socket pair; this thread passes the bytes on, as fast as the client takes them. Access control is up to the
//! admin address.

use super::context::{PageContext, PageRefusal, Question, error, json, refuse};
use super::resources::ControlSide;
use super::upstreams::Upstreams;
use super::{fleet, live, lua, profiling, routes};
use crate::configuration::reload::ServedPlan;
use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, RawQuery};
use axum::response::Response;
use axum::routing::{MethodRouter, get};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, HOST, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde_json::{Value as Json, json};
use std::borrow::Cow;
use std::future::Future;
use std::io;
use std::os::unix::net::UnixStream;
use stillgate_admin::{Control as _, Page};
use stillgate_datastore::Key;
use stillgate_door::Caller;
use stillgate_exporter::ScrapeForwarder;
use stillgate_replay::explain::chain::consumer;
use stillgate_replay::explain::explanation::ExplainedRequest;
use stillgate_replay::explain::query::ExplainQuery;
use tokio::task::spawn_blocking;
use tracing::{debug, warn};

/// All pages: path, purpose, and handler.
pub(crate) fn pages(api: &PageContext) -> Vec<Page> {
    let page = |path, summary, answer| Page { method: Method::GET, path, summary, answer };
    let mut pages = vec![
        page("/v1/status", "Get configuration, connections, requests, certificates", page_without_query(api, status)),
        page("/v1/health", "Get 200, or 503 while the gateway starts or shuts down", page_without_query(api, health)),
        page("/v1/upstreams", "Get the health of every node", page_without_query(api, upstreams)),
        page(
            "/v1/fleet",
            "Get the nodes that serve the same etcd, and which revision each serves",
            page_without_query(api, fleet::fleet),
        ),
        page("/metrics", "Get the metrics, in a format of Prometheus (name[])", exposition_page(api)),
        page(
            "/v1/metrics/cardinality",
            "Get the number of metric series by family and label",
            page_without_query(api, cardinality),
        ),
        page("/v1/explain", "Explain which route a request takes, and why", explain_page(api)),
        page(
            "/v1/routes",
            "Search the routes that are served, with their traffic (search, status, sort, order, page, page_size)",
            search(api),
        ),
        page(
            "/v1/consumers",
            "Get when consumers last sent requests, and to which routes (search, name, page, page_size)",
            page_with_query(api, live::consumers),
        ),
        page("/v1/routes/{id}", "Get a route that is served, with its plugins and where each comes from", route(api)),
        page(
            "/v1/live",
            "Watch requests, latency and connections second by second (server-sent events)",
            page_with_query(api, live),
        ),
    ];
    pages.push(page(
        "/v1/slow",
        "Get the slowest requests of each minute, and why they were slow",
        page_without_query(api, slow),
    ));
    pages.push(page(
        "/v1/lua/jit",
        "Get which functions in Lua LuaJIT has compiled, and why not all",
        get(async |Extension(caller): Extension<Caller>| json(StatusCode::OK, &lua::jit(caller.sees_secrets()))),
    ));
    pages.extend(profiling::pages(api));
    pages
}

fn page_without_query<F>(api: &PageContext, answer: fn(PageContext) -> F) -> MethodRouter
where
    F: Future<Output = Response> + Send + 'static,
{
    let api = api.clone();
    get(move || answer(api.clone()))
}

/// A page that takes arguments.
fn page_with_query<F>(api: &PageContext, answer: fn(String, PageContext) -> F) -> MethodRouter
where
    F: Future<Output = Response> + Send + 'static,
{
    let api = api.clone();
    get(move |RawQuery(query): RawQuery| answer(query.unwrap_or_default(), api.clone()))
}

fn route(api: &PageContext) -> MethodRouter {
    let api = api.clone();
    get(move |Extension(caller): Extension<Caller>, Path(id): Path<String>| {
        routes::route(api.clone(), id, caller.sees_secrets())
    })
}

fn search(api: &PageContext) -> MethodRouter {
    let api = api.clone();
    get(async move |Extension(caller): Extension<Caller>, RawQuery(query): RawQuery| {
        routes::search(api.clone(), &query.unwrap_or_default(), caller.sees_secrets()).await
    })
}

async fn live(query: String, api: PageContext) -> Response {
    live::stream(api.live, &query)
}

async fn slow(api: PageContext) -> Response {
    match api.ask(Question::Served).await {
        Some(ServedPlan { loaded, .. }) if loaded.config.gateway.debug.slow => {
            json(StatusCode::OK, &api.live.slow.show())
        }
        Some(_) => error(StatusCode::NOT_FOUND, "slow requests are not kept; set gateway.debug.slow to true".into()),
        None => refuse(&PageRefusal::Ending),
    }
}

async fn status(api: PageContext) -> Response {
    match api.ask(Question::Status).await {
        Some(status) => json(StatusCode::OK, &status),
        None => refuse(&PageRefusal::Ending),
    }
}

async fn health(api: PageContext) -> Response {
    match api.ask(Question::Status).await {
        Some(status) if !status.is_ready() => json(StatusCode::SERVICE_UNAVAILABLE, &status.health()),
        Some(status) => json(StatusCode::OK, &status.health()),
        None => refuse(&PageRefusal::Ending),
    }
}

async fn cardinality(api: PageContext) -> Response {
    match api.ask(Question::Cardinality).await {
        Some(Some(cardinality)) => json(StatusCode::OK, &cardinality),
        Some(None) => refuse(&PageRefusal::NoMetrics),
        None => refuse(&PageRefusal::Ending),
    }
}

fn explain_page(api: &PageContext) -> MethodRouter {
    let api = api.clone();
    get(move |Extension(caller): Extension<Caller>, RawQuery(query): RawQuery| {
        explain(query.unwrap_or_default(), api.clone(), caller)
    })
}

/// Which route of those served now takes a request.
async fn explain(query: String, api: PageContext, caller: Caller) -> Response {
    let asked = match ExplainQuery::parse(&query) {
        Ok(asked) => asked,
        Err(wrong) => return error(StatusCode::BAD_REQUEST, Cow::Owned(wrong)),
    };
    let place = api.explaining.clone().acquire_owned().await.expect("the semaphore is never closed");
    let Some(ServedPlan { plan, loaded }) = api.ask(Question::Served).await else {
        return refuse(&PageRefusal::Ending);
    };
    // The place is kept until it is done, even if the client has gone.
    let explained = spawn_blocking(move || {
        let answer = match consumer(&loaded.config, asked.consumer.as_deref()) {
            Ok(consumer) => {
                let answer =
                    ExplainedRequest::new(&plan, &loaded.config, &asked.head, asked.route.as_deref(), consumer);
                let mut answer = answer.json(caller.sees_secrets());
                answer["generation"] = json!(plan.generation);
                json(StatusCode::OK, &answer)
            }
            Err(wrong) => error(StatusCode::BAD_REQUEST, Cow::Owned(format!("consumer: {wrong}"))),
        };
        drop(place);
        answer
    });
    explained.await.unwrap_or_else(|error| {
        warn!(%error, "admin API: explaining failed, which is a bug");
        refuse(&PageRefusal::Failed)
    })
}

/// The state of the nodes. There may be very many.
async fn upstreams(api: PageContext) -> Response {
    let control = ControlSide::new(api.clone());
    // Only their names are in the documents.
    if let Err(why) = control.readable().await {
        debug!(why, "admin API: upstreams have no names");
    }
    let place = api.explaining.clone().acquire_owned().await.expect("the semaphore is never closed");
    let Some((snapshot, answers)) = api.ask(Question::Upstreams).await else {
        return refuse(&PageRefusal::Ending);
    };
    let answered = spawn_blocking(move || {
        let documents = control.documents();
        let name_of = |id: &str| {
            let document = documents.get(&Key::parse(&format!("upstreams/{id}")).ok()?)?;
            let document: Json = serde_json::from_str(&document.value).ok()?;
            document["name"].as_str().map(str::to_owned)
        };
        let answer = json(StatusCode::OK, &Upstreams::new(&snapshot, answers, name_of));
        drop(place);
        answer
    });
    answered.await.unwrap_or_else(|error| {
        warn!(%error, "admin API: telling of upstreams failed, which is a bug");
        refuse(&PageRefusal::Failed)
    })
}

fn exposition_page(api: &PageContext) -> MethodRouter {
    let forwarder = api.exposition.clone();
    get(move |method: Method, uri: Uri, headers: HeaderMap| answer(forwarder.clone(), method, uri, headers))
}

async fn answer(forwarder: Option<ScrapeForwarder>, method: Method, uri: Uri, headers: HeaderMap) -> Response {
    let Some(forwarder) = forwarder else { return refuse(&PageRefusal::NoMetrics) };
    match ask(&forwarder, exposition_request(method, &uri, &headers)).await {
        Ok(mut response) => {
            response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            response
        }
        Err(error) => {
            debug!(%error, "admin API: the exporter cannot be asked");
            let mut refused = refuse(&PageRefusal::MetricsBusy);
            refused.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            refused
        }
    }
}

/// The request to the exporter, with the query, which may name families, and the fields that choose the format.
fn exposition_request(method: Method, uri: &Uri, headers: &HeaderMap) -> Request<Empty<&'static [u8]>> {
    let mut question = Request::new(Empty::new());
    *question.method_mut() = method;
    *question.uri_mut() = uri.path_and_query().map_or_else(|| Uri::from_static("/"), |target| target.clone().into());
    let asked = question.headers_mut();
    asked.insert(HOST, HeaderValue::from_static("localhost"));
    for name in [ACCEPT, ACCEPT_ENCODING] {
        for value in headers.get_all(&name) {
            asked.append(&name, value.clone());
        }
    }
    question
}

async fn ask(forwarder: &ScrapeForwarder, question: Request<Empty<&'static [u8]>>) -> io::Result<Response> {
    let (ours, exporters) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let ours = tokio::net::UnixStream::from_std(ours)?;
    if !forwarder.forward(exporters) {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    let (mut sender, connection) = http1::handshake(TokioIo::new(ours)).await.map_err(io::Error::other)?;
    // The task ends with the response, or when the client closes it. The response reports errors.
    tokio::spawn(async move { drop(connection.await) });
    let response = sender.send_request(question).await.map_err(io::Error::other)?;
    Ok(response.map(Body::new))
}
