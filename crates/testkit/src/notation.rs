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

// Files of hostile messages, with the required refusals.
//
// A case begins with `=== name: verdict`, a line of `#` comment may follow, the rest is the message in the notation of
// [`crate::decode`]. The verdict is a list of words that the test interprets; here they are only stored.

/// One case of a corpus.
#[derive(Debug, Clone)]
pub struct HostileCase {
    /// Unique in its file.
    pub name: String,
    /// The words after the name.
    pub verdict: Vec<String>,
    /// The bytes to send.
    pub message: Vec<u8>,
}

impl HostileCase {
    /// Whether the verdict has this word.
    pub fn says(&self, word: &str) -> bool {
        self.verdict.iter().any(|said| said == word)
    }

    /// The statuses the verdict allows.
    pub fn statuses(&self) -> Vec<u16> {
        self.verdict.iter().filter_map(|word| word.parse().ok()).collect()
    }
}

/// All cases of a corpus file.
///
/// # Panics
/// On text before the first case, a case without a verdict, or a repeated name.
pub fn hostile_cases(text: &str) -> Vec<HostileCase> {
    let mut cases: Vec<HostileCase> = Vec::new();
    let mut body = String::new();
    for line in text.lines().chain(["=== end: end"]) {
        let Some(title) = line.strip_prefix("=== ") else {
            if !line.starts_with('#') {
                body.push_str(line);
                body.push('\n');
            }
            continue;
        };
        match cases.last_mut() {
            Some(case) => case.message = decode(&body),
            None => assert!(body.trim().is_empty(), "text before the first case: {body:?}"),
        }
        body.clear();
        let (name, verdict) = title.split_once(": ").unwrap_or_else(|| panic!("no verdict: {title}"));
        assert!(cases.iter().all(|case| case.name != name), "{name} is used twice");
        cases.push(HostileCase {
            name: name.to_owned(),
            verdict: verdict.split_whitespace().map(str::to_owned).collect(),
            message: Vec::new(),
        });
    }
    cases.pop();
    cases
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

#[cfg(test)]
mod corpus_tests {
    use super::*;

    #[test]
    fn reads_cases() {
        let cases = hostile_cases("# comment\n=== one: 400 431\nGET\\tx\n\n=== two: 502 body\nx\\\n");
        assert_eq!(cases.len(), 2);
        assert_eq!(cases[0].statuses(), [400, 431]);
        assert_eq!(cases[0].message, b"GET\tx\r\n\r\n");
        assert!(cases[1].says("body"));
        assert_eq!(cases[1].message, b"x");
    }
}
