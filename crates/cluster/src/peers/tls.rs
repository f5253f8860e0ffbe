//! The identity of peers: a certificate of the peers' own roots with the node's name in it, on both
//! sides.

use std::fmt;
use std::sync::Arc;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

const HTTP2: &[u8] = b"h2";

/// This node's certificate, and the roots of all peers.
#[derive(Debug, Clone)]
pub struct PeerTls {
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
}

/// Why it cannot be used.
#[derive(Debug)]
pub enum PeerTlsError {
    /// The certificate, its key or the roots are unusable.
    Unusable(Box<dyn std::error::Error + Send + Sync>),
    /// The certificate does not carry the node's name.
    OtherName {
        /// The node's name.
        node: Box<str>,
    },
}

impl PeerTls {
    /// Checks that the certificate is this node's.
    pub fn new(
        node: &str,
        certificates: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        roots: RootCertStore,
    ) -> Result<PeerTls, PeerTlsError> {
        let unusable = |error: Box<dyn std::error::Error + Send + Sync>| PeerTlsError::Unusable(error);
        if !certificates.first().is_some_and(|certificate| carries(certificate, node)) {
            return Err(PeerTlsError::OtherName { node: node.into() });
        }
        let roots = Arc::new(roots);
        let verifier = WebPkiClientVerifier::builder(roots.clone()).build().map_err(|error| unusable(error.into()))?;
        let mut server = ServerConfig::builder_with_protocol_versions(&[&TLS13])
            .with_client_cert_verifier(verifier)
            .with_single_cert(certificates.clone(), key.clone_key())
            .map_err(|error| unusable(error.into()))?;
        server.alpn_protocols = vec![HTTP2.to_vec()];
        let mut client = ClientConfig::builder_with_protocol_versions(&[&TLS13])
            .with_root_certificates(roots)
            .with_client_auth_cert(certificates, key)
            .map_err(|error| unusable(error.into()))?;
        client.alpn_protocols = vec![HTTP2.to_vec()];
        Ok(PeerTls { client: Arc::new(client), server: Arc::new(server) })
    }
}

/// Whether a certificate carries a node's name.
pub(super) fn carries(certificate: &CertificateDer<'_>, node: &str) -> bool {
    let Ok(name) = ServerName::try_from(node) else { return false };
    webpki::EndEntityCert::try_from(certificate).is_ok_and(|it| it.verify_is_valid_for_subject_name(&name).is_ok())
}

impl fmt::Display for PeerTlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerTlsError::Unusable(error) => write!(f, "{error}"),
            PeerTlsError::OtherName { node } => {
                write!(f, "the certificate does not carry the node's name; add the DNS name {node:?} to it")
            }
        }
    }
}

impl std::error::Error for PeerTlsError {}
