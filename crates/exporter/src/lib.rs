//! The HTTP side of the metrics: serves what a [`Collector`](stillgate_metrics::Collector) reads.
//!
//! Everything happens on one thread of low priority at a time, whatever the number of scrapers. A scrape is encoded when
//! it is asked for, a piece at a time, and only as fast as its scraper takes it; scrapers share the pieces. What there is
//! to expose, and in which form, is decided by `stillgate-metrics`.
//!
//! How connections are accepted, and under which names a server on loopback is asked for, is the same for the admin API.

#![cfg_attr(test, allow(clippy::unwrap_used))]
#![forbid(unsafe_code)]

mod answer;
mod beside;
mod connection_slots;
mod door;
mod exporter;
mod hosts;
mod negotiation;
mod server;
mod source;
mod stream;
mod tally;
mod turns;

pub use connection_slots::{CONNECTIONS_MAX, ConnectionSlot, ConnectionSlots};
pub use door::accept;
pub use exporter::{Exporter, Looker, SideDoor};
pub use hosts::{Hosts, Stranger};
pub use source::Site;
pub use tally::Counts;
