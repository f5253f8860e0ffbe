//! `/proc/PID/status`: a name and a value a line.

use std::fmt::Display;
use std::fs;
use std::io;
use std::path::Path;

/// The values of a `status` file.
#[derive(Debug, Clone)]
pub struct Status(String);

impl Status {
    /// The status of a process: a number or `self`.
    pub fn read(process: impl Display) -> io::Result<Status> {
        Status::of_file(Path::new(&format!("/proc/{process}/status")))
    }

    pub(super) fn of_file(file: &Path) -> io::Result<Status> {
        Ok(Status(fs::read_to_string(file)?))
    }

    /// A value, by its name without the colon.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    /// A value that is a number, with or without a unit. A process that has ended has none of its memory.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.value(name)?.split_whitespace().next()?.parse().ok()
    }

    /// Whether it ignores a signal.
    pub fn ignores(&self, signal: i32) -> bool {
        // A bit a signal, in hexadecimal.
        let mask = self.value("SigIgn").and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
        let bit = u32::try_from(signal).ok().and_then(|signal| signal.checked_sub(1));
        bit.is_some_and(|bit| mask.checked_shr(bit).unwrap_or(0) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_by_their_names() {
        let status = Status("Name:\tx\nVmRSS:\t    60 kB\nVmRSSx:\t1\nSigIgn:\t0000000000001003\n".to_owned());
        assert_eq!(status.value("Name"), Some("x"));
        assert_eq!((status.number("VmRSS"), status.number("VmHWM"), status.number("Name")), (Some(60), None, None));
        let ignored: Vec<i32> = (-1..70).filter(|signal| status.ignores(*signal)).collect();
        assert_eq!(ignored, [1, 2, 13]);
        assert!(!Status(String::new()).ignores(1));
    }

    #[test]
    fn this_process_has_one() {
        assert!(Status::read("self").unwrap().number("VmRSS").unwrap() > 0);
    }
}
