//! The oracle: all places of all routes, in the order that the design states, the first that holds.
//!
//! Expression routes first, by priority and position. Then each pair of a URI route's host and path: the most specific
//! host, the most specific path, priority, position. It splits pattern texts into segments and compares those.

use super::asked::RequestFacts;
use super::kong;
use super::routes::{Asks, Route, Uri};
use super::vars::Vars;
use std::cmp::{Ordering, Reverse};
use stillgate_route::path::normalise;
use stillgate_route::{Lookup, Variable};

/// The result of a scan.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScanResult {
    /// Position in the list.
    pub(crate) route: usize,
    /// Parameters of the path that matched.
    pub(crate) params: Vec<(String, String)>,
}

/// The route that takes a request, or [`Ambiguous`] if that depends on whether `%2F` is a slash.
pub(crate) fn find(routes: &[Route], asked: &RequestFacts) -> Result<Option<ScanResult>, Ambiguous> {
    let mut buffer = Vec::new();
    let path = normalise(asked.path.as_bytes(), &mut buffer).unwrap();
    let path = std::str::from_utf8(path.bytes()).unwrap();
    by_both_readings(
        &asked.path,
        path,
        |path| scan(routes, asked, path),
        |a, b| a.as_ref().map(|found| found.route) == b.as_ref().map(|found| found.route),
    )
}

/// The two readings of a path differ.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ambiguous;

/// The result of `find` for the path, if it is the same where `%2F` is a slash.
pub(crate) fn by_both_readings<T>(
    raw: &str,
    path: &str,
    find: impl Fn(&str) -> T,
    same: impl Fn(&T, &T) -> bool,
) -> Result<T, Ambiguous> {
    let as_read = find(path);
    let slashes = raw.replace("%2F", "/").replace("%2f", "/");
    if slashes == raw {
        return Ok(as_read);
    }
    // A path that leads above the root has no other reading; matching fails with another error then.
    let mut buffer = Vec::new();
    let Ok(other) = normalise(slashes.as_bytes(), &mut buffer) else { return Err(Ambiguous) };
    let other = std::str::from_utf8(other.bytes()).unwrap();
    let other = find(other);
    // Captures are those of the reading in which `%2F` is a slash.
    if same(&as_read, &other) { Ok(other) } else { Err(Ambiguous) }
}

pub(crate) fn scan(routes: &[Route], asked: &RequestFacts, path: &str) -> Option<ScanResult> {
    let expressions = routes.iter().enumerate().filter_map(|(position, route)| match &route.asks {
        Asks::Expression(chain) => Some((Reverse(route.priority), position, chain)),
        Asks::Uri(_) => None,
    });
    let mut expressions: Vec<_> = expressions.collect();
    expressions.sort_by_key(|(priority, position, _)| (*priority, *position));
    if let Some((_, route, _)) = expressions.into_iter().find(|(_, _, chain)| kong::takes(&chain.text(), asked, path)) {
        return Some(ScanResult { route, params: Vec::new() });
    }
    let mut candidates = Vec::new();
    for (position, route) in routes.iter().enumerate() {
        let Asks::Uri(uri) = &route.asks else { continue };
        let hosts: Vec<Option<&str>> = match uri.hosts.is_empty() {
            true => vec![None],
            false => uri.hosts.iter().copied().map(Some).collect(),
        };
        for host in hosts {
            for pattern in &uri.paths {
                if host.is_none_or(|host| host_matches(host, &asked.host))
                    && path_matches(pattern, path)
                    && conditions_hold(uri, pattern, path, asked)
                {
                    candidates.push((host_rank(host), pattern.as_str(), Reverse(route.priority), position));
                }
            }
        }
    }
    let best = candidates.into_iter().min_by(|a, b| {
        a.0.cmp(&b.0)
            .then_with(|| path_order(a.1, b.1))
            .then_with(|| (a.2, Reverse(tail(a.1).len()), a.3).cmp(&(b.2, Reverse(tail(b.1).len()), b.3)))
    });
    best.map(|(_, pattern, _, route)| {
        let own =
            |(name, value): (&str, &str)| (name.to_owned(), String::from_utf8_lossy(&decoded(value)).into_owned());
        ScanResult { route, params: params(pattern, path).into_iter().map(own).collect() }
    })
}

fn conditions_hold(uri: &Uri, pattern: &str, path: &str, asked: &RequestFacts) -> bool {
    let in_network = |network: &String| network.parse::<ipnet::IpNet>().unwrap().contains(&asked.client);
    let value = |name: &str| match name.strip_prefix("uri_param_") {
        Some(name) => {
            let params = params(pattern, path);
            params.iter().find(|(param, _)| *param == name).map(|(_, value)| decoded(value))
        }
        None => asked.value(&Variable::parse(name).unwrap(), &mut Vec::new()).map(<[u8]>::to_vec),
    };
    (uri.methods.is_empty() || uri.methods.contains(&asked.method.as_str()))
        && (uri.remote_addrs.is_empty() || uri.remote_addrs.iter().any(in_network))
        && uri.vars.as_ref().is_none_or(|vars: &Vars| vars.holds(&value))
}

/// Segments of a pattern, and whether it ends with a star (of which the last segment is then the literal start).
fn segments(pattern: &str) -> (Vec<&str>, bool) {
    let head = pattern.split('*').next().unwrap();
    (head[1..].split('/').collect(), pattern.contains('*'))
}

/// The text behind the first star, if that is not the end.
fn tail(pattern: &str) -> &str {
    pattern.split_once('*').map(|(_, behind)| behind).filter(|behind| behind.starts_with('/')).unwrap_or("")
}

fn path_matches(pattern: &str, path: &str) -> bool {
    let head = &pattern[..pattern.len() - tail(pattern).len()];
    head_matches(head, path) && (head == pattern || is_like(&pattern[head.len() - 1..], behind_head(head, path)))
}

/// Whether a text matches one with `*` for anything.
fn is_like(like: &str, text: &str) -> bool {
    match (like.strip_prefix('*'), like.chars().next()) {
        (Some(rest), _) => (0..=text.len()).any(|at| is_like(rest, &text[at..])),
        (None, None) => text.is_empty(),
        (None, Some(first)) => text.strip_prefix(first).is_some_and(|text| is_like(&like[1..], text)),
    }
}

fn head_matches(pattern: &str, path: &str) -> bool {
    let (pattern, star) = segments(pattern);
    let path: Vec<&str> = path[1..].split('/').collect();
    if path.len() < pattern.len() || (!star && path.len() != pattern.len()) {
        return false;
    }
    pattern.iter().enumerate().all(|(at, segment)| {
        if star && at + 1 == pattern.len() {
            path[at].starts_with(segment)
        } else if segment.starts_with(':') {
            !path[at].is_empty()
        } else {
            path[at] == *segment
        }
    })
}

/// Static before `:name` before `*`; text before a star is static as far as it goes, the longer the better.
fn path_order(a: &str, b: &str) -> Ordering {
    let exact = |pattern: &str| !pattern.contains('*') && !pattern.contains("/:");
    let rank = |pattern: &str, at: usize| {
        let (segments, star) = segments(pattern);
        let segment = *segments.get(at)?;
        let last = star && at + 1 == segments.len();
        Some(match segment {
            _ if last && segment.is_empty() => (3, Reverse(0)),
            _ if last => (1, Reverse(segment.len())),
            _ if segment.starts_with(':') => (2, Reverse(0)),
            _ => (0, Reverse(0)),
        })
    };
    exact(b).cmp(&exact(a)).then_with(|| {
        for at in 0.. {
            match (rank(a, at), rank(b, at)) {
                (None, None) => break,
                (a, b) if a != b => return a.cmp(&b),
                _ => {}
            }
        }
        Ordering::Equal
    })
}

fn params<'a>(pattern: &'a str, path: &'a str) -> Vec<(&'a str, &'a str)> {
    let (mut params, rest) = params_and_rest(pattern, path);
    if let Some((_, name)) = pattern.split_once('*')
        && !name.is_empty()
        && tail(pattern).is_empty()
    {
        params.push((name, rest));
    }
    params
}

/// A part of a path, decoded.
pub(crate) fn decoded(value: &str) -> Vec<u8> {
    let mut pieces = value.split('%');
    let mut out = pieces.next().unwrap().as_bytes().to_vec();
    for piece in pieces {
        match piece.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => out.extend_from_slice(&[&[byte], &piece.as_bytes()[2..]].concat()),
            None => out.extend_from_slice(&[b"%", piece.as_bytes()].concat()),
        }
    }
    out
}

fn behind_head<'a>(pattern: &'a str, path: &'a str) -> &'a str {
    params_and_rest(pattern, path).1
}

/// The values of parameters, and the text behind the part before the first star.
fn params_and_rest<'a>(pattern: &'a str, path: &'a str) -> (Vec<(&'a str, &'a str)>, &'a str) {
    let (segments, _) = segments(pattern);
    let mut params: Vec<(&str, &str)> = Vec::new();
    let mut rest = path;
    for segment in &segments {
        rest = &rest[1..];
        let value = rest.split('/').next().unwrap();
        if let Some(name) = segment.strip_prefix(':') {
            params.push((name, value));
            rest = &rest[value.len()..];
        } else {
            rest = &rest[segment.len()..];
        }
    }
    (params, rest)
}

fn host_matches(pattern: &str, host: &str) -> bool {
    match pattern.strip_prefix('*') {
        Some("") => true,
        Some(suffix) => host.ends_with(suffix) && host.len() > suffix.len(),
        None => pattern == host,
    }
}

/// Exact, then the longest suffix, then none.
fn host_rank(pattern: Option<&str>) -> (u8, Reverse<usize>) {
    match pattern {
        Some(suffix) if suffix.starts_with('*') => (1, Reverse(suffix.len())),
        Some(_) => (0, Reverse(0)),
        None => (2, Reverse(0)),
    }
}
