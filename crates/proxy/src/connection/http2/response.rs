//! Heads of responses from HTTP/2 to HTTP/1.1; no IO.

use super::incoming_body::push_fields;
use http::response::Parts;
use http::{HeaderMap, StatusCode, header};
use stillgate_wire::Method;

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
