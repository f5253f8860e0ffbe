//! `GET /v1/device-events`: connects and disconnects as server-sent events.
//!
//! A listener that is too slow misses some events, and is sent their number: it then reads the list again.

use super::super::clock::rfc3339;
use super::super::node::DeviceNode;
use super::super::presence::PresenceChange;
use super::answer::later;
use super::query::Query;
use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use hyper::body::Frame;
use serde_json::json;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Maximum number of listeners at the same time.
const LISTENERS_MAX: usize = 64;
/// Events that are ready to be written.
const READY_MAX: usize = 256;
/// Interval of comments that keep the connection alive while no event comes.
const COMMENT_EVERY: Duration = Duration::from_secs(15);

static LISTENERS: AtomicUsize = AtomicUsize::new(0);

pub(super) fn stream(node: &DeviceNode, query: &Query) -> Response {
    let Some(permit) = ListenerPermit::take() else {
        return later(StatusCode::SERVICE_UNAVAILABLE, "too many listeners", 10);
    };
    let (sender, ready) = mpsc::channel(READY_MAX);
    let prefix = query.get("prefix").unwrap_or_default().to_owned();
    tokio::spawn(follow(node.presence.listen(), prefix, sender, permit));
    let mut response = Response::new(Body::new(Events(ready)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Admits one listener; its place is free again when this is dropped.
struct ListenerPermit;

impl ListenerPermit {
    fn take() -> Option<ListenerPermit> {
        let taken = LISTENERS.fetch_add(1, Ordering::Relaxed);
        let permit = ListenerPermit;
        (taken < LISTENERS_MAX).then_some(permit)
    }
}

impl Drop for ListenerPermit {
    fn drop(&mut self) {
        LISTENERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Writes events until the listener leaves.
async fn follow(
    mut changes: Receiver<PresenceChange>,
    prefix: String,
    sender: mpsc::Sender<Bytes>,
    permit: ListenerPermit,
) {
    if sender.send(Bytes::from_static(b": connects and disconnects from now on\n\n")).await.is_err() {
        return;
    }
    loop {
        let next = tokio::select! {
            next = timeout(COMMENT_EVERY, next(&mut changes, &prefix)) => next,
            // A listener that has left frees its place at once.
            () = sender.closed() => break,
        };
        let text = match next {
            Ok(Ok(change)) => event(&change),
            Ok(Err(RecvError::Lagged(count))) => format!("event: missed\ndata: {{\"count\":{count}}}\n\n"),
            Ok(Err(RecvError::Closed)) => break,
            Err(_) => ": \n\n".to_owned(),
        };
        if sender.send(text.into()).await.is_err() {
            break;
        }
    }
    drop(permit);
}

/// The next change of a device whose id begins with the prefix.
async fn next(changes: &mut Receiver<PresenceChange>, prefix: &str) -> Result<PresenceChange, RecvError> {
    loop {
        let change = changes.recv().await?;
        if change.device.starts_with(prefix) {
            return Ok(change);
        }
    }
}

fn event(change: &PresenceChange) -> String {
    let mut data = json!({
        "id": &*change.device,
        "connection": change.generation.0,
        "route": &*change.route,
        "at": rfc3339(change.at_ms),
    });
    if !change.is_connected {
        data["reason"] = change.reason.into();
    }
    let name = if change.is_connected { "connect" } else { "disconnect" };
    format!("event: {name}\ndata: {data}\n\n")
}

/// The body of an answer that goes on.
struct Events(mpsc::Receiver<Bytes>);

impl hyper::body::Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}
