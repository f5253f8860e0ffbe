//! What clients are shown: a `rustls::ServerConfig` for each entry of `ssls` and each offer of protocols, found by the name that a client asks for.

use crate::entry::Entry;
use crate::identity::Identity;
use crate::problem::{Place, Problems};
use crate::provider::provider;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoClientAuth, NoServerSessionStorage};
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SupportedProtocolVersion};
use std::collections::HashMap;
use std::sync::Arc;
use stillgate_config::{ServerSsl, SslUse, TlsVersions};

/// The record that ends a handshake whose server name [`ServerTls::find`] does not know: the fatal alert
/// `unrecognized_name` (RFC 6066 section 3), which rustls has no way to send before it has a configuration.
pub const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// Session tickets sent after a full TLS 1.3 handshake. One for each connection: a client that opens several gets as many
/// as it has, and clients should use each once (RFC 8446 appendix C.4). Two, as others send, cost every client that
/// has one connection an encryption and 200 bytes for nothing.
const TICKETS: usize = 1;

/// All entries of `ssls` for clients of our listeners.
#[derive(Debug)]
pub struct ServerTls {
    exact: HashMap<Box<str>, Found>,
    /// By what comes behind the first label.
    wildcard: HashMap<Box<str>, Found>,
    default: Option<Found>,
    /// Whether any entry asks for clients' certificates.
    any_asks: bool,
}

/// Which of the protocols that there are a listener offers (ALPN).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// HTTP/2 and HTTP/1.1.
    Http2,
    /// HTTP/1.1 alone.
    Http1,
    /// None: what is spoken is not ours to say.
    Nothing,
}

/// One entry's configuration, once for each [`Offer`]. All else is the same, the keys of session tickets included.
#[derive(Debug)]
pub(crate) struct Configs {
    http2: Arc<ServerConfig>,
    http1: Arc<ServerConfig>,
    nothing: Arc<ServerConfig>,
}

impl Configs {
    fn new(config: ServerConfig) -> Configs {
        let offering = |protocols: fn(&[u8]) -> bool| {
            let mut config = config.clone();
            config.alpn_protocols.retain(|protocol| protocols(protocol));
            Arc::new(config)
        };
        Configs {
            http2: offering(|_| true),
            http1: offering(|protocol| protocol != b"h2"),
            nothing: offering(|_| false),
        }
    }

    fn offering(&self, offer: Offer) -> &Arc<ServerConfig> {
        match offer {
            Offer::Http2 => &self.http2,
            Offer::Http1 => &self.http1,
            Offer::Nothing => &self.nothing,
        }
    }
}

#[derive(Debug, Clone)]
struct Found {
    configs: Arc<Configs>,
    /// Whether clients must have a certificate.
    asks: bool,
}

impl ServerTls {
    /// `entries`: no name is in two of them.
    pub(crate) fn new<'a>(entries: impl Iterator<Item = &'a Arc<Entry>>) -> ServerTls {
        let (mut exact, mut wildcard, mut default, mut any_asks) = (HashMap::new(), HashMap::new(), None, false);
        for entry in entries {
            let (SslUse::Server(ssl), Some(configs)) = (&entry.ssl.usage, &entry.server) else { continue };
            let found = Found { configs: configs.clone(), asks: ssl.client.is_some() };
            any_asks |= found.asks;
            for name in &ssl.names {
                match name.strip_prefix("*.") {
                    Some(parent) => wildcard.insert(parent.into(), found.clone()),
                    None => exact.insert(name.as_str().into(), found.clone()),
                };
            }
            if ssl.is_default {
                default = Some(found);
            }
        }
        ServerTls { exact, wildcard, default, any_asks }
    }

    /// For the name that a client asks for: the entry with that name, else the one with a wildcard in place of its first
    /// label, else the default. `None`: the client is to be refused.
    pub fn find(&self, server_name: Option<&str>, offer: Offer) -> Option<&Arc<ServerConfig>> {
        self.found(server_name).map(|found| found.configs.offering(offer))
    }

    /// Whether a request for `host` (a `Host` field, with or without a port) may come over a connection whose client asked
    /// for `server_name`. It may not where the host's entry asks for clients' certificates and is another one, or did not
    /// ask yet when the client came (`has_certificate`: it has shown one): the client has shown none that it would have taken.
    /// The answer is 421 then (RFC 9110 section 15.5.20).
    pub fn allows(&self, server_name: Option<&str>, host: &str, has_certificate: bool) -> bool {
        if !self.any_asks {
            return true;
        }
        let host = match host.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            _ => host,
        };
        let (came, wanted) = (self.found(server_name), self.found(Some(host)));
        let is_same = |wanted: &Found| came.is_some_and(|came| Arc::ptr_eq(&came.configs, &wanted.configs));
        wanted.is_none_or(|wanted| !wanted.asks || (has_certificate && is_same(wanted)))
    }

    fn found(&self, server_name: Option<&str>) -> Option<&Found> {
        let Some(name) = server_name else { return self.default.as_ref() };
        let lower;
        let name = match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            true => {
                lower = name.to_ascii_lowercase();
                &lower
            }
            false => name,
        };
        let name = name.strip_suffix('.').unwrap_or(name);
        let by_wildcard = || match name.split_once('.') {
            Some((label, parent)) if !label.is_empty() => self.wildcard.get(parent),
            _ => None,
        };
        self.exact.get(name).or_else(by_wildcard).or(self.default.as_ref())
    }
}

/// One entry's configurations. The keys of its session tickets are its own: a session of one entry cannot be resumed at
/// another, which may ask for other clients' certificates.
pub(crate) fn config(
    ssl: &ServerSsl,
    identity: Arc<Identity>,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    alpn: &[&[u8]],
    place: Place<'_>,
    problems: &mut Problems,
) -> Option<Arc<Configs>> {
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&versions(ssl.versions));
    let made = builder.and_then(|builder| {
        let verifier = verifier.unwrap_or_else(|| Arc::new(NoClientAuth));
        let mut config = builder.with_client_cert_verifier(verifier).with_cert_resolver(identity);
        // Keys change every 6 hours, those before are taken for as long again. Of sessions nothing else is stored:
        // a store would be shared by all workers, behind a lock.
        config.ticketer = Ticketer::new()?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = TICKETS;
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(Arc::new(Configs::new(config)))
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
