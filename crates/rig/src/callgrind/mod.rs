//! Instructions of a program by valgrind's callgrind, of all its threads in user mode.

mod counter;

pub use counter::{Counter, Threads};

use crate::error::{Error, Result};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How files of counts begin; what follows is the process, and a thread where those are apart.
const COUNTS: &str = "counts.";

/// Whether it can be run.
pub fn is_installed() -> bool {
    let mut command = Command::new("valgrind");
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The words before those of a program so that its counts, and those of the processes that it starts, are in `folder` at its
/// end.
pub fn words(folder: &Path, options: &[String]) -> Vec<OsString> {
    let mut words: Vec<OsString> =
        ["valgrind", "--tool=callgrind", "--trace-children=yes", "--quiet"].map(OsString::from).to_vec();
    words.extend(options.iter().map(OsString::from));
    let mut counts = OsString::from("--callgrind-out-file=");
    counts.push(folder.join(format!("{COUNTS}%p")));
    words.push(counts);
    words
}

/// The files of counts in a folder.
pub fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        files.extend(
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(COUNTS)).then_some(path.clone()),
        );
    }
    Ok(files)
}

/// The instructions of all counts in a folder.
pub fn totals(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for file in files(folder).map_err(unreadable)? {
        sum += total(&fs::read_to_string(&file).map_err(unreadable)?).unwrap_or(0);
    }
    match sum {
        0 => Err("callgrind left no count; the program did not exit after SIGTERM".into()),
        sum => Ok(sum),
    }
}

/// All instructions of one run of a command to its end.
pub fn of_run(program: &Path, arguments: &[&str]) -> Result<u64> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(program).args(arguments);
    let log = said(&mut command)?;
    let total = log.lines().find_map(|line| line.split_once("Collected : "));
    let total = total.and_then(|(_, total)| total.trim().parse().ok());
    total.ok_or_else(|| format!("callgrind printed no total:\n{log}").into())
}

/// Sets what callgrind has counted of a running process so far to nothing.
pub fn reset(pid: u32) -> Result {
    let mut control = Command::new("callgrind_control");
    control.args(["--zero", &pid.to_string()]);
    said(&mut control).map(drop).map_err(|error| format!("{error} (it comes with valgrind and needs perl)").into())
}

/// Runs a command to its good end, and returns what it wrote to standard error.
fn said(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("cannot run {program}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.success() {
        true => Ok(text),
        false => Err(format!("{program}: {}: {}", output.status, text.trim()).into()),
    }
}

fn unreadable(error: io::Error) -> Error {
    Error::new(format!("cannot read callgrind's counts: {error}"))
}

/// All instructions of a file of counts.
fn total(counts: &str) -> Option<u64> {
    let line = counts.lines().rev().find_map(|line| line.strip_prefix("totals: "))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_behind_the_functions() {
        assert_eq!(total("version: 1\nevents: Ir\nsummary: 7\n\nfn=(1) main\n12 7\n\ntotals: 7\n"), Some(7));
        assert_eq!(total("version: 1\n"), None);
    }

    #[test]
    fn the_counts_of_all_processes_are_summed() {
        let folder = tempfile::tempdir().unwrap();
        assert!(totals(folder.path()).is_err());
        fs::write(folder.path().join("counts.1"), "version: 1\nsummary: 5\n\ntotals: 120\n").unwrap();
        fs::write(folder.path().join("counts.2"), "totals: 3\n").unwrap();
        fs::write(folder.path().join("other"), "totals: 1000\n").unwrap();
        assert_eq!(totals(folder.path()).unwrap(), 123);
        assert_eq!(files(folder.path()).unwrap().len(), 2);
    }

    #[test]
    fn words_name_the_folder() {
        let words = words(Path::new("/d"), &["--vgdb=no".to_owned()]);
        let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let expected =
            "valgrind --tool=callgrind --trace-children=yes --quiet --vgdb=no --callgrind-out-file=/d/counts.%p";
        assert_eq!(words.join(" "), expected);
    }
}
