//! What `/proc` says: of a process, of a tree of processes, of threads and of the machine. The only reader of it.
//!
//! Figures are taken from outside, so they are the same for every program. Files are read as proc(5) describes them.

pub mod machine;
mod memory;
mod meter;
mod sockets;
mod stat;
mod status;
mod threads;
mod times;

pub use memory::{Memory, anonymous_kib, memory, rss_kib};
pub use meter::{Meter, Usage};
pub use sockets::{TcpSocket, listener, tcp_sockets};
pub use stat::Stat;
pub use status::Status;
pub use threads::{Thread, ThreadTimes, thread_times, threads};
pub use times::{CpuTime, cpu_time, cpu_time_us, self_and_children, ticks_us};

use std::fs;
use std::io;
use std::path::Path;

/// Processes whose parent this is, of whichever of its threads.
pub fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let of = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
    let texts: Vec<String> = tasks.flatten().map(of).collect();
    texts.iter().flat_map(|text| text.split_whitespace()).filter_map(|child| child.parse().ok()).collect()
}

/// A process and its descendants, itself first. Those that end while we look are left out.
pub fn tree(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(&parent) = all.get(next) {
        next += 1;
        all.extend(children(parent));
    }
    all
}

/// All processes that we may see.
pub fn all() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Whether a process runs: it is there and not merely waiting for its parent to notice its end.
pub fn runs(pid: u32) -> bool {
    Stat::read(pid).is_ok_and(|stat| !matches!(stat.state(), None | Some('Z' | 'X')))
}

/// The name of a process, as the kernel has it.
pub fn name(pid: u32) -> io::Result<String> {
    Ok(fs::read_to_string(format!("/proc/{pid}/comm"))?.trim_end().to_owned())
}

/// The words with which a process was started, with a zero byte after each; empty where it has ended.
pub fn command_line(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).into_owned()
}

/// How many descriptors a process has open; `self` is this one.
pub fn descriptors(process: impl std::fmt::Display) -> io::Result<usize> {
    Ok(fs::read_dir(format!("/proc/{process}/fd"))?.count())
}

/// A file whose text is not as proc(5) has it.
fn strange(path: &Path) -> io::Error {
    io::Error::other(format!("{}: not as proc(5) has it", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Above the kernel's largest `pid_max`.
    pub(super) const ABSENT: u32 = 1 << 23;

    #[test]
    fn this_process_is_there() {
        let own = std::process::id();
        assert_eq!(tree(own)[0], own);
        assert!(runs(own) && all().contains(&own));
        assert!(!name(own).unwrap().is_empty() && !command_line(own).is_empty());
        assert!(descriptors("self").unwrap() >= 3);
    }

    #[test]
    fn a_process_that_is_not_there() {
        assert!(!runs(ABSENT));
        assert!(name(ABSENT).is_err() && command_line(ABSENT).is_empty() && descriptors(ABSENT).is_err());
        assert_eq!(tree(ABSENT), [ABSENT]);
    }

    #[test]
    fn children_are_found() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        assert!(children(std::process::id()).contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!runs(child.id()));
    }
}
