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
mod query;

use super::node::DeviceNode;
use answer::{error, json};
use axum::body::Body;
use axum::http::header::ALLOW;
use axum::http::{HeaderValue, Method, Request, Response, StatusCode};
use endpoints::{Action, ENDPOINTS, Endpoint};
use percent_encoding::percent_decode_str;
use query::Query;
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
        true => match Box::pin(broadcast::pass_on(node, request)).await {
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
        Action::Top => Box::pin(list::top(node)).await,
        Action::Broadcast => Box::pin(broadcast::begin(node, request)).await,
        Action::Job => Box::pin(broadcast::show(node, &part, request)).await,
        Action::OpenApi => json(StatusCode::OK, &endpoints::describe_endpoints()),
    }
}

// Finds the endpoint for a method and a path.

/// The match for a method and a path.
#[derive(Debug)]
enum EndpointMatch<'p> {
    /// The endpoint, and the value of its path's variable, still percent-encoded; empty if it has none.
    Endpoint(&'static Endpoint, &'p str),
    /// The path exists, but not with this method: the value of `Allow`.
    Methods(HeaderValue),
    Nothing,
}

fn find<'p>(method: &Method, path: &'p str) -> EndpointMatch<'p> {
    let mut methods = Vec::new();
    for endpoint in &ENDPOINTS {
        let Some(part) = part(endpoint.path, path) else { continue };
        // HEAD is answered like GET; hyper leaves the body out.
        let is_head = endpoint.method == Method::GET && *method == Method::HEAD;
        if endpoint.method == *method || is_head {
            return EndpointMatch::Endpoint(endpoint, part);
        }
        methods.push(endpoint.method.as_str());
        if endpoint.method == Method::GET {
            methods.push("HEAD");
        }
    }
    match HeaderValue::try_from(methods.join(",")) {
        Ok(allow) if !methods.is_empty() => EndpointMatch::Methods(allow),
        _ => EndpointMatch::Nothing,
    }
}

/// The value of a pattern's variable in a path; empty if it has none. `None`: the path does not match.
fn part<'p>(pattern: &str, path: &'p str) -> Option<&'p str> {
    let Some((before, rest)) = pattern.split_once('{') else { return (pattern == path).then_some("") };
    let (_, after) = rest.split_once('}')?;
    let part = path.strip_prefix(before)?.strip_suffix(after)?;
    (!part.is_empty() && !part.contains('/')).then_some(part)
}
