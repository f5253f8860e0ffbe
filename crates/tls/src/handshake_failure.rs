//! Messages for failed handshakes and what to do about them: one table for nodes, clients and the ACME server.
//!
//! `rustls` shows errors that it has no words for as a value in Rust (`CaUsedAsEndEntity`), and dates as seconds since
//! 1970.
//!
//! For a metric, the reasons of failed handshakes with clients are also told in few enough kinds.

use crate::peer_chain::ChainExcess;
use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, Error, PeerIncompatible};
use std::io;
use x509_parser::time::ASN1Time;

/// The number of a certificate's names in a message; it may have any number.
const NAMES_MAX: usize = 5;
/// The length of one of them in a message. A name is somebody else's text.
const NAME_CHARS_MAX: usize = 253;

/// The peer of a failed handshake: it decides who can fix the problem, and by which key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A node of an upstream.
    Node,
    /// A client of a listener.
    Client,
    /// The server of `gateway.acme`.
    AcmeServer,
    /// A server outside of upstreams that a URL of the configuration leads to: of secrets, logs, authentication.
    Service,
    /// A member of `gateway.config.etcd`.
    Etcd,
    /// The admin address of a gateway, which a command connects to.
    Admin,
}

/// Why a handshake with this peer failed and what to do about it, on one line.
pub fn handshake_failure(error: &io::Error, with: Peer) -> String {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>());
    let (what, remedy) = match cause {
        Some(Error::InvalidCertificate(error)) => certificate_failure(error, with),
        Some(Error::AlertReceived(alert)) => alert_received(*alert, with),
        Some(other) => protocol_failure(other, with),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            ("it closed the connection within the handshake".to_owned(), not_tls(with))
        }
        None => (error.to_string(), ""),
    };
    let separator = if remedy.is_empty() { "" } else { "; " };
    format!("{what}{separator}{remedy}").replace(char::is_control, "\u{fffd}")
}

/// Message and hint for an error of the peer's certificate.
fn certificate_failure(error: &CertificateError, with: Peer) -> (String, &'static str) {
    use CertificateError as E;
    const CLOCK: &str = "is this machine's clock right?";
    let renew = match with {
        Peer::Node => "renew the node's certificate, if this machine's clock is right",
        Peer::Client => "the client has to renew it, if this machine's clock is right",
        Peer::AcmeServer | Peer::Service | Peer::Etcd | Peer::Admin => {
            "its operator has to renew it, if this machine's clock is right"
        }
    };
    let reissue = match with {
        Peer::Node => "have another issued for the node, or set `tls.verify: false`",
        Peer::Client => "the client needs another one",
        Peer::AcmeServer | Peer::Service | Peer::Etcd | Peer::Admin => "its operator needs another one",
    };
    match error {
        E::Expired => ("its certificate has expired".to_owned(), renew),
        E::ExpiredContext { not_after, .. } => (format!("its certificate expired on {}", date(*not_after)), renew),
        E::NotValidYet => ("its certificate is not valid yet".to_owned(), CLOCK),
        E::NotValidYetContext { not_before, .. } => {
            (format!("its certificate is not valid yet, but from {} on", date(*not_before)), CLOCK)
        }
        E::UnknownIssuer => ("its certificate leads to no root that is trusted".to_owned(), roots(with)),
        // The chain leads to a root that only has the name of the right one.
        E::BadSignature => {
            ("its certificate was not signed by the root whose name it has as issuer".to_owned(), roots(with))
        }
        E::NotValidForName => ("its certificate is for another name".to_owned(), name_advice(with)),
        E::NotValidForNameContext { expected, presented } => {
            let certified = match presented.len() {
                0 => "for no name at all (subjectAltName)".to_owned(),
                number => {
                    let cut = |name: &String| name.chars().take(NAME_CHARS_MAX).collect::<String>();
                    let told: Vec<_> = presented.iter().take(NAMES_MAX).map(cut).collect();
                    let more = if number > NAMES_MAX { ", …" } else { "" };
                    format!("for {}{more}", told.join(", "))
                }
            };
            (format!("its certificate is not for \"{}\", but {certified}", expected.to_str()), name_advice(with))
        }
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => {
            let audience = if with == Peer::Client { "clients" } else { "servers" };
            (format!("its certificate is not for {audience} (extended key usage)"), reissue)
        }
        E::Revoked => ("its certificate has been revoked".to_owned(), reissue),
        E::BadEncoding => ("its certificate cannot be read".to_owned(), reissue),
        E::UnhandledCriticalExtension => (chain_failure(&webpki::Error::UnsupportedCriticalExtension), reissue),
        E::UnsupportedSignatureAlgorithmContext { .. } | E::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            ("its certificate is signed in a way that is not supported, such as with SHA-1".to_owned(), reissue)
        }
        E::Other(other) => match (other.0.downcast_ref::<webpki::Error>(), other.0.downcast_ref::<ChainExcess>()) {
            (Some(error), _) => (chain_failure(error), reissue),
            (_, Some(excess)) => (excess.to_string(), shorten(with)),
            _ => (format!("its certificate cannot be used: {}", other.0), reissue),
        },
        other => (format!("its certificate cannot be used: {other}"), reissue),
    }
}

/// Describes errors in a chain of certificates that `rustls` has no error of its own for.
pub(crate) fn chain_failure(error: &webpki::Error) -> String {
    use webpki::Error as E;
    let words = match error {
        E::CaUsedAsEndEntity => "its certificate is an issuer's (CA:TRUE), which is to sign others only",
        E::EndEntityUsedAsCa => "a certificate that is not an issuer's (CA:FALSE) has signed another",
        E::PathLenConstraintViolated => "an issuer has more issuers below it than it may have",
        E::NameConstraintViolation => "an issuer may not issue certificates for these names",
        E::MaximumPathDepthExceeded => "its chain is too long",
        E::MaximumSignatureChecksExceeded
        | E::MaximumPathBuildCallsExceeded
        | E::MaximumNameConstraintComparisonsExceeded => "its chain takes too much work to look at",
        E::UnsupportedCertVersion => "its certificate, or an issuer's, is none of X.509 version 3",
        E::ExtensionValueInvalid | E::MalformedExtensions => "its certificate, or an issuer's, has a broken extension",
        E::UnsupportedCriticalExtension => {
            "its certificate, or an issuer's, has a critical extension that is not understood here"
        }
        E::InvalidSerialNumber => "its certificate, or an issuer's, has a broken serial number",
        E::EmptyEkuExtension => "its certificate, or an issuer's, is for nothing (extended key usage)",
        other => return format!("its certificates cannot be used: {other}"),
    };
    words.to_owned()
}

/// Describes an alert from the peer about our side.
fn alert_received(alert: AlertDescription, with: Peer) -> (String, &'static str) {
    use AlertDescription as A;
    let ours = match with {
        Peer::Node => "look at `tls.client_cert`, and at what the node says in its log",
        Peer::Client => "it trusts other roots, or has another name for the gateway",
        Peer::AcmeServer | Peer::Service => {
            "look for something in between: a proxy that ends TLS wants something of its own"
        }
        Peer::Etcd => "name a certificate that etcd trusts in `gateway.config.etcd.tls`, as `cert` and `key`",
        Peer::Admin => "present one with --client-cert and --client-key that `gateway.admin.tls.client_ca` has issued",
    };
    let (what, remedy) = match alert {
        A::UnknownCA => ("it does not know the issuer of the certificate it was shown", ours),
        A::BadCertificate | A::CertificateUnknown | A::UnsupportedCertificate | A::AccessDenied => {
            ("it does not take the certificate it was shown", ours)
        }
        A::CertificateExpired => ("it says that the certificate it was shown has expired", ours),
        A::CertificateRevoked => ("it says that the certificate it was shown has been revoked", ours),
        A::CertificateRequired => ("it wants to be shown a certificate", ours),
        A::UnrecognisedName => ("it has no certificate for the name it was asked for", name_advice(with)),
        A::HandshakeFailure | A::InsufficientSecurity => {
            ("it refuses the handshake: nothing in common, or it misses a certificate", ours)
        }
        A::ProtocolVersion => ("it speaks neither TLS 1.2 nor 1.3", versions(with)),
        A::NoApplicationProtocol => ("it speaks none of the protocols that it was offered (ALPN)", ""),
        other => return (format!("it ended the handshake: {}", other.as_str().unwrap_or("for an unknown reason")), ""),
    };
    (what.to_owned(), remedy)
}

fn protocol_failure(error: &Error, with: Peer) -> (String, &'static str) {
    use PeerIncompatible as P;
    match error {
        Error::InvalidMessage(_) => ("what it sent is not TLS".to_owned(), not_tls(with)),
        Error::NoCertificatesPresented => (
            "it showed no certificate".to_owned(),
            match with {
                Peer::Client => "it needs one that the entry's `client.ca` has issued",
                _ => "",
            },
        ),
        Error::PeerIncompatible(
            P::ServerDoesNotSupportTls12Or13
            | P::ServerTlsVersionIsDisabledByOurConfig
            | P::Tls12NotOffered
            | P::Tls12NotOfferedOrEnabled
            | P::SupportedVersionsExtensionRequired,
        ) => ("it speaks no version of TLS that is allowed here".to_owned(), versions(with)),
        Error::PeerIncompatible(
            P::NoCipherSuitesInCommon
            | P::NoKxGroupsInCommon
            | P::NoSignatureSchemesInCommon
            | P::NamedGroupsExtensionRequired,
        ) => ("it has no cipher, group or kind of signature in common with the gateway".to_owned(), versions(with)),
        Error::NoApplicationProtocol => ("it speaks none of the protocols that are offered (ALPN)".to_owned(), ""),
        other => (other.to_string(), ""),
    }
}

fn roots(with: Peer) -> &'static str {
    match with {
        Peer::Node => "name the roots of its certificate in `tls.ca`, or set `tls.verify: false`",
        Peer::Client => {
            "it needs one that the entry's `client.ca` has issued, over at most `client.depth` others, and must send those"
        }
        Peer::AcmeServer => "name its roots in `gateway.acme.ca`; where something in between ends TLS, that one's",
        Peer::Service => "add its roots to the certificates that the system trusts, or switch the verification off",
        Peer::Etcd => "name its roots in `gateway.config.etcd.tls.ca`, or set `verify: false` there",
        Peer::Admin => "name its CA with --ca FILE",
    }
}

fn shorten(with: Peer) -> &'static str {
    match with {
        Peer::Node => "have the node send its certificate and those that lead to its root, and no others",
        Peer::Client => {
            "it is to send its certificate and those that lead to its root, at most `client.depth` and the root itself"
        }
        Peer::AcmeServer | Peer::Service | Peer::Etcd | Peer::Admin => {
            "its operator has to shorten the chain: its certificate and those that lead to its root"
        }
    }
}

fn name_advice(with: Peer) -> &'static str {
    match with {
        Peer::Node => "name the one it has a certificate of in `tls.sni`",
        Peer::Client => "",
        Peer::AcmeServer => "write the name that it has a certificate of in `gateway.acme.directory`",
        Peer::Service => "write the name that it has a certificate of in its URL",
        Peer::Etcd => "write the name that it has a certificate of in `gateway.config.etcd.endpoints`",
        Peer::Admin => "write the name that it has a certificate of in the URL",
    }
}

fn not_tls(with: Peer) -> &'static str {
    match with {
        Peer::Node => "if it does not speak TLS write `scheme: http`",
        Peer::Client => "does it speak TLS?",
        Peer::AcmeServer => "is the port in `gateway.acme.directory` right?",
        Peer::Service => "is the port in its URL right?",
        Peer::Etcd => "if it does not speak TLS write http:// in `gateway.config.etcd.endpoints`",
        Peer::Admin => "if it does not speak TLS, write http://",
    }
}

fn versions(with: Peer) -> &'static str {
    match with {
        Peer::Node => "have the node offer TLS 1.2 or 1.3",
        Peer::Client => "it is too old, or the entry's `ssl_protocols` are too narrow",
        Peer::AcmeServer | Peer::Service | Peer::Etcd | Peer::Admin => "",
    }
}

/// A date in UTC.
fn date(time: UnixTime) -> String {
    let date = i64::try_from(time.as_secs()).ok().and_then(|seconds| ASN1Time::from_timestamp(seconds).ok());
    date.map_or_else(|| "a date of no calendar".to_owned(), |date| date.to_string())
}

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
    use rustls::pki_types::ServerName;
    use rustls::{AlertDescription, CertificateError, InvalidMessage, OtherError, PeerIncompatible, PeerMisbehaved};
    use std::collections::HashSet;
    use std::sync::Arc;
    use std::time::Duration;

    fn told(error: Error, with: Peer) -> String {
        handshake_failure(&io::Error::new(io::ErrorKind::InvalidData, error), with)
    }

    #[test]
    fn each_failure_says_what_each_side_can_do() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let (time, of) =
            (at(1_780_315_200), |error: webpki::Error| CertificateError::Other(OtherError(Arc::new(error))));
        let expired = CertificateError::ExpiredContext { time, not_after: at(1_577_836_800) };
        let early = CertificateError::NotValidYetContext { time, not_before: at(4_102_444_800) };
        let cases: [(Error, [&str; 3]); 14] = [
            (
                expired.into(),
                [
                    "its certificate expired on Jan  1 00:00:00 2020 +00:00; renew the node's certificate, if",
                    "its certificate expired on Jan  1 00:00:00 2020 +00:00; the client has to renew it",
                    "its certificate expired on Jan  1 00:00:00 2020 +00:00; its operator has to renew it",
                ],
            ),
            (
                early.into(),
                ["not valid yet, but from Jan  1 00:00:00 2100 +00:00 on; is this machine's clock right?"; 3],
            ),
            (
                CertificateError::UnknownIssuer.into(),
                [
                    "leads to no root that is trusted; name the roots of its certificate in `tls.ca`, or set",
                    "leads to no root that is trusted; it needs one that the entry's `client.ca` has issued",
                    "leads to no root that is trusted; name its roots in `gateway.acme.ca`",
                ],
            ),
            (CertificateError::BadSignature.into(), ["`tls.ca`", "`client.ca`", "`gateway.acme.ca`"]),
            (CertificateError::NotValidForName.into(), ["`tls.sni`", "for another name", "`gateway.acme.directory`"]),
            (
                CertificateError::Revoked.into(),
                ["has been revoked; have another", "has been revoked; the client", "has been revoked; its"],
            ),
            (
                of(webpki::Error::CaUsedAsEndEntity).into(),
                [
                    "its certificate is an issuer's (CA:TRUE), which is to sign others only; have another issued for the node",
                    "(CA:TRUE), which is to sign others only; the client needs another one",
                    "(CA:TRUE), which is to sign others only; its operator",
                ],
            ),
            (of(webpki::Error::EndEntityUsedAsCa).into(), ["not an issuer's (CA:FALSE) has signed another"; 3]),
            (
                CertificateError::InvalidPurpose.into(),
                [
                    "not for servers (extended key usage)",
                    "not for clients (extended key usage)",
                    "not for servers (extended key usage)",
                ],
            ),
            (
                Error::InvalidMessage(InvalidMessage::InvalidContentType),
                ["`scheme: http`", "does it speak TLS?", "`gateway.acme.directory`"],
            ),
            (
                Error::AlertReceived(AlertDescription::CertificateRequired),
                ["`tls.client_cert`", "it wants", "something in between"],
            ),
            (
                Error::AlertReceived(AlertDescription::UnrecognisedName),
                ["`tls.sni`", "no certificate for the name", "`gateway.acme.directory`"],
            ),
            (Error::NoCertificatesPresented, ["it showed no certificate", "`client.ca`", "it showed no certificate"]),
            (PeerIncompatible::Tls12NotOffered.into(), ["TLS 1.2 or 1.3", "`ssl_protocols`", "no version of TLS"]),
        ];
        for (error, expected) in cases {
            for (with, expected) in [Peer::Node, Peer::Client, Peer::AcmeServer].into_iter().zip(expected) {
                let told = told(error.clone(), with);
                assert!(told.contains(expected), "{with:?}: {told}");
            }
        }
    }

    #[test]
    fn what_a_certificate_says_is_cut_and_keeps_to_its_line() {
        let expected = ServerName::try_from("shop.example.com").unwrap();
        let of = |presented: Vec<String>| {
            let error = CertificateError::NotValidForNameContext { expected: expected.clone(), presented };
            told(error.into(), Peer::Node)
        };
        let told = of(vec!["a.test\n\u{1b}[2J".to_owned()]);
        assert_eq!(
            told,
            "its certificate is not for \"shop.example.com\", but for a.test\u{fffd}\u{fffd}[2J; name the one it has a \
             certificate of in `tls.sni`"
        );
        assert!(of(Vec::new()).contains("but for no name at all"));
        let told = of(vec!["x".repeat(10_000); 1000]);
        assert!(told.len() < 2000 && told.contains(", …; name"), "{told}");
    }

    #[test]
    fn no_error_is_shown_as_a_value_in_rust() {
        use webpki::Error as E;
        let all = [
            E::CaUsedAsEndEntity,
            E::EndEntityUsedAsCa,
            E::PathLenConstraintViolated,
            E::NameConstraintViolation,
            E::MaximumPathDepthExceeded,
            E::MaximumSignatureChecksExceeded,
            E::MaximumPathBuildCallsExceeded,
            E::MaximumNameConstraintComparisonsExceeded,
            E::UnsupportedCertVersion,
            E::UnsupportedCriticalExtension,
            E::ExtensionValueInvalid,
            E::MalformedExtensions,
            E::InvalidSerialNumber,
            E::EmptyEkuExtension,
        ];
        for error in all {
            let value = format!("{error:?}");
            let told = told(CertificateError::Other(OtherError(Arc::new(error))).into(), Peer::Node);
            assert!(!told.contains(&value) && !told.contains("OtherError"), "{told}");
        }
        let strange = OtherError(Arc::new(io::Error::other("odd")));
        assert!(
            told(CertificateError::Other(strange).into(), Peer::Client)
                .contains("its certificate cannot be used: odd; ")
        );
    }

    #[test]
    fn errors_other_than_those_of_tls_are_reported_as_they_are() {
        let broken = io::Error::from(io::ErrorKind::ConnectionReset);
        assert_eq!(handshake_failure(&broken, Peer::Node), "connection reset");
        let ended = io::Error::new(io::ErrorKind::UnexpectedEof, "tls handshake eof");
        let told = handshake_failure(&ended, Peer::Node);
        assert_eq!(
            told,
            "it closed the connection within the handshake; if it does not speak TLS write `scheme: http`"
        );
    }

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
