//! PEM text to the certificates and keys that are in it.

use crate::problem::{ConfigLocation, Problems};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::io;
use std::path::Path;

/// The largest file of certificates, of a key or of an OCSP response. A system's roots are a quarter of a megabyte.
pub const FILE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Access to the files that a configuration names.
pub trait Files {
    /// The whole contents; if the file is larger than [`FILE_BYTES_MAX`], at least one byte more than that.
    fn read(&self, file: &Path) -> io::Result<Vec<u8>>;

    /// Whether every user of the system may read it.
    fn is_readable_by_all(&self, file: &Path) -> bool;

    /// The certificates that the system trusts, in DER.
    fn system_roots(&self) -> io::Result<Vec<Vec<u8>>>;
}

/// At least one certificate.
pub(crate) fn certificates(
    text: &[u8],
    place: ConfigLocation<'_>,
    problems: &mut Problems,
) -> Option<Vec<CertificateDer<'static>>> {
    match CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>() {
        Ok(certificates) if certificates.is_empty() => {
            let hint = match PrivateKeyDer::from_pem_slice(text) {
                Ok(_) => "there is a private key; are cert and key the wrong way round?",
                Err(_) if looks_like_der(text) => "it looks like DER; convert it: openssl x509 -inform der -in FILE",
                Err(_) => "it must be PEM: -----BEGIN CERTIFICATE-----",
            };
            problems.error(place, "no certificate is in it", hint);
            None
        }
        Ok(certificates) => Some(certificates),
        Err(error) => {
            let what = match error {
                pem::Error::MissingSectionEnd { .. } => "not valid PEM: a line with END is missing",
                pem::Error::Base64Decode(_) => "not valid PEM: it is not Base64",
                _ => "not valid PEM",
            };
            problems.error(place, what, "was it cut off, or changed by an editor?");
            None
        }
    }
}

/// The private key.
pub(crate) fn private_key(
    text: &[u8],
    place: ConfigLocation<'_>,
    problems: &mut Problems,
) -> Option<PrivateKeyDer<'static>> {
    if is_encrypted(text) {
        let hint = "decrypt it (openssl pkey -in FILE -out FILE) and let only the gateway read it";
        problems.error(place, "the key is encrypted, and nobody can be asked for its password", hint);
        return None;
    }
    match PrivateKeyDer::from_pem_slice(text) {
        Ok(key) => Some(key),
        Err(pem::Error::NoItemsFound) => {
            let hint = match CertificateDer::from_pem_slice(text) {
                Ok(_) => "there is a certificate; are cert and key the wrong way round?",
                Err(_) => "it must be PEM: -----BEGIN PRIVATE KEY-----",
            };
            problems.error(place, "no private key is in it", hint);
            None
        }
        // The error's text is left out: it might show the unreadable key.
        Err(_) => {
            problems.error(place, "not valid PEM", "was it cut off, or changed by an editor?");
            None
        }
    }
}

/// PKCS #8 (RFC 5958) or the older form of OpenSSL (RFC 1421).
fn is_encrypted(text: &[u8]) -> bool {
    let has = |needle: &[u8]| text.windows(needle.len()).any(|window| window == needle);
    has(b"-----BEGIN ENCRYPTED PRIVATE KEY-----") || has(b"Proc-Type: 4,ENCRYPTED")
}

/// Whether it begins as a `SEQUENCE` of some length does.
fn looks_like_der(text: &[u8]) -> bool {
    matches!(text, [0x30, 0x81..=0x84, ..])
}
