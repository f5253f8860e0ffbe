//! Runs a task's steps: prints a headline before each and its time after it, and at the end a summary with the failures, since
//! readers of a long log begin there.
//!
//! Commands inherit standard output, so the output of `cargo test` is shown directly.

use crate::Result;
use crate::{costs, parallel};
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

struct StepResult {
    name: String,
    took: Duration,
    /// CPU time of the step and its processes; `None`: another step ran at the same time.
    cpu: Option<Duration>,
    /// Why it failed.
    error: Option<String>,
}

/// A step's name, and its work.
type Named<'a> = (&'static str, &'a (dyn Fn() -> Result + Sync));

/// The steps done so far.
#[derive(Default)]
pub(crate) struct Steps {
    done: Vec<StepResult>,
    /// CPU time of steps that ran at the same time, under their common name.
    groups: Vec<(String, Duration)>,
    took: Duration,
}

fn done(name: &str, body: impl FnOnce() -> Result) -> StepResult {
    println!("\n==> {name}");
    let begin = Instant::now();
    let error = body().err().map(|error| error.to_string());
    let took = begin.elapsed();
    match &error {
        None => println!("<== {name}: ok, {:.1} s", took.as_secs_f64()),
        Some(error) => println!("{error}\n<== {name}: FAILED, {:.1} s", took.as_secs_f64()),
    }
    StepResult { name: name.to_owned(), took, cpu: None, error }
}

impl Steps {
    /// Runs one step. A failed one is printed and recorded, and the next is run anyway: one run shows all errors.
    pub(crate) fn run(&mut self, name: &str, body: impl FnOnce() -> Result) {
        let before = costs::cpu_used();
        let mut step = done(name, body);
        step.cpu = Some(costs::cpu_used() - before);
        self.took += step.took;
        self.done.push(step);
    }

    /// Runs steps at the same time: they build different things, so fewer cores are idle. Their output is mixed.
    pub(crate) fn together(&mut self, group: &str, steps: &[Named<'_>]) {
        let (begin, before) = (Instant::now(), costs::cpu_used());
        self.done.extend(parallel::map(steps, steps.len(), |(name, body)| done(name, body)));
        self.groups.push((group.to_owned(), costs::cpu_used() - before));
        self.took += begin.elapsed();
    }

    /// Ends like [`Steps::finish`], after reporting the steps that took more CPU time than the recorded run.
    pub(crate) fn compare(self) -> Result {
        let notes = costs::compared(&self.cpu_seconds(), self.took);
        self.end(&notes)
    }

    /// Ends like [`Steps::finish`], and records the CPU time of each step if all passed.
    pub(crate) fn record(self) -> Result {
        let is_good = self.done.iter().all(|step| step.error.is_none());
        let notes = if is_good { costs::record(&self.cpu_seconds(), self.took)? } else { Vec::new() };
        self.end(&notes)
    }

    /// Prints the summary and repeats the failures; fails if a step did.
    pub(crate) fn finish(self) -> Result {
        self.end(&[])
    }

    fn cpu_seconds(&self) -> BTreeMap<String, f64> {
        let steps = self.done.iter().filter_map(|step| Some((&step.name, step.cpu?)));
        let groups = self.groups.iter().map(|(name, cpu)| (name, *cpu));
        steps.chain(groups).map(|(name, cpu)| (name.clone(), cpu.as_secs_f64())).collect()
    }

    fn end(self, notes: &[String]) -> Result {
        println!();
        for StepResult { name, took, cpu, error } in &self.done {
            let verdict = if error.is_none() { "ok" } else { "FAILED" };
            let cpu = cpu.map_or_else(String::new, |cpu| format!("{:.0}", cpu.as_secs_f64()));
            println!("{verdict:>6}  {:>7.1} s  {cpu:>6} CPU s  {name}", took.as_secs_f64());
        }
        for (name, cpu) in &self.groups {
            println!("{:>6}  {:>9}  {:>6.0} CPU s  {name}, in all", "", "", cpu.as_secs_f64());
        }
        for StepResult { name, error, .. } in &self.done {
            if let Some(error) = error {
                println!("\n==> {name}: FAILED\n{error}");
            }
        }
        for note in notes {
            println!("{note}");
        }
        println!(
            "{:>6}  {:>7.1} s  {:>6.0} CPU s  in all",
            "",
            self.took.as_secs_f64(),
            costs::cpu_used().as_secs_f64()
        );
        let failed = self.done.iter().filter(|step| step.error.is_some()).count();
        println!("{} passed, {failed} failed", self.done.len() - failed);
        if failed > 0 {
            return Err(format!("{failed} of {} steps failed", self.done.len()).into());
        }
        Ok(())
    }
}

/// The workspace's root; cargo passes this crate's folder to programs it runs.
pub(crate) fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    match here.as_deref().and_then(Path::parent) {
        Some(parent) => parent.to_owned(),
        None => PathBuf::from("."),
    }
}

/// Cargo's target folder.
pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// The cargo that runs us, at the workspace's root.
pub(crate) fn cargo<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root());
    // Set for us by `cargo run`; it would cause every crate that reads it to be rebuilt.
    command.env_remove("CARGO_MANIFEST_DIR");
    // With clippy's driver as the compiler, less is inlined, and instruction counts differ by up to 8%.
    command.env_remove("RUSTC_WORKSPACE_WRAPPER");
    command
}

/// Runs a command with our standard streams.
pub(crate) fn run(command: &mut Command) -> Result {
    let status = command.stdin(Stdio::null()).status().map_err(|error| format!("{}: {error}", shown(command)))?;
    if !status.success() {
        return Err(format!("{}: {status}", shown(command)).into());
    }
    Ok(())
}

/// The results of a cargo command that builds.
pub(crate) struct BuildOutput {
    /// Cargo's messages about each executable.
    pub(crate) executables: Vec<Value>,
    /// Number of warnings of the compiler or clippy.
    pub(crate) warnings: usize,
}

/// Runs a cargo command that builds, and prints the compiler's messages.
pub(crate) fn build(cargo: &mut Command) -> Result<BuildOutput> {
    cargo.args(["--message-format", "json"]).stderr(Stdio::inherit());
    let output = cargo.stdin(Stdio::null()).output().map_err(|error| format!("{}: {error}", shown(cargo)))?;
    let mut built = BuildOutput { executables: Vec::new(), warnings: 0 };
    // A library is compiled twice, the second time for its own tests, with the same warnings.
    let mut printed = HashSet::new();
    for message in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<Value>(message) else { continue };
        if let Some(said) = message["message"]["rendered"].as_str()
            && printed.insert(said.to_owned())
        {
            println!("{said}");
            built.warnings += usize::from(message["message"]["level"] == "warning");
        }
        if message["executable"].is_string() {
            built.executables.push(message);
        }
    }
    match output.status.success() {
        true => Ok(built),
        false => Err(format!("{}: {}", shown(cargo), output.status).into()),
    }
}

/// Runs a command and returns its standard output and standard error, whatever its status.
pub(crate) fn capture(command: &mut Command) -> Result<(bool, String, String)> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{}: {error}", shown(command)))?;
    Ok((
        output.status.success(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    ))
}

/// Runs a command and returns its standard output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let (good, out, err) = capture(command)?;
    if !good {
        return Err(format!("{}: failed\n{err}", shown(command)).into());
    }
    Ok(out)
}

/// The command as one would type it.
fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let program = program.file_name().unwrap_or(command.get_program());
    let mut text = program.to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}
