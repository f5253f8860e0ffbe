//! Instructions of a program by valgrind's callgrind, of all its threads in user mode.

use crate::error::{Error, Result};
use crate::running::{Running, find_program};
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{fs, io};

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
    let log = run_for_stderr(&mut command)?;
    let total = log.lines().find_map(|line| line.split_once("Collected : "));
    let total = total.and_then(|(_, total)| total.trim().parse().ok());
    total.ok_or_else(|| format!("callgrind printed no total:\n{log}").into())
}

/// The functions that have run, by the names that the linker knows; the function with the most instructions of its own comes first.
/// `profile`: the text of a file that callgrind wrote with `--demangle=no`.
pub fn functions_run(profile: &str) -> Vec<&str> {
    let mut names: HashMap<&str, &str> = HashMap::new();
    let mut own: HashMap<&str, u64> = HashMap::new();
    let (mut current, mut is_of_call) = ("", false);
    for line in profile.lines() {
        if let Some((kind, function)) = line.split_once("fn=").filter(|(kind, _)| matches!(*kind, "" | "c")) {
            // The first mention of a name defines a number for it; later ones have only the number.
            let (number, name) = function.split_once(' ').unwrap_or((function, ""));
            if !name.is_empty() {
                // Recursive calls have names of their own.
                names.insert(number, name.split('\'').next().unwrap_or(name));
            }
            if kind.is_empty() {
                current = number;
            }
        } else if line.starts_with("calls=") {
            is_of_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '+' | '-' | '*')) {
            let count = line.split_whitespace().nth(1).and_then(|count| count.parse::<u64>().ok());
            if !std::mem::take(&mut is_of_call) {
                *own.entry(current).or_default() += count.unwrap_or(0);
            }
        }
    }
    let mut sums: HashMap<&str, u64> = HashMap::new();
    for (number, count) in own {
        if let Some(name) = names.get(number) {
            *sums.entry(name).or_default() += count;
        }
    }
    let mut functions: Vec<_> = sums.into_iter().collect();
    functions.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    functions.into_iter().map(|(name, _)| name).collect()
}

/// Sets what callgrind has counted of a running process so far to nothing.
pub fn reset(pid: u32) -> Result {
    let mut control = Command::new("callgrind_control");
    control.args(["--zero", &pid.to_string()]);
    run_for_stderr(&mut control)
        .map(drop)
        .map_err(|error| format!("{error} (it comes with valgrind and needs perl)").into())
}

/// Runs a command to its good end, and returns what it wrote to standard error.
fn run_for_stderr(command: &mut Command) -> Result<String> {
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

// A program that runs under callgrind, whose count of instructions is read again and again.
//
// It is read through `vgdb`, which comes with valgrind: a start is slow, and one that is paid once serves all measurements. Until
// counting begins the program runs ten times faster. Programs that begin others are not followed.

/// A program without an instruction to count uses less than this in [`IDLE_LOOK`].
const IDLE_US: f64 = 1000.0;
const IDLE_LOOK: Duration = Duration::from_millis(20);
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Lets glibc copy and fill in loops of vectors: callgrind counts an instruction for each byte of the string instructions
/// that it would use from 2 KiB on.
const NO_STRING_INSTRUCTIONS: &str =
    "GLIBC_TUNABLES=glibc.cpu.x86_rep_movsb_threshold=1073741824:glibc.cpu.x86_rep_stosb_threshold=1073741824";

/// As callgrind numbers them.
const FIRST_THREAD: &str = "01";

/// After so long a program that waits in the kernel is interrupted to answer.
const INTERRUPT_MS: u64 = 5;

/// Which threads count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// Every one.
    All,
    /// Not the one that the program began with.
    Others,
}

/// What counts the instructions of a program, which is held elsewhere.
#[derive(Debug)]
pub struct Counter {
    threads: Threads,
    /// Where callgrind writes; a number follows.
    out: PathBuf,
    vgdb_prefix: String,
    dumps: usize,
}

impl Counter {
    /// A counter whose files in `dir` begin with `name`.
    pub fn new(threads: Threads, dir: &Path, name: &str) -> Self {
        let out = dir.join(format!("{name}.callgrind"));
        let vgdb_prefix = format!("--vgdb-prefix={}", dir.join(format!("{name}.vgdb")).display());
        Self { threads, out, vgdb_prefix, dumps: 0 }
    }

    /// The command that runs `words` so that they can be counted: valgrind, which becomes the program.
    pub fn command(&self, words: &[String]) -> Vec<String> {
        let own = [
            "env",
            NO_STRING_INSTRUCTIONS,
            "valgrind",
            "--tool=callgrind",
            "--instr-atstart=no",
            "--separate-threads=yes",
            &self.vgdb_prefix,
            &format!("--callgrind-out-file={}", self.out.display()),
        ];
        // valgrind does not look among the daemons.
        let found = |(at, word): (usize, &String)| match at {
            0 => find_program(word).map_or_else(|| word.clone(), |path| path.to_string_lossy().into_owned()),
            _ => word.clone(),
        };
        own.into_iter().map(str::to_owned).chain(words.iter().enumerate().map(found)).collect()
    }

    /// Counts from here on.
    pub fn begin(&self, process: &Running) -> Result {
        self.control(process, &["instrumentation", "on"])
    }

    /// Instructions since the last call, or since counting began, once the program has come to rest. The profiles they are
    /// taken from, one a thread, are kept under names that begin with `profile`, where that is given.
    pub fn instructions(&mut self, process: &mut Running, profile: Option<&Path>) -> Result<u64> {
        rest(process)?;
        self.control(process, &["dump"])?;
        self.dumps += 1;
        let mut sum = 0;
        for (thread, written) in self.written()? {
            let text = fs::read_to_string(&written).map_err(unreadable)?;
            if thread != FIRST_THREAD || self.threads == Threads::All {
                sum += total(&text).ok_or_else(|| format!("{}: no total", written.display()))?;
            }
            if let Some(profile) = profile {
                fs::write(profile.with_extension(format!("{thread}.callgrind")), text).map_err(unreadable)?;
            }
            fs::remove_file(&written).map_err(unreadable)?;
        }
        Ok(sum)
    }

    /// What callgrind wrote last, with the number of each thread.
    fn written(&self) -> Result<Vec<(String, PathBuf)>> {
        let dir = self.out.parent().ok_or("no folder")?;
        let begin = self.out.with_extension(format!("callgrind.{}-", self.dumps));
        let begin = begin.to_string_lossy().into_owned();
        let mut all = Vec::new();
        for entry in fs::read_dir(dir).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            let thread = path.to_string_lossy().strip_prefix(&begin).map(str::to_owned);
            all.extend(thread.map(|thread| (thread, path)));
        }
        match all.is_empty() {
            true => Err(format!("callgrind wrote nothing under {begin}").into()),
            false => Ok(all),
        }
    }

    fn control(&self, process: &Running, words: &[&str]) -> Result {
        let mut command = Command::new("vgdb");
        command.args([&format!("--pid={}", process.pid()), &self.vgdb_prefix]);
        command.arg(format!("--max-invoke-ms={INTERRUPT_MS}")).args(words);
        run_for_stderr(&mut command).map(drop)
    }
}

/// Waits until it does nothing more: a thread may still work on the last requests.
fn rest(process: &mut Running) -> Result {
    let begin = Instant::now();
    loop {
        let before = process.thread_times()?;
        sleep(IDLE_LOOK);
        process.alive()?;
        if process.thread_times()?.since(&before) < IDLE_US {
            return Ok(());
        }
        if begin.elapsed() > IDLE_TIMEOUT {
            return Err(format!("still busy after {} s", IDLE_TIMEOUT.as_secs()).into());
        }
    }
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

    #[test]
    fn functions_are_in_the_order_of_their_own_instructions() {
        let profile = "# callgrind format\npositions: line\nevents: Ir\n\nob=(1) a\nfl=(1) a.rs\nfn=(1) main\n32 5\n+1 2\n\
            cfn=(2) _ZN1a1b17h0E\ncalls=1 -26 \n34 900\n* 1\n\nfn=(2)\n-6 40\ncfn=(3) _ZN1a1b17h0E'2\ncalls=2 0 \n* 7\n\n\
            fn=(3)\n1 4\n\nfn=(4) unused\n\nfn=(1)\n40 1\ntotals: 53\n";
        assert_eq!(functions_run(profile), ["_ZN1a1b17h0E", "main"]);
        assert!(functions_run("").is_empty());
    }
}
