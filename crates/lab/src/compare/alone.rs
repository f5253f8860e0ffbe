//! One figure of one program, measured as `compare` does it in pairs; for `bisect` and `nightly`, which compare in
//! other ways.
//!
//! The memory of an idle connection is measured after each has had one request answered: so all that a used connection
//! keeps is in the figure. Memory of the kernel is not: no program can change that.

use super::instructions;
use super::measures::{self, INSTRUCTIONS, Measure, THROUGHPUT};
use super::side::{LoadSettings, MeasuredProgram};
use crate::display::{Progress, rough};
use crate::error::{Error, Result};
use crate::result::compare::{CompareDesign, SideRecord};
use crate::scraper;
use crate::target::{RunningTarget, Spec, Upstream};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;
use stillgate_load::RunSummary;
use stillgate_load::present;
use stillgate_rig::descriptors;
use stillgate_rig::strace::{self, Calls};

/// A loop is shown in parts, each with its result so far, and none shorter than a second.
const PARTS_MAX: usize = 10;

/// The figure to read.
#[derive(Debug, Clone)]
pub(crate) enum Figure {
    /// A measure of `compare`.
    Measure(&'static Measure),
    /// The growth of a metric of its exposition per 1,000 requests, summed over its series, plus 1: so a metric that is
    /// zero today also has a ratio to tomorrow's.
    Metric(String),
    /// Resident memory after the load, without pages of files.
    Anonymous,
    /// The sum of a metric's series after the load, plus 1: for values that no longer change once the program is warm.
    Level(String),
    /// System calls per request.
    Syscalls,
    /// System calls that transfer bytes.
    DataSyscalls,
    /// Resident memory before any load, once it has settled.
    Settled,
    /// The most resident memory under load, beyond that before any.
    Peak,
    /// Bytes of an idle connection.
    Connection,
    /// Bytes that are left of it after it has closed.
    ClosedConnection,
}

impl Display for Figure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Figure::Measure(measure) => f.write_str(measure.name),
            Figure::Metric(name) | Figure::Level(name) => f.write_str(name),
            Figure::Anonymous => f.write_str("anonymous memory"),
            Figure::Syscalls => f.write_str("system calls"),
            Figure::DataSyscalls => f.write_str("data system calls"),
            Figure::Settled => f.write_str("settled memory"),
            Figure::Peak => f.write_str("growth of memory"),
            Figure::Connection => f.write_str("an idle connection"),
            Figure::ClosedConnection => f.write_str("a closed connection"),
        }
    }
}

/// The raw data of a measure, for storage: the figure follows from the rest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RawReading {
    pub(crate) kind: RawKind,
    /// A measure of `compare`.
    pub(crate) measure: String,
    /// One start, with its histograms.
    pub(crate) record: SideRecord,
}

/// Distinguishes these from other raw data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RawKind {
    #[serde(rename = "stillgate-lab measure")]
    Measure,
}

impl RawReading {
    /// `None` for data of another kind.
    pub(crate) fn parse(bytes: &[u8]) -> Option<RawReading> {
        serde_json::from_slice(bytes).ok()
    }

    /// Recomputes the figure.
    pub(crate) fn figure(&self) -> Result<f64> {
        let measure = measures::named(&self.measure)
            .ok_or_else(|| Error::new(format!("unknown measure {:?}; use a newer stillgate-lab", self.measure)))?;
        measures::of_one(measure, &self.record)
    }
}

/// How many steps [`read`] shows. Counting instructions may take more, for a slow program.
pub(crate) fn steps(figure: &Figure, design: &CompareDesign) -> u64 {
    let loops =
        if design.rate > 0.0 { parts(design.saturation_s) + parts(design.rate_s) } else { parts(design.saturation_s) };
    // The others begin with start and warm-up.
    2 + if is_instructions(figure) { 0 } else { loops as u64 }
}

/// Starts the program, loads it and reads one figure; returns also its raw data, where there are histograms.
pub(crate) fn read(
    figure: &Figure,
    spec: &Spec,
    upstream: &Upstream,
    design: &CompareDesign,
    progress: &mut Progress,
) -> Result<(f64, Option<RawReading>)> {
    let alone = |value: Result<f64>| Ok((value?, None));
    let measure = match figure {
        Figure::Metric(name) => return alone(metric(name, true, spec, upstream, design, progress)),
        Figure::Anonymous => return alone(anonymous_kib(spec, upstream, design, progress)),
        Figure::Level(name) => return alone(metric(name, false, spec, upstream, design, progress)),
        Figure::Syscalls => return alone(syscalls(spec, upstream, design, progress).map(|calls| calls.all)),
        Figure::DataSyscalls => return alone(syscalls(spec, upstream, design, progress).map(|calls| calls.data)),
        Figure::Settled => return alone(settled_kib(spec, upstream, design)),
        Figure::Peak => return alone(growth_kib(spec, upstream, design, progress)),
        Figure::Connection => return alone(bytes_per_connection(spec, upstream, design).map(|(open, _)| open)),
        Figure::ClosedConnection => {
            return alone(bytes_per_connection(spec, upstream, design).map(|(_, closed)| closed));
        }
        Figure::Measure(_) if is_instructions(figure) => {
            let mut begin = |text: &str| progress.step(text);
            return alone(instructions::once(spec, upstream.address, design, &mut begin));
        }
        Figure::Measure(measure) => measure,
    };
    let mut side = warm(spec, upstream, design, progress)?;
    if measure.name == THROUGHPUT {
        side.check_measurable(design)?;
    }
    saturated(&mut side, design, progress)?;
    // Memory is read after all loads; for the others, the open loop is only for latencies.
    let rated = if design.rate > 0.0 { Some(rated(&mut side, design, upstream, progress)?) } else { None };
    let record = side.record(rated.as_ref())?;
    let raw = RawReading { kind: RawKind::Measure, measure: measure.name.to_owned(), record };
    Ok((raw.figure()?, Some(raw)))
}

pub(crate) fn is_instructions(figure: &Figure) -> bool {
    matches!(figure, Figure::Measure(measure) if measure.name == INSTRUCTIONS.name)
}

/// The parts of a loop.
fn parts(seconds: f64) -> usize {
    (seconds as usize).clamp(1, PARTS_MAX)
}

/// Duration of the loops from the beginning of the closed one.
fn loops_s(design: &CompareDesign) -> f64 {
    design.saturation_s + if design.rate > 0.0 { design.rate_s } else { 0.0 }
}

/// The program, started and warmed up.
fn warm<'a>(
    spec: &Spec,
    upstream: &Upstream,
    design: &'a CompareDesign,
    progress: &mut Progress,
) -> Result<MeasuredProgram<'a>> {
    let left = rough(design.warm_up_s + loops_s(design));
    progress.step(&format!("starting it, then {left} of load"));
    let mut side = MeasuredProgram::start(spec, upstream, design, design.seed)?;
    progress.step(&format!("warm-up, about {left} left"));
    side.warm_up(design)?;
    Ok(side)
}

fn saturated(side: &mut MeasuredProgram<'_>, design: &CompareDesign, progress: &mut Progress) -> Result {
    let parts = parts(design.saturation_s);
    let mut left_s = loops_s(design);
    side.run_closed_loop(design, parts, |so_far| {
        progress.step(&format!("closed loop, about {} left{so_far}", rough(left_s)));
        left_s -= design.saturation_s / parts as f64;
    })
}

fn rated(
    side: &mut MeasuredProgram<'_>,
    design: &CompareDesign,
    upstream: &Upstream,
    progress: &mut Progress,
) -> Result<RunSummary> {
    let part_s = design.rate_s / parts(design.rate_s) as f64;
    let rate = design.rate;
    let (mut begun, mut answered, mut errors) = (1, 0, 0);
    let left = rough(design.rate_s);
    progress.step(&format!("{rate} requests/s, about {left} left{}", side.so_far()));
    side.run_at_rate_alone(design, upstream, &mut |interval| {
        answered += interval.requests;
        errors += interval.errors;
        let gone_s = (interval.start + interval.length).as_secs_f64();
        if begun < parts(design.rate_s) && gone_s >= part_s * begun as f64 {
            begun += 1;
            // All latencies so far would have to be added up, which takes time from the generator.
            let p99 = present::latency(interval.latencies.corrected.value_at_quantile(0.99));
            let left = rough(design.rate_s - gone_s);
            progress.step(&format!(
                "{rate} requests/s, about {left} left; {answered} answered so far, {errors} errors, p99 just now {p99}"
            ));
        }
    })
}

fn anonymous_kib(spec: &Spec, upstream: &Upstream, design: &CompareDesign, progress: &mut Progress) -> Result<f64> {
    let mut side = warm(spec, upstream, design, progress)?;
    saturated(&mut side, design, progress)?;
    Ok(side.started.anonymous_kib()? as f64)
}

/// strace slows a program down, so its requests are counted and not timed.
fn syscalls(spec: &Spec, upstream: &Upstream, design: &CompareDesign, progress: &mut Progress) -> Result<Calls> {
    let side = warm(spec, upstream, design, progress)?;
    progress.step("under strace");
    strace::count(&side.started.pids()?, || side.run_untimed(design))
}

fn settled_kib(spec: &Spec, upstream: &Upstream, design: &CompareDesign) -> Result<f64> {
    let mut started = spec.start(upstream.address, &design.placement)?;
    match started.process()?.settled_memory()? {
        (memory, true) => Ok(memory.rss_kib as f64),
        (_, false) => Err("its memory does not settle".into()),
    }
}

fn growth_kib(spec: &Spec, upstream: &Upstream, design: &CompareDesign, progress: &mut Progress) -> Result<f64> {
    let mut side = MeasuredProgram::start(spec, upstream, design, design.seed)?;
    let before = side.started.process()?.settled_memory()?.0.rss_kib;
    progress.step("warm-up");
    side.warm_up(design)?;
    saturated(&mut side, design, progress)?;
    if design.rate > 0.0 {
        rated(&mut side, design, upstream, progress)?;
    }
    Ok(side.started.process()?.peak_rss_kib()?.saturating_sub(before) as f64)
}

fn metric(
    name: &str,
    is_growth: bool,
    spec: &Spec,
    upstream: &Upstream,
    design: &CompareDesign,
    progress: &mut Progress,
) -> Result<f64> {
    let mut side = warm(spec, upstream, design, progress)?;
    let metrics = side.started.metrics.clone();
    let metrics =
        metrics.ok_or_else(|| Error::new("the address of its metrics is unknown; write {metrics} into its command"))?;
    let before = scraper::sum(&metrics, name)?.unwrap_or(0.0);
    saturated(&mut side, design, progress)?;
    // Before anything is counted there are no series; an older version may also lack the metric.
    let after = scraper::sum(&metrics, name)?.unwrap_or_else(|| {
        eprintln!("note: its exposition has no series of {name}, which counts as 0");
        0.0
    });
    Ok(1.0 + if is_growth { (after - before) * 1000.0 / side.sent().max(1) as f64 } else { after })
}

/// Connections that are opened and closed first, so that nothing that is allocated once counts.
const WARM_UP: usize = 100;

/// Descriptors of this program besides its connections.
const OTHER_FILES: u64 = 64;

const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of a connection while it is open, and of what is left of it after it has closed.
fn bytes_per_connection(spec: &Spec, upstream: &Upstream, design: &CompareDesign) -> Result<(f64, f64)> {
    let needed = design.connections as u64 + OTHER_FILES;
    descriptors::raise_to(descriptors::limit().hard);
    if descriptors::limit().current < needed {
        let (allowed, wanted) = (descriptors::limit().current, design.connections);
        return Err(Error::new(format!(
            "{wanted} connections need {needed} open files, and {allowed} are allowed: `ulimit -n`"
        )));
    }
    let mut started = spec.start(upstream.address, &design.placement)?;
    let request = LoadSettings::of_spec(&started, spec, design)?.example();
    drop(open(&started, &request, WARM_UP)?);
    let before = settled_pss_kib(&mut started)?;
    let held = open(&started, &request, design.connections)?;
    let with = settled_pss_kib(&mut started)?;
    drop(held);
    let after = settled_pss_kib(&mut started)?;
    let each = |kib: f64| (kib - before) * 1024.0 / design.connections as f64;
    Ok((each(with), each(after)))
}

fn settled_pss_kib(started: &mut RunningTarget) -> Result<f64> {
    match started.process()?.settled_memory()? {
        (memory, true) => Ok(memory.pss_kib as f64),
        (_, false) => Err("its memory does not settle".into()),
    }
}

/// Opens connections, and sends a request on each.
fn open(started: &RunningTarget, request: &[u8], count: usize) -> Result<Vec<TcpStream>> {
    let connect = |_| TcpStream::connect(started.address);
    let streams: std::io::Result<Vec<_>> = (0..count).map(connect).collect();
    let mut streams = streams.map_err(|error| Error::new(format!("cannot connect: {error}")))?;
    for (number, stream) in streams.iter_mut().enumerate() {
        let mut answer = [0; 4096];
        let mut exchange = || {
            stream.set_read_timeout(Some(SILENCE_TIMEOUT))?;
            stream.write_all(request)?;
            stream.read(&mut answer)
        };
        let length = exchange().map_err(|error| Error::new(format!("connection {number}: {error}")))?;
        if !answer[..length].starts_with(b"HTTP/1.1 2") {
            let text = String::from_utf8_lossy(&answer[..length]).into_owned();
            return Err(Error::new(format!("connection {number}: it was answered {text:?}")));
        }
    }
    Ok(streams)
}
