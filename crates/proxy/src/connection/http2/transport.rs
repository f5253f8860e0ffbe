//! The bytes below an HTTP/2 connection: what many streams write in one turn of the event loop is sent in one write.
//!
//! `h2` flushes whenever its own small buffer is full. Here a flush of it does nothing; the task that drives the connection flushes
//! when the turn is over ([`Transport::poll_flush`]), and until then bytes are gathered up to a bound.

use super::bounds::{OUTPUT_BYTES_MAX, SMALL_FRAMES_MAX};
use super::field_watch::MalformedStreams;
use super::frames::FrameWatch;
use super::inbound::Inbound;
use crate::basics::buffer::Buffers;
use crate::basics::clock::Clock;
use crate::connection::mistaken::Mistaken;
use crate::connection::stream::Stream;
use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection's socket and what waits to be written to it.
pub(crate) struct Transport<'a> {
    inner: RefCell<TransportState<'a>>,
}

struct TransportState<'a> {
    stream: &'a mut Stream,
    buffers: &'a Buffers,
    clock: &'a Clock,
    /// Bytes that were read before HTTP/2 took over, and how many of them were passed on.
    early: &'a [u8],
    /// It has no capacity while nothing waits.
    output: Vec<u8>,
    sent: usize,
    written: u64,
    inbound: Inbound,
    watch: FrameWatch,
    /// `h2` waits for room to write, and processes nothing that has arrived until there is.
    is_held_up: bool,
    has_read: bool,
    /// For a node: what it seems to speak instead.
    mistaken: Option<Mistaken>,
}

impl<'a> Transport<'a> {
    /// A transport to a client, of whose bytes `early` were already read.
    pub(crate) fn to_client(
        stream: &'a mut Stream,
        early: &'a [u8],
        marked: Rc<MalformedStreams>,
        buffers: &'a Buffers,
        clock: &'a Clock,
    ) -> Transport<'a> {
        Transport::new(stream, early, Inbound::of_client(), FrameWatch::of_client(marked), buffers, clock)
    }

    pub(crate) fn to_node(
        stream: &'a mut Stream,
        marked: Rc<MalformedStreams>,
        buffers: &'a Buffers,
        clock: &'a Clock,
    ) -> Transport<'a> {
        Transport::new(stream, &[], Inbound::of_node(), FrameWatch::of_node(marked), buffers, clock)
    }

    fn new(
        stream: &'a mut Stream,
        early: &'a [u8],
        inbound: Inbound,
        watch: FrameWatch,
        buffers: &'a Buffers,
        clock: &'a Clock,
    ) -> Transport<'a> {
        let inner = TransportState {
            stream,
            buffers,
            clock,
            early,
            output: Vec::new(),
            sent: 0,
            written: 0,
            inbound,
            watch,
            is_held_up: false,
            has_read: false,
            mistaken: None,
        };
        Transport { inner: RefCell::new(inner) }
    }

    /// What `h2` reads and writes.
    pub(crate) fn io(&self) -> Io<'_, 'a> {
        Io(self)
    }

    /// Ready when the kernel has all gathered bytes.
    pub(crate) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.borrow_mut().poll_flush(cx)
    }

    /// Bytes that the kernel has taken so far.
    pub(crate) fn written(&self) -> u64 {
        self.inner.borrow().written
    }

    /// Streams that a client has opened, all of which `h2` has processed if it has nothing more to do; `None`: it may not have.
    pub(crate) fn opened(&self) -> Option<u64> {
        let inner = self.inner.borrow();
        (!inner.is_held_up).then_some(inner.watch.opened)
    }

    /// What a node seems to speak instead of HTTP/2.
    pub(crate) fn mistaken(&self) -> Option<Mistaken> {
        self.inner.borrow().mistaken
    }

    /// Whether `h2` gets nothing more until the small frames received have been gathered; the caller gathers them after this.
    pub(crate) fn take_gathering_due(&self) -> bool {
        let small = &mut self.inner.borrow_mut().watch.small;
        let is_due = *small >= SMALL_FRAMES_MAX;
        if is_due {
            *small = 0;
        }
        is_due
    }

    /// Whether the peer sends frames that move no data too often; nothing more is read from it then.
    pub(crate) fn is_flooded(&self) -> bool {
        self.inner.borrow().watch.is_flooded
    }
}

impl TransportState<'_> {
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.output.len() {
            match ready!(self.stream.poll_write(cx, &self.output[self.sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => {
                    self.sent += n;
                    self.written += n as u64;
                }
            }
        }
        self.release();
        Poll::Ready(Ok(()))
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.interpose();
        ready!(self.poll_drain(cx))?;
        self.stream.poll_flush(cx)
    }

    /// Adds frames of ours to those of `h2`.
    fn interpose(&mut self) {
        if !self.watch.owed.is_empty() && self.watch.may_interpose() {
            self.make_room();
            self.watch.owed.write(&mut self.output);
        }
    }

    /// Makes room in the buffer where bytes are gathered.
    fn make_room(&mut self) {
        if self.sent > 0 {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
        if self.output.capacity() == 0 {
            self.output = self.buffers.take_output();
        }
    }

    fn release(&mut self) {
        self.sent = 0;
        if self.output.capacity() != 0 {
            self.output.clear();
            self.buffers.give_output(std::mem::take(&mut self.output));
        }
    }
}

impl Drop for TransportState<'_> {
    fn drop(&mut self) {
        self.release();
    }
}

/// A [`Transport`] as `h2` sees it.
pub(crate) struct Io<'t, 'a>(&'t Transport<'a>);

impl AsyncRead for Io<'_, '_> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let inner = &mut *self.0.inner.borrow_mut();
        // The task that drives the connection checks both before it waits.
        if inner.watch.is_flooded || inner.watch.small >= SMALL_FRAMES_MAX {
            return Poll::Pending;
        }
        let before = space.filled().len();
        let (stream, early) = (&mut *inner.stream, &mut inner.early);
        ready!(inner.inbound.poll_read(cx, space, &mut inner.watch, |cx, space| {
            if early.is_empty() {
                return stream.poll_read(cx, space);
            }
            let (now, later) = early.split_at(early.len().min(space.remaining()));
            space.put_slice(now);
            *early = later;
            Poll::Ready(Ok(()))
        }))?;
        if !std::mem::replace(&mut inner.has_read, true) {
            inner.mistaken = Mistaken::of(&space.filled()[before..], true);
        }
        inner.watch.received(&space.filled()[before..], inner.clock.now_ms());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Io<'_, '_> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let inner = &mut *self.0.inner.borrow_mut();
        inner.is_held_up = false;
        if inner.output.len() - inner.sent >= OUTPUT_BYTES_MAX {
            let drained = inner.poll_drain(cx);
            inner.is_held_up = drained.is_pending();
            ready!(drained)?;
        }
        inner.make_room();
        let take = bytes.len().min(OUTPUT_BYTES_MAX);
        inner.watch.sent(&bytes[..take]);
        inner.output.extend_from_slice(&bytes[..take]);
        Poll::Ready(Ok(take))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let inner = &mut *self.0.inner.borrow_mut();
        ready!(inner.poll_flush(cx))?;
        inner.stream.poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::SockRef;
    use std::future::poll_fn;
    use tokio::net::{TcpListener, TcpStream};

    #[test]
    fn what_was_held_up_goes_on_as_soon_as_there_is_room() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (socket, _) = listener.accept().await.unwrap();
            // The kernel then accepts little at a time.
            SockRef::from(&peer).set_recv_buffer_size(4096).unwrap();
            SockRef::from(&socket).set_send_buffer_size(4096).unwrap();
            let (mut stream, buffers, clock) = (Stream::Plain(socket), Buffers::default(), Clock::new());
            let transport = Transport::to_client(&mut stream, &[], Rc::default(), &buffers, &clock);
            let bytes = [0; OUTPUT_BYTES_MAX];
            let write = |cx: &mut Context<'_>| Pin::new(&mut transport.io()).poll_write(cx, &bytes);
            poll_fn(|cx| {
                while write(cx).is_ready() {}
                Poll::Ready(())
            })
            .await;
            assert_eq!(transport.opened(), None, "the peer reads nothing");
            let mut read = [0; 4096];
            poll_fn(|cx| {
                while transport.poll_flush(cx)?.is_pending() {
                    ready!(Pin::new(&mut peer).poll_read(cx, &mut ReadBuf::new(&mut read)))?;
                }
                Poll::Ready(io::Result::Ok(()))
            })
            .await
            .unwrap();
            assert_eq!(transport.opened(), None, "nothing was written to it since");
            assert!(poll_fn(|cx| Poll::Ready(write(cx))).await.is_ready());
            assert_eq!(transport.opened(), Some(0));
        });
    }
}
