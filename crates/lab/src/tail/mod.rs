//! The tail experiment: the effect of scrapes of a gateway's metrics on its slowest requests.
//!
//! ```text
//! arguments ─▶ design ─▶ run ─▶ blocks ─▶ analysis ─▶ verdict ─▶ table
//!              order,    load,            pure: made again by `verify`
//!              seed      scraper, CPU
//! ```
//!
//! Load is open-loop at a constant rate. Blocks with scrapes alternate with blocks without, two and two, in an order
//! that the seed draws; each pair gives one difference, and only differences of pairs are compared, so whatever drifts
//! over minutes (other tenants, frequency, a growing heap) falls out. The number of pairs follows from a rule that is
//! fixed before the first and does not depend on effects: the planned number, and a spare one for each pair in which
//! the generator itself was late, while spares last. Its one weakness, a generator that is late because of the scrapes,
//! is described in `design`.
//!
//! The cells are run here: target and upstream are started, the series made, and block after block is measured. After each
//! pair the cells so far are handed out to be kept, so that whatever ends the experiment loses one pair at most. A cell
//! whose target cannot be started is noted and the others go on: an hour's sweep must not hang on one program. perf samples
//! blocks of both kinds alike, so its cost cancels out of the effects, and of the flame graphs of the target's CPU time with
//! scrapes and without.

pub(crate) mod analysis;
pub(crate) mod design;
pub(crate) mod readable;
pub(crate) mod summary;
#[cfg(test)]
pub(crate) mod synthetic;
pub(crate) mod table;
pub(crate) mod verdict;

use crate::display::Progress;
use crate::environment::Stolen;
use crate::error::{Error, Result};
use crate::explain::analysis::{Fold, analyse};
use crate::explain::words;
use crate::profile::{self, Output, Subject};
use crate::result::explain::{ExplainAnalysis, ExplainDesign, ExplainResult, Sides};
use crate::result::run::RunRecord;
use crate::result::tail::{Arm, Block, Cell, CellPlan, Point, Scrape, TailDesign};
use crate::scraper::Scraper;
use crate::target::{MetricsAddress, RunningTarget, Upstream, make_series, mix, placement};
use design::{LatePairs, PlannedCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};
use stillgate_load::{Arrivals, Bounds, Interval, Load, Pace, Protocol, RunSummary, Schedule, Target};
use stillgate_profiler::profile::Profile;

/// Approximate number of points of a block's time series.
const POINTS: u32 = 50;

/// The shortest interval of a point.
const POINT_MIN: Duration = Duration::from_millis(50);

/// The longest interval in which a stall can still be seen next to its scrape.
const POINT_MAX: Duration = Duration::from_millis(500);

/// A longer stall counts as this long: clients do not wait longer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Most requests per second for one generator thread.
const RATE_PER_THREAD: f64 = 50_000.0;

/// Unmeasured load on a new target: its pools and caches fill.
const WARM_UP_MAX: Duration = Duration::from_secs(2);

/// Size of the upstream's answers.
const BODY_BYTES: usize = 100;

/// How an experiment ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TailEnd {
    /// All cells were run, or noted as failed.
    Done,
    /// It was asked to stop.
    Stopped,
}

/// The results of the cells.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    /// Finished ones; the last may be incomplete.
    pub(crate) cells: Vec<Cell>,
    /// Cells that could not be run, with the reason.
    pub(crate) failures: Vec<String>,
}

/// Runs all cells. `keep` is called after each pair and each failure; if it fails, so does the experiment. Blocks are
/// profiled by perf if there are `flames`.
pub(crate) fn run(
    design: &TailDesign,
    planned: &[PlannedCell],
    stop: &AtomicBool,
    progress: &mut Progress,
    mut flames: Option<&mut Flames>,
    mut keep: impl FnMut(&Outcomes) -> Result,
) -> Result<TailEnd> {
    let mut outcomes = Outcomes::default();
    for planned in planned {
        progress.step(&format!("{}: starting", title(planned)));
        let mut runner = match Runner::start(design, planned, progress) {
            Ok(runner) => runner,
            Err(error) => {
                fail(&mut outcomes, planned, &error, progress);
                keep(&outcomes)?;
                continue;
            }
        };
        outcomes.cells.push(runner.new_cell(planned));
        let order = design::order(design.seed, planned.number, design.pairs + design.spares);
        for pair in order.chunks(2) {
            if stop.load(Ordering::Relaxed) {
                return Ok(TailEnd::Stopped);
            }
            let cell = outcomes.cells.last().expect("pushed above");
            if pair[0].0 >= LatePairs::of(design, &cell.blocks)?.due(design) {
                break;
            }
            announce(design, planned, pair[0].0, progress);
            match runner.pair(pair, stop, flames.as_deref_mut()) {
                Ok(Some(blocks)) => {
                    note_void(&blocks, progress);
                    outcomes.cells.last_mut().expect("pushed above").blocks.extend(blocks);
                    keep(&outcomes)?;
                }
                Ok(None) => return Ok(TailEnd::Stopped),
                Err(error) => {
                    fail(&mut outcomes, planned, &error, progress);
                    keep(&outcomes)?;
                    break;
                }
            }
        }
    }
    Ok(TailEnd::Done)
}

/// The number of calls of `progress.step` by [`run`], without spare pairs, which it adds.
pub(crate) fn steps(planned: &[PlannedCell], pairs: usize) -> u64 {
    (planned.len() * (pairs + 1)) as u64
}

/// `haproxy, 100,000 series, every 5 s`
pub(crate) fn title(planned: &PlannedCell) -> String {
    title_of(&planned.planned())
}

/// The title of a planned cell in a result file.
pub(crate) fn title_of(planned: &CellPlan) -> String {
    let series = planned.series.map_or(String::new(), |series| format!(", {} series", readable::count(series)));
    format!("{}{series}, every {}", planned.name, readable::seconds(planned.scrape_every_s))
}

fn announce(design: &TailDesign, planned: &PlannedCell, pair: usize, progress: &mut Progress) {
    let title = title(planned);
    match pair.checked_sub(design.pairs) {
        None => progress.step(&format!("{title}: pair {} of {}", pair + 1, design.pairs)),
        Some(spare) => {
            progress.add_step();
            progress.step(&format!("{title}: spare pair {} of at most {}", spare + 1, design.spares));
        }
    }
}

fn fail(outcomes: &mut Outcomes, planned: &PlannedCell, error: &Error, progress: &Progress) {
    let failure = format!("{}: {error}", title(planned));
    progress.note(&format!("failed: {failure}"));
    outcomes.failures.push(failure);
    // A cell that failed before its first pair has no result.
    outcomes.cells.pop_if(|cell| cell.blocks.is_empty());
}

fn note_void(blocks: &[Block], progress: &Progress) {
    for block in blocks {
        for reason in analysis::void_reasons(block) {
            progress.note(&format!("pair {} is void: {reason}", block.pair + 1));
        }
    }
}

/// A cell being measured. Fields are dropped in this order: priorities are restored before processes end.
struct Runner<'a> {
    design: &'a TailDesign,
    every: Duration,
    load: Load,
    metrics: MetricsAddress,
    series_shown: u64,
    _priority: placement::LoadPriority,
    target: RunningTarget,
    _upstream: Upstream,
}

impl<'a> Runner<'a> {
    /// Prepares everything up to the first block.
    fn start(design: &'a TailDesign, planned: &PlannedCell, progress: &Progress) -> Result<Runner<'a>> {
        let placement = &design.placement;
        let upstream = Upstream::start(placement, BODY_BYTES, planned.spec.machines.as_ref())?;
        let mut target = planned.spec.start(upstream.address, placement)?;
        let Some(metrics) = target.metrics.clone() else {
            return Err("it has no metrics to scrape; give their address with --metrics URL".into());
        };
        let series_shown = make_series(&target, &planned.spec)?;
        target.alive()?;
        let priority = placement::prioritize_load(placement, &upstream.pids())?;
        let load = Load { realtime: priority.realtime(), ..load(design, planned, &target)? };
        if let Some(warning) = priority.warning.as_ref().filter(|_| planned.number == 0) {
            progress.note(&format!("note: {warning}"));
        }
        let runner = Runner {
            design,
            every: planned.every,
            load,
            metrics,
            series_shown,
            _priority: priority,
            target,
            _upstream: upstream,
        };
        let warm_up = Load { duration: WARM_UP_MAX.min(runner.load.duration), ..runner.load.clone() };
        stillgate_load::run(&warm_up, &AtomicBool::new(false), &mut |_| {})
            .map_err(|error| Error::new(error.to_string()))?;
        Ok(runner)
    }

    fn new_cell(&self, planned: &PlannedCell) -> Cell {
        Cell {
            number: planned.number,
            subject: self.target.subject.clone(),
            series_asked: planned.spec.series,
            series_shown: self.series_shown,
            scrape_every_s: planned.every.as_secs_f64(),
            blocks: Vec::new(),
        }
    }

    /// The blocks of a pair; `None` if it was stopped meanwhile.
    fn pair(
        &mut self,
        order: &[(usize, Arm)],
        stop: &AtomicBool,
        mut flames: Option<&mut Flames>,
    ) -> Result<Option<Vec<Block>>> {
        let mut blocks = Vec::with_capacity(order.len());
        for &(pair, arm) in order {
            let watched = match &flames {
                Some(_) => Some(watch(self.target.pids()?, self.design)),
                None => None,
            };
            let block = self.block(pair, arm, stop);
            let is_stopped = stop.load(Ordering::Relaxed);
            let profile = watched.map(|watched| watched.taken(is_stopped));
            if is_stopped {
                return Ok(None);
            }
            blocks.push(block?);
            if let (Some(flames), Some(profile)) = (&mut flames, profile) {
                flames.add(arm, &profile?);
            }
        }
        Ok(Some(blocks))
    }

    fn block(&mut self, pair: usize, arm: Arm, stop: &AtomicBool) -> Result<Block> {
        let stolen = Stolen::begin();
        // Opening connections may make the lead-in longer; the scrapes' times are corrected for it below.
        let lead_in = self.load.warm_up;
        let begin = SystemTime::now() + lead_in;
        let scraper = match arm {
            Arm::Without => None,
            Arm::With => {
                let (cpus, begin) = (&self.design.placement.load_cpus, Instant::now() + lead_in);
                Some(Scraper::start(&self.metrics, self.every, self.design.gzip, cpus, begin)?)
            }
        };
        let mut watch = Watch { target: &self.target, points: Vec::new(), cpu_us: Vec::new() };
        let outcome = stillgate_load::run(&self.load, stop, &mut |interval| watch.see(interval));
        let Watch { points, cpu_us, .. } = watch;
        let scrapes = scraper.map_or(Ok(Vec::new()), Scraper::stop);
        // The end of a target explains more than any other failure.
        self.target.alive()?;
        let outcome = outcome.map_err(|error| Error::new(error.to_string()))?;
        Ok(Block {
            pair,
            arm,
            run: RunRecord::of(&outcome)?,
            scrapes: in_measured_time(scrapes?, begin, &outcome),
            cpu_us_per_request: cpu_us_per_request(&points, cpu_us)?,
            stolen_ms: stolen.ms().unwrap_or(0.0),
            points,
        })
    }
}

/// The observations of a running block.
struct Watch<'a> {
    target: &'a RunningTarget,
    points: Vec<Point>,
    /// The target's CPU time at the end of each point.
    cpu_us: Vec<Result<f64>>,
}

impl Watch<'_> {
    fn see(&mut self, interval: &Interval<'_>) {
        self.cpu_us.push(self.target.cpu_time_us());
        self.points.push(Point::of(interval));
    }
}

/// From the end of the first point to that of the last: the time before belongs partly to the lead-in.
fn cpu_us_per_request(points: &[Point], cpu_us: Vec<Result<f64>>) -> Result<f64> {
    let cpu_us = cpu_us.into_iter().collect::<Result<Vec<f64>>>()?;
    let requests: u64 = points.iter().skip(1).map(|point| point.requests).sum();
    let spent_us = cpu_us.last().zip(cpu_us.first()).map_or(0.0, |(last, first)| last - first);
    Ok(if requests == 0 { 0.0 } else { spent_us / requests as f64 })
}

/// The scrapes of the measured time, relative to its actual beginning instead of the `expected` one.
fn in_measured_time(mut scrapes: Vec<Scrape>, expected: SystemTime, outcome: &RunSummary) -> Vec<Scrape> {
    let late_s = match outcome.begun.duration_since(expected) {
        Ok(late) => late.as_secs_f64(),
        Err(early) => -early.duration().as_secs_f64(),
    };
    scrapes.iter_mut().for_each(|scrape| scrape.at_s -= late_s);
    scrapes.retain(|scrape| scrape.at_s + scrape.took_s > 0.0 && scrape.at_s < outcome.elapsed.as_secs_f64());
    scrapes
}

fn load(design: &TailDesign, planned: &PlannedCell, target: &RunningTarget) -> Result<Load> {
    let url = format!("http://{}/", target.address);
    let asked = Target::parse(&url).map_err(|error| Error::new(error.to_string()))?;
    let cpus = &design.placement.load_cpus;
    let threads = (design.rate / RATE_PER_THREAD).ceil().clamp(1.0, cpus.len().max(1) as f64) as usize;
    let duration = Duration::from_secs_f64(design.block_s);
    Ok(Load {
        mix: mix(&planned.spec, &asked, design.touched_percent)?,
        target: asked,
        pace: Pace::Open(Schedule { rate: design.rate, rate_end: design.rate, arrivals: Arrivals::Uniform }),
        warm_up: Duration::from_secs_f64(design.lead_in_s),
        duration,
        requests: None,
        protocol: Protocol::Http1,
        tls: None,
        connections: design.connections,
        threads: threads.min(design.connections),
        cpus: cpus.clone(),
        realtime: false,
        sources: Vec::new(),
        timeout: TIMEOUT,
        interval: (duration / POINTS).clamp(POINT_MIN, POINT_MAX),
        bounds: Bounds { late_share_max: design.late_share_max, ..Bounds::default() },
        seed: design.seed,
    })
}

/// Samples per second.
const HZ: u32 = 999;

/// Confidence that no unchanged stack is reported as changed.
const CONFIDENCE: f64 = 0.99;

/// Profiles of blocks so far.
#[derive(Debug, Default)]
pub(crate) struct Flames {
    without: Fold,
    with: Fold,
    slices: usize,
}

/// A block that is being profiled.
struct ProfiledBlock {
    thread: JoinHandle<Result<Profile>>,
    stop: Arc<AtomicBool>,
}

/// Samples these processes for the whole seconds of lead-in and block.
fn watch(pids: Vec<u32>, design: &TailDesign) -> ProfiledBlock {
    let seconds = seconds(design);
    let stop = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&stop);
    let watched =
        move || profile::cpu(&Subject::Processes { pids: &pids, seconds }, HZ, Output::Hidden { stop: &asked });
    ProfiledBlock { thread: thread::spawn(watched), stop }
}

fn seconds(design: &TailDesign) -> u64 {
    ((design.lead_in_s + design.block_s) as u64).max(1)
}

impl ProfiledBlock {
    /// A block that was cut short has no profile, and is not waited for.
    fn taken(self, is_cut_short: bool) -> Result<Profile> {
        self.stop.store(is_cut_short, Ordering::Relaxed);
        self.thread.join().map_err(|_| Error::new("the thread that reads perf's samples panicked"))?
    }
}

impl Flames {
    /// A block is one unit of work: all have the same load.
    fn add(&mut self, arm: Arm, profile: &Profile) {
        match arm {
            Arm::Without => self.without.add(profile, 1.0),
            Arm::With => self.with.add(profile, 1.0),
        }
        self.slices += usize::from(arm == Arm::With);
    }

    /// The page; `None` before there is a block of each kind.
    pub(crate) fn html(self, design: &TailDesign, planned: &PlannedCell, progress: &Progress) -> Option<String> {
        if self.slices == 0 {
            progress.note("no profile was taken: no pair of blocks was finished");
            return None;
        }
        let title = title(planned);
        let design = ExplainDesign {
            a: format!("{title}: without scrapes"),
            b: format!("{title}: with scrapes"),
            work: "block".to_owned(),
            command: None,
            mix: None,
            slices: self.slices,
            slice_s: seconds(design),
            hz: HZ,
            seed: design.seed,
            confidence: CONFIDENCE,
        };
        let mut result = ExplainResult {
            design,
            cpu: Sides { a: self.without.finish(), b: self.with.finish() },
            instructions: None,
            instructions_missing: Some("only time is sampled while blocks are measured".to_owned()),
            isolated: Vec::new(),
            lua: None,
            lua_missing: None,
            interrupted: false,
            analysis: ExplainAnalysis::empty(),
        };
        result.analysis = analyse(&result);
        Some(words::html(&result))
    }
}
