//! The threads of a process, each by its folder in `/proc`.

use super::{Stat, Status, tree};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::PathBuf;

/// A thread that was there when it was looked for; it may have ended since.
#[derive(Debug, Clone)]
pub struct Thread {
    folder: PathBuf,
}

/// The threads of a process.
pub fn threads(pid: u32) -> io::Result<Vec<Thread>> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))?;
    Ok(tasks.flatten().map(|task| Thread { folder: task.path() }).collect())
}

impl Thread {
    /// Its name, at most 15 bytes.
    pub fn name(&self) -> Option<String> {
        Some(fs::read_to_string(self.folder.join("comm")).ok()?.trim_end().to_owned())
    }

    /// See [`Stat::state`].
    pub fn state(&self) -> Option<char> {
        Stat::of_file(&self.folder.join("stat")).ok()?.state()
    }

    /// How often it has gone to sleep so far.
    pub fn sleeps(&self) -> Option<u64> {
        Status::of_file(&self.folder.join("status")).ok()?.number("voluntary_ctxt_switches")
    }

    /// CPU time in nanoseconds, where the kernel keeps `schedstat`.
    pub(super) fn exact_ns(&self) -> Option<u64> {
        fs::read_to_string(self.folder.join("schedstat")).ok()?.split_whitespace().next()?.parse().ok()
    }

    /// CPU time in microseconds: exact where the kernel keeps `schedstat`, else to the clock tick.
    pub fn cpu_us(&self) -> Option<f64> {
        let by_ticks = || Stat::of_file(&self.folder.join("stat")).ok()?.cpu_us();
        self.exact_ns().map(|nanoseconds| nanoseconds as f64 / 1e3).or_else(by_ticks)
    }
}

/// CPU time in microseconds of each thread of a process and of its descendants.
#[derive(Debug, Clone)]
pub struct ThreadTimes(HashMap<PathBuf, f64>);

/// The CPU time so far of each thread that runs now.
pub fn thread_times(pid: u32) -> io::Result<ThreadTimes> {
    let mut all = threads(pid)?;
    // A descendant may have ended since the tree was read.
    all.extend(tree(pid).into_iter().skip(1).filter_map(|child| threads(child).ok()).flatten());
    Ok(ThreadTimes(all.into_iter().filter_map(|thread| Some((thread.folder.clone(), thread.cpu_us()?))).collect()))
}

impl ThreadTimes {
    /// What was used between two looks, in microseconds; the time of a thread that ended meanwhile is not known.
    pub fn since(&self, before: &ThreadTimes) -> f64 {
        self.0.iter().map(|(thread, us)| us - before.0.get(thread).unwrap_or(&0.0)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_told_apart_by_name() {
        let own = std::process::id();
        let (stop, stopped) = std::sync::mpsc::sync_channel::<()>(0);
        let named = std::thread::Builder::new().name("a-thread".to_owned());
        let thread = named.spawn(move || stopped.recv()).unwrap();
        let found = || threads(own).unwrap().into_iter().find(|thread| thread.name().as_deref() == Some("a-thread"));
        // It gives itself its name when it runs.
        let found = loop {
            if let Some(found) = found().filter(|thread| thread.state() == Some('S')) {
                break found;
            }
        };
        assert!(found.sleeps().is_some() && found.cpu_us().is_some());
        drop(stop);
        assert!(thread.join().unwrap().is_err());
    }

    #[test]
    fn time_passes_for_threads() {
        let own = std::process::id();
        let before = thread_times(own).unwrap();
        while thread_times(own).unwrap().since(&before) <= 0.0 {}
    }
}
