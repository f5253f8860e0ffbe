//! `GET /v1/live`: the last 15 minutes and every second from now on, as server-sent events (HTML Living Standard, 9.2).
//!
//! With `route=ID` each second has that route's own figures as `route`, too. With `history=N` the first event has the last N seconds
//! only, and with `events=N` the stream ends after so many events, for
//! programs that read an answer as a whole. It ends after some minutes in any case and the browser opens another one, so that a
//! revoked key cannot watch for ever.

use super::context::{PageContext, error, json};
use super::route_list::PAGE_MAX;
use super::routes::PAGE_DEFAULT;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use hyper::StatusCode;
use hyper::body::Frame;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use serde_json::json;
use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use stillgate_live::Live;
use stillgate_live::traffic::ConsumerTraffic;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// Less than a connection of the admin address lasts.
const STREAM_AGE_MAX: Duration = Duration::from_secs(240);

/// Pieces that wait for a slow client; seconds that do not fit are left out.
const PIECES_MAX: usize = 64;

/// Answers with a stream.
pub(super) fn stream(live: Arc<Live>, query: &str) -> Response {
    let argument = |name: &str| {
        let mut arguments = form_urlencoded::parse(query.as_bytes());
        arguments.find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
    };
    let number = |name: &str| argument(name).map_or(Ok(u64::MAX), |text| text.parse::<u64>());
    let (Ok(events @ 1..), Ok(history)) = (number("events"), number("history")) else {
        return error(StatusCode::BAD_REQUEST, "events must be a number from 1, and history a number from 0".into());
    };
    let history = usize::try_from(history).unwrap_or(usize::MAX);
    let (pieces, sent) = mpsc::channel(PIECES_MAX);
    tokio::spawn(feed(live, argument("route"), (history, events), pieces));
    let mut response = Response::new(Body::new(LiveStream(sent)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Ends with its client, or when it is too old.
async fn feed(live: Arc<Live>, route: Option<String>, (history, events): (usize, u64), pieces: mpsc::Sender<Bytes>) {
    let end = Instant::now() + STREAM_AGE_MAX;
    let followed = route.and_then(|route| live.follow(&route));
    let mut seconds = live.seconds();
    let mut event = live.history(followed.as_ref(), history);
    for number in 1..=events {
        for piece in event {
            if pieces.send(piece).await.is_err() {
                return;
            }
        }
        if number == events {
            return;
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

/// `GET /v1/consumers`: who sent requests since the start. `search`, `name`, `page` and `page_size` as for routes.
pub(super) async fn consumers(query: String, api: PageContext) -> Response {
    let arguments: HashMap<String, String> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
    let number = |name: &str, default: usize| arguments.get(name).map_or(Ok(default), |text| text.parse::<usize>());
    let (Ok(page @ 1..), Ok(size @ 1..=PAGE_MAX)) = (number("page", 1), number("page_size", PAGE_DEFAULT)) else {
        let message = format!("page must be a number from 1, and page_size a number from 1 to {PAGE_MAX}");
        return error(StatusCode::BAD_REQUEST, message.into());
    };
    let (exact, search) = (arguments.get("name").cloned(), arguments.get("search").map(|text| text.to_lowercase()));
    let is_wanted = move |name: &str| {
        exact.as_deref().is_none_or(|exact| exact == name)
            && search.as_deref().is_none_or(|search| name.to_lowercase().contains(search))
    };
    let found = api.live.consumers(is_wanted).await;
    let list = found.as_deref().unwrap_or_default();
    let shown: Vec<&ConsumerTraffic> = list.iter().skip((page - 1).saturating_mul(size)).take(size).collect();
    let answer = json!({
        "known": found.is_some(),
        "since_unix_s": api.live.since_unix_s(),
        "total": list.len(),
        "list": shown,
    });
    json(StatusCode::OK, &answer)
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
