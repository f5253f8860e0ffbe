//! HTTP/1 messages of tests: a strict second reading of heads, and the notation in which test data write bytes.
//!
//! The reading is strict on purpose: the gateway's output must satisfy the narrowest reader, so this one accepts CRLF only,
//! token names, one framing, plain digits. It does not try to be fast, nor to accept what the RFC merely tolerates.
//!
//! In the notation a line of text is that line and CRLF. `\r \n \t \0 \\ \xNN` are bytes, a final `\` removes the line's
//! CRLF, and `\{a*500}` is five hundred times `a`. So a head reads as it does in the RFC, while every odd byte can still be
//! placed anywhere.

/// Names and values, in order.
pub type Fields = Vec<(String, String)>;

/// A start line and its fields, in order, text as Latin-1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Without its CRLF.
    pub start: String,
    /// Names as sent, values without surrounding space.
    pub fields: Fields,
}

impl Head {
    /// The first value of a field.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }

    /// All values of a field, in order.
    pub fn all(&self, name: &str) -> Vec<&str> {
        let matching = |field: &&(String, String)| field.0.eq_ignore_ascii_case(name);
        let values = self.fields.iter().filter(matching);
        values.map(|(_, value)| value.as_str()).collect()
    }

    /// Whether `Connection` lists `option`.
    pub fn connection_has(&self, option: &str) -> bool {
        self.all("connection")
            .into_iter()
            .flat_map(|value| value.split(','))
            .any(|item| item.trim().eq_ignore_ascii_case(option))
    }

    /// The status code of a response.
    ///
    /// # Panics
    /// If this is not a status line.
    #[track_caller]
    pub fn status(&self) -> u16 {
        let code = self.start.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5));
        code.and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("not a status line: {:?}", self.start))
    }

    /// The method and target of a request.
    pub fn method_and_target(&self) -> (&str, &str) {
        let mut words = self.start.split(' ');
        (words.next().unwrap_or(""), words.next().unwrap_or(""))
    }

    /// Parses a head, including its empty line.
    ///
    /// # Errors
    /// The rule that the bytes break.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let text: String = bytes.iter().map(|&byte| char::from(byte)).collect();
        let text = text.strip_suffix("\r\n\r\n").ok_or("no empty line")?;
        let mut lines = text.split("\r\n");
        let start = lines.next().unwrap_or("").to_owned();
        if start.contains(is_forbidden) {
            return Err(format!("control character in {start:?}"));
        }
        let mut fields = Vec::new();
        for line in lines {
            fields.push(parse_field(line)?);
        }
        Ok(Self { start, fields })
    }
}

/// Forbidden in reason phrases and in field values; obs-text (beyond ASCII) is allowed.
fn is_forbidden(c: char) -> bool {
    (c < ' ' && c != '\t') || c == '\x7f'
}

pub(crate) fn parse_field(line: &str) -> Result<(String, String), String> {
    let (name, value) = line.split_once(':').ok_or_else(|| format!("no colon: {line:?}"))?;
    let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if name.is_empty() || !name.chars().all(is_token) {
        return Err(format!("field name {name:?}"));
    }
    if value.contains(is_forbidden) {
        return Err(format!("control character in field {line:?}"));
    }
    Ok((name.to_owned(), value.trim_matches([' ', '\t']).to_owned()))
}

/// How the end of a body is determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// Without a body.
    None,
    /// `Content-Length`.
    Length,
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// The end of the connection.
    Close,
}

/// One complete message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Interim (1xx) responses that came before.
    pub interim: Vec<Head>,
    /// Start line and fields.
    pub head: Head,
    /// Decoded.
    pub body: Vec<u8>,
    /// After a chunked body.
    pub trailers: Fields,
    /// According to the head.
    pub framing: Framing,
}

/// Why no message could be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageError {
    /// An orderly end before the first byte.
    Closed,
    /// An orderly end in the middle, with the bytes so far.
    Truncated(Vec<u8>),
    /// A reset, with the bytes so far.
    Reset(Vec<u8>),
    /// A timeout, with the bytes so far.
    Timeout(Vec<u8>),
    /// The peer broke a rule.
    Malformed(String),
}

pub(crate) fn is_status_line(line: &str) -> bool {
    let bytes = line.as_bytes();
    let digits =
        |range: std::ops::Range<usize>| bytes.get(range).is_some_and(|code| code.iter().all(u8::is_ascii_digit));
    (line.starts_with("HTTP/1.1 ") || line.starts_with("HTTP/1.0 ")) && digits(9..12) && bytes.get(12) == Some(&b' ')
}

/// The framing of a body according to its head, in the strictest reading.
pub(crate) fn framing(head: &Head, default: Framing) -> Result<Framing, String> {
    let lengths = head.all("content-length");
    let codings = head.all("transfer-encoding");
    match (lengths.as_slice(), codings.as_slice()) {
        ([], []) => Ok(default),
        ([len], []) => {
            let digits = len.bytes().all(|byte| byte.is_ascii_digit());
            match len.parse::<u64>() {
                Ok(_) if digits => Ok(Framing::Length),
                _ => Err(format!("Content-Length {len:?}")),
            }
        }
        ([], [coding]) if coding.eq_ignore_ascii_case("chunked") => Ok(Framing::Chunked),
        _ => Err(format!("ambiguous framing: {head:?}")),
    }
}

/// The index of `needle`.
pub(crate) fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

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
