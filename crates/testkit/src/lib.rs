//! Everything an end-to-end test is built from: a running gateway, upstreams, clients and peers.
//!
//! Dev-only, and deliberately independent of the gateway's own crates: its parser is a second reading of the RFC, so
//! that a mistake in `wire` cannot hide itself. Blocking sockets and threads are used throughout, because a test is
//! easiest to read when it does one thing after the other. All waiting is polling against [`PATIENCE`].
//!
//! A part that fails panics with what it saw: this crate's only callers are tests.

#![allow(clippy::unwrap_used, reason = "a test harness reports by panicking")]

mod client;
mod connection;
mod corpus;
mod cutter;
mod dispositions;
mod etcd;
mod exposition;
mod gateway;
mod go_pprof;
pub mod http2;
mod measured;
mod message;
mod notation;
mod payload;
mod pebble;
mod peer_socket;
mod peers;
mod port;
mod process;
mod prometheus;
mod redis;
mod rounds;
mod scrape;
mod soak;
mod transcript;
mod upstream;
mod vault;

pub use client::{Client, Delivery};
pub use connection::Connection;
pub use corpus::{Hostile, hostile_cases};
pub use cutter::{Cut, Cutter, End, Side};
pub use etcd::{Etcd, EtcdSetup};
pub use exposition::{Labels, ParsedExemplar, ParsedFamily, ParsedSample, promtool_check_metrics, python_families};
pub use gateway::{Gateway, Setup};
pub use go_pprof::{go_pages, go_top};
pub use measured::{attempt, keeps_time};
pub use message::{Broken, Fields, Framing, Head, Message};
pub use notation::{decode, encode};
pub use payload::{payload, seeded, sha256};
pub use pebble::{Pebble, PebbleSetup};
pub use peers::{Haproxy, Nginx, Python, require_tool, run_tool};
pub use port::ReservedPort;
pub use process::{END_PATIENCE, Process, children, is_gateway};
pub use prometheus::{JOB, Prometheus, PrometheusSetup, ScrapeFormat, ScrapeHealth};
pub use redis::{Redis, RedisSetup};
pub use rounds::{Rounds, RoundsEnd};
pub use scrape::{ACCEPT_OPENMETRICS, ACCEPT_PROTOBUF, ACCEPT_TEXT, Scrape, SlowScrape, head_of, scrape, scrape_on};
pub use soak::{SoakPlan, SoakReport, soak};
pub use transcript::Transcript;
pub use upstream::{Upstream, echo};
pub use vault::{AppRole, Vault};

use std::time::{Duration, Instant};

/// How long anything may take before a test gives up on it.
///
/// It is only waited out by a test that fails, and so it is generous: beside hundreds of other processes a process gets a
/// hundredth of a core, and its control thread, which is nice, a tenth of that. All times in which the gateway gives up by
/// itself are longer where a [`Setup`] says nothing else, so that waiting for one of them shows.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// How often [`with_longer_times`] tries.
const LONGER_TIMES: usize = 7;

/// Between two looks at a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Polls `condition` until it holds.
///
/// # Panics
/// When it does not within [`PATIENCE`]; `what` says what was waited for.
#[track_caller]
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    eventually_within(PATIENCE, what, condition);
}

/// [`eventually`] with a deadline of its own.
///
/// # Panics
/// When the condition does not hold in time.
#[track_caller]
pub fn eventually_within(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < deadline, "waited {limit:?} in vain for: {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// For a time that the test itself may use up, as when the gateway closes what is idle for a second and the test stands still for
/// two: tries with `first`, and with twice as much each time, until `attempt` could see what it is about. It returns false where
/// the test stood still for too long.
///
/// # Panics
/// When the longest time, 64 times the first, is not enough either; `what` says for what.
#[track_caller]
pub fn with_longer_times(first: Duration, what: &str, mut attempt: impl FnMut(Duration) -> bool) {
    let mut time = first;
    for _ in 0..LONGER_TIMES {
        if attempt(time) {
            return;
        }
        eprintln!("{what}: {time:?} were too short on this machine");
        time *= 2;
    }
    panic!("{what}: not seen with any of {LONGER_TIMES} times from {first:?} on");
}

/// Whether tests run their long forms: in the nightly run, which sets `STILLGATE_NIGHTLY=1`. Says so where they do not.
pub fn is_nightly() -> bool {
    let is_nightly = std::env::var("STILLGATE_NIGHTLY").is_ok_and(|value| value == "1");
    if !is_nightly {
        println!("the short form: only the nightly runs the long one");
    }
    is_nightly
}
