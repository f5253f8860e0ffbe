//! A run for people and programs to read: as text, as a log of histograms.
//!
//! Pure but for the log, which writes where it is told to. What the figures mean is in [`crate::outcome`].

mod interval_log;
mod table;
pub mod units;

pub use interval_log::IntervalLog;
pub use table::table;
