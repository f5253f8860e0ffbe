//! A run for people and programs to read: as text, as a log of histograms.
//!
//! Pure except for the log, which writes to its sink. [`crate::outcome`] explains the figures.

mod interval_log;
mod table;
pub mod units;

pub use interval_log::IntervalLog;
pub use table::table;
