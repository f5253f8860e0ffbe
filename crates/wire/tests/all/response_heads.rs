//! The effect of each rule of RFC 9112 on a response head, rule by rule.
//!
//! A verdict is one line: status and reason, framing, whether the connection is kept, and the fields that are not
//! forwarded.

use stillgate_wire::{Framing, HeadLimits, HeadProgress, Method, ResponseHead, checks};

/// Parses `input` as the answer to `method`, whole and in pieces; all must give the `expected` verdict.
#[track_caller]
fn check_within(limits: &HeadLimits, method: Method, input: impl AsRef<[u8]>, expected: &str) {
    let input = input.as_ref();
    checks::response_head(input);
    for step in [input.len().max(1), 1, 2, 3, 13] {
        let mut head = ResponseHead::default();
        let mut result = Ok(HeadProgress::Partial);
        let mut end = 0;
        while end < input.len() && result == Ok(HeadProgress::Partial) {
            end = (end + step).min(input.len());
            result = head.advance(&input[..end], method, limits);
        }
        let verdict = match result {
            Ok(HeadProgress::Partial) => "partial".to_owned(),
            Ok(HeadProgress::Complete(len)) => {
                assert_eq!((len, head.len), (input.len(), len), "the whole input is one head");
                describe(input, &head)
            }
            Err(error) => format!("{error:?}"),
        };
        assert_eq!(verdict, expected, "by {step}, {method}: {}", input.escape_ascii());
    }
}

#[track_caller]
fn check(method: Method, input: impl AsRef<[u8]>, expected: &str) {
    check_within(&HeadLimits::default(), method, input, expected);
}

/// The answer 200 to a GET with these lines.
#[track_caller]
fn check_fields(fields: impl AsRef<[u8]>, expected: &str) {
    let mut input = b"HTTP/1.1 200 OK\r\n".to_vec();
    input.extend_from_slice(fields.as_ref());
    input.extend_from_slice(b"\r\n");
    check(Method::Get, input, expected);
}

fn describe(input: &[u8], head: &ResponseHead) -> String {
    let framing = match head.framing {
        Framing::None => "none".to_owned(),
        Framing::Length(bytes) => bytes.to_string(),
        Framing::Chunked => "chunked".to_owned(),
        Framing::UntilClose => "until-close".to_owned(),
    };
    let connection = if head.keep_alive { "keep" } else { "close" };
    let mut verdict = format!("{}({}) {framing} {connection}", head.status, head.reason.of(input).escape_ascii());
    if head.has_date {
        verdict.push_str(" dated");
    }
    for (index, field) in head.fields.iter().enumerate() {
        if head.hop_by_hop.contains(index) {
            verdict.push_str(&format!(" -{}", field.name.of(input).escape_ascii()));
        }
    }
    verdict
}

#[test]
fn status_line() {
    for (line, expected) in [
        ("HTTP/1.1 200 OK", "200(OK) 0 keep"),
        ("HTTP/1.1 200 ", "200() 0 keep"),
        ("HTTP/1.1 200", "200() 0 keep"),
        ("HTTP/1.0 200", "200() 0 close"),
        ("HTTP/1.1 200  OK ", "200( OK ) 0 keep"),
        ("HTTP/1.1 200 \t", "200(\\t) 0 keep"),
        ("HTTP/1.1 404 Not Found, sorry: 5", "404(Not Found, sorry: 5) 0 keep"),
        ("HTTP/1.1 200 \u{e4}\u{20ac}", "200(\\xc3\\xa4\\xe2\\x82\\xac) 0 keep"),
        ("HTTP/1.1 200 a\u{e4}", "200(a\\xc3\\xa4) 0 keep"),
        ("HTTP/1.1 999 ?", "999(?) 0 keep"),
        ("HTTP/1.1 600 ?", "600(?) 0 keep"),
        ("HTTP/1.1 099 OK", "StatusLine"),
        ("HTTP/1.1 000 OK", "StatusLine"),
        ("HTTP/1.1 20 OK", "StatusLine"),
        ("HTTP/1.1 2000 OK", "StatusLine"),
        ("HTTP/1.1 2x0 OK", "StatusLine"),
        ("HTTP/1.1 -20 OK", "StatusLine"),
        ("HTTP/1.1 OK", "StatusLine"),
        ("HTTP/1.1  200 OK", "StatusLine"),
        ("HTTP/1.1\t200 OK", "StatusLine"),
        ("HTTP/1.1 200\tOK", "StatusLine"),
        ("HTTP/1.1", "StatusLine"),
        ("HTTP/1.2 200 OK", "StatusLine"),
        ("HTTP/2 200 OK", "StatusLine"),
        ("HTTP/2.0 200 OK", "StatusLine"),
        ("http/1.1 200 OK", "StatusLine"),
        ("ICY 200 OK", "StatusLine"),
        (" HTTP/1.1 200 OK", "StatusLine"),
        ("HTTP/1.1 200 O\0K", "StatusLine"),
        ("HTTP/1.1 200 O\x1bK", "StatusLine"),
        ("HTTP/1.1 200 OK\x7f", "StatusLine"),
        ("HTTP/1.1 200 O\rK", "StatusLine"),
        ("\r\nHTTP/1.1 200 OK", "StatusLine"),
        ("\nHTTP/1.1 200 OK", "StatusLine"),
        ("", "StatusLine"),
    ] {
        check(Method::Get, format!("{line}\r\nContent-Length: 0\r\n\r\n"), expected);
    }
    check(Method::Get, b"HTTP/1.1 204 \xff\x80\r\n\r\n", "204(\\xff\\x80) none keep");
    for partial in ["H", "HTTP/1.1 20", "HTTP/1.1 200 OK", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nA: b\r\n\r"] {
        check(Method::Get, partial, "partial");
    }
}

#[test]
fn framing_by_status_and_method() {
    const NOTHING: &str = "";
    const EMPTY: &str = "Content-Length: 0\r\n";
    const FIVE: &str = "Content-Length: 5\r\n";
    const CHUNKED: &str = "Transfer-Encoding: chunked\r\n";
    let ordinary = [
        (NOTHING, "until-close close"),
        (EMPTY, "0 keep"),
        (FIVE, "5 keep"),
        (CHUNKED, "chunked keep -Transfer-Encoding"),
    ];
    let bodiless =
        [(NOTHING, "none keep"), (EMPTY, "none keep"), (FIVE, "none keep"), (CHUNKED, "none keep -Transfer-Encoding")];
    let ignored = [
        (NOTHING, "none keep"),
        (EMPTY, "none keep"),
        (FIVE, "none close"),
        (CHUNKED, "none close -Transfer-Encoding"),
    ];
    let forbidden = [(NOTHING, "none keep"), (EMPTY, "none keep"), (FIVE, "BodyForbidden"), (CHUNKED, "BodyForbidden")];
    for (method, status, table) in [
        (Method::Get, 200, ordinary),
        (Method::Post, 201, ordinary),
        (Method::Other, 206, ordinary),
        (Method::Delete, 404, ordinary),
        (Method::Options, 500, ordinary),
        (Method::Get, 203, ordinary),
        (Method::Get, 205, ordinary),
        (Method::Get, 303, ordinary),
        (Method::Get, 305, ordinary),
        (Method::Head, 200, bodiless),
        (Method::Head, 404, bodiless),
        (Method::Get, 304, bodiless),
        (Method::Head, 304, bodiless),
        (Method::Get, 100, forbidden),
        (Method::Get, 101, forbidden),
        (Method::Post, 103, forbidden),
        (Method::Get, 199, forbidden),
        (Method::Get, 204, ignored),
        (Method::Delete, 204, ignored),
        (Method::Head, 204, ignored),
    ] {
        for (fields, expected) in table {
            let expected = match expected {
                "BodyForbidden" => expected.to_owned(),
                _ => format!("{status}(x) {expected}"),
            };
            check(method, format!("HTTP/1.1 {status} x\r\n{fields}\r\n"), &expected);
        }
    }
}

#[test]
fn contradictory_framing() {
    for (fields, expected) in [
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "CodingAndLength"),
        ("Transfer-Encoding: gzip\r\nContent-Length: 0\r\n", "CodingAndLength"),
        ("Content-Length: 5\r\nContent-Length: 5\r\n", "LengthRepeated"),
        ("Content-Length: 5\r\nContent-Length: 6\r\n", "LengthRepeated"),
        ("Content-Length: 5, 5\r\n", "LengthMalformed"),
        ("Content-Length:\r\n", "LengthMalformed"),
        ("Content-Length: -1\r\n", "LengthMalformed"),
        ("Content-Length: +1\r\n", "LengthMalformed"),
        ("Content-Length: 1 1\r\n", "LengthMalformed"),
        ("Content-Length: 0x10\r\n", "LengthMalformed"),
        ("Content-Length: 9223372036854775808\r\n", "LengthMalformed"),
        ("Transfer-Encoding:\r\n", "CodingUnknown"),
        ("Transfer-Encoding: identity\r\n", "CodingUnknown"),
        ("Transfer-Encoding: gzip, chunked\r\n", "CodingUnknown"),
        ("Transfer-Encoding: chunked, identity\r\n", "CodingUnknown"),
        ("Transfer-Encoding: chunked;a=b\r\n", "CodingUnknown"),
        ("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", "CodingUnknown"),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "CodingUnknown"),
        ("Content_Length: 5\r\n", "BadHeader"),
        ("Transfer_Encoding: chunked\r\n", "BadHeader"),
    ] {
        check_fields(fields, expected);
        // An ignored body does not make it valid.
        check(Method::Head, format!("HTTP/1.1 200 OK\r\n{fields}\r\n"), expected);
        check(Method::Get, format!("HTTP/1.1 304 x\r\n{fields}\r\n"), expected);
    }
    check(Method::Get, "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "CodingInHttp10");
    check(Method::Head, "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "CodingInHttp10");
}

#[test]
fn line_ends_and_header_syntax() {
    for input in [
        "HTTP/1.1 200 OK\nA: b\r\n\r\n",
        "HTTP/1.1 200 \u{e4}\nA: b\r\n\r\n",
        "HTTP/1.1 200 \nA: b\r\n\r\n",
        "HTTP/1.1 200\nA: b\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\nC: d\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA:\nC: d\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\r\n\n",
        "HTTP/1.1 200 OK\n\n",
        "HTTP/1.1 200 OK\r\n\n",
        "HTTP/1.1 200 OK\r\n\rA: b\r\n\r\n",
    ] {
        check(Method::Get, input, "LineEnd");
    }
    for fields in [
        "A : b\r\n",
        "Content-Length : 5\r\n",
        " A: b\r\n",
        "A: b\r\n c\r\n",
        "Set-Cookie: a=b;\r\n\tSecure\r\n",
        "A: b\rc\r\n",
        "A\r\n",
        ": b\r\n",
        "A B: c\r\n",
        "\u{e4}: b\r\n",
        "A: \0\r\n",
        "A: b\x01\r\n",
        "A: b\x7f\r\n",
        "A\0: b\r\n",
    ] {
        check_fields(fields, "BadHeader");
    }
    for fields in ["A:\r\n", "A: \u{e4}\r\n", "A: b\tc \r\n", "Set-Cookie: a=b\r\nset-cookie: c=d\r\n"] {
        check_fields(fields, "200(OK) until-close close");
    }
}

#[test]
fn connection() {
    for (version, fields, expected) in [
        ("1.1", "Content-Length: 3\r\n", "3 keep"),
        ("1.0", "Content-Length: 3\r\n", "3 close"),
        ("1.1", "Content-Length: 3\r\nConnection: close\r\n", "3 close -Connection"),
        ("1.0", "Content-Length: 3\r\nConnection: close\r\n", "3 close -Connection"),
        ("1.0", "Content-Length: 3\r\nConnection: Keep-Alive\r\n", "3 keep -Connection"),
        ("1.0", "Content-Length: 3\r\nConnection: keep-alive, close\r\n", "3 close -Connection"),
        // A body that ends with the connection leaves nothing to keep.
        ("1.1", "Connection: keep-alive\r\n", "until-close close -Connection"),
        ("1.0", "Connection: keep-alive\r\n", "until-close close -Connection"),
        ("1.0", "", "until-close close"),
        ("1.1", "Content-Length: 0\r\nConnection: x\r\nX: 1\r\nKeep-Alive: 5\r\n", "0 keep -Connection -X -Keep-Alive"),
        ("1.1", "Content-Length: 0\r\nX: 1\r\nConnection: a,x\r\nUpgrade: h2c\r\n", "0 keep -X -Connection -Upgrade"),
        ("1.1", "Content-Length: 2\r\nConnection: content-length\r\n", "2 keep -Connection"),
        ("1.1", "Content-Length: 0\r\ndate: now\r\n", "0 keep dated"),
        ("1.1", "Content-Length: 0\r\nX-Date: now\r\n", "0 keep"),
    ] {
        check(Method::Get, format!("HTTP/{version} 200 x\r\n{fields}\r\n"), &format!("200(x) {expected}"));
    }
}

#[test]
fn limits() {
    let input = format!("HTTP/1.1 204 x\r\nA: {}\r\n\r\n", "x".repeat(100));
    let limits = |head_bytes_max| HeadLimits { head_bytes_max, ..HeadLimits::default() };
    check_within(&limits(input.len()), Method::Get, &input, "204(x) none keep");
    check_within(&limits(input.len() - 1), Method::Get, &input, "HeadTooLarge");
    check_within(&limits(60), Method::Get, &input[..59], "partial");
    check_within(&limits(60), Method::Get, &input[..60], "HeadTooLarge");
    for headers_max in [0, 1, 7, stillgate_wire::HEADERS_MAX] {
        let limits = HeadLimits { headers_max, ..HeadLimits::default() };
        let head = |count: usize| format!("HTTP/1.1 204 x\r\n{}\r\n", "A: b\r\n".repeat(count));
        check_within(&limits, Method::Get, head(headers_max), "204(x) none keep");
        check_within(&limits, Method::Get, head(headers_max + 1), "TooManyHeaders");
    }
}
