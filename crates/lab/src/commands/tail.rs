//! `stillgate-lab tail`: the effect of scrapes of a gateway's metrics on its slowest requests, for each of several
//! gateways, numbers of series and scrape intervals.

use crate::command_line::{Cpus, count, cpus, duration, own_arguments, percent, positive, rate, seed_of_clock};
use crate::commands::builds::{BuiltIn, built_in};
use crate::display::Progress;
use crate::environment::{self, Stolen};
use crate::error::{EXIT_FAILED, Error, Result, stop_flag};
use crate::result::file::{self, ResultWriter};
use crate::result::run::Environment;
use crate::result::tail::{TailDesign, TailResult, Verdict};
use crate::result::{Experiment, ResultFile};
use crate::tail::design::{self, PlannedCell};
use crate::tail::{self, Flames, Outcomes, TailEnd, analysis, readable, table};
use crate::target::{Spec, TargetKind, placement};
use crate::{commands, hosts, output};
use clap::Args;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Exit code of an interrupted experiment; a shell shows the same for a process ended by SIGINT.
const EXIT_STOPPED: u8 = 130;

/// Exit code if there is no result for any cell.
const EXIT_VOID: u8 = 3;

/// More pairs show no more, and would take years.
const PAIRS_MAX: u64 = 10_000;

/// `stillgate-lab tail`.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 done, whatever the verdicts; 2 a combination could not be run, or nothing could; 3 all combinations are void; 130 interrupted, finished ones are kept. A combination gets a verdict only if all its pairs were run, including spare ones where the generator was late.")]
pub(crate) struct Tail {
    /// stillgate, nginx, nginx-lua, haproxy or envoy, as found on this machine; `haproxy=PATH` names the binary
    #[arg(value_name = "TARGET", value_parser = built_in, required_unless_present = "start")]
    targets: Vec<BuiltIn>,
    /// Command that starts another target; {address}, {upstream}, {metrics} and {dir} are filled in
    #[arg(long, value_name = "COMMAND", requires = "metrics")]
    start: Option<String>,
    /// Address at which the target of --start listens [default: a free port, passed as {address}]
    #[arg(long, value_name = "IP:PORT", requires = "start")]
    address: Option<SocketAddr>,
    /// URL of the exposition of the target of --start
    #[arg(long, value_name = "URL", requires = "start")]
    metrics: Option<String>,
    /// Numbers of series; each is a separate cell
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = series, default_value = "1k,10k,100k,1M")]
    series: Vec<u64>,
    /// Times between scrapes; each is a separate cell
    #[arg(long, value_name = "TIME,…", value_delimiter = ',', value_parser = duration, default_value = "5s,1s")]
    scrape_every: Vec<Duration>,
    /// Requests per second, open loop
    #[arg(long, value_parser = rate, default_value = "10000")]
    rate: f64,
    /// Connections
    #[arg(long, value_name = "N", value_parser = positive, default_value = "50")]
    connections: usize,
    /// Measured time of a block
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "5s")]
    block: Duration,
    /// How long all planned blocks take together, in place of --block: many hours show p99.99 and the slowest request
    #[arg(long, value_name = "N", value_parser = hours, conflicts_with = "block")]
    hours: Option<f64>,
    /// Pairs of blocks of each cell, one with scrapes and one without; fewer than 8 cannot show anything
    #[arg(long, value_name = "N", value_parser = count, default_value_t = design::PAIRS_DEFAULT)]
    pairs: u64,
    /// Spare pairs of each cell: one more is run for each in which the generator itself was late [default: as many as --pairs]
    #[arg(long, value_name = "N", value_parser = count)]
    spares: Option<u64>,
    /// Seed of the order of blocks; the same seed gives the same order [default: from the clock]
    #[arg(long)]
    seed: Option<u64>,
    /// Share of the series that the load touches, spread over all
    #[arg(long, value_name = "SHARE", value_parser = percent, default_value = "1%")]
    touched: f64,
    /// A block is void if the generator itself started more than this share of its requests late
    #[arg(long, value_name = "SHARE", value_parser = percent, default_value = "0.1%")]
    late_share: f64,
    /// Scrape without gzip
    #[arg(long)]
    plain: bool,
    /// Target and upstream on other machines, by ssh; see the manual
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// CPUs of the target [default: the first half]
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    target_cpus: Option<Cpus>,
    /// CPUs of generator, upstream and scraper [default: the others]
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    load_cpus: Option<Cpus>,
    /// File for design, raw data and analysis; kept up to date while the experiment runs [default: tail-DATE.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A page of flame graphs of the target's CPU time with scrapes, without, and of their difference, by perf; for one
    /// combination
    #[arg(long, value_name = "FILE.html", conflicts_with = "hosts")]
    profile: Option<PathBuf>,
    /// File for a page of the result
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

/// A week.
const HOURS_MAX: f64 = 168.0;

fn hours(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(hours) if hours > 0.0 && hours <= HOURS_MAX => Ok(hours),
        _ => Err(format!("write a number of hours up to {HOURS_MAX}, for example 8 or 0.5")),
    }
}

fn series(text: &str) -> Result<u64, String> {
    match count(text)? {
        0 => Err("write at least 1 series, for example 1k".to_owned()),
        series => Ok(series),
    }
}

/// Returns 0 if done; 2 if a cell could not be run; 3 if all cells are void; 130 if interrupted. Finished cells are
/// kept in any case.
pub(crate) fn run(arguments: &Tail) -> Result<u8> {
    let folder = tempfile::tempdir().map_err(|error| format!("cannot make a temporary folder: {error}"))?;
    let mut design = arguments.design()?;
    let mut specs = arguments.specs(folder.path());
    if let Some(hours) = arguments.hours {
        let cells = design::cells(&specs, &arguments.series, &arguments.scrape_every).len();
        design.block_s = design::block_s(&design, cells, hours)?;
    }
    design::check(&design, &arguments.scrape_every)?;
    let machines = arguments.hosts.as_deref().map(hosts::up).transpose()?;
    if let Some(machines) = &machines {
        hosts::place(machines, specs.iter_mut())?;
    }
    let planned = design::cells(&specs, &arguments.series, &arguments.scrape_every);
    design.plan = planned.iter().map(PlannedCell::planned).collect();
    design::check_distinct(&design.plan)?;
    let mut flames = arguments.flames(&planned)?;
    let path = arguments.json.clone().unwrap_or_else(|| file::default_path("tail"));
    let writer = ResultWriter::open(&path)?;
    if let Some(page) = &arguments.report {
        arguments.check_page(page, &path, &writer)?;
    }
    let stop = stop_flag()?;
    let hosts = machines.as_ref().map(|machines| machines.environments()).unwrap_or_default();
    let (environment, stolen) = (Environment { hosts, ..environment::gather() }, Stolen::begin());
    introduce(&design, &planned, writer.path());
    let mut progress = Progress::new("tail", tail::steps(&planned, design.pairs));
    let mut result = None;
    let ended = tail::run(&design, &planned, &stop, &mut progress, flames.as_mut(), |outcomes| {
        let environment = Environment { stolen_s: stolen.ms().map(|ms| ms / 1e3), ..environment.clone() };
        let file =
            ResultFile::new(own_arguments(), environment, Experiment::Tail(Box::new(so_far(&design, outcomes)?)));
        writer.save(&file)?;
        result = Some(file);
        Ok(())
    })?;
    if let (Some(page), Some(flames)) = (&arguments.profile, flames)
        && let Some(html) = flames.html(&design, &planned[0], &progress)
    {
        output::replace_file(page, html.as_bytes()).map_err(|error| unwritable(page, &error))?;
    }
    progress.finish();
    let Some(file) = result else {
        return Err(
            Error::new("stopped before the first pair of blocks was finished; nothing was written").exit(EXIT_STOPPED)
        );
    };
    let Experiment::Tail(tail) = &file.experiment else { unreachable!("made above") };
    output::show(table::text(tail)?)?;
    let failed = !tail.failures.is_empty();
    let void = tail.analysis.cells.iter().all(|cell| cell.verdict == Verdict::Void);
    writer.finish(&file)?;
    if let Some(page) = &arguments.report {
        commands::report::write(std::slice::from_ref(&path), page)?;
    }
    eprintln!("written to {}; `stillgate-lab verify` recomputes the analysis", path.display());
    Ok(match ended {
        TailEnd::Stopped => EXIT_STOPPED,
        TailEnd::Done if failed => EXIT_FAILED,
        TailEnd::Done if void => EXIT_VOID,
        TailEnd::Done => 0,
    })
}

impl Tail {
    fn design(&self) -> Result<TailDesign> {
        let given = |cpus: &Option<Cpus>| cpus.as_ref().map(|cpus| cpus.0.clone());
        let spares = self.spares.unwrap_or(self.pairs);
        for (option, pairs) in [("--pairs", self.pairs), ("--spares", spares)] {
            if pairs > PAIRS_MAX {
                let default = design::PAIRS_DEFAULT;
                return Err(format!("{option} {pairs}: at most {PAIRS_MAX}; {default} is the default").into());
            }
        }
        let (target, load) = (given(&self.target_cpus), given(&self.load_cpus));
        let placement = placement::place_for_hosts(target.as_deref(), load.as_deref(), self.hosts.as_deref())?;
        if let Some(warning) = placement::warning(&placement) {
            eprintln!("note: {warning}");
        }
        Ok(TailDesign {
            rate: self.rate,
            connections: self.connections,
            block_s: self.block.as_secs_f64(),
            lead_in_s: design::LEAD_IN.as_secs_f64(),
            pairs: usize::try_from(self.pairs).map_err(|_| "--pairs: too many")?,
            spares: usize::try_from(spares).map_err(|_| "--spares: too many")?,
            plan: Vec::new(),
            seed: self.seed.unwrap_or_else(seed_of_clock),
            confidence: design::CONFIDENCE,
            power: design::POWER,
            margin: design::MARGIN,
            late_share_max: self.late_share,
            gzip: !self.plain,
            touched_percent: self.touched * 100.0,
            placement,
        })
    }

    /// Profiles of the only combination, if requested.
    fn flames(&self, planned: &[PlannedCell]) -> Result<Option<Flames>> {
        let Some(page) = &self.profile else { return Ok(None) };
        if planned.len() != 1 {
            return Err(Error::new(format!(
                "--profile needs exactly one combination, and these are {}; name one target, one of --series and one of --scrape-every",
                planned.len()
            )));
        }
        output::check_replaceable(page).map_err(|error| unwritable(page, &error))?;
        Ok(Some(Flames::default()))
    }

    /// Checks before anything begins that the page has a place of its own.
    fn check_page(&self, page: &Path, json: &Path, writer: &ResultWriter) -> Result {
        if matches!(writer, ResultWriter::Stream(_)) {
            return Err("--report is made from the result file; name one with --json FILE".into());
        }
        let of = |path: &Path| std::fs::canonicalize(path).ok();
        if page == json || (of(page).is_some() && of(page) == of(json)) {
            return Err(
                "--report and --json name the same file, and the page would replace the result; name two".into()
            );
        }
        commands::report::check_output(page)
    }

    fn specs(&self, folder: &Path) -> Vec<Spec> {
        let built_in = self.targets.iter().map(|target| target.spec(folder));
        let started = self.start.iter().map(|command| Spec {
            name: name_of(command),
            command: Some(command.clone()),
            address: self.address,
            metrics: self.metrics.clone(),
            ..Spec::built_in(TargetKind::Command, folder.to_owned())
        });
        built_in.chain(started).collect()
    }
}

fn unwritable(path: &Path, error: &dyn Display) -> Error {
    Error::new(format!("--profile {}: cannot be written: {error}", path.display()))
}

/// The program's name without its folder.
fn name_of(command: &str) -> String {
    let program = command.split_whitespace().next().unwrap_or(command).trim_matches(['\'', '"']);
    Path::new(program).file_name().map_or_else(|| program.to_owned(), |name| name.to_string_lossy().into_owned())
}

fn so_far(design: &TailDesign, outcomes: &Outcomes) -> Result<TailResult> {
    Ok(TailResult {
        design: design.clone(),
        cells: outcomes.cells.clone(),
        failures: outcomes.failures.clone(),
        analysis: analysis::analyse(design, &outcomes.cells)?,
    })
}

fn introduce(design: &TailDesign, planned: &[PlannedCell], path: &Path) {
    let minutes = |pairs: usize| (planned.len() * pairs * 2) as f64 * (design.block_s + design.lead_in_s) / 60.0;
    let spares = match design.spares {
        0 => String::new(),
        spares => format!(
            ", and up to {:.0} min more for up to {spares} spare pairs, which replace those in which the generator is late",
            minutes(spares)
        ),
    };
    eprintln!(
        "{} of {} pairs of blocks of {}, {} requests/s on {} connections, seed {}: about {:.0} min and the \
         time to make the series{spares}; kept in {}",
        if planned.len() == 1 { "1 combination".to_owned() } else { format!("{} combinations", planned.len()) },
        design.pairs,
        readable::seconds(design.block_s),
        design.rate,
        design.connections,
        design.seed,
        minutes(design.pairs),
        path.display()
    );
    let needed = design::pairs_needed(1.0 - design.confidence, analysis::MEASURES_TESTED);
    if design.pairs < needed {
        eprintln!("note: {} pairs cannot show a difference, however large; at least {needed} can", design.pairs);
    }
}
