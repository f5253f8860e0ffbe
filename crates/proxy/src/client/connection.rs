//! A client's connection, from accept to close: waiting, reading heads, running exchanges, closing politely.

use super::http2;
use crate::connection::http2::{PREFACE, starts};
use crate::connection::stream::Stream;
use crate::exchange::reply::Refusal;
use crate::exchange::{self, After, Exchange};
use crate::handover;
use crate::listen::handshake::TlsFacts;
use crate::telemetry::metrics::Busy;
use crate::tunnel::Switched;
use crate::worker::Worker;
use crate::worker::clock::Timer;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::{Context, Poll};
use stillgate_wire::{Progress, RequestError, RequestHead, leading_empty_lines};
use tokio::io::ReadBuf;

/// How long a connection that we closed, or a stream of HTTP/2 that we have answered, is read and discarded from, so that the
/// client gets our last response and not a reset (RFC 9112 section 9.6; curl 7.88 fails where a stream that it still sends
/// to is reset, although RFC 9113 section 8.1 allows that).
const LINGER_MS: u64 = 2_000;
/// How long a connection that was accepted just before the worker began to drain has for its first request.
pub(crate) const DRAINING_FIRST_REQUEST_MS: u64 = 500;
/// HTTP/2 through TLS, as a handshake names it.
const ALPN_HTTP2: &[u8] = b"h2";
/// How much is discarded.
const LINGER_BYTES_MAX: usize = 1024 * 1024;

/// One client connection.
pub(crate) struct Client {
    pub(crate) stream: Stream,
    pub(crate) timer: Timer,
    pub(crate) peer: SocketAddr,
    /// Who asks: the peer, or whom a trusted one names in the present request.
    pub(crate) address: IpAddr,
    pub(crate) local: SocketAddr,
    /// What its TLS has agreed on; `None`: it has none with us.
    pub(crate) tls: Option<Rc<TlsFacts>>,
    /// The client came over TLS, to us or to a balancer that says so.
    pub(crate) is_https: bool,
    /// Which of the worker's listeners accepted it.
    pub(crate) listener: usize,
    /// The header lines that tell a node of this client; the same for every request of an untrusted one.
    pub(crate) forwarded: Rc<[u8]>,
    /// The client has closed its sending side.
    pub(crate) eof: bool,
    /// A response is being sent whose end only the end of the connection tells: should it break off, a reset must.
    pub(crate) ends_with_connection: bool,
    /// When the last request ended, or the connection began.
    pub(crate) quiet_since_ms: u64,
    /// No request has been served yet.
    pub(crate) is_new: bool,
    /// The last request has made the connection a tunnel.
    pub(crate) switched: Option<Box<Switched>>,
}

impl Client {
    pub(crate) fn new(
        stream: Stream,
        peer: SocketAddr,
        local: SocketAddr,
        listener: usize,
        is_https: bool,
        now_ms: u64,
    ) -> Client {
        let forwarded = crate::exchange::forwarding::untrusted_lines(peer, local, scheme(is_https)).into();
        let mut client = Client::with_facts(stream, peer, local, listener, forwarded, None, now_ms);
        client.is_https = is_https;
        client
    }

    /// With what is known of the connection already.
    pub(crate) fn with_facts(
        stream: Stream,
        peer: SocketAddr,
        local: SocketAddr,
        listener: usize,
        forwarded: Rc<[u8]>,
        tls: Option<Rc<TlsFacts>>,
        now_ms: u64,
    ) -> Client {
        Client {
            stream,
            timer: Timer::new(),
            peer,
            address: peer.ip().to_canonical(),
            local,
            is_https: tls.is_some(),
            tls,
            listener,
            forwarded,
            eof: false,
            ends_with_connection: false,
            quiet_since_ms: now_ms,
            is_new: true,
            switched: None,
        }
    }

    /// The version that the client speaks, of which `request` is what our engine got.
    pub(crate) fn protocol(&self, request: &RequestHead) -> &'static str {
        if self.stream.is_http2() { "HTTP/2.0" } else { request.version.as_str() }
    }

    /// `http` or `https`
    pub(crate) fn scheme(&self) -> &'static str {
        scheme(self.is_https)
    }
}

/// `http` or `https`
pub(crate) fn scheme(is_https: bool) -> &'static str {
    if is_https { "https" } else { "http" }
}

impl Drop for Client {
    /// Whatever ended the connection, a timeout, the worker's end or a bug: what is cut must not look complete. A response
    /// that ends with its connection is reset; of any other its framing tells, and so the end may be an orderly one.
    fn drop(&mut self) {
        if self.ends_with_connection {
            self.stream.reset_when_closed();
        } else {
            self.stream.say_end();
        }
    }
}

/// Serves one connection to its end. The client is used where it was passed in: a copy of it would make every idle
/// connection that much larger.
pub(crate) async fn serve(worker: &Rc<Worker>, client: &mut Client) {
    while idle(worker, client).await {
        let _busy = Busy::new(&worker.listeners[client.listener]);
        let mut exchange = worker.take_exchange();
        let after = busy(worker, client, &mut exchange).await;
        let early = if after == After::Http2 { exchange.from_client.unparsed().to_vec() } else { Vec::new() };
        worker.give_exchange(exchange);
        match after {
            After::KeepAlive => {}
            After::Close | After::Tunnel => return,
            After::Linger => return linger(worker, client).await,
            After::Http2 => {
                drop(_busy);
                // On the heap, as most connections have no use for it.
                if Box::pin(http2::serve(worker, client, &early)).await == After::Linger {
                    linger(worker, client).await;
                }
                return;
            }
        }
    }
}

/// Serves the one request of a stream of HTTP/2.
pub(crate) async fn serve_stream(worker: &Rc<Worker>, client: &mut Client) {
    let mut exchange = worker.take_exchange();
    busy(worker, client, &mut exchange).await;
    worker.give_exchange(exchange);
    if client.stream.is_answered_early() {
        linger(worker, client).await;
    }
}

/// Waits for bytes, owning no buffer; false where the connection is to be closed instead, or has been given away.
async fn idle(worker: &Worker, client: &mut Client) -> bool {
    let keepalive_ms = worker.snapshot().plan.settings.keepalive_ms;
    poll_fn(|cx| {
        // What has come and was not read goes along.
        if handover::give_idle(worker, client) {
            return Poll::Ready(false);
        }
        if client.stream.poll_read_ready(cx).is_ready() {
            return Poll::Ready(true);
        }
        let patience_ms = match (worker.is_ending() && !worker.gives(client), client.is_new) {
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
async fn busy(worker: &Rc<Worker>, client: &mut Client, exchange: &mut Exchange) -> After {
    loop {
        exchange.begin(worker.timing());
        match read_head(worker, client, exchange).await {
            Arrived::Head => {}
            Arrived::Nothing => return After::KeepAlive,
            Arrived::Closed => return After::Close,
            Arrived::Http2 => return After::Http2,
            Arrived::Timeout => {
                let refusal = Refusal::closing(408, "the request head did not come in time");
                return exchange::refuse(worker, client, exchange, &refusal).await;
            }
            Arrived::Refused(error) => return exchange::refuse(worker, client, exchange, &error.into()).await,
        }
        let after = exchange::run(worker, client, exchange).await;
        // What follows the request of a stream of HTTP/2 is no other: of an extended CONNECT it is whatever the tunnel would carry.
        let after = if client.stream.is_http2() { after.max(After::Close) } else { after };
        client.is_new = false;
        client.quiet_since_ms = worker.clock.now_ms();
        if after != After::KeepAlive || (client.eof && !exchange.from_client.has_leftover()) {
            return after.max(if client.eof { After::Close } else { After::KeepAlive });
        }
    }
}

enum Arrived {
    Head,
    Nothing,
    Closed,
    /// The connection begins as one of HTTP/2 does, or has to.
    Http2,
    Timeout,
    Refused(RequestError),
}

/// Reads and parses one head. The bytes of the last read of the connection may hold several.
async fn read_head(worker: &Worker, client: &mut Client, exchange: &mut Exchange) -> Arrived {
    let snapshot = worker.snapshot();
    let settings = &snapshot.plan.settings;
    let deadline_ms = worker.clock.now_ms() + settings.head_ms;
    let agreed = client.stream.agreed();
    // What is agreed on is what is spoken (RFC 9113 section 3.3): its own preface judges the bytes, and no parser of HTTP/1.1.
    if agreed == Some(ALPN_HTTP2) && client.is_new {
        return Arrived::Http2;
    }
    let speaks_http2 = client.is_new
        && agreed.is_none()
        && worker.listeners[client.listener].configured.http2
        && !client.stream.is_http2();
    poll_fn(|cx| {
        loop {
            let preface = speaks_http2.then(|| starts(exchange.from_client.unparsed())).flatten();
            if preface == Some(Progress::Complete(PREFACE.len())) {
                return Poll::Ready(Arrived::Http2);
            }
            match preface.map_or_else(|| parse_head(exchange, &settings.request_limits), Ok) {
                Ok(Progress::Complete(_)) => return Poll::Ready(Arrived::Head),
                Ok(Progress::Partial) => {}
                Err(error) => return Poll::Ready(Arrived::Refused(error)),
            }
            if client.eof {
                return Poll::Ready(Arrived::Closed);
            }
            match exchange.from_client.poll_read_head(cx, &mut client.stream, &worker.buffers) {
                Poll::Ready(Ok(0)) | Poll::Ready(Err(_)) => return Poll::Ready(Arrived::Closed),
                Poll::Ready(Ok(_)) => exchange.outcome.arrived(),
                Poll::Pending if !exchange.from_client.has_leftover() => return Poll::Ready(Arrived::Nothing),
                Poll::Pending if worker.clock.now_ms() >= deadline_ms => return Poll::Ready(Arrived::Timeout),
                Poll::Pending => {
                    client.timer.set(&worker.clock, deadline_ms, cx);
                    return Poll::Pending;
                }
            }
        }
    })
    .await
}

fn parse_head(exchange: &mut Exchange, limits: &stillgate_wire::HeadLimits) -> Result<Progress, RequestError> {
    if matches!(exchange.from_client.unparsed().first(), Some(b'\r' | b'\n')) {
        let skip = leading_empty_lines(exchange.from_client.unparsed())?;
        exchange.from_client.skip(skip);
        if exchange.from_client.unparsed() == b"\r" {
            return Ok(Progress::Partial);
        }
    }
    if !exchange.from_client.has_leftover() {
        return Ok(Progress::Partial);
    }
    exchange.request.advance(exchange.from_client.unparsed(), limits)
}

/// Closes our side and discards what the client still sends, for a while. Owns no buffer while it waits.
async fn linger(worker: &Worker, client: &mut Client) {
    let deadline_ms = worker.clock.now_ms() + LINGER_MS;
    let mut left = LINGER_BYTES_MAX;
    let mut shut = false;
    poll_fn(|cx| {
        if !shut {
            // Never pending for a TCP socket; an error means that the connection is gone, which reading shows too.
            shut = client.stream.poll_shutdown(cx).is_ready();
        }
        let mut buffer = worker.buffers.take();
        let discarded = discard(cx, client, &mut buffer, &mut left, worker, deadline_ms);
        worker.buffers.give(buffer);
        discarded
    })
    .await;
}

fn discard(
    cx: &mut Context<'_>,
    client: &mut Client,
    buffer: &mut [u8],
    left: &mut usize,
    worker: &Worker,
    deadline_ms: u64,
) -> Poll<()> {
    loop {
        let mut space = ReadBuf::new(buffer);
        match client.stream.poll_read(cx, &mut space) {
            Poll::Ready(Ok(())) => {
                let n = space.filled().len();
                if n == 0 || n >= *left {
                    return Poll::Ready(());
                }
                *left -= n;
            }
            Poll::Ready(Err(_)) => return Poll::Ready(()),
            Poll::Pending if worker.clock.now_ms() >= deadline_ms => return Poll::Ready(()),
            Poll::Pending => {
                client.timer.set(&worker.clock, deadline_ms, cx);
                return Poll::Pending;
            }
        }
    }
}
