//! Cost of a match, a compilation and a change by number and kind of routes, compared with other libraries.
//!
//! `cargo bench -p stillgate-route [-- FAMILY]`. Plain wall time: the best of several rounds after a warm-up, the same
//! routes and requests for all in one run; only ratios mean something. `spread` requests another route every time, in
//! no order, so that caches are as cold as under traffic that uses all routes; the other columns repeat one request.
//! The reference's time includes filling its context, ours includes normalising the path and reading fields.

mod families;
mod peers;

use families::{FAMILIES, Family, Sample};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stillgate_route::path::normalise;
use stillgate_route::{MatchRequest, Matcher, Method, RouteSpec, Scratch};

const ROUNDS: usize = 5;
const ROUND_TIME: Duration = Duration::from_millis(20);

fn main() {
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    println!("ns per match; peer: atc-router for expressions, matchit for paths");
    println!(
        "{:17} {:>7} {:>6} {:>6} {:>6} {:>6} {:>7} | {:>10} {:>10} | {:>8} {:>10} {:>9} {:>7}",
        "family",
        "routes",
        "first",
        "middle",
        "last",
        "miss",
        "spread",
        "peer mid",
        "peer miss",
        "parse ms",
        "compile ms",
        "change ms",
        "B/route"
    );
    for family in FAMILIES.iter().filter(|family| wanted.as_ref().is_none_or(|wanted| family.name.contains(&**wanted)))
    {
        for routes in [1, 100, 10_000, 100_000] {
            row(family, routes);
        }
    }
}

fn row(family: &Family, routes: usize) {
    let start = Instant::now();
    let specs: Vec<Arc<RouteSpec>> = (0..routes).map(|n| family.spec(n)).collect();
    let parse = start.elapsed();
    let compile = best_of(3, || Matcher::compile(specs.clone()).expect("routes of ours"));
    let matcher = Matcher::compile(specs.clone()).expect("routes of ours");
    let mut changed = specs.clone();
    changed[routes / 2] = Arc::new(RouteSpec { priority: 1, ..(*changed[routes / 2]).clone() });
    let change = best_of(5, || matcher.update(changed.clone()).expect("routes of ours"));

    let one = |n: usize| ours(&matcher, &[(family.request)(n)], &[family.method(n)], true);
    let mut miss = (family.request)(routes / 2);
    (family.spoil)(&mut miss);
    // A multiplicative walk visits every route once before it comes back.
    let order: Vec<usize> = (0..routes.min(50_000)).map(|n| n * 7_919 % routes).collect();
    let spread: Vec<Sample> = order.iter().map(|n| (family.request)(*n)).collect();
    let methods: Vec<&str> = order.iter().map(|n| family.method(*n)).collect();
    let [peer_middle, peer_miss] = peer(family, routes, &miss);
    println!(
        "{:17} {:>7} {:>6.0} {:>6.0} {:>6.0} {:>6.0} {:>7.0} | {:>10} {:>10} | {:>8.1} {:>10.2} {:>9.3} {:>7}",
        family.name,
        routes,
        one(0),
        one(routes / 2),
        one(routes - 1),
        ours(&matcher, std::slice::from_ref(&miss), &[family.method(routes / 2)], false),
        ours(&matcher, &spread, &methods, true),
        peer_middle,
        peer_miss,
        parse.as_secs_f64() * 1e3,
        compile.as_secs_f64() * 1e3,
        change.as_secs_f64() * 1e3,
        matcher.index_bytes() / routes,
    );
}

fn best_of<T>(rounds: usize, mut work: impl FnMut() -> T) -> Duration {
    let once = |_| {
        let start = Instant::now();
        let made = black_box(work());
        let took = start.elapsed();
        // The time to free it is not measured.
        drop(made);
        took
    };
    (0..rounds).map(once).min().unwrap_or_default()
}

/// Nanoseconds of one call of `ask` with each index in turn: the best round.
fn nanoseconds(count: usize, mut ask: impl FnMut(usize)) -> f64 {
    let mut best = f64::INFINITY;
    (0..count.min(1000)).for_each(&mut ask);
    for _ in 0..ROUNDS {
        let (mut asked, start) = (0, Instant::now());
        while start.elapsed() < ROUND_TIME {
            // Reading the clock must not weigh, but a peer may take tens of milliseconds for one call.
            let batch = if best > 1e5 { 1 } else { count.max(64) };
            for index in 0..batch {
                ask(index % count);
            }
            asked += batch;
        }
        best = best.min(start.elapsed().as_nanos() as f64 / asked as f64);
    }
    best
}

fn ours(matcher: &Matcher, samples: &[Sample], methods: &[&str], expect_hit: bool) -> f64 {
    let mut scratch = Scratch::default();
    let mut buffer = Vec::new();
    let mut ask = |index: usize| {
        let sample = &samples[index];
        let path = normalise(black_box(sample.path.as_bytes()), &mut buffer).expect("a path of ours");
        let request = MatchRequest {
            method: Method::from_bytes(methods[index].as_bytes()),
            host: black_box(sample.host.as_bytes()),
            path,
            client: IpAddr::V4(Ipv4Addr::LOCALHOST),
            vars: sample,
        };
        let found = matcher.find(&request, &mut scratch).expect("no encoded slash");
        assert_eq!(found.is_some(), expect_hit, "{} {} {}", sample.host, sample.path, sample.query);
        black_box(found);
    };
    nanoseconds(samples.len(), &mut ask)
}

/// The peer's times for the route in the middle and for a miss, as text; a dash if it does not support these routes.
fn peer(family: &Family, routes: usize, miss: &Sample) -> [String; 2] {
    let hit = (family.request)(routes / 2);
    let method = family.method(routes / 2);
    let schema = peers::schema();
    if let Some(router) = peers::reference(family, routes, &schema) {
        let ask = |sample: &Sample, expected: bool| {
            assert_eq!(peers::ask_reference(&router, &schema, sample, method), expected);
        };
        return [nanoseconds_of_slow(|| ask(&hit, true)), nanoseconds_of_slow(|| ask(miss, false))];
    }
    if let Some(tree) = peers::tree(family, routes) {
        let ask = |sample: &Sample| black_box(tree.at(black_box(&sample.path)).is_ok());
        return [&hit, miss].map(|sample| format!("{:.0}", nanoseconds(1, |_| _ = ask(sample))));
    }
    ["-".to_owned(), "-".to_owned()]
}

/// Measures calls that may take milliseconds.
fn nanoseconds_of_slow(mut ask: impl FnMut()) -> String {
    let rounds = (0..ROUNDS).map(|_| {
        let (mut asked, start) = (0u32, Instant::now());
        while asked == 0 || start.elapsed() < ROUND_TIME {
            ask();
            asked += 1;
        }
        start.elapsed().as_nanos() as f64 / f64::from(asked)
    });
    format!("{:.0}", rounds.fold(f64::INFINITY, f64::min))
}
