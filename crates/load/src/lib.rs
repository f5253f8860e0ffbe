//! A load generator for HTTP servers that keeps its schedule and watches itself.
//!
//! A closed loop sends fewer requests to a server that stalls and so hides the stall ("coordinated omission"). Here
//! every request of an open loop has an intended start; its latency counts from there (*corrected*) and from the actual
//! send (*uncorrected*). Delays of the generator itself, or of a lack of CPU, are measured too, and if they exceed a
//! bound the run is *void*: its figures would be those of the generator.
//!
//! [`run`] takes a [`Load`] and returns a [`RunSummary`]. It does not depend on gateways, experiments or terminals.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod engine;
pub mod mix;
pub mod outcome;
pub mod plan;
pub mod present;
pub mod target;
pub mod tls;
pub mod verdict;

pub use engine::{Link, LoadError, run};
pub use mix::{Mix, MixErrors};
pub use outcome::{ErrorKind, Errors, Interval, Latencies, RunSummary, SelfWatch};
pub use plan::{Arrivals, Bounds, Load, Pace, Protocol, Schedule};
pub use target::{Target, TargetError};
pub use tls::{Tickets, Tls, TlsError, Trust};
pub use verdict::{Note, Void};
