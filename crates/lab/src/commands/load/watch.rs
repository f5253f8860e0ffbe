//! What `--watch` reads of a process at the end of each interval of a run.

use crate::error::{Error, Result};
use crate::result::load::WatchSample;
use std::time::{Duration, Instant};
use stillgate_rig::proc;

/// A process and its descendants.
pub(super) struct Watch {
    pid: u32,
    /// When the process was read last, with its CPU time until then.
    before: (Instant, f64),
    pub(super) samples: Vec<WatchSample>,
}

impl Watch {
    pub(super) fn of(pid: u32) -> Result<Watch> {
        let cpu_us = proc::cpu_time_us(pid)
            .map_err(|error| Error::new(format!("--watch {pid}: {error}; is it the number of a running process?")))?;
        Ok(Watch { pid, before: (Instant::now(), cpu_us), samples: Vec::new() })
    }

    /// Reads the process; once it has ended, nothing more is added.
    pub(super) fn sample(&mut self, at: Duration) {
        if let Ok(sample) = self.read(at) {
            self.samples.push(sample);
        }
    }

    fn read(&mut self, at: Duration) -> std::io::Result<WatchSample> {
        let cpu_us = proc::cpu_time_us(self.pid)?;
        let now = Instant::now();
        let (then, cpu_us_then) = std::mem::replace(&mut self.before, (now, cpu_us));
        let passed_us = now.duration_since(then).as_secs_f64() * 1e6;
        // A descendant may have ended since the tree was read.
        let descriptors = proc::tree(self.pid).into_iter().filter_map(|pid| proc::descriptors(pid).ok()).sum();
        Ok(WatchSample {
            at_s: at.as_secs_f64(),
            rss_kib: proc::rss_kib(self.pid)?,
            anonymous_kib: proc::anonymous_kib(self.pid)?,
            descriptors,
            // A child that ended takes its CPU time with it.
            cpu_cores: ((cpu_us - cpu_us_then) / passed_us.max(1.0)).max(0.0),
        })
    }
}
