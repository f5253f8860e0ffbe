//! A timer of one thread's CPU time that signals that thread.

#![expect(unsafe_code, reason = "timers of other threads' CPU time have no safe name")]

use std::io;
use std::ptr::{null_mut, without_provenance_mut};
use std::time::Duration;

/// A timer that is armed until it is dropped; the kernel also ends it with the process.
#[derive(Debug)]
pub struct CpuTimer(libc::timer_t);

// SAFETY: the kernel's number of a timer, which belongs to the process and not to a thread.
unsafe impl Send for CpuTimer {}

impl CpuTimer {
    /// Sends the thread this signal after each period of its CPU time, with a mark for its handler.
    ///
    /// # Errors
    ///
    /// The kernel's: the thread does not exist, or there are too many timers.
    pub fn arm(tid: i32, signal: i32, mark: usize, period: Duration) -> io::Result<CpuTimer> {
        // SAFETY: plain structures for the calls, filled here; the timer is deleted when it is dropped.
        unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = signal;
            event.sigev_notify_thread_id = tid;
            event.sigev_value.sival_ptr = without_provenance_mut(mark);
            let mut timer: libc::timer_t = without_provenance_mut(0);
            if libc::timer_create(clock_of(tid), &raw mut event, &raw mut timer) != 0 {
                return Err(io::Error::last_os_error());
            }
            let timer = CpuTimer(timer);
            let time = libc::timespec {
                tv_sec: period.as_secs() as libc::time_t,
                tv_nsec: libc::c_long::from(period.subsec_nanos()),
            };
            let times = libc::itimerspec { it_interval: time, it_value: time };
            match libc::timer_settime(timer.0, 0, &raw const times, null_mut()) {
                0 => Ok(timer),
                _ => Err(io::Error::last_os_error()),
            }
        }
    }
}

impl Drop for CpuTimer {
    fn drop(&mut self) {
        // SAFETY: it exists, and only this deletes it.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// `CLOCK_THREAD_CPUTIME_ID` as seen by another thread of the process (`MAKE_THREAD_CPUCLOCK` of Linux), so that the
/// thread need not be interrupted to arm its timer.
fn clock_of(tid: i32) -> libc::clockid_t {
    const SCHED: libc::clockid_t = 2;
    const PER_THREAD: libc::clockid_t = 4;
    (!tid << 3) | PER_THREAD | SCHED
}

/// The fields of a timer's `siginfo_t` after the signal, the error and the code.
#[repr(C)]
struct TimerInfo {
    _head: [libc::c_int; 4],
    _timer: libc::c_int,
    overrun: libc::c_int,
    mark: usize,
}

/// The number of periods that a timer's signal represents: the kernel sends none while one is pending. For signal
/// handlers.
///
/// # Safety
///
/// `info` is the argument of a handler with `SA_SIGINFO`, for a signal that a timer sent.
pub unsafe fn periods_of(info: *const libc::siginfo_t) -> u64 {
    // SAFETY: the caller's promise.
    let overrun = unsafe { (*info.cast::<TimerInfo>()).overrun };
    1 + u64::from(overrun.max(0).unsigned_abs())
}

/// The mark of a timer.
///
/// # Safety
///
/// As for [`periods_of`].
pub(crate) unsafe fn mark_of(info: *const libc::siginfo_t) -> usize {
    // SAFETY: the caller's promise.
    unsafe { (*info.cast::<TimerInfo>()).mark }
}

/// CPU time that a thread has used.
///
/// # Errors
///
/// If the thread does not exist.
pub fn cpu_time_of(tid: i32) -> io::Result<Duration> {
    // SAFETY: fills the structure.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        match libc::clock_gettime(clock_of(tid), &raw mut time) {
            0 => Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
