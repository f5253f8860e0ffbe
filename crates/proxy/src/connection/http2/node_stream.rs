//! One request to a node that speaks HTTP/2, presented as an HTTP/1.1 connection to which our engine writes.

use super::NodeShared;
use super::bodies::BodyReader;
use super::bounds::RESETS_TO_NODE_MAX;
use super::grpc_web;
use super::incoming_body::{IncomingBody, broken, push_fields};
use super::outgoing_body::{self, OutgoingBody, malformed};
use crate::connection::grpc::{self, Call, Web};
use crate::connection::stream::NodeProtocolGuess;
use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream};
use http::response::Parts;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, header};
use std::fmt;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use stillgate_wire::{Framing, HeadLimits, Method, Name, RequestHead};
use tokio::io::ReadBuf;

/// An HTTP/2 stream to a node. What is written to it is the request in HTTP/1.1, and what is read from it is the response.
pub(crate) struct NodeStream {
    shared: Rc<NodeShared>,
    /// Its number, as soon as the request is out.
    id: Option<u32>,
    method: Method,
    request: RequestState,
    response: ResponseState,
    /// Set for a gRPC-Web call, which the node gets as a gRPC call.
    web: Option<Web>,
    /// The client accepts trailers (`TE: trailers`).
    takes_trailers: bool,
    /// Whether it is counted among those that the node leaves little room.
    is_blocked: bool,
    rejection: Rejection,
}

/// How the node has rejected the request by ending its stream or its connection.
#[derive(Debug, Default)]
struct Rejection {
    /// The stream, or its connection, has ended with an error.
    has_failed: bool,
    /// The node has not processed the request.
    is_unprocessed: bool,
    /// The request, or its connection because of it, violates its protocol or its limits.
    is_protocol_error: bool,
}

/// State of the request.
enum RequestState {
    /// The part of its head that has arrived, as long as it is incomplete.
    Head(SendRequest<Bytes>, Vec<u8>),
    Body(OutgoingBody),
}

/// State of the response.
enum ResponseState {
    /// The request has not been sent.
    Not,
    Head(ResponseFuture),
    Body(IncomingBody),
    /// There will be none, as the request could not be sent.
    Never,
}

impl NodeStream {
    pub(super) fn new(send: SendRequest<Bytes>, shared: Rc<NodeShared>) -> NodeStream {
        shared.live.set(shared.live.get() + 1);
        NodeStream {
            shared,
            id: None,
            method: Method::Get,
            request: RequestState::Head(send, Vec::new()),
            response: ResponseState::Not,
            web: None,
            takes_trailers: false,
            is_blocked: false,
            rejection: Rejection::default(),
        }
    }

    /// The node was silent for too long. It may be slow, or the path to it may be broken, which nothing else would report for a
    /// quarter of an hour: requests under way continue, further ones get another connection.
    pub(crate) fn retire(&self) {
        self.shared.is_retired.set(true);
    }

    /// Whether the request was sent, and it or its response has not ended.
    fn is_unfinished(&self) -> bool {
        let is_sent = matches!(&self.request, RequestState::Body(body) if body.is_done());
        match &self.response {
            ResponseState::Not | ResponseState::Never => false,
            ResponseState::Head(_) => !self.rejection.has_failed,
            ResponseState::Body(body) => !(body.is_done() || body.has_ended()) || !is_sent,
        }
    }

    /// Whether the node has failed without having processed the request.
    pub(crate) fn is_unprocessed(&self) -> bool {
        self.rejection.is_unprocessed
    }

    /// Whether the node has reported that the request, or its connection because of it, violates its protocol or its limits.
    pub(crate) fn is_protocol_error(&self) -> bool {
        self.rejection.is_protocol_error
    }

    /// What the node seems to speak instead of HTTP/2.
    pub(crate) fn mistaken(&self) -> Option<NodeProtocolGuess> {
        self.shared.mistaken.get()
    }

    /// Ready with nothing if the response is at its end.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.id.is_some_and(|id| self.shared.marked.take(id)) {
            return Poll::Ready(Err(malformed("pseudo-headers where a response has none (RFC 9113 section 8.3)")));
        }
        if let ResponseState::Head(future) = &mut self.response {
            if let Poll::Ready(Some(interim)) = future.poll_informational(cx) {
                self.id.into_iter().for_each(|id| self.shared.marked.interim_taken(id));
                let interim = interim.map_err(|error| self.rejection.note_failure(error))?;
                return Poll::Ready(self.write_interim(&interim, space));
            }
            let response = ready!(Pin::new(future).poll(cx)).map_err(|error| self.rejection.note_failure(error))?;
            self.write_head(response, space);
            // Whatever has arrived of the body goes along; an empty body so far does not make the head wait.
            if let ResponseState::Body(body) = &mut self.response
                && !body.is_done()
                && let Poll::Ready(Err(error)) = body.poll_read(cx, space)
            {
                return Poll::Ready(Err(error));
            }
            return Poll::Ready(Ok(()));
        }
        match &mut self.response {
            ResponseState::Body(body) => body.poll_read(cx, space),
            ResponseState::Never => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            // The same task writes the request and reads here, and it reads again after it has written.
            _ => Poll::Pending,
        }
    }

    fn write_interim(&mut self, interim: &Response<()>, space: &mut ReadBuf<'_>) -> io::Result<()> {
        let head = &mut self.shared.scratch.borrow_mut().response;
        head.clear();
        write_head(head, interim.status(), interim.headers(), ResponseBody::None);
        if head.len() > space.remaining() {
            return Err(malformed("an interim response that is larger than a buffer"));
        }
        space.put_slice(head);
        Ok(())
    }

    fn write_head(&mut self, response: Response<RecvStream>, space: &mut ReadBuf<'_>) {
        let (mut parts, body) = response.into_parts();
        let web = self.web.filter(|web| grpc_web::edit_response(*web, &mut parts.headers));
        let mut kind = ResponseBody::of(self.method, &parts, body.is_end_stream());
        // In HTTP/1.1 trailers come only after chunks. The end of the stream shows what the length would: `h2` compares the two.
        if kind == ResponseBody::Length && self.takes_trailers && !body.is_end_stream() {
            parts.headers.remove(header::CONTENT_LENGTH);
            kind = ResponseBody::Chunked;
        }
        let body = BodyReader::new(self.shared.bodies.clone(), body);
        let mut incoming = IncomingBody::new(body, kind == ResponseBody::Chunked);
        if let Some(web) = web {
            incoming = incoming.bridged(web, parts.headers.contains_key(grpc_web::STATUS));
        }
        let head = &mut self.shared.scratch.borrow_mut().response;
        head.clear();
        write_head(head, parts.status, &parts.headers, kind);
        incoming.put_head(head, space);
        self.response = ResponseState::Body(incoming);
    }

    pub(crate) fn poll_write<'p>(
        &mut self,
        cx: &mut Context<'_>,
        parts: impl Iterator<Item = &'p [u8]>,
    ) -> Poll<io::Result<usize>> {
        let written = self.poll_write_parts(cx, parts);
        let is_tight = matches!(&self.request, RequestState::Body(body) if body.is_tight());
        if is_tight != self.is_blocked {
            self.block(is_tight);
        }
        if matches!((&self.response, &written), (ResponseState::Not, Poll::Ready(Err(_)))) {
            self.response = ResponseState::Never;
        }
        written
    }

    /// Notes for the other requests of the connection whether the node leaves this one little room.
    fn block(&mut self, is_blocked: bool) {
        self.is_blocked = is_blocked;
        let blocked = self.shared.blocked.get();
        self.shared.blocked.set(if is_blocked { blocked + 1 } else { blocked - 1 });
    }

    fn poll_write_parts<'p>(
        &mut self,
        cx: &mut Context<'_>,
        parts: impl Iterator<Item = &'p [u8]>,
    ) -> Poll<io::Result<usize>> {
        let (send, partial) = match &mut self.request {
            RequestState::Head(send, partial) => (send, partial),
            RequestState::Body(body) => return body.poll_write(cx, parts),
        };
        let mut parts = parts.filter(|part| !part.is_empty());
        let Some(part) = parts.next() else { return Poll::Ready(Ok(0)) };
        let shared = self.shared.clone();
        let parsed = &mut shared.scratch.borrow_mut().request;
        parsed.reset();
        let whole = outgoing_body::take_head(partial, part, |head| {
            parsed.advance(head, &HeadLimits::EDITED).map_err(malformed)
        })
        .map_err(inexpressible)?;
        let Some((head, taken)) = whole else { return Poll::Ready(Ok(part.len())) };
        let mut request = request(&head, parsed).map_err(inexpressible)?;
        self.takes_trailers = request.headers().contains_key(header::TE);
        if shared.bridges_web
            && parsed.method == Method::Post
            && let Some(Call::Web(web)) = grpc::call(parsed, &head)
        {
            grpc_web::edit_request(request.headers_mut());
            self.web = Some(web);
        }
        let framing = parsed.framing;
        self.method = parsed.method;
        let is_end = matches!(framing, Framing::None | Framing::Length(0));
        let (future, stream) = match send.send_request(request, is_end) {
            Ok(sent) => sent,
            Err(error) => return Poll::Ready(Err(self.rejection.note_failure(error))),
        };
        let id = future.stream_id().as_u32();
        self.shared.marked.begin(id);
        self.id = Some(id);
        self.response = ResponseState::Head(future);
        let body = OutgoingBody::new(stream, framing);
        let is_text = self.web.is_some_and(|web| web.is_text);
        let mut body = if is_text { body.decoded() } else { body };
        let written = body.poll_write_behind(cx, taken, part, parts);
        self.request = RequestState::Body(body);
        written
    }
}

impl Drop for NodeStream {
    /// A request that breaks off is reset by `h2`, as its response is not needed.
    fn drop(&mut self) {
        self.shared.live.set(self.shared.live.get() - 1);
        if self.is_blocked {
            self.block(false);
        }
        if self.is_unfinished() {
            self.shared.resets.set(self.shared.resets.get() + 1);
            if self.shared.resets.get() >= RESETS_TO_NODE_MAX {
                self.retire();
            }
        }
        if let Some(id) = self.id {
            self.shared.marked.end(id);
        }
    }
}

impl Rejection {
    /// Handles the error that ended the stream; records whether the node has not processed the request (RFC 9113 section 8.7), and
    /// whether it blames the other side (section 7). Other errors, such as `INTERNAL_ERROR`, are the node's own affair.
    fn note_failure(&mut self, error: h2::Error) -> io::Error {
        self.has_failed = true;
        let reason = error.reason().filter(|_| error.is_remote());
        self.is_unprocessed |= error.is_remote() && (error.is_go_away() || reason == Some(Reason::REFUSED_STREAM));
        self.is_protocol_error |= matches!(
            reason,
            Some(
                Reason::PROTOCOL_ERROR
                    | Reason::FRAME_SIZE_ERROR
                    | Reason::COMPRESSION_ERROR
                    | Reason::ENHANCE_YOUR_CALM
                    | Reason::HTTP_1_1_REQUIRED
            )
        );
        broken(error)
    }
}

/// HTTP/2 cannot express the request, such as some characters of its target or its host.
#[derive(Debug)]
struct Inexpressible(io::Error);

impl fmt::Display for Inexpressible {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "HTTP/2 cannot express the request: {}", self.0)
    }
}

impl std::error::Error for Inexpressible {}

fn inexpressible(error: io::Error) -> io::Error {
    malformed(Inexpressible(error))
}

/// Whether a request could not be written to its node because HTTP/2 cannot express it.
pub(crate) fn is_inexpressible(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|cause| cause.is::<Inexpressible>())
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
    *request.headers_mut() = outgoing_body::fields(head, &parsed.fields, parsed.hop_by_hop)?;
    if parsed.fields.get(head, Name::Te).is_some_and(|te| te == b"trailers") {
        request.headers_mut().insert(header::TE, HeaderValue::from_static("trailers"));
    }
    Ok(request)
}

// Heads of responses from HTTP/2 to HTTP/1.1; no IO.

/// What follows a response's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResponseBody {
    /// The response must not have a body.
    None,
    /// The response has no body.
    Empty,
    /// As many bytes as the head announces.
    Length,
    Chunked,
}

impl ResponseBody {
    pub(super) fn of(method: Method, response: &Parts, is_end: bool) -> ResponseBody {
        let forbidden = method == Method::Head || matches!(response.status.as_u16(), 204 | 304);
        match response.headers.contains_key(header::CONTENT_LENGTH) {
            _ if forbidden => ResponseBody::None,
            true => ResponseBody::Length,
            false if is_end => ResponseBody::Empty,
            false => ResponseBody::Chunked,
        }
    }
}

/// Appends a response's head in HTTP/1.1 form. Our parser validates the result like any other head.
pub(super) fn write_head(out: &mut Vec<u8>, status: StatusCode, fields: &HeaderMap, body: ResponseBody) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_str().as_bytes());
    out.extend_from_slice(b" \r\n");
    push_fields(out, fields, |_| true);
    match body {
        ResponseBody::Chunked => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        ResponseBody::Empty => out.extend_from_slice(b"content-length: 0\r\n"),
        ResponseBody::None | ResponseBody::Length => {}
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderMap;
    use std::future::poll_fn;
    use std::time::Duration;
    use tokio::task::{LocalSet, spawn_local};

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

    /// What a node got: its fields and the body; and what the engine read of the response.
    type Got = (HeaderMap, Vec<u8>, String);

    /// A whole exchange of `request` with a node that answers with `frames` and `trailers`, or, without frames, by its head alone.
    /// Written and read in pieces of `step` bytes.
    async fn exchange(
        request: &'static [u8],
        frames: &'static [&'static [u8]],
        trailers: &'static [(&'static str, &'static str)],
        step: usize,
    ) -> io::Result<Got> {
        let (near, far) = tokio::io::duplex(64);
        let node = spawn_local(async move {
            let mut connection = h2::server::handshake(far).await.unwrap();
            let (request, mut respond) = connection.accept().await.unwrap().unwrap();
            let talk = spawn_local(async move {
                let (parts, mut body) = request.into_parts();
                let mut content = Vec::new();
                while let Some(Ok(data)) = body.data().await {
                    body.flow_control().release_capacity(data.len()).unwrap();
                    content.extend_from_slice(&data);
                }
                let fields = trailers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
                let trailers = HeaderMap::from_iter::<Vec<(header::HeaderName, HeaderValue)>>(fields.collect());
                let mut response = Response::builder().header("content-type", "application/grpc+proto");
                if frames.is_empty() {
                    response.headers_mut().unwrap().extend(trailers);
                    respond.send_response(response.body(()).unwrap(), true).unwrap();
                    return (parts.headers, content);
                }
                let mut send = respond.send_response(response.body(()).unwrap(), false).unwrap();
                for frame in frames {
                    send.send_data(Bytes::from_static(frame), false).unwrap();
                }
                send.send_trailers(trailers).unwrap();
                (parts.headers, content)
            });
            while connection.accept().await.is_some() {}
            talk.await.unwrap()
        });
        let (send, connection) = h2::client::handshake(near).await.unwrap();
        spawn_local(connection);
        let shared = NodeShared::new(true, false);
        let mut stream = NodeStream::new(send, Rc::new(shared));
        let mut written = 0;
        while written < request.len() {
            let piece = &request[written..(written + step).min(request.len())];
            let (a, b) = piece.split_at(piece.len() / 2);
            written += poll_fn(|cx| stream.poll_write(cx, [a, b].into_iter())).await?;
        }
        let mut read = Vec::new();
        loop {
            let mut space = vec![0; step];
            let mut space = ReadBuf::new(&mut space);
            poll_fn(|cx| stream.poll_read(cx, &mut space)).await.unwrap();
            if space.filled().is_empty() {
                break;
            }
            read.extend_from_slice(space.filled());
        }
        drop(stream);
        let (fields, content) = node.await.unwrap();
        Ok((fields, content, String::from_utf8_lossy(&read).into_owned()))
    }

    const STATUS: &[(&str, &str)] = &[("grpc-status", "0")];

    #[tokio::test]
    async fn any_split_of_a_call_of_grpc_web_gives_the_same() {
        let check = async |request, frames, trailers, content: &[u8], expected: &str| {
            for step in [1, 2, 3, 5, 8, 64, 4096] {
                let done =
                    tokio::time::timeout(Duration::from_secs(120), exchange(request, frames, trailers, step)).await;
                let (fields, body, read) = done.expect("the exchange ends").unwrap();
                assert_eq!((&body[..], &read[..]), (content, expected), "by {step}");
                assert!(fields["content-type"] == "application/grpc+proto" && fields["te"] == "trailers", "{fields:?}");
                assert!(!fields.contains_key("content-length"), "{fields:?}");
            }
        };
        let head = "HTTP/1.1 200 \r\ncontent-type: application/grpc-web+proto\r\ntransfer-encoding: chunked\r\n\r\n";
        let text_head = head.replace("web+", "web-text+");
        LocalSet::new()
            .run_until(async {
                let binary = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Type: application/grpc-web+proto\r\n\
                    Content-Length: 7\r\n\r\n\0\0\0\0\x02hi";
                let frame = "15\r\n\u{fffd}\0\0\0\u{10}grpc-status: 0\r\n";
                let expected = format!("{head}3\r\nabc\r\n1\r\nd\r\n{frame}\r\n0\r\n\r\n");
                check(binary, &[b"abc", b"d"], STATUS, b"\0\0\0\0\x02hi", &expected).await;
                // Two texts, each with its padding, in chunks.
                let text = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Type: application/grpc-web-text+proto\r\n\
                    Transfer-Encoding: chunked\r\n\r\n9\r\nAAAAAAJoa\r\n7\r\nQ==aWk=\r\n0\r\n\r\n";
                let frame = "1c\r\ngAAAABBncnBjLXN0YXR1czogMA0K\r\n";
                let expected = format!("{text_head}4\r\nYWJj\r\n4\r\nZA==\r\n{frame}0\r\n\r\n");
                check(text, &[b"abc", b"d"], STATUS, b"\0\0\0\0\x02hiii", &expected).await;
                let expected = "HTTP/1.1 200 \r\ncontent-type: application/grpc-web+proto\r\ngrpc-status: 5\r\n\
                    content-length: 0\r\n\r\n";
                check(binary, &[], &[("grpc-status", "5")], b"\0\0\0\0\x02hi", expected).await;
            })
            .await;
    }

    #[tokio::test]
    async fn what_is_not_base64_breaks_the_request() {
        LocalSet::new()
            .run_until(async {
                for request in [
                    &b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Type: application/grpc-web-text\r\nContent-Length: 8\r\n\r\nAAA!AAAA"[..],
                    b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Type: application/grpc-web-text\r\nContent-Length: 6\r\n\r\nAAAAAA",
                ] {
                    for step in [1, 7, 4096] {
                        let done = tokio::time::timeout(Duration::from_secs(120), exchange(request, &[], &[], step)).await;
                        let error = done.expect("the exchange ends").unwrap_err();
                        assert!(grpc_web::is_bad_base64(&error), "{error} by {step}");
                    }
                }
            })
            .await;
    }
}

#[cfg(test)]
mod response_tests {
    use super::*;

    #[test]
    fn heads() {
        let check = |method, status: u16, fields: &[(&str, &str)], is_end, expected: &str| {
            let mut response = http::Response::builder().status(status);
            for (name, value) in fields {
                response = response.header(*name, *value);
            }
            let (parts, ()) = response.body(()).unwrap().into_parts();
            let mut out = Vec::new();
            write_head(&mut out, parts.status, &parts.headers, ResponseBody::of(method, &parts, is_end));
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        };
        check(
            Method::Get,
            200,
            &[("a", "1"), ("a", "2")],
            false,
            "HTTP/1.1 200 \r\na: 1\r\na: 2\r\ntransfer-encoding: chunked\r\n\r\n",
        );
        check(Method::Get, 200, &[("content-length", "3")], false, "HTTP/1.1 200 \r\ncontent-length: 3\r\n\r\n");
        check(Method::Get, 418, &[], true, "HTTP/1.1 418 \r\ncontent-length: 0\r\n\r\n");
        check(Method::Head, 200, &[("content-length", "3")], true, "HTTP/1.1 200 \r\ncontent-length: 3\r\n\r\n");
        check(Method::Head, 200, &[], true, "HTTP/1.1 200 \r\n\r\n");
        check(Method::Get, 204, &[], false, "HTTP/1.1 204 \r\n\r\n");
        check(Method::Get, 304, &[("content-length", "3")], true, "HTTP/1.1 304 \r\ncontent-length: 3\r\n\r\n");
    }
}
