//! The matcher gives what a scan of all routes gives, whose order is written down straight from the design.
//!
//! The oracle shares nothing with the matcher: it splits pattern texts into segments and compares those.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use proptest::sample::select;
use std::cmp::{Ordering, Reverse};
use std::net::IpAddr;
use stillgate_route::path::normalise;
use stillgate_route::{
    HostPattern, Lookup, Matcher, Method, MethodSet, PathError, PathPattern, Request, RouteSpec, Scratch, Variable,
    Verdict, parse_method, vars,
};

#[derive(Debug, Clone)]
struct Route {
    hosts: Vec<String>,
    paths: Vec<String>,
    methods: Vec<&'static str>,
    remote_addrs: Vec<&'static str>,
    priority: i32,
    vars: Option<Condition>,
}

#[derive(Debug, Clone, Copy)]
enum Condition {
    ArgIsOne { negated: bool },
    ParamIsA,
}

#[derive(Debug, Clone)]
struct Asked {
    method: &'static str,
    host: String,
    path: String,
    client: IpAddr,
    arg: Option<&'static str>,
}

/// Segments of a pattern, and whether it ends with a star (of which the last segment is then the literal start).
fn segments(pattern: &str) -> (Vec<&str>, bool) {
    let head = pattern.split('*').next().unwrap();
    (head[1..].split('/').collect(), pattern.contains('*'))
}

fn path_matches(pattern: &str, path: &str) -> bool {
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
    if let Some((_, name)) = pattern.split_once('*')
        && !name.is_empty()
    {
        params.push((name, rest));
    }
    params
}

fn host_matches(pattern: &str, host: &str) -> bool {
    match pattern.strip_prefix('*') {
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

fn conditions_hold(route: &Route, pattern: &str, path: &str, asked: &Asked) -> bool {
    let in_network = |network: &&str| network.parse::<ipnet::IpNet>().unwrap().contains(&asked.client);
    (route.methods.is_empty() || route.methods.contains(&asked.method))
        && (route.remote_addrs.is_empty() || route.remote_addrs.iter().any(in_network))
        && match route.vars {
            None => true,
            Some(Condition::ArgIsOne { negated }) => (asked.arg == Some("1")) != negated,
            Some(Condition::ParamIsA) => params(pattern, path).contains(&("x", "a")),
        }
}

type Found = Option<(usize, Vec<(String, String)>)>;

fn scan(routes: &[Route], asked: &Asked, path: &str) -> Found {
    let mut candidates = Vec::new();
    for (position, route) in routes.iter().enumerate() {
        let any = [None];
        let hosts: Vec<Option<&str>> = route.hosts.iter().map(|host| Some(host.as_str())).collect();
        for host in if hosts.is_empty() { &any[..] } else { &hosts } {
            for pattern in &route.paths {
                if host.is_none_or(|host| host_matches(host, &asked.host))
                    && path_matches(pattern, path)
                    && conditions_hold(route, pattern, path, asked)
                {
                    candidates.push((host_rank(*host), pattern.as_str(), Reverse(route.priority), position));
                }
            }
        }
    }
    let best = candidates
        .into_iter()
        .min_by(|a, b| a.0.cmp(&b.0).then_with(|| path_order(a.1, b.1)).then_with(|| (a.2, a.3).cmp(&(b.2, b.3))));
    best.map(|(_, pattern, _, position)| {
        let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        (position, params(pattern, path).into_iter().map(own).collect())
    })
}

fn spec(position: usize, route: &Route) -> RouteSpec {
    let vars = route.vars.map(|condition| match condition {
        Condition::ArgIsOne { negated: false } => serde_json::json!([["arg_v", "==", "1"]]),
        Condition::ArgIsOne { negated: true } => serde_json::json!([["arg_v", "!", "==", "1"]]),
        Condition::ParamIsA => serde_json::json!([["uri_param_x", "==", "a"]]),
    });
    RouteSpec {
        id: format!("r{position}"),
        hosts: route.hosts.iter().map(|host| HostPattern::parse(host).unwrap()).collect(),
        paths: route.paths.iter().map(|path| PathPattern::parse(path).unwrap()).collect(),
        methods: route.methods.iter().map(|method| parse_method(method).unwrap()).collect::<MethodSet>(),
        remote_addrs: route.remote_addrs.iter().map(|network| network.parse().unwrap()).collect(),
        priority: route.priority,
        vars: vars.map(|vars| vars::Expr::parse(&vars).unwrap()),
    }
}

impl Lookup for Asked {
    fn value<'a>(&'a self, variable: &Variable, _: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        assert_eq!(variable.to_string(), "arg_v", "path parameters are the matcher's business");
        self.arg.map(str::as_bytes)
    }
}

fn pattern() -> impl Strategy<Value = String> {
    let segment = prop_oneof![4 => Just("a"), 3 => Just("b"), 2 => Just("ab"), 3 => Just(":")];
    let end = prop_oneof![6 => Just(""), 2 => Just("/"), 3 => Just("/*"), 1 => Just("/*x"), 2 => Just("*")];
    (proptest::collection::vec(segment, 0..4), end).prop_map(|(segments, end)| {
        let mut names = ["x", "y", "z"].iter();
        let mut text = String::new();
        for segment in segments {
            text.push('/');
            text.push_str(segment);
            if segment == ":" {
                text.push_str(names.next().unwrap());
            }
        }
        match end {
            "*" if text.rsplit('/').next().unwrap_or("").starts_with(':') => text.push_str("/*"),
            // `x` may be taken by the first parameter.
            "/*x" if text.contains(":x") => text.push_str("/*rest"),
            "*" if text.is_empty() => text.push_str("/*"),
            end => text.push_str(end),
        }
        if text.is_empty() { "/".to_owned() } else { text }
    })
}

fn host() -> impl Strategy<Value = String> {
    select(&["a.com", "b.a.com", "c.b.a.com", "*.a.com", "*.b.a.com", "*.com"]).prop_map(str::to_owned)
}

fn route() -> impl Strategy<Value = Route> {
    let vars = prop_oneof![
        4 => Just(None),
        1 => any::<bool>().prop_map(|negated| Some(Condition::ArgIsOne { negated })),
        1 => Just(Some(Condition::ParamIsA)),
    ];
    (
        prop_oneof![2 => Just(Vec::new()), 3 => proptest::collection::vec(host(), 1..3)],
        proptest::collection::vec(pattern(), 1..4),
        prop_oneof![3 => Just(vec![]), 1 => Just(vec!["GET"]), 1 => Just(vec!["POST", "GET"])],
        prop_oneof![4 => Just(vec![]), 1 => Just(vec!["10.0.0.0/8"]), 1 => Just(vec!["fd00::/8", "10.1.0.0/16"])],
        -1..2i32,
        vars,
    )
        .prop_map(|(hosts, mut paths, methods, remote_addrs, priority, mut vars)| {
            if matches!(vars, Some(Condition::ParamIsA)) && !paths.iter().any(|path| path.contains(":x")) {
                paths.push("/:x".to_owned());
            }
            if paths.len() > 8 {
                vars = None;
            }
            Route { hosts, paths, methods, remote_addrs, priority, vars }
        })
}

fn asked() -> impl Strategy<Value = Asked> {
    let segment = prop_oneof![4 => Just("/a"), 3 => Just("/b"), 2 => Just("/ab"), 1 => Just("/c"), 1 => Just("%2Fa")];
    (
        prop_oneof![3 => Just("GET"), 1 => Just("POST"), 1 => Just("PUT")],
        select(&["a.com", "b.a.com", "c.b.a.com", "d.c.b.a.com", "com", "x.com", "other", "", ".a.com", ".com"]),
        proptest::collection::vec(segment, 0..5),
        any::<bool>(),
        prop_oneof![Just("10.1.2.3"), Just("10.2.0.1"), Just("fd00::1"), Just("::ffff:10.1.0.1"), Just("1.1.1.1")],
        prop_oneof![Just(None), Just(Some("1")), Just(Some("2"))],
    )
        .prop_map(|(method, host, segments, slash, client, arg)| Asked {
            method,
            host: host.to_owned(),
            path: format!("/{}{}", segments.concat().trim_start_matches('/'), if slash { "/" } else { "" })
                .replace("//", "/"),
            client: client.parse::<IpAddr>().unwrap().to_canonical(),
            arg,
        })
}

fn check(routes: &[Route], asked: &Asked) -> Result<(), TestCaseError> {
    let specs = routes.iter().enumerate().map(|(position, route)| spec(position, route)).collect();
    let matcher = Matcher::compile(specs).unwrap();
    let mut buffer = Vec::new();
    let path = normalise(asked.path.as_bytes(), &mut buffer).unwrap();
    let request = Request {
        method: Method::from_bytes(asked.method.as_bytes()),
        host: asked.host.as_bytes(),
        path,
        client: asked.client,
        vars: asked,
    };

    let as_read = scan(routes, asked, std::str::from_utf8(path.bytes()).unwrap());
    let decoded = String::from_utf8(path.bytes().to_vec()).unwrap().replace("%2F", "/").replace("//", "/");
    let as_decoded = scan(routes, asked, &decoded);
    let position = |found: &Found| found.as_ref().map(|(position, _)| *position);
    let expected = if position(&as_read) == position(&as_decoded) { Ok(as_read) } else { Err(PathError::EncodedSlash) };

    let mut scratch = Scratch::default();
    let found = matcher.find(&request, &mut scratch).map(|found| {
        found.map(|found| {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let params = matcher.params(found, &scratch, path);
            (found.route, params.map(|(name, value)| (name.to_owned(), text(value))).collect())
        })
    });
    prop_assert_eq!(&found, &expected);

    // What explain says of every route is the same story.
    for route in 0..routes.len() {
        let explanation = matcher.explain(&request, Some(&format!("r{route}")));
        let Ok(found) = &found else {
            prop_assert_eq!(explanation, Err(PathError::EncodedSlash));
            continue;
        };
        let explanation = explanation.unwrap();
        prop_assert_eq!(explanation.chosen.map(|chosen| chosen.route), position(found));
        let expected_params = found.as_ref().map(|(_, params)| params.clone()).unwrap_or_default();
        prop_assert_eq!(explanation.params, expected_params);
        let (_, verdict) = explanation.asked.unwrap();
        prop_assert_eq!(verdict == Verdict::Chosen, position(found) == Some(route));
        let alone = scan(&routes[route..=route], asked, std::str::from_utf8(path.bytes()).unwrap());
        prop_assert_eq!(matches!(verdict, Verdict::Chosen | Verdict::Later(_)), alone.is_some());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn the_matcher_is_the_linear_scan(
        routes in proptest::collection::vec(route(), 0..16),
        asked in proptest::collection::vec(asked(), 4),
    ) {
        for asked in &asked {
            check(&routes, asked)?;
        }
    }
}
