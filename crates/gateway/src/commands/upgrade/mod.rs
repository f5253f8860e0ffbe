//! `stillgate upgrade`: replaces a running gateway by a new process of its binary, and reports the result.

mod running;

use crate::commands::cli::{EXIT_ERRORS, EXIT_GOOD, EXIT_UNUSABLE, Upgrade};
use crate::configuration::source::ConfigSource;
use crate::configuration::tls_material;
use crate::upgrade::{FAILURES_NAME, GO_TIMEOUT, OLD_NAME, PROBATION, PidFile, READY_TIMEOUT};
use running::{enter_and_find_configuration, environment, refuse, threads};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long the command waits beyond what the gateway itself does.
const PATIENCE: Duration =
    READY_TIMEOUT.saturating_add(PROBATION).saturating_add(GO_TIMEOUT).saturating_add(Duration::from_secs(15));
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long the gateway has to begin: its control thread is nice, and may wait for a core.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(20);

/// Why it was not upgraded, with the exit code.
struct UpgradeFailure(u8, String);

/// Runs the command; returns the exit code.
pub(crate) fn run(arguments: Upgrade) -> u8 {
    match upgrade(arguments) {
        Ok(new) => {
            println!("upgraded: process {new} serves; the former one ends when its work is done");
            EXIT_GOOD
        }
        Err(UpgradeFailure(code, message)) => {
            eprintln!("stillgate: {message}");
            code
        }
    }
}

fn upgrade(arguments: Upgrade) -> Result<u32, UpgradeFailure> {
    let unusable = |message: String| UpgradeFailure(EXIT_UNUSABLE, message);
    // Before the folder is another one.
    let named = arguments.config.as_deref().map(|file| {
        std::path::absolute(file).map_err(|error| unusable(format!("cannot read {}: {error}", file.display())))
    });
    let named = named.transpose()?;
    let pid = match (arguments.pid, arguments.pid_file) {
        (Some(pid), _) => pid,
        (None, Some(file)) => read(&file)?,
        (None, None) => configured(&ConfigSource::find(named.clone()).map_err(|error| unusable(error.to_string()))?)?,
    };
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let raw = raw.ok_or_else(|| unusable(format!("{pid} is not a process ID")))?;
    refuse(pid).map_err(unusable)?;
    check(&enter_and_find_configuration(pid, named).map_err(unusable)?, &environment(pid))?;
    let before = Before::of(pid);
    if let Some(new) = before.alike.iter().find(|other| parent(**other) == Some(pid)) {
        return Err(UpgradeFailure(
            EXIT_ERRORS,
            format!(
                "not upgraded: process {pid} is already being upgraded by process {new}; see its log for the result"
            ),
        ));
    }
    kill_process(raw, Signal::USR2)
        .map_err(|error| UpgradeFailure(EXIT_ERRORS, format!("cannot signal process {pid}: {error}")))?;
    before.await_successor()
}

/// The process that the configuration names.
fn configured(source: &ConfigSource) -> Result<u32, UpgradeFailure> {
    let text = source.read().map_err(|error| UpgradeFailure(EXIT_UNUSABLE, error.to_string()))?;
    let loaded = source.parse(&text).map_err(|errors| refused(&errors))?;
    let file = loaded.config.gateway.pid_file.as_deref().ok_or_else(|| {
        let message = "which process? The configuration has no gateway.pid_file; use --pid or --pid-file";
        UpgradeFailure(EXIT_UNUSABLE, message.to_owned())
    });
    read(file?)
}

/// An invalid configuration is refused before anything happens.
fn check(source: &ConfigSource, environment: &dyn Fn(&str) -> Option<String>) -> Result<(), UpgradeFailure> {
    let text = source.read().map_err(|error| UpgradeFailure(EXIT_UNUSABLE, error.to_string()))?;
    let loaded = source.parse_with(&text, environment).map_err(|errors| refused(&errors))?;
    tls_material::load(&loaded.config, None).map_err(|errors| refused(&errors))?;
    Ok(())
}

fn refused(errors: &dyn std::fmt::Display) -> UpgradeFailure {
    UpgradeFailure(EXIT_ERRORS, format!("nothing was upgraded: the configuration is refused\n{errors}"))
}

fn read(file: &Path) -> Result<u32, UpgradeFailure> {
    PidFile::read(file).map_err(|error| {
        UpgradeFailure(EXIT_UNUSABLE, format!("cannot read {}: {error}; is a gateway running with it?", file.display()))
    })
}

/// The state before the signal.
struct Before {
    pid: u32,
    /// Its command line, which its successor has as well.
    command: Vec<u8>,
    alike: Vec<u32>,
    failures: u64,
}

impl Before {
    fn of(pid: u32) -> Before {
        let command = command_line(pid);
        Before { pid, alike: successors(pid, &command), command, failures: failures(pid) }
    }

    /// The old process renames itself when another has taken over, and one of its threads when none has.
    fn await_successor(&self) -> Result<u32, UpgradeFailure> {
        let pid = self.pid;
        let fail = |message: String| Err(UpgradeFailure(EXIT_ERRORS, message));
        let began = Instant::now();
        // The successor is remembered once it is known: a former process that has ended is not a parent of anything.
        let mut new = None;
        let mut has_begun = false;
        loop {
            let name = comm(pid);
            let has_left = name.is_none() || name.as_deref() == OLD_NAME.to_str().ok();
            // This comes after that check: a process that has taken over by then is found.
            new = new
                .filter(|new| is_running(*new))
                .or_else(|| successors(pid, &self.command).into_iter().find(|new| !self.alike.contains(new)));
            has_begun |= new.is_some();
            match new {
                Some(new) if has_left => return Ok(new),
                None if has_left => {
                    return fail(format!("process {pid} has ended, and no other has taken over; its log says why"));
                }
                _ if failures(pid) > self.failures => {
                    return fail(
                        "not upgraded: the new process did not start serving, and the former one goes on; its log \
                        says why"
                            .to_owned(),
                    );
                }
                _ if !has_begun && began.elapsed() > BEGIN_TIMEOUT => {
                    return fail(format!("process {pid} did not start a new one; its log says why"));
                }
                _ if began.elapsed() > PATIENCE => {
                    return fail(format!("process {pid} has not finished the upgrade; see its log"));
                }
                _ => sleep(LOOK_EVERY),
            }
        }
    }
}

/// How many upgrades have failed in a process.
fn failures(pid: u32) -> u64 {
    let numbers = threads(pid).into_iter().filter_map(|name| name.strip_prefix(FAILURES_NAME)?.parse().ok());
    numbers.max().unwrap_or(0)
}

fn command_line(pid: u32) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}

fn comm(pid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    is_running(pid).then(|| name.trim().to_owned())
}

/// Whether it exists and is not a zombie.
fn is_running(pid: u32) -> bool {
    stat(Path::new("/proc").join(pid.to_string()).as_path()).is_some_and(|(state, _)| state != "Z" && state != "X")
}

/// The children of a process, and those that run the same command: where the old process has nothing to finish it is gone at once,
/// and its child another's.
fn successors(pid: u32, command: &[u8]) -> Vec<u32> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let number = |entry: std::io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    let is_one = |other: &u32| {
        let stat = stat(&Path::new("/proc").join(other.to_string()));
        *other != pid
            && stat.is_some_and(|(state, parent)| state != "Z" && (parent == pid || command_line(*other) == command))
    };
    processes.filter_map(number).filter(is_one).collect()
}

fn parent(pid: u32) -> Option<u32> {
    Some(stat(&Path::new("/proc").join(pid.to_string()))?.1)
}

/// State and parent of a process.
fn stat(folder: &Path) -> Option<(String, u32)> {
    let text = fs::read_to_string(folder.join("stat")).ok()?;
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}
