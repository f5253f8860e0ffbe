//! Priorities on a CPU, so that what is measured is the target and not the tools.
//!
//! Real-time priority (`SCHED_FIFO`, the lowest one), for threads that sleep nearly always: nice values are not enough, because
//! since Linux 6.6 a task that just woke, however important, may wait for milliseconds until a running one has had its
//! slice. For open loops only: a closed loop never sleeps, and the kernel stops real-time tasks that use more than 95% of a
//! second. Never for the target, which must be scheduled as in production. `chrt` comes with util-linux and can do this to
//! processes that are not ours without unsafe code.

use crate::cpus;
use crate::error::{Error, Result};
use rustix::thread::gettid;
use std::path::Path;
use std::process::{Command, Stdio};

const NORMAL: &[&str] = &["--other", "--pid", "0"];
const REALTIME: &[&str] = &["--fifo", "--reset-on-fork", "--pid", "1"];
const IDLE: &[&str] = &["--idle", "--pid", "0"];

/// While it lives, this thread stays on the CPUs it was given, and the processes it was given go before all else there.
#[derive(Debug)]
pub struct RealtimePriority {
    /// Why they do not.
    pub refusal: Option<Error>,
    changed: Vec<u32>,
    before: Vec<usize>,
}

impl RealtimePriority {
    /// Puts the first threads of `pids` first, where the system allows it, and takes this thread to `cpus`. What the processes start is
    /// normal again.
    pub fn give(cpus: &[usize], pids: &[u32]) -> Result<RealtimePriority> {
        let mut first = RealtimePriority { refusal: None, changed: Vec::new(), before: cpus::available()? };
        cpus::pin(cpus)?;
        for &id in pids {
            match set(REALTIME, id) {
                Ok(()) => first.changed.push(id),
                Err(error) => {
                    first.refusal = Some(error);
                    break;
                }
            }
        }
        Ok(first)
    }
}

impl Drop for RealtimePriority {
    fn drop(&mut self) {
        // It was our own CPU.
        let _ = cpus::pin(&self.before);
        for &id in &self.changed {
            // It may have ended.
            let _ = set(NORMAL, id);
        }
    }
}

/// A command that runs a program, all its threads, before everyone else. Only where [`RealtimePriority::give`] was not refused.
pub fn realtime_command(program: &Path) -> Command {
    let mut command = Command::new("chrt");
    // It replaces itself by the program.
    command.args(["--fifo", "1"]).arg(program);
    command
}

/// Makes this thread go before all others on its CPUs, for one that sleeps nearly always. Only where [`RealtimePriority::give`] was not refused.
pub fn make_own_thread_realtime() -> Result {
    set(REALTIME, gettid().as_raw_nonzero().get().cast_unsigned())
}

/// Makes this thread run only when no other wants to. Every process may do this; if it fails the thread runs normally.
pub fn make_own_thread_idle() -> Result {
    set(IDLE, gettid().as_raw_nonzero().get().cast_unsigned())
}

/// Sets the policy of a thread, or of a process's first thread.
fn set(policy: &[&str], id: u32) -> Result {
    let output = Command::new("chrt").args(policy).arg(id.to_string()).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("chrt: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc;

    const POLICY_IDLE: u64 = 5;

    #[test]
    fn off_other_cpus_until_dropped() {
        let all = cpus::available().unwrap();
        let [_, .., load] = all[..] else { return };
        let first = RealtimePriority::give(&[load], &[]).unwrap();
        assert_eq!(cpus::available().unwrap(), [load]);
        drop(first);
        assert_eq!(cpus::available().unwrap(), all);
    }

    #[test]
    fn a_thread_goes_last() {
        make_own_thread_idle().unwrap();
        // The kernel's number of this thread's policy.
        assert_eq!(proc::Stat::read("thread-self").unwrap().number(41), Some(POLICY_IDLE));
    }
}
