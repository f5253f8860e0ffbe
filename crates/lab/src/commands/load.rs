//! `stillgate-lab load`: one run of the load generator, shown live and as a result.
//!
//! A run that is not valid for the target is never presented as one that is: it ends with [`EXIT_VOID`]. Failed
//! requests are a finding, not a failure of the command; scripts can turn them into one by `--fail-if`.

pub(crate) mod fail_if;
mod plan;
mod watch;

use crate::command_line::{self, Cpus, Header, own_arguments};
use crate::display::LoadDisplay;
use crate::environment;
use crate::error::{self, EXIT_INTERRUPTED, Error, Result};
use crate::output::show;
use crate::result::file::{self, ResultWriter};
use crate::result::load::LoadResult;
use crate::result::tail::Point;
use crate::result::{Experiment, ResultFile};
use clap::Args;
use fail_if::Condition;
use std::fs::{self, File};
use std::io::LineWriter;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;
use stillgate_load::present::{IntervalLog, table};
use stillgate_load::{Interval, Load, LoadError, RunSummary};
use stillgate_rig::cpus;
use watch::Watch;

/// Exit code of a run that is void.
const EXIT_VOID: u8 = 3;

/// Exit code if a condition of `--fail-if` holds.
const EXIT_CONDITION: u8 = 4;

/// `stillgate-lab load`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
With --rate, requests start on a schedule, regardless of the server, and latency counts from the intended start (corrected) \
and from the send (uncorrected). Without it, each connection sends its next request when the last one was answered.

Exit codes: 0 done, even if requests failed (they are in the table, and as `errors` in the JSON); 2 the run was not possible; \
3 the run is void: it shows this generator rather than the server, and no condition is judged; 4 a --fail-if condition \
holds; 130 interrupted before anything was measured. Ctrl-C ends a run early with the figures so far; a second one ends it at once, \
without them.

After the measured time the generator waits, for up to --timeout, for requests that are still under way or are due without a \
free connection; Ctrl-C ends that, too. If the server breaks or refuses connections, one new connection is tried at a time, with \
pauses of 10 to 100 ms, and requests that become due meanwhile wait.

--fail-if takes METRIC > VALUE, or with <, >= or <=. Metrics: errors (a number, or a share, for example 1%: all requests without the \
expected answer, including missed starts), p50, p99, p99.9 and any other percentile, max (all from the \
intended start), rate (answers per second), requests (answers).

Examples:
  20,000 requests per second over 50 connections, result also as JSON:
    stillgate-lab load http://127.0.0.1:8080/ --rate 20k --duration 10s --connections 50 --json run.json
  The server's maximum:
    stillgate-lab load http://127.0.0.1:8080/ --duration 10s --connections 64
  A ramp, requests arriving as from many independent users:
    stillgate-lab load http://127.0.0.1:8080/ --rate 1k --rate-end 20k --poisson --duration 60s
  As a check in CI, 10,000 requests over TLS and HTTP/2:
    stillgate-lab load https://127.0.0.1:8443/ --http2 --cacert ca.pem --requests 10k --fail-if 'errors>0' --fail-if 'p99>20ms'
  An hour, with memory and descriptors of the server over time in the page:
    stillgate-lab load http://127.0.0.1:8080/ --rate 500 --duration 1h --interval 10s --watch $(pidof server) --json hour.json
    stillgate-lab report hour.json -o hour.html
  A recording from a browser, with a log for the HdrHistogram plotters:
    stillgate-lab load http://127.0.0.1:8080/ --rate 500 --mix recording.har --hdr-log run.hlog")]
pub(crate) struct LoadArguments {
    /// The URL to request, e.g. http://127.0.0.1:8080/path or https://example.com/
    #[arg(value_name = "URL")]
    url: String,
    /// Requests per second, e.g. 500 or 20k; by default a closed loop
    #[arg(long, value_name = "RATE", value_parser = command_line::rate, allow_hyphen_values = true)]
    rate: Option<f64>,
    /// The rate at the end, reached linearly
    #[arg(long, value_name = "RATE", value_parser = command_line::rate, requires = "rate")]
    rate_end: Option<f64>,
    /// Requests arrive as from many independent users instead of evenly
    #[arg(long, requires = "rate")]
    poisson: bool,
    /// The measured time; by default 10s, or unlimited with --requests
    #[arg(long, short, value_name = "TIME", value_parser = command_line::duration)]
    duration: Option<Duration>,
    /// End after this many measured requests
    #[arg(long, short = 'n', value_name = "N", value_parser = command_line::positive)]
    requests: Option<usize>,
    /// Connections, over all threads
    #[arg(long, short, value_name = "N", default_value = "50", value_parser = command_line::positive)]
    connections: usize,
    /// Speak HTTP/2: over TLS by ALPN, otherwise with prior knowledge
    #[arg(long)]
    http2: bool,
    /// Concurrent requests on each connection
    #[arg(long, value_name = "N", default_value = "1", requires = "http2", value_parser = command_line::positive)]
    streams: usize,
    /// Trust the certificate authorities in this file (PEM) instead of the system's
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    cacert: Option<PathBuf>,
    /// Accept any certificate
    #[arg(long, short = 'k')]
    insecure: bool,
    /// The server name for SNI and the certificate check, instead of the URL's host
    #[arg(long, value_name = "NAME")]
    sni: Option<String>,
    /// Generator threads; by default one for each of the --cpus, or half as many as there are CPUs
    #[arg(long, short, value_name = "N", value_parser = command_line::positive)]
    threads: Option<usize>,
    /// The CPUs of the threads, assigned in turn, e.g. 0,2-3; by default the system places them
    #[arg(long, value_name = "LIST", value_parser = command_line::cpus)]
    cpus: Option<Cpus>,
    /// Give the threads of an open loop priority over all other programs on their CPUs (SCHED_FIFO; needs
    /// CAP_SYS_NICE); not if the target shares those CPUs: the load would take its time away
    #[arg(long, requires = "rate", requires = "cpus")]
    realtime: bool,
    /// Source addresses, used in turn; one has ports for some 28,000 connections
    #[arg(long, value_name = "IP,...", value_delimiter = ',')]
    sources: Vec<IpAddr>,
    /// Load before the measured time
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = command_line::duration)]
    warm_up: Duration,
    /// A request without a complete answer after this time has failed
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = command_line::duration)]
    timeout: Duration,
    /// The requests: a YAML file with weights, or a recording (.har)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["method", "headers", "body"])]
    mix: Option<PathBuf>,
    /// The method
    #[arg(long, short = 'X', value_name = "METHOD", default_value = "GET")]
    method: String,
    /// A header field; may be given several times
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE", value_parser = command_line::header)]
    headers: Vec<Header>,
    /// The body, or @FILE with it
    #[arg(long, value_name = "TEXT")]
    body: Option<String>,
    /// Statuses that are not errors, e.g. 200,301-303,4xx; by default 2xx and 3xx, or as the mix defines
    #[arg(long, value_name = "LIST")]
    expect_status: Option<String>,
    /// Text that every body must contain
    #[arg(long, value_name = "TEXT")]
    expect_body_contains: Option<String>,
    /// Length of the intervals that are shown and logged
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = command_line::duration)]
    interval: Duration,
    /// A request that this generator starts later than this is late
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = command_line::duration)]
    late: Duration,
    /// The share of requests that may be late before the run is void
    #[arg(long, value_name = "SHARE", default_value = "0.1%", value_parser = command_line::percent)]
    late_share: f64,
    /// Exit with code 4 if this holds, e.g. 'errors>1%', 'p99>20ms', 'rate<500'; may be given several times, or as a
    /// list with commas. Latencies, rate and requests are those of good answers; without a condition on errors,
    /// 'errors>1%' is added
    #[arg(long, value_name = "CONDITION", value_delimiter = ',', value_parser = fail_if::condition)]
    fail_if: Vec<Condition>,
    /// Seed of everything random: the same seed makes the same requests at the same times
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Read memory, descriptors and CPU of this process and its descendants in each interval, for the result and its report
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    watch: Option<u32>,
    /// Write the result as JSON; - is standard output, and then the table is not written there
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the latencies of each interval in HdrHistogram's log format
    #[arg(long, value_name = "FILE")]
    hdr_log: Option<PathBuf>,
    /// Show nothing during the run
    #[arg(long, short)]
    quiet: bool,
}

pub(crate) fn run(arguments: &LoadArguments) -> Result<u8> {
    let load = plan::load(arguments)?;
    let mix_sha256 = arguments.mix.as_deref().and_then(file::sha256);
    // This thread counts the measurements of the others; like them, it must keep off the target's CPUs.
    cpus::pin(&load.cpus)?;
    // Checked before the run, so that its result cannot be lost for lack of a place.
    let json = arguments.json.as_deref().map(ResultWriter::open).transpose()?;
    let mut log = arguments.hdr_log.as_deref().map(Log::create).transpose()?;
    for note in load.mix.notes() {
        eprintln!("stillgate-lab: {note}");
    }
    let mut watch = arguments.watch.map(Watch::of).transpose()?;
    let (outcome, points) = run_with_progress(&load, arguments.quiet, log.as_mut(), watch.as_mut())?;
    if let Some(log) = log {
        log.finish()?;
    }
    let text = table(&outcome, &load);
    let mut result = LoadResult::of(&load, &outcome, points, mix_sha256)?;
    result.watched = watch.map(|watch| watch.samples).unwrap_or_default();
    result.conditions = fail_if::judge_run(&fail_if::with_error_condition(&arguments.fail_if)?, &result.run)?;
    let code = exit_code(&result);
    for judged in result.conditions.iter().filter(|judged| judged.holds) {
        eprintln!("stillgate-lab: --fail-if {}: measured {}", judged.condition, judged.found);
    }
    match json {
        Some(json) => {
            let on_stdout = json.path() == Path::new("-");
            json.finish(&ResultFile::new(own_arguments(), environment::gather(), Experiment::Load(Box::new(result))))?;
            if !on_stdout {
                show(text)?;
            } else if !arguments.quiet {
                eprint!("{text}");
            }
        }
        None => show(text)?,
    }
    Ok(code)
}

fn exit_code(result: &LoadResult) -> u8 {
    if result.void {
        return EXIT_VOID;
    }
    if result.conditions.iter().any(|judged| judged.holds) { EXIT_CONDITION } else { 0 }
}

/// Shows and logs the run while it continues.
fn run_with_progress(
    load: &Load,
    quiet: bool,
    mut log: Option<&mut Log>,
    mut watch: Option<&mut Watch>,
) -> Result<(RunSummary, Vec<Point>)> {
    let interrupt = error::stop_flag()?;
    let mut display = (!quiet).then(|| LoadDisplay::new(load));
    let mut points = Vec::new();
    let mut failed = None;
    let outcome = stillgate_load::run(load, &interrupt, &mut |interval| {
        // The rest after the last whole interval.
        let is_empty = interval.errors == 0 && interval.latencies.corrected.is_empty();
        if interval.length < plan::INTERVAL_MIN && is_empty {
            return;
        }
        points.push(Point::of(interval));
        if let Some(watch) = &mut watch {
            watch.sample(interval.start + interval.length);
        }
        if let Some(display) = &mut display {
            display.show(interval);
        }
        if let Some(Err(error)) = log.as_mut().map(|log| log.write(interval)) {
            failed = Some(error);
            interrupt.store(true, Ordering::Relaxed);
        }
    });
    drop(display);
    match (outcome, failed) {
        (_, Some(error)) => Err(error),
        (Err(error @ LoadError::Interrupted(_)), None) => Err(Error::new(error.to_string()).exit(EXIT_INTERRUPTED)),
        (Err(error), None) => Err(Error::new(error.to_string())),
        (Ok(outcome), None) => Ok((outcome, points)),
    }
}

/// The interval log, with its path for messages.
#[derive(Debug)]
struct Log {
    path: PathBuf,
    writer: IntervalLog<LineWriter<File>>,
}

impl Log {
    fn create(path: &Path) -> Result<Log> {
        let unwritable = |error| Error::new(format!("--hdr-log {}: {error}; name another file", path.display()));
        let is_new = !path.exists();
        let file = File::create(path).map_err(unwritable)?;
        let writer = IntervalLog::new(LineWriter::new(file)).map_err(|error| {
            if is_new {
                // It is empty; failing to remove it is not a further error.
                let _ = fs::remove_file(path);
            }
            unwritable(error)
        })?;
        Ok(Log { path: path.to_owned(), writer })
    }

    fn write(&mut self, interval: &Interval<'_>) -> Result {
        self.writer.write(interval).map_err(|error| cut_short(&self.path, &error))
    }

    fn finish(self) -> Result {
        self.writer.finish().map(drop).map_err(|error| cut_short(&self.path, &error))
    }
}

fn cut_short(path: &Path, error: &std::io::Error) -> Error {
    Error::new(format!("--hdr-log {}: the run was stopped because its log cannot be written: {error}", path.display()))
}
