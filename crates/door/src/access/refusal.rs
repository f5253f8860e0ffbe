//! Requests that are not served, and the answers to them.

use crate::hosts::Stranger;
use axum::body::Body;
use axum::http::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use axum::http::{Response, StatusCode};
use serde_json::{Value as Json, json};

/// Why a request is not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    NotAllowed(&'static str),
    LoopbackOnly(&'static str),
    KeyMissing,
    KeyWrong,
    ViewerWrites,
    Stranger(Stranger),
    ForeignOrigin,
    TokenMissing,
}

/// The answer to a request that is not served. Its connection is closed: a client that is refused must not keep one.
#[derive(Debug)]
pub struct Rejection {
    /// The status.
    pub status: StatusCode,
    /// The body.
    pub body: Json,
    /// A header that belongs to the status.
    pub header: Option<(HeaderName, &'static str)>,
}

impl Rejection {
    /// The answer while too many requests with wrong keys wait already: this one is answered at once.
    pub(super) fn too_many_wait() -> Rejection {
        let status = StatusCode::TOO_MANY_REQUESTS;
        let body = json!({ "error_msg": "too many requests with wrong keys at once" });
        Rejection { status, body, header: Some((RETRY_AFTER, "10")) }
    }

    /// The whole response.
    pub fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(format!("{}\n", self.body)));
        *response.status_mut() = self.status;
        let fields = [
            (CONTENT_TYPE, "application/json"),
            (CACHE_CONTROL, "no-store"),
            (HeaderName::from_static("x-content-type-options"), "nosniff"),
        ];
        for (name, value) in fields.into_iter().chain(self.header).chain([(CONNECTION, "close")]) {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

impl Refusal {
    /// The body is APISIX's, if APISIX has the case, for its clients.
    pub(super) fn rejection(&self) -> Rejection {
        let token = |description: &str| Rejection {
            status: StatusCode::UNAUTHORIZED,
            body: json!({ "error_msg": "failed to check token", "description": description }),
            header: Some((WWW_AUTHENTICATE, "X-API-KEY")),
        };
        let forbidden = |message: String| Rejection {
            status: StatusCode::FORBIDDEN,
            body: json!({ "error_msg": message }),
            header: None,
        };
        match self {
            Refusal::KeyMissing => token("missing apikey"),
            Refusal::KeyWrong => token("wrong apikey"),
            Refusal::ViewerWrites => token("invalid method for role viewer"),
            Refusal::NotAllowed(section) => forbidden(format!("your address is not in {section}.allow")),
            Refusal::LoopbackOnly(section) => forbidden(format!(
                "only loopback may connect; set {section}.keys and {section}.allow to admit other addresses"
            )),
            Refusal::Stranger(stranger) => forbidden(stranger.to_string()),
            Refusal::ForeignOrigin => forbidden(
                "this request came from a page of another origin; with a cookie, only the dashboard may write"
                    .to_owned(),
            ),
            Refusal::TokenMissing => {
                forbidden("a write in a session needs the token of the session in the header X-CSRF-Token".to_owned())
            }
        }
    }
}
