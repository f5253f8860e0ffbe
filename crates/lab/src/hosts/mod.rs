//! `--hosts FILE`: target and upstream on separate machines, reached by ssh; the generator is this machine.
//!
//! [`file`] reads the machines, and the commands that bring them up and down. On each machine this very program runs as
//! an [`agent`], copied there and started by ssh; it starts, watches and ends programs with the code that does it
//! locally, and [`serve`] is its side of the conversation. The system's ssh is used, with the user's keys and settings.

mod agent;
mod file;
mod messages;
mod serve;

pub(crate) use agent::{Agent, RemoteTarget};
pub(crate) use serve::serve;

use crate::error::{Error, Result};
use crate::result::environment::HostEnvironment;
use crate::target::Spec;
use file::{Hosts, Machine};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// A machine with its agent.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) agent: Agent,
    /// Address at which programs started there listen.
    pub(crate) ip: IpAddr,
}

/// The machines of an experiment, up until this is dropped.
#[derive(Debug)]
pub(crate) struct Machines {
    // In this order: agents end before their machines do.
    pub(crate) target: Option<Host>,
    pub(crate) upstream: Option<Host>,
    _rented: Rented,
}

/// The command that brings the machines down again.
#[derive(Debug)]
struct Rented {
    down: Option<String>,
    values: BTreeMap<String, String>,
}

/// Brings the machines of a hosts file up, and starts an agent on each.
pub(crate) fn up(path: &Path) -> Result<Arc<Machines>> {
    let hosts = Hosts::read(path)?;
    // From here on they are brought down even after a failure.
    let mut rented = Rented { down: hosts.down.clone(), values: BTreeMap::new() };
    if let Some(up) = &hosts.up {
        eprintln!("bringing machines up: {up}");
        rented.values = brought_up(up).map_err(|error| error.context(format!("{}: up", path.display())))?;
    }
    let host = |role: &str, machine: &Option<Machine>| {
        let connected = machine.as_ref().map(|machine| connect(role, machine, &rented.values)).transpose();
        connected.map_err(|error| error.context(format!("{}: {role}", path.display())))
    };
    let (target, upstream) = (host("target", &hosts.target)?, host("upstream", &hosts.upstream)?);
    Ok(Arc::new(Machines { target, upstream, _rented: rented }))
}

/// Whether a hosts file gives the target a separate machine.
pub(crate) fn has_target(path: &Path) -> Result<bool> {
    Ok(Hosts::read(path)?.target.is_some())
}

impl Machines {
    /// As result files keep them.
    pub(crate) fn environments(&self) -> Vec<HostEnvironment> {
        let of = |(role, host): (&str, &Option<Host>)| {
            let host = host.as_ref()?;
            let (ip, environment) = (host.ip.to_string(), host.agent.environment.clone());
            Some(HostEnvironment { role: role.to_owned(), ip, environment })
        };
        [("target", &self.target), ("upstream", &self.upstream)].into_iter().filter_map(of).collect()
    }
}

/// Makes these programs run on the target's machine, copied there if they are local files.
pub(crate) fn place<'a>(machines: &Arc<Machines>, specs: impl Iterator<Item = &'a mut Spec>) -> Result {
    for spec in specs {
        spec.machines = Some(Arc::clone(machines));
        if let Some(host) = &machines.target {
            spec.ip = Some(host.ip);
            host.agent.copy_program(spec).map_err(|error| error.context(&spec.name))?;
        }
    }
    Ok(())
}

fn connect(role: &str, machine: &Machine, values: &BTreeMap<String, String>) -> Result<Host> {
    let (ssh, address) = (file::fill(&machine.ssh, values)?, file::fill(&machine.address, values)?);
    let ip = address.parse().map_err(|_| Error::new(format!("address: {address:?} is not an IP address")))?;
    eprintln!("{role}: connecting to {ssh}");
    Ok(Host { agent: Agent::connect(&ssh)?, ip })
}

/// The `NAME=VALUE` lines that the command prints.
fn brought_up(command: &str) -> Result<BTreeMap<String, String>> {
    let output = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| Error::new(format!("cannot run {command:?}: {error}")))?;
    if !output.status.success() {
        return Err(Error::new(format!("{command:?} failed ({})", output.status)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let is_name =
        |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let pairs = text.lines().filter_map(|line| line.split_once('=')).filter(|(name, _)| is_name(name));
    Ok(pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
}

impl Drop for Rented {
    fn drop(&mut self) {
        let Some(down) = &self.down else { return };
        eprintln!("bringing machines down: {down}");
        let ended = Command::new("sh").args(["-c", down]).envs(&self.values).stdin(Stdio::null()).status();
        // There is no caller to report to; running machines cost money, so it is printed.
        match ended {
            Ok(status) if status.success() => {}
            Ok(status) => eprintln!("WARNING: {down:?} failed ({status}); the machines may still be up"),
            Err(error) => eprintln!("WARNING: cannot run {down:?}: {error}; the machines may still be up"),
        }
    }
}
