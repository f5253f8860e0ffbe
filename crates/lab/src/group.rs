//! A command in a process group of its own, which ends as a whole.
//!
//! What a hanging command has started must not run beside the next measurement, nor outlive this program.

use crate::guard::Guard;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Between two looks at it.
const POLL: Duration = Duration::from_millis(10);

/// How it ended.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ended {
    /// By itself.
    Alone(ExitStatus),
    /// It took longer than it may.
    TimedOut,
    /// The user wants an end.
    Stopped,
}

/// Runs it until it ends, or `stop` is set, or for no longer than the limit.
pub(crate) fn run(command: &mut Command, limit: Option<Duration>, stop: &AtomicBool) -> io::Result<Ended> {
    let mut guard = Guard::start()?;
    let begun = Instant::now();
    let mut child = command.process_group(0).spawn()?;
    if let Err(error) = guard.watch(child.id()) {
        kill(&child);
        child.wait()?;
        return Err(error);
    }
    loop {
        if let Some(status) = child.try_wait()? {
            // What it left running in the background.
            kill(&child);
            return Ok(Ended::Alone(status));
        }
        let stopped = stop.load(Ordering::Relaxed);
        if stopped || limit.is_some_and(|limit| begun.elapsed() > limit) {
            kill(&child);
            child.wait()?;
            return Ok(if stopped { Ended::Stopped } else { Ended::TimedOut });
        }
        sleep(POLL);
    }
}

fn kill(child: &Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // Fails only where all of it has ended, which is what we want.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_is_ended_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let hang = |limit_ms: u64| {
            let mut command = Command::new("sh");
            command.args(["-c", "sleep 600 & echo $! > new; mv new pid; wait"]).current_dir(folder.path());
            let hanging = run(&mut command, Some(Duration::from_millis(limit_ms)), &stop).unwrap();
            assert!(matches!(hanging, Ended::TimedOut), "{hanging:?}");
            std::fs::read_to_string(folder.path().join("pid")).ok()
        };
        // On a busy machine it may not have begun when its time is over.
        let pid = [300, 3_000, 30_000, 300_000].into_iter().find_map(hang).unwrap();
        let begun = Instant::now();
        let runs = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ")
        };
        while runs() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it goes on");
            sleep(POLL);
        }
    }
}
