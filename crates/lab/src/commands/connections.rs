//! `stillgate-lab connections`: what an idle connection costs a server, and a message over it, beside others in the same run.

use super::builds::built_in;
use crate::command_line::{Cpus, cpus, duration, positive};
use crate::connections::addressed::SERVERS;
use crate::connections::{self, ConnectionsPlan, Subject, tunnels};
use crate::display::Progress;
use crate::error::{Error, Result, stop_flag};
use crate::figures;
use crate::target::{Spec, TargetKind, placement};
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `stillgate-lab connections`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
A gateway (stillgate, nginx, haproxy) is measured by WebSocket tunnels through it; a message is a ping and its pong, so it relays two \
frames for each. A server whose clients back-ends address by a name (stillgate-devices, stillgate-devices-ack, nchan, pushpin, mosquitto) \
is measured by messages to one client after the other. Each round starts each target again, on CPUs of its own. Memory is PSS, what \
processes share counted once; that of the kernel is the target's part of all sockets, which only root can read by kind.

Exit codes: 0 done; 1 a target failed and was left out; 2 an error; 130 interrupted, with the figures so far.

Examples:
  Tunnels through stillgate beside those through nginx:
    stillgate-lab connections nginx stillgate
  A message to a device, beside other servers:
    stillgate-lab connections stillgate-devices nchan pushpin mosquitto --at-once 32
  A gateway of your own, with /tunnel as the path of tunnels:
    stillgate-lab connections nginx --start './gateway --listen {address} --to {upstream}'")]
pub(crate) struct Connections {
    /// Targets; ratios are to the first. `nginx=PATH` names the binary of a gateway
    #[arg(value_name = "TARGET", required_unless_present = "start")]
    targets: Vec<String>,
    /// Command that starts another gateway; {address}, {upstream} and {dir} are filled in
    #[arg(long, value_name = "COMMAND")]
    start: Vec<String>,
    /// Connections; fewer if descriptors or ports do not suffice
    #[arg(long, value_name = "N", value_parser = positive, default_value = "10k")]
    count: usize,
    /// Rounds
    #[arg(long, value_name = "N", value_parser = positive, default_value = "3")]
    rounds: usize,
    /// Time of each kind of load
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "3s")]
    time: Duration,
    /// Messages under way in the busiest load
    #[arg(long, value_name = "N", value_parser = positive, default_value = "64")]
    at_once: usize,
    /// CPUs of the targets [default: the first half]
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    target_cpus: Option<Cpus>,
    /// CPUs of clients, back-ends and upstream [default: the others]
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    load_cpus: Option<Cpus>,
    /// File for figures, raw data and analysis
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Connections) -> Result<u8> {
    if arguments.time.is_zero() {
        return Err("--time 0 measures nothing; write for example 3s".into());
    }
    let writer = figures::writer(arguments.json.as_ref())?;
    let folder = tempfile::tempdir().map_err(|error| format!("cannot make a temporary folder: {error}"))?;
    let (count, fewer) = tunnels(arguments.count);
    if count < arguments.at_once {
        return Err(Error::new(format!("{count} connections are fewer than the {} of --at-once", arguments.at_once)));
    }
    let given = |cpus: &Option<Cpus>| cpus.as_ref().map(|cpus| cpus.0.clone());
    let (target, load) = (given(&arguments.target_cpus), given(&arguments.load_cpus));
    let plan = ConnectionsPlan {
        subjects: arguments.subjects(folder.path())?,
        count,
        rounds: arguments.rounds,
        phase: arguments.time,
        at_once: arguments.at_once,
        placement: placement::choose(target.as_deref(), load.as_deref())?,
        folder: folder.path().to_owned(),
    };
    let stop = stop_flag()?;
    let mut progress = Progress::new("connections", connections::steps(&plan));
    let mut result = connections::run(&plan, &stop, &mut progress)?;
    progress.finish();
    result.notes.extend(fewer);
    figures::finish(result, writer)
}

impl Connections {
    fn subjects(&self, folder: &Path) -> Result<Vec<Subject>> {
        let named = self.targets.iter().map(|text| {
            if let Some(server) = SERVERS.iter().find(|server| server.name == text) {
                return Ok(Subject::Addressed(server));
            }
            let target = built_in(text).ok().filter(|target| {
                [TargetKind::Stillgate, TargetKind::Nginx, TargetKind::Haproxy].contains(&target.kind)
            });
            let target = target.ok_or_else(|| {
                let servers: Vec<&str> = SERVERS.iter().map(|server| server.name).collect();
                Error::new(format!("{text:?} is not one of stillgate, nginx, haproxy, {}", servers.join(", ")))
            })?;
            Ok(Subject::Gateway(Box::new(target.spec(folder))))
        });
        let started = self.start.iter().map(|command| {
            let built_in = Spec::built_in(TargetKind::Command, folder.to_owned());
            Ok(Subject::Gateway(Box::new(Spec { name: command.clone(), command: Some(command.clone()), ..built_in })))
        });
        named.chain(started).collect()
    }
}
