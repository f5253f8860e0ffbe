//! The parts of an end-to-end test: a running gateway, upstreams, clients and peers.
//!
//! Dev-only, and deliberately independent of the gateway's own crates: its parser is a second reading of the RFC, so
//! that a mistake in `wire` cannot hide itself. Blocking sockets and threads are used throughout, because a test is
//! easiest to read when it does one thing after the other. All waiting is polling against [`PATIENCE`].
//!
//! A part that fails panics with its observations: this crate's only callers are tests.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test harness reports by panicking")]

mod connection;
mod cutter;
mod etcd;
mod exposition;
mod gateway;
pub mod http2;
mod message;
mod peers;
mod port;
mod process;
mod prometheus;
mod redis;
mod rounds;
mod soak;
mod transcript;
mod upstream;
mod vault;

pub use connection::BufferedSocket;
pub use cutter::{CutEnd, CutPoint, Cutter, Side};
pub use etcd::{EtcdServer, EtcdSetup};
pub use exposition::{
    ACCEPT_OPENMETRICS, ACCEPT_PROTOBUF, ACCEPT_TEXT, Labels, ParsedExemplar, ParsedFamily, ParsedSample, Scrape,
    SlowScrape, head_of, promtool_check_metrics, python_families, scrape, scrape_on,
};
pub use gateway::{Gateway, Setup};
pub use message::{Fields, Framing, Head, HostileCase, Message, MessageError, decode, encode, hostile_cases};
pub use peers::{Haproxy, Nginx, Python, go_pages, go_top, require_tool, run_tool};
pub use port::ReservedPort;
pub use process::{END_PATIENCE, Pebble, PebbleSetup, Process, is_gateway};
pub use prometheus::{Client, Delivery, JOB, Prometheus, PrometheusSetup, ScrapeFormat, ScrapeHealth};
pub use redis::{Redis, RedisSetup};
pub use rounds::{Rounds, RoundsEnd, pause_between_requests};
pub use soak::{SoakPlan, SoakReport, payload, seeded, sha256, soak};
pub use stillgate_rig::proc::children;
pub use transcript::Transcript;
pub use upstream::{Upstream, echo};
pub use vault::{AppRole, Vault};

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// How long a test waits for anything before it gives up.
///
/// Only failing tests wait that long, so it is generous: next to hundreds of other processes a process gets a hundredth
/// of a core, and its control thread, which is nice, a tenth of that. All of the gateway's own timeouts are longer
/// unless a [`Setup`] sets others, so that waiting for one of them shows.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// How often [`with_longer_times`] tries.
const LONGER_TIMES: usize = 7;

/// Intervals of polling a condition, the first and the longest. They grow with the time that has passed: a wait takes little of the
/// CPUs that other tests need, and ends soon after the condition holds.
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(2);
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(50);
/// How much of the time that has passed the next interval is.
const POLL_PART: u32 = 10;

/// Polls `condition` until it holds.
///
/// # Panics
/// If it does not within [`PATIENCE`]; `what` names the condition.
#[track_caller]
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    eventually_within(PATIENCE, what, condition);
}

/// [`eventually`] with its own deadline.
///
/// # Panics
/// If the condition does not hold in time.
#[track_caller]
pub fn eventually_within(limit: Duration, what: &str, condition: impl FnMut() -> bool) {
    assert!(holds_within(limit, condition), "waited {limit:?} without success for: {what}");
}

/// Polls `condition`; false: it does not hold within `limit`.
fn holds_within(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !condition() {
        let waited = begun.elapsed();
        if waited >= limit {
            return false;
        }
        std::thread::sleep((waited / POLL_PART).clamp(POLL_INTERVAL_MIN, POLL_INTERVAL_MAX));
    }
    true
}

/// For a time that the test itself may use up, as when the gateway closes connections that are idle for a second and
/// the test stalls for two: tries with `first`, and with twice as much each time, until `attempt` succeeds. It
/// returns false if the test stood still for too long.
///
/// # Panics
/// If the longest time, 64 times the first, is not enough either; `what` names the purpose.
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

/// Whether tests run their long forms: in the nightly run, which sets `STILLGATE_NIGHTLY=1`. Prints a note if they do
/// not.
pub fn is_nightly() -> bool {
    static IS_NIGHTLY: LazyLock<bool> = LazyLock::new(|| {
        let is_nightly = std::env::var("STILLGATE_NIGHTLY").is_ok_and(|value| value == "1");
        if !is_nightly {
            println!("the short form: only the nightly runs the long one");
        }
        is_nightly
    });
    *IS_NIGHTLY
}

/// How often a comparison of times may fail before it counts as wrong. A machine that stops for a moment cannot be distinguished
/// from the process that the test has stopped; a wrong measurement fails every time.
const ATTEMPTS: usize = 3;

/// Runs a comparison of times, again if the machine may have interfered. Where it fails every time on a machine that is too busy to
/// wake a sleeper in time, nothing can be said: the test passes with a note. The nightly run, which has the machine to itself,
/// takes no excuse.
///
/// # Panics
/// When `check` panics each time, and the machine keeps time or the run is the nightly.
pub fn attempt(check: impl Fn()) {
    for attempt in 1..=ATTEMPTS {
        let Err(panic) = catch_unwind(AssertUnwindSafe(&check)) else { return };
        if attempt == ATTEMPTS {
            if !is_nightly() && !keeps_time() {
                println!("this machine does not keep time at the moment: nothing is said about what failed above");
                return;
            }
            resume_unwind(panic);
        }
    }
}

/// Whether the machine wakes a sleeper in time now. If not, it is too busy for tests that compare times.
pub fn keeps_time() -> bool {
    const NAP: Duration = Duration::from_millis(5);
    (0..40).all(|_| {
        let since = Instant::now();
        std::thread::sleep(NAP);
        since.elapsed() < 2 * NAP
    })
}
