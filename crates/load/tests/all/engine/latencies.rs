//! Compares latencies with the server's behaviour.

use crate::engine::server::{ok, serve};
use crate::engine::{MS, even, load, millis, outcome};
use hdrhistogram::Histogram;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use stillgate_load::plan::DURATION_UNBOUNDED;
use stillgate_load::{Load, Pace};
use stillgate_testkit::attempt;

#[test]
fn a_stall_counts_for_all_that_had_to_wait() {
    attempt(stall);
}

fn stall() {
    // One of 1000 requests in a second takes 400 ms: those of the next 400 ms wait for its connection.
    let server = serve(|stream, asked| {
        if asked.total == 300 {
            thread::sleep(millis(400));
        }
        ok(stream, "ok")
    });
    let outcome = outcome(&load(server.address, even(1000.0), 1, Duration::from_secs(1)));
    let (corrected, uncorrected) = (&outcome.latencies.corrected, &outcome.latencies.uncorrected);
    assert_eq!((outcome.requests, corrected.len(), uncorrected.len()), (1000, 1000, 1000));
    // The k-th behind it waits for 400 - k ms: 300 wait for more than 100 ms, 100 for more than 300. Histograms have
    // three digits.
    for (waited_ms, share) in [(100, 300), (200, 200), (300, 100)] {
        let counted = above(corrected, waited_ms);
        assert!(counted + 3 >= share, "{counted} of {share} waited for more than {waited_ms} ms");
    }
    assert!(above(uncorrected, 100) < above(corrected, 100) / 3, "the actual sends did not wait");
    assert!(corrected.max() >= 399 * MS);
    // The target is the cause.
    let late = above(&outcome.self_watch.lateness, 100);
    assert!(late < above(corrected, 100) / 3, "{late} were late because of the generator");
}

#[test]
fn latencies_are_those_the_server_had() {
    attempt(compare_latencies);
}

fn compare_latencies() {
    // Uniform from 10 to 170 ms. The server measures its own time, so that a busy machine changes little.
    let served = Arc::new(Mutex::new(Vec::new()));
    let taken = served.clone();
    let server = serve(move |stream, asked| {
        let begun = Instant::now();
        thread::sleep(millis(10 + asked.total * 7919 % 160));
        taken.lock().unwrap().push(begun.elapsed().as_nanos() as u64);
        ok(stream, "ok")
    });
    let outcome = outcome(&load(server.address, even(200.0), 80, Duration::from_secs(1)));
    assert_eq!((outcome.requests, outcome.errors.total()), (200, 0));
    let mut served = served.lock().unwrap().clone();
    served.sort_unstable();
    let latencies = &outcome.latencies;
    for quantile in [0.1, 0.25, 0.5, 0.75, 0.9] {
        let at_server = served[(quantile * 199.0) as usize] as f64 / MS as f64;
        let measured = latencies.uncorrected.value_at_quantile(quantile) as f64 / MS as f64;
        // Within the histogram's resolution.
        assert!(measured >= at_server * 0.999, "p{quantile}: {measured} ms, at the server {at_server}");
        // Besides the server's time: two threads to be woken, on a machine where others may run.
        assert!(measured <= at_server + 30.0, "p{quantile}: {measured} ms, at the server {at_server}");
        assert!(latencies.corrected.value_at_quantile(quantile) >= latencies.uncorrected.value_at_quantile(quantile));
    }
}

/// The average time that the closed loop below requests from the server.
const MEAN_S: f64 = 0.005;

/// When the server had read a request, and when it began to write the answer.
#[derive(Clone, Copy)]
struct Exchange {
    read: Instant,
    write: Instant,
}

/// Each quantile of the histogram, not only a few, lies between two of the server's. Client and server read one clock,
/// and on a connection of a closed loop events happen in this order, however busy the machine:
///
/// ```text
/// server:  writes n-1            reads n ... writes n                      reads n+1
/// client:             sends n                          receives n, sends n+1
/// ```
///
/// Therefore the latency of n that the client measures is at least the time from `reads n` to `writes n`, and at most from
/// `writes n-1` to `reads n+1`. Sorted, each latency of the client lies between the two of its rank. This proves that
/// the generator measures all requests, in the right unit, from the send to the answer, and adds no more than its own
/// turn from one request to the next; the only tolerance is the histogram's third digit. The first and the last request
/// on a connection have no upper bound.
///
/// The server sleeps for exponentially distributed times, and never less: no quantile is below the distribution's.
#[test]
fn every_quantile_lies_between_what_the_server_saw() {
    const CONNECTIONS: usize = 4;
    const REQUESTS: u64 = 1_000;
    const RESOLUTION: f64 = 0.001;
    let exchanges = Arc::new(Mutex::new(HashMap::<SocketAddr, Vec<Exchange>>::new()));
    let seen = exchanges.clone();
    let server = serve(move |stream, asked| {
        let read = Instant::now();
        thread::sleep(Duration::from_secs_f64(exponential_s(spread(asked.total))));
        let client = stream.peer_addr().unwrap();
        seen.lock().unwrap().entry(client).or_default().push(Exchange { read, write: Instant::now() });
        ok(stream, "ok")
    });
    let load = load(server.address, Pace::Closed, CONNECTIONS, DURATION_UNBOUNDED);
    let outcome = outcome(&Load { requests: Some(REQUESTS), ..load });
    let exchanges = exchanges.lock().unwrap();
    let (least, most) = bounds_ns(exchanges.values().map(Vec::as_slice));
    let latencies = &outcome.latencies.uncorrected;
    assert_eq!((outcome.errors.total(), outcome.cut_off, exchanges.len()), (0, 0, CONNECTIONS));
    assert_eq!((outcome.requests, latencies.len()), (least.len() as u64, least.len() as u64));
    assert_eq!(outcome.requests, REQUESTS);
    assert_eq!(outcome.latencies.corrected, *latencies, "a closed loop has no other intended starts");
    let at = |rank: usize| latencies.value_at_quantile((rank as f64 + 0.5) / least.len() as f64);
    for (rank, (&least_ns, &most_ns)) in least.iter().zip(&most).enumerate() {
        let measured_ns = at(rank);
        assert!(measured_ns >= least_ns, "rank {rank}: {measured_ns} ns, the server alone took {least_ns}");
        let most_ns = most_ns as f64 * (1.0 + RESOLUTION);
        assert!(measured_ns as f64 <= most_ns, "rank {rank}: {measured_ns} ns, no more than {most_ns} had gone by");
    }
    for percent in 2..=99 {
        // The draws are spread so evenly that they differ from the distribution by less than a hundredth.
        let share = f64::from(percent) / 100.0;
        let (found_ns, drawn_ns) = (latencies.value_at_quantile(share) as f64, exponential_s(share - 0.01) * 1e9);
        assert!(found_ns >= drawn_ns, "{percent}%: {found_ns} ns, of the distribution {drawn_ns}");
    }
}

/// The quantile function of the exponential distribution.
fn exponential_s(share: f64) -> f64 {
    -MEAN_S * (1.0 - share).ln()
}

/// The nth of numbers from 0 to 1 that fill that range evenly, however many there are: Weyl's sequence of the golden ratio.
fn spread(number: u64) -> f64 {
    const GOLDEN: f64 = 0.618_033_988_749_894_9;
    ((number + 1) as f64 * GOLDEN).fract()
}

/// The least and the most time that each request may have taken from the client's view, each sorted.
fn bounds_ns<'a>(connections: impl Iterator<Item = &'a [Exchange]>) -> (Vec<u64>, Vec<u64>) {
    let (mut least, mut most) = (Vec::new(), Vec::new());
    let ns = |from: Instant, to: Instant| (to - from).as_nanos() as u64;
    for exchanges in connections {
        least.extend(exchanges.iter().map(|exchange| ns(exchange.read, exchange.write)));
        most.extend(exchanges.windows(3).map(|three| ns(three[0].write, three[2].read)));
    }
    least.sort_unstable();
    most.sort_unstable();
    most.resize(least.len(), u64::MAX);
    (least, most)
}

/// The number of latencies above a limit, within the histogram's resolution.
fn above(histogram: &Histogram<u64>, ms: u64) -> u64 {
    histogram.len() - histogram.count_between(0, ms * MS)
}
