//! The tail experiment: the effect of scrapes of a gateway's metrics on its slowest requests.
//!
//! ```text
//! arguments ─▶ design ─▶ run ─▶ blocks ─▶ analysis ─▶ verdict ─▶ table
//!              order,    load,            pure: made again by `verify`
//!              seed      scraper, CPU
//! ```
//!
//! Load is open-loop at a constant rate. Blocks with scrapes alternate with blocks without, two and two, in an order
//! that the seed draws; each pair gives one difference, and only differences of pairs are compared, so whatever drifts
//! over minutes (other tenants, frequency, a growing heap) falls out. The number of pairs follows from a rule that is
//! fixed before the first and does not depend on effects: the planned number, and a spare one for each pair in which
//! the generator itself was late, while spares last. Its one weakness, a generator that is late because of the scrapes,
//! is described in `spare_pairs`.

pub(crate) mod analysis;
pub(crate) mod design;
pub(crate) mod flames;
pub(crate) mod readable;
pub(crate) mod run;
pub(crate) mod spare_pairs;
pub(crate) mod summary;
#[cfg(test)]
pub(crate) mod synthetic;
pub(crate) mod table;
pub(crate) mod verdict;
