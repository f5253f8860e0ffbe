//! `stillgate upgrade`: replaces a running gateway by a new process of its binary, and reports the result.

use crate::commands::cli::{Cli, Command, EXIT_ERRORS, EXIT_GOOD, EXIT_UNUSABLE, Upgrade};
use crate::configuration::source::ConfigSource;
use crate::configuration::tls_material;
use crate::upgrade::{FAILURES_NAME, GO_TIMEOUT, LAUNCHER_NAME, OLD_NAME, PROBATION, PidFile, READY_TIMEOUT};
use clap::Parser;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};
use stillgate_proxy::WORKER_NAME;

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
    let before = StateBeforeUpgrade::of(pid);
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

/// The process that the configuration names. Only its environment has what the rest of the configuration needs.
fn configured(source: &ConfigSource) -> Result<u32, UpgradeFailure> {
    let unusable = |message: String| UpgradeFailure(EXIT_UNUSABLE, message);
    let text = source.read().map_err(|error| unusable(error.to_string()))?;
    let file = source.pid_file(&text).map_err(|errors| {
        unusable(format!("which process? gateway.pid_file cannot be read; use --pid or --pid-file\n{errors}"))
    })?;
    let missing = "which process? The configuration has no gateway.pid_file; use --pid or --pid-file";
    read(&file.ok_or_else(|| unusable(missing.to_owned()))?)
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
struct StateBeforeUpgrade {
    pid: u32,
    /// Its command line, which its successor has as well.
    command: Vec<u8>,
    alike: Vec<u32>,
    failures: u64,
}

impl StateBeforeUpgrade {
    fn of(pid: u32) -> StateBeforeUpgrade {
        let command = command_line(pid);
        StateBeforeUpgrade { pid, alike: successors(pid, &command), command, failures: failures(pid) }
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

// A running gateway as `stillgate upgrade` sees it in /proc: whether it is one, and what its successor will read.
//
// The name of a process or of its file is not evidence, as anyone may call a binary what they like. A gateway is recognised by its
// threads, which it names itself: one that starts successors, and workers. Its configuration follows from its command line, which
// its successor has as well, from the folder that it was started in and from its environment.

/// SIGUSR2 in the masks of /proc/PID/status.
const SIGUSR2_BIT: u64 = 1 << (12 - 1);

/// Says why a process cannot be upgraded. The signal would end a process that does not expect it.
fn refuse(pid: u32) -> Result<(), String> {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else {
        return Err(format!("there is no process {pid}"));
    };
    let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    let caught = value("SigCgt:").and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    let name = value("Name:").unwrap_or_default();
    if Some(name) == OLD_NAME.to_str().ok() {
        return Err(format!("process {pid} was already upgraded, and ends when its work is done"));
    }
    let threads = threads(pid);
    let has = |is_one: fn(&str) -> bool| threads.iter().any(|name| is_one(name));
    let has_launcher = has(|name| name == LAUNCHER_NAME || name.starts_with(FAILURES_NAME));
    if caught & SIGUSR2_BIT == 0 || !has_launcher || !has(|name| name.starts_with(WORKER_NAME)) {
        return Err(format!("process {pid} ({name}) is not a gateway that can be upgraded"));
    }
    if pid == 1 {
        return Err("process 1 cannot be upgraded, because its container ends with it; replace the container instead"
            .to_owned());
    }
    Ok(())
}

/// The names of its threads.
fn threads(pid: u32) -> Vec<String> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let names = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("comm")).ok());
    names.map(|name| name.trim_end().to_owned()).collect()
}

/// Changes the working directory to that of a gateway, where all its paths are meant, and finds the configuration that it was
/// started with. `named`, the whole path of a file, must be the same one.
#[expect(
    clippy::disallowed_methods,
    reason = "all that this command reads is meant from there, as the gateway reads it"
)]
fn enter_and_find_configuration(pid: u32, named: Option<PathBuf>) -> Result<ConfigSource, String> {
    let folder = std::env::set_current_dir(format!("/proc/{pid}/cwd"));
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let its = match Cli::try_parse_from(arguments(&line)).map(|cli| cli.command) {
        Ok(Command::Run(run)) => match (folder, run.config) {
            (Err(_), Some(file)) if file.is_absolute() => Ok(file),
            (Err(error), _) => Err(format!("cannot find the working directory of process {pid} ({error})")),
            (Ok(()), config) => {
                ConfigSource::find(config).map_err(|error| format!("process {pid}: {error}")).map(whole)
            }
        },
        Ok(_) => return Err(format!("process {pid} serves no configuration file, so there is nothing to upgrade")),
        Err(_) => Err(format!("cannot parse the command line of process {pid}")),
    };
    match (its, named) {
        (Ok(its), Some(named)) if !is_same(&its, &named) => Err(format!(
            "process {pid} was started with {}, and the new process will read the same file; --config names {}. Omit \
             --config, or restart the gateway with that file",
            its.display(),
            named.display()
        )),
        (Ok(its), _) => Ok(ConfigSource::File(its)),
        (Err(_), Some(named)) => Ok(ConfigSource::File(named)),
        (Err(reason), None) => Err(format!("{reason}; use --config to name the file it was started with")),
    }
}

/// The environment that a gateway was started with, and gives to its successor; where it may not be seen, ours.
fn environment(pid: u32) -> impl Fn(&str) -> Option<String> {
    let read = fs::read(format!("/proc/{pid}/environ")).ok();
    let variables = read.map(|text| {
        let variables = text.split(|byte| *byte == 0).filter_map(|variable| {
            let (name, value) = std::str::from_utf8(variable).ok()?.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        });
        variables.collect::<HashMap<String, String>>()
    });
    move |name| match &variables {
        Some(variables) => variables.get(name).cloned(),
        None => std::env::var(name).ok(),
    }
}

fn arguments(line: &[u8]) -> Vec<OsString> {
    let line = line.strip_suffix(&[0]).unwrap_or(line);
    line.split(|byte| *byte == 0).map(|argument| OsString::from_vec(argument.to_vec())).collect()
}

fn whole(source: ConfigSource) -> PathBuf {
    let file = source.file().map(Path::to_owned).unwrap_or_default();
    // It fails for an empty path only.
    std::path::absolute(&file).unwrap_or(file)
}

/// Whether two paths lead to the same file, or are equal where the file does not exist.
fn is_same(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => a.as_os_str().as_bytes() == b.as_os_str().as_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_taken_apart() {
        let check = |line: &[u8], expected: &[&str]| assert_eq!(arguments(line), expected, "{}", line.escape_ascii());
        check(b"stillgate\0run\0", &["stillgate", "run"]);
        check(b"a\0run\0--config\0x y\0\0", &["a", "run", "--config", "x y", ""]);
        check(b"", &[""]);
    }

    #[test]
    fn this_process_is_not_a_gateway() {
        let pid = std::process::id();
        assert!(refuse(pid).is_err_and(|reason| reason.contains("is not a gateway")));
        assert!(enter_and_find_configuration(pid, None).is_err());
        let lookup = environment(pid);
        assert_eq!(lookup("PATH"), std::env::var("PATH").ok());
        assert_eq!(lookup("STILLGATE_NOT_SET"), None);
    }
}
