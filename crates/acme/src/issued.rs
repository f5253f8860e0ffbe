//! Checks an issued certificate before it replaces the previous one.

use super::Certificate;
use super::order::OrderFailure;
use std::time::Duration;
use stillgate_tls::OrderedCertificate;
use stillgate_tls::rustls::pki_types::UnixTime;

/// The largest lead of the issuer's clock. A certificate whose validity begins later than that is refused.
const CLOCK_AHEAD_MAX: Duration = Duration::from_secs(3600);

/// Reads the certificate if it can be used now. It is dropped if it never can be.
pub(super) fn inspect(
    issued: &mut Option<String>,
    certificate: &Certificate,
    now: UnixTime,
) -> Result<OrderedCertificate, OrderFailure> {
    let text = issued.as_deref().unwrap_or_default();
    let result = usable(text, certificate, now);
    if result.is_err() {
        // A certificate dated ahead by the issuer's clock becomes valid soon, and another one would not be valid sooner.
        let later = UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()) + CLOCK_AHEAD_MAX);
        if usable(text, certificate, later).is_err() {
            *issued = None;
        }
    }
    result
}

fn usable(text: &str, certificate: &Certificate, now: UnixTime) -> Result<OrderedCertificate, OrderFailure> {
    const DOING: &str = "looking at what the server issued";
    const HINT: &str = "what was shown stays; ask the issuer";
    let ordered =
        OrderedCertificate::read(text.as_bytes(), now).map_err(|error| OrderFailure::new(DOING, error, HINT))?;
    match certificate.names.iter().find(|name| !ordered.names.contains(name)) {
        Some(name) => Err(OrderFailure::new(DOING, format!("it is not for {name}"), HINT)),
        None => Ok(ordered),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    fn certificate(id: &str, names: &[&str]) -> Certificate {
        Certificate { id: id.to_owned(), names: names.iter().map(ToString::to_string).collect() }
    }

    #[test]
    fn what_was_issued_is_forgotten_only_where_it_is_of_no_use() {
        // Its validity begins on 2026-05-01.
        const BEGIN_SECONDS: u64 = 1_777_593_600;
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["a.example".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2026, 5, 1), date_time_ymd(2026, 8, 1));
        let good = format!("{}\n{}", params.self_signed(&key).unwrap().pem(), key.serialize_pem());
        let check = |text: &str, name: &str, now_seconds: u64, expected: Option<&str>, is_kept: bool| {
            let mut issued = Some(text.to_owned());
            let now = UnixTime::since_unix_epoch(Duration::from_secs(now_seconds));
            let told = inspect(&mut issued, &certificate("a", &[name]), now).map_err(|failure| failure.to_string());
            assert_eq!(told.is_ok(), expected.is_none(), "{told:?}");
            assert!(told.err().unwrap_or_default().contains(expected.unwrap_or_default()));
            assert_eq!(issued.is_some(), is_kept, "{expected:?}");
        };
        check(&good, "a.example", BEGIN_SECONDS, None, true);
        check(&good, "a.example", BEGIN_SECONDS - 60, Some("not valid before"), true);
        check(&good, "a.example", BEGIN_SECONDS - 3601, Some("not valid before"), false);
        check(&good, "a.example", BEGIN_SECONDS + 366 * 24 * 3600, Some("expired"), false);
        check(&good, "b.example", BEGIN_SECONDS, Some("it is not for b.example"), false);
        let others =
            format!("{}\n{}", params.self_signed(&key).unwrap().pem(), KeyPair::generate().unwrap().serialize_pem());
        check(&others, "a.example", BEGIN_SECONDS, Some("the key does not belong to the certificate"), false);
        check("<html>", "a.example", BEGIN_SECONDS, Some("looking at what the server issued"), false);
    }
}
