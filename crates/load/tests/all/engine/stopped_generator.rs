//! A generator that is stopped reports it: all requests that were due meanwhile were late because of it, and the run is
//! void.
//!
//! A process of its own, because stopping stops all threads: this test starts itself again as the generator.

use crate::engine::server::{ok, serve};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;
use stillgate_load::{Arrivals, Bounds, Load, Mix, Pace, Protocol, RunSummary, Schedule, Target, Void, run};
use stillgate_testkit::attempt;

const URL: &str = "STILLGATE_LOAD_TEST_URL";

const STOPPED: Duration = Duration::from_millis(500);

#[test]
fn a_stopped_generator_voids_its_run() {
    check("a_stopped_generator_voids_its_run", scheduled);
}

#[test]
fn a_stopped_generator_voids_its_closed_loop() {
    check("a_stopped_generator_voids_its_closed_loop", closed);
}

/// At most one start falls into the stop; answers would have waited anyway.
#[test]
fn a_stop_between_two_starts_voids_a_run() {
    check("a_stop_between_two_starts_voids_a_run", sparse);
}

fn check(test: &str, generate: fn(&str)) {
    if let Ok(url) = std::env::var(URL) {
        return generate(&url);
    }
    attempt(|| stop_and_go(test));
}

fn stop_and_go(test: &str) {
    let server = serve(|stream, _| ok(stream, "ok"));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("engine::stopped_generator::{test}"), "--nocapture"])
        .env(URL, format!("http://{}/", server.address))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut printed = Vec::new();
    for line in lines {
        if line.contains("interval 3") {
            let pid = Pid::from_child(&child);
            kill_process(pid, Signal::STOP).unwrap();
            thread::sleep(STOPPED);
            kill_process(pid, Signal::CONT).unwrap();
        }
        printed.push(line);
    }
    assert!(child.wait().unwrap().success(), "{printed:#?}");
    assert!(printed.iter().any(|line| line.contains("late as it should be")), "{printed:#?}");
}

/// 1000 requests per second for two seconds, over plenty of connections.
fn scheduled(url: &str) {
    let outcome = generate(
        url,
        Pace::Open(Schedule { rate: 1000.0, rate_end: 1000.0, arrivals: Arrivals::Uniform }),
        Bounds::default(),
    );
    let lateness = &outcome.self_watch.lateness;
    assert_eq!((outcome.requests, lateness.len()), (2000, 2000));
    // 400 of the 500 starts due meanwhile were due 100 ms or more before it could continue; the signals themselves may
    // be late, but not early.
    let late = lateness.len() - lateness.count_between(0, 99_000_000);
    assert!((390..=1200).contains(&late), "{late} were more than 99 ms late");
    assert!(lateness.max() >= 490_000_000, "{}", lateness.max());
    assert!(matches!(outcome.void[..], [Void::Late { share, .. }] if share > 0.2), "{:?}", outcome.void);
    println!("late as it should be");
}

/// One request per second.
fn sparse(url: &str) {
    // A busy machine makes its two starts late, which chance explains with this share; a pause of a quarter of the time
    // is still too long.
    let bounds = Bounds { late_share_max: 0.1, ..Bounds::default() };
    let outcome = generate(url, Pace::Open(Schedule { rate: 1.0, rate_end: 1.0, arrivals: Arrivals::Uniform }), bounds);
    assert!(outcome.self_watch.pause_longest >= Duration::from_millis(450), "{:?}", outcome.self_watch);
    assert!(matches!(outcome.void[..], [Void::StoodStill { .. }]), "{:?}", outcome.void);
    println!("late as it should be");
}

/// No start of a closed loop is late, but the thread knows when it planned to wake.
fn closed(url: &str) {
    let outcome = generate(url, Pace::Closed, Bounds::default());
    assert!(outcome.self_watch.pause_longest >= Duration::from_millis(450), "{:?}", outcome.self_watch);
    assert!(matches!(outcome.void[..], [Void::StoodStill { .. }]), "{:?}", outcome.void);
    println!("late as it should be");
}

fn generate(url: &str, pace: Pace, bounds: Bounds) -> RunSummary {
    let target = Target::resolve(url).unwrap();
    let load = Load {
        mix: Mix::single("GET", "/", &target.host, &[], Vec::new()).unwrap(),
        target,
        pace,
        warm_up: Duration::ZERO,
        duration: Duration::from_secs(2),
        requests: None,
        protocol: Protocol::Http1,
        tls: None,
        connections: 4,
        threads: 1,
        cpus: Vec::new(),
        realtime: false,
        sources: Vec::new(),
        timeout: Duration::from_secs(120),
        interval: Duration::from_millis(100),
        bounds,
        seed: 1,
    };
    let mut intervals = 0;
    run(&load, &AtomicBool::new(false), &mut |_| {
        intervals += 1;
        println!("interval {intervals}");
    })
    .unwrap()
}
