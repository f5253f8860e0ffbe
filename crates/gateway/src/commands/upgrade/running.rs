//! A running gateway as `stillgate upgrade` sees it in /proc: whether it is one, and what its successor will read.
//!
//! The name of a process or of its file is not evidence, as anyone may call a binary what they like. A gateway is recognised by its
//! threads, which it names itself: one that starts successors, and workers. Its configuration follows from its command line, which
//! its successor has as well, from the folder that it was started in and from its environment.

use crate::commands::cli::{Cli, Command};
use crate::configuration::source::ConfigSource;
use crate::upgrade::{FAILURES_NAME, LAUNCHER_NAME, OLD_NAME};
use clap::Parser;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use stillgate_proxy::WORKER_NAME;

/// SIGUSR2 in the masks of /proc/PID/status.
const SIGUSR2_BIT: u64 = 1 << (12 - 1);

/// Says why a process cannot be upgraded. The signal would end a process that does not expect it.
pub(super) fn refuse(pid: u32) -> Result<(), String> {
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
pub(super) fn threads(pid: u32) -> Vec<String> {
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
pub(super) fn enter_and_find_configuration(pid: u32, named: Option<PathBuf>) -> Result<ConfigSource, String> {
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
pub(super) fn environment(pid: u32) -> impl Fn(&str) -> Option<String> {
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
