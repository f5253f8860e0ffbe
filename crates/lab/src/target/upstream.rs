//! The upstream of the gateways: this very program as a bare responder, on the load's CPUs.
//!
//! So an experiment needs no other server, and the upstream costs as little as possible. It ends with us, when its
//! input closes.

use super::RunningTarget;
use crate::error::{Error, Result};
use crate::hosts::{Machines, RemoteProgram};
use crate::result::run::Placement;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};
use stillgate_rig::Running;
use tempfile::TempDir;

const START_TIMEOUT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(5);

/// Printed by the responder before its address.
const ANNOUNCEMENT: &str = "listening on ";

/// A running responder; stopped when dropped.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    process: Process,
}

#[derive(Debug)]
enum Process {
    // In this order: it ends before its folder does.
    Here { process: Box<Running>, _folder: TempDir },
    There(Arc<Machines>, RemoteProgram),
    Other(Box<RunningTarget>),
}

impl Upstream {
    /// Any program that answers, in place of the responder.
    pub(crate) fn other(started: RunningTarget) -> Upstream {
        Upstream { address: started.address, process: Process::Other(Box::new(started)) }
    }

    /// An upstream with bodies of this length, on its machine.
    pub(crate) fn start(
        placement: &Placement,
        body_bytes: usize,
        machines: Option<&Arc<Machines>>,
    ) -> Result<Upstream> {
        let Some(machines) = machines else {
            return Upstream::start_here(placement, body_bytes, IpAddr::V4(Ipv4Addr::LOCALHOST));
        };
        match &machines.upstream {
            Some(host) => {
                let (held, address) = host.agent.start_upstream(host.ip, body_bytes)?;
                Ok(Upstream { address, process: Process::There(Arc::clone(machines), held) })
            }
            // A remote target must reach it.
            None => {
                let ip = machines.target.as_ref().map_or(Ok(Ipv4Addr::LOCALHOST.into()), |host| own_ip(host.ip))?;
                Upstream::start_here(placement, body_bytes, ip)
            }
        }
    }

    /// An upstream on this machine.
    pub(crate) fn start_here(placement: &Placement, body_bytes: usize, ip: IpAddr) -> Result<Upstream> {
        let own = std::env::current_exe()
            .map_err(|error| format!("the upstream: this program cannot find itself to start it: {error}"))?;
        Upstream::start_program(&own, placement, body_bytes, ip)
    }

    /// An upstream with `program` in place of this one.
    fn start_program(program: &Path, placement: &Placement, body_bytes: usize, ip: IpAddr) -> Result<Upstream> {
        let directory = tempfile::tempdir()
            .map_err(|error| format!("{}: no folder can be made in it: {error}", std::env::temp_dir().display()))?;
        let program = program.to_string_lossy();
        let length = body_bytes.to_string();
        let listen = SocketAddr::new(ip, 0).to_string();
        let words = [&program, "respond", "--address", &listen, "--body-bytes", &length, "--until-stdin-closes"];
        let words = words.map(str::to_owned);
        let log = directory.path().join("log");
        let mut process = Running::spawn("the upstream", &words, &placement.load_cpus, &log, Stdio::piped())?;
        let address = announced(&mut process)?;
        Ok(Upstream { address, process: Process::Here { process: Box::new(process), _folder: directory } })
    }

    /// The process, then its descendants, if they are on this machine.
    pub(crate) fn pids(&self) -> Vec<u32> {
        match &self.process {
            Process::Here { process, .. } => process.pids(),
            Process::There(..) => Vec::new(),
            Process::Other(started) => started.pids().unwrap_or_default(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Process::There(machines, held) = self
            && let Some(host) = &machines.upstream
        {
            host.agent.stop(held);
        }
    }
}

/// The IP of the interface that leads to another machine. Nothing is sent.
fn own_ip(other: IpAddr) -> Result<IpAddr> {
    let any: IpAddr = if other.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let found = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((other, 9))?;
        socket.local_addr()
    });
    let found = found.map_err(|error| Error::new(format!("no route leads from here to {other}: {error}")))?;
    Ok(found.ip())
}

/// Waits for the line with the address.
fn announced(process: &mut Running) -> Result<SocketAddr> {
    let begin = Instant::now();
    loop {
        let log = process.log();
        // Only a complete line has the complete address.
        if let Some((line, _)) = log.split_once('\n') {
            let address = line.strip_prefix(ANNOUNCEMENT).and_then(|address| address.parse().ok());
            return address.ok_or_else(|| {
                Error::new(format!("the upstream: its first line should be `{ANNOUNCEMENT}ADDRESS` and is: {line}"))
            });
        }
        process.alive()?;
        if begin.elapsed() > START_TIMEOUT {
            return Err(format!("the upstream: it does not listen after {} s", START_TIMEOUT.as_secs()).into());
        }
        sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Starts a script in place of the responder. A child writes it: a program that is open for writing cannot be
    /// started, and here other threads start programs that inherit open files.
    fn start(script: &str) -> Result<Upstream> {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("responder");
        let write = "printf '#!/bin/sh\n%s\n' \"$1\" > \"$0\" && chmod +x \"$0\"";
        let written = Command::new("sh").args(["-c", write]).arg(&program).arg(script).status().unwrap();
        assert!(written.success());
        Upstream::start_program(&program, &Placement::default(), 100, Ipv4Addr::LOCALHOST.into())
    }

    #[test]
    fn its_address_is_what_it_announces() {
        let upstream = start("echo listening on 127.0.0.1:4321; echo \"$@\" >&2; cat >/dev/null").unwrap();
        assert_eq!(upstream.address, SocketAddr::from(([127, 0, 0, 1], 4321)));
        assert!(!upstream.pids().is_empty());
    }

    #[test]
    fn another_machine_reaches_it_by_the_way_that_leads_there() {
        assert_eq!(own_ip([127, 0, 0, 1].into()).unwrap(), IpAddr::from([127, 0, 0, 1]));
    }

    #[test]
    fn it_answers_as_configured_and_ends_on_request() {
        let error = start("echo \"$@\" >&2; exit 1").unwrap_err().to_string();
        assert!(error.contains("respond --address 127.0.0.1:0 --body-bytes 100 --until-stdin-closes"), "{error}");
    }

    #[test]
    fn another_program_is_not_taken_for_it() {
        let error = start("echo hello; cat >/dev/null").unwrap_err();
        assert_eq!(error.to_string(), "the upstream: its first line should be `listening on ADDRESS` and is: hello");
    }
}
