//! OCSP responses: the part of RFC 6960 that is needed to know which certificate a response is about and until when it
//! holds.
//!
//! Its signature is for the client to check, which has the issuer's certificate.

use crate::identity::UsablePair;
use crate::problem::{ConfigLocation, Problems};
use rustls::pki_types::UnixTime;
use std::time::Duration;
use x509_parser::asn1_rs::{Any, Class, FromDer, GeneralizedTime, Tag};

/// How long a response holds that does not state its end.
const NO_END: Duration = Duration::from_secs(7 * 24 * 3600);

const NEW_RESPONSE: &str = "ask the certificate's issuer for a new response";

/// A response to be handed to clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Staple {
    /// The file's bytes.
    pub(crate) response: Vec<u8>,
    /// Serial number of the certificate that it is about, as encoded in it.
    pub(crate) serial: Vec<u8>,
    /// When it is no longer to be handed out.
    pub(crate) until: UnixTime,
}

impl Staple {
    /// Whether it is about one of these certificates; if not, that has been warned of. After a renewal it is about the
    /// certificate before, until the issuer has answered for the new one.
    pub(crate) fn belongs(&self, pairs: &[UsablePair], place: ConfigLocation<'_>, problems: &mut Problems) -> bool {
        let belongs = pairs.iter().any(|pair| pair.serial == self.serial);
        if !belongs {
            let message = "the OCSP response is of another certificate, so it is not used";
            problems.warning(place, message, NEW_RESPONSE);
        }
        belongs
    }
}

/// The contents of a response.
#[derive(Debug, PartialEq, Eq)]
struct OcspContents {
    serial: Vec<u8>,
    status: OcspStatus,
    this_update: u64,
    next_update: Option<u64>,
}

#[derive(Debug, PartialEq, Eq)]
enum OcspStatus {
    Good,
    Revoked,
    Unknown,
}

/// Reads a response that can be used; `None` if it cannot, of which has been warned. That is never an error: clients do
/// without it, and a responder that is down must keep neither a renewed certificate nor anything else from being used.
pub(crate) fn read(
    response: &[u8],
    now: UnixTime,
    place: ConfigLocation<'_>,
    problems: &mut Problems,
) -> Option<Staple> {
    let said = match parse_contents(response) {
        Ok(said) => said,
        Err(what) => {
            let message = format!("not an OCSP response in DER, so it is not used: {what}");
            problems.warning(place, message, NEW_RESPONSE);
            return None;
        }
    };
    match said.status {
        OcspStatus::Good => {}
        OcspStatus::Revoked => problems.warning(
            place,
            "the OCSP response says that the certificate is revoked, so clients will refuse it",
            "ask for another certificate",
        ),
        OcspStatus::Unknown => {
            problems.warning(
                place,
                "the OCSP response says that the certificate is not known to its issuer; it is not used",
                NEW_RESPONSE,
            );
            return None;
        }
    }
    if said.this_update > now.as_secs() {
        problems.warning(place, "the OCSP response is of the future; it is not used", "set this machine's clock");
        return None;
    }
    let until = said.next_update.unwrap_or(said.this_update.saturating_add(NO_END.as_secs()));
    if until <= now.as_secs() {
        problems.warning(place, "the OCSP response is too old; it is not used", NEW_RESPONSE);
        return None;
    }
    let until = UnixTime::since_unix_epoch(Duration::from_secs(until));
    Some(Staple { response: response.to_vec(), serial: said.serial, until })
}

type Parsed<T> = Result<T, &'static str>;

/// The first single response of a basic response.
fn parse_contents(response: &[u8]) -> Parsed<OcspContents> {
    const BASIC: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01, 0x01];
    let (outer, rest) = element(response)?;
    if !rest.is_empty() {
        return Err("bytes behind its end");
    }
    let mut outer = children(&outer, Tag::Sequence)?.into_iter();
    let status = outer.next().ok_or("it is empty")?;
    if status.tag() != Tag::Enumerated || status.data != [0] {
        return Err("the issuer answered with an error");
    }
    let bytes = outer.next().ok_or("it has no response")?;
    let (bytes, _) = element(context(&bytes, 0)?)?;
    let mut bytes = children(&bytes, Tag::Sequence)?.into_iter();
    let kind = bytes.next().ok_or("it has no type")?;
    if kind.tag() != Tag::Oid || kind.data != BASIC {
        return Err("not a basic response");
    }
    let basic = bytes.next().filter(|basic| basic.tag() == Tag::OctetString).ok_or("it has no response")?;
    let (basic, _) = element(basic.data)?;
    let basic = children(&basic, Tag::Sequence)?;
    let data = children(basic.first().ok_or("it has no data")?, Tag::Sequence)?;
    // After an optional version, the responder and the time, the only sequence is the list of responses.
    let list = data.iter().find(|part| part.tag() == Tag::Sequence && part.class() == Class::Universal);
    let list = children(list.ok_or("it has no list of responses")?, Tag::Sequence)?;
    single(list.first().ok_or("its list of responses is empty")?)
}

fn single(response: &Any<'_>) -> Parsed<OcspContents> {
    let parts = children(response, Tag::Sequence)?;
    let [id, status, this_update, rest @ ..] = &parts[..] else { return Err("a response is cut short") };
    let id = children(id, Tag::Sequence)?;
    let serial = id.last().filter(|serial| serial.tag() == Tag::Integer).ok_or("it names no certificate")?;
    let status = match (status.class(), status.tag().0) {
        (Class::ContextSpecific, 0) => OcspStatus::Good,
        (Class::ContextSpecific, 1) => OcspStatus::Revoked,
        (Class::ContextSpecific, 2) => OcspStatus::Unknown,
        _ => return Err("it has no status"),
    };
    let next_update = match rest.iter().find(|part| context(part, 0).is_ok()) {
        Some(next) => Some(time(&element(context(next, 0)?)?.0)?),
        None => None,
    };
    Ok(OcspContents { serial: serial.data.to_vec(), status, this_update: time(this_update)?, next_update })
}

fn time(value: &Any<'_>) -> Parsed<u64> {
    const WRONG: &str = "a time cannot be read";
    let time = GeneralizedTime::try_from(value.clone()).map_err(|_| WRONG)?;
    let seconds = time.utc_datetime().map_err(|_| WRONG)?.unix_timestamp();
    u64::try_from(seconds).map_err(|_| WRONG)
}

fn element(bytes: &[u8]) -> Parsed<(Any<'_>, &[u8])> {
    let (rest, value) = Any::from_der(bytes).map_err(|_| "it cannot be read")?;
    Ok((value, rest))
}

/// The elements of a sequence.
fn children<'a>(value: &Any<'a>, tag: Tag) -> Parsed<Vec<Any<'a>>> {
    if value.tag() != tag || value.class() != Class::Universal {
        return Err("a sequence is missing");
    }
    let (mut data, mut children) = (value.data, Vec::new());
    while !data.is_empty() {
        let (child, rest) = element(data)?;
        children.push(child);
        data = rest;
    }
    Ok(children)
}

/// The contents behind an explicit tag.
fn context<'a>(value: &Any<'a>, number: u32) -> Parsed<&'a [u8]> {
    match value.class() == Class::ContextSpecific && value.tag() == Tag(number) {
        true => Ok(value.data),
        false => Err("a part is missing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Both made with `openssl ocsp`, for one certificate.
    const GOOD: &[u8] = include_bytes!("../tests/data/good.ocsp");
    const REVOKED: &[u8] = include_bytes!("../tests/data/revoked.ocsp");
    const SERIAL: [u8; 6] = [0, 0xab, 0xcd, 0xef, 0x01, 0x23];
    /// 2026-11-22 02:41:57, when it was signed.
    const SIGNED: u64 = 1_795_315_317;
    const END: u64 = SIGNED + 3650 * 24 * 3600;

    fn read_at(response: &[u8], seconds: u64) -> (Option<Staple>, Result<usize, String>) {
        let mut problems = crate::problem::Problems::default();
        let place = ConfigLocation { path: "ocsp", file: None };
        let staple = read(response, UnixTime::since_unix_epoch(Duration::from_secs(seconds)), place, &mut problems);
        (staple, problems.finish().map(|warnings| warnings.len()).map_err(|refused| refused.to_string()))
    }

    #[test]
    fn a_response_is_used_while_it_holds() {
        let staple = read_at(GOOD, SIGNED).0.unwrap();
        assert_eq!(staple.serial, SERIAL);
        assert_eq!(staple.until.as_secs(), END);
        assert_eq!(staple.response, GOOD);
        for (response, at, is_used, warnings) in [
            (GOOD, SIGNED, true, 0),
            (GOOD, END - 1, true, 0),
            (GOOD, END, false, 1),
            (GOOD, SIGNED - 1, false, 1),
            (REVOKED, SIGNED + 3600, true, 1),
        ] {
            let (staple, found) = read_at(response, at);
            assert_eq!((staple.is_some(), found), (is_used, Ok(warnings)), "{at}");
        }
    }

    #[test]
    fn what_is_none_is_left_out_with_a_warning() {
        let check = |response: &[u8], expected: &str| {
            let mut problems = Problems::default();
            let place = ConfigLocation { path: "ocsp", file: None };
            let now = UnixTime::since_unix_epoch(Duration::from_secs(SIGNED));
            assert_eq!(read(response, now, place, &mut problems), None);
            let warnings: Vec<_> = problems.finish().unwrap().iter().map(ToString::to_string).collect();
            let expected = format!(
                "ocsp: not an OCSP response in DER, so it is not used: {expected}; ask the certificate's issuer for a \
                 new response"
            );
            assert_eq!(warnings, [expected]);
        };
        check(b"", "it cannot be read");
        check(b"-----BEGIN OCSP RESPONSE-----", "it cannot be read");
        check(&[0x30, 0], "it is empty");
        check(&[0x30, 3, 10, 1, 6], "the issuer answered with an error");
        check(&[GOOD, &[0]].concat(), "bytes behind its end");
        check(&GOOD[..GOOD.len() - 1], "it cannot be read");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_stumble(at in 0..GOOD.len(), byte in any::<u8>(), bytes in any::<Vec<u8>>()) {
            let mut response = GOOD.to_vec();
            response[at] = byte;
            let _ = read_at(&response, SIGNED);
            let _ = read_at(&bytes, SIGNED);
        }
    }
}
