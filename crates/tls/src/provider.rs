//! The cryptography provider for all TLS of this program.

use crate::client;
use crate::identity::Identity;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, DnType, IsCa, KeyPair};
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::sync::{Arc, LazyLock};

/// One for the whole process; never rustls's default one, which another library could have set.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| Arc::new(aws_lc_rs::default_provider()));
    PROVIDER.clone()
}

// Self-signed certificates, which no client trusts: a placeholder until a certificate is issued, and the answer to an
// ACME server that checks by TLS whether a name is ours.

/// The ALPN protocol of an ACME server's check (RFC 8737 section 6.2).
pub const ACME_TLS_ALPN: &[u8] = b"acme-tls/1";

/// The placeholder that clients get while no certificate for these names exists.
pub(crate) fn stand_in(names: &[String]) -> Result<CertifiedKey, String> {
    self_signed(names, |params| {
        params.distinguished_name.push(DnType::CommonName, "Stillgate: no certificate yet");
    })
}

/// The answer to an ACME server that checks `name` by [`ACME_TLS_ALPN`] (RFC 8737 section 3). `digest`: SHA-256 of the
/// key authorization.
pub fn acme_challenge(name: &str, digest: &[u8; 32]) -> Result<Arc<ServerConfig>, String> {
    let key = self_signed(&[name.to_owned()], |params| {
        params.custom_extensions.push(CustomExtension::new_acme_identifier(digest));
    })?;
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13, &TLS12]);
    let builder = builder.map_err(|error| error.to_string())?.with_no_client_auth();
    // Not `with_single_cert`: it reads the certificate, and refuses a critical extension that it does not know.
    let mut config = builder.with_cert_resolver(Arc::new(Identity::single(key)));
    config.alpn_protocols = vec![ACME_TLS_ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

fn self_signed(names: &[String], change: impl FnOnce(&mut CertificateParams)) -> Result<CertifiedKey, String> {
    let failed = |error: rcgen::Error| format!("no certificate could be made: {error}");
    let mut params = CertificateParams::new(names).map_err(failed)?;
    params.distinguished_name = DistinguishedName::new();
    params.is_ca = IsCa::ExplicitNoCa;
    change(&mut params);
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = params.self_signed(&key).map_err(failed)?;
    let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let key = provider().key_provider.load_private_key(key).map_err(|error| error.to_string())?;
    Ok(CertifiedKey::new(vec![certificate.der().clone()], key))
}

/// A key for an ordered certificate, as PEM, and the request for these names that is signed with it (RFC 2986), in DER.
pub fn request(names: &[String]) -> Result<(String, Vec<u8>), String> {
    let failed = |error: rcgen::Error| format!("no request could be made: {error}");
    let mut params = CertificateParams::new(names).map_err(failed)?;
    params.distinguished_name = DistinguishedName::new();
    let key = KeyPair::generate().map_err(failed)?;
    let request = params.serialize_request(&key).map_err(failed)?;
    Ok((key.serialize_pem(), request.der().to_vec()))
}

// TLS towards a server that is not a node of an upstream: of secrets, logs, authentication.

/// Servers whose sessions are remembered.
const SESSIONS_MAX: usize = 64;

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
            // Some systems carry one that is no longer accepted as valid DER; the others can still be used.
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
    let mut config = ClientConfig::clone(&*client::config(roots, None, &[])?);
    config.resumption = Resumption::in_memory_sessions(SESSIONS_MAX);
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
