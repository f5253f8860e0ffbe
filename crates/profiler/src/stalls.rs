//! Finds what blocks an event loop: stacks of threads whose turn takes long.
//!
//! A thread with an event loop counts how often it goes to sleep and wakes up. A watcher reads these counters many
//! times a second. A counter that does not change, while its thread is not asleep in the event loop, means a turn that
//! takes long: the thread's stack is requested, and again from time to time until the turn ends. The kernel reports the
//! thread's state meanwhile: whether it ran, waited for a CPU, or slept in a system call, and in which.
//!
//! The thread itself only counts, as it always does. A turn is timed from outside, so its length is accurate to about
//! the interval of the reads.

use crate::cpu::{NamedStacks, Names, Stacks, be_nice, find_functions, unix_ns};
use crate::profile::{Label, Profile, Sample, THREAD, TRUNCATED, ValueType};
use crate::session::{Cancel, ProfileSession, between};
use crate::signal::{self, Cause};
use crate::symbols::{Modules, SymbolFrame, resolve};
use crate::threads::{self, Thread};
use crate::unwind::Unwinder;
use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The shortest turn that can be watched for.
pub const OVER_MIN: Duration = Duration::from_millis(1);

/// The longest turn that can be watched for.
pub const OVER_MAX: Duration = Duration::from_secs(10);

/// The default threshold.
pub const OVER_DEFAULT: Duration = Duration::from_millis(10);

/// Reads of the counters during a turn of the threshold's length.
const LOOKS: u32 = 5;

/// The longest time between two reads.
const LOOK_EVERY_MAX: Duration = Duration::from_millis(5);

/// Fraction of the threshold after which a stack is requested, so that a turn that ends just beyond the threshold has
/// one, too.
const ASKED_AT: f64 = 0.6;

/// Stacks of one turn. Later ones are requested less and less often.
const STACKS_OF_A_TURN_MAX: usize = 16;

/// Turns of a profile; later ones are only counted.
const STALLS_MAX: usize = 4096;

/// The threshold of turns, and how long to watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StallOptions {
    duration: Duration,
    over: Duration,
}

/// `over` is not from [`OVER_MIN`] to [`OVER_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidThreshold;

impl fmt::Display for InvalidThreshold {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "over: from {} ms to {} s", OVER_MIN.as_millis(), OVER_MAX.as_secs())
    }
}

impl std::error::Error for InvalidThreshold {}

impl StallOptions {
    /// Checks the options; `duration` comes from [`crate::cpu::duration`].
    pub fn new(duration: Duration, over: Duration) -> Result<StallOptions, InvalidThreshold> {
        match (OVER_MIN..=OVER_MAX).contains(&over) {
            true => Ok(StallOptions { duration, over }),
            false => Err(InvalidThreshold),
        }
    }

    /// The duration of the profile.
    pub fn duration(&self) -> Duration {
        self.duration
    }
}

/// Watches on the calling thread.
pub fn take(session: ProfileSession, options: StallOptions, cancel: &Cancel) -> io::Result<Profile> {
    let mut watch = StallWatch::new(options.over)?;
    let (began, began_unix_ns) = (Instant::now(), unix_ns());
    let until = began + options.duration;
    let every = pause(options.over);
    while Instant::now() < until && !cancel.is_cancelled() {
        watch.look();
        sleep(every);
    }
    watch.end();
    let profile = watch.finish(began_unix_ns, began.elapsed());
    drop(session);
    Ok(profile)
}

/// The pause between two reads.
pub(crate) fn pause(over: Duration) -> Duration {
    (over / LOOKS).min(LOOK_EVERY_MAX)
}

/// A watched thread.
struct WatchedThread {
    thread: Arc<Thread>,
    turns: u64,
    /// When the counter's current value was first seen.
    since: Instant,
    /// The kernel's figures at that time; `None` while the turn is short.
    before: Option<SchedulerFigures>,
    /// When its stack was last requested.
    asked: Instant,
    /// The function it slept in then.
    wait: String,
    stacks: Vec<StallStack>,
}

/// A stack in a long turn.
pub(crate) struct StallStack {
    pub(crate) stack: usize,
    /// The route and the plugin that the thread worked on.
    pub(crate) work: [String; 2],
    is_complete: bool,
    wait: String,
}

/// The kernel's figures on a thread, and the function it sleeps in.
#[derive(Debug, Clone, Default)]
struct SchedulerFigures {
    running_ns: u64,
    waiting_ns: u64,
}

/// A turn that was long.
pub(crate) struct Stall {
    pub(crate) thread: String,
    pub(crate) ended_unix_ns: i64,
    pub(crate) took: Duration,
    running_ns: u64,
    waiting_ns: u64,
    pub(crate) stacks: Vec<StallStack>,
}

pub(crate) struct StallWatch {
    over: Duration,
    threads: Vec<WatchedThread>,
    pub(crate) unwinder: Unwinder,
    stacks: Stacks,
    stalls: Vec<Stall>,
    uncounted: u64,
    unseen: u64,
}

impl StallWatch {
    pub(crate) fn new(over: Duration) -> io::Result<StallWatch> {
        let unwinder = Unwinder::new(Modules::read()?);
        let (threads, stacks, stalls) = (Vec::new(), Stacks::default(), Vec::new());
        Ok(StallWatch { over, threads, unwinder, stacks, stalls, uncounted: 0, unseen: 0 })
    }

    pub(crate) fn look(&mut self) {
        self.join_new();
        for number in 0..self.threads.len() {
            self.read_stacks(number);
            let now = Instant::now();
            let watched = &mut self.threads[number];
            let turns = watched.thread.turns.as_ref().map_or(1, |turns| turns());
            if turns != watched.turns {
                self.end_turn(number, now);
                let watched = &mut self.threads[number];
                (watched.turns, watched.since, watched.asked) = (turns, now, now);
                continue;
            }
            let is_asleep = turns % 2 == 1;
            if is_asleep {
                continue;
            }
            let watched = &mut self.threads[number];
            if watched.before.is_none() {
                watched.before = Some(SchedulerFigures::of(watched.thread.tid));
            }
            let age = now.duration_since(watched.since);
            let seen = watched.stacks.len();
            // The first at once, later ones with growing pauses.
            let pause = self.over.mul_f64(f64::from(1_u32 << (seen / 4).min(8)) / 2.0);
            let is_time = seen == 0 || now.duration_since(watched.asked) >= pause;
            if age >= self.over.mul_f64(ASKED_AT) && seen < STACKS_OF_A_TURN_MAX && is_time {
                watched.asked = now;
                // Before the signal wakes it.
                watched.wait = waits_in(watched.thread.tid);
                // Fails for a thread that has just ended, which has no stack.
                let _ = signal::ask(&watched.thread);
            }
        }
    }

    fn join_new(&mut self) {
        let known = threads::all();
        self.threads.retain(|watched| known.iter().any(|thread| Arc::ptr_eq(thread, &watched.thread)));
        for thread in known {
            let Some(turns) = thread.turns.as_ref().map(|turns| turns()) else { continue };
            if self.threads.iter().any(|watched| Arc::ptr_eq(&watched.thread, &thread)) {
                continue;
            }
            thread.asked_ring.prepare();
            let mut left = Vec::new();
            while thread.asked_ring.pop(&mut left) {}
            let now = Instant::now();
            self.threads.push(WatchedThread {
                thread,
                turns,
                since: now,
                before: None,
                asked: now,
                wait: String::new(),
                stacks: Vec::new(),
            });
        }
    }

    /// Reads the stacks that a thread has recorded since the last read.
    fn read_stacks(&mut self, number: usize) {
        let mut record = Vec::new();
        let watched = &mut self.threads[number];
        while watched.thread.asked_ring.pop(&mut record) {
            let Some(sample) = signal::RawSample::of_record(&record).filter(|sample| sample.cause == Cause::Asked)
            else {
                continue;
            };
            let unwound = self.unwinder.unwind(&sample);
            let (wait, is_complete, work) = (watched.wait.clone(), unwound.is_complete, sample.work);
            match self.stacks.number(unwound.addresses) {
                Some(stack) => watched.stacks.push(StallStack { stack, work, is_complete, wait }),
                None => self.uncounted += 1,
            }
        }
    }

    fn end_turn(&mut self, number: usize, now: Instant) {
        let watched = &mut self.threads[number];
        let (took, before, stacks) =
            (now.duration_since(watched.since), watched.before.take(), std::mem::take(&mut watched.stacks));
        let Some(before) = before.filter(|_| took >= self.over) else { return };
        let after = SchedulerFigures::of(watched.thread.tid);
        if stacks.is_empty() {
            self.unseen += 1;
        } else if self.stalls.len() >= STALLS_MAX {
            self.uncounted += 1;
        } else {
            self.stalls.push(Stall {
                thread: watched.thread.name.clone(),
                ended_unix_ns: unix_ns(),
                took,
                running_ns: after.running_ns.saturating_sub(before.running_ns),
                waiting_ns: after.waiting_ns.saturating_sub(before.waiting_ns),
                stacks,
            });
        }
    }

    /// Forgets current turns: another profile has read the threads meanwhile.
    pub(crate) fn forget_present(&mut self) {
        self.threads.clear();
    }

    /// The long turns since the last call, with the addresses of each stack by its number.
    pub(crate) fn take_seen(&mut self) -> (Vec<Stall>, Vec<Box<[u64]>>) {
        let stalls = std::mem::take(&mut self.stalls);
        let stacks = self.stacks.in_order();
        // Current turns have stacks, too.
        if self.threads.iter().all(|watched| watched.stacks.is_empty()) {
            self.stacks = Stacks::default();
        }
        (stalls, stacks)
    }

    /// Counts current turns that are already long as ended.
    fn end(&mut self) {
        for number in 0..self.threads.len() {
            self.read_stacks(number);
            self.end_turn(number, Instant::now());
        }
    }

    fn finish(self, began_unix_ns: i64, took: Duration) -> Profile {
        let notes = self.notes();
        let StallWatch { over, unwinder, stacks, stalls, .. } = self;
        let NamedStacks { mappings, functions, locations, stacks } =
            find_functions(stacks, &mut Names::default(), unwinder.modules());
        let number = |value: u64| Label::Number(value as i64, "nanoseconds".to_owned());
        let mut samples = Vec::new();
        for stall in &stalls {
            // Its time is divided among the stacks that were seen in it.
            let share = stall.took.as_nanos() as i64 / stall.stacks.len() as i64;
            for (index, seen) in stall.stacks.iter().enumerate() {
                let mut labels = vec![
                    (THREAD.to_owned(), Label::Text(stall.thread.clone())),
                    ("turn".to_owned(), number(stall.took.as_nanos() as u64)),
                    ("running".to_owned(), number(stall.running_ns)),
                    ("waiting for a CPU".to_owned(), number(stall.waiting_ns)),
                    ("wchan".to_owned(), Label::Text(seen.wait.clone())),
                ];
                if !seen.is_complete {
                    labels.push((TRUNCATED.to_owned(), Label::Text("yes".to_owned())));
                }
                let values = vec![i64::from(index == 0), share];
                let mut sample = Sample { stack: stacks[seen.stack].clone(), values, labels };
                sample.name_work(&seen.work);
                samples.push(sample);
            }
        }
        Profile {
            values: vec![ValueType::new("turns", "count"), ValueType::new("delay", "nanoseconds")],
            main: 1,
            period: (ValueType::new("delay", "nanoseconds"), over.as_nanos() as i64),
            time_ns: began_unix_ns,
            duration_ns: took.as_nanos() as i64,
            notes,
            mappings,
            functions,
            locations,
            samples,
        }
    }

    fn notes(&self) -> Vec<String> {
        let over = self.over.as_secs_f64() * 1000.0;
        let mut notes = vec![format!(
            "{} turns of {} event loops took longer than {over} ms; lengths are right to about {:.1} ms",
            self.stalls.len() as u64 + self.uncounted + self.unseen,
            self.threads.len(),
            pause(self.over).as_secs_f64() * 1000.0,
        )];
        if self.unseen > 0 {
            notes.push(format!("{} of them ended before their stack was sampled", self.unseen));
        }
        if self.uncounted > 0 {
            notes.push(format!("{} turns or stacks are missing: there were too many", self.uncounted));
        }
        notes
    }
}

impl SchedulerFigures {
    /// Zero if the kernel does not report it.
    fn of(tid: i32) -> SchedulerFigures {
        let text = fs::read_to_string(format!("/proc/self/task/{tid}/schedstat")).unwrap_or_default();
        let mut numbers = text.split_ascii_whitespace().map(|word| word.parse().unwrap_or(0));
        SchedulerFigures { running_ns: numbers.next().unwrap_or(0), waiting_ns: numbers.next().unwrap_or(0) }
    }
}

/// The kernel function that a thread sleeps in; `none` if it does not sleep, or the kernel does not report it.
fn waits_in(tid: i32) -> String {
    let text = fs::read_to_string(format!("/proc/self/task/{tid}/wchan")).unwrap_or_default();
    match text.trim() {
        "" | "0" => "none".to_owned(),
        name => name.to_owned(),
    }
}

// A continuous watch: the long turns of event loops, with the work that was done in them.
//
// It reads the threads' rings only between two profiles. During a profile it sees nothing.

/// Functions of a stack, from the innermost on.
const FRAMES_MAX: usize = 48;

/// Most distinct stacks of a turn.
const WATCH_STACKS_MAX: usize = 3;

/// Most addresses whose functions are remembered.
const NAMES_MAX: usize = 1 << 14;

/// A watch on the thread that made it.
pub struct ContinuousWatch {
    over: Duration,
    watch: StallWatch,
    /// The functions at an address, the innermost first.
    names: HashMap<u64, Vec<Arc<str>>>,
}

/// A turn that was long.
#[derive(Debug, Clone)]
pub struct LongTurn {
    /// The name of its thread.
    pub thread: String,
    /// When it ended, since 1970, in milliseconds.
    pub ended_unix_ms: u64,
    /// Its duration.
    pub took: Duration,
    /// Its stacks, most frequent first.
    pub stacks: Vec<LongTurnStack>,
}

/// A stack that was seen in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LongTurnStack {
    /// How often it was seen.
    pub seen: usize,
    /// The route that the thread worked on then.
    pub route: Option<String>,
    /// The plugin that was called then.
    pub plugin: Option<String>,
    /// `FUNCTION FILE:LINE`, the innermost first.
    pub frames: Vec<Arc<str>>,
}

impl ContinuousWatch {
    /// Watches for turns that take longer than this. The calling thread becomes nice.
    pub fn new(over: Duration) -> io::Result<ContinuousWatch> {
        be_nice();
        let watch = StallWatch::new(over)?;
        // Done now, since later it would delay the watch of the first turns.
        for module in watch.unwinder.modules().iter() {
            let _ = module.image();
        }
        Ok(ContinuousWatch { over, watch, names: HashMap::new() })
    }

    /// The time to wait between two looks: less while a thread is in a turn. Where all sleep, a turn that has just begun is found
    /// up to `over` later; few looks cost little.
    pub fn pause(&self) -> Duration {
        let is_asleep = |watched: &WatchedThread| watched.turns % 2 == 1;
        if self.watch.threads.iter().all(is_asleep) { self.over } else { pause(self.over) }
    }

    /// Reads the counters once.
    pub fn look(&mut self) {
        if between(|| self.watch.look()).is_none() {
            self.watch.forget_present();
        }
    }

    /// The turns that have ended since the last call. Takes long if there are new functions.
    pub fn long_turns(&mut self) -> Vec<LongTurn> {
        let (stalls, stacks) = self.watch.take_seen();
        let seen = stalls.iter().flat_map(|stall| &stall.stacks).flat_map(|seen| &stacks[seen.stack]);
        let mut new: Vec<u64> = seen.copied().filter(|address| !self.names.contains_key(address)).collect();
        if !new.is_empty() {
            if self.names.len() + new.len() > NAMES_MAX {
                self.names.clear();
                new = stacks.iter().flatten().copied().collect();
            }
            let resolved = resolve(self.watch.unwinder.modules(), new);
            self.names
                .extend(resolved.into_iter().map(|(address, frames)| (address, frames.iter().map(text).collect())));
        }
        stalls.iter().map(|stall| self.named(stall, &stacks)).collect()
    }

    fn named(&self, stall: &Stall, stacks: &[Box<[u64]>]) -> LongTurn {
        let mut counted: Vec<(&StallStack, usize)> = Vec::new();
        for seen in &stall.stacks {
            let is_same = |other: &StallStack| (other.stack, &other.work) == (seen.stack, &seen.work);
            match counted.iter_mut().find(|(other, _)| is_same(other)) {
                Some((_, count)) => *count += 1,
                None => counted.push((seen, 1)),
            }
        }
        // Among equally frequent ones, the first.
        counted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        counted.truncate(WATCH_STACKS_MAX);
        let frames = |stack: usize| {
            let names = stacks[stack].iter().filter_map(|address| self.names.get(address));
            names.flatten().take(FRAMES_MAX).cloned().collect()
        };
        let stack = |(of, seen): (&StallStack, usize)| {
            let [route, plugin] = of.work.clone().map(|name| Some(name).filter(|name| !name.is_empty()));
            LongTurnStack { seen, route, plugin, frames: frames(of.stack) }
        };
        LongTurn {
            thread: stall.thread.clone(),
            ended_unix_ms: u64::try_from(stall.ended_unix_ns).unwrap_or_default() / 1_000_000,
            took: stall.took,
            stacks: counted.into_iter().map(stack).collect(),
        }
    }
}

fn text(frame: &SymbolFrame) -> Arc<str> {
    match frame.file.as_str() {
        "" => frame.function.as_str().into(),
        file => format!("{} {file}:{}", frame.function, frame.line).into(),
    }
}
