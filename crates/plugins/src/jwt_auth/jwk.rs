//! Public keys from a JSON Web Key Set (RFC 7517).
//!
//! A key that has another use, an unknown type or errors is skipped: issuers publish such keys beside others.
//! Certificates (`x5c`) and private parts are ignored. Base64 is parsed strictly.

use aws_lc_rs::signature::ParsedPublicKey;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value as Json;
use std::cell::RefCell;
use std::sync::Arc;
use stillgate_jws::{Algorithm, parse_der};

/// Most keys of a set; a larger one is refused.
const KEYS_MAX: usize = 128;
/// Longest name; a key with a longer one is skipped.
pub(super) const KID_BYTES_MAX: usize = 256;

/// One key.
pub(super) struct Jwk {
    /// Unique among all keys of this worker; kept if a fetched set still contains the key.
    pub(super) serial: u64,
    kid: Option<Box<str>>,
    kind: JwkKind,
    /// The only algorithm that it may be used for.
    algorithm: Option<Algorithm>,
    der: Box<[u8]>,
    /// Parsed keys by algorithm, cached; `None`: it cannot be used for the algorithm.
    parsed: RefCell<Vec<(Algorithm, Option<Arc<ParsedPublicKey>>)>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JwkKind {
    Rsa,
    P256,
    P384,
    P521,
    Ed25519,
}

/// SubjectPublicKeyInfo up to the point of a curve (RFC 5480, RFC 8410).
const P256_BEFORE: &[u8] = &[
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00, 0x04,
];
const P384_BEFORE: &[u8] = &[
    0x30, 0x76, 0x30, 0x10, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x05, 0x2b, 0x81, 0x04, 0x00,
    0x22, 0x03, 0x62, 0x00, 0x04,
];
const P521_BEFORE: &[u8] = &[
    0x30, 0x81, 0x9b, 0x30, 0x10, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x05, 0x2b, 0x81, 0x04,
    0x00, 0x23, 0x03, 0x81, 0x86, 0x00, 0x04,
];
const ED25519_BEFORE: &[u8] = &[0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Parses a set. The error says why it is invalid.
pub(super) fn read_set(text: &[u8]) -> Result<Vec<Jwk>, &'static str> {
    let set: Json = serde_json::from_slice(text).map_err(|_| "what it answered is not JSON")?;
    let keys = set.get("keys").and_then(Json::as_array).ok_or("what it answered has no list of keys")?;
    match keys.len() <= KEYS_MAX {
        true => Ok(keys.iter().filter_map(Jwk::read).collect()),
        false => Err("what it answered has too many keys"),
    }
}

impl Jwk {
    fn read(json: &Json) -> Option<Jwk> {
        let text = |name: &str| json.get(name).and_then(Json::as_str);
        let bytes = |name: &str| URL_SAFE_NO_PAD.decode(text(name)?).ok();
        let is_for = |name: &str, wanted: &str| json.get(name).is_none_or(|value| value == wanted);
        let verifies = |ops: &Json| ops.as_array().is_some_and(|ops| ops.iter().any(|op| op == "verify"));
        if !is_for("use", "sig") || !json.get("key_ops").is_none_or(verifies) {
            return None;
        }
        let kid = match json.get("kid") {
            None => None,
            Some(kid) => Some(kid.as_str().filter(|kid| kid.len() <= KID_BYTES_MAX)?),
        };
        let algorithm = match json.get("alg") {
            None => None,
            Some(name) => Some(Algorithm::named(name.as_str()?)?),
        };
        let point = |before: &[u8], bytes_of_each: usize| {
            let (x, y) = (bytes("x")?, bytes("y")?);
            let is_point = x.len() == bytes_of_each && y.len() == bytes_of_each;
            is_point.then(|| [before, &x, &y].concat())
        };
        let (kind, der) = match (text("kty")?, text("crv")) {
            ("RSA", _) => (JwkKind::Rsa, sequence(&[integer(&bytes("n")?)?, integer(&bytes("e")?)?].concat())),
            ("EC", Some("P-256")) => (JwkKind::P256, point(P256_BEFORE, 32)?),
            ("EC", Some("P-384")) => (JwkKind::P384, point(P384_BEFORE, 48)?),
            ("EC", Some("P-521")) => (JwkKind::P521, point(P521_BEFORE, 66)?),
            ("OKP", Some("Ed25519")) => {
                (JwkKind::Ed25519, [ED25519_BEFORE, &bytes("x").filter(|x| x.len() == 32)?].concat())
            }
            _ => return None,
        };
        let (kid, der) = (kid.map(Into::into), der.into());
        Some(Jwk { serial: 0, kid, kind, algorithm, der, parsed: RefCell::default() })
    }

    /// Whether it has this name, and can be used for an algorithm.
    pub(super) fn fits(&self, kid: Option<&str>, algorithm: Algorithm) -> bool {
        let is_named = kid.is_none_or(|kid| self.kid.as_deref() == Some(kid));
        is_named && self.algorithm.is_none_or(|only| only == algorithm) && Some(self.kind) == kind_of(algorithm)
    }

    /// Whether it is the same key under the same name.
    pub(super) fn is_same(&self, other: &Jwk) -> bool {
        let Jwk { serial: _, kid, kind, algorithm, der, parsed: _ } = self;
        (kid, kind, algorithm, der) == (&other.kid, &other.kind, &other.algorithm, &other.der)
    }

    /// The key for an algorithm that it fits; `None`: it is unsuitable, or too weak.
    pub(super) fn key(&self, algorithm: Algorithm) -> Option<Arc<ParsedPublicKey>> {
        let mut parsed = self.parsed.borrow_mut();
        if let Some((_, key)) = parsed.iter().find(|(of, _)| *of == algorithm) {
            return key.clone();
        }
        let key = parse_der(algorithm, self.der.to_vec()).ok().map(Arc::new);
        parsed.push((algorithm, key.clone()));
        key
    }
}

/// The type of key for an algorithm; `None`: the algorithm does not use public keys.
fn kind_of(algorithm: Algorithm) -> Option<JwkKind> {
    Some(match algorithm {
        Algorithm::Hs256 | Algorithm::Hs384 | Algorithm::Hs512 => return None,
        Algorithm::Rs256 | Algorithm::Rs384 | Algorithm::Rs512 => JwkKind::Rsa,
        Algorithm::Ps256 | Algorithm::Ps384 | Algorithm::Ps512 => JwkKind::Rsa,
        Algorithm::Es256 => JwkKind::P256,
        Algorithm::Es384 => JwkKind::P384,
        Algorithm::Es512 => JwkKind::P521,
        Algorithm::EdDsa => JwkKind::Ed25519,
    })
}

/// A positive integer in DER (X.690 section 8.3).
fn integer(bytes: &[u8]) -> Option<Vec<u8>> {
    let first = bytes.iter().position(|byte| *byte != 0)?;
    let digits = &bytes[first..];
    let sign = if digits[0] >= 0x80 { &[0][..] } else { &[] };
    Some(tagged(0x02, &[sign, digits].concat()))
}

fn sequence(content: &[u8]) -> Vec<u8> {
    tagged(0x30, content)
}

fn tagged(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    let length = content.len().to_be_bytes();
    let first = length.iter().position(|byte| *byte != 0).unwrap_or(length.len() - 1);
    if content.len() >= 0x80 {
        out.push(0x80 | (length.len() - first) as u8);
    }
    out.extend_from_slice(&length[first..]);
    out.extend_from_slice(content);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7517 appendix A.1, with the key of RFC 8037 appendix A.2.
    const SET: &str = r#"{"keys":[
        {"kty":"EC","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM","use":"enc","kid":"1"},
        {"kty":"RSA","n":"0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw","e":"AQAB","alg":"RS256","kid":"2011-04-29"},
        {"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},
        {"kty":"oct","k":"AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ"},
        {"kty":"EC","crv":"secp256k1","x":"AA","y":"AA"},
        {"kty":"EC","crv":"P-256","x":"AA","y":"AA","kid":"short"},
        {"kty":"RSA","n":"AQAB","e":"AQAB","kid":"weak"},
        {"kty":"RSA","n":"====","e":"AQAB"}, 7, {}]}"#;

    #[test]
    fn keys_for_signatures_are_read() {
        let keys = read_set(SET.as_bytes()).unwrap();
        let named = |kid: Option<&str>, algorithm| {
            let fitting: Vec<&Jwk> = keys.iter().filter(|key| key.fits(kid, algorithm)).collect();
            (fitting.len(), fitting.first().and_then(|key| key.key(algorithm)).is_some())
        };
        assert_eq!(keys.len(), 3);
        assert_eq!(named(Some("2011-04-29"), Algorithm::Rs256), (1, true));
        assert_eq!(named(Some("2011-04-29"), Algorithm::Rs384), (0, false));
        assert_eq!(named(None, Algorithm::EdDsa), (1, true));
        assert_eq!(named(Some("1"), Algorithm::Es256), (0, false));
        assert_eq!(named(Some("weak"), Algorithm::Ps256), (1, false));
        assert_eq!(named(None, Algorithm::Hs256), (0, false));
    }

    #[test]
    fn what_is_not_a_set_is_refused() {
        let check = |text: &str, part: &str| assert!(read_set(text.as_bytes()).err().unwrap().contains(part), "{text}");
        check("", "not JSON");
        check("[]", "no list of keys");
        check("{\"keys\":{}}", "no list of keys");
        check(&format!("{{\"keys\":[{}0]}}", "0,".repeat(KEYS_MAX)), "too many keys");
        assert_eq!(read_set(b"{\"keys\":[]}").unwrap().len(), 0);
    }

    #[test]
    fn lengths_are_those_of_der() {
        assert_eq!(integer(&[0, 0x80]).unwrap(), [0x02, 0x02, 0x00, 0x80]);
        assert_eq!(integer(&[0x7f]).unwrap(), [0x02, 0x01, 0x7f]);
        assert_eq!(integer(&[0, 0]), None);
        assert_eq!(tagged(0x30, &[]), [0x30, 0x00]);
        assert_eq!(tagged(0x30, &[1; 0x80])[..3], [0x30, 0x81, 0x80]);
        assert_eq!(tagged(0x30, &[1; 0x100])[..4], [0x30, 0x82, 0x01, 0x00]);
    }
}
