//! Cost of a limit per request, in nanoseconds: `cargo bench -p stillgate-limits`.
//!
//! Prints the median of several runs. For orientation only: times on a shared machine are not
//! suitable as a gate.

#![allow(clippy::unwrap_used, reason = "a bench may stop at the first surprise")]

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;
use stillgate_limits::{CounterKey, Limit, Limits};

const RUNS: usize = 9;
const TAKES: u64 = 1_000_000;
const NOW_MS: u64 = 1_795_220_833_000;
/// A limit that is never reached, and one that is reached at once.
const WIDE: Limit = Limit { count: stillgate_limits::COUNT_MAX, window_ms: 3_600_000 };
const FULL: Limit = Limit { count: 1, window_ms: 3_600_000 };

fn main() {
    let limits = Limits::create(64 << 20).unwrap();
    let key = |number: u64| limits.hasher().part(b"a limit").part(&number.to_le_bytes()).finish();
    let keys: Vec<CounterKey> = (0..1 << 16).map(key).collect();
    let spread = |at: u64| keys[(at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48) as usize];
    let of_limit = limits.hasher().part(b"a limit");
    show("hash of an address", 1, |_, _| {
        black_box(of_limit.part(black_box(b"192.0.2.117")).finish());
    });
    show("fixed, one key", 1, |_, _| take_fixed(&limits, keys[1], WIDE));
    show("fixed, one key, full", 1, |_, _| take_fixed(&limits, keys[2], FULL));
    show("fixed, 65,536 keys", 1, |_, at| take_fixed(&limits, spread(at), WIDE));
    show("sliding, one key", 1, |_, _| {
        black_box(limits.take_sliding(keys[3], WIDE, 1, NOW_MS).unwrap());
    });
    show("fixed, 2 threads, one key", 2, |_, _| take_fixed(&limits, keys[4], WIDE));
    show("fixed, 2 threads, one key, full", 2, |_, _| take_fixed(&limits, keys[5], FULL));
    show("fixed, 2 threads, a key each", 2, |number, _| take_fixed(&limits, keys[6 + number as usize], WIDE));
    show("fixed, 2 threads, 65,536 keys", 2, |number, at| take_fixed(&limits, spread(at + number), WIDE));
    let numbers = AtomicU64::new(1 << 32);
    // Includes the hash. After two million the table is full.
    show("fixed, a new key each time", 1, |_, _| {
        take_fixed(&limits, key(numbers.fetch_add(1, Ordering::Relaxed)), WIDE);
    });
    println!("{:?}", limits.events());
}

fn take_fixed(limits: &Limits, key: CounterKey, limit: Limit) {
    black_box(limits.take_fixed(key, limit, 1, NOW_MS).unwrap());
}

/// Prints the nanoseconds that one call takes in each thread.
fn show(name: &str, threads: u64, call: impl Fn(u64, u64) + Sync) {
    let mut runs: Vec<f64> = (0..RUNS).map(|_| run(threads, &call)).collect();
    runs.sort_by(f64::total_cmp);
    println!("{name:34} {:7.1} ns", runs[RUNS / 2]);
}

fn run(threads: u64, call: &(impl Fn(u64, u64) + Sync)) -> f64 {
    let barrier = Barrier::new(threads as usize);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|number| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    let began = Instant::now();
                    (0..TAKES).for_each(|at| call(number, at));
                    began.elapsed().as_nanos() as f64 / TAKES as f64
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).fold(0.0, f64::max)
    })
}
