//! TLS towards upstreams and other servers: the certificate that we present, and how the server's is verified.

use crate::identity::Identity;
use crate::peer_chain::server_verifier;
use crate::provider::provider;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, IpAddr, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::net;
use std::sync::Arc;
use stillgate_config::UpstreamTls;

/// Servers whose sessions a worker remembers, of one [`ClientTls`].
const SESSIONS_MAX: usize = 256;

/// TLS towards the nodes of one upstream.
#[derive(Debug)]
pub struct ClientTls {
    /// The keys that it was made from.
    pub(crate) tls: UpstreamTls,
    /// Shared by all upstreams with the same files and settings.
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) sni: Option<ServerName<'static>>,
}

impl ClientTls {
    /// A configuration that remembers sessions by itself; each worker has its own, so that none waits for another.
    pub fn for_worker(&self) -> Arc<ClientConfig> {
        let mut config = ClientConfig::clone(&self.config);
        config.resumption = Resumption::in_memory_sessions(SESSIONS_MAX);
        Arc::new(config)
    }

    /// The name that a node is asked for and must have a certificate of: the upstream's `tls.sni`, else the host that the
    /// node will see, else the node's own. Both are as a `Host` field has them: with or without a port, `""` for none.
    pub fn server_name(&self, host_seen: &str, node: &str) -> ServerName<'static> {
        if let Some(sni) = &self.sni {
            return sni.clone();
        }
        // A name that rustls refuses cannot be in a certificate either, and neither is this address.
        let nobody = || ServerName::IpAddress(IpAddr::from(net::Ipv4Addr::UNSPECIFIED));
        name_of(host_seen).or_else(|| name_of(node)).unwrap_or_else(nobody)
    }

    /// Whether the upstream says itself which name that is (`tls.sni`).
    pub fn has_own_name(&self) -> bool {
        self.sni.is_some()
    }

    /// Whether a name is the one that [`ClientTls::server_name`] would give. If so, nothing is allocated.
    pub fn is_server_name(&self, name: &ServerName<'static>, host_seen: &str, node: &str) -> bool {
        if let Some(sni) = &self.sni {
            return sni == name;
        }
        let is_host = |host: &str| match name {
            ServerName::DnsName(name) => name.as_ref().eq_ignore_ascii_case(host),
            ServerName::IpAddress(address) => {
                host.parse::<net::IpAddr>().is_ok_and(|ip| ip == net::IpAddr::from(*address))
            }
            _ => false,
        };
        host_of(host_seen).is_some_and(is_host) || *name == self.server_name(host_seen, node)
    }
}

/// The host of an authority. `None` if it has no host that could be in a certificate.
pub(crate) fn name_of(authority: &str) -> Option<ServerName<'static>> {
    ServerName::try_from(host_of(authority)?.to_ascii_lowercase()).ok()
}

/// The host part of an authority, without port and brackets.
fn host_of(authority: &str) -> Option<&str> {
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        None => match authority.split_once(':') {
            // More than one colon: an address without brackets.
            Some((host, port)) if !port.contains(':') => host,
            _ => authority,
        },
    };
    Some(host.strip_suffix('.').unwrap_or(host))
}

/// `roots`: the certificates that may have signed a node's; `None` for any.
pub(crate) fn config(
    roots: Option<Arc<RootCertStore>>,
    identity: Option<Arc<Identity>>,
    alpn: &[&[u8]],
) -> Result<Arc<ClientConfig>, String> {
    let provider = provider();
    let verifier: Arc<dyn ServerCertVerifier> = match roots {
        Some(roots) => server_verifier(roots).map_err(|error| error.to_string())?,
        None => Arc::new(AnyCertificate { provider: provider.clone() }),
    };
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    // "Dangerous" is what `verify: false` means; the other verifier is rustls's own, behind bounds.
    let builder = builder.map_err(|error| error.to_string())?.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = match identity {
        Some(identity) => builder.with_client_cert_resolver(identity),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    // Each worker has its own store, see `for_worker`.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Takes any certificate, as long as the node has its key: `verify: false`.
#[derive(Debug)]
struct AnyCertificate {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _others: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

// TLS towards a server that is not a node of an upstream: of secrets, logs, authentication.

/// Servers whose sessions are remembered.
const SERVICE_SESSIONS_MAX: usize = 64;

/// The roots that may have signed the certificate of a server.
#[derive(Debug, Clone, Copy)]
pub enum ServiceRoots<'a> {
    /// These certificates, in DER: those that the system trusts.
    Der(&'a [Vec<u8>]),
    /// These certificates, in PEM.
    Pem(&'a [u8]),
    /// Anyone: the certificate is not verified.
    Anyone,
}

/// The TLS configuration for connections to such a server. The server's name is that of its URL.
///
/// # Errors
/// Why the roots cannot be used, with a suggestion.
pub fn towards_service(roots: ServiceRoots<'_>) -> Result<Arc<ClientConfig>, String> {
    let mut store = RootCertStore::empty();
    match roots {
        ServiceRoots::Anyone => {}
        ServiceRoots::Der(certificates) => {
            // Some systems include a certificate that is not valid DER any more; the others can still be used.
            store.add_parsable_certificates(certificates.iter().map(|bytes| CertificateDer::from(&**bytes)));
            if store.is_empty() {
                return Err("the system trusts no certificates; install ca-certificates".to_owned());
            }
        }
        ServiceRoots::Pem(text) => {
            for certificate in CertificateDer::pem_slice_iter(text) {
                let added = certificate.ok().and_then(|certificate| store.add(certificate).ok());
                added.ok_or("a certificate of the roots cannot be read; write them as PEM")?;
            }
            if store.is_empty() {
                return Err("the roots hold no certificate; write them as PEM".to_owned());
            }
        }
    }
    let roots = (!matches!(roots, ServiceRoots::Anyone)).then(|| Arc::new(store));
    let mut config = ClientConfig::clone(&*config(roots, None, &[])?);
    config.resumption = Resumption::in_memory_sessions(SERVICE_SESSIONS_MAX);
    Ok(Arc::new(config))
}

/// The configuration for a server that requests a certificate from us. `pair`: PEM of it with its chain, and of its
/// key.
///
/// # Errors
/// Why the roots or the pair cannot be used, with a suggestion. The text of the key is never repeated.
pub fn towards_service_as(roots: ServiceRoots<'_>, pair: (&[u8], &[u8])) -> Result<Arc<ClientConfig>, String> {
    const CERT: &str = "the client certificate cannot be read; write it as PEM, with those that lead to its root";
    const KEY: &str = "the client certificate's key cannot be read; write it as PEM, not encrypted";
    let chain = CertificateDer::pem_slice_iter(pair.0).collect::<Result<Vec<_>, _>>().map_err(|_| CERT)?;
    if chain.is_empty() {
        return Err(CERT.to_owned());
    }
    let key = PrivateKeyDer::from_pem_slice(pair.1).map_err(|_| KEY)?;
    let certified = CertifiedKey::from_der(chain, key, &provider()).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => "the key does not belong to the client certificate",
        _ => KEY,
    })?;
    let mut config = ClientConfig::clone(&*towards_service(roots)?);
    config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(certified));
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_recognised_as_it_is_given() {
        let hosts = [
            ("a.test", "a.test:1"),
            ("A.Test:8443", "b.test"),
            ("b.test.", "b.test"),
            ("b.test:80", "10.0.0.1"),
            ("10.0.0.1", "a.test"),
            ("10.0.0.1:81", "a.test"),
            ("[::1]:443", "a.test"),
            ("[0:0::1]", "a.test"),
            ("", "a.test"),
            ("a_b..c", "a.test"),
            ("a_b..c", "10.0.0.2:1"),
            ("", ""),
            ("1.2.3", "[::2"),
        ];
        for sni in [None, Some("sni.test"), Some("10.0.0.1")] {
            let sni = sni.map(|sni| ServerName::try_from(sni.to_owned()).unwrap());
            let tls = UpstreamTls { client: None, verify: true, ca: None, sni: None };
            let tls = ClientTls { tls, config: config(None, None, &[]).unwrap(), sni };
            for (host_seen, node) in hosts {
                for (other, other_node) in hosts {
                    let name = tls.server_name(other, other_node);
                    let is_same = name == tls.server_name(host_seen, node);
                    assert_eq!(tls.is_server_name(&name, host_seen, node), is_same, "{name:?} {host_seen:?} {node:?}");
                }
            }
        }
    }

    #[test]
    fn a_pair_that_cannot_be_used_is_refused() {
        let made = || {
            let key = rcgen::KeyPair::generate().unwrap();
            let certificate = rcgen::CertificateParams::new(vec!["a.test".to_owned()]).unwrap().self_signed(&key);
            (certificate.unwrap().pem(), key.serialize_pem())
        };
        let ((cert, key), (_, other)) = (made(), made());
        let check = |cert: &str, key: &str, expected: Result<(), &str>| {
            let config = towards_service_as(ServiceRoots::Anyone, (cert.as_bytes(), key.as_bytes()));
            match expected {
                Ok(()) => assert!(config.unwrap().client_auth_cert_resolver.has_certs()),
                Err(expected) => assert!(config.unwrap_err().contains(expected)),
            }
        };
        check(&cert, &key, Ok(()));
        check("", &key, Err("certificate cannot be read"));
        check(&cert, "", Err("key cannot be read"));
        check(&cert, &cert, Err("key cannot be read"));
        check(&cert, &other, Err("does not belong"));
    }

    #[test]
    fn roots_that_cannot_be_used_are_refused() {
        let check = |roots, expected: &str| {
            let error = towards_service(roots).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        check(ServiceRoots::Der(&[]), "install ca-certificates");
        let unreadable = [b"no certificate".to_vec()];
        check(ServiceRoots::Der(&unreadable), "install ca-certificates");
        check(ServiceRoots::Pem(b""), "no certificate");
        let broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        check(ServiceRoots::Pem(broken), "cannot be read");
        assert!(towards_service(ServiceRoots::Anyone).is_ok());
    }
}
