//! gRPC as far as a gateway has to know it: its deadlines, and how it is told that there is no answer from a node.
//!
//! Everything else of it is HTTP/2 with trailers.

use std::io::Write;
use stillgate_wire::RequestHead;

/// More digits than these `grpc-timeout` does not have.
const TIMEOUT_DIGITS_MAX: usize = 8;

/// DEADLINE_EXCEEDED
const DEADLINE_EXCEEDED: u8 = 4;

/// Whether the request is a call: its content is of the type `application/grpc`, with or without a suffix.
pub(crate) fn is_call(request: &RequestHead, head: &[u8]) -> bool {
    const TYPE: &[u8] = b"application/grpc";
    let Some(value) = value_of(request, head, b"content-type") else { return false };
    let starts = value.get(..TYPE.len()).is_some_and(|start| start.eq_ignore_ascii_case(TYPE));
    starts && matches!(value.get(TYPE.len()), None | Some(b'+' | b';' | b' '))
}

/// How long the client waits for the call's end, in milliseconds, rounded up; `None` where it does not say so.
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

/// Appends the head of an answer that is nothing but its end ("Trailers-Only"), up to the common lines.
pub(crate) fn write_answer(out: &mut Vec<u8>, status: u16, is_deadline: bool, message: &str) {
    let code = if is_deadline { DEADLINE_EXCEEDED } else { code(status) };
    write!(out, "HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\nContent-Length: 0\r\ngrpc-status: {code}\r\n")
        .expect("writing to a vector does not fail");
    out.extend_from_slice(b"grpc-message: ");
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(byte),
            _ => write!(out, "%{byte:02X}").expect("writing to a vector does not fail"),
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// What a status of HTTP means (gRPC's `http-grpc-status-mapping.md`).
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
        let check = |value: &str, expected: bool| {
            let head = format!("POST /a HTTP/1.1\r\nHost: h\r\nContent-Type: {value}\r\n\r\n");
            let mut request = RequestHead::default();
            request.advance(head.as_bytes(), &HeadLimits::default()).unwrap();
            assert_eq!(is_call(&request, head.as_bytes()), expected, "{value}");
        };
        for call in ["application/grpc", "Application/gRPC", "application/grpc+proto", "application/grpc; a=b"] {
            check(call, true);
        }
        for other in ["application/grpc-web", "application/grpcs", "application/json", "application/grp", ""] {
            check(other, false);
        }
    }

    #[test]
    fn answers() {
        let mut out = Vec::new();
        write_answer(&mut out, 503, false, "50% of\u{e4}");
        let text = String::from_utf8(out).unwrap();
        assert!(text.ends_with("grpc-status: 14\r\ngrpc-message: 50%25 of%C3%A4\r\n"), "{text}");
        for (status, expected) in [(400, 13), (404, 12), (408, 2), (429, 14), (431, 2), (500, 2), (504, 14)] {
            assert_eq!(code(status), expected);
        }
    }
}
