//! The signature of a request, and the signed text: a form of the draft "Signing HTTP Messages" (cavage), as APISIX
//! reads it.
//!
//! ```text
//!  Authorization: Signature keyId="jack",algorithm="hmac-sha256",headers="@request-target date",signature="…"
//!
//!  jack
//!  GET /orders?x=1
//!  date: Tue, 19 Jan 2021 11:33:20 GMT
//! ```
//!
//! Each line of the signed text ends with a line feed. For a field with several lines APISIX signs the first; here all
//! of them count, joined by a comma and a blank, so that none can be added after signing.

use aws_lc_rs::hmac;
use stillgate_plugin::Request;
use stillgate_route::Lookup;

/// The parameters of a signature.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parameters<'a> {
    pub(super) key_id: Option<&'a [u8]>,
    pub(super) algorithm: Option<&'a [u8]>,
    pub(super) signature: Option<&'a [u8]>,
    /// The names of the signed parts, separated by blanks.
    pub(super) headers: Option<&'a [u8]>,
}

/// The scheme.
pub(super) const SCHEME: &[u8] = b"Signature";
/// The name for the method and the target.
const REQUEST_TARGET: &[u8] = b"@request-target";

impl<'a> Parameters<'a> {
    /// Parses the text after the scheme: names and quoted values between commas. Malformed parts are skipped, and the
    /// last one of a name counts.
    pub(super) fn parse(text: &'a [u8]) -> Parameters<'a> {
        let mut parameters = Parameters::default();
        for (name, value) in text.split(|byte| *byte == b',').filter_map(pair) {
            match name {
                b"keyId" => parameters.key_id = Some(value),
                b"algorithm" => parameters.algorithm = Some(value),
                b"signature" => parameters.signature = Some(value),
                b"headers" => parameters.headers = Some(value),
                _ => {}
            }
        }
        parameters
    }

    /// The names of the signed parts.
    pub(super) fn signed(&self) -> impl Iterator<Item = &'a [u8]> {
        let names = self.headers.map(|names| names.split(|byte| *byte == b' '));
        names.into_iter().flatten()
    }

    /// Whether a field is signed.
    pub(super) fn signs(&self, header: &[u8]) -> bool {
        self.signed().any(|name| name.eq_ignore_ascii_case(header))
    }

    /// Computes the signature of the named parts of a request with a key.
    pub(super) fn sign(&self, key: &hmac::Key, request: &Request<'_>, buffer: &mut Vec<u8>) -> hmac::Tag {
        let mut signing = hmac::Context::with_key(key);
        signing.update(self.key_id.unwrap_or_default());
        signing.update(b"\n");
        for name in self.signed() {
            if name == REQUEST_TARGET {
                let target = request.facts.path_and_query();
                for part in [request.facts.method(), b" ", if target.is_empty() { b"/" } else { target }, b"\n"] {
                    signing.update(part);
                }
                continue;
            }
            if write_values(name, request, buffer) {
                for part in [name, b": ", buffer, b"\n"] {
                    signing.update(part);
                }
            }
        }
        signing.sign()
    }
}

/// Writes the values of a field; `false`: the request does not have it.
fn write_values(name: &[u8], request: &Request<'_>, out: &mut Vec<u8>) -> bool {
    let mut is_there = false;
    out.clear();
    request.each_header(&mut |field, value| {
        if field.eq_ignore_ascii_case(name) {
            if is_there {
                out.extend_from_slice(b", ");
            }
            out.extend_from_slice(value);
            is_there = true;
        }
    });
    is_there
}

/// A name and its value in `name="value"`, with blanks before it.
fn pair(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let equals = memchr::memmem::find(text, b"=\"")?;
    let (name, value) = (text[..equals].trim_ascii_start(), &text[equals + 2..]);
    let end = memchr::memchr(b'"', value)?;
    (!name.is_empty() && name.iter().all(u8::is_ascii_alphanumeric)).then_some((name, &value[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read() {
        let check = |text: &'static str, expected: [Option<&'static str>; 4]| {
            let [key_id, algorithm, signature, headers] = expected.map(|text| text.map(str::as_bytes));
            assert_eq!(
                Parameters::parse(text.as_bytes()),
                Parameters { key_id, algorithm, signature, headers },
                "{text}"
            );
        };
        check(
            r#" keyId="jack",algorithm="hmac-sha256", headers="@request-target date",  signature="a+/=""#,
            [Some("jack"), Some("hmac-sha256"), Some("a+/="), Some("@request-target date")],
        );
        check(r#"signature="a",keyId="b",signature="c""#, [Some("b"), None, Some("c"), None]);
        check(r#"keyId="",other="x",keyid="y""#, [Some(""), None, None, None]);
        check(r#"keyId=jack,algorithm="x,signature = "y",key-Id="z","#, [None; 4]);
        check("", [None; 4]);
        check(r#"keyId="a=b""#, [Some("a=b"), None, None, None]);
        let names = Parameters { headers: Some(b"@request-target Date x-a"), ..Parameters::default() };
        assert!(names.signs(b"date") && names.signs(b"X-A") && !names.signs(b"x"));
        assert!(!Parameters::default().signs(b""));
    }
}
