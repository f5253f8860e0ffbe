//! `stillgate-lab measure`: one figure of one server, for `bisect` and `nightly`.

use super::builds::{configuration, kind};
use crate::cli::typed::seed_of_clock;
use crate::cli::values::{Cpus, cpus, duration, positive, rate};
use crate::compare::alone::{self, Figure};
use crate::compare::measures::{self, LATENCY_UNIT};
use crate::compare::side::{generator_cpus, upstream_placement};
use crate::compare::subject::{self, StartOptions};
use crate::display::Progress;
use crate::error::{Error, Result};
use crate::hosts;
use crate::result::compare::{CompareDesign, Side};
use crate::stdout;
use crate::store::raw;
use crate::target::{Kind, Upstream, placement};
use clap::Args;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stillgate_rig::cpus;

/// Size of the upstream's answers.
const BODY_BYTES: usize = 100;

/// Prefix of a metric's name in place of a measure.
const METRIC: &str = "metric:";
const LEVEL: &str = "level:";
const ANONYMOUS: &str = "anonymous";

/// `stillgate-lab measure`.
#[derive(Debug, Args)]
#[command(after_help = "\
Prints one number, for --measure of `bisect` and suites of `nightly`: cpu (us of CPU time per request), throughput (requests per second; more is better), p50, p99 and p99.9 (us, at --rate), rss (KiB), anonymous (KiB without pages of files), instructions (per request, by callgrind), or metric:NAME: the growth of a metric per 1,000 requests, summed over its series, plus 1; level:NAME: their sum after the load, plus 1. With \
NAME{label=\"value\"} only these series.

Exit codes: 0 measured; 2 not, which is worth another try.")]
pub(crate) struct Measure {
    /// The figure to measure
    #[arg(value_name = "FIGURE", value_parser = figure)]
    figure: Figure,
    /// Binary, or command in quotes, as for `compare`
    program: String,
    /// Kind of the binary [default: by its name]
    #[arg(long, value_name = "KIND", value_parser = kind)]
    target: Option<Kind>,
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
    /// Connections
    #[arg(long, value_name = "N", value_parser = positive, default_value = "32")]
    connections: usize,
    /// Measured time of each loop
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s")]
    time: Duration,
    /// Unmeasured load before that
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "300ms")]
    warm_up: Duration,
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
    let is_latency = matches!(arguments.figure, Figure::Measure(measure) if measure.unit == LATENCY_UNIT);
    match (is_latency, arguments.rate) {
        (true, None) => return Err("latencies need --rate, below the maximum of the slowest version".into()),
        (false, Some(_)) => return Err("--rate is for latencies".into()),
        _ => {}
    }
    if arguments.time.is_zero() || arguments.warm_up.is_zero() {
        return Err("--time and --warm-up must be above zero".into());
    }
    let design = arguments.design()?;
    let title = format!("{} of {}", arguments.figure, subject::shown(&arguments.program));
    let mut progress = Progress::late(&title, alone::steps(&arguments.figure, &design));
    let folder = tempfile::tempdir().map_err(|error| format!("cannot make a temporary folder: {error}"))?;
    let manner = StartOptions {
        kind: arguments.target,
        words: arguments.args.clone(),
        address: arguments.address,
        configuration: arguments.config.as_deref().map(configuration).transpose()?,
    };
    let mut asked = subject::program(&arguments.program, Side::A, &manner, folder.path())?;
    let machines = arguments.hosts.as_deref().map(hosts::up).transpose()?;
    if let Some(machines) = &machines {
        hosts::place(machines, std::iter::once(&mut asked.spec))?;
    }
    let upstream = Upstream::start(&upstream_placement(&design.placement), BODY_BYTES, machines.as_ref())?;
    cpus::pin(generator_cpus(&design.placement))?;
    let (value, read) = alone::read(&arguments.figure, &asked.spec, &upstream, &design, &mut progress)?;
    progress.finish();
    if let (Some(path), Some(read)) = (std::env::var_os(raw::VARIABLE), read) {
        let failed = |why: &dyn std::fmt::Display| {
            Error::new(format!("{}, {}: cannot be written: {why}", raw::VARIABLE, Path::new(&path).display()))
        };
        let text = serde_json::to_vec(&read).map_err(|error| failed(&error))?;
        std::fs::write(&path, text).map_err(|error| failed(&error))?;
    }
    stdout::show(format_args!("{value}\n"))?;
    Ok(0)
}

impl Measure {
    /// The design of a comparison without pairs.
    fn design(&self) -> Result<CompareDesign> {
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
            warm_up_s: self.warm_up.as_secs_f64(),
            saturation_s: self.time.as_secs_f64(),
            rate_s: self.time.as_secs_f64(),
            rate: self.rate.unwrap_or(0.0),
            connections: self.connections,
            late_s: 0.001,
            mix: self.mix.clone(),
            seed: seed_of_clock(),
            placement: placement::chosen(target.as_deref(), load.as_deref(), self.hosts.as_deref())?,
        })
    }
}

/// Whether more of a figure is better.
pub(super) fn is_more_better(text: &str) -> bool {
    measures::named(text).is_some_and(|measure| measure.higher_is_better)
}

pub(super) fn figure(text: &str) -> Result<Figure, String> {
    let known = "cpu, throughput, p50, p99, p99.9, rss, anonymous, instructions, metric:NAME or level:NAME";
    let named = |prefix: &str| text.strip_prefix(prefix).filter(|name| !name.is_empty()).map(str::to_owned);
    let metric = named(METRIC).map(Figure::Metric).or_else(|| named(LEVEL).map(Figure::Level));
    let anonymous = || (text == ANONYMOUS).then_some(Figure::Anonymous);
    let measure = || measures::named(text).map(Figure::Measure);
    metric.or_else(anonymous).or_else(measure).ok_or_else(|| format!("not one of {known}"))
}
