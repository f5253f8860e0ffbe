//! Why handshakes with clients fail, in few enough kinds for a metric; `handshake_failure` has the messages.

use rustls::Error;
use std::io;

/// Why there was no TLS connection with a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureReason {
    /// The client sent something other than TLS.
    NotTls,
    /// It asked for a name that no entry has, or for none, and no entry is the default.
    UnknownName,
    /// It has no version, cipher, group, kind of signature or protocol in common with us.
    Incompatible,
    /// It sent no certificate although one is required.
    NoCertificate,
    /// It sent a certificate that is not accepted.
    BadCertificate,
    /// It ended the handshake with an alert: most often it does not trust our certificate.
    Alert,
    /// The client or the network closed the connection during the handshake.
    Closed,
    /// The handshake was not complete in time.
    Timeout,
    /// Any other error, for example a message that is out of place.
    Other,
}

impl FailureReason {
    /// The number of reasons.
    pub const COUNT: usize = Self::ALL.len();

    /// All of them, each at its own index.
    pub const ALL: [FailureReason; 9] = [
        FailureReason::NotTls,
        FailureReason::UnknownName,
        FailureReason::Incompatible,
        FailureReason::NoCertificate,
        FailureReason::BadCertificate,
        FailureReason::Alert,
        FailureReason::Closed,
        FailureReason::Timeout,
        FailureReason::Other,
    ];

    /// The reason for a handshake that ended with this error.
    pub fn of(error: &io::Error) -> FailureReason {
        match error.get_ref().and_then(|cause| cause.downcast_ref::<Error>()) {
            Some(Error::InvalidMessage(_)) => FailureReason::NotTls,
            Some(Error::PeerIncompatible(_) | Error::NoApplicationProtocol) => FailureReason::Incompatible,
            Some(Error::NoCertificatesPresented) => FailureReason::NoCertificate,
            Some(Error::InvalidCertificate(_)) => FailureReason::BadCertificate,
            Some(Error::AlertReceived(_)) => FailureReason::Alert,
            Some(_) => FailureReason::Other,
            // Any error that is not of TLS is one of the connection.
            None => FailureReason::Closed,
        }
    }

    /// The value of the metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            FailureReason::NotTls => "not_tls",
            FailureReason::UnknownName => "unknown_name",
            FailureReason::Incompatible => "incompatible",
            FailureReason::NoCertificate => "no_certificate",
            FailureReason::BadCertificate => "bad_certificate",
            FailureReason::Alert => "alert",
            FailureReason::Closed => "closed",
            FailureReason::Timeout => "timeout",
            FailureReason::Other => "other",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::{AlertDescription, CertificateError, InvalidMessage, PeerIncompatible, PeerMisbehaved};
    use std::collections::HashSet;

    #[test]
    fn each_stands_at_its_own_index_and_has_its_own_word() {
        assert!(FailureReason::ALL.iter().enumerate().all(|(index, reason)| *reason as usize == index));
        let words: HashSet<&str> = FailureReason::ALL.iter().map(|reason| reason.as_str()).collect();
        assert_eq!(words.len(), FailureReason::COUNT);
    }

    #[test]
    fn errors_have_their_reasons() {
        let check = |error: Error, expected: FailureReason| {
            let told = format!("{error:?}");
            assert_eq!(FailureReason::of(&io::Error::new(io::ErrorKind::InvalidData, error)), expected, "{told}");
        };
        check(InvalidMessage::InvalidContentType.into(), FailureReason::NotTls);
        check(PeerIncompatible::NoCipherSuitesInCommon.into(), FailureReason::Incompatible);
        check(Error::NoApplicationProtocol, FailureReason::Incompatible);
        check(Error::NoCertificatesPresented, FailureReason::NoCertificate);
        check(CertificateError::UnknownIssuer.into(), FailureReason::BadCertificate);
        check(Error::AlertReceived(AlertDescription::UnknownCA), FailureReason::Alert);
        check(PeerMisbehaved::IllegalMiddleboxChangeCipherSpec.into(), FailureReason::Other);
        assert_eq!(FailureReason::of(&io::ErrorKind::UnexpectedEof.into()), FailureReason::Closed);
    }
}
