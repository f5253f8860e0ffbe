//! Runs one operation of the router a given number of times, for counting instructions.
//!
//! `route N CASE` is run under callgrind with two values of N: the difference of the counts divided by the difference of N is the
//! cost of one operation. It prints nothing, and does the same on every run. Expression routes are those of `cargo bench`.

#[path = "../../../../crates/route/benches/route/families.rs"]
mod families;

use families::{FAMILIES, Family, Sample};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;
use std::sync::Arc;
use stillgate_route::path::normalise;
use stillgate_route::{
    Expression, HostPattern, InvalidParts, MatchRequest, Matcher, Method, MethodSet, PathPattern, RouteCache,
    RouteMatch, RouteSpec, Scratch, UriRoute,
};

/// Number of routes in the cases with expressions.
const ROUTES: usize = 10_000;
/// Number of routes in the other cases.
const FEW_ROUTES: usize = 1_000;

/// The expression that is parsed.
const TYPICAL: &str = r#"http.method == "GET" && http.path ^= "/api/v1/orders/" && (http.host == "api.example.com" || http.headers.x_tenant == "acme")"#;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [count, case] = &arguments[..] else { return usage() };
    let Ok(count) = count.parse() else { return usage() };
    match &**case {
        "uris" => find_uri(count),
        "both" => find_both(count),
        "paths" => find("paths × methods", ROUTES / 2, true, count),
        "header" => find("headers, queries", ROUTES / 2, true, count),
        "query" => find("headers, queries", ROUTES / 2 + 1, true, count),
        // Every hundredth route has a regex without a prefix, like this one.
        "regex" => find("mixed", ROUTES / 2 + 20, true, count),
        "miss" => find("mixed", ROUTES / 2, false, count),
        "cached" => find_cached(count),
        "parse" => (0..count).for_each(|_| {
            black_box(Expression::parse(black_box(TYPICAL)).expect("an expression of ours"));
        }),
        "update" => update(count),
        _ => return usage(),
    }
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("usage: route COUNT uris|both|paths|header|query|regex|miss|cached|parse|update");
    ExitCode::from(2)
}

fn family(name: &str) -> &'static Family {
    FAMILIES.iter().find(|family| family.name == name).expect("a family of the benches")
}

/// Matches the request of one route, or one that no route takes, again and again.
fn find(name: &str, n: usize, is_hit: bool, count: usize) {
    let family = family(name);
    let matcher = Matcher::compile(specs(family)).expect("routes of ours");
    let mut sample = (family.request)(n);
    if !is_hit {
        (family.spoil)(&mut sample);
    }
    let method = Method::from_bytes(family.method(n).as_bytes());
    let (mut scratch, mut buffer) = (Scratch::default(), Vec::new());
    for _ in 0..count {
        let request = MatchRequest { method, ..request(&sample, &mut buffer) };
        let found = matcher.find(&request, &mut scratch).expect("no encoded slash");
        assert_eq!(black_box(found).is_some(), is_hit, "{} {}", sample.host, sample.path);
    }
}

/// Matches with a cache that contains the request.
fn find_cached(count: usize) {
    let family = family("paths × methods");
    let matcher = Matcher::compile(specs(family)).expect("routes of ours");
    let sample = (family.request)(ROUTES / 2);
    let (mut scratch, mut buffer) = (Scratch::default(), Vec::new());
    let mut cache = RouteCache::new(8192, 4 << 20, 0);
    for _ in 0..count {
        let found = matcher.find_cached(&request(&sample, &mut buffer), &mut scratch, &mut cache);
        black_box(found).expect("no encoded slash").expect("a request of ours");
    }
}

/// Host and path: one hit of each kind of URI route, and a miss.
const URI_REQUESTS: [(&str, &str); 5] = [
    ("www.example.com", "/api/v1/service-504/items"),
    ("www.example.com", "/api/v1/service-505/items/4711"),
    ("www.example.com", "/tenants/acme/apps/506"),
    ("shop-507.example.com", "/cart/items"),
    ("www.example.com", "/api/v2/nothing/here"),
];

/// Matches URI routes.
fn find_uri(count: usize) {
    find_in_turn((0..FEW_ROUTES).map(uri_route).collect(), &URI_REQUESTS, count);
}

/// Matches among as many routes, half of which have an expression: the extra cost of URI routes next to those.
fn find_both(count: usize) {
    let expressions = [
        ("www.example.com", "/shop/v1/service-508/items"),
        ("www.example.com", "/by-header/x"),
        ("regex-510.example.com", "/orders/17"),
        ("www.example.com", "/only/511"),
    ];
    let spec = |n| if n % 8 < 4 { uri_route(n) } else { expression_route(n) };
    find_in_turn((0..FEW_ROUTES).map(spec).collect(), &[&URI_REQUESTS[..], &expressions].concat(), count);
}

fn find_in_turn(specs: Vec<Arc<RouteSpec>>, requests: &[(&str, &str)], count: usize) {
    let matcher = Matcher::compile(specs).expect("routes of ours");
    let (mut scratch, mut buffer) = (Scratch::default(), Vec::new());
    let sample = |(host, path): &(&str, &str)| Sample {
        host: (*host).to_owned(),
        path: (*path).to_owned(),
        query: "page=2&tenant=t-507".to_owned(),
        headers: [("accept", "*/*"), ("x-tenant", "t-509")].map(|(n, v)| (n.to_owned(), v.to_owned())).to_vec(),
    };
    let samples: Vec<Sample> = requests.iter().map(sample).collect();
    for sample in samples.iter().cycle().take(count) {
        black_box(matcher.find(&request(sample, &mut buffer), &mut scratch)).expect("no encoded slash");
    }
}

/// Replaces one route of many, every time with a new one.
fn update(count: usize) {
    let family = family("paths × methods");
    let specs = specs(family);
    let matcher = Matcher::compile(specs.clone()).expect("routes of ours");
    let mut changed = specs;
    let middle = &mut changed[ROUTES / 2];
    *middle = Arc::new(RouteSpec { id: middle.id.clone(), ..(*family.spec(ROUTES)).clone() });
    for _ in 0..count {
        black_box(matcher.update(black_box(&changed).clone()).expect("routes of ours"));
    }
}

fn specs(family: &Family) -> Vec<Arc<RouteSpec>> {
    (0..ROUTES).map(|n| family.spec(n)).collect()
}

/// One of each kind in turn: exact path, prefix, parameter, host.
fn uri_route(n: usize) -> Arc<RouteSpec> {
    let path = match n % 4 {
        0 => format!("/api/v1/service-{n}/items"),
        1 => format!("/api/v1/service-{n}/*"),
        2 => format!("/tenants/:tenant/apps/{n}"),
        _ => "/*".to_owned(),
    };
    let host = (n % 4 == 3).then(|| format!("shop-{n}.example.com"));
    let takes = RouteMatch::Uri(UriRoute {
        hosts: host.iter().map(|host| HostPattern::parse(host).expect("a host of ours")).collect(),
        paths: vec![PathPattern::parse(&path).expect("a path of ours")],
        methods: [Method::Get, Method::Post].into_iter().collect::<MethodSet>(),
        remote_addrs: Vec::new(),
        vars: None,
        function: None,
        invalid: InvalidParts::default(),
    });
    Arc::new(RouteSpec { id: n.to_string(), priority: 0, takes })
}

/// One of each kind in turn: path, header field, regex, argument.
fn expression_route(n: usize) -> Arc<RouteSpec> {
    let text = match n % 4 {
        0 => format!(r#"http.method == "GET" && http.path ^= "/shop/v1/service-{n}""#),
        1 => format!(r#"http.headers.x_tenant == "t-{n}" && http.path ^= "/by-header""#),
        2 => format!(r#"http.host == "regex-{n}.example.com" && http.path ~ "^/[a-z]+/[0-9]+$""#),
        _ => format!(r#"any(http.queries.tenant) == "t-{n}" || http.path == "/only/{n}""#),
    };
    let takes = RouteMatch::Expression(Expression::parse(&text).expect("an expression of ours"));
    Arc::new(RouteSpec { id: n.to_string(), priority: 0, takes })
}

fn request<'a>(sample: &'a Sample, buffer: &'a mut Vec<u8>) -> MatchRequest<'a> {
    MatchRequest {
        method: Method::Get,
        host: black_box(sample.host.as_bytes()),
        path: normalise(black_box(sample.path.as_bytes()), buffer).expect("a path of ours"),
        client: IpAddr::V4(Ipv4Addr::LOCALHOST),
        vars: sample,
    }
}
