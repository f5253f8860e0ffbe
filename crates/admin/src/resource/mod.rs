//! Reads and writes of resources.

pub(crate) mod address;
pub(crate) mod plan;
pub(crate) mod reference_table;
pub(crate) mod references;
pub(crate) mod rules;
pub(crate) mod serve;
