//! Upgrades of a connection to another protocol (RFC 9110 section 7.8): the requested protocols, and whether the answer
//! agrees.
//!
//! Protocols that carry HTTP requests are always left out: requests behind their 101 would bypass the routes and every
//! rule (`h2c` was removed by RFC 9113 section 3.1; `TLS` is RFC 2817).

use crate::framing::tokens;
use crate::head::Fields;
use crate::name::Name;
use crate::request::RequestHead;
use crate::response::ResponseHead;

/// Names of protocols, of the form `name/version`, in any case.
const CARRY_HTTP: [&[u8]; 4] = [b"h2c", b"h2", b"http", b"tls"];

/// The protocols that the `Upgrade` fields of a head name, in order, without those that carry HTTP.
pub fn upgrade_protocols<'h>(fields: &'h Fields, head: &'h [u8]) -> impl Iterator<Item = &'h [u8]> {
    let values = fields.iter().filter(|field| field.id == Name::Upgrade);
    values.flat_map(|field| tokens(field.value.of(head))).filter(|protocol| !carries_http(protocol))
}

fn carries_http(protocol: &[u8]) -> bool {
    let name = protocol.split(|b| *b == b'/').next().unwrap_or_default();
    CARRY_HTTP.iter().any(|other| name.eq_ignore_ascii_case(other))
}

/// Whether a 101 switches to a requested protocol: it names at least one, and each of them was requested.
pub fn switches_as_asked(request: &RequestHead, asked: &[u8], response: &ResponseHead, answered: &[u8]) -> bool {
    let was_asked =
        |protocol: &[u8]| upgrade_protocols(&request.fields, asked).any(|other| other.eq_ignore_ascii_case(protocol));
    let upgrades = response.fields.iter().filter(|field| field.id == Name::Upgrade);
    let mut named = upgrades.flat_map(|field| tokens(field.value.of(answered))).peekable();
    request.asks_upgrade && named.peek().is_some() && named.all(was_asked)
}

/// Appends the two lines that request these protocols, or agree to them.
pub fn write_upgrade_lines<'h>(out: &mut Vec<u8>, protocols: impl Iterator<Item = &'h [u8]>) {
    out.extend_from_slice(b"Connection: Upgrade\r\nUpgrade: ");
    for (index, protocol) in protocols.enumerate() {
        if index > 0 {
            out.extend_from_slice(b", ");
        }
        out.extend_from_slice(protocol);
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HeadLimits, HeadProgress, Method};

    fn request(line: &str, fields: &str) -> (RequestHead, Vec<u8>) {
        let text = format!("{line}\r\nHost: h\r\n{fields}\r\n").into_bytes();
        let mut head = RequestHead::default();
        assert_eq!(head.advance(&text, &HeadLimits::default()), Ok(HeadProgress::Complete(text.len())), "{fields}");
        (head, text)
    }

    #[test]
    fn who_asks_for_what() {
        let check = |fields: &str, expected: &str| {
            let (head, text) = request("GET / HTTP/1.1", fields);
            let mut lines = Vec::new();
            if head.asks_upgrade {
                write_upgrade_lines(&mut lines, upgrade_protocols(&head.fields, &text));
            }
            let expected = match expected {
                "" => String::new(),
                protocols => format!("Connection: Upgrade\r\nUpgrade: {protocols}\r\n"),
            };
            assert_eq!(String::from_utf8(lines).unwrap(), expected, "{fields}");
        };
        check("Connection: Upgrade\r\nUpgrade: websocket\r\n", "websocket");
        check("connection: keep-alive, uPGRADE\r\nupgrade: WebSocket\r\n", "WebSocket");
        check("Connection: keep-alive\r\nConnection: upgrade\r\nUpgrade: a/1, b ,,\r\nUpgrade: c\r\n", "a/1, b, c");
        check("Connection: Upgrade\r\nUpgrade: h2c, websocket\r\n", "websocket");
        // Neither field alone is a request.
        check("Upgrade: websocket\r\n", "");
        check("Connection: Upgrade\r\n", "");
        check("Connection: Upgrade\r\nUpgrade: ,\r\n", "");
        check("Connection: Upgrades\r\nUpgrade: websocket\r\n", "");
        // Protocols that carry HTTP.
        for protocol in ["h2c", "H2C", "h2", "HTTP/2.0", "http/1.1", "TLS/1.0", "h2c/2"] {
            check(
                &format!("Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMA\r\nUpgrade: {protocol}\r\n"),
                "",
            );
        }
        let (head, _) = request("GET / HTTP/1.0", "Connection: Upgrade\r\nUpgrade: websocket\r\n");
        assert!(!head.asks_upgrade, "HTTP/1.0 has no Upgrade");
        let (head, _) = request("POST / HTTP/1.1", "Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 2\r\n");
        assert!(head.asks_upgrade, "with a body too");
    }

    #[test]
    fn an_answer_names_what_was_asked_for() {
        let check = |asked: &str, answered: &str, expected: bool| {
            let (request, request_text) = request("GET / HTTP/1.1", asked);
            let text = format!("HTTP/1.1 101 Switching Protocols\r\n{answered}\r\n").into_bytes();
            let mut response = ResponseHead::default();
            let done = response.advance(&text, Method::Get, &HeadLimits::default());
            assert_eq!(done, Ok(HeadProgress::Complete(text.len())));
            assert_eq!(switches_as_asked(&request, &request_text, &response, &text), expected, "{asked} {answered}");
        };
        let websocket = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
        check(websocket, websocket, true);
        check(websocket, "Connection: upgrade\r\nUpgrade: WebSocket\r\n", true);
        check("Connection: Upgrade\r\nUpgrade: a, b\r\n", "Upgrade: b\r\n", true);
        check("Connection: Upgrade\r\nUpgrade: a, b\r\n", "Upgrade: b, a\r\n", true);
        check(websocket, "", false);
        check(websocket, "Upgrade:\r\n", false);
        check(websocket, "Upgrade: other\r\n", false);
        check(websocket, "Upgrade: websocket, other\r\n", false);
        check("Upgrade: websocket\r\n", websocket, false);
        check("", websocket, false);
        check("Connection: Upgrade\r\nUpgrade: websocket, h2c\r\n", "Upgrade: h2c\r\n", false);
    }
}
