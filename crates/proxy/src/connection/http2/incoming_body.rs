//! A message that arrives over HTTP/2, as the HTTP/1.1 bytes that our engine reads.
//!
//! Only what the engine takes is released to flow control: the window bounds what is held of a stream.

use super::bodies::BodyReader;
use super::grpc_web;
use crate::connection::grpc::Web;
use bytes::{Buf, Bytes};
use http::header::{self, HeaderMap};
use std::io;
use std::task::{Context, Poll, ready};
use stillgate_wire::{CHUNK_HEAD_BYTES_MAX, chunk_head};
use tokio::io::ReadBuf;

/// State of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyState {
    Data,
    Trailers,
    Done,
}

/// The body of one message, and the part of its head that the engine has not read yet.
pub(super) struct IncomingBody {
    body: BodyReader,
    /// Our own bytes before `data`: the head, chunk lines, trailers.
    staged: Vec<u8>,
    staged_read: usize,
    /// The bytes of the last part received that the engine has not read.
    data: Bytes,
    is_chunked: bool,
    /// The end of a chunk is to be written after `data`.
    in_chunk: bool,
    /// For a response to a gRPC-Web call, and whether its head carries the call's status.
    web: Option<Web>,
    has_status: bool,
    state: BodyState,
}

impl IncomingBody {
    /// `is_chunked`: the head announces the chunked coding; otherwise it states the length, which may be absent.
    pub(super) fn new(body: BodyReader, is_chunked: bool) -> IncomingBody {
        IncomingBody {
            body,
            staged: Vec::new(),
            staged_read: 0,
            data: Bytes::new(),
            is_chunked,
            in_chunk: false,
            web: None,
            has_status: false,
            state: BodyState::Data,
        }
    }

    /// Turns a gRPC response into a gRPC-Web response.
    pub(super) fn bridged(self, web: Web, has_status: bool) -> IncomingBody {
        IncomingBody { web: Some(web), has_status, ..self }
    }

    /// Puts the head before everything else; most of the time it goes to the engine at once.
    pub(super) fn put_head(&mut self, head: &[u8], space: &mut ReadBuf<'_>) {
        let (now, later) = head.split_at(head.len().min(space.remaining()));
        space.put_slice(now);
        self.staged.extend_from_slice(later);
    }

    pub(super) fn is_chunked(&self) -> bool {
        self.is_chunked
    }

    /// Whether its sender has ended it, and the library holds nothing more of it.
    pub(super) fn has_ended(&self) -> bool {
        self.body.has_ended()
    }

    /// Whether the engine has read all of it.
    pub(super) fn is_done(&self) -> bool {
        self.state == BodyState::Done && self.staged_read == self.staged.len()
    }

    /// Reads as much as there is. Ready with nothing read only if the message is complete.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = space.filled().len();
        loop {
            self.read_staged(space);
            self.read_data(space)?;
            let is_full = space.remaining() == 0 || self.staged_read < self.staged.len() || !self.data.is_empty();
            if is_full || self.state == BodyState::Done {
                return Poll::Ready(Ok(()));
            }
            let advanced = match self.state {
                BodyState::Data => self.poll_data(cx),
                _ => self.poll_trailers(cx),
            };
            match advanced {
                Poll::Ready(result) => result.map_err(broken)?,
                Poll::Pending if space.filled().len() > before => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn read_staged(&mut self, space: &mut ReadBuf<'_>) {
        let rest = &self.staged[self.staged_read..];
        let take = rest.len().min(space.remaining());
        space.put_slice(&rest[..take]);
        self.staged_read += take;
        if self.staged_read == self.staged.len() {
            self.staged.clear();
            self.staged_read = 0;
        }
    }

    fn read_data(&mut self, space: &mut ReadBuf<'_>) -> io::Result<()> {
        let take = self.data.len().min(space.remaining());
        if take == 0 || !self.staged.is_empty() {
            return Ok(());
        }
        space.put_slice(&self.data[..take]);
        self.data.advance(take);
        self.body.release(take).map_err(broken)?;
        if self.data.is_empty() && self.in_chunk {
            self.in_chunk = false;
            self.staged.extend_from_slice(b"\r\n");
            self.read_staged(space);
        }
        Ok(())
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        match ready!(self.body.poll_data(cx)).transpose()? {
            None => self.state = BodyState::Trailers,
            // A chunk of no bytes would be the last one.
            Some(data) if data.is_empty() => {}
            // One frame at a time: it is held as text until it is read, and no more is taken before.
            Some(data) if self.web.is_some_and(|web| web.wants_text) => {
                self.body.release(data.len())?;
                self.push_chunk(grpc_web::encode(&data).as_bytes());
            }
            Some(data) => {
                if self.is_chunked {
                    self.staged.extend_from_slice(chunk_head(data.len(), &mut [0; CHUNK_HEAD_BYTES_MAX]));
                    self.in_chunk = true;
                }
                self.data = data;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Stages a complete chunk.
    fn push_chunk(&mut self, content: &[u8]) {
        self.staged.extend_from_slice(chunk_head(content.len(), &mut [0; CHUNK_HEAD_BYTES_MAX]));
        self.staged.extend_from_slice(content);
        self.staged.extend_from_slice(b"\r\n");
    }

    fn poll_trailers(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        let trailers = ready!(self.body.poll_trailers(cx))?;
        // HTTP/1.1 allows trailers only if a body is chunked.
        if self.is_chunked {
            match (self.web, trailers) {
                // A response that has its status in its head, and has nothing to add, ends without a frame.
                (Some(web), trailers) if trailers.is_some() || !self.has_status => {
                    let frame = grpc_web::trailers_frame(trailers, self.has_status);
                    match web.wants_text {
                        true => self.push_chunk(grpc_web::encode(&frame).as_bytes()),
                        false => self.push_chunk(&frame),
                    }
                    self.staged.extend_from_slice(b"0\r\n");
                }
                (_, Some(trailers)) => {
                    self.staged.extend_from_slice(b"0\r\n");
                    push_fields(&mut self.staged, &trailers, |_| true);
                }
                (_, None) => self.staged.extend_from_slice(b"0\r\n"),
            }
            self.staged.extend_from_slice(b"\r\n");
        }
        self.state = BodyState::Done;
        Poll::Ready(Ok(()))
    }
}

/// The error of reading or writing a stream that was reset.
pub(super) fn broken(error: h2::Error) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, error)
}

/// Appends fields as lines, except those that `keep` rejects. Cookies in several fields are joined into one line again (RFC 9113
/// section 8.2.3).
pub(super) fn push_fields(out: &mut Vec<u8>, fields: &HeaderMap, keep: impl Fn(&header::HeaderName) -> bool) {
    for name in fields.keys().filter(|name| keep(name)) {
        let values = fields.get_all(name).iter();
        if name == header::COOKIE {
            for (index, value) in values.enumerate() {
                out.extend_from_slice(if index == 0 { b"cookie: " } else { b"; " });
                out.extend_from_slice(value.as_bytes());
            }
            out.extend_from_slice(b"\r\n");
            continue;
        }
        for value in values {
            out.extend_from_slice(name.as_str().as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// Appends `name: value\r\n`.
pub(super) fn push_line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}
