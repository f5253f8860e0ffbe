//! How long filters of a body take, in CPU time of the thread: others that want its core do not count.
//!
//! Reading the CPU clock is a system call of half a microsecond, which is more than most filters take for a piece. The wall clock
//! is read without one, and never shows less than the CPU clock. So the wall clock counts, as long as it shows little; where it
//! shows more, the CPU clock is read as well, and compared with its value up to [`APART_MAX`] before. So a time is never too short,
//! and too long by less than that.

use crate::basics::clock::thread_cpu_time;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Maximum time between a reading of the CPU clock and what is measured from it.
const APART_MAX: Duration = Duration::from_millis(1);

thread_local! {
    /// When the CPU clock was last read, and its value.
    static READ: Cell<Option<(Instant, Duration)>> = const { Cell::new(None) };
}

/// Measures from its start, on the thread that started it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stopwatch {
    began: Instant,
    /// Value of the CPU clock, read no later than `began` and less than [`APART_MAX`] before it.
    cpu: Duration,
}

impl Stopwatch {
    pub(super) fn start() -> Stopwatch {
        let began = Instant::now();
        let read = READ.get().filter(|(at, _)| began.saturating_duration_since(*at) < APART_MAX);
        let (_, cpu) = read.unwrap_or_else(|| {
            let read = (began, thread_cpu_time());
            READ.set(Some(read));
            read
        });
        Stopwatch { began, cpu }
    }

    pub(super) fn elapsed(&self) -> Duration {
        let wall = self.began.elapsed();
        if wall < APART_MAX { wall } else { wall.min(thread_cpu_time().saturating_sub(self.cpu)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_millis(40);

    fn work_for(time: Duration) {
        let until = thread_cpu_time() + time;
        while thread_cpu_time() < until {}
    }

    #[test]
    fn work_counts_and_waiting_does_not() {
        let stopwatch = Stopwatch::start();
        work_for(APART_MAX / 2);
        assert!(stopwatch.elapsed() >= APART_MAX / 2);
        work_for(LONG);
        assert!(stopwatch.elapsed() >= LONG);
        let stopwatch = Stopwatch::start();
        // This is another thread's work.
        std::thread::spawn(|| work_for(LONG)).join().unwrap();
        assert!(stopwatch.elapsed() < LONG / 2, "{:?}", stopwatch.elapsed());
    }
}
