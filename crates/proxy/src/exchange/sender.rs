//! The sending half of an HTTP/1 connection: heads and framed content, in as few system calls as possible.
//!
//! The next output is staged as three parts, the middle one being content that stays where it was received:
//!
//! ```text
//!   out[sent..split]            content[..content_left]        out[split..]
//!   head, chunk size line  →    (in a Receiver's buffer)   →   CRLF, last chunk, trailers
//! ```
//!
//! Small content is copied after the head, so that the usual message is one contiguous `write`; the rest is a `writev`.

use crate::basics::buffer::Buffers;
use crate::connection::stream::Stream;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};
use stillgate_wire::{CHUNK_HEAD_BYTES_MAX, chunk_head};

/// Content up to this size is cheaper to copy than to describe to `writev`.
pub(super) const COPY_BYTES_MAX: usize = 4096;

/// How the content of the current message is delimited on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum BodyDelimiting {
    /// Unframed: delimited by length or by the end of the connection, or absent.
    #[default]
    Raw,
    /// In chunks.
    Chunked,
}

/// Output of one connection.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    /// Staged bytes; it has no capacity while there are none.
    out: Vec<u8>,
    sent: usize,
    split: usize,
    /// Content bytes of the staged frame that are not written yet.
    content_left: usize,
    /// Something was written that the stream has not confirmed as sent.
    unflushed: bool,
    /// How content is framed.
    pub(crate) coding: BodyDelimiting,
    /// Bytes written since [`Sender::reset`].
    pub(crate) total: u64,
}

impl Sender {
    /// Begins a new message on a connection on which nothing is pending.
    pub(crate) fn reset(&mut self, buffers: &Buffers) {
        self.release(buffers);
        self.coding = BodyDelimiting::Raw;
        self.total = 0;
    }

    /// Whether everything staged has been sent.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        !self.unflushed && self.is_written()
    }

    #[inline]
    fn is_written(&self) -> bool {
        self.content_left == 0 && self.sent == self.out.len()
    }

    /// Content of the staged frame that is not written yet.
    #[inline]
    pub(crate) fn content_left(&self) -> usize {
        self.content_left
    }

    /// Buffer to which a head is appended. Nothing but heads may be pending.
    pub(crate) fn head(&mut self, buffers: &Buffers) -> &mut Vec<u8> {
        assert!(self.content_left == 0);
        if self.out.capacity() == 0 {
            self.out = buffers.take_output();
        }
        &mut self.out
    }

    /// Stages content, and the end of the message if `end` contains its trailer lines. `content` must be passed to
    /// [`Sender::poll_flush`] until it is written.
    pub(crate) fn stage(&mut self, content: &[u8], end: Option<&[u8]>, buffers: &Buffers) {
        assert!(self.content_left == 0);
        let framed = self.coding == BodyDelimiting::Chunked && (!content.is_empty() || end.is_some());
        if content.is_empty() && !framed {
            self.split = self.out.len();
            return;
        }
        let copied = content.len() <= COPY_BYTES_MAX && (framed || !self.out.is_empty());
        if framed || copied {
            self.head(buffers);
        }
        if framed && !content.is_empty() {
            self.out.extend_from_slice(chunk_head(content.len(), &mut [0; CHUNK_HEAD_BYTES_MAX]));
        }
        if copied {
            self.out.extend_from_slice(content);
        } else {
            self.content_left = content.len();
        }
        self.split = self.out.len();
        if framed {
            self.stage_frame_end(!content.is_empty(), end);
        }
    }

    fn stage_frame_end(&mut self, after_content: bool, end: Option<&[u8]>) {
        if after_content {
            self.out.extend_from_slice(b"\r\n");
        }
        if let Some(trailers) = end {
            self.out.extend_from_slice(b"0\r\n");
            self.out.extend_from_slice(trailers);
            self.out.extend_from_slice(b"\r\n");
        }
    }

    /// Writes what is staged; `content` are the bytes of the staged frame not yet written. Ready when all has been sent.
    pub(crate) fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut Stream,
        content: &[u8],
        buffers: &Buffers,
    ) -> Poll<io::Result<()>> {
        assert_eq!(content.len(), self.content_left);
        let offset = content.len();
        while !self.is_written() {
            let content = &content[offset - self.content_left..];
            let before = &self.out[self.sent.min(self.split)..self.split];
            let after = &self.out[self.split.max(self.sent)..];
            let wrote = match (before.is_empty(), content.is_empty(), after.is_empty()) {
                (_, true, _) => stream.poll_write(cx, &self.out[self.sent..]),
                (true, false, true) => stream.poll_write(cx, content),
                _ => {
                    stream.poll_write_vectored(cx, &[IoSlice::new(before), IoSlice::new(content), IoSlice::new(after)])
                }
            };
            match wrote {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(n)) => self.advance(n),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
        ready!(stream.poll_flush(cx))?;
        self.release(buffers);
        Poll::Ready(Ok(()))
    }

    /// Takes away what is staged, of which nothing has been written, so that something else can be sent first. [`Sender::resume`]
    /// puts it back.
    pub(crate) fn set_aside(&mut self) -> Vec<u8> {
        assert!(self.sent == 0 && self.content_left == 0);
        self.split = 0;
        std::mem::take(&mut self.out)
    }

    /// Puts what was set aside after what is staged now.
    pub(crate) fn resume(&mut self, staged: Vec<u8>, buffers: &Buffers) {
        if self.out.capacity() == 0 {
            self.out = staged;
        } else {
            self.out.extend_from_slice(&staged);
            buffers.give_output(staged);
        }
        self.split = self.out.len();
    }

    fn advance(&mut self, wrote: usize) {
        self.total += wrote as u64;
        self.unflushed = true;
        let before = wrote.min(self.split.saturating_sub(self.sent));
        self.sent += before;
        let content = (wrote - before).min(self.content_left);
        self.content_left -= content;
        self.sent += wrote - before - content;
    }

    /// Returns the memory of the staged bytes, sent or not.
    pub(crate) fn release(&mut self, buffers: &Buffers) {
        if self.out.capacity() != 0 {
            buffers.give_output(std::mem::take(&mut self.out));
        }
        self.sent = 0;
        self.split = 0;
        self.content_left = 0;
        self.unflushed = false;
    }
}
