//! A profile shows how CPU time is divided: three functions with known shares are found, each below its caller,
//! including leaves in the C library.

#![expect(unsafe_code, reason = "calls the C library")]

use crate::alone;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use stillgate_profiler::cpu::{self, CpuOptions, ThreadScope};
use stillgate_profiler::profile::Profile;
use stillgate_profiler::session::{Cancel, ProfileSession};
use stillgate_profiler::threads::Registration;
use stillgate_testkit::PATIENCE;

/// The number of samples that the shares are judged by; `STILLGATE_SPLIT_SAMPLES` sets another.
const SAMPLES: usize = 2500;

/// A busy machine gives fewer samples, since the kernel checks its timers less often, but not so few.
const LOST_FACTOR_MAX: usize = 8;

/// Largest error in percent of all time, with 10,000 samples. It is four times the random error of a share of one half,
/// and grows like that.
const POINTS_MAX: f64 = 2.0;

const BYTES: usize = 32 * 1024;

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Spends all its time in `memcpy` of the C library.
#[inline(never)]
fn planted_half(bytes: &mut [u8; BYTES], from: &[u8; BYTES]) {
    black_box(bytes).copy_from_slice(black_box(from));
    black_box(());
}

/// Spends its time in itself. Without the black box an optimised build knows that it always writes the same: of all
/// calls between two reads of the clock it keeps one, and a fifth of the time is the clock's.
#[inline(never)]
fn planted_third(bytes: &mut [u8; BYTES]) {
    let mut state = 88_172_645_463_325_252_u64;
    for byte in black_box(bytes).iter_mut().step_by(16) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = state as u8;
    }
}

unsafe extern "C" {
    fn strlen(text: *const i8) -> usize;
}

/// Spends its time in `strlen` of the C library.
#[inline(never)]
fn planted_fifth(text: &[u8; BYTES]) -> usize {
    assert_eq!(text[BYTES - 1], 0);
    // SAFETY: it ends with zero.
    black_box(unsafe { strlen(black_box(text.as_ptr().cast())) })
}

/// The time between two reads of the clock, which take some microseconds: the profile would rightly not attribute these
/// to the work.
const LOOK_EVERY: Duration = Duration::from_micros(300);

/// How often the work is done between two reads.
fn times_of(mut work: impl FnMut()) -> u32 {
    const TRIES: u32 = 50;
    let begun = cpu_time();
    (0..TRIES).for_each(|_| work());
    let took = (cpu_time() - begun) / TRIES;
    (LOOK_EVERY.as_nanos() / took.as_nanos().max(1)).max(1) as u32
}

/// Does its work for a slice of time, and adds up how long that was.
fn spend(slice: Duration, spent: &mut Duration, times: u32, mut work: impl FnMut()) {
    let begun = cpu_time();
    while cpu_time() - begun < slice {
        for _ in 0..times {
            work();
        }
    }
    *spent += cpu_time() - begun;
}

/// The actual time spent in each, until the end.
#[inline(never)]
fn planted_work(is_over: &AtomicBool) -> [Duration; 3] {
    let mut bytes = Box::new([1; BYTES]);
    let mut text = Box::new([b'a'; BYTES]);
    text[BYTES - 1] = 0;
    let mut spent = [Duration::ZERO; 3];
    // Slices of uneven length, so that they are not in step with the kernel's tick.
    let mut uneven =
        (0..).map(|turn: u32| Duration::from_micros(u64::from(turn.wrapping_mul(2_654_435_761) >> 22)) / 10);
    let from = bytes.clone();
    let times = [
        times_of(|| planted_half(&mut bytes, &from)),
        times_of(|| planted_third(&mut bytes)),
        times_of(|| {
            planted_fifth(&text);
        }),
    ];
    while !is_over.load(Ordering::Relaxed) {
        let mut slice = |share: u32| uneven.next().unwrap_or_default() * share;
        spend(slice(50), &mut spent[0], times[0], || planted_half(&mut bytes, &from));
        spend(slice(30), &mut spent[1], times[1], || planted_third(&mut bytes));
        spend(slice(20), &mut spent[2], times[2], || {
            planted_fifth(&text);
        });
    }
    spent
}

fn has(profile: &Profile, stack: &[usize], name: &str) -> bool {
    let mut lines = stack.iter().flat_map(|place| &profile.locations[*place].lines);
    lines.any(|line| profile.functions[line.function].name.ends_with(name))
}

fn leaf<'a>(profile: &'a Profile, stack: &[usize]) -> &'a str {
    &profile.functions[profile.locations[stack[0]].lines[0].function].name
}

/// CPU time with this many samples at the usual tick, which gives 250 per second.
fn cpu_seconds(samples: usize) -> i64 {
    samples as i64 / 235
}

/// The number of samples to wait for.
fn samples_wanted() -> usize {
    std::env::var("STILLGATE_SPLIT_SAMPLES").ok().and_then(|samples| samples.parse().ok()).unwrap_or(SAMPLES)
}

#[test]
fn a_planted_split_is_found() {
    let (_alone, wanted) = (alone(), samples_wanted());
    let is_over = AtomicBool::new(false);
    let (profile, spent) = thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|number| {
                let is_over = &is_over;
                scope.spawn(move || {
                    let _registered = Registration::new(&format!("worker-{number}"), None).unwrap();
                    planted_work(is_over)
                })
            })
            .collect();
        let session = ProfileSession::begin("CPU", "the test", PATIENCE).unwrap();
        // Until there are enough samples.
        let (cancel, watched) = (Cancel::default(), Cancel::default());
        let watcher = {
            let (cancel, watched) = (cancel.clone(), watched.clone());
            scope.spawn(move || {
                let used = || rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime).tv_sec;
                let begun = used();
                let seconds = cpu_seconds(wanted);
                while used() - begun <= seconds && !watched.is_cancelled() {
                    thread::sleep(Duration::from_millis(50));
                }
                cancel.cancel();
            })
        };
        let profile =
            cpu::take(session, CpuOptions::new(ThreadScope::AllThreads, 240, 1000).unwrap(), &cancel).unwrap();
        watched.cancel();
        watcher.join().unwrap();
        is_over.store(true, Ordering::Relaxed);
        let spent = workers.into_iter().map(|worker| worker.join().unwrap());
        let add =
            |sum: [Duration; 3], one: [Duration; 3]| std::array::from_fn(|function| sum[function] + one[function]);
        (profile, spent.fold([Duration::ZERO; 3], add))
    });
    let told = profile.notes.join("; ");
    let samples = profile.samples.len();
    assert!(samples * LOST_FACTOR_MAX >= wanted, "{samples} samples: {told}");
    let points_max = POINTS_MAX * (10_000.0 / samples as f64).sqrt();
    let all: i64 = profile.samples.iter().map(|sample| sample.values[1]).sum();
    let names = ["planted_half", "planted_third", "planted_fifth"];
    let total: Duration = spent.iter().sum();
    for (name, spent) in names.iter().zip(spent) {
        let of = profile.samples.iter().filter(|sample| has(&profile, &sample.stack, name));
        let found = 100.0 * of.map(|sample| sample.values[1]).sum::<i64>() as f64 / all as f64;
        let planted = 100.0 * spent.as_secs_f64() / total.as_secs_f64();
        println!("{name}: {planted:.2}% planted, {found:.2}% found; {told}");
        assert!((found - planted).abs() < points_max, "{name}: {planted:.2}% planted, {found:.2}% found; {told}");
    }
    let of_leaf = |leaves: &[&str], caller: &str| {
        let samples = profile
            .samples
            .iter()
            .filter(|sample| leaves.iter().any(|name| leaf(&profile, &sample.stack).contains(name)));
        let (below, all) = samples
            .fold((0, 0), |(below, all), sample| (below + usize::from(has(&profile, &sample.stack, caller)), all + 1));
        println!("{leaves:?}: {all} samples, {below} below {caller}");
        assert!(
            all * 10 > profile.samples.len() && below * 100 >= all * 99,
            "{leaves:?}: of {all} only {below} are below {caller}; {told}"
        );
    };
    of_leaf(&["memcpy", "memmove"], "planted_half");
    of_leaf(&["strlen"], "planted_fifth");
    let complete = profile.samples.iter().filter(|sample| has(&profile, &sample.stack, "planted_work")).count();
    assert!(complete * 100 >= samples * 99, "{complete} of {samples} lead to the planted work; {told}");
}
