//! `csrf`: a token in a cookie, which pages of the same site can read and send in a header field, and other sites
//! cannot.
//!
//! The token is APISIX's, so that gateways of both kinds with one key accept each other's:
//!
//! ```text
//!  base64({"random":R,"expires":T,"sign":S})    S = hex(sha256("{expires:T,random:R,key:KEY}")), T: seconds since 1970
//! ```
//!
//! `T` is the time of creation, whatever its name says. Unlike APISIX, an empty key is refused, as with it anybody
//! could sign; `R` and `T` of a token must be numbers; signatures are compared in constant time.

use crate::number::as_lua;
use crate::random;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::time::{Duration, UNIX_EPOCH};
use stillgate_plugin_api::secrets::SECRET;
use stillgate_plugin_api::{Answer, Compile, Define, Flow, Phase, Phases, Plugin, Request, Response, Secret};
use stillgate_schema::{Fault, Text, int, object, text};
use stillgate_wire::{FieldName, FieldValue, OwnedFieldName};

object! {
    /// Requires a token in requests that change something.
    pub(crate) struct CsrfKeys {
        /// The key that signs tokens.
        key: Secret = SECRET => required;
        /// Seconds until a token expires; with 0 or less it never does.
        expires: i64 = int(-EXPIRES_S_MAX, EXPIRES_S_MAX) => default(7200);
        /// The name of the cookie, and of the header field.
        name: String = NAME => default("apisix-csrf-token".to_owned());
    }
}

/// A hundred years.
const EXPIRES_S_MAX: i64 = 100 * 365 * 86_400;
/// A longer token is invalid; ours have about 150 bytes.
const TOKEN_BYTES_MAX: usize = 512;

const NAME: Text<String> = text("a name of a cookie and a header field", |text| {
    FieldName::new(text.as_bytes()).map(|_| text.to_owned()).map_err(|error| Fault::new(error.to_string()))
})
.shown();

/// The plugin.
pub(crate) struct Csrf {
    key: Secret,
    expires_s: i64,
    name: OwnedFieldName,
    cookie: Box<str>,
}

impl Define for Csrf {
    type Keys = CsrfKeys;
    const NAME: &'static str = "csrf";
    const PRIORITY: i32 = 2980;
    const PHASES: Phases = Phases::of(&[Phase::Access, Phase::HeaderFilter]);

    fn compile(keys: CsrfKeys, cx: &mut Compile<'_>) -> Option<Csrf> {
        if keys.key.reveal().is_empty() {
            let fault =
                Fault::new("the key is empty, so that everyone could make tokens").hint("write a long random text");
            cx.sink.error(cx.at, &cx.path.key("key"), fault);
            return None;
        }
        let name = OwnedFieldName::new(keys.name.as_bytes()).ok()?;
        Some(Csrf { key: keys.key, expires_s: keys.expires, name, cookie: keys.name.into() })
    }
}

const SET_COOKIE: FieldName<'static> = FieldName::constant("Set-Cookie");
const NO_HEADER: &str = "{\"error_msg\":\"no csrf token in headers\"}\n";
const NO_COOKIE: &str = "{\"error_msg\":\"no csrf cookie\"}\n";
const MISMATCH: &str = "{\"error_msg\":\"csrf token mismatch\"}\n";
const UNSIGNED: &str = "{\"error_msg\":\"Failed to verify the csrf token signature\"}\n";

impl Plugin for Csrf {
    fn each_field_read(&self, visit: &mut dyn FnMut(&str, &[u8])) {
        visit("name", self.name.name().bytes());
    }

    fn access(&self, request: &mut Request<'_>) -> Flow {
        if matches!(request.facts.method(), b"GET" | b"HEAD" | b"OPTIONS") {
            return Flow::Continue;
        }
        let refused = |text| Flow::Answer(Answer::text(401, text));
        let Some(token) = request.first_header(self.name.name()).filter(|token| !token.is_empty()) else {
            return refused(NO_HEADER);
        };
        let Some(cookie) = request.facts.cookie(&self.cookie) else { return refused(NO_COOKIE) };
        if token != cookie {
            return refused(MISMATCH);
        }
        match self.is_ours(token, request.worker.now_ms() / 1000) {
            true => Flow::Continue,
            false => refused(UNSIGNED),
        }
    }

    fn header_filter(&self, response: &mut Response<'_>) {
        let now_s = response.worker.now_ms() / 1000;
        let cookie = format!(
            "{}={};path=/;SameSite=Lax;Expires={}",
            self.cookie,
            self.token(random::share(), now_s),
            cookie_time(now_s.saturating_add_signed(self.expires_s))
        );
        // A token and a date have no control characters.
        if let Ok(value) = FieldValue::new(cookie.as_bytes()) {
            response.add_header(SET_COOKIE, value);
        }
    }
}

/// Standard base64; like nginx, it does not require padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

impl Csrf {
    /// A new token.
    fn token(&self, random: f64, now_s: u64) -> String {
        let (random, made_at) = (as_lua(random), as_lua(now_s as f64));
        let sign = self.sign(&random, &made_at);
        BASE64.encode(format!("{{\"random\":{random},\"expires\":{made_at},\"sign\":\"{sign}\"}}"))
    }

    /// Whether a token was made with our key, and has not expired.
    fn is_ours(&self, token: &[u8], now_s: u64) -> bool {
        if token.len() > TOKEN_BYTES_MAX {
            return false;
        }
        let Ok(Ok(token)) = BASE64.decode(token).map(|json| serde_json::from_slice::<Json>(&json)) else {
            return false;
        };
        let number = |key: &str| token.get(key).and_then(Json::as_f64);
        let (Some(random), Some(made_at)) = (number("random"), number("expires")) else { return false };
        let Some(sign) = token.get("sign").and_then(Json::as_str) else { return false };
        let is_over = self.expires_s > 0 && now_s as f64 - made_at > self.expires_s as f64;
        let expected = self.sign(&as_lua(random), &as_lua(made_at));
        !is_over && verify_slices_are_equal(expected.as_bytes(), sign.as_bytes()).is_ok()
    }

    fn sign(&self, random: &str, made_at: &str) -> String {
        let mut digest = Sha256::new();
        for part in ["{expires:", made_at, ",random:", random, ",key:", self.key.reveal(), "}"] {
            digest.update(part.as_bytes());
        }
        digest.finalize().iter().fold(String::with_capacity(64), |mut hex, byte| {
            // Writing to a text does not fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    }
}

/// A date in nginx's cookie format: `Thu, 18-Nov-10 11:27:35 GMT`, with the whole year after 2037.
fn cookie_time(unix_s: u64) -> String {
    /// The last second of the year 9999.
    const UNIX_S_MAX: u64 = 253_402_300_799;
    let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(unix_s.min(UNIX_S_MAX)));
    // `Thu, 18 Nov 2010 11:27:35 GMT`
    let (day, month, year, rest) = (&date[..7], &date[8..11], &date[12..16], &date[16..]);
    let year = if year > "2037" { year } else { &year[2..] };
    format!("{day}-{month}-{year}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_plugin_api::Secret;

    fn csrf(key: &str, expires_s: i64) -> Csrf {
        let name = OwnedFieldName::new(b"apisix-csrf-token").unwrap();
        Csrf { key: Secret::new(key.to_owned()), expires_s, name, cookie: "apisix-csrf-token".into() }
    }

    #[test]
    fn dates_of_cookies() {
        assert_eq!(cookie_time(1_290_079_655), "Thu, 18-Nov-10 11:27:35 GMT");
        assert_eq!(cookie_time(0), "Thu, 01-Jan-70 00:00:00 GMT");
        assert_eq!(cookie_time(2_145_916_799), "Thu, 31-Dec-37 23:59:59 GMT");
        assert_eq!(cookie_time(2_145_916_800), "Fri, 01-Jan-2038 00:00:00 GMT");
        assert_eq!(cookie_time(u64::MAX), "Fri, 31-Dec-9999 23:59:59 GMT");
    }

    #[test]
    fn tokens_of_apisix_are_ours() {
        // In APISIX's form: its keys in any order.
        let text = r#"{"sign":"d9cd38a8300abf46d9a542d37f404496b896fb8c37008caf6a2d0f69e065f551","random":0.13501949722156,"expires":7200}"#;
        let token = BASE64.encode(text);
        assert!(csrf("userkey", 7200).is_ours(token.as_bytes(), 14_400));
        assert!(csrf("userkey", 0).is_ours(token.as_bytes(), 9_000_000_000));
        assert!(!csrf("userkey", 7200).is_ours(token.as_bytes(), 14_401));
        assert!(!csrf("otherkey", 0).is_ours(token.as_bytes(), 0));
    }

    #[test]
    fn our_tokens_are_ours_and_no_others() {
        let csrf = csrf("a key", 100);
        let token = csrf.token(0.123_456_789_012_345, 1_000);
        let text = String::from_utf8(BASE64.decode(&token).unwrap()).unwrap();
        assert!(text.starts_with(r#"{"random":0.12345678901234,"expires":1000,"sign":""#), "{text}");
        assert!(csrf.is_ours(token.as_bytes(), 1_100) && !csrf.is_ours(token.as_bytes(), 1_101));
        assert!(csrf.is_ours(token.trim_end_matches('=').as_bytes(), 1_000));
        for changed in [
            text.replace("1000", "1001"),
            text.replace("0.1234", "0.1235"),
            text.replace("\"sign\":\"", "\"sign\":\"0"),
            text.replace("1000", "\"1000\""),
            text.replace("\"expires\":1000,", ""),
            "[]".to_owned(),
            "{".repeat(400),
            format!("{}1{}", "[".repeat(190), "]".repeat(190)),
            "1e999".to_owned(),
            String::new(),
        ] {
            assert!(!csrf.is_ours(BASE64.encode(&changed).as_bytes(), 1_000), "{changed}");
        }
        for broken in [&b"*"[..], b"\xff\xff", &[b'A'; 4096]] {
            assert!(!csrf.is_ours(broken, 1_000));
        }
    }
}
