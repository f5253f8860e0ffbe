//! A strict second reading of HTTP/1 heads.
//!
//! Strict on purpose: the gateway's output must satisfy the narrowest reader, so this one accepts CRLF only, token
//! names, one framing, plain digits. It does not try to be fast, nor to accept what the RFC merely tolerates.

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
