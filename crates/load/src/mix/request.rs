//! Converts a request's parts to its bytes, with the checks that every source of requests shares; and has the answer
//! that is expected, any other being an error.
//!
//! Ambiguous requests are refused: the result would not measure the server.

use super::errors::{Findings, Location, quoted};
use super::template::{Piece, Template, ValueSource, Variable, in_target};
use super::{Entry, EntryBytes};
use memchr::memmem;
use regex::bytes::Regex;
use std::sync::Arc;
use stillgate_wire::Method;

/// A value and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ValueAt<T> {
    pub(super) at: Location,
    pub(super) value: T,
}

/// A request before its checks.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) name: Option<String>,
    pub(super) method: ValueAt<String>,
    pub(super) path: ValueAt<Template>,
    pub(super) headers: Vec<(ValueAt<String>, ValueAt<Template>)>,
    pub(super) body: Option<Template>,
    /// The type of the body, unless a header has it.
    pub(super) content_type: Option<String>,
    pub(super) expect: Expect,
}

/// Longest method, in bytes; the longest registered one has 17.
const METHOD_BYTES_MAX: usize = 32;

impl Draft {
    /// Checks all parts. `None` if there were errors, which then are in the findings.
    pub(super) fn entry(self, host: &str, variables: &[Variable], findings: &mut Findings) -> Option<Entry> {
        let mut wrong = Findings::default();
        check_method(&self.method, &mut wrong);
        check_path(&self.path, &self.method.value, variables, &mut wrong);
        for (index, (name, value)) in self.headers.iter().enumerate() {
            let before = &self.headers[..index];
            check_header(name, value, variables, before, &mut wrong);
        }
        let sound = wrong.is_empty();
        findings.append(wrong);
        sound.then(|| self.assemble(host, variables))
    }

    fn assemble(self, host: &str, variables: &[Variable]) -> Entry {
        let mut head = Template::literal(format!("{} ", self.method.value));
        head.append(&self.path.value);
        head.push_literal(b" HTTP/1.1\r\n");
        let has = |wanted: &str| self.headers.iter().any(|(name, _)| name.value.eq_ignore_ascii_case(wanted));
        if !has("host") {
            head.push_literal(format!("Host: {host}\r\n").as_bytes());
        }
        for (name, value) in &self.headers {
            head.push_literal(format!("{}: ", name.value).as_bytes());
            head.append(&value.value);
            head.push_literal(b"\r\n");
        }
        if let Some(content_type) = self.content_type.as_ref().filter(|_| !has("content-type")) {
            head.push_literal(format!("Content-Type: {content_type}\r\n").as_bytes());
        }
        let method = Method::from_bytes(self.method.value.as_bytes());
        let fixed = self.body.as_ref().map_or(Some(&[][..]), Template::as_literal);
        let body = match fixed {
            Some(body) => {
                // RFC 9110 section 8.6: sent if the method anticipates content, even an empty one.
                if !body.is_empty() || matches!(method, Method::Post | Method::Put | Method::Patch) {
                    head.push_literal(format!("Content-Length: {}\r\n", body.len()).as_bytes());
                }
                head.push_literal(b"\r\n");
                head.push_literal(body);
                None
            }
            None => self.body,
        };
        let sent = match head.as_literal() {
            Some(bytes) if body.is_none() => EntryBytes::Fixed(Arc::from(bytes)),
            _ => EntryBytes::Filled { head, body },
        };
        let name = self.name.unwrap_or_else(|| format!("{} {}", self.method.value, shown(&self.path.value, variables)));
        let fields = self.headers.into_iter().map(|(name, _)| name.value).collect();
        Entry { name, method, expect: self.expect, fields, sent }
    }
}

/// The source of a template, for messages.
fn shown(template: &Template, variables: &[Variable]) -> String {
    let mut text = String::new();
    for piece in &template.pieces {
        match piece {
            Piece::Literal(literal) => text.push_str(&String::from_utf8_lossy(literal)),
            Piece::Variable(index, _) => text.push_str(&format!("${{{}}}", variables[*index].name)),
        }
    }
    text
}

fn check_method(method: &ValueAt<String>, findings: &mut Findings) {
    let ValueAt { at, value } = method;
    let upper = value.to_ascii_uppercase();
    if value.is_empty() || value.len() > METHOD_BYTES_MAX || !value.bytes().all(in_token) {
        findings.add(*at, format!("{} is not a method; write one like GET or POST", quoted(value)));
    } else if *value != upper && Method::from_bytes(upper.as_bytes()) != Method::Other {
        findings.add(*at, format!("methods are case-sensitive, {} is another; write {upper}", quoted(value)));
    } else if value == "CONNECT" {
        findings.add(*at, "CONNECT opens a tunnel, which is not measured; remove this request");
    }
}

fn check_path(path: &ValueAt<Template>, method: &str, variables: &[Variable], findings: &mut Findings) {
    let ValueAt { at, value: template } = path;
    let begins = match template.pieces.first() {
        _ if method == "OPTIONS" && template.as_literal() == Some(b"*") => true,
        None => false,
        Some(Piece::Literal(literal)) => literal.starts_with(b"/"),
        Some(Piece::Variable(index, _)) => match &variables[*index].source {
            ValueSource::Values(values) => values.iter().all(|value| value.starts_with(b"/")),
            _ => false,
        },
    };
    if !begins {
        let path = shown(template, variables);
        findings.add(*at, format!("the path {} must begin with /", quoted(&path)));
    }
    for piece in &template.pieces {
        let Piece::Literal(literal) = piece else { continue };
        let Some(byte) = literal.iter().copied().find(|byte| !in_target(*byte)) else { continue };
        let what = match byte {
            b'#' => "the part after # is never sent to a server; remove it, or write %23".to_owned(),
            b' ' => "a space cannot be in a path; write %20".to_owned(),
            _ if byte.is_ascii() => format!("{:?} cannot be in a path; write %{byte:02X}", char::from(byte)),
            _ => "only ASCII can be in a path; write other characters as %XX, byte by byte".to_owned(),
        };
        findings.add(*at, what);
        break;
    }
}

fn check_header(
    name: &ValueAt<String>,
    value: &ValueAt<Template>,
    variables: &[Variable],
    before: &[(ValueAt<String>, ValueAt<Template>)],
    findings: &mut Findings,
) {
    let is = |other: &str| name.value.eq_ignore_ascii_case(other);
    if name.value.is_empty() || !name.value.bytes().all(in_token) {
        let message = format!("{} is not a header name; write letters, digits and hyphens", quoted(&name.value));
        findings.add(name.at, message);
    } else if is("content-length") {
        findings.add(name.at, "Content-Length is written from the body; remove it");
    } else if is("transfer-encoding") {
        findings.add(name.at, "Transfer-Encoding is not sent, bodies have a Content-Length; remove it");
    } else if is("host") && before.iter().any(|(other, _)| is(&other.value)) {
        findings.add(name.at, "a request has one Host; remove this one");
    }
    for piece in &value.value.pieces {
        match piece {
            Piece::Literal(literal) if !in_field_value(literal) => {
                let message = "a line break or another control character cannot be in a header; remove it";
                findings.add(value.at, message);
            }
            Piece::Literal(_) => {}
            Piece::Variable(index, _) => {
                let Variable { name, source } = &variables[*index];
                if let Some(number) = source.refused_by(in_field_value) {
                    let message = format!(
                        "`{name}` cannot be in a header: its value number {number} has a line break or another control \
                         character; remove it there"
                    );
                    findings.add(value.at, message);
                }
            }
        }
    }
}

/// RFC 9110 section 5.6.2.
fn in_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// RFC 9110 section 5.5, with `obs-text`.
fn in_field_value(value: &[u8]) -> bool {
    value.iter().all(|&byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f))
}

/// The expectations of an answer. By default a status of 200 to 399 and any body.
#[derive(Debug, Clone, Default)]
pub struct Expect {
    pub(super) statuses: StatusSet,
    pub(super) body: Option<BodyCheck>,
}

impl Expect {
    /// Whether this is one of the expected statuses.
    #[inline]
    pub fn status(&self, status: u16) -> bool {
        self.statuses.contains(status)
    }

    /// Whether the body has to be kept for [`Expect::body`].
    #[inline]
    pub fn needs_body(&self) -> bool {
        self.body.is_some()
    }

    /// Whether this is the expected body.
    pub fn body(&self, body: &[u8]) -> bool {
        match &self.body {
            None => true,
            Some(BodyCheck::Equals(want)) => **want == *body,
            Some(BodyCheck::Contains(want)) => memmem::find(body, want).is_some(),
            Some(BodyCheck::Matches(regex)) => regex.is_match(body),
        }
    }
}

/// One check of a body.
#[derive(Debug, Clone)]
pub(super) enum BodyCheck {
    Equals(Arc<[u8]>),
    Contains(Arc<[u8]>),
    Matches(Regex),
}

/// The valid forms, for messages.
pub(super) const STATUSES_WANTED: &str = "a status of 100 to 599 like 200, a class like 2xx, or a range like 301-303";

/// The first and the last of `200`, `2xx` or `301-303`.
pub(super) fn status_range(text: &str) -> Option<(u16, u16)> {
    let status = |text: &str| text.parse().ok().filter(|n| text.len() == 3 && (STATUS_MIN..=STATUS_MAX).contains(n));
    if let Some(class) = text.strip_suffix("xx").or(text.strip_suffix("XX")) {
        let first = status(&format!("{class}00"))?;
        return Some((first, first + 99));
    }
    match text.split_once('-') {
        Some((from, to)) => Some((status(from)?, status(to)?)).filter(|(from, to)| from <= to),
        None => status(text).map(|status| (status, status)),
    }
}

/// A set of status codes, 100 to 599.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StatusSet([u64; WORDS]);

pub(super) const STATUS_MIN: u16 = 100;
pub(super) const STATUS_MAX: u16 = 599;
const WORDS: usize = (STATUS_MAX - STATUS_MIN) as usize / 64 + 1;

impl StatusSet {
    pub(super) const EMPTY: StatusSet = StatusSet([0; WORDS]);

    #[inline]
    fn contains(&self, status: u16) -> bool {
        let bit = usize::from(status.wrapping_sub(STATUS_MIN));
        self.0.get(bit / 64).is_some_and(|word| word >> (bit % 64) & 1 == 1)
    }

    /// Parses a list like `200,301-303,4xx`; the error is a message.
    pub(super) fn parse(list: &str) -> Result<StatusSet, String> {
        let mut statuses = StatusSet::EMPTY;
        for item in list.split(',') {
            let (from, to) = status_range(item.trim())
                .ok_or_else(|| format!("{} is here; write {STATUSES_WANTED}", quoted(item)))?;
            statuses.add(from, to);
        }
        Ok(statuses)
    }

    /// Adds the statuses of a range; numbers outside of 100 to 599 are ignored.
    pub(super) fn add(&mut self, from: u16, to: u16) {
        for status in from.max(STATUS_MIN)..=to.min(STATUS_MAX) {
            let bit = usize::from(status - STATUS_MIN);
            self.0[bit / 64] |= 1 << (bit % 64);
        }
    }

    /// Adds the statuses of another set.
    pub(super) fn merge(&mut self, other: &StatusSet) {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word |= other);
    }
}

impl Default for StatusSet {
    fn default() -> Self {
        let mut statuses = StatusSet::EMPTY;
        statuses.add(200, 399);
        statuses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_read_or_refused() {
        let check = |list: &str, yes: &[u16], no: &[u16]| {
            let expect = Expect { statuses: StatusSet::parse(list).unwrap(), body: None };
            assert!(yes.iter().all(|&status| expect.status(status)), "{list}");
            assert!(no.iter().all(|&status| !expect.status(status)), "{list}");
        };
        check("200", &[200], &[199, 201, 0, 100, 599, 65535]);
        check("100,599", &[100, 599], &[99, 101, 598, 600, 611, 0]);
        check(" 200 , 301-303,4XX", &[200, 301, 302, 303, 400, 499], &[201, 300, 304, 399, 500]);
        check("1xx,2xx,3xx,4xx,5xx", &(100..600).collect::<Vec<_>>(), &[0, 99, 600, 999]);
        let default = Expect::default();
        assert!((0..=u16::MAX).all(|status| default.status(status) == (200..400).contains(&status)));
        for list in [
            "", "20", "2000", "099", "600", "6xx", "0xx", "xx", "2x", "+20", "-200", "303-301", "200-", "200,,201",
            "2xx-3xx", "ok",
        ] {
            let error = StatusSet::parse(list).unwrap_err();
            assert!(
                error.ends_with("write a status of 100 to 599 like 200, a class like 2xx, or a range like 301-303"),
                "{error}"
            );
        }
    }

    #[test]
    fn bodies_are_checked() {
        let check = |body: Option<BodyCheck>, bytes: &[u8], want: bool| {
            let expect = Expect { body, ..Expect::default() };
            assert_eq!(expect.body(bytes), want, "{expect:?} {bytes:?}");
        };
        check(None, b"anything", true);
        check(Some(BodyCheck::Equals(b"ok"[..].into())), b"ok", true);
        check(Some(BodyCheck::Equals(b"ok"[..].into())), b"ok\n", false);
        check(Some(BodyCheck::Contains(b"\xff\x00"[..].into())), b"a\xff\x00b", true);
        check(Some(BodyCheck::Contains(b"id"[..].into())), b"i d", false);
        check(Some(BodyCheck::Contains(b""[..].into())), b"", true);
        check(Some(BodyCheck::Matches(Regex::new("^[0-9]+$").unwrap())), b"123", true);
        check(Some(BodyCheck::Matches(Regex::new("^[0-9]+$").unwrap())), b"\xff123", false);
        assert!(!Expect::default().needs_body());
    }
}
