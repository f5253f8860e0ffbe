//! Counts the CPU's instructions of a part of another process of this program, in single steps.
//!
//! ```text
//!  count(command) ──▶ another process: traced, warms up, begin() ── each instruction ── end()
//! ```
//!
//! Valgrind is of no use here: LuaJIT finds no room for machine code in it, and interprets all. Counters of the CPU are not to be had
//! in most virtual machines.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::ptr::null_mut;

/// In the process that is counted: from here on. Its parent has to be in [`count`].
pub fn begin() {
    // SAFETY: makes this process stop at signals, for the one that has started it.
    unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, null_mut::<u8>(), null_mut::<u8>()) };
    raise(libc::SIGTRAP);
}

/// In the process that is counted: up to here. It does not come back.
pub fn end() {
    raise(libc::SIGUSR1);
}

fn raise(signal: i32) {
    // SAFETY: the process stops, and goes on when the one that traces it wants.
    unsafe { libc::raise(signal) };
}

/// Starts a process, and counts the instructions between its [`begin`] and its [`end`] on the thread that calls them.
pub fn count(command: &mut Command) -> io::Result<u64> {
    let mut child = command.spawn()?;
    let pid = child.id() as libc::pid_t;
    let counted = counted(pid);
    // It may have ended by itself, which `counted` has said then.
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
            // What the watchdog sends is not passed on: single steps take long, and would be stopped.
            _ => {}
        }
        go_on(pid, libc::PTRACE_SINGLESTEP)?;
    }
}

/// The signal that the process has stopped by.
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
    Err(io::Error::other(format!("the process that is counted has ended: {}", ExitStatus::from_raw(status))))
}

fn go_on(pid: libc::pid_t, how: libc::c_uint) -> io::Result<()> {
    // SAFETY: a request for a process that has stopped.
    match unsafe { libc::ptrace(how, pid, null_mut::<u8>(), null_mut::<u8>()) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
