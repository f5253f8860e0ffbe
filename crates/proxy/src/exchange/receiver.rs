//! The receiving half of an HTTP/1 connection: one buffer, and which parts of it are what.
//!
//! ```text
//!   0          base          content.start   content.end      leftover        end of buffer
//!   | head      | written on   | to be written | gap          | next message  | free |
//! ```
//!
//! The head stays at the front as long as it is needed (a request's until its response has begun, so that it can be sent again).
//! Content is decoded in place; the gap is what its chunk framing took. Until the end of the body nothing is left over, and reading
//! continues at `content.end`.

use crate::basics::buffer::{Buffer, Buffers};
use crate::connection::stream::Stream;
use std::io;
use std::ops::Range;
use std::task::{Context, Poll, ready};
use stillgate_wire::{BodyDecoder, ChunkError};
use tokio::io::ReadBuf;

/// Bytes that were received on one connection and not passed on yet.
#[derive(Debug, Default)]
pub(crate) struct Receiver {
    buffer: Option<Buffer>,
    /// Where content may begin: the length of the head that must be kept.
    base: usize,
    /// Decoded content not yet written.
    pub(crate) content: Range<usize>,
    /// Bytes after the end of the message; while a head is being read, the head's bytes.
    leftover: Range<usize>,
    decoder: BodyDecoder,
    /// Whether all content so far is still in the buffer from `base` on.
    pub(crate) replayable: bool,
    /// Bytes received of the current message.
    pub(crate) total: u64,
}

impl Receiver {
    /// A receiver that has received these bytes.
    #[cfg(test)]
    pub(super) fn of(bytes: &[u8]) -> Receiver {
        let mut buffer = Buffers::default().take();
        buffer[..bytes.len()].copy_from_slice(bytes);
        Receiver { buffer: Some(buffer), leftover: 0..bytes.len(), ..Receiver::default() }
    }

    /// Begins a new message with the bytes left over from the last one.
    pub(crate) fn begin(&mut self) {
        if let Some(buffer) = &mut self.buffer
            && self.leftover.start != 0
            && !self.leftover.is_empty()
        {
            buffer.copy_within(self.leftover.clone(), 0);
        }
        self.leftover = 0..self.leftover.len();
        self.base = 0;
        self.content = 0..0;
        self.decoder = BodyDecoder::default();
        self.replayable = true;
        self.total = self.leftover.len() as u64;
    }

    /// The bytes of a head that have arrived, or those after the end of a message.
    #[inline]
    pub(crate) fn unparsed(&self) -> &[u8] {
        self.slice(self.leftover.clone())
    }

    /// Drops bytes from the front of [`Receiver::unparsed`]; only before a head.
    pub(crate) fn skip(&mut self, bytes: usize) {
        self.leftover.start += bytes;
        self.begin();
    }

    /// The head's bytes, once [`Receiver::start_body`] has set where they end.
    #[inline]
    pub(crate) fn head(&self) -> &[u8] {
        self.slice(0..self.base)
    }

    /// Whether bytes of the next message, or beyond the end of the only one, have arrived.
    pub(crate) fn has_leftover(&self) -> bool {
        !self.leftover.is_empty()
    }

    fn slice(&self, range: Range<usize>) -> &[u8] {
        match &self.buffer {
            Some(buffer) => &buffer[range],
            None => &[],
        }
    }

    /// The head is complete: what follows it is the body's.
    pub(crate) fn start_body(&mut self, head_len: usize, decoder: BodyDecoder) -> Result<(), ChunkError> {
        let end = self.leftover.end;
        self.base = head_len;
        self.content = head_len..head_len;
        self.leftover = end..end;
        self.decoder = decoder;
        self.decode(head_len..end)
    }

    /// Skips a complete head that has no body (an interim response).
    pub(crate) fn skip_head(&mut self, head_len: usize) {
        self.leftover.start = head_len;
        let total = self.total;
        self.begin();
        self.total = total;
    }

    fn decode(&mut self, fresh: Range<usize>) -> Result<(), ChunkError> {
        let Some(buffer) = &mut self.buffer else { return Ok(()) };
        let got = self.decoder.decode(&mut buffer[fresh.clone()])?;
        self.content.end = fresh.start + got.data;
        self.leftover = if self.decoder.is_done() {
            fresh.start + got.consumed..fresh.end
        } else {
            self.content.end..self.content.end
        };
        Ok(())
    }

    /// Content that must be written.
    #[inline]
    pub(crate) fn content(&self) -> &[u8] {
        self.slice(self.content.clone())
    }

    /// All but the last `left` bytes of the content were written.
    #[inline]
    pub(crate) fn consume_all_but(&mut self, left: usize) {
        self.content.start = self.content.end - left;
    }

    /// The content was copied elsewhere: there is room for more.
    pub(crate) fn drop_content(&mut self) {
        self.content = self.base..self.base;
        self.replayable = false;
    }

    /// Returns to the first byte of content, to send it again.
    pub(crate) fn rewind(&mut self) {
        assert!(self.replayable);
        self.content.start = self.base;
    }

    /// Whether the body's last byte has been received.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.decoder.is_done()
    }

    /// Declares a body that ends with the connection to be at its end.
    pub(crate) fn finish(&mut self) {
        self.decoder = BodyDecoder::default();
    }

    /// Trailer lines of a finished body.
    pub(crate) fn trailers(&self) -> &[u8] {
        self.decoder.trailers()
    }

    /// Trailer fields that were dropped for their names.
    #[inline]
    pub(crate) fn dropped_trailers(&self) -> usize {
        self.decoder.dropped()
    }

    /// Reads bytes of a head; `Ready(Ok(0))` is the end of the connection. The buffer must have room.
    pub(crate) fn poll_read_head(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut Stream,
        buffers: &Buffers,
    ) -> Poll<io::Result<usize>> {
        let at = self.leftover.end;
        let n = ready!(self.poll_read_at(at, cx, stream, buffers))?;
        self.leftover.end += n;
        Poll::Ready(Ok(n))
    }

    /// Reads ahead after the end of a message, to see whether the peer is still there. `None` if the buffer is full.
    pub(crate) fn poll_read_ahead(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut Stream,
        buffers: &Buffers,
    ) -> Option<Poll<io::Result<usize>>> {
        assert!(self.is_done());
        let room = self.buffer.as_ref().is_none_or(|buffer| self.leftover.end < buffer.len());
        room.then(|| self.poll_read_head(cx, stream, buffers))
    }

    /// Reads more of the body. All content must have been written; `keep` requires that what was received stays, as long as there
    /// is room. `Ready(Ok(Ok(0)))` is the end of the connection.
    pub(crate) fn poll_read_body(
        &mut self,
        keep: bool,
        cx: &mut Context<'_>,
        stream: &mut Stream,
        buffers: &Buffers,
    ) -> Poll<io::Result<Result<usize, ChunkError>>> {
        assert!(self.content.is_empty() && !self.is_done());
        let full = self.buffer.as_ref().is_some_and(|buffer| self.content.end >= buffer.len());
        if !keep || full {
            self.replayable &= self.content.end == self.base;
            self.content = self.base..self.base;
        }
        let at = self.content.end;
        let n = ready!(self.poll_read_at(at, cx, stream, buffers))?;
        Poll::Ready(Ok(self.decode(at..at + n).map(|()| n)))
    }

    /// Reads more of the body before the content received so far was written. `None` if the buffer is full.
    pub(crate) fn poll_read_early(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut Stream,
        buffers: &Buffers,
    ) -> Option<Poll<io::Result<Result<usize, ChunkError>>>> {
        assert!(!self.is_done());
        let at = self.content.end;
        let room = self.buffer.as_ref().is_none_or(|buffer| at < buffer.len());
        room.then(|| {
            let n = ready!(self.poll_read_at(at, cx, stream, buffers))?;
            Poll::Ready(Ok(self.decode(at..at + n).map(|()| n)))
        })
    }

    fn poll_read_at(
        &mut self,
        at: usize,
        cx: &mut Context<'_>,
        stream: &mut Stream,
        buffers: &Buffers,
    ) -> Poll<io::Result<usize>> {
        let fresh = self.buffer.is_none();
        let buffer = self.buffer.get_or_insert_with(|| buffers.take());
        let mut space = ReadBuf::new(&mut buffer[at..]);
        let read = stream.poll_read(cx, &mut space);
        let n = space.filled().len();
        match read {
            Poll::Ready(Ok(())) => {
                self.total += n as u64;
                Poll::Ready(Ok(n))
            }
            other => {
                // Nothing has arrived: a waiting connection owns no buffer.
                if fresh {
                    self.release(buffers);
                }
                other.map(|result| result.map(|()| 0))
            }
        }
    }

    /// The head is no longer needed: content may use the whole buffer.
    pub(crate) fn drop_head(&mut self) {
        self.base = 0;
        self.replayable = false;
    }

    /// Takes out the bytes after the end of the message, with their buffer.
    pub(crate) fn take_leftover(&mut self) -> Option<(Buffer, Range<usize>)> {
        if self.leftover.is_empty() {
            return None;
        }
        let held = std::mem::take(&mut self.leftover);
        self.buffer.take().map(|buffer| (buffer, held))
    }

    /// Restores a head that was kept elsewhere, of a message of which so many bytes were received.
    pub(crate) fn recall(&mut self, head: &[u8], total: u64, buffers: &Buffers) {
        let buffer = self.buffer.get_or_insert_with(|| buffers.take());
        buffer[..head.len()].copy_from_slice(head);
        self.base = head.len();
        self.content = self.base..self.base;
        self.leftover = self.base..self.base;
        self.total = total;
    }

    /// Returns the buffer if nothing in it is needed.
    pub(crate) fn release(&mut self, buffers: &Buffers) {
        if let Some(buffer) = self.buffer.take() {
            buffers.give(buffer);
        }
        self.base = 0;
        self.content = 0..0;
        self.leftover = 0..0;
    }
}
