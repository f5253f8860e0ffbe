//! Shares that plugins assign, over all workers and many connections: each is compared with its weight by the chi-square test.
//!
//! The critical values are those of 1 in 100,000: a right gateway fails here once in years, one that is a few per cent off fails
//! at once.

use crate::shared::STILLGATE;
use crate::shared::logs;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use stillgate_testkit::{Gateway, Message, Setup, Upstream, eventually};

/// Critical values for one and for two degrees of freedom.
const CRITICAL: [f64; 2] = [19.511, 23.026];
/// Connections for each count.
const CONNECTIONS: usize = 60;
const EACH: usize = 60;
const REQUESTS: usize = CONNECTIONS * EACH;
/// Clients at a time.
const THREADS: usize = 6;

/// How far counts are from shares.
fn chi_square(counts: &[usize], shares: &[f64]) -> f64 {
    let (all, sum) = (counts.iter().sum::<usize>() as f64, shares.iter().sum::<f64>());
    let distance = |(count, share): (&usize, &f64)| {
        let expected = all * share / sum;
        (*count as f64 - expected).powi(2) / expected
    };
    counts.iter().zip(shares).map(distance).sum()
}

#[track_caller]
fn check(what: &str, counts: &[usize], shares: &[f64]) {
    let (distance, critical) = (chi_square(counts, shares), CRITICAL[counts.len() - 2]);
    assert!(distance < critical, "{what}: {counts:?} for {shares:?}: χ² is {distance:.1}, not below {critical}");
}

#[test]
fn the_test_itself_finds_shares_that_are_off() {
    assert!(chi_square(&[300, 200, 500], &[3.0, 2.0, 5.0]) == 0.0);
    // 3 % off, of as many requests as here.
    let off = |share: f64| [(REQUESTS as f64 * share) as usize, (REQUESTS as f64 * (1.0 - share)) as usize];
    assert!(chi_square(&off(0.23), &[2.0, 8.0]) > 15.0 && chi_square(&off(0.24), &[2.0, 8.0]) > CRITICAL[0]);
}

/// A node whose responses say which it is.
fn named(name: &'static str) -> Upstream {
    Upstream::serve(move |connection| {
        while connection.read_request().is_ok() {
            if connection.try_send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len())).is_err()
            {
                return;
            }
        }
    })
}

/// Sends requests over many connections, each from a client of its own; what `of` sees in the responses, counted. After the first
/// half `half_way` is run, while clients go on.
fn counted(
    gateway: &Gateway,
    target: &str,
    of: fn(&Message) -> String,
    half_way: impl FnOnce(),
) -> HashMap<String, usize> {
    let (next, target) = (AtomicUsize::new(0), target.to_owned());
    let one = || {
        let mut counts = HashMap::new();
        while next.fetch_add(1, Ordering::Relaxed) < CONNECTIONS {
            let mut client = gateway.client();
            for _ in 0..EACH {
                *counts.entry(of(&client.get(&target))).or_insert(0) += 1;
            }
        }
        counts
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..THREADS).map(|_| scope.spawn(one)).collect();
        eventually("half of the connections", || next.load(Ordering::Relaxed) >= CONNECTIONS / 2);
        half_way();
        let mut all = HashMap::new();
        for counts in clients.into_iter().map(|client| client.join().expect("a client")) {
            counts.into_iter().for_each(|(name, count)| *all.entry(name).or_insert(0) += count);
        }
        all
    })
}

fn body(response: &Message) -> String {
    String::from_utf8(response.body.clone()).expect("text")
}

#[test]
fn traffic_split_gives_each_upstream_its_share() {
    let nodes = ["three", "two", "five", "none", "beta"].map(named);
    let setup = |note: u32| {
        let names = ["three", "two", "five", "none", "beta"];
        let upstreams: String = names
            .iter()
            .zip(&nodes)
            .map(|(name, node)| format!("  - {{id: {name}, nodes: {{\"{}\": 1}}}}\n", node.addr()))
            .collect();
        let rules = "[{match: [{vars: [[\"arg_beta\", \"==\", \"1\"]]}], weighted_upstreams: [{upstream_id: beta}]}, \
             {weighted_upstreams: [{upstream_id: three, weight: 3}, {upstream_id: two, weight: 2}, {upstream_id: none, weight: 0}, {weight: 5}]}]";
        Setup::resources(format!(
            "upstreams:\n{upstreams}routes:\n  - {{id: split, uri: /*, desc: \"{note}\", plugins: {{traffic-split: {{rules: {rules}}}}}, upstream_id: five}}\n"
        ))
        .gateway("workers: 4")
    };
    let mut gateway = Gateway::start(STILLGATE, &setup(0));
    let counts = counted(&gateway, "/a", body, || gateway.reload(&setup(1)));
    let of = |name: &str| counts.get(name).copied().unwrap_or(0);
    check("traffic-split", &[of("three"), of("two"), of("five")], &[3.0, 2.0, 5.0]);
    assert_eq!((of("none"), of("beta"), counts.values().sum()), (0, 0, REQUESTS), "{counts:?}");
    let matched = counted(&gateway, "/a?beta=1", body, || ());
    assert_eq!(matched, HashMap::from([("beta".to_owned(), REQUESTS)]));
    gateway.assert_healthy();
}

/// A gateway with one route and four workers.
fn gateway(node: &Upstream, plugin: &str, more: &str) -> Gateway {
    Gateway::start(STILLGATE, &logs::route(node, plugin, more).gateway("workers: 4"))
}

#[test]
fn fault_injection_aborts_its_percentage() {
    let node = named("node");
    let plugin =
        |percentage: u32| format!("fault-injection: {{abort: {{http_status: 418, percentage: {percentage}}}}}");
    let status = |response: &Message| response.head.status().to_string();
    for percentage in [0, 20, 100] {
        let mut gateway = gateway(&node, &plugin(percentage), "");
        let again = logs::route(&node, &plugin(percentage), "plugin_metadata: []\n").gateway("workers: 4");
        let counts = counted(&gateway, "/a", status, || gateway.reload(&again));
        let of = |status: &str| counts.get(status).copied().unwrap_or(0);
        match percentage {
            20 => check("fault-injection", &[of("418"), of("200")], &[20.0, 80.0]),
            _ => assert_eq!(of("418"), REQUESTS * percentage as usize / 100, "{counts:?}"),
        }
        assert_eq!(of("418") + of("200"), REQUESTS);
        gateway.assert_healthy();
    }
}

#[test]
fn proxy_mirror_copies_its_share() {
    let (node, copies) = (named("node"), Arc::new(AtomicUsize::new(0)));
    let count = copies.clone();
    let mirror = Upstream::serve(move |connection| {
        while connection.read_request().is_ok() {
            count.fetch_add(1, Ordering::Relaxed);
            if connection.try_send("HTTP/1.1 204 No Content\r\n\r\n").is_err() {
                return;
            }
        }
    });
    let mut gateway =
        gateway(&node, &format!("proxy-mirror: {{host: \"http://{}\", sample_ratio: 0.25}}", mirror.addr()), "");
    counted(&gateway, "/a", body, || ());
    // Copies are under way for a moment: those of the last requests are waited for.
    let (mut last, mut same) = (0, 0);
    eventually("all copies", || {
        let now = copies.load(Ordering::Relaxed);
        same = if now == last { same + 1 } else { 0 };
        last = now;
        same > 500 && gateway.is_at_rest()
    });
    check("proxy-mirror", &[last, REQUESTS - last], &[1.0, 3.0]);
    gateway.assert_healthy();
}

#[test]
fn opentelemetry_samples_its_ratio() {
    // Says whether the node was asked to record.
    let node = Upstream::serve(|connection| {
        while let Ok(request) = connection.read_request() {
            let flags = request.head.get("traceparent").map_or("none", |context| &context[context.len() - 2..]);
            if connection.try_send(format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{flags}")).is_err() {
                return;
            }
        }
    });
    let metadata = "plugin_metadata:\n  - {id: opentelemetry, collector: {address: \"127.0.0.1:1\"}}\n";
    let plugin = "opentelemetry: {sampler: {name: trace_id_ratio, options: {fraction: 0.3}}}";
    let mut gateway = gateway(&node, plugin, metadata);
    let counts = counted(&gateway, "/a", body, || ());
    let of = |flags: &str| counts.get(flags).copied().unwrap_or(0);
    check("opentelemetry", &[of("01"), of("00")], &[3.0, 7.0]);
    assert_eq!(of("01") + of("00"), REQUESTS, "{counts:?}");
    gateway.assert_healthy();
}
