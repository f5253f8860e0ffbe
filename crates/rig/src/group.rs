//! A command in a process group of its own, which ends as a whole.
//!
//! What a hanging command has started must not run beside the next measurement, nor outlive this program.

use crate::guard::Guard;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus};
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
