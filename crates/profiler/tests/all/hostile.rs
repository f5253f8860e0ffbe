//! Senseless arguments, two profiles at once, profiles that are ended early, threads that come and go: all are handled,
//! and no timer stays armed.

use crate::alone;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use stillgate_profiler::cpu::{self, CpuOptions, InvalidOptions, ThreadScope};
use stillgate_profiler::session::{Busy, Cancel, ProfileSession};
use stillgate_profiler::threads::Registration;
use stillgate_testkit::PATIENCE;

#[test]
fn arguments_are_bounded() {
    for seconds in [0, 241, 1_000_000_000, u64::MAX] {
        assert_eq!(CpuOptions::new(ThreadScope::AllThreads, seconds, 99), Err(InvalidOptions::Seconds), "{seconds}");
    }
    for hz in [0, 1001, u32::MAX] {
        assert_eq!(CpuOptions::new(ThreadScope::AllThreads, 1, hz), Err(InvalidOptions::Hz), "{hz}");
    }
    assert!(
        CpuOptions::new(ThreadScope::AllThreads, 240, 1000).is_ok()
            && CpuOptions::new(ThreadScope::AllThreads, 1, 1).is_ok()
    );
}

/// Timers of this process that the kernel lists; `None` if it does not list them.
fn timers() -> Option<usize> {
    let text = fs::read_to_string("/proc/self/timers").ok()?;
    Some(text.lines().filter(|line| line.starts_with("ID:")).count())
}

fn spin(is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

/// Far less than the profile would have taken, and enough for a thread of low priority on a busy machine.
const NAMED_WITHIN: Duration = Duration::from_secs(120);

/// Ends the threads, also if the test fails: a scope waits for them.
struct EndOnDrop<'a>(&'a AtomicBool, &'a Cancel);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.cancel();
    }
}

/// CPU time of the calling thread.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A single test, since the right to take a profile belongs to the process.
#[test]
fn one_at_a_time_and_nothing_stays_armed() {
    let _alone = alone();
    let (is_over, cancel) = (AtomicBool::new(false), Cancel::default());
    thread::scope(|scope| {
        let ending = EndOnDrop(&is_over, &cancel);
        scope.spawn(|| {
            let _registered = Registration::new("spinning", None).unwrap();
            spin(&is_over);
        });
        let session = ProfileSession::begin("CPU", "the first", PATIENCE).unwrap();
        let taken = {
            let cancel = cancel.clone();
            scope.spawn(move || {
                cpu::take(session, CpuOptions::new(ThreadScope::AllThreads, 240, 1000).unwrap(), &cancel)
            })
        };
        let Busy { what, who, .. } = ProfileSession::begin("heap", "the second", PATIENCE).unwrap_err();
        assert_eq!((what, &*who), ("CPU", "the first"));
        if timers().is_some() {
            stillgate_testkit::eventually("the thread's timer to be armed", || timers() == Some(1));
        }
        // Threads that come and go join.
        let pass = || {
            let _registered = Registration::new("passing", None).unwrap();
            while cpu_time() < Duration::from_millis(120) {
                std::hint::spin_loop();
            }
        };
        let passing: Vec<_> = (0..20).map(|_| scope.spawn(pass)).collect();
        passing.into_iter().for_each(|thread| thread.join().unwrap());
        let begun = Instant::now();
        drop(ending);
        let profile = taken.join().unwrap().unwrap();
        assert!(begun.elapsed() < NAMED_WITHIN, "{:?}", begun.elapsed());
        let seen = |name: &str| profile.samples.iter().filter(|sample| sample.thread() == name).count();
        assert!(seen("spinning") > 0 && seen("passing") > 0, "{:?}", profile.notes);
        assert!(timers().is_none_or(|timers| timers == 0), "{:?}", fs::read_to_string("/proc/self/timers"));
        drop(ProfileSession::begin("heap", "the third", PATIENCE).unwrap());
    });
}
