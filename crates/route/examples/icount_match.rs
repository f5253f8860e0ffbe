//! Matches a given number of requests against 1,000 routes, for counting instructions.
//!
//! `icount_match N`, run under callgrind with two values of N: the difference divided by that of N is one match. It
//! prints nothing, and does the same on every run.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;
use stillgate_route::path::normalise;
use stillgate_route::{
    HostPattern, Lookup, Matcher, Method, MethodSet, PathPattern, Request, RouteSpec, Scratch, Variable,
};

struct NoVariables;

impl Lookup for NoVariables {
    fn value<'a>(&'a self, _: &Variable, _: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        None
    }
}

/// One route of each kind in turn: exact path, prefix, parameter, host.
fn spec(n: usize) -> Option<RouteSpec> {
    let path = match n % 4 {
        0 => format!("/api/v1/service-{n}/items"),
        1 => format!("/api/v1/service-{n}/*"),
        2 => format!("/tenants/:tenant/apps/{n}"),
        _ => "/*".to_owned(),
    };
    let hosts = if n % 4 == 3 { vec![HostPattern::parse(&format!("shop-{n}.example.com")).ok()?] } else { Vec::new() };
    Some(RouteSpec {
        id: n.to_string(),
        hosts,
        paths: vec![PathPattern::parse(&path).ok()?],
        methods: [Method::Get, Method::Post].into_iter().collect::<MethodSet>(),
        remote_addrs: Vec::new(),
        priority: 0,
        vars: None,
    })
}

fn main() -> ExitCode {
    const ROUTES: usize = 1_000;
    /// Host and path: one hit of each kind, and a miss.
    const REQUESTS: [(&str, &str); 5] = [
        ("www.example.com", "/api/v1/service-500/items"),
        ("www.example.com", "/api/v1/service-501/items/4711"),
        ("www.example.com", "/tenants/acme/apps/502"),
        ("shop-503.example.com", "/cart/items"),
        ("www.example.com", "/api/v2/nothing/here"),
    ];
    let count = std::env::args().nth(1).and_then(|count| count.parse::<usize>().ok());
    let specs = (0..ROUTES).map(spec).collect::<Option<Vec<RouteSpec>>>();
    let (Some(count), Some(Ok(matcher))) = (count, specs.map(Matcher::compile)) else {
        eprintln!("usage: icount_match COUNT");
        return ExitCode::from(2);
    };
    let mut scratch = Scratch::default();
    let mut buffer = Vec::new();
    for (host, path) in REQUESTS.iter().cycle().take(count) {
        let Ok(path) = normalise(black_box(path.as_bytes()), &mut buffer) else {
            return ExitCode::FAILURE;
        };
        let request = Request {
            method: Method::Get,
            host: black_box(host.as_bytes()),
            path,
            client: IpAddr::V4(Ipv4Addr::LOCALHOST),
            vars: &NoVariables,
        };
        black_box(matcher.find(&request, &mut scratch)).ok();
    }
    ExitCode::SUCCESS
}
