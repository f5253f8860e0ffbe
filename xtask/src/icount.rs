//! `cargo xtask icount`: instructions per operation, by callgrind, compared with the committed figures.
//!
//! Instructions and not time, because they are reproducible to the last digit under any load. Each program is run with N and with
//! 2N iterations and the difference taken, so that start-up, environment and the loader cancel out.
//!
//! Functions in Lua are counted by single-stepping, as callgrind does not see LuaJIT's machine code. The addresses of LuaJIT's
//! tables, and the traces it tries, differ from run to run, so these have more slack. A function that makes a closure for each
//! request must exceed the slack, which is checked, too; its own count varies too much for a figure.

use crate::Result;
use crate::args::Args;
use crate::packages::{self, VALGRIND};
use crate::parallel;
use crate::passed;
use crate::step::{self, root};
use crate::suite;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use stillgate_rig::callgrind;

/// One measured operation: `program` called with N and `case`.
struct Operation {
    name: &'static str,
    program: &'static str,
    case: &'static str,
    iterations: u64,
    by: By,
}

/// How instructions are counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Callgrind,
    Steps,
}

impl By {
    /// How far a count may exceed the committed figure.
    fn slack_percent(self) -> f64 {
        if self == By::Steps { STEPS_SLACK_PERCENT } else { SLACK_PERCENT }
    }
}

const fn wire(name: &'static str, case: &'static str) -> Operation {
    callgrind(name, "wire", case)
}

const fn route(name: &'static str, case: &'static str) -> Operation {
    callgrind(name, "route", case)
}

const fn callgrind(name: &'static str, program: &'static str, case: &'static str) -> Operation {
    Operation { name, program, case, iterations: ITERATIONS, by: By::Callgrind }
}

const fn lua(name: &'static str, file: &'static str) -> Operation {
    Operation { name, program: STEPS_PROGRAM, case: file, iterations: 4, by: By::Steps }
}

/// An example of the crate for functions in Lua. The others belong to the package for them.
const STEPS_PROGRAM: &str = "warm_runs";

const OPERATIONS: &[Operation] = &[
    // The longest first.
    lua(MENDED, "docs/jit-health/closure_mended.lua"),
    PLANTED,
    wire("parse request, 3 fields", "parse-request-small"),
    wire("parse request, 16 fields", "parse-request-16"),
    wire("parse response, 7 fields", "parse-response"),
    wire("serialise request, 3 fields", "serialise-request-small"),
    wire("serialise request, 16 fields", "serialise-request-16"),
    wire("serialise response, 7 fields", "serialise-response"),
    route("match, 1,000 routes", "uris"),
    route("match, 1,000 routes, half expressions", "both"),
    route("match path and method, 10,000 expressions", "paths"),
    route("match header, 10,000 expressions", "header"),
    route("match query, 10,000 expressions", "query"),
    route("match regex, 10,000 mixed expressions", "regex"),
    route("match nothing, 10,000 mixed expressions", "miss"),
    route("match cached, 10,000 expressions", "cached"),
    route("parse expression", "parse"),
    // Some hundred thousand instructions each.
    Operation { iterations: 20, ..route("change 1 of 10,000 expressions", "update") },
];

/// The function of the documentation that makes a cache's key, and the one that makes a closure for it.
const MENDED: &str = "function in Lua: a cache's key";
const PLANTED: Operation = lua("function in Lua: the same with a closure", "docs/jit-health/closure.lua");

/// Enough to make the rest of start-up far smaller than the slack.
const ITERATIONS: u64 = 4000;

const SLACK_PERCENT: f64 = 2.0;
/// Processes differ by a tenth, and the mean of the counted ones by one and a half percent.
const STEPS_SLACK_PERCENT: f64 = 8.0;

const FIGURES: &str = "xtask/icount.toml";

/// The committed figures.
struct CommittedFigures {
    rustc: String,
    instructions: BTreeMap<String, f64>,
}

pub(crate) fn run(mut args: Args) -> Result {
    let update = args.flag("--update");
    args.finish()?;
    packages::ensure(&[VALGRIND])?;
    check(update, true)
}

/// Counts everything; compares, or records the figures. Programs that have passed are counted again only if `all` is set.
pub(crate) fn check(update: bool, all: bool) -> Result {
    if !cfg!(target_arch = "x86_64") || !std::is_x86_feature_detected!("avx2") {
        println!("skipped: the figures hold on x86-64 with AVX2, whose instructions the parsers choose at run time");
        return Ok(());
    }
    let rustc = rustc_version()?;
    let programs = build()?;
    if !all && passed::has_passed(FIGURES, &programs) {
        println!("the counted programs have passed and not changed since; `cargo xtask icount` counts them again");
        return Ok(());
    }
    let counted = parallel::map(OPERATIONS, parallel::cpus(), |operation| {
        let binary = programs.get(operation.program).ok_or_else(|| format!("cargo built no {}", operation.program))?;
        if operation.by == By::Steps {
            let each = steps(binary, operation).map_err(|error| error.to_string())?;
            return Ok((operation.name, operation.by, each));
        }
        let once = instructions(binary, operation, operation.iterations).map_err(|error| error.to_string())?;
        let twice = instructions(binary, operation, 2 * operation.iterations).map_err(|error| error.to_string())?;
        let each = (twice as f64 - once as f64) / operation.iterations as f64;
        Ok::<_, String>((operation.name, operation.by, each))
    });
    let mut counted = counted.into_iter().collect::<std::result::Result<Vec<_>, String>>()?;
    let planted = counted.extract_if(.., |(name, ..)| *name == PLANTED.name).map(|(.., each)| each).next();
    if update {
        return write(&rustc, &counted);
    }
    compare(&rustc, &counted, &read()?)?;
    let mended = counted.iter().find(|(name, ..)| *name == MENDED).map(|(.., each)| *each);
    finds_the_closure(mended.zip(planted).ok_or("the functions in Lua are not in the table")?)?;
    passed::remember(FIGURES, &programs)
}

/// A closure for each request must exceed the slack of the function without one.
fn finds_the_closure((mended, planted): (f64, f64)) -> Result {
    let percent = (planted / mended - 1.0) * 100.0;
    println!("{:42} {percent:+.0}%", PLANTED.name);
    match percent > STEPS_SLACK_PERCENT {
        true => Ok(()),
        false => Err("a closure for each request would not be found".into()),
    }
}

/// Prints each figure next to the committed one; fails if one is too high.
fn compare(rustc: &str, counted: &[(&str, By, f64)], committed: &CommittedFigures) -> Result {
    let mut worse = 0;
    let mut better = 0;
    for (name, by, each) in counted {
        let Some(before) = committed.instructions.get(*name) else {
            return Err(format!("{FIGURES} has no {name:?}; run `cargo xtask icount --update`").into());
        };
        let percent = (each / before - 1.0) * 100.0;
        println!("{name:42} {each:9.1} instructions, committed {before:9.1} ({percent:+.2}%)");
        worse += usize::from(percent > by.slack_percent());
        better += usize::from(percent < -by.slack_percent());
    }
    if worse + better > 0 && committed.rustc != rustc {
        println!("not judged: the figures are of rustc {}, this is {rustc}", committed.rustc);
        return Ok(());
    }
    if better > 0 {
        println!("{better} figures are better by more than the slack; keep that: `cargo xtask icount --update`");
    }
    if worse > 0 {
        return Err(format!(
            "{worse} operations take more instructions than the slack allows; where that is worth it, \
             `cargo xtask icount --update` and say why in the commit"
        )
        .into());
    }
    Ok(())
}

/// Builds the programs; returns their paths by name.
fn build() -> Result<BTreeMap<String, PathBuf>> {
    // The profile of measurements.
    let mut counted = step::cargo(["build", "--profile", "bench", "--package", "stillgate-operations", "--bins"]);
    // The profile of the tests, which are already built: LuaJIT's machine code is counted, and LuaJIT's C code is the same in each
    // profile.
    let mut stepped = step::cargo(["build", "--workspace", "--example", STEPS_PROGRAM]);
    let mut programs = BTreeMap::new();
    for command in [suite::with_clippy(&mut stepped), &mut counted] {
        for artifact in step::build(command)?.executables {
            if let (Some(name), Some(path)) = (artifact["target"]["name"].as_str(), artifact["executable"].as_str()) {
                programs.insert(name.to_owned(), path.into());
            }
        }
    }
    Ok(programs)
}

/// Instructions per call, from its output.
fn steps(binary: &Path, operation: &Operation) -> Result<f64> {
    let mut command = Command::new(binary);
    command.current_dir(root()).args([operation.case, &operation.iterations.to_string(), "steps"]);
    let text = step::output(&mut command)?;
    let number = text.split_whitespace().next().ok_or_else(|| format!("{} printed nothing", binary.display()))?;
    Ok(number.parse()?)
}

/// All instructions of one run.
fn instructions(binary: &Path, operation: &Operation, iterations: u64) -> Result<u64> {
    Ok(callgrind::of_run(binary, &[&iterations.to_string(), operation.case])?)
}

fn rustc_version() -> Result<String> {
    let text = step::output(Command::new("rustc").arg("--version"))?;
    Ok(text.split_whitespace().nth(1).unwrap_or("unknown").to_owned())
}

fn read() -> Result<CommittedFigures> {
    let text = fs::read_to_string(root().join(FIGURES)).map_err(|error| format!("{FIGURES}: {error}"))?;
    let table: toml::Table = text.parse()?;
    let figures = table.get("instructions").and_then(toml::Value::as_table);
    let figures = figures.ok_or_else(|| format!("{FIGURES}: no [instructions]"))?;
    let figures = figures.iter().filter_map(|(name, value)| Some((name.clone(), value.as_float()?)));
    let rustc = table.get("rustc").and_then(toml::Value::as_str);
    Ok(CommittedFigures { rustc: rustc.unwrap_or_default().to_owned(), instructions: figures.collect() })
}

fn write(rustc: &str, counted: &[(&str, By, f64)]) -> Result {
    let mut text = format!(
        "# Instructions per operation by callgrind, on x86-64 with AVX2; written by `cargo xtask icount --update`,\n\
         # checked by `cargo xtask icount` with {SLACK_PERCENT}% slack ({STEPS_SLACK_PERCENT}% of functions in Lua). A raised figure needs its reason in the commit.\n\
         rustc = \"{rustc}\"\n\n[instructions]\n"
    );
    for (name, _, each) in counted {
        println!("{name:42} {each:9.1} instructions");
        writeln!(text, "\"{name}\" = {each:.1}")?;
    }
    fs::write(root().join(FIGURES), text)?;
    println!("written to {FIGURES}");
    Ok(())
}
