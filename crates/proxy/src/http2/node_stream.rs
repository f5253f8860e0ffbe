//! One request to a node that speaks HTTP/2, as a connection of HTTP/1.1 that our engine writes it to.

use super::incoming::{Incoming, broken};
use super::node::Shared;
use super::outgoing::{self, Outgoing, malformed};
use super::response;
use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Request, Response, Uri, header};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use stillgate_wire::{Framing, HeadLimits, Method, Name, Progress, RequestHead};
use tokio::io::ReadBuf;

/// A stream of HTTP/2 to a node. What is written to it is the request in HTTP/1.1, what is read from it the response.
pub(crate) struct NodeStream {
    shared: Rc<Shared>,
    method: Method,
    request: Sending,
    response: Receiving,
    /// The node has said that it has not looked at the request.
    is_unseen: bool,
}

/// Where the request is.
enum Sending {
    /// What has come of its head, as long as that is not whole.
    Head(SendRequest<Bytes>, Vec<u8>),
    Body(Outgoing),
}

/// Where the response is.
enum Receiving {
    /// The request is not out.
    Not,
    Head(ResponseFuture),
    Body(Incoming),
    /// There will be none, as the request could not be sent.
    Never,
}

impl NodeStream {
    pub(super) fn new(send: SendRequest<Bytes>, shared: Rc<Shared>) -> NodeStream {
        shared.live.set(shared.live.get() + 1);
        NodeStream {
            shared,
            method: Method::Get,
            request: Sending::Head(send, Vec::new()),
            response: Receiving::Not,
            is_unseen: false,
        }
    }

    /// The node was silent for too long. It may be slow, or the way to it broken, which nothing else would tell for a quarter of
    /// an hour: requests under way go on, further ones get another connection.
    pub(crate) fn retire(&self) {
        self.shared.is_retired.set(true);
    }

    /// Whether the node, having failed, has not looked at the request.
    pub(crate) fn is_unseen(&self) -> bool {
        self.is_unseen
    }

    /// Ready with nothing where the response is at its end.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Receiving::Head(future) = &mut self.response {
            if let Poll::Ready(Some(interim)) = future.poll_informational(cx) {
                let interim = interim.map_err(|error| failed(&mut self.is_unseen, error))?;
                return Poll::Ready(self.write_interim(&interim, space));
            }
            let response = ready!(Pin::new(future).poll(cx)).map_err(|error| failed(&mut self.is_unseen, error))?;
            self.write_head(response, space);
            // What is here of the body goes along; that nothing is, is no reason to wait.
            if let Receiving::Body(body) = &mut self.response
                && !body.is_done()
                && let Poll::Ready(Err(error)) = body.poll_read(cx, space)
            {
                return Poll::Ready(Err(error));
            }
            return Poll::Ready(Ok(()));
        }
        match &mut self.response {
            Receiving::Body(body) => body.poll_read(cx, space),
            Receiving::Never => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            // The request is written by the very task that reads here, and it reads again when it has.
            _ => Poll::Pending,
        }
    }

    fn write_interim(&mut self, interim: &Response<()>, space: &mut ReadBuf<'_>) -> io::Result<()> {
        let head = &mut self.shared.scratch.borrow_mut().response;
        head.clear();
        response::write_head(head, interim.status(), interim.headers(), response::Body::None);
        if head.len() > space.remaining() {
            return Err(malformed("an interim response that is larger than a buffer"));
        }
        space.put_slice(head);
        Ok(())
    }

    fn write_head(&mut self, response: Response<RecvStream>, space: &mut ReadBuf<'_>) {
        let (parts, body) = response.into_parts();
        let kind = response::Body::of(self.method, &parts, body.is_end_stream());
        let mut incoming = Incoming::new(body, kind == response::Body::Chunked);
        let head = &mut self.shared.scratch.borrow_mut().response;
        head.clear();
        response::write_head(head, parts.status, &parts.headers, kind);
        incoming.put_head(head, space);
        self.response = Receiving::Body(incoming);
    }

    pub(crate) fn poll_write<'p>(
        &mut self,
        cx: &mut Context<'_>,
        parts: impl Iterator<Item = &'p [u8]>,
    ) -> Poll<io::Result<usize>> {
        let written = self.poll_write_parts(cx, parts.filter(|part| !part.is_empty()));
        if matches!((&self.response, &written), (Receiving::Not, Poll::Ready(Err(_)))) {
            self.response = Receiving::Never;
        }
        written
    }

    fn poll_write_parts<'p>(
        &mut self,
        cx: &mut Context<'_>,
        mut parts: impl Iterator<Item = &'p [u8]>,
    ) -> Poll<io::Result<usize>> {
        let Sending::Head(send, partial) = &mut self.request else { return self.poll_write_body(cx, parts) };
        let Some(part) = parts.next() else { return Poll::Ready(Ok(0)) };
        let had = partial.len();
        let head = if had == 0 {
            part
        } else {
            partial.extend_from_slice(part);
            &partial[..]
        };
        let shared = self.shared.clone();
        let parsed = &mut shared.scratch.borrow_mut().request;
        parsed.reset();
        let len = match parsed.advance(head, &HeadLimits::EDITED).map_err(malformed)? {
            Progress::Complete(len) => len,
            Progress::Partial => {
                if had == 0 {
                    partial.extend_from_slice(part);
                }
                return Poll::Ready(Ok(part.len()));
            }
        };
        let request = request(&Bytes::copy_from_slice(&head[..len]), parsed)?;
        let framing = parsed.framing;
        self.method = parsed.method;
        let is_end = matches!(framing, Framing::None | Framing::Length(0));
        let (future, stream) = match send.send_request(request, is_end) {
            Ok(sent) => sent,
            Err(error) => return Poll::Ready(Err(failed(&mut self.is_unseen, error))),
        };
        self.response = Receiving::Head(future);
        self.request = Sending::Body(Outgoing::new(stream, framing));
        let taken = len - had;
        let rest = [&part[taken..]];
        let rest = rest.into_iter().chain(parts).filter(|part| !part.is_empty());
        match self.poll_write_body(cx, rest) {
            Poll::Ready(Ok(more)) => Poll::Ready(Ok(taken + more)),
            // The head is out; what became of the rest shows with the next write.
            _ => Poll::Ready(Ok(taken)),
        }
    }

    fn poll_write_body<'p>(
        &mut self,
        cx: &mut Context<'_>,
        parts: impl Iterator<Item = &'p [u8]>,
    ) -> Poll<io::Result<usize>> {
        let Sending::Body(body) = &mut self.request else { return Poll::Ready(Ok(0)) };
        let mut parts = parts.peekable();
        if parts.peek().is_none() {
            return Poll::Ready(Ok(0));
        }
        body.poll_write(cx, parts)
    }
}

impl Drop for NodeStream {
    /// A request that breaks off is reset by `h2`, as nobody wants its response.
    fn drop(&mut self) {
        self.shared.live.set(self.shared.live.get() - 1);
    }
}

/// What ended the stream; notes where the node has not looked at the request (RFC 9113 section 8.7).
fn failed(is_unseen: &mut bool, error: h2::Error) -> io::Error {
    *is_unseen |= error.is_remote() && (error.is_go_away() || error.reason() == Some(Reason::REFUSED_STREAM));
    broken(error)
}

/// A request whose head our engine wrote.
fn request(head: &Bytes, parsed: &RequestHead) -> io::Result<Request<()>> {
    let part = |span: stillgate_wire::Span| head.slice(usize::from(span.start)..span.end());
    let mut uri = http::uri::Parts::default();
    uri.scheme = Some(Scheme::HTTP);
    uri.authority = Some(Authority::from_maybe_shared(part(parsed.authority)).map_err(malformed)?);
    uri.path_and_query = Some(PathAndQuery::from_maybe_shared(part(parsed.target)).map_err(malformed)?);
    let mut request = Request::new(());
    *request.method_mut() = http::Method::from_bytes(parsed.method_bytes(head)).map_err(malformed)?;
    *request.uri_mut() = Uri::from_parts(uri).map_err(malformed)?;
    *request.headers_mut() = outgoing::fields(head, &parsed.fields, parsed.hop_by_hop)?;
    if parsed.fields.get(head, Name::Te).is_some_and(|te| te == b"trailers") {
        request.headers_mut().insert(header::TE, HeaderValue::from_static("trailers"));
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests() {
        let head = Bytes::from_static(
            b"POST /a?b HTTP/1.1\r\nHost: h:81\r\nX-One: 1\r\nTE: trailers\r\nConnection: close\r\nx-one: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
        );
        let mut parsed = RequestHead::default();
        parsed.advance(&head, &HeadLimits::EDITED).unwrap();
        let request = request(&head, &parsed).unwrap();
        assert_eq!((request.method().as_str(), request.uri().to_string().as_str()), ("POST", "http://h:81/a?b"));
        let fields: Vec<_> = request.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        assert_eq!(fields, [("x-one", &b"1"[..]), ("x-one", b"2"), ("te", b"trailers")]);
    }
}
