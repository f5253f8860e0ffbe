//! The engine against servers that do what servers do: answer in every form, stall, break, refuse.
//!
//! The machine may be busy: what is asserted holds however late anything comes, unless it says otherwise.

#![allow(clippy::unwrap_used)]

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
use stillgate_load::{Arrivals, Bounds, ErrorKind, Load, Mix, Outcome, Pace, Schedule, Target, run};

const MS: u64 = 1_000_000;

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
        connections,
        threads: 1,
        cpus: Vec::new(),
        realtime: false,
        sources: Vec::new(),
        timeout: Duration::from_secs(20),
        interval: millis(50),
        bounds: Bounds::default(),
        seed: 1,
    }
}

fn outcome(load: &Load) -> Outcome {
    run(load, &AtomicBool::new(false), &mut |_| {}).unwrap()
}

fn errors(outcome: &Outcome, kind: ErrorKind) -> u64 {
    outcome.errors.counts[kind as usize]
}
