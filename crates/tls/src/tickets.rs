//! Session tickets of entries that request clients' certificates: none is taken once its client's certificate has ended.
//!
//! rustls verifies a certificate in a full handshake only, and a resumed session begins another ticket. A client could go
//! on with an expired certificate for as long as it came back every few hours, and one that has renewed its own would go
//! on showing the old one. The certificate is in the ticket, so it is read from there.

use rustls::pki_types::UnixTime;
use rustls::server::ProducesTickets;
use std::sync::Arc;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

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
