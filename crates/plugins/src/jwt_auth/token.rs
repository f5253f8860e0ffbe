//! The parts of a token: a JWS in its compact form (RFC 7515 section 7.1), and the relevant part of its JSON.
//!
//! Nothing is allocated but in reused buffers, and for a key with an escape. Parsers may disagree about an object in
//! which a name occurs twice, so such a token is refused.

use super::plain_json;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use base64::{Engine, decoded_len_estimate};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;
use stillgate_jws::Algorithm;

/// Longest token. It is above the default limit of a head.
pub(super) const TOKEN_BYTES_MAX: usize = 32 * 1024;

/// The encoded parts of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token<'a> {
    header: &'a [u8],
    payload: &'a [u8],
    signature: &'a [u8],
    /// Header and payload with the dot between them.
    pub(super) signed: &'a [u8],
}

impl<'a> Token<'a> {
    /// Splits three parts separated by dots.
    pub(super) fn split(text: &'a [u8]) -> Option<Token<'a>> {
        if text.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let first = memchr::memchr(b'.', text)?;
        let second = first + 1 + memchr::memchr(b'.', &text[first + 1..])?;
        let (signed, signature) = (&text[..second], &text[second + 1..]);
        let has_three = memchr::memchr(b'.', signature).is_none();
        has_three.then_some(Token { header: &text[..first], payload: &text[first + 1..second], signature, signed })
    }

    /// [`Token::algorithm`], parsed only if the header differs from the last one.
    pub(super) fn algorithm_with(&self, last: &mut LastHeader, buffer: &mut Vec<u8>) -> Option<Option<Algorithm>> {
        if !self.header.is_empty() && last.encoded == self.header {
            return Some(last.algorithm);
        }
        let algorithm = self.algorithm(buffer)?;
        if self.header.len() <= HEADER_BYTES_KEPT_MAX {
            last.encoded.clear();
            last.encoded.extend_from_slice(self.header);
            last.algorithm = algorithm;
        }
        Some(algorithm)
    }

    /// The header's `alg`, if the whole header is understood. `Some(None)`: it has none, or one that credentials cannot
    /// name, such as `none`.
    pub(super) fn algorithm(&self, buffer: &mut Vec<u8>) -> Option<Option<Algorithm>> {
        let json = decode(self.header, buffer)?;
        let which = |name: &str| match name {
            "alg" => Some(0),
            "crit" => Some(1),
            "enc" => Some(2),
            _ => None,
        };
        let [alg, crit, enc] = read(json, which)?;
        match (alg, crit, enc) {
            // Critical headers are not understood, whatever they are; an encrypted token is not a JWS.
            (Some(ClaimValue::Text(alg)), None, None) => Some(Algorithm::named(&alg)),
            (_, None, None) => Some(None),
            _ => None,
        }
    }

    /// The `kid` of a header that was understood. `None`: it is not a text.
    pub(super) fn kid(&self, buffer: &mut Vec<u8>) -> Option<Option<Box<str>>> {
        let json = decode(self.header, buffer)?;
        match read(json, |name| (name == "kid").then_some(0))? {
            [None] => Some(None),
            [Some(ClaimValue::Text(kid))] => Some(Some(kid.into())),
            [Some(_)] => None,
        }
    }

    /// The relevant part of the payload.
    pub(super) fn claims<'b>(&self, key_claim: &str, buffer: &'b mut Vec<u8>) -> Option<Claims<'b>> {
        let json = decode(self.payload, buffer)?;
        let which = |name: &str| match name {
            "exp" => Some(0),
            "nbf" => Some(1),
            _ => (name == key_claim).then_some(2),
        };
        let [exp, nbf, key] = read(json, which)?;
        let key = match key_claim {
            "exp" => exp.clone(),
            "nbf" => nbf.clone(),
            _ => key,
        };
        Some(Claims { key, exp: exp.into(), nbf: nbf.into() })
    }

    /// The claims `iss` and `aud`. `None`: one of them occurs twice.
    pub(super) fn issuer_and_audience<'b>(&self, buffer: &'b mut Vec<u8>) -> Option<[Option<ClaimValue<'b>>; 2]> {
        let which = |name: &str| match name {
            "iss" => Some(0),
            "aud" => Some(1),
            _ => None,
        };
        read(decode(self.payload, buffer)?, which)
    }

    /// The claim `aud` if it is a list of texts.
    pub(super) fn audiences(&self) -> Option<Vec<String>> {
        #[derive(serde::Deserialize)]
        struct Payload {
            aud: Vec<String>,
        }
        let mut buffer = Vec::new();
        serde_json::from_slice::<Payload>(decode(self.payload, &mut buffer)?).ok().map(|payload| payload.aud)
    }

    /// The whole payload.
    pub(super) fn payload(&self, buffer: &mut Vec<u8>) -> Option<serde_json::Value> {
        serde_json::from_slice(decode(self.payload, buffer)?).ok()
    }

    /// The bytes of the signature.
    pub(super) fn signature<'b>(&self, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        decode(self.signature, buffer)
    }
}

/// The last header that was understood: all tokens of an issuer have the same one.
#[derive(Default)]
pub(super) struct LastHeader {
    encoded: Vec<u8>,
    algorithm: Option<Algorithm>,
}

/// A longer header is parsed each time.
const HEADER_BYTES_KEPT_MAX: usize = 256;

/// The relevant part of a payload.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Claims<'a> {
    /// The claim that identifies the consumer.
    pub(super) key: Option<ClaimValue<'a>>,
    pub(super) exp: Time,
    pub(super) nbf: Time,
}

/// A time claim.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Time {
    /// It is absent.
    Absent,
    /// Seconds since 1970.
    At(f64),
    /// It is not a number.
    Broken,
}

impl From<Option<ClaimValue<'_>>> for Time {
    fn from(value: Option<ClaimValue<'_>>) -> Time {
        match value {
            None => Time::Absent,
            Some(ClaimValue::Number(seconds)) => Time::At(seconds),
            Some(_) => Time::Broken,
        }
    }
}

/// The relevant part of a value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ClaimValue<'a> {
    Text(Cow<'a, str>),
    Number(f64),
    /// Lua treats it as absent.
    False,
    Other,
}

/// Decodes to the beginning of a buffer, which only grows: clearing it for each token would cost more than the
/// decoding.
fn decode<'b>(encoded: &[u8], buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
    let bytes_max = decoded_len_estimate(encoded.len());
    if buffer.len() < bytes_max {
        buffer.resize(bytes_max, 0);
    }
    let length = URL_SAFE_NO_PAD.decode_slice(encoded, buffer).ok()?;
    Some(&buffer[..length])
}

/// Values of an object, each at the index that `which` returns for its name; others are only validated.
fn read<'de, const N: usize>(
    json: &'de [u8],
    which: impl Fn(&str) -> Option<usize>,
) -> Option<[Option<ClaimValue<'de>>; N]> {
    let text = str::from_utf8(json).ok()?;
    plain_json::read(text, &which).or_else(|| read_any(text, which))
}

/// [`read`] for any form of JSON.
pub(super) fn read_any<'de, const N: usize>(
    text: &'de str,
    which: impl Fn(&str) -> Option<usize>,
) -> Option<[Option<ClaimValue<'de>>; N]> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let values = deserializer.deserialize_map(Values(which)).ok()?;
    deserializer.end().ok()?;
    Some(values)
}

struct Values<W, const N: usize>(W);

impl<'de, W: Fn(&str) -> Option<usize>, const N: usize> Visitor<'de> for Values<W, N> {
    type Value = [Option<ClaimValue<'de>>; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut values = [const { None }; N];
        while let Some(which) = entries.next_key_seed(NameIndex(&self.0))? {
            match which {
                None => {
                    entries.next_value::<IgnoredAny>()?;
                }
                Some(at) if values[at].is_none() => values[at] = Some(entries.next_value_seed(One)?),
                Some(_) => return Err(A::Error::custom("a name is repeated")),
            }
        }
        Ok(values)
    }
}

/// A name, mapped to its index.
struct NameIndex<'w, W>(&'w W);

impl<'de, W: Fn(&str) -> Option<usize>> DeserializeSeed<'de> for NameIndex<'_, W> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<usize>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<W: Fn(&str) -> Option<usize>> Visitor<'_> for NameIndex<'_, W> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Option<usize>, E> {
        Ok((self.0)(name))
    }
}

/// A value.
struct One;

impl<'de> DeserializeSeed<'de> for One {
    type Value = ClaimValue<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<ClaimValue<'de>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for One {
    type Value = ClaimValue<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<ClaimValue<'de>, E> {
        Ok(ClaimValue::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<ClaimValue<'de>, E> {
        Ok(ClaimValue::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_i64<E>(self, number: i64) -> Result<ClaimValue<'de>, E> {
        Ok(ClaimValue::Number(number as f64))
    }

    fn visit_u64<E>(self, number: u64) -> Result<ClaimValue<'de>, E> {
        Ok(ClaimValue::Number(number as f64))
    }

    fn visit_f64<E>(self, number: f64) -> Result<ClaimValue<'de>, E> {
        Ok(ClaimValue::Number(number))
    }

    fn visit_bool<E>(self, value: bool) -> Result<ClaimValue<'de>, E> {
        Ok(if value { ClaimValue::Other } else { ClaimValue::False })
    }

    fn visit_unit<E>(self) -> Result<ClaimValue<'de>, E> {
        Ok(ClaimValue::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<ClaimValue<'de>, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(ClaimValue::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<ClaimValue<'de>, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(ClaimValue::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(header: &str, payload: &str) -> String {
        format!("{}.{}.c2ln", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload))
    }

    #[test]
    fn the_last_header_is_taken_for_itself_only() {
        let (mut last, mut buffer) = (LastHeader::default(), Vec::new());
        let long = format!(r#"{{"alg":"ES256","x":"{}"}}"#, "x".repeat(HEADER_BYTES_KEPT_MAX));
        let all = [
            (r#"{"alg":"HS256"}"#, Some(Some(Algorithm::Hs256))),
            (r#"{"alg":"none"}"#, Some(None)),
            (r#"{"alg":"HS256","crit":["x"]}"#, None),
            (&*long, Some(Some(Algorithm::Es256))),
            ("", None),
        ];
        for (header, expected) in all.iter().flat_map(|one| [one, one]) {
            let text = token(header, "{}");
            let parts = Token::split(text.as_bytes()).unwrap();
            assert_eq!(parts.algorithm_with(&mut last, &mut buffer), *expected, "{header}");
            assert!(last.encoded.len() <= HEADER_BYTES_KEPT_MAX);
        }
    }

    #[test]
    fn a_token_has_three_parts() {
        let parts = Token::split(b"aa.bb.cc").unwrap();
        assert_eq!(
            (parts.header, parts.payload, parts.signature, parts.signed),
            (&b"aa"[..], &b"bb"[..], &b"cc"[..], &b"aa.bb"[..])
        );
        for text in ["", "a", "a.b", "a.b.c.d", "a.b.c.d.e"] {
            assert_eq!(Token::split(text.as_bytes()), None, "{text}");
        }
        let long = format!("a.b.{}", "c".repeat(TOKEN_BYTES_MAX - 4));
        assert!(Token::split(long.as_bytes()).is_some());
        assert!(Token::split(format!("{long}c").as_bytes()).is_none());
    }

    #[test]
    fn a_header_has_an_algorithm_and_nothing_critical() {
        let check = |header: &str, expected: Option<&str>| {
            let (text, mut buffer) = (token(header, "{}"), Vec::new());
            let algorithm = Token::split(text.as_bytes()).unwrap().algorithm(&mut buffer);
            assert_eq!(algorithm, expected.map(Algorithm::named), "{header}");
        };
        check(r#"{"alg":"HS256","typ":"JWT","kid":{"a":[1,null]},"x":-1.5e3}"#, Some("HS256"));
        check(r#" { "typ" : "JWT" , "alg" : "none" } "#, Some("none"));
        check(r#"{"alg":"\u0048S256"}"#, Some("HS256"));
        check("{}", Some(""));
        check(r#"{"ALG":"HS256"}"#, Some(""));
        check(r#"{"alg":null}"#, Some(""));
        check(r#"{"alg":["HS256"]}"#, Some(""));
        check(r#"{"alg":"HS256","alg":"none"}"#, None);
        check(r#"{"alg":"HS256","\u0061lg":"none"}"#, None);
        check(r#"{"alg":"HS256","crit":["b64"],"b64":false}"#, None);
        check(r#"{"alg":"HS256","crit":[]}"#, None);
        check(r#"{"alg":"HS256","crit":null}"#, None);
        check(r#"{"alg":"dir","enc":"A128GCM"}"#, None);
        check(r#"{"alg":"HS256"} x"#, None);
        check(r#"{"alg":"HS256""#, None);
        check(r#"["alg","HS256"]"#, None);
        check("", None);
        check(&format!("{{\"x\":{}}}", "[".repeat(20_000)), None);
    }

    #[test]
    fn a_header_may_name_a_key() {
        let check = |header: &str, expected: Option<Option<&str>>| {
            let text = token(header, "{}");
            let kid = Token::split(text.as_bytes()).unwrap().kid(&mut Vec::new());
            assert_eq!(kid, expected.map(|kid| kid.map(Box::from)), "{header}");
        };
        check("{}", Some(None));
        check(r#"{"kid":"a\u0062"}"#, Some(Some("ab")));
        check(r#"{"kid":7}"#, None);
        check(r#"{"kid":null}"#, None);
        check(r#"{"kid":"a","kid":"b"}"#, None);
    }

    #[test]
    fn base64_is_read_strictly() {
        let mut buffer = Vec::new();
        let mut check = |text: &str, is_good: bool| {
            let token = Token::split(text.as_bytes()).unwrap();
            assert_eq!(token.signature(&mut buffer).is_some(), is_good, "{text}");
        };
        check("a.b.c2ln", true);
        check("a.b.", true);
        check("a.b.-_-_", true);
        check("a.b.+/+/", false);
        check("a.b.c2k", true);
        // Other bits at the end, and padding, would be other tokens with the same meaning.
        check("a.b.c2l", false);
        check("a.b.c2k=", false);
        check("a.b. c2k", false);
        check("a.b.c", false);
    }

    #[test]
    fn claims_are_read() {
        let check = |claim: &str, payload: &str, expected: Option<Claims<'_>>| {
            let (text, mut buffer) = (token("{}", payload), Vec::new());
            assert_eq!(Token::split(text.as_bytes()).unwrap().claims(claim, &mut buffer), expected, "{payload}");
        };
        let text = |text: &'static str| Some(ClaimValue::Text(Cow::Borrowed(text)));
        let claims = |key, exp, nbf| Some(Claims { key, exp, nbf });
        check("key", r#"{"key":"k","exp":7,"nbf":1.5}"#, claims(text("k"), Time::At(7.0), Time::At(1.5)));
        check("iss", r#"{"key":"k","iss":"i"}"#, claims(text("i"), Time::Absent, Time::Absent));
        check("key", r#"{"key":"k","exp":"7","nbf":null}"#, claims(text("k"), Time::Broken, Time::Broken));
        check("key", r#"{"key":false,"exp":-1e300}"#, claims(Some(ClaimValue::False), Time::At(-1e300), Time::Absent));
        check("key", r#"{"exp":false,"nbf":true}"#, claims(None, Time::Broken, Time::Broken));
        check("key", r#"{"key":1}"#, claims(Some(ClaimValue::Number(1.0)), Time::Absent, Time::Absent));
        check("key", r#"{"key":{"key":"k"}}"#, claims(Some(ClaimValue::Other), Time::Absent, Time::Absent));
        check("exp", r#"{"exp":7}"#, claims(Some(ClaimValue::Number(7.0)), Time::At(7.0), Time::Absent));
        check("key", r#"{"key":"a","key":"b"}"#, None);
        check("key", r#"{"exp":1e999}"#, None);
        check("key", r#"{"key":"\ud800"}"#, None);
        check("key", "7", None);
        check("key", "", None);
        check(
            "key",
            r#"{"key":"k","x":[{"key":[],"exp":{}},""],"exp":7}"#,
            claims(text("k"), Time::At(7.0), Time::Absent),
        );
        check("key", " {\"key\" :\"k\",\n\"exp\": 7 } ", claims(text("k"), Time::At(7.0), Time::Absent));
        check("key", r#"{"\u006bey":"k","exp":7e0}"#, claims(text("k"), Time::At(7.0), Time::Absent));
        check("key", r#"{"exp":9007199254740993}"#, claims(None, Time::At(9_007_199_254_740_992.0), Time::Absent));
        check("key", r#"{"exp":07}"#, None);
        check("key", r#"{"exp":7,}"#, None);
        check("key", r#"{"exp":7}}"#, None);
        check("key", "{\"key\":\"a\u{1}\"}", None);
    }

    #[test]
    fn a_payload_is_utf8() {
        let payload = |text: &[u8]| format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(text));
        let check = |text: &[u8], is_good: bool| {
            let text = payload(text);
            let claims = Token::split(text.as_bytes()).unwrap().claims("key", &mut Vec::new()).is_some();
            assert_eq!(claims, is_good, "{text}");
        };
        check("{\"key\":\"k\",\"name\":\"\u{e9}\"}".as_bytes(), true);
        check(b"{\"key\":\"k\",\"name\":\"\xe9\"}", false);
        check(b"{\"key\":\"\xe9\"}", false);
    }
}
