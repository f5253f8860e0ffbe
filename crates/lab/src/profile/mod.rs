//! Profiles of any program, by tools that are installed: `perf` samples its CPU time, valgrind's callgrind counts its instructions.
//!
//! The program needs no support for it. What the gateway says of itself, and what it costs, is `stillgate profile`.

mod callgrind;
mod gathered;
mod perf;

use crate::error::{Error, Result};
use gathered::Meaning;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use stillgate_profiler::profile::{Profile, ValueType};

/// What is looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Subject<'a> {
    /// A program that is started, with its arguments.
    Command(&'a [OsString]),
    /// Processes that run, for so long.
    Processes { pids: &'a [u32], seconds: u64 },
}

/// Where the output of a program goes that is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// Where ours goes.
    Shown,
    /// Nowhere; its complaints are shown.
    Hidden,
}

/// How a program ended.
struct Ran(ExitStatus);

/// Where it spends its CPU time, at so many samples a second.
pub(crate) fn cpu(subject: &Subject<'_>, hz: u32, output: Output) -> Result<Profile> {
    let (begun, time_ns, folder) = (Instant::now(), unix_ns(), folder()?);
    let (gathered, ran) = perf::take(subject, hz, output, folder.path())?;
    if gathered.is_empty() {
        let how = ran.note().unwrap_or_else(|| "the program used next to no CPU time".to_owned());
        return Err(Error::new(format!("there is no sample: {how}")));
    }
    let mut notes = vec![format!("CPU time by perf at {hz} Hz")];
    notes.extend(ran.note());
    let value = ValueType::new("cpu", "nanoseconds");
    let duration_ns = begun.elapsed().as_nanos() as i64;
    let period = 1_000_000_000 / i64::from(hz);
    Ok(gathered.finish(Meaning { value, period, is_sampled: true, time_ns, duration_ns, notes }))
}

/// Where it executes its instructions.
pub(crate) fn instructions(words: &[OsString], output: Output) -> Result<Profile> {
    let (begun, folder) = (Instant::now(), folder()?);
    let ran = callgrind::run(words, output, folder.path())?;
    let mut profile = counted(folder.path())?;
    profile.notes.extend(ran.note());
    profile.time_ns = unix_ns() - begun.elapsed().as_nanos() as i64;
    profile.duration_ns = begun.elapsed().as_nanos() as i64;
    Ok(profile)
}

/// The options for valgrind with which a program is to be started elsewhere, for [`counted`].
pub(crate) fn callgrind_options() -> String {
    callgrind::options().join(" ")
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

/// Runs a tool to its end; the program's own input is the caller's.
fn tool(command: &mut Command, output: Output, missing: &str) -> Result<Ran> {
    if output == Output::Hidden {
        command.stdout(Stdio::null());
    }
    let ended = command.stdin(Stdio::inherit()).status();
    let status = ended.map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::new(missing),
        _ => Error::new(format!("{}: {error}", command.get_program().to_string_lossy())),
    })?;
    Ok(Ran(status))
}

impl Ran {
    fn note(&self) -> Option<String> {
        (!self.0.success()).then(|| format!("the program ended with {}", self.0))
    }
}

fn folder() -> Result<tempfile::TempDir> {
    let made = tempfile::Builder::new().prefix("stillgate-lab-profile-").tempdir();
    made.map_err(|error| Error::new(format!("cannot make a folder for the measurements: {error}")))
}

fn unix_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
