//! Sampled allocations add up to the actual ones, by stack; freed memory is no longer live.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

#[path = "../all/readers/mod.rs"]
mod readers;

use std::alloc::System;
use std::hint::black_box;
use std::thread;
use std::time::Duration;
use stillgate_profiler::heap::{MainValue, SamplingAllocator, sample_every, snapshot};
use stillgate_profiler::profile::Profile;
use stillgate_profiler::session::ProfileSession;

#[global_allocator]
static ALLOCATOR: SamplingAllocator<System> = SamplingAllocator::new(System);

const MIB: i64 = 1 << 20;

#[inline(never)]
fn planted_kept(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|_| black_box(vec![1; 1000])).collect()
}

#[inline(never)]
fn planted_passing(count: usize) {
    for _ in 0..count {
        black_box(Box::new([0_u8; 4000]));
    }
}

#[inline(never)]
fn planted_growing() -> Vec<u64> {
    let mut numbers = Vec::new();
    for number in 0..4_000_000_u64 {
        numbers.push(black_box(number));
    }
    numbers
}

/// For all stacks with this function: objects and bytes allocated, objects and bytes live.
fn of(profile: &Profile, name: &str) -> [i64; 4] {
    let has = |sample: &&stillgate_profiler::profile::Sample| {
        profile.functions_of(sample).any(|line| profile.functions[line.function].name.ends_with(name))
    };
    let samples = profile.samples.iter().filter(has);
    samples.fold([0; 4], |sum, sample| std::array::from_fn(|value| sum[value] + sample.values[value]))
}

fn taken() -> Profile {
    snapshot(ProfileSession::begin("heap", "the test", Duration::ZERO).unwrap(), MainValue::Live).unwrap()
}

/// Whether a number is within a fifth of the expected one.
fn is_about(found: i64, planted: i64) -> bool {
    (found - planted).abs() * 5 < planted
}

/// A single test, since there is one heap.
#[test]
fn planted_allocations_are_found_and_freed_ones_are_not_live() {
    // Enough samples that a fifth is five standard deviations.
    sample_every(Some(64 * 1024));
    let kept = thread::spawn(|| planted_kept(100_000)).join().unwrap();
    planted_passing(50_000);
    let grown = planted_growing();
    let profile = taken();
    let [objects, bytes, live_objects, live_bytes] = of(&profile, "planted_kept");
    assert!(is_about(objects, 100_000) && is_about(bytes, 100_000_000), "{objects} {bytes} {:?}", profile.notes);
    assert!(is_about(live_objects, 100_000) && is_about(live_bytes, 100_000_000), "{live_objects} {live_bytes}");
    let [objects, bytes, _, live_bytes] = of(&profile, "planted_passing");
    assert!(is_about(objects, 50_000) && is_about(bytes, 200_000_000), "{objects} {bytes}");
    assert!(live_bytes < MIB, "{live_bytes}");
    // Each doubling is an allocation; the last is live, of 4 Mi numbers.
    let [_, bytes, _, live_bytes] = of(&profile, "planted_growing");
    assert!(is_about(bytes, 64 * MIB) && is_about(live_bytes, 32 * MIB), "{bytes} {live_bytes}");
    assert!(grown.iter().enumerate().all(|(place, number)| place as u64 == *number), "moving it has kept it");
    // The innermost function is never the allocator's.
    let innermost = |sample: &stillgate_profiler::profile::Sample| {
        let lines = &profile.locations[sample.stack[0]].lines;
        profile.functions[lines.last().unwrap().function].name.clone()
    };
    assert!(profile.samples.iter().map(innermost).all(|name| !name.contains("__rust_alloc")), "allocator shown");

    let text = readers::go_top(&profile);
    assert!(text.contains("Type: inuse_space") && text.contains("planted_kept"), "{text}");
    let types = ["alloc_objects", "alloc_space", "inuse_objects", "inuse_space"];
    let read = readers::python(&profile);
    assert_eq!(read["types"].as_array().unwrap().iter().map(|of| of[0].as_str().unwrap()).collect::<Vec<_>>(), types);

    // Freed by another thread than the one that allocated it, and after sampling was switched off.
    sample_every(None);
    drop((kept, grown));
    let profile = taken();
    assert!(
        of(&profile, "planted_kept")[3] < MIB && of(&profile, "planted_growing")[3] < MIB,
        "{:?}",
        of(&profile, "planted_kept")
    );
    let before = of(&profile, "planted_passing");
    planted_passing(50_000);
    assert_eq!(of(&taken(), "planted_passing"), before, "sampling is off");
}
