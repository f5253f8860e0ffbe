//! Answers before they become responses: status, body and headers, in APISIX's formats.
//!
//! An answer is data, because a batch combines several into one response.
//!
//! A file as the body of a response is read while it is sent, so its size costs no memory. An answer that takes long is
//! made on another thread, its text included: the Admin API shares its thread with everything that controls the gateway.

use crate::control::WriteError;
use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use axum::http::{Response, StatusCode};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use serde_json::{Value as Json, json};
use std::fs::File;
use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use stillgate_door::Rejection;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{JoinHandle, spawn_blocking};
use tracing::error;

/// The most bytes of one warning in a header.
const WARNING_BYTES_MAX: usize = 512;

/// The most warnings in headers; more are in the log.
const WARNINGS_MAX: usize = 8;

/// Messages about documents that APISIX does not prefix with "invalid configuration".
const OWN_BEGINNINGS: [&str; 5] = [
    "failed to check the configuration of ",
    "failed to validate the 'vars' expression",
    "failed to load 'filter_func' string",
    "invalid plugins configuration: ",
    "missing key",
];

/// APISIX's message for a document with this error.
pub(crate) fn of_document(message: String) -> String {
    match OWN_BEGINNINGS.iter().any(|own| message.starts_with(own)) {
        true => message,
        false => format!("invalid configuration: {message}"),
    }
}

/// The answer to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) content: Content,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
}

impl From<Rejection> for Answer {
    fn from(rejection: Rejection) -> Answer {
        let answer = Answer::json(rejection.status, rejection.body).with_close();
        rejection.header.into_iter().fold(answer, |answer, (name, value)| answer.with(name, value))
    }
}

/// The body of an answer.
#[derive(Debug)]
pub(crate) enum Content {
    Json(Json),
    /// APISIX answers a few errors with bare text, under the same content type.
    Text(String),
    /// A text that was made once and is kept.
    Kept(Bytes),
    /// The rest of a file from its position.
    File(File),
    Nothing,
}

impl Answer {
    pub(crate) fn json(status: StatusCode, body: Json) -> Answer {
        Answer { status, content: Content::Json(body), headers: Vec::new() }
    }

    pub(crate) fn text(status: StatusCode, body: impl Into<String>) -> Answer {
        Answer { status, content: Content::Text(body.into()), headers: Vec::new() }
    }

    pub(crate) fn empty(status: StatusCode) -> Answer {
        Answer { status, content: Content::Nothing, headers: Vec::new() }
    }

    /// `{"error_msg": …}`.
    pub(crate) fn error(status: StatusCode, message: impl Into<String>) -> Answer {
        Answer::json(status, json!({ "error_msg": message.into() }))
    }

    pub(crate) fn bad(message: impl Into<String>) -> Answer {
        Answer::error(StatusCode::BAD_REQUEST, message)
    }

    /// APISIX's answer to a document that violates its schema.
    pub(crate) fn invalid(message: &str) -> Answer {
        Answer::bad(format!("invalid configuration: {message}"))
    }

    /// APISIX's answer to a key without a document.
    pub(crate) fn key_not_found() -> Answer {
        Answer::json(StatusCode::NOT_FOUND, json!({ "message": "Key not found" }))
    }

    /// The answer to a write that was not made. A conflict is answered by the caller, which knows who stated the condition.
    pub(crate) fn refused(error: &WriteError) -> Answer {
        match error {
            WriteError::Invalid(message) => Answer::bad(of_document(message.clone())),
            WriteError::Unsupported(message) => Answer::error(StatusCode::NOT_IMPLEMENTED, message),
            WriteError::Unavailable(message) => {
                Answer::error(StatusCode::SERVICE_UNAVAILABLE, message).with(RETRY_AFTER, "1")
            }
            WriteError::Conflict { .. } => Answer::changed_meanwhile(),
        }
    }

    /// APISIX's answer if a document changes between being read and being written.
    pub(crate) fn changed_meanwhile() -> Answer {
        Answer::error(StatusCode::SERVICE_UNAVAILABLE, "value changed before overwritten").with(RETRY_AFTER, "1")
    }

    /// The message of an error.
    pub(crate) fn message(&self) -> &str {
        match &self.content {
            Content::Json(json) => json["error_msg"].as_str().or_else(|| json["message"].as_str()).unwrap_or_default(),
            Content::Text(text) => text,
            Content::Kept(_) | Content::File(_) | Content::Nothing => "",
        }
    }

    /// Adds a header; an invalid value is left out.
    pub(crate) fn with(mut self, name: HeaderName, value: &str) -> Answer {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.push((name, value));
        }
        self
    }

    /// A client that is refused must not keep a connection either.
    pub(crate) fn with_close(self) -> Answer {
        self.with(CONNECTION, "close")
    }

    pub(crate) fn with_warnings(mut self, warnings: &[String]) -> Answer {
        for warning in warnings.iter().take(WARNINGS_MAX) {
            let is_plain = |c: char| matches!(c, ' '..='~');
            let line: String = warning.chars().map(|c| if is_plain(c) { c } else { '?' }).collect();
            let cut = &line[..line.len().min(WARNING_BYTES_MAX)];
            self = self.with(HeaderName::from_static("x-stillgate-warning"), cut);
        }
        self
    }

    /// Makes the text of its body. For a large tree, this and dropping it take long.
    pub(crate) fn written(self) -> Answer {
        let content = match self.content {
            Content::Json(json) => Content::Text(line_of(&json)),
            other => other,
        };
        Answer { content, ..self }
    }

    pub(crate) fn into_response(self) -> Response<Body> {
        let is_file = matches!(self.content, Content::File(_));
        let body = match self.content {
            Content::Json(json) => Body::from(line_of(&json)),
            Content::Text(text) => Body::from(text),
            Content::Kept(text) => Body::from(text),
            Content::File(file) => Body::new(FileBody::new(file)),
            Content::Nothing => Body::empty(),
        };
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        let kind = if is_file { "application/octet-stream" } else { "application/json" };
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
        for (name, value) in self.headers {
            headers.append(name, value);
        }
        response
    }
}

fn line_of(json: &Json) -> String {
    let mut line = json.to_string();
    line.push('\n');
    line
}

/// Number of bytes read at once.
const CHUNK_BYTES: u64 = 256 * 1024;

/// The rest of a file.
struct FileBody(State);

enum State {
    Reading(JoinHandle<io::Result<(File, Vec<u8>)>>),
    Ended,
}

impl FileBody {
    pub(crate) fn new(file: File) -> FileBody {
        FileBody(next(file))
    }
}

fn next(mut file: File) -> State {
    State::Reading(spawn_blocking(move || {
        let mut bytes = Vec::new();
        file.by_ref().take(CHUNK_BYTES).read_to_end(&mut bytes)?;
        Ok((file, bytes))
    }))
}

impl http_body::Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let State::Reading(reading) = &mut self.0 else { return Poll::Ready(None) };
        let read = ready!(Pin::new(reading).poll(cx));
        let read = read.unwrap_or_else(|error| Err(io::Error::other(error)));
        Poll::Ready(match read {
            Ok((_, bytes)) if bytes.is_empty() => {
                self.0 = State::Ended;
                None
            }
            Ok((file, bytes)) => {
                self.0 = next(file);
                Some(Ok(Frame::data(bytes.into())))
            }
            Err(error) => {
                self.0 = State::Ended;
                Some(Err(error))
            }
        })
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// Makes an answer that may be large. Its place is kept until it is made, even if the client has disconnected.
pub(crate) async fn answer_off_thread(
    place: Option<OwnedSemaphorePermit>,
    make: impl FnOnce() -> Answer + Send + 'static,
) -> Answer {
    let made = off_thread(move || {
        let answer = make().written();
        drop(place);
        answer
    });
    made.await.unwrap_or_else(|answer| answer)
}

/// Returns the result of the work; `Err`: it panicked, which is a bug.
pub(crate) async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Answer> {
    spawn_blocking(work).await.map_err(|error| {
        error!(%error, "admin API: a request failed, which is a bug");
        Answer::error(StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error; see the gateway's log")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_text_of_a_large_answer_is_made_with_it() {
        let answer = answer_off_thread(None, || Answer::json(StatusCode::OK, json!({ "list": [1] }))).await;
        let Content::Text(text) = answer.content else { panic!("{:?}", answer.content) };
        assert_eq!(text, "{\"list\":[1]}\n");
    }
}
