//! Requests that the admin API does not answer with what they ask for, and the form of all its answers.

use super::endpoint;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};
use serde::Serialize;
use std::borrow::Cow;
use stillgate_exporter::Stranger;

/// Why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    LoopbackOnly,
    KeyMissing,
    KeyWrong,
    Stranger(Stranger),
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

pub(super) fn refuse(refusal: &Refusal) -> Response<Full<Bytes>> {
    let (status, error_msg) = match refusal {
        Refusal::LoopbackOnly => (
            StatusCode::FORBIDDEN,
            "this address is served to loopback only; set gateway.admin.key to open it to others".into(),
        ),
        Refusal::KeyMissing => (StatusCode::UNAUTHORIZED, "send the admin key in the header X-API-KEY".into()),
        Refusal::KeyWrong => (StatusCode::UNAUTHORIZED, "wrong admin key".into()),
        Refusal::Stranger(stranger) => (StatusCode::FORBIDDEN, stranger.to_string().into()),
        Refusal::NoSuchPath => {
            (StatusCode::NOT_FOUND, format!("404 Not Found: the paths are {}", endpoint::paths()).into())
        }
        Refusal::NoMetrics => {
            (StatusCode::NOT_FOUND, "404 Not Found: metrics are off; add gateway.metrics to the configuration".into())
        }
        Refusal::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "405 Method Not Allowed: use GET".into()),
        Refusal::Ending => (StatusCode::SERVICE_UNAVAILABLE, "the gateway is shutting down".into()),
        Refusal::Failed => {
            (StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error; see the gateway's log".into())
        }
    };
    let mut response = error(status, error_msg);
    let headers = response.headers_mut();
    if *refusal == Refusal::MethodNotAllowed {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("X-API-KEY"));
    }
    if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        // Who is not served must not keep a place either.
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

pub(super) fn error(status: StatusCode, error_msg: Cow<'static, str>) -> Response<Full<Bytes>> {
    json(status, &ErrorBody { error_msg })
}

pub(super) fn json(status: StatusCode, body: &impl Serialize) -> Response<Full<Bytes>> {
    let mut bytes = serde_json::to_vec(body).expect("these shapes have string keys only");
    bytes.push(b'\n');
    of_type("application/json", status, bytes)
}

pub(super) fn text(body: String) -> Response<Full<Bytes>> {
    of_type("text/plain; charset=utf-8", StatusCode::OK, body.into_bytes())
}

fn of_type(content_type: &'static str, status: StatusCode, body: Vec<u8>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_how_to_do_better() {
        let response = refuse(&Refusal::MethodNotAllowed);
        assert_eq!(response.status(), 405);
        assert_eq!(response.headers()["allow"], "GET, HEAD");
        assert!(!response.headers().contains_key("connection"));
        let response = refuse(&Refusal::KeyMissing);
        assert_eq!(response.status(), 401);
        assert_eq!(response.headers()["www-authenticate"], "X-API-KEY");
        assert_eq!(response.headers()["content-type"], "application/json");
        assert_eq!(response.headers()["connection"], "close");
        let response = refuse(&Refusal::LoopbackOnly);
        assert_eq!(
            (response.status(), &response.headers()["connection"]),
            (StatusCode::FORBIDDEN, &HeaderValue::from_static("close"))
        );
    }
}
