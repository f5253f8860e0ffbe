//! A response head: status line, fields, and the decisions that follow from them; and the names of statuses (RFC 9110 section
//! 15 and the registry of IANA).

use crate::Version;
use crate::chunked::HeadLimits;
use crate::error::ResponseError;
use crate::framing::{DeclaredError, DeclaredFraming, Framing};
use crate::head::{FieldSet, Fields, HeadCursor, HeadProgress, Span, WalkError, header_slots, walk};
use crate::name::Name;
use crate::request::Method;

/// A parsed response head; like [`crate::RequestHead`] it holds no bytes and is reused.
#[derive(Debug, Default)]
pub struct ResponseHead {
    cursor: HeadCursor,
    /// 100 to 999.
    pub status: u16,
    /// The reason phrase as received, perhaps empty.
    pub reason: Span,
    /// The sender's version.
    pub version: Version,
    /// Header lines.
    pub fields: Fields,
    /// How the body is delimited, taking the request's method into account.
    pub framing: Framing,
    /// Whether the sender will keep the connection after this response.
    pub keep_alive: bool,
    /// Fields that are not forwarded.
    pub hop_by_hop: FieldSet,
    /// Whether it has a `Date`.
    pub has_date: bool,
    /// Bytes of the head, the empty line included.
    pub len: usize,
}

impl ResponseHead {
    /// Forgets the previous head, keeping the memory.
    pub fn reset(&mut self) {
        self.cursor.reset();
        self.len = 0;
    }

    /// Parses all bytes of this head that have arrived; `method` is the method of the request that it answers.
    pub fn advance(
        &mut self,
        bytes: &[u8],
        method: Method,
        limits: &HeadLimits,
    ) -> Result<HeadProgress, ResponseError> {
        let bounded = &bytes[..bytes.len().min(limits.head_bytes_max)];
        if let Some(prefix) = self.cursor.prefix(bounded)
            && let crate::head::HeadProgress::Complete(len) = self.parse(prefix, method, limits)?
        {
            return Ok(crate::head::HeadProgress::Complete(len));
        }
        if bytes.len() >= limits.head_bytes_max {
            return Err(ResponseError::HeadTooLarge);
        }
        Ok(crate::head::HeadProgress::Partial)
    }

    fn parse(&mut self, bytes: &[u8], method: Method, limits: &HeadLimits) -> Result<HeadProgress, ResponseError> {
        // `httparse` skips empty lines before a status line; servers are not allowed to send them.
        if matches!(bytes.first(), Some(b'\r' | b'\n')) {
            return Err(ResponseError::StatusLine);
        }
        let mut slots = header_slots();
        let mut parsed = httparse::Response::new(&mut []);
        let config = httparse::ParserConfig::default();
        match config.parse_response_with_uninit_headers(&mut parsed, bytes, &mut slots[..limits.headers_max]) {
            Ok(httparse::Status::Complete(len)) => {
                self.accept(&parsed, &bytes[..len], method)?;
                self.len = len;
                Ok(crate::head::HeadProgress::Complete(len))
            }
            Ok(httparse::Status::Partial) => Ok(crate::head::HeadProgress::Partial),
            Err(httparse::Error::TooManyHeaders) => Err(ResponseError::TooManyHeaders),
            Err(httparse::Error::HeaderName | httparse::Error::HeaderValue) => Err(ResponseError::BadHeader),
            Err(httparse::Error::NewLine) => Err(ResponseError::LineEnd),
            Err(_) => Err(ResponseError::StatusLine),
        }
    }

    fn accept(
        &mut self,
        parsed: &httparse::Response<'_, '_>,
        head: &[u8],
        method: Method,
    ) -> Result<(), ResponseError> {
        let (Some(version), Some(status), Some(reason)) = (parsed.version, parsed.code, parsed.reason) else {
            return Err(ResponseError::StatusLine);
        };
        if status < 100 {
            return Err(ResponseError::StatusLine);
        }
        self.status = status;
        self.version = if version == 0 { Version::Http10 } else { Version::Http11 };
        self.reason = read_reason(head, reason)?;
        let mut has_date = false;
        let walked = walk(&mut self.fields, head, parsed.headers, false, |field| has_date |= field.id == Name::Date)?;
        self.has_date = has_date;
        self.hop_by_hop = walked.hop_by_hop;
        let declared = walked.declaration.decide(head, self.version)?;
        self.framing = framing(status, method, declared)?;
        // RFC 9112 section 6.3: a 204 ends with its head. The bytes behind it may still be the body that it announces.
        let is_suspect = status == 204 && !matches!(declared, DeclaredFraming::Nothing | DeclaredFraming::Length(0));
        self.keep_alive = self.framing != Framing::UntilClose
            && !is_suspect
            && match self.version {
                Version::Http11 => !walked.connection.close,
                Version::Http10 => walked.connection.keep_alive && !walked.connection.close,
            };
        Ok(())
    }
}

/// The span of the reason phrase, after a check that its line ends in CRLF. `httparse` reports an empty phrase for one
/// with bytes outside ASCII, so the line's own end counts.
fn read_reason(head: &[u8], reason: &str) -> Result<Span, ResponseError> {
    const STATUS_END: usize = "HTTP/1.1 200".len();
    let end = memchr::memchr(b'\n', head).ok_or(ResponseError::LineEnd)?;
    if head[end - 1] != b'\r' {
        return Err(ResponseError::LineEnd);
    }
    let start = if reason.is_empty() {
        (STATUS_END + 1).min(end - 1)
    } else {
        Span::locate(head, reason.as_bytes()).start as usize
    };
    Ok(Span { start: start as u16, len: (end - 1 - start) as u16 })
}

/// RFC 9112 section 6.3. A body of a 1xx is refused, not ignored: the bytes behind would be mistaken for the response.
fn framing(status: u16, method: Method, declared: DeclaredFraming) -> Result<Framing, ResponseError> {
    match (status, declared) {
        (100..=199, DeclaredFraming::Nothing | DeclaredFraming::Length(0)) => Ok(Framing::None),
        (100..=199, _) => Err(ResponseError::BodyForbidden),
        (204 | 304, _) => Ok(Framing::None),
        _ if method == Method::Head => Ok(Framing::None),
        (_, DeclaredFraming::Nothing) => Ok(Framing::UntilClose),
        (_, DeclaredFraming::Length(bytes)) => Ok(Framing::Length(bytes)),
        (_, DeclaredFraming::Chunked) => Ok(Framing::Chunked),
    }
}

impl From<WalkError> for ResponseError {
    fn from(error: WalkError) -> Self {
        match error {
            crate::head::WalkError::LineEnd => ResponseError::LineEnd,
            crate::head::WalkError::FramingLookalike => ResponseError::BadHeader,
            crate::head::WalkError::ConnectionOptions => ResponseError::ConnectionOptions,
        }
    }
}

impl From<DeclaredError> for ResponseError {
    fn from(error: DeclaredError) -> Self {
        match error {
            DeclaredError::LengthMalformed => ResponseError::LengthMalformed,
            DeclaredError::LengthRepeated => ResponseError::LengthRepeated,
            DeclaredError::CodingAndLength => ResponseError::CodingAndLength,
            DeclaredError::CodingUnknown => ResponseError::CodingUnknown,
            DeclaredError::CodingInHttp10 => ResponseError::CodingInHttp10,
        }
    }
}

/// The name of a status; empty if it has none, which is allowed for a reason (RFC 9112 section 4).
pub fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        103 => "Early Hints",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        203 => "Non-Authoritative Information",
        204 => "No Content",
        205 => "Reset Content",
        206 => "Partial Content",
        207 => "Multi-Status",
        208 => "Already Reported",
        226 => "IM Used",
        300 => "Multiple Choices",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        305 => "Use Proxy",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        423 => "Locked",
        424 => "Failed Dependency",
        425 => "Too Early",
        426 => "Upgrade Required",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        451 => "Unavailable For Legal Reasons",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        506 => "Variant Also Negotiates",
        507 => "Insufficient Storage",
        508 => "Loop Detected",
        510 => "Not Extended",
        511 => "Network Authentication Required",
        _ => "",
    }
}
