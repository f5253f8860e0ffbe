//! Arguments in the body of a request, for conditions and texts that name them: the request waits for the body before
//! they are read.
//!
//! ```text
//!   Arguments (of a filter, of a plugin) ── Request::await_arguments ──▶ None: they are known
//!                                                                    ──▶ Flow::Body ──▶ read here, or on a thread for such work
//! ```
//!
//! Only the requested values of a body are kept, none longer than [`VALUE_BYTES_MAX`]. They are those of the body at
//! the time of the first look-up, even if it is changed later.
//!
//! A body that cannot be read, or a value that is longer, is not treated as absent: a node may read it, and a condition
//! on it may be what keeps clients out. The request is answered with 400 or 413, unless the plugin only watches.

pub(crate) mod values;

use crate::answer::Answer;
use crate::flow::Flow;
use crate::json::{self, Budget, BudgetExhausted};
use crate::query::decoded;
use crate::request::Request;
use crate::work::QueueFull;
use serde_json::Value as Json;
use stillgate_route::{BodyPath, BodyStep, Variable};
use stillgate_wire::FieldName;
use values::{ArgumentError, Value, Values};
pub use values::{Arguments, VALUE_BYTES_MAX};

/// A longer body is parsed on a thread that does not serve requests.
const SHORT_BYTES_MAX: usize = 8 * 1024;

const CONTENT_TYPE: FieldName<'static> = FieldName::constant("Content-Type");
const CONTENT_ENCODING: FieldName<'static> = FieldName::constant("Content-Encoding");

impl Request<'_> {
    /// What to wait for before the arguments can be read; it ends with [`Flow::Continue`], or with an answer if one
    /// cannot be read. `None`: nothing.
    pub fn await_arguments(&mut self, wanted: &Arguments) -> Option<Flow> {
        if wanted.variables.iter().all(|variable| self.settled.arguments.find(variable).is_some()) {
            return self.settled.arguments.refusal(wanted).map(Flow::from);
        }
        let (mut of_type, mut of_coding) = (Vec::new(), Vec::new());
        let coding = self.header(CONTENT_ENCODING, &mut of_coding);
        let reading = self.header(CONTENT_TYPE, &mut of_type).and_then(|kind| BodyFormat::of(kind, coding));
        let reading = reading.filter(|reading| wanted.variables.iter().any(|variable| reading.may_have(variable)))?;
        if self.body_here().is_some_and(|body| body.len() <= wanted.bytes_max) {
            return self.read_body_arguments(wanted, reading);
        }
        let (bytes_max, wanted) = (wanted.bytes_max, wanted.clone());
        Some(Flow::body(bytes_max, move |request| {
            request.read_body_arguments(&wanted, reading).unwrap_or(Flow::Continue)
        }))
    }

    /// The body that the node will get, or the client's if a filter changes it on its way.
    fn body_here(&self) -> Option<&[u8]> {
        self.whole_body().or(self.received)
    }

    fn read_body_arguments(&mut self, wanted: &Arguments, reading: BodyFormat) -> Option<Flow> {
        let body = self.body_here().unwrap_or_default();
        if body.len() <= SHORT_BYTES_MAX {
            return match reading.values(body, &wanted.variables, wanted.bytes_max) {
                Ok(values) => {
                    self.settled.arguments.note(wanted, values);
                    self.settled.arguments.refusal(wanted).map(Flow::from)
                }
                Err(BudgetExhausted) => Some(Answer::page(413).into()),
            };
        }
        let (variables, bytes_max, wanted) = (wanted.variables.clone(), wanted.bytes_max, wanted.clone());
        let read = move |body: &[u8]| reading.values(body, &variables, bytes_max);
        let then =
            move |values: Result<Result<Values, BudgetExhausted>, QueueFull>, request: &mut Request<'_>| match values {
                Ok(Ok(values)) => {
                    request.settled.arguments.note(&wanted, values);
                    request.settled.arguments.refusal(&wanted).map_or(Flow::Continue, Flow::from)
                }
                Ok(Err(BudgetExhausted)) => Answer::page(413).into(),
                Err(full) => full.into(),
            };
        Some(self.offload_with_body(read, then))
    }
}

// Reads the requested arguments from a body.
//
// Several values of a name, and the items of a list, are joined by `, `, like several lines of a header field; but
// `post_arg_NAME` is the first. A value that is not a text, number, flag or list of those counts as absent. One that
// cannot be read does not: its value is unknown.

/// The format of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
struct BodyFormat {
    kind: BodyKind,
    /// Whether it is compressed.
    is_coded: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum BodyKind {
    Json,
    Form,
    /// Multipart, with the boundary, if it is given.
    Multipart(Option<Box<[u8]>>),
}

const KINDS: [(&[u8], BodyKind); 3] = [
    (b"application/json", BodyKind::Json),
    (b"application/x-www-form-urlencoded", BodyKind::Form),
    (b"multipart/form-data", BodyKind::Multipart(None)),
];

/// A parsed body.
enum Contents<'b> {
    Json(Json),
    Form(&'b [u8]),
    Parts(Vec<NamedPart<'b>>),
}

impl BodyFormat {
    /// The format for the values of `Content-Type` and `Content-Encoding`; `None`: such a body has no arguments. As in
    /// APISIX, a type may be surrounded by other text.
    fn of(content_type: &[u8], content_encoding: Option<&[u8]>) -> Option<BodyFormat> {
        let (own, parameters) = content_type.split_at(memchr::memchr(b';', content_type).unwrap_or(content_type.len()));
        let (own, whole) = (own.trim_ascii().to_ascii_lowercase(), content_type.to_ascii_lowercase());
        let exact = KINDS.iter().find(|(name, _)| *name == own);
        let (_, kind) =
            exact.or_else(|| KINDS.iter().find(|(name, _)| memchr::memmem::find(&whole, name).is_some()))?;
        let boundary = || parameter(parameters, b"boundary").flatten().filter(|boundary| !boundary.is_empty());
        let kind = match kind {
            BodyKind::Multipart(_) => BodyKind::Multipart(boundary().map(Box::from)),
            kind => kind.clone(),
        };
        let is_coded = content_encoding.is_some_and(|coding| !coding.eq_ignore_ascii_case(b"identity"));
        Some(BodyFormat { kind, is_coded })
    }

    /// Whether such a body may contain the variable.
    fn may_have(&self, variable: &Variable) -> bool {
        matches!(variable, Variable::BodyArg(_)) || self.kind == BodyKind::Form
    }

    /// The values of variables in a body.
    ///
    /// # Errors
    ///
    /// If the parsed body needs more memory than the limit.
    fn values(&self, body: &[u8], variables: &[Variable], bytes_max: usize) -> Result<Values, BudgetExhausted> {
        if body.trim_ascii().is_empty() {
            return Ok(variables.iter().map(|_| Ok(None)).collect());
        }
        let contents = match self.contents(body, bytes_max)? {
            Ok(contents) => contents,
            Err(unread) => return Ok(variables.iter().map(|_| Err(unread)).collect()),
        };
        Ok(variables.iter().map(|variable| value(&contents, variable)).collect())
    }

    fn contents<'b>(
        &self,
        body: &'b [u8],
        bytes_max: usize,
    ) -> Result<Result<Contents<'b>, ArgumentError>, BudgetExhausted> {
        if self.is_coded {
            return Ok(Err(ArgumentError::Body));
        }
        Ok(match &self.kind {
            BodyKind::Json => match json::read(body, &mut Budget::of_body(bytes_max)) {
                Ok(json) => Ok(Contents::Json(json)),
                Err(error) if json::is_exhausted(&error) => return Err(BudgetExhausted),
                Err(_) => Err(ArgumentError::Body),
            },
            BodyKind::Form => Ok(Contents::Form(body)),
            BodyKind::Multipart(Some(boundary)) => parts(body, boundary).map(Contents::Parts),
            BodyKind::Multipart(None) => Err(ArgumentError::Body),
        })
    }
}

fn value(contents: &Contents<'_>, variable: &Variable) -> Value {
    let found = match (contents, variable) {
        (Contents::Json(json), Variable::BodyArg(way)) => of_json(json, way)?,
        (Contents::Form(body), Variable::PostArg(name)) => join_texts(form(body, name).take(1))?,
        (Contents::Form(body), Variable::BodyArg(way)) => chosen(|name| form(body, name), way)?,
        (Contents::Parts(parts), Variable::BodyArg(way)) => {
            chosen(|name| parts.iter().filter(move |part| part.name == name.as_bytes()).map(|part| part.content), way)?
        }
        _ => None,
    };
    Ok(found.map(Vec::into_boxed_slice))
}

/// The joined values; `None`: there are none.
type JoinedText = Result<Option<Vec<u8>>, ArgumentError>;

/// The values of a name that a path selects.
fn chosen<'w, T: AsRef<[u8]>, I: Iterator<Item = T>>(
    named: impl FnOnce(&'w str) -> I,
    way: &'w BodyPath,
) -> JoinedText {
    match way.steps() {
        [BodyStep::Name(name)] | [BodyStep::Name(name), BodyStep::Each] => join_texts(named(name)),
        [BodyStep::Name(name), BodyStep::Item(index)] => join_texts(named(name).skip(*index).take(1)),
        _ => Ok(None),
    }
}

/// Joins several texts.
fn join_texts<T: AsRef<[u8]>>(texts: impl IntoIterator<Item = T>) -> JoinedText {
    texts.into_iter().try_fold(None, |out: Option<Vec<u8>>, text| {
        let mut out = match out {
            None => Vec::new(),
            Some(mut out) => {
                out.extend_from_slice(b", ");
                out
            }
        };
        out.extend_from_slice(text.as_ref());
        match out.len() <= VALUE_BYTES_MAX {
            true => Ok(Some(out)),
            false => Err(ArgumentError::TooLong),
        }
    })
}

fn of_json(json: &Json, way: &BodyPath) -> JoinedText {
    let mut found = Vec::new();
    walk(json, way.steps(), &mut found);
    let items = found.iter().flat_map(|json| match json {
        Json::Array(items) => items.iter().collect(),
        json => vec![*json],
    });
    join_texts(items.filter_map(|json| match json {
        Json::String(text) => Some(text.clone()),
        Json::Number(number) => Some(number.to_string()),
        Json::Bool(flag) => Some(flag.to_string()),
        Json::Null | Json::Object(_) | Json::Array(_) => None,
    }))
}

fn walk<'j>(json: &'j Json, steps: &[BodyStep], found: &mut Vec<&'j Json>) {
    let Some((step, rest)) = steps.split_first() else { return found.push(json) };
    match step {
        BodyStep::Name(name) => json.get(&**name).into_iter().for_each(|json| walk(json, rest, found)),
        BodyStep::Item(index) => json.get(index).into_iter().for_each(|json| walk(json, rest, found)),
        BodyStep::Each => json.as_array().into_iter().flatten().for_each(|json| walk(json, rest, found)),
    }
}

/// The values of a name in a form, decoded; empty for a name alone.
fn form<'a>(body: &'a [u8], name: &'a str) -> impl Iterator<Item = Vec<u8>> {
    let pairs = body.split(|byte| *byte == b'&').map(|pair| {
        let end = memchr::memchr(b'=', pair).unwrap_or(pair.len());
        (&pair[..end], pair.get(end + 1..).unwrap_or_default())
    });
    pairs.filter(move |(key, _)| decoded(key).eq(name.bytes())).map(|(_, value)| decoded(value).collect())
}

// Parses multipart bodies (RFC 7578) strictly: if another parser could find a part elsewhere, or under another name,
// the whole body is unreadable.
//
// ```text
//  --B CRLF                                  preamble and what follows the last mark are not looked at
//  Content-Disposition: form-data; name="a" CRLF CRLF
//  content CRLF
//  --B-- CRLF
// ```

/// Most parts of a body that are read.
const PARTS_MAX: usize = 256;

/// A part with a name.
struct NamedPart<'b> {
    name: &'b [u8],
    content: &'b [u8],
}

/// The parts, in order.
fn parts<'b>(body: &'b [u8], boundary: &[u8]) -> Result<Vec<NamedPart<'b>>, ArgumentError> {
    let mark = [b"--", boundary].concat();
    let (mut parts, mut from) = (Vec::new(), None);
    for at in memchr::memmem::find_iter(body, &mark) {
        let before = &body[..at];
        match before.strip_suffix(b"\n") {
            // Within a line it is content.
            None if at > 0 => continue,
            Some(before) if !before.ends_with(b"\r") => return Err(ArgumentError::Body),
            _ => {}
        }
        if let Some(from) = from {
            parts.push(part(body.get(from..at - 2).ok_or(ArgumentError::Body)?)?);
        }
        let rest = &body[at + mark.len()..];
        if rest.starts_with(b"--") {
            return Ok(parts);
        }
        if parts.len() == PARTS_MAX {
            return Err(ArgumentError::Body);
        }
        let blanks = rest.iter().take_while(|byte| is_blank(byte)).count();
        if !rest[blanks..].starts_with(b"\r\n") {
            return Err(ArgumentError::Body);
        }
        from = Some(at + mark.len() + blanks + 2);
    }
    // The body is truncated.
    Err(ArgumentError::Body)
}

/// A part, parsed from its head on.
fn part(text: &[u8]) -> Result<NamedPart<'_>, ArgumentError> {
    let end = memchr::memmem::find(text, b"\r\n\r\n").ok_or(ArgumentError::Body)?;
    let name = name_of(&text[..end]).ok_or(ArgumentError::Body)?;
    Ok(NamedPart { name, content: &text[end + 4..] })
}

/// The name of a part, from its head; `None`: it has none, or other parsers may read another one.
fn name_of(head: &[u8]) -> Option<&[u8]> {
    let mut name = None;
    for line in head.split_inclusive(|byte| *byte == b'\n') {
        let line = match line.strip_suffix(b"\n") {
            Some(line) => line.strip_suffix(b"\r")?,
            None => line,
        };
        let (field, value) = line.split_at(memchr::memchr(b':', line)?);
        let (value, is_token) = (value[1..].trim_ascii(), !field.is_empty() && field.iter().all(u8::is_ascii_graphic));
        if !is_token || memchr::memchr2(b'\r', b'\0', line).is_some() {
            return None;
        }
        if field.eq_ignore_ascii_case(b"content-disposition") {
            let (kind, parameters) = value.split_at(memchr::memchr(b';', value)?);
            let is_form = kind.trim_ascii().eq_ignore_ascii_case(b"form-data");
            let own = parameter(parameters, b"name").filter(|_| is_form && name.is_none());
            name = Some(own.flatten()?);
        }
        // Another transfer encoding would change its content.
        let is_plain = || [&b"7bit"[..], b"8bit", b"binary"].iter().any(|kind| value.eq_ignore_ascii_case(kind));
        if field.eq_ignore_ascii_case(b"content-transfer-encoding") && !is_plain() {
            return None;
        }
    }
    name
}

/// A parameter of a header field, quoted or not: from `; a=1; name="value"`. `None`: the text is ambiguous;
/// `Some(None)`: it is absent.
fn parameter<'a>(mut text: &'a [u8], name: &[u8]) -> Option<Option<&'a [u8]>> {
    let mut found = None;
    loop {
        text = text.trim_ascii();
        if text.is_empty() {
            return Some(found);
        }
        text = text.strip_prefix(b";")?.trim_ascii_start();
        if text.is_empty() || text.starts_with(b";") {
            continue;
        }
        let (key, rest) = text.split_at(memchr::memchr(b'=', text)?);
        let rest = rest[1..].trim_ascii_start();
        let (value, rest) = match rest.strip_prefix(b"\"") {
            Some(quoted) => {
                let (value, rest) = quoted.split_at(memchr::memchr(b'"', quoted)?);
                // Some parsers take it for an escape, and others do not.
                if value.ends_with(b"\\") {
                    return None;
                }
                (value, &rest[1..])
            }
            None => {
                let (value, rest) = rest.split_at(memchr::memchr(b';', rest).unwrap_or(rest.len()));
                (value.trim_ascii_end(), rest)
            }
        };
        let key = key.trim_ascii_end();
        let is_extended = key.strip_suffix(b"*").is_some_and(|key| key.eq_ignore_ascii_case(name));
        let is_own = key.eq_ignore_ascii_case(name);
        let is_odd =
            memchr::memchr2(b'"', b'\\', key).is_some() || is_own && (found.is_some() || value.contains(&b'\\'));
        if is_extended || is_odd {
            return None;
        }
        if is_own {
            found = Some(value);
        }
        text = rest;
    }
}

fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content_type: &str, body: &str, variable: &str) -> Result<Option<String>, ArgumentError> {
        let reading = BodyFormat::of(content_type.as_bytes(), None).unwrap();
        let variables = [Variable::parse_with_body(variable).unwrap()];
        let value = reading.values(body.as_bytes(), &variables, 0).unwrap().remove(0);
        value.map(|value| value.map(|value| String::from_utf8(value.into()).unwrap()))
    }

    #[track_caller]
    fn check(content_type: &str, body: &str, variable: &str, expected: Option<&str>) {
        assert_eq!(read(content_type, body, variable), Ok(expected.map(str::to_owned)), "{variable}");
    }

    const MULTIPART: &str = "multipart/form-data; boundary=B";

    #[test]
    fn json_is_read_along_a_way() {
        let json = r#"{"a":{"b":["x",{"c":1.5},2]},"n":null,"t":true,"messages":[{"content":[{"type":"text"},{"type":"image"}]},
            {"content":"plain"},{"content":[{"type":"audio"}]}]}"#;
        check("application/json", json, "post_arg.a.b[1].c", Some("1.5"));
        check("Application/JSON; charset=utf-8", json, "post_arg.a.b", Some("x, 2"));
        check("application/json", json, "post_arg.t", Some("true"));
        check("application/json", json, "post_arg.messages[*].content[*].type", Some("text, image, audio"));
        check("application/json", json, "post_arg.messages[1].content", Some("plain"));
        for way in ["a", "n", "b", "a.b[2].c", "a.b[3]", "a.b.c", "t[*]"] {
            check("application/json", json, &format!("post_arg.{way}"), None);
        }
        check("application/json", r#"{"a":"user","a":"admin"}"#, "post_arg.a", Some("admin"));
        check("application/json", r#"{"a":"ä\n"}"#, "post_arg.a", Some("ä\n"));
        check("application/json", json, "post_arg_t", None);
        for without in ["[1]", "7", "null", "", " \r\n"] {
            check("application/json", without, "post_arg.a", None);
        }
    }

    /// A body that a node may be able to read must not count as empty.
    #[test]
    fn a_body_that_cannot_be_read_is_not_empty() {
        for broken in
            ["{", "\u{feff}{\"a\":1}", "{\"a\":1}x", "{\"a\":010}", "{\"a\":NaN}", "{'a':1}", "{\"a\":1,}", "\"\n\""]
        {
            assert_eq!(read("application/json", broken, "post_arg.a"), Err(ArgumentError::Body), "{broken}");
        }
        let deep = format!("{{\"b\":{}{},\"a\":1}}", "[".repeat(200), "]".repeat(200));
        assert_eq!(read("application/json", &deep, "post_arg.a"), Err(ArgumentError::Body));
        for content_type in
            ["multipart/form-data", "multipart/form-data; boundary=\"\"", "multipart/form-data; boundary=B; boundary=C"]
        {
            let body = "--B\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n--B--";
            assert_eq!(read(content_type, body, "post_arg.a"), Err(ArgumentError::Body), "{content_type}");
        }
        let variables = [Variable::parse_with_body("post_arg.a").unwrap()];
        for (coding, expected) in [
            ("identity", Ok(Some(b"1"[..].into()))),
            ("Identity", Ok(Some(b"1"[..].into()))),
            ("gzip", Err(ArgumentError::Body)),
            ("identity, br", Err(ArgumentError::Body)),
        ] {
            let reading = BodyFormat::of(b"application/x-www-form-urlencoded", Some(coding.as_bytes())).unwrap();
            assert_eq!(reading.values(b"a=1", &variables, 0).unwrap(), [expected], "{coding}");
            assert_eq!(reading.values(b"", &variables, 0).unwrap(), [Ok(None)], "{coding}");
        }
    }

    #[test]
    fn a_type_may_have_other_text_around_it() {
        let kind = |content_type: &str| BodyFormat::of(content_type.as_bytes(), None).map(|reading| reading.kind);
        assert_eq!(kind("text/plain, application/json"), Some(BodyKind::Json));
        assert_eq!(kind("application/json-patch+json"), Some(BodyKind::Json));
        assert_eq!(kind(" APPLICATION/X-WWW-FORM-URLENCODED;charset=utf-8"), Some(BodyKind::Form));
        assert_eq!(
            kind("multipart/form-data; boundary=application/json"),
            Some(BodyKind::Multipart(Some(b"application/json"[..].into())))
        );
        for other in ["text/plain", "text/json", "multipart/mixed; boundary=B", ""] {
            assert_eq!(kind(other), None, "{other}");
        }
    }

    #[test]
    fn forms_have_values_by_name() {
        let form = |variable: &str, expected| {
            check(
                "application/x-www-form-urlencoded; charset=utf-8",
                "a=%20x&b.c=1&a=y+z&%64=4&e&f=",
                variable,
                expected,
            );
        };
        form("post_arg_a", Some(" x"));
        form("post_arg.a", Some(" x, y z"));
        form("post_arg.a[*]", Some(" x, y z"));
        form("post_arg.a[1]", Some("y z"));
        form("post_arg_b.c", Some("1"));
        form("post_arg.d", Some("4"));
        form("post_arg_e", Some(""));
        form("post_arg_f", Some(""));
        for none in ["post_arg_g", "post_arg.b.c", "post_arg.a[2]", "post_arg.a[0].b"] {
            form(none, None);
        }
    }

    #[test]
    fn parts_have_names() {
        let parts = "--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\none\r\n\
                     --B\r\ncontent-type: text/plain\r\ncontent-disposition: form-data; name=f; filename=\"x\"\r\n\r\ntwo\r\nlines\r\n\
                     --B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--B--\r\n";
        check(MULTIPART, parts, "post_arg.a", Some("one, 1"));
        check(MULTIPART, parts, "post_arg.a[1]", Some("1"));
        check("multipart/form-data; boundary=\"B\"", parts, "post_arg.f", Some("two\r\nlines"));
        check(MULTIPART, parts, "post_arg_a", None);
        check(MULTIPART, parts, "post_arg.b", None);
        assert_eq!(read("multipart/form-data; boundary=C", parts, "post_arg.a"), Err(ArgumentError::Body));
    }

    #[test]
    fn what_takes_too_much_memory_is_refused() {
        let body = format!("{{\"a\":[{}]}}", vec!["{}"; 600_000].join(","));
        let variables = [Variable::parse_with_body("post_arg.b").unwrap()];
        let reading = BodyFormat::of(b"application/json", None).unwrap();
        assert_eq!(reading.values(body.as_bytes(), &variables, 0), Err(BudgetExhausted));
        assert!(reading.values(body.as_bytes(), &variables, 64 << 20).is_ok());
    }

    #[test]
    fn what_is_too_long_is_not_read() {
        let of = |length: usize| {
            serde_json::json!({"a": "x".repeat(length), "b": ["x".repeat(length / 2), "x".repeat(length / 2)]})
                .to_string()
        };
        let lengths = |length: usize| {
            let variables = ["post_arg.a", "post_arg.b"].map(|name| Variable::parse_with_body(name).unwrap());
            let reading = BodyFormat::of(b"application/json", None).unwrap();
            let values = reading.values(of(length).as_bytes(), &variables, 0).unwrap();
            values.into_iter().map(|value| value.map(|value| value.unwrap().len())).collect::<Vec<_>>()
        };
        assert_eq!(lengths(VALUE_BYTES_MAX), [Ok(VALUE_BYTES_MAX), Err(ArgumentError::TooLong)]);
        assert_eq!(lengths(VALUE_BYTES_MAX - 2), [Ok(VALUE_BYTES_MAX - 2), Ok(VALUE_BYTES_MAX)]);
        assert_eq!(lengths(VALUE_BYTES_MAX + 2), [Err(ArgumentError::TooLong); 2]);
        // The first value of a form has its own limit.
        let form = format!("a=1&a={}", "x".repeat(VALUE_BYTES_MAX));
        check("application/x-www-form-urlencoded", &form, "post_arg_a", Some("1"));
        assert_eq!(read("application/x-www-form-urlencoded", &form, "post_arg.a"), Err(ArgumentError::TooLong));
    }
}

#[cfg(test)]
mod multipart_tests {
    use super::*;

    fn read(body: &str) -> Result<Vec<(String, String)>, ArgumentError> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(parts(body.as_bytes(), b"B")?.iter().map(|part| (text(part.name), text(part.content))).collect())
    }

    #[track_caller]
    fn check(body: &str, expected: &[(&str, &str)]) {
        let expected: Vec<_> = expected.iter().map(|(name, content)| (name.to_string(), content.to_string())).collect();
        assert_eq!(read(body), Ok(expected), "{body:?}");
    }

    #[test]
    fn parts_have_names_and_contents() {
        let head = "Content-Disposition: form-data; name=";
        check(&format!("--B\r\n{head}\"a\"\r\n\r\n1\r\n--B--\r\n"), &[("a", "1")]);
        check(
            &format!("preamble\r\n--B \t\r\n{head}a\r\n\r\n\r\n--B\r\n{head}\"b;c\"\r\n\r\nx--B\ny\r\n--B--"),
            &[("a", ""), ("b;c", "x--B\ny")],
        );
        check(
            "--B\r\nX-Own: 1\r\ncontent-disposition: Form-Data; filename=\"a;b=\"; name=f\r\n\
             Content-Transfer-Encoding: 8BIT\r\n\r\nx\r\n--B--",
            &[("f", "x")],
        );
        check("--B--\r\n", &[]);
    }

    /// For each of these, another parser may read another name, or another content.
    #[test]
    fn what_can_be_read_in_several_ways_is_not_read() {
        let of = |head: &str| read(&format!("--B\r\n{head}\r\n\r\n1\r\n--B--"));
        assert!(of("Content-Disposition: form-data; name=a").is_ok());
        for head in [
            "",
            "X-Own: 1",
            "Content-Disposition: form-data",
            "Content-Disposition: form-data; filename=a",
            "Content-Disposition: attachment; name=a",
            "Content-Disposition: form-data; name=a; name=b",
            "Content-Disposition: form-data; name=a; name*=utf-8''b",
            "Content-Disposition: form-data; name=\"a\\\"b\"",
            "Content-Disposition: form-data; name=\"a\\b\"",
            "Content-Disposition: form-data; filename=\"a\\\"; name=\"x\"; y=\"",
            "Content-Disposition: form-data; x=\"; name=y\" z; name=\"a\"",
            "Content-Disposition: form-data; name=\"a",
            "Content-Disposition: form-data;\r\n name=a",
            "Content-Disposition: form-data; name=a\nX: y",
            "Content-Disposition : form-data; name=a",
            "Content-Disposition: form-data; name=a\r\nContent-Disposition: form-data; name=b",
            "Content-Disposition: form-data; name=a\r\nContent-Transfer-Encoding: base64",
        ] {
            assert_eq!(of(head), Err(ArgumentError::Body), "{head:?}");
        }
        let part = "Content-Disposition: form-data; name=a\r\n\r\n1";
        for body in [
            String::new(),
            "x".to_owned(),
            format!("--B\r\n{part}"),
            format!("--B\r\n{part}\r\n--B"),
            format!("--B\n{part}\n--B--"),
            format!("--B\r\n{part}\n--B--"),
            format!("--Bx\r\n{part}\r\n--B--"),
            "--B\r\n--B--".to_owned(),
            format!("--B\r\n{part}\r\n--B--").replace("\r\n\r\n", "\n\n"),
        ] {
            assert_eq!(read(&body), Err(ArgumentError::Body), "{body:?}");
        }
        let many = |count: usize| format!("--B\r\n{part}\r\n").repeat(count) + "--B--";
        assert_eq!(read(&many(PARTS_MAX)).map(|parts| parts.len()), Ok(PARTS_MAX));
        assert_eq!(read(&many(PARTS_MAX + 1)), Err(ArgumentError::Body));
    }
}
