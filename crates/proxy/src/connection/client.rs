//! What is known of a client's connection, apart from the request being served.

use super::stream::Stream;
use crate::basics::clock::Timer;
use crate::sockets::listener::Listener;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use stillgate_route::SslVariable;
use stillgate_tls::rustls::{CipherSuite, ProtocolVersion, ServerConnection};
use stillgate_tls::{ClientCa, ClientCertificate, ServerTls, client_certificate};
use stillgate_wire::RequestHead;

/// One client connection.
pub(crate) struct ClientConnection {
    pub(crate) stream: Stream,
    pub(crate) timer: Timer,
    pub(crate) peer: SocketAddr,
    /// Address of the client: the peer, or the address that a trusted peer names in the current request.
    pub(crate) address: IpAddr,
    /// Port of the client, and whether a plugin has set its address.
    pub(crate) port: u16,
    pub(crate) is_named: bool,
    pub(crate) local: SocketAddr,
    /// What TLS has agreed on; `None`: we do not terminate TLS for it.
    pub(crate) tls: Option<Rc<TlsFacts>>,
    /// The client came over TLS, to us or to a balancer that says so.
    pub(crate) is_https: bool,
    /// The listener that accepted it.
    pub(crate) listener: Rc<Listener>,
    /// The header lines that describe this client to a node; the same for every request of an untrusted client.
    pub(crate) forwarded: Rc<[u8]>,
    /// The client has closed its sending side.
    pub(crate) eof: bool,
    /// A response is being sent whose end is marked only by the end of the connection: if it breaks off, the connection must be
    /// reset.
    pub(crate) ends_with_connection: bool,
    /// When the last request ended, or the connection began.
    pub(crate) quiet_since_ms: u64,
    /// No request has been served yet.
    pub(crate) is_new: bool,
}

impl ClientConnection {
    /// Makes a client whose connection facts are already known.
    pub(crate) fn with_facts(
        stream: Stream,
        peer: SocketAddr,
        local: SocketAddr,
        listener: Rc<Listener>,
        forwarded: Rc<[u8]>,
        tls: Option<Rc<TlsFacts>>,
        now_ms: u64,
    ) -> ClientConnection {
        ClientConnection {
            stream,
            timer: Timer::new(),
            peer,
            address: peer.ip().to_canonical(),
            port: peer.port(),
            is_named: false,
            local,
            is_https: tls.is_some(),
            tls,
            listener,
            forwarded,
            eof: false,
            ends_with_connection: false,
            quiet_since_ms: now_ms,
            is_new: true,
        }
    }

    /// The protocol version that the client speaks; `request` is what our engine got.
    pub(crate) fn protocol(&self, request: &RequestHead) -> &'static str {
        if self.stream.is_http2() { "HTTP/2.0" } else { request.version.as_str() }
    }

    /// `http` or `https`.
    pub(crate) fn scheme(&self) -> &'static str {
        scheme(self.is_https)
    }
}

/// `http` or `https`.
pub(crate) fn scheme(is_https: bool) -> &'static str {
    if is_https { "https" } else { "http" }
}

impl Drop for ClientConnection {
    /// Whatever ended the connection, a timeout, the worker's end or a bug: a truncated response must not look complete. A response
    /// that ends with its connection is reset; for any other the framing shows it, so the connection may be closed in an orderly
    /// way.
    fn drop(&mut self) {
        if self.ends_with_connection {
            self.stream.reset_when_closed();
        } else {
            self.stream.send_close_notify();
        }
    }
}

// What a TLS handshake with a client has agreed on, and which hosts the client may request.

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
    /// that of the name it connected with, accept the certificate that it has shown, or require none. One that has ended
    /// since the handshake counts as not shown.
    #[inline]
    pub(crate) fn may_ask_for(&self, tls: &ServerTls, host: &[u8], now_unix_ms: u64) -> bool {
        let verified_by = self.verified_by.as_deref().filter(|_| !self.has_expired(now_unix_ms));
        let allows = |name: &[u8]| tls.allows(name, verified_by);
        let came = self.server_name.as_deref().map(str::as_bytes).filter(|name| *name != host);
        allows(host) && came.is_none_or(allows)
    }

    /// When the client's certificate expires, in milliseconds since 1970; `None`: it has shown none.
    pub(crate) fn certificate_until_ms(&self) -> Option<u64> {
        let seconds = self.client.as_ref()?.not_after_seconds;
        Some(u64::try_from(seconds).unwrap_or(0).saturating_mul(1000))
    }

    /// Whether the CA that verified the client's certificate is still the one for its name.
    pub(crate) fn is_still_verified(&self, tls: Option<&ServerTls>) -> bool {
        let Some(shown) = &self.verified_by else { return true };
        tls.is_some_and(|tls| tls.verifies(self.server_name.as_deref(), shown))
    }

    /// Whether the client's certificate has ended.
    #[inline]
    pub(crate) fn has_expired(&self, now_unix_ms: u64) -> bool {
        self.client.as_ref().is_some_and(|client| (now_unix_ms / 1000) as i64 > client.not_after_seconds)
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
