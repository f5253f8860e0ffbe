//! Instructions per request, counted separately from the pairs: time has noise, instructions have next to none.
//!
//! With valgrind's callgrind each repetition runs the program twice, for a short and for a longer series of requests
//! over one connection, and divides the difference in instructions by that in requests, so that start-up and end
//! cancel. If valgrind is not installed and the CPU's own counters work, `perf stat` counts the running program
//! instead. Otherwise, or if the program runs under neither, the result states why, and the comparison does without.
//!
//! Instructions inside the kernel are not in these counts.

use super::measures::{self, EFFECT_MIN};
use super::side::{LoadSettings, seconds};
use super::{Contest, rules};
use crate::command_line::quoted_word;
use crate::display::{Progress, rough};
use crate::error::{Error, Result};
use crate::result::compare::{CompareDesign, Instructions};
use crate::target::{RunningTarget, Spec, TargetKind};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};
use stillgate_load::{Pace, RunSummary};
use stillgate_rig::callgrind;

/// Repetitions per side, and more if they differ; the rule that judges them is in `rules`.
pub(crate) const REPETITIONS: usize = 3;

/// Time limit per side for the first repetitions; if they take longer, nothing is counted.
const TIME_S_MAX: u64 = 90;

/// Load of the shorter and of the longer run of a repetition.
const SHORT: Duration = Duration::from_millis(150);
const LONG: Duration = Duration::from_millis(1000);

/// The longer run is extended up to this if the program answers few requests or the machine is busy.
const LONGEST: Duration = Duration::from_secs(8);

/// With fewer requests between the two runs, start-up and end do not cancel well enough.
const REQUESTS_MIN: u64 = 50;

/// The share of requests before the first round.
const WARM_UP_PART: u64 = 10;

/// Interval between two counts of perf.
const PERF_INTERVAL_MS: &str = "100";

/// Programs under callgrind are some fifty times slower, so one connection saturates them.
const CONNECTIONS: usize = 1;

/// The tool that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counter {
    Callgrind,
    Pmu,
}

/// The counts, or the reason why there are none, as text for the result.
pub(crate) fn count(
    contest: &Contest<'_>,
    design: &CompareDesign,
    progress: &mut Progress,
) -> Result<Instructions, String> {
    let counter = Counter::found()?;
    let begun = Instant::now();
    let time_s_max = TIME_S_MAX * contest.builds.len() as u64;
    let mut counts = vec![Vec::new(); contest.builds.len()];
    let mut wanted = REPETITIONS;
    let mut repetition = 0;
    while repetition < wanted {
        repetition += 1;
        progress.step(&format!("instructions, {repetition} of {wanted}"));
        // Alternates, so that a change of the machine affects both sides.
        for (spec, figures) in contest.builds.iter().zip(&mut counts) {
            if contest.stop.load(Ordering::Relaxed) {
                return Err("stopped before they were counted".to_owned());
            }
            let figure = counter
                .once(spec, contest.upstream.address, design, &mut |_| {})
                .map_err(|error| format!("{}: {error}", spec.name))?;
            figures.push(figure);
            if repetition <= REPETITIONS && begun.elapsed() > Duration::from_secs(time_s_max) {
                return Err(format!("counting them took longer than {time_s_max} s"));
            }
        }
        if repetition == REPETITIONS {
            wanted = wanted_of(design, &counts);
            (REPETITIONS..wanted).for_each(|_| progress.add_step());
        }
    }
    let mut counts = counts.into_iter();
    let mut next = || counts.next().unwrap_or_default();
    Ok(Instructions { counted_by: counter.name().to_owned(), a: next(), b: next(), others: counts.collect() })
}

/// Repetitions to add after the first ones: more if two builds seem to differ.
pub(super) fn wanted_of(design: &CompareDesign, counts: &[Vec<f64>]) -> usize {
    let comparisons = design.comparisons();
    let level = design.alpha / measures::family(comparisons.len(), true) as f64;
    let differ = comparisons.iter().any(|between| {
        let (one, other) = (&counts[between.one as usize], &counts[between.other as usize]);
        rules::seem_to_differ(one, other, design.alpha, EFFECT_MIN.ln_1p())
    });
    if differ { rules::repetitions_needed(level).max(REPETITIONS) } else { REPETITIONS }
}

/// One count of one program, per request. `begin` is called with each step as it begins.
pub(super) fn once(
    spec: &Spec,
    upstream: SocketAddr,
    design: &CompareDesign,
    begin: &mut dyn FnMut(&str),
) -> Result<f64> {
    Counter::found()?.once(spec, upstream, design, begin)
}

impl Counter {
    fn found() -> Result<Counter, String> {
        if callgrind::is_installed() {
            return Ok(Counter::Callgrind);
        }
        if pmu_counts() {
            return Ok(Counter::Pmu);
        }
        Err("neither valgrind nor the CPU's counters (perf) are available; install valgrind to count them".to_owned())
    }

    fn name(self) -> &'static str {
        match self {
            Counter::Callgrind => "callgrind",
            Counter::Pmu => "pmu",
        }
    }

    /// One repetition of one side.
    fn once(
        self,
        spec: &Spec,
        upstream: SocketAddr,
        design: &CompareDesign,
        begin: &mut dyn FnMut(&str),
    ) -> Result<f64> {
        match self {
            Counter::Pmu => {
                begin(&format!("load for {LONG:?}, counted by perf"));
                by_pmu(spec, upstream, design)
            }
            Counter::Callgrind => {
                begin(&format!("load for {SHORT:?} under callgrind, and then for {LONG:?}"));
                let begun = Instant::now();
                let short = by_callgrind(spec, upstream, design, SHORT)?;
                let beside = begun.elapsed().saturating_sub(SHORT);
                let mut time = LONG;
                loop {
                    let left = rough((beside + time).as_secs_f64());
                    begin(&format!("load for {time:?} under callgrind, about {left} left"));
                    let long = by_callgrind(spec, upstream, design, time)?;
                    let requests = long.requests.saturating_sub(short.requests);
                    if requests >= REQUESTS_MIN {
                        return Ok((long.instructions as f64 - short.instructions as f64) / requests as f64);
                    }
                    if time >= LONGEST {
                        return Err(Error::new(format!(
                            "under callgrind it answers too few requests ({} in {} ms)",
                            long.requests,
                            time.as_millis()
                        )));
                    }
                    time *= 2;
                }
            }
        }
    }
}

struct InstructionCount {
    instructions: u64,
    requests: u64,
}

fn by_callgrind(spec: &Spec, upstream: SocketAddr, design: &CompareDesign, time: Duration) -> Result<InstructionCount> {
    let folder = tempfile::Builder::new()
        .prefix("callgrind-")
        .tempdir_in(&spec.directory)
        .map_err(|error| Error::new(format!("cannot make a folder for callgrind's counts: {error}")))?;
    let mut started = under_callgrind(spec, folder.path(), &[])?.start(upstream, &design.placement)?;
    let outcome = load(&mut started, design, time)?;
    started.stop();
    // All requests that were sent, inside the measured time or not: the count includes their instructions.
    Ok(InstructionCount { instructions: callgrind::totals(folder.path())?, requests: outcome.sent })
}

/// How instructions of one start are counted again and again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CountPlan {
    pub(crate) rounds: usize,
    /// Requests of a round.
    pub(crate) requests: u64,
    /// Time after the requests in which the program still works on them.
    pub(crate) settle: Duration,
}

/// Instructions per request of one start, a figure per round. They do not contain what a connection costs, nor
/// Stillgate's control thread.
pub(crate) fn counts(spec: &Spec, upstream: SocketAddr, design: &CompareDesign, plan: &CountPlan) -> Result<Vec<f64>> {
    let (mut started, mut counter) = spec.start_counted(upstream, &design.placement)?;
    let asking = LoadSettings::of_spec(&started, spec, design)?;
    counter.begin(started.process()?)?;
    let mut take = |requests: u64| -> Result<InstructionCount> {
        let outcome = answered(&mut started, asking.counted(requests))?;
        sleep(plan.settle);
        let instructions = counter.instructions(started.process()?, None)?;
        Ok(InstructionCount { instructions, requests: outcome.sent })
    };
    // Connections to the upstream, buffers and compiled functions come into being.
    take((plan.requests / WARM_UP_PART).max(1))?;
    let mut counts = Vec::new();
    for _ in 0..plan.rounds {
        let (one, all) = (take(1)?, take(plan.requests + 1)?);
        counts.push((all.instructions as f64 - one.instructions as f64) / plan.requests as f64);
    }
    Ok(counts)
}

/// The program, run by valgrind. A built-in gets a script in place of its binary, because its other arguments are
/// not known here. Counts will be in the folder, in files named `counts.PID`.
pub(crate) fn under_callgrind(spec: &Spec, folder: &Path, options: &[String]) -> Result<Spec> {
    let valgrind = callgrind::words(folder, options);
    let valgrind: Vec<String> = valgrind.iter().map(|word| quoted_word(&word.to_string_lossy())).collect();
    let valgrind = valgrind.join(" ");
    if let Some(command) = &spec.command {
        return Ok(Spec { command: Some(format!("{valgrind} {command}")), ..spec.clone() });
    }
    let program = program(spec)?;
    let script = folder.join(spec.kind.name());
    let program = quoted_word(&program.to_string_lossy());
    // Each start runs it once for its version, which is not part of the program's work.
    let text = format!(
        "#!/bin/sh\ncase \"$1\" in --version|-v|-V) exec {program} \"$@\" ;; esac\nexec {valgrind} {program} \"$@\"\n"
    );
    fs::write(&script, text)
        .and_then(|()| fs::set_permissions(&script, fs::Permissions::from_mode(0o700)))
        .map_err(|error| Error::new(format!("cannot write {}: {error}", script.display())))?;
    Ok(Spec { program: Some(script), ..spec.clone() })
}

fn program(spec: &Spec) -> Result<PathBuf> {
    match (&spec.program, spec.kind) {
        (Some(program), _) => Ok(program.clone()),
        (None, TargetKind::Command) => Err("it has neither program nor command".into()),
        (None, kind) => Ok(PathBuf::from(kind.name())),
    }
}

/// `perf` counts all processes of the program while it is under load, and before: an idle program executes nothing. The
/// load begins after the first count, because only then does perf see all answers.
fn by_pmu(spec: &Spec, upstream: SocketAddr, design: &CompareDesign) -> Result<f64> {
    let mut started = spec.start(upstream, &design.placement)?;
    load(&mut started, design, SHORT)?;
    let pids: Vec<String> = started.pids()?.iter().map(u32::to_string).collect();
    // Ends by itself after the load.
    let mut perf = Command::new("perf")
        .args(["stat", "--interval-print", PERF_INTERVAL_MS, "--field-separator", ",", "--event", "instructions:u"])
        .args(["--pid", &pids.join(","), "--", "sleep", &(LONG * 2).as_secs().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| Error::new(format!("cannot run perf: {error}")))?;
    let mut counts = BufReader::new(perf.stderr.take().expect("it was piped above"));
    let mut text = String::new();
    let first = counts.read_line(&mut text);
    let outcome = load(&mut started, design, LONG);
    let rest = counts.read_to_string(&mut text);
    let ended = perf.wait();
    first.and(rest).and(ended.map(drop).map(|()| 0)).map_err(|error| Error::new(format!("perf: {error}")))?;
    let outcome = outcome?;
    started.stop();
    let count = perf_count(&text).ok_or_else(|| Error::new(format!("perf counted nothing: {}", text.trim())))?;
    Ok(count as f64 / outcome.sent.max(1) as f64)
}

fn load(started: &mut RunningTarget, design: &CompareDesign, time: Duration) -> Result<RunSummary> {
    let asking = LoadSettings::of(
        started.address,
        CONNECTIONS,
        &design.placement,
        seconds(design.late_s),
        design.mix.as_deref(),
        design.seed,
    )?;
    let outcome = asking.run(Pace::Closed, Duration::ZERO, time);
    answered(started, outcome)
}

/// Without failures, which cost other instructions.
fn answered(started: &mut RunningTarget, outcome: Result<RunSummary>) -> Result<RunSummary> {
    started.alive()?;
    let outcome = outcome?;
    if outcome.errors.total() > 0 {
        let example = outcome.errors.examples.first().map_or("", String::as_str);
        return Err(Error::new(format!("requests failed, for example: {example}; it may not run under valgrind")));
    }
    Ok(outcome)
}

fn pmu_counts() -> bool {
    let output = Command::new("perf")
        .args(["stat", "--interval-print", PERF_INTERVAL_MS, "--field-separator", ","])
        .args(["--event", "instructions:u", "--", "true"])
        .output();
    output.is_ok_and(|output| perf_count(&String::from_utf8_lossy(&output.stderr)).is_some())
}

/// The sum of the counts that `perf stat` printed interval by interval, in its separated form; `<not supported>` gives
/// none.
fn perf_count(text: &str) -> Option<u64> {
    let lines = text.lines().filter(|line| line.contains("instructions"));
    // The field after the time.
    let counts = lines.filter_map(|line| line.split(',').nth(1)?.trim().parse::<u64>().ok());
    Some(counts.sum()).filter(|count| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_pmu_cannot_count_is_no_count() {
        let counted =
            "     0.100277,12,,instructions:u,1000,100.00,,\n     0.200500,123444,,instructions:u,1000,100.00,,\n";
        assert_eq!(perf_count(counted), Some(123_456));
        assert_eq!(perf_count("     0.100277,<not supported>,,instructions:u,0,100.00,,\n"), None);
        assert_eq!(perf_count(""), None);
    }
}
