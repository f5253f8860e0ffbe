//! The device API: HTTP for back-ends, behind the same door as the admin API.
//!
//! Its endpoints are one table, of which the router and the OpenAPI description are made.

mod answer;
mod broadcast;
mod endpoints;
mod event_stream;
mod list;
mod messages;
mod openapi;
mod query;
mod successor;
mod top;

pub(super) use broadcast::begun;
pub(super) use list::{connected_page, shown};

use super::node::Node;
use answer::{error, json};
use axum::Router;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, Request, State};
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, on};
use endpoints::{Action, ENDPOINTS};
use query::Query;
use std::collections::BTreeMap;
use std::sync::Arc;
use stillgate_admin::{Guard, admit};

/// The router. Requests need a [`stillgate_admin::Peer`] in their extensions.
pub(super) fn router(node: Arc<Node>, guard: Arc<Guard>) -> Router {
    let mut of_path: BTreeMap<&str, MethodRouter<Arc<Node>>> = BTreeMap::new();
    for endpoint in &ENDPOINTS {
        let slot = of_path.entry(endpoint.path).or_default();
        let filter = MethodFilter::try_from(endpoint.method.clone()).expect("the table has standard methods only");
        let action = endpoint.action;
        let handler = on(filter, move |State(node): State<Arc<Node>>, parts, request: Request| {
            answer_to(node, action, parts, request)
        });
        *slot = std::mem::take(slot).merge(handler);
    }
    let mut router = Router::new();
    for (path, methods) in of_path {
        let no_method = || async { error(StatusCode::METHOD_NOT_ALLOWED, "unsupported method: see Allow") };
        router = router.route(path, methods.fallback(no_method));
    }
    let no_path = || async { error(StatusCode::NOT_FOUND, "there is no such path: see /v1/openapi.json") };
    router.fallback(no_path).with_state(node).layer(from_fn_with_state(guard, admit))
}

async fn answer_to(
    node: Arc<Node>,
    action: Action,
    parts: Result<RawPathParams, RawPathParamsRejection>,
    request: Request,
) -> Response {
    let request = match node.has_left() {
        true => match successor::pass_on(&node, request).await {
            Ok(answer) => return answer,
            Err(request) => *request,
        },
        false => request,
    };
    let Ok(parts) = parts else { return error(StatusCode::BAD_REQUEST, "the path is not UTF-8") };
    let part = parts.iter().next().map_or_else(String::new, |(_, value)| value.to_owned());
    let query = match Query::of(action, request.uri().query()) {
        Ok(query) => query,
        Err(why) => return error(StatusCode::BAD_REQUEST, &why),
    };
    match action {
        Action::Send => messages::send(&node, &part, &query, request).await,
        Action::Show => list::show(&node, &part).await,
        Action::Close => list::close(&node, &part).await,
        Action::List => list::list(&node, &query).await,
        Action::Events => event_stream::stream(&node, &query),
        Action::Top => top::top(&node).await,
        Action::Broadcast => broadcast::begin(&node, request).await,
        Action::Job => broadcast::show(&node, &part, request).await,
        Action::OpenApi => json(StatusCode::OK, &openapi::describe()),
    }
}
