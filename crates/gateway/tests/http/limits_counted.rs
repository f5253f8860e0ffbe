//! `limit-req` and `limit-count` by clients that count what was let through and know nothing else: over 1 to 4 workers, and while
//! the configuration is reloaded.

use crate::shared::STILLGATE;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use stillgate_testkit::{Client, Gateway, Setup, Upstream, eventually};

/// Number of concurrent clients.
const CLIENTS: usize = 8;
/// Requests that each of them sends in one go.
const REQUESTS: usize = 25;
const ASKED: usize = CLIENTS * REQUESTS;

/// One route with a plugin.
fn limited(upstream: &Upstream, workers: usize, plugin: &str) -> Setup {
    Setup::to(upstream.addr()).gateway(&format!("workers: {workers}")).route(&format!("plugins:\n  {plugin}"))
}

/// A bucket that lets through so many, and does not leak one in the time of a test.
fn bucket(admitted: usize) -> String {
    format!("limit-req: {{rate: 0.001, burst: {}, key: remote_addr, rejected_code: 429, nodelay: true}}", admitted - 1)
}

/// A window of the same.
fn window(admitted: usize) -> String {
    format!("limit-count: {{count: {admitted}, time_window: 3600, key: remote_addr, rejected_code: 429}}")
}

/// All clients at once; how many requests were let through. `asked` counts as they go.
fn admitted(addr: SocketAddr, is_anew: bool, asked: &AtomicUsize) -> usize {
    let one = || {
        let (mut client, mut admitted) = (Client::connect(addr), 0);
        for _ in 0..REQUESTS {
            if is_anew {
                client = Client::connect(addr);
            }
            match client.get("/").head.status() {
                200 => admitted += 1,
                status => assert_eq!(status, 429),
            }
            asked.fetch_add(1, Ordering::Relaxed);
        }
        admitted
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(one)).collect();
        clients.into_iter().map(|client| client.join().expect("a client")).sum()
    })
}

#[test]
fn a_bucket_lets_through_its_burst_and_one_over_all_workers() {
    let upstream = Upstream::echo();
    for workers in 1..=4 {
        for (count, is_anew) in [(1, true), (2, false), (101, true), (101, false)] {
            let gateway = Gateway::start(STILLGATE, &limited(&upstream, workers, &bucket(count)));
            assert_eq!(admitted(gateway.addr(), is_anew, &AtomicUsize::new(0)), count, "{workers} workers");
        }
    }
}

#[test]
fn what_is_let_through_while_loading_again_is_exact() {
    let upstream = Upstream::echo();
    let half = ASKED / 2;
    for (workers, plugin) in [(1, bucket(half)), (4, bucket(half)), (1, window(half)), (4, window(half))] {
        let gateway = Gateway::start(STILLGATE, &limited(&upstream, workers, &plugin));
        let (addr, asked) = (gateway.addr(), AtomicUsize::new(0));
        let admitted = std::thread::scope(|scope| {
            let clients = scope.spawn(|| admitted(addr, true, &asked));
            for change in 1..=3 {
                // The change comes in the middle of the requests, also of those that are let through.
                eventually("requests", || asked.load(Ordering::Relaxed) >= change * ASKED / 8);
                gateway.reload(&limited(&upstream, workers, &plugin).upstream(&format!("desc: change {change}")));
            }
            clients.join().expect("the clients")
        });
        assert_eq!(admitted, half, "{workers} workers, {plugin}");
        assert_eq!(gateway.get("/").head.status(), 429, "nothing is left");
    }
}

#[test]
fn a_bucket_leaks_at_its_rate() {
    let upstream = Upstream::echo();
    let plugin = "limit-req: {rate: 4, burst: 1, key: remote_addr, nodelay: true}";
    let gateway = Gateway::start(STILLGATE, &limited(&upstream, 2, plugin));
    let mut client = gateway.client();
    let (begin, mut admitted) = (std::time::Instant::now(), 0_u32);
    while admitted < 6 {
        if client.get("/").head.status() == 200 {
            admitted += 1;
            // Two at once, and from then on one in a quarter of a second. A busy machine may reckon the first one early.
            let soonest = f64::from(admitted.saturating_sub(2)) / 4.0;
            let elapsed = begin.elapsed().as_secs_f64();
            assert!(elapsed + 0.15 >= soonest, "{admitted} after {elapsed} s");
        }
    }
}
