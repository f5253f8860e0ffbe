//! `measure --suite`: the options of a table, and its result.

use crate::command_line::positive;
use crate::compare::alone::{self, Figure, is_instructions};
use crate::compare::instructions::{self, CountPlan};
use crate::compare::measures;
use crate::compare::side::{self, LoadSettings, RoundOutcome, generator_cpus, upstream_placement};
use crate::display::Progress;
use crate::error::{Error, Result, stop_flag};
use crate::result::compare::{CompareDesign, SideRecord};
use crate::result::run::Placement;
use crate::result::{FiguresResult, Sample};
use crate::suite::{BenchmarkCase, Suite, TargetPlan, Texts, filled};
use crate::target::{Spec, TargetKind, Traffic, Upstream};
use crate::{client, figures};
use clap::Args;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stillgate_rig::{Running, cpus, ports};
use tempfile::TempDir;

/// Rounds, unless the suite has another number.
const ROUNDS: usize = 5;

#[derive(Debug, Args)]
pub(super) struct TableArguments {
    /// Measure a table of targets and cases instead of one program; see the manual
    #[arg(long, value_name = "FILE")]
    pub(super) suite: Option<PathBuf>,
    /// Only the cases of a suite with this in their names
    #[arg(long, value_name = "TEXT", requires = "suite")]
    case: Option<String>,
    /// Only these targets of a suite; ratios are to the first
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', requires = "suite")]
    targets: Vec<String>,
    /// Rounds of a suite [default: 5, or the suite's]
    #[arg(long, value_name = "N", value_parser = positive, requires = "suite")]
    rounds: Option<usize>,
    /// Another text for a placeholder of a suite
    #[arg(long, value_name = "NAME=TEXT", value_parser = pair, requires = "suite")]
    set: Vec<(String, String)>,
    /// Binary of a target, or of all targets of a kind
    #[arg(long, value_name = "NAME=PATH", value_parser = pair, requires = "suite")]
    binary: Vec<(String, String)>,
    /// File for design, raw data and analysis of a suite
    #[arg(long, value_name = "FILE", requires = "suite")]
    json: Option<PathBuf>,
}

impl TableArguments {
    pub(super) fn run(&self, mut suite: Suite, of: &[Figure], design: &CompareDesign) -> Result<u8> {
        for (name, text) in &self.set {
            match suite.fill.get_mut(name) {
                Some(own) => own.clone_from(text),
                None => {
                    let names: Vec<&str> = suite.fill.keys().map(String::as_str).collect();
                    return Err(Error::new(format!("--set {name}: the suite has {}", names.join(", "))));
                }
            }
        }
        let path = self.suite.as_deref().unwrap_or_else(|| unreachable!("it was read"));
        let (stop, writer) = (stop_flag()?, figures::writer(self.json.as_ref())?);
        let suites = usize::try_from(suite.rounds.unwrap_or(ROUNDS as u64)).unwrap_or(ROUNDS);
        let programs = self.binary.iter().map(|(name, path)| (name.clone(), PathBuf::from(path))).collect();
        let plan = Plan {
            figures: of,
            case: self.case.as_deref(),
            targets: &self.targets,
            rounds: self.rounds.unwrap_or(suites),
            programs: &programs,
            design,
            stop: &stop,
        };
        let bench = Bench::new(&suite, path, &plan)?;
        cpus::pin(generator_cpus(&design.placement))?;
        let mut result = bench.measure(path.file_stem().unwrap_or_default().to_string_lossy().into_owned())?;
        for (name, value) in
            [("connections", design.connections.to_string()), ("time", format!("{} s", design.saturation_s))]
        {
            result.set(name, value);
        }
        for (name, text) in &suite.fill {
            result.set(name, text);
        }
        if let Some(judged) = &suite.judged {
            result.analysis = figures::analyse(&result);
            let (more, compared) = rows_that_add_more(&result, judged);
            eprintln!(
                "{judged} adds no more than the least of the others in {} of {compared} rows",
                compared - more.len()
            );
            more.iter().for_each(|line| eprintln!("  more: {line}"));
        }
        figures::finish(result, writer)
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

// The measurement of a suite: its preparation, its targets case by case, and the rounds of its table.
//
// All targets of a case are started together and loaded in turn, in short slices, as `compare` does it: a disturbance of
// the machine affects all alike. Instructions and system calls hardly scatter, so each target is counted by itself.

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Size of the responder's answers.
const BODY_BYTES: usize = 100;

/// Requests of a count, unless the suite says otherwise.
const REQUESTS: u64 = 1000;

/// The end of the name of a line with what a case adds.
const ADDED: &str = ", added";

const SILENCE_TIMEOUT: Duration = Duration::from_secs(10);

/// What is measured, besides the suite.
pub(crate) struct Plan<'a> {
    pub(crate) figures: &'a [Figure],
    /// A part of the names of the cases that are measured; `None`: all.
    pub(crate) case: Option<&'a str>,
    /// Columns; empty: all of the suite.
    pub(crate) targets: &'a [String],
    pub(crate) rounds: usize,
    /// Binaries by target or kind.
    pub(crate) programs: &'a BTreeMap<String, PathBuf>,
    pub(crate) design: &'a CompareDesign,
    pub(crate) stop: &'a AtomicBool,
}

/// A suite that is ready to be measured.
pub(crate) struct Bench<'a> {
    suite: &'a Suite,
    plan: &'a Plan<'a>,
    /// The folder of the suite's file.
    home: PathBuf,
    upstream: Upstream,
    columns: Vec<&'a TargetPlan>,
    /// Placeholders of ports.
    ports: Texts,
    _beside: Vec<Running>,
    files: TempDir,
}

/// The figures of one target in one case: by figure, and in it by round.
type Values = Vec<Vec<Option<f64>>>;

impl<'a> Bench<'a> {
    /// Prepares the files of a suite and starts its upstream.
    pub(crate) fn new(suite: &'a Suite, path: &Path, plan: &'a Plan<'a>) -> Result<Bench<'a>> {
        let home = std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let home = home.parent().unwrap_or(Path::new("/")).to_owned();
        let files = tempfile::tempdir().map_err(|error| format!("cannot make a temporary folder: {error}"))?;
        if let Some(script) = &suite.prepare {
            prepare(script, &suite.fill, files.path(), &home)?;
        }
        let columns: Vec<&TargetPlan> = match plan.targets {
            [] => suite.targets.iter().collect(),
            names => names.iter().map(|name| target(suite, name)).collect::<Result<_>>()?,
        };
        let placement = upstream_placement(&plan.design.placement);
        let upstream = match &suite.upstream {
            None => Upstream::start(&placement, BODY_BYTES, None)?,
            Some(node) => {
                let spec = spec(node, &[&node.fill, &suite.fill], &home, files.path(), plan.programs)?;
                let placement = Placement { target_cpus: placement.load_cpus.clone(), ..placement };
                // It has no upstream of its own.
                Upstream::other(spec.start(([127, 0, 0, 1], 9).into(), &placement)?)
            }
        };
        let (mut ports, mut beside) = (Texts::new(), Vec::new());
        for (name, command) in &suite.beside {
            let port = ports::free(LOOPBACK, 1)?[0].port().to_string();
            let words = shlex::split(&command.replace("{port}", &port));
            let words = words.ok_or_else(|| Error::new(format!("{name}: a quote is not closed in its command")))?;
            let log = files.path().join(format!("{name}.log"));
            beside.push(Running::spawn(name, &words, &plan.design.placement.load_cpus, &log, Stdio::null())?);
            ports.insert(name.clone(), port);
        }
        Ok(Bench { suite, plan, home, upstream, columns, ports, _beside: beside, files })
    }

    /// The cases that are measured.
    fn cases(&self) -> Result<Vec<&'a BenchmarkCase>> {
        let chosen = |case: &&BenchmarkCase| {
            let is_base = self.suite.cases.iter().any(|other| other.against.as_ref() == Some(&case.name));
            match self.plan.case {
                None => !is_base,
                Some(part) => case.name.contains(part),
            }
        };
        let cases: Vec<&BenchmarkCase> = self.suite.cases.iter().filter(chosen).collect();
        match cases.is_empty() {
            true => {
                let names: Vec<&str> = self.suite.cases.iter().map(|case| case.name.as_str()).collect();
                Err(Error::new(format!("--case: a part of one of: {}", names.join("; "))))
            }
            false => Ok(cases),
        }
    }

    /// The table of a title, without its analysis.
    pub(crate) fn measure(&self, title: String) -> Result<FiguresResult> {
        let cases = self.cases()?;
        let columns = self.columns.iter().map(|target| target.name.clone()).collect();
        let named: Vec<(String, &str)> = cases.iter().flat_map(|case| self.lines(case)).collect();
        let lines: Vec<(&str, &str)> = named.iter().map(|(name, unit)| (name.as_str(), *unit)).collect();
        let mut result = FiguresResult::new("measure", title, columns, &lines, self.plan.rounds);
        let empty = Some(Sample { values: Vec::new(), void: Vec::new() });
        result.rounds = vec![vec![empty; self.columns.len()]; self.plan.rounds];
        let mut progress = Progress::new("measure", cases.len() as u64);
        let mut counted = BTreeMap::new();
        for case in cases {
            progress.step(&case.name);
            self.row(case, &mut counted, &mut result, &mut progress)?;
        }
        progress.finish();
        Ok(result)
    }

    /// The names and units of a case's lines: each figure, and what it adds.
    fn lines(&self, case: &BenchmarkCase) -> Vec<(String, &'static str)> {
        let line = |figure: &Figure| {
            let (name, unit) = (format!("{}: {figure}", case.name), unit(figure));
            let added = case.against.as_ref().map(|_| (format!("{name}{ADDED}"), unit));
            [(name, unit)].into_iter().chain(added)
        };
        self.plan.figures.iter().flat_map(line).collect()
    }

    /// Measures a case on all targets that have it, and adds its lines.
    fn row(
        &self,
        case: &'a BenchmarkCase,
        counted: &mut BTreeMap<(String, String), Values>,
        result: &mut FiguresResult,
        progress: &mut Progress,
    ) -> Result {
        let base = case.against.as_ref().and_then(|name| self.suite.cases.iter().find(|case| case.name == *name));
        let mut sides: Vec<(usize, &BenchmarkCase, Spec)> = Vec::new();
        for (column, target) in
            self.columns.iter().enumerate().filter(|(_, target)| case.targets.contains(&target.name))
        {
            let started = self.spec(target, case).and_then(|spec| self.check(case, &spec, result).map(|()| spec));
            match started {
                Ok(spec) => sides.push((column, case, spec)),
                Err(error) => {
                    let reason = format!("{}, {}: left out: {error}", target.name, case.name);
                    progress.note(&reason);
                    result.faults.push(reason);
                    continue;
                }
            }
            if let Some(base) = base {
                sides.push((column, base, self.spec(target, base)?));
            }
        }
        let timed = self.timed(&sides)?;
        for (column, target) in self.columns.iter().enumerate() {
            let of = |case: &BenchmarkCase| sides.iter().position(|(at, of, _)| *at == column && of.name == case.name);
            let mut values_of = |case: &BenchmarkCase| -> Result<Values> {
                let Some(at) = of(case) else { return Ok(vec![vec![None; self.plan.rounds]; self.plan.figures.len()]) };
                let key = (target.name.clone(), case.name.clone());
                if !counted.contains_key(&key) {
                    counted.insert(key.clone(), self.counted(case, &sides[at].2, progress)?);
                }
                let merged = counted[&key].iter().zip(&timed[at]);
                Ok(merged
                    .map(|(counted, timed)| if timed.is_empty() { counted.clone() } else { timed.clone() })
                    .collect())
            };
            let own = values_of(case)?;
            let others = base.map(&mut values_of).transpose()?;
            for (round, samples) in result.rounds.iter_mut().enumerate() {
                let Some(sample) = &mut samples[column] else { continue };
                for figure in 0..self.plan.figures.len() {
                    let value = own[figure][round];
                    sample.values.push(value);
                    let added = others.as_ref().map(|others| Some(value? - others[figure][round]?));
                    sample.values.extend(added);
                }
            }
        }
        Ok(())
    }

    /// The figures of each side that are measured in turn with the others; those that are not are empty.
    fn timed(&self, sides: &[(usize, &BenchmarkCase, Spec)]) -> Result<Vec<Values>> {
        let none: Values = self.plan.figures.iter().map(|_| Vec::new()).collect();
        let mut all = vec![none; sides.len()];
        if sides.is_empty() || !self.plan.figures.iter().any(is_timed) {
            return Ok(all);
        }
        for round in 0..self.plan.rounds {
            if self.plan.stop.load(Ordering::Relaxed) {
                return Err(Error::new("interrupted").exit(crate::error::EXIT_INTERRUPTED));
            }
            let mut order: Vec<usize> = (0..sides.len()).collect();
            // What is started and loaded first differs from round to round.
            order.rotate_left(round % sides.len());
            let specs: Vec<&Spec> = order.iter().map(|at| &sides[*at].2).collect();
            let seed = self.plan.design.seed.wrapping_add(round as u64);
            let records = match side::measure(&specs, &self.upstream, self.plan.design, seed)? {
                RoundOutcome::Measured(records) => records,
                RoundOutcome::Ended(at, how) => {
                    return Err(Error::new(format!("{} has ended under load: {how}", specs[at].name)));
                }
            };
            for (at, record) in order.into_iter().zip(&records) {
                for (values, figure) in all[at].iter_mut().zip(self.plan.figures) {
                    values.extend(is_timed(figure).then(|| self.read(figure, record, &sides[at].2)));
                }
            }
        }
        Ok(all)
    }

    fn read(&self, figure: &Figure, record: &SideRecord, spec: &Spec) -> Option<f64> {
        let Figure::Measure(measure) = figure else { return None };
        match measures::of_one(measure, record) {
            Ok(value) => Some(value),
            Err(error) => {
                eprintln!("note: {}: {error}", spec.name);
                None
            }
        }
    }

    /// The figures of one side that need no other.
    fn counted(&self, case: &BenchmarkCase, spec: &Spec, progress: &mut Progress) -> Result<Values> {
        let mut values = Values::new();
        for figure in self.plan.figures {
            let of = |error: Error| error.context(&spec.name);
            values.push(match figure {
                figure if is_timed(figure) => Vec::new(),
                figure if is_instructions(figure) => {
                    let requests = case.requests.or(self.suite.requests).unwrap_or(REQUESTS);
                    let plan = CountPlan { rounds: self.plan.rounds, requests, settle: case.settle };
                    let counts =
                        instructions::counts(spec, self.upstream.address, self.plan.design, &plan).map_err(of)?;
                    counts.into_iter().map(Some).collect()
                }
                figure => {
                    let mut once = || alone::read(figure, spec, &self.upstream, self.plan.design, progress).map_err(of);
                    (0..self.plan.rounds).map(|_| Ok(Some(once()?.0))).collect::<Result<_>>()?
                }
            });
        }
        Ok(values)
    }

    /// How a target is started and loaded for a case.
    fn spec(&self, target: &TargetPlan, case: &BenchmarkCase) -> Result<Spec> {
        let texts = texts(self.suite, target, case, &self.ports);
        let spec = spec(target, &texts, &self.home, self.files.path(), self.plan.programs)?;
        let mix = match &self.suite.mix {
            None => None,
            Some(mix) => {
                let number = self.suite.cases.iter().position(|other| other.name == case.name).unwrap_or_default();
                let file = self.files.path().join(format!("mix-{number}-{}.yaml", target.name));
                fs::write(&file, filled(mix, &texts, self.files.path())?)
                    .map_err(|error| Error::new(format!("{}: cannot be written: {error}", file.display())))?;
                Some(file)
            }
        };
        let number = |number: Option<u64>| number.and_then(|number| usize::try_from(number).ok());
        let traffic = Traffic {
            mix,
            connections: number(case.connections),
            streams: number(case.streams),
            is_secure: case.is_secure,
        };
        Ok(Spec { name: format!("{}, {}", target.name, case.name), traffic, ..spec })
    }

    /// Starts a target and fails unless it answers as the case requires.
    fn check(&self, case: &BenchmarkCase, spec: &Spec, result: &mut FiguresResult) -> Result {
        let mut started = spec.start(self.upstream.address, &self.plan.design.placement)?;
        if !result.subjects.iter().any(|subject| subject.version == started.subject.version) {
            result.subjects.push(started.subject.clone());
        }
        let load = LoadSettings::of_spec(&started, spec, self.plan.design)?;
        let outcome = load.counted(1);
        started.alive()?;
        if let Some(example) = outcome?.errors.examples.first() {
            return Err(Error::new(example));
        }
        if case.shows.is_empty() && !case.refuses {
            return Ok(());
        }
        let request = load.example();
        let answered = head(started.address, &request)?;
        let shows = |line: &&String| !answered.contains(&format!("\n{}", line.to_ascii_lowercase()));
        if let Some(missing) = case.shows.iter().find(shows) {
            return Err(Error::new(format!("its answers have no {missing:?}")));
        }
        if case.refuses {
            let line = request.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
            let head = head(started.address, &[line, b"Host: bench.example\r\n\r\n"].concat())?;
            if !["401", "403"].iter().any(|status| head.split(' ').nth(1) == Some(status)) {
                let status = head.lines().next().unwrap_or_default();
                return Err(Error::new(format!("without its headers, a request is answered {status:?}")));
            }
        }
        Ok(())
    }
}

/// The head of the answer to a request, in lower case.
fn head(address: SocketAddr, request: &[u8]) -> Result<String> {
    let mut stream = client::connect(address, SILENCE_TIMEOUT)?;
    let mut read = || -> std::io::Result<String> {
        stream.write_all(request)?;
        let mut head = String::new();
        let mut lines = BufReader::new(&stream);
        while !head.ends_with("\r\n\r\n") && lines.read_line(&mut head)? > 0 {}
        Ok(head.to_ascii_lowercase())
    };
    read().map_err(|error| Error::new(format!("http://{address}: {error}")))
}

/// The rows in which a target adds more than the least of the others, and all that can be compared, by their names.
pub(crate) fn rows_that_add_more<'a>(result: &'a FiguresResult, target: &str) -> (Vec<&'a str>, usize) {
    let Some(own) = result.columns.iter().position(|column| column == target) else { return (Vec::new(), 0) };
    let (mut more, mut compared) = (Vec::new(), 0);
    for (line, analysis) in result.lines.iter().zip(&result.analysis).filter(|(line, _)| line.name.ends_with(ADDED)) {
        let median = |column: usize| analysis.cells[column].median;
        let least = (0..result.columns.len()).filter(|column| *column != own).filter_map(median).reduce(f64::min);
        if let (Some(own), Some(least)) = (median(own), least) {
            compared += 1;
            more.extend((own > least).then_some(line.name.trim_end_matches(ADDED)));
        }
    }
    (more, compared)
}

fn is_timed(figure: &Figure) -> bool {
    matches!(figure, Figure::Measure(_)) && !is_instructions(figure)
}

fn unit(figure: &Figure) -> &'static str {
    match figure {
        Figure::Measure(measure) => measure.unit,
        Figure::Syscalls | Figure::DataSyscalls => "per request",
        Figure::Anonymous | Figure::Settled | Figure::Peak => "KiB",
        Figure::Connection | Figure::ClosedConnection => "bytes",
        Figure::Metric(_) => "per 1,000 requests, plus 1",
        Figure::Level(_) => "plus 1",
    }
}

/// The texts of a target in a case; the first that has a placeholder counts.
fn texts<'a>(suite: &'a Suite, target: &'a TargetPlan, case: &'a BenchmarkCase, ports: &'a Texts) -> [&'a Texts; 5] {
    static NONE: Texts = Texts::new();
    [case.parts.get(&target.name).unwrap_or(&NONE), &case.fill, &target.fill, &suite.fill, ports]
}

fn target<'a>(suite: &'a Suite, name: &str) -> Result<&'a TargetPlan> {
    suite.targets.iter().find(|target| target.name == *name).ok_or_else(|| {
        let names: Vec<&str> = suite.targets.iter().map(|target| target.name.as_str()).collect();
        Error::new(format!("--targets {name}: the suite has {}", names.join(", ")))
    })
}

fn spec(
    target: &TargetPlan,
    texts: &[&Texts],
    home: &Path,
    files: &Path,
    programs: &BTreeMap<String, PathBuf>,
) -> Result<Spec> {
    let kind = target.kind.unwrap_or(TargetKind::Command);
    let configuration = match &target.configuration {
        None => None,
        Some(file) => {
            let path = home.join(file);
            let template = fs::read_to_string(&path);
            let template =
                template.map_err(|error| Error::new(format!("{}: cannot be read: {error}", path.display())))?;
            Some(filled(&template, texts, files).map_err(|error| error.context(path.display()))?)
        }
    };
    let command = target.command.as_ref().map(|command| filled(command, texts, files)).transpose()?;
    let program = programs.get(&target.name).or_else(|| programs.get(kind.name())).cloned();
    let name = target.name.clone();
    Ok(Spec { name, program, configuration, command, ..Spec::built_in(kind, files.to_owned()) })
}

/// Runs the script in the folder of files; the suite's texts are its variables, and `suite` is the suite's folder.
fn prepare(script: &str, texts: &Texts, folder: &Path, home: &Path) -> Result {
    let mut command = Command::new("sh");
    command.args(["-e", "-c", script]).current_dir(folder).envs(texts).env("suite", home);
    let output = command.output();
    let output = output.map_err(|error| Error::new(format!("prepare: cannot run sh: {error}")))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(Error::new(format!("prepare: {}: {}", output.status, said.trim())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite;
    use stillgate_testkit::require_tool;

    /// Prepares a suite of the project, and fills in all of its configurations and requests.
    fn fill_in(path: &Path) -> Result {
        let (suite, files) = (suite::read(path)?, tempfile::tempdir().unwrap());
        let home = path.parent().unwrap();
        if let Some(script) = &suite.prepare {
            prepare(script, &suite.fill, files.path(), home)?;
        }
        let ports: Texts = suite.beside.keys().map(|name| (name.clone(), "9".to_owned())).collect();
        let programs = BTreeMap::new();
        if let Some(node) = &suite.upstream {
            spec(node, &[&node.fill, &suite.fill], home, files.path(), &programs)?;
        }
        for case in &suite.cases {
            for target in suite.targets.iter().filter(|target| case.targets.contains(&target.name)) {
                let texts = texts(&suite, target, case, &ports);
                let of = |error: Error| error.context(format!("{}, {}", target.name, case.name));
                spec(target, &texts, home, files.path(), &programs).map_err(of)?;
                suite.mix.as_ref().map(|mix| filled(mix, &texts, files.path())).transpose().map_err(of)?;
            }
        }
        Ok(())
    }

    #[test]
    fn the_projects_suites_have_a_text_for_each_placeholder() {
        require_tool("openssl", "openssl");
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench");
        let mut suites = 0;
        for entry in fs::read_dir(folder).unwrap() {
            let path = std::path::absolute(entry.unwrap().path()).unwrap();
            if path.extension().is_some_and(|extension| extension == "yaml") {
                fill_in(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                suites += 1;
            }
        }
        assert!(suites > 1);
    }

    #[test]
    fn one_target_is_judged_by_what_it_adds() {
        let columns = ["a", "b", "mine"].map(str::to_owned).to_vec();
        let lines =
            [("one: cpu", "us"), ("one: cpu, added", "us"), ("two: cpu, added", "us"), ("three: cpu, added", "us")];
        let mut result = FiguresResult::new("measure", String::new(), columns, &lines, 1);
        let sample = |values: [Option<f64>; 4]| Some(Sample { values: values.to_vec(), void: Vec::new() });
        let (a, b) = ([Some(9.0), Some(3.0), Some(1.0), None], [Some(9.0), Some(2.0), None, None]);
        let mine = [Some(99.0), Some(2.0), Some(1.5), Some(1.0)];
        result.rounds = vec![vec![sample(a), sample(b), sample(mine)]];
        result.analysis = crate::figures::analyse(&result);
        assert_eq!(rows_that_add_more(&result, "mine"), (vec!["two: cpu"], 2));
        assert_eq!(rows_that_add_more(&result, "other"), (Vec::new(), 0));
    }

    #[test]
    fn a_preparation_that_fails_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let error = prepare("echo no >&2; false; echo on", &Texts::new(), folder.path(), folder.path()).unwrap_err();
        assert_eq!(error.to_string(), "prepare: exit status: 1: no");
    }
}
