//! Facts of a request: computed once, read by routes, plugins, logs and metrics, and never changed.
//!
//! Variables are read from the original bytes of the head. Changes by plugins are kept separately, in
//! [`crate::Request`], which reads both.

use crate::query::{decoded, first};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ipnet::IpNet;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use stillgate_route::path::target_path;
use stillgate_route::{
    HeaderName, Lookup, Match, MatchRequest as Asked, Matcher, NormalisedPath, SslVariable, Variable, split_port,
};
use stillgate_wire::{Field, Method, Name, RequestHead};

/// Values of a connection's TLS session.
pub trait TlsVariables {
    /// The server name (SNI) that the client requested, in lower case.
    fn server_name(&self) -> Option<&str>;

    /// The value of a variable, if it has one.
    fn value(&self, variable: SslVariable) -> Option<&str>;
}

/// The facts of a request.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    /// The bytes of the head.
    pub head: &'a [u8],
    /// Positions in these bytes. A request of HTTP/2 has the same form.
    pub request: &'a RequestHead,
    /// Canonical: in lower case, without port.
    pub host: &'a [u8],
    /// The normalised path; `None` if the path has no normal form: such a request is logged and never routed.
    pub path: Option<NormalisedPath<'a>>,
    /// Address of the client: the peer, or its client if the peer is a trusted proxy.
    pub client: IpAddr,
    /// The client's port, if it is known; otherwise the peer's.
    pub client_port: u16,
    /// Remote address of the connection.
    pub peer: SocketAddr,
    /// Local address of the connection.
    pub local: SocketAddr,
    /// The client's version of HTTP: `HTTP/1.1`.
    pub protocol: &'static str,
    /// `http` or `https`.
    pub scheme: &'static str,
    /// The proxies whose forwarding headers are trusted.
    pub trusted_proxies: &'a [IpNet],
    /// The port for HTTPS: that of the first listener with TLS.
    pub https_port: Option<u16>,
    /// `None`: the connection does not use TLS with us.
    pub tls: Option<&'a dyn TlsVariables>,
    /// The matched route; `None`: not matched yet, or no match.
    pub route: Option<RouteFacts<'a>>,
}

/// What the gateway sees of a client, for fields that a proxy in front may send.
#[derive(Clone, Copy)]
enum OwnView {
    Scheme,
    Host,
    Port,
}

/// The beginning of their names.
const FORWARDED_PREFIX: &str = "x-forwarded-";

/// These fields.
const OBSERVED: [(&str, OwnView); 3] =
    [("x-forwarded-proto", OwnView::Scheme), ("x-forwarded-host", OwnView::Host), ("x-forwarded-port", OwnView::Port)];

/// Facts of the matched route.
#[derive(Clone, Copy)]
pub struct RouteFacts<'a> {
    /// The matcher, for the captures of the path.
    pub matcher: &'a Matcher,
    /// The match in it.
    pub found: Match,
    /// `route_id`
    pub id: &'a str,
    /// `service_id`
    pub service: Option<&'a str>,
    /// Present if the chain of the route, its service or its plugin config has a plugin that wants them.
    pub documents: Option<&'a Arc<Documents>>,
    /// `route_name`
    pub name: &'a Option<String>,
    /// `service_name`
    pub service_name: &'a Option<String>,
}

/// Resources as they are written, without their upstreams.
#[derive(Debug, Clone, PartialEq)]
pub struct Documents {
    /// The route.
    pub route: serde_json::Value,
    /// Its service.
    pub service: Option<serde_json::Value>,
}

impl<'a> Facts<'a> {
    /// The method's name.
    pub fn method(&self) -> &'a [u8] {
        self.request.method_bytes(self.head)
    }

    /// Path and query as they came.
    pub fn path_and_query(&self) -> &'a [u8] {
        self.request.path_and_query.of(self.head)
    }

    /// The query, without `?`.
    pub fn query(&self) -> Option<&'a [u8]> {
        target_path(self.path_and_query()).1
    }

    /// The value of a header field; several lines are joined by `, ` in `buffer`. What describes the client to nodes is what they
    /// get, whatever a client sends that is not a trusted proxy.
    pub fn header<'b>(&self, name: &HeaderName, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]>
    where
        'a: 'b,
    {
        let is_it = |field: &&Field| name.matches(field.name.of(self.head)) && !self.is_forged(field);
        let mut values = self.request.fields.iter().filter(is_it).map(|field| self.value_of(field)).peekable();
        if values.peek().is_none() && name.as_str().starts_with(FORWARDED_PREFIX) {
            let (_, observed) = OBSERVED.into_iter().find(|(of, _)| *of == name.as_str())?;
            return self.own_view(observed, buffer);
        }
        join(values, buffer)
    }

    /// Whether a field is about the client of a proxy, and was not sent by a trusted one. Without trusted proxies `X-Forwarded-For`
    /// stays, as in APISIX: a plugin may have its own.
    fn is_forged(&self, field: &Field) -> bool {
        match field.id {
            Name::XForwardedProto | Name::XForwardedHost | Name::XForwardedPort | Name::Forwarded => {
                !self.trusts_peer()
            }
            Name::XForwardedFor => !self.trusted_proxies.is_empty() && !self.trusts_peer(),
            _ => false,
        }
    }

    /// Whether the connection's peer may forward for others.
    fn trusts_peer(&self) -> bool {
        let peer = self.peer.ip().to_canonical();
        self.trusted_proxies.iter().any(|range| range.contains(&peer))
    }

    fn forwarded_port(&self) -> u16 {
        forwarded_port(self.request.authority.of(self.head), self.local.port())
    }

    /// What the gateway itself sees of the client.
    fn own_view<'b>(&self, observed: OwnView, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]>
    where
        'a: 'b,
    {
        match observed {
            OwnView::Scheme => Some(self.scheme.as_bytes()),
            OwnView::Host => Some(self.request.authority.of(self.head)).filter(|host| !host.is_empty()),
            OwnView::Port => Some(format_into(buffer, self.forwarded_port())),
        }
    }

    /// The value of a field. For `Host` it is the requested host: if the target has a host of its own, the line is
    /// ignored (RFC 9112 section 3.2.2), and the node gets the host of the target.
    fn value_of(&self, field: &Field) -> &'a [u8] {
        let value = if field.id == Name::Host { self.request.authority } else { field.value };
        value.of(self.head)
    }

    /// The first cookie with a name.
    pub fn cookie(&self, name: &str) -> Option<&'a [u8]> {
        let fields = self.request.fields.iter();
        let lines = fields.filter(|field| field.name.of(self.head).eq_ignore_ascii_case(b"cookie"));
        cookie_of(lines.map(|field| field.value.of(self.head)), name)
    }

    /// The first argument with a name; see [`argument_of`].
    pub fn argument<'b>(&self, name: &str, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]>
    where
        'a: 'b,
    {
        argument_of(self.query()?, name, buffer)
    }

    /// The request in the matcher's form; `None` if its path has no normal form.
    pub fn as_asked<'b>(&'b self, vars: &'b dyn Lookup) -> Option<Asked<'b>> {
        let (method, host, client): (Method, _, _) = (self.request.method, self.host, self.client);
        Some(Asked { method, host, path: self.path?, client, vars })
    }

    /// `http` or `https`: the scheme that the client uses, which a trusted proxy gives in `X-Forwarded-Proto`.
    pub fn scheme_of_client(&self) -> &'a [u8] {
        let named = || self.request.fields.get(self.head, Name::XForwardedProto);
        self.trusts_peer().then(named).flatten().unwrap_or(self.scheme.as_bytes())
    }

    /// The user name in the credentials of basic authentication.
    fn remote_user<'b>(&self, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        const SCHEME: &[u8] = b"basic ";
        let is_it = |field: &&Field| field.name.of(self.head).eq_ignore_ascii_case(b"authorization");
        let value = self.request.fields.iter().find(is_it)?.value.of(self.head);
        let (scheme, credentials) = value.split_at_checked(SCHEME.len())?;
        if !scheme.eq_ignore_ascii_case(SCHEME) {
            return None;
        }
        buffer.clear();
        STANDARD.decode_vec(credentials.trim_ascii(), buffer).ok()?;
        let end = buffer.iter().position(|byte| *byte == b':')?;
        Some(&buffer[..end])
    }

    fn path_param<'b>(&'b self, name: &str, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        let route = self.route?;
        route.matcher.param(route.found, &self.as_asked(self)?, name, buffer)
    }
}

/// The digits of the largest port.
const PORT_DIGITS_MAX: usize = 5;

/// The unit of clients where they share something: an address of IPv4, or the network of 64 bits of one of IPv6, in which a client
/// has any number of addresses.
pub fn client_network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

/// The port that the client asked for: that of the requested host, or the listener's.
pub fn forwarded_port(host: &[u8], local: u16) -> u16 {
    let port = split_port(host).and_then(|(_, digits)| std::str::from_utf8(digits).ok());
    port.and_then(|port| port.parse().ok()).unwrap_or(local)
}

/// The first value, or several joined by `, ` in `buffer`.
pub(crate) fn join<'b>(mut values: impl Iterator<Item = &'b [u8]>, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
    let first = values.next()?;
    let Some(second) = values.next() else { return Some(first) };
    buffer.clear();
    buffer.extend_from_slice(first);
    for value in std::iter::once(second).chain(values) {
        buffer.extend_from_slice(b", ");
        buffer.extend_from_slice(value);
    }
    Some(buffer)
}

/// The first cookie with a name in the lines of `Cookie`; a pair without `=` does not count.
#[inline]
pub fn cookie_of<'a>(lines: impl IntoIterator<Item = &'a [u8]>, name: &str) -> Option<&'a [u8]> {
    let mut pairs = lines.into_iter().flat_map(|line| line.split(|b| *b == b';'));
    pairs.find_map(|pair| value_of(pair.trim_ascii(), name.as_bytes()))
}

/// The first argument with a name in a query, read as in APISIX: both are decoded, and an argument without `=` has the
/// value `true`.
pub fn argument_of<'a>(query: &'a [u8], name: &str, buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    let Some(value) = first(query, name.as_bytes())? else { return Some(b"true") };
    if !value.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return Some(value);
    }
    buffer.clear();
    buffer.extend(decoded(value));
    Some(buffer)
}

/// The value in `name=value`.
fn value_of<'a>(pair: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    pair.strip_prefix(name)?.strip_prefix(b"=")
}

impl Lookup for Facts<'_> {
    fn value<'a>(&'a self, variable: &Variable, buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        match variable {
            Variable::Uri => self.path.map(|path| path.text(buffer)),
            Variable::RequestUri => Some(self.path_and_query()),
            Variable::Args => self.query(),
            Variable::IsArgs => Some(if self.query().is_some_and(|query| !query.is_empty()) { b"?" } else { b"" }),
            Variable::Host => Some(self.host),
            Variable::RequestMethod => Some(self.method()),
            Variable::Scheme => Some(self.scheme.as_bytes()),
            Variable::ServerProtocol => Some(self.protocol.as_bytes()),
            Variable::RemoteAddr => Some(address(buffer, self.client)),
            Variable::PeerAddr => Some(address(buffer, self.peer.ip())),
            Variable::RemotePort => Some(format_into(buffer, self.client_port)),
            Variable::ServerAddr => Some(address(buffer, self.local.ip())),
            Variable::ServerPort => Some(format_into(buffer, self.local.port())),
            Variable::SslServerName => self.tls?.server_name().map(str::as_bytes),
            Variable::Ssl(variable) => self.tls?.value(*variable).map(str::as_bytes),
            Variable::Arg(name) => self.argument(name, buffer),
            Variable::Header(name) => self.header(name, buffer),
            Variable::Cookie(name) => self.cookie(name),
            Variable::PathParam(name) | Variable::RouteParam(name) => self.path_param(name, buffer),
            Variable::RouteId => Some(self.route?.id.as_bytes()),
            Variable::ServiceId => self.route?.service.map(str::as_bytes),
            Variable::RouteName => self.route?.name.as_deref().map(str::as_bytes),
            Variable::ServiceName => self.route?.service_name.as_deref().map(str::as_bytes),
            Variable::RemoteUser => self.remote_user(buffer),
            // Known only to `Request` and `Response`.
            Variable::ConsumerName
            | Variable::ConsumerGroupId
            | Variable::Status
            | Variable::PostArg(_)
            | Variable::BodyArg(_)
            | Variable::Recorded(_)
            | Variable::SentHeader(_)
            | Variable::UpstreamHeader(_) => None,
        }
    }

    fn each_header(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        let mut observed = OBSERVED.map(Some);
        for field in self.request.fields.iter().filter(|field| !self.is_forged(field)) {
            let sent = match field.id {
                Name::XForwardedProto => 0,
                Name::XForwardedHost => 1,
                Name::XForwardedPort => 2,
                _ => OBSERVED.len(),
            };
            if let Some(sent) = observed.get_mut(sent) {
                *sent = None;
            }
            visit(field.name.of(self.head), self.value_of(field));
        }
        for (name, observed) in observed.into_iter().flatten() {
            match observed {
                // Without a buffer of its own.
                OwnView::Port => {
                    let (mut digits, port) = ([0; PORT_DIGITS_MAX], self.forwarded_port());
                    let mut left = &mut digits[..];
                    write!(left, "{port}").expect("a port has five digits at most");
                    let count = PORT_DIGITS_MAX - left.len();
                    visit(name.as_bytes(), &digits[..count]);
                }
                OwnView::Scheme => visit(name.as_bytes(), self.scheme.as_bytes()),
                OwnView::Host => match self.request.authority.of(self.head) {
                    b"" => {}
                    host => visit(name.as_bytes(), host),
                },
            }
        }
    }
}

/// Formats a value that is not stored as text.
pub fn format_into(buffer: &mut Vec<u8>, value: impl std::fmt::Display) -> &[u8] {
    buffer.clear();
    write!(buffer, "{value}").expect("writing to a vector does not fail");
    buffer
}

/// Formats an address.
fn address(buffer: &mut Vec<u8>, address: IpAddr) -> &[u8] {
    buffer.clear();
    append_address(buffer, address);
    buffer
}

/// Appends an address: IPv4 without `Display`, which takes some hundred instructions more for each request with a limit
/// or behind a proxy.
pub fn append_address(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => out.extend_from_slice(AddressText::new(address).bytes()),
        IpAddr::V6(address) => write!(out, "{address}").expect("writing to a vector does not fail"),
    }
}

/// The text of an address.
pub struct AddressText {
    /// The text, with a trailing point.
    text: [u8; 4 * OCTET_BYTES],
    len: usize,
}

/// An octet and a point.
const OCTET_BYTES: usize = 4;

/// Each octet with a trailing point, and its length.
static OCTETS: [([u8; OCTET_BYTES], u8); 256] = {
    let mut octets = [([0; OCTET_BYTES], 0); 256];
    let mut octet = 0;
    while octet < octets.len() {
        let digits = [octet / 100, octet / 10 % 10, octet % 10];
        let [a, b, c] = [b'0' + digits[0] as u8, b'0' + digits[1] as u8, b'0' + digits[2] as u8];
        octets[octet] = match octet {
            0..10 => ([c, b'.', 0, 0], 2),
            10..100 => ([b, c, b'.', 0], 3),
            _ => ([a, b, c, b'.'], 4),
        };
        octet += 1;
    }
    octets
};

impl AddressText {
    /// Formats it as the standard library does.
    #[inline]
    pub fn new(address: Ipv4Addr) -> AddressText {
        let (mut text, mut len) = ([0; 4 * OCTET_BYTES], 0);
        for octet in address.octets() {
            let (digits, bytes) = OCTETS[usize::from(octet)];
            text[len..][..OCTET_BYTES].copy_from_slice(&digits);
            len += usize::from(bytes);
        }
        AddressText { text, len: len - 1 }
    }

    /// The text.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.text[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_the_standard_library_does() {
        for text in ["0.0.0.0", "192.0.2.7", "10.99.100.9", "255.255.255.255", "::1", "2001:db8::5", "::ffff:9.9.9.9"] {
            assert_eq!(address(&mut vec![b'x'], text.parse().unwrap()), text.as_bytes());
        }
    }

    #[test]
    fn cookies_and_arguments() {
        let cookie = |lines: &[&'static str], name| cookie_of(lines.iter().map(|line| line.as_bytes()), name);
        assert_eq!(cookie(&["a=1; b=2", "b=3; c=x=y"], "b"), Some(&b"2"[..]));
        assert_eq!(cookie(&["a=1; b=2", "b=3; c=x=y"], "c"), Some(&b"x=y"[..]));
        assert_eq!(cookie(&["a; ab=1; a="], "a"), Some(&b""[..]));
        assert_eq!(cookie(&["a", "A=1"], "a"), None);
        let argument = |query: &str, name| {
            argument_of(query.as_bytes(), name, &mut Vec::new())
                .map(|value| String::from_utf8_lossy(value).into_owned())
        };
        assert_eq!(argument("a=1&b=2&b=3", "b").as_deref(), Some("2"));
        assert_eq!(argument("ab=1&a&a=2", "a").as_deref(), Some("true"));
        assert_eq!(argument("a=&a=2", "a").as_deref(), Some(""));
        assert_eq!(argument("ab=1&A=2", "a"), None);
        assert_eq!(argument("b=%3d&%61=x%20y+z%2", "a").as_deref(), Some("x y z%2"));
    }
}
