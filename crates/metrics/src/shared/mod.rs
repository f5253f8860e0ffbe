//! Segments of several processes, and of ended ones: the list of them, and how totals are carried on.

mod collector;
pub(crate) mod directory;
mod ending;
mod rotation;

pub use collector::{CollectError, Collector, CollectorEvent, CollectorOptions};
pub use directory::DirectoryError;
