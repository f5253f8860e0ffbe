//! What an entry demands of its clients' certificates, in a handshake and when a session is resumed.
//!
//! rustls verifies a certificate in a full handshake only, and a resumed session begins another ticket. A client could go
//! on with an expired certificate for as long as it came back every few hours, and one that has renewed its own would go
//! on showing the old one. So no ticket is taken once its client's certificate has ended. The certificate is in the
//! ticket, so it is read from there.

use crate::loading::{Digest, Digester};
use crate::peer_chain::client_verifier_with_depth;
use crate::pem::certificates;
use crate::problem::{ConfigLocation, Problems};
use rustls::RootCertStore;
use rustls::pki_types::{TrustAnchor, UnixTime};
use rustls::server::ProducesTickets;
use rustls::server::danger::ClientCertVerifier;
use std::collections::BTreeSet;
use std::sync::Arc;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

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
    match client_verifier_with_depth(roots.clone(), depth) {
        Ok(verifier) => Some(ClientDemands { verifier, ca: Arc::new(ClientCa::new(&roots, depth)) }),
        Err(error) => {
            problems.error(place, format!("cannot be used: {error}"), "name the issuers of the clients' certificates");
            None
        }
    }
}

/// Tickets of sessions with clients that have shown a certificate.
#[derive(Debug)]
pub(crate) struct CertifiedTickets(pub(crate) Arc<dyn ProducesTickets>);

impl ProducesTickets for CertifiedTickets {
    fn enabled(&self) -> bool {
        self.0.enabled()
    }

    fn lifetime(&self) -> u32 {
        self.0.lifetime()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.0.encrypt(plain)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let session = self.0.decrypt(ticket)?;
        let now = i64::try_from(UnixTime::now().as_secs()).ok()?;
        (now <= not_after_seconds(&session)?).then_some(session)
    }
}

/// When the client's certificate in a session ends. `None` if there is none, or if a version of rustls writes sessions in
/// another way: the handshake is a full one then.
fn not_after_seconds(session: &[u8]) -> Option<i64> {
    let mut session = SessionReader(session);
    if session.number(1)? == 1 {
        let server_name = session.number(1)?;
        session.bytes(server_name)?;
    }
    // The version and the cipher suite.
    session.bytes(4)?;
    let secret = session.number(1)?;
    session.bytes(secret)?;
    // Whether the secret is an extended one.
    session.bytes(1)?;
    if session.number(1)? != 1 {
        return None;
    }
    let _chain = session.number(3)?;
    let certificate = session.number(3)?;
    let (_, certificate) = X509Certificate::from_der(session.bytes(certificate)?).ok()?;
    Some(certificate.validity().not_after.timestamp())
}

/// The rest of a session as rustls encodes it (`ServerSessionValue`).
struct SessionReader<'a>(&'a [u8]);

impl<'a> SessionReader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    /// A number of so many bytes, the highest first.
    fn number(&mut self, bytes: usize) -> Option<usize> {
        let bytes = self.bytes(bytes)?;
        Some(bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }
}
