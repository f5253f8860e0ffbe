//! When a worker must wake by itself, and the alarm for it: a timerfd, as the runtime's own timers take two wake-ups and a write to
//! itself for each.

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// When a worker's next turns are due.
pub(crate) struct Turns {
    alarm: AsyncFd<OwnedFd>,
    /// When it rings, by the worker's clock; `u64::MAX`: never.
    pub(crate) rings_ms: Cell<u64>,
    /// There is news that has not been reported yet.
    pub(crate) is_untold: Cell<bool>,
    pub(crate) flushed_ms: Cell<u64>,
    pub(crate) chores_ms: Cell<u64>,
    /// Most connections open at once since memory was last given back.
    pub(crate) peak: Cell<u64>,
}

impl Turns {
    /// Must be called within a runtime.
    pub(crate) fn new() -> io::Result<Turns> {
        let alarm = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe, for types that may close what is registered; this one cannot"
        )]
        let alarm = AsyncFd::with_interest(alarm, Interest::READABLE)?;
        Ok(Turns {
            alarm,
            rings_ms: Cell::new(u64::MAX),
            is_untold: Cell::default(),
            flushed_ms: Cell::default(),
            chores_ms: Cell::default(),
            peak: Cell::default(),
        })
    }

    /// Marks that there is news for the metrics or the access log.
    #[inline]
    pub(crate) fn note_news(&self) {
        self.is_untold.set(true);
    }

    /// Makes it ring after this time, instead of when it was set to before.
    pub(crate) fn ring_in(&self, ms: u64) -> rustix::io::Result<()> {
        // Zero would turn it off.
        let nanoseconds = ms.max(1) * 1_000_000;
        let first =
            Timespec { tv_sec: (nanoseconds / 1_000_000_000) as _, tv_nsec: (nanoseconds % 1_000_000_000) as _ };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: first };
        timerfd_settime(self.alarm.get_ref(), TimerfdTimerFlags::empty(), &once).map(drop)
    }

    /// Lets the alarm bring about turns; ends with the runtime. Setting it again is all that it needs to ring again.
    pub(crate) async fn listen(&self) {
        while let Ok(mut rung) = self.alarm.readable().await {
            rung.clear_ready();
        }
    }
}
