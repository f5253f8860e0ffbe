//! Checks that a chain of certificates is complete: each certificate signed by the next.
//!
//! Clients with all intermediates in their cache do not notice a broken chain; the others fail. So it is refused before
//! any client gets it.

use crate::handshake_failure::chain_failure;
use crate::problem::{ConfigLocation, Problems};
use crate::provider::provider;
use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, Error, KeyUsage, anchor_from_trusted_cert};
use x509_parser::certificate::X509Certificate;

/// Certificates of one chain.
pub(crate) const CERTIFICATES_MAX: usize = 10;

/// The side that receives a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChainReceiver {
    ToClients,
    ToUpstreams,
}

/// Reports the first link that does not hold. `parsed`: the same certificates, all valid by `now`.
pub(crate) fn check(
    chain: &[CertificateDer<'_>],
    parsed: &[X509Certificate<'_>],
    shown: ChainReceiver,
    now: UnixTime,
    place: ConfigLocation<'_>,
    problems: &mut Problems,
) {
    const ORDER: &str = "put the certificate first, behind it the one that signed it, and so on";
    for (index, pair) in parsed.windows(2).enumerate() {
        let (signed, signer) = (&pair[0], &pair[1]);
        if signed.issuer().as_raw() != signer.subject().as_raw() {
            let message = format!(
                "wrong chain: certificate {} was issued by \"{}\", but the next one is of \"{}\"",
                index + 1,
                signed.issuer(),
                signer.subject()
            );
            return problems.error(place, message, ORDER);
        }
    }
    for (signer, certificate) in parsed.iter().enumerate().skip(1) {
        let Err(error) = verify(chain, signer, shown, now) else { continue };
        match error {
            // Another implementation may be able to check what we cannot.
            Error::UnsupportedSignatureAlgorithmContext(_)
            | Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => {
                let message = format!("whether certificate {} signed the one before cannot be checked", signer + 1);
                return problems.warning(place, message, "its signature is of an old or rare kind; ask for another");
            }
            Error::InvalidSignatureForPublicKey | Error::UnknownIssuer => {
                let message = format!(
                    "wrong chain: certificate {} (\"{}\") did not sign the one before, though it has its issuer's name",
                    signer + 1,
                    certificate.subject()
                );
                return problems.error(place, message, "take the chain that came with the certificate");
            }
            other => {
                let message = format!("wrong chain: {}", chain_failure_reason(other, signer + 1, shown));
                return problems.error(place, message, "take the chain that came with the certificate");
            }
        }
    }
}

/// Why a chain does not hold although each certificate was signed by the next; `number` is the last one checked.
fn chain_failure_reason(error: Error, number: usize, shown: ChainReceiver) -> String {
    match error {
        Error::EndEntityUsedAsCa => "a certificate that is not an issuer's has signed another".to_owned(),
        Error::CaUsedAsEndEntity => "the first certificate is an issuer's".to_owned(),
        Error::PathLenConstraintViolated => "an issuer has more issuers below it than it may have".to_owned(),
        Error::NameConstraintViolation => "an issuer may not issue certificates for these names".to_owned(),
        Error::RequiredEkuNotFoundContext(_) => {
            let audience = match shown {
                ChainReceiver::ToClients => "servers",
                ChainReceiver::ToUpstreams => "clients",
            };
            format!("a certificate is not for {audience} (extended key usage)")
        }
        other => format!("it does not lead to certificate {number}: {}", chain_failure(&other)),
    }
}

/// Whether the first certificate leads to the one at `anchor`, over those between.
fn verify(chain: &[CertificateDer<'_>], anchor: usize, shown: ChainReceiver, now: UnixTime) -> Result<(), Error> {
    let provider = provider();
    let leaf = EndEntityCert::try_from(&chain[0])?;
    let anchors = [anchor_from_trusted_cert(&chain[anchor])?];
    let usage = match shown {
        ChainReceiver::ToClients => KeyUsage::server_auth(),
        ChainReceiver::ToUpstreams => KeyUsage::client_auth(),
    };
    let algorithms = provider.signature_verification_algorithms.all;
    leaf.verify_for_usage(algorithms, &anchors, &chain[1..anchor], now, usage, None, None).map(|_| ())
}
