//! TLS for clients: a `rustls::ServerConfig` for each entry of `ssls` and each offer of protocols, found by the name that a client
//! asks for.

use crate::client_auth::{CertifiedTickets, ClientCa, ClientDemands};
use crate::entry::SslEntry;
use crate::identity::Identity;
use crate::problem::{ConfigLocation, Problems};
use crate::provider::provider;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoClientAuth, NoServerSessionStorage};
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SupportedProtocolVersion};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use stillgate_config::{RefusedSsl, ServerSsl, SslUse, TlsVersions};

/// The record that ends a handshake whose server name [`ServerTls::find`] does not know: the fatal alert
/// `unrecognized_name` (RFC 6066 section 3), which rustls has no way to send before it has a configuration.
pub const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// Session tickets sent after a full TLS 1.3 handshake. One for each connection: a client that opens several gets as many
/// as it has, and clients should use each once (RFC 8446 appendix C.4). A second ticket, which other servers send, would
/// cost every client with one connection an encryption and 200 bytes for nothing.
const TICKETS: usize = 1;

/// All entries of `ssls` for clients of our listeners.
#[derive(Debug)]
pub struct ServerTls {
    /// `None`: the entry with that name cannot be used, and its clients are refused.
    names: ServerNames<Option<Arc<Configs>>>,
    /// Whether any entry requests clients' certificates, or may.
    any_asks: bool,
}

/// The entry's choice for a handshake.
#[derive(Debug, Clone, Copy)]
pub struct ServerChoice<'a> {
    /// The configuration for the handshake.
    pub config: &'a Arc<ServerConfig>,
    /// The roots that the client's certificate is verified against; `None` if none is requested.
    pub client_ca: Option<&'a Arc<ClientCa>>,
}

/// The protocols that a listener offers (ALPN).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// HTTP/2 and HTTP/1.1.
    Http2,
    /// HTTP/1.1 alone.
    Http1,
    /// None: the gateway does not decide which protocol is spoken.
    Nothing,
}

/// One entry's configurations, one for each [`Offer`]. Everything else is shared, including the keys of session
/// tickets.
#[derive(Debug)]
pub(crate) struct Configs {
    http2: Arc<ServerConfig>,
    http1: Arc<ServerConfig>,
    nothing: Arc<ServerConfig>,
    /// `None` if clients need no certificate.
    client_ca: Option<Arc<ClientCa>>,
}

impl Configs {
    fn new(config: ServerConfig, client_ca: Option<Arc<ClientCa>>) -> Configs {
        let offering = |protocols: fn(&[u8]) -> bool| {
            let mut config = config.clone();
            config.alpn_protocols.retain(|protocol| protocols(protocol));
            Arc::new(config)
        };
        Configs {
            http2: offering(|_| true),
            http1: offering(|protocol| protocol != b"h2"),
            nothing: offering(|_| false),
            client_ca,
        }
    }

    fn config_for(&self, offer: Offer) -> &Arc<ServerConfig> {
        match offer {
            Offer::Http2 => &self.http2,
            Offer::Http1 => &self.http1,
            Offer::Nothing => &self.nothing,
        }
    }

    fn asks(&self) -> bool {
        self.client_ca.is_some()
    }
}

impl ServerTls {
    /// `entries`: no name is in two of them. A name that is also in `refused` belongs to the entry, unless only the refused one asks
    /// clients for certificates.
    pub(crate) fn new<'a>(entries: impl Iterator<Item = &'a Arc<SslEntry>>, refused: &[RefusedSsl]) -> ServerTls {
        let (mut names, mut any_asks) = (ServerNames::default(), !refused.is_empty());
        for of in refused {
            of.names.iter().for_each(|name| names.insert(name, None));
            if of.is_name_unread {
                names.set_invalid(None);
            }
            if of.is_default {
                names.set_default(None);
            }
        }
        let asking = || refused.iter().filter(|of| of.asks);
        let guarded: HashSet<&String> = asking().flat_map(|of| &of.names).collect();
        for entry in entries {
            let (SslUse::Server(ssl), Some(configs)) = (&entry.ssl.usage, &entry.server) else { continue };
            any_asks |= configs.asks();
            let is_open = !configs.asks();
            for name in ssl.names.iter().filter(|name| !(is_open && guarded.contains(name))) {
                names.insert(name, Some(configs.clone()));
            }
            if ssl.is_default && !(is_open && asking().any(|of| of.is_default)) {
                names.set_default(Some(configs.clone()));
            }
        }
        ServerTls { names, any_asks }
    }

    /// Finds the entry for the name that a client asks for: the entry with that name, else the one with a wildcard in
    /// place of its first label, else the default. `None` if the client is to be refused.
    pub fn find(&self, server_name: Option<&str>, offer: Offer) -> Option<ServerChoice<'_>> {
        let lower = server_name.map(|name| name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase());
        let configs = self.names.find(lower.as_ref().map(String::as_bytes))?.as_ref()?;
        Some(ServerChoice { config: configs.config_for(offer), client_ca: configs.client_ca.as_ref() })
    }

    /// Whether a handshake for this name would still verify its client against `shown`. An entry that cannot be used for now does not
    /// contradict it.
    pub fn verifies(&self, server_name: Option<&str>, shown: &ClientCa) -> bool {
        let lower = server_name.map(|name| name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase());
        match self.names.find(lower.as_ref().map(String::as_bytes)) {
            None => false,
            Some(None) => true,
            Some(Some(configs)) => configs.client_ca.as_deref() == Some(shown),
        }
    }

    /// Whether a request for `host` may come over a connection whose client has shown a certificate that was verified against
    /// `shown`. It may not where a name that the host falls under asks for certificates of other issuers; the answer is 421 then
    /// (RFC 9110 section 15.5.20). The issuers themselves are compared: what the connection went by may have another name by
    /// now, or the same name other issuers.
    ///
    /// `host` is in lower case, without a port and without a dot at its end.
    pub fn allows(&self, host: &[u8], shown: Option<&ClientCa>) -> bool {
        if !self.any_asks {
            return true;
        }
        // `a%2eb` is `a.b` by RFC 3986 section 6.2.2.2: a node that decodes it would serve another host than this one.
        if host.contains(&b'%') {
            return false;
        }
        // An entry that cannot be used may be one that requests certificates.
        let asks = |configs: &Option<Arc<Configs>>| configs.as_ref().is_none_or(|configs| configs.asks());
        match self.names.client_auth_entry(host, asks) {
            None => true,
            Some(None) => false,
            Some(Some(configs)) => configs.client_ca.as_deref() == shown,
        }
    }
}

/// One entry's configurations. The keys of its session tickets are its own: a session of one entry cannot be resumed at
/// another, which may ask for other clients' certificates.
pub(crate) fn config(
    ssl: &ServerSsl,
    identity: Arc<Identity>,
    asking: Option<ClientDemands>,
    alpn: &[&[u8]],
    place: ConfigLocation<'_>,
    problems: &mut Problems,
) -> Option<Arc<Configs>> {
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&versions(ssl.versions));
    let made = builder.and_then(|builder| {
        let (verifier, client_ca): (Arc<dyn ClientCertVerifier>, _) = match asking {
            Some(ClientDemands { verifier, ca }) => (verifier, Some(ca)),
            None => (Arc::new(NoClientAuth), None),
        };
        let mut config = builder.with_client_cert_verifier(verifier).with_cert_resolver(identity);
        // Keys change every 6 hours, and the previous ones are accepted for as long again. Sessions are not stored on
        // the server: a store would be shared by all workers, behind a lock.
        config.ticketer = match client_ca {
            Some(_) => Arc::new(CertifiedTickets(Ticketer::new()?)),
            None => Ticketer::new()?,
        };
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = TICKETS;
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(Arc::new(Configs::new(config, client_ca)))
    });
    match made {
        Ok(configs) => Some(configs),
        Err(error) => {
            problems.error(place, format!("TLS cannot be set up: {error}"), "is the system out of random numbers?");
            None
        }
    }
}

fn versions(versions: TlsVersions) -> Vec<&'static SupportedProtocolVersion> {
    let v13 = versions.v13.then_some(&TLS13);
    v13.into_iter().chain(versions.v12.then_some(&TLS12)).collect()
}

// Entries of `ssls` by server name: which one a handshake gets, and which one's demand on clients holds for a host.
//
// These are two questions. A wildcard of `ssls` matches one label, as it does in a certificate (RFC 9525 section 6.3); the one in
// a route's host matches any number of them. So a route may take hosts that no handshake finds a name for, and a name that
// requests certificates holds for those as well.

/// The entries by kind of name.
#[derive(Debug)]
pub(crate) struct ServerNames<T> {
    exact: HashMap<Box<[u8]>, T>,
    /// Keyed by the part after the first label.
    wildcard: HashMap<Box<[u8]>, T>,
    /// The entry for every name that is not in `exact`, before wildcards and the default.
    invalid: Option<T>,
    /// The entry for every name that is neither in `exact` nor in `wildcard`.
    any: Option<T>,
    default: Option<T>,
    /// Most labels of a key of `wildcard`: a client's host may have any number, and no more of them are compared.
    labels_max: usize,
}

impl<T> Default for ServerNames<T> {
    fn default() -> ServerNames<T> {
        let (exact, wildcard) = (HashMap::new(), HashMap::new());
        ServerNames { exact, wildcard, invalid: None, any: None, default: None, labels_max: 0 }
    }
}

impl<T> ServerNames<T> {
    /// `name`: in lower case, as `example.com`, `*.example.com` or `*`.
    pub(crate) fn insert(&mut self, name: &str, entry: T) {
        if name == "*" {
            self.any = Some(entry);
            return;
        }
        match name.strip_prefix("*.") {
            Some(parent) => {
                self.labels_max = self.labels_max.max(parent.split('.').count());
                self.wildcard.insert(parent.as_bytes().into(), entry);
            }
            None => {
                self.exact.insert(name.as_bytes().into(), entry);
            }
        }
    }

    /// For clients that ask for a name that no entry has exactly.
    pub(crate) fn set_invalid(&mut self, entry: T) {
        self.invalid = Some(entry);
    }

    /// For clients that ask for no name, or for one that is not here.
    pub(crate) fn set_default(&mut self, entry: T) {
        self.default = Some(entry);
    }

    /// The entry for a handshake: the one with that name, else the one with a wildcard in place of its first label, else
    /// the one for any name, else the default. `name` is in lower case, without a dot at its end.
    pub(crate) fn find(&self, name: Option<&[u8]>) -> Option<&T> {
        name.and_then(|name| self.find_named(name).or(self.any.as_ref())).or(self.default.as_ref())
    }

    /// The entry whose demand holds for a host: the one that a handshake for it would get, if it requests certificates. For a
    /// host that no handshake finds a name for, the nearest wildcard above it that requests them, and only then the one for any
    /// name, or the default if there is none.
    pub(crate) fn client_auth_entry(&self, host: &[u8], asks: impl Fn(&T) -> bool) -> Option<&T> {
        if let Some(named) = self.find_named(host) {
            return Some(named).filter(|entry| asks(entry));
        }
        let dots = host.iter().enumerate().rev().filter(|(_, byte)| **byte == b'.').map(|(at, _)| at);
        let above = dots.take(self.labels_max).filter_map(|dot| self.wildcard.get(&host[dot + 1..]));
        let others = self.any.as_ref().or(self.default.as_ref());
        above.filter(|entry| asks(entry)).last().or(others.filter(|entry| asks(entry)))
    }

    fn find_named(&self, name: &[u8]) -> Option<&T> {
        let by_wildcard = || match name.iter().position(|byte| *byte == b'.') {
            None | Some(0) => None,
            Some(dot) => self.wildcard.get(&name[dot + 1..]),
        };
        self.exact.get(name).or(self.invalid.as_ref()).or_else(by_wildcard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An entry's number, and whether it asks for certificates.
    type Entry = (usize, bool);

    fn names(entries: &[(&str, bool)], default: Option<bool>) -> ServerNames<Entry> {
        let mut names = ServerNames::default();
        for (index, (name, asks)) in entries.iter().enumerate() {
            names.insert(name, (index, *asks));
        }
        if let Some(asks) = default {
            names.set_default((entries.len(), asks));
        }
        names
    }

    #[test]
    fn a_wildcard_asks_of_hosts_at_any_depth() {
        let entries = [
            ("sec.example", true),
            ("*.sec.example", true),
            ("*.open.sec.example", false),
            ("free.sec.example", false),
            ("*.deep.open.sec.example", true),
        ];
        let names = names(&entries, Some(false));
        let check = |host: &str, expected: Option<usize>| {
            let found = names.client_auth_entry(host.as_bytes(), |entry| entry.1).map(|entry| entry.0);
            assert_eq!(found, expected, "{host}");
        };
        check("sec.example", Some(0));
        check("a.sec.example", Some(1));
        check("b.a.sec.example", Some(1));
        check("e.d.c.b.a.sec.example", Some(1));
        check("free.sec.example", None);
        check("a.free.sec.example", Some(1));
        // The handshake's entry decides; for deeper names, the nearest one that requests certificates.
        check("a.open.sec.example", None);
        check("b.a.open.sec.example", Some(1));
        check("c.b.deep.open.sec.example", Some(4));
        check("example", None);
        check("xsec.example", None);
        check("a.xsec.example", None);
        check("sec.example.org", None);
        check("", None);
        check(&"a.".repeat(30_000), None);
        check(&("a.".repeat(30_000) + "sec.example"), Some(1));
    }

    #[test]
    fn any_name_comes_after_all_others_and_before_the_default() {
        let with = |any_asks, default| names(&[("a.test", false), ("*.b.test", true), ("*", any_asks)], default);
        let found =
            |names: &ServerNames<Entry>, name: Option<&str>| names.find(name.map(str::as_bytes)).map(|entry| entry.0);
        let names = with(false, None);
        assert_eq!(found(&names, Some("a.test")), Some(0));
        assert_eq!(found(&names, Some("x.b.test")), Some(1));
        assert_eq!(found(&names, Some("x.y.b.test")), Some(2));
        assert_eq!(found(&names, Some("")), Some(2));
        // This entry is for clients that ask for a name.
        assert_eq!(found(&names, None), None);
        assert_eq!(found(&with(false, Some(false)), None), Some(3));
        let demanded = |any_asks, default, host: &str| {
            with(any_asks, default).client_auth_entry(host.as_bytes(), |entry| entry.1).map(|entry| entry.0)
        };
        assert_eq!(demanded(true, Some(false), "else.test"), Some(2));
        assert_eq!(demanded(false, Some(true), "else.test"), None);
        assert_eq!(demanded(false, None, "x.y.b.test"), Some(1));
        assert_eq!(demanded(true, None, "a.test"), None);
    }

    /// A reference implementation that compares every name label by label.
    fn by_the_book(entries: &[(String, bool)], default: Option<bool>, host: &str) -> Option<usize> {
        let labels: Vec<&str> = host.split('.').collect();
        let depth = |name: &str| match name.strip_prefix("*.") {
            None => (name == host).then_some(0),
            Some(parent) => {
                let parent: Vec<&str> = parent.split('.').collect();
                (labels.len() > parent.len() && labels.ends_with(&parent)).then(|| labels.len() - parent.len())
            }
        };
        let mut covering: Vec<(usize, usize, bool)> = entries
            .iter()
            .enumerate()
            .filter_map(|(index, (name, asks))| depth(name).map(|depth| (depth, index, *asks)))
            .collect();
        covering.sort_unstable();
        match covering.first() {
            Some((0 | 1, index, asks)) => asks.then_some(*index),
            _ => {
                let nearest = covering.iter().find(|(_, _, asks)| *asks).map(|(_, index, _)| *index);
                nearest.or(default.filter(|asks| *asks).map(|_| entries.len()))
            }
        }
    }

    prop_compose! {
        fn name()(labels in prop::collection::vec("[ab]", 1..5)) -> String {
            labels.join(".")
        }
    }

    proptest! {
        #[test]
        fn the_demand_is_that_of_the_model(
            hosts in prop::collection::vec(name(), 1..8),
            written in prop::collection::btree_map((any::<bool>(), name()), any::<bool>(), 0..8),
            default in prop::option::of(any::<bool>()),
        ) {
            let entries: Vec<(String, bool)> = written
                .into_iter()
                .map(|((is_wildcard, name), asks)| (if is_wildcard { format!("*.{name}") } else { name }, asks))
                .collect();
            let borrowed: Vec<(&str, bool)> = entries.iter().map(|(name, asks)| (name.as_str(), *asks)).collect();
            let names = names(&borrowed, default);
            for host in hosts {
                let found = names.client_auth_entry(host.as_bytes(), |entry| entry.1).map(|entry| entry.0);
                prop_assert_eq!(found, by_the_book(&entries, default, &host), "{}", host);
                // A client that comes by the host's own name gets the host's demand, unless only routes reach that deep.
                let shaken = names.find(Some(host.as_bytes())).filter(|entry| entry.1).map(|entry| entry.0);
                prop_assert!(shaken == found || (found.is_some() && names.find_named(host.as_bytes()).is_none()), "{}", host);
            }
        }
    }
}
