//! Verification of clients' certificates.

use crate::digest::{Digest, Digester};
use crate::pem::certificates;
use crate::problem::{ConfigLocation, Problems};
use crate::provider::provider;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use std::collections::BTreeSet;
use std::sync::Arc;
use webpki::{EndEntityCert, KeyUsage};

/// The certificates of `text` as roots; `None` if they cannot be used, which has been reported.
pub(crate) fn roots(text: &[u8], place: ConfigLocation<'_>, problems: &mut Problems) -> Option<Arc<RootCertStore>> {
    let mut roots = RootCertStore::empty();
    for (index, certificate) in certificates(text, place, problems)?.into_iter().enumerate() {
        // A root only has to be readable.
        if roots.add(certificate).is_err() {
            let message = format!("certificate {} cannot be read", index + 1);
            problems.error(place, message, "keep certificates of issuers only");
            return None;
        }
    }
    Some(Arc::new(roots))
}

/// The demands of an entry on its clients.
pub(crate) struct ClientDemands {
    pub(crate) verifier: Arc<dyn ClientCertVerifier>,
    pub(crate) ca: Arc<ClientCa>,
}

/// Digest of the roots and the depth that clients' certificates are verified against: two are equal if they accept the
/// same certificates, whatever the names of their entries.
#[derive(Debug, PartialEq, Eq)]
pub struct ClientCa(Digest);

impl ClientCa {
    /// Verification uses the subject, key and constraints of a root. Neither the order of roots nor repetitions matter.
    fn new(roots: &RootCertStore, depth: u8) -> ClientCa {
        let parts = |root: &TrustAnchor<'_>| {
            let constraints = root.name_constraints.as_ref().map(|constraints| constraints.to_vec());
            (root.subject.to_vec(), root.subject_public_key_info.to_vec(), constraints)
        };
        let roots: BTreeSet<_> = roots.roots.iter().map(parts).collect();
        let mut digest = Digester::new();
        digest.add(&[depth]);
        for (subject, key, constraints) in roots {
            digest.add(&subject);
            digest.add(&key);
            // Present constraints are never empty.
            digest.add(&constraints.unwrap_or_default());
        }
        ClientCa(digest.finish())
    }
}

/// Requests a certificate that leads to one of those in `text` over at most `depth` others. `None` if it cannot be
/// requested, which has been reported.
pub(crate) fn client_demands(
    text: &[u8],
    depth: u8,
    place: ConfigLocation<'_>,
    problems: &mut Problems,
) -> Option<ClientDemands> {
    let roots = roots(text, place, problems)?;
    match WebPkiClientVerifier::builder_with_provider(roots.clone(), provider()).build() {
        Ok(verifier) => {
            let ca = Arc::new(ClientCa::new(&roots, depth));
            Some(ClientDemands { verifier: Arc::new(WithDepth { verifier, roots, depth: depth.into() }), ca })
        }
        Err(error) => {
            problems.error(place, format!("cannot be used: {error}"), "name the issuers of the clients' certificates");
            None
        }
    }
}

/// Verifies as rustls does, with a bound on the chain's length as in OpenSSL.
#[derive(Debug)]
struct WithDepth {
    verifier: Arc<dyn ClientCertVerifier>,
    roots: Arc<RootCertStore>,
    depth: usize,
}

impl ClientCertVerifier for WithDepth {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.verifier.verify_client_cert(certificate, others, now)?;
        // A chain is built from the certificates that the client sent.
        if others.len() <= self.depth {
            return Ok(verified);
        }
        let too_deep = |_| Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let certificate = EndEntityCert::try_from(certificate).map_err(too_deep)?;
        let algorithms = provider().signature_verification_algorithms.all;
        let within_depth =
            |path: &webpki::VerifiedPath<'_>| match path.intermediate_certificates().count() <= self.depth {
                true => Ok(()),
                false => Err(webpki::Error::MaximumPathDepthExceeded),
            };
        let (roots, usage) = (&self.roots.roots, KeyUsage::client_auth());
        certificate
            .verify_for_usage(algorithms, roots, others, now, usage, None, Some(&within_depth))
            .map_err(too_deep)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}
