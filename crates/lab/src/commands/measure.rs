//! `stillgate-lab measure`: one figure of one server, for `bisect` and `nightly`.

mod table;

use super::builds::{configuration, kind};
use crate::command_line::{Cpus, cpus, duration, positive, rate, seed_of_clock};
use crate::compare::alone::{self, Figure};
use crate::compare::measures::{self, LATENCY_UNIT};
use crate::compare::side::{generator_cpus, upstream_placement};
use crate::compare::subject::{self, StartOptions};
use crate::display::Progress;
use crate::error::{Error, Result};
use crate::result::compare::{CompareDesign, Side};
use crate::store::raw;
use crate::suite::{self, Suite};
use crate::target::{TargetKind, Upstream, placement};
use crate::{hosts, output};
use clap::Args;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stillgate_rig::cpus;
use table::TableArguments;

/// Size of the upstream's answers.
const BODY_BYTES: usize = 100;

/// Defaults, which a suite may replace.
const CONNECTIONS: usize = 32;
const TIME: Duration = Duration::from_secs(1);
const WARM_UP: Duration = Duration::from_millis(300);

/// Prefix of a metric's name in place of a measure.
const METRIC: &str = "metric:";
const LEVEL: &str = "level:";

/// Figures that are not measures of `compare`.
const OTHERS: [(&str, Figure); 7] = [
    ("anonymous", Figure::Anonymous),
    ("settled", Figure::Settled),
    ("syscalls", Figure::Syscalls),
    ("data-syscalls", Figure::DataSyscalls),
    ("peak", Figure::Peak),
    ("connection", Figure::Connection),
    ("closed-connection", Figure::ClosedConnection),
];

/// Figures with commas.
#[derive(Debug, Clone)]
struct Figures(Vec<Figure>);

/// `stillgate-lab measure`.
#[derive(Debug, Args)]
#[command(after_help = "\
Prints one number, for --measure of `bisect` and suites of `nightly`: cpu (us of CPU time per request), throughput (requests per second; more is better), p50, p99 and p99.9 (us, at --rate), rss (KiB), anonymous (KiB without pages of files), settled (KiB before any load), peak (KiB of growth under load), connection and closed-connection (bytes of an idle connection, and of what is left of it; --connections), instructions (per request, by callgrind), syscalls and data-syscalls (per request, by strace), or metric:NAME: the growth of a metric per 1,000 requests, summed over its series, plus 1; level:NAME: their sum after the load, plus 1. With \
NAME{label=\"value\"} only these series.

Exit codes: 0 measured; 2 not, which is worth another try.")]
pub(crate) struct Measure {
    /// The figure to measure; of a suite several with commas
    #[arg(value_name = "FIGURE", value_parser = figures)]
    figures: Figures,
    /// Binary, or command in quotes, as for `compare`
    #[arg(required_unless_present = "suite", conflicts_with = "suite")]
    program: Option<String>,
    #[command(flatten)]
    table: TableArguments,
    /// Kind of the binary [default: by its name]
    #[arg(long, value_name = "KIND", value_parser = kind)]
    target: Option<TargetKind>,
    /// Arguments of the binary; {address}, {upstream}, {metrics} and {dir} are filled in
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    args: Option<String>,
    /// The gateway's configuration, with the same words in braces [default: one that proxies everything]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address at which it listens [default: a free port, passed as {address}]
    #[arg(long, value_name = "IP:PORT")]
    address: Option<SocketAddr>,
    /// Requests, as for `load` [default: GET /]
    #[arg(long, value_name = "FILE")]
    mix: Option<PathBuf>,
    /// Requests per second, for latencies
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
    /// Connections [default: 32, or the suite's]
    #[arg(long, value_name = "N", value_parser = positive)]
    connections: Option<usize>,
    /// Measured time of each loop [default: 1s, or the suite's]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    time: Option<Duration>,
    /// Unmeasured load before that [default: 300ms, or the suite's]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    warm_up: Option<Duration>,
    /// Target and upstream on other machines, by ssh; see the manual
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// CPUs of the program [default: the first half]
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    target_cpus: Option<Cpus>,
    /// CPUs of generator and upstream [default: the others]
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    load_cpus: Option<Cpus>,
}

pub(crate) fn run(arguments: &Measure) -> Result<u8> {
    let suite = arguments.table.suite.as_deref().map(suite::read).transpose()?;
    let design = arguments.design(suite.as_ref())?;
    let is_latency = |figure: &Figure| matches!(figure, Figure::Measure(measure) if measure.unit == LATENCY_UNIT);
    match (arguments.figures.0.iter().any(is_latency), design.rate > 0.0) {
        (true, false) => return Err("latencies need --rate, below the maximum of the slowest version".into()),
        (false, true) if arguments.rate.is_some() => return Err("--rate is for latencies".into()),
        _ => {}
    }
    if design.saturation_s == 0.0 || design.warm_up_s == 0.0 {
        return Err("--time and --warm-up must be above zero".into());
    }
    match (suite, arguments.figures.0.as_slice(), &arguments.program) {
        (Some(suite), figures, _) => arguments.table.run(suite, figures, &design),
        (None, [figure], Some(program)) => one(arguments, figure, program, &design),
        _ => Err("several figures are for --suite".into()),
    }
}

/// Prints one figure of one program.
fn one(arguments: &Measure, figure: &Figure, program: &str, design: &CompareDesign) -> Result<u8> {
    let title = format!("{figure} of {}", subject::shown(program));
    let mut progress = Progress::late(&title, alone::steps(figure, design));
    let folder = tempfile::tempdir().map_err(|error| format!("cannot make a temporary folder: {error}"))?;
    let manner = StartOptions {
        kind: arguments.target,
        words: arguments.args.clone(),
        address: arguments.address,
        configuration: arguments.config.as_deref().map(configuration).transpose()?,
    };
    let mut asked = subject::program(program, Side::A, &manner, folder.path())?;
    let machines = arguments.hosts.as_deref().map(hosts::up).transpose()?;
    if let Some(machines) = &machines {
        hosts::place(machines, std::iter::once(&mut asked.spec))?;
    }
    let upstream = Upstream::start(&upstream_placement(&design.placement), BODY_BYTES, machines.as_ref())?;
    cpus::pin(generator_cpus(&design.placement))?;
    let (value, read) = alone::read(figure, &asked.spec, &upstream, design, &mut progress)?;
    progress.finish();
    if let (Some(path), Some(read)) = (std::env::var_os(raw::VARIABLE), read) {
        let failed = |why: &dyn std::fmt::Display| {
            Error::new(format!("{}, {}: cannot be written: {why}", raw::VARIABLE, Path::new(&path).display()))
        };
        let text = serde_json::to_vec(&read).map_err(|error| failed(&error))?;
        std::fs::write(&path, text).map_err(|error| failed(&error))?;
    }
    output::show(format_args!("{value}\n"))?;
    Ok(0)
}

impl Measure {
    /// The design of a comparison without pairs; a suite has other defaults.
    fn design(&self, suite: Option<&Suite>) -> Result<CompareDesign> {
        let of_suite = |value: fn(&Suite) -> Option<u64>| suite.and_then(value);
        let connections = of_suite(|suite| suite.connections).and_then(|connections| usize::try_from(connections).ok());
        let time = self.time.or(suite.and_then(|suite| suite.time)).unwrap_or(TIME);
        let warm_up = self.warm_up.or(suite.and_then(|suite| suite.warm_up)).unwrap_or(WARM_UP);
        let rate = self.rate.or(of_suite(|suite| suite.rate).map(|rate| rate as f64));
        let given = |cpus: &Option<Cpus>| cpus.as_ref().map(|cpus| cpus.0.clone());
        let (target, load) = (given(&self.target_cpus), given(&self.load_cpus));
        Ok(CompareDesign {
            builds: 1,
            every_pair: false,
            pairs: 0,
            looks: Vec::new(),
            alpha: 0.01,
            power: 0.9,
            margin: 0.05,
            deciding: Vec::new(),
            warm_up_s: warm_up.as_secs_f64(),
            saturation_s: time.as_secs_f64(),
            // What opens connections counts as well, which is much for short slices of many connections over TLS.
            slice_s: suite.map(|_| time.as_secs_f64()),
            rate_s: time.as_secs_f64(),
            rate: rate.unwrap_or(0.0),
            connections: self.connections.or(connections).unwrap_or(CONNECTIONS),
            late_s: 0.001,
            mix: self.mix.clone(),
            seed: seed_of_clock(),
            placement: placement::place_for_hosts(target.as_deref(), load.as_deref(), self.hosts.as_deref())?,
        })
    }
}

/// Whether more of a figure is better.
pub(super) fn is_more_better(text: &str) -> bool {
    measures::named(text).is_some_and(|measure| measure.higher_is_better)
}

fn figures(text: &str) -> Result<Figures, String> {
    text.split(',').map(figure).collect::<Result<_, _>>().map(Figures)
}

pub(super) fn figure(text: &str) -> Result<Figure, String> {
    let known = "cpu, throughput, p50, p99, p99.9, rss, anonymous, settled, peak, connection, closed-connection, instructions, syscalls, data-syscalls, metric:NAME or level:NAME";
    let named = |prefix: &str| text.strip_prefix(prefix).filter(|name| !name.is_empty()).map(str::to_owned);
    let metric = named(METRIC).map(Figure::Metric).or_else(|| named(LEVEL).map(Figure::Level));
    let other = || OTHERS.iter().find(|(name, _)| *name == text).map(|(_, figure)| figure.clone());
    let measure = || measures::named(text).map(Figure::Measure);
    metric.or_else(other).or_else(measure).ok_or_else(|| format!("not one of {known}"))
}
