//! HTTP calls of plugins to servers other than nodes: the request, the response, and the errors.
//!
//! A URL is parsed when a configuration is compiled; a call is built for a request, and made by [`crate::Io::call`].
//! Header fields are typed, so no value can split the message.

use crate::work::LocalFuture;
use std::fmt;
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use stillgate_wire::{FieldName, FieldValue, HeadLimits, Method, ResponseHead, split_authority};

/// Largest response body of a call, unless its plugin has a limit.
pub const REPLY_BYTES_MAX: usize = 1024 * 1024;
/// Limits of a response's head.
pub const REPLY_HEAD: HeadLimits = HeadLimits { head_bytes_max: 32 * 1024, target_bytes_max: 0, headers_max: 100 };
/// `User-Agent` of calls.
const USER_AGENT: &str = concat!("stillgate/", env!("CARGO_PKG_VERSION"));
const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// A server: the key of connections and the circuit breaker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CallOrigin {
    /// Whether it uses TLS.
    pub is_https: bool,
    /// Whether its certificate is verified.
    pub verifies: bool,
    /// A name, or an address without brackets.
    pub host: Box<str>,
    /// Its port.
    pub port: u16,
    /// Whether it is called over HTTP/2, as gRPC servers are.
    pub is_grpc: bool,
    /// The value of `Host`.
    authority: Box<str>,
}

/// A URL from a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// The server.
    pub origin: Arc<CallOrigin>,
    /// Path and query; begins with `/`.
    pub target: Box<str>,
}

impl Url {
    /// Parses `http://HOST[:PORT][/PATH][?QUERY]`, and the same with `https`.
    ///
    /// # Errors
    ///
    /// If it is not a URL, with a hint for the author of the configuration.
    pub fn parse(text: &str, verifies: bool) -> Result<Url, String> {
        let (is_https, rest) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(format!("{text:?} is not a URL; write `http://HOST/PATH` or `https://HOST/PATH`")),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        let wrong = || format!("{text:?} has no host");
        let parsed =
            split_authority(authority.as_bytes()).filter(|parsed| !parsed.host.is_empty()).ok_or_else(wrong)?;
        let host = std::str::from_utf8(parsed.host).map_err(|_| wrong())?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if authority.starts_with('[') && host.parse::<IpAddr>().is_err() {
            return Err(wrong());
        }
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        if !is_target(target.as_bytes()) || target.contains('#') {
            return Err(format!("the path of {text:?} has characters that a URL cannot have"));
        }
        let port = parsed.port.unwrap_or(if is_https { HTTPS_PORT } else { HTTP_PORT });
        let (host, authority) = (host.to_ascii_lowercase().into(), authority.into());
        let origin = CallOrigin { is_https, verifies, host, port, is_grpc: false, authority };
        Ok(Url { origin: Arc::new(origin), target: target.into() })
    }

    /// The URL of a gRPC server.
    pub fn of_grpc(self) -> Url {
        Url { origin: Arc::new(CallOrigin { is_grpc: true, ..(*self.origin).clone() }), ..self }
    }
}

/// Whether it is a valid request target.
fn is_target(target: &[u8]) -> bool {
    target.first() == Some(&b'/') && target.iter().all(|byte| byte.is_ascii_graphic())
}

/// How long a connection is kept after a call, and how many are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Longest idle time.
    pub idle: Duration,
    /// Most idle connections of a worker to the same server.
    pub connections_max: usize,
}

/// APISIX's defaults.
impl Default for Keep {
    fn default() -> Keep {
        Keep { idle: Duration::from_secs(60), connections_max: 5 }
    }
}

/// Upper bound of a message's size, without head, host and body.
const FURTHER_BYTES: usize = 128;

/// One call.
#[derive(Debug, Clone)]
pub struct Call {
    /// The server.
    pub origin: Arc<CallOrigin>,
    /// The client whose request it is made for, which has a share of the calls to a busy server; `None`: it is for all.
    pub client: Option<IpAddr>,
    /// Timeout of connecting, of sending, and of waiting for the whole response, each.
    pub timeout: Duration,
    /// `None`: the connection is closed after it.
    pub keep: Option<Keep>,
    /// Largest body of the response.
    pub reply_bytes_max: usize,
    method: Method,
    host: Box<[u8]>,
    head: Vec<u8>,
    body: Vec<u8>,
    has_user_agent: bool,
}

impl Call {
    /// Creates a call with a method and a target from a request or a configuration. Values that would split the message
    /// are replaced by `GET` or `/`.
    pub fn new(origin: &Arc<CallOrigin>, method: &[u8], target: &[u8]) -> Call {
        let target = if is_target(target) { target } else { b"/" };
        let is_method = !method.is_empty() && method.iter().all(u8::is_ascii_graphic);
        let name = if is_method { method } else { b"GET" };
        let method = Method::from_bytes(name);
        let mut head = Vec::with_capacity(256);
        for part in [name, b" ", target, b" HTTP/1.1\r\n"] {
            head.extend_from_slice(part);
        }
        Call {
            origin: origin.clone(),
            client: None,
            timeout: Duration::from_secs(3),
            keep: Some(Keep::default()),
            reply_bytes_max: REPLY_BYTES_MAX,
            method,
            host: origin.authority.as_bytes().into(),
            head,
            body: Vec::new(),
            has_user_agent: false,
        }
    }

    /// Sets another host than that of the URL.
    pub fn set_host(&mut self, host: FieldValue<'_>) {
        self.host = host.bytes().into();
    }

    /// Adds a header line. Lines that frame the message are ignored, as the client sets them.
    pub fn header(&mut self, name: FieldName<'_>, value: FieldValue<'_>) {
        if name.bytes().eq_ignore_ascii_case(b"host") {
            // There is one line.
            return self.set_host(value);
        }
        self.has_user_agent |= name.bytes().eq_ignore_ascii_case(b"user-agent");
        for part in [name.bytes(), b": ", value.bytes(), b"\r\n"] {
            self.head.extend_from_slice(part);
        }
    }

    /// Sets the body.
    pub fn set_body(&mut self, body: Vec<u8>) {
        self.body = body;
    }

    /// The method.
    pub fn method(&self) -> Method {
        self.method
    }

    /// Bytes of its memory.
    pub fn bytes(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// The message to send. Head and body are taken: while a server stalls, nothing is held twice.
    pub fn take_message(&mut self) -> Vec<u8> {
        let (mut message, body) = (mem::take(&mut self.head), mem::take(&mut self.body));
        message.reserve_exact(self.host.len() + body.len() + FURTHER_BYTES);
        for part in [b"Host: ", &*self.host, b"\r\n"] {
            message.extend_from_slice(part);
        }
        if !self.has_user_agent {
            message.extend_from_slice(format!("User-Agent: {USER_AGENT}\r\n").as_bytes());
        }
        if !body.is_empty() || matches!(self.method, Method::Post | Method::Put | Method::Patch) {
            message.extend_from_slice(format!("Content-Length: {}\r\n", body.len()).as_bytes());
        }
        if self.keep.is_none() {
            message.extend_from_slice(b"Connection: close\r\n");
        }
        message.extend_from_slice(b"\r\n");
        message.extend_from_slice(&body);
        message
    }
}

/// The response to a call.
#[derive(Debug, Default)]
pub struct Reply {
    /// The bytes of the head.
    pub head: Vec<u8>,
    /// The positions of its parts.
    pub parsed: ResponseHead,
    /// The whole body.
    pub body: Vec<u8>,
}

impl Reply {
    /// The status.
    pub fn status(&self) -> u16 {
        self.parsed.status
    }

    /// The values of a header field, line by line.
    pub fn headers<'a>(&'a self, name: FieldName<'a>) -> impl Iterator<Item = &'a [u8]> {
        let fields = self.parsed.fields.iter();
        fields
            .filter(move |field| field.name.of(&self.head).eq_ignore_ascii_case(name.bytes()))
            .map(|field| field.value.of(&self.head))
    }

    /// Parses a reply from a text, for tests.
    ///
    /// # Panics
    ///
    /// If it is not a response.
    pub fn parse_for_test(text: &str) -> Reply {
        let (head, body) = text.split_once("\n\n").unwrap_or((text.trim_end(), ""));
        let head = format!("{}\r\n\r\n", head.replace('\n', "\r\n")).into_bytes();
        let mut parsed = ResponseHead::default();
        parsed.advance(&head, Method::Get, &REPLY_HEAD).expect("a response");
        Reply { head, parsed, body: body.as_bytes().to_vec() }
    }
}

/// The reason why there is no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallError {
    /// The name has no address.
    Resolve,
    /// The connection failed.
    Connect,
    /// Its certificate is not valid for its name.
    Tls,
    /// It took too long.
    Timeout,
    /// It closed the connection.
    Closed,
    /// The response is malformed.
    BadReply,
    /// The response is larger than allowed.
    TooLarge,
    /// The server has failed several times in a row: calls to it are paused.
    Resting,
    /// The limit on concurrent calls is reached.
    Busy,
}

impl CallError {
    /// Whether the server is unavailable. A reply that is invalid or too large, and too many calls at once, do not count: a client
    /// can cause them, so a check that is skipped during an outage must not be skipped for them.
    pub fn is_outage(self) -> bool {
        match self {
            CallError::Resolve
            | CallError::Connect
            | CallError::Tls
            | CallError::Timeout
            | CallError::Closed
            | CallError::Resting => true,
            CallError::BadReply | CallError::TooLarge | CallError::Busy => false,
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CallError::Resolve => "its name has no address",
            CallError::Connect => "it could not be connected to",
            CallError::Tls => "TLS with it failed",
            CallError::Timeout => "it did not answer in time",
            CallError::Closed => "it closed the connection",
            CallError::BadReply => "its response is invalid",
            CallError::TooLarge => "its response is too large",
            CallError::Resting => "it failed several times in a row and is not called for a while",
            CallError::Busy => "too many calls to it are in progress",
        })
    }
}

// Connections of plugins to servers that do not use HTTP: bytes are sent, and bytes received until a reader finds the
// reply complete.
//
// The plugin interprets the bytes; connecting, TLS, timeouts and idle connections are handled by [`crate::Io`].

/// Destination of a connection.
#[derive(Debug, Clone)]
pub struct LinkTo {
    /// The server.
    pub origin: Arc<CallOrigin>,
    /// As for a [`Call`].
    pub client: Option<IpAddr>,
    /// Name of the pool: idle connections are reused by server and pool.
    pub pool: Box<str>,
    /// Timeout of connecting, TLS included.
    pub timeout: Duration,
}

/// Length of the reply; `None`: it is not complete yet. Gets all bytes received so far.
pub type ReplyEndFinder = Box<dyn FnMut(&[u8]) -> Result<Option<usize>, CallError>>;

/// A message, and how its reply is read.
pub struct Exchange {
    /// The message to send.
    pub message: Vec<u8>,
    /// Timeout of sending.
    pub send_timeout: Duration,
    /// Timeout of the whole reply.
    pub read_timeout: Duration,
    /// Largest reply.
    pub reply_bytes_max: usize,
    /// Finds the end of the reply.
    pub whole: ReplyEndFinder,
}

/// The reply, and the connection for the next message.
pub type LinkReply = Result<(Vec<u8>, Box<dyn Link>), CallError>;

/// A connection, which is closed when it is dropped.
pub trait Link {
    /// How often it has been reused.
    fn reused(&self) -> u32;

    /// Sends a message and waits for its reply. After an error the connection is closed: later bytes could not be
    /// assigned to a request.
    fn exchange(self: Box<Self>, exchange: Exchange) -> LocalFuture<LinkReply>;

    /// Keeps the connection for the next caller that connects to the same server and pool.
    fn keep(self: Box<Self>, keep: Keep);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let check = |text: &str, expected: Result<(bool, &str, u16, &str), &str>| {
            let url = Url::parse(text, true);
            let got = url.as_ref().map(|url| {
                let origin = &url.origin;
                (origin.is_https, &*origin.host, origin.port, &*url.target)
            });
            assert_eq!(got.is_ok(), expected.is_ok(), "{text}: {got:?}");
            match (got, expected) {
                (Ok(got), Ok(expected)) => assert_eq!(got, expected, "{text}"),
                (got, Err(part)) => assert!(got.unwrap_err().contains(part), "{text}"),
                _ => unreachable!("compared above"),
            }
        };
        check("http://a.test", Ok((false, "a.test", 80, "/")));
        check("https://A.test:8443/b?c=d", Ok((true, "a.test", 8443, "/b?c=d")));
        check("http://127.0.0.1:81?x", Ok((false, "127.0.0.1", 81, "/?x")));
        check("https://[::1]/", Ok((true, "::1", 443, "/")));
        check("a.test", Err("is not a URL"));
        check("ftp://a.test", Err("is not a URL"));
        check("http:///a", Err("has no host"));
        check("http://u:p@a.test", Err("has no host"));
        check("http://[zz]/", Err("has no host"));
        check("http://a.test/a b", Err("characters"));
        check("http://a.test/a\r\nX: y", Err("characters"));
        check("http://a.test/#f", Err("characters"));
    }

    #[test]
    fn a_call_is_one_message() {
        let url = Url::parse("http://a.test:81/x", true).unwrap();
        let mut call = Call::new(&url.origin, b"POST", b"/y z");
        call.header(FieldName::constant("A"), FieldValue::constant("1"));
        call.set_body(b"body".to_vec());
        let text = String::from_utf8(call.take_message()).unwrap();
        let agent = format!("User-Agent: {USER_AGENT}");
        let expected =
            format!("POST / HTTP/1.1\r\nA: 1\r\nHost: a.test:81\r\n{agent}\r\nContent-Length: 4\r\n\r\nbody");
        assert_eq!(text, expected);
    }
}
