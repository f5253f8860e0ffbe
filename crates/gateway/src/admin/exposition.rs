//! `GET /metrics` of the admin address: what `gateway.metrics.address` exposes, in the format that the request accepts.
//!
//! The exporter's thread makes it and sends it over a socket pair; this thread passes the bytes on, as fast as the client takes
//! them. Access control is up to the admin address.

use super::context::PageContext;
use super::refusal::{PageRefusal, refuse};
use axum::body::Body;
use axum::response::Response;
use axum::routing::{MethodRouter, get};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, HOST, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, Method, Request, Uri};
use hyper_util::rt::TokioIo;
use std::io;
use std::os::unix::net::UnixStream;
use stillgate_exporter::SideDoor;
use tracing::debug;

pub(super) fn page(api: &PageContext) -> MethodRouter {
    let door = api.exposition.clone();
    get(move |method: Method, uri: Uri, headers: HeaderMap| answer(door.clone(), method, uri, headers))
}

async fn answer(door: Option<SideDoor>, method: Method, uri: Uri, headers: HeaderMap) -> Response {
    let Some(door) = door else { return refuse(&PageRefusal::NoMetrics) };
    match ask(&door, question(method, &uri, &headers)).await {
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
fn question(method: Method, uri: &Uri, headers: &HeaderMap) -> Request<Empty<&'static [u8]>> {
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

async fn ask(door: &SideDoor, question: Request<Empty<&'static [u8]>>) -> io::Result<Response> {
    let (ours, exporters) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let ours = tokio::net::UnixStream::from_std(ours)?;
    if !door.give(exporters) {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    let (mut sender, connection) = http1::handshake(TokioIo::new(ours)).await.map_err(io::Error::other)?;
    // The task ends with the response, or when the client closes it. The response reports errors.
    tokio::spawn(async move { drop(connection.await) });
    let response = sender.send_request(question).await.map_err(io::Error::other)?;
    Ok(response.map(Body::new))
}
