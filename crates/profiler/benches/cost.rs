//! Cost of profiles: a sample of a thread's stack by depth, and an allocation with and without sampling.
//!
//! `cargo bench -p stillgate-profiler --bench cost`. Each figure is the minimum of several rounds: other work on the
//! machine only adds to it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::time::{Duration, Instant};
use stillgate_profiler::heap::{MEAN_BYTES_DEFAULT, SamplingAllocator, sample_every};
use stillgate_profiler::threads::Registration;

const ROUNDS: usize = 15;
const SAMPLES: u32 = 2_000;
const ALLOCATIONS: u32 = 200_000;

static SAMPLED: SamplingAllocator<System> = SamplingAllocator::new(System);

fn least(count: u32, mut round: impl FnMut()) -> f64 {
    let one = |_| {
        let begun = Instant::now();
        round();
        begun.elapsed()
    };
    let least = (0..ROUNDS).map(one).min().unwrap_or(Duration::ZERO);
    least.as_nanos() as f64 / f64::from(count)
}

#[inline(never)]
fn deep(depth: u32, work: &mut dyn FnMut()) -> u32 {
    if depth == 0 {
        work();
        return 0;
    }
    black_box(deep(black_box(depth - 1), work)) + 1
}

fn sample_at(registration: &Registration, depth: u32) -> f64 {
    least(SAMPLES, || {
        deep(depth, &mut || {
            for _ in 0..SAMPLES {
                registration.interrupt().expect("a registered thread can be interrupted");
            }
        });
    })
}

fn pairs(allocator: &impl GlobalAlloc) -> f64 {
    let layout = Layout::new::<[u8; 200]>();
    least(ALLOCATIONS, || {
        for _ in 0..ALLOCATIONS {
            // SAFETY: the layout has a size, and the memory is freed with the same layout.
            #[expect(unsafe_code, reason = "calls an allocator")]
            unsafe {
                let pointer = black_box(allocator.alloc(black_box(layout)));
                allocator.dealloc(pointer, layout);
            }
        }
    })
}

fn main() {
    let registration = Registration::new("bench", None).expect("this thread is not registered yet");
    println!("a sample, with the system call that requests it and reading it:");
    for depth in [1, 30, 60, 120] {
        println!("  {depth:>3} frames: {:.0} ns", sample_at(&registration, depth));
    }
    println!("an allocation of 200 bytes and its end:");
    println!("  without the wrapper: {:.2} ns", pairs(&System));
    println!("  sampling is off: {:.2} ns", pairs(&SAMPLED));
    sample_every(Some(MEAN_BYTES_DEFAULT));
    println!("  one sample in 512 KiB: {:.2} ns", pairs(&SAMPLED));
}
