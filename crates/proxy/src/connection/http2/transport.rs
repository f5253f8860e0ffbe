//! The bytes below an HTTP/2 connection: what many streams write in one turn of the event loop is sent in one write.
//!
//! `h2` flushes whenever its own small buffer is full. Here a flush of it does nothing; the task that drives the connection flushes
//! when the turn is over ([`Transport::poll_flush`]), and until then bytes are gathered up to a bound.

use super::bounds::{FRAME_BYTES_MAX, OUTPUT_BYTES_MAX, SMALL_FRAMES_MAX};
use super::field_watch::ServedStreams;
use super::frames::{FrameHead, FrameWatch, HEADER_BYTES, PREFACE, looked_into};
use crate::basics::buffer::Buffers;
use crate::basics::clock::Clock;
use crate::connection::stream::{NodeProtocolGuess, Stream};
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
    mistaken: Option<NodeProtocolGuess>,
}

impl<'a> Transport<'a> {
    /// A transport to a client, of whose bytes `early` were already read.
    pub(crate) fn to_client(
        stream: &'a mut Stream,
        early: &'a [u8],
        marked: Rc<ServedStreams>,
        buffers: &'a Buffers,
        clock: &'a Clock,
    ) -> Transport<'a> {
        Transport::new(stream, early, Inbound::of_client(), FrameWatch::of_client(marked), buffers, clock)
    }

    pub(crate) fn to_node(
        stream: &'a mut Stream,
        marked: Rc<ServedStreams>,
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
    pub(crate) fn opened_streams(&self) -> Option<u64> {
        let inner = self.inner.borrow();
        (!inner.is_held_up).then_some(inner.watch.opened)
    }

    /// What a node seems to speak instead of HTTP/2.
    pub(crate) fn mistaken(&self) -> Option<NodeProtocolGuess> {
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
            inner.mistaken = NodeProtocolGuess::of(&space.filled()[before..], true);
        }
        inner.watch.observe_received(&space.filled()[before..], inner.clock.now_ms());
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
        inner.watch.observe_sent(&bytes[..take]);
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

// What `h2` reads of a connection: the received bytes, with frames rewritten that it would not tolerate.
//
// Bytes stay where they were read into. The header of a frame never reaches `h2` in parts, nor does a small frame that is looked
// into, so each can be rewritten in place; a partial one is kept back until the rest has arrived.
//
// ```text
//   read:    … payload │ unit │ payload │ unit │ payload │ a part of a unit
//                        └ amended        └ amended        └ kept back, and the next read completes it alone
// ```

/// Bytes of a payload that is looked into: ten settings, more than exist.
const PAYLOAD_BYTES_MAX: usize = 60;
const UNIT_BYTES_MAX: usize = HEADER_BYTES + PAYLOAD_BYTES_MAX;

/// Position in the incoming frames.
#[derive(Debug)]
pub(super) struct Inbound {
    /// Bytes until the next frame.
    skip: usize,
    /// A unit that arrived in parts, and how much of it has arrived.
    unit: [u8; UNIT_BYTES_MAX],
    have: usize,
    /// How much of it `h2` has read, once it is complete.
    given: Option<usize>,
}

impl Inbound {
    pub(super) fn of_node() -> Inbound {
        Inbound { skip: 0, unit: [0; UNIT_BYTES_MAX], have: 0, given: None }
    }

    /// For frames from a client, whose preface comes first.
    pub(super) fn of_client() -> Inbound {
        Inbound { skip: PREFACE.len(), ..Inbound::of_node() }
    }

    /// Reads from `source`; like it, this is ready with nothing at the end of the connection.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
        watch: &mut FrameWatch,
        mut source: impl FnMut(&mut Context<'_>, &mut ReadBuf<'_>) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        let before = space.filled().len();
        loop {
            if self.have > 0 {
                ready!(self.poll_unit(cx, watch, &mut source))?;
                self.give(space);
                return Poll::Ready(Ok(()));
            }
            ready!(source(cx, space))?;
            let is_end = space.filled().len() == before;
            self.pass(space, before, watch);
            if is_end || space.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Amends what was read into `space` from `before` on, and keeps back a unit that is incomplete.
    fn pass(&mut self, space: &mut ReadBuf<'_>, before: usize, watch: &mut FrameWatch) {
        let bytes = space.filled_mut();
        let mut at = before;
        loop {
            let step = self.skip.min(bytes.len() - at);
            self.skip -= step;
            at += step;
            let rest = &mut bytes[at..];
            let wanted = unit_bytes(rest);
            if is_too_long(rest) {
                self.skip = usize::MAX;
                return;
            }
            if rest.len() < wanted {
                self.unit[..rest.len()].copy_from_slice(rest);
                self.have = rest.len();
                return space.set_filled(at);
            }
            self.skip = payload_behind(rest);
            watch.amend(&mut rest[..wanted]);
            at += wanted;
        }
    }

    /// Ready when the unit that arrived in parts is complete, or at the end of the connection.
    fn poll_unit(
        &mut self,
        cx: &mut Context<'_>,
        watch: &mut FrameWatch,
        source: &mut impl FnMut(&mut Context<'_>, &mut ReadBuf<'_>) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        while self.given.is_none() {
            let wanted = unit_bytes(&self.unit[..self.have]);
            if self.have == wanted {
                self.skip = payload_behind(&self.unit);
                watch.amend(&mut self.unit[..wanted]);
                self.given = Some(0);
                break;
            }
            let mut part = ReadBuf::new(&mut self.unit[self.have..wanted]);
            ready!(source(cx, &mut part))?;
            match part.filled().len() {
                0 => self.given = Some(0),
                read => self.have += read,
            }
            if is_too_long(&self.unit[..self.have]) {
                self.skip = usize::MAX;
                self.given = Some(0);
            }
        }
        Poll::Ready(Ok(()))
    }

    fn give(&mut self, space: &mut ReadBuf<'_>) {
        let given = self.given.unwrap_or(0);
        let take = (self.have - given).min(space.remaining());
        space.put_slice(&self.unit[given..given + take]);
        self.given = Some(given + take);
        if given + take == self.have {
            (self.have, self.given) = (0, None);
        }
    }
}

/// How many bytes at the beginning of a frame must be available at once.
fn unit_bytes(bytes: &[u8]) -> usize {
    HEADER_BYTES + FrameHead::of(bytes).map_or(0, |head| looked_into(&head, PAYLOAD_BYTES_MAX))
}

/// Whether a frame that begins like this is longer than any that we accept. Most likely it is not a frame at all, and `h2` reports
/// it by the length.
fn is_too_long(bytes: &[u8]) -> bool {
    bytes.first_chunk::<3>().is_some_and(|length| {
        let payload_bytes = length.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
        payload_bytes > FRAME_BYTES_MAX
    })
}

/// Bytes of a frame after its unit.
fn payload_behind(bytes: &[u8]) -> usize {
    let payload_bytes = FrameHead::of(bytes).map_or(0, |head| head.payload_bytes);
    HEADER_BYTES + payload_bytes - unit_bytes(bytes)
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
            assert_eq!(transport.opened_streams(), None, "the peer reads nothing");
            let mut read = [0; 4096];
            poll_fn(|cx| {
                while transport.poll_flush(cx)?.is_pending() {
                    ready!(Pin::new(&mut peer).poll_read(cx, &mut ReadBuf::new(&mut read)))?;
                }
                Poll::Ready(io::Result::Ok(()))
            })
            .await
            .unwrap();
            assert_eq!(transport.opened_streams(), None, "nothing was written to it since");
            assert!(poll_fn(|cx| Poll::Ready(write(cx))).await.is_ready());
            assert_eq!(transport.opened_streams(), Some(0));
        });
    }
}

#[cfg(test)]
mod inbound_tests {
    use super::super::frames::kind;
    use super::*;
    use proptest::prelude::*;
    use std::rc::Rc;
    use std::task::Waker;

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
    }

    /// The bytes that pass of `bytes`, which arrive in pieces of at most `step` and are read with room for `room`.
    fn pass(bytes: &[u8], mut inbound: Inbound, mut watch: FrameWatch, step: usize, room: usize) -> Vec<u8> {
        let (mut rest, mut passed) = (bytes, Vec::new());
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            let mut space = vec![0; room + 1];
            let mut space = ReadBuf::new(&mut space);
            // Bytes that are already there are not ours.
            space.put_slice(&[7]);
            let read = inbound.poll_read(&mut cx, &mut space, &mut watch, |_, space| {
                let (now, later) = rest.split_at(step.min(rest.len()).min(space.remaining()));
                space.put_slice(now);
                rest = later;
                Poll::Ready(Ok(()))
            });
            assert!(matches!(read, Poll::Ready(Ok(()))));
            if space.filled().len() == 1 {
                return passed;
            }
            passed.extend_from_slice(&space.filled()[1..]);
        }
    }

    #[test]
    fn empty_data_becomes_a_frame_without_meaning() {
        let (empty, padded) = (frame(kind::DATA, 0, 1, &[]), frame(kind::DATA, 8, 1, &[2, 0, 0]));
        let kept = [
            frame(kind::HEADERS, 4, 1, b"abc"),
            frame(kind::DATA, 0, 1, b"abc"),
            frame(kind::DATA, 1, 1, &[]),
            frame(kind::DATA, 8, 1, &[2, 7, 0, 0]),
            frame(kind::DATA, 9, 1, &[2, 0, 0]),
            // An error of the connection.
            frame(kind::DATA, 0, 0, &[]),
            frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 1, 0]),
            frame(kind::SETTINGS, 0, 0, &[7; 600]),
            frame(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 9]),
            frame(kind::WINDOW_UPDATE, 0, 1, &[0; 3]),
        ];
        let bytes =
            kept.iter().flat_map(|frame| [frame.clone(), empty.clone(), padded.clone()].concat()).collect::<Vec<_>>();
        for step in 1..80 {
            let passed = pass(&bytes, Inbound::of_node(), FrameWatch::of_node(Rc::default()), step, 100);
            let mut at = 0;
            for frame in &kept {
                assert_eq!(&passed[at..at + frame.len()], frame, "by {step}");
                at += frame.len();
                for bytes in [0, padded.len() - HEADER_BYTES] {
                    let replaced = FrameHead::of(&passed[at..]).unwrap();
                    assert!(
                        replaced.kind == kind::UNKNOWN && replaced.payload_bytes == bytes,
                        "by {step}: {replaced:?}"
                    );
                    at += HEADER_BYTES + bytes;
                }
            }
            assert_eq!(passed.len(), at);
        }
    }

    proptest! {
        /// Whatever arrives, in whatever pieces, passes completely and in order.
        #[test]
        fn nothing_is_lost(bytes in proptest::collection::vec(0..5_u8, 0..400), step in 1..50_usize, room in 1..50_usize) {
            for is_client in [false, true] {
                let (inbound, watch) = match is_client {
                    true => (Inbound::of_client(), FrameWatch::of_client(Rc::default())),
                    false => (Inbound::of_node(), FrameWatch::of_node(Rc::default())),
                };
                let whole = pass(&bytes, if is_client { Inbound::of_client() } else { Inbound::of_node() },
                    if is_client { FrameWatch::of_client(Rc::default()) } else { FrameWatch::of_node(Rc::default()) }, 1_000, 1_000);
                let passed = pass(&bytes, inbound, watch, step, room);
                prop_assert_eq!(passed.len(), bytes.len());
                prop_assert_eq!(passed, whole);
            }
        }
    }
}
