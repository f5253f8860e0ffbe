//! `stillgate-lab explain`: why one build costs more than another.

use super::builds::Builds;
use crate::command_line::{own_arguments, positive, probability, seed_of_clock};
use crate::compare::instructions::under_callgrind;
use crate::compare::side::{LoadSettings, generator_cpus, upstream_placement};
use crate::display::Progress;
use crate::error::{EXIT_INTERRUPTED, Error, Result, stop_flag};
use crate::explain::analysis::{self, Fold};
use crate::explain::isolated::{self, Part, part};
use crate::explain::words;
use crate::profile::{self, Output, Subject};
use crate::result::explain::{ExplainAnalysis, ExplainDesign, ExplainResult, IsolatedPart, LuaSides, Sides};
use crate::result::file::{self, ResultWriter};
use crate::result::run::Placement;
use crate::result::{Experiment, ResultFile};
use crate::target::{MetricsAddress, RunningTarget, Spec, Upstream, placement};
use crate::{environment, output, scraper};
use clap::Args;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use stillgate_load::{Pace, RunSummary};
use stillgate_profiler::output::pprof;
use stillgate_profiler::profile::Profile;
use stillgate_rig::{callgrind, cpus};
use stillgate_stats::Random;

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
        output::check_replaceable(path).map_err(|error| unwritable(path, error))?;
    }
    let path = arguments.json.clone().unwrap_or_else(|| file::default_path("explain"));
    let writer = ResultWriter::open(&path)?;
    let stop = stop_flag()?;
    let result = arguments.measure(&stop)?;
    let interrupted = result.analysis.interrupted_after;
    output::show(words::report(&result))?;
    if let Some(path) = &arguments.html {
        output::replace_file(path, words::html(&result).as_bytes()).map_err(|error| unwritable(path, error))?;
    }
    writer.finish(&ResultFile::new(own_arguments(), environment::gather(), Experiment::Explain(Box::new(result))))?;
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
        Ok(explain_result(design, cpu, counted, lua, isolated, interrupted))
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

fn explain_result(
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

// The profiles of a result: A and B in alternation, each slice from a new start.
//
// The placement of memory changes a program's speed by a few per cent; slices of one start would share that luck and
// make it look like a difference. They alternate, so that the machine's drift affects both.

/// Counts of instructions of each program; they hardly differ.
pub(crate) const COUNTS: usize = 2;

/// Profiles of time of each program; with fewer, their scatter is unknown.
pub(crate) const SLICES_MIN: usize = 5;

/// The programs to profile.
pub(crate) enum Programs<'a> {
    /// Each runs to its end; one run is the unit of work.
    Run([Vec<OsString>; 2]),
    /// Each is under load.
    Served(&'a [LoadedServer<'a>; 2]),
}

impl Programs<'_> {
    /// Number of progress steps.
    pub(crate) fn steps(&self, slices: usize, with_instructions: bool) -> u64 {
        let of_lua = if self.shows_lua() { 2 * slices } else { 0 };
        2 * (slices + of_lua + if with_instructions { COUNTS } else { 0 }) as u64
    }

    /// Whether both report their functions in Lua.
    pub(crate) fn shows_lua(&self) -> bool {
        matches!(self, Programs::Served(served) if served.iter().all(|served| served.spec.needs_admin()))
    }

    /// Profiles of functions in Lua, for servers that report them.
    pub(crate) fn lua(&self, design: &ExplainDesign, stop: &AtomicBool, progress: &mut Progress) -> Result<LuaSides> {
        let mut take = |what: &str, kind: LuaKind| {
            in_turn(what, design.slices, design.seed, stop, progress, |side| match self {
                Programs::Run(_) => {
                    Err(Error::new("a program that runs to its end does not report its functions in Lua"))
                }
                Programs::Served(served) => served[side].lua(kind, design.slice_s, design.hz, stop),
            })
        };
        Ok(LuaSides { cpu: take("functions in Lua", LuaKind::Cpu)?, bytecode: take("bytecode", LuaKind::Bytecode)? })
    }

    /// Profiles of CPU time.
    pub(crate) fn cpu(&self, design: &ExplainDesign, stop: &AtomicBool, progress: &mut Progress) -> Result<Sides> {
        let output = Output::Hidden { stop };
        let take = |side: usize| match self {
            Programs::Run(words) => Ok((profile::cpu(&Subject::Command(&words[side]), design.hz, output)?, 1.0)),
            Programs::Served(served) => served[side].cpu(design.slice_s, design.hz, output),
        };
        in_turn("CPU time", design.slices, design.seed, stop, progress, take)
    }

    /// Profiles of instructions.
    pub(crate) fn instructions(
        &self,
        design: &ExplainDesign,
        stop: &AtomicBool,
        progress: &mut Progress,
    ) -> Result<Sides> {
        let take = |side: usize| match self {
            Programs::Run(words) => Ok((profile::instructions(&words[side], Output::Hidden { stop })?, 1.0)),
            Programs::Served(served) => served[side].instructions(stop),
        };
        in_turn("instructions", COUNTS, design.seed, stop, progress, take)
    }
}

/// This many slices of each; fewer, but equally many of both, if the user interrupts.
fn in_turn(
    what: &str,
    slices: usize,
    seed: u64,
    stop: &AtomicBool,
    progress: &mut Progress,
    take: impl Fn(usize) -> Result<(Profile, f64)>,
) -> Result<Sides> {
    let mut random = Random::new(seed);
    let mut folds = [Fold::default(), Fold::default()];
    'slices: for slice in 0..slices {
        let mut order = [0, 1];
        random.shuffle(&mut order);
        let mut both = [None, None];
        for side in order {
            if stop.load(Ordering::Relaxed) {
                break 'slices;
            }
            let name = ["A", "B"][side];
            progress.step(&format!("{what} of {name}, {} of {slices}", slice + 1));
            match take(side) {
                Ok(taken) => both[side] = Some(taken),
                // A profile that was cut short fails.
                Err(_) if stop.load(Ordering::Relaxed) => break 'slices,
                Err(error) => return Err(error.context(name)),
            }
        }
        for (fold, (profile, work)) in folds.iter_mut().zip(both.into_iter().flatten()) {
            fold.add(&profile, work);
        }
    }
    let [a, b] = folds.map(Fold::finish);
    Ok(Sides { a, b })
}

// Profiles of a server under a closed loop, so that it does nothing but answer.

/// Load before anything is counted: caches fill, code is compiled.
const WARM_UP: Duration = Duration::from_millis(400);

/// Load that does not count while perf starts.
const LEAD_IN: Duration = Duration::from_millis(200);

/// Load ends with the profile. A hanging profile delays it by at most this long.
const BEYOND: Duration = Duration::from_secs(60);

/// Load before and after a profile of functions in Lua.
const AROUND: Duration = Duration::from_millis(700);

/// Under callgrind, which is some fifty times slower, one connection saturates it.
const CONNECTIONS_COUNTED: usize = 1;
const WARM_UP_COUNTED: Duration = Duration::from_secs(2);
const COUNTED: Duration = Duration::from_secs(4);

/// Fewer requests consist mostly of work that is done occasionally.
const REQUESTS_MIN: u64 = 100;

/// No latency is read here, so none can be late.
const LATE: Duration = Duration::from_secs(1);

/// By then LuaJIT has compiled what it can, and given up on the rest.
const WARM_UP_LUA: Duration = Duration::from_secs(1);

/// Highest rate of the gateway's profiles.
const LUA_HZ_MAX: u32 = 1000;

/// The kind of profile of functions in Lua.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LuaKind {
    Cpu,
    /// Time in the interpreter only.
    Bytecode,
}

impl LuaKind {
    fn name(self) -> &'static str {
        match self {
            LuaKind::Cpu => "cpu",
            LuaKind::Bytecode => "bytecode",
        }
    }
}

/// A server and its requests.
pub(crate) struct LoadedServer<'a> {
    pub(crate) spec: Spec,
    pub(crate) upstream: &'a Upstream,
    pub(crate) placement: &'a Placement,
    pub(crate) connections: usize,
    pub(crate) mix: Option<&'a Path>,
    pub(crate) seed: u64,
}

impl LoadedServer<'_> {
    /// CPU time of one start, and the number of requests that it was spent on.
    pub(crate) fn cpu(&self, seconds: u64, hz: u32, output: Output<'_>) -> Result<(Profile, f64)> {
        let mut started = self.spec.start(self.upstream.address, self.placement)?;
        let asking = self.load_settings(&started, self.connections)?;
        checked(&mut started, asking.run(Pace::Closed, Duration::ZERO, WARM_UP))?;
        let (pids, over) = (started.pids()?, AtomicBool::new(false));
        let watched = Subject::Processes { pids: &pids, seconds };
        let (samples, outcome) = thread::scope(|scope| {
            let perf = scope.spawn(|| {
                let samples = profile::sample(&watched, hz, output);
                over.store(true, Ordering::Relaxed);
                samples
            });
            let outcome = asking.run_until(Pace::Closed, LEAD_IN, Duration::from_secs(seconds) + BEYOND, &over);
            (perf.join(), outcome)
        });
        started.alive()?;
        let samples = samples.map_err(|_| Error::new("the thread that waits for perf panicked"))??;
        let outcome = checked(&mut started, outcome)?;
        drop(started);
        // The load is constant, and as long as the profile.
        Ok((samples.read(output)?, outcome.rate_achieved * seconds as f64))
    }

    /// Functions in Lua of one start by their own stacks, as the gateway reports them, and the number of requests
    /// meanwhile.
    pub(crate) fn lua(&self, kind: LuaKind, seconds: u64, hz: u32, stop: &AtomicBool) -> Result<(Profile, f64)> {
        let mut started = self.spec.start(self.upstream.address, self.placement)?;
        let address = started.admin.ok_or_else(|| Error::new("it does not report its functions in Lua"))?;
        let asking = self.load_settings(&started, self.connections)?;
        checked(&mut started, asking.run(Pace::Closed, Duration::ZERO, WARM_UP_LUA))?;
        let (kind, hz) = (kind.name(), hz.min(LUA_HZ_MAX));
        let path = format!("/debug/pprof/lua?kind={kind}&seconds={seconds}&hz={hz}");
        // If the load is cut short, nothing waits for the answer; the request ends with the server.
        let answer = thread::spawn(move || scraper::body(&MetricsAddress { address, path }));
        let outcome = asking.run_until(Pace::Closed, AROUND, Duration::from_secs(seconds) + AROUND, stop);
        let outcome = checked(&mut started, completed(outcome))?;
        let answer = answer.join().map_err(|_| Error::new("the thread that waits for the profile panicked"))??;
        let profile = pprof::read(&answer).map_err(|error| Error::new(format!("its profile of Lua: {error}")))?;
        Ok((profile, outcome.rate_achieved * seconds as f64))
    }

    /// Instructions of one start without its start-up, and the number of requests that they were spent on.
    pub(crate) fn instructions(&self, stop: &AtomicBool) -> Result<(Profile, f64)> {
        let folder = tempfile::Builder::new()
            .prefix("callgrind-")
            .tempdir_in(&self.spec.directory)
            .map_err(|error| Error::new(format!("cannot make a folder for callgrind's counts: {error}")))?;
        let spec = under_callgrind(&self.spec, folder.path(), &profile::callgrind_options())?;
        let mut started = spec.start(self.upstream.address, self.placement)?;
        let asking = self.load_settings(&started, CONNECTIONS_COUNTED)?;
        let load = |time| completed(asking.run_until(Pace::Closed, Duration::ZERO, time, stop));
        checked(&mut started, load(WARM_UP_COUNTED))?;
        for pid in started.pids()? {
            callgrind::reset(pid)?;
        }
        let outcome = checked(&mut started, load(COUNTED))?;
        started.stop();
        if outcome.sent < REQUESTS_MIN {
            return Err(Error::new(format!(
                "under callgrind it answers too few requests ({} in {} s)",
                outcome.sent,
                COUNTED.as_secs()
            )));
        }
        Ok((profile::counted(folder.path())?, outcome.sent as f64))
    }

    fn load_settings(&self, started: &RunningTarget, connections: usize) -> Result<LoadSettings<'_>> {
        LoadSettings::of(started.address, connections, self.placement, LATE, self.mix, self.seed)
    }
}

/// A load that was cut short is an error.
fn completed(outcome: Result<RunSummary>) -> Result<RunSummary> {
    match outcome? {
        outcome if outcome.interrupted => Err("the load was cut short".into()),
        outcome => Ok(outcome),
    }
}

/// A target that has ended explains more than the load that could not reach it; one that refuses does not show its
/// work.
fn checked(started: &mut RunningTarget, outcome: Result<RunSummary>) -> Result<RunSummary> {
    started.alive()?;
    let outcome = outcome?;
    if outcome.errors.total() > 0 {
        let example = outcome.errors.examples.first().map_or("", String::as_str);
        return Err(Error::new(format!("requests failed, for example: {example}")));
    }
    Ok(outcome)
}
