//! The effect of each rule of RFC 9112 on a request head, rule by rule.
//!
//! A verdict is one line: form, path, authority, framing, whether the connection is kept, and the fields that are not
//! forwarded.

use stillgate_wire::{
    CONNECTION_OPTIONS_MAX, Fault, Framing, HeadLimits, HeadProgress, RequestError, RequestHead, TargetForm, checks,
    leading_empty_lines,
};

/// Parses `input` whole and in pieces; all must give the `expected` verdict.
#[track_caller]
fn check_within(limits: &HeadLimits, input: impl AsRef<[u8]>, expected: &str) {
    let input = input.as_ref();
    checks::request_head(input);
    for step in [input.len().max(1), 1, 2, 3, 13] {
        let mut head = RequestHead::default();
        let mut result = Ok(HeadProgress::Partial);
        let mut end = 0;
        while end < input.len() && result == Ok(HeadProgress::Partial) {
            end = (end + step).min(input.len());
            result = head.advance(&input[..end], limits);
        }
        let verdict = match result {
            Ok(HeadProgress::Partial) => "partial".to_owned(),
            Ok(HeadProgress::Complete(len)) => {
                assert_eq!((len, head.len), (input.len(), len), "the whole input is one head");
                describe(input, &head)
            }
            Err(error) => format!("{} {error:?}", status(error.fault())),
        };
        assert_eq!(verdict, expected, "by {step}: {}", input.escape_ascii());
    }
}

#[track_caller]
fn check(input: impl AsRef<[u8]>, expected: &str) {
    check_within(&HeadLimits::default(), input, expected);
}

/// A POST in HTTP/1.1 with `Host: h` and these further lines.
#[track_caller]
fn check_fields(fields: impl AsRef<[u8]>, expected: &str) {
    let mut input = b"POST / HTTP/1.1\r\nHost: h\r\n".to_vec();
    input.extend_from_slice(fields.as_ref());
    input.extend_from_slice(b"\r\n");
    check(input, expected);
}

/// A GET of this target with `Host: h`.
#[track_caller]
fn check_target(target: impl AsRef<[u8]>, expected: &str) {
    let mut input = b"GET ".to_vec();
    input.extend_from_slice(target.as_ref());
    input.extend_from_slice(b" HTTP/1.1\r\nHost: h\r\n\r\n");
    check(input, expected);
}

fn status(fault: Fault) -> u16 {
    match fault {
        Fault::BadRequest => 400,
        Fault::TargetTooLong => 414,
        Fault::HeadTooLarge => 431,
        Fault::Version => 505,
    }
}

fn describe(input: &[u8], head: &RequestHead) -> String {
    let text = |span: stillgate_wire::Span| span.of(input).escape_ascii().to_string();
    let form = match head.form {
        TargetForm::Origin => "origin",
        TargetForm::Absolute => "absolute",
        TargetForm::Asterisk => "asterisk",
        TargetForm::Authority => "authority",
    };
    let framing = match head.framing {
        Framing::None => "none".to_owned(),
        Framing::Length(bytes) => bytes.to_string(),
        Framing::Chunked => "chunked".to_owned(),
        Framing::UntilClose => panic!("a request body cannot end with the connection"),
    };
    let connection = if head.keep_alive { "keep" } else { "close" };
    let mut verdict = format!("{form} {}@{} {framing} {connection}", text(head.path_and_query), text(head.authority));
    if head.expects_continue {
        verdict.push_str(" continue");
    }
    for (index, field) in head.fields.iter().enumerate() {
        if head.hop_by_hop.contains(index) {
            verdict.push_str(&format!(" -{}", text(field.name)));
        }
    }
    verdict
}

#[test]
fn content_length() {
    for (value, expected) in [
        ("0", "origin /@h 0 keep"),
        ("5", "origin /@h 5 keep"),
        ("007", "origin /@h 7 keep"),
        ("\t5 \t", "origin /@h 5 keep"),
        ("9223372036854775807", "origin /@h 9223372036854775807 keep"),
        ("9223372036854775808", "400 LengthMalformed"),
        ("18446744073709551617", "400 LengthMalformed"),
        ("00000000000000000005", "400 LengthMalformed"),
        ("", "400 LengthMalformed"),
        ("+5", "400 LengthMalformed"),
        ("-5", "400 LengthMalformed"),
        ("5.0", "400 LengthMalformed"),
        ("0x5", "400 LengthMalformed"),
        ("5a", "400 LengthMalformed"),
        ("5 5", "400 LengthMalformed"),
        ("5,5", "400 LengthMalformed"),
        ("5, 6", "400 LengthMalformed"),
        ("5,", "400 LengthMalformed"),
        ("\"5\"", "400 LengthMalformed"),
        ("five", "400 LengthMalformed"),
        ("\u{0665}", "400 LengthMalformed"),
    ] {
        check_fields(format!("Content-Length: {value}\r\n"), expected);
        check_fields(format!("CONTENT-length:{value}\r\n"), expected);
    }
    check_fields("Content-Length: 5\r\nContent-Length: 5\r\n", "400 LengthRepeated");
    check_fields("Content-Length: 5\r\nA: b\r\ncontent-length: 6\r\n", "400 LengthRepeated");
    check_fields("Content-Length: 5\r\nContent-Length: x\r\n", "400 LengthRepeated");
    check_fields("", "origin /@h none keep");
}

#[test]
fn transfer_encoding() {
    for (value, expected) in [
        ("chunked", "origin /@h chunked keep -Transfer-Encoding"),
        ("Chunked", "origin /@h chunked keep -Transfer-Encoding"),
        (" \tchunked\t ", "origin /@h chunked keep -Transfer-Encoding"),
        ("", "400 CodingUnknown"),
        ("identity", "400 CodingUnknown"),
        ("gzip", "400 CodingUnknown"),
        ("gzip, chunked", "400 CodingUnknown"),
        ("chunked, gzip", "400 CodingUnknown"),
        ("chunked, chunked", "400 CodingUnknown"),
        ("chunked,", "400 CodingUnknown"),
        (",chunked", "400 CodingUnknown"),
        ("chunked;q=1", "400 CodingUnknown"),
        ("\"chunked\"", "400 CodingUnknown"),
        ("'chunked'", "400 CodingUnknown"),
        ("xchunked", "400 CodingUnknown"),
        ("chunkedx", "400 CodingUnknown"),
        ("chunk", "400 CodingUnknown"),
        ("chunke\u{17f}d", "400 CodingUnknown"),
        ("chunked\u{a0}", "400 CodingUnknown"),
        ("chunked\x0b", "400 BadHeader"),
        ("\x0bchunked", "400 BadHeader"),
        ("chun\0ked", "400 BadHeader"),
    ] {
        check_fields(format!("Transfer-Encoding:{value}\r\n"), expected);
    }
    for both in [
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding: gzip\r\nA: b\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding:\r\nTransfer-Encoding: chunked\r\n",
    ] {
        check_fields(both, "400 CodingUnknown");
    }
    for coding in ["chunked", "identity", ""] {
        check_fields(format!("Content-Length: 5\r\nTransfer-Encoding: {coding}\r\n"), "400 CodingAndLength");
        check_fields(format!("Transfer-Encoding: {coding}\r\nContent-Length: 0\r\n"), "400 CodingAndLength");
        check(format!("POST / HTTP/1.0\r\nTransfer-Encoding: {coding}\r\n\r\n"), "400 CodingInHttp10");
    }
    check("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", "400 CodingAndLength");
}

#[test]
fn lookalikes_of_framing_fields() {
    for name in ["Content_Length", "content_length", "Transfer_Encoding", "TRANSFER_ENCODING"] {
        check_fields(format!("{name}: 5\r\n"), "400 FramingLookalike");
        check_fields(format!("Content-Length: 5\r\n{name}: chunked\r\n"), "400 FramingLookalike");
    }
    // Servers do not confuse these with framing fields.
    check_fields("Content-Lengths: 5\r\nContentLength: 5\r\nX-Content_Length: 5\r\n", "origin /@h none keep");
    check_fields("Transfer-Encodings: chunked\r\nX_Real_IP: ::1\r\n", "origin /@h none keep");
}

#[test]
fn line_ends() {
    for input in [
        "GET / HTTP/1.1\nHost: h\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\nA: b\nB: c\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\nA:\nB: c\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\n\n",
        "GET / HTTP/1.1\nHost: h\n\n",
        "GET / HTTP/1.0\n\n",
        "GET / HTTP/1.0\r\n\n",
        "GET / HTTP/1.0\n\r\n",
        "GET / HTTP/1.1\rHost: h\r\n\r\n",
        "GET / HTTP/1.1\r\r\nHost: h\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\n\rA: b\r\n\r\n",
    ] {
        check(input, "400 LineEnd");
    }
    for fields in ["A: b\rc\r\n", "A: b\r\r\n", "A: \rb\r\n", "A:\r\r\n", "A: b\rContent-Length: 5\r\n"] {
        check_fields(fields, "400 BadHeader");
    }
}

#[test]
fn empty_lines_before_a_request() {
    for (input, skip) in [("", 0), ("GET", 0), ("\r", 0), ("\r\n", 2), ("\r\n\r\nGET", 4), ("\r\n\r", 2), (" \r\n", 0)]
    {
        assert_eq!(leading_empty_lines(input.as_bytes()), Ok(skip), "{input:?}");
    }
    for input in ["\n", "\nGET", "\rGET", "\r\r\n", "\r\n\n", "\r\n\rG"] {
        assert_eq!(leading_empty_lines(input.as_bytes()), Err(RequestError::LineEnd), "{input:?}");
    }
}

#[test]
fn header_syntax() {
    for fields in [
        "A : b\r\n",
        "A\t: b\r\n",
        "Content-Length : 5\r\n",
        "Transfer-Encoding : chunked\r\n",
        " A: b\r\n",
        "\tA: b\r\n",
        "A: b\r\n c\r\n",
        "A: b\r\n\tc\r\n",
        "A:\r\n b\r\n",
        "A: b\r\n \r\n",
        "A b\r\n",
        "A\r\n",
        ": b\r\n",
        "A(: b\r\n",
        "A/B: b\r\n",
        "A\"B: c\r\n",
        "A@b: c\r\n",
        "\u{e4}: b\r\n",
        "A\0: b\r\n",
        "A\x7f: b\r\n",
        "A: b\0c\r\n",
        "A: \0\r\n",
        "A: b\x01\r\n",
        "A: b\x1b[0m\r\n",
        "A: b\x7f\r\n",
        "A: \x0cb\r\n",
    ] {
        check_fields(fields, "400 BadHeader");
    }
    // A blank at the beginning of the first field line is refused as well.
    check("GET / HTTP/1.1\r\n Host: h\r\n\r\n", "400 BadHeader");
    check("GET / HTTP/1.1\r\n\tHost: h\r\n\r\n", "400 BadHeader");
    // Tokens, empty values, tabs and bytes beyond ASCII are all fine.
    for fields in
        ["!#$%&'*+-.^_`|~09Az: b\r\n", "A:\r\n", "A:  \t \r\n", "A: b\tc\r\n", "A: \u{fc} \u{20ac}\r\n", "A: b: c\r\n"]
    {
        check_fields(fields, "origin /@h none keep");
    }
    check_fields(b"A: \x80\xff\r\n", "origin /@h none keep");
}

#[test]
fn request_line() {
    for (line, expected) in [
        ("GET / HTTP/1.1", "origin /@h none keep"),
        ("M-SEARCH / HTTP/1.1", "origin /@h none keep"),
        ("MY_OWN / HTTP/1.1", "origin /@h none keep"),
        ("get / HTTP/1.1", "400 Method"),
        ("Delete / HTTP/1.1", "400 Method"),
        ("GET1 / HTTP/1.1", "400 Method"),
        ("!#$%&'*+-.^_`|~09Az / HTTP/1.1", "400 Method"),
        ("GET / HTTP/1.2", "505 Version"),
        ("GET / HTTP/2.0", "505 Version"),
        ("GET / HTTP/0.9", "505 Version"),
        ("GET / HTTP/9", "505 Version"),
        ("GET / http/1.1", "400 RequestLine"),
        ("GET / HTTQ/1.1", "400 RequestLine"),
        ("GET /a b HTTP/1.1", "400 RequestLine"),
        ("GET /  HTTP/1.1", "400 RequestLine"),
        ("GET / ", "400 RequestLine"),
        ("GET /", "400 RequestLine"),
        ("GET", "400 RequestLine"),
        ("GET  / HTTP/1.1", "400 RequestLine"),
        ("GET\t/ HTTP/1.1", "400 RequestLine"),
        ("GET /\tHTTP/1.1", "400 RequestLine"),
        (" GET / HTTP/1.1", "400 RequestLine"),
        ("G@T / HTTP/1.1", "400 RequestLine"),
        ("G\0T / HTTP/1.1", "400 RequestLine"),
        ("GET: / HTTP/1.1", "400 RequestLine"),
        ("\u{e4} / HTTP/1.1", "400 RequestLine"),
        ("GET / HTTP/1.1 ", "400 LineEnd"),
        ("GET / HTTP/1.10", "400 LineEnd"),
        ("GET / HTTP/1.1\0", "400 LineEnd"),
    ] {
        check(format!("{line}\r\nHost: h\r\n\r\n"), expected);
    }
    for partial in ["G", "GET ", "GET /", "GET / HTTP/1.1", "GET / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nHost: h\r\n\r"] {
        check(partial, "partial");
    }
}

#[test]
fn targets() {
    for (target, expected) in [
        ("/a/b?c=d&e", "origin /a/b?c=d&e@h none keep"),
        ("//a", "origin //a@h none keep"),
        ("/%00%0d%0a", "origin /%00%0d%0a@h none keep"),
        ("/a?b?c/../d", "origin /a?b?c/../d@h none keep"),
        ("/\"<>\\^`{|}", "origin /\\\"<>\\\\^`{|}@h none keep"),
        ("/\u{e4}", "origin /\\xc3\\xa4@h none keep"),
        ("a", "400 TargetForm"),
        ("?a", "400 TargetForm"),
        ("a.example:80", "400 TargetForm"),
        ("*", "400 TargetForm"),
        ("/a#b", "400 TargetForm"),
        ("#", "400 TargetForm"),
        ("/\0", "400 RequestLine"),
        ("/\x01", "400 RequestLine"),
        ("/a\x1fb", "400 RequestLine"),
        ("/\x7f", "400 RequestLine"),
        ("/a\rb", "400 RequestLine"),
        ("/a\nb", "400 RequestLine"),
    ] {
        check_target(target, expected);
    }
    check_target(b"/\xff", "400 RequestLine");
    check("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", "asterisk *@h none keep");
    check("OPTIONS *a HTTP/1.1\r\nHost: h\r\n\r\n", "400 TargetForm");
    check("OPTIONS /* HTTP/1.1\r\nHost: h\r\n\r\n", "origin /*@h none keep");
    check(
        "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n",
        "authority a.example:443@a.example:443 none keep",
    );
}

#[test]
fn absolute_form_overrides_host() {
    for (target, expected) in [
        ("http://o.example/a?b", "absolute /a?b@o.example none keep"),
        ("HTTP://o:8080/", "absolute /@o:8080 none keep"),
        ("https://[::1]:1/a", "absolute /a@[::1]:1 none keep"),
        ("http://o", "absolute @o none keep"),
        ("http://o?q=/", "absolute ?q=/@o none keep"),
        ("http://o/http://p/", "absolute /http://p/@o none keep"),
        ("http://", "400 TargetForm"),
        ("http:///a", "400 TargetForm"),
        ("http://:80/a", "400 TargetForm"),
        ("http://u@o/a", "400 TargetForm"),
        ("http://u:p@o/a", "400 TargetForm"),
        ("http://o:x/", "400 TargetForm"),
        ("http://o:65536/", "400 TargetForm"),
        ("http://[::1/", "400 TargetForm"),
        ("http://o\\p/", "400 TargetForm"),
        ("http:/o/a", "400 TargetForm"),
        ("ftp://o/a", "400 TargetForm"),
        ("o://p", "400 TargetForm"),
        ("http://o/#a", "400 TargetForm"),
    ] {
        check_target(target, expected);
    }
    // A separate Host is still required in HTTP/1.1, and checked.
    check("GET http://o/ HTTP/1.1\r\n\r\n", "400 HostMissing");
    check("GET http://o/ HTTP/1.1\r\nHost: a b\r\n\r\n", "400 HostInvalid");
    check("GET http://o/ HTTP/1.1\r\nHost: a\r\nHost: o\r\n\r\n", "400 HostRepeated");
    check("GET http://o/ HTTP/1.0\r\n\r\n", "absolute /@o none close");
}

#[test]
fn host() {
    for (value, expected) in [
        ("a.example", "origin /@a.example none keep"),
        ("A.Example:", "origin /@A.Example: none keep"),
        ("a:0", "origin /@a:0 none keep"),
        ("a:65535", "origin /@a:65535 none keep"),
        ("127.0.0.1:80", "origin /@127.0.0.1:80 none keep"),
        ("[::ffff:1.2.3.4]:80", "origin /@[::ffff:1.2.3.4]:80 none keep"),
        ("a_b~c%41", "origin /@a_b~c%41 none keep"),
        ("", "origin /@ none keep"),
        ("a:65536", "400 HostInvalid"),
        ("a:-1", "400 HostInvalid"),
        ("a:80:80", "400 HostInvalid"),
        ("a b", "400 HostInvalid"),
        ("a\tb", "400 HostInvalid"),
        ("a,b", "400 HostInvalid"),
        ("a/b", "400 HostInvalid"),
        ("a?b", "400 HostInvalid"),
        ("a#b", "400 HostInvalid"),
        ("a\\b", "400 HostInvalid"),
        ("u@a", "400 HostInvalid"),
        ("http://a", "400 HostInvalid"),
        ("::1", "400 HostInvalid"),
        ("[::1", "400 HostInvalid"),
        ("[]", "400 HostInvalid"),
        ("[::1]a", "400 HostInvalid"),
        ("[fe80::1%25eth0]", "400 HostInvalid"),
        ("\u{e4}.example", "400 HostInvalid"),
        ("a\0", "400 BadHeader"),
    ] {
        check(format!("GET / HTTP/1.1\r\nHost: {value}\r\n\r\n"), expected);
        check(format!("GET / HTTP/1.0\r\nhOST:{value}\r\n\r\n"), &expected.replace("keep", "close"));
    }
    check("GET / HTTP/1.1\r\n\r\n", "400 HostMissing");
    check("GET / HTTP/1.1\r\nHosts: a\r\nX-Host: a\r\n\r\n", "400 HostMissing");
    check("GET / HTTP/1.0\r\n\r\n", "origin /@ none close");
    for version in ["1.0", "1.1"] {
        check(format!("GET / HTTP/{version}\r\nHost: a\r\nHost: a\r\n\r\n"), "400 HostRepeated");
        check(format!("GET / HTTP/{version}\r\nHost: a\r\nB: c\r\nhost: b\r\n\r\n"), "400 HostRepeated");
        check(format!("GET / HTTP/{version}\r\nHost:\r\nHost: b\r\n\r\n"), "400 HostRepeated");
    }
}

#[test]
fn connection() {
    for (fields, in_11, in_10) in [
        ("", "keep", "close"),
        ("Connection:\r\n", "keep -Connection", "close -Connection"),
        ("Connection: close\r\n", "close -Connection", "close -Connection"),
        ("Connection: CLOSE\r\n", "close -Connection", "close -Connection"),
        ("Connection: keep-alive\r\n", "keep -Connection", "keep -Connection"),
        ("connection: Keep-Alive\r\n", "keep -connection", "keep -connection"),
        ("Connection: close, keep-alive\r\n", "close -Connection", "close -Connection"),
        ("Connection: a ,, \tkeep-alive,\r\nA: b\r\n", "keep -Connection -A", "keep -Connection -A"),
        (
            "Connection: keep-alive\r\nConnection: close\r\n",
            "close -Connection -Connection",
            "close -Connection -Connection",
        ),
        ("Connection: closed\r\n", "keep -Connection", "close -Connection"),
        ("Connection: \"close\"\r\n", "keep -Connection", "close -Connection"),
        ("Proxy-Connection: keep-alive\r\n", "keep -Proxy-Connection", "close -Proxy-Connection"),
    ] {
        check(format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n"), &format!("origin /@h none {in_11}"));
        check(format!("GET / HTTP/1.0\r\nHost: h\r\n{fields}\r\n"), &format!("origin /@h none {in_10}"));
    }
}

#[test]
fn fields_that_end_here() {
    for (fields, ended) in [
        ("TE: trailers\r\nUpgrade: h2c\r\nKeep-Alive: 5\r\nA: b\r\n", " -TE -Upgrade -Keep-Alive"),
        ("A: 1\r\nConnection: a, B\r\nb: 2\r\nC: 3\r\nA: 4\r\n", " -A -Connection -b -A"),
        ("Connection: a\r\nA: 1\r\nB: 2\r\nConnection: b\r\n", " -Connection -A -B -Connection"),
        ("Connection: connection\r\n", " -Connection"),
        ("Connection: missing\r\nMiss: 1\r\n", " -Connection"),
        ("Connection: a-b\r\nA: 1\r\nA-B-C: 2\r\nA_B: 3\r\n", " -Connection"),
        // Fields that define the end of the message, its recipient or its sender stay, even if Connection names them.
        ("Connection: host, content-length\r\nA: b\r\n", " -Connection"),
        ("Connection: x-forwarded-for, x-real-ip\r\nX-Forwarded-For: ::1\r\nX-Real-IP: ::1\r\n", " -Connection"),
    ] {
        check_fields(fields, &format!("origin /@h none keep{ended}"));
    }
    check_fields("Content-Length: 3\r\nConnection: Content-Length, Host\r\n", "origin /@h 3 keep -Connection");
    check_fields(
        "Transfer-Encoding: chunked\r\nConnection: Transfer-Encoding\r\n",
        "origin /@h chunked keep -Transfer-Encoding -Connection",
    );
}

#[test]
fn expectations() {
    for (fields, expected) in [
        ("Expect: 100-continue\r\nContent-Length: 1\r\n", "1 keep continue"),
        ("Content-Length: 1\r\nEXPECT:100-Continue \r\n", "1 keep continue"),
        ("Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n", "chunked keep continue -Transfer-Encoding"),
        ("Expect: 100-continue\r\n", "none keep"),
        ("Expect: 100-continue\r\nContent-Length: 0\r\n", "0 keep"),
        ("Expect: 101-continue\r\nContent-Length: 1\r\n", "1 keep"),
        ("Expect:\r\nContent-Length: 1\r\n", "1 keep"),
    ] {
        check_fields(fields, &format!("origin /@h {expected}"));
    }
    check("POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n", "origin /@ 1 close");
}

#[test]
fn limit_of_the_head() {
    let input = format!("GET / HTTP/1.1\r\nHost: h\r\nA: {}\r\n\r\n", "x".repeat(100));
    let limits = |head_bytes_max| HeadLimits { head_bytes_max, ..HeadLimits::default() };
    check_within(&limits(input.len()), &input, "origin /@h none keep");
    check_within(&limits(input.len() - 1), &input, "431 HeadTooLarge");
    // The refusal does not wait for bytes beyond the limit.
    check_within(&limits(60), &input[..59], "partial");
    check_within(&limits(60), &input[..60], "431 HeadTooLarge");
    check_within(&limits(10), &input[..10], "431 HeadTooLarge");
}

#[test]
fn limit_of_the_target() {
    let limits = HeadLimits { target_bytes_max: 20, ..HeadLimits::default() };
    let longest = format!("/{}", "x".repeat(19));
    check_within(&limits, format!("GET {longest} HTTP/1.0\r\n\r\n"), &format!("origin {longest}@ none close"));
    check_within(&limits, format!("GET {longest}y HTTP/1.0\r\n\r\n"), "414 TargetTooLong");
    check_within(&limits, format!("GET {longest}"), "partial");
    check_within(&limits, format!("GET {longest}y"), "414 TargetTooLong");
    // Nothing behind the limit changes the verdict, everything before does.
    check_within(&limits, format!("GET {longest}y\0 HTTP/9\n"), "414 TargetTooLong");
    check_within(&limits, format!("GET \0{longest}y HTTP/1.0\r\n\r\n"), "400 RequestLine");
    check_within(&limits, format!("G@T {longest}y HTTP/1.0\r\n\r\n"), "400 RequestLine");
    // The limit that is reached first counts.
    let both = HeadLimits { head_bytes_max: 30, target_bytes_max: 20, ..HeadLimits::default() };
    check_within(&both, format!("GET {longest}yyyyyyyyyyyyyyyy"), "414 TargetTooLong");
}

#[test]
fn limit_of_the_fields() {
    let head = |count: usize| format!("GET / HTTP/1.0\r\n{}\r\n", "A: b\r\n".repeat(count));
    for headers_max in [0, 1, 7, stillgate_wire::HEADERS_MAX] {
        let limits = HeadLimits { headers_max, ..HeadLimits::default() };
        check_within(&limits, head(headers_max), "origin /@ none close");
        check_within(&limits, head(headers_max + 1), "431 TooManyHeaders");
    }
}

#[test]
fn connection_options_are_bounded() {
    let head = |options: usize| format!("GET / HTTP/1.1\r\nHost: h\r\nConnection: {}\r\n\r\n", "a,".repeat(options));
    check(head(CONNECTION_OPTIONS_MAX), "origin /@h none keep -Connection");
    check(head(CONNECTION_OPTIONS_MAX + 1), "400 ConnectionOptions");
}
