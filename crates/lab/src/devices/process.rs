//! The gateway's process: found by its listening port, and read for its CPU time and memory.

use crate::error::{Error, Result};
use std::net::SocketAddr;
use stillgate_rig::proc;

/// A process on this machine.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Its name in the kernel.
    pub(crate) name: String,
}

impl Process {
    /// The given process, or the one that listens at the address; `None` if this machine has none that we may see.
    pub(crate) fn find(asked: Option<u32>, address: SocketAddr) -> Result<Option<Process>> {
        let Some(pid) = asked.or_else(|| proc::listener(address.port())) else { return Ok(None) };
        let name =
            proc::name(pid).map_err(|error| Error::new(format!("--pid {pid}: no process has this id ({error})")))?;
        Ok(Some(Process { pid, name }))
    }

    /// CPU time so far, in microseconds.
    pub(crate) fn cpu_us(&self) -> Result<f64> {
        proc::cpu_time_us(self.pid).map_err(|error| self.gone(&error))
    }

    /// Resident memory.
    pub(crate) fn rss_kib(&self) -> Result<u64> {
        proc::rss_kib(self.pid).map_err(|error| self.gone(&error))
    }

    fn gone(&self, error: &std::io::Error) -> Error {
        Error::new(format!("process {} ({}) has ended or cannot be read: {error}", self.pid, self.name))
    }
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
    fn a_missing_process_is_reported() {
        let error = Process::find(Some(1 << 23), "127.0.0.1:1".parse().unwrap()).unwrap_err();
        assert!(error.to_string().starts_with("--pid 8388608: no process has this id"), "{error}");
    }
}
