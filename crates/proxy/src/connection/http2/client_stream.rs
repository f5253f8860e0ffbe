//! One request of a client that speaks HTTP/2, presented as an HTTP/1.1 connection to our engine.

use super::bodies::{Bodies, BodyReader};
use super::field_watch::ServedStreams;
use super::incoming_body::{IncomingBody, broken, push_fields, push_line};
use super::outgoing_body::{self, OutgoingBody, malformed};
use crate::random;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use h2::ext::Protocol;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::header::{self, HeaderName};
use http::request::Parts;
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
    pub(crate) marked: Rc<ServedStreams>,
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
    pub(crate) is_connect: bool,
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
        if is_marked || write_head(head, request, self.incoming.is_chunked()).is_err() {
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

// Heads of requests between HTTP/2 and HTTP/1.1; no IO.

/// Fields of a WebSocket handshake that exist only over HTTP/1.1.
const UPGRADE_FIELDS: [HeaderName; 2] = [header::SEC_WEBSOCKET_KEY, header::SEC_WEBSOCKET_ACCEPT];

/// A request that is malformed by RFC 9113 section 8 and that `h2` accepts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MalformedRequest;

/// Appends a request's head in HTTP/1.1 form. Our parser validates the result like any other head.
pub(super) fn write_head(out: &mut Vec<u8>, request: &Parts, is_chunked: bool) -> Result<(), MalformedRequest> {
    let (uri, fields) = (&request.uri, &request.headers);
    // RFC 3986 section 3.1; `http` accepts an empty scheme, and one that begins with a digit.
    if uri.scheme_str().is_some_and(|scheme| !scheme.starts_with(|first: char| first.is_ascii_alphabetic())) {
        return Err(MalformedRequest);
    }
    let tunnel = request.extensions.get::<Protocol>();
    out.extend_from_slice(if tunnel.is_some() { b"GET" } else { request.method.as_str().as_bytes() });
    out.push(b' ');
    match (uri.path_and_query(), uri.authority()) {
        (Some(path), _) if !is_path(path.as_str(), &request.method) => return Err(MalformedRequest),
        (Some(path), _) => out.extend_from_slice(path.as_str().as_bytes()),
        (None, Some(authority)) => out.extend_from_slice(authority.as_str().as_bytes()),
        (None, None) => return Err(MalformedRequest),
    }
    out.extend_from_slice(b" HTTP/1.1\r\n");
    if let Some(authority) = uri.authority() {
        // RFC 9113 section 8.3.1: two hosts are a smuggling attempt.
        let agrees = |host: &header::HeaderValue| host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes());
        if !fields.get_all(header::HOST).iter().all(agrees) {
            return Err(MalformedRequest);
        }
        push_line(out, "host", authority.as_str().as_bytes());
    }
    let has_host = uri.authority().is_some();
    let is_left_out = |name: &HeaderName| match tunnel {
        // RFC 8441 section 5: these have no use there. The node would get ours in addition to the client's.
        Some(_) if UPGRADE_FIELDS.contains(name) => true,
        _ => has_host && name == header::HOST,
    };
    push_fields(out, fields, |name| !is_left_out(name));
    if let Some(protocol) = tunnel {
        // `h2` accepts any text as a protocol; line ends in it would become lines of the head.
        if !is_protocol(protocol.as_str()) {
            return Err(MalformedRequest);
        }
        write_upgrade(out, protocol.as_str());
    }
    if is_chunked {
        out.extend_from_slice(b"transfer-encoding: chunked\r\n");
    }
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// RFC 9113 section 8.3.1. `http` accepts a query alone as well.
fn is_path(text: &str, method: &http::Method) -> bool {
    text.starts_with('/') || (text == "*" && method == http::Method::OPTIONS)
}

/// RFC 9110 section 7.8: a name, optionally with a version after a slash.
fn is_protocol(text: &str) -> bool {
    let is_token_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    text.splitn(2, '/').all(|part| !part.is_empty() && part.bytes().all(is_token_byte))
}

/// The lines with which HTTP/1.1 requests a tunnel (RFC 8441 section 5, RFC 6455 section 4.1).
fn write_upgrade(out: &mut Vec<u8>, protocol: &str) {
    push_line(out, "connection", b"Upgrade");
    push_line(out, "upgrade", protocol.as_bytes());
    if protocol.eq_ignore_ascii_case("websocket") {
        let random = [random::number(), random::number()].map(u64::to_be_bytes).concat();
        push_line(out, "sec-websocket-key", STANDARD.encode(random).as_bytes());
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

#[cfg(test)]
mod request_tests {
    use super::*;
    use http::Request;

    #[test]
    fn a_tunnel_is_asked_for_by_an_upgrade() {
        let mut request = Request::connect("http://h/chat").body(()).unwrap();
        request.extensions_mut().insert(Protocol::from_static("websocket"));
        let mut out = Vec::new();
        write_head(&mut out, &request.into_parts().0, false).unwrap();
        let text = String::from_utf8(out).unwrap();
        let start = "GET /chat HTTP/1.1\r\nhost: h\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: ";
        assert!(text.starts_with(start) && text.ends_with("==\r\n\r\n"), "{text}");
        assert_eq!(text.len(), start.len() + 24 + 4);
    }

    fn head(uri: &str, method: &str, fields: &[(&str, &str)], is_chunked: bool) -> Result<String, MalformedRequest> {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let mut out = Vec::new();
        write_head(&mut out, &request.body(()).unwrap().into_parts().0, is_chunked)?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn heads() {
        let check = |uri, method, fields: &[(&str, &str)], is_chunked, expected: &str| {
            assert_eq!(head(uri, method, fields, is_chunked), Ok(expected.to_owned()), "{uri} {fields:?}");
        };
        check("http://h:81/a?b=%20", "GET", &[], false, "GET /a?b=%20 HTTP/1.1\r\nhost: h:81\r\n\r\n");
        check("/a", "GET", &[("host", "h")], false, "GET /a HTTP/1.1\r\nhost: h\r\n\r\n");
        check("http://h/", "GET", &[("host", "H")], false, "GET / HTTP/1.1\r\nhost: h\r\n\r\n");
        check("*", "OPTIONS", &[("host", "h")], false, "OPTIONS * HTTP/1.1\r\nhost: h\r\n\r\n");
        let cookies = [("cookie", "a=1"), ("x", "1"), ("cookie", "b=2"), ("x", "2")];
        let lines = "GET / HTTP/1.1\r\nhost: h\r\ncookie: a=1; b=2\r\nx: 1\r\nx: 2\r\n\r\n";
        check("http://h/", "GET", &cookies, false, lines);
        let lines = "POST / HTTP/1.1\r\nhost: h\r\nte: trailers\r\ntransfer-encoding: chunked\r\n\r\n";
        check("http://h/", "POST", &[("te", "trailers")], true, lines);
        check("h:443", "CONNECT", &[], false, "CONNECT h:443 HTTP/1.1\r\nhost: h:443\r\n\r\n");
    }

    #[test]
    fn what_is_not_a_protocol_is_malformed() {
        let check = |protocol: &str, good: bool| {
            let mut request = Request::connect("http://h/chat").body(()).unwrap();
            request.extensions_mut().insert(Protocol::from(protocol));
            let written = write_head(&mut Vec::new(), &request.into_parts().0, false);
            assert_eq!(written.is_ok(), good, "{protocol:?}");
        };
        check("connect-udp/1", true);
        for bad in ["", "x\r\nX-Injected: 1", "x\n", "x y", "x,y", "x/", "/1", "a/b/c", "x\0", "\u{e9}"] {
            check(bad, false);
        }
    }

    #[test]
    fn a_key_of_the_client_is_not_passed_on() {
        let request = Request::connect("http://h/chat").header("sec-websocket-key", "a").header("x", "1");
        let mut request = request.header("sec-websocket-accept", "b").body(()).unwrap();
        request.extensions_mut().insert(Protocol::from_static("websocket"));
        let mut out = Vec::new();
        write_head(&mut out, &request.into_parts().0, false).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("\r\nx: 1\r\n") && text.matches("sec-websocket-").count() == 1, "{text}");
        // In a request without a tunnel they are ordinary fields.
        let text = head("http://h/", "GET", &[("sec-websocket-key", "a")], false).unwrap();
        assert!(text.contains("sec-websocket-key: a\r\n"), "{text}");
    }

    #[test]
    fn what_is_not_a_path_is_malformed() {
        assert_eq!(head("*", "GET", &[("host", "h")], false), Err(MalformedRequest));
        let mut parts = http::uri::Parts::default();
        parts.path_and_query = Some("?a".parse().unwrap());
        let request = Request::builder().uri(http::Uri::from_parts(parts).unwrap()).body(()).unwrap();
        assert_eq!(write_head(&mut Vec::new(), &request.into_parts().0, false), Err(MalformedRequest));
    }

    #[test]
    fn two_hosts_are_malformed() {
        assert_eq!(head("http://h/", "GET", &[("host", "i")], false), Err(MalformedRequest));
        assert_eq!(head("http://h/", "GET", &[("host", "h"), ("host", "i")], false), Err(MalformedRequest));
    }
}
