//! A client's HTTP/2 connection: accepts its requests and serves each in a task of its own, until the connection ends.

use super::serve_stream;
use crate::basics::clock::Timer;
use crate::basics::min_rate::{self, MinRate};
use crate::connection::client::{ClientConnection, TlsFacts};
use crate::connection::http2::bounds::*;
use crate::connection::http2::client_stream::{ClientStream, StreamsShared};
use crate::connection::http2::frames::EventRate;
use crate::connection::http2::transport::{Io, Transport};
use crate::connection::stream::Stream;
use crate::devices;
use crate::exchange::ConnectionNext;
use crate::plan::Settings;
use crate::sockets::listener::{ActiveGuard, BusyGuard, Listener};
use crate::worker::{Open, Worker};
use bytes::Bytes;
use h2::server::{Builder, Connection};
use h2::{Reason, RecvStream};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use tokio::io::AsyncWrite;
use tokio::task::spawn_local;

/// What every request of a connection learns about the connection.
struct ConnectionFacts {
    peer: SocketAddr,
    local: SocketAddr,
    listener: Rc<Listener>,
    forwarded: Rc<[u8]>,
    tls: Option<Rc<TlsFacts>>,
    is_https: bool,
}

/// GOAWAY for a client that has opened no stream: PROTOCOL_ERROR (RFC 9113 section 6.8).
const NO_HTTP2: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

/// Serves a connection that speaks HTTP/2, from the client's preface on; `early` is what was already read of it. Lingering is left
/// to the caller.
pub(crate) async fn serve(worker: &Rc<Worker>, client: &mut ClientConnection, early: &[u8]) -> ConnectionNext {
    let ClientConnection { stream, timer, peer, local, listener, forwarded, tls, is_https, .. } = client;
    let (forwarded, tls) = (forwarded.clone(), tls.clone());
    let origin =
        ConnectionFacts { peer: *peer, local: *local, listener: listener.clone(), forwarded, tls, is_https: *is_https };
    let shared: Rc<StreamsShared> = Rc::default();
    let transport = Transport::to_client(stream, early, shared.marked.clone(), &worker.buffers, &worker.clock);
    let connection = match shake_hands(worker, timer, &transport).await {
        Shaken::Hands(connection) => connection,
        Shaken::NoPreface => {
            tracing::debug!(%peer, "a client that agreed on HTTP/2 speaks something else");
            return ConnectionNext::Linger;
        }
        Shaken::Gone => return ConnectionNext::Close,
    };
    let now_ms = worker.clock.now_ms();
    let mut driver = Driver {
        worker,
        timer,
        origin,
        connection,
        transport: &transport,
        shared,
        busy: None,
        quiet_since_ms: now_ms,
        stuck: MinRate::begin(now_ms, 0),
        parting_since_ms: None,
        resets: EventRate::default(),
        accepted: 0,
        refused: 0,
    };
    poll_fn(|cx| driver.poll(cx)).await;
    ConnectionNext::Close
}

/// How a connection begins.
enum Shaken<T> {
    Hands(T),
    /// The client began with something other than the preface, and was informed of that.
    NoPreface,
    /// It did not begin, or not in time.
    Gone,
}

async fn shake_hands<'t, 'a>(
    worker: &Worker,
    timer: &Timer,
    transport: &'t Transport<'a>,
) -> Shaken<Connection<Io<'t, 'a>, Bytes>> {
    let deadline_ms = worker.clock.now_ms() + worker.snapshot().plan.settings.head_ms;
    let mut handshake = builder(&worker.snapshot().plan.settings).handshake(transport.io());
    poll_fn(|cx| {
        match Pin::new(&mut handshake).poll(cx) {
            Poll::Ready(Ok(connection)) => return Poll::Ready(Shaken::Hands(connection)),
            Poll::Ready(Err(error)) if error.reason() == Some(Reason::PROTOCOL_ERROR) => {
                // Sent once, after our SETTINGS; a client that does not take a few bytes does not get it.
                let _ = Pin::new(&mut transport.io()).poll_write(cx, &NO_HTTP2);
                let _ = transport.poll_flush(cx);
                return Poll::Ready(Shaken::NoPreface);
            }
            Poll::Ready(Err(_)) => return Poll::Ready(Shaken::Gone),
            Poll::Pending => {}
        }
        if worker.clock.now_ms() >= deadline_ms || matches!(transport.poll_flush(cx), Poll::Ready(Err(_))) {
            return Poll::Ready(Shaken::Gone);
        }
        timer.set(&worker.clock, deadline_ms, cx);
        Poll::Pending
    })
    .await
}

fn builder(settings: &Settings) -> Builder {
    let mut builder = Builder::new();
    builder
        .enable_connect_protocol()
        .max_concurrent_streams(STREAMS_MAX)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_header_list_size(field_section_bytes_max(&settings.request_limits))
        .max_send_buffer_size(SEND_BUFFER_BYTES_MAX)
        .data_frame_budget(SMALL_FRAMES_BUDGET)
        .max_concurrent_reset_streams(RESET_STREAMS_MAX)
        .max_pending_accept_reset_streams(UNSEEN_RESETS_MAX)
        // `h2` would count them over the life of the connection; we count per second.
        .max_local_error_reset_streams(None);
    builder
}

struct Driver<'w, 't, 'a> {
    worker: &'w Rc<Worker>,
    timer: &'w Timer,
    origin: ConnectionFacts,
    connection: Connection<Io<'t, 'a>, Bytes>,
    transport: &'t Transport<'a>,
    shared: Rc<StreamsShared>,
    /// While requests are served.
    busy: Option<(BusyGuard, ActiveGuard)>,
    quiet_since_ms: u64,
    stuck: MinRate,
    /// When the client was notified that the connection ends; requests in flight are served to their end.
    parting_since_ms: Option<u64>,
    resets: EventRate,
    /// Streams accepted as requests, and those that `h2` has refused as such.
    accepted: u64,
    refused: u64,
}

impl Driver<'_, '_, '_> {
    /// Ready when the connection is over.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut driver = self.shared.driver.borrow_mut();
        if !driver.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *driver = Some(cx.waker().clone());
        }
        drop(driver);
        loop {
            loop {
                match self.connection.poll_accept(cx) {
                    Poll::Ready(Some(Ok((request, respond)))) => self.begin(request, respond),
                    Poll::Ready(last) => {
                        // A fault that ends the connection is attributed to one request. Nothing is known of others that arrived
                        // with its end.
                        let is_fault = matches!(&last, Some(Err(error)) if error.is_library());
                        self.count_refused(u64::from(is_fault));
                        return Poll::Ready(());
                    }
                    Poll::Pending if self.transport.take_gathering_due() => self.shared.bodies.gather(),
                    Poll::Pending => break,
                }
            }
            self.count_refused(u64::MAX);
            if self.transport.opened_streams().is_some() {
                self.shared.marked.forget_unserved();
            }
            let flushed = self.transport.poll_flush(cx);
            if matches!(flushed, Poll::Ready(Err(_))) {
                return Poll::Ready(());
            }
            if self.detect_abuse() {
                // Reported once; when polled again, the connection returns it and ends.
                self.connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                let _ = self.connection.poll_closed(cx);
                let _ = self.transport.poll_flush(cx);
                return Poll::Ready(());
            }
            match self.wait(cx, flushed.is_pending()) {
                Wait::For(deadline_ms) => {
                    self.timer.set(&self.worker.clock, deadline_ms, cx);
                    return Poll::Pending;
                }
                Wait::Part => {
                    self.parting_since_ms = Some(self.worker.clock.now_ms());
                    self.connection.graceful_shutdown();
                }
                Wait::Over => return Poll::Ready(()),
            }
        }
    }

    /// Counts requests that `h2` has refused by itself: it reports neither which nor why. They do not appear in the access log, as
    /// nothing is known about them.
    fn count_refused(&mut self, most: u64) {
        // What arrives after the connection began to end is not looked at, and is not a fault.
        let opened = self.transport.opened_streams().filter(|_| self.parting_since_ms.is_none()).unwrap_or(0);
        let by_h2 = opened.saturating_sub(self.accepted + self.refused).min(most);
        self.refused += by_h2;
        let count = by_h2 + u64::from(self.shared.malformed.take());
        if count > 0 {
            self.shared.resets.set(self.shared.resets.get().saturating_add(u32::try_from(count).unwrap_or(u32::MAX)));
            self.worker.counters.http2_requests_refused.add(count);
            let why = "malformed, with too large fields, or more at once than a connection may have";
            self.worker.troubles.note_streams(self.origin.peer, count, why);
        }
    }

    fn begin(&mut self, request: http::Request<RecvStream>, mut respond: h2::server::SendResponse<Bytes>) {
        self.accepted += 1;
        if !self.worker.has_room() {
            self.worker.counters.streams_refused.add(1);
            let why = "the worker has as many as gateway.limits.connections_per_worker allows";
            self.worker.troubles.note_streams(self.origin.peer, 1, why);
            return respond.send_reset(Reason::REFUSED_STREAM);
        }
        let ConnectionFacts { peer, local, listener, forwarded, tls, is_https } = &self.origin;
        let stream = Stream::Http2(Box::new(ClientStream::new(&self.shared, request, respond)));
        let now_ms = self.worker.clock.now_ms();
        let mut client = ClientConnection::with_facts(
            stream,
            *peer,
            *local,
            listener.clone(),
            forwarded.clone(),
            tls.clone(),
            now_ms,
        );
        client.is_https = *is_https;
        let listener = listener.clone();
        self.busy.get_or_insert_with(|| (BusyGuard::new(&listener), ActiveGuard::new(&listener)));
        let worker = self.worker.clone();
        let counted = StreamGuard::new(&worker);
        spawn_local(async move {
            let upgraded = serve_stream(&worker, &mut client).await;
            drop(counted);
            // From here on it counts as a connection of its own: it has the room that the stream had.
            if let Some(upgraded) = upgraded {
                devices::go_on(Open::new(&worker, &listener), client, upgraded);
            }
        });
    }

    fn detect_abuse(&mut self) -> bool {
        let resets = self.shared.resets.take();
        self.transport.is_flooded() || self.resets.exceeds(resets, RESETS_PER_SECOND_MAX, self.worker.clock.now_ms())
    }

    /// What the connection waits for when there is nothing to do.
    fn wait(&mut self, cx: &mut Context<'_>, is_full: bool) -> Wait {
        let now_ms = self.worker.clock.now_ms();
        let snapshot = self.worker.snapshot();
        let settings = &snapshot.plan.settings;
        let is_serving = self.shared.live.get() > 0;
        if is_serving {
            self.quiet_since_ms = now_ms;
        } else {
            self.busy = None;
        }
        // For responses that we have already handed over, only the bytes that the client takes from the connection show that it is
        // reading them.
        let must_move = is_full || (!is_serving && self.connection.has_streams());
        let written = self.transport.written();
        match must_move {
            true => self.stuck.update(now_ms, written, min_rate::client_bytes_min(settings.send_ms)),
            false => self.stuck = MinRate::begin(now_ms, written),
        }
        let mut deadline_ms = now_ms + settings.keepalive_ms;
        if must_move {
            deadline_ms = self.stuck.since_ms() + settings.send_ms;
            if now_ms >= deadline_ms {
                return Wait::Over;
            }
        }
        let is_leaving = self.worker.draining.get() || self.origin.listener.is_removed();
        if is_serving || self.connection.has_streams() {
            return match self.parting_since_ms {
                None if is_leaving => Wait::Part,
                _ => Wait::For(deadline_ms),
            };
        }
        match self.parting_since_ms {
            Some(since_ms) => {
                // Counted from the moment when nothing is in flight any more.
                let end_ms = since_ms.max(self.quiet_since_ms) + GOODBYE_MS;
                if now_ms < end_ms {
                    return Wait::For(end_ms);
                }
                self.connection.abrupt_shutdown(Reason::NO_ERROR);
                let _ = self.connection.poll_closed(cx);
                Wait::Over
            }
            None => {
                let end_ms = self.quiet_since_ms + settings.keepalive_ms;
                if is_leaving || now_ms >= end_ms { Wait::Part } else { Wait::For(end_ms) }
            }
        }
    }
}

/// Counts a stream while its request is served, even if its task is dropped.
struct StreamGuard(Rc<Worker>);

impl StreamGuard {
    fn new(worker: &Rc<Worker>) -> StreamGuard {
        worker.streams.set(worker.streams.get() + 1);
        StreamGuard(worker.clone())
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.streams.set(self.0.streams.get() - 1);
    }
}

enum Wait {
    /// Waits until that time at the latest.
    For(u64),
    /// Nothing has arrived: it is time to notify the client that the connection ends.
    Part,
    /// Nothing: the connection has ended.
    Over,
}
