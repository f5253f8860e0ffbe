//! What the kernel is told of who runs where and who goes first, so that a bench measures the gateway and not its tools.
//!
//! Nice values are not enough: since Linux 6.6 a task that just woke, however important, may wait for milliseconds until a
//! running one has had its slice. Only an idle task gives way at once, and only a real-time task waits for none.
//! `chrt` comes with the `taskset` the benches need anyway.

use crate::Result;
use crate::step;
use rustix::thread::{CpuSet, gettid, sched_setaffinity};
use std::path::Path;
use std::process::Command;

/// Moves this thread, and what it will start, to one CPU.
pub(super) fn pin(cpu: usize) -> Result {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Puts processes before everyone else on their CPU: for those that sleep nearly always. Root only; false, and said so,
/// where it is refused. What they start is normal again.
pub(super) fn put_first(pids: &[u32]) -> bool {
    let refused = pids.iter().find_map(|&pid| set(&["--fifo", "--reset-on-fork", "--pid", "1"], pid).err());
    if let Some(error) = &refused {
        println!("(load and upstream do not go before other programs; run as root. {error})");
    }
    refused.is_none()
}

/// A command that runs a program, all its threads, before everyone else. Only where [`put_first`] is allowed.
pub(super) fn first(program: &Path) -> Command {
    let mut command = Command::new("chrt");
    // It replaces itself by the program.
    command.args(["--fifo", "1"]).arg(program);
    command
}

/// Lets this thread run only when nobody else wants to.
pub(super) fn put_self_last() -> Result {
    set(&["--idle", "--pid", "0"], gettid().as_raw_nonzero().get().cast_unsigned())
}

/// Sets the policy of a thread, or of a process's first thread.
fn set(policy: &[&str], id: u32) -> Result {
    step::output(Command::new("chrt").args(policy).arg(id.to_string()))?;
    Ok(())
}
