//! A run for people and programs to read: as text, as a log of histograms.
//!
//! Pure except for the log, which writes to its sink. [`crate::outcome`] explains the figures.
//! Numbers have the unit that fits them, as wrk prints them.

use crate::outcome::{ErrorKind, Interval, RunSummary};
use crate::plan::{Arrivals, Load, Pace, Protocol, Schedule};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializeError, V2DeflateSerializer};
use std::fmt;
use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

// Latencies over time, as a log of HdrHistograms that the public tools read (HistogramLogProcessor, analyzers, plotters).
//
// Format version 1.3 with compressed V2 histograms. Values are nanoseconds, the maximum of a line milliseconds: the
// ratio of 1,000,000 that these tools assume. Each interval has two lines: the corrected one without a tag, which
// tools show by default (Java's `HistogramLogProcessor` fails if every line has a tag), and one tagged `uncorrected`.
// The lines are written here, because the writer of the `hdrhistogram` crate borrows its sink for its whole life and
// writes no legend.

/// Writes a log, one interval at a time.
pub struct IntervalLog<W: Write> {
    out: W,
    serializer: V2DeflateSerializer,
    serialized: Vec<u8>,
    encoded: String,
    /// Whether the first interval has been written, and before it the time when it began.
    has_begun: bool,
}

const NS_PER_MS: f64 = 1e6;

impl<W: Write> IntervalLog<W> {
    /// Writes the header lines.
    pub fn new(mut out: W) -> io::Result<IntervalLog<W>> {
        writeln!(out, "#[Histogram log format version 1.3]")?;
        writeln!(
            out,
            "#[Latencies in nanoseconds: without a tag from the intended start, tag uncorrected from the send]"
        )?;
        let serializer = V2DeflateSerializer::new();
        Ok(IntervalLog { out, serializer, serialized: Vec::new(), encoded: String::new(), has_begun: false })
    }

    /// Writes an interval that just ended, and flushes, so that measurements survive if the run is killed.
    pub fn write(&mut self, interval: &Interval<'_>) -> io::Result<()> {
        self.write_ended(interval, SystemTime::now())
    }

    /// Gives back the underlying writer.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    fn write_ended(&mut self, interval: &Interval<'_>, now: SystemTime) -> io::Result<()> {
        let Interval { start, length, latencies, .. } = interval;
        if !self.has_begun {
            let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
            let begun = since.saturating_sub(*start).saturating_sub(*length).as_secs_f64();
            writeln!(self.out, "#[BaseTime: {begun:.3} (seconds since epoch)]")?;
            writeln!(self.out, "#[StartTime: {begun:.3} (seconds since epoch)]")?;
            writeln!(self.out, "{LEGEND}")?;
            self.has_begun = true;
        }
        self.line("", *start, *length, &latencies.corrected)?;
        self.line("Tag=uncorrected,", *start, *length, &latencies.uncorrected)?;
        self.out.flush()
    }

    fn line(&mut self, tag: &str, start: Duration, length: Duration, histogram: &Histogram<u64>) -> io::Result<()> {
        self.serialized.clear();
        self.serializer.serialize(histogram, &mut self.serialized).map_err(|error| match error {
            V2DeflateSerializeError::IoError(error) => error,
            V2DeflateSerializeError::InternalSerializationError(error) => io::Error::other(error),
        })?;
        self.encoded.clear();
        STANDARD.encode_string(&self.serialized, &mut self.encoded);
        let (start, length) = (start.as_secs_f64(), length.as_secs_f64());
        let max = histogram.max() as f64 / NS_PER_MS;
        writeln!(self.out, "{tag}{start:.3},{length:.3},{max:.3},{}", self.encoded)
    }
}

const LEGEND: &str = r#""StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram""#;

impl<W: Write + fmt::Debug> fmt::Debug for IntervalLog<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IntervalLog").field("out", &self.out).finish_non_exhaustive()
    }
}

// A run as text, in the form that users of wrk and wrk2 know.
//
// In a void run every line with figures is marked, so that neither a reader nor a script takes them for a result.

/// Percentiles of a distribution, as wrk2 prints them.
const DISTRIBUTION: [f64; 8] = [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 99.999, 100.0];

/// Columns of the phases of a request.
const PHASES: [(&str, f64); 4] = [("50%", 50.0), ("99%", 99.0), ("99.9%", 99.9), ("max", 100.0)];

const VOID_MARK: &str = "void | ";

/// The whole text; ends with a newline.
pub fn table(outcome: &RunSummary, load: &Load) -> String {
    let mut text = heading(load);
    text.push_str(&interruption(outcome, load));
    text.push_str(&void_banner(outcome));
    text.push_str(&notes(outcome));
    let figures = figures(load, outcome);
    if outcome.void.is_empty() {
        text.push_str(&figures);
    } else {
        figures.lines().for_each(|line| text.push_str(&format!("{}\n", format!("{VOID_MARK}{line}").trim_end())));
    }
    text
}

fn heading(load: &Load) -> String {
    let length = match load.requests {
        Some(requests) => counted(requests, "request"),
        None => format!("{:?} test", load.duration),
    };
    let mut text = format!("Running {length} @ {}\n", shortened(&load.target.url));
    let threads = counted(load.threads as u64, "thread");
    let connections = counted(load.connections as u64, "connection");
    let streams = match load.protocol {
        Protocol::Http1 => String::new(),
        Protocol::Http2 { streams } => format!(" of HTTP/2 with {} each", counted(streams as u64, "stream")),
    };
    text.push_str(&format!("  {threads} and {connections}{streams}, {}\n", pace(&load.pace)));
    if let [_, _, ..] = load.mix.entries() {
        text.push_str(&format!("  a mix of {} requests\n", load.mix.entries().len()));
    }
    text
}

fn pace(pace: &Pace) -> String {
    match pace {
        Pace::Closed => "closed loop".to_owned(),
        Pace::Open(Schedule { rate, rate_end, arrivals }) => {
            let rate = match rate == rate_end {
                true => format!("{rate} requests/s"),
                false => format!("{rate} to {rate_end} requests/s"),
            };
            match arrivals {
                Arrivals::Uniform => format!("open loop of {rate}"),
                Arrivals::Poisson => format!("open loop of {rate}, Poisson arrivals"),
            }
        }
    }
}

fn void_banner(outcome: &RunSummary) -> String {
    if outcome.void.is_empty() {
        return String::new();
    }
    let mut text = "\n*** VOID: this run says nothing about the target ***\n".to_owned();
    outcome.void.iter().for_each(|void| text.push_str(&format!("  - {void}\n")));
    text.push('\n');
    text
}

fn interruption(outcome: &RunSummary, load: &Load) -> String {
    let elapsed_s = outcome.elapsed.as_secs_f64();
    match outcome.interrupted {
        false => String::new(),
        true if outcome.elapsed < load.duration => {
            let of = if load.requests.is_some() { String::new() } else { format!(" of {:?}", load.duration) };
            format!("  interrupted after {elapsed_s:.2}s{of}: the figures are of that time\n")
        }
        true => "  interrupted while waiting for the last answers\n".to_owned(),
    }
}

fn notes(outcome: &RunSummary) -> String {
    if outcome.notes.is_empty() {
        return String::new();
    }
    let mut text = "\n".to_owned();
    outcome.notes.iter().for_each(|note| text.push_str(&format!("  NOTE: {note}\n")));
    text.push('\n');
    text
}

fn figures(load: &Load, outcome: &RunSummary) -> String {
    let mut text = String::new();
    let latencies = &outcome.latencies;
    if load.pace == Pace::Closed {
        // In a closed loop both are equal.
        text.push_str(&distribution("Latency", &latencies.uncorrected));
    } else {
        text.push_str(&distribution("Corrected Latency (from the intended start)", &latencies.corrected));
        text.push('\n');
        text.push_str(&distribution("Uncorrected Latency (from the send)", &latencies.uncorrected));
    }
    text.push('\n');
    text.push_str(&phases(outcome));
    text.push('\n');
    text.push_str(&counts(outcome));
    text.push_str(&errors(outcome));
    text.push_str(&format!("Requests/sec: {:>10.2}", outcome.rate_achieved));
    let elapsed_s = outcome.elapsed.as_secs_f64();
    if let Some(intended) = outcome.rate_intended {
        text.push_str(&format!(" of {intended:.2} intended"));
        // In a short run, whole requests give a slightly different rate than the intended one.
        let due = outcome.self_watch.lateness.len();
        if (due as f64 - intended * elapsed_s).abs() > 0.01 * due as f64 {
            text.push_str(&format!(" ({} in this time)", counted(due, "start")));
        }
    }
    let per_second = if elapsed_s > 0.0 { (outcome.bytes_received as f64 / elapsed_s) as u64 } else { 0 };
    text.push_str(&format!("\nTransfer/sec: {:>10}\n", bytes(per_second)));
    text.push_str(&generator(load, outcome));
    text
}

/// The results of the requests, each in one line.
fn counts(outcome: &RunSummary) -> String {
    let (elapsed_s, read) = (outcome.elapsed.as_secs_f64(), bytes(outcome.bytes_received));
    let mut text = format!("  {} in {elapsed_s:.2}s, {read} read\n", counted(outcome.answered_in_time, "request"));
    let refused = outcome.answered_in_time.saturating_sub(outcome.good_in_time);
    if refused > 0 {
        text.push_str(&format!("  {} of them good, {refused} refused by a check", outcome.good_in_time));
        if !outcome.refused.is_empty() {
            let (median, p99) = (latency_at(&outcome.refused, 50.0), latency_at(&outcome.refused, 99.0));
            text.push_str(&format!(" (50% within {median}, 99% within {p99})"));
        }
        text.push('\n');
    }
    let after = outcome.requests.saturating_sub(outcome.answered_in_time);
    if after > 0 {
        let drain = u64::try_from(outcome.drain.as_nanos()).unwrap_or(u64::MAX);
        text.push_str(&format!("  {after} more answered after that, up to {} later\n", latency(drain)));
    }
    let missed = outcome.self_watch.missed_starts;
    if missed > 0 {
        text.push_str(&format!("  {missed} never started, because no connection became free: {AT_LEAST}\n"));
    }
    if outcome.cut_off > 0 {
        text.push_str(&format!("  {} still under way when the run ended: {AT_LEAST}\n", outcome.cut_off));
    }
    text
}

/// For requests without an answer.
const AT_LEAST: &str = "corrected latency has the time they waited, the least it can be";

fn distribution(title: &str, histogram: &Histogram<u64>) -> String {
    let mut text = format!("  Latency Distribution (HdrHistogram - {title})\n");
    if histogram.is_empty() {
        text.push_str("  nothing was measured\n");
        return text;
    }
    for percentile in DISTRIBUTION {
        text.push_str(&format!("{percentile:>7.3}% {:>9}\n", latency_at(histogram, percentile)));
    }
    text
}

fn latency_at(histogram: &Histogram<u64>, percentile: f64) -> String {
    latency(histogram.value_at_percentile(percentile))
}

fn phases(outcome: &RunSummary) -> String {
    let mut text = "  Phase     ".to_owned();
    PHASES.iter().for_each(|(name, _)| text.push_str(&format!("{name:>10}")));
    text.push('\n');
    let rows = [("connect", &outcome.connect), ("send", &outcome.send), ("first byte", &outcome.first_byte)];
    for (name, histogram) in rows {
        text.push_str(&format!("  {name:<10}"));
        for (_, percentile) in PHASES {
            let cell = if histogram.is_empty() { "-".to_owned() } else { latency_at(histogram, percentile) };
            text.push_str(&format!("{cell:>10}"));
        }
        text.push('\n');
    }
    text
}

fn errors(outcome: &RunSummary) -> String {
    let errors = &outcome.errors;
    if errors.total() == 0 {
        return String::new();
    }
    let kinds = ErrorKind::ALL.iter().zip(errors.counts).filter(|(_, count)| *count > 0);
    let kinds: Vec<String> = kinds.map(|(kind, count)| format!("{} {count}", kind.name())).collect();
    let mut text = format!("  {}: {}\n", counted(errors.total(), "error"), kinds.join(", "));
    for example in &errors.examples {
        // A server's text may contain anything.
        let example: String = example.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        text.push_str(&format!("    {example}\n"));
    }
    text
}

fn generator(load: &Load, outcome: &RunSummary) -> String {
    let watch = &outcome.self_watch;
    let mut text = "Generator:".to_owned();
    if load.pace != Pace::Closed && !watch.lateness.is_empty() {
        let (tail, max) = (latency_at(&watch.lateness, 99.9), latency(watch.lateness.max()));
        text.push_str(&format!(" start lateness {tail} at 99.9%, {max} at most;"));
    }
    text.push_str(&format!(" {:.2} CPUs, busiest thread {:.0}%", watch.cpu_cores, watch.cpu_share_max * 100.0));
    if let Some(wait) = watch.cpu_wait_share_max {
        text.push_str(&format!(", kept waiting {:.1}%", wait * 100.0));
    }
    if watch.realtime {
        text.push_str("; real-time priority");
    }
    text.push('\n');
    text
}

/// A time in nanoseconds: `12.34us`, `1.50ms`, `2.00s`, `3.50m`, `1.25h`.
pub fn latency(ns: u64) -> String {
    scaled(ns as f64 / 1e3, &[("us", 1e3), ("ms", 1e3), ("s", 60.0), ("m", 60.0), ("h", f64::INFINITY)])
}

/// A number of bytes: `512.00B`, `1.50KB`, `19.81MB`; the prefixes are powers of 1024.
pub fn bytes(bytes: u64) -> String {
    scaled(bytes as f64, &[("B", 1024.0), ("KB", 1024.0), ("MB", 1024.0), ("GB", 1024.0), ("TB", f64::INFINITY)])
}

/// Two decimals in the first unit in which the value is below the next unit.
fn scaled(mut value: f64, units: &[(&str, f64)]) -> String {
    for (unit, next) in units {
        // A value that rounding would lift to the next unit is shown in that.
        if value < next - 0.005 {
            return format!("{value:.2}{unit}");
        }
        value /= next;
    }
    format!("{value:.2}")
}

/// Cuts a text that is longer than a few lines.
pub fn shortened(text: &str) -> std::borrow::Cow<'_, str> {
    const CHARACTERS_MAX: usize = 200;
    match text.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

/// `1 thread`, `2 threads`
fn counted(number: impl Into<u64>, noun: &str) -> String {
    match number.into() {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{Latencies, histogram};
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    /// Three intervals, the second without requests.
    fn written() -> Vec<u8> {
        let mut log = IntervalLog::new(Vec::new()).unwrap();
        for number in 0..3_u64 {
            let (mut corrected, mut uncorrected) = (histogram(), histogram());
            if number != 1 {
                (1..=1000).for_each(|n| corrected.record(n * 1000 * (number + 1)).unwrap());
                (1..=1000).for_each(|n| uncorrected.record(n * 500 * (number + 1)).unwrap());
            }
            let interval = Interval {
                start: Duration::from_millis(number * 1000),
                length: Duration::from_millis(if number == 2 { 250 } else { 1000 }),
                of: Duration::from_secs(10),
                requests: corrected.len(),
                errors: 0,
                latencies: &Latencies { corrected, uncorrected },
            };
            log.write_ended(&interval, UNIX_EPOCH + Duration::from_millis(1_790_000_001_500)).unwrap();
        }
        log.finish().unwrap()
    }

    /// One line per event; histograms by their content, since their compression is the library's.
    fn shown(log: &[u8]) -> Vec<String> {
        let event = |entry| match entry {
            LogEntry::StartTime(time) => format!("start {:.3}", time.as_secs_f64()),
            LogEntry::BaseTime(time) => format!("base {:.3}", time.as_secs_f64()),
            LogEntry::Interval(interval) => {
                let bytes = STANDARD.decode(interval.encoded_histogram()).unwrap();
                let histogram: Histogram<u64> = Deserializer::new().deserialize(&mut bytes.as_slice()).unwrap();
                format!(
                    "{} {:?}+{:?} max {:.3}: {} values, median {}, max {}",
                    interval.tag().map_or("corrected", |tag| tag.as_str()),
                    interval.start_timestamp(),
                    interval.duration(),
                    interval.max(),
                    histogram.len(),
                    histogram.value_at_quantile(0.5),
                    histogram.max(),
                )
            }
        };
        IntervalLogIterator::new(log).map(|entry| event(entry.unwrap())).collect()
    }

    #[test]
    fn reads_back_as_it_was_recorded() {
        let log = written();
        let lines = shown(&log);
        assert_eq!(
            lines,
            [
                "base 1790000000.500",
                "start 1790000000.500",
                "corrected 0ns+1s max 1.000: 1000 values, median 500223, max 1000447",
                "uncorrected 0ns+1s max 0.500: 1000 values, median 250111, max 500223",
                "corrected 1s+1s max 0.000: 0 values, median 0, max 0",
                "uncorrected 1s+1s max 0.000: 0 values, median 0, max 0",
                "corrected 2s+250ms max 3.000: 1000 values, median 1500159, max 3000319",
                "uncorrected 2s+250ms max 1.500: 1000 values, median 750079, max 1500159",
            ]
        );
        // Another implementation of the format has read this file; `UPDATE_EXPECT=1` writes it again.
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/latencies.hlog");
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::write(file, &log).unwrap();
        }
        let kept = std::fs::read(file).unwrap();
        assert_eq!(shown(&kept), lines);
        let heading = |log: &[u8]| String::from_utf8_lossy(log).lines().take(5).collect::<Vec<_>>().join("\n");
        assert_eq!(heading(&kept), heading(&log));
    }

    #[test]
    fn times() {
        for (ns, want) in [
            (0, "0.00us"),
            (1, "0.00us"),
            (12_340, "12.34us"),
            (999_994, "999.99us"),
            (999_999, "1.00ms"),
            (1_500_000, "1.50ms"),
            (59_000_000_000, "59.00s"),
            (59_999_000_000, "1.00m"),
            (3_600_000_000_000, "1.00h"),
            (1_000_000_000_000_000_000, "277777.78h"),
        ] {
            assert_eq!(latency(ns), want, "{ns}");
        }
    }

    #[test]
    fn long_texts_are_cut() {
        assert_eq!(shortened("http://a/"), "http://a/");
        assert_eq!(shortened(&"ü".repeat(60_000)), format!("{}…", "ü".repeat(200)));
    }

    #[test]
    fn sizes() {
        for (size, want) in [
            (0, "0.00B"),
            (1023, "1023.00B"),
            (1024, "1.00KB"),
            (20_772_000, "19.81MB"),
            (1_048_575, "1.00MB"),
            (5_000_000_000_000_000, "4547.47TB"),
        ] {
            assert_eq!(bytes(size), want, "{size}");
        }
    }
}
