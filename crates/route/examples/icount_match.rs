//! Matches a given number of requests against 1,000 routes, for counting instructions.
//!
//! `icount_match N`, run under callgrind with two values of N: the difference divided by that of N is one match. It
//! prints nothing, and does the same on every run.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;
use std::sync::Arc;
use stillgate_route::path::normalise;
use stillgate_route::{
    Expression, HostPattern, Lookup, Matcher, Method, MethodSet, PathPattern, Request, RouteSpec, Scratch, Takes,
    UriRoute, Variable,
};

/// A request with one header field and one argument.
struct Values;

impl Lookup for Values {
    fn value<'a>(&'a self, variable: &Variable, _: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        match variable {
            Variable::Args => Some(b"page=2&tenant=t-507"),
            _ => None,
        }
    }

    fn each_header(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        visit(b"Accept", b"*/*");
        visit(b"X-Tenant", b"t-509");
    }
}

/// One route of each kind in turn: exact path, prefix, parameter, host; then expressions on path, header field, regex and
/// argument, which alone would come first and so stand for what URI routes pay beside them.
fn spec(n: usize) -> Option<Arc<RouteSpec>> {
    let expression = match n % 8 {
        4 => format!("http.method == \"GET\" && http.path ^= \"/shop/v1/service-{n}\""),
        5 => format!("http.headers.x_tenant == \"t-{n}\" && http.path ^= \"/by-header\""),
        6 => format!("http.host == \"regex-{n}.example.com\" && http.path ~ \"^/[a-z]+/[0-9]+$\""),
        7 => format!("any(http.queries.tenant) == \"t-{n}\" || http.path == \"/only/{n}\""),
        _ => String::new(),
    };
    let takes = if expression.is_empty() {
        Takes::Uri(uri(n)?)
    } else {
        Takes::Expression(Expression::parse(&expression).ok()?)
    };
    Some(Arc::new(RouteSpec { id: n.to_string(), priority: 0, takes }))
}

fn uri(n: usize) -> Option<UriRoute> {
    let path = match n % 4 {
        0 => format!("/api/v1/service-{n}/items"),
        1 => format!("/api/v1/service-{n}/*"),
        2 => format!("/tenants/:tenant/apps/{n}"),
        _ => "/*".to_owned(),
    };
    let hosts = if n % 4 == 3 { vec![HostPattern::parse(&format!("shop-{n}.example.com")).ok()?] } else { Vec::new() };
    Some(UriRoute {
        hosts,
        paths: vec![PathPattern::parse(&path).ok()?],
        methods: [Method::Get, Method::Post].into_iter().collect::<MethodSet>(),
        remote_addrs: Vec::new(),
        vars: None,
    })
}

fn main() -> ExitCode {
    const ROUTES: usize = 1_000;
    /// Host and path: one hit of each kind, and a miss.
    const REQUESTS: [(&str, &str); 9] = [
        ("www.example.com", "/api/v1/service-504/items"),
        ("www.example.com", "/api/v1/service-505/items/4711"),
        ("www.example.com", "/tenants/acme/apps/506"),
        ("shop-507.example.com", "/cart/items"),
        ("www.example.com", "/shop/v1/service-508/items"),
        ("www.example.com", "/by-header/x"),
        ("regex-510.example.com", "/orders/17"),
        ("www.example.com", "/only/511"),
        ("www.example.com", "/api/v2/nothing/here"),
    ];
    let count = std::env::args().nth(1).and_then(|count| count.parse::<usize>().ok());
    let specs = (0..ROUTES).map(spec).collect::<Option<Vec<_>>>();
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
            vars: &Values,
        };
        black_box(matcher.find(&request, &mut scratch)).ok();
    }
    ExitCode::SUCCESS
}
