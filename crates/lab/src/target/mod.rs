//! The measured programs: how each is configured, started on its CPUs, watched and stopped.
//!
//! Every built-in gateway gets one worker, connections kept to the upstream and no logs, as its manual advises: a peer
//! that is configured badly makes a comparison worthless. The configuration is kept in the result, so a reader can
//! judge it. Requests to a target, and their results, are decided elsewhere.

#[cfg(test)]
mod end_to_end;
mod gateways;
mod nginx;
pub(crate) mod placement;
mod program;
mod series;
mod start;
mod upstream;

use crate::error::Result;
use crate::hosts::{Agent, Machines, RemoteProgram};
use crate::result::run::{Placement, Subject};
pub(crate) use program::sha256;
use serde::{Deserialize, Serialize};
pub(crate) use series::{make_series, mix};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use stillgate_rig::Running;
use stillgate_rig::callgrind::{Counter, Threads};
use tempfile::TempDir;
pub(crate) use upstream::Upstream;

/// The path of WebSocket tunnels.
pub(crate) const TUNNEL_PATH: &str = "/tunnel";

/// Connections of a target besides its tunnels.
const OTHER_CONNECTIONS: usize = 1_000;

/// A gateway the laboratory knows how to configure, or any other program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TargetKind {
    /// Series by a label from a query argument, made by requests.
    Stillgate,
    /// Serves `stub_status`: its result is the machine's own effect on a measurement.
    Nginx,
    /// nginx whose worker sorts and formats its series itself, in Lua.
    NginxLua,
    /// Series by idle servers.
    Haproxy,
    /// Series by idle clusters.
    Envoy,
    /// Started by the user's own command.
    Command,
}

/// A target as requested.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) kind: TargetKind,
    /// Its name in tables.
    pub(crate) name: String,
    /// The binary; `None`: stillgate beside this program or on PATH, others on PATH.
    pub(crate) program: Option<PathBuf>,
    /// For [`TargetKind::Command`]: words as a shell splits them, with `{address}`, `{upstream}`, `{metrics}`, `{admin}`
    /// (each `IP:PORT`), `{port}`, `{admin_port}`, `{dir}` and `{config}`, the file of its configuration, filled in.
    pub(crate) command: Option<String>,
    /// Its configuration in place of the built-in one, if there is one, with the placeholders of [`Spec::command`] filled in.
    pub(crate) configuration: Option<String>,
    /// Further arguments after the command or after the built-in's own, filled in likewise.
    pub(crate) arguments: Vec<String>,
    /// Address at which it will listen; `None`: a free port, which a command must take from `{address}` or `{port}`.
    pub(crate) address: Option<SocketAddr>,
    /// URL of its exposition, for [`TargetKind::Command`] only; may contain the same placeholders. `None`:
    /// `http://{metrics}/metrics` if the command contains `{metrics}`.
    pub(crate) metrics: Option<String>,
    /// Number of series for its exposition; kinds that cannot make series ignore it.
    pub(crate) series: Option<u64>,
    /// Routes in place of the one that takes everything, for stillgate, nginx and HAProxy.
    pub(crate) routes: Option<RoutePlan>,
    /// Tunnels for which there is a route, [`TUNNEL_PATH`], and room; for stillgate, nginx and HAProxy.
    pub(crate) tunnels: Option<usize>,
    /// Folder of this experiment; each start makes its own folder in it.
    pub(crate) directory: PathBuf,
    /// IP of the interface on which it listens; `None`: loopback.
    pub(crate) ip: Option<IpAddr>,
    /// The machines of it and its upstream; `None`: this one.
    #[serde(skip)]
    pub(crate) machines: Option<Arc<Machines>>,
    /// How it is loaded, where that is not the same for all.
    #[serde(skip)]
    pub(crate) traffic: Traffic,
}

/// What is sent to one target in place of what an experiment sends to all.
#[derive(Debug, Clone, Default)]
pub(crate) struct Traffic {
    /// A file of requests.
    pub(crate) mix: Option<PathBuf>,
    pub(crate) connections: Option<usize>,
    /// Requests at once on a connection of HTTP/2; `None`: HTTP/1.
    pub(crate) streams: Option<usize>,
    /// Over TLS that offers one cipher and one group, and never resumes; any certificate will do.
    pub(crate) is_secure: bool,
}

/// Address and path of an exposition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MetricsAddress {
    pub(crate) address: SocketAddr,
    /// Including its query.
    pub(crate) path: String,
}

/// A target that listens. Stopped when dropped, and also when this program ends in any other way.
#[derive(Debug)]
pub(crate) struct RunningTarget {
    pub(crate) subject: Subject,
    pub(crate) address: SocketAddr,
    pub(crate) metrics: Option<MetricsAddress>,
    /// Set if its configuration or command contains `{admin}`.
    pub(crate) admin: Option<SocketAddr>,
    /// From its start until it listened.
    pub(crate) listening_after: Duration,
    /// The file with its configuration, on this machine; a command has none.
    pub(crate) configuration: Option<PathBuf>,
    process: Process,
}

/// A running program on any machine.
#[derive(Debug)]
enum Process {
    // In this order: it ends before its folder does.
    Here { process: Running, folder: TempDir },
    There(Arc<Machines>, RemoteProgram),
}

impl TargetKind {
    /// The built-in of this name; `command` is not one.
    pub(crate) fn named(name: &str) -> Option<TargetKind> {
        [TargetKind::Stillgate, TargetKind::Nginx, TargetKind::NginxLua, TargetKind::Haproxy, TargetKind::Envoy]
            .into_iter()
            .find(|kind| kind.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            TargetKind::Stillgate => "stillgate",
            TargetKind::Nginx => "nginx",
            TargetKind::NginxLua => "nginx-lua",
            TargetKind::Haproxy => "haproxy",
            TargetKind::Envoy => "envoy",
            TargetKind::Command => "command",
        }
    }

    /// Whether [`Spec::series`] has an effect; if not, a sweep over numbers of series is one cell.
    pub(crate) fn makes_series(self) -> bool {
        !matches!(self, TargetKind::Nginx | TargetKind::Command)
    }
}

impl Spec {
    /// A built-in as it is found on this machine.
    pub(crate) fn built_in(kind: TargetKind, directory: PathBuf) -> Spec {
        Spec {
            kind,
            name: kind.name().to_owned(),
            program: None,
            command: None,
            configuration: None,
            arguments: Vec::new(),
            address: None,
            metrics: None,
            series: None,
            routes: None,
            tunnels: None,
            directory,
            ip: None,
            machines: None,
            traffic: Traffic::default(),
        }
    }

    /// Whether something in it needs an address for a gateway's admin interface.
    pub(crate) fn needs_admin(&self) -> bool {
        let mut texts = [&self.command, &self.configuration].into_iter().flatten().chain(&self.arguments);
        texts.any(|text| text.contains(program::ADMIN) || text.contains(program::ADMIN_PORT))
    }

    /// Starts it on the target's CPUs and waits until it listens; the error of a failed start has the end of its
    /// output.
    pub(crate) fn start(&self, upstream: SocketAddr, placement: &Placement) -> Result<RunningTarget> {
        if let Some(machines) = &self.machines
            && let Some(host) = &machines.target
        {
            let started = host.agent.start_target(self, upstream, placement)?;
            return Ok(RunningTarget {
                subject: started.subject,
                address: started.address,
                metrics: started.metrics,
                admin: started.admin,
                listening_after: Duration::ZERO,
                configuration: None,
                process: Process::There(Arc::clone(machines), RemoteProgram { number: started.number }),
            });
        }
        start::start(self, upstream, placement, None)
    }

    /// Starts it on this machine under valgrind, where `counter` of its start counts instructions. It has one process.
    pub(crate) fn start_counted(
        &self,
        upstream: SocketAddr,
        placement: &Placement,
    ) -> Result<(RunningTarget, Counter)> {
        let mut spec = self.clone();
        if matches!(self.kind, TargetKind::Nginx | TargetKind::NginxLua) {
            spec.arguments.extend(["-g", "master_process off;"].map(str::to_owned));
        }
        // Its first thread is the control thread, which handles no requests but does much work once a second.
        let threads = if self.kind == TargetKind::Stillgate { Threads::Others } else { Threads::All };
        let counter = |folder: &Path| Counter::new(threads, folder, self.kind.name());
        let started = start::start(&spec, upstream, placement, Some(&counter))?;
        let Process::Here { folder, .. } = &started.process else { unreachable!("it was started here") };
        let counter = counter(folder.path());
        Ok((started, counter))
    }
}

impl RunningTarget {
    /// CPU time of the process and its descendants so far, in microseconds: exact, or in whole clock ticks if the
    /// kernel does not keep `schedstat` or threads have ended.
    pub(crate) fn cpu_time_us(&self) -> Result<f64> {
        match &self.process {
            Process::Here { process, .. } => Ok(process.cpu_time_us()?),
            Process::There(machines, held) => agent(machines).cpu_time_us(held),
        }
    }

    /// Resident memory of the process and its descendants.
    pub(crate) fn rss_kib(&self) -> Result<u64> {
        match &self.process {
            Process::Here { process, .. } => Ok(process.rss_kib()?),
            Process::There(machines, held) => agent(machines).rss_kib(held),
        }
    }

    /// Resident memory without pages of files, of the process and its descendants.
    pub(crate) fn anonymous_kib(&self) -> Result<u64> {
        match &self.process {
            Process::Here { process, .. } => Ok(process.anonymous_kib()?),
            Process::There(..) => Err("anonymous memory is read on this machine only; use rss".into()),
        }
    }

    /// The process, then its descendants.
    pub(crate) fn pids(&self) -> Result<Vec<u32>> {
        match &self.process {
            // A process that has ended has nothing to report.
            Process::Here { process, .. } => {
                process.cpu_time_us()?;
                Ok(process.pids())
            }
            Process::There(..) => Err("its processes are on another machine".into()),
        }
    }

    /// The process, for experiments that do more with it; on another machine there is none.
    pub(crate) fn process(&mut self) -> Result<&mut Running> {
        match &mut self.process {
            Process::Here { process, .. } => Ok(process),
            Process::There(..) => Err("this experiment needs its target on this machine".into()),
        }
    }

    /// Fails with the end of its log if it has ended.
    pub(crate) fn alive(&mut self) -> Result {
        match &mut self.process {
            Process::Here { process, .. } => Ok(process.alive()?),
            Process::There(machines, held) => agent(machines).alive(held),
        }
    }

    /// Ends it, by SIGTERM first.
    pub(crate) fn stop(self) {
        drop(self);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Process::There(machines, held) = self {
            agent(machines).stop(held);
        }
    }
}

fn agent(machines: &Machines) -> &Agent {
    &machines.target.as_ref().expect("a target runs there only if there is a machine for it").agent
}

// Routes in place of the one that takes everything, some of which have a mark to be changed while the target runs.
//
// ```text
//  /service-7/v1            never changes
//  /changing-8/v00000000    the digits are overwritten by those of a change
// ```

/// The beginning of a path with a mark; the number of its route follows, then `/v` and [`MARK_DIGITS`] digits.
pub(crate) const CHANGING: &str = "/changing-";

/// Digits of a mark.
pub(crate) const MARK_DIGITS: usize = 8;

/// Two of this many routes have a mark: one of each kind of condition.
const CHANGING_OF: usize = 10;

/// The routes of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RoutePlan {
    pub(crate) count: usize,
    /// Whether every second one of stillgate is an expression.
    pub(crate) expressions: bool,
}

impl RoutePlan {
    /// The prefixes of the paths that they take.
    pub(crate) fn prefixes(self) -> impl Iterator<Item = String> {
        (0..self.count).map(|number| match is_changing(number) {
            true => changed_prefix(&number.to_string(), 0),
            false => format!("/service-{number}/v1"),
        })
    }

    /// Paths that are taken whatever changes, one for each route without a mark.
    pub(crate) fn fixed_paths(self) -> Vec<String> {
        (0..self.count).filter(|number| !is_changing(*number)).map(|number| format!("/service-{number}/v1/x")).collect()
    }

    /// The routes of a configuration that is shown to a reader.
    pub(crate) fn shown(self) -> RoutePlan {
        RoutePlan { count: self.count.min(CHANGING_OF), ..self }
    }
}

/// The prefix of a route with a mark since this change.
pub(crate) fn changed_prefix(route: &str, change: u64) -> String {
    format!("{CHANGING}{route}/v{change:0MARK_DIGITS$}")
}

fn is_changing(number: usize) -> bool {
    number % CHANGING_OF >= CHANGING_OF - 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_of_ten_have_a_mark() {
        let plan = RoutePlan { count: 20, expressions: false };
        let prefixes: Vec<String> = plan.prefixes().collect();
        assert_eq!((prefixes[7].as_str(), prefixes[8].as_str()), ("/service-7/v1", "/changing-8/v00000000"));
        assert_eq!((prefixes.len(), plan.fixed_paths().len()), (20, 16));
        assert_eq!(plan.fixed_paths()[0], "/service-0/v1/x");
        assert_eq!(changed_prefix("8", 12), "/changing-8/v00000012");
    }
}
