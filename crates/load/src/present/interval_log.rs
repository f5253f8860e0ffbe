//! Latencies over time, as a log of HdrHistograms that the public tools read (HistogramLogProcessor, analyzers, plotters).
//!
//! Format version 1.3 with compressed V2 histograms. Values are nanoseconds, the maximum of a line milliseconds: the
//! ratio of 1,000,000 that these tools assume. Each interval has two lines: the corrected one without a tag, which
//! tools show by default (Java's `HistogramLogProcessor` fails if every line has a tag), and one tagged `uncorrected`.
//! The lines are written here, because the writer of the `hdrhistogram` crate borrows its sink for its whole life and
//! writes no legend.

use crate::outcome::Interval;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializeError, V2DeflateSerializer};
use std::fmt;
use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
}
