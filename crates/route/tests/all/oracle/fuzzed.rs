//! A request and an expression out of any bytes, for the fuzz target `expression` and its corpus.
//!
//! Lines until an empty one are the request: `method`, `host`, `path`, `query`, `sni`, `client`, `port` and `server`,
//! each with a blank and its value, or a header as `name: value`. All that follows is the expression.

use super::asked::RequestFacts;
use super::kong::{Reference, Silence};
use super::random::Random;
use super::scan::{Ambiguous, by_both_readings};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use stillgate_route::path::normalise;
use stillgate_route::{Expression, ExpressionErrorKind, Matcher, PathError, RouteMatch, RouteSpec, Scratch};

/// For any bytes: nothing panics, the reference refuses the same expressions except for the deviations that
/// `expression/mod.rs` lists, and where both accept the expression they agree on whether it takes the request.
pub(crate) fn check(bytes: &[u8]) {
    let (asked, text) = read(bytes);
    let Ok(text) = std::str::from_utf8(text) else { return };
    let parsed = Expression::parse(text);
    // Its parser recurses, and panics on blanks of another kind between these words.
    let too_much = parsed.as_ref().is_err_and(|errors| errors.iter().any(|error| is_bound(&error.kind)));
    if too_much || has_other_not_in(text) {
        return;
    }
    let reference = Reference::new([(0, text)]);
    let (expression, reference) = match (parsed, reference) {
        (Ok(expression), Ok(reference)) => (expression, reference),
        (Err(_), Err(_)) => return,
        (Ok(_), Err(Silence::Refused(why))) => {
            assert!(may_accept_more(text, &why), "only the reference refuses {text:?}: {why}");
            return;
        }
        (_, Err(Silence::Panicked)) => panic!("the reference panics on {text:?}"),
        (Err(errors), Ok(_)) => {
            assert!(
                errors.iter().all(|error| may_refuse_more(&error.kind)),
                "the reference accepts {text:?}: {errors:?}"
            );
            return;
        }
    };
    let mut buffer = Vec::new();
    let Ok(path) = normalise(asked.path.as_bytes(), &mut buffer) else { return };
    let route = RouteSpec { id: "fuzzed".to_owned(), priority: 0, takes: RouteMatch::Expression(expression) };
    // A bound of the compiler may refuse it.
    let Ok(matcher) = Matcher::compile(vec![Arc::new(route)]) else { return };
    let found = matcher.find(&asked.request(path), &mut Scratch::default());
    let path = std::str::from_utf8(path.bytes()).expect("normal paths are ASCII");
    let takes = |path: &str| reference.find(&asked, path).map(|taken| taken.is_some());
    let expected = by_both_readings(&asked.path, path, takes, |a, b| a == b);
    let not_text = takes(path).is_none();
    if not_text || has_mapped_address(text) || matches!(found, Err(PathError::AboveRoot | PathError::TooManyArguments))
    {
        return;
    }
    let expected = expected.map(|taken| taken == Some(true)).map_err(|Ambiguous| PathError::EncodedSlash);
    assert_eq!(found.map(|found| found.is_some()), expected, "{text:?} of {asked:?}");
}

/// Whether it is one of our bounds, beyond which the reference cannot be trusted with the text.
fn is_bound(kind: &ExpressionErrorKind) -> bool {
    use ExpressionErrorKind::{TooDeep, TooLong, TooManyPredicates};
    matches!(kind, TooLong { .. } | TooDeep | TooManyPredicates)
}

/// Impossible parts of fields, and regexes that are too large.
fn may_refuse_more(kind: &ExpressionErrorKind) -> bool {
    use ExpressionErrorKind::{FieldName, Regex, UnknownField};
    matches!(kind, FieldName { .. } | UnknownField { .. } | Regex { .. })
}

/// The least number, and regexes over bytes.
fn may_accept_more(text: &str, why: &str) -> bool {
    (why.contains("number too large") && text.contains('-')) || (why.contains("UTF-8") && text.contains("-u"))
}

/// Whether it may have a `not in` with other than one blank between the words.
fn has_other_not_in(text: &str) -> bool {
    text.match_indices("not").any(|(at, not)| {
        let rest = &text[at + not.len()..];
        rest.trim_ascii_start().starts_with("in") && !rest.starts_with(" in")
    })
}

/// Whether it may have an IPv4 address written as IPv6.
fn has_mapped_address(text: &str) -> bool {
    text.to_ascii_lowercase().contains("ffff:")
}

/// The request, and the expression's bytes.
fn read(bytes: &[u8]) -> (RequestFacts, &[u8]) {
    // An empty request, for which the seed does not matter.
    let mut asked = RequestFacts {
        headers: Vec::new(),
        query: None,
        path: "/".to_owned(),
        ..RequestFacts::random(&mut Random::new(0))
    };
    (asked.source_port, asked.destination, asked.sni) = (None, None, None);
    let mut rest = bytes;
    loop {
        let (line, after) = match memchr::memchr(b'\n', rest) {
            Some(at) => (&rest[..at], &rest[at + 1..]),
            None => return (asked, rest),
        };
        rest = after;
        if line.is_empty() {
            return (asked, rest);
        }
        let (key, value) = match memchr::memchr(b' ', line) {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line, &b""[..]),
        };
        let text = String::from_utf8_lossy(value).into_owned();
        match key {
            b"method" => asked.method = text,
            b"host" => asked.host = text.to_lowercase(),
            b"path" => asked.path = text,
            b"query" => asked.query = Some(value.to_vec()),
            b"sni" => asked.sni = Some(text),
            b"client" => asked.client = text.parse().map_or(asked.client, |address: IpAddr| address.to_canonical()),
            b"port" => asked.source_port = text.parse().ok(),
            b"server" => {
                let server = text.parse::<SocketAddr>().ok();
                asked.destination = server.map(|server| (server.ip().to_canonical(), server.port()));
            }
            _ => {
                let name = String::from_utf8_lossy(key.strip_suffix(b":").unwrap_or(key)).into_owned();
                asked.headers.push((name, value.to_vec()));
            }
        }
    }
}
