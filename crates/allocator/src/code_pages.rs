//! Pages of the program's code that only its start has used.
//!
//! A page of code that was read once stays in a process until the system is short of memory. Half of what an idle gateway
//! has are pages of this kind: readers of configurations, schemas, the resolver. What is needed again comes back from the page
//! cache.

use rustix::mm::{Advice, madvise};
use std::fs;
use std::ops::Range;

/// Takes the program's code and constants out of the process's memory; what is needed comes back by itself. For the end of a start.
/// Returns the number of bytes that were mapped.
pub fn release_startup_code() -> usize {
    let (Ok(program), Ok(mappings)) = (std::env::current_exe(), fs::read_to_string("/proc/self/smaps")) else {
        return 0;
    };
    let mut bytes = 0;
    for range in unchanged(&program.to_string_lossy(), &mappings) {
        // SAFETY: the range is a private mapping of the program's file, which cannot be written, and no page of which was: each is
        // read again from the file. Nobody else unmaps it.
        #[expect(
            unsafe_code,
            reason = "the system cannot know that it is safe; measured: 14 MB of an idle gateway's 28"
        )]
        let released = unsafe {
            let start = std::ptr::with_exposed_provenance_mut(range.start);
            madvise(start, range.len(), Advice::LinuxDontNeed)
        };
        // A part that the system refuses stays as it was.
        bytes += released.map_or(0, |()| range.len());
    }
    bytes
}

/// The mappings of a program that cannot be written and are as in its file, from `/proc/PID/smaps`. What the loader has relocated is
/// not.
fn unchanged(program: &str, mappings: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut candidate = None;
    for line in mappings.lines() {
        if let Some(range) = range_of(line) {
            let is_fixed = |rest: &str| rest.starts_with("r-xp ") || rest.starts_with("r--p ");
            let is_candidate = |(_, rest): (&str, &str)| is_fixed(rest) && path_of(rest) == Some(program);
            candidate = line.split_once(' ').is_some_and(is_candidate).then_some(range);
        } else if let Some(changed) = line.strip_prefix("Anonymous:")
            && let Some(range) = candidate.take()
            && changed.trim() == "0 kB"
        {
            found.push(range);
        }
    }
    found
}

/// The addresses of a mapping, if this is its first line.
fn range_of(line: &str) -> Option<Range<usize>> {
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    let address = |text: &str| usize::from_str_radix(text, 16).ok();
    Some(address(start)?..address(end)?)
}

fn path_of(rest: &str) -> Option<&str> {
    rest.find('/').map(|at| &rest[at..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_as_in_the_programs_file_counts() {
        let mapping = |line: &str, changed: &str| format!("{line}\nSize: 4 kB\nRss: 4 kB\nAnonymous: {changed} kB\n");
        let mappings = [
            mapping("55d0b1e00000-55d0b2000000 r--p 00000000 fe:00 123 /usr/bin/stillgate", "0"),
            mapping("55d0b2000000-55d0b3600000 r-xp 00200000 fe:00 123 /usr/bin/stillgate", "0"),
            mapping("55d0b3600000-55d0b3700000 r--p 01800000 fe:00 123 /usr/bin/stillgate", "692"),
            mapping("55d0b3700000-55d0b3800000 rw-p 01900000 fe:00 123 /usr/bin/stillgate", "0"),
            mapping("7f0000000000-7f0000001000 rwxp 00000000 00:00 0", "0"),
            mapping("7f0000001000-7f0000002000 r-xp 00000000 fe:00 9 /usr/lib/libc.so.6", "0"),
            mapping("7f0000002000-7f0000003000 r-xp 00000000 fe:00 9 /opt/usr/bin/stillgate", "0"),
        ];
        let found = unchanged("/usr/bin/stillgate", &mappings.concat());
        assert_eq!(found, [0x55d0_b1e0_0000..0x55d0_b200_0000, 0x55d0_b200_0000..0x55d0_b360_0000]);
    }

    #[test]
    fn code_comes_back_when_it_runs() {
        let program = std::env::current_exe().unwrap();
        let before = fs::read(&program).unwrap();
        let code = fs::metadata(&program).unwrap().len() as usize / 100;
        assert!(release_startup_code() > code, "at least some of the file is code");
        assert_eq!(before, fs::read(&program).unwrap());
    }
}
