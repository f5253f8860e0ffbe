//! Counts the CPU's instructions of a part of another process of this program, in single steps.
//!
//! ```text
//!  count(command) ──▶ another process: traced, warms up, begin() ── each instruction ── end()
//! ```
//!
//! Valgrind does not work here: LuaJIT finds no room for machine code in it, and interprets everything. CPU counters
//! are not available in most virtual machines.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::ptr::null_mut;

/// Called in the counted process: starts counting. Its parent must be in [`count`].
pub fn begin() {
    // SAFETY: makes this process stop at signals, for its parent.
    unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, null_mut::<u8>(), null_mut::<u8>()) };
    raise(libc::SIGTRAP);
}

/// Called in the counted process: ends counting. It does not return.
pub fn end() {
    raise(libc::SIGUSR1);
}

fn raise(signal: i32) {
    // SAFETY: the process stops, and continues when its tracer wants.
    unsafe { libc::raise(signal) };
}

/// Starts a process, and counts the instructions between its [`begin`] and its [`end`] on the thread that calls them.
pub fn count(command: &mut Command) -> io::Result<u64> {
    let mut child = command.spawn()?;
    let pid = child.id() as libc::pid_t;
    let counted = counted(pid);
    // It may have ended by itself, which `counted` has reported then.
    let _ = child.kill();
    let _ = child.wait();
    counted
}

fn counted(pid: libc::pid_t) -> io::Result<u64> {
    while stopped_by(pid)? != libc::SIGTRAP {
        go_on(pid, libc::PTRACE_CONT)?;
    }
    let mut count = 0;
    go_on(pid, libc::PTRACE_SINGLESTEP)?;
    loop {
        match stopped_by(pid)? {
            libc::SIGTRAP => count += 1,
            libc::SIGUSR1 => return Ok(count),
            // The watchdog's signals are not passed on: single steps take long, and the function would be stopped.
            _ => {}
        }
        go_on(pid, libc::PTRACE_SINGLESTEP)?;
    }
}

/// The signal that stopped the process.
fn stopped_by(pid: libc::pid_t) -> io::Result<i32> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is ours.
        if unsafe { libc::waitpid(pid, &raw mut status, 0) } == pid {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    if libc::WIFSTOPPED(status) {
        return Ok(libc::WSTOPSIG(status));
    }
    Err(io::Error::other(format!("the counted process has ended: {}", ExitStatus::from_raw(status))))
}

fn go_on(pid: libc::pid_t, how: libc::c_uint) -> io::Result<()> {
    // SAFETY: a request for a process that has stopped.
    match unsafe { libc::ptrace(how, pid, null_mut::<u8>(), null_mut::<u8>()) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
