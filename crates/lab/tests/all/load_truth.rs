//! Whether the results of `stillgate-lab load` are true: about a target that stalls, about itself, about a known
//! distribution.
//!
//! The machine of a test is busy. Predictions are therefore computed from observations: how long the target actually
//! stood still, and which delays the responder actually drew.

use crate::processes::{Loading, Responder, load_json, number};
use base64::Engine as _;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::time::{Duration, Instant};
use stillgate_testkit::{Process, attempt, keeps_time};

/// How long a process is stopped.
const STOP: Duration = Duration::from_millis(500);

/// Stops a process for at least [`STOP`] and returns for how long, in milliseconds.
fn stop(process: &Process) -> f64 {
    let pid = Pid::from_raw(i32::try_from(process.pid()).unwrap()).unwrap();
    let begun = Instant::now();
    kill_process(pid, Signal::STOP).unwrap();
    std::thread::sleep(STOP);
    kill_process(pid, Signal::CONT).unwrap();
    begun.elapsed().as_secs_f64() * 1e3
}

/// A histogram of a result, in nanoseconds.
fn histogram(json: &Value, view: &str) -> Histogram<u64> {
    decoded(json["run"][view].as_str().unwrap())
}

fn decoded(text: &str) -> Histogram<u64> {
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).unwrap();
    Deserializer::new().deserialize(&mut bytes.as_slice()).unwrap()
}

/// The share of requests that took at least this long.
fn share_from(histogram: &Histogram<u64>, ms: f64) -> f64 {
    let below = histogram.count_between(0, (ms * 1e6) as u64);
    1.0 - below as f64 / histogram.len() as f64
}

/// Requests come evenly over 5 s, and the target stalls for S of them. One intended at time s of the stop is
/// answered S - s after its intended start at the earliest: latencies of the share (S - t) / 5 s are t or more. The
/// measured share is that, to within two in a hundred of all requests; it is larger by the time that the target, a
/// debug build here, takes for the accumulated requests, and by the delays of a busy machine at both ends of the stop.
/// It is smaller by the time of a signal only.
#[test]
fn a_target_that_stands_still_shows_in_the_right_share_of_requests() {
    attempt(stop_the_target);
}

fn stop_the_target() {
    const RUN_MS: f64 = 5000.0;
    const SHARE_APART_MAX: f64 = 0.02;
    let responder = Responder::start(&[]);
    let url = responder.url();
    let run = Loading::start(&[
        &url,
        "--rate",
        "500",
        "--duration",
        "5s",
        "--connections",
        "10",
        "--interval",
        "500ms",
        "--late-share",
        "50%",
    ]);
    run.stretches(2);
    let stopped_ms = stop(&responder.process);
    let (code, json, log) = run.finish();
    let json = json.unwrap();
    assert_eq!((code, json["void"].as_bool()), (Some(0), Some(false)), "{log}");
    assert_eq!((number(&json, &["requests"]), number(&json, &["missed_starts"])), (2500.0, 0.0), "{log}");
    let (corrected, uncorrected) = (histogram(&json, "corrected"), histogram(&json, "uncorrected"));
    // A machine that does not keep time adds to them.
    let above_max = if keeps_time() { SHARE_APART_MAX } else { 1.0 };
    for t_ms in [50.0, 100.0, 200.0, 300.0, 400.0, 450.0] {
        let (found, predicted) = (share_from(&corrected, t_ms), (stopped_ms - t_ms) / RUN_MS);
        let is_right = (-SHARE_APART_MAX..=above_max).contains(&(found - predicted));
        assert!(is_right, "{t_ms} ms: {found}, not {predicted}\n{log}");
    }
    // The displayed figures agree: those of the twentieth of the requests that waited longest.
    let p95_ms = corrected.value_at_quantile(0.95) as f64 / 1e6;
    let predicted_ms = stopped_ms - 0.05 * RUN_MS;
    let is_right = (-SHARE_APART_MAX * RUN_MS..=above_max * RUN_MS).contains(&(p95_ms - predicted_ms));
    assert!(is_right, "{p95_ms} ms, not {predicted_ms}\n{log}");
    assert!(corrected.max() as f64 / 1e6 >= stopped_ms * 0.98, "{log}");
    // Only one request per connection was under way: the view of a closed loop.
    let seen = share_from(&uncorrected, 100.0) * uncorrected.len() as f64;
    assert!(seen <= 20.0 || above_max > SHARE_APART_MAX, "{seen} uncorrected\n{log}");
}

#[test]
fn a_generator_that_stood_still_makes_its_run_void() {
    attempt(stop_the_generator);
}

fn stop_the_generator() {
    let responder = Responder::start(&[]);
    let url = responder.url();
    let run = Loading::start(&[&url, "--rate", "1k", "--duration", "3s", "--connections", "10", "--interval", "500ms"]);
    run.stretches(2);
    stop(&run.process);
    let (code, json, log) = run.finish();
    let json = json.unwrap();
    assert_eq!((code, json["void"].as_bool()), (Some(3), Some(true)), "{log}");
    let reasons = json["void_reasons"].to_string();
    assert!(reasons.contains("the generator") && reasons.contains("late"), "{reasons}");
    assert!(log.contains("VOID") && log.lines().filter(|line| line.starts_with("void |")).count() > 10, "{log}");
    // A sixth of all starts fell into the stop.
    assert!(number(&json, &["lateness", "max"]) >= 490_000.0, "{log}");
}

/// A figure in a responder's final output, in microseconds.
fn reported_us(log: &str, line: &str, label: &str) -> f64 {
    let line = log.lines().find(|text| text.starts_with(line)).unwrap();
    line.split(' ').find_map(|word| word.strip_prefix(label)?.strip_prefix('=')).unwrap().parse().unwrap()
}

/// The times of a responder, from the read of each request to the write of its answer, in nanoseconds.
fn kept_histogram(log: &str) -> Histogram<u64> {
    decoded(log.lines().find_map(|line| line.strip_prefix("kept histogram: ")).unwrap())
}

/// At each percentile, the measurement matches the responder's own: not less, to within the resolution of both
/// histograms, since each request spent that time there; and not more than the way there and back on a busy machine.
/// And each quantile that the responder drew is near that of the distribution.
fn check_distribution(latency: &str, quantiles_us: [f64; 3]) {
    /// Resolution of a histogram with three digits, and of two together.
    const RESOLUTION: f64 = 0.001;
    /// For a debug build that shares two CPUs with other tests. A release build on a quiet machine adds some 0.05 ms.
    const WAY_US_MAX: f64 = 3_000.0;
    let responder = Responder::start(&["--latency", latency, "--seed", "3"]);
    let json = load_json(
        &[&responder.url(), "--rate", "1k", "--duration", "4s", "--connections", "400", "--late-share", "100%"],
        0,
    );
    let log = responder.end();
    assert_eq!(number(&json, &["errors"]), 0.0);
    let (measured, kept) = (histogram(&json, "uncorrected"), kept_histogram(&log));
    assert_eq!((measured.len(), kept.len()), (4000, 4000));
    for percent in 1..=99 {
        let quantile = f64::from(percent) / 100.0;
        let [measured_us, kept_us] = [&measured, &kept].map(|all| all.value_at_quantile(quantile) as f64 / 1e3);
        // The generator is late to read as it is late to send, and reports that.
        let late_us = number(&json, &["lateness", if percent > 95 { "max" } else { "p99" }]);
        let range = kept_us * (1.0 - 2.0 * RESOLUTION)..kept_us * (1.0 + 2.0 * RESOLUTION) + WAY_US_MAX + late_us;
        assert!(range.contains(&measured_us), "{latency} {percent}%: measured {measured_us}, kept {kept_us}\n{log}");
    }
    for ((label, quantile), expected_us) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)].into_iter().zip(quantiles_us) {
        let drawn_us = reported_us(&log, "drawn", label);
        // Of 4000 draws, a hundredth is above the 99th percentile, give or take a sixth: far apart in the tail.
        let apart = if quantile > 0.95 { 0.25 } else { 0.10 };
        assert!((drawn_us / expected_us - 1.0).abs() <= apart, "{latency} {label}: {drawn_us}, not {expected_us}");
    }
}

#[test]
fn a_known_server_is_measured_as_it_is() {
    let check = |latency, quantiles_us| attempt(|| check_distribution(latency, quantiles_us));
    check("fixed:30ms", [30_000.0, 30_000.0, 30_000.0]);
    // -20 ln(1 - q)
    check("exponential:20ms", [13_863.0, 46_052.0, 92_103.0]);
    // 20 exp(0.5 z)
    check("lognormal:20ms,0.5", [20_000.0, 37_961.0, 64_002.0]);
    check("bimodal:10ms,80ms,5%", [10_000.0, 10_000.0, 80_000.0]);
}
