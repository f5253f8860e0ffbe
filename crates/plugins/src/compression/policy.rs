//! Decides which responses are compressed, and adjusts their heads.
//!
//! Whether a client accepts a coding, and with which preference, is read from `Accept-Encoding` (RFC 9110 section 12.5.3).

use crate::body_fields::{CONTENT_ENCODING, CONTENT_TYPE, ETAG, forget_coded_bytes};
use stillgate_plugin_api::Response;
use stillgate_schema::kind::{some, text};
use stillgate_schema::{
    Choice, Definitions, Fault, Json, Kind, Node, Path, Sink, Text, Value, read, report_expected, text as text_kind,
};
use stillgate_wire::{FieldName, FieldValue};

/// Media types.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Types {
    /// `*`
    All,
    Listed(Vec<String>),
}

impl Default for Types {
    fn default() -> Types {
        Types::Listed(vec!["text/html".to_owned()])
    }
}

/// The kind of `types`: a list, or `*`.
pub(super) struct TypesKind;

const TYPE: Text<String> = text_kind("a media type", |text| match text.is_empty() {
    true => Err(Fault::new("an empty media type").hint("write one such as \"text/html\"")),
    false => Ok(text.to_ascii_lowercase()),
});

const ALL: Text<()> = text("a list of media types, or \"*\"", |text| match text {
    "*" => Ok(()),
    _ => Err(Fault::new(format!("expected a list of media types, or \"*\", found {text:?}"))),
});

impl Kind for TypesKind {
    type Out = Types;

    fn read(&self, node: &Node, path: &Path<'_>, sink: &mut Sink) -> Option<Types> {
        match &node.value {
            Value::List(_) => read(&some(TYPE), node, path, sink).map(Types::Listed),
            Value::Scalar(_) => read(&ALL, node, path, sink).map(|()| Types::All),
            _ => {
                report_expected("a list of media types, or \"*\"", node, path, sink);
                None
            }
        }
    }

    fn schema(&self, definitions: &mut Definitions) -> Json {
        serde_json::json!({"title": "list of text, or `*`", "anyOf": [some(TYPE).schema(definitions), {"const": "*"}]})
    }

    fn show(&self, types: &Types) -> Json {
        match types {
            Types::All => "*".into(),
            Types::Listed(types) => types.clone().into(),
        }
    }
}

/// The lowest version of HTTP whose clients get compressed responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HttpVersion {
    Http10,
    Http11,
}

pub(super) const HTTP_VERSION: Choice<HttpVersion> = Choice {
    words: &[("1.1", HttpVersion::Http11), ("1.0", HttpVersion::Http10), ("1", HttpVersion::Http10)],
    unbuilt: &[],
};

/// Which responses are compressed.
pub(super) struct Policy {
    /// Its name in `Content-Encoding`.
    pub(super) coding: &'static str,
    pub(super) types: Types,
    pub(super) min_length: u64,
    pub(super) http_version: HttpVersion,
    pub(super) vary: bool,
    /// Whether only 200, 403 and 404 are compressed, as by nginx's own filter.
    pub(super) is_strict: bool,
}

const VARY: FieldName<'static> = FieldName::constant("Vary");
const ACCEPT_ENCODING: FieldValue<'static> = FieldValue::constant("Accept-Encoding");
const CACHE_CONTROL: FieldName<'static> = FieldName::constant("Cache-Control");
const CONTENT_RANGE: FieldName<'static> = FieldName::constant("Content-Range");

impl Policy {
    /// Whether the body is compressed for this client; then the head says so, if `is_possible` holds as well. `Vary` is
    /// set in either case.
    pub(super) fn begin(&self, response: &mut Response<'_>, is_possible: impl FnOnce() -> bool) -> bool {
        if !self.concerns(response) {
            return false;
        }
        if self.vary {
            add_vary(response);
        }
        if !self.compresses(response) || !is_possible() {
            return false;
        }
        if self.replaces(response) {
            response.body.withdraw_last();
        }
        forget_coded_bytes(response);
        response.set_header(CONTENT_ENCODING, FieldValue::constant(self.coding));
        weaken_etag(response);
        true
    }

    /// Whether the response would be compressed for clients that accept it.
    fn concerns(&self, response: &Response<'_>) -> bool {
        let mut buffer = Vec::new();
        let Some(content_type) = response.header(CONTENT_TYPE, &mut buffer) else { return false };
        let media_type = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let is_listed = match &self.types {
            Types::All => true,
            Types::Listed(types) => types.iter().any(|listed| media_type.eq_ignore_ascii_case(listed.as_bytes())),
        };
        // Messages of gRPC have a coding of their own; no other reader understands them.
        let is_grpc = media_type.get(..16).is_some_and(|start| start.eq_ignore_ascii_case(b"application/grpc"));
        let is_plain = response.body.is_empty() || (self.replaces(response) && response.body.count() == 1);
        let length = if is_plain { response.length } else { response.body.length() };
        let is_new_enough = self.http_version == HttpVersion::Http10 || response.facts.protocol != "HTTP/1.0";
        let length = length.filter(|_| response.facts.method() != b"HEAD");
        is_listed && !is_grpc && length.is_none_or(|length| length >= self.min_length) && is_new_enough
    }

    fn compresses(&self, response: &Response<'_>) -> bool {
        let status = response.status();
        let has_body = response.facts.method() != b"HEAD" && !matches!(status, ..200 | 204 | 205 | 206 | 304);
        if !has_body || (self.is_strict && !matches!(status, 200 | 403 | 404)) {
            return false;
        }
        let mut buffer = Vec::new();
        if response.header(CONTENT_RANGE, &mut buffer).is_some()
            || (is_coded(response, &mut buffer) && !self.replaces(response))
        {
            return false;
        }
        let is_fixed = response.header(CACHE_CONTROL, &mut buffer).is_some_and(|value| names(value, "no-transform"));
        !is_fixed && weight(response, self.coding) > 0
    }

    /// Whether another of these plugins codes the body, and the client prefers this one.
    fn replaces(&self, response: &Response<'_>) -> bool {
        let other = match response.body.last_filter() {
            Some("gzip") => "gzip",
            Some("brotli") => "br",
            Some("zstd") => "zstd",
            _ => return false,
        };
        let is_its_coding = response.header(CONTENT_ENCODING, &mut Vec::new()) == Some(other.as_bytes());
        is_its_coding && weight(response, self.coding) > weight(response, other)
    }
}

/// The weight that the client gives a coding.
fn weight(response: &Response<'_>, coding: &str) -> u16 {
    let facts = response.facts;
    let accepted = facts.request.fields.iter();
    let accepted = accepted.filter(|field| field.name.of(facts.head).eq_ignore_ascii_case(b"accept-encoding"));
    weight_of(accepted.map(|field| field.value.of(facts.head)), coding)
}

/// Whether the body is coded already.
fn is_coded(response: &Response<'_>, buffer: &mut Vec<u8>) -> bool {
    let coding = response.header(CONTENT_ENCODING, buffer);
    coding.is_some_and(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity"))
}

/// Whether a list of words contains a word.
fn names(list: &[u8], word: &str) -> bool {
    list.split(|byte| *byte == b',').any(|item| item.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
}

fn add_vary(response: &mut Response<'_>) {
    let mut buffer = Vec::new();
    let is_there =
        response.header(VARY, &mut buffer).is_some_and(|vary| names(vary, "Accept-Encoding") || names(vary, "*"));
    if !is_there {
        response.add_header(VARY, ACCEPT_ENCODING);
    }
}

/// The coded body is equivalent to the node's, but not identical: `W/` says so (RFC 9110 section 8.8.3). A value that
/// is not an entity tag is removed.
fn weaken_etag(response: &mut Response<'_>) {
    let mut buffer = Vec::new();
    let mut weak = Vec::new();
    match response.header(ETAG, &mut buffer) {
        None | Some([b'W', b'/', b'"', ..]) => return,
        Some(strong @ [b'"', .., b'"']) => {
            weak.extend_from_slice(b"W/");
            weak.extend_from_slice(strong);
        }
        Some(_) => {}
    }
    match weak.is_empty() {
        true => response.remove_header(ETAG),
        false => response.set_header(ETAG, FieldValue::of_head(&weak)),
    }
}

/// The weights of codings that matter for one of them. They are thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Weights {
    coding: Option<u16>,
    /// `*`
    others: Option<u16>,
    identity: Option<u16>,
}

/// The weight of a coding for a client with these lines of `Accept-Encoding`, in thousandths, if a body may, and
/// should, be sent in it: the coding is named or `*`, with a weight that is not zero and not below that of the identity
/// coding, if that has one. Otherwise zero.
///
/// A client without the field would accept any coding; as in nginx it gets none, since it may not know of them.
fn weight_of<'a>(lines: impl Iterator<Item = &'a [u8]>, coding: &str) -> u16 {
    let mut weights = Weights::default();
    for item in lines.flat_map(|line| line.split(|byte| *byte == b',')) {
        let mut parts = item.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let name = parts.next().unwrap_or_default();
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        let place = match name {
            _ if is(coding) => &mut weights.coding,
            // nginx, which compresses for APISIX's `gzip`, looks for the coding's own name.
            b"*" if coding != "gzip" => &mut weights.others,
            _ if is("identity") => &mut weights.identity,
            _ => continue,
        };
        // The first one counts.
        place.get_or_insert(weight_in(parts));
    }
    let weight = weights.coding.or(weights.others).unwrap_or(0);
    if weight >= weights.identity.unwrap_or(0) { weight } else { 0 }
}

/// The weight of an item, from its parameters; 0 if it is invalid.
fn weight_in<'a>(parameters: impl Iterator<Item = &'a [u8]>) -> u16 {
    for parameter in parameters {
        if let [b'q' | b'Q', b'=', value @ ..] = parameter {
            return thousandths(value.trim_ascii()).unwrap_or(0);
        }
    }
    1000
}

/// `0`, `1`, or one of them with up to three decimals.
fn thousandths(text: &[u8]) -> Option<u16> {
    let (whole, decimals) = match text {
        [whole] => (whole, &[][..]),
        [whole, b'.', decimals @ ..] if decimals.len() <= 3 => (whole, decimals),
        _ => return None,
    };
    let mut value = match whole {
        b'0' => 0,
        b'1' => 1,
        _ => return None,
    };
    for place in 0..3 {
        let digit = decimals.get(place).copied().unwrap_or(b'0');
        value = 10 * value + u16::from(digit.is_ascii_digit().then(|| digit - b'0')?);
    }
    (value <= 1000).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_decide() {
        let check = |lines: &[&str], expected: bool| {
            assert_eq!(weight_of(lines.iter().map(|line| line.as_bytes()), "gzip") > 0, expected, "{lines:?}");
        };
        check(&[], false);
        check(&[""], false);
        check(&["gzip"], true);
        check(&["GZIP"], true);
        check(&["x-gzip"], false);
        check(&["deflate, br"], false);
        check(&["deflate, gzip;q=1.0, *;q=0.5"], true);
        check(&["deflate", "br, gzip"], true);
        check(&["gzip;q=0"], false);
        check(&["gzip;q=0.000"], false);
        check(&["gzip;q=0.001"], true);
        check(&["gzip ; q=0.5"], true);
        check(&["gzip;Q=1"], true);
        check(&["*"], false);
        check(&["*;q=0"], false);
        check(&["gzip;q=0, *"], false);
        check(&["*;q=0, gzip"], true);
        check(&["identity, gzip"], true);
        check(&["identity;q=1, gzip;q=0.5"], false);
        check(&["identity;q=0.5, gzip"], true);
        check(&["identity;q=0"], false);
        check(&["identity;q=0, *"], false);
        for bad in ["gzip;q=", "gzip;q=2", "gzip;q=1.001", "gzip;q=0.0001", "gzip;q=a", "gzip;q=.5", "gzip;q=-1"] {
            check(&[bad], false);
        }
        check(&["gzip;level=1"], true);
        check(&["gzipped, ,;,"], false);
        let weight = |line: &str, coding: &str| weight_of([line.as_bytes()].into_iter(), coding);
        let line = "gzip;q=0.5, br;q=0.25, *;q=0.75, identity;q=0.3";
        assert_eq!(["gzip", "br", "zstd"].map(|coding| weight(line, coding)), [500, 0, 750]);
    }
}
