//! How much CPU time the calling thread has used, and how long it had to wait for the CPU.
//!
//! A generator that shares its CPU with its target measures the scheduler. The kernel counts both: the thread's CPU
//! time, and in `/proc/thread-self/schedstat` the time it could have run and another did.

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::pread;
use rustix::time::{ClockId, clock_gettime};

/// Reads the current thread's figures. Opened once: files should not be opened when a run begins.
#[derive(Debug)]
pub struct Meter {
    schedstat: Option<OwnedFd>,
}

/// Figures at one time, or differences of them, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time on a CPU.
    pub cpu_ns: u64,
    /// Time that it could have run and another thread did; `None` if the system does not report it.
    pub wait_ns: Option<u64>,
}

impl Meter {
    /// A meter of the calling thread.
    #[expect(clippy::new_without_default, reason = "it is of the thread that makes it")]
    pub fn new() -> Self {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Meter { schedstat: open("/proc/thread-self/schedstat", flags, Mode::empty()).ok() }
    }

    /// The present figures.
    pub fn usage(&self) -> Usage {
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        let cpu_ns = (cpu.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(cpu.tv_nsec as u64);
        Usage { cpu_ns, wait_ns: self.wait_ns() }
    }

    fn wait_ns(&self) -> Option<u64> {
        let mut text = [0; 96];
        let length = pread(self.schedstat.as_ref()?, &mut text, 0).ok()?;
        waited(std::str::from_utf8(&text[..length]).ok()?)
    }
}

impl Usage {
    /// The difference from an earlier figure.
    pub fn since(self, earlier: Usage) -> Usage {
        Usage {
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            wait_ns: self.wait_ns.zip(earlier.wait_ns).map(|(now, then)| now.saturating_sub(then)),
        }
    }
}

/// The second of three figures: time on the CPU, time waiting for it, time slices.
fn waited(schedstat: &str) -> Option<u64> {
    schedstat.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_shows_as_cpu_time() {
        let meter = Meter::new();
        let before = meter.usage();
        let mut after = before;
        while after.since(before).cpu_ns < 2_000_000 {
            after = meter.usage();
        }
        assert_eq!(after.since(after), Usage { cpu_ns: 0, wait_ns: after.wait_ns.map(|_| 0) });
    }

    #[test]
    fn the_kernels_three_figures() {
        assert_eq!(waited("4051 69112 7\n"), Some(69_112));
        assert_eq!(waited(""), None);
    }
}
