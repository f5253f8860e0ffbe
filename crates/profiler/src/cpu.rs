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
use crate::signal::{self, CONTINUOUS, Cause, SIGNAL};
use crate::symbols::{Modules, SymbolFrame, resolve};
use crate::threads::{self, ScriptFrame, Thread};
use crate::timer::{CpuTimer, cpu_time_of};
use crate::unwind::Unwinder;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, PoisonError};
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
    let mut sampling = CpuProfile::new(options, Unwinder::new(Modules::read()?));
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
    let profile = sampling.finish(&mut Names::default()).0;
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
pub(crate) struct CpuProfile {
    options: CpuOptions,
    cause: Cause,
    period: Duration,
    began: Moment,
    began_unix_ns: i64,
    threads: Vec<ArmedThread>,
    unwinder: Unwinder,
    stacks: Stacks,
    tally: ProfileTally,
    works: Works,
    scripts: Scripts,
    /// Samples in scripts whose stack has not come yet: the thread's index, the record, and how often it was looked for.
    in_scripts: Vec<(usize, Vec<u64>, u32)>,
    /// Samples and periods.
    counts: HashMap<SampleKey, (i64, i64)>,
    /// Single samples with their ticks; `None` if there are too many.
    timed: Option<Vec<TimedSample>>,
}

/// What equal samples have in common: thread, work, stack, script, and whether the stack is complete.
type SampleKey = (usize, usize, usize, usize, bool);

struct TimedSample {
    ticks: u64,
    key: SampleKey,
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
    fn new(options: CpuOptions, unwinder: Unwinder) -> CpuProfile {
        CpuProfile {
            options,
            cause: Cause::Timer,
            period: Duration::from_secs(1) / options.hz,
            began: Moment::now(),
            began_unix_ns: unix_ns(),
            threads: Vec::new(),
            unwinder,
            stacks: Stacks::default(),
            works: Works::default(),
            scripts: Scripts::default(),
            in_scripts: Vec::new(),
            tally: ProfileTally::default(),
            counts: HashMap::new(),
            timed: Some(Vec::new()),
        }
    }

    /// A part of the continuous profile. Its samples have no times.
    pub(crate) fn continuous(hz: u32, unwinder: Unwinder) -> CpuProfile {
        let options = CpuOptions { of: ThreadScope::EventLoops, duration: Duration::ZERO, hz };
        CpuProfile { cause: Cause::Continuous, timed: None, ..CpuProfile::new(options, unwinder) }
    }

    /// Disarms all timers without reading what they have caused: another profile begins.
    pub(crate) fn pause(&mut self) {
        for sampled in &mut self.threads {
            (sampled.timer, sampled.thread) = (None, None);
        }
    }

    /// Samples so far.
    pub(crate) fn samples(&self) -> u64 {
        self.tally.samples
    }

    /// Arms timers of threads that have none yet.
    pub(crate) fn arm_new(&mut self) -> io::Result<()> {
        let mark = if self.cause == Cause::Continuous { CONTINUOUS } else { 0 };
        for thread in threads::all() {
            let is_wanted = self.options.of == ThreadScope::AllThreads || thread.turns.is_some();
            let is_known =
                |sampled: &ArmedThread| sampled.thread.as_ref().is_some_and(|known| Arc::ptr_eq(known, &thread));
            if !is_wanted || self.threads.iter().any(is_known) {
                continue;
            }
            thread.ring.prepare();
            let (cpu_before, lost_before) = (cpu_time_of(thread.tid).unwrap_or_default(), thread.ring.lost());
            let timer = match CpuTimer::arm(thread.tid, SIGNAL, mark, self.period) {
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

    pub(crate) fn drain(&mut self) {
        let mut record = Vec::new();
        for number in 0..self.threads.len() {
            let Some(thread) = self.threads[number].thread.take() else { continue };
            // This is the only reference, so its registration has ended, and it writes no more; earlier writes are
            // visible.
            let has_ended = Arc::strong_count(&thread) == 1;
            fence(Ordering::Acquire);
            while thread.ring.pop(&mut record) {
                match signal::RawSample::of_record(&record) {
                    Some(sample) if sample.in_script && sample.cause == self.cause => {
                        self.in_scripts.push((number, std::mem::take(&mut record), 0));
                    }
                    Some(sample) => self.add(number, &sample, &[]),
                    None => {}
                }
            }
            self.join_scripts(number, &thread);
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

    /// Adds the samples of a thread whose scripts' stacks have come, and those whose have not come for long.
    fn join_scripts(&mut self, number: usize, thread: &Thread) {
        let come = std::mem::take(&mut *thread.scripts.lock().unwrap_or_else(PoisonError::into_inner));
        for (of, record, looks) in std::mem::take(&mut self.in_scripts) {
            let Some(sample) = signal::RawSample::of_record(&record) else { continue };
            let script = come.iter().find(|script| (script.ticks.0..=script.ticks.1).contains(&sample.ticks));
            match script {
                _ if of != number => self.in_scripts.push((of, record, looks)),
                Some(script) => self.add(of, &sample, &script.frames),
                None if looks >= SCRIPT_LOOKS_MAX => self.add(of, &sample, &[]),
                None => self.in_scripts.push((of, record, looks + 1)),
            }
        }
    }

    /// Adds a sample. `script`: the functions of a script that were running, the innermost first.
    fn add(&mut self, thread: usize, sample: &signal::RawSample<'_>, script: &[ScriptFrame]) {
        // A signal from a profile that ended while it was on its way.
        if sample.cause != self.cause || sample.ticks < self.began.ticks {
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
        let work = self.works.number(&sample.work);
        let script = self.scripts.number(script);
        let (key, weight) = ((thread, work, stack, script, is_complete), i64::try_from(sample.weight).unwrap_or(1));
        let (samples, periods) = self.counts.entry(key).or_default();
        (*samples, *periods) = (*samples + 1, *periods + weight);
        if let Some(timed) = &mut self.timed {
            timed.push(TimedSample { ticks: sample.ticks, key, weight });
        }
        if self.timed.as_ref().is_some_and(|timed| timed.len() > TIMED_MAX) {
            self.timed = None;
        }
    }

    pub(crate) fn disarm(&mut self) {
        for sampled in &mut self.threads {
            sampled.timer = None;
        }
        self.drain();
        for (of, record, _) in std::mem::take(&mut self.in_scripts) {
            if let Some(sample) = signal::RawSample::of_record(&record) {
                self.add(of, &sample, &[]);
            }
        }
        self.tally.lost = self.threads.iter().map(|sampled| sampled.lost).sum();
    }

    /// Names the functions, with those that are known. Returns the unwinder, too.
    pub(crate) fn finish(self, names: &mut Names) -> (Profile, Unwinder) {
        let end = Moment::now();
        let notes = self.notes();
        let CpuProfile {
            period, began, began_unix_ns, threads, unwinder, stacks, works, scripts, counts, timed, ..
        } = self;
        let works = works.in_order();
        let period_ns = period.as_nanos() as i64;
        let mut named = find_functions(stacks, names, unwinder.modules());
        let scripts = scripts.locate(&mut named);
        let NamedStacks { mappings, functions, locations, stacks } = named;
        let runs_scripts = |place: &usize| {
            let name = locations[*place].lines.last().map_or("", |line| &functions[line.function].name);
            INTERPRETER.iter().any(|prefix| name.starts_with(prefix))
        };
        let sample = |(thread, work, stack, script, is_complete): SampleKey, samples: i64, periods: i64| {
            let mut stack = stacks[stack].clone();
            if script != 0 {
                // All that the interpreter calls is called by the script.
                let at = match stack.iter().rposition(runs_scripts) {
                    Some(outermost) => outermost + 1,
                    // It was about to begin.
                    None if is_complete => 0,
                    None => stack.len(),
                };
                stack.splice(at..at, scripts[script].iter().copied());
            }
            let mut labels = vec![(THREAD.to_owned(), Label::Text(threads[thread].name.clone()))];
            if !is_complete {
                labels.push((TRUNCATED.to_owned(), Label::Text("yes".to_owned())));
            }
            let mut sample = Sample { stack, values: vec![samples, periods * period_ns], labels };
            sample.name_work(&works[work]);
            sample
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
        let profile = Profile {
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
        };
        (profile, unwinder)
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
        if self.timed.is_none() && self.cause == Cause::Timer {
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

/// Most distinct pairs of a route and a plugin; samples with others are without both.
const WORKS_MAX: usize = 16_384;

/// Distinct pairs of the names of a route and a plugin.
#[derive(Debug)]
pub(crate) struct Works(HashMap<[String; 2], usize>);

impl Default for Works {
    fn default() -> Works {
        Works(HashMap::from([(<[String; 2]>::default(), 0)]))
    }
}

impl Works {
    /// The number of a pair; zero: neither has a name, or there are too many.
    pub(crate) fn number(&mut self, work: &[String; 2]) -> usize {
        let next = self.0.len();
        match self.0.get(work) {
            Some(number) => *number,
            None if next >= WORKS_MAX => 0,
            None => {
                self.0.insert(work.clone(), next);
                next
            }
        }
    }

    /// All pairs, by number.
    pub(crate) fn in_order(self) -> Vec<[String; 2]> {
        let mut numbered: Vec<_> = self.0.into_iter().collect();
        numbered.sort_unstable_by_key(|(_, number)| *number);
        numbered.into_iter().map(|(work, _)| work).collect()
    }
}

/// Beginnings of the names of LuaJIT's interpreter, and of the machine code that it makes.
const INTERPRETER: [&str; 5] = ["lj_BC_", "lj_ff_", "lj_vm_", "lj_cont_", "unknown"];

/// Reads of the rings after which a sample's script has ended, and its stack does not come.
const SCRIPT_LOOKS_MAX: u32 = 4;

/// Most distinct stacks of scripts; samples with others are without.
const SCRIPTS_MAX: usize = 8_192;

/// Where functions of scripts have their addresses: no code is there.
const SCRIPT_ADDRESSES: u64 = 1 << 56;

/// Distinct stacks of scripts.
#[derive(Debug, Default)]
struct Scripts(HashMap<Vec<ScriptFrame>, usize>);

impl Scripts {
    /// The number of a stack; zero: it is empty, or there are too many.
    fn number(&mut self, frames: &[ScriptFrame]) -> usize {
        let next = self.0.len() + 1;
        match self.0.get(frames) {
            Some(number) => *number,
            None if frames.is_empty() || next > SCRIPTS_MAX => 0,
            None => {
                self.0.insert(frames.to_vec(), next);
                next
            }
        }
    }

    /// Adds the functions of all stacks; returns the stacks by number, as lists of locations.
    fn locate(self, named: &mut NamedStacks) -> Vec<Vec<usize>> {
        let mut numbered: Vec<_> = self.0.into_iter().collect();
        numbered.sort_unstable_by_key(|(_, number)| *number);
        let (mut functions, mut places) = (HashMap::new(), HashMap::new());
        let mut locate = |ScriptFrame { function, file, line }: ScriptFrame| {
            let function = Function { name: function, file };
            let function = *functions.entry(function).or_insert_with_key(|function| {
                named.functions.push(function.clone());
                named.functions.len() - 1
            });
            *places.entry((function, line)).or_insert_with(|| {
                let address = SCRIPT_ADDRESSES + named.locations.len() as u64;
                let lines = vec![Line { function, line: line.into() }];
                named.locations.push(Location { address, mapping: None, lines });
                named.locations.len() - 1
            })
        };
        let stacks = numbered.into_iter().map(|(frames, _)| frames.into_iter().map(&mut locate).collect());
        std::iter::once(Vec::new()).chain(stacks).collect()
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

/// The functions at addresses that were found before, the innermost first.
pub(crate) type Names = HashMap<u64, Vec<SymbolFrame>>;

/// Most addresses whose functions are remembered.
const NAMES_MAX: usize = 1 << 16;

/// Finds the functions of all stacks. Takes long for those whose names are not known.
pub(crate) fn find_functions(stacks: Stacks, names: &mut Names, modules: &Modules) -> NamedStacks {
    let mut numbered: Vec<(Box<[u64]>, usize)> = stacks.numbers.into_iter().collect();
    numbered.sort_by_key(|(_, number)| *number);
    let mut addresses: Vec<u64> = numbered.iter().flat_map(|(stack, _)| stack.iter().copied()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    let is_new = |address: &u64| !names.contains_key(address);
    let mut new: Vec<u64> = addresses.iter().copied().filter(is_new).collect();
    if names.len() + new.len() > NAMES_MAX {
        names.clear();
        new.clone_from(&addresses);
    }
    names.extend(resolve(modules, new));
    let mut named = NamedStacks::default();
    for module in modules.iter() {
        let (range, offset) = (module.range(), module.code.first().map_or(0, |mapping| mapping.offset));
        let path = module.path.to_string_lossy().into_owned();
        named.mappings.push(CodeMapping { start: range.start, end: range.end, offset, path });
    }
    let mut functions: HashMap<Function, usize> = HashMap::new();
    for address in &addresses {
        let frames = names.get(address).map_or(&[][..], Vec::as_slice);
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
        // Rings have one reader.
        let mut session = None;
        stillgate_testkit::eventually("no other profile", || {
            session = ProfileSession::begin("test", "a test", Duration::ZERO).ok();
            session.is_some()
        });
        let mut sampling = CpuProfile::new(
            CpuOptions::new(ThreadScope::EventLoops, 1, 1000).unwrap(),
            Unwinder::new(Modules::read().unwrap()),
        );
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
            let mut own = sampling.threads.iter().filter(|sampled| sampled.name == "passing");
            own.all(|sampled| sampled.thread.is_none() && sampled.timer.is_none())
        });
        sampling.disarm();
        let profile = sampling.finish(&mut Names::default()).0;
        assert!(profile.samples.iter().any(|sample| sample.thread() == "passing"), "{:?}", profile.notes);
        drop(session);
    }
}
