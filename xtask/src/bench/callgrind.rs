//! A program under callgrind, asked while it runs how many instructions it has executed.
//!
//! Of all its threads, in user mode. It is asked through `vgdb`, which comes with valgrind: a start is slow, and one that is
//! paid once serves all measurements. Until the first question nothing is counted, which makes the start ten times faster.
//! Programs that begin others are not followed.

use super::process::Running;
use crate::Result;
use crate::step;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

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
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Threads {
    All,
    /// Not the one that the program began with.
    Others,
}

/// A running program whose instructions are counted.
pub(super) struct Counter {
    pub(super) process: Running,
    threads: Threads,
    /// Where callgrind writes; a number follows.
    out: PathBuf,
    vgdb_prefix: String,
    asked: usize,
}

impl Counter {
    /// Starts `words` on a CPU. What it writes goes to files in `dir` that begin with `name`.
    pub(super) fn start(words: &[String], threads: Threads, cpu: usize, dir: &Path, name: &str) -> Result<Self> {
        let out = dir.join(format!("{name}.callgrind"));
        let vgdb_prefix = format!("--vgdb-prefix={}", dir.join(format!("{name}.vgdb")).display());
        let own = [
            "env",
            NO_STRING_INSTRUCTIONS,
            "valgrind",
            "--tool=callgrind",
            "--instr-atstart=no",
            "--separate-threads=yes",
            &vgdb_prefix,
            &format!("--callgrind-out-file={}", out.display()),
        ];
        let words: Vec<String> = own.into_iter().map(str::to_owned).chain(words.iter().cloned()).collect();
        let process = Running::spawn(&words, Some(cpu), &dir.join(format!("{name}.log")))?;
        Ok(Self { process, threads, out, vgdb_prefix, asked: 0 })
    }

    /// Counts from here on.
    pub(super) fn begin(&self) -> Result {
        self.tell(&["instrumentation", "on"])
    }

    /// Instructions since the last call, or since counting began, once the program has come to rest. The profiles they are
    /// taken from, one a thread, are kept under names that begin with `profile`, where that is given.
    pub(super) fn instructions(&mut self, profile: Option<&Path>) -> Result<u64> {
        self.rest()?;
        self.tell(&["dump"])?;
        self.asked += 1;
        let mut sum = 0;
        for (thread, written) in self.written()? {
            let text = fs::read_to_string(&written)?;
            if thread != FIRST_THREAD || self.threads == Threads::All {
                sum += total(&text).ok_or_else(|| format!("{}: no total", written.display()))?;
            }
            if let Some(profile) = profile {
                fs::write(profile.with_extension(format!("{thread}.callgrind")), text)?;
            }
            fs::remove_file(&written)?;
        }
        Ok(sum)
    }

    /// What callgrind has written when it was asked last, with the number of each thread.
    fn written(&self) -> Result<Vec<(String, PathBuf)>> {
        let dir = self.out.parent().ok_or("no folder")?;
        let begin = self.out.with_extension(format!("callgrind.{}-", self.asked));
        let begin = begin.to_string_lossy().into_owned();
        let mut all = Vec::new();
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let thread = path.to_string_lossy().strip_prefix(&begin).map(str::to_owned);
            all.extend(thread.map(|thread| (thread, path)));
        }
        match all.is_empty() {
            true => Err(format!("callgrind wrote nothing under {begin}").into()),
            false => Ok(all),
        }
    }

    /// Waits until it does nothing more: a thread may still work on what was asked for.
    fn rest(&mut self) -> Result {
        let begin = Instant::now();
        loop {
            let before = self.process.thread_times()?;
            sleep(IDLE_LOOK);
            self.process.check_alive()?;
            if self.process.thread_times()?.since(&before) < IDLE_US {
                return Ok(());
            }
            if begin.elapsed() > IDLE_TIMEOUT {
                return Err(format!("still busy after {} s", IDLE_TIMEOUT.as_secs()).into());
            }
        }
    }

    fn tell(&self, words: &[&str]) -> Result {
        let mut command = Command::new("vgdb");
        command.args([&format!("--pid={}", self.process.pid()), &self.vgdb_prefix]);
        command.arg(format!("--max-invoke-ms={INTERRUPT_MS}")).args(words);
        step::output(&mut command)?;
        Ok(())
    }
}

/// All instructions of a profile.
fn total(profile: &str) -> Option<u64> {
    let line = profile.lines().rev().find_map(|line| line.strip_prefix("totals: "))?;
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
}
