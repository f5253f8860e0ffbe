//! The gateway's own answers at the admin address: its state, what it serves, and why.

use super::context::{PageContext, Question};
use super::exposition;
use super::live;
use super::lua;
use super::profiling;
use super::refusal::{PageRefusal, error, json, refuse};
use super::routes;
use super::upstreams::Upstreams;
use crate::configuration::reload::ServedPlan;
use axum::Extension;
use axum::extract::{Path, RawQuery};
use axum::response::Response;
use axum::routing::{MethodRouter, get};
use hyper::{Method, StatusCode};
use serde_json::json;
use std::borrow::Cow;
use std::future::Future;
use stillgate_admin::Page;
use stillgate_door::Caller;
use stillgate_replay::explain::chain::consumer;
use stillgate_replay::explain::explanation::ExplainedRequest;
use stillgate_replay::explain::query::ExplainQuery;
use tokio::task::spawn_blocking;
use tracing::warn;

/// All pages: path, purpose, and handler.
pub(crate) fn pages(api: &PageContext) -> Vec<Page> {
    let page = |path, summary, answer| Page { method: Method::GET, path, summary, answer };
    let mut pages = vec![
        page("/v1/status", "Get configuration, connections, requests, certificates", answered(api, status)),
        page("/v1/health", "Get 200, or 503 while the gateway starts or shuts down", answered(api, health)),
        page("/v1/upstreams", "Get the health of every node", answered(api, upstreams)),
        page("/metrics", "Get the metrics, in a format of Prometheus (name[])", exposition::page(api)),
        page(
            "/v1/metrics/cardinality",
            "Get the number of metric series by family and label",
            answered(api, cardinality),
        ),
        page("/v1/explain", "Explain which route a request takes, and why", explain_page(api)),
        page("/v1/routes", "Search the routes that are served (search, page, page_size)", search(api)),
        page("/v1/routes/{id}", "Get a route that is served, with its plugins and where each comes from", route(api)),
        page(
            "/v1/live",
            "Watch requests, latency and connections second by second (server-sent events)",
            asked(api, live),
        ),
    ];
    pages.push(page(
        "/v1/slow",
        "Get the slowest requests of each minute, and why they were slow",
        answered(api, slow),
    ));
    pages.push(page(
        "/v1/lua/jit",
        "Get which functions in Lua LuaJIT has compiled, and why not all",
        get(async |Extension(caller): Extension<Caller>| json(StatusCode::OK, &lua::health(caller.sees_secrets()))),
    ));
    pages.extend(profiling::pages(api));
    pages
}

fn answered<F>(api: &PageContext, answer: fn(PageContext) -> F) -> MethodRouter
where
    F: Future<Output = Response> + Send + 'static,
{
    let api = api.clone();
    get(move || answer(api.clone()))
}

/// A page that takes arguments.
fn asked<F>(api: &PageContext, answer: fn(String, PageContext) -> F) -> MethodRouter
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
    let place = api.explaining.clone().acquire_owned().await.expect("the semaphore is never closed");
    let Some((snapshot, answers)) = api.ask(Question::Upstreams).await else {
        return refuse(&PageRefusal::Ending);
    };
    let answered = spawn_blocking(move || {
        let answer = json(StatusCode::OK, &Upstreams::new(&snapshot, answers));
        drop(place);
        answer
    });
    answered.await.unwrap_or_else(|error| {
        warn!(%error, "admin API: telling of upstreams failed, which is a bug");
        refuse(&PageRefusal::Failed)
    })
}
