//! Reads and writes of resources.

pub(crate) mod address;
mod merge;
pub(crate) mod plan;
pub(crate) mod precondition;
mod read;
pub(crate) mod reference_table;
pub(crate) mod references;
pub(crate) mod rules;
pub(crate) mod serve;
pub(crate) mod view;
