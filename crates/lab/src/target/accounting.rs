//! What a tree of processes has used, from `/proc`: CPU time and memory.
//!
//! Taken from outside, so the same for every program. Two lower bounds of CPU time are there: `schedstat` of each thread, in
//! nanoseconds but without the threads that have ended, and `stat` of the process, with them but cut to clock ticks. The
//! larger of the two is the nearer. Children that were waited for are only in `stat`.

use std::fs;
use std::io;
use std::path::Path;

/// A process and its descendants, itself first. Those that end while we look are left out.
pub(super) fn tree(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(&parent) = all.get(next) {
        next += 1;
        let Ok(tasks) = fs::read_dir(format!("/proc/{parent}/task")) else { continue };
        for task in tasks.flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
    all
}

/// CPU time of a process and its descendants so far, in microseconds.
pub(crate) fn cpu_time_us(pid: u32) -> io::Result<f64> {
    let tick_us = 1e6 / rustix::param::clock_ticks_per_second() as f64;
    let own = process_cpu_us(pid, tick_us)?;
    // A descendant may have ended since the tree was read; its parent's `stat` has its time by then.
    let others = tree(pid).into_iter().skip(1).filter_map(|child| process_cpu_us(child, tick_us).ok());
    Ok(own + others.sum::<f64>())
}

/// Resident memory of a process and its descendants. Pages of files and shared memory count once, as in the process that
/// has most of them: workers share them with their master.
pub(crate) fn rss_kib(pid: u32) -> io::Result<u64> {
    let sum = tree_resident(pid)?;
    Ok(sum.anonymous + sum.file + sum.shared)
}

/// As [`rss_kib`], without pages of files. How many of its binary's pages a process has depends on how the page cache holds the file.
pub(super) fn anonymous_kib(pid: u32) -> io::Result<u64> {
    let sum = tree_resident(pid)?;
    Ok(sum.anonymous + sum.shared)
}

fn tree_resident(pid: u32) -> io::Result<Resident> {
    let mut sum = resident(&fs::read_to_string(format!("/proc/{pid}/status"))?);
    for child in tree(pid).into_iter().skip(1) {
        let Ok(status) = fs::read_to_string(format!("/proc/{child}/status")) else { continue };
        let of = resident(&status);
        sum.anonymous += of.anonymous;
        sum.file = sum.file.max(of.file);
        sum.shared = sum.shared.max(of.shared);
    }
    Ok(sum)
}

/// Whether a process runs: it is there and not merely waiting to be taken note of by its parent.
pub(super) fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().and_then(|fields| fields.split_whitespace().next()).is_some_and(|state| state != "Z")
}

fn process_cpu_us(pid: u32, tick_us: f64) -> io::Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let ticks = ticks(&stat).ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat: not as proc(5) has it")))?;
    let exact = threads_ns(Path::new(&format!("/proc/{pid}/task"))) as f64 / 1e3;
    Ok(exact.max(ticks.own as f64 * tick_us) + ticks.children as f64 * tick_us)
}

/// Of all threads there are; zero where the kernel does not keep it.
fn threads_ns(tasks: &Path) -> u64 {
    let Ok(tasks) = fs::read_dir(tasks) else { return 0 };
    let texts = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok());
    texts.filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok()).sum()
}

#[derive(Debug, PartialEq)]
struct Ticks {
    own: u64,
    /// Of children that ended and were waited for.
    children: u64,
}

/// The CPU time in a `stat` file, user and system.
fn ticks(stat: &str) -> Option<Ticks> {
    // The command's name may hold anything but ends at the last bracket; then come fields 3 and up.
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Ticks { own: field(14)? + field(15)?, children: field(16)? + field(17)? })
}

#[derive(Debug, Default, PartialEq)]
struct Resident {
    anonymous: u64,
    file: u64,
    shared: u64,
}

/// From a `status` file, in KiB; a process that has ended but was not waited for has none.
fn resident(status: &str) -> Resident {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    Resident { anonymous: field("RssAnon:"), file: field("RssFile:"), shared: field("RssShmem:") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_stand_after_the_name() {
        #[track_caller]
        fn check(stat: &str, expected: Option<(u64, u64)>) {
            assert_eq!(ticks(stat), expected.map(|(own, children)| Ticks { own, children }), "{stat}");
        }
        check("7 (nginx) S 1 7 7 0 -1 4194560 100 0 0 0 11 5 2 1 20 0 1 0 99", Some((16, 3)));
        check("7 (a) b (c)) S 1 7 7 0 -1 4194560 100 0 0 0 1 0 0 0 20 0 1 0 99", Some((1, 0)));
        check("7 (nginx) S 1", None);
        check("", None);
    }

    #[test]
    fn resident_memory_by_its_parts() {
        let status = "Name:\tx\nVmRSS:\t    60 kB\nRssAnon:\t      10 kB\nRssFile:\t    20 kB\nRssShmem:\t    30 kB\n";
        assert_eq!(resident(status), Resident { anonymous: 10, file: 20, shared: 30 });
        assert_eq!(resident("Name:\tx\nState:\tZ (zombie)\n"), Resident::default());
    }

    #[test]
    fn this_process_has_used_something() {
        let own = std::process::id();
        assert_eq!(tree(own)[0], own);
        assert!(runs(own));
        let anonymous = anonymous_kib(own).unwrap();
        assert!(anonymous > 0 && rss_kib(own).unwrap() > anonymous);
        let before = cpu_time_us(own).unwrap();
        while cpu_time_us(own).unwrap() <= before {}
    }

    #[test]
    fn a_process_that_is_not_there() {
        // Above the kernel's largest `pid_max`.
        let absent = 1 << 23;
        assert!(!runs(absent));
        assert!(cpu_time_us(absent).is_err());
        assert!(rss_kib(absent).is_err() && anonymous_kib(absent).is_err());
    }
}
