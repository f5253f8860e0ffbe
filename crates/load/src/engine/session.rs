//! An HTTP/2 connection, driven by the events of its socket.
//!
//! The library expects a runtime that polls it when something wakes it. Here that is the engine's one loop: an event of
//! the socket, or a request, is a reason to poll the connection; streams with events are put into a list, and only
//! those are read. No timer and no other thread takes part.

use super::connection::Link;
use bytes::Bytes;
use h2::RecvStream;
use h2::client::{Builder, Connection, ResponseFuture, SendRequest};
use http::Request;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that a stream may send before they are read; everything is read at once.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;

/// This limit for a whole connection.
const CONNECTION_WINDOW_BYTES: u32 = 64 * 1024 * 1024;

/// A field section beyond this is refused.
const HEADER_LIST_BYTES_MAX: u32 = 256 * 1024;

/// Streams given up here for which the target may still send frames.
const RESET_STREAMS_MAX: usize = 4096;

/// A connection and its streams, which have numbers from zero.
pub(super) struct Session {
    phase: Phase,
    carrier: Rc<SharedLink>,
    news: Arc<WakeList>,
    waker: Waker,
    /// Wakers by stream.
    wakers: Vec<Waker>,
    flows: Vec<Option<Flow>>,
}

enum Phase {
    /// The preface and settings are being written.
    Opening(Pin<Box<dyn Future<Output = Result<Http2Client, h2::Error>>>>),
    Open(Box<Http2Client>),
    /// It failed, or has ended.
    Over,
}

type Http2Client = (SendRequest<Bytes>, Connection<Carrier, Bytes>);

/// The part of an answer that is still to come.
enum Flow {
    Head(ResponseFuture),
    Body(RecvStream),
}

/// The state of a connection.
#[derive(Debug)]
pub(super) enum State {
    /// The target has not reported yet how many streams it allows.
    Opening,
    /// The target allows this many requests under way; with 0 it accepts no more on this connection.
    Open(usize),
    /// The reason is there if it did not end normally.
    Over(Option<h2::Error>),
}

/// An event of a stream.
#[derive(Debug)]
pub(super) enum StreamEvent {
    /// Nothing for now.
    Nothing,
    /// The final status.
    Head(u16),
    /// Some of the body.
    Data(Bytes),
    /// The end of the answer.
    End,
    Failed(h2::Error),
}

impl Session {
    /// Begins HTTP/2, with at most this many streams.
    pub(super) fn begin(link: Link, streams: usize) -> Session {
        let shared = Rc::new(SharedLink { link: RefCell::new(link), received: Cell::new(0) });
        let news = Arc::new(WakeList::default());
        let mut builder = Builder::new();
        builder
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_header_list_size(HEADER_LIST_BYTES_MAX)
            .max_concurrent_reset_streams(RESET_STREAMS_MAX)
            // Small frames are not an attack here, and all are read at once.
            .data_frame_budget(usize::MAX)
            // Until the target reports how many it allows: further requests would wait here and count as the target's
            // time.
            .initial_max_send_streams(0);
        let carrier = Carrier(shared.clone());
        let opening = Box::pin(async move { builder.handshake::<_, Bytes>(carrier).await });
        let waker = |stream| Waker::from(Arc::new(Wakes { news: news.clone(), stream }));
        Session {
            phase: Phase::Opening(opening),
            carrier: shared,
            waker: waker(None),
            wakers: (0..streams).map(|stream| waker(Some(stream))).collect(),
            flows: (0..streams).map(|_| None).collect(),
            news,
        }
    }

    /// The socket reported an event; `ending`: the peer will send no more.
    pub(super) fn woken(&mut self, ending: bool) {
        self.carrier.link.borrow_mut().woken(ending);
        self.news.connection.store(true, Ordering::Relaxed);
    }

    /// Whether there is a reason to drive it.
    pub(super) fn is_woken(&self) -> bool {
        self.news.connection.load(Ordering::Relaxed)
    }

    /// Reads and writes as much as possible.
    pub(super) fn drive(&mut self) -> State {
        self.news.connection.store(false, Ordering::Relaxed);
        let mut context = Context::from_waker(&self.waker);
        if let Phase::Opening(opening) = &mut self.phase {
            match opening.as_mut().poll(&mut context) {
                Poll::Pending => return State::Opening,
                Poll::Ready(Ok(spoken)) => self.phase = Phase::Open(Box::new(spoken)),
                Poll::Ready(Err(error)) => {
                    self.phase = Phase::Over;
                    return State::Over(Some(error));
                }
            }
        }
        let Phase::Open(spoken) = &mut self.phase else { return State::Over(None) };
        let (send, connection) = spoken.as_mut();
        if let Poll::Ready(ended) = Pin::new(connection).poll(&mut context) {
            self.phase = Phase::Over;
            return State::Over(ended.err());
        }
        match (send.poll_ready(&mut context), send.current_max_send_streams()) {
            (Poll::Ready(Err(_)), _) => State::Open(0),
            (_, 0) => State::Opening,
            (_, allowed) => State::Open(allowed),
        }
    }

    /// Bytes read since the last call.
    pub(super) fn received(&self) -> u64 {
        self.carrier.received.take()
    }

    /// Begins a request on a stream that awaits nothing.
    pub(super) fn ask(&mut self, stream: usize, request: Request<()>, body: Bytes) -> Result<(), h2::Error> {
        let Phase::Open(spoken) = &mut self.phase else { return Err(h2::Reason::CANCEL.into()) };
        let (response, mut sending) = spoken.0.send_request(request, body.is_empty())?;
        if !body.is_empty() {
            sending.send_data(body, true)?;
        }
        self.flows[stream] = Some(Flow::Head(response));
        self.news.wake(Some(stream));
        self.news.wake(None);
        Ok(())
    }

    /// A stream that may have events.
    pub(super) fn news(&self) -> Option<usize> {
        self.news.streams.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// The next event of a stream.
    pub(super) fn next_event(&mut self, stream: usize) -> StreamEvent {
        let mut context = Context::from_waker(&self.wakers[stream]);
        let flow = &mut self.flows[stream];
        let heard = match flow {
            None => return StreamEvent::Nothing,
            Some(Flow::Head(response)) => match Pin::new(response).poll(&mut context) {
                Poll::Pending => return StreamEvent::Nothing,
                Poll::Ready(Ok(response)) => {
                    let status = response.status().as_u16();
                    *flow = Some(Flow::Body(response.into_body()));
                    return StreamEvent::Head(status);
                }
                Poll::Ready(Err(error)) => StreamEvent::Failed(error),
            },
            Some(Flow::Body(body)) => match body.poll_data(&mut context) {
                Poll::Pending => return StreamEvent::Nothing,
                Poll::Ready(Some(Ok(data))) => match body.flow_control().release_capacity(data.len()) {
                    Ok(()) => return StreamEvent::Data(data),
                    Err(error) => StreamEvent::Failed(error),
                },
                Poll::Ready(Some(Err(error))) => StreamEvent::Failed(error),
                Poll::Ready(None) => match body.poll_trailers(&mut context) {
                    Poll::Pending => return StreamEvent::Nothing,
                    Poll::Ready(Ok(_)) => StreamEvent::End,
                    Poll::Ready(Err(error)) => StreamEvent::Failed(error),
                },
            },
        };
        *flow = None;
        heard
    }

    /// Gives up the request on a stream, and resets the stream.
    pub(super) fn forget(&mut self, stream: usize) {
        self.flows[stream] = None;
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("streams", &self.flows.len()).finish_non_exhaustive()
    }
}

/// The connection and streams that have to be checked.
#[derive(Debug, Default)]
struct WakeList {
    connection: AtomicBool,
    /// Uncontended: the library requires a type that could be sent to other threads, and there are none.
    streams: Mutex<Vec<usize>>,
}

impl WakeList {
    fn wake(&self, stream: Option<usize>) {
        match stream {
            None => self.connection.store(true, Ordering::Relaxed),
            Some(stream) => {
                self.streams.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
            }
        }
    }
}

/// Wakes a stream, or the connection.
#[derive(Debug)]
struct Wakes {
    news: Arc<WakeList>,
    stream: Option<usize>,
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.news.wake(self.stream);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.news.wake(self.stream);
    }
}

/// The link, which the library owns, and the engine's view of it.
struct SharedLink {
    link: RefCell<Link>,
    /// Bytes read.
    received: Cell<u64>,
}

/// The link in the form that the library requires. It wakes nothing: the socket's events do.
struct Carrier(Rc<SharedLink>);

impl AsyncRead for Carrier {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.0.link.borrow_mut().read(buffer.initialize_unfilled()) {
            Ok(length) => {
                buffer.advance(length);
                self.0.received.set(self.0.received.get() + length as u64);
                Poll::Ready(Ok(()))
            }
            Err(error) => into_poll(error),
        }
    }
}

impl AsyncWrite for Carrier {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.0.link.borrow_mut().write(bytes) {
            Ok(length) => Poll::Ready(Ok(length)),
            Err(error) => into_poll(error),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut link = self.0.link.borrow_mut();
        match link.flush() {
            Ok(()) if link.is_flushed() => Poll::Ready(Ok(())),
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Dropping it closes it.
        Poll::Ready(Ok(()))
    }
}

fn into_poll<T>(error: io::Error) -> Poll<io::Result<T>> {
    match error.kind() {
        io::ErrorKind::WouldBlock => Poll::Pending,
        _ => Poll::Ready(Err(error)),
    }
}
