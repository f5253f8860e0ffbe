//! `stillgate-lab churn`: what a reload, a write, a reader or a new label costs the requests beside it.

use super::builds::{BuiltIn, built_in, configuration};
use crate::churn::write::WriteSource;
use crate::churn::{ChangeOptions, ChurnPlan, KINDS, run};
use crate::command_line::{Cpus, cpus, duration, positive, rate, seed_of_clock};
use crate::connections::tunnels;
use crate::display::Progress;
use crate::error::{Error, Result, stop_flag};
use crate::figures;
use crate::target::{Spec, TargetKind, placement};
use clap::{ArgGroup, Args};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stillgate_rig::Signal;

/// The requests per second of an open loop whose rate was not given.
const RATE: f64 = 2000.0;

/// An upgrade begins after this part of a block.
const UPGRADE_AT: u32 = 3;

/// `stillgate-lab churn`.
#[derive(Debug, Args)]
#[command(
    group(ArgGroup::new("change").required(true).args(["reload", "upgrade", "write", "watch", "new_labels"])),
    group(ArgGroup::new("subject").required(true).args(["target", "start"])),
    after_long_help = "\
Blocks of the same load alternate, without changes and with them. Ratios are those within pairs of blocks; a pair counts only if the \
generator kept its schedule in both.

--reload rewrites the configuration many times a second, each time with another path of one route, and then signals the target: \
nginx by SIGHUP, HAProxy by SIGUSR2; stillgate sees the file itself. In a configuration of your own, write /changing-0/v00000000 as \
the path of a route, /changing-1/v00000000 as that of the next, and so on. Afterwards it measures how long a change takes to be served.

Exit codes: 0 done; 1 a request failed or a requirement was not met; 2 an error; 3 no pair of blocks is valid; 130 interrupted, with \
the figures so far.

Examples:
  What a reload of nginx costs:
    stillgate-lab churn nginx --reload
  50 changes a second of 50,000 routes:
    stillgate-lab churn stillgate --reload --routes 50k --changes 50 --expressions
  Upgrades of the running gateway, with tunnels through it:
    stillgate-lab churn stillgate --upgrade --tunnels 10k --rate 5k --connections 64 --rounds 3
  Writes through the Admin API, with the resources in etcd:
    stillgate-lab churn stillgate --write --source etcd --routes 50k --consumers 10k
  A server of your own, which reads its configuration again after SIGHUP:
    stillgate-lab churn --start './server -c {config}' --config my.conf --reload --signal HUP"
)]
pub(crate) struct Churn {
    /// stillgate, nginx, nginx-lua, haproxy or envoy, as found on this machine; `haproxy=PATH` names the binary
    #[arg(value_name = "TARGET", value_parser = built_in)]
    target: Option<BuiltIn>,
    /// Command that starts another target; {address}, {upstream}, {dir} and {config} are filled in
    #[arg(long, value_name = "COMMAND")]
    start: Option<String>,
    /// Address at which the target of --start listens [default: a free port, passed as {address}]
    #[arg(long, value_name = "IP:PORT", requires = "start")]
    address: Option<SocketAddr>,
    /// Change routes in the configuration file
    #[arg(long)]
    reload: bool,
    /// Signal the target, which starts its successor and exits: by SIGUSR2 for stillgate
    #[arg(long)]
    upgrade: bool,
    /// Write routes through the Admin API of stillgate
    #[arg(long)]
    write: bool,
    /// Read a stream with this many readers: of the target, or what the dashboard of stillgate reads
    #[arg(long, value_name = "N", value_parser = positive)]
    watch: Option<usize>,
    /// Request each path once, with the path as a label of a metric of stillgate
    #[arg(long)]
    new_labels: bool,
    /// Routes of the built-in configuration, two of ten of which change
    #[arg(long, value_name = "N", value_parser = positive, default_value = "1000")]
    routes: usize,
    /// Every second route of stillgate is an expression
    #[arg(long)]
    expressions: bool,
    /// Changes per second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000), default_value = "10")]
    changes: u32,
    /// The signal after which the target reads its configuration again, or starts its successor: HUP, USR1 or USR2 [default: by its
    /// kind]
    #[arg(long, value_name = "NAME", value_parser = signal)]
    signal: Option<Signal>,
    /// With --write: where stillgate has its resources
    #[arg(long, value_enum, default_value = "store")]
    source: WriteSource,
    /// With --write: consumers besides the routes
    #[arg(long, value_name = "N", value_parser = positive)]
    consumers: Option<usize>,
    /// With --watch: path of a stream of the target that does not end, for example server-sent events
    #[arg(long, value_name = "PATH", requires = "watch")]
    stream: Option<String>,
    /// With --new-labels: series that the metric may have
    #[arg(long, value_name = "N", value_parser = positive, default_value = "100k")]
    series: usize,
    /// With --new-labels: memory of all metrics in MiB
    #[arg(long, value_name = "N", value_parser = positive, default_value = "256")]
    memory: usize,
    /// The target's configuration; {address}, {metrics}, {admin}, {upstream} and {dir} are filled in. A command of --start finds it as
    /// {config}
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Requests, as for `load` [default: those that routes take whatever changes]
    #[arg(long, value_name = "FILE")]
    mix: Option<PathBuf>,
    /// Requests per second [default: 2000]
    #[arg(long, value_name = "N", value_parser = rate, conflicts_with = "closed")]
    rate: Option<f64>,
    /// A closed loop, as fast as the target answers
    #[arg(long)]
    closed: bool,
    /// Connections
    #[arg(long, value_name = "N", value_parser = positive, default_value = "16")]
    connections: usize,
    /// Measured time of a block
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    block: Duration,
    /// Pairs of blocks
    #[arg(long, value_name = "N", value_parser = positive, default_value = "6")]
    rounds: usize,
    /// WebSocket tunnels through the target that stay open meanwhile, and are pinged
    #[arg(long, value_name = "N", value_parser = positive)]
    tunnels: Option<usize>,
    /// How often each tunnel is pinged
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s", requires = "tunnels")]
    ping_every: Duration,
    /// Show also the CPU time of the threads whose names begin so
    #[arg(long, value_name = "PREFIX")]
    threads: Option<String>,
    /// CPUs of the target [default: the first half]
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    target_cpus: Option<Cpus>,
    /// CPUs of generator and upstream [default: the others]
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    load_cpus: Option<Cpus>,
    /// File for figures, raw data and analysis
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Churn) -> Result<u8> {
    let writer = figures::writer(arguments.json.as_ref())?;
    // In memory, if the system has such a place: the disk is not what is measured.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let folder = folder.map_err(|error| Error::new(format!("cannot make a temporary folder: {error}")))?;
    let (tunnels, fewer) = arguments.tunnels.map(tunnels).unzip();
    let plan = arguments.plan(folder.path(), tunnels)?;
    let stop = stop_flag()?;
    let mut progress = Progress::new("churn", run::steps(&plan));
    let mut result = run::run(&plan, &stop, &mut progress)?;
    progress.finish();
    result.notes.extend(fewer.flatten());
    figures::finish(result, writer)
}

impl Churn {
    fn plan(&self, folder: &Path, tunnels: Option<usize>) -> Result<ChurnPlan> {
        if self.block.is_zero() || self.ping_every.is_zero() {
            return Err("--block and --ping-every must be above zero".into());
        }
        let given = |cpus: &Option<Cpus>| cpus.as_ref().map(|cpus| cpus.0.clone());
        let (target, load) = (given(&self.target_cpus), given(&self.load_cpus));
        let typed = [
            ("reload", self.reload),
            ("upgrade", self.upgrade),
            ("write", self.write),
            ("watch", self.watch.is_some()),
            ("new-labels", self.new_labels),
        ];
        let name = typed.into_iter().find_map(|(name, is_typed)| is_typed.then_some(name));
        let change = KINDS.iter().find(|kind| Some(kind.name) == name).ok_or("name a change, for example --reload")?;
        Ok(ChurnPlan {
            spec: self.spec(folder)?,
            change,
            rate: if self.closed { None } else { Some(self.rate.unwrap_or(RATE)) },
            connections: self.connections,
            mix: self.mix.clone(),
            block: self.block,
            rounds: self.rounds,
            tunnels: tunnels.map(|tunnels| (tunnels, self.ping_every)),
            threads: self.threads.clone(),
            placement: placement::choose(target.as_deref(), load.as_deref())?,
            seed: seed_of_clock(),
            options: ChangeOptions {
                routes: self.routes,
                expressions: self.expressions,
                consumers: self.consumers.unwrap_or(0),
                per_second: self.changes,
                signal: self.signal,
                upgrade_after: self.block / UPGRADE_AT,
                source: self.source,
                readers: self.watch.unwrap_or(0),
                stream: self.stream.clone(),
                series: self.series as u64,
                memory_mib: self.memory as u64,
            },
        })
    }

    fn spec(&self, folder: &Path) -> Result<Spec> {
        let configuration = self.config.as_deref().map(configuration).transpose()?;
        let spec = match &self.target {
            Some(target) => target.spec(folder),
            None => {
                let built_in = Spec::built_in(TargetKind::Command, folder.to_owned());
                Spec { command: self.start.clone(), address: self.address, ..built_in }
            }
        };
        Ok(Spec { configuration, ..spec })
    }
}

fn signal(name: &str) -> Result<Signal, String> {
    match name.trim_start_matches("SIG") {
        "HUP" => Ok(Signal::HUP),
        "USR1" => Ok(Signal::USR1),
        "USR2" => Ok(Signal::USR2),
        _ => Err("write HUP, USR1 or USR2".to_owned()),
    }
}
