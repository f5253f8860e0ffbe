//! What a TLS handshake with a client has agreed on, and which hosts the client may request.

use std::sync::Arc;
use stillgate_route::SslVariable;
use stillgate_tls::rustls::{CipherSuite, ProtocolVersion, ServerConnection};
use stillgate_tls::{ClientCa, ClientCertificate, ServerTls, client_certificate};

/// What TLS has agreed on, for variables.
#[derive(Debug)]
pub(crate) struct TlsFacts {
    /// In lower case, without a trailing dot.
    pub(crate) server_name: Option<Box<str>>,
    protocol: &'static str,
    cipher: &'static str,
    /// The CA that the client's certificate was verified against; `None`: the client has shown none.
    verified_by: Option<Arc<ClientCa>>,
    client: Option<ClientCertificate>,
}

impl TlsFacts {
    /// Facts of a completed handshake; `client_ca`: what a certificate of the client was verified against.
    pub(crate) fn of(session: &ServerConnection, client_ca: Option<Arc<ClientCa>>) -> TlsFacts {
        TlsFacts {
            server_name: session.server_name().map(lower_name),
            protocol: match session.protocol_version() {
                Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
                _ => "TLSv1.3",
            },
            cipher: session.negotiated_cipher_suite().map_or("", |suite| openssl_name(suite.suite())),
            verified_by: client_ca.filter(|_| session.peer_certificates().is_some()),
            // A certificate that cannot be described was verified nevertheless.
            client: session.peer_certificates().and_then(client_certificate),
        }
    }

    /// Whether the client may request `host` (as [`canonical_host`](stillgate_route::canonical_host) has it): its own entry, and
    /// that of the name it connected with, accept the certificate that it has shown, or require none.
    #[inline]
    pub(crate) fn may_ask_for(&self, tls: &ServerTls, host: &[u8]) -> bool {
        let allows = |name: &[u8]| tls.allows(name, self.verified_by.as_deref());
        let came = self.server_name.as_deref().map(str::as_bytes).filter(|name| *name != host);
        allows(host) && came.is_none_or(allows)
    }

    /// The value of a variable, if there is one.
    pub(crate) fn value(&self, variable: SslVariable) -> Option<&str> {
        let client = self.client.as_ref();
        match variable {
            SslVariable::Protocol => Some(self.protocol),
            SslVariable::Cipher => Some(self.cipher),
            SslVariable::ClientVerify => Some(if self.verified_by.is_some() { "SUCCESS" } else { "NONE" }),
            SslVariable::ClientSubject => client.map(|client| &*client.subject),
            SslVariable::ClientSerial => client.map(|client| &*client.serial),
            SslVariable::ClientFingerprint => client.map(|client| &*client.fingerprint),
        }
    }
}

/// Normalizes a server name for comparison.
pub(crate) fn lower_name(name: &str) -> Box<str> {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase().into()
}

/// The OpenSSL name of a cipher suite, which nginx's logs use as well.
fn openssl_name(suite: CipherSuite) -> &'static str {
    match suite {
        CipherSuite::TLS13_AES_256_GCM_SHA384 => "TLS_AES_256_GCM_SHA384",
        CipherSuite::TLS13_AES_128_GCM_SHA256 => "TLS_AES_128_GCM_SHA256",
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => "TLS_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 => "ECDHE-ECDSA-AES256-GCM-SHA384",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 => "ECDHE-ECDSA-AES128-GCM-SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 => "ECDHE-ECDSA-CHACHA20-POLY1305",
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => "ECDHE-RSA-AES256-GCM-SHA384",
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => "ECDHE-RSA-AES128-GCM-SHA256",
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => "ECDHE-RSA-CHACHA20-POLY1305",
        other => other.as_str().unwrap_or(""),
    }
}
