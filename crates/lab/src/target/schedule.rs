//! Who goes first on the load's CPUs, so that what is measured is the target and not the tools.
//!
//! Real-time priority (`SCHED_FIFO`, the lowest one), for threads that sleep nearly always: nice values are not enough, because
//! since Linux 6.6 a task that just woke, however important, may wait for milliseconds until a running one has had its
//! slice. For open loops only: a closed loop never sleeps, and the kernel stops real-time tasks that use more than 95% of a
//! second. Never for the target, which must be scheduled as in production. `chrt` comes with util-linux and can do this to
//! processes that are not ours without unsafe code.

use super::placement;
use crate::error::Result;
use crate::result::run::Placement;
use rustix::thread::gettid;
use std::process::{Command, Stdio};

const NORMAL: &[&str] = &["--other", "--pid", "0"];
const FIRST: &[&str] = &["--fifo", "--pid", "1"];
const IDLE: &[&str] = &["--idle", "--pid", "0"];

/// While it lives, this thread stays on the load's CPUs, and the processes it was given go before all else there.
#[derive(Debug)]
pub(crate) struct First {
    /// Why they do not.
    pub(crate) warning: Option<String>,
    /// Whether the generator's threads may ask for the same.
    pub(crate) realtime: bool,
    changed: Vec<u32>,
    before: Vec<usize>,
}

/// Puts the first threads of `pids` first, and takes this thread, which counts what the generator measures, off the target's CPUs; it
/// needs no priority itself. Does nothing where the target shares the load's CPUs.
pub(crate) fn first(placement: &Placement, pids: &[u32]) -> Result<First> {
    let mut first = First {
        warning: placement::warning(placement),
        realtime: false,
        changed: Vec::new(),
        before: placement::available()?,
    };
    if first.warning.is_some() {
        return Ok(first);
    }
    placement::pin(&placement.load_cpus)?;
    for &id in pids {
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
    first.realtime = first.warning.is_none();
    Ok(first)
}

/// Makes this thread run only when nobody else wants to. Everyone may; where it fails it runs as others do.
pub(crate) fn own_last() -> Result<(), String> {
    set(IDLE, own())
}

impl Drop for First {
    fn drop(&mut self) {
        // It was where we were.
        let _ = placement::pin(&self.before);
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

    const POLICY_IDLE: u32 = 5;

    #[test]
    fn off_the_targets_cpus_until_dropped() {
        let all = placement::available().unwrap();
        let [target, .., load] = all[..] else { return };
        let placement = Placement { target_cpus: vec![target], load_cpus: vec![load], target_apart: false };
        let first = first(&placement, &[]).unwrap();
        assert_eq!(placement::available().unwrap(), [load]);
        drop(first);
        assert_eq!(placement::available().unwrap(), all);
    }

    #[test]
    fn nobody_goes_before_a_target_on_the_same_cpu() {
        let all = placement::available().unwrap();
        let placement = Placement { target_cpus: vec![0], load_cpus: vec![0], target_apart: false };
        let first = first(&placement, &[]).unwrap();
        assert!(first.warning.is_some() && !first.realtime);
        assert_eq!(placement::available().unwrap(), all);
    }

    #[test]
    fn a_thread_goes_last() {
        own_last().unwrap();
        assert_eq!(own_policy(), POLICY_IDLE);
    }
}
