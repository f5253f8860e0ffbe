//! The options of an ACME server.

use std::fmt;

/// `gateway.acme.eab.hmac_key`, in Base64 as for URLs without padding.
#[derive(Clone, PartialEq, Eq)]
pub struct HmacKey(pub String);

/// Never shown: it is a secret.
impl fmt::Debug for HmacKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HmacKey({} bytes)", self.0.len())
    }
}

/// `gateway.acme.challenge`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcmeChallenge {
    /// `http-01`: RFC 8555 section 8.3.
    Http01,
    /// `tls-alpn-01`: RFC 8737.
    TlsAlpn01,
}
