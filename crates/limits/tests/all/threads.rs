//! Threads that count together: exactly a window's `count` are admitted, and each value of `remaining` is seen once.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use stillgate_limits::{CounterKey, Limit, LimitDecision, Limits, TableEvents};

const THREADS: usize = 4;
/// Reached by a failure only.
const PATIENCE: Duration = Duration::from_secs(120);
const QUIET: TableEvents = TableEvents { evicted: 0, contended: 0, disturbed: 0 };

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

fn key(limits: &Limits, name: &str) -> CounterKey {
    limits.hasher().part(b"a limit").part(name.as_bytes()).finish()
}

/// The results of each thread's `take`, called until it returns `None`.
fn together(take: impl Fn(usize) -> Option<LimitDecision> + Sync) -> Vec<LimitDecision> {
    let (barrier, take) = (Barrier::new(THREADS), &take);
    thread::scope(|scope| {
        let all: Vec<_> = (0..THREADS)
            .map(|number| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    std::iter::from_fn(|| take(number)).collect::<Vec<_>>()
                })
            })
            .collect();
        all.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

fn remaining(taken: &[LimitDecision]) -> Vec<i64> {
    let mut remaining: Vec<i64> = taken.iter().filter(|taken| taken.admitted).map(|taken| taken.remaining).collect();
    remaining.sort_unstable();
    remaining
}

#[test]
fn exactly_the_count_is_admitted_in_one_window() {
    let limits = Limits::create(64 << 10).unwrap();
    let limit = Limit { count: 10_000, window_ms: 60_000 };
    for round in 0..20 {
        let (key, tries) = (key(&limits, &format!("round {round}")), AtomicU64::new(0));
        // Threads do not agree on the time.
        let taken = together(|number| {
            let is_next = tries.fetch_add(1, Ordering::Relaxed) < 2 * limit.count;
            is_next.then(|| limits.take_fixed(key, limit, 1, 1_000_000 + number as u64).unwrap())
        });
        assert_eq!(remaining(&taken), (0..10_000).collect::<Vec<_>>(), "round {round}");
        assert_eq!(taken.iter().filter(|taken| !taken.admitted && taken.remaining == 0).count(), 10_000);
    }
    assert_eq!(limits.events(), QUIET);
}

#[test]
fn a_thousand_first_requests_meet_in_one_counter() {
    let limits = Limits::create(16 << 10).unwrap();
    let limit = Limit { count: 2, window_ms: 10 };
    for round in 0..1_000 {
        let (key, tries) = (key(&limits, &format!("{}", round % 7)), AtomicU64::new(0));
        let taken = together(|_| {
            let is_next = tries.fetch_add(1, Ordering::Relaxed) < 8;
            is_next.then(|| limits.take_fixed(key, limit, 1, 1_000_000 + round * 20).unwrap())
        });
        assert_eq!(remaining(&taken), [0, 1], "round {round}");
    }
    assert_eq!(limits.events(), QUIET);
}

#[test]
fn exactly_the_count_is_admitted_in_each_window_of_real_time() {
    let limits = Limits::create(64 << 10).unwrap();
    const FULL_MIN: u64 = 10;
    let (key, limit) = (key(&limits, "real time"), Limit { count: 300, window_ms: 100 });
    let begun = Instant::now();
    // The clock does not determine the window of a request: a thread may be paused between reading it and taking.
    let seen = [const { AtomicU64::new(0) }; 300];
    together(|_| {
        let taken = limits.take_fixed(key, limit, 1, now_ms()).unwrap();
        if taken.admitted {
            seen[taken.remaining as usize].fetch_add(1, Ordering::Relaxed);
        }
        // However long it takes the threads to fill this many windows.
        (seen[0].load(Ordering::Relaxed) < FULL_MIN && begun.elapsed() < PATIENCE).then_some(taken)
    });
    let (seen, windows_max) = (seen.map(AtomicU64::into_inner), begun.elapsed().as_millis() as u64 / 100 + 1);
    let (full, windows) = (seen[0], seen[299]);
    println!("{windows} windows, {full} full");
    assert!(full >= FULL_MIN && windows <= windows_max, "{windows} windows, {full} full");
    // Each window counts down from 299, and skips none.
    assert!(seen.is_sorted(), "{seen:?}");
    assert_eq!(limits.events(), QUIET);
}

#[test]
fn sliding_windows_admit_exactly_the_count_too() {
    let limits = Limits::create(64 << 10).unwrap();
    let limit = Limit { count: 1_000, window_ms: 1_000 };
    let key = key(&limits, "sliding");
    let at = |now_ms: u64| {
        let tries = AtomicU64::new(0);
        together(|_| {
            let is_next = tries.fetch_add(1, Ordering::Relaxed) < 4_000;
            is_next.then(|| limits.take_sliding(key, limit, 1, now_ms).unwrap())
        })
    };
    assert_eq!(remaining(&at(50_000)), (0..1_000).collect::<Vec<_>>());
    // A quarter into the next window three quarters of the one before still count.
    assert_eq!(remaining(&at(51_250)), (0..250).collect::<Vec<_>>());
    assert_eq!(remaining(&at(51_750)), (0..500).collect::<Vec<_>>());
    assert_eq!(limits.events(), QUIET);
}
