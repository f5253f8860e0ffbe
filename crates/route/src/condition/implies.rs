//! Whether one predicate follows from another, whatever the request.
//!
//! Sound and incomplete: `true` is proven, `false` means unknown. A relation of values (every text that passes this
//! passes that; none passes both; each passes one) is carried over to predicates, according to their meaning for
//! several values and for none.

use crate::condition::decided::{finite_domain, int_domain, int_range};
use crate::condition::{ConditionValue, NumberTest, Predicate, Test};
use crate::pattern::{PARAM, STAR};
use crate::text::lower_case;
use crate::{HostPattern, Method};
use memchr::memmem;

/// Whether every request that satisfies `p` (or with `not_p` does not) satisfies `q` (or with `not_q` does not).
pub(crate) fn implies(p: &Predicate, not_p: bool, q: &Predicate, not_q: bool) -> bool {
    if p.field != q.field {
        return false;
    }
    match (not_p, not_q) {
        (false, false) => follows(p, q),
        (true, true) => follows(q, p),
        (false, true) => exclude(p, q),
        (true, false) => cover(p, q),
    }
}

fn follows(p: &Predicate, q: &Predicate) -> bool {
    if q.test == Test::Present {
        return true;
    }
    // One passing value proves nothing about the others.
    if p.field.is_multiple() && p.any && !q.any {
        return false;
    }
    match (p.lower, q.lower) {
        (false, true) => lowered_test(&p.test).is_some_and(|test| subset(&test, &q.test)),
        (true, false) => false,
        _ => subset(&p.test, &q.test),
    }
}

fn exclude(p: &Predicate, q: &Predicate) -> bool {
    // Each may have its own value.
    if p.field.is_multiple() && p.any && q.any {
        return false;
    }
    match (p.lower, q.lower) {
        (false, true) => lowered_test(&p.test).is_some_and(|test| disjoint(&test, &q.test)),
        (true, false) => lowered_test(&q.test).is_some_and(|test| disjoint(&test, &p.test)),
        _ => disjoint(&p.test, &q.test),
    }
}

/// Whether every request satisfies one of them.
fn cover(p: &Predicate, q: &Predicate) -> bool {
    if !p.field.is_always_there() || p.lower != q.lower {
        return false;
    }
    if let Some(values) = finite_domain(&p.field) {
        return values
            .iter()
            .all(|value| p.test.passes(ConditionValue::Text(value)) || q.test.passes(ConditionValue::Text(value)));
    }
    match (&p.test, &q.test) {
        (Test::NotEqual(text), other) | (other, Test::NotEqual(text)) => other.passes(ConditionValue::Text(text)),
        (Test::IntNotEqual(number), other) | (other, Test::IntNotEqual(number)) => {
            other.passes(ConditionValue::Int(*number))
        }
        (Test::IpNotEqual(address), other) | (other, Test::IpNotEqual(address)) => {
            other.passes(ConditionValue::Ip(*address))
        }
        (Test::NotInNetwork(network), other) | (other, Test::NotInNetwork(network)) => {
            subset(&Test::InNetwork(*network), other)
        }
        (one, other) => match (int_domain(&p.field), int_range(one), int_range(other)) {
            (Some((first, last)), Some(a), Some(b)) => {
                let reach = |low: (i64, i64), high: (i64, i64)| {
                    low.0 <= first && high.1 >= last && high.0 <= low.1.saturating_add(1)
                };
                reach(a, b) || reach(b, a)
            }
            _ => false,
        },
    }
}

/// A test that the lower-case form of every value passes which passes this test.
pub(crate) fn lowered_test(test: &Test) -> Option<Test> {
    // Beyond ASCII a part may be lowered differently than in its whole.
    let part = |text: &[u8]| text.is_ascii().then(|| text.to_ascii_lowercase().into_boxed_slice());
    Some(match test {
        Test::Equal(text) => {
            let mut lower = Vec::with_capacity(text.len());
            lower_case(text, &mut lower);
            Test::Equal(lower.into())
        }
        Test::Prefix(text) => Test::Prefix(part(text)?),
        Test::Suffix(text) => Test::Suffix(part(text)?),
        Test::Contains(text) => Test::Contains(part(text)?),
        _ => return None,
    })
}

/// Whether every value that passes `a` passes `b`.
fn subset(a: &Test, b: &Test) -> bool {
    if let Some(value) = only_value(a) {
        return b.passes(value);
    }
    if a == b {
        return true;
    }
    match (a, b) {
        (_, Test::Present) => true,
        (_, Test::NotEqual(text)) => excludes_text(a, text),
        (_, Test::IntNotEqual(number)) => int_range(a).is_some_and(|(low, high)| *number < low || *number > high),
        (_, Test::IpNotEqual(address)) => is_about_addresses(a) && !a.passes(ConditionValue::Ip(*address)),
        (Test::Prefix(text), Test::Prefix(other)) => text.starts_with(other),
        (Test::Suffix(text), Test::Suffix(other)) => text.ends_with(other),
        (Test::Prefix(text) | Test::Suffix(text) | Test::Contains(text), Test::Contains(other)) => {
            memmem::find(text, other).is_some()
        }
        (Test::HasElement(element), Test::Contains(other)) => memmem::find(element.as_bytes(), other).is_some(),
        (Test::Methods(methods), Test::Methods(others)) => methods.is_subset(*others),
        (Test::Prefix(text), Test::Path(pattern)) => pattern.tail().is_empty() && every_path_from(text, pattern.key()),
        (Test::Suffix(text), Test::Host(pattern)) => pattern.is_suffix() && is_under(text, pattern),
        (Test::Host(pattern), _) => host_subset(pattern, b),
        (Test::Path(pattern), _) => path_subset(pattern.key(), b),
        (Test::InNetwork(network), Test::InNetwork(other)) => other.contains(network),
        (Test::InNetwork(network), Test::NotInNetwork(other)) => are_disjoint(network, other),
        (Test::NotInNetwork(network), Test::NotInNetwork(other)) => network.contains(other),
        (Test::InNetwork(network), Test::Addresses(set)) => set.includes(network),
        (Test::Addresses(set), Test::InNetwork(network)) => set.is_within(network),
        (Test::Addresses(set), Test::NotInNetwork(network)) => set.is_outside(network),
        (Test::Addresses(set), Test::Addresses(other)) => set.is_subset(other),
        (Test::Number(test, bound), Test::Number(other, limit)) => number_subset((*test, *bound), (*other, *limit)),
        _ => match (int_range(a), int_range(b)) {
            (Some(a), Some(b)) => b.0 <= a.0 && a.1 <= b.1,
            _ => false,
        },
    }
}

/// Whether no value passes both.
fn disjoint(a: &Test, b: &Test) -> bool {
    if let Some(value) = only_value(a) {
        return !b.passes(value);
    }
    if let Some(value) = only_value(b) {
        return !a.passes(value);
    }
    disjoint_in_order(a, b) || disjoint_in_order(b, a)
}

fn disjoint_in_order(a: &Test, b: &Test) -> bool {
    match (a, b) {
        (Test::Prefix(text), Test::Prefix(other)) => !text.starts_with(other) && !other.starts_with(text),
        (Test::Suffix(text), Test::Suffix(other)) => !text.ends_with(other) && !other.ends_with(text),
        (Test::Methods(methods), Test::Methods(others)) => methods.is_disjoint(*others),
        (Test::Prefix(text), Test::Path(pattern)) => !some_path_from(text, pattern.key()),
        (Test::Path(pattern), Test::Path(other)) => !some_path_of_both(pattern.key(), other.key()),
        (Test::Suffix(text), Test::Host(pattern)) => {
            pattern.is_suffix() && !text.ends_with(pattern.key()) && !pattern.key().ends_with(text)
        }
        (Test::Host(pattern), Test::Host(other)) => {
            let (key, other) = (pattern.key(), other.key());
            pattern.is_suffix() && !key.ends_with(other) && !other.ends_with(key)
        }
        (Test::InNetwork(network), Test::InNetwork(other)) => are_disjoint(network, other),
        (Test::InNetwork(network), Test::NotInNetwork(other)) => other.contains(network),
        (Test::Addresses(set), Test::InNetwork(network)) => set.is_outside(network),
        (Test::Addresses(set), Test::NotInNetwork(network)) => set.is_within(network),
        (Test::Number(test, bound), Test::Number(other, limit)) => {
            let ((low, high), (from, to)) = (number_range(*test, *bound), number_range(*other, *limit));
            let is_before = |high: Bound, low: Bound| high.0 < low.0 || high.0 == low.0 && !(high.1 && low.1);
            is_before(high, from) || is_before(to, low)
        }
        _ => match (int_range(a), int_range(b)) {
            (Some(a), Some(b)) => a.1 < b.0 || b.1 < a.0,
            _ => false,
        },
    }
}

/// The value, where only one passes.
fn only_value(test: &Test) -> Option<ConditionValue<'_>> {
    match test {
        Test::Equal(text) => Some(ConditionValue::Text(text)),
        Test::IntEqual(number) => Some(ConditionValue::Int(*number)),
        Test::IpEqual(address) => Some(ConditionValue::Ip(*address)),
        Test::Host(pattern) if !pattern.is_suffix() => Some(ConditionValue::Text(pattern.key())),
        Test::Path(pattern) if pattern.is_exact() => Some(ConditionValue::Text(pattern.key())),
        Test::Methods(methods) => Some(ConditionValue::Text(methods.only().and_then(Method::name)?.as_bytes())),
        _ => None,
    }
}

/// Whether this test rejects the text that a test of texts accepts. A test of another type would reject every text,
/// which proves nothing.
fn excludes_text(test: &Test, text: &[u8]) -> bool {
    let is_about_texts = matches!(
        test,
        Test::Prefix(_)
            | Test::Suffix(_)
            | Test::Contains(_)
            | Test::Regex(_)
            | Test::Methods(_)
            | Test::Host(_)
            | Test::Path(_)
            | Test::Number(..)
            | Test::HasElement(_)
            | Test::Addresses(_)
    );
    is_about_texts && !test.passes(ConditionValue::Text(text))
}

fn is_about_addresses(test: &Test) -> bool {
    matches!(test, Test::InNetwork(_) | Test::NotInNetwork(_) | Test::Addresses(_))
}

fn are_disjoint(network: &ipnet::IpNet, other: &ipnet::IpNet) -> bool {
    // Two networks are apart, or one is in the other.
    !network.contains(other) && !other.contains(network)
}

/// Whether every host that ends with `text` matches a `*.` pattern.
fn is_under(text: &[u8], pattern: &HostPattern) -> bool {
    text.len() > pattern.key().len() && text.ends_with(pattern.key())
}

/// Whether every host that matches a `*.` pattern passes `b`.
fn host_subset(pattern: &HostPattern, b: &Test) -> bool {
    match b {
        Test::Host(other) => other.is_suffix() && pattern.key().ends_with(other.key()),
        Test::Suffix(text) => pattern.key().ends_with(text),
        Test::Contains(text) => memmem::find(pattern.key(), text).is_some(),
        _ => false,
    }
}

/// Whether every path that matches a pattern with a parameter or a star passes `b`.
fn path_subset(key: &[u8], b: &Test) -> bool {
    match b {
        Test::Path(other) => other.tail().is_empty() && every_path_of(key, other.key()),
        // The key's two special bytes are in no text, so they end the comparison.
        Test::Prefix(text) => key.starts_with(text) && text.iter().all(|byte| *byte < PARAM),
        Test::Suffix(text) => key.ends_with(text) && text.iter().all(|byte| *byte < PARAM),
        Test::Contains(text) => memmem::find(key, text).is_some() && text.iter().all(|byte| *byte < PARAM),
        _ => false,
    }
}

/// An end of a range of numbers, and whether it is in it.
type Bound = (f64, bool);

fn number_range(test: NumberTest, bound: f64) -> (Bound, Bound) {
    let (least, greatest) = ((f64::NEG_INFINITY, true), (f64::INFINITY, true));
    match test {
        NumberTest::Equal => ((bound, true), (bound, true)),
        NumberTest::Less => (least, (bound, false)),
        NumberTest::LessOrEqual => (least, (bound, true)),
        NumberTest::Greater => ((bound, false), greatest),
        NumberTest::GreaterOrEqual => ((bound, true), greatest),
    }
}

fn number_subset(a: (NumberTest, f64), b: (NumberTest, f64)) -> bool {
    let ((low, high), (from, to)) = (number_range(a.0, a.1), number_range(b.0, b.1));
    let is_at_least = |low: Bound, from: Bound| low.0 > from.0 || low.0 == from.0 && (from.1 || !low.1);
    let is_at_most = |high: Bound, to: Bound| high.0 < to.0 || high.0 == to.0 && (to.1 || !high.1);
    is_at_least(low, from) && is_at_most(high, to)
}

// Relations between the sets of paths that patterns and prefixes describe.
//
// Patterns come as their keys (see [`crate::PathPattern`]); `some_…` errs on the side of `true`, `every_…` of `false`.

/// Length of a key or path up to the next slash.
fn segment(text: &[u8]) -> usize {
    memchr::memchr(b'/', text).unwrap_or(text.len())
}

/// Whether every path that begins with `text` matches a pattern.
pub(super) fn every_path_from(text: &[u8], key: &[u8]) -> bool {
    let mut at = 0;
    for &byte in key {
        match byte {
            STAR => return true,
            PARAM => {
                let len = segment(&text[at..]);
                // The segment may continue behind the text.
                if len == 0 || at + len == text.len() {
                    return false;
                }
                at += len;
            }
            literal if text.get(at) == Some(&literal) => at += 1,
            _ => return false,
        }
    }
    false
}

/// Whether a path that begins with `text` might match a pattern.
pub(super) fn some_path_from(text: &[u8], key: &[u8]) -> bool {
    let mut at = 0;
    for &byte in key {
        match byte {
            _ if at == text.len() => return true,
            STAR => return true,
            PARAM => match segment(&text[at..]) {
                0 => return false,
                len => at += len,
            },
            literal if text[at] == literal => at += 1,
            _ => return false,
        }
    }
    at == text.len()
}

/// Whether every path that matches a pattern matches another.
pub(super) fn every_path_of(key: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    for &byte in other {
        match (byte, key.get(at)) {
            (STAR, _) => return true,
            (PARAM, Some(_)) => {
                let len = segment(&key[at..]);
                if len == 0 || key[at..][..len].contains(&STAR) {
                    return false;
                }
                at += len;
            }
            (literal, Some(own)) if literal == *own => at += 1,
            _ => return false,
        }
    }
    at == key.len()
}

/// Whether some path might match both patterns.
pub(super) fn some_path_of_both(key: &[u8], other: &[u8]) -> bool {
    let (mut at, mut there) = (0, 0);
    loop {
        match (key.get(at), other.get(there)) {
            (Some(&STAR), _) | (_, Some(&STAR)) => return true,
            (None, None) => return true,
            (None, _) | (_, None) => return false,
            (Some(&PARAM), _) | (_, Some(&PARAM)) => {
                let (own, its) = (segment(&key[at..]), segment(&other[there..]));
                if own == 0 || its == 0 {
                    return false;
                }
                // One is a parameter; the other is not empty, or might extend beyond slashes.
                if key[at..][..own].contains(&STAR) || other[there..][..its].contains(&STAR) {
                    return true;
                }
                (at, there) = (at + own, there + its);
            }
            (own, its) if own == its => (at, there) = (at + 1, there + 1),
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Expression;
    use crate::condition::simplify::as_literal;

    #[test]
    fn what_follows_from_what() {
        let check = |p: &str, q: &str, expected: bool| {
            let [a, b] = [p, q].map(|text| Expression::parse(text).unwrap());
            let [(a, not_a), (b, not_b)] = [&a, &b].map(|expression| as_literal(expression.condition()).unwrap());
            assert_eq!(implies(a, not_a, b, not_b), expected, "{p} => {q}");
        };
        check(r#"http.path == "/a/b""#, r#"http.path ^= "/a""#, true);
        check(r#"http.path == "/a/b""#, r#"http.path ~ "b$""#, true);
        check(r#"http.path == "/a/b""#, r#"http.path != "/a""#, true);
        check(r#"http.path ^= "/a/b""#, r#"http.path ^= "/a/bc""#, false);
        check(r#"http.path ^= "/a/b""#, r#"http.path contains "a/""#, true);
        check(r#"http.path =^ "/a/b""#, r#"http.path =^ "b""#, true);
        check(r#"http.path ^= "/a""#, r#"http.path != "/b""#, true);
        check(r#"http.path ^= "/a""#, r#"!(http.path ^= "/b")"#, true);
        check(r#"!(http.path ^= "/a")"#, r#"!(http.path ^= "/ab")"#, true);
        check(r#"!(http.path ^= "/a")"#, r#"http.path != "/a""#, true);
        // Without host neither holds.
        check(r#"!(http.host == "a")"#, r#"http.host != "a""#, false);
        check(r#"http.host != "a""#, r#"!(http.host == "a")"#, true);
        check("net.src.ip in 10.1.0.0/16", "net.src.ip in 10.0.0.0/8", true);
        check("net.src.ip in 10.0.0.0/8", "net.src.ip in 10.1.0.0/16", false);
        check("net.src.ip in 10.0.0.0/8", "net.src.ip not in 11.0.0.0/8", true);
        check("!(net.src.ip in 10.0.0.0/8)", "net.src.ip not in 10.1.0.0/16", true);
        check("net.dst.port > 5", "net.dst.port >= 5", true);
        check("net.dst.port > 5", "net.dst.port >= 7", false);
        check("!(net.dst.port > 5)", "net.dst.port <= 5", false);
        check("!(http.path.segments.len > 5)", "http.path.segments.len <= 5", true);
        check(r#"net.protocol != "http""#, r#"net.protocol == "https""#, false);
        check(r#"!(net.protocol == "http")"#, r#"net.protocol == "https""#, true);
        check(r#"http.headers.x == "a""#, r#"any(http.headers.x) == "a""#, true);
        check(r#"any(http.headers.x) == "a""#, r#"http.headers.x == "a""#, false);
        check(r#"any(http.headers.x) == "a""#, r#"!(any(http.headers.x) == "b")"#, false);
        check(r#"any(http.headers.x) == "a""#, r#"!(http.headers.x == "b")"#, true);
        check(r#"http.headers.x ^= "Ab""#, r#"lower(http.headers.x) ^= "a""#, true);
        check(r#"lower(http.headers.x) ^= "ab""#, r#"http.headers.x ^= "ab""#, false);
        check(r#"http.path == "/a""#, r#"http.host == "/a""#, false);
    }

    #[test]
    fn patterns_of_hosts_follow_from_each_other() {
        let check = |p: &str, q: &str, expected: bool| {
            let [p, q] = [p, q].map(|text| Test::Host(HostPattern::parse(text).unwrap()));
            assert_eq!(subset(&p, &q), expected, "{p:?} {q:?}");
        };
        check("b.a.com", "*.a.com", true);
        check("*.b.a.com", "*.a.com", true);
        check("a.com", "*.a.com", false);
        check("*.a.com", "*.b.a.com", false);
    }
}

#[cfg(test)]
mod path_sets_tests {
    use super::*;
    use crate::PathPattern;

    fn keys(a: &str, b: &str) -> [PathPattern; 2] {
        [a, b].map(|text| PathPattern::parse(text).unwrap())
    }

    #[test]
    fn patterns_in_patterns() {
        let check = |a: &str, b: &str, expected: bool| {
            let [one, other] = keys(a, b);
            assert_eq!(every_path_of(one.key(), other.key()), expected, "{a} in {b}");
        };
        check("/a/b", "/a/:x", true);
        check("/a/:y", "/a/:x", true);
        check("/a/:y", "/a/b", false);
        check("/a/:y/c", "/a/*", true);
        check("/a", "/a/*", false);
        check("/a/*", "/a*", true);
        check("/a/*", "/:x/*", true);
        check("/a*", "/:x/*", false);
        check("/a*", "/:x", false);
        check("/a/", "/a/:x", false);
        check("/a/:x", "/a/:x/b", false);
    }

    #[test]
    fn patterns_with_a_path_in_common() {
        let check = |a: &str, b: &str, expected: bool| {
            let [one, other] = keys(a, b);
            assert_eq!(some_path_of_both(one.key(), other.key()), expected, "{a} and {b}");
            assert_eq!(some_path_of_both(other.key(), one.key()), expected, "{b} and {a}");
        };
        check("/a/:x", "/:y/b", true);
        check("/a/:x", "/b/:x", false);
        check("/a/:x", "/a/", false);
        check("/a/:x", "/a/*", true);
        check("/:x/b", "/a*", true);
        check("/a/:x", "/a/b/c", false);
    }

    #[test]
    fn prefixes_and_patterns() {
        let check = |prefix: &str, pattern: &str, every: bool, some: bool| {
            let pattern = PathPattern::parse(pattern).unwrap();
            let found =
                (every_path_from(prefix.as_bytes(), pattern.key()), some_path_from(prefix.as_bytes(), pattern.key()));
            assert_eq!(found, (every, some), "{prefix} {pattern}");
        };
        check("/a/b/", "/a/:x/*", true, true);
        check("/a/b", "/a/:x/*", false, true);
        check("/a/b", "/a*", true, true);
        check("/a", "/ab", false, true);
        check("/ab", "/a", false, false);
        check("/a//", "/a/:x", false, false);
        check("/a/b/c", "/a/:x", false, false);
    }
}
