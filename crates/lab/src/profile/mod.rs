//! Profiles of any program, by tools that are installed: `perf` samples its CPU time, valgrind's callgrind counts its instructions.
//!
//! The program needs no support for it. For the gateway's own profiler, see `stillgate profile`.

mod callgrind;
mod perf;

use crate::error::{Error, Result};
use crate::stop::EXIT_INTERRUPTED;
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use stillgate_profiler::profile::{Function, Label, Line, Location, Profile, Sample, THREAD, ValueType};
use stillgate_rig::group::{self, Outcome};
use stillgate_rig::{Signal, send};
use tempfile::TempDir;

/// Interval of polling a shown program.
const POLL: Duration = Duration::from_millis(10);

/// A program that Ctrl-C has reached gets this long to end before the signal is repeated.
const PASSED_ON_AFTER: Duration = Duration::from_secs(1);

/// The subject of a profile.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Subject<'a> {
    /// A program that is started, with its arguments.
    Command(&'a [OsString]),
    /// Running processes, for this many seconds.
    Processes { pids: &'a [u32], seconds: u64 },
}

/// Where the output of a started program goes, and how it is ended.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Output<'a> {
    /// To our output. Ctrl-C reaches it directly; if `stop` is set and it continues, it gets a signal, and its profile
    /// is kept.
    Shown { stop: &'a AtomicBool },
    /// Nowhere; its error messages are shown. It ends with all its children once `stop` is set, without a profile.
    Hidden { stop: &'a AtomicBool },
}

/// Samples that were taken but not read yet.
pub(crate) struct Samples {
    folder: TempDir,
    hz: u32,
    time_ns: i64,
    duration_ns: i64,
    ran: ProgramEnd,
}

/// How a program ended.
struct ProgramEnd(ExitStatus);

/// Samples its CPU time at `hz` samples per second.
pub(crate) fn cpu(subject: &Subject<'_>, hz: u32, output: Output<'_>) -> Result<Profile> {
    sample(subject, hz, output)?.read(output)
}

/// The first half of [`cpu`], after which the subject is no longer needed.
pub(crate) fn sample(subject: &Subject<'_>, hz: u32, output: Output<'_>) -> Result<Samples> {
    let (begun, time_ns, folder) = (Instant::now(), unix_ns(), folder()?);
    let ran = perf::record(subject, hz, output, folder.path())?;
    let duration_ns = begun.elapsed().as_nanos() as i64;
    Ok(Samples { folder, hz, time_ns, duration_ns, ran })
}

impl Samples {
    pub(crate) fn read(self, output: Output<'_>) -> Result<Profile> {
        let Samples { folder, hz, time_ns, duration_ns, ran } = self;
        let gathered = perf::read(folder.path(), output)?;
        if gathered.is_empty() {
            let how = ran.note().unwrap_or_else(|| "the program used next to no CPU time".to_owned());
            return Err(Error::new(format!("no samples: {how}")));
        }
        let mut notes = vec![format!("CPU time by perf at {hz} Hz")];
        notes.extend(ran.note());
        let value = ValueType::new("cpu", "nanoseconds");
        let period = 1_000_000_000 / i64::from(hz);
        Ok(gathered.finish(ValueMeaning { value, period, is_sampled: true, time_ns, duration_ns, notes }))
    }
}

/// Counts its instructions.
pub(crate) fn instructions(words: &[OsString], output: Output<'_>) -> Result<Profile> {
    let (begun, folder) = (Instant::now(), folder()?);
    let ran = callgrind::run(words, output, folder.path())?;
    let mut profile = counted(folder.path())?;
    profile.notes.extend(ran.note());
    profile.time_ns = unix_ns() - begun.elapsed().as_nanos() as i64;
    profile.duration_ns = begun.elapsed().as_nanos() as i64;
    Ok(profile)
}

/// The options with which valgrind starts a program elsewhere, for [`counted`].
pub(crate) fn callgrind_options() -> [String; 3] {
    callgrind::options()
}

/// Reads callgrind's counts from a folder, in files named `counts.PID`.
pub(crate) fn counted(folder: &Path) -> Result<Profile> {
    let gathered = callgrind::read(folder)?;
    if gathered.is_empty() {
        return Err("callgrind counted nothing; see its messages above".into());
    }
    let depth = callgrind::CALLERS;
    let notes = vec![format!("instructions by callgrind; of each stack the innermost {} functions", depth + 1)];
    let value = ValueType::new("instructions", "count");
    Ok(gathered.finish(ValueMeaning { value, period: 1, is_sampled: false, time_ns: 0, duration_ns: 0, notes }))
}

/// Runs a tool to its end. A shown program gets the caller's input.
fn tool(command: &mut Command, output: Output<'_>, missing: &str) -> Result<ProgramEnd> {
    let ended = match output {
        Output::Shown { stop } => shown(command.stdin(Stdio::inherit()), stop).map(Outcome::Exit),
        Output::Hidden { stop } => group::run(command.stdin(Stdio::null()).stdout(Stdio::null()), None, stop),
    };
    match ended {
        Ok(Outcome::Exit(status)) => Ok(ProgramEnd(status)),
        // Without a limit.
        Ok(Outcome::Interrupt | Outcome::Timeout) => Err(cut_short()),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::new(missing)),
        Err(error) => Err(Error::new(format!("{}: {error}", command.get_program().to_string_lossy()))),
    }
}

/// In our process group, because it may read from the terminal.
fn shown(command: &mut Command, stop: &AtomicBool) -> io::Result<ExitStatus> {
    let (mut child, mut asked) = (command.spawn()?, None);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if stop.load(Ordering::Relaxed) {
            let begun = *asked.get_or_insert_with(Instant::now);
            // From a terminal the signal reached all, and perf ends at once; a signal to us alone is passed on, once.
            if begun.elapsed() >= PASSED_ON_AFTER {
                // Fails only if it has ended.
                let _ = send(child.id(), Signal::INT);
                return child.wait();
            }
        }
        sleep(POLL);
    }
}

impl Output<'_> {
    fn is_stopped(self) -> bool {
        matches!(self, Output::Hidden { stop } if stop.load(Ordering::Relaxed))
    }
}

fn cut_short() -> Error {
    Error::new("interrupted").exit(EXIT_INTERRUPTED)
}

impl ProgramEnd {
    fn note(&self) -> Option<String> {
        (!self.0.success()).then(|| format!("the program ended with {}", self.0))
    }
}

fn folder() -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix("stillgate-lab-profile-").tempdir();
    made.map_err(|error| Error::new(format!("cannot make a folder for the measurements: {error}")))
}

fn unix_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

// Stacks of names as a profile: equal ones are merged.

/// Number of different stacks of a profile; further ones are only counted.
const STACKS_MAX: usize = 1_000_000;

/// A function and a line in it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Frame {
    function: String,
    file: String,
    /// Zero: unknown.
    line: i64,
}

/// Stacks so far.
#[derive(Debug, Default)]
struct StackCollector {
    functions: HashMap<Function, usize>,
    places: HashMap<(usize, i64), usize>,
    threads: HashMap<String, usize>,
    /// By thread and places, the innermost first: number of samples, and sum of their values.
    stacks: HashMap<(usize, Vec<usize>), (i64, i64)>,
    unplaced: u64,
}

/// Properties of a profile's values.
#[derive(Debug)]
struct ValueMeaning {
    /// Type and unit of the values.
    value: ValueType,
    /// Value between two samples.
    period: i64,
    /// Whether the number of samples means something.
    is_sampled: bool,
    time_ns: i64,
    duration_ns: i64,
    notes: Vec<String>,
}

impl StackCollector {
    /// Adds a stack, the innermost frame first.
    fn add(&mut self, thread: &str, frames: &[Frame], value: i64) {
        let places = frames.iter().map(|frame| self.place(frame)).collect();
        let next = self.threads.len();
        let thread = match self.threads.get(thread) {
            Some(number) => *number,
            None => *self.threads.entry(thread.to_owned()).or_insert(next),
        };
        let (key, is_full) = ((thread, places), self.stacks.len() >= STACKS_MAX);
        match self.stacks.get_mut(&key) {
            Some((count, sum)) => (*count, *sum) = (*count + 1, *sum + value),
            None if is_full => self.unplaced += 1,
            None => drop(self.stacks.insert(key, (1, value))),
        }
    }

    fn place(&mut self, frame: &Frame) -> usize {
        let next = self.functions.len();
        let function = Function { name: frame.function.clone(), file: frame.file.clone() };
        let function = *self.functions.entry(function).or_insert(next);
        let next = self.places.len();
        *self.places.entry((function, frame.line)).or_insert(next)
    }

    /// Whether it is empty.
    fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }

    /// The profile of all stacks.
    fn finish(self, meaning: ValueMeaning) -> Profile {
        let ValueMeaning { value, period, is_sampled, time_ns, duration_ns, mut notes } = meaning;
        if self.unplaced > 0 {
            notes.push(format!("{} stacks are missing: there were too many different ones", self.unplaced));
        }
        let values = match is_sampled {
            true => vec![ValueType::new("samples", "count"), value.clone()],
            false => vec![value.clone()],
        };
        let location = |(function, line)| {
            let lines = vec![Line { function, line }];
            Location { address: 0, mapping: None, lines }
        };
        let threads = by_number(self.threads);
        let mut stacks: Vec<_> = self.stacks.into_iter().collect();
        stacks.sort_unstable();
        let samples = stacks.into_iter().map(|((thread, stack), (count, sum))| Sample {
            stack,
            values: if is_sampled { vec![count, sum] } else { vec![sum] },
            labels: vec![(THREAD.to_owned(), Label::Text(threads[thread].clone()))],
        });
        Profile {
            main: values.len() - 1,
            values,
            period: (value, period),
            time_ns,
            duration_ns,
            notes,
            mappings: Vec::new(),
            functions: by_number(self.functions),
            locations: by_number(self.places).into_iter().map(location).collect(),
            samples: samples.collect(),
        }
    }
}

/// The keys in the order of their numbers, which go from zero without a gap.
fn by_number<K>(numbered: HashMap<K, usize>) -> Vec<K> {
    let mut all: Vec<(usize, K)> = numbered.into_iter().map(|(key, number)| (number, key)).collect();
    all.sort_unstable_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, key)| key).collect()
}
