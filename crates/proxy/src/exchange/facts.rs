//! Facts of a request that take some work, computed once and kept as positions in its head.

use crate::connection::client::{ClientConnection, TlsFacts};
use crate::plan::Plan;
use stillgate_plugin_api::facts::RouteFacts;
use stillgate_plugin_api::{Facts, TlsVariables};
use stillgate_route::path::{PathError, normalise, target_path};
use stillgate_route::{Match, NormalisedPath, SslVariable, canonical_host};
use stillgate_wire::{RequestHead, Span};

/// The canonical host and the normal path of a request.
#[derive(Default)]
pub(crate) struct RequestFacts {
    host: TextLocation,
    path: Option<TextLocation>,
    /// The path as it came, if that holds `%2F`.
    ambiguous: Option<Span>,
    host_scratch: Vec<u8>,
    path_scratch: Vec<u8>,
}

/// Location of a text.
#[derive(Clone, Copy, Default)]
enum TextLocation {
    /// The text is empty, or `/` for a path.
    #[default]
    Default,
    Head(Span),
    Scratch,
}

impl TextLocation {
    /// Locates a text that is in the head, or else in the scratch memory.
    fn of(text: &[u8], head: &[u8]) -> TextLocation {
        let start = (text.as_ptr() as usize).wrapping_sub(head.as_ptr() as usize);
        match start < head.len() && text.len() <= head.len() - start {
            true => TextLocation::Head(Span { start: start as u16, len: text.len() as u16 }),
            false => TextLocation::Scratch,
        }
    }
}

impl RequestFacts {
    /// Forgets the facts, before the next request.
    #[inline]
    pub(crate) fn forget(&mut self) {
        self.host = TextLocation::Default;
        self.path = None;
    }

    /// Computes the facts of a request whose head has arrived.
    ///
    /// # Errors
    ///
    /// Fails if its path has no normal form. All else is known then.
    pub(crate) fn make(&mut self, request: &RequestHead, head: &[u8]) -> Result<(), PathError> {
        let host = canonical_host(request.authority.of(head), &mut self.host_scratch);
        self.host = if host.is_empty() { TextLocation::Default } else { TextLocation::of(host, head) };
        self.path = None;
        let raw = target_path(request.path_and_query.of(head)).0;
        let path = normalise(raw, &mut self.path_scratch)?;
        let start = request.path_and_query.start;
        self.ambiguous = path.ambiguous().map(|raw| Span { start, len: raw.len() as u16 });
        self.path = Some(if raw.is_empty() { TextLocation::Default } else { TextLocation::of(path.bytes(), head) });
        Ok(())
    }

    /// In lower case, without port.
    #[inline]
    pub(crate) fn host<'a>(&'a self, head: &'a [u8]) -> &'a [u8] {
        match self.host {
            TextLocation::Default => b"",
            TextLocation::Head(span) => span.of(head),
            TextLocation::Scratch => &self.host_scratch,
        }
    }

    /// `None`: the path has no normal form.
    #[inline]
    pub(crate) fn path<'a>(&'a self, head: &'a [u8]) -> Option<NormalisedPath<'a>> {
        let bytes = match self.path? {
            TextLocation::Default => b"/",
            TextLocation::Head(span) => span.of(head),
            TextLocation::Scratch => &self.path_scratch,
        };
        Some(NormalisedPath::from_normalised(bytes, self.ambiguous.map(|raw| raw.of(head))))
    }
}

/// The facts of a request, assembled from where they are kept when they are needed, as there are many of them.
#[inline(always)]
pub(crate) fn facts_of<'a>(
    known: &'a RequestFacts,
    request: &'a RequestHead,
    head: &'a [u8],
    client: &'a ClientConnection,
    plan: &'a Plan,
    found: Option<Match>,
) -> Facts<'a> {
    Facts {
        head,
        request,
        host: known.host(head),
        path: known.path(head),
        client: client.address,
        client_port: client.port,
        peer: client.peer,
        local: client.local,
        protocol: client.protocol(request),
        scheme: client.scheme(),
        trusted_proxies: &plan.settings.trusted_proxies,
        https_port: plan.settings.https_port,
        tls: client.tls.as_deref().map(|tls| tls as &dyn TlsVariables),
        route: found.map(|found| {
            let route = &plan.routes[found.route].route;
            RouteFacts {
                matcher: plan.matcher(),
                found,
                id: &route.spec.id,
                service: route.service_id.as_deref(),
                documents: route.documents.as_ref(),
                name: &route.name,
                service_name: &route.service_name,
            }
        }),
    }
}

impl TlsVariables for TlsFacts {
    fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    fn value(&self, variable: SslVariable) -> Option<&str> {
        TlsFacts::value(self, variable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_wire::{HeadLimits, HeadProgress};

    #[test]
    fn facts_are_found_again_where_they_were_made() {
        let check = |head: &str, host: &str, path: Option<&str>| {
            let (mut request, mut known) = (RequestHead::default(), RequestFacts::default());
            let done = request.advance(head.as_bytes(), &HeadLimits::default());
            assert_eq!(done, Ok(HeadProgress::Complete(head.len())), "{head}");
            assert_eq!(known.make(&request, head.as_bytes()).is_ok(), path.is_some(), "{head}");
            assert_eq!(known.host(head.as_bytes()), host.as_bytes(), "{head}");
            assert_eq!(known.path(head.as_bytes()).map(NormalisedPath::bytes), path.map(str::as_bytes), "{head}");
            known.forget();
            assert_eq!((known.host(&[]), known.path(&[])), (&b""[..], None));
        };
        check("GET /a?b HTTP/1.1\r\nHost: h:80\r\n\r\n", "h", Some("/a"));
        check("GET /a/../%62?c HTTP/1.1\r\nHost: H.Test\r\n\r\n", "h.test", Some("/b"));
        check("GET http://O HTTP/1.1\r\nHost: h\r\n\r\n", "o", Some("/"));
        check("GET / HTTP/1.0\r\n\r\n", "", Some("/"));
        check("GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n", "h", None);
    }
}
