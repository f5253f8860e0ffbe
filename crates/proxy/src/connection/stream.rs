//! A connection's bytes: plain, through TLS, one stream of an HTTP/2 connection, or to another thread of this process.
//!
//! A system call on a plain connection is one system call here, too: the match is the only cost. TLS may hold back written bytes if
//! the socket is full, so only [`Stream::poll_flush`] confirms that they were sent.

use super::http2::{ClientStream, NodeConnection, NodeStream};
use socket2::SockRef;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use stillgate_tls::rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsStream;

/// One connection, to a client or to a node.
pub(crate) enum Stream {
    Plain(TcpStream),
    /// On the heap, as most connections are plain.
    Tls(Box<Tls>),
    /// A client's request over HTTP/2, spoken as HTTP/1.1.
    Http2(Box<ClientStream>),
    /// An HTTP/2 stream to a node.
    Http2Node(Box<NodeStream>),
    /// An HTTP/2 connection to a node, as the pool keeps it: reading and writing use a stream of it.
    Http2Pooled(Box<NodeConnection>),
    /// To another thread of this process, for one request.
    Local(UnixStream),
}

/// A connection through TLS.
pub(crate) struct Tls {
    pub(crate) stream: TlsStream<TcpStream>,
    /// For a node: the name that its certificate was verified for. Requests for another name must not use the connection.
    pub(crate) server_name: Option<ServerName<'static>>,
}

impl Tls {
    #[inline]
    fn poll_read(&mut self, cx: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, space);
        // TLS's own answers, such as to a peer that wants to renegotiate, wait for us to write, and we may have nothing to write.
        if read.is_pending() && self.stream.get_ref().1.wants_write() {
            // The next user of the socket sees that it has failed.
            let _ = Pin::new(&mut self.stream).poll_flush(cx);
        }
        read
    }
}

impl Stream {
    /// The socket below. An HTTP/2 stream does not have one of its own.
    #[inline]
    pub(crate) fn socket(&self) -> Option<&TcpStream> {
        match self {
            Stream::Plain(stream) => Some(stream),
            Stream::Tls(tls) => Some(tls.stream.get_ref().0),
            Stream::Http2(_) | Stream::Http2Node(_) | Stream::Http2Pooled(_) | Stream::Local(_) => None,
        }
    }

    /// Makes its end a reset, so that a truncated message does not look complete. An HTTP/2 stream that is dropped before its end
    /// is reset in any case.
    pub(crate) fn reset_when_closed(&self) {
        if let Some(socket) = self.socket() {
            // A connection that is already gone needs no reset.
            let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
        }
    }

    /// Whether bytes wait in the socket that the event loop has not reported yet: after a pause of the process the clock is looked
    /// at before the sockets, and closing on top of a request would reset it.
    pub(crate) fn has_arrived(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        let peeked = self.socket().map(|socket| SockRef::from(socket).peek(&mut byte));
        matches!(peeked, Some(Ok(n)) if n > 0)
    }

    /// Whether the socket has failed since the last check.
    pub(crate) fn has_failed(&self) -> bool {
        self.socket().is_some_and(|socket| matches!(socket.take_error(), Ok(Some(_)) | Err(_)))
    }

    pub(crate) fn is_http2(&self) -> bool {
        matches!(self, Stream::Http2(_))
    }

    /// For an HTTP/2 stream: the client asks for another protocol on it (RFC 8441).
    pub(crate) fn is_connect(&self) -> bool {
        matches!(self, Stream::Http2(stream) if stream.is_connect)
    }

    /// For an HTTP/2 stream: the response is complete, and the client may still send parts of its request.
    pub(crate) fn is_answered_early(&self) -> bool {
        matches!(self, Stream::Http2(stream) if stream.is_answered_early())
    }

    /// For a connection that carries many requests at once: one more stream.
    pub(crate) fn share(&self) -> Option<Stream> {
        match self {
            Stream::Http2Pooled(connection) => Some(Stream::Http2Node(Box::new(connection.open()))),
            _ => None,
        }
    }

    /// Whether it carries its maximum of requests.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Stream::Http2Pooled(connection) if connection.is_full())
    }

    /// Whether a request may use it: those with large heads have connections of their own, where others would share one.
    pub(crate) fn is_for(&self, has_large_head: bool) -> bool {
        !matches!(self, Stream::Http2Pooled(connection) if connection.is_exclusive() != has_large_head)
    }

    /// Whether it is one request, and not a connection that is kept after it.
    pub(crate) fn is_one_request(&self) -> bool {
        matches!(self, Stream::Http2(_) | Stream::Http2Node(_) | Stream::Local(_))
    }

    /// Whether the node has failed without having processed the request.
    pub(crate) fn is_unprocessed(&self) -> bool {
        matches!(self, Stream::Http2Node(stream) if stream.is_unprocessed())
    }

    /// Whether the node has reported that the request, or its connection because of it, violates its protocol or its limits.
    pub(crate) fn is_protocol_error(&self) -> bool {
        matches!(self, Stream::Http2Node(stream) if stream.is_protocol_error())
    }

    /// What a node seems to speak instead of the expected protocol, judging by the first bytes `received` of its response.
    pub(crate) fn mistaken(&self, received: &[u8]) -> Option<NodeProtocolGuess> {
        match self {
            Stream::Http2Node(stream) => stream.mistaken(),
            _ => NodeProtocolGuess::of(received, false),
        }
    }

    pub(crate) fn is_tls(&self) -> bool {
        matches!(self, Stream::Tls(_))
    }

    /// The protocol that the TLS handshake has agreed on (ALPN).
    pub(crate) fn alpn_protocol(&self) -> Option<&[u8]> {
        match self {
            Stream::Tls(tls) => tls.stream.get_ref().1.alpn_protocol(),
            _ => None,
        }
    }

    /// For a node through TLS, the name that its certificate was verified for.
    #[inline]
    pub(crate) fn server_name(&self) -> Option<&ServerName<'static>> {
        match self {
            Stream::Tls(tls) => tls.server_name.as_ref(),
            Stream::Http2Pooled(connection) => connection.server_name(),
            Stream::Plain(_) | Stream::Http2(_) | Stream::Http2Node(_) | Stream::Local(_) => None,
        }
    }

    /// The node was silent for too long: a connection shared by requests must not take more of them.
    pub(crate) fn retire(&self) {
        if let Stream::Http2Node(stream) = self {
            stream.retire();
        }
    }

    /// Ready where reading may return something. With TLS that may be nothing for us, and the read is then pending; and the socket
    /// does not report what TLS already holds decrypted, such as a request that came right after the handshake.
    #[inline]
    pub(crate) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Stream::Tls(tls) = self
            && !tls.stream.get_ref().1.wants_read()
        {
            return Poll::Ready(Ok(()));
        }
        self.socket().map_or(Poll::Ready(Ok(())), |socket| socket.poll_read_ready(cx))
    }

    #[inline]
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, space),
            Stream::Tls(tls) => tls.poll_read(cx, space),
            Stream::Http2(stream) => stream.poll_read(cx, space),
            Stream::Http2Node(stream) => stream.poll_read(cx, space),
            Stream::Local(stream) => Pin::new(stream).poll_read(cx, space),
            Stream::Http2Pooled(_) => Poll::Ready(Err(io::ErrorKind::Unsupported.into())),
        }
    }

    #[inline]
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Tls(tls) => Pin::new(&mut tls.stream).poll_write(cx, bytes),
            Stream::Http2(stream) => stream.poll_write(cx, std::iter::once(bytes)),
            Stream::Http2Node(stream) => stream.poll_write(cx, std::iter::once(bytes)),
            Stream::Local(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Http2Pooled(_) => Poll::Ready(Err(io::ErrorKind::Unsupported.into())),
        }
    }

    #[inline]
    pub(crate) fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Stream::Tls(tls) => Pin::new(&mut tls.stream).poll_write_vectored(cx, parts),
            Stream::Http2(stream) => stream.poll_write(cx, parts.iter().map(|part| &**part)),
            Stream::Http2Node(stream) => stream.poll_write(cx, parts.iter().map(|part| &**part)),
            Stream::Local(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Stream::Http2Pooled(_) => Poll::Ready(Err(io::ErrorKind::Unsupported.into())),
        }
    }

    /// Ready when the kernel has all written bytes.
    #[inline]
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Tls(tls) => Pin::new(&mut tls.stream).poll_flush(cx),
            _ => Poll::Ready(Ok(())),
        }
    }

    /// Closes our side: for TLS with a close_notify, so that the peer can distinguish an end from a truncation.
    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(tls) => Pin::new(&mut tls.stream).poll_shutdown(cx),
            Stream::Http2(stream) => stream.poll_shutdown(),
            // Its last frame has announced the end.
            Stream::Http2Node(_) | Stream::Http2Pooled(_) => Poll::Ready(Ok(())),
            Stream::Local(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    /// Sends close_notify to a TLS peer, as far as that can be written at once. On a plain connection closing says the same.
    pub(crate) fn send_close_notify(&mut self) {
        if self.is_tls() {
            // A peer that has stopped reading does not need it.
            let _ = self.poll_shutdown(&mut Context::from_waker(Waker::noop()));
        }
    }

    /// Whether an idle connection was closed, or has sent something unsolicited. Costs no system call while nothing happened: the
    /// event loop's readiness says so. TLS messages such as a session ticket are consumed, and do not count as an end.
    pub(crate) fn is_dead(&mut self) -> bool {
        match self {
            Stream::Plain(stream) => {
                !matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
            }
            Stream::Tls(tls) => {
                let mut space = [0];
                let read = Pin::new(&mut tls.stream)
                    .poll_read(&mut Context::from_waker(Waker::noop()), &mut ReadBuf::new(&mut space));
                read.is_ready()
            }
            Stream::Http2(_) | Stream::Http2Node(_) | Stream::Local(_) => false,
            Stream::Http2Pooled(connection) => connection.is_dead(),
        }
    }
}

// What a node seems to speak if it does not answer in the expected protocol, and which key to change; no IO.
//
// It is a guess for the log, made when the request has failed anyway.

/// A protocol other than the one configured for the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeProtocolGuess {
    Tls,
    Http1,
    Http2,
}

impl NodeProtocolGuess {
    /// Guesses by the first bytes from a node that was contacted in HTTP/2 or HTTP/1.1.
    pub(crate) fn of(first: &[u8], is_http2: bool) -> Option<NodeProtocolGuess> {
        /// A TLS record (RFC 8446 section 5.1) with an alert, of any version since SSL 3.
        const TLS_ALERT: &[u8] = &[21, 3];
        match first {
            _ if first.starts_with(TLS_ALERT) => Some(NodeProtocolGuess::Tls),
            _ if is_http2 => first.starts_with(b"HTTP/1.").then_some(NodeProtocolGuess::Http1),
            // SETTINGS, with which each side begins (RFC 9113 section 3.4): less than 64 KiB long, not an ACK, for the connection.
            [0, _, _, 4, 0, 0, 0, 0, 0, ..] => Some(NodeProtocolGuess::Http2),
            _ => None,
        }
    }

    /// What to do about it.
    pub(crate) fn hint(self) -> &'static str {
        match self {
            NodeProtocolGuess::Tls => "it seems to speak TLS: write `scheme: https`, or `grpcs` for `grpc`",
            NodeProtocolGuess::Http1 => {
                "it seems to speak HTTP/1.1 only: remove `http2`, or write `http` or `https` as `scheme`"
            }
            NodeProtocolGuess::Http2 => "it seems to speak HTTP/2 only: write `http2: true`, or `scheme: grpc`",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes() {
        let check = |first: &[u8], is_http2, expected| {
            assert_eq!(NodeProtocolGuess::of(first, is_http2), expected, "{first:?} {is_http2}");
        };
        for is_http2 in [false, true] {
            check(&[21, 3, 1, 0, 2, 2, 70], is_http2, Some(NodeProtocolGuess::Tls));
            check(&[22, 3, 1], is_http2, None);
            check(b"", is_http2, None);
        }
        check(b"HTTP/1.1 400 Bad Request", true, Some(NodeProtocolGuess::Http1));
        check(b"HTTP/1.1 400 Bad Request", false, None);
        check(&[0, 0, 18, 4, 0, 0, 0, 0, 0, 0, 3], false, Some(NodeProtocolGuess::Http2));
        check(&[0, 0, 18, 4, 0, 0, 0, 0, 0, 0, 3], true, None);
        check(&[0, 0, 0, 4, 1, 0, 0, 0, 0], false, None);
    }
}
