//! A client's connection: reads what it sends, and passes each request to `exchange`.
//!
//! To `connection`, an HTTP/2 stream is an HTTP/1.1 connection; `http2` handles the fact that it is one of many.

mod http2;

use crate::connection::client::ClientConnection;
use crate::connection::http2::{PREFACE, starts};
use crate::exchange::answer::LocalReply;
use crate::exchange::{self, ConnectionNext, Exchange, Switch};
use crate::plan::Settings;
use crate::sockets::listener::BusyGuard;
use crate::worker::Worker;
use crate::worker::draining::DRAINING_FIRST_REQUEST_MS;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use stillgate_wire::{HeadProgress, RequestError, leading_empty_lines};
use tokio::io::ReadBuf;

// A client's connection, from accept to close: waiting, reading heads, running exchanges, closing gracefully.

/// How long a connection that we closed, or an HTTP/2 stream that we have answered, is read and discarded, so that the client gets
/// our last response and not a reset (RFC 9112 section 9.6; curl 7.88 fails if a stream that it still sends to is reset, although
/// RFC 9113 section 8.1 allows that).
const LINGER_MS: u64 = 30_000;
/// How long the client may send nothing meanwhile. While the worker drains, nothing is read for longer than this.
const LINGER_IDLE_MS: u64 = 2_000;
/// Reads in one turn of the event loop.
const LINGER_READS_PER_TURN: usize = 16;
/// HTTP/2 over TLS, by its ALPN name.
const ALPN_HTTP2: &[u8] = b"h2";

/// Serves one connection to its end, or until it becomes a tunnel. The client is used where it was passed in: a copy of it would
/// make every idle connection larger by its size.
pub(crate) async fn serve(worker: &Rc<Worker>, client: &mut ClientConnection) -> Option<Switch> {
    while idle(worker, client).await {
        let _busy = BusyGuard::new(&client.listener);
        let mut exchange = Exchange::take();
        let after = busy(worker, client, &mut exchange).await;
        let early = if after == ConnectionNext::Http2 { exchange.from_client.unparsed().to_vec() } else { Vec::new() };
        let upgraded = exchange.upgraded.take();
        exchange.give(worker);
        match after {
            ConnectionNext::KeepAlive => {}
            ConnectionNext::Close => return None,
            ConnectionNext::Tunnel => return upgraded,
            ConnectionNext::Linger => {
                linger(worker, client).await;
                return None;
            }
            ConnectionNext::Http2 => {
                drop(_busy);
                // On the heap, as most connections do not need it.
                if Box::pin(http2::serve(worker, client, &early)).await == ConnectionNext::Linger {
                    linger(worker, client).await;
                }
                return None;
            }
        }
    }
    None
}

/// Serves the one request of an HTTP/2 stream to its end, or until it becomes a tunnel.
pub(crate) async fn serve_stream(worker: &Rc<Worker>, client: &mut ClientConnection) -> Option<Switch> {
    let mut exchange = Exchange::take();
    busy(worker, client, &mut exchange).await;
    let upgraded = exchange.upgraded.take();
    exchange.give(worker);
    if client.stream.is_answered_early() {
        linger(worker, client).await;
    }
    upgraded
}

/// Waits for bytes, owning no buffer; false if the connection is to be closed instead, or has been given away.
async fn idle(worker: &Worker, client: &mut ClientConnection) -> bool {
    let keepalive_ms = worker.snapshot().plan.settings.keepalive_ms;
    poll_fn(|cx| {
        // Bytes that have arrived and were not read go along.
        if worker.give_idle(client) {
            return Poll::Ready(false);
        }
        if client.stream.poll_read_ready(cx).is_ready() {
            return Poll::Ready(true);
        }
        let is_leaving = client.listener.is_removed() || worker.is_ending() && !worker.gives(client);
        let patience_ms = match (is_leaving, client.is_new) {
            (false, _) => keepalive_ms,
            (true, true) => keepalive_ms.min(DRAINING_FIRST_REQUEST_MS),
            (true, false) => 0,
        };
        let deadline_ms = client.quiet_since_ms + patience_ms;
        if worker.clock.now_ms() < deadline_ms {
            client.timer.set(&worker.clock, deadline_ms, cx);
            return Poll::Pending;
        }
        if !client.stream.has_arrived() {
            return Poll::Ready(false);
        }
        // The event loop has not seen it yet; it will on its next turn.
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

/// Serves requests until there is nothing more to read.
async fn busy(worker: &Rc<Worker>, client: &mut ClientConnection, exchange: &mut Exchange) -> ConnectionNext {
    loop {
        exchange.begin(worker.timing());
        match read_head(worker, client, exchange).await {
            HeadArrival::Head => {}
            HeadArrival::Nothing => return ConnectionNext::KeepAlive,
            HeadArrival::Closed => return ConnectionNext::Close,
            HeadArrival::Http2 => return ConnectionNext::Http2,
            HeadArrival::Timeout => {
                let late = LocalReply::closing(408, "the request head did not come in time");
                return exchange::refuse(worker, client, exchange, late).await;
            }
            HeadArrival::Refused(error) => return exchange::refuse(worker, client, exchange, error.into()).await,
        }
        let after = exchange::run(worker, client, exchange).await;
        // What follows the request on an HTTP/2 stream is not another request: for an extended CONNECT it is whatever the tunnel
        // would carry.
        let after = if client.stream.is_http2() { after.max(ConnectionNext::Close) } else { after };
        client.is_new = false;
        client.quiet_since_ms = worker.clock.now_ms();
        if after != ConnectionNext::KeepAlive || (client.eof && !exchange.from_client.has_leftover()) {
            return after.max(if client.eof { ConnectionNext::Close } else { ConnectionNext::KeepAlive });
        }
    }
}

enum HeadArrival {
    Head,
    Nothing,
    Closed,
    /// The connection begins as HTTP/2 does, or has to.
    Http2,
    Timeout,
    Refused(RequestError),
}

/// Reads and parses one head. The bytes of the last read of the connection may hold several.
async fn read_head(worker: &Worker, client: &mut ClientConnection, exchange: &mut Exchange) -> HeadArrival {
    let snapshot = worker.snapshot();
    let settings = &snapshot.plan.settings;
    let deadline_ms = worker.clock.now_ms() + settings.head_ms;
    let agreed = client.stream.alpn_protocol();
    // The protocol agreed on is the one spoken (RFC 9113 section 3.3): its own preface validates the bytes, not the HTTP/1.1
    // parser.
    if agreed == Some(ALPN_HTTP2) && client.is_new {
        return HeadArrival::Http2;
    }
    let speaks_http2 = client.is_new && agreed.is_none() && client.listener.speaks_http2() && !client.stream.is_http2();
    poll_fn(|cx| {
        loop {
            let preface = speaks_http2.then(|| starts(exchange.from_client.unparsed())).flatten();
            if preface == Some(HeadProgress::Complete(PREFACE.len())) {
                return Poll::Ready(HeadArrival::Http2);
            }
            match preface.map_or_else(|| parse_request_head(exchange, settings), Ok) {
                Ok(HeadProgress::Complete(_)) => {
                    let dropped = exchange.request.fields.dropped();
                    if dropped > 0 {
                        worker.counters.header_lines_dropped.add(dropped as u64);
                    }
                    return Poll::Ready(HeadArrival::Head);
                }
                Ok(HeadProgress::Partial) => {}
                Err(error) => return Poll::Ready(HeadArrival::Refused(error)),
            }
            if client.eof {
                return Poll::Ready(HeadArrival::Closed);
            }
            match exchange.from_client.poll_read_head(cx, &mut client.stream, &worker.buffers) {
                Poll::Ready(Ok(0)) | Poll::Ready(Err(_)) => return Poll::Ready(HeadArrival::Closed),
                Poll::Ready(Ok(_)) => exchange.outcome.note_arrival(),
                Poll::Pending if !exchange.from_client.has_leftover() => return Poll::Ready(HeadArrival::Nothing),
                Poll::Pending if worker.clock.now_ms() >= deadline_ms => return Poll::Ready(HeadArrival::Timeout),
                Poll::Pending => {
                    client.timer.set(&worker.clock, deadline_ms, cx);
                    return Poll::Pending;
                }
            }
        }
    })
    .await
}

fn parse_request_head(exchange: &mut Exchange, settings: &Settings) -> Result<HeadProgress, RequestError> {
    if matches!(exchange.from_client.unparsed().first(), Some(b'\r' | b'\n')) {
        let skip = leading_empty_lines(exchange.from_client.unparsed())?;
        exchange.from_client.skip(skip);
        if exchange.from_client.unparsed() == b"\r" {
            return Ok(HeadProgress::Partial);
        }
    }
    if !exchange.from_client.has_leftover() {
        return Ok(HeadProgress::Partial);
    }
    exchange.request.drops_underscores = settings.drops_underscores;
    exchange.request.advance(exchange.from_client.unparsed(), &settings.request_limits)
}

/// Closes our side and discards what the client still sends, for a while. Owns no buffer while it waits.
async fn linger(worker: &Worker, client: &mut ClientConnection) {
    let begun_ms = worker.clock.now_ms();
    let mut heard_ms = begun_ms;
    let mut shut = false;
    poll_fn(|cx| {
        if !shut {
            // Never pending for a TCP socket; an error means that the connection is gone, which reading shows, too.
            shut = client.stream.poll_shutdown(cx).is_ready();
        }
        let mut buffer = worker.buffers.take();
        let longest_ms = if worker.draining.get() { LINGER_IDLE_MS } else { LINGER_MS };
        let discarded = discard(cx, client, &mut buffer, &mut heard_ms, worker, begun_ms + longest_ms);
        worker.buffers.give(buffer);
        discarded
    })
    .await;
}

fn discard(
    cx: &mut Context<'_>,
    client: &mut ClientConnection,
    buffer: &mut [u8],
    heard_ms: &mut u64,
    worker: &Worker,
    deadline_ms: u64,
) -> Poll<()> {
    // A turn does not last as long as a client sends.
    for _ in 0..LINGER_READS_PER_TURN {
        let now_ms = worker.clock.now_ms();
        let end_ms = deadline_ms.min(*heard_ms + LINGER_IDLE_MS);
        let mut space = ReadBuf::new(buffer);
        match client.stream.poll_read(cx, &mut space) {
            Poll::Ready(Ok(())) if space.filled().is_empty() || now_ms >= deadline_ms => return Poll::Ready(()),
            Poll::Ready(Ok(())) => *heard_ms = now_ms,
            Poll::Ready(Err(_)) => return Poll::Ready(()),
            Poll::Pending if now_ms >= end_ms => return Poll::Ready(()),
            Poll::Pending => {
                client.timer.set(&worker.clock, end_ms, cx);
                return Poll::Pending;
            }
        }
    }
    cx.waker().wake_by_ref();
    Poll::Pending
}
