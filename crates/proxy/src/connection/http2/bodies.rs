//! The bodies that arrive over one HTTP/2 connection.
//!
//! `h2` keeps each DATA frame by itself until it is read, at a few hundred bytes a frame, and ends the whole connection, with all
//! the requests on it, when too many small ones wait. A slow reader must not harm other requests, so the task that drives the
//! connection takes small frames out in time and gathers their content here. The amount is bounded by the streams' windows, as
//! nothing is released to flow control before it is read.

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use http::HeaderMap;
use slab::Slab;
use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// All bodies of one connection.
#[derive(Default)]
pub(crate) struct Bodies(RefCell<Slab<ReceivedBody>>);

struct ReceivedBody {
    stream: RecvStream,
    /// Taken from `h2` and not read yet.
    gathered: BytesMut,
    /// Bytes taken from `h2`, gathered or read, that are not released to flow control.
    unreleased: usize,
    /// The error that ended the stream, after what was gathered.
    failure: Option<h2::Error>,
}

/// One body, for its reader.
pub(super) struct BodyReader {
    bodies: Rc<Bodies>,
    key: usize,
}

impl Bodies {
    /// Takes everything that waits out of `h2`.
    pub(crate) fn gather(&self) {
        for (_, body) in &mut *self.0.borrow_mut() {
            body.gather();
        }
    }
}

impl ReceivedBody {
    fn gather(&mut self) {
        // The reader waits by a waker that `h2` holds and that a poll which is ready leaves in place. So this polls only where
        // something has arrived.
        let mut cx = Context::from_waker(Waker::noop());
        while self.failure.is_none() && self.stream.flow_control().used_capacity() > self.unreleased {
            match self.stream.poll_data(&mut cx) {
                Poll::Ready(Some(Ok(data))) => {
                    self.unreleased += data.len();
                    self.gathered.extend_from_slice(&data);
                }
                Poll::Ready(Some(Err(error))) => self.failure = Some(error),
                Poll::Ready(None) | Poll::Pending => return,
            }
        }
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, h2::Error>>> {
        if !self.gathered.is_empty() {
            return Poll::Ready(Some(Ok(std::mem::take(&mut self.gathered).freeze())));
        }
        if let Some(failure) = self.failure.take() {
            return Poll::Ready(Some(Err(failure)));
        }
        let polled = self.stream.poll_data(cx);
        if let Poll::Ready(Some(Ok(data))) = &polled {
            self.unreleased += data.len();
        }
        polled
    }
}

impl BodyReader {
    pub(super) fn new(bodies: Rc<Bodies>, stream: RecvStream) -> BodyReader {
        let body = ReceivedBody { stream, gathered: BytesMut::new(), unreleased: 0, failure: None };
        let key = bodies.0.borrow_mut().insert(body);
        BodyReader { bodies, key }
    }

    /// The next part of the body; `None` at its end. Its bytes must be released after they have been processed.
    pub(super) fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, h2::Error>>> {
        self.bodies.0.borrow_mut()[self.key].poll_data(cx)
    }

    /// The trailers after the body.
    pub(super) fn poll_trailers(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<HeaderMap>, h2::Error>> {
        self.bodies.0.borrow_mut()[self.key].stream.poll_trailers(cx)
    }

    /// Allows the peer to send as much again.
    pub(super) fn release(&mut self, bytes: usize) -> Result<(), h2::Error> {
        let body = &mut self.bodies.0.borrow_mut()[self.key];
        body.unreleased -= bytes;
        body.stream.flow_control().release_capacity(bytes)
    }

    /// Whether its sender has ended it, and the library holds nothing more of it.
    pub(super) fn has_ended(&self) -> bool {
        self.bodies.0.borrow()[self.key].stream.is_end_stream()
    }
}

impl Drop for BodyReader {
    fn drop(&mut self) {
        let body = self.bodies.0.borrow_mut().remove(self.key);
        drop(body);
    }
}
