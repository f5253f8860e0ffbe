//! The number of requests, their rate and the number of connections are as planned.

use crate::engine::server::{ok, serve};
use crate::engine::{even, load, millis, outcome};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use stillgate_load::{Arrivals, Load, Pace, Schedule, Void, run};
use stillgate_testkit::attempt;

#[test]
fn every_request_of_a_schedule_is_counted() {
    let server = serve(|stream, _| ok(stream, "ok"));
    let load = Load { warm_up: millis(100), threads: 2, ..load(server.address, even(1000.0), 4, millis(300)) };
    let (mut requests, mut latencies, mut end) = (0, 0, Duration::ZERO);
    let outcome = run(&load, &AtomicBool::new(false), &mut |interval| {
        assert_eq!((interval.start, interval.of), (end, millis(300)));
        assert_eq!(interval.latencies.corrected.len(), interval.requests);
        requests += interval.requests;
        latencies += interval.latencies.uncorrected.len();
        end = interval.start + interval.length;
    })
    .unwrap();
    assert_eq!(outcome.errors.examples, [""; 0]);
    assert_eq!((outcome.requests, outcome.errors.total(), outcome.sent), (300, 0, 400));
    assert_eq!((requests, latencies), (300, 300));
    assert_eq!((outcome.latencies.corrected.len(), outcome.latencies.uncorrected.len()), (300, 300));
    assert_eq!((outcome.self_watch.lateness.len(), outcome.self_watch.missed_starts), (300, 0));
    assert_eq!((outcome.send.len(), outcome.first_byte.len(), outcome.connect.len()), (300, 300, 4));
    assert_eq!(server.requests.load(Ordering::SeqCst), 400);
    assert_eq!((outcome.elapsed, outcome.rate_intended), (millis(300), Some(1000.0)));
    assert!(end >= millis(300));
    assert!(outcome.self_watch.cpu_cores > 0.0 && outcome.self_watch.cpu_share_max <= 1.1);
}

#[test]
fn a_closed_loop_asks_as_fast_as_it_is_answered() {
    let server = serve(|stream, _| ok(stream, "ok"));
    let outcome = outcome(&Load { threads: 2, ..load(server.address, Pace::Closed, 3, millis(200)) });
    assert_eq!(outcome.errors.examples, [""; 0]);
    assert_eq!(outcome.requests, server.requests.load(Ordering::SeqCst));
    assert_eq!(outcome.requests, outcome.sent);
    assert_eq!(outcome.latencies.corrected, outcome.latencies.uncorrected);
    assert_eq!((outcome.latencies.corrected.len(), outcome.self_watch.lateness.len()), (outcome.requests, 0));
    assert_eq!((server.accepted.load(Ordering::SeqCst), outcome.rate_intended), (3, None));
    assert!(outcome.bytes_received >= 40 * (outcome.requests - 3));
    // A busy machine may delay it.
    assert!(outcome.void.iter().all(|void| matches!(void, Void::StoodStill { .. })), "{:?}", outcome.void);
}

/// For connections that are always busy, rate times latency is their number (Little 1961), however short the measured
/// time.
#[test]
fn a_closed_loop_counts_requests_across_its_borders() {
    attempt(|| {
        for (answer_ms, measured_ms) in [(200, 300), (200, 110), (40, 25), (20, 25)] {
            // The server measures its own time, so that a busy machine changes little.
            let served = Arc::new(Mutex::new(Vec::new()));
            let taken = served.clone();
            let server = serve(move |stream, _| {
                let begun = Instant::now();
                thread::sleep(millis(answer_ms));
                taken.lock().unwrap().push(begun.elapsed().as_secs_f64());
                ok(stream, "ok")
            });
            let load = load(server.address, Pace::Closed, 4, millis(measured_ms));
            let outcome = outcome(&Load { warm_up: millis(answer_ms + 10), ..load });
            assert_eq!(outcome.errors.examples, [""; 0]);
            let served = served.lock().unwrap();
            let busy = outcome.rate_achieved * served.iter().sum::<f64>() / served.len() as f64;
            assert!((busy / 4.0 - 1.0).abs() < 0.15, "{answer_ms} ms, {measured_ms} ms: {busy} of 4 are busy");
        }
    });
}

#[test]
fn a_ramp_and_random_arrivals() {
    let server = serve(|stream, _| ok(stream, "ok"));
    let check = |rate, rate_end, arrivals, requests: std::ops::RangeInclusive<u64>| {
        let pace = Pace::Open(Schedule { rate, rate_end, arrivals });
        let outcome = outcome(&load(server.address, pace, 4, millis(500)));
        assert!(requests.contains(&outcome.requests), "{} requests", outcome.requests);
        assert_eq!((outcome.sent, outcome.errors.total()), (outcome.requests, 0));
        assert_eq!(outcome.rate_intended, Some((rate + rate_end) / 2.0));
    };
    check(100.0, 500.0, Arrivals::Uniform, 150..=151);
    check(500.0, 0.0, Arrivals::Uniform, 125..=126);
    // Its standard deviation is 14.
    check(400.0, 400.0, Arrivals::Poisson, 140..=260);
}

#[test]
fn stopped_early() {
    let server = serve(|stream, _| ok(stream, "ok"));
    for pace in [even(500.0), Pace::Closed] {
        let load = load(server.address, pace, 2, Duration::from_secs(600));
        let (mut told, mut answered, interrupt) = (0, 0, AtomicBool::new(false));
        let outcome = run(&load, &interrupt, &mut |interval| {
            told += 1;
            answered += interval.requests;
            interrupt.store(told >= 2 && answered > 0, Ordering::Relaxed);
        })
        .unwrap();
        assert!(outcome.elapsed >= millis(100) && outcome.elapsed < Duration::from_secs(300), "{:?}", outcome.elapsed);
        assert!(outcome.requests > 0 && outcome.interrupted);
        assert_eq!(
            (outcome.errors.total(), outcome.requests + outcome.self_watch.missed_starts + outcome.cut_off),
            (0, outcome.latencies.corrected.len())
        );
        if let Some(rate) = outcome.rate_intended {
            assert!((rate - 500.0).abs() < 1e-6);
        }
    }
}

#[test]
fn thousands_of_connections() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // The server's ends belong to this process, too.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let server = serve(|stream, _| ok(stream, "ok"));
    let load = Load { threads: 2, ..load(server.address, even(3000.0), 3000, Duration::from_secs(2)) };
    let outcome = outcome(&load);
    assert_eq!(outcome.errors.examples, [""; 0]);
    assert_eq!((outcome.requests, outcome.sent), (6000, 6000));
    assert_eq!(server.accepted.load(Ordering::SeqCst), 3000);
}

#[test]
fn more_connections_than_descriptors() {
    let server = serve(|stream, _| ok(stream, "ok"));
    let load = load(server.address, even(10.0), 1_000_000_000, millis(100));
    let load =
        Load { sources: (0..40_000).map(|n| std::net::Ipv4Addr::from(0x7f00_0001 + n).into()).collect(), ..load };
    let error = run(&load, &AtomicBool::new(false), &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("ulimit -n 10000"), "{error}");
    assert_eq!(server.accepted.load(Ordering::SeqCst), 0);
}

#[test]
fn values_that_make_no_sense() {
    let address = "127.0.0.1:1".parse().unwrap();
    let sound = load(address, even(10.0), 1, millis(100));
    let check = |load: Load, words: &str| {
        let error = run(&load, &AtomicBool::new(false), &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    check(Load { pace: even(0.0), ..sound.clone() }, "rate must be above zero");
    check(Load { pace: even(f64::NAN), ..sound.clone() }, "rate must be above zero");
    check(Load { threads: 0, ..sound.clone() }, "at least one thread");
    check(Load { threads: 2, ..sound.clone() }, "each thread needs a connection");
    check(Load { duration: Duration::ZERO, ..sound.clone() }, "above zero");
    check(Load { cpus: vec![100_000], ..sound.clone() }, "CPU 100000");
    check(Load { sources: vec!["::1".parse().unwrap()], ..sound }, "IPv6");
}
