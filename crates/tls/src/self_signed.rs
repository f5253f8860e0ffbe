//! Self-signed certificates, which no client trusts: a placeholder until a certificate is issued, and the answer to an
//! ACME server that checks by TLS whether a name is ours.

use crate::identity::Identity;
use crate::provider::provider;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, DnType, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::server::NoServerSessionStorage;
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use std::sync::Arc;

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
