//! Metrics that never cost a request: counting is a store into memory that one thread owns, and a scrape costs what has
//! changed since the last one, in a thread that no request waits for.
//!
//! ```text
//!  registry: families, budgets            ┌ writer ──▶ segment ┐ append-only; a file on tmpfs, or one without a name
//!     │  provisioner: memory ahead  ────▶ ├ writer ──▶ segment ┤──▶ reader: merged series, sorted, encoded by chunks
//!                                         └ writer ──▶ segment ┘      └ collector: scrapes, expiry, ended processes
//! ```
//!
//! - A [`Writer`] belongs to one thread. It finds a series by its labels, or takes a [`Handle`] that it returned
//!   before, and changes it by plain stores. Another thread prepares the memory that a new label set needs; if it has
//!   not done so yet, the writer prepares some pages itself. If a family exceeds its budget, the label with the most
//!   values becomes `__other__`, and everything else stays exact.
//! - A [`Collector`] belongs to one thread too, of low priority. It reads all segments of the process, or of all
//!   processes that share a folder, merges them, and returns expositions piece by piece in three formats.
//! - A process that replaces another one is given its segments ([`Registry::hand_over`], [`Registry::inherit`]), reads
//!   them while that process runs, and carries on its totals when it has ended.
//!
//! ```
//! use stillgate_metrics::encode::Format;
//! use stillgate_metrics::{Collector, CollectorOptions, Family, Registry, RegistryOptions, SegmentProcess};
//! use std::sync::Arc;
//!
//! let process = SegmentProcess { pid: std::process::id(), start: 0 };
//! let registry = Arc::new(Registry::start(RegistryOptions::new(process, 1_795_220_833_000, 42))?);
//! let requests = registry.declare(Family::counter("http_requests_total", "Requests answered.", &["route", "code"]))?;
//! let mut writer = registry.writer()?;
//! let series = writer.series(&requests, &[b"orders", b"200"]);
//! assert!(writer.add(series, 3));
//!
//! let mut collector = Collector::of_registry(registry, CollectorOptions::default())?;
//! let text = collector.exposition(Format::Text, 1_795_220_834_000).expect("its own memory is always there");
//! assert!(text.ends_with(b"http_requests_total{route=\"orders\",code=\"200\"} 3\n"));
//! # Ok::<(), stillgate_metrics::RegistryError>(())
//! ```
//!
//! [`ProcessMetrics`] does this for all threads of a process in a few lines; `examples/axum.rs` is a server with it.
//!
//! The crate does not depend on a gateway. Except in `process.rs`, time and randomness are arguments; the only IO is mapping memory
//! (`segment/memory.rs`) and the list of segments in a shared folder (`shared/`).

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub(crate) mod declared;
pub mod encode;
pub mod family;
pub mod gzip;
pub mod labels;
pub mod process;
pub(crate) mod protocol;
pub mod reader;
pub mod registry;
pub(crate) mod segment;
pub(crate) mod shared;
mod sync;
pub mod value;
pub mod writer;

pub use declared::{DeclaredFamily, OTHER};
pub use family::{Buckets, Family, FamilyError, FamilyType, Merge, Native};
pub use process::{Metric, ProcessMetrics};
pub use registry::{Registry, RegistryError, RegistryOptions};
pub use segment::cells::EXEMPLAR_BYTES_MAX;
pub use segment::{SegmentError, SegmentProcess};
pub use shared::{CollectError, Collector, CollectorEvent, CollectorOptions, DirectoryError};
pub use value::{Distribution, Exemplar, Exponential, Value};
pub use writer::{Handle, Writer};
