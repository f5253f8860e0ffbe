//! Runs the blocks, and reads the figures of each.

use super::{Change, ChurnPlan, Mode, Requests};
use crate::compare::side::{LoadSettings, constant, generator_cpus, upstream_placement};
use crate::connections::fleet::Fleet;
use crate::connections::{Clients as _, MessagePace, MessageTotals};
use crate::display::Progress;
use crate::error::{Error, Result};
use crate::result::{FiguresResult, Sample};
use crate::target::{RunningTarget, Spec, Upstream, placement};
use hdrhistogram::Histogram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};
use stillgate_load::{Pace, RunSummary};
use stillgate_rig::{cpus, schedule as priority};
use tempfile::TempDir;

/// Load on a new target that is not measured: its pools and caches fill.
const WARM_UP: Duration = Duration::from_secs(3);
/// Load before each block that is not measured, in which its connections are opened.
const LEAD_IN: Duration = Duration::from_millis(500);
/// The longest time in which changes are followed.
const FOLLOW_MAX: Duration = Duration::from_secs(10);
/// Size of the upstream's answers.
const BODY_BYTES: usize = 100;
/// A start that the generator makes later than this is late.
const LATE: Duration = Duration::from_millis(1);

const COLUMNS: [&str; 2] = ["without", "with"];

/// The lines of the table; the order is that of [`BlockFigures::sample`].
const LINES: [(&str, &str); 12] = [
    ("requests per second", "1/s"),
    ("p50", "us"),
    ("p99", "us"),
    ("p99.9", "us"),
    ("longest", "us"),
    ("load late, p99.9", "us"),
    ("CPU a request", "us"),
    ("CPU a request, these threads", "us"),
    ("CPU, all threads", "%"),
    ("memory at the end", "MiB"),
    ("changes", "number"),
    ("CPU of a change", "ms"),
];
/// The lines of the tunnels; the order is that of [`ping_values`].
const TUNNEL_LINES: [(&str, &str); 8] = [
    ("ping p50", "us"),
    ("ping p99", "us"),
    ("ping p99.9", "us"),
    ("longest ping", "us"),
    ("longest ping of a tunnel, median", "us"),
    ("longest ping of a tunnel, p99", "us"),
    ("longest time without a pong", "us"),
    ("pings late, p99.9", "us"),
];

/// The lines that `CPU of a change` follows from, and its own.
const CPU_PERCENT: usize = 8;
const CHANGES: usize = 10;
const CPU_OF_CHANGE: usize = 11;

/// Runs the experiment until it is asked to stop.
pub(crate) fn run(plan: &ChurnPlan, stop: &AtomicBool, progress: &mut Progress) -> Result<FiguresResult> {
    let mut spec = Spec { tunnels: plan.tunnels.map(|(tunnels, _)| tunnels), ..plan.spec.clone() };
    let mut change = (plan.change.make)(&plan.options, &mut spec)?;
    let upstream = Upstream::start(&upstream_placement(&plan.placement), BODY_BYTES, None)?;
    let first = placement::prioritize_open_loop(&plan.placement, &upstream.pids())?;
    cpus::pin(generator_cpus(&plan.placement))?;
    progress.step("starting");
    change.prepare(&mut spec, upstream.address, &plan.placement)?;
    let mut result = new_result(plan);
    let folder = tempfile::tempdir().map_err(|error| format!("cannot make a temporary folder: {error}"))?;
    result.notes.extend(first.warning.clone());
    let mut bench =
        Bench { plan, spec, upstream, change, folder, target: None, fleet: None, is_first: first.realtime() };
    'rounds: for round in 0..plan.rounds {
        let mut samples = vec![None, None];
        let order = if round % 2 == 0 { [Mode::Without, Mode::With] } else { [Mode::With, Mode::Without] };
        for mode in order {
            let column = usize::from(mode == Mode::With);
            progress.step(&format!("round {} of {}: {}", round + 1, plan.rounds, COLUMNS[column]));
            let sample = bench.block(mode, plan.block, stop, &mut result);
            if stop.load(Ordering::Relaxed) {
                // It is shorter than the others, or failed because of that.
                break 'rounds;
            }
            samples[column] = Some(sample?);
        }
        cpu_of_a_change(plan.block, &mut samples);
        result.rounds.push(samples);
    }
    if bench.change.follows() && !stop.load(Ordering::Relaxed) {
        progress.step("following changes");
        bench.block(Mode::Follow, plan.block.min(FOLLOW_MAX), stop, &mut result)?;
    }
    result.durations = bench.change.durations();
    result.notes.extend(bench.change.notes());
    Ok(result)
}

/// The number of calls of `progress.step`.
pub(crate) fn steps(plan: &ChurnPlan) -> u64 {
    plan.rounds as u64 * 2 + 2
}

fn new_result(plan: &ChurnPlan) -> FiguresResult {
    let ChurnPlan { change, rounds, connections, block, placement, options, .. } = plan;
    let columns = COLUMNS.map(str::to_owned).to_vec();
    let title = format!("{} of {}", change.name, plan.spec.name);
    let lines = if plan.tunnels.is_some() { [&LINES[..], &TUNNEL_LINES].concat() } else { LINES.to_vec() };
    let mut result = FiguresResult::new("churn", title, columns, &lines, *rounds);
    result.set("change", change.name);
    result.set("requests per second", plan.rate.map_or_else(|| "closed loop".to_owned(), |rate| rate.to_string()));
    result.set("connections", connections);
    result.set("block", format!("{} s", block.as_secs_f64()));
    result.set("CPUs of the target", cpus::list(&placement.target_cpus));
    result.set("CPUs of load and upstream", cpus::list(&placement.load_cpus));
    if let Some(threads) = &plan.threads {
        result.set("threads whose names begin with", threads);
    }
    if let Some((tunnels, every)) = plan.tunnels {
        result.set("tunnels", format!("{tunnels}, each pinged every {} s", every.as_secs_f64()));
    }
    for (name, value) in options.reported_options(change.name) {
        result.set(name, value);
    }
    result
}

struct Bench<'a> {
    plan: &'a ChurnPlan,
    spec: Spec,
    upstream: Upstream,
    change: Box<dyn Change>,
    /// For the files of the load.
    folder: TempDir,
    target: Option<RunningTarget>,
    /// The clients' ends of the tunnels; they stay open for all blocks of a target.
    fleet: Option<Fleet>,
    /// Whether the load goes before others on its CPUs.
    is_first: bool,
}

/// What was read of a block.
struct BlockFigures {
    outcome: RunSummary,
    pings: Option<MessageTotals>,
    /// CPU time of the target; `None`: another process has taken its place.
    cpu_us: Option<f64>,
    /// CPU time of the threads that are shown by themselves.
    threads_us: Option<f64>,
    took: Duration,
    rss_kib: u64,
    changes: u64,
}

impl BlockFigures {
    fn sample(self) -> Sample {
        let BlockFigures { outcome, cpu_us, .. } = &self;
        let of_request = |us: f64| us / outcome.sent.max(1) as f64;
        let quantile = |part: f64| outcome.latencies.corrected.value_at_quantile(part) as f64 / 1e3;
        let mut values = vec![
            Some(outcome.rate_achieved),
            Some(quantile(0.5)),
            Some(quantile(0.99)),
            Some(quantile(0.999)),
            Some(outcome.latencies.corrected.max() as f64 / 1e3),
            Some(outcome.self_watch.lateness.value_at_quantile(0.999) as f64 / 1e3),
            cpu_us.map(of_request),
            self.threads_us.map(of_request),
            cpu_us.map(|us| us / self.took.as_micros() as f64 * 100.0),
            Some(self.rss_kib as f64 / 1024.0),
            Some(self.changes as f64),
            // Not of one block.
            None,
        ];
        values.extend(self.pings.iter().flat_map(ping_values).map(Some));
        Sample { values, void: outcome.void.iter().map(ToString::to_string).collect() }
    }
}

impl<'a> Bench<'a> {
    /// Runs one block; at its end all changes have their effect.
    fn block(
        &mut self,
        mode: Mode,
        duration: Duration,
        stop: &AtomicBool,
        result: &mut FiguresResult,
    ) -> Result<Sample> {
        if self.change.needs_new_target() {
            (self.fleet, self.target) = (None, None);
        }
        let mix = self.mix(mode)?;
        let warmed = match self.target {
            Some(_) => 0,
            None => self.start(mix.as_deref(), stop, result)?,
        };
        let load = self.load(mix.as_deref())?;
        let Bench { plan, change, target: Some(target), fleet, is_first, .. } = self else {
            return Err("it was started above".into());
        };
        let pid = target.process()?.pid();
        let prefix = plan.threads.as_deref();
        let cpu_us = |target: &mut RunningTarget| -> Result<(f64, Option<f64>)> {
            let process = target.process()?;
            Ok((process.cpu_time_us()?, prefix.map(|prefix| process.threads_cpu_us(prefix)).transpose()?))
        };
        let (before, begin, over) = (cpu_us(target)?, Instant::now(), AtomicBool::new(false));
        let (outcome, changes, pings) = thread::scope(|scope| {
            let pinging = fleet.as_mut().zip(plan.pings_per_second()).map(|(fleet, rate)| {
                let is_first = *is_first;
                scope.spawn(move || {
                    if is_first {
                        priority::make_own_thread_realtime()?;
                    }
                    fleet.run(MessagePace::Clock(rate), LEAD_IN + duration)
                })
            });
            let changing = scope.spawn(|| change.change_until_over(target, mode, &over));
            let outcome = load.run_until(plan.pace(), LEAD_IN, duration, stop);
            over.store(true, Ordering::Relaxed);
            let changes = changing.join().unwrap_or_else(|_| Err("the thread of the changes panicked".into()));
            let pings =
                pinging.map(|thread| thread.join().unwrap_or_else(|_| Err("the tunnels' thread panicked".into())));
            (outcome, changes, pings)
        });
        // The end of a target explains more than what could not reach it.
        target.alive()?;
        let changes = changes?;
        let (outcome, pings) = (outcome?, pings.transpose()?);
        // Another process has its place since an upgrade.
        let is_same = target.process()?.pid() == pid;
        let (after, took) = (cpu_us(target)?, begin.elapsed());
        change.settle(target)?;
        result.faults.extend(failures(&outcome, mode));
        result.faults.extend(pings.as_ref().and_then(MessageTotals::wrong));
        result.faults.extend(change.faults(target, warmed + outcome.sent)?);
        let figures = BlockFigures {
            cpu_us: is_same.then_some(after.0 - before.0),
            threads_us: after.1.zip(before.1).filter(|_| is_same).map(|(after, before)| after - before),
            took,
            rss_kib: target.rss_kib()?,
            changes,
            outcome,
            pings,
        };
        Ok(figures.sample())
    }

    /// Starts the target, with its tunnels, and fills its pools and caches; returns the number of requests for that.
    fn start(&mut self, mix: Option<&Path>, stop: &AtomicBool, result: &mut FiguresResult) -> Result<u64> {
        let mut target = self.spec.start(self.upstream.address, &self.plan.placement)?;
        self.change.begin(&mut target)?;
        if result.subjects.is_empty() {
            result.subjects.push(target.subject.clone());
        }
        if let Some((tunnels, _)) = self.plan.tunnels {
            let mut fleet = Fleet::new(target.address)?;
            fleet.open(tunnels)?;
            self.fleet = Some(fleet);
        }
        self.target = Some(target);
        Ok(self.load(mix)?.run_until(self.plan.pace(), Duration::ZERO, WARM_UP, stop)?.sent)
    }

    fn load(&self, mix: Option<&Path>) -> Result<LoadSettings<'a>> {
        let ChurnPlan { connections, placement, seed, .. } = self.plan;
        let address = self.target.as_ref().map_or(self.upstream.address, |target| target.address);
        let load = LoadSettings::of(address, *connections, placement, LATE, mix, *seed)?;
        Ok(load.prioritized(self.is_first))
    }

    /// The file with the requests of a block; `None`: `GET /`.
    fn mix(&self, mode: Mode) -> Result<Option<PathBuf>> {
        if self.plan.mix.is_some() {
            return Ok(self.plan.mix.clone());
        }
        let file = self.folder.path().join("mix.yaml");
        let text = match self.change.requests() {
            Requests::Any => return Ok(None),
            Requests::Mix(text) => text(mode).to_owned(),
            Requests::Paths(paths) => {
                let relative: Vec<&str> = paths.iter().map(|path| path.trim_start_matches('/')).collect();
                write(&self.folder.path().join("paths.txt"), &relative.join("\n"))?;
                "variables:\n  path: {file: paths.txt}\nrequests:\n  - {path: \"/${path}\", expect: {status: [200]}}\n"
                    .to_owned()
            }
        };
        write(&file, &text)?;
        Ok(Some(file))
    }
}

/// The figures of the tunnels.
fn ping_values(pings: &MessageTotals) -> [f64; TUNNEL_LINES.len()] {
    let part = |of: &Histogram<u64>, part| of.value_at_quantile(part) as f64;
    [
        part(&pings.answer_us, 0.5),
        part(&pings.answer_us, 0.99),
        part(&pings.answer_us, 0.999),
        pings.answer_us.max() as f64,
        part(&pings.worst_us, 0.5),
        part(&pings.worst_us, 0.99),
        pings.silence_us as f64,
        part(&pings.late_us, 0.999),
    ]
}

impl ChurnPlan {
    fn pings_per_second(&self) -> Option<f64> {
        self.tunnels.map(|(tunnels, every)| tunnels as f64 / every.as_secs_f64())
    }

    fn pace(&self) -> Pace {
        self.rate.map_or(Pace::Closed, constant)
    }
}

/// Requests that failed, in a sentence.
fn failures(outcome: &RunSummary, mode: Mode) -> Option<String> {
    let failed = outcome.errors.total() + outcome.self_watch.missed_starts;
    let example = outcome.errors.examples.first().map_or("no connection became free in time", String::as_str);
    let changes = if mode == Mode::Without { "without changes" } else { "with changes" };
    (failed > 0).then(|| format!("{failed} requests failed in a block {changes}, for example: {example}"))
}

/// What a change costs: the difference between the blocks of a round.
fn cpu_of_a_change(block: Duration, samples: &mut [Option<Sample>]) {
    let [Some(without), Some(with)] = samples else { return };
    let value = |sample: &Sample, line: usize| sample.values[line];
    let cpu = value(with, CPU_PERCENT).zip(value(without, CPU_PERCENT)).map(|(with, without)| with - without);
    with.values[CPU_OF_CHANGE] = cpu
        .zip(value(with, CHANGES).filter(|changes| *changes > 0.0))
        .map(|(percent, changes)| percent / 100.0 * (block + LEAD_IN).as_secs_f64() * 1e3 / changes);
}

fn write(file: &Path, text: &str) -> Result {
    fs::write(file, text).map_err(|error| Error::new(format!("{}: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_costs_the_difference() {
        let sample = |percent: f64, changes: f64| {
            let mut values = vec![None; LINES.len()];
            (values[CPU_PERCENT], values[CHANGES]) = (Some(percent), Some(changes));
            Some(Sample { values, void: Vec::new() })
        };
        let of = |mut samples: Vec<Option<Sample>>| {
            cpu_of_a_change(Duration::from_millis(9500), &mut samples);
            samples[1].as_ref().unwrap().values[CPU_OF_CHANGE]
        };
        // 20% of 10 s are 2 s, for 100 changes.
        assert_eq!(of(vec![sample(30.0, 0.0), sample(50.0, 100.0)]).map(|ms| (ms * 1e6).round()), Some(20e6));
        assert_eq!(of(vec![sample(30.0, 0.0), sample(50.0, 0.0)]), None);
        assert_eq!(of(vec![None, sample(50.0, 1.0)]), None);
        assert_eq!((LINES[CPU_PERCENT].0, LINES[CHANGES].0), ("CPU, all threads", "changes"));
        assert_eq!(LINES[CPU_OF_CHANGE].0, "CPU of a change");
    }
}
