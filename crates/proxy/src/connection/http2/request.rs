//! Heads of requests between HTTP/2 and HTTP/1.1; no IO.

use super::incoming_body::{push_fields, push_line};
use crate::random;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use h2::ext::Protocol;
use http::header::{self, HeaderName};
use http::request::Parts;

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
