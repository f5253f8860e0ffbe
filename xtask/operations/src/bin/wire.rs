//! The operations that `cargo xtask icount` counts: parsing and serialising heads, N times in a row, `icount N CASE`.
//!
//! The buffers are reused, as in a worker; the edits are those the proxy makes on every request.

use std::hint::black_box;
use stillgate_wire::{
    FieldName, FieldValue, HeadLimits, HeadProgress, Method, RequestEdits, RequestHead, ResponseEdits, ResponseHead,
    write_request, write_response,
};

const REQUEST_SMALL: &str = "GET / HTTP/1.1\r\nHost: 127.0.0.1:9080\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n\r\n";

/// Sixteen fields, as a browser sends them.
const REQUEST_16: &str = "GET /orders/4711/items?page=2&sort=date HTTP/1.1\r\n\
    Host: shop.example\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n\
    Accept-Language: en-GB,en;q=0.5\r\n\
    Accept-Encoding: gzip, deflate, br, zstd\r\n\
    Referer: https://shop.example/orders\r\n\
    Cookie: session=0123456789abcdef0123456789abcdef; theme=dark\r\n\
    DNT: 1\r\n\
    Connection: keep-alive\r\n\
    Upgrade-Insecure-Requests: 1\r\n\
    Sec-Fetch-Dest: document\r\n\
    Sec-Fetch-Mode: navigate\r\n\
    Sec-Fetch-Site: same-origin\r\n\
    Priority: u=0, i\r\n\
    Pragma: no-cache\r\n\
    Cache-Control: no-cache\r\n\r\n";

const RESPONSE: &str = "HTTP/1.1 200 OK\r\n\
    Server: nginx/1.22.1\r\n\
    Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
    Content-Type: application/json\r\n\
    Content-Length: 100\r\n\
    Connection: keep-alive\r\n\
    Vary: Accept-Encoding\r\n\
    ETag: \"0123456789abcdef\"\r\n\r\n";

fn main() {
    let mut args = std::env::args().skip(1);
    let count: u64 = args.next().and_then(|text| text.parse().ok()).unwrap_or(1);
    match args.next().as_deref() {
        Some("parse-request-small") => parse_request(REQUEST_SMALL, count),
        Some("parse-request-16") => parse_request(REQUEST_16, count),
        Some("parse-response") => parse_response(count),
        Some("serialise-request-small") => serialise_request(REQUEST_SMALL, count),
        Some("serialise-request-16") => serialise_request(REQUEST_16, count),
        Some("serialise-response") => serialise_response(count),
        other => panic!("unknown case {other:?}; see main in xtask/operations/src/bin/wire.rs"),
    }
}

fn parse_request(text: &str, count: u64) {
    let limits = HeadLimits::default();
    let mut head = RequestHead::default();
    for _ in 0..count {
        head.reset();
        let done = head.advance(black_box(text.as_bytes()), &limits);
        assert_eq!(done, Ok(HeadProgress::Complete(text.len())));
        black_box(&head);
    }
}

fn parse_response(count: u64) {
    let limits = HeadLimits::default();
    let mut head = ResponseHead::default();
    for _ in 0..count {
        head.reset();
        let done = head.advance(black_box(RESPONSE.as_bytes()), Method::Get, &limits);
        assert_eq!(done, Ok(HeadProgress::Complete(RESPONSE.len())));
        black_box(&head);
    }
}

fn serialise_request(text: &str, count: u64) {
    let mut head = RequestHead::default();
    let done = head.advance(text.as_bytes(), &HeadLimits::default());
    assert_eq!(done, Ok(HeadProgress::Complete(text.len())));
    let mut edits = RequestEdits::default();
    let mut out = Vec::with_capacity(4096);
    for _ in 0..count {
        edits.clear();
        edits.fields.removed = head.hop_by_hop;
        edits.fields.add_gateway_line(
            const { FieldName::constant("X-Forwarded-For") },
            FieldValue::of_head(black_box(b"192.0.2.7")),
        );
        edits.fields.add_gateway_line(const { FieldName::constant("X-Forwarded-Proto") }, FieldValue::of_head(b"http"));
        edits
            .fields
            .add_gateway_line(const { FieldName::constant("X-Real-IP") }, FieldValue::of_head(black_box(b"192.0.2.7")));
        out.clear();
        write_request(&mut out, black_box(text.as_bytes()), &head, &edits);
        black_box(&out);
    }
}

fn serialise_response(count: u64) {
    let mut head = ResponseHead::default();
    let done = head.advance(RESPONSE.as_bytes(), Method::Get, &HeadLimits::default());
    assert_eq!(done, Ok(HeadProgress::Complete(RESPONSE.len())));
    let mut edits = ResponseEdits::default();
    let mut out = Vec::with_capacity(4096);
    for _ in 0..count {
        edits.clear();
        edits.fields.removed = head.hop_by_hop;
        edits.fields.add_gateway_line(
            const { FieldName::constant("Connection") },
            FieldValue::of_head(black_box(b"keep-alive")),
        );
        out.clear();
        write_response(&mut out, black_box(RESPONSE.as_bytes()), &head, &edits, stillgate_wire::reason);
        black_box(&out);
    }
}
