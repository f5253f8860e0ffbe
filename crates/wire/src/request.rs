//! A request head: request line, fields, and the decisions that follow from them.

use crate::Version;
use crate::chunked::HeadLimits;
use crate::error::RequestError;
use crate::framing::{DeclaredError, DeclaredFraming, Framing};
use crate::head::{FieldSet, Fields, HeadCursor, HeadProgress, Span, WalkError, header_slots, walk};
use crate::host::split_authority;
use crate::name::Name;
use crate::upgrade::upgrade_protocols;

/// The four forms of a request target (RFC 9112 section 3.2), without CONNECT's, whose method the proxy refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TargetForm {
    /// `/path?query`
    #[default]
    Origin,
    /// `http://authority/path?query`: `authority` replaces `Host`, and `path` is forwarded.
    Absolute,
    /// `*`, with OPTIONS.
    Asterisk,
    /// `host:port`, with CONNECT.
    Authority,
}

/// A parsed request head. It holds no bytes: every accessor takes the bytes that were parsed. It is kept and reused
/// from request to request, so that its field list is allocated once.
#[derive(Debug, Default)]
pub struct RequestHead {
    cursor: HeadCursor,
    /// Whether fields with a `_` in their names are left out of [`RequestHead::fields`], as nginx does by default:
    /// servers behind CGI, WSGI and PHP cannot distinguish them from those with a `-`. To be set before parsing.
    pub drops_underscores: bool,
    /// The method.
    pub method: Method,
    /// The method token.
    pub method_span: Span,
    /// The target as received.
    pub target: Span,
    /// The target's path and query: all of it in origin form, the part after the authority in absolute form (may be
    /// empty there).
    pub path_and_query: Span,
    /// The form of the target.
    pub form: TargetForm,
    /// `Host`, or the authority of an absolute-form target; `host[:port]`, valid, perhaps empty.
    pub authority: Span,
    /// The sender's version.
    pub version: Version,
    /// Header lines.
    pub fields: Fields,
    /// How the body is delimited.
    pub framing: Framing,
    /// Whether the sender wants to keep the connection after this exchange.
    pub keep_alive: bool,
    /// `Expect: 100-continue` of an HTTP/1.1 request that has a body.
    pub expects_continue: bool,
    /// Whether the sender requests another protocol after this exchange; see [`crate::upgrade_protocols`].
    pub asks_upgrade: bool,
    /// Fields that are not forwarded: hop-by-hop ones and those that `Connection` names.
    pub hop_by_hop: FieldSet,
    /// Bytes of the head, the empty line included.
    pub len: usize,
}

impl RequestHead {
    /// Forgets the previous head, keeping the memory.
    pub fn reset(&mut self) {
        self.cursor.reset();
        self.len = 0;
    }

    /// Forgets everything, so that no part of an earlier head is mistaken for a part of a refused one.
    pub fn clear(&mut self) {
        let mut fields = std::mem::take(&mut self.fields);
        fields.clear();
        *self = RequestHead { fields, ..RequestHead::default() };
    }

    /// Parses all bytes of this head that have arrived, from its first on; to be called again when there are more.
    /// Leading empty lines must have been skipped ([`crate::leading_empty_lines`]).
    pub fn advance(&mut self, bytes: &[u8], limits: &HeadLimits) -> Result<HeadProgress, RequestError> {
        let bounded = &bytes[..bytes.len().min(limits.head_bytes_max)];
        if let Some(prefix) = self.cursor.prefix(bounded)
            && let crate::head::HeadProgress::Complete(len) = self.parse(prefix, limits)?
        {
            return Ok(crate::head::HeadProgress::Complete(len));
        }
        if bytes.len() >= limits.head_bytes_max {
            return Err(RequestError::HeadTooLarge);
        }
        Ok(crate::head::HeadProgress::Partial)
    }

    fn parse(&mut self, bytes: &[u8], limits: &HeadLimits) -> Result<HeadProgress, RequestError> {
        let mut slots = header_slots();
        let mut parsed = httparse::Request::new(&mut []);
        match parsed.parse_with_uninit_headers(bytes, &mut slots[..limits.headers_max]) {
            Ok(httparse::Status::Complete(len)) => {
                self.accept(&parsed, &bytes[..len], limits)?;
                self.len = len;
                Ok(crate::head::HeadProgress::Complete(len))
            }
            Ok(httparse::Status::Partial) if target_is_too_long(bytes, limits) => Err(RequestError::TargetTooLong),
            Ok(httparse::Status::Partial) => Ok(crate::head::HeadProgress::Partial),
            Err(error) => Err(refusal(error, bytes, limits)),
        }
    }

    fn accept(
        &mut self,
        parsed: &httparse::Request<'_, '_>,
        head: &[u8],
        limits: &HeadLimits,
    ) -> Result<(), RequestError> {
        let (Some(method), Some(target), Some(version)) = (parsed.method, parsed.path, parsed.version) else {
            return Err(RequestError::RequestLine);
        };
        self.method_span = crate::head::Span::locate(head, method.as_bytes());
        self.method = Method::from_bytes(method.as_bytes());
        self.target = crate::head::Span::locate(head, target.as_bytes());
        if self.target.len as usize > limits.target_bytes_max {
            return Err(RequestError::TargetTooLong);
        }
        if self.method == Method::Other && !is_method(method.as_bytes()) {
            return Err(RequestError::Method);
        }
        self.version = if version == 0 { Version::Http10 } else { Version::Http11 };
        // `httparse` accepts a bare LF here too.
        let line_end = self.target.end() + 1 + self.version.as_str().len();
        if !head[line_end..].starts_with(b"\r\n") {
            return Err(RequestError::LineEnd);
        }
        self.read_fields(parsed.headers, head)?;
        self.read_target(head)
    }

    fn read_fields(&mut self, headers: &[httparse::Header<'_>], head: &[u8]) -> Result<(), RequestError> {
        let mut hosts = 0u32;
        let mut authority = crate::head::Span::default();
        let mut expects = false;
        let walked = walk(&mut self.fields, head, headers, self.drops_underscores, |field| match field.id {
            Name::Host => {
                hosts += 1;
                authority = field.value;
            }
            Name::Expect => expects |= field.value.of(head).eq_ignore_ascii_case(b"100-continue"),
            _ => {}
        })?;
        self.hop_by_hop = walked.hop_by_hop;
        self.framing = match walked.declaration.decide(head, self.version)? {
            DeclaredFraming::Nothing => Framing::None,
            DeclaredFraming::Length(bytes) => Framing::Length(bytes),
            DeclaredFraming::Chunked => Framing::Chunked,
        };
        self.keep_alive = match self.version {
            Version::Http11 => !walked.connection.close,
            Version::Http10 => walked.connection.keep_alive && !walked.connection.close,
        };
        let has_body = !matches!(self.framing, Framing::None | Framing::Length(0));
        self.expects_continue = expects && has_body && self.version == Version::Http11;
        self.asks_upgrade = walked.connection.upgrade
            && self.version == Version::Http11
            && upgrade_protocols(&self.fields, head).next().is_some();
        self.authority = authority;
        match hosts {
            0 if self.version == Version::Http11 => Err(RequestError::HostMissing),
            0 => Ok(()),
            1 if split_authority(authority.of(head)).is_none() => Err(RequestError::HostInvalid),
            1 => Ok(()),
            _ => Err(RequestError::HostRepeated),
        }
    }

    fn read_target(&mut self, head: &[u8]) -> Result<(), RequestError> {
        let target = self.target.of(head);
        self.path_and_query = self.target;
        self.form = TargetForm::Origin;
        // A fragment is never sent (RFC 9110 section 7.1): parties differ on whether it belongs to the path.
        if memchr::memchr(b'#', target).is_some() {
            return Err(RequestError::TargetForm);
        }
        if self.method == Method::Connect {
            self.form = TargetForm::Authority;
            return Ok(());
        }
        match target[0] {
            b'/' => Ok(()),
            b'*' if target.len() == 1 && self.method == Method::Options => {
                self.form = TargetForm::Asterisk;
                Ok(())
            }
            _ => self.read_absolute(head, target),
        }
    }

    /// RFC 9112 section 3.2.2: the authority of an absolute-form target is the host, even if `Host` differs.
    fn read_absolute(&mut self, head: &[u8], target: &[u8]) -> Result<(), RequestError> {
        let starts = |scheme: &[u8]| target.len() > scheme.len() && target[..scheme.len()].eq_ignore_ascii_case(scheme);
        let scheme_len = if starts(b"http://") {
            7
        } else if starts(b"https://") {
            8
        } else {
            return Err(RequestError::TargetForm);
        };
        let rest = &target[scheme_len..];
        let end = rest.iter().position(|b| matches!(b, b'/' | b'?')).unwrap_or(rest.len());
        let authority = &rest[..end];
        if authority.is_empty() || split_authority(authority).is_none_or(|a| a.host.is_empty()) {
            return Err(RequestError::TargetForm);
        }
        self.form = TargetForm::Absolute;
        self.authority = crate::head::Span::locate(head, authority);
        self.path_and_query = crate::head::Span::locate(head, &rest[end..]);
        Ok(())
    }

    /// The method token.
    pub fn method_bytes<'h>(&self, head: &'h [u8]) -> &'h [u8] {
        self.method_span.of(head)
    }
}

/// The methods that nginx accepts. Others are tokens, too (RFC 9110 section 9.1), but nodes may take `delete` as `DELETE`, and a
/// route for `DELETE` does not.
fn is_method(token: &[u8]) -> bool {
    token.iter().all(|byte| byte.is_ascii_uppercase() || matches!(byte, b'-' | b'_'))
}

/// The error to report where the parser stopped. An excessive target is reported first if it exceeds its length before
/// the place of the error, as it would be if the bytes came one by one.
fn refusal(error: httparse::Error, bytes: &[u8], limits: &HeadLimits) -> RequestError {
    if target_is_too_long(bytes, limits) {
        return RequestError::TargetTooLong;
    }
    match error {
        httparse::Error::TooManyHeaders => RequestError::TooManyHeaders,
        httparse::Error::HeaderName | httparse::Error::HeaderValue => RequestError::BadHeader,
        httparse::Error::Version if names_http(bytes) => RequestError::Version,
        httparse::Error::NewLine => RequestError::LineEnd,
        _ => RequestError::RequestLine,
    }
}

/// Whether the third word of the request line is some version of HTTP: otherwise not the version was refused, but a
/// line with a space or a word too many.
fn names_http(bytes: &[u8]) -> bool {
    bytes.splitn(3, |b| *b == b' ').nth(2).is_some_and(|version| version.starts_with(b"HTTP/"))
}

/// Whether the target exceeds its bound with only valid bytes up to there.
fn target_is_too_long(bytes: &[u8], limits: &HeadLimits) -> bool {
    let Some(space) = memchr::memchr(b' ', bytes) else { return false };
    let overflow = space + 1 + limits.target_bytes_max + 1;
    if bytes.len() < overflow {
        return false;
    }
    let target = &bytes[space + 1..overflow];
    !target.iter().any(|b| *b <= b' ' || *b == 0x7f)
        && matches!(httparse::Request::new(&mut []).parse(&bytes[..space + 1]), Ok(httparse::Status::Partial))
}

impl From<WalkError> for RequestError {
    fn from(error: WalkError) -> Self {
        match error {
            crate::head::WalkError::LineEnd => RequestError::LineEnd,
            crate::head::WalkError::FramingLookalike => RequestError::FramingLookalike,
            crate::head::WalkError::ConnectionOptions => RequestError::ConnectionOptions,
        }
    }
}

impl From<DeclaredError> for RequestError {
    fn from(error: DeclaredError) -> Self {
        match error {
            DeclaredError::LengthMalformed => RequestError::LengthMalformed,
            DeclaredError::LengthRepeated => RequestError::LengthRepeated,
            DeclaredError::CodingAndLength => RequestError::CodingAndLength,
            DeclaredError::CodingUnknown => RequestError::CodingUnknown,
            DeclaredError::CodingInHttp10 => RequestError::CodingInHttp10,
        }
    }
}

// Request methods with their properties by RFC 9110 section 9.2.

/// A request method; case matters (RFC 9110 section 9.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Method {
    /// GET
    #[default]
    Get,
    /// HEAD
    Head,
    /// POST
    Post,
    /// PUT
    Put,
    /// DELETE
    Delete,
    /// CONNECT
    Connect,
    /// OPTIONS
    Options,
    /// TRACE
    Trace,
    /// PATCH
    Patch,
    /// PURGE, of caches
    Purge,
    /// Any other token
    Other,
}

impl Method {
    /// The methods that have a variant of their own, with their names.
    pub const NAMED: [(Method, &str); 10] = [
        (Method::Get, "GET"),
        (Method::Post, "POST"),
        (Method::Put, "PUT"),
        (Method::Delete, "DELETE"),
        (Method::Patch, "PATCH"),
        (Method::Head, "HEAD"),
        (Method::Options, "OPTIONS"),
        (Method::Connect, "CONNECT"),
        (Method::Trace, "TRACE"),
        (Method::Purge, "PURGE"),
    ];

    /// Never fails: an unregistered token is [`Method::Other`].
    pub fn from_bytes(token: &[u8]) -> Method {
        match token {
            b"GET" => Method::Get,
            b"HEAD" => Method::Head,
            b"POST" => Method::Post,
            b"PUT" => Method::Put,
            b"DELETE" => Method::Delete,
            b"CONNECT" => Method::Connect,
            b"OPTIONS" => Method::Options,
            b"TRACE" => Method::Trace,
            b"PATCH" => Method::Patch,
            b"PURGE" => Method::Purge,
            _ => Method::Other,
        }
    }

    /// Its name; `None` for [`Method::Other`], whose name is only in the request.
    #[inline]
    pub fn name(self) -> Option<&'static str> {
        Some(match self {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
            Method::Patch => "PATCH",
            Method::Head => "HEAD",
            Method::Options => "OPTIONS",
            Method::Connect => "CONNECT",
            Method::Trace => "TRACE",
            Method::Purge => "PURGE",
            Method::Other => return None,
        })
    }

    /// Whether sending it twice means the same as once (RFC 9110 section 9.2.2).
    pub fn is_idempotent(self) -> bool {
        matches!(self, Method::Get | Method::Head | Method::Put | Method::Delete | Method::Options | Method::Trace)
    }
}

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name().unwrap_or("another"))
    }
}

#[cfg(test)]
mod method_tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_list() {
        for (method, name) in Method::NAMED {
            assert_eq!((method.name(), Method::from_bytes(name.as_bytes())), (Some(name), method));
        }
        assert_eq!(Method::Other.name(), None);
    }

    #[test]
    fn idempotent_methods() {
        for method in ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"] {
            assert!(Method::from_bytes(method.as_bytes()).is_idempotent(), "{method}");
        }
        for method in ["POST", "PATCH", "CONNECT", "get", "PROPFIND", ""] {
            assert!(!Method::from_bytes(method.as_bytes()).is_idempotent(), "{method}");
        }
    }
}
