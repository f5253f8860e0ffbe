//! The plugins that log requests: their common parts, and one file each.
//!
//! ```text
//!  log_format of the plugin, else of its metadata, else all that is known ── Format, entry ──▶ one entry
//!  entries ── Worker::send ──▶ the crate `logs`, which calls the plugin's Encode for a batch and sends it
//! ```
//!
//! An entry is written on the worker, into memory that is allocated already; batching, and everything that waits, is
//! done elsewhere.

mod coded;
mod elasticsearch_logger;
mod encoding;
mod entry;
mod file_logger;
mod format;
mod http_logger;
mod keys;
mod logger;
mod loki_logger;
mod socket_loggers;
mod syslog;

pub(crate) use elasticsearch_logger::ElasticsearchLogger;
pub(crate) use encoding::write_array;
pub(crate) use file_logger::FileLogger;
pub(crate) use http_logger::HttpLogger;
pub(crate) use keys::{HeaderSecret, URL, UrlText};
pub(crate) use loki_logger::LokiLogger;
pub(crate) use socket_loggers::{TcpLogger, UdpLogger};
pub(crate) use syslog::Syslog;
