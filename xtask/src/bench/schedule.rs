//! What the kernel is told of who runs where and who goes first, so that a bench measures the gateway and not its tools.
//!
//! Nice values are not enough: since Linux 6.6 a task that just woke, however important, may wait for milliseconds until a
//! running one has had its slice. Only an idle task gives way at once, and only a real-time task waits for none.
//! `chrt` comes with the `taskset` the benches need anyway.

use crate::Result;
use crate::step;
use rustix::thread::{CpuSet, gettid, sched_setaffinity};
use std::process::Command;

/// When a thread runs.
#[derive(Clone, Copy)]
pub(super) enum Policy {
    /// When nobody else wants to. Everyone may choose it.
    Idle,
    /// Before everyone else: for threads that sleep nearly always. Root only. What they start is normal again.
    RealTime,
    /// As everyone else.
    Normal,
}

/// Moves this thread, and what it will start, to one CPU.
pub(super) fn pin(cpu: usize) -> Result {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Puts the load, which this thread makes, and the upstream before all else on their CPU; says so where it may not.
pub(super) fn put_first(upstream: &[u32]) {
    let upstream = upstream.iter().map(|&pid| set(Policy::RealTime, pid));
    if let Some(error) = upstream.chain([set_own(Policy::RealTime)]).find_map(Result::err) {
        println!("(load and upstream do not go before other programs; run as root. {error})");
    }
}

/// Sets the policy of this thread.
pub(super) fn set_own(policy: Policy) -> Result {
    set(policy, gettid().as_raw_nonzero().get().cast_unsigned())
}

/// Sets the policy of a thread, or of a process's first thread.
pub(super) fn set(policy: Policy, id: u32) -> Result {
    let words: &[&str] = match policy {
        Policy::Idle => &["--idle", "--pid", "0"],
        Policy::RealTime => &["--fifo", "--reset-on-fork", "--pid", "1"],
        Policy::Normal => &["--other", "--pid", "0"],
    };
    step::output(Command::new("chrt").args(words).arg(id.to_string()))?;
    Ok(())
}
