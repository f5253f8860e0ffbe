//! Replays recorded requests through two configurations: which of them change route, or the plugins that they pass.
//!
//! ```text
//!  lines ──▶ recorded::Reader ──RequestHead──▶ old matcher ─┐
//!               │                          └─▶ new matcher ─┴─▶ Tally ──▶ Comparison ──▶ Report (of `check`)
//!               └── which fields the lines lack ──▶ recorded::Needs ─────────┘         └──▶ the answer to a dry run
//! ```
//!
//! A log is read line by line; memory does not grow with it. Nothing is sent anywhere.

mod recorded;
mod tally;

use crate::explain::explanation::counted;
use crate::explain::request_head::{Buffers, RequestHead};
use recorded::{Needs, RecordReader, RecordedRoute};
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, IsTerminal, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use stillgate_config::{AccessField, AccessFormat, Config};
use stillgate_route::{Matcher, Scratch};
pub use tally::Comparison;
use tally::{Example, MissingField, OtherPlugins, RefusedLine, ReplayOutcome, ReplaySide, RouteChange, Tally};

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
            RawLine::TooLong => self.tally.unreadable(number, format!("longer than {} bytes", LINE_BYTES_MAX)),
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

// Reads the requests of a log in order to run them instead of routing them.

/// Reads logs.
pub struct LogReader;

impl LogReader {
    /// Reads the first requests of a log with all recorded header fields.
    pub fn read(log: &Path, requests_max: usize) -> Result<Vec<RequestHead>, ReplayError> {
        let unreadable = |error| ReplayFailure::Unreadable(error).of(log);
        let mut lines = LogLines::new(File::open(log).map_err(unreadable)?);
        if lines.are_compressed().map_err(unreadable)? {
            return Err(ReplayFailure::Compressed.of(log));
        }
        let mut reader = RecordReader::new(recorded::Needs::default(), [].iter());
        let (mut heads, mut wrong) = (Vec::new(), None);
        while let Some((number, line)) = lines.next().map_err(unreadable)? {
            if number > LINES_WITHOUT_REQUEST_MAX && heads.is_empty() {
                break;
            }
            let RawLine::Text(text) = line else { continue };
            let mut head = RequestHead::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
            match reader.read(text, &mut head) {
                Ok(()) => {
                    add_fields(text, &mut head);
                    heads.push(head);
                }
                Err(reason) => wrong = wrong.or(Some((number, reason))),
            }
            if heads.len() == requests_max {
                break;
            }
        }
        match (heads.is_empty(), wrong) {
            (false, _) => Ok(heads),
            (true, Some((line, reason))) => Err(ReplayFailure::NoRequest(line, reason).of(log)),
            (true, None) => Err(ReplayFailure::Empty.of(log)),
        }
    }
}

/// Takes over `http_NAME`, which the reader does only for names that routes read.
fn add_fields(line: &[u8], head: &mut RequestHead) {
    let Ok(Value::Object(object)) = serde_json::from_slice::<Value>(line) else { return };
    let object: Map<String, Value> = object;
    let known = |head: &RequestHead, name: &str| head.headers.iter().any(|(of, _)| of.eq_ignore_ascii_case(name));
    for (key, value) in &object {
        let (Some(name), Value::String(value)) = (key.strip_prefix("http_"), value) else { continue };
        let name = name.replace('_', "-");
        if name != "host" && !known(head, &name) && !value.chars().any(char::is_control) {
            head.headers.push((name, value.clone()));
        }
    }
}

// Reads the lines of a log one by one in bounded memory, whatever the file contains.

/// The longest line that is parsed. Longer ones are skipped and reported.
const LINE_BYTES_MAX: usize = 1024 * 1024;

/// The number of bytes within which an overlong line must end. Input without any line end, such as `/dev/zero`, is not a log.
const LINE_END_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The number of lines among which there must be a request. Input without any, such as the output of `yes`, is not a log.
const LINES_WITHOUT_REQUEST_MAX: u64 = 1_000_000;

const BUFFER_BYTES: usize = 256 * 1024;

/// Reads lines.
struct LogLines<R> {
    file: BufReader<R>,
    line: Vec<u8>,
    number: u64,
    bytes: u64,
}

/// One line, without its end.
#[derive(Debug, PartialEq, Eq)]
enum RawLine<'a> {
    /// Nothing but blanks.
    Blank,
    /// More than [`LINE_BYTES_MAX`] bytes.
    TooLong,
    /// Anything else.
    Text(&'a [u8]),
}

impl<R: Read> LogLines<R> {
    fn new(file: R) -> LogLines<R> {
        LogLines { file: BufReader::with_capacity(BUFFER_BYTES, file), line: Vec::new(), number: 0, bytes: 0 }
    }

    /// Whether the input is gzip (RFC 1952) instead of text. Call it first.
    fn are_compressed(&mut self) -> io::Result<bool> {
        const MAGIC: &[u8] = &[0x1f, 0x8b];
        Ok(self.file.fill_buf()?.starts_with(MAGIC))
    }

    /// The next line with its number, from 1.
    fn next(&mut self) -> io::Result<Option<(u64, RawLine<'_>)>> {
        const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
        self.line.clear();
        let read = self.file.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut self.line)?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        self.bytes += read as u64;
        let is_whole = self.line.ends_with(b"\n");
        if read > LINE_BYTES_MAX && !is_whole {
            let skipped = self.file.by_ref().take(LINE_END_BYTES_MAX).skip_until(b'\n')? as u64;
            if skipped == LINE_END_BYTES_MAX {
                let why = format!("line {} has no end within 64 MiB, so this is not a log", self.number);
                return Err(io::Error::new(ErrorKind::InvalidData, why));
            }
            self.bytes += skipped;
            return Ok(Some((self.number, RawLine::TooLong)));
        }
        let text = match self.number {
            1 => self.line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&self.line),
            _ => &self.line,
        };
        let text = text.trim_ascii();
        Ok(Some((self.number, if text.is_empty() { RawLine::Blank } else { RawLine::Text(text) })))
    }

    /// The number of bytes read.
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

// The result of replaying a log, as text and as JSON.

/// The most changes that are listed for people, the largest first.
const CHANGES_SHOWN_MAX: usize = 50;

/// The result.
#[derive(Debug, Serialize)]
pub struct ReplayReport {
    /// The log.
    file: String,
    /// The current configuration.
    against: String,
    #[serde(flatten)]
    found: Comparison,
}

impl ReplayReport {
    fn new(log: &Path, old_file: &Path, found: Comparison) -> ReplayReport {
        ReplayReport { file: log.display().to_string(), against: old_file.display().to_string(), found }
    }

    /// Whether every request takes the same route as before.
    pub fn changes_nothing(&self) -> bool {
        self.found.same == self.found.requests
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let (file, against) = (&self.file, &self.against);
        let requests = many(self.found.requests, "request");
        match self.changes_nothing() {
            true => out.push_str(&format!("{file}: {requests}, each takes the route it takes with {against}\n")),
            false => out.push_str(&format!(
                "{file}: of {requests}, {} other than with {against}: {}\n",
                self.found.requests - self.found.same,
                self.kinds()
            )),
        }
        for change in self.found.changes.iter().take(CHANGES_SHOWN_MAX) {
            change.write(&mut out);
        }
        let more = self.found.changes.iter().skip(CHANGES_SHOWN_MAX);
        let more_requests = self.found.omitted.requests + more.clone().map(|change| change.requests).sum::<u64>();
        if more_requests > 0 {
            let changes = many((self.found.omitted.changes + more.len()) as u64, "further change");
            let at_least = if self.found.omitted.ungrouped > 0 { "more than " } else { "" };
            out.push_str(&format!("  and {at_least}{changes} of {}\n", many(more_requests, "request")));
        }
        self.write_plugin_changes(&mut out);
        if self.found.unreadable.lines > 0 {
            out.push_str(&format!("{file}: {} cannot be read\n", many(self.found.unreadable.lines, "line")));
            for RefusedLine { line, reason } in &self.found.unreadable.first {
                out.push_str(&format!("  line {line}: {reason}\n"));
            }
        }
        if self.found.recorded_otherwise > 0 {
            out.push_str(&format!(
                "{file}: warning: it names another route than {against} for {}; was it written with another \
                 configuration?\n",
                many(self.found.recorded_otherwise, "request")
            ));
        }
        for MissingField { field, name, routes, lines } in &self.found.missing_fields {
            let (reads, lack) =
                (if *routes == 1 { "reads" } else { "read" }, if *lines == 1 { "lacks" } else { "lack" });
            out.push_str(&format!(
                "{file}: warning: {} {reads} {field}, but {} {lack} {name}, so the answer may be wrong; log it too\n",
                many(*routes as u64, "route"),
                many(*lines, "line"),
            ));
        }
        out
    }

    fn write_plugin_changes(&self, out: &mut String) {
        let Comparison { other_plugins, plugin_changes, .. } = &self.found;
        if *other_plugins == 0 {
            return;
        }
        let requests = many(*other_plugins, "request");
        let (go, keep) = if *other_plugins == 1 { ("goes", "keeps its") } else { ("go", "keep their") };
        out.push_str(&format!("{}: {requests} {keep} route and {go} through other plugins\n", self.file));
        for OtherPlugins { route, difference, requests, .. } in plugin_changes.iter().take(CHANGES_SHOWN_MAX) {
            let route = route.as_ref().map_or("no route (404)".to_owned(), |route| format!("{route:?}"));
            out.push_str(&format!("  {route}: {}: {}\n", difference.text(), many(*requests, "request")));
        }
        if plugin_changes.len() > CHANGES_SHOWN_MAX {
            let more = plugin_changes.len() - CHANGES_SHOWN_MAX;
            out.push_str(&format!("  and {} more\n", many(more as u64, "route")));
        }
    }

    /// The changes by kind.
    fn kinds(&self) -> String {
        let kinds = [
            (self.found.changed, "changed"),
            (self.found.without_route, "now without route"),
            (self.found.newly_routed, "newly routed"),
        ];
        let told: Vec<String> =
            kinds.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
        told.join(", ")
    }
}

impl RouteChange {
    fn write(&self, out: &mut String) {
        out.push_str(&format!("  {} -> {}: {}\n", self.old.text(), self.new.text(), many(self.requests, "request")));
        for Example { line, method, scheme, host, uri } in &self.examples {
            let url = match host.is_empty() {
                true => uri.clone(),
                false => format!("{scheme}://{host}{uri}"),
            };
            // Text from clients must not move the terminal's cursor.
            out.push_str(&format!("    line {line}: {} {}\n", method.escape_debug(), url.escape_debug()));
        }
    }
}

impl ReplaySide {
    fn text(&self) -> String {
        match (&self.route, self.line, self.status) {
            (Some(route), Some(line), _) => format!("{route:?} (line {line})"),
            (_, _, Some(400)) => "refused (400)".to_owned(),
            _ => "no route (404)".to_owned(),
        }
    }
}

fn many(count: u64, what: &str) -> String {
    counted(usize::try_from(count).unwrap_or(usize::MAX), what).unwrap_or_else(|| format!("no {what}s"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// `uri` of a log is decoded text: the request is one that decodes to it.
    #[test]
    fn the_uri_of_a_log_becomes_a_target() {
        let mut reader = RecordReader::new(recorded::Needs::default(), std::iter::empty());
        let mut check = |line: Value, expected: &str| {
            let mut head = RequestHead::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
            reader.read(line.to_string().as_bytes(), &mut head).unwrap();
            assert_eq!(head.target, expected, "{line}");
        };
        check(json!({"uri": "/a b%20?c"}), "/a%20b%2520%3Fc");
        check(json!({"uri": "/\u{fc}", "args": "q=%20"}), "/%C3%BC?q=%20");
        check(json!({"uri": "/x", "request_uri": "/%41"}), "/%41");
    }

    #[test]
    fn a_line_without_an_end_is_an_error() {
        let mut lines = LogLines::new(b"a\n".chain(io::repeat(0)));
        assert_eq!(lines.next().unwrap(), Some((1, RawLine::Text(b"a"))));
        assert_eq!(lines.next().unwrap_err().to_string(), "line 2 has no end within 64 MiB, so this is not a log");
    }

    #[test]
    fn lines_of_any_file() {
        let long = vec![b'x'; LINE_BYTES_MAX];
        let longer = [&long[..], b"xx"].concat();
        let file = [b"\xef\xbb\xbfa\r\n\r\n\nb\n", &long[..], b"\n", &longer, b"\nc\n", &longer].concat();
        let mut lines = LogLines::new(&file[..]);
        let mut check = |expected: RawLine<'_>| {
            let (number, line) = lines.next().unwrap().unwrap();
            assert!(line == expected, "line {number}");
        };
        check(RawLine::Text(b"a"));
        check(RawLine::Blank);
        check(RawLine::Blank);
        check(RawLine::Text(b"b"));
        check(RawLine::Text(&long));
        check(RawLine::TooLong);
        check(RawLine::Text(b"c"));
        check(RawLine::TooLong);
        assert_eq!(lines.next().unwrap(), None);
        assert_eq!(lines.bytes(), file.len() as u64);
        assert_eq!(LogLines::new(&b""[..]).next().unwrap(), None);
    }
}
