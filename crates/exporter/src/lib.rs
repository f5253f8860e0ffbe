//! The HTTP side of the metrics: serves what a [`Collector`](stillgate_metrics::Collector) reads.
//!
//! Everything happens on one thread of low priority at a time, whatever the number of scrapers. A scrape is encoded on
//! request, a piece at a time, and only as fast as its scraper takes it; scrapers share the pieces. `stillgate-metrics`
//! decides what is exposed, and in which form.

#![cfg_attr(test, allow(clippy::unwrap_used))]
#![forbid(unsafe_code)]

mod answer;
mod exporter;
mod server;
mod source;
mod turns;

pub use exporter::{CollectorReader, Exporter, ScrapeForwarder};
pub use source::{ExporterCounts, ExpositionSite};
