//! The cryptography provider for all TLS of this program.

use rcgen::{CertificateParams, DistinguishedName, DnType, IsCa, KeyPair};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::sign::CertifiedKey;
use std::sync::{Arc, LazyLock};

/// One for the whole process; never rustls's default one, which another library could have set.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| Arc::new(aws_lc_rs::default_provider()));
    PROVIDER.clone()
}

// Self-signed certificates, which no client trusts: a placeholder until a certificate is issued, and the answer to an
// ACME server that checks by TLS whether a name is ours.

/// The placeholder that clients get while no certificate for these names exists.
pub(crate) fn stand_in(names: &[String]) -> Result<CertifiedKey, String> {
    self_signed(names, |params| {
        params.distinguished_name.push(DnType::CommonName, "Stillgate: no certificate yet");
    })
}

pub(crate) fn self_signed(
    names: &[String],
    change: impl FnOnce(&mut CertificateParams),
) -> Result<CertifiedKey, String> {
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
