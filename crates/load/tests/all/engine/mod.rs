//! The engine against servers that behave like servers: they answer in every form, stall, break, refuse.
//!
//! The machine may be busy: assertions hold however late anything comes, unless they say otherwise.

mod answers;
mod failures;
mod interrupts;
mod latencies;
mod schedules;
mod server;
mod stopped_generator;

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use stillgate_load::{Arrivals, Bounds, ErrorKind, Load, Mix, Pace, Protocol, RunSummary, Schedule, Target, run};

const MS: u64 = 1_000_000;

/// Reached by a failure only, on a busy machine too.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The measured times of a run, in seconds, that must see an event: the next one if a busy machine was too slow.
const SECONDS: [u64; 4] = [1, 4, 16, 64];

fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn even(rate: f64) -> Pace {
    Pace::Open(Schedule { rate, rate_end: rate, arrivals: Arrivals::Uniform })
}

fn load(address: SocketAddr, pace: Pace, connections: usize, duration: Duration) -> Load {
    let target = Target::parse(&format!("http://{address}/")).unwrap();
    Load {
        mix: Mix::single("GET", "/", "test.example", &[], Vec::new()).unwrap(),
        target: Target { addresses: vec![address], ..target },
        pace,
        warm_up: Duration::ZERO,
        duration,
        requests: None,
        protocol: Protocol::Http1,
        tls: None,
        connections,
        threads: 1,
        cpus: Vec::new(),
        realtime: false,
        sources: Vec::new(),
        timeout: TIMEOUT,
        interval: millis(50),
        bounds: Bounds::default(),
        seed: 1,
    }
}

fn outcome(load: &Load) -> RunSummary {
    run(load, &AtomicBool::new(false), &mut |_| {}).unwrap()
}

fn errors(outcome: &RunSummary, kind: ErrorKind) -> u64 {
    outcome.errors.counts[kind as usize]
}
