//! Finds out whether LuaJIT compiles a function, for `stillgate lua check`.
//!
//! ```text
//!  requests, lines counted ─▶ again and again, until the compiler is silent ─▶ again ─▶ hot lines outside of machine code
//! ```
//!
//! The function runs as on a worker: with the same VM, prelude and bridge, and everything that it calls. A failed
//! recording is not a finding by itself, since LuaJIT continues at another place. It is one if lines that run often
//! stay in the interpreter, or if the compiler never finishes. A finding names an alternative, if one is known.

use super::{CompileState, JitStats, LoadedText, TextFunction, TraceAbort, steps};
use crate::call::{FailureKind, RunFailure, RunOutcome, RunWait};
use crate::host::Host;
use crate::program::{CallKind, Module, PHASES, Program};
use crate::vm::{self, Context};
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// LuaJIT waits for up to so many runs before it retries a failed recording; then it gives up.
const SILENT_RUNS: usize = 70_000;
/// Limits of the number and the duration of the runs until the functions count as warm.
const WARM_UP_RUNS_MAX: usize = 400_000;
const WARM_UP_TIME_MAX: Duration = Duration::from_secs(20);
/// Number of runs after the warm-up, in which the compiler should be silent.
const RUNS: usize = 10_000;
/// Late recordings that fail for a usual reason: fewer are the last tries before LuaJIT continues elsewhere.
const LATE_TRIES_MIN: u64 = 10;
/// Requests in which lines are counted.
const COUNTED_RUNS_MAX: usize = 1_000;
/// A line that runs less often need not be compiled: LuaJIT has not tried.
const HOT_HITS: f64 = 1_000.0;
/// A call that leaves machine code more often than this in a request is in a loop.
const LOOP_HITS: f64 = 1.5;

/// Phases in which a response exists.
const BEHIND_HEAD: [&str; 3] = ["header_filter", "body_filter", "log"];

/// A problem of one line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Line in the text of the function.
    pub line: u32,
    /// The reason, and what to write instead if there is an alternative.
    pub reason: String,
}

/// The result of an examination.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Examination {
    /// Problems to fix, by line.
    pub findings: Vec<Finding>,
    /// Costs without an alternative.
    pub notes: Vec<Finding>,
    /// State of each function, with its first line.
    pub functions: Vec<(u32, CompileState)>,
    /// Number of lines in machine code.
    pub lines_compiled: usize,
    /// Number of traces: pieces of machine code.
    pub traces: u64,
    /// Number of traces and failed recordings after the warm-up.
    pub late: u64,
    /// How often all machine code was discarded.
    pub flushes: u64,
    /// Number of runs of the function.
    pub runs: usize,
}

/// The code to examine.
pub struct CodeToExamine {
    /// The name that precedes line numbers.
    name: String,
    program: Arc<Program>,
    /// Parts of the program, and the phases in which they run.
    parts: Vec<(usize, &'static str)>,
}

impl CodeToExamine {
    /// A text that returns a function.
    pub fn function(name: &str, source: &str, conf: Json) -> CodeToExamine {
        let program = Program::new(name.to_owned(), vec![source.to_owned()], conf, CallKind::Plugin);
        CodeToExamine { name: name.to_owned(), program, parts: vec![(0, "access")] }
    }

    /// A plugin's file, with the phases for which it has functions (as indices into [`PHASES`]) and a valid
    /// configuration.
    pub fn plugin(module: Arc<Module>, phases: &[usize], conf: Json) -> CodeToExamine {
        let parts = phases.iter().map(|at| (*at, PHASES[*at])).collect();
        CodeToExamine {
            name: module.file.clone(),
            program: Program::of_module("check".to_owned(), module, conf),
            parts,
        }
    }

    /// Runs all phases of a request, one after the other; an answered request continues with the phases of the
    /// response.
    fn run<H: Host>(&self, mut host: impl FnMut(&'static str) -> H) -> Result<(), RunFailure> {
        let (context, mut is_answered) = (&mut Context::default(), false);
        for (part, phase) in &self.parts {
            if !is_answered || BEHIND_HEAD.contains(phase) {
                is_answered |= finish(&self.program, *part, &mut host(phase), context)?;
            }
        }
        Ok(())
    }
}

/// Runs functions for requests, one after the other and again from the first, until the compiler is done. `host` makes
/// the request of a run, of which there are `requests`, as it is in a phase.
pub fn examine<H: Host>(
    subject: &CodeToExamine,
    requests: usize,
    mut host: impl FnMut(usize, &'static str) -> H,
) -> Result<Examination, RunFailure> {
    let name = &subject.name;
    let mut run = |at: usize| subject.run(|phase| host(at % requests, phase));
    // The first run creates the VM; and work that functions do only once for a request, such as filling a cache, must
    // not be counted.
    let counted = requests.min(COUNTED_RUNS_MAX);
    (0..2 * counted).try_for_each(&mut run)?;
    with_jit_monitor(|monitor| monitor.count_lines())?;
    let ran = (0..counted).try_for_each(&mut run);
    let hits = with_jit_monitor(|monitor| monitor.stop_counting_lines())?;
    ran?;
    let warm_up_runs = warm_up(&mut run)?;
    let warm = with_jit_monitor(|monitor| Ok(monitor.stats()))?;
    (0..RUNS).try_for_each(&mut run)?;
    let warmed = with_jit_monitor(|monitor| Ok(monitor.stats()))?;
    let runs = warm_up_runs + RUNS;
    let per_request =
        |place: String| hits.get(&format!("{name}:{place}")).map_or(0.0, |hits| *hits as f64 / counted as f64);
    Ok(JudgedFunction { name: name.as_str(), now: &warmed, warm: &warm, runs, per_request: &per_request }.report())
}

/// Runs functions until they are warm, and then `runs` more between [`steps::begin`] and [`steps::end`], for a process
/// that counts these.
pub fn step<H: Host>(
    subject: &CodeToExamine,
    requests: usize,
    runs: usize,
    mut host: impl FnMut(usize, &'static str) -> H,
) -> Result<(), RunFailure> {
    let mut run = |at: usize| subject.run(|phase| host(at % requests, phase));
    warm_up(&mut run)?;
    steps::begin();
    let ran = (0..runs).try_for_each(&mut run);
    steps::end();
    ran
}

/// Runs until the compiler is silent, and returns how many runs that took.
fn warm_up(run: &mut impl FnMut(usize) -> Result<(), RunFailure>) -> Result<usize, RunFailure> {
    let (began, mut silent, mut runs, mut events) = (Instant::now(), 0, 0, 0);
    while silent < SILENT_RUNS && runs < WARM_UP_RUNS_MAX && began.elapsed() < WARM_UP_TIME_MAX {
        run(runs)?;
        (runs, silent) = (runs + 1, silent + 1);
        if let Some(now) = vm::with_monitor(|monitor| monitor.events())
            && now != events
        {
            (events, silent) = (now, 0);
        }
    }
    Ok(runs)
}

/// Executes one run to its end, and returns whether it answers. Everything that it waits for is available at once.
fn finish(program: &Arc<Program>, part: usize, host: &mut dyn Host, context: &mut Context) -> Result<bool, RunFailure> {
    let mut outcome = vm::run_part(program, part, host, context);
    loop {
        outcome = match outcome {
            RunOutcome::Wait(RunWait::Sleep(_) | RunWait::Body, paused) => vm::resume(paused, host, context),
            RunOutcome::Wait(RunWait::Call(_) | RunWait::Work(_) | RunWait::Link(_), paused) => {
                vm::resume_with(paused, Err("`lua check` makes no calls".to_owned()), host, context)
            }
            RunOutcome::Failed(failure) => return Err(failure),
            RunOutcome::Done(_) => return Ok(false),
            RunOutcome::Answer { .. } => return Ok(true),
        };
    }
}

fn with_jit_monitor<R>(then: impl FnOnce(&super::JitMonitor) -> mlua::Result<R>) -> Result<R, RunFailure> {
    let result = vm::with_monitor(then).unwrap_or_else(|| Err(mlua::Error::runtime("there is no LuaJIT")));
    result.map_err(|error| RunFailure { kind: FailureKind::Error, text: error.to_string() })
}

/// The measurements to judge.
struct JudgedFunction<'a> {
    name: &'a str,
    now: &'a JitStats,
    warm: &'a JitStats,
    runs: usize,
    /// Hits per request by line, or by line and callee.
    per_request: &'a dyn Fn(String) -> f64,
}

impl JudgedFunction<'_> {
    fn report(&self) -> Examination {
        let empty = LoadedText::default();
        let source = self.now.sources.get(self.name).unwrap_or(&empty);
        let mut findings = self.in_interpreter(source);
        let late = self.late();
        let is_restless = |abort: &TraceAbort, count: u64| !abort.reason.is_harmless() || count >= LATE_TRIES_MIN;
        let restless = late.iter().filter(|(abort, count)| abort.source == self.name && is_restless(abort, **count));
        findings.extend(restless.map(|(abort, _)| Finding {
            line: abort.line,
            reason: format!("{abort}; this still happens after {} runs", self.runs),
        }));
        if self.now.flushes > self.warm.flushes {
            let reason = "LuaJIT keeps discarding all machine code; there is too much of it".to_owned();
            findings.insert(Finding { line: 1, reason });
        }
        let (looped, single) = self.stitches(source);
        findings.extend(looped);
        Examination {
            findings: findings.into_iter().collect(),
            notes: single,
            functions: source.functions.iter().map(|function| (function.first_line, source.state(function))).collect(),
            lines_compiled: source.lines.values().filter(|line| line.traces > 0).count(),
            traces: self.now.traces,
            late: late.values().sum::<u64>() + (self.now.traces - self.warm.traces),
            flushes: self.now.flushes,
            runs: self.runs,
        }
    }

    /// Recordings that failed after the warm-up.
    fn late(&self) -> BTreeMap<&TraceAbort, u64> {
        let grown = self
            .now
            .aborts
            .iter()
            .map(|(abort, count)| (abort, count - self.warm.aborts.get(abort).copied().unwrap_or_default()));
        grown.filter(|(_, count)| *count > 0).collect()
    }

    /// Reasons why hot lines are not in machine code. Reasons that also occur on the way to machine code are named only
    /// if nothing else explains it: a function that is given up takes others with it.
    fn in_interpreter(&self, source: &LoadedText) -> BTreeSet<Finding> {
        let functions = || source.functions.iter().filter(|function| function.first_line > 0);
        let left: Vec<(&TextFunction, u32)> =
            functions().filter_map(|function| Some((function, self.left(source, function)?))).collect();
        let named = |is_harmless: bool| -> BTreeSet<Finding> {
            left.iter().flat_map(|(function, _)| self.causes(source, function, is_harmless)).collect()
        };
        let mut findings = named(false);
        if findings.is_empty() {
            findings = named(true);
        }
        if findings.is_empty() {
            findings.extend(left.iter().map(|(_, line)| Finding {
                line: *line,
                reason: "it runs in the interpreter; LuaJIT has never tried to compile it".to_owned(),
            }));
        }
        findings
    }

    /// The first line of a function that runs often and is not in machine code.
    fn left(&self, source: &LoadedText, function: &TextFunction) -> Option<u32> {
        let is_compiled =
            |line: u32| source.lines.get(&(function.first_line, line)).is_some_and(|line| line.traces > 0);
        let is_hot = |line: u32| (self.per_request)(line.to_string()) * self.runs as f64 >= HOT_HITS;
        function.lines.iter().copied().find(|line| is_hot(*line) && !is_compiled(*line))
    }

    fn causes(&self, source: &LoadedText, function: &TextFunction, is_harmless: bool) -> Vec<Finding> {
        let is_within = |line: u32| (function.first_line..=function.last_line).contains(&line);
        let of_function = self.now.aborts.keys().filter(|abort| {
            let is_here = abort.source == self.name && function.lines.contains(&abort.line);
            let has_begun_here = abort.began_source == self.name && abort.began_line == function.first_line;
            abort.reason.is_harmless() == is_harmless && (is_here || has_begun_here && is_within(abort.line))
        });
        let mut found: Vec<&TraceAbort> = of_function.collect();
        // The end of a closure's life adds nothing to its beginning.
        if found.iter().any(|abort| abort.instruction == Some("FNEW")) {
            found.retain(|abort| abort.instruction != Some("UCLO"));
        }
        let state = match source.state(function) {
            CompileState::Blacklisted => "LuaJIT has given the function up",
            _ => "the function stays in the interpreter",
        };
        found.iter().map(|abort| Finding { line: abort.line, reason: format!("{abort}; {state}") }).collect()
    }

    /// Calls that leave machine code: those in loops, and others.
    fn stitches(&self, source: &LoadedText) -> (Vec<Finding>, Vec<Finding>) {
        let lines = source
            .lines
            .iter()
            .flat_map(|((_, number), line)| line.stitches.keys().map(move |called| (*number, called)));
        let found = lines.map(|(line, called)| {
            let remedy = remedy_of_call(called).map(|remedy| format!("; {remedy}")).unwrap_or_default();
            let times = (self.per_request)(format!("{line}:{called}"));
            let reason = format!(
                "{called} is not compiled, so each call leaves machine code, {times:.1} times a request{remedy}"
            );
            (times > LOOP_HITS, Finding { line, reason })
        });
        let (looped, single): (Vec<_>, Vec<_>) = found.partition(|(is_in_loop, _)| *is_in_loop);
        let findings = |list: Vec<(bool, Finding)>| list.into_iter().map(|(_, finding)| finding).collect();
        (findings(looped), findings(single))
    }
}

// Alternatives to code that LuaJIT does not compile.

/// Keyed by the instruction.
const OF_INSTRUCTIONS: [(&str, &str, &str); 5] = [
    ("FNEW", "a function is made here", "make it once, outside of the function, and pass what it needs as arguments"),
    (
        "UCLO",
        "a function made here keeps a local variable",
        "make it once, outside, and pass the variable as an argument",
    ),
    ("VARG", "`...` is taken apart", "name the arguments"),
    ("ITERC", "a loop calls an iterator that is not compiled", "loop over an array: for at = 1, #list do"),
    ("ITERN", "`pairs` goes through a table", "keep an array beside it: for at = 1, #list do"),
];

/// Keyed by the called function.
const OF_CALLS: [(&str, &str); 12] = [
    ("string.gmatch", "use string.find with a position, or ngx.re.match"),
    ("string.gsub", "use ngx.re.gsub"),
    ("string.match", "use ngx.re.match"),
    ("string.find", "use ngx.re.find"),
    ("ngx.re.gmatch", "use ngx.re.match with a position"),
    ("next", "keep an array beside the table: for at = 1, #list do"),
    ("pairs", "keep an array beside the table: for at = 1, #list do"),
    ("core.json.encode", "encode once, outside of the loop"),
    ("core.json.decode", "decode once, outside of the loop"),
    ("table.sort", "sort once, where the list is made"),
    ("os.date", "use ngx.localtime or ngx.http_time, or call it once, outside of the loop"),
    ("pcall", "make the function that it calls once, outside"),
];

/// Keyed by the reason.
const OF_REASONS: [(&str, &str); 4] = [
    ("mixed_table", "keep what is a list and what is by name or by a large number in two tables"),
    ("type_changes", "give the value one type"),
    ("loop_values", "use fewer variables in the loop"),
    ("unroll_call", "use a loop in place of the recursion"),
];

/// The alternative to the code of an abort.
pub(super) fn remedy_of(abort: &TraceAbort) -> Option<&'static str> {
    let by_instruction = || OF_INSTRUCTIONS.iter().find(|(name, ..)| abort.instruction == Some(name)).map(|row| row.2);
    let by_reason = || OF_REASONS.iter().find(|(name, _)| *name == abort.reason.name()).map(|row| row.1);
    remedy_of_call(&abort.called).or_else(by_instruction).or_else(by_reason)
}

/// What an instruction does, in terms of the language.
pub(super) fn meaning_of(instruction: &str) -> Option<&'static str> {
    OF_INSTRUCTIONS.iter().find(|(name, ..)| *name == instruction).map(|row| row.1)
}

/// The alternative to a call that is not compiled.
fn remedy_of_call(called: &str) -> Option<&'static str> {
    OF_CALLS.iter().find(|(name, _)| *name == called).map(|row| row.1)
}
