//! Recorded requests through two configurations: which of them change route, or the plugins that they go through.
//!
//! ```text
//!  lines ──▶ recorded::Reader ──RequestHead──▶ old matcher ─┐
//!               │                          └─▶ new matcher ─┴─▶ Tally ──▶ Comparison ──▶ Report (of `check`)
//!               └── which fields the lines lack ──▶ needs::Needs ─────────┘         └──▶ the answer to a dry run
//! ```
//!
//! A log is read line by line; what is kept of it does not grow with it. Nothing is sent anywhere.

mod comparison;
mod lines;
mod needs;
mod plugins;
mod recorded;
mod recording;
mod report;
mod tally;

pub(crate) use comparison::Comparison;
pub(crate) use recording::Recording;
pub(crate) use report::Report;

use crate::explaining::request_head::{Buffers, RequestHead};
use lines::{Line, Lines};
use needs::Needs;
use recorded::{Reader, Taken};
use std::fmt;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use stillgate_config::{AccessField, AccessFormat, Config};
use stillgate_route::{Matcher, Scratch};
use tally::{Outcome, Tally};

/// The log's name where it is read from there.
const STANDARD_INPUT: &str = "-";
/// How often progress is told.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// The clock is looked at only every so many lines.
const LINES_PER_LOOK: u64 = 4096;

/// A log that cannot be replayed.
#[derive(Debug)]
pub(crate) enum ReplayError {
    /// It cannot be read.
    Unreadable { log: PathBuf, error: io::Error },
    /// It is compressed.
    Compressed { log: PathBuf },
    /// It has no line, so that nothing would be compared.
    Empty { log: PathBuf },
    /// It has lines, but none holds a request.
    NoRequest { log: PathBuf, line: u64, reason: String },
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplayError::Unreadable { log, error } => write!(f, "cannot read {}: {error}", log.display()),
            ReplayError::Compressed { log } => {
                let log = log.display();
                write!(f, "{log} is compressed with gzip; uncompress it: zcat {log} | stillgate check … --requests -")
            }
            ReplayError::Empty { log } => {
                write!(f, "{}: it is empty, so nothing was compared; was it rotated just now?", log.display())
            }
            ReplayError::NoRequest { log, line, reason } => write!(
                f,
                "{}: no line holds a request, e.g. line {line}: {reason}; \
                 it takes one JSON object a line, as gateway.access_log writes them with `format: json`",
                log.display()
            ),
        }
    }
}

impl std::error::Error for ReplayError {}

/// A configuration, and its compiled routes.
#[derive(Clone, Copy)]
pub(crate) struct Routed<'a> {
    pub(crate) config: &'a Config,
    pub(crate) matcher: &'a Matcher,
}

/// Replays a log through what is served now, of the file `old.0`, and what is to be.
pub(crate) fn run(log: &Path, old: (&Path, Routed<'_>), new: Routed<'_>) -> Result<Report, ReplayError> {
    let unreadable = |error| ReplayError::Unreadable { log: log.to_owned(), error };
    let (file, bytes): (Box<dyn Read>, _) = if log == Path::new(STANDARD_INPUT) {
        (Box::new(io::stdin().lock()), None)
    } else {
        let file = File::open(log).map_err(unreadable)?;
        let bytes = file.metadata().ok().filter(|metadata| metadata.is_file()).map(|metadata| metadata.len());
        (Box::new(file), bytes)
    };
    let mut progress = Progress::new(bytes);
    let (old_file, old) = old;
    let mut replay = Replay::new(old, new);
    let mut lines = Lines::new(file);
    if lines.are_compressed().map_err(unreadable)? {
        return Err(ReplayError::Compressed { log: log.to_owned() });
    }
    while let Some((number, line)) = lines.next().map_err(unreadable)? {
        replay.take(number, &line);
        if number.is_multiple_of(LINES_PER_LOOK) {
            progress.look(number, lines.bytes());
        }
    }
    progress.end();
    if let Some((line, reason)) = replay.tally.nothing_but_unreadable() {
        return Err(ReplayError::NoRequest { log: log.to_owned(), line, reason });
    }
    if replay.tally.requests() == 0 {
        return Err(ReplayError::Empty { log: log.to_owned() });
    }
    Ok(Report::new(log, old_file, replay.into_comparison()))
}

/// Replays lines that are in memory.
pub(crate) fn run_lines<'a>(lines: impl Iterator<Item = &'a [u8]>, old: Routed<'_>, new: Routed<'_>) -> Comparison {
    let mut replay = Replay::new(old, new);
    for (number, line) in (1..).zip(lines) {
        replay.take(number, &Line::Text(line));
    }
    replay.into_comparison()
}

/// Two configurations, and what is known so far.
struct Replay<'a> {
    old: Routed<'a>,
    new: Routed<'a>,
    reader: Reader,
    router: Router,
    tally: Tally<'a>,
    head: RequestHead,
}

impl<'a> Replay<'a> {
    fn new(old: Routed<'a>, new: Routed<'a>) -> Replay<'a> {
        let needs = Needs::of(&[old.config, new.config]);
        // The old configuration's, since whoever serves it wrote the log.
        let fields = [old.config, new.config].into_iter().flat_map(fields_of);
        Replay {
            old,
            new,
            reader: Reader::new(needs, fields),
            router: Router::default(),
            tally: Tally::new(old.config, new.config),
            head: RequestHead::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        }
    }

    fn take(&mut self, number: u64, line: &Line<'_>) {
        match line {
            Line::Blank => {}
            Line::TooLong => self.tally.unreadable(number, format!("longer than {} bytes", lines::LINE_BYTES_MAX)),
            Line::Text(text) => match self.reader.read(text, &mut self.head) {
                Ok(()) => {
                    let head = &self.head;
                    let mut outcome = |of: Routed<'_>| self.router.outcome(of.matcher, head);
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

/// Whether the log says something else of a request than that it comes to `outcome`.
fn is_other(taken: &Taken, outcome: Outcome, config: &Config) -> bool {
    match (taken, outcome) {
        (Taken::NotRecorded, _) => false,
        (Taken::By(id), Outcome::Route(route)) => config.routes[route].spec.id != *id,
        (Taken::ByNone, Outcome::Route(_)) | (Taken::By(_), _) => true,
        (Taken::ByNone, _) => false,
    }
}

/// The fields of the access log's lines.
fn fields_of(config: &Config) -> &[AccessField] {
    match config.gateway.access_log.as_ref().map(|log| &log.format) {
        Some(AccessFormat::Json(fields)) => fields,
        _ => &[],
    }
}

/// Finds routes, with memory that is reused.
#[derive(Default)]
struct Router {
    buffers: Buffers,
    scratch: Scratch,
}

impl Router {
    fn outcome(&mut self, matcher: &Matcher, head: &RequestHead) -> Outcome {
        if head.is_unrouted() {
            return Outcome::NoRoute;
        }
        let scratch = &mut self.scratch;
        let found = head.with_request(&mut self.buffers, |request| matcher.find(request, scratch));
        match found.and_then(|found| found) {
            Ok(Some(found)) => Outcome::Route(found.route),
            Ok(None) => Outcome::NoRoute,
            Err(_) => Outcome::Refused,
        }
    }
}

/// A line on the terminal, where standard error is one.
struct Progress {
    bytes: Option<u64>,
    is_terminal: bool,
    told: Instant,
    has_told: bool,
}

impl Progress {
    fn new(bytes: Option<u64>) -> Progress {
        Progress { bytes, is_terminal: io::stderr().is_terminal(), told: Instant::now(), has_told: false }
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
        // It is for whoever looks; should nobody, nothing is lost.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}
