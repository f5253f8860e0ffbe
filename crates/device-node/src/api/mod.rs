//! The device API: HTTP for back-ends, with the same server as the admin API.
//!
//! One table lists the endpoints: requests are matched with it, and the OpenAPI description is made from it. A router such as
//! `axum`'s is not used: its layers took 28% of the user-space instructions of a message.

mod answer;
mod broadcast;
mod endpoints;
mod event_stream;
mod list;
mod messages;
mod openapi;
mod query;
mod routes;
mod successor;
mod top;

use super::node::DeviceNode;
use answer::{error, json};
use axum::body::Body;
use axum::http::header::ALLOW;
use axum::http::{Request, Response, StatusCode};
use endpoints::{Action, Endpoint};
use percent_encoding::percent_decode_str;
use query::Query;
use routes::{EndpointMatch, find};
use std::borrow::Cow;
use std::sync::Arc;
use stillgate_door::{Answers, Guard};

/// Answers requests to the device API that its guard admits.
#[derive(Clone)]
pub(super) struct DeviceApi {
    node: Arc<DeviceNode>,
    guard: Arc<Guard>,
}

impl DeviceApi {
    pub(super) fn new(node: Arc<DeviceNode>, guard: Arc<Guard>) -> DeviceApi {
        DeviceApi { node, guard }
    }
}

impl Answers for DeviceApi {
    async fn answer(&self, mut request: Request<Body>) -> Response<Body> {
        if let Err(refusal) = self.guard.admit(&mut request).await {
            return refusal;
        }
        let path = request.uri().path();
        match find(request.method(), path) {
            EndpointMatch::Endpoint(endpoint, part) => {
                let part = percent_decode_str(part).decode_utf8().map(Cow::into_owned);
                answer_to(&self.node, endpoint, part.ok(), request).await
            }
            EndpointMatch::Methods(methods) => {
                let mut response = error(StatusCode::METHOD_NOT_ALLOWED, "unsupported method: see Allow");
                response.headers_mut().insert(ALLOW, methods);
                response
            }
            EndpointMatch::Nothing => error(StatusCode::NOT_FOUND, "there is no such path: see /v1/openapi.json"),
        }
    }
}

async fn answer_to(
    node: &Arc<DeviceNode>,
    endpoint: &'static Endpoint,
    part: Option<String>,
    request: Request<Body>,
) -> Response<Body> {
    // All futures but that of `messages::send` are boxed: each request's future is as large as its largest part that is not.
    let request = match node.has_left() {
        true => match Box::pin(successor::pass_on(node, request)).await {
            Ok(answer) => return answer,
            Err(request) => *request,
        },
        false => request,
    };
    let Some(part) = part else { return error(StatusCode::BAD_REQUEST, "the path is not UTF-8") };
    let query = match Query::of(endpoint, request.uri().query()) {
        Ok(query) => query,
        Err(why) => return error(StatusCode::BAD_REQUEST, &why),
    };
    match endpoint.action {
        Action::Send => messages::send(node, &part, &query, request).await,
        Action::Show => Box::pin(list::show(node, &part)).await,
        Action::Close => Box::pin(list::close(node, &part)).await,
        Action::List => Box::pin(list::list(node, &query)).await,
        Action::Events => event_stream::stream(node, &query),
        Action::Top => Box::pin(top::top(node)).await,
        Action::Broadcast => Box::pin(broadcast::begin(node, request)).await,
        Action::Job => Box::pin(broadcast::show(node, &part, request)).await,
        Action::OpenApi => json(StatusCode::OK, &openapi::describe()),
    }
}
