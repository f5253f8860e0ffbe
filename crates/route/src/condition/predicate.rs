//! A test of one field: its meaning, independent of the language it was written in.
//!
//! No predicate holds for an absent field. Where `vars` differs (`~=` holds for an absent variable) it is written as
//! [`super::Condition::Not`]. All values of a field must pass the test, or with [`Predicate::any`] one.

use crate::condition::{Field, FieldKind};
use crate::regex::Pattern;
use crate::{AddressSet, HostPattern, Method, MethodSet, PathPattern};
use ipnet::IpNet;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

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
