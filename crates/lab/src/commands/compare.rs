//! `stillgate-lab compare`: which of two to six programs is slower, for people and for pipelines.

use super::builds::Builds;
use crate::command_line::{Cpus, cpus, duration, own_arguments, percent, positive, probability, rate, seed_of_clock};
use crate::compare::side::upstream_placement;
use crate::compare::subject::ResolvedSide;
use crate::compare::{Contest, Pairs, Pilot, analysis, instructions, measures, rules, tables};
use crate::display::Progress;
use crate::environment::{self, Stolen};
use crate::error::{EXIT_INTERRUPTED, EXIT_USAGE, Error, Result, stop_flag};
use crate::hosts;
use crate::output::{self, STANDARD_OUTPUT};
use crate::result::compare::{CompareDesign, CompareResult, Crash, Decision, Instructions, Pair, Side};
use crate::result::file::{self, ResultWriter};
use crate::result::run::{Environment, Placement, Subject};
use crate::result::{Experiment, ResultFile};
use crate::target::{Upstream, placement};
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Default number of pairs with one look, and maximum with several.
const PAIRS: usize = 16;
const PAIRS_SEQUENTIAL: usize = 32;

/// A larger number is a typing error: even with the shortest runs these take days.
const PAIRS_MAX: usize = 10_000;

/// A to F.
const BUILDS_MAX: usize = Side::ALL.len();

/// Size of the upstream's answers.
const BODY_BYTES: usize = 100;

/// `stillgate-lab compare`.
#[derive(Debug, Args)]
#[command(after_help = "\
A and B are binaries, commands in quotes (\"server --listen {address} --upstream {upstream}\"), or with --repo git revisions of a \
Cargo project; so are up to four more, all measured in one run and compared with A. Each pair, or round of several, starts all of them again, in random order, and loads them on CPUs of their own.

Exit codes, of several for the worst: 0 B is not worse; 1 B is worse in some measure, fails more requests, or ended under load; 2 undecided: a difference \
of --margin could have been missed, or B failed more than 0.1% of the requests of some pair; 3 void: too many runs say more about \
the generator than about the programs; 64 the comparison could not be done, for example because a program does not start; 130 interrupted, \
the pairs that were finished are kept.

One error, --alpha, holds for all measures, looks and comparisons together. The number of pairs is fixed before the first and never extended; \
--sequential also looks at half and three quarters of them, at the price of a slightly lower power. Measures are tested by Wilcoxon's signed-rank test on \
the pairs' log ratios, failed requests by the sign test of pairs, instructions by Student's test on three repetitions a side with \
valgrind, and where these differ by ranks, too, on as many as that takes (seven for two builds); a change of instructions or memory below 1% counts as none. Throughput is not judged where the generator was the limit, \
latencies where it started requests late.")]
pub(crate) struct Compare {
    #[command(flatten)]
    builds: Builds,
    /// More builds to compare: C to F
    #[arg(value_name = "C", num_args = 0..=BUILDS_MAX - 2)]
    others: Vec<String>,
    /// Compare all builds with each other, not only each with A
    #[arg(long)]
    every_pair: bool,
    /// Pairs, or rounds of several builds [default: 16, or with --sequential at most 32]
    #[arg(long, value_name = "N", value_parser = positive)]
    pairs: Option<usize>,
    /// Look early, too, and stop where B is certainly worse
    #[arg(long)]
    sequential: bool,
    /// Probability of any false alarm, over all measures and looks
    #[arg(long, value_name = "P", value_parser = probability, default_value = "0.01")]
    alpha: f64,
    /// Probability with which the "detectable" differences would have been found
    #[arg(long, value_name = "P", value_parser = probability, default_value = "0.9")]
    power: f64,
    /// The result is undecided if a difference of a deciding measure this large could have been missed
    #[arg(long, value_name = "SHARE", value_parser = percent, default_value = "5%")]
    margin: f64,
    /// Measures that must be decided: throughput, cpu, p50, p99, p99.9, rss, instructions
    #[arg(long, value_name = "MEASURE,…", value_delimiter = ',', value_parser = measure, default_value = "cpu")]
    deciding: Vec<String>,
    /// Requests per second of the open loop [default: 40% of the slower side's maximum, found by a pilot]
    #[arg(long, value_name = "auto|N", value_parser = rate_or_auto, default_value = "auto")]
    rate: Rate,
    /// Connections
    #[arg(long, value_name = "N", value_parser = positive, default_value = "32")]
    connections: usize,
    /// Requests, as for `load` [default: GET /]
    #[arg(long, value_name = "FILE")]
    mix: Option<PathBuf>,
    /// Measured time of the closed loop
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "400ms")]
    saturation: Duration,
    /// Measured time of the open loop
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "500ms")]
    latency: Duration,
    /// Unmeasured load after each start
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "150ms")]
    warm_up: Duration,
    /// A request that the generator starts later than this is late; with too many, latencies are not judged
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1ms")]
    late: Duration,
    /// Do not count instructions
    #[arg(long)]
    no_instructions: bool,
    /// Seed of the order within pairs; the same seed gives the same order [default: from the clock]
    #[arg(long)]
    seed: Option<u64>,
    /// Target and upstream on other machines, by ssh; see the manual
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// CPUs of the programs [default: the first half]
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    target_cpus: Option<Cpus>,
    /// CPUs of generator and upstream, which has the last of several [default: the others]
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    load_cpus: Option<Cpus>,
    /// File for design, raw data and analysis; kept up to date while the comparison runs [default: compare-DATE.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Summary in GitHub's Markdown, to a file or in place of the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = STANDARD_OUTPUT)]
    markdown: Option<PathBuf>,
}

/// The rate of the open loop.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Rate {
    Auto,
    Fixed(f64),
}

/// Returns the exit code of the decision; all errors end with another code.
pub(crate) fn run(arguments: &Compare) -> Result<u8> {
    compare(arguments).map_err(|error| if error.exit == EXIT_INTERRUPTED { error } else { error.exit(EXIT_USAGE) })
}

fn compare(arguments: &Compare) -> Result<u8> {
    let mut design = arguments.design()?;
    let folder = tempfile::tempdir().map_err(|error| format!("cannot make a temporary folder: {error}"))?;
    let path = arguments.json.clone().unwrap_or_else(|| file::default_path("compare"));
    let writer = ResultWriter::open(&path)?;
    arguments.check_outputs(&path)?;
    let mut asked = arguments.builds.servers(&arguments.others, folder.path())?;
    let stop = stop_flag()?;
    let machines = arguments.hosts.as_deref().map(hosts::up).transpose()?;
    if let Some(machines) = &machines {
        hosts::place(machines, asked.iter_mut().map(|asked| &mut asked.spec))?;
    }
    let hosts = machines.as_ref().map(|machines| machines.environments()).unwrap_or_default();
    let (environment, stolen) = (Environment { hosts, ..environment::gather() }, Stolen::begin());
    let upstream = Upstream::start(&upstream_placement(&design.placement), BODY_BYTES, machines.as_ref())?;
    let builds = asked.iter().map(|asked| &asked.spec).collect();
    let contest = Contest { builds, upstream: &upstream, stop: &stop };
    let counting = if arguments.no_instructions { 0 } else { instructions::REPETITIONS };
    let mut progress = Progress::new("compare", (design.builds + counting + design.pairs) as u64);
    let pilot = contest.pilot(&design, &mut progress)?;
    if arguments.rate == Rate::Auto {
        design.rate = pilot.rate;
    }
    let is_elsewhere = design.placement.target_apart;
    let counted = match (arguments.no_instructions, &pilot.crash) {
        (false, _) if is_elsewhere => Err("the programs run on another machine".to_owned()),
        (true, _) => Err("--no-instructions was given".to_owned()),
        (false, Some(crash)) => Err(format!("{:?} ended under load", crash.side)),
        (false, None) => instructions::count(&contest, &design, &mut progress),
    };
    let make = |pairs: &[Pair], crash: Option<&Crash>| -> Result<ResultFile> {
        let result = result(&design, (&pilot, &asked), (pairs, crash), &counted)?;
        let environment = Environment { stolen_s: stolen.ms().map(|ms| ms / 1e3), ..environment.clone() };
        Ok(ResultFile::new(own_arguments(), environment, Experiment::Compare(Box::new(result))))
    };
    let mut saved = false;
    let run = match &pilot.crash {
        Some(crash) => Ok(Pairs { pairs: Vec::new(), crash: Some(crash.clone()) }),
        None => contest.pairs(&design, counted.as_ref().ok(), &mut progress, |pairs| {
            saved = true;
            writer.save(&make(pairs, None)?)
        }),
    };
    let Pairs { pairs, crash } = run.map_err(|error| match saved {
        true => error.context(format!("{} holds what was measured until then", path.display())),
        false => error,
    })?;
    progress.finish();
    let file = make(&pairs, crash.as_ref())?;
    arguments.show(&file, &path)?;
    writer.finish(&file)?;
    let Experiment::Compare(result) = &file.experiment else { unreachable!("made above") };
    Ok(exit_code(result.analysis.decision))
}

impl Compare {
    /// The design, except for a rate that a pilot finds.
    fn design(&self) -> Result<CompareDesign> {
        let builds = 2 + self.others.len();
        let (asked, every_pair) = (CompareDesign::comparisons_of(builds, self.every_pair), self.every_pair);
        let family = measures::family(asked.len(), !self.no_instructions);
        let pairs = self.pairs.unwrap_or(if self.sequential { PAIRS_SEQUENTIAL } else { PAIRS });
        if pairs > PAIRS_MAX {
            return Err(Error::new(format!("--pairs {pairs}: at most {PAIRS_MAX}")));
        }
        let design = CompareDesign {
            builds,
            every_pair,
            pairs,
            looks: if self.sequential { rules::planned_looks(pairs, self.alpha, family) } else { Vec::new() },
            alpha: self.alpha,
            power: self.power,
            margin: self.margin,
            deciding: self.deciding.clone(),
            warm_up_s: self.warm_up.as_secs_f64(),
            saturation_s: self.saturation.as_secs_f64(),
            slice_s: None,
            rate_s: self.latency.as_secs_f64(),
            rate: match self.rate {
                Rate::Auto => 0.0,
                Rate::Fixed(rate) => rate,
            },
            connections: self.connections,
            late_s: self.late.as_secs_f64(),
            mix: self.mix.clone(),
            seed: self.seed.unwrap_or_else(seed_of_clock),
            placement: self.placement()?,
        };
        if !rules::can_decide(&design, family) {
            return Err(Error::new(format!(
                "--pairs {pairs}: too few to show any difference with --alpha {}; at least {} are needed",
                self.alpha,
                rules::pairs_min(&design, family)
            )));
        }
        if design.margin <= 0.0 || self.saturation.is_zero() || self.latency.is_zero() || self.warm_up.is_zero() {
            return Err("--margin, --saturation, --latency and --warm-up must be above zero".into());
        }
        if self.no_instructions && design.deciding.iter().any(|name| name == measures::INSTRUCTIONS.name) {
            return Err("--deciding instructions: they are not counted with --no-instructions".into());
        }
        Ok(design)
    }

    fn placement(&self) -> Result<Placement> {
        let given = |cpus: &Option<Cpus>| cpus.as_ref().map(|cpus| cpus.0.clone());
        let (target, load) = (given(&self.target_cpus), given(&self.load_cpus));
        let placement = placement::place_for_hosts(target.as_deref(), load.as_deref(), self.hosts.as_deref())?;
        if let Some(warning) = placement::warning(&placement) {
            eprintln!("note: {warning}");
        }
        Ok(placement)
    }

    /// Checked first: a result must not be overwritten by its summary, nor an hour be lost to a folder that does not
    /// exist.
    fn check_outputs(&self, json: &Path) -> Result {
        let Some(markdown) = self.markdown.as_deref().filter(|path| *path != Path::new(STANDARD_OUTPUT)) else {
            return Ok(());
        };
        let is_same = |one: &Path, other: &Path| {
            one == other
                || std::fs::canonicalize(one)
                    .is_ok_and(|one| std::fs::canonicalize(other).is_ok_and(|other| one == other))
        };
        if is_same(json, markdown) {
            return Err(Error::new(format!(
                "--markdown {}: the result goes there; name another file",
                markdown.display()
            )));
        }
        let cannot = |why: &dyn std::fmt::Display| {
            Err(Error::new(format!("--markdown {}: cannot be written: {why}", markdown.display())))
        };
        match std::fs::metadata(markdown) {
            Ok(there) if there.is_dir() => cannot(&"it is a directory; name a file in it"),
            // A pipe or a terminal is tried when there is something to write.
            Ok(there) if !there.is_file() => Ok(()),
            _ => output::check_replaceable(markdown).or_else(|error| cannot(&error)),
        }
    }

    /// Prints Markdown instead of the table if it goes to standard output; neither if the result itself goes there.
    fn show(&self, file: &ResultFile, path: &Path) -> Result {
        let Experiment::Compare(result) = &file.experiment else { unreachable!("made by this command") };
        let taken = path == Path::new(STANDARD_OUTPUT);
        match &self.markdown {
            Some(target) if target == Path::new(STANDARD_OUTPUT) => {
                return output::show(tables::markdown_of(result, &file.environment));
            }
            Some(target) => std::fs::write(target, tables::markdown_of(result, &file.environment))
                .map_err(|error| Error::new(format!("{}: cannot be written: {error}", target.display())))?,
            None => {}
        }
        if taken {
            return Ok(());
        }
        output::show(tables::text_of(result))?;
        eprintln!("written to {}; `stillgate-lab verify` recomputes the analysis", path.display());
        Ok(())
    }
}

fn result(
    design: &CompareDesign,
    (pilot, asked): (&Pilot, &[ResolvedSide]),
    (pairs, crash): (&[Pair], Option<&Crash>),
    counted: &Result<Instructions, String>,
) -> Result<CompareResult> {
    let subject =
        |(subject, asked): (&Subject, &ResolvedSide)| Subject { revision: asked.revision.clone(), ..subject.clone() };
    let mut subjects = pilot.subjects.iter().zip(asked).map(subject);
    let mut next = || subjects.next().unwrap_or_default();
    Ok(CompareResult {
        design: design.clone(),
        a: next(),
        b: next(),
        others: subjects.collect(),
        pairs: pairs.to_vec(),
        instructions: counted.as_ref().ok().cloned(),
        instructions_missing: counted.as_ref().err().cloned(),
        crash: crash.cloned(),
        analysis: analysis::analyse(design, pairs, counted.as_ref().ok(), crash)?,
    })
}

fn exit_code(decision: Decision) -> u8 {
    match decision {
        Decision::NotWorse => 0,
        Decision::Worse => 1,
        Decision::Undecided => 2,
        Decision::Void => 3,
    }
}

fn measure(text: &str) -> Result<String, String> {
    match measures::is_known(text) {
        true => Ok(text.to_owned()),
        false => Err("not one of throughput, cpu, p50, p99, p99.9, rss, instructions".to_owned()),
    }
}

fn rate_or_auto(text: &str) -> Result<Rate, String> {
    if text == "auto" { Ok(Rate::Auto) } else { rate(text).map(Rate::Fixed) }
}
