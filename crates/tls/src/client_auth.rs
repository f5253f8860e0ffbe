//! What an entry demands of its clients' certificates.

use crate::digest::{Digest, Digester};
use crate::peer_chain::client_verifier_with_depth;
use crate::pem::certificates;
use crate::problem::{ConfigLocation, Problems};
use rustls::RootCertStore;
use rustls::pki_types::TrustAnchor;
use rustls::server::danger::ClientCertVerifier;
use std::collections::BTreeSet;
use std::sync::Arc;

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
