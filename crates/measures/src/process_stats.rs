//! What the system reports about this process.

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

/// When the process started.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    /// In clock ticks since boot, which together with the process id is unique.
    pub ticks: u64,
    /// In seconds since 1970.
    pub unix_s: f64,
}

/// The resources that the process uses now; `None`: the system does not report it.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// CPU time since the start, in seconds.
    pub cpu_s: f64,
    /// Resident memory.
    pub resident_bytes: Option<u64>,
    /// Address space.
    pub virtual_bytes: Option<u64>,
    /// Open descriptors.
    pub open_fds: Option<u64>,
    /// The limit of descriptors.
    pub max_fds: Option<u64>,
}

/// Positions after the program's name in `/proc/PID/stat`; the first one is field 3 (proc_pid_stat(5)).
const START_TIME: usize = 22 - 3;
const VIRTUAL_BYTES: usize = 23 - 3;
const RESIDENT_PAGES: usize = 24 - 3;

/// When this process started.
pub fn start() -> io::Result<Start> {
    let missing = || io::Error::new(io::ErrorKind::InvalidData, "no start time");
    let ticks = field(&fs::read_to_string("/proc/self/stat")?, START_TIME).ok_or_else(missing)?;
    let boot = fs::read_to_string("/proc/stat")?;
    let boot_s: u64 =
        boot.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok()).ok_or_else(missing)?;
    Ok(Start { ticks, unix_s: boot_s as f64 + ticks as f64 / clock_ticks_per_second() as f64 })
}

/// The resources that this process uses now.
pub fn usage() -> Usage {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    Usage {
        cpu_s: cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
        resident_bytes: field(&stat, RESIDENT_PAGES).map(|pages| pages * page_size() as u64),
        virtual_bytes: field(&stat, VIRTUAL_BYTES),
        open_fds: open_fds(),
        max_fds: getrlimit(Resource::Nofile).current,
    }
}

/// The machine's name.
pub fn hostname() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// Milliseconds since 1970; an earlier clock counts as 1970.
pub fn now_unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn field(stat: &str, position: usize) -> Option<u64> {
    // The name is in parentheses and may contain parentheses itself.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split_ascii_whitespace().nth(position)?.parse().ok()
}

/// Linux 6.2 and later report the number as the folder's size; counting tens of thousands of entries takes milliseconds.
fn open_fds() -> Option<u64> {
    const FOLDER: &str = "/proc/self/fd";
    match fs::metadata(FOLDER) {
        Ok(folder) if folder.len() > 0 => Some(folder.len()),
        // The descriptor that reads the folder is not counted.
        _ => fs::read_dir(FOLDER).ok().map(|entries| (entries.count() as u64).saturating_sub(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_any_name() {
        let rest = (3..30).map(|number| number.to_string()).collect::<Vec<_>>().join(" ");
        for name in ["stillgate", "a b", "x) S 1"] {
            assert_eq!(field(&format!("7 ({name}) {rest}"), START_TIME), Some(22));
        }
        assert_eq!(field("7 (x) S", START_TIME), None);
    }

    #[test]
    fn this_process_is_known() {
        let now_s = now_unix_ms() as f64 / 1000.0;
        let start = start().unwrap();
        assert!(start.unix_s <= now_s + 2.0 && start.unix_s > now_s - 3600.0 * 24.0, "{start:?} {now_s}");
        let usage = usage();
        assert!(usage.cpu_s > 0.0 && usage.resident_bytes > Some(0) && usage.virtual_bytes > usage.resident_bytes);
        assert!(usage.open_fds > Some(2) && usage.open_fds < usage.max_fds, "{usage:?}");
    }
}
