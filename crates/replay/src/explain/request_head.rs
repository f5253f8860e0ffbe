//! A request without a connection: typed by somebody, given in a query, or recorded.
//!
//! It evaluates its variables like a request in flight, as far as they are known; unknown ones are absent. Nothing is sent
//! anywhere.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use stillgate_proxy::{argument_of, cookie_of};
use stillgate_route::path::{PathError, normalise, target_path};
use stillgate_route::{HeaderName, Lookup, MatchRequest, Method, NormalisedPath, Variable, canonical_host};
use stillgate_wire::split_authority;

/// The known parts of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHead {
    /// As written, case-sensitive.
    pub method: String,
    /// `http` or `https`.
    pub scheme: String,
    /// Host and port, wherever they were given; empty: none.
    pub authority: String,
    /// Path and query.
    pub target: String,
    /// Name and value of each header field except `Host`, in order.
    pub headers: Vec<(String, String)>,
    /// The client's address after trusted proxies were taken into account.
    pub client: IpAddr,
    /// Variables that are known although their origin is not: those of the connection, single cookies and arguments.
    pub known: Vec<(Variable, String)>,
}

/// Buffers that requests reuse.
#[derive(Debug, Default)]
pub struct Buffers {
    path: Vec<u8>,
    host: Vec<u8>,
}

impl RequestHead {
    /// An empty request.
    pub fn new(client: IpAddr) -> RequestHead {
        RequestHead {
            method: "GET".to_owned(),
            scheme: "http".to_owned(),
            authority: String::new(),
            target: "/".to_owned(),
            headers: Vec::new(),
            client,
            known: Vec::new(),
        }
    }

    /// Takes over header fields. A `Host` among them counts unless the host is known already: in an absolute-form request the URL's
    /// host takes precedence over the header's (RFC 9112 section 3.2.2).
    pub fn add_headers(&mut self, headers: impl IntoIterator<Item = (String, String)>) {
        for (name, value) in headers {
            if !name.eq_ignore_ascii_case("host") {
                self.headers.push((name, value));
            } else if self.authority.is_empty() {
                self.authority = value;
            }
        }
    }

    /// The client's port.
    pub fn set_client_port(&mut self, port: u16) {
        self.known.push((Variable::RemotePort, port.to_string()));
    }

    /// Variables that every connection has, but that are unknown here.
    pub fn not_known(&self) -> impl Iterator<Item = Variable> {
        let of_connections = [Variable::RemotePort, Variable::ServerAddr, Variable::ServerPort];
        of_connections.into_iter().filter(|variable| self.known(variable).is_none())
    }

    /// Why the gateway would refuse such a request before routing it. A sentence for the user.
    pub fn flaw(&self) -> Option<String> {
        let RequestHead { method, scheme, authority, target, .. } = self;
        if method.is_empty() || !method.bytes().all(is_token_byte) {
            return Some(format!("\"{}\" is not a method", method.escape_debug()));
        }
        if let Some(wrong) = target.chars().find(|c| c.is_whitespace() || c.is_control()) {
            return Some(format!("\"{}\" holds {wrong:?}, which no request line does", target.escape_debug()));
        }
        if !target.starts_with('/') && !self.is_unrouted() {
            return Some(format!("\"{target}\" is neither a path nor an http or https URL"));
        }
        if !authority.is_empty() && split_authority(authority.as_bytes()).is_none() {
            return Some(format!("\"{}\" is not a host", authority.escape_debug()));
        }
        if let Some((name, _)) =
            self.headers.iter().find(|(_, value)| value.chars().any(|c| c.is_control() && c != '\t'))
        {
            return Some(format!("the value of \"{}\" holds a control character", name.escape_debug()));
        }
        match scheme.as_str() {
            "http" | "https" => None,
            _ => Some(format!("\"{}\" is neither http nor https", scheme.escape_debug())),
        }
    }

    /// Whether the request has no path: `OPTIONS *` and `CONNECT host:port`, which no route takes.
    pub fn is_unrouted(&self) -> bool {
        match self.method.as_str() {
            "OPTIONS" => self.target == "*",
            "CONNECT" => !self.target.starts_with('/') && split_authority(self.target.as_bytes()).is_some(),
            _ => false,
        }
    }

    /// Sets the local address of the connection.
    pub fn set_server(&mut self, server: SocketAddr) {
        self.known.push((Variable::ServerAddr, server.ip().to_string()));
        self.known.push((Variable::ServerPort, server.port().to_string()));
    }

    /// Sets the server name of the TLS handshake: the given one (empty: none), or the requested host by default. An error is a
    /// sentence for the user.
    pub fn set_sni(&mut self, given: Option<&str>) -> Result<(), String> {
        if self.scheme != "https" {
            return match given {
                Some(_) => Err("only a request through TLS has a server name; write the URL with https://".to_owned()),
                None => Ok(()),
            };
        }
        let asked = given.unwrap_or(&self.authority);
        let mut buffer = Vec::new();
        let name = String::from_utf8_lossy(canonical_host(asked.as_bytes(), &mut buffer)).into_owned();
        match given {
            _ if name.is_empty() => return Ok(()),
            None if is_address(&name) => return Ok(()),
            Some(given) if is_address(given) => {
                return Err(format!("\"{given}\" is an address, which no client asks for by name"));
            }
            Some(given) if split_authority(given.as_bytes()).is_none() => {
                return Err(format!("\"{}\" is not a host", given.escape_debug()));
            }
            _ => {}
        }
        self.known.push((Variable::SslServerName, name));
        Ok(())
    }

    /// Calls `then` with the input of the route matcher; fails if the path has no normal form.
    pub fn with_request<R>(
        &self,
        buffers: &mut Buffers,
        then: impl FnOnce(&MatchRequest<'_>) -> R,
    ) -> Result<R, PathError> {
        let path = normalise(target_path(self.target.as_bytes()).0, &mut buffers.path)?;
        let host = canonical_host(self.authority.as_bytes(), &mut buffers.host);
        let vars = Vars { head: self, host, path };
        let method = Method::from_bytes(self.method.as_bytes());
        Ok(then(&MatchRequest { method, host, path, client: self.client, vars: &vars }))
    }

    fn query(&self) -> Option<&[u8]> {
        target_path(self.target.as_bytes()).1
    }

    fn argument<'b>(&'b self, name: &str, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        argument_of(self.query()?, name, buffer)
    }

    fn lines<'a, 'n>(&'a self, name: &'n str) -> impl Iterator<Item = &'a str> + use<'a, 'n> {
        let same = move |(field, _): &&(String, String)| field.eq_ignore_ascii_case(name);
        self.headers.iter().filter(same).map(|(_, value)| value.as_str())
    }

    fn header<'b>(&'b self, name: &HeaderName, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        let mut lines = self.lines(name.as_str());
        let first = lines.next()?;
        buffer.clear();
        buffer.extend_from_slice(first.as_bytes());
        for line in lines {
            buffer.extend_from_slice(b", ");
            buffer.extend_from_slice(line.as_bytes());
        }
        Some(buffer)
    }

    fn cookie(&self, name: &str) -> Option<&[u8]> {
        cookie_of(self.lines("cookie").map(str::as_bytes), name)
    }

    fn known(&self, variable: &Variable) -> Option<&[u8]> {
        self.known.iter().find(|(known, _)| known == variable).map(|(_, value)| value.as_bytes())
    }
}

/// A request's variables.
struct Vars<'a> {
    head: &'a RequestHead,
    /// The canonical host.
    host: &'a [u8],
    path: NormalisedPath<'a>,
}

impl Lookup for Vars<'_> {
    fn value<'b>(&'b self, variable: &Variable, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        let head = self.head;
        match variable {
            Variable::Uri => Some(self.path.text(buffer)),
            Variable::RequestUri => Some(head.target.as_bytes()),
            Variable::Args => head.query(),
            Variable::IsArgs => Some(match head.query() {
                Some(query) if !query.is_empty() => b"?",
                _ => b"",
            }),
            Variable::Host => Some(self.host),
            Variable::RequestMethod => Some(head.method.as_bytes()),
            Variable::Scheme => Some(head.scheme.as_bytes()),
            Variable::ServerProtocol => Some(head.known(variable).unwrap_or(b"HTTP/1.1")),
            Variable::RemoteAddr => Some(written(buffer, head.client)),
            Variable::PeerAddr => Some(match head.known(variable) {
                Some(peer) => peer,
                None => written(buffer, head.client),
            }),
            // Connection variables are known only if they were recorded.
            Variable::RemotePort
            | Variable::ServerAddr
            | Variable::ServerPort
            | Variable::SslServerName
            | Variable::RemoteUser
            | Variable::Ssl(_) => head.known(variable),
            Variable::Arg(name) => head.argument(name, buffer).or_else(|| head.known(variable)),
            Variable::Header(name) if name.as_str() == "host" => match head.authority.is_empty() {
                true => None,
                false => Some(head.authority.as_bytes()),
            },
            Variable::Header(name) => head.header(name, buffer),
            Variable::Cookie(name) => head.cookie(name).or_else(|| head.known(variable)),
            // The matcher knows these itself.
            Variable::PathParam(_) => None,
            // Routes cannot read variables that are set after routing.
            Variable::RouteParam(_)
            | Variable::RouteId
            | Variable::ServiceId
            | Variable::ConsumerName
            | Variable::ConsumerGroupId
            | Variable::Status
            | Variable::RouteName
            | Variable::ServiceName
            | Variable::PostArg(_)
            | Variable::BodyArg(_)
            | Variable::Recorded(_)
            | Variable::SentHeader(_)
            | Variable::UpstreamHeader(_) => None,
        }
    }

    fn is_known(&self, variable: &Variable) -> bool {
        // Negotiated TLS parameters belong to a connection; without TLS there are none.
        if matches!(variable, Variable::Ssl(_)) {
            return self.head.scheme != "https" || self.head.known(variable).is_some();
        }
        self.head.not_known().all(|not_known| not_known != *variable)
    }

    fn each_header(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        if !self.head.authority.is_empty() {
            visit(b"host", self.head.authority.as_bytes());
        }
        for (name, value) in &self.head.headers {
            visit(name.as_bytes(), value.as_bytes());
        }
    }
}

fn is_address(host: &str) -> bool {
    host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok()
}

fn written(buffer: &mut Vec<u8>, value: impl std::fmt::Display) -> &[u8] {
    buffer.clear();
    write!(buffer, "{value}").expect("writing to a vector does not fail");
    buffer
}

/// `METHOD http://host[:port]/path[?query]`, or `METHOD /path` with the host in a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestLine {
    /// As written.
    pub method: String,
    /// `http` or `https`.
    pub scheme: String,
    /// With its port if one is written; `None`: not given.
    pub authority: Option<String>,
    /// Path and query; begins with `/`.
    pub target: String,
}

impl std::str::FromStr for RequestLine {
    type Err = String;

    fn from_str(text: &str) -> Result<RequestLine, String> {
        const SHAPE: &str = "write it as \"GET http://host/path\"";
        let mut words = text.split_ascii_whitespace();
        let (Some(method), Some(url), None) = (words.next(), words.next(), words.next()) else {
            return Err(format!("a method and a URL are needed; {SHAPE}"));
        };
        RequestLine::new(method, url).map_err(|what| format!("{what}; {SHAPE}"))
    }
}

impl RequestLine {
    /// Makes a request line from a method and an absolute URL or a path; the error is a sentence for the user.
    pub fn new(method: &str, url: &str) -> Result<RequestLine, String> {
        if method.is_empty() || !method.bytes().all(is_token_byte) {
            return Err(format!("\"{method}\" is not a method"));
        }
        if let Some(wrong) = url.chars().find(|c| c.is_whitespace() || c.is_control()) {
            return Err(format!("\"{}\" holds {wrong:?}, which no request line does", url.escape_debug()));
        }
        if url.starts_with('/') {
            return Ok(RequestLine {
                method: method.to_owned(),
                scheme: "http".to_owned(),
                authority: None,
                target: url.to_owned(),
            });
        }
        let Some((scheme @ ("http" | "https"), rest)) = url.split_once("://") else {
            return Err(format!("\"{url}\" is not an http or https URL"));
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        if authority.is_empty() {
            return Err(format!("\"{url}\" has no host"));
        }
        // A fragment never reaches a server.
        let target = target.split('#').next().unwrap_or_default();
        Ok(RequestLine {
            method: method.to_owned(),
            scheme: scheme.to_owned(),
            authority: Some(authority.to_owned()),
            target: match target.starts_with('/') {
                true => target.to_owned(),
                false => format!("/{target}"),
            },
        })
    }
}

/// `192.0.2.1`, `2001:db8::1`, `192.0.2.1:5000` or `[2001:db8::1]:5000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientAddress {
    /// Where the request comes from.
    pub address: IpAddr,
    /// The client's port, if known.
    pub port: Option<u16>,
}

impl std::str::FromStr for ClientAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<ClientAddress, String> {
        let with_port = |client: SocketAddr| ClientAddress { address: client.ip(), port: Some(client.port()) };
        let alone = text.parse().map(|address| ClientAddress { address, port: None });
        alone.or_else(|_| text.parse().map(with_port)).map_err(|_| {
            format!(
                "{text:?} is not an address; write it as 192.0.2.1 or 2001:db8::1, or with a port as 192.0.2.1:5000 or \
                 [2001:db8::1]:5000"
            )
        })
    }
}

/// One `name: value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderArgument {
    /// As written.
    pub name: String,
    /// Without surrounding blanks.
    pub value: String,
}

impl std::str::FromStr for HeaderArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<HeaderArgument, String> {
        match text.split_once(':') {
            Some((name, value)) if !name.is_empty() && name.bytes().all(is_token_byte) => {
                Ok(HeaderArgument { name: name.to_owned(), value: value.trim().to_owned() })
            }
            _ => Err(format!("\"{text}\" is not a header field; write it as \"name: value\"")),
        }
    }
}

/// Whether the byte may be part of a token (RFC 9110 section 5.6.2).
pub fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_lines() {
        fn check(text: &str, expected: Result<(&str, &str, Option<&str>, &str), &str>) {
            let found = text.parse::<RequestLine>();
            match (&found, expected) {
                (Ok(line), Ok((method, scheme, authority, target))) => assert_eq!(
                    (line.method.as_str(), line.scheme.as_str(), line.authority.as_deref(), line.target.as_str()),
                    (method, scheme, authority, target)
                ),
                (Err(message), Err(part)) => assert!(message.contains(part), "{message}"),
                _ => panic!("{text}: {found:?}"),
            }
        }
        check("GET http://a.example:81/p/q?x=1#f", Ok(("GET", "http", Some("a.example:81"), "/p/q?x=1")));
        check("POST https://h", Ok(("POST", "https", Some("h"), "/")));
        check("GET http://h?x", Ok(("GET", "http", Some("h"), "/?x")));
        check("GET http://[::1]:80/", Ok(("GET", "http", Some("[::1]:80"), "/")));
        check("GET /only/path", Ok(("GET", "http", None, "/only/path")));
        check("GET", Err("a method and a URL"));
        check("GET a b", Err("a method and a URL"));
        check("G=T /", Err("not a method"));
        check("GET ftp://h/", Err("not an http"));
        check("GET http:///x", Err("no host"));
    }

    #[test]
    fn headers() {
        let header = "x-a: b:c ".parse::<HeaderArgument>().expect("a header");
        assert_eq!((header.name.as_str(), header.value.as_str()), ("x-a", "b:c"));
        assert!("no colon".parse::<HeaderArgument>().is_err());
        assert!(": value".parse::<HeaderArgument>().is_err());
    }
}
