//! gRPC as far as a gateway has to know it: what a call is, its deadline, and how a client learns that no node has answered.
//!
//! The rest of gRPC is HTTP/2 with trailers; how gRPC-Web maps these is in `http2`.

use std::io::Write;
use stillgate_wire::{RequestHead, ResponseHead};

/// `grpc-timeout` has at most this many digits.
const TIMEOUT_DIGITS_MAX: usize = 8;

/// DEADLINE_EXCEEDED
const DEADLINE_EXCEEDED: u8 = 4;

/// A call, by how its messages are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// gRPC itself.
    Native,
    Web(Web),
}

/// A gRPC-Web call (gRPC's `PROTOCOL-WEB.md`), which needs no HTTP trailers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Web {
    /// The request's body is base64.
    pub(crate) is_text: bool,
    /// The response's body is to be base64.
    pub(crate) wants_text: bool,
}

/// The media types of gRPC, without the suffix that may follow.
const NATIVE: &[u8] = b"application/grpc";
const WEB: &[u8] = b"application/grpc-web";
const WEB_TEXT: &[u8] = b"application/grpc-web-text";

impl Web {
    /// The type of the response's content, without a suffix.
    pub(crate) fn answer_type(self) -> &'static [u8] {
        if self.wants_text { WEB_TEXT } else { WEB }
    }
}

/// What kind of call a request is, by its content type; `None`: it is not a call.
pub(crate) fn call(request: &RequestHead, head: &[u8]) -> Option<Call> {
    let content_type = value_of(request, head, b"content-type")?;
    if native_suffix(content_type).is_some() {
        return Some(Call::Native);
    }
    let is_text = web_suffix(content_type)?.0;
    let accepted = value_of(request, head, b"accept").and_then(accepts_text);
    Some(Call::Web(Web { is_text, wants_text: accepted.unwrap_or(is_text) }))
}

/// Whether a response belongs to a call of gRPC itself.
pub(crate) fn ends_call(response: &ResponseHead, head: &[u8]) -> bool {
    let mut fields = response.fields.iter();
    let content_type = fields.find(|field| field.name.of(head).eq_ignore_ascii_case(b"content-type"));
    content_type.is_some_and(|field| native_suffix(field.value.of(head)).is_some())
}

/// What follows `application/grpc` in a content type; `None`: it is another type.
pub(crate) fn native_suffix(content_type: &[u8]) -> Option<&[u8]> {
    suffix(content_type, NATIVE)
}

/// Whether a content type is gRPC-Web text, and what follows it; `None`: it is another type.
pub(crate) fn web_suffix(content_type: &[u8]) -> Option<(bool, &[u8])> {
    let text = suffix(content_type, WEB_TEXT).map(|suffix| (true, suffix));
    text.or_else(|| suffix(content_type, WEB).map(|suffix| (false, suffix)))
}

fn suffix<'v>(value: &'v [u8], name: &[u8]) -> Option<&'v [u8]> {
    let (start, rest) = value.split_at_checked(name.len())?;
    (start.eq_ignore_ascii_case(name) && matches!(rest.first(), None | Some(b'+' | b';' | b' '))).then_some(rest)
}

/// Which of the two forms `Accept` requests; `None`: it names neither.
fn accepts_text(accept: &[u8]) -> Option<bool> {
    let mut forms = accept.split(|byte| *byte == b',').filter_map(|one| Some(web_suffix(one.trim_ascii())?.0));
    forms.next().map(|first| first || forms.any(|is_text| is_text))
}

/// How long the client waits for the end of the call, in milliseconds, rounded up; `None` if it does not say so.
pub(crate) fn timeout_ms(request: &RequestHead, head: &[u8]) -> Option<u64> {
    parse_timeout(value_of(request, head, b"grpc-timeout")?)
}

fn value_of<'h>(request: &RequestHead, head: &'h [u8], name: &[u8]) -> Option<&'h [u8]> {
    let mut fields = request.fields.iter();
    fields.find(|field| field.name.of(head).eq_ignore_ascii_case(name)).map(|field| field.value.of(head))
}

fn parse_timeout(value: &[u8]) -> Option<u64> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > TIMEOUT_DIGITS_MAX || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let count = digits.iter().fold(0, |count, digit| count * 10 + u64::from(digit - b'0'));
    Some(match unit {
        b'H' => count * 3_600_000,
        b'M' => count * 60_000,
        b'S' => count * 1_000,
        b'm' => count,
        b'u' => count.div_ceil(1_000),
        b'n' => count.div_ceil(1_000_000),
        _ => return None,
    })
}

/// Appends the head of an answer that consists only of its end ("Trailers-Only"), up to the common lines.
pub(crate) fn write_answer(out: &mut Vec<u8>, call: Call, status: u16, is_deadline: bool, message: &str) {
    let code = if is_deadline { DEADLINE_EXCEEDED } else { code(status) };
    out.extend_from_slice(b"HTTP/1.1 200 OK\r\nContent-Type: ");
    match call {
        Call::Native => out.extend_from_slice(NATIVE),
        Call::Web(web) => {
            out.extend_from_slice(web.answer_type());
            out.extend_from_slice(b"+proto");
        }
    }
    write!(out, "\r\nContent-Length: 0\r\ngrpc-status: {code}\r\n").expect("writing to a vector does not fail");
    out.extend_from_slice(b"grpc-message: ");
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(byte),
            _ => write!(out, "%{byte:02X}").expect("writing to a vector does not fail"),
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Maps an HTTP status to a gRPC code (gRPC's `http-grpc-status-mapping.md`).
fn code(status: u16) -> u8 {
    match status {
        400 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        429 | 502..=504 => 14,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_wire::HeadLimits;

    #[test]
    fn timeouts() {
        for (value, expected) in [
            ("1H", Some(3_600_000)),
            ("2M", Some(120_000)),
            ("3S", Some(3_000)),
            ("250m", Some(250)),
            ("1u", Some(1)),
            ("2000001n", Some(3)),
            ("99999999H", Some(99_999_999 * 3_600_000)),
            ("0m", Some(0)),
            ("", None),
            ("S", None),
            ("1", None),
            ("1s", None),
            ("-1S", None),
            ("1 S", None),
            ("123456789S", None),
        ] {
            assert_eq!(parse_timeout(value.as_bytes()), expected, "{value}");
        }
    }

    #[test]
    fn calls() {
        let check = |content_type: &str, accept: &str, expected: Option<Call>| {
            let head =
                format!("POST /a HTTP/1.1\r\nHost: h\r\nContent-Type: {content_type}\r\nAccept: {accept}\r\n\r\n");
            let mut request = RequestHead::default();
            request.advance(head.as_bytes(), &HeadLimits::default()).unwrap();
            assert_eq!(call(&request, head.as_bytes()), expected, "{content_type} {accept}");
        };
        for native in ["application/grpc", "Application/gRPC", "application/grpc+proto", "application/grpc; a=b"] {
            check(native, "application/grpc-web-text", Some(Call::Native));
        }
        for other in ["application/grpc-webs", "application/grpcs", "application/json", "application/grp", ""] {
            check(other, "*/*", None);
        }
        let web = |is_text, wants_text| Some(Call::Web(Web { is_text, wants_text }));
        check("application/grpc-web", "*/*", web(false, false));
        check("Application/gRPC-Web+proto", "", web(false, false));
        check("application/grpc-web-text", "*/*", web(true, true));
        check("application/grpc-web-text+proto; charset=utf-8", "text/html", web(true, true));
        check("application/grpc-web-text", "application/grpc-web+proto", web(true, false));
        check("application/grpc-web+proto", "text/html, application/grpc-web-text", web(false, true));
        check("application/grpc-web", "application/grpc-web+proto,application/grpc-web-text;q=1", web(false, true));
    }

    #[test]
    fn answers() {
        let mut out = Vec::new();
        write_answer(&mut out, Call::Native, 503, false, "50% of\u{e4}");
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("\r\nContent-Type: application/grpc\r\n"), "{text}");
        assert!(text.ends_with("grpc-status: 14\r\ngrpc-message: 50%25 of%C3%A4\r\n"), "{text}");
        let mut out = Vec::new();
        write_answer(&mut out, Call::Web(Web { is_text: false, wants_text: true }), 504, true, "late");
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("\r\nContent-Type: application/grpc-web-text+proto\r\n"), "{text}");
        assert!(text.contains("\r\ngrpc-status: 4\r\n"), "{text}");
        for (status, expected) in [(400, 13), (404, 12), (408, 2), (429, 14), (431, 2), (500, 2), (504, 14)] {
            assert_eq!(code(status), expected);
        }
    }
}
