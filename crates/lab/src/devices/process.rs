//! The gateway's process: found by the port it listens on, asked what it has used.

use crate::error::{Error, Result};
use crate::target::accounting;
use std::fs;
use std::net::SocketAddr;

/// State of a listening socket in `/proc/net/tcp`.
const LISTENING: &str = "0A";

/// A process on this machine.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// As the kernel calls it.
    pub(crate) name: String,
}

impl Process {
    /// The one that was named, or the one that listens there; none: there is none here that we may see.
    pub(crate) fn find(asked: Option<u32>, address: SocketAddr) -> Result<Option<Process>> {
        let Some(pid) = asked.or_else(|| listener(address.port())) else { return Ok(None) };
        let name = fs::read_to_string(format!("/proc/{pid}/comm"))
            .map_err(|error| Error::new(format!("--pid {pid}: there is no such process ({error})")))?;
        Ok(Some(Process { pid, name: name.trim_end().to_owned() }))
    }

    /// CPU time so far, in microseconds.
    pub(crate) fn cpu_us(&self) -> Result<f64> {
        accounting::cpu_time_us(self.pid).map_err(|error| self.gone(&error))
    }

    /// Resident memory.
    pub(crate) fn rss_kib(&self) -> Result<u64> {
        accounting::rss_kib(self.pid).map_err(|error| self.gone(&error))
    }

    fn gone(&self, error: &std::io::Error) -> Error {
        Error::new(format!("process {} ({}) has ended or cannot be read: {error}", self.pid, self.name))
    }
}

/// Who has the listening socket of a port, in either family.
fn listener(port: u16) -> Option<u32> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let inodes: Vec<String> =
        tables.iter().flat_map(|table| table.lines().filter_map(|line| inode_of(line, port))).collect();
    if inodes.is_empty() {
        return None;
    }
    let holds = |pid: &u32| {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        descriptors.flatten().filter_map(|entry| fs::read_link(entry.path()).ok()).any(|link| {
            let link = link.to_string_lossy();
            inodes
                .iter()
                .any(|inode| link.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')) == Some(inode))
        })
    };
    let all = fs::read_dir("/proc").ok()?;
    let mut pids: Vec<u32> = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // The youngest: an older one may be about to end after an upgrade.
    pids.sort_unstable_by(|a, b| b.cmp(a));
    pids.into_iter().find(holds)
}

/// The inode of a line of `/proc/net/tcp` that is a socket listening on this port.
fn inode_of(line: &str, port: u16) -> Option<String> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (_, hexadecimal) = fields.get(1)?.rsplit_once(':')?;
    let is_it = u16::from_str_radix(hexadecimal, 16) == Ok(port) && *fields.get(3)? == LISTENING;
    is_it.then(|| fields.get(9).map(|inode| (*inode).to_owned()))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn the_listener_of_a_port_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let found = Process::find(None, listener.local_addr().unwrap()).unwrap().unwrap();
        assert_eq!(found.pid, std::process::id());
        assert!(found.cpu_us().unwrap() > 0.0 && found.rss_kib().unwrap() > 0);
    }

    #[test]
    fn a_process_that_is_not_there_is_said() {
        let error = Process::find(Some(1 << 23), "127.0.0.1:1".parse().unwrap()).unwrap_err();
        assert!(error.to_string().starts_with("--pid 8388608: there is no such process"), "{error}");
    }

    #[test]
    fn lines_of_the_kernel() {
        let line =
            "   0: 0100007F:2378 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 41230 1 0";
        assert_eq!(inode_of(line, 0x2378).as_deref(), Some("41230"));
        assert_eq!(inode_of(line, 1), None);
        assert_eq!(inode_of(&line.replace(" 0A ", " 01 "), 0x2378), None);
        assert_eq!(inode_of("  sl  local_address rem_address   st", 1), None);
    }
}
