//! Memory of a tree of processes.

use super::{Status, strange, tree};
use std::fs;
use std::io;
use std::path::Path;

/// Memory of a process and its descendants, page by page: exact, and dear to find out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Resident; what they share counts for each.
    pub rss_kib: u64,
    /// Resident; what they share counts once.
    pub pss_kib: u64,
}

/// See [`Memory`].
pub fn memory(pid: u32) -> io::Result<Memory> {
    let mut sum = memory_of_one(pid)?;
    // A descendant may have ended since the tree was read.
    for Memory { rss_kib, pss_kib } in tree(pid).into_iter().skip(1).filter_map(|child| memory_of_one(child).ok()) {
        sum = Memory { rss_kib: sum.rss_kib + rss_kib, pss_kib: sum.pss_kib + pss_kib };
    }
    Ok(sum)
}

fn memory_of_one(pid: u32) -> io::Result<Memory> {
    let file = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&file)?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let (rss_kib, pss_kib) = field("Rss:").zip(field("Pss:")).ok_or_else(|| strange(Path::new(&file)))?;
    Ok(Memory { rss_kib, pss_kib })
}

/// Resident memory of a process and its descendants. Pages of files and shared memory count once, as in the process that
/// has most of them: workers share them with their master.
pub fn rss_kib(pid: u32) -> io::Result<u64> {
    let sum = resident_of_tree(pid)?;
    Ok(sum.anonymous + sum.file + sum.shared)
}

/// As [`rss_kib`], without pages of files. How many of its binary's pages a process has depends on how the page cache holds the file.
pub fn anonymous_kib(pid: u32) -> io::Result<u64> {
    let sum = resident_of_tree(pid)?;
    Ok(sum.anonymous + sum.shared)
}

/// In KiB; a process that has ended but was not waited for has none.
#[derive(Debug, Default, PartialEq)]
struct Resident {
    anonymous: u64,
    file: u64,
    shared: u64,
}

impl Resident {
    fn of(status: &Status) -> Resident {
        let kib = |name| status.number(name).unwrap_or(0);
        Resident { anonymous: kib("RssAnon"), file: kib("RssFile"), shared: kib("RssShmem") }
    }
}

fn resident_of_tree(pid: u32) -> io::Result<Resident> {
    let mut sum = Resident::of(&Status::read(pid)?);
    for child in tree(pid).into_iter().skip(1) {
        let Ok(status) = Status::read(child) else { continue };
        let own = Resident::of(&status);
        sum.anonymous += own.anonymous;
        sum.file = sum.file.max(own.file);
        sum.shared = sum.shared.max(own.shared);
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::super::tests::ABSENT;
    use super::*;

    #[test]
    fn this_process_has_some() {
        let own = std::process::id();
        let anonymous = anonymous_kib(own).unwrap();
        assert!(anonymous > 0 && rss_kib(own).unwrap() > anonymous);
        let Memory { rss_kib, pss_kib } = memory(own).unwrap();
        assert!(pss_kib > 0 && rss_kib >= pss_kib);
    }

    #[test]
    fn a_process_that_is_not_there_has_none() {
        assert!(rss_kib(ABSENT).is_err() && anonymous_kib(ABSENT).is_err() && memory(ABSENT).is_err());
    }
}
