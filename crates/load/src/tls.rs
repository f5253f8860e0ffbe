//! TLS towards a target: the certificates that it trusts, and the name to check.
//!
//! Made before the run, so that an unreadable file does not cause a failure in the middle of one. Connections share it,
//! including the tickets for resumption, like the connections of one client.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, NamedGroup, RootCertStore, SignatureScheme};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shared by connections over TLS.
#[derive(Debug, Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// The newest ticket of one client, for programs with many clients that must not use each other's: rustls keeps eight
/// per server name.
///
/// A ticket is removed when it is used (RFC 8446 appendix C.4): a handshake that fails leaves none, and the next one is
/// full.
#[derive(Debug, Clone, Default)]
pub struct Tickets(Arc<Mutex<TicketStore>>);

#[derive(Debug, Default)]
struct TicketStore {
    tls13: Option<Box<Tls13ClientSessionValue>>,
    tls12: Option<Box<Tls12ClientSessionValue>>,
    /// The group of keys that the server accepted last: guessing it right saves a round trip.
    group: Option<NamedGroup>,
}

/// The certificates that are accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// Certificates of the authorities that the system trusts.
    System,
    /// Certificates of the authorities in this file, in PEM.
    Authorities(PathBuf),
    /// Any certificate, for any name.
    Anyone,
}

/// Why no connection over TLS can be made. `Display` has a suggestion.
#[derive(Debug)]
#[non_exhaustive]
pub enum TlsError {
    /// A name that certificates cannot have.
    Name {
        /// The text as given.
        name: String,
    },
    /// The system names no authority that it trusts.
    NoAuthorities {
        /// The reason, if known.
        reason: String,
    },
    /// A file of authorities that cannot be used.
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        reason: String,
    },
    /// The library refuses its own defaults.
    Unsupported(rustls::Error),
}

impl Tls {
    /// TLS for a server of this name (or address), over HTTP/2 or HTTP/1.
    pub fn new(trust: &Trust, name: &str, is_http2: bool) -> Result<Tls, TlsError> {
        let server = ServerName::try_from(name.to_owned()).map_err(|_| TlsError::Name { name: name.to_owned() })?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Unsupported)?;
        let mut config = match trust {
            Trust::System => builder.with_root_certificates(system()?),
            Trust::Authorities(path) => builder.with_root_certificates(authorities(path)?),
            Trust::Anyone => builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider))),
        }
        .with_no_client_auth();
        config.alpn_protocols = vec![if is_http2 { ALPN_HTTP2 } else { b"http/1.1" }.to_vec()];
        Ok(Tls { config: Arc::new(config), name: server })
    }

    /// TLS 1.3 that offers AES-256-GCM and X25519 and nothing else, trusts anyone and never resumes: servers and clients
    /// have preferences of their own, and otherwise one server would be compared with the other's cipher.
    pub fn fixed(name: &str, is_http2: bool) -> Result<Tls, TlsError> {
        let Tls { config, name } = Tls::new(&Trust::Anyone, name, is_http2)?;
        let provider = CryptoProvider {
            cipher_suites: vec![aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384],
            kx_groups: vec![aws_lc_rs::kx_group::X25519],
            ..aws_lc_rs::default_provider()
        };
        let provider = Arc::new(provider);
        let mut fixed = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(TlsError::Unsupported)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
            .with_no_client_auth();
        fixed.alpn_protocols.clone_from(&config.alpn_protocols);
        fixed.resumption = Resumption::disabled();
        Ok(Tls { config: Arc::new(fixed), name })
    }

    /// These settings for one of several clients, which resumes by its own tickets.
    pub fn of(&self, tickets: &Tickets) -> Tls {
        let mut config = ClientConfig::clone(&self.config);
        config.resumption = Resumption::store(Arc::new(tickets.clone()));
        Tls { config: Arc::new(config), name: self.name.clone() }
    }

    /// A connection's TLS session, before its handshake.
    pub(crate) fn connection(&self) -> Result<ClientConnection, rustls::Error> {
        ClientConnection::new(self.config.clone(), self.name.clone())
    }
}

/// HTTP/2 in the negotiation of protocols (RFC 9113 section 3.2).
pub(crate) const ALPN_HTTP2: &[u8] = b"h2";

fn system() -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // A certificate that the library cannot read is not trusted.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let reason = found.errors.first().map_or("none was found".to_owned(), ToString::to_string);
        return Err(TlsError::NoAuthorities { reason });
    }
    Ok(roots)
}

fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let wrong = |reason: String| TlsError::File { path: path.to_owned(), reason };
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| wrong(pem_error(error)))?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        let certificate = certificate.map_err(|error| wrong(pem_error(error)))?;
        roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(wrong("it contains no certificate".to_owned()));
    }
    Ok(roots)
}

/// The system's error is enough if a file cannot be read.
fn pem_error(error: rustls::pki_types::pem::Error) -> String {
    match error {
        rustls::pki_types::pem::Error::Io(error) => error.to_string(),
        other => other.to_string(),
    }
}

impl Tickets {
    /// One client has one thread: rustls requires the lock, which is never contended. If poisoned, it is still a cache.
    fn lock(&self) -> MutexGuard<'_, TicketStore> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.lock().group = Some(group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.lock().group
    }

    fn set_tls12_session(&self, _: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.lock().tls12 = Some(Box::new(value));
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.lock().tls12.as_deref().cloned()
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.lock().tls12 = None;
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.lock().tls13 = Some(Box::new(value));
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.lock().tls13.take().map(|value| *value)
    }
}

/// Accepts any certificate; the signature of the handshake is still checked.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TlsError::Name { name } => write!(f, "{name:?} is not a server name; write a DNS name or an address"),
            TlsError::NoAuthorities { reason } => write!(
                f,
                "found no trusted certificate authorities on this system ({reason}); install ca-certificates, or give a \
                 file of authorities"
            ),
            TlsError::File { path, reason } => {
                write!(f, "{}: {reason}; give a PEM file with CA certificates", path.display())
            }
            TlsError::Unsupported(error) => write!(f, "TLS cannot be set up: {error}"),
        }
    }
}

impl std::error::Error for TlsError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_client_offers_one_cipher_and_one_group() {
        for (is_http2, protocol) in [(false, &b"http/1.1"[..]), (true, ALPN_HTTP2)] {
            let Tls { config, .. } = Tls::fixed("localhost", is_http2).unwrap();
            let provider = config.crypto_provider();
            let suites: Vec<_> = provider.cipher_suites.iter().map(rustls::SupportedCipherSuite::suite).collect();
            assert_eq!(suites, [rustls::CipherSuite::TLS13_AES_256_GCM_SHA384]);
            let groups: Vec<_> = provider.kx_groups.iter().map(|group| group.name()).collect();
            assert_eq!(groups, [NamedGroup::X25519]);
            assert_eq!(config.alpn_protocols, [protocol]);
        }
    }

    #[test]
    fn what_cannot_be_trusted_is_named() {
        let check = |trust: Trust, name: &str, words: &str| {
            let error = Tls::new(&trust, name, false).map(drop).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        check(Trust::Authorities(file.clone()), "a.example", "No such file");
        std::fs::write(&file, "no PEM").unwrap();
        check(Trust::Authorities(file.clone()), "a.example", "it contains no certificate");
        std::fs::write(&file, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        check(Trust::Authorities(file), "a.example", "ca.pem: ");
        check(Trust::Anyone, "a b", "\"a b\" is not a server name");
        assert!(Tls::new(&Trust::Anyone, "::1", true).is_ok());
    }
}
