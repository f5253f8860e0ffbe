//! TLS for clients: a `rustls::ServerConfig` for each entry of `ssls` and each offer of protocols, found by the name that a client
//! asks for.

use crate::client_auth::{ClientCa, ClientDemands};
use crate::entry::SslEntry;
use crate::identity::Identity;
use crate::problem::{ConfigLocation, Problems};
use crate::provider::provider;
use crate::server_names::ServerNames;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoClientAuth, NoServerSessionStorage};
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SupportedProtocolVersion};
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

    fn offering(&self, offer: Offer) -> &Arc<ServerConfig> {
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
    /// `entries`: no name is in two of them. A name that is also in `refused` belongs to the entry.
    pub(crate) fn new<'a>(entries: impl Iterator<Item = &'a Arc<SslEntry>>, refused: &[RefusedSsl]) -> ServerTls {
        let (mut names, mut any_asks) = (ServerNames::default(), !refused.is_empty());
        for of in refused {
            of.names.iter().for_each(|name| names.insert(name, None));
            if of.is_name_unread {
                names.set_unread(None);
            }
            if of.is_default {
                names.set_default(None);
            }
        }
        for entry in entries {
            let (SslUse::Server(ssl), Some(configs)) = (&entry.ssl.usage, &entry.server) else { continue };
            any_asks |= configs.asks();
            for name in &ssl.names {
                names.insert(name, Some(configs.clone()));
            }
            if ssl.is_default {
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
        Some(ServerChoice { config: configs.offering(offer), client_ca: configs.client_ca.as_ref() })
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
        // An entry that cannot be used may be one that requests certificates.
        let asks = |configs: &Option<Arc<Configs>>| configs.as_ref().is_none_or(|configs| configs.asks());
        match self.names.demanding(host, asks) {
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
        config.ticketer = Ticketer::new()?;
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
