//! Verification of the certificates that peers present, with bounds on the chain that they send.
//!
//! webpki looks for a path from the peer's certificate to a root by trying every certificate that the peer sent, at every
//! step, and reads each one again. Its own bound is 200,000 steps. Before that bound is reached, a chain of some hundred
//! certificates takes seconds of the thread that does the handshake, and its sender needs no key that anybody trusts. So
//! a chain is counted first, and refused if it is longer than chains are.
//!
//! All verifiers of this program are made here; `xtask/src/arrows.rs` refuses them anywhere else.

use crate::provider::provider;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore, SignatureScheme,
};
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use webpki::{EndEntityCert, KeyUsage};

/// Intermediates on a path to a root. webpki looks for no longer path.
const INTERMEDIATES_MAX: u8 = 6;

/// All certificates after the peer's own. It is not read again at each step, and may have many names. Six with keys of
/// 4,096 bits have 12 KiB; three with keys and signatures of ML-DSA-87 have 24 KiB.
const OTHERS_BYTES_MAX: usize = 32 * 1024;

/// Certificates whose subject one before has, too. Each of them doubles the paths, and the signatures that are checked. A
/// chain has one where a CA is cross-signed and both of its certificates are sent.
const REPEATED_SUBJECTS_MAX: usize = 1;

/// Why a chain is not looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChainExcess {
    /// Certificates after the peer's own.
    Certificates { sent: usize, max: usize },
    /// The bytes of those.
    Bytes { sent: usize },
    /// Certificates with a subject that one before has.
    RepeatedSubjects { sent: usize },
}

impl fmt::Display for ChainExcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChainExcess::Certificates { sent, max } => {
                write!(f, "it sent {sent} certificates after its own, but at most {max} are looked at")
            }
            ChainExcess::Bytes { sent } => write!(
                f,
                "the certificates after its own have {sent} bytes, but at most {OTHERS_BYTES_MAX} are looked at"
            ),
            ChainExcess::RepeatedSubjects { sent } => write!(
                f,
                "{sent} of the certificates that it sent have the subject of one before, but at most \
                 {REPEATED_SUBJECTS_MAX} may"
            ),
        }
    }
}

impl std::error::Error for ChainExcess {}

impl From<ChainExcess> for Error {
    fn from(excess: ChainExcess) -> Error {
        Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(excess))))
    }
}

/// The certificates after a peer's own, each once. `max`: how many it may have sent.
fn bounded<'a>(others: &'a [CertificateDer<'_>], max: usize) -> Result<Vec<CertificateDer<'a>>, ChainExcess> {
    if others.len() > max {
        return Err(ChainExcess::Certificates { sent: others.len(), max });
    }
    let bytes = others.iter().map(|certificate| certificate.len()).sum();
    if bytes > OTHERS_BYTES_MAX {
        return Err(ChainExcess::Bytes { sent: bytes });
    }
    let (mut known, mut subjects, mut repeated) = (HashSet::new(), HashSet::new(), 0);
    let others: Vec<_> = others.iter().map(|other| CertificateDer::from(&**other)).collect();
    let others: Vec<_> = others.into_iter().filter(|other| known.insert(other.to_vec())).collect();
    // One that cannot be read is on no path.
    for other in others.iter().filter_map(|other| EndEntityCert::try_from(other).ok()) {
        repeated += usize::from(!subjects.insert(other.subject().to_vec()));
    }
    match repeated > REPEATED_SUBJECTS_MAX {
        true => Err(ChainExcess::RepeatedSubjects { sent: repeated }),
        false => Ok(others),
    }
}

/// A verifier of servers' certificates: as rustls has it, with bounds on the chain.
///
/// # Errors
/// There are no roots.
pub fn server_verifier(roots: Arc<RootCertStore>) -> Result<Arc<dyn ServerCertVerifier>, VerifierBuilderError> {
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider()).build()?;
    Ok(Arc::new(BoundedServerVerifier { verifier }))
}

/// A verifier of clients' certificates, which it requires: as rustls has it, with bounds on the chain.
///
/// # Errors
/// There are no roots.
pub fn client_verifier(roots: Arc<RootCertStore>) -> Result<Arc<dyn ClientCertVerifier>, VerifierBuilderError> {
    client_verifier_with_depth(roots, INTERMEDIATES_MAX)
}

/// [`client_verifier`] with a bound on the intermediates of a path, as in OpenSSL.
pub(crate) fn client_verifier_with_depth(
    roots: Arc<RootCertStore>,
    depth: u8,
) -> Result<Arc<dyn ClientCertVerifier>, VerifierBuilderError> {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider()).build()?;
    Ok(Arc::new(BoundedClientVerifier { verifier, roots, depth: depth.min(INTERMEDIATES_MAX).into() }))
}

/// Certificates that may follow a peer's own: the intermediates, and the root, which some peers send as well.
fn others_max(depth: usize) -> usize {
    depth + 1
}

#[derive(Debug)]
struct BoundedServerVerifier {
    verifier: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for BoundedServerVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let others = bounded(others, others_max(INTERMEDIATES_MAX.into()))?;
        self.verifier.verify_server_cert(certificate, &others, name, ocsp, now)
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

#[derive(Debug)]
struct BoundedClientVerifier {
    verifier: Arc<dyn ClientCertVerifier>,
    roots: Arc<RootCertStore>,
    /// Intermediates of a path.
    depth: usize,
}

impl BoundedClientVerifier {
    /// Whether the path to a root has at most `depth` intermediates, for a chain that has been verified.
    fn check_depth(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), webpki::Error> {
        let certificate = EndEntityCert::try_from(certificate)?;
        let algorithms = provider().signature_verification_algorithms.all;
        let within_depth =
            |path: &webpki::VerifiedPath<'_>| match path.intermediate_certificates().count() <= self.depth {
                true => Ok(()),
                false => Err(webpki::Error::MaximumPathDepthExceeded),
            };
        let (roots, usage) = (&self.roots.roots, KeyUsage::client_auth());
        certificate.verify_for_usage(algorithms, roots, others, now, usage, None, Some(&within_depth)).map(drop)
    }
}

impl ClientCertVerifier for BoundedClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let others = bounded(others, others_max(self.depth))?;
        let verified = self.verifier.verify_client_cert(certificate, &others, now)?;
        // A path is made of certificates that the client sent.
        if others.len() <= self.depth {
            return Ok(verified);
        }
        match self.check_depth(certificate, &others, now) {
            Ok(()) => Ok(verified),
            Err(_) => Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)),
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Ca, ca, client_params, intermediate, issue, params};
    use rcgen::CertificateParams;
    use rustls::pki_types::pem::PemObject;
    use std::time::Duration;

    const NOW: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(crate::tests::NOW_SECONDS));

    fn issued(params: &CertificateParams, issuer: &Ca) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(issue(params, issuer).0.as_bytes()).unwrap()
    }

    fn roots(ca: &Ca) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(ca.der().clone()).unwrap();
        roots.into()
    }

    /// Certificates that lead nowhere.
    fn unrelated(count: usize) -> Vec<CertificateDer<'static>> {
        (0..count).map(|index| ca(&format!("unrelated {index}")).der().clone()).collect()
    }

    fn excess(error: &Error) -> Option<&ChainExcess> {
        match error {
            Error::InvalidCertificate(CertificateError::Other(other)) => other.0.downcast_ref(),
            _ => None,
        }
    }

    #[test]
    fn a_server_may_send_seven_certificates_after_its_own() {
        let root = ca("root");
        let verifier = server_verifier(roots(&root)).unwrap();
        let certificate = issued(&params(&["a.test"]), &root);
        let name = ServerName::try_from("a.test").unwrap();
        let verify = |others: &[_]| verifier.verify_server_cert(&certificate, others, &name, &[], NOW).map(drop);
        assert_eq!(verify(&unrelated(7)), Ok(()));
        let error = verify(&unrelated(8)).unwrap_err();
        assert_eq!(excess(&error), Some(&ChainExcess::Certificates { sent: 8, max: 7 }));
    }

    #[test]
    fn a_client_may_send_as_many_as_the_depth_and_a_root() {
        let root = ca("root");
        let (first, certificate) = (intermediate("first", &root), client_params("alice"));
        let certificate = issued(&certificate, &first);
        let check = |depth: u8, count: usize, max: usize| {
            let verifier = client_verifier_with_depth(roots(&root), depth).unwrap();
            let chain = [vec![first.der().clone()], unrelated(count - 1)].concat();
            let verified = verifier.verify_client_cert(&certificate, &chain, NOW);
            let excess = verified.as_ref().err().and_then(excess).copied();
            let expected = (count > max).then_some(ChainExcess::Certificates { sent: count, max });
            assert_eq!((verified.is_ok(), excess), (expected.is_none(), expected), "{depth} {count}");
        };
        for (depth, max) in [(1, 2), (2, 3), (6, 7), (10, 7)] {
            check(depth, max, max);
            check(depth, max + 1, max);
        }
        let without_depth = client_verifier(roots(&root)).unwrap();
        let error = without_depth.verify_client_cert(&certificate, &unrelated(8), NOW).map(drop).unwrap_err();
        assert_eq!(excess(&error), Some(&ChainExcess::Certificates { sent: 8, max: 7 }));
    }

    #[test]
    fn few_certificates_have_the_subject_of_another() {
        let named = |names: &[&str]| names.iter().map(|name| ca(name).der().clone()).collect::<Vec<_>>();
        let check = |names: &[&str], expected: Result<usize, ChainExcess>| {
            assert_eq!(bounded(&named(names), 7).map(|others| others.len()), expected, "{names:?}");
        };
        check(&["a", "b", "a", "c", "d", "e", "f"], Ok(7));
        check(&["a", "a", "b", "b"], Err(ChainExcess::RepeatedSubjects { sent: 2 }));
        check(&["a", "a", "a"], Err(ChainExcess::RepeatedSubjects { sent: 2 }));
        // Whatever was sent twice is one, and unreadable ones have no subject.
        let twice = [named(&["a", "b"]), vec![CertificateDer::from(&b"none"[..])]].concat();
        assert_eq!(bounded(&[&twice[..], &twice[..]].concat(), 7).unwrap(), twice);
    }

    #[test]
    fn their_bytes_are_bounded_together() {
        let of = |bytes: usize| vec![CertificateDer::from(vec![0; bytes]), CertificateDer::from(vec![0; 1])];
        assert!(bounded(&of(OTHERS_BYTES_MAX - 1), 7).is_ok());
        let sent = OTHERS_BYTES_MAX + 1;
        assert_eq!(bounded(&of(OTHERS_BYTES_MAX), 7), Err(ChainExcess::Bytes { sent }));
    }
}
