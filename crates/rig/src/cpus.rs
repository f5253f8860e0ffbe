//! Which CPUs threads run on.
//!
//! A thread is moved, starts a process, and is moved back: what is started inherits the CPUs. CPUs are numbered as the kernel
//! does.

use crate::error::Result;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs this thread may use.
pub fn available() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).map_err(|error| format!("cannot read which CPUs may be used: {error}"))?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Moves this thread to `cpus`; empty: it stays where it is.
pub fn pin(cpus: &[usize]) -> Result {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    for &cpu in cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    sched_setaffinity(None, &set).map_err(|error| format!("cannot run on CPU {}: {error}", list(cpus)).into())
}

/// Calls `start` so that processes started by it inherit `cpus`.
pub fn on<T>(cpus: &[usize], start: impl FnOnce() -> T) -> Result<T> {
    if cpus.is_empty() {
        return Ok(start());
    }
    let before = available()?;
    pin(cpus)?;
    let started = start();
    pin(&before)?;
    Ok(started)
}

/// CPUs as messages name them: `0,1`.
pub fn list(cpus: &[usize]) -> String {
    cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}
