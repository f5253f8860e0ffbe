//! The form of the answers of the gateway's own pages, and of their errors.

use axum::body::Body;
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use serde::Serialize;
use std::borrow::Cow;

/// Why a page cannot be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PageRefusal {
    NoMetrics,
    MetricsBusy,
    Ending,
    Failed,
}

#[derive(Serialize)]
struct ErrorBody {
    error_msg: Cow<'static, str>,
}

pub(super) fn refuse(refusal: &PageRefusal) -> Response {
    let (status, error_msg) = match refusal {
        PageRefusal::NoMetrics => {
            (StatusCode::NOT_FOUND, "404 Not Found: metrics are off; set gateway.metrics.enabled to true and restart")
        }
        PageRefusal::MetricsBusy => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the metrics cannot be had now: too many scrapes are being answered here, or another process takes over",
        ),
        PageRefusal::Ending => (StatusCode::SERVICE_UNAVAILABLE, "the gateway is shutting down"),
        PageRefusal::Failed => (StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error; see the gateway's log"),
    };
    error(status, error_msg.into())
}

pub(super) fn error(status: StatusCode, error_msg: Cow<'static, str>) -> Response {
    json(status, &ErrorBody { error_msg })
}

pub(super) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    let mut bytes = serde_json::to_vec(body).expect("these shapes have string keys only");
    bytes.push(b'\n');
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
