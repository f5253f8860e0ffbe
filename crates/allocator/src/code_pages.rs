//! Pages of the program's code that only its start has used.
//!
//! A page of code that was read once stays in a process until the system is short of memory. Half of what an idle gateway
//! has are pages of this kind: readers of configurations, schemas, the resolver. What is needed again comes back from the page
//! cache.

use rustix::mm::{Advice, madvise};
use std::fs;
use std::ops::Range;

/// Takes the program's code out of the process's memory; what runs on comes back by itself. For the end of a start.
pub fn release_startup_code() {
    let (Ok(program), Ok(mappings)) = (std::env::current_exe(), fs::read_to_string("/proc/self/maps")) else { return };
    for range in code_of(&program.to_string_lossy(), &mappings) {
        // SAFETY: the range is a private mapping of the program's file that can be read and executed, and not written: no page of
        // it differs from the file (there are no relocations in code), so each is read again from there. Nobody else unmaps it.
        #[expect(
            unsafe_code,
            reason = "the system cannot know that it is safe; measured: 14 MB of an idle gateway's 28"
        )]
        let released = unsafe {
            let start = std::ptr::with_exposed_provenance_mut(range.start);
            madvise(start, range.len(), Advice::LinuxDontNeed)
        };
        if released.is_err() {
            // It stays as it was.
            return;
        }
    }
}

/// The mappings of a program's code, from `/proc/PID/maps`.
fn code_of(program: &str, mappings: &str) -> Vec<Range<usize>> {
    let code = mappings.lines().filter_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let is_code = rest.starts_with("r-xp ") && rest.split_once('/').is_some_and(|(_, path)| path == &program[1..]);
        let (start, end) = range.split_once('-')?;
        let address = |text: &str| usize::from_str_radix(text, 16).ok();
        is_code.then_some(address(start)?..address(end)?)
    });
    code.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_the_program_counts() {
        let mappings = "\
55d0b1e00000-55d0b2000000 r--p 00000000 fe:00 123 /usr/bin/stillgate
55d0b2000000-55d0b3600000 r-xp 00200000 fe:00 123 /usr/bin/stillgate
55d0b3600000-55d0b3700000 r--p 01800000 fe:00 123 /usr/bin/stillgate
7f0000000000-7f0000001000 rwxp 00000000 00:00 0
7f0000001000-7f0000002000 r-xp 00000000 fe:00 9 /usr/lib/libc.so.6
7f0000002000-7f0000003000 r-xp 00000000 fe:00 9 /opt/usr/bin/stillgate
";
        assert_eq!(code_of("/usr/bin/stillgate", mappings), [0x55d0_b200_0000..0x55d0_b360_0000]);
    }

    /// Resident code of this program, in KiB.
    fn resident() -> usize {
        let program = std::env::current_exe().unwrap().display().to_string();
        let mut is_code = false;
        let mut sum = 0;
        for line in fs::read_to_string("/proc/self/smaps").unwrap().lines() {
            if line.contains(" r-xp ") || line.contains(" r--p ") || line.contains(" rw-p ") {
                is_code = line.contains(" r-xp ") && line.ends_with(&program);
            } else if let Some(size) = line.strip_prefix("Rss:").filter(|_| is_code) {
                sum += size.trim().trim_end_matches(" kB").parse::<usize>().unwrap();
            }
        }
        sum
    }

    #[test]
    fn code_comes_back_when_it_runs() {
        // Reads pages that nothing else here does.
        let program = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(program.starts_with(b"\x7fELF"));
        let before = resident();
        release_startup_code();
        let after = resident();
        assert!(after <= before, "{before} KiB, then {after}");
        assert_eq!(code_of("/a", "10-20 r-xp 0 0:0 1 /a\n"), [0x10..0x20]);
    }
}
