//! Counters of an exporter's work, written by its thread and read by any other.
//!
//! The owner of a writer decides how these numbers become series; the exporter only reads segments.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use stillgate_metrics::encode::Format;

/// Totals since the exporter began, each exact, together about the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExporterCounts {
    /// Scrapes begun in text, OpenMetrics and protobuf.
    pub text: u64,
    /// See `text`.
    pub openmetrics: u64,
    /// See `text`.
    pub protobuf: u64,
    /// Scrapes turned away, since there were too many or there was nothing to read.
    pub refused: u64,
    /// Pieces of expositions handed out.
    pub pieces: u64,
    /// Bytes of these pieces.
    pub bytes: u64,
    /// Time spent on refreshing and encoding, by the wall clock, in nanoseconds.
    pub encoding_ns: u64,
    /// Scrapes that are being sent now.
    pub scraping: u64,
}

/// The counters.
#[derive(Debug, Default)]
pub(crate) struct ExporterTally {
    text: AtomicU64,
    openmetrics: AtomicU64,
    protobuf: AtomicU64,
    refused: AtomicU64,
    pieces: AtomicU64,
    bytes: AtomicU64,
    encoding_ns: AtomicU64,
    scraping: AtomicU64,
}

impl ExporterTally {
    pub(crate) fn count_begun(&self, format: Format) {
        let counter = match format {
            Format::Text => &self.text,
            Format::OpenMetrics => &self.openmetrics,
            Format::Protobuf => &self.protobuf,
        };
        counter.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_piece(&self, bytes: usize) {
        self.pieces.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn add_encoding_time(&self, took: Duration) {
        self.encoding_ns.fetch_add(took.as_nanos() as u64, Relaxed);
    }

    pub(crate) fn count_scraping(&self, started: bool) {
        match started {
            true => self.scraping.fetch_add(1, Relaxed),
            false => self.scraping.fetch_sub(1, Relaxed),
        };
    }

    pub(crate) fn read(&self) -> ExporterCounts {
        ExporterCounts {
            text: self.text.load(Relaxed),
            openmetrics: self.openmetrics.load(Relaxed),
            protobuf: self.protobuf.load(Relaxed),
            refused: self.refused.load(Relaxed),
            pieces: self.pieces.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            encoding_ns: self.encoding_ns.load(Relaxed),
            scraping: self.scraping.load(Relaxed),
        }
    }
}
