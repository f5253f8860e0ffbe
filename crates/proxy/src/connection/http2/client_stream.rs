//! One request of a client that speaks HTTP/2, presented as an HTTP/1.1 connection to our engine.

use super::bodies::{Bodies, BodyReader};
use super::field_watch::MalformedStreams;
use super::incoming_body::{IncomingBody, broken};
use super::outgoing_body::{self, OutgoingBody, malformed};
use super::request;
use bytes::Bytes;
use h2::ext::Protocol;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{Request, Response, StatusCode};
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use stillgate_wire::{Framing, HeadLimits, Method, ResponseHead};
use tokio::io::ReadBuf;

/// Why a malformed request ends.
const MALFORMED: &str = "the request is malformed (RFC 9113 section 8.1.1)";

/// What the streams of one connection share.
#[derive(Default)]
pub(crate) struct StreamsShared {
    /// Requests that are being served, or were answered before they had ended.
    pub(crate) live: Cell<u32>,
    /// Requests that the client has reset while they were served.
    pub(crate) resets: Cell<u32>,
    /// Requests that turned out to be malformed.
    pub(crate) malformed: Cell<u32>,
    /// Streams whose head or trailers are malformed.
    pub(crate) marked: Rc<MalformedStreams>,
    /// Woken when the last request is served: the connection is idle then.
    pub(crate) driver: RefCell<Option<Waker>>,
    pub(crate) bodies: Rc<Bodies>,
    scratch: RefCell<ClientScratch>,
}

/// Scratch memory for what is built and parsed at once.
#[derive(Default)]
struct ClientScratch {
    request: Vec<u8>,
    response: ResponseHead,
}

/// An HTTP/2 stream that a client has opened. What is read from it is the request in HTTP/1.1, and what is written to it is the
/// response.
pub(crate) struct ClientStream {
    shared: Rc<StreamsShared>,
    /// Its number.
    id: u32,
    method: Method,
    /// The request is for a tunnel (RFC 8441): its body lasts as long as the tunnel, whatever the response is.
    is_connect: bool,
    /// Until the engine reads it.
    request: Option<http::request::Parts>,
    incoming: IncomingBody,
    response: ResponseSending,
    /// The client, or its connection, has ended the stream.
    is_gone: bool,
}

/// State of the response.
enum ResponseSending {
    /// The part of its head that has arrived, as long as it is incomplete.
    Head(SendResponse<Bytes>, Vec<u8>),
    Body(OutgoingBody),
}

impl ClientStream {
    pub(crate) fn new(
        shared: &Rc<StreamsShared>,
        request: Request<RecvStream>,
        respond: SendResponse<Bytes>,
    ) -> ClientStream {
        let (parts, body) = request.into_parts();
        let id = respond.stream_id().as_u32();
        shared.live.set(shared.live.get() + 1);
        shared.marked.begin(id);
        let is_connect = parts.extensions.get::<Protocol>().is_some();
        let has_body = !body.is_end_stream() && parts.method != http::Method::CONNECT;
        let is_chunked = has_body && !parts.headers.contains_key(http::header::CONTENT_LENGTH);
        // An upgrade is a GET.
        let method = if is_connect { "GET" } else { parts.method.as_str() };
        ClientStream {
            shared: shared.clone(),
            id,
            method: Method::from_bytes(method.as_bytes()),
            is_connect,
            request: Some(parts),
            incoming: IncomingBody::new(BodyReader::new(shared.bodies.clone(), body), is_chunked),
            response: ResponseSending::Head(respond, Vec::new()),
            is_gone: false,
        }
    }

    /// Ready with nothing if both request and response are at their end.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = space.filled().len();
        let is_marked = self.shared.marked.take(self.id);
        if let Some(request) = self.request.take() {
            self.write_head(&request, is_marked, space)?;
        } else if is_marked {
            // A client that ends its request by an error of its own is treated like one that resets it.
            self.is_gone = true;
            self.reset(Reason::PROTOCOL_ERROR);
            return Poll::Ready(Err(malformed(MALFORMED)));
        }
        if !self.incoming.is_done() {
            let read = self.incoming.poll_read(cx, space);
            if let Poll::Ready(Err(error)) = read {
                self.is_gone = true;
                return Poll::Ready(Err(error));
            }
            if space.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
            ready!(read)?;
        }
        if self.is_connect { Poll::Ready(Ok(())) } else { self.poll_end(cx) }
    }

    /// The response is complete, and the client has not yet ended its request; never true of a tunnel.
    pub(crate) fn is_answered_early(&self) -> bool {
        !self.is_connect && self.is_answered() && !self.incoming.has_ended()
    }

    fn is_answered(&self) -> bool {
        matches!(&self.response, ResponseSending::Body(body) if body.is_done())
    }

    /// Ends a tunnel's direction to the client. Any other response has already signalled its end.
    pub(crate) fn poll_shutdown(&mut self) -> Poll<io::Result<()>> {
        match &mut self.response {
            ResponseSending::Body(body) if self.is_connect => Poll::Ready(body.finish()),
            _ => Poll::Ready(Ok(())),
        }
    }

    fn write_head(
        &mut self,
        request: &http::request::Parts,
        is_marked: bool,
        space: &mut ReadBuf<'_>,
    ) -> io::Result<()> {
        let shared = self.shared.clone();
        let head = &mut shared.scratch.borrow_mut().request;
        head.clear();
        if is_marked || request::write_head(head, request, self.incoming.is_chunked()).is_err() {
            self.reset(Reason::PROTOCOL_ERROR);
            shared.malformed.set(shared.malformed.get() + 1);
            return Err(malformed(MALFORMED));
        }
        self.incoming.put_head(head, space);
        Ok(())
    }

    /// The request has ended: the only other event is a reset by the client.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let reset = match &mut self.response {
            ResponseSending::Body(body) if body.is_done() => return Poll::Ready(Ok(())),
            ResponseSending::Body(body) => body.stream().poll_reset(cx),
            ResponseSending::Head(respond, _) => respond.poll_reset(cx),
        };
        let reason = ready!(reset);
        self.is_gone = true;
        Poll::Ready(Err(reason.map_or_else(broken, |reason| broken(reason.into()))))
    }

    pub(crate) fn poll_write<'p>(
        &mut self,
        cx: &mut Context<'_>,
        parts: impl Iterator<Item = &'p [u8]>,
    ) -> Poll<io::Result<usize>> {
        let (respond, partial) = match &mut self.response {
            ResponseSending::Head(respond, partial) => (respond, partial),
            ResponseSending::Body(body) => {
                let written = ready!(body.poll_write(cx, parts));
                self.is_gone |= written.is_err();
                return Poll::Ready(written);
            }
        };
        let mut parts = parts.filter(|part| !part.is_empty());
        let Some(part) = parts.next() else { return Poll::Ready(Ok(0)) };
        let shared = self.shared.clone();
        let parsed = &mut shared.scratch.borrow_mut().response;
        parsed.reset();
        let (method, limits) = (self.method, HeadLimits::EDITED);
        let whole =
            outgoing_body::take_head(partial, part, |head| parsed.advance(head, method, &limits).map_err(malformed))?;
        let Some((head, taken)) = whole else { return Poll::Ready(Ok(part.len())) };
        let mut response = Response::new(());
        let is_switch = self.is_connect && parsed.status == 101;
        let status = match parsed.status {
            101 => 200,
            // A success that does not switch protocols must not be taken for a tunnel.
            200..=299 if self.is_connect => 502,
            status => status,
        };
        *response.status_mut() = StatusCode::from_u16(status).map_err(malformed)?;
        *response.headers_mut() = outgoing_body::fields(&head, &parsed.fields, parsed.hop_by_hop)?;
        if is_switch {
            // This answers the key that we made up.
            response.headers_mut().remove(http::header::SEC_WEBSOCKET_ACCEPT);
        }
        if status < 200 {
            respond.send_informational(response).map_err(broken)?;
            return Poll::Ready(Ok(taken));
        }
        let framing = if is_switch { Framing::UntilClose } else { parsed.framing };
        let is_end = matches!(framing, Framing::None | Framing::Length(0));
        let send = respond.send_response(response, is_end).map_err(broken)?;
        let mut body = OutgoingBody::new(send, framing);
        let written = body.poll_write_behind(cx, taken, part, parts);
        self.response = ResponseSending::Body(body);
        written
    }

    fn reset(&mut self, reason: Reason) {
        match &mut self.response {
            ResponseSending::Head(respond, _) => respond.send_reset(reason),
            ResponseSending::Body(body) => body.stream().send_reset(reason),
        }
    }
}

impl Drop for ClientStream {
    /// A response that breaks off must not look complete, whatever ended it.
    fn drop(&mut self) {
        match (self.is_answered(), self.is_gone) {
            // The rest of its request is of no interest.
            (true, _) => {}
            (false, true) => self.shared.resets.set(self.shared.resets.get() + 1),
            (false, false) => self.reset(Reason::INTERNAL_ERROR),
        }
        self.shared.marked.end(self.id);
        let live = self.shared.live.get() - 1;
        self.shared.live.set(live);
        if (live == 0 || self.is_gone)
            && let Some(driver) = &*self.shared.driver.borrow()
        {
            driver.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::pin::Pin;
    use std::time::Duration;
    use tokio::task::{LocalSet, spawn_local};

    /// What a client of HTTP/2 got: interim statuses, status, fields, body, trailers.
    type Got = (Vec<u16>, u16, Vec<(String, String)>, Vec<u8>, Vec<(String, String)>);

    fn fields(map: &http::HeaderMap) -> Vec<(String, String)> {
        map.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect()
    }

    /// Sends a request to a [`ClientStream`], reads it there in pieces of `step` bytes, and writes `response` in pieces of that
    /// size.
    async fn exchange(method: &str, response: &'static [u8], step: usize) -> (Vec<u8>, Got) {
        let (near, far) = tokio::io::duplex(1024);
        let server = spawn_local(async move {
            let mut connection = h2::server::handshake(far).await.unwrap();
            let (request, respond) = connection.accept().await.unwrap().unwrap();
            let mut stream = ClientStream::new(&Rc::default(), request, respond);
            let talk = spawn_local(async move {
                let mut read = Vec::new();
                while !read.ends_with(b"\r\n\r\n") {
                    let mut space = vec![0; step];
                    let mut space = ReadBuf::new(&mut space);
                    poll_fn(|cx| stream.poll_read(cx, &mut space)).await.unwrap();
                    read.extend_from_slice(space.filled());
                }
                for piece in response.chunks(step) {
                    let mut rest = piece;
                    while !rest.is_empty() {
                        let (a, b) = rest.split_at(rest.len() / 2);
                        let n = poll_fn(|cx| stream.poll_write(cx, [a, b].into_iter())).await.unwrap();
                        rest = &rest[n..];
                    }
                }
                read
            });
            while connection.accept().await.is_some() {}
            talk.await.unwrap()
        });
        let (mut send, connection) = h2::client::handshake(near).await.unwrap();
        spawn_local(connection);
        let request = Request::builder().method(method).uri("http://h/a").body(()).unwrap();
        let (mut future, mut upload) = send.send_request(request, false).unwrap();
        upload.send_data(Bytes::from_static(b"abc"), true).unwrap();
        let mut interims = Vec::new();
        while let Some(interim) = poll_fn(|cx| future.poll_informational(cx)).await {
            interims.push(interim.unwrap().status().as_u16());
        }
        let (parts, mut body) = poll_fn(|cx| Pin::new(&mut future).poll(cx)).await.unwrap().into_parts();
        let mut content = Vec::new();
        while let Some(data) = body.data().await {
            let data = data.unwrap();
            body.flow_control().release_capacity(data.len()).unwrap();
            content.extend_from_slice(&data);
        }
        let trailers = body.trailers().await.unwrap().unwrap_or_default();
        drop((send, body, future, upload));
        let got = (interims, parts.status.as_u16(), fields(&parts.headers), content, fields(&trailers));
        (server.await.unwrap(), got)
    }

    #[tokio::test]
    async fn any_split_of_writes_gives_the_same() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let check = async |method: &str, response: &'static [u8], expected: Got| {
            for step in [1, 2, 3, 7, 50, 4096] {
                let done = tokio::time::timeout(Duration::from_secs(120), exchange(method, response, step)).await;
                let (read, got) = done.expect("the exchange ends");
                assert_eq!(got, expected, "by {step}");
                let text = String::from_utf8(read).unwrap();
                assert!(text.starts_with(&format!("{method} /a HTTP/1.1\r\nhost: h\r\n")), "{text}");
                assert!(text.ends_with("chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n") || step < 4096, "{text}");
            }
        };
        LocalSet::new()
            .run_until(async {
                let chunked =
                    b"HTTP/1.1 103 Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: 1\r\n\
                    Connection: keep-alive\r\n\r\n5\r\nhello\r\n1\r\n!\r\n0\r\nX-Sum: 7\r\n\r\n";
                let a = vec![pair("x-a", "1")];
                check("GET", chunked, (vec![103], 200, a, b"hello!".to_vec(), vec![pair("x-sum", "7")])).await;
                let length = b"HTTP/1.1 404 No\r\nContent-Length: 5\r\n\r\nhello";
                let of = |n| vec![pair("content-length", n)];
                check("GET", length, (vec![], 404, of("5"), b"hello".to_vec(), vec![])).await;
                let head = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n";
                check("HEAD", head, (vec![], 200, of("9"), vec![], vec![])).await;
                check("GET", b"HTTP/1.1 304 No\r\n\r\n", (vec![], 304, vec![], vec![], vec![])).await;
            })
            .await;
    }
}
