//! Measures where threads spend their CPU time.
//!
//! Each thread has a timer of its own CPU time, armed only during a profile, which interrupts the thread after each
//! period of CPU time. Threads that register during a profile join it. The kernel checks these timers at its tick: with
//! `CONFIG_HZ` 250 there are at most 250 samples per second of CPU time, and periods that were missed in between add to
//! the weight of the next sample.

use crate::machine;
use crate::profile::{
    CodeMapping, Function, Label, Line, Location, Profile, Sample, THREAD, TIME, TRUNCATED, ValueType,
};
use crate::session::{Cancel, ProfileSession};
use crate::signal::{self, Cause, SIGNAL};
use crate::symbols::{Modules, resolve};
use crate::threads::{self, Thread};
use crate::timer::{CpuTimer, cpu_time_of};
use crate::unwind::Unwinder;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The longest profile: an answer of the admin address has 300 seconds.
pub const SECONDS_MAX: u64 = 240;

/// The default length of a profile.
pub const SECONDS_DEFAULT: u64 = 30;

/// The highest rate. The kernel's tick bounds the real one, which is stated in the profile.
pub const HZ_MAX: u32 = 1000;

/// The default rate: not a divisor of common rhythms in programs.
pub const HZ_DEFAULT: u32 = 99;

/// The interval between two reads of the rings, which hold several times as much.
const DRAIN_EVERY: Duration = Duration::from_millis(50);

/// Most samples that keep their time; if there are more, they are only counted.
const TIMED_MAX: usize = 65_536;

/// The threads of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadScope {
    /// Threads whose event loop counts its turns.
    EventLoops,
    /// All registered threads.
    AllThreads,
}

/// The threads, length and rate of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuOptions {
    of: ThreadScope,
    duration: Duration,
    hz: u32,
}

/// Why a profile with these options is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InvalidOptions {
    /// The seconds are not from 1 to [`SECONDS_MAX`].
    Seconds,
    /// The rate is not from 1 to [`HZ_MAX`].
    Hz,
}

impl fmt::Display for InvalidOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidOptions::Seconds => write!(formatter, "seconds: a number from 1 to {SECONDS_MAX}"),
            InvalidOptions::Hz => write!(formatter, "hz: a number from 1 to {HZ_MAX}"),
        }
    }
}

impl std::error::Error for InvalidOptions {}

impl CpuOptions {
    /// Checks the options.
    pub fn new(of: ThreadScope, seconds: u64, hz: u32) -> Result<CpuOptions, InvalidOptions> {
        if !(1..=HZ_MAX).contains(&hz) {
            return Err(InvalidOptions::Hz);
        }
        Ok(CpuOptions { of, duration: duration(seconds)?, hz })
    }

    /// The duration of the profile.
    pub fn duration(&self) -> Duration {
        self.duration
    }
}

/// The length of a profile, checked.
pub fn duration(seconds: u64) -> Result<Duration, InvalidOptions> {
    match seconds {
        1..=SECONDS_MAX => Ok(Duration::from_secs(seconds)),
        _ => Err(InvalidOptions::Seconds),
    }
}

/// Takes a profile on the calling thread, whose priority is lowered for good. Fails if no timer can be made.
pub fn take(session: ProfileSession, options: CpuOptions, cancel: &Cancel) -> io::Result<Profile> {
    let mut sampling = CpuProfile::new(options)?;
    let until = Instant::now() + options.duration;
    loop {
        sampling.arm_new()?;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || cancel.is_cancelled() {
            break;
        }
        sleep(left.min(DRAIN_EVERY));
        sampling.drain();
    }
    sampling.disarm();
    be_nice();
    let profile = sampling.finish();
    drop(session);
    Ok(profile)
}

/// A thread whose timer is armed.
#[derive(Debug)]
struct ArmedThread {
    name: String,
    /// `None` if it has ended. Its ring is freed then, since many threads may come and go.
    thread: Option<Arc<Thread>>,
    /// `None` if it was disarmed.
    timer: Option<CpuTimer>,
    cpu_before: Duration,
    cpu: Duration,
    lost_before: u64,
    lost: u64,
}

/// A profile in progress.
struct CpuProfile {
    options: CpuOptions,
    period: Duration,
    began: Moment,
    began_unix_ns: i64,
    threads: Vec<ArmedThread>,
    unwinder: Unwinder,
    stacks: Stacks,
    tally: ProfileTally,
    /// Samples and periods, by thread, stack, and whether the stack is complete.
    counts: HashMap<(usize, usize, bool), (i64, i64)>,
    /// Single samples with their ticks; `None` if there are too many.
    timed: Option<Vec<TimedSample>>,
}

struct TimedSample {
    ticks: u64,
    key: (usize, usize, bool),
    weight: i64,
}

/// Figures that the reader of a profile must know.
#[derive(Debug, Default)]
struct ProfileTally {
    samples: u64,
    periods: u64,
    truncated: u64,
    /// Samples whose stack exceeded the limit.
    unplaced: u64,
    lost: u64,
}

impl CpuProfile {
    fn new(options: CpuOptions) -> io::Result<CpuProfile> {
        Ok(CpuProfile {
            options,
            period: Duration::from_secs(1) / options.hz,
            began: Moment::now(),
            began_unix_ns: unix_ns(),
            threads: Vec::new(),
            unwinder: Unwinder::new(Modules::read()?),
            stacks: Stacks::default(),
            tally: ProfileTally::default(),
            counts: HashMap::new(),
            timed: Some(Vec::new()),
        })
    }

    /// Arms timers of threads that have none yet.
    fn arm_new(&mut self) -> io::Result<()> {
        for thread in threads::all() {
            let is_wanted = self.options.of == ThreadScope::AllThreads || thread.turns.is_some();
            let is_known =
                |sampled: &ArmedThread| sampled.thread.as_ref().is_some_and(|known| Arc::ptr_eq(known, &thread));
            if !is_wanted || self.threads.iter().any(is_known) {
                continue;
            }
            thread.ring.prepare();
            let (cpu_before, lost_before) = (cpu_time_of(thread.tid).unwrap_or_default(), thread.ring.lost());
            let timer = match CpuTimer::arm(thread.tid, SIGNAL, self.period) {
                Ok(timer) => Some(timer),
                // It has ended since the threads were listed.
                Err(error) if Arc::strong_count(&thread) == 1 => {
                    drop(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let (name, thread, cpu) = (thread.name.clone(), Some(thread), Duration::ZERO);
            self.threads.push(ArmedThread { name, thread, timer, cpu_before, cpu, lost_before, lost: 0 });
        }
        Ok(())
    }

    fn drain(&mut self) {
        let mut record = Vec::new();
        for number in 0..self.threads.len() {
            let Some(thread) = self.threads[number].thread.take() else { continue };
            // This is the only reference, so its registration has ended, and it writes no more; earlier writes are
            // visible.
            let has_ended = Arc::strong_count(&thread) == 1;
            fence(Ordering::Acquire);
            while thread.ring.pop(&mut record) {
                if let Some(sample) = signal::RawSample::of_record(&record) {
                    self.add(number, &sample);
                }
            }
            let sampled = &mut self.threads[number];
            if let Ok(now) = cpu_time_of(thread.tid) {
                sampled.cpu = now.saturating_sub(sampled.cpu_before);
            }
            sampled.lost = thread.ring.lost() - sampled.lost_before;
            match has_ended {
                true => sampled.timer = None,
                false => sampled.thread = Some(thread),
            }
        }
    }

    fn add(&mut self, thread: usize, sample: &signal::RawSample<'_>) {
        // A signal from a profile that ended while it was on its way.
        if sample.cause != Cause::Timer || sample.ticks < self.began.ticks {
            return;
        }
        let unwound = self.unwinder.unwind(sample);
        self.tally.samples += 1;
        self.tally.periods += sample.weight;
        self.tally.truncated += u64::from(!unwound.is_complete);
        let is_complete = unwound.is_complete;
        let Some(stack) = self.stacks.number(unwound.addresses) else {
            self.tally.unplaced += 1;
            return;
        };
        let (key, weight) = ((thread, stack, is_complete), i64::try_from(sample.weight).unwrap_or(1));
        let (samples, periods) = self.counts.entry(key).or_default();
        (*samples, *periods) = (*samples + 1, *periods + weight);
        if let Some(timed) = &mut self.timed {
            timed.push(TimedSample { ticks: sample.ticks, key, weight });
        }
        if self.timed.as_ref().is_some_and(|timed| timed.len() > TIMED_MAX) {
            self.timed = None;
        }
    }

    fn disarm(&mut self) {
        for sampled in &mut self.threads {
            sampled.timer = None;
        }
        self.drain();
        self.tally.lost = self.threads.iter().map(|sampled| sampled.lost).sum();
    }

    fn finish(self) -> Profile {
        let end = Moment::now();
        let notes = self.notes();
        let CpuProfile { period, began, began_unix_ns, threads, unwinder, stacks, counts, timed, .. } = self;
        let period_ns = period.as_nanos() as i64;
        let NamedStacks { mappings, functions, locations, stacks } = find_functions(stacks, &unwinder.into_modules());
        let sample = |(thread, stack, is_complete): (usize, usize, bool), samples: i64, periods: i64| {
            let mut labels = vec![(THREAD.to_owned(), Label::Text(threads[thread].name.clone()))];
            if !is_complete {
                labels.push((TRUNCATED.to_owned(), Label::Text("yes".to_owned())));
            }
            Sample { stack: stacks[stack].clone(), values: vec![samples, periods * period_ns], labels }
        };
        let samples = match timed {
            Some(mut timed) => {
                timed.sort_by_key(|timed| timed.ticks);
                let with_time = |timed: TimedSample| {
                    let mut sample = sample(timed.key, 1, timed.weight);
                    let since = began.since(timed.ticks, end).as_nanos() as i64;
                    sample.labels.push((TIME.to_owned(), Label::Number(since, "nanoseconds".to_owned())));
                    sample
                };
                timed.into_iter().map(with_time).collect()
            }
            None => {
                let mut counts: Vec<_> = counts.into_iter().collect();
                counts.sort_unstable();
                counts.into_iter().map(|(key, (samples, periods))| sample(key, samples, periods)).collect()
            }
        };
        Profile {
            values: vec![ValueType::new("samples", "count"), ValueType::new("cpu", "nanoseconds")],
            main: 1,
            period: (ValueType::new("cpu", "nanoseconds"), period_ns),
            time_ns: began_unix_ns,
            duration_ns: end.at.duration_since(began.at).as_nanos() as i64,
            notes,
            mappings,
            functions,
            locations,
            samples,
        }
    }

    fn notes(&self) -> Vec<String> {
        let ProfileTally { samples, periods, truncated, unplaced, lost } = self.tally;
        let cpu: Duration = self.threads.iter().map(|sampled| sampled.cpu).sum();
        let rate = |count: u64| count as f64 / cpu.as_secs_f64().max(1e-9);
        let mut notes = vec![format!(
            "CPU profile at {} Hz of {} threads, which used {:.2} s of CPU time: {samples} samples, {:.1} samples per CPU second ({:.1} counting ticks that were missed)",
            self.options.hz,
            self.threads.len(),
            cpu.as_secs_f64(),
            rate(samples),
            rate(periods),
        )];
        if truncated > 0 {
            notes.push(format!("{truncated} stacks are truncated: their outermost functions are missing"));
        }
        if lost > 0 {
            notes.push(format!("{lost} samples are lost: they were not read in time"));
        }
        if unplaced > 0 {
            notes.push(format!("{unplaced} samples are missing: there were too many different stacks"));
        }
        if self.timed.is_none() {
            notes.push("samples have no times: there were too many".to_owned());
        }
        notes
    }
}

// Shared by all profiles: distinct stacks, their functions, and a clock that converts ticks.

/// Distinct stacks of a profile. Each takes up to 2 KiB; most have some thirty frames.
pub(crate) const STACKS_MAX: usize = 32_768;

/// Distinct stacks, each of addresses from the innermost on.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    numbers: HashMap<Box<[u64]>, usize>,
}

impl Stacks {
    /// The number of a stack; `None` if there are too many.
    pub(crate) fn number(&mut self, addresses: Vec<u64>) -> Option<usize> {
        let next = self.numbers.len();
        match self.numbers.get(addresses.as_slice()) {
            Some(number) => Some(*number),
            None if next >= STACKS_MAX => None,
            None => {
                self.numbers.insert(addresses.into(), next);
                Some(next)
            }
        }
    }

    /// All stacks, by number.
    pub(crate) fn in_order(&self) -> Vec<Box<[u64]>> {
        let mut numbered: Vec<(&Box<[u64]>, &usize)> = self.numbers.iter().collect();
        numbered.sort_unstable_by_key(|(_, number)| **number);
        numbered.into_iter().map(|(stack, _)| stack.clone()).collect()
    }
}

/// Stacks with their functions.
#[derive(Debug, Default)]
pub(crate) struct NamedStacks {
    pub(crate) mappings: Vec<CodeMapping>,
    pub(crate) functions: Vec<Function>,
    pub(crate) locations: Vec<Location>,
    /// Stacks by number; each is a list of locations.
    pub(crate) stacks: Vec<Vec<usize>>,
}

/// Finds the functions of all stacks. Takes long.
pub(crate) fn find_functions(stacks: Stacks, modules: &Modules) -> NamedStacks {
    let mut numbered: Vec<(Box<[u64]>, usize)> = stacks.numbers.into_iter().collect();
    numbered.sort_by_key(|(_, number)| *number);
    let mut addresses: Vec<u64> = numbered.iter().flat_map(|(stack, _)| stack.iter().copied()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    let resolved = resolve(modules, addresses.clone());
    let mut named = NamedStacks::default();
    for module in modules.iter() {
        let (range, offset) = (module.range(), module.code.first().map_or(0, |mapping| mapping.offset));
        let path = module.path.to_string_lossy().into_owned();
        named.mappings.push(CodeMapping { start: range.start, end: range.end, offset, path });
    }
    let mut functions: HashMap<Function, usize> = HashMap::new();
    for address in &addresses {
        let frames = resolved.get(address).map_or(&[][..], Vec::as_slice);
        let lines = frames.iter().map(|frame| {
            let function = Function { name: frame.function.clone(), file: frame.file.clone() };
            let next = functions.len();
            let function = *functions.entry(function).or_insert_with_key(|function| {
                named.functions.push(function.clone());
                next
            });
            Line { function, line: frame.line.into() }
        });
        let lines = lines.collect();
        let mapping = named.mappings.iter().position(|mapping| (mapping.start..mapping.end).contains(address));
        named.locations.push(Location { address: *address, mapping, lines });
    }
    let place = |address: &u64| addresses.binary_search(address).expect("all addresses were collected above");
    named.stacks = numbered.iter().map(|(stack, _)| stack.iter().map(place).collect()).collect();
    named
}

/// Both clocks at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) at: Instant,
    pub(crate) ticks: u64,
}

impl Moment {
    pub(crate) fn now() -> Moment {
        Moment { at: Instant::now(), ticks: machine::ticks() }
    }

    /// The time of a sample since this moment; `end` is a later moment, from which the length of a tick follows.
    pub(crate) fn since(&self, ticks: u64, end: Moment) -> Duration {
        let ratio = ticks.saturating_sub(self.ticks) as f64 / end.ticks.saturating_sub(self.ticks).max(1) as f64;
        end.at.duration_since(self.at).mul_f64(ratio.min(1.0))
    }
}

/// The time of day in the form of profiles.
pub(crate) fn unix_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Lowers the priority of the calling thread, so that it gets a tenth of the CPU share of others: with less, naming a
/// profile of a busy gateway would take minutes. If the priority cannot be lowered, the thread works anyway.
pub(crate) fn be_nice() {
    const NICENESS: i32 = 10;
    let _ = rustix::process::setpriority_process(None, NICENESS);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::Registration;
    use std::sync::mpsc::sync_channel;
    use std::thread;

    #[test]
    fn a_thread_that_has_ended_keeps_its_samples_and_not_its_ring() {
        let mut sampling = CpuProfile::new(CpuOptions::new(ThreadScope::EventLoops, 1, 1000).unwrap()).unwrap();
        let (registered, is_registered) = sync_channel(1);
        let (go_on, may_go_on) = sync_channel::<()>(1);
        let passing = thread::spawn(move || {
            let _registered = Registration::new("passing", Some(Box::new(|| 0))).unwrap();
            registered.send(()).unwrap();
            may_go_on.recv().unwrap();
            // Samples count CPU time, however long it takes to get it.
            let used = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            while used().tv_sec == 0 && used().tv_nsec < 100_000_000 {
                std::hint::spin_loop();
            }
        });
        is_registered.recv().unwrap();
        sampling.arm_new().unwrap();
        go_on.send(()).unwrap();
        passing.join().unwrap();
        // A listing of all threads holds it for a moment.
        stillgate_testkit::eventually("it to be let go", || {
            sampling.drain();
            sampling.threads.iter().all(|sampled| sampled.thread.is_none() && sampled.timer.is_none())
        });
        sampling.disarm();
        assert!(sampling.tally.samples > 0, "{:?}", sampling.tally);
        let profile = sampling.finish();
        assert!(profile.samples.iter().all(|sample| sample.thread() == "passing"), "{:?}", profile.notes);
    }
}
