//! TLS towards a server that is no node of an upstream: of secrets, logs, authentication.

use crate::client;
use rustls::client::Resumption;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::sync::Arc;

/// Servers whose sessions are remembered.
const SESSIONS_MAX: usize = 64;

/// Who may have signed the certificate of a server.
#[derive(Debug, Clone, Copy)]
pub enum ServiceRoots<'a> {
    /// These certificates, in DER: those that the system trusts.
    Der(&'a [Vec<u8>]),
    /// These certificates, in PEM.
    Pem(&'a [u8]),
    /// Anyone: the certificate is not verified.
    Anyone,
}

/// What handshakes with such a server are made with. The server's name is that of its URL.
///
/// # Errors
/// Why the roots cannot be used, with what to do.
pub fn towards_service(roots: ServiceRoots<'_>) -> Result<Arc<ClientConfig>, String> {
    let mut store = RootCertStore::empty();
    match roots {
        ServiceRoots::Anyone => {}
        ServiceRoots::Der(certificates) => {
            // Some systems carry one that is no longer taken for valid DER; the others can still be used.
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

#[cfg(test)]
mod tests {
    use super::*;

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
