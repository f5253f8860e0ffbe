//! Profiles of any program, by tools that are installed: `perf` samples its CPU time, valgrind's callgrind counts its
//! instructions.
//!
//! The program needs no support for it. For the gateway's own profiler, see `stillgate profile`.
//!
//! Callgrind counts the instructions that a program executes in each function. It counts every one, so
//! two runs that do the same have the same profile; the program takes some fifty times as long. Instructions in the
//! kernel are not counted.
//!
//! Callgrind records callers, not stacks. It is configured to separate functions by their callers, which gives a stack
//! of that depth.
//!
//! `perf` samples the clock of each CPU while the program runs there, and follows frame pointers. A program that was
//! compiled without them has stacks that end early.

use crate::error::{EXIT_INTERRUPTED, Error, Result};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use stillgate_profiler::profile::{Function, Label, Line, Location, Profile, Sample, THREAD, ValueType};
use stillgate_rig::group::{self, Outcome};
use stillgate_rig::{Signal, callgrind, send};
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
    let ran = record_with_perf(subject, hz, output, folder.path())?;
    let duration_ns = begun.elapsed().as_nanos() as i64;
    Ok(Samples { folder, hz, time_ns, duration_ns, ran })
}

impl Samples {
    pub(crate) fn read(self, output: Output<'_>) -> Result<Profile> {
        let Samples { folder, hz, time_ns, duration_ns, ran } = self;
        let gathered = read_perf(folder.path(), output)?;
        if gathered.is_empty() {
            let how = ran.failure_message().unwrap_or_else(|| "the program used next to no CPU time".to_owned());
            return Err(Error::new(format!("no samples: {how}")));
        }
        let mut notes = vec![format!("CPU time by perf at {hz} Hz")];
        notes.extend(ran.failure_message());
        let value = ValueType::new("cpu", "nanoseconds");
        let period = 1_000_000_000 / i64::from(hz);
        Ok(gathered.finish(ValueMeaning { value, period, is_sampled: true, time_ns, duration_ns, notes }))
    }
}

/// Counts its instructions.
pub(crate) fn instructions(words: &[OsString], output: Output<'_>) -> Result<Profile> {
    let (begun, folder) = (Instant::now(), folder()?);
    let ran = run_callgrind(words, output, folder.path())?;
    let mut profile = counted(folder.path())?;
    profile.notes.extend(ran.failure_message());
    profile.time_ns = unix_ns() - begun.elapsed().as_nanos() as i64;
    profile.duration_ns = begun.elapsed().as_nanos() as i64;
    Ok(profile)
}

/// The options with which valgrind starts a program elsewhere, for [`counted`].
pub(crate) fn callgrind_options() -> [String; 3] {
    measuring_options()
}

/// Reads callgrind's counts from a folder, in files named `counts.PID`.
pub(crate) fn counted(folder: &Path) -> Result<Profile> {
    let gathered = read_callgrind(folder)?;
    if gathered.is_empty() {
        return Err("callgrind counted nothing; see its messages above".into());
    }
    let depth = CALLGRIND_CALLERS;
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
    fn failure_message(&self) -> Option<String> {
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

const CALLGRIND_MISSING: &str = "valgrind is not installed; install it (package valgrind)";

/// Number of callers by which functions are separated. Frames further out are missing in a stack; more take more
/// memory.
const CALLGRIND_CALLERS: usize = 30;

/// Makes counts have stacks, in one file per thread.
fn measuring_options() -> [String; 3] {
    [
        "--separate-threads=yes".to_owned(),
        format!("--separate-callers={CALLGRIND_CALLERS}"),
        "--separate-recs=1".to_owned(),
    ]
}

/// Runs the program; its counts are then in the folder.
fn run_callgrind(words: &[OsString], output: Output<'_>, folder: &Path) -> Result<ProgramEnd> {
    // No debugger connects: its pipes would stay behind where a run is cut short.
    let options: Vec<String> = ["--vgdb=no".to_owned()].into_iter().chain(measuring_options()).collect();
    let [valgrind, arguments @ ..] = &callgrind::words(folder, &options)[..] else {
        return Err(CALLGRIND_MISSING.into());
    };
    tool(Command::new(valgrind).args(arguments).arg("--").args(words), output, CALLGRIND_MISSING)
}

/// Gathers the stacks of all counts in a folder; each value is instructions.
fn read_callgrind(folder: &Path) -> Result<StackCollector> {
    let mut gathered = StackCollector::default();
    let unreadable = |error: io::Error| Error::new(format!("cannot read callgrind's counts: {error}"));
    for path in callgrind::files(folder).map_err(unreadable)? {
        let counts = parse_counts(BufReader::new(File::open(&path).map_err(unreadable)?)).map_err(unreadable)?;
        counts.add_stacks_to(&mut gathered);
    }
    Ok(gathered)
}

/// A callgrind file of one thread.
#[derive(Debug, Default)]
struct Counts {
    pid: String,
    thread: String,
    /// Names by their number, for each kind: files and functions.
    names: [HashMap<String, String>; 2],
    /// The file of each function.
    files: HashMap<String, String>,
    /// By function with its callers, and line.
    own: HashMap<(String, i64), i64>,
}

/// Reads a file in callgrind's format, as far as it is needed: the self costs of functions.
fn parse_counts(text: impl BufRead) -> io::Result<Counts> {
    let mut counts = Counts::default();
    let (mut function, mut line_number, mut is_call, mut is_inlined) = (String::new(), 0_i64, false, false);
    let mut file = String::new();
    for line in text.split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end();
        let Some(first) = line.bytes().next() else { continue };
        if first.is_ascii_digit() || matches!(first, b'+' | b'-' | b'*') {
            let mut words = line.split(' ');
            line_number = position(words.next().unwrap_or_default(), line_number);
            // The cost of a call is part of the called function's own cost.
            if !std::mem::take(&mut is_call) {
                let cost: i64 = words.next().and_then(|cost| cost.parse().ok()).unwrap_or(0);
                let line = if is_inlined { 0 } else { line_number };
                *counts.own.entry((function.clone(), line)).or_default() += cost;
            }
            continue;
        }
        let Some((key, value)) = line.split_once('=').or_else(|| line.split_once(": ")) else { continue };
        match key {
            "pid" => counts.pid = value.to_owned(),
            "thread" => counts.thread = value.to_owned(),
            "fl" => (file, is_inlined) = (counts.name(0, value), false),
            "fi" | "fe" => is_inlined = counts.name(0, value) != file,
            "cfi" | "cfl" => drop(counts.name(0, value)),
            "cfn" => drop(counts.name(1, value)),
            "fn" => {
                (function, is_inlined) = (counts.name(1, value), false);
                let own = function.split('\'').next().unwrap_or_default();
                counts.files.entry(own.to_owned()).or_insert_with(|| file.clone());
            }
            "calls" => is_call = true,
            _ => {}
        }
    }
    Ok(counts)
}

/// `+3` and `-1` are relative to the last one, `*` repeats it.
fn position(text: &str, last: i64) -> i64 {
    match text.as_bytes().first() {
        Some(b'*') => last,
        Some(b'+' | b'-') => last + text.parse::<i64>().unwrap_or(0),
        _ => text.parse().unwrap_or(0),
    }
}

impl Counts {
    /// `(12) name` assigns a number to a name, `(12)` refers to it.
    fn name(&mut self, kind: usize, text: &str) -> String {
        let Some((number, name)) = text.strip_prefix('(').and_then(|rest| rest.split_once(')')) else {
            return text.to_owned();
        };
        if let Some(name) = name.strip_prefix(' ') {
            self.names[kind].insert(number.to_owned(), name.to_owned());
        }
        self.names[kind].get(number).cloned().unwrap_or_default()
    }

    fn add_stacks_to(&self, gathered: &mut StackCollector) {
        let thread = format!("{} thread {}", self.pid, self.thread);
        for ((function, line), cost) in self.own.iter().filter(|(_, cost)| **cost > 0) {
            let frames: Vec<Frame> = function
                .split('\'')
                .enumerate()
                .map(|(depth, name)| Frame {
                    function: name.to_owned(),
                    file: self.files.get(name).cloned().unwrap_or_default(),
                    line: if depth == 0 { *line } else { 0 },
                })
                .collect();
            gathered.add(&thread, &frames, *cost);
        }
    }
}

/// The file of samples.
const DATA: &str = "perf.data";

const PERF_MISSING: &str =
    "perf is not installed; install it (package linux-perf), or count instructions with --kind instructions";

/// Runs or watches the program; its samples are then in the folder.
fn record_with_perf(subject: &Subject<'_>, hz: u32, output: Output<'_>, folder: &Path) -> Result<ProgramEnd> {
    let data = folder.join(DATA);
    let mut record = Command::new("perf");
    // It would keep a copy of every program in the user's home; they still exist when their names are read.
    record.args(["record", "--quiet", "--no-buildid-cache", "--event", "cpu-clock", "--call-graph", "fp"]);
    record.args(["--freq", &hz.to_string()]).arg("--output").arg(&data);
    match subject {
        Subject::Command(words) => record.arg("--").args(*words),
        Subject::Processes { pids, seconds } => {
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            record.args(["--pid", &pids.join(","), "--", "sleep", &seconds.to_string()])
        }
    };
    let ran = tool(&mut record, output, PERF_MISSING)?;
    if !data.metadata().is_ok_and(|data| data.len() > 0) {
        return Err("perf recorded nothing; see its messages above".into());
    }
    Ok(ran)
}

/// Gathers the stacks in a folder; each value is nanoseconds.
fn read_perf(folder: &Path, output: Output<'_>) -> Result<StackCollector> {
    let mut script = Command::new("perf");
    script.args(["script", "--no-inline", "--fields", "comm,pid,tid,time,period,ip,sym,dso", "--input"]);
    let mut script = script
        .arg(folder.join(DATA))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // Protected from Ctrl-C: its output would be cut off, and look complete.
        .process_group(0)
        .spawn()
        .map_err(|error| Error::new(format!("cannot run perf script: {error}")))?;
    let mut gathered = StackCollector::default();
    let text = BufReader::new(script.stdout.take().expect("it was piped above"));
    let read = parse_samples(text, &mut gathered, || output.is_stopped());
    if output.is_stopped() {
        // Fails only if it has ended.
        let _ = script.kill();
    }
    let ended = script.wait();
    read.and(ended.map(drop)).map_err(|error| Error::new(format!("perf script: {error}")))?;
    if output.is_stopped() { Err(cut_short()) } else { Ok(gathered) }
}

/// Parses the output of `perf script`: a line with the thread and the period, then a line for each frame, then an empty
/// line.
fn parse_samples(
    text: impl BufRead,
    gathered: &mut StackCollector,
    is_stopped: impl Fn() -> bool,
) -> std::io::Result<()> {
    let (mut head, mut frames) = (None, Vec::new());
    for line in text.split(b'\n').take_while(|_| !is_stopped()) {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        if line.trim().is_empty() {
            add_stack(gathered, head.take(), &mut frames);
        } else if line.starts_with(char::is_whitespace) && head.is_some() {
            frames.extend(frame(line.trim()));
        } else {
            add_stack(gathered, head.take(), &mut frames);
            head = head_of(&line);
        }
    }
    add_stack(gathered, head, &mut frames);
    Ok(())
}

fn add_stack(gathered: &mut StackCollector, head: Option<(String, i64)>, frames: &mut Vec<Frame>) {
    if let Some((thread, period)) = head {
        gathered.add(&thread, frames, period);
    }
    frames.clear();
}

/// Parses `a name 12/13 25592.348148:    5025125` into the thread and the period.
fn head_of(line: &str) -> Option<(String, i64)> {
    let mut words = line.split_ascii_whitespace().rev();
    let period = words.next()?.trim_end_matches(':').parse().ok()?;
    let _time = words.next()?;
    let (_, tid) = words.next()?.split_once('/')?;
    let name: Vec<&str> = words.rev().collect();
    Some((format!("{} {tid}", name.join(" ")), period))
}

/// Parses `1153 leaf (/tmp/a)`; a name may contain spaces and brackets.
fn frame(line: &str) -> Option<Frame> {
    let (address, rest) = line.split_once(' ')?;
    let (symbol, file) = rest.rsplit_once('(')?;
    let (symbol, file) = (symbol.trim(), file.trim_end_matches(')'));
    let function = match symbol {
        "[unknown]" | "" => format!("{}+0x{address}", file.rsplit('/').next().unwrap_or(file)),
        name => name.to_owned(),
    };
    Some(Frame { function, file: file.to_owned(), line: 0 })
}

#[cfg(test)]
mod tests {
    use super::{ValueMeaning, *};
    use stillgate_profiler::output::format::write_folded;
    use stillgate_profiler::profile::ValueType;

    #[test]
    fn own_costs_are_read_and_those_of_calls_left_to_who_is_called() {
        let text = "# callgrind format\nversion: 1\npid: 12\nthread: 1\npositions: line\nevents: Ir\n\n\
                    fl=(1) a.c\nfn=(1) half'main\n3 5\ncfn=(2) leaf'half'main\ncalls=6 2\n+0 900\n* 1\n\
                    fi=(2) inlined.h\n+40 7\nfe=(1)\n-40 2\n\n\
                    fn=(2)\n2 600\n+1 300\n\ntotals: 915\n";
        let counts = parse_counts(text.as_bytes()).unwrap();
        assert_eq!((&*counts.pid, &*counts.thread), ("12", "1"));
        let of = |function: &str, line| counts.own.get(&(function.to_owned(), line)).copied();
        assert_eq!(of("half'main", 3), Some(8));
        assert_eq!(of("half'main", 0), Some(7), "of another file, whose lines are not this one's");
        assert_eq!(of("leaf'half'main", 2), Some(600));
        assert_eq!(of("leaf'half'main", 3), Some(300));
        assert_eq!(counts.own.values().sum::<i64>(), 915);
        assert_eq!(counts.files["leaf"], "a.c");
    }

    #[test]
    fn what_perf_prints_is_read() {
        let text = "a worker 12/13 25592.348148:    5025125 \n\
                    \t            1153 <a::B as c::D<(u8, u8)>>::leaf (/tmp/pt/a)\n\
                    \t            1177 half (/tmp/pt/a)\n\n\
                    swapper 0/0 25592.353156:    5025125 \n\
                    \tffffffff81 [unknown] ([kernel.kallsyms])\n\n\
                    a worker 12/13 25592.358181:    1000 \n\
                    \t            1153 <a::B as c::D<(u8, u8)>>::leaf (/tmp/pt/a)\n\
                    \t            1177 half (/tmp/pt/a)\n";
        let mut gathered = StackCollector::default();
        parse_samples(text.as_bytes(), &mut gathered, || false).unwrap();
        let value = ValueType::new("cpu", "nanoseconds");
        let meaning =
            ValueMeaning { value, period: 1, is_sampled: true, time_ns: 0, duration_ns: 1, notes: Vec::new() };
        let profile = gathered.finish(meaning);
        let mut lines: Vec<String> = write_folded(&profile, 1).lines().map(str::to_owned).collect();
        lines.sort();
        let expected = [
            "a worker 13;half;<a::B as c::D<(u8, u8)>>::leaf 5026125",
            "swapper 0;[kernel.kallsyms]+0xffffffff81 5025125",
        ];
        assert_eq!(lines, expected);
        assert_eq!(profile.total(0), 3);
    }
}
