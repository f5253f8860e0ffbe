//! The variables of a request in flight, answered from the bytes of its head.

use super::Exchange;
use crate::basics::text::written;
use crate::connection::client::Client;
use crate::connection::tls_facts::TlsFacts;
use std::net::{IpAddr, SocketAddr};
use stillgate_route::path::{normalise, target_path};
use stillgate_route::{HeaderName, Lookup, Match, Matcher, NormalPath, Request, Variable, canonical_host};
use stillgate_wire::{Field, Name, RequestHead};

/// A request as its variables see it.
#[derive(Clone, Copy)]
pub(crate) struct RequestVars<'a> {
    pub(crate) head: &'a [u8],
    pub(crate) request: &'a RequestHead,
    /// Canonical.
    pub(crate) host: &'a [u8],
    /// `None` where it has no normal form; such a request is logged but never routed.
    pub(crate) path: Option<NormalPath<'a>>,
    pub(crate) client: IpAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    /// The version of HTTP that the client speaks.
    pub(crate) protocol: &'static str,
    /// `http` or `https`
    pub(crate) scheme: &'static str,
    /// `None`: the connection has none with us.
    pub(crate) tls: Option<&'a TlsFacts>,
    /// The route that was found, whose path or regexes may have captured something.
    pub(crate) found: Option<(&'a Matcher, Match)>,
}

impl<'a> RequestVars<'a> {
    fn path_and_query(&self) -> &'a [u8] {
        self.request.path_and_query.of(self.head)
    }

    fn query(&self) -> Option<&'a [u8]> {
        target_path(self.path_and_query()).1
    }

    fn header<'b>(&self, name: &HeaderName, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]>
    where
        'a: 'b,
    {
        let mut values = self
            .request
            .fields
            .iter()
            .filter(|field| name.matches(field.name.of(self.head)))
            .map(|field| self.value_of_field(field));
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

    /// Of `Host` it is the host that is asked for: beside a target with a host of its own, the line counts for nothing (RFC 9112
    /// section 3.2.2), and the node gets the other.
    fn value_of_field(&self, field: &Field) -> &'a [u8] {
        let value = if field.id == Name::Host { self.request.authority } else { field.value };
        value.of(self.head)
    }

    fn cookie(&self, name: &str) -> Option<&'a [u8]> {
        let fields = self.request.fields.iter();
        let lines = fields.filter(|field| field.name.of(self.head).eq_ignore_ascii_case(b"cookie"));
        cookie_of(lines.map(|field| field.value.of(self.head)), name)
    }

    fn argument(&self, name: &str) -> Option<&'a [u8]> {
        argument_of(self.query()?, name)
    }

    /// As the matcher sees the request; `None` where its path has no normal form.
    fn as_request(&self) -> Option<Request<'_>> {
        let (method, host, client) = (self.request.method, self.host, self.client);
        Some(Request { method, host, path: self.path?, client, vars: self })
    }

    fn path_param<'b>(&'b self, name: &str, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        let (matcher, found) = self.found?;
        matcher.param(found, &self.as_request()?, name, buffer)
    }
}

/// The first cookie of a name in the lines of `Cookie`; one without `=` has none.
#[inline]
pub fn cookie_of<'a>(lines: impl IntoIterator<Item = &'a [u8]>, name: &str) -> Option<&'a [u8]> {
    let mut pairs = lines.into_iter().flat_map(|line| line.split(|b| *b == b';'));
    pairs.find_map(|pair| value_of(pair.trim_ascii(), name.as_bytes()))
}

/// The first argument of a name in a query, as it is written; one without `=` is empty.
#[inline]
pub fn argument_of<'a>(query: &'a [u8], name: &str) -> Option<&'a [u8]> {
    query
        .split(|b| *b == b'&')
        .find_map(|pair| if pair == name.as_bytes() { Some(&[][..]) } else { value_of(pair, name.as_bytes()) })
}

/// The value in `name=value`.
fn value_of<'a>(pair: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    pair.strip_prefix(name)?.strip_prefix(b"=")
}

impl Lookup for RequestVars<'_> {
    fn value<'a>(&'a self, variable: &Variable, buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        match variable {
            Variable::Uri => self.path.map(NormalPath::bytes),
            Variable::RequestUri => Some(self.path_and_query()),
            Variable::Args => self.query(),
            Variable::IsArgs => Some(if self.query().is_some_and(|query| !query.is_empty()) { b"?" } else { b"" }),
            Variable::Host => Some(self.host),
            Variable::RequestMethod => Some(self.request.method_bytes(self.head)),
            Variable::Scheme => Some(self.scheme.as_bytes()),
            Variable::ServerProtocol => Some(self.protocol.as_bytes()),
            Variable::RemoteAddr => Some(written(buffer, self.client)),
            Variable::PeerAddr => Some(written(buffer, self.peer.ip())),
            Variable::RemotePort => Some(written(buffer, self.peer.port())),
            Variable::ServerAddr => Some(written(buffer, self.local.ip())),
            Variable::ServerPort => Some(written(buffer, self.local.port())),
            Variable::SslServerName => self.tls?.server_name.as_deref().map(str::as_bytes),
            Variable::Ssl(variable) => self.tls?.value(*variable).map(str::as_bytes),
            Variable::Arg(name) => self.argument(name),
            Variable::Header(name) => self.header(name, buffer),
            Variable::Cookie(name) => self.cookie(name),
            Variable::PathParam(name) => self.path_param(name, buffer),
            // Routes cannot ask for what is known after them.
            Variable::RouteId
            | Variable::ServiceId
            | Variable::ConsumerName
            | Variable::ConsumerGroupId
            | Variable::Status => None,
        }
    }

    fn each_header(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        for field in self.request.fields.iter() {
            visit(field.name.of(self.head), self.value_of_field(field));
        }
    }
}

/// Calls `then` with the variables of a request whose route is known or was not found.
pub(crate) fn with_vars<R>(
    client: &Client,
    exchange: &mut Exchange,
    matcher: &Matcher,
    then: impl FnOnce(&RequestVars<'_>, &mut Vec<u8>) -> R,
) -> R {
    let head = exchange.from_client.head();
    let vars = RequestVars {
        head,
        request: &exchange.request,
        host: canonical_host(exchange.request.authority.of(head), &mut exchange.host_scratch),
        path: normalise(target_path(exchange.request.path_and_query.of(head)).0, &mut exchange.path_scratch).ok(),
        client: client.address,
        peer: client.peer,
        local: client.local,
        scheme: client.scheme(),
        tls: client.tls.as_deref(),
        protocol: client.protocol(&exchange.request),
        found: exchange.outcome.route.map(|found| (matcher, found)),
    };
    then(&vars, &mut exchange.key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_and_arguments() {
        let cookie = |lines: &[&'static str], name| cookie_of(lines.iter().map(|line| line.as_bytes()), name);
        assert_eq!(cookie(&["a=1; b=2", "b=3; c=x=y"], "b"), Some(&b"2"[..]));
        assert_eq!(cookie(&["a=1; b=2", "b=3; c=x=y"], "c"), Some(&b"x=y"[..]));
        assert_eq!(cookie(&["a; ab=1; a="], "a"), Some(&b""[..]));
        assert_eq!(cookie(&["a", "A=1"], "a"), None);
        let argument = |query: &'static str, name| argument_of(query.as_bytes(), name);
        assert_eq!(argument("a=1&b=2&b=3", "b"), Some(&b"2"[..]));
        assert_eq!(argument("ab=1&a&a=2", "a"), Some(&b""[..]));
        assert_eq!(argument("ab=1&A=2", "a"), None);
    }
}
