//! A turn of an event loop that takes long is caught, with its line and the kernel's figures.

use crate::{alone, readers};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use stillgate_profiler::profile::{Label, Profile, Sample};
use stillgate_profiler::session::{Cancel, ProfileSession};
use stillgate_profiler::stalls::{self, StallOptions};
use stillgate_profiler::stalls::{ContinuousWatch, LongTurn};
use stillgate_profiler::threads::Registration;

const STALL: Duration = Duration::from_millis(50);
const OVER: Duration = Duration::from_millis(20);

/// The lines of the functions below.
const SPIN_AND_SLEEP: std::ops::Range<i64> = (line!() as i64)..(line!() as i64 + 14);

#[inline(never)]
fn planted_spin() {
    let begun = Instant::now();
    while begun.elapsed() < STALL {
        std::hint::black_box(&begun);
    }
}

#[inline(never)]
fn planted_sleep() {
    thread::sleep(STALL);
}

/// An event loop: it sleeps a little in each turn, and stalls now and then.
fn event_loop(turns: &AtomicU64, is_over: &AtomicBool) {
    let mut turn = 0_u64;
    while !is_over.load(Ordering::Relaxed) {
        turns.store(2 * turn + 1, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(1));
        turns.store(2 * turn + 2, Ordering::Relaxed);
        match turn % 40 {
            10 => planted_spin(),
            30 => planted_sleep(),
            _ => {}
        }
        turn += 1;
    }
}

fn lines_of<'a>(profile: &'a Profile, sample: &'a Sample, name: &'a str) -> impl Iterator<Item = (&'a str, i64)> {
    let lines = profile.functions_of(sample).filter(move |line| profile.functions[line.function].name.ends_with(name));
    lines.map(|line| (profile.functions[line.function].file.as_str(), line.line))
}

fn number(sample: &Sample, name: &str) -> Duration {
    match sample.labels.iter().find(|(of, _)| of == name) {
        Some((_, Label::Number(number, _))) => Duration::from_nanos(*number as u64),
        other => panic!("{name}: {other:?}"),
    }
}

/// How often three seconds are watched for stalls. On a busy machine the watcher only gets a CPU now and then, and may
/// miss most or all of them.
const TRIES: usize = 40;

#[test]
fn planted_stalls_are_caught_with_their_lines() {
    let _alone = alone();
    let caught = |profile: &Profile| {
        let check =
            |name| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check_stall(profile, name))).is_ok();
        check("planted_spin") && check("planted_sleep")
    };
    let profile = (0..TRIES).map(|_| watched()).find(caught).expect("stalls are caught; the missed ones are above");
    let text = readers::go_top(&profile);
    assert!(text.contains("Type: delay") && text.contains("planted_sleep"), "{text}");
    let read = readers::python(&profile);
    for name in ["turn", "running", "waiting for a CPU"] {
        assert_eq!(read["labels"][name], json!(["number"]));
    }
}

fn watched() -> Profile {
    let (turns, is_over) = (Arc::new(AtomicU64::new(0)), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let read = turns.clone();
            let _registered =
                Registration::new("worker-0", Some(Box::new(move || read.load(Ordering::Relaxed)))).unwrap();
            event_loop(&turns, &is_over);
        });
        let duration = stillgate_profiler::cpu::duration(3).unwrap();
        let session = ProfileSession::begin("stalls", "the test", duration).unwrap();
        let options = StallOptions::new(duration, OVER).unwrap();
        // The thread that takes a profile has a low priority from then on, and must not take another one.
        let profile = scope.spawn(move || stalls::take(session, options, &Cancel::default())).join();
        is_over.store(true, Ordering::Relaxed);
        profile.unwrap().unwrap()
    })
}

fn check_stall(profile: &Profile, name: &str) {
    let caught: Vec<&Sample> =
        profile.samples.iter().filter(|sample| lines_of(profile, sample, name).next().is_some()).collect();
    assert!(!caught.is_empty(), "{name}: {:?} {:?}", profile.notes, profile.samples.len());
    for sample in &caught {
        let (file, line) = lines_of(profile, sample, name).next().unwrap();
        assert!(file.ends_with("all/stall.rs") && SPIN_AND_SLEEP.contains(&line), "{name}: {file}:{line}");
        assert_eq!(sample.thread(), "worker-0");
    }
    // Measured from outside: shorter by up to two reads, and by more if the watcher has to wait for a core.
    let longest = caught.iter().map(|sample| number(sample, "turn")).max().unwrap();
    assert!(longest > STALL - Duration::from_millis(15), "{name}: {longest:?}");
    // The kernel's figures for the whole turn. A busy machine may let the thread wait, but a sleep does not run.
    let (running, waiting) = (|sample: &&Sample| number(sample, "running"), "waiting for a CPU");
    if name == "planted_spin" {
        let longest = caught.iter().map(|sample| running(sample) + number(sample, waiting)).max().unwrap();
        assert!(longest > STALL / 2, "{name}: {longest:?}");
    } else {
        let shortest = caught.iter().map(running).min().unwrap();
        assert!(shortest < STALL / 2, "{name}: {shortest:?}");
    }
}

/// The watch is read again and again, and profiles may be taken meanwhile.
#[test]
fn a_standing_watch_tells_of_each_stall() {
    let _alone = alone();
    let (turns, is_over) = (Arc::new(AtomicU64::new(0)), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let read = turns.clone();
            let _registered =
                Registration::new("worker-1", Some(Box::new(move || read.load(Ordering::Relaxed)))).unwrap();
            event_loop(&turns, &is_over);
        });
        let mut watch = ContinuousWatch::new(OVER).unwrap();
        let deadline = Instant::now() + Duration::from_secs(600);
        let mut told = Vec::new();
        let has = |told: &[LongTurn], name: &str| {
            told.iter().flat_map(|turn| &turn.stacks).flat_map(|stack| &stack.frames).any(|frame| frame.contains(name))
        };
        while !(has(&told, "planted_spin") && has(&told, "planted_sleep")) {
            assert!(Instant::now() < deadline, "{told:?}");
            for _ in 0..50 {
                watch.look();
                thread::sleep(watch.pause());
            }
            told.extend(watch.long_turns().into_iter().filter(|turn| turn.thread == "worker-1"));
        }
        is_over.store(true, Ordering::Relaxed);
        let mut spun = told.iter().flat_map(|turn| &turn.stacks).flat_map(|stack| &stack.frames);
        let spun = spun.find(|frame| frame.contains("planted_spin")).unwrap();
        assert!(spun.contains("all/stall.rs:"), "{spun}");
    });
}

#[test]
fn lengths_that_cannot_be_watched_are_refused() {
    let second = Duration::from_secs(1);
    for over in [Duration::ZERO, Duration::from_micros(999), Duration::from_secs(60), Duration::MAX] {
        assert!(StallOptions::new(second, over).is_err(), "{over:?}");
    }
    assert_eq!(StallOptions::new(second, OVER).unwrap().duration(), second);
}
