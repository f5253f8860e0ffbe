//! `limit-count` over all workers, reloads and upgrades: exactly as many requests are let through as the limit says, counted by
//! clients that know nothing of it.

use crate::shared::STILLGATE;
use crate::shared::measured::MeasuredGateway;
use crate::shared::upgrade::UpgradedGateway;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use stillgate_testkit::{Client, Gateway, Message, Rounds, Setup, Upstream, eventually};

/// Number of concurrent clients, each with a connection of its own.
const CLIENTS: usize = 8;
/// Requests that each of them sends in one go.
const REQUESTS: usize = 25;
/// Longer than any test.
const LONG_S: u64 = 3_600;

/// One route with a limit, keys as YAML.
fn limited(upstream: &Upstream, workers: usize, keys: &str) -> Setup {
    let setup = Setup::to(upstream.addr()).gateway(&format!("workers: {workers}"));
    setup.route(&format!("plugins:\n  limit-count: {{{keys}}}"))
}

/// The answers that clients got: how often each status, and what remained, of those that were let through.
#[derive(Debug, Default)]
struct AnswerCounts {
    statuses: BTreeMap<u16, usize>,
    remaining: Vec<i64>,
}

impl AnswerCounts {
    fn add(&mut self, response: &Message) {
        let status = response.head.status();
        *self.statuses.entry(status).or_default() += 1;
        let remaining = response.head.get("X-RateLimit-Remaining").expect("the header").parse().expect("a number");
        match status {
            200 => self.remaining.push(remaining),
            _ => assert_eq!(remaining, 0),
        }
    }

    fn join(mut self, other: AnswerCounts) -> AnswerCounts {
        for (status, times) in other.statuses {
            *self.statuses.entry(status).or_default() += times;
        }
        self.remaining.extend(other.remaining);
        self
    }

    fn admitted(&self) -> usize {
        self.statuses.get(&200).copied().unwrap_or(0)
    }

    /// Exactly `count` of them, each with a different remaining number.
    #[track_caller]
    fn assert_exactly(mut self, count: usize, requests: usize) {
        let expected = [(200, count), (503, requests - count)].into_iter().filter(|(_, times)| *times > 0);
        assert_eq!(self.statuses, expected.collect());
        self.remaining.sort_unstable();
        assert_eq!(self.remaining, (0..count as i64).collect::<Vec<_>>());
    }
}

/// All clients at once, each on as many connections as it sends requests where `is_anew`.
fn ask(addr: SocketAddr, is_anew: bool) -> AnswerCounts {
    let one = || {
        let (mut client, mut heard) = (Client::connect(addr), AnswerCounts::default());
        for _ in 0..REQUESTS {
            if is_anew {
                client = Client::connect(addr);
            }
            heard.add(&client.get("/"));
        }
        heard
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(one)).collect();
        clients
            .into_iter()
            .map(|client| client.join().expect("a client"))
            .fold(AnswerCounts::default(), AnswerCounts::join)
    })
}

#[test]
fn a_window_admits_exactly_its_count_over_all_workers() {
    let upstream = Upstream::echo();
    for workers in 1..=4 {
        for (count, kind) in [(2, "fixed"), (2, "sliding"), (101, "fixed"), (101, "sliding")] {
            let keys = format!("count: {count}, time_window: {LONG_S}, window_type: {kind}");
            let gateway = Gateway::start(STILLGATE, &limited(&upstream, workers, &keys));
            ask(gateway.addr(), workers.is_multiple_of(2)).assert_exactly(count, CLIENTS * REQUESTS);
        }
    }
}

#[test]
fn a_window_ends_and_another_begins() {
    let upstream = Upstream::echo();
    let setup = limited(&upstream, 2, "count: 2, time_window: 1, rejected_code: 429, rejected_msg: later");
    let gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client();
    // However the windows fall: a second admits two, and the next two more. Where the test stalls for that long, one may
    // have ended that was not full.
    let (mut admitted, mut in_a_row, mut first) = (0, 0, Instant::now());
    eventually("three windows", || {
        let asked = Instant::now();
        let response = client.get("/");
        match response.head.status() {
            200 => {
                first = if in_a_row == 0 { asked } else { first };
                (admitted, in_a_row) = (admitted + 1, in_a_row + 1);
            }
            status => {
                assert_eq!((status, &response.body[..]), (429, &b"{\"error_msg\":\"later\"}\n"[..]));
                let reset: f64 = response.head.get("X-RateLimit-Reset").expect("it").parse().expect("a number");
                assert!((0.0..=1.0).contains(&reset), "{reset}");
                let has_stood_still = first.elapsed() >= Duration::from_millis(900);
                assert!(matches!(in_a_row, 0 | 2) || in_a_row > 2 && has_stood_still, "a window is full with two");
                in_a_row = 0;
            }
        }
        admitted >= 6
    });
}

#[test]
fn counters_survive_a_reload_and_a_changed_limit_begins_again() {
    let upstream = Upstream::echo();
    let keys = format!("count: 5, time_window: {LONG_S}");
    let gateway = Gateway::start(STILLGATE, &limited(&upstream, 2, &keys));
    let mut client = gateway.client();
    let remaining = |client: &mut Client| client.get("/").head.get("X-RateLimit-Remaining").map(str::to_owned);
    assert_eq!(remaining(&mut client).as_deref(), Some("4"));
    gateway.reload(&limited(&upstream, 2, &keys).upstream("desc: something else"));
    assert_eq!(remaining(&mut client).as_deref(), Some("3"));
    gateway.reload(&limited(&upstream, 2, &keys).route("desc: of the route"));
    assert_eq!(remaining(&mut client).as_deref(), Some("2"));
    gateway.reload(&limited(&upstream, 2, &format!("count: 9, time_window: {LONG_S}")));
    assert_eq!(remaining(&mut client).as_deref(), Some("8"));
    // The limit is back: its counter still exists.
    gateway.reload(&limited(&upstream, 2, &keys));
    assert_eq!(remaining(&mut client).as_deref(), Some("1"));
}

#[test]
fn the_first_limit_can_come_with_a_reload() {
    let upstream = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()).gateway("workers: 2"));
    assert_eq!(gateway.client().get("/").head.get("X-RateLimit-Limit"), None);
    gateway.reload(&limited(&upstream, 2, &format!("count: 30, time_window: {LONG_S}")));
    ask(gateway.addr(), true).assert_exactly(30, CLIENTS * REQUESTS);
}

#[test]
fn an_upgrade_under_load_admits_exactly_the_count() {
    /// More requests than can be sent until the upgrade is over.
    const COUNT: usize = 20_000;
    let upstream = Upstream::echo();
    for (before, after, kind) in [(2, 2, "fixed"), (1, 4, "sliding")] {
        let setup = |workers| {
            limited(&upstream, workers, &format!("count: {COUNT}, time_window: {}, window_type: {kind}", 30 * LONG_S))
        };
        let mut upgraded = UpgradedGateway::start(&setup(before));
        upgraded.configure(&setup(after));
        let addr = upgraded.gateway.addr();
        let rounds = Rounds::default();
        let one = |number: usize| {
            let mut heard = AnswerCounts::default();
            rounds.of_requests(addr, number.is_multiple_of(2), |client| heard.add(&client.get("/")));
            heard
        };
        let heard = std::thread::scope(|scope| {
            let one = &one;
            let clients: Vec<_> = (0..4).map(|number| scope.spawn(move || one(number))).collect();
            let _end = rounds.until_dropped();
            rounds.await_more(200);
            upgraded.upgrade();
            upgraded.await_old();
            rounds.await_more(200);
            rounds.end();
            clients
                .into_iter()
                .map(|client| client.join().expect("a client"))
                .fold(AnswerCounts::default(), AnswerCounts::join)
        });
        let mut all = heard.remaining.clone();
        assert_eq!(heard.admitted(), rounds.done() as usize, "the limit is not reached");
        all.sort_unstable();
        all.reverse();
        let expected: Vec<i64> = (0..COUNT as i64).rev().take(all.len()).collect();
        assert!(all == expected, "each number once: {} requests", all.len());
        let left = COUNT - all.len();
        exhaust(addr, left);
    }
}

/// Takes what is left, from many connections: exactly that.
fn exhaust(addr: SocketAddr, left: usize) {
    let taken = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = Client::connect(addr);
                while client.get("/").head.status() == 200 {
                    taken.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(taken.load(Ordering::Relaxed), left as u64);
}

#[test]
fn counters_are_in_the_metrics() {
    let upstream = Upstream::echo();
    let without = MeasuredGateway::start(Setup::to(upstream.addr()), "");
    let zeros = ["stillgate_limit_counters 0", "stillgate_limit_evicted_total 0", "stillgate_limit_contended_total 0"];
    let exposition = without.scrape().0;
    assert!(zeros.iter().all(|line| exposition.lines().any(|found| found == *line)), "{exposition}");
    let setup = |more: &str| limited(&upstream, 2, &format!("count: 1, time_window: {LONG_S}, key: arg_k{more}"));
    let measured = MeasuredGateway::start(setup("").gateway("limits: {counters_bytes: 64KiB}"), "");
    let mut client = measured.gateway.client();
    for key in 0..100 {
        client.get(&format!("/?k={key}"));
    }
    let sum = |name: &str| measured.scrape().sum(name, &[]);
    eventually("all keys to be counted", || sum("stillgate_limit_counters") == 100.0);
    assert_eq!((sum("stillgate_limit_evicted_total"), sum("stillgate_limit_contended_total")), (0.0, 0.0));
    for key in 0..10_000 {
        client.get(&format!("/?k={key}"));
    }
    eventually("some to be evicted", || sum("stillgate_limit_evicted_total") > 1_000.0);
    assert!(sum("stillgate_limit_counters") < 2_000.0);
}

#[test]
fn a_window_of_one_key_says_when_it_ends() {
    let upstream = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &limited(&upstream, 1, "count: 1, time_window: 60"));
    let mut client = gateway.client();
    let reset = |response: Message| -> f64 {
        response.head.get("X-RateLimit-Reset").expect("the header").parse().expect("a number")
    };
    assert_eq!(reset(client.get("/")), 60.0);
    let mut last = 60.0;
    eventually("time to pass", || {
        let now = reset(client.get("/"));
        assert!(now <= last && now > 0.0, "{now} after {last}");
        last = now;
        now < 59.9
    });
    assert!(client.get("/").head.get("X-RateLimit-Limit") == Some("1"));
}

#[test]
fn the_example_of_the_page_does_what_the_page_says() {
    let page = include_str!("../../../../docs/plugins/limit-count.md");
    let block = |kind: &str| page.split_once(&format!("```{kind}\n")).and_then(|(_, rest)| rest.split_once("```"));
    let (example, _) = block("yaml").expect("an example");
    let (answer, _) = block("http").expect("what the third request gets");
    let upstream = Upstream::echo();
    let resources = &example[example.find("upstreams:").expect("resources")..];
    let resources = resources.replace("127.0.0.1:9000", &upstream.addr().to_string());
    let gateway = Gateway::start(STILLGATE, &Setup::resources(resources));
    let mut client = gateway.client();
    let statuses = [(); 2].map(|()| client.get("/orders/7").head.status());
    assert_eq!(statuses, [200, 200]);
    let response = client.get("/orders/7");
    let (head, body) = answer.split_once("\n\n").expect("a head and a body");
    assert_eq!(
        (response.head.start.as_str(), &response.body[..]),
        (&head[..head.find('\n').expect("fields")], body.as_bytes())
    );
    for line in head.lines().skip(1) {
        let (name, value) = line.split_once(": ").expect("a field");
        let found = response.head.get(name).expect(name);
        match name {
            "X-RateLimit-Reset" => assert!((0.0..=60.0).contains(&found.parse().expect("a number"))),
            _ => assert_eq!(found, value, "{name}"),
        }
    }
}
