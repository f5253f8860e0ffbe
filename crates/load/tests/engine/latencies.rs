//! Latencies against what the server did to the requests.

use crate::server::{ok, serve};
use crate::{MS, even, load, millis, outcome};
use hdrhistogram::Histogram;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn a_stall_counts_for_all_that_had_to_wait() {
    // Of 1000 requests in a second, one takes 400 ms: those of the next 400 ms wait for its connection.
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
    // That is the target's doing.
    let late = above(&outcome.self_watch.lateness, 100);
    assert!(late < above(corrected, 100) / 3, "{late} were late by the generator's doing");
}

#[test]
fn latencies_are_those_the_server_had() {
    // Uniform from 10 to 170 ms. What the server took is what it measured itself, so that a busy machine changes little.
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
        // Beside the server's time: two threads to be woken, on a machine where others may run.
        assert!(measured <= at_server + 30.0, "p{quantile}: {measured} ms, at the server {at_server}");
        assert!(latencies.corrected.value_at_quantile(quantile) >= latencies.uncorrected.value_at_quantile(quantile));
    }
}

/// How many latencies are above, within the histogram's resolution.
fn above(histogram: &Histogram<u64>, ms: u64) -> u64 {
    histogram.len() - histogram.count_between(0, ms * MS)
}
