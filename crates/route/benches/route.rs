//! What a match and a compilation cost, by number and kind of routes.
//!
//! `cargo bench -p stillgate-route`. Plain wall time: the best of several rounds, after a warm-up, on whatever machine it
//! runs; only for comparing with itself. `spread` asks for a different route every time, in no order, so that caches are
//! as cold as under traffic that uses all routes; the other columns ask for one route again and again.

#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};
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

/// A kind of route set: host, pattern and a path that takes it, by the route's number.
struct Kind {
    name: &'static str,
    host: fn(usize) -> Option<String>,
    pattern: fn(usize) -> String,
    path: fn(usize) -> String,
}

const KINDS: [Kind; 4] = [
    Kind {
        name: "exact",
        host: |_| None,
        pattern: |n| format!("/api/v1/service-{n}/items"),
        path: |n| format!("/api/v1/service-{n}/items"),
    },
    Kind {
        name: "prefix",
        host: |_| None,
        pattern: |n| format!("/api/v1/service-{n}/*"),
        path: |n| format!("/api/v1/service-{n}/items/4711"),
    },
    Kind {
        name: "params",
        host: |_| None,
        pattern: |n| format!("/tenants/:tenant/apps/{n}/:action"),
        path: |n| format!("/tenants/acme/apps/{n}/restart"),
    },
    Kind {
        name: "hosts",
        host: |n| Some(if n % 2 == 0 { format!("shop-{n}.example.com") } else { format!("*.shop-{n}.example.com") }),
        pattern: |n| if n % 4 < 2 { "/*".to_owned() } else { "/cart".to_owned() },
        path: |_| "/cart".to_owned(),
    },
];

/// A request as text.
struct Target {
    host: String,
    path: String,
}

impl Kind {
    fn spec(&self, n: usize) -> RouteSpec {
        RouteSpec {
            id: format!("route-{n}"),
            hosts: (self.host)(n).iter().map(|host| HostPattern::parse(host).unwrap()).collect(),
            paths: vec![PathPattern::parse(&(self.pattern)(n)).unwrap()],
            methods: [Method::Get, Method::Post].into_iter().collect::<MethodSet>(),
            remote_addrs: Vec::new(),
            priority: 0,
            vars: None,
        }
    }

    fn target(&self, n: usize) -> Target {
        let host = (self.host)(n).unwrap_or_else(|| "www.example.com".to_owned()).replace('*', "www");
        Target { host, path: (self.path)(n) }
    }
}

const ROUNDS: usize = 7;
const ROUND_TIME: Duration = Duration::from_millis(15);

/// Nanoseconds of one match: the best round. Every target must be found, or none.
fn measure(matcher: &Matcher, targets: &[Target], expect_hit: bool) -> f64 {
    let mut scratch = Scratch::default();
    let mut buffer = Vec::new();
    let mut ask = |target: &Target| {
        let path = normalise(black_box(target.path.as_bytes()), &mut buffer).unwrap();
        let request = Request {
            method: Method::Get,
            host: black_box(target.host.as_bytes()),
            path,
            client: IpAddr::V4(Ipv4Addr::LOCALHOST),
            vars: &NoVariables,
        };
        matcher.find(&request, &mut scratch).unwrap()
    };
    for target in targets {
        assert_eq!(ask(target).is_some(), expect_hit, "{} {}", target.host, target.path);
    }
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let (mut matches, start) = (0usize, Instant::now());
        let mut endless = targets.iter().cycle();
        while start.elapsed() < ROUND_TIME {
            const BATCH: usize = 4096;
            for target in endless.by_ref().take(BATCH) {
                black_box(ask(target));
            }
            matches += BATCH;
        }
        best = best.min(start.elapsed().as_nanos() as f64 / matches as f64);
    }
    best
}

fn main() {
    println!("ns per match (normalise + find)");
    println!(
        "{:8} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>12} {:>12}",
        "kind", "routes", "first", "middle", "last", "miss", "spread", "compile ms", "index B/rt"
    );
    for kind in &KINDS {
        for routes in [1, 100, 10_000, 100_000] {
            row(kind, routes);
        }
    }
}

fn row(kind: &Kind, routes: usize) {
    let specs: Vec<RouteSpec> = (0..routes).map(|n| kind.spec(n)).collect();
    let mut compile = Duration::MAX;
    for _ in 0..3 {
        let specs = specs.clone();
        let start = Instant::now();
        black_box(Matcher::compile(specs).unwrap());
        compile = compile.min(start.elapsed());
    }
    let matcher = Matcher::compile(specs).unwrap();

    let one = |n: usize| measure(&matcher, &[kind.target(n)], true);
    let mut miss = kind.target(routes / 2);
    miss.path = format!("{}/x/y/z", miss.path.replace("service", "servant").replace("apps", "app"));
    miss.host = miss.host.replace("shop", "shoe");
    // A multiplicative walk visits every route once before it comes back.
    let spread: Vec<Target> = (0..routes.min(50_000)).map(|n| kind.target(n * 7_919 % routes)).collect();
    println!(
        "{:8} {:>7} {:>7.0} {:>7.0} {:>7.0} {:>7.0} {:>7.0} {:>12.1} {:>12}",
        kind.name,
        routes,
        one(0),
        one(routes / 2),
        one(routes - 1),
        measure(&matcher, &[miss], false),
        measure(&matcher, &spread, true),
        compile.as_secs_f64() * 1e3,
        matcher.index_bytes() / routes,
    );
}
