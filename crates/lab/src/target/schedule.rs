//! Who goes first on the load's CPUs, so that what is measured is the target and not the tools.
//!
//! Real-time priority (`SCHED_FIFO`, the lowest one), for threads that sleep nearly always: nice values are not enough, because
//! since Linux 6.6 a task that just woke, however important, may wait for milliseconds until a running one has had its
//! slice. For open loops only: a closed loop never sleeps, and the kernel stops real-time tasks that use more than 95% of a
//! second. Never for the target, which must be scheduled as in production. `chrt` comes with util-linux and can do this to
//! processes that are not ours without unsafe code.

use super::placement;
use crate::result::run::Placement;
use rustix::thread::gettid;
use std::process::{Command, Stdio};

const NORMAL: &[&str] = &["--other", "--pid", "0"];
const FIRST: &[&str] = &["--fifo", "--pid", "1"];
const IDLE: &[&str] = &["--idle", "--pid", "0"];

/// While it lives, the thread that made it and the processes it was given go before all else.
#[derive(Debug)]
pub(crate) struct First {
    /// Why they do not.
    pub(crate) warning: Option<String>,
    changed: Vec<u32>,
}

/// Puts this thread, the threads it starts from now on, and the first threads of `pids` first. Processes this thread starts
/// meanwhile would go first too: start none. Does nothing where the target shares the load's CPUs.
pub(crate) fn first(placement: &Placement, pids: &[u32]) -> First {
    let mut first = First { warning: placement::warning(placement), changed: Vec::new() };
    if first.warning.is_some() {
        return first;
    }
    // This thread last: `chrt` would inherit it.
    for id in pids.iter().copied().chain([own()]) {
        match set(FIRST, id) {
            Ok(()) => first.changed.push(id),
            Err(error) => {
                first.warning = Some(format!(
                    "generator and upstream do not go before other programs, so latencies may hold the system's own delays; \
                     run as root or with CAP_SYS_NICE ({error})"
                ));
                break;
            }
        }
    }
    first
}

/// Makes this thread run only when nobody else wants to. Everyone may; where it fails it runs as others do.
pub(crate) fn own_last() -> Result<(), String> {
    set(IDLE, own())
}

impl Drop for First {
    fn drop(&mut self) {
        for &id in &self.changed {
            // It may have ended.
            let _ = set(NORMAL, id);
        }
    }
}

fn own() -> u32 {
    gettid().as_raw_nonzero().get().cast_unsigned()
}

/// Sets the policy of a thread, or of a process's first thread.
fn set(policy: &[&str], id: u32) -> Result<(), String> {
    let output = Command::new("chrt").args(policy).arg(id.to_string()).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("chrt: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// The kernel's number of this thread's policy: field 41 of `stat`.
    fn own_policy() -> u32 {
        let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
        stat.rsplit(')').next().unwrap().split_whitespace().nth(41 - 3).unwrap().parse().unwrap()
    }

    const POLICY_OTHER: u32 = 0;
    const POLICY_FIFO: u32 = 1;
    const POLICY_IDLE: u32 = 5;

    #[test]
    fn first_until_dropped() {
        let placement = Placement { target_cpus: vec![0], load_cpus: vec![1] };
        let first = first(&placement, &[]);
        // Not everyone may; then it says so.
        assert_eq!(own_policy() == POLICY_FIFO, first.warning.is_none(), "{first:?}");
        drop(first);
        assert_eq!(own_policy(), POLICY_OTHER);
    }

    #[test]
    fn nobody_goes_before_a_target_on_the_same_cpu() {
        let placement = Placement { target_cpus: vec![0], load_cpus: vec![0] };
        let first = first(&placement, &[]);
        assert!(first.warning.is_some());
        assert_eq!(own_policy(), POLICY_OTHER);
    }

    #[test]
    fn a_thread_goes_last() {
        own_last().unwrap();
        assert_eq!(own_policy(), POLICY_IDLE);
    }
}
