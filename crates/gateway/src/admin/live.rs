//! `GET /v1/live`: the last 15 minutes and every second from now on, as server-sent events (HTML Living Standard, 9.2).
//!
//! With `route=ID` each second has that route's own figures as `route`, too. A stream ends after some minutes and the browser opens
//! another one, so that a revoked key cannot watch for ever.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use hyper::body::Frame;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use stillgate_live::Live;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// Less than a connection of the admin address lasts.
const STREAM_AGE_MAX: Duration = Duration::from_secs(240);

/// Pieces that wait for a slow client; seconds that do not fit are left out.
const PIECES_MAX: usize = 64;

/// Answers with a stream.
pub(super) fn stream(live: Arc<Live>, query: &str) -> Response {
    let mut arguments = form_urlencoded::parse(query.as_bytes());
    let route = arguments.find(|(name, _)| name == "route").map(|(_, route)| route.into_owned());
    let (pieces, sent) = mpsc::channel(PIECES_MAX);
    tokio::spawn(feed(live, route, pieces));
    let mut response = Response::new(Body::new(LiveStream(sent)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Ends with its client, or when it is too old.
async fn feed(live: Arc<Live>, route: Option<String>, pieces: mpsc::Sender<Bytes>) {
    let end = Instant::now() + STREAM_AGE_MAX;
    let followed = route.and_then(|route| live.follow(&route));
    let mut seconds = live.seconds();
    let mut event = live.history(followed.as_ref());
    loop {
        for piece in event {
            if pieces.send(piece).await.is_err() {
                return;
            }
        }
        event = tokio::select! {
            next = seconds.next(followed.as_ref()) => match next {
                Some(event) => event,
                None => return,
            },
            () = pieces.closed() => return,
            () = sleep_until(end) => return,
        };
    }
}

struct LiveStream(mpsc::Receiver<Bytes>);

impl hyper::body::Body for LiveStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}
