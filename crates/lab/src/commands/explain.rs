//! `stillgate-lab explain`: why one build costs more than another.

use super::builds::Builds;
use crate::atomic_file;
use crate::cli::typed::{seed_of_clock, typed};
use crate::cli::values::{positive, probability};
use crate::compare::side::{generator_cpus, upstream_placement};
use crate::display::Progress;
use crate::environment;
use crate::error::{Error, Result};
use crate::explain::isolated::{self, Part, part};
use crate::explain::load::LoadedServer;
use crate::explain::run::{COUNTS, Programs, SLICES_MIN};
use crate::explain::{analysis, page, words};
use crate::result::explain::{ExplainAnalysis, ExplainDesign, ExplainResult, IsolatedPart, LuaSides, Sides};
use crate::result::file::{self, ResultWriter};
use crate::result::{Experiment, ResultFile};
use crate::stdout;
use crate::stop::{EXIT_INTERRUPTED, stop_flag};
use crate::target::{Upstream, placement};
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use stillgate_rig::cpus;

/// Size of the upstream's answers.
const BODY_BYTES: usize = 100;

/// Reason why something is missing.
const INTERRUPTED: &str = "interrupted";

/// `stillgate-lab explain`.
#[derive(Debug, Args)]
#[command(after_help = "\
A and B are servers under load as for `compare`, or with a command after -- programs that run to their end: \
explain ./old ./new -- {} input.json. Each is profiled by perf (CPU time, in slices of a start each) and by callgrind \
(instructions), in turn. The table has for each function its share of both, the ratio of the shares, and how much more or less it costs per request or run, in per cent of the cost of A; a star marks what is not noise.

Exit codes: 0 done, whatever was found; 2 an error; 130 interrupted. Ctrl-C ends it early, and keeps the profiles if there are 5 of CPU time of each; a second one ends it at once.")]
pub(crate) struct Explain {
    #[command(flatten)]
    builds: Builds,
    /// Number of profiles of CPU time of each
    #[arg(long, value_name = "N", value_parser = positive, default_value = "10")]
    slices: usize,
    /// For a server, how long each of these takes
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Samples per second of CPU time
    #[arg(long, value_name = "N", default_value_t = 999, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    hz: u32,
    /// Connections to a server
    #[arg(long, value_name = "N", value_parser = positive, default_value = "32")]
    connections: usize,
    /// Requests to a server, as for `load` [default: GET /]
    #[arg(long, value_name = "FILE", conflicts_with = "command")]
    mix: Option<PathBuf>,
    /// Do not count instructions
    #[arg(long)]
    no_instructions: bool,
    /// Probability that no unchanged function is reported as changed, for each table and graph
    #[arg(long, value_name = "P", value_parser = probability, default_value = "0.99")]
    confidence: f64,
    /// Seed of the order within pairs, and of the bootstrap [default: from the clock]
    #[arg(long)]
    seed: Option<u64>,
    /// File for design, profiles and analysis [default: explain-DATE.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A page with the table, four flame graphs and their differences
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Also measure a part by itself, by a command that prints a number, and compare it with the functions of that name
    /// inside
    #[arg(long, value_name = "NAME=COMMAND", value_parser = part)]
    isolated: Vec<Part>,
    /// A program and its arguments, with {} in place of A and B
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(arguments: &Explain) -> Result<u8> {
    if arguments.slices < SLICES_MIN {
        return Err(Error::new(format!("--slices {}: at least {SLICES_MIN}", arguments.slices)));
    }
    let unwritable = |path: &PathBuf, error| Error::new(format!("{}: cannot be written: {error}", path.display()));
    if let Some(path) = &arguments.html {
        atomic_file::can_replace(path).map_err(|error| unwritable(path, error))?;
    }
    let path = arguments.json.clone().unwrap_or_else(|| file::default_path("explain"));
    let writer = ResultWriter::open(&path)?;
    let stop = stop_flag()?;
    let result = arguments.measure(&stop)?;
    let interrupted = result.analysis.interrupted_after;
    stdout::show(words::report(&result))?;
    if let Some(path) = &arguments.html {
        atomic_file::replace(path, page::html(&result).as_bytes()).map_err(|error| unwritable(path, error))?;
    }
    writer.finish(&ResultFile::new(typed(), environment::gather(), Experiment::Explain(Box::new(result))))?;
    let Some(slices) = interrupted else { return Ok(0) };
    eprintln!("stillgate-lab: interrupted after {}; {} has the profiles so far", arguments.of(slices), path.display());
    Ok(EXIT_INTERRUPTED)
}

impl Explain {
    fn measure(&self, stop: &AtomicBool) -> Result<ExplainResult> {
        let folder = tempfile::tempdir().map_err(|error| format!("cannot make a temporary folder: {error}"))?;
        let design = self.design();
        if !self.command.is_empty() {
            return self.profiles(design, &Programs::Run(self.builds.commands(&self.command)?), stop);
        }
        let placement = placement::choose(None, None)?;
        let asked = self.builds.servers(&[], folder.path())?;
        let [a, b] = <[_; 2]>::try_from(asked).expect("name A and B only");
        let upstream = Upstream::start(&upstream_placement(&placement), BODY_BYTES, None)?;
        cpus::pin(generator_cpus(&placement))?;
        let served = |spec| LoadedServer {
            spec,
            upstream: &upstream,
            placement: &placement,
            connections: self.connections,
            mix: self.mix.as_deref(),
            seed: design.seed,
        };
        let both = [served(a.spec), served(b.spec)];
        self.profiles(design.clone(), &Programs::Served(&both), stop)
    }

    fn profiles(&self, design: ExplainDesign, programs: &Programs<'_>, stop: &AtomicBool) -> Result<ExplainResult> {
        let steps = programs.steps(design.slices, !self.no_instructions);
        let mut progress = Progress::new("explain", steps + (self.isolated.len() * design.slices) as u64);
        let cpu = programs.cpu(&design, stop, &mut progress)?;
        let taken = cpu.a.work.len();
        if taken < SLICES_MIN {
            let said =
                format!("interrupted after {}; at least {SLICES_MIN} are needed, so nothing is kept", self.of(taken));
            return Err(Error::new(said).exit(EXIT_INTERRUPTED));
        }
        let counted = match self.no_instructions {
            true => Err("--no-instructions was given".to_owned()),
            false => {
                let counted = programs.instructions(&design, stop, &mut progress).map_err(|error| error.to_string());
                counted.and_then(|sides| enough_slices(sides, COUNTS))
            }
        };
        let lua = programs.shows_lua().then(|| {
            let taken = programs.lua(&design, stop, &mut progress).map_err(|error| error.to_string())?;
            Ok(LuaSides {
                cpu: enough_slices(taken.cpu, SLICES_MIN)?,
                bytecode: enough_slices(taken.bytecode, SLICES_MIN)?,
            })
        });
        let programs = [&self.builds.a, &self.builds.b].map(String::clone);
        let isolated = self.isolated.iter();
        let isolated = isolated.map(|part| isolated::measure(part, &programs, design.slices, stop, &mut progress));
        let isolated = isolated.collect::<Result<Vec<IsolatedPart>>>()?;
        let interrupted = stop.load(Ordering::Relaxed);
        if interrupted {
            progress.note("interrupted: analysing the profiles so far; Ctrl-C again ends at once");
        }
        progress.finish();
        Ok(made(design, cpu, counted, lua, isolated, interrupted))
    }

    /// The progress as text.
    fn of(&self, slices: usize) -> String {
        format!("{slices} of {} profiles of CPU time of each", self.slices)
    }

    fn design(&self) -> ExplainDesign {
        let words = || self.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        ExplainDesign {
            a: self.builds.a.clone(),
            b: self.builds.b.clone(),
            work: if self.command.is_empty() { "request" } else { "run" }.to_owned(),
            command: (!self.command.is_empty()).then(words),
            mix: self.mix.clone(),
            slices: self.slices,
            slice_s: self.seconds,
            hz: self.hz,
            seed: self.seed.unwrap_or_else(seed_of_clock),
            confidence: self.confidence,
        }
    }
}

/// With fewer profiles, nothing can be concluded.
fn enough_slices(sides: Sides, least: usize) -> Result<Sides, String> {
    if sides.a.work.len() < least { Err(INTERRUPTED.to_owned()) } else { Ok(sides) }
}

fn made(
    design: ExplainDesign,
    cpu: Sides,
    counted: Result<Sides, String>,
    lua: Option<Result<LuaSides, String>>,
    isolated: Vec<IsolatedPart>,
    interrupted: bool,
) -> ExplainResult {
    let analysis = ExplainAnalysis::empty();
    let (instructions, instructions_missing) = match counted {
        Ok(sides) => (Some(sides), None),
        Err(why) => (None, Some(why)),
    };
    let (lua, lua_missing) = match lua {
        Some(Ok(sides)) => (Some(sides), None),
        Some(Err(why)) => (None, Some(why)),
        None => (None, None),
    };
    let mut result = ExplainResult {
        design,
        cpu,
        instructions,
        instructions_missing,
        isolated,
        lua,
        lua_missing,
        interrupted,
        analysis,
    };
    result.analysis = analysis::analyse(&result);
    result
}
