//! An exposition on its way to one scraper, made as fast as it is taken and no faster.
//!
//! The server asks for a piece when its buffer has room. So a scraper that reads slowly pins that buffer and costs no
//! work, and when it hangs up the stream is dropped, and nothing more is made.

use crate::source::{ExpositionSource, SendPermit, Unavailable};
use bytes::Bytes;
use hyper::body::{Body, Frame};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use stillgate_metrics::reader::ExpositionCursor;

/// After so much work, by the wall clock, the other tasks have their turn.
const SLICE: Duration = Duration::from_micros(500);

/// The body of a response.
#[derive(Debug)]
pub(crate) struct ExpositionBody {
    source: Arc<ExpositionSource>,
    cursor: ExpositionCursor,
    /// When the current slice began.
    slice: Option<Instant>,
    _place: SendPermit,
}

impl ExpositionBody {
    pub(crate) fn new(source: Arc<ExpositionSource>, cursor: ExpositionCursor, place: SendPermit) -> ExpositionBody {
        ExpositionBody { source, cursor, slice: None, _place: place }
    }
}

impl Body for ExpositionBody {
    type Data = Bytes;
    type Error = Unavailable;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Unavailable>>> {
        let this = self.get_mut();
        // The server continues as long as the socket accepts data, so ending the slice is up to us.
        let now = Instant::now();
        if now - *this.slice.get_or_insert(now) >= SLICE {
            this.slice = None;
            this.source.work.notify_one();
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let piece = this.source.next(&mut this.cursor).transpose();
        Poll::Ready(piece.map(|piece| piece.map(|piece| Frame::data(Bytes::from_owner(piece)))))
    }
}
