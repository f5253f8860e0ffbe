//! Profiles of any program, by tools that are installed: `perf` samples its CPU time, valgrind's callgrind counts its instructions.
//!
//! The program needs no support for it. What the gateway says of itself, and what it costs, is `stillgate profile`.

mod callgrind;
mod gathered;
mod perf;

use crate::error::{Error, Result};
use crate::stop::EXIT_INTERRUPTED;
use gathered::Meaning;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use stillgate_profiler::profile::{Profile, ValueType};
use stillgate_rig::group::{self, Outcome};
use stillgate_rig::{Signal, send};
use tempfile::TempDir;

/// Between two looks at a program that is shown.
const POLL: Duration = Duration::from_millis(10);

/// A program that Ctrl-C has reached gets so long to end before it is asked again.
const PASSED_ON_AFTER: Duration = Duration::from_secs(1);

/// What is looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Subject<'a> {
    /// A program that is started, with its arguments.
    Command(&'a [OsString]),
    /// Processes that run, for so long.
    Processes { pids: &'a [u32], seconds: u64 },
}

/// Whose a program is that is started: where its output goes, and who ends it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Output<'a> {
    /// Where ours goes. It is in the user's hands, Ctrl-C too; if `stop` is set and it goes on, it is asked to end, and has a profile.
    Shown { stop: &'a AtomicBool },
    /// Nowhere; its complaints are shown. It ends with all that it has started once `stop` is set; there is no profile of it then.
    Hidden { stop: &'a AtomicBool },
}

/// Samples that were taken and are not read yet.
pub(crate) struct Samples {
    folder: TempDir,
    hz: u32,
    time_ns: i64,
    duration_ns: i64,
    ran: Ran,
}

/// How a program ended.
struct Ran(ExitStatus);

/// Where it spends its CPU time, at so many samples a second.
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
            return Err(Error::new(format!("there is no sample: {how}")));
        }
        let mut notes = vec![format!("CPU time by perf at {hz} Hz")];
        notes.extend(ran.note());
        let value = ValueType::new("cpu", "nanoseconds");
        let period = 1_000_000_000 / i64::from(hz);
        Ok(gathered.finish(Meaning { value, period, is_sampled: true, time_ns, duration_ns, notes }))
    }
}

/// Where it executes its instructions.
pub(crate) fn instructions(words: &[OsString], output: Output<'_>) -> Result<Profile> {
    let (begun, folder) = (Instant::now(), folder()?);
    let ran = callgrind::run(words, output, folder.path())?;
    let mut profile = counted(folder.path())?;
    profile.notes.extend(ran.note());
    profile.time_ns = unix_ns() - begun.elapsed().as_nanos() as i64;
    profile.duration_ns = begun.elapsed().as_nanos() as i64;
    Ok(profile)
}

/// The options for valgrind with which a program is to be started elsewhere, for [`counted`].
pub(crate) fn callgrind_options() -> [String; 3] {
    callgrind::options()
}

/// What callgrind left in a folder, in files named `counts.PID`.
pub(crate) fn counted(folder: &Path) -> Result<Profile> {
    let gathered = callgrind::read(folder)?;
    if gathered.is_empty() {
        return Err("callgrind counted nothing; what it says above tells why".into());
    }
    let depth = callgrind::CALLERS;
    let notes = vec![format!("instructions by callgrind; of each stack the innermost {} functions", depth + 1)];
    let value = ValueType::new("instructions", "count");
    Ok(gathered.finish(Meaning { value, period: 1, is_sampled: false, time_ns: 0, duration_ns: 0, notes }))
}

/// Runs a tool to its end. Of a program that is shown, the input is the caller's.
fn tool(command: &mut Command, output: Output<'_>, missing: &str) -> Result<Ran> {
    let ended = match output {
        Output::Shown { stop } => shown(command.stdin(Stdio::inherit()), stop).map(Outcome::Exit),
        Output::Hidden { stop } => group::run(command.stdin(Stdio::null()).stdout(Stdio::null()), None, stop),
    };
    match ended {
        Ok(Outcome::Exit(status)) => Ok(Ran(status)),
        // There is no limit.
        Ok(Outcome::Interrupt | Outcome::Timeout) => Err(cut_short()),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::new(missing)),
        Err(error) => Err(Error::new(format!("{}: {error}", command.get_program().to_string_lossy()))),
    }
}

/// In our process group, for it may read from the terminal.
fn shown(command: &mut Command, stop: &AtomicBool) -> io::Result<ExitStatus> {
    let (mut child, mut asked) = (command.spawn()?, None);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if stop.load(Ordering::Relaxed) {
            let begun = *asked.get_or_insert_with(Instant::now);
            // From a terminal it came to all, and perf ends at once; what was sent to us alone is passed on, once.
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

impl Ran {
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
