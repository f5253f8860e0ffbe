//! Replays recorded requests through two configurations: which of them change route, or the plugins that they pass.
//!
//! ```text
//!  lines ──▶ recorded::Reader ──RequestHead──▶ old matcher ─┐
//!               │                          └─▶ new matcher ─┴─▶ Tally ──▶ Comparison ──▶ Report (of `check`)
//!               └── which fields the lines lack ──▶ needs::Needs ─────────┘         └──▶ the answer to a dry run
//! ```
//!
//! A log is read line by line; memory does not grow with it. Nothing is sent anywhere.

mod comparison;
mod lines;
mod log_reader;
mod needs;
mod plugins;
mod recorded;
mod report;
mod tally;

pub use comparison::Comparison;
pub use log_reader::LogReader;
pub use report::ReplayReport;

use crate::explain::request_head::{Buffers, RequestHead};
use lines::{LINES_WITHOUT_REQUEST_MAX, LogLines, RawLine};
use needs::Needs;
use recorded::{RecordReader, RecordedRoute};
use std::fmt;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use stillgate_config::{AccessField, AccessFormat, Config};
use stillgate_route::{Matcher, Scratch};
use tally::{ReplayOutcome, Tally};

/// The name of the log that means standard input.
const STANDARD_INPUT: &str = "-";
/// The interval of progress reports.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// The clock is read only every so many lines.
const LINES_PER_LOOK: u64 = 4096;

/// Why a log cannot be replayed.
#[derive(Debug)]
pub struct ReplayError {
    log: PathBuf,
    reason: ReplayFailure,
}

#[derive(Debug)]
enum ReplayFailure {
    Unreadable(io::Error),
    Compressed,
    /// The log has no line, so nothing would be compared.
    Empty,
    /// The log has lines, but none contains a request. The number of the first line, and the reason.
    NoRequest(u64, String),
}

impl ReplayFailure {
    fn of(self, log: &Path) -> ReplayError {
        ReplayError { log: log.to_owned(), reason: self }
    }
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let log = self.log.display();
        match &self.reason {
            ReplayFailure::Unreadable(error) => write!(f, "cannot read {log}: {error}"),
            ReplayFailure::Compressed => {
                write!(f, "{log} is compressed with gzip; uncompress it: zcat {log} | stillgate check … --requests -")
            }
            ReplayFailure::Empty => {
                write!(f, "{log}: it is empty, so nothing was compared; was it rotated just now?")
            }
            ReplayFailure::NoRequest(line, reason) => write!(
                f,
                "{log}: no line holds a request, e.g. line {line}: {reason}; \
                 it takes one JSON object a line, as gateway.access_log writes them with `format: json`"
            ),
        }
    }
}

impl std::error::Error for ReplayError {}

/// A configuration, and its compiled routes.
#[derive(Clone, Copy)]
pub struct RoutedConfig<'a> {
    /// The whole configuration.
    pub config: &'a Config,
    /// Its routes, compiled.
    pub matcher: &'a Matcher,
}

/// Replays a log through the current configuration, which is in the file `old.0`, and the next one.
pub fn run(log: &Path, old: (&Path, RoutedConfig<'_>), new: RoutedConfig<'_>) -> Result<ReplayReport, ReplayError> {
    let unreadable = |error| ReplayFailure::Unreadable(error).of(log);
    let (file, bytes): (Box<dyn Read>, _) = if log == Path::new(STANDARD_INPUT) {
        (Box::new(io::stdin().lock()), None)
    } else {
        let file = File::open(log).map_err(unreadable)?;
        let bytes = file.metadata().ok().filter(|metadata| metadata.is_file()).map(|metadata| metadata.len());
        (Box::new(file), bytes)
    };
    let mut progress = ProgressLine::new(bytes);
    let (old_file, old) = old;
    let mut replay = Replay::new(old, new);
    let mut lines = LogLines::new(file);
    if lines.are_compressed().map_err(unreadable)? {
        return Err(ReplayFailure::Compressed.of(log));
    }
    while let Some((number, line)) = lines.next().map_err(unreadable)? {
        replay.take(number, &line);
        if number.is_multiple_of(LINES_PER_LOOK) {
            progress.look(number, lines.bytes());
        }
        if number >= LINES_WITHOUT_REQUEST_MAX && replay.tally.requests() == 0 {
            break;
        }
    }
    progress.end();
    if let Some((line, reason)) = replay.tally.nothing_but_unreadable() {
        return Err(ReplayFailure::NoRequest(line, reason).of(log));
    }
    if replay.tally.requests() == 0 {
        return Err(ReplayFailure::Empty.of(log));
    }
    Ok(ReplayReport::new(log, old_file, replay.into_comparison()))
}

/// Replays lines in memory.
pub fn run_lines<'a>(
    lines: impl Iterator<Item = &'a [u8]>,
    old: RoutedConfig<'_>,
    new: RoutedConfig<'_>,
) -> Comparison {
    let mut replay = Replay::new(old, new);
    for (number, line) in (1..).zip(lines) {
        replay.take(number, &RawLine::Text(line));
    }
    replay.into_comparison()
}

/// Two configurations, and the results so far.
struct Replay<'a> {
    old: RoutedConfig<'a>,
    new: RoutedConfig<'a>,
    reader: RecordReader,
    router: Router,
    tally: Tally<'a>,
    head: RequestHead,
}

impl<'a> Replay<'a> {
    fn new(old: RoutedConfig<'a>, new: RoutedConfig<'a>) -> Replay<'a> {
        let needs = Needs::of(&[old.config, new.config]);
        // The fields of the old configuration come first, since the gateway that serves it wrote the log.
        let fields = [old.config, new.config].into_iter().flat_map(fields_of);
        Replay {
            old,
            new,
            reader: RecordReader::new(needs, fields),
            router: Router::default(),
            tally: Tally::new(old.config, new.config),
            head: RequestHead::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        }
    }

    fn take(&mut self, number: u64, line: &RawLine<'_>) {
        match line {
            RawLine::Blank => {}
            RawLine::TooLong => self.tally.unreadable(number, format!("longer than {} bytes", lines::LINE_BYTES_MAX)),
            RawLine::Text(text) => match self.reader.read(text, &mut self.head) {
                Ok(()) => {
                    let head = &self.head;
                    let mut outcome = |of: RoutedConfig<'_>| self.router.outcome(of.matcher, head);
                    let outcomes = (outcome(self.old), outcome(self.new));
                    self.tally.count(outcomes, number, head);
                    let is_other = is_other(&self.reader.taken, outcomes.0, self.old.config);
                    self.tally.recorded_otherwise += u64::from(is_other);
                }
                Err(reason) => self.tally.unreadable(number, reason),
            },
        }
    }

    fn into_comparison(self) -> Comparison {
        Comparison::new(self.old.config, self.new.config, self.tally, self.reader.into_missing())
    }
}

/// Whether the log records another route for a request than `outcome`.
fn is_other(taken: &RecordedRoute, outcome: ReplayOutcome, config: &Config) -> bool {
    match (taken, outcome) {
        (RecordedRoute::NotRecorded, _) => false,
        (RecordedRoute::By(id), ReplayOutcome::Route(route)) => config.routes[route].spec.id != *id,
        (RecordedRoute::ByNone, ReplayOutcome::Route(_)) | (RecordedRoute::By(_), _) => true,
        (RecordedRoute::ByNone, _) => false,
    }
}

/// The fields of the access log's lines.
fn fields_of(config: &Config) -> &[AccessField] {
    match config.gateway.access_log.as_ref().map(|log| &log.format) {
        Some(AccessFormat::Json(fields)) => fields,
        _ => &[],
    }
}

/// Finds routes with reused buffers.
#[derive(Default)]
struct Router {
    buffers: Buffers,
    scratch: Scratch,
}

impl Router {
    fn outcome(&mut self, matcher: &Matcher, head: &RequestHead) -> ReplayOutcome {
        if head.is_unrouted() {
            return ReplayOutcome::NoRoute;
        }
        let scratch = &mut self.scratch;
        let found = head.with_request(&mut self.buffers, |request| matcher.find(request, scratch));
        match found.and_then(|found| found) {
            Ok(Some(found)) => ReplayOutcome::Route(found.route),
            Ok(None) => ReplayOutcome::NoRoute,
            Err(_) => ReplayOutcome::Refused,
        }
    }
}

/// A progress line on the terminal, if standard error is one.
struct ProgressLine {
    bytes: Option<u64>,
    is_terminal: bool,
    told: Instant,
    has_told: bool,
}

impl ProgressLine {
    fn new(bytes: Option<u64>) -> ProgressLine {
        ProgressLine { bytes, is_terminal: io::stderr().is_terminal(), told: Instant::now(), has_told: false }
    }

    fn look(&mut self, line: u64, read: u64) {
        if !self.is_terminal || self.told.elapsed() < TELL_EVERY {
            return;
        }
        let share = match self.bytes {
            Some(bytes) if bytes > 0 => format!(", {}%", (read * 100 / bytes).min(100)),
            _ => String::new(),
        };
        self.write(&format!("\r{line} lines{share} "));
        (self.told, self.has_told) = (Instant::now(), true);
    }

    fn end(&mut self) {
        if self.has_told {
            self.write("\r\x1b[K");
        }
    }

    fn write(&self, text: &str) {
        let mut out = io::stderr().lock();
        // Progress is informational, so errors are ignored.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}
