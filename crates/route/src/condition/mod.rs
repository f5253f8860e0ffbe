//! The condition that a route sets for requests: a boolean combination of predicates, whatever language it was written
//! in.
//!
//! Kong's expressions, APISIX's `vars` and the parts of URI routes all become a [`Condition`]; the compiler, explain
//! and lint know nothing else. [`predicate`] defines the meaning of predicates, [`field`] the fields they read,
//! [`implies`] what follows from them, [`decided`] which of them need no request; [`simplify`] makes conditions short.

pub(crate) mod decided;
pub(crate) mod implies;
pub(crate) mod simplify;
#[cfg(test)]
mod tests;

use crate::regex::Pattern;
use crate::variable::HeaderName;
use crate::{AddressSet, HostPattern, Method, MethodSet, PathPattern, Variable};
use ipnet::IpNet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

/// A condition on a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Condition {
    /// Always holds.
    True,
    /// Never holds.
    False,
    /// Every one holds; empty, it holds.
    All(Vec<Condition>),
    /// At least one holds; empty, it does not.
    Any(Vec<Condition>),
    /// Holds if the condition does not. True for a predicate on an absent field, since predicates do not hold for
    /// absent values.
    Not(Box<Condition>),
    /// A predicate.
    Is(Arc<Predicate>),
}

impl Condition {
    /// Whether it holds, given by `predicate` the value of each of its predicates. Evaluated from the left, and no
    /// further than needed.
    pub fn holds(&self, predicate: &mut dyn FnMut(&Predicate) -> bool) -> bool {
        match self {
            Condition::True => true,
            Condition::False => false,
            Condition::All(all) => all.iter().all(|condition| condition.holds(predicate)),
            Condition::Any(any) => any.iter().any(|condition| condition.holds(predicate)),
            Condition::Not(condition) => !condition.holds(predicate),
            Condition::Is(is) => predicate(is),
        }
    }

    /// Its value, given by `predicate` the known values of its predicates; `None` if it depends on unknown ones.
    pub fn evaluate_known(&self, predicate: &mut dyn FnMut(&Predicate) -> Option<bool>) -> Option<bool> {
        match self {
            Condition::True => Some(true),
            Condition::False => Some(false),
            Condition::All(all) => one_decides(all, false, predicate),
            Condition::Any(any) => one_decides(any, true, predicate),
            Condition::Not(condition) => condition.evaluate_known(predicate).map(|holds| !holds),
            Condition::Is(is) => predicate(is),
        }
    }

    /// Calls `visit` with every predicate, as often as it occurs in the condition.
    pub fn each_predicate<'a>(&'a self, visit: &mut dyn FnMut(&'a Arc<Predicate>)) {
        match self {
            Condition::True | Condition::False => {}
            Condition::All(conditions) | Condition::Any(conditions) => {
                conditions.iter().for_each(|condition| condition.each_predicate(visit));
            }
            Condition::Not(condition) => condition.each_predicate(visit),
            Condition::Is(predicate) => visit(predicate),
        }
    }
}

/// The value of a chain in which one part that is `deciding` is enough.
fn one_decides(
    parts: &[Condition],
    deciding: bool,
    predicate: &mut dyn FnMut(&Predicate) -> Option<bool>,
) -> Option<bool> {
    let mut result = Some(!deciding);
    for part in parts {
        match part.evaluate_known(predicate) {
            Some(value) if value == deciding => return Some(deciding),
            Some(_) => {}
            None => result = None,
        }
    }
    result
}

// A test of one field: its meaning, independent of the language it was written in.
//
// No predicate holds for an absent field. Where `vars` differs (`~=` holds for an absent variable) it is written as
// [`Condition::Not`]. All values of a field must pass the test, or with [`Predicate::any`] one.

/// A test of a field.
#[derive(Debug, Clone)]
pub struct Predicate {
    /// The field to test.
    pub field: Field,
    /// Whether the values are put into lower case first (as [`str::to_lowercase`] does).
    pub lower: bool,
    /// Whether one passing value is enough.
    pub any: bool,
    /// The test that values must pass. It is of the field's type.
    pub test: Test,
    /// Its source text and position. Predicates that differ only here are equal.
    pub source: PredicateOrigin,
}

/// The place where a predicate was written.
#[derive(Debug, Clone, Default)]
pub struct PredicateOrigin {
    /// The text as written.
    pub text: Box<str>,
    /// Line and column in the expression, both from 1 and in characters; `None` outside of expressions.
    pub at: Option<(u32, u32)>,
}

/// A condition on one value.
#[derive(Debug, Clone, PartialEq)]
pub enum Test {
    /// The value exists; `vars` writes this as a comparison with null.
    Present,
    /// `==` on text.
    Equal(Box<[u8]>),
    /// `!=` on text.
    NotEqual(Box<[u8]>),
    /// `^=`
    Prefix(Box<[u8]>),
    /// `=^`
    Suffix(Box<[u8]>),
    /// `contains`
    Contains(Box<[u8]>),
    /// `~`, and `~~` and `~*` of `vars`: it matches anywhere.
    Regex(Pattern),
    /// `==` on a number.
    IntEqual(i64),
    /// `!=` on a number.
    IntNotEqual(i64),
    /// `<`
    Less(i64),
    /// `<=`
    LessOrEqual(i64),
    /// `>`
    Greater(i64),
    /// `>=`
    GreaterOrEqual(i64),
    /// `==` on an address.
    IpEqual(IpAddr),
    /// `!=` on an address.
    IpNotEqual(IpAddr),
    /// `in`
    InNetwork(IpNet),
    /// `not in`
    NotInNetwork(IpNet),
    /// `remote_addrs`, and `ipmatch` of `vars`: an address, or a text that is one, in one of the networks.
    Addresses(AddressSet),
    /// `methods`
    Methods(MethodSet),
    /// One of `hosts`.
    Host(HostPattern),
    /// One of `uris`.
    Path(PathPattern),
    /// A comparison of `vars` with a number: the text is one, and the comparison holds.
    Number(NumberTest, f64),
    /// `has` of `vars`: a comma-separated list with that element; blanks around elements don't count.
    HasElement(Box<str>),
}

/// How `vars` compares numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberTest {
    /// `==`
    Equal,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
}

/// One value of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ConditionValue<'a> {
    /// A value of a text field.
    Text(&'a [u8]),
    /// A value of a number field.
    Int(i64),
    /// A value of an address field; canonical (see [`IpAddr::to_canonical`]).
    Ip(IpAddr),
}

impl ConditionValue<'_> {
    /// Reads a text as a value of that kind; `None` where it is not one.
    pub(crate) fn read(kind: FieldKind, text: &[u8]) -> Option<ConditionValue<'_>> {
        match kind {
            FieldKind::Text => Some(ConditionValue::Text(text)),
            FieldKind::Int => std::str::from_utf8(text).ok()?.parse().ok().map(ConditionValue::Int),
            FieldKind::Ip => parse_address(text).map(ConditionValue::Ip),
        }
    }
}

/// An address in a text, canonical.
pub(crate) fn parse_address(text: &[u8]) -> Option<IpAddr> {
    let address: IpAddr = std::str::from_utf8(text).ok()?.parse().ok()?;
    Some(address.to_canonical())
}

impl Test {
    /// Whether a value passes. A value of another type than the test's does not.
    ///
    /// Regexes are matched here one by one, in whatever time that takes; the matcher has automata for them.
    pub fn passes(&self, value: ConditionValue<'_>) -> bool {
        match (self, value) {
            (Test::Present, _) => true,
            (_, ConditionValue::Text(text)) => self.passes_text(text),
            (_, ConditionValue::Int(number)) => self.passes_int(number),
            (_, ConditionValue::Ip(address)) => self.passes_ip(address),
        }
    }

    #[inline]
    fn passes_text(&self, text: &[u8]) -> bool {
        match self {
            Test::Equal(expected) => text == &**expected,
            Test::NotEqual(other) => text != &**other,
            Test::Prefix(prefix) => text.starts_with(prefix),
            Test::Suffix(suffix) => text.ends_with(suffix),
            Test::Contains(part) => memchr::memmem::find(text, part).is_some(),
            Test::Regex(pattern) => pattern.is_match(text),
            Test::Methods(methods) => methods.admits(Method::from_bytes(text)),
            Test::Host(pattern) => pattern.matches(text),
            Test::Path(pattern) => pattern.matches(text),
            Test::Addresses(set) => parse_address(text).is_some_and(|address| set.contains(address)),
            Test::Number(test, bound) => parse_number(text).is_some_and(|number| test.holds(number, *bound)),
            Test::HasElement(element) => {
                text.split(|byte| *byte == b',').any(|part| part.trim_ascii() == element.as_bytes())
            }
            _ => false,
        }
    }

    #[inline]
    fn passes_int(&self, number: i64) -> bool {
        match self {
            Test::IntEqual(expected) => number == *expected,
            Test::IntNotEqual(other) => number != *other,
            Test::Less(bound) => number < *bound,
            Test::LessOrEqual(bound) => number <= *bound,
            Test::Greater(bound) => number > *bound,
            Test::GreaterOrEqual(bound) => number >= *bound,
            _ => false,
        }
    }

    #[inline]
    fn passes_ip(&self, address: IpAddr) -> bool {
        match self {
            Test::IpEqual(expected) => address == *expected,
            Test::IpNotEqual(other) => address != *other,
            Test::InNetwork(network) => network.contains(&address),
            Test::NotInNetwork(network) => !network.contains(&address),
            Test::Addresses(set) => set.contains(address),
            _ => false,
        }
    }
}

impl NumberTest {
    fn holds(self, number: f64, bound: f64) -> bool {
        match self {
            NumberTest::Equal => number == bound,
            NumberTest::Less => number < bound,
            NumberTest::LessOrEqual => number <= bound,
            NumberTest::Greater => number > bound,
            NumberTest::GreaterOrEqual => number >= bound,
        }
    }
}

/// A number as Lua's `tonumber` reads it: decimal with fraction and exponent or hexadecimal, blanks around it; unlike
/// Lua's no `inf`, `nan` or hexadecimal fraction.
pub(crate) fn parse_number(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text.trim_ascii()).ok()?;
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let magnitude = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) if hex.bytes().all(|b| b.is_ascii_hexdigit()) => u64::from_str_radix(hex, 16).ok()? as f64,
        Some(_) => return None,
        None if digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') => digits.parse().ok()?,
        None => return None,
    };
    Some(if negative { -magnitude } else { magnitude })
}

impl PartialEq for Predicate {
    fn eq(&self, other: &Predicate) -> bool {
        self.field == other.field && self.lower == other.lower && self.any == other.any && self.test == other.test
    }
}

impl Eq for Predicate {}

impl Hash for Predicate {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.field, self.lower, self.any, std::mem::discriminant(&self.test)).hash(state);
        match &self.test {
            Test::Equal(text)
            | Test::NotEqual(text)
            | Test::Prefix(text)
            | Test::Suffix(text)
            | Test::Contains(text) => {
                text.hash(state);
            }
            Test::Regex(pattern) => pattern.hash(state),
            Test::IntEqual(number)
            | Test::IntNotEqual(number)
            | Test::Less(number)
            | Test::LessOrEqual(number)
            | Test::Greater(number)
            | Test::GreaterOrEqual(number) => number.hash(state),
            Test::IpEqual(address) | Test::IpNotEqual(address) => address.hash(state),
            Test::InNetwork(network) | Test::NotInNetwork(network) => network.hash(state),
            Test::Methods(methods) => methods.hash(state),
            Test::Host(pattern) => pattern.hash(state),
            Test::Path(pattern) => pattern.hash(state),
            Test::Number(test, number) => (*test as u8, number.to_bits()).hash(state),
            Test::HasElement(element) => element.hash(state),
            // Equal ones have equal discriminants, which is enough for a hash.
            Test::Present | Test::Addresses(_) => {}
        }
    }
}

// The fields that predicates read: those of Kong's expressions, and variables as nginx and APISIX name them.
//
// A field has a type, no value if the request lacks it, and any number of values if [`Field::is_multiple`] holds.

/// A named value of a request, or several.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Field {
    /// `http.method`: unchanged.
    Method,
    /// `http.host`: in lower case, without port; absent where the request has none.
    Host,
    /// `http.path`: normalised, without query.
    Path,
    /// `http.path.segments.N`: one segment of the normalised path, from 0; a slash at the end begins none.
    Segment(u16),
    /// `http.path.segments.N_M`: the segments from N to M, joined by `/`; absent where there is no segment M.
    Segments(u16, u16),
    /// `http.path.segments.len`: the number of segments.
    SegmentCount,
    /// `http.headers.NAME`: the value of every line of that name.
    Header(HeaderName),
    /// `http.queries.NAME`: the value of every `NAME=value` in the query, both decoded (`+` is a blank); empty for `NAME`
    /// alone. Names are case-sensitive.
    Query(Box<str>),
    /// `net.protocol`: `http` or `https`, of the client's connection.
    Protocol,
    /// `net.src.ip`: the client, after trusted proxies were believed.
    SourceIp,
    /// `net.src.port`: the port of the connection's peer.
    SourcePort,
    /// `net.dst.ip`: our address on the connection.
    DestinationIp,
    /// `net.dst.port`: our port on the connection.
    DestinationPort,
    /// `tls.sni`: the server name that the client requested; absent without TLS.
    Sni,
    /// A variable that is not one of the above.
    Variable(Variable),
}

/// The type of a field's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldKind {
    /// Bytes, mostly text.
    Text,
    /// A number of 64 bits.
    Int,
    /// An IPv4 or IPv6 address.
    Ip,
}

/// Why a text does not name a field of the expression language.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldError {
    /// No field has that name.
    Unknown,
    /// Its last part is wrong.
    Name {
        /// Why it is wrong.
        reason: &'static str,
        /// The most similar field that exists.
        write: String,
    },
}

/// Fields without a name part.
const PLAIN: [(&str, Field); 10] = [
    ("http.method", Field::Method),
    ("http.host", Field::Host),
    ("http.path", Field::Path),
    ("http.path.segments.len", Field::SegmentCount),
    ("net.protocol", Field::Protocol),
    ("net.src.ip", Field::SourceIp),
    ("net.src.port", Field::SourcePort),
    ("net.dst.ip", Field::DestinationIp),
    ("net.dst.port", Field::DestinationPort),
    ("tls.sni", Field::Sni),
];

/// The part before the name of fields that have one, and an example of a name.
const NAMED: [(&str, &str); 3] = [("http.path.segments", "0"), ("http.headers", "x_name"), ("http.queries", "name")];

impl Field {
    /// Parses a field of the expression language.
    pub fn parse(name: &str) -> Result<Field, FieldError> {
        if let Some((_, field)) = PLAIN.iter().find(|(plain, _)| *plain == name) {
            return Ok(field.clone());
        }
        let named = NAMED.iter().find_map(|(head, example)| {
            let part = name.strip_prefix(head)?;
            Some((*head, *example, if part.is_empty() { part } else { part.strip_prefix('.')? }))
        });
        let Some((head, example, part)) = named else { return Err(FieldError::Unknown) };
        let wrong = |reason| Err(FieldError::Name { reason, write: format!("{head}.{example}") });
        match head {
            _ if part.is_empty() => wrong("its last part is missing"),
            _ if part.contains('.') => wrong("its last part has no dots"),
            "http.path.segments" => segments(part),
            "http.headers" => HeaderName::from_variable(part)
                .map_or_else(|| wrong("no header has such a name"), |name| Ok(Field::Header(name))),
            _ => Ok(Field::Query(part.into())),
        }
    }

    /// The type of its values.
    pub fn kind(&self) -> FieldKind {
        match self {
            Field::SegmentCount | Field::SourcePort | Field::DestinationPort => FieldKind::Int,
            Field::SourceIp | Field::DestinationIp => FieldKind::Ip,
            _ => FieldKind::Text,
        }
    }

    /// Whether a request may have several values of it.
    pub fn is_multiple(&self) -> bool {
        matches!(self, Field::Header(_) | Field::Query(_))
    }

    /// Whether every request has a value of it.
    pub fn is_always_there(&self) -> bool {
        matches!(
            self,
            Field::Method
                | Field::Path
                | Field::Variable(Variable::Uri)
                | Field::SegmentCount
                | Field::SourceIp
                | Field::Protocol
        )
    }

    /// Length of the name part of a header field or argument.
    pub(crate) fn name_bytes(&self) -> usize {
        match self {
            Field::Header(name) => name.as_str().len(),
            Field::Query(name) => name.len(),
            _ => 0,
        }
    }

    /// Whether nearly every request or connection has another value of it.
    pub(crate) fn is_nearly_unique(&self) -> bool {
        matches!(self, Field::SourcePort | Field::Variable(Variable::RemotePort))
    }

    /// Whether its values are ASCII whatever the client sends.
    pub fn is_ascii(&self) -> bool {
        matches!(self, Field::Path | Field::Segment(_) | Field::Segments(..) | Field::Protocol)
    }
}

/// The last part of `http.path.segments.…`.
fn segments(part: &str) -> Result<Field, FieldError> {
    let wrong = |reason, write: &str| Err(FieldError::Name { reason, write: format!("http.path.segments.{write}") });
    let number = |text: &str| match text.bytes().all(|b| b.is_ascii_digit()) {
        true => text.parse::<u16>().ok(),
        false => None,
    };
    let Some((first, last)) = part.split_once('_') else {
        return match number(part) {
            Some(index) => Ok(Field::Segment(index)),
            None if part.bytes().all(|b| b.is_ascii_digit()) => wrong("no path has so many segments", "0"),
            None if strsim::damerau_levenshtein(part, "len") <= 1 || part == "length" || part == "count" => {
                wrong("the number of segments is `len`", "len")
            }
            None => wrong("segments are numbered from 0", "0"),
        };
    };
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first < last => Ok(Field::Segments(first, last)),
        (Some(first), Some(last)) if first == last => wrong("it is a single segment", &first.to_string()),
        (Some(first), Some(last)) => wrong("the first segment comes first", &format!("{last}_{first}")),
        _ => wrong("a range of segments has two numbers", "0_1"),
    }
}

/// Longest name that may be a slip of the pen of a shorter one: comparing costs the product of both lengths.
const NEAREST_BYTES_MAX: usize = 128;

/// The field with the most similar name. Only messages need it: it takes long, and any text may be looked up.
pub(crate) fn nearest(name: &str) -> Option<String> {
    if name.len() > NEAREST_BYTES_MAX {
        return None;
    }
    // The last part of a named field is free, so only what comes before it is compared.
    let (head, part) = name.rsplit_once('.').unwrap_or((name, ""));
    let named = NAMED.into_iter().flat_map(|(known, example)| {
        let whole = |part| format!("{known}.{part}");
        [
            (whole(if part.is_empty() { example } else { part }), strsim::damerau_levenshtein(head, known), known),
            (whole(example), strsim::damerau_levenshtein(name, known), known),
        ]
    });
    let plain = PLAIN.iter().map(|(plain, _)| ((*plain).to_owned(), strsim::damerau_levenshtein(name, plain), *plain));
    let near = plain.chain(named).filter(|(_, distance, known)| *distance <= known.len() / 3);
    // A suggestion that would be wrong again does not help.
    let right = near.filter(|(whole, ..)| Field::parse(whole).is_ok());
    right.min_by_key(|(_, distance, _)| *distance).map(|(whole, ..)| whole)
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Field::Segment(index) => write!(f, "http.path.segments.{index}"),
            Field::Segments(first, last) => write!(f, "http.path.segments.{first}_{last}"),
            Field::Header(name) => write!(f, "http.headers.{}", name.as_str().replace('-', "_")),
            Field::Query(name) => write!(f, "http.queries.{name}"),
            Field::Variable(variable) => write!(f, "{variable}"),
            plain => {
                let known = PLAIN.iter().find(|(_, field)| field == plain);
                f.write_str(known.map_or("", |(name, _)| name))
            }
        }
    }
}

#[cfg(test)]
mod field_tests {
    use super::*;

    #[test]
    fn fields_print_as_they_are_written() {
        let parts =
            ["http.path.segments.0", "http.path.segments.65535", "http.path.segments.0_1", "http.queries.Page_1"];
        for name in PLAIN.iter().map(|(name, _)| *name).chain(parts).chain(["http.headers.x_beta"]) {
            assert_eq!(Field::parse(name).unwrap().to_string(), name);
        }
    }

    #[test]
    fn header_names_have_dashes_and_no_case() {
        let field = Field::parse("http.headers.X_Beta").unwrap();
        assert_eq!(field, Field::parse("http.headers.x_beta").unwrap());
        let Field::Header(name) = field else { panic!("{field:?}") };
        assert_eq!(name.as_str(), "x-beta");
        assert_ne!(Field::parse("http.queries.A"), Field::parse("http.queries.a"));
    }

    #[test]
    fn types_are_those_of_the_reference() {
        let kind = |name| Field::parse(name).unwrap().kind();
        for name in ["http.path.segments.len", "net.src.port", "net.dst.port"] {
            assert_eq!(kind(name), FieldKind::Int);
        }
        for name in ["net.src.ip", "net.dst.ip"] {
            assert_eq!(kind(name), FieldKind::Ip);
        }
        for name in ["http.path.segments.0", "http.headers.len", "http.queries.len", "net.protocol", "tls.sni"] {
            assert_eq!(kind(name), FieldKind::Text);
        }
    }

    #[test]
    fn a_wrong_last_part_says_what_to_write() {
        for (name, expected) in [
            ("http.path.segments", "http.path.segments.0"),
            ("http.path.segments.", "http.path.segments.0"),
            ("http.path.segments.x", "http.path.segments.0"),
            ("http.path.segments.N", "http.path.segments.0"),
            ("http.path.segments.+1", "http.path.segments.0"),
            ("http.path.segments.65536", "http.path.segments.0"),
            ("http.path.segments.Len", "http.path.segments.len"),
            ("http.path.segments.count", "http.path.segments.len"),
            ("http.path.segments.3_3", "http.path.segments.3"),
            ("http.path.segments.3_1", "http.path.segments.1_3"),
            ("http.path.segments.3_", "http.path.segments.0_1"),
            ("http.path.segments._3", "http.path.segments.0_1"),
            ("http.path.segments.1_2_3", "http.path.segments.0_1"),
            ("http.path.segments.0.1", "http.path.segments.0"),
            ("http.headers", "http.headers.x_name"),
            ("http.headers.", "http.headers.x_name"),
            ("http.headers.a.b", "http.headers.x_name"),
            ("http.headers.ü", "http.headers.x_name"),
            ("http.queries.", "http.queries.name"),
        ] {
            let Err(FieldError::Name { write, .. }) = Field::parse(name) else {
                panic!("{name}: {:?}", Field::parse(name))
            };
            assert_eq!(write, expected, "{name}");
            assert!(Field::parse(&write).is_ok(), "{write}");
        }
    }

    #[test]
    fn what_is_nearest_is_a_field() {
        for (name, expected) in [
            ("http.mehtod", Some("http.method")),
            ("http.hosts", Some("http.host")),
            ("http.path.segment.0", Some("http.path.segments.0")),
            ("http.path.segment.len", Some("http.path.segments.len")),
            ("http.header.x_beta", Some("http.headers.x_beta")),
            ("http.headers_x_beta", None),
            ("htp.queries.page", Some("http.queries.page")),
            ("http.query.page", Some("http.queries.page")),
            ("http.headrs", Some("http.headers.x_name")),
            ("net.scr.ip", Some("net.src.ip")),
            ("tls.sin", Some("tls.sni")),
            ("", None),
            (".", None),
            ("http", None),
            ("true", None),
        ] {
            assert_eq!(Field::parse(name), Err(FieldError::Unknown));
            let nearest = nearest(name);
            assert_eq!(nearest.as_deref(), expected, "{name}");
        }
        let long = "http.path".repeat(10_000);
        assert_eq!((Field::parse(&long), nearest(&long)), (Err(FieldError::Unknown), None));
    }
}
