//! A command in a process group of its own, which ends as a whole.
//!
//! What a hanging command has started must not run beside the next measurement, nor outlive this program.

use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Between two looks at it.
const POLL: Duration = Duration::from_millis(10);

/// How a command came to its end.
#[derive(Debug, Clone, Copy)]
pub enum Outcome {
    /// By itself.
    Exit(ExitStatus),
    /// It took longer than it may, and was ended.
    Timeout,
    /// The user wanted an end.
    Interrupt,
}

/// Runs a command until it ends, or `stop` is set, or for no longer than the limit.
pub fn run(command: &mut Command, limit: Option<Duration>, stop: &AtomicBool) -> io::Result<Outcome> {
    let mut guard = Guard::start()?;
    let begin = Instant::now();
    let mut child = command.process_group(0).spawn()?;
    let group = child.id();
    if let Err(error) = guard.watch(group) {
        signal(group, Signal::KILL);
        child.wait()?;
        return Err(error);
    }
    loop {
        if let Some(status) = child.try_wait()? {
            // What it left running in the background.
            signal(group, Signal::KILL);
            return Ok(Outcome::Exit(status));
        }
        let stopped = stop.load(Ordering::Relaxed);
        if stopped || limit.is_some_and(|limit| begin.elapsed() > limit) {
            signal(group, Signal::KILL);
            child.wait()?;
            return Ok(if stopped { Outcome::Interrupt } else { Outcome::Timeout });
        }
        sleep(POLL);
    }
}

/// Sends a signal to all of a group, by the process id of its leader.
pub(crate) fn signal(leader: u32, signal: Signal) {
    if let Some(group) = i32::try_from(leader).ok().and_then(Pid::from_raw) {
        // Fails only if all of it has ended, which is the goal.
        let _ = kill_process_group(group, signal);
    }
}

// Ends a process group when this program ends, whatever ends it.
//
// A shell waits on a pipe from us: when we end, by `kill -9` too, the pipe closes and the shell ends the group. That needs no
// unsafe code and no handler of signals. (The kernel's own means, a signal at the death of the parent, must be asked for
// between fork and exec, and reaches no grandchildren.) A program that leaves its process group is not held by this.

/// Reads the group, waits for the end of its input, then ends the group: politely, then not.
const SCRIPT: &str =
    r#"read -r group || exit; read -r line; kill -s TERM -- "-$group"; sleep 3; kill -s KILL -- "-$group""#;

/// Watches over one group until it is dropped.
#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) shell: Child,
}

impl Guard {
    /// Is started before the group, so that starting it takes no time from what is measured.
    pub(crate) fn start() -> io::Result<Guard> {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Guard { shell: command.process_group(0).spawn()? })
    }

    /// From now on the group of this process ends with us.
    pub(crate) fn watch(&mut self, leader: u32) -> io::Result<()> {
        let input = self.shell.stdin.as_mut().expect("it was piped above");
        writeln!(input, "{leader}")
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Before its input closes: what it watched has ended, and its number may be another's soon.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc;

    #[test]
    fn what_hangs_is_ended_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let hang = |limit_ms: u64| {
            let mut command = Command::new("sh");
            command.args(["-c", "sleep 600 & echo $! > new; mv new pid; wait"]).current_dir(folder.path());
            let hanging = run(&mut command, Some(Duration::from_millis(limit_ms)), &stop).unwrap();
            assert!(matches!(hanging, Outcome::Timeout), "{hanging:?}");
            std::fs::read_to_string(folder.path().join("pid")).ok()
        };
        // On a busy machine it may not have begun when its time is over.
        let pid = [300, 3_000, 30_000, 300_000].into_iter().find_map(hang).unwrap();
        let begin = Instant::now();
        while proc::runs(pid.trim().parse().unwrap()) {
            assert!(begin.elapsed() < Duration::from_secs(60), "it goes on");
            sleep(POLL);
        }
    }
}
