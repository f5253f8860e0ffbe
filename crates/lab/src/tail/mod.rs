//! The tail experiment: what scrapes of a gateway's metrics do to its slowest requests.
//!
//! ```text
//! arguments ─▶ design ─▶ run ─▶ blocks ─▶ analysis ─▶ verdict ─▶ table
//!              order,    load,            pure: made again by `verify`
//!              seed      scraper, CPU
//! ```
//!
//! Load is open-loop at a constant rate. Blocks with scrapes alternate with blocks without, two and two, in an order that the
//! seed draws; each pair gives one difference, and only differences of pairs are compared, so whatever drifts over minutes
//! (other tenants, frequency, a growing heap) falls out. How many pairs there are is fixed before the first.

pub(crate) mod analysis;
pub(crate) mod design;
pub(crate) mod fairness;
pub(crate) mod readable;
pub(crate) mod run;
#[cfg(test)]
pub(crate) mod synthetic;
pub(crate) mod table;
mod verdict;
