//! The notation of bytes in test data: a line of text is that line and CRLF.
//!
//! `\r \n \t \0 \\ \xNN` are bytes, a final `\` removes the line's CRLF, and `\{a*500}` is five hundred times `a`. So a
//! head reads as it does in the RFC, while every odd byte can still be placed anywhere.

/// The bytes that `text` describes.
///
/// # Panics
/// On an unknown escape.
pub fn decode(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in text.lines() {
        if decode_line(line, &mut bytes) {
            bytes.extend_from_slice(b"\r\n");
        }
    }
    bytes
}

/// Appends one line; returns whether it ends with CRLF.
fn decode_line(line: &str, bytes: &mut Vec<u8>) -> bool {
    let mut rest = line;
    while let Some(at) = rest.find('\\') {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        rest = &rest[at + 1..];
        let Some(kind) = rest.chars().next() else {
            return false;
        };
        rest = &rest[kind.len_utf8()..];
        match kind {
            'r' => bytes.push(b'\r'),
            'n' => bytes.push(b'\n'),
            't' => bytes.push(b'\t'),
            '0' => bytes.push(0),
            '\\' => bytes.push(b'\\'),
            'x' => {
                bytes.push(u8::from_str_radix(&rest[..2], 16).expect("two hex digits after \\x"));
                rest = &rest[2..];
            }
            '{' => {
                let (repeat, after) = rest.split_once('}').expect("\\{ ends with }");
                let (what, times) = repeat.rsplit_once('*').expect("\\{what*times}");
                let times = times.parse().expect("\\{what*times} with a number");
                let mut unit = Vec::new();
                decode_line(what, &mut unit);
                bytes.extend_from_slice(&unit.repeat(times));
                rest = after;
            }
            other => panic!("unknown escape \\{other} in {line:?}"),
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    true
}

/// `bytes` in the notation, for messages of failed tests.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::new();
    let mut rest = bytes;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'\r' if rest.first() == Some(&b'\n') => {
                text.push('\n');
                rest = &rest[1..];
            }
            b'\r' => text.push_str("\\r"),
            b'\n' => text.push_str("\\n"),
            b'\t' => text.push_str("\\t"),
            0 => text.push_str("\\0"),
            b'\\' => text.push_str("\\\\"),
            b' '..=b'~' => text.push(char::from(byte)),
            other => text.push_str(&format!("\\x{other:02x}")),
        }
    }
    if !bytes.is_empty() && !bytes.ends_with(b"\r\n") {
        text.push('\\');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways() {
        let check = |text: &str, bytes: &[u8]| {
            assert_eq!(decode(text), bytes, "{text:?}");
            assert_eq!(decode(&encode(bytes)), bytes, "{text:?}");
        };
        check("GET / HTTP/1.1\n\n", b"GET / HTTP/1.1\r\n\r\n");
        check("body\\", b"body");
        check("a\\n\\\nb\n", b"a\nb\r\n");
        check("x\\0\\t\\r\\x7f\\\\y", b"x\0\t\r\x7f\\y\r\n");
        check("\\{ab*3}\\", b"ababab");
        check("\\{a\\r\\n*2}\\", b"a\r\na\r\n");
        check("", b"");
    }
}
